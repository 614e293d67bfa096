/* test_source.c -- what a tenant may write as a source, where a connection may go, AWS's signature
 * against botocore's. */
#include <arpa/inet.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <check.h>

#include "engine/base/json.h"
#include "gateway/fetch/sigv4.h"
#include "gateway/fetch/source.h"
#include "tests/run_suite.h"

static const source_rules rules = {
    .hosts = "files.example.com, Store.example.com:8443,hub.example.com 192.0.2.9",
    .networks = "",
    .hub = "https://hub.example.com",
    .s3_endpoint = "https://store.example.com:8443/s3",
    .s3_region = "us-east-1",
    .ca_file = ""};

#define SHA "sha256:0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"

START_TEST(sources)
{
    static const struct {
        const char *text, *url, *host;
        int port;
        source_form form;
        bool s3;
    } cases[] = {
        {"https://files.example.com/a/b", "https://files.example.com/a/b", "files.example.com", 443,
         SOURCE_FOLDER, false},
        {"HTTPS://FILES.example.com:443/a/", "HTTPS://FILES.example.com:443/a", "FILES.example.com",
         443, SOURCE_FOLDER, false},
        {"https://files.example.com/a.tar", "https://files.example.com/a.tar", "files.example.com",
         443, SOURCE_TAR, false},
        {"https://store.example.com:8443/x/y.GGUF", "https://store.example.com:8443/x/y.GGUF",
         "store.example.com", 8443, SOURCE_GGUF, false},
        {"hf://me/mine", "https://hub.example.com/me/mine/resolve/main", "hub.example.com", 443,
         SOURCE_FOLDER, false},
        {"hf://me/mine@v1.2/sub/x", "https://hub.example.com/me/mine/resolve/v1.2/sub/x",
         "hub.example.com", 443, SOURCE_FOLDER, false},
        {"s3://bucket/a/b/", "https://store.example.com:8443/s3/bucket/a/b", "store.example.com",
         8443, SOURCE_FOLDER, true},
        {"oci://store.example.com:8443/team/legal-7:v1.2",
         "https://store.example.com:8443/v2/team/legal-7", "store.example.com", 8443,
         SOURCE_ARTIFACT, false},
        {"oci://files.example.com/a.tar", "https://files.example.com/v2/a.tar", "files.example.com",
         443, SOURCE_ARTIFACT, false},
        {"OCI://192.0.2.9/a/b/c@" SHA, "https://192.0.2.9/v2/a/b/c", "192.0.2.9", 443,
         SOURCE_ARTIFACT, false},
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++) {
        source s;
        err e;
        ck_assert_msg(!source_parse(&s, cases[i].text, &rules, &e), "%s: %s", cases[i].text, e.msg);
        ck_assert_str_eq(s.url, cases[i].url);
        ck_assert_str_eq(s.host, cases[i].host);
        ck_assert_int_eq(s.port, cases[i].port);
        ck_assert_int_eq(s.form, cases[i].form);
        ck_assert_int_eq(s.s3, cases[i].s3);
    }
}
END_TEST

/* What cannot be meant, and ways around the list of hosts. */
static const char *const wrong[] = {
    "",
    "a",
    "files.example.com/a",
    "/etc/passwd",
    "file:///etc/passwd",
    "http://files.example.com/a",
    "ftp://files.example.com/a",
    "gopher://files.example.com/a",
    "data:,x",
    "dict://x/y",
    "ldap://files.example.com/a",
    "https://",
    "https:///a",
    "https://files.example.com",
    "https://files.example.com/",
    "https://files.example.com//a",
    "https://files.example.com/a//b",
    "https://files.example.com/a/../b",
    "https://files.example.com/./b",
    "https://files.example.com/..",
    "https://files.example.com/%2e%2e/b",
    "https://files.example.com/a?x=1",
    "https://files.example.com/a#b",
    "https://files.example.com/a b",
    "https://files.example.com/a\nb",
    "https://files.example.com/a\\b",
    "https://files.example.com/a\tb",
    "https://files.example.com/\x7f",
    "https://files.example.com/\xc3\xa9",
    "https://files.example.com/a;b",
    "https://files.example.com/a&b",
    "https://files.example.com/<a>",
    "https://files.example.com/a\"b",
    "https://me@files.example.com/a",
    "https://me:pw@files.example.com/a",
    "https://:pw@files.example.com/a",
    "https://files.example.com@127.0.0.1/a",
    "https://127.0.0.1@files.example.com/a",
    "https://files.example.com:80/a",
    "https://files.example.com:8443/a",
    "https://store.example.com/a",
    "https://store.example.com:443/a",
    "https://store.example.com:99999/a",
    "https://files.example.com:x/a",
    "https://files.example.com./a",
    "https://files.example.com.evil.com/a",
    "https://evil.com/files.example.com",
    "https://xfiles.example.com/a",
    "https://example.com/a",
    "https://files.example.co/a",
    "https://files/a",
    "https://evil.com/a",
    "https://127.0.0.1/a",
    "https://127.1/a",
    "https://2130706433/a",
    "https://0x7f000001/a",
    "https://0177.0.0.1/a",
    "https://0/a",
    "https://localhost/a",
    "https://[::1]/a",
    "https://[::ffff:127.0.0.1]/a",
    "https://[::]/a",
    "https://169.254.169.254/latest/meta-data",
    "https://[fd00:ec2::254]/a",
    "https://192.0.2.10/a",
    "https://metadata.google.internal/a",
    "https://[fe80::1%25eth0]/a",
    "https://files.example.com:443:443/a",
    "https:files.example.com/a",
    "https:/files.example.com/a",
    "//files.example.com/a",
    " https://files.example.com/a",
    "https://files.example.com /a",
    "https:// files.example.com/a",
    "https://files.example.com\t/a",
    "hf://",
    "hf://a",
    "hf://a/",
    "hf:///a",
    "hf://a/@b",
    "hf://a/b@",
    "hf://a/b@/c",
    "hf://a/../c",
    "hf://../b",
    "hf://a/b@..",
    "hf://a/b/..",
    "hf://a/b//c",
    "hf://a/b?c",
    "hf://a/b@v/../../x",
    "hf://a b/c",
    "s3://",
    "s3:///a",
    "s3://../b",
    "s3://a/../b",
    "s3://a//b",
    "s3://a/b c",
    "s3://a/%2e%2e",
    "S3:/a/b",
    "hf:/a/b",
    "oci://",
    "oci:///a",
    "oci://files.example.com",
    "oci://files.example.com/",
    "oci://files.example.com//a",
    "oci://files.example.com/a//b",
    "oci://files.example.com/a/",
    "oci://files.example.com/../a",
    "oci://files.example.com/a/../../b",
    "oci://files.example.com/./a",
    "oci://files.example.com/A",
    "oci://files.example.com/a b",
    "oci://files.example.com/a:",
    "oci://files.example.com/a:b/c",
    "oci://files.example.com/a:..",
    "oci://files.example.com/a:.b",
    "oci://files.example.com/a:-b",
    "oci://files.example.com/a:b:c",
    "oci://files.example.com/a:b@c",
    "oci://files.example.com/a@",
    "oci://files.example.com/a@sha256:",
    "oci://files.example.com/a@sha256:00",
    "oci://files.example.com/a@md5:0123456789abcdef0123456789abcdef",
    "oci://files.example.com/a?n=1",
    "oci://files.example.com/a#b",
    "oci://files.example.com/%2e%2e/a",
    "oci://evil.com/a",
    "oci://files.example.com:8443/a",
    "oci://files.example.com.evil.com/a",
    "oci://me@files.example.com/a",
    "oci://me:pw@files.example.com/a",
    "oci://files.example.com@127.0.0.1/a",
    "oci://127.0.0.1/a",
    "oci://[::1]/a",
    "oci://localhost:5000/a",
    "oci://169.254.169.254/latest",
    "oci://files.example.com\\@evil.com/a",
    "oci:/files.example.com/a",
    "oci://files.example.com/a@" SHA "0",
    "oci://files.example.com/a:" SHA,
    "oci://files.example.com/"
    "a@sha256:0123456789ABCDEF0123456789abcdef0123456789abcdef0123456789abcdef",
};

START_TEST(refused)
{
    char longest[SOURCE_URL_MAX];
    source s;
    err e;
    for (size_t i = 0; i < sizeof(wrong) / sizeof(*wrong); i++)
        ck_assert_msg(source_parse(&s, wrong[i], &rules, &e) < 0, "%s was taken as %s", wrong[i],
                      s.url);
    memset(longest, 'a', sizeof(longest));
    memcpy(longest, "https://files.example.com/", 26);
    longest[sizeof(longest) - 1] = 0;
    ck_assert_int_eq(source_parse(&s, longest, &rules, &e), ERR_INPUT);
    source_rules none = rules;
    none.hosts = none.hub = none.s3_endpoint = "";
    ck_assert_int_eq(source_parse(&s, "https://files.example.com/a", &none, &e), ERR_DENIED);
    ck_assert_int_eq(source_parse(&s, "hf://a/b", &none, &e), ERR_DENIED);
    ck_assert_int_eq(source_parse(&s, "s3://a/b", &none, &e), ERR_DENIED);
}
END_TEST

static network_address of(const char *text)
{
    struct sockaddr_storage s = {.ss_family = strchr(text, ':') ? AF_INET6 : AF_INET};
    struct sockaddr_in v4 = {.sin_family = AF_INET};
    struct sockaddr_in6 v6 = {.sin6_family = AF_INET6};
    void *to = s.ss_family == AF_INET ? (void *)&v4.sin_addr : (void *)&v6.sin6_addr;
    ck_assert_msg(inet_pton(s.ss_family, text, to) == 1, "%s", text);
    if (s.ss_family == AF_INET)
        memcpy(&s, &v4, sizeof(v4));
    else
        memcpy(&s, &v6, sizeof(v6));
    return networks_of_socket(&s);
}

/* Addresses that no connection may go to. */
static const char *const inner[] = {
    "0.0.0.0",
    "0.1.2.3",
    "0.255.255.255",
    "10.0.0.0",
    "10.1.2.3",
    "10.255.255.255",
    "100.64.0.0",
    "100.100.100.200",
    "100.127.255.255",
    "127.0.0.0",
    "127.0.0.1",
    "127.0.0.53",
    "127.1.2.3",
    "127.255.255.255",
    "169.254.0.0",
    "169.254.169.254",
    "169.254.170.2",
    "169.254.255.255",
    "172.16.0.0",
    "172.17.0.1",
    "172.31.255.255",
    "192.0.0.0",
    "192.0.0.8",
    "192.0.0.192",
    "192.0.2.1",
    "192.88.99.1",
    "192.168.0.0",
    "192.168.1.1",
    "192.168.255.255",
    "198.18.0.0",
    "198.19.255.255",
    "198.51.100.7",
    "203.0.113.9",
    "224.0.0.1",
    "239.255.255.250",
    "240.0.0.1",
    "255.255.255.254",
    "255.255.255.255",
    "::",
    "::1",
    "::2",
    "::7f00:1",
    "::10.0.0.1",
    "::ffff:0.0.0.0",
    "::ffff:10.0.0.1",
    "::ffff:127.0.0.1",
    "::ffff:169.254.169.254",
    "::ffff:192.168.0.1",
    "64:ff9b::",
    "64:ff9b::127.0.0.1",
    "64:ff9b::a9fe:a9fe",
    "64:ff9b:1::1",
    "64:ff9b:1:ffff::1",
    "100::",
    "100::1",
    "2001::1",
    "2001:0:a9fe:a9fe::1",
    "2001:2::1",
    "2001:10::1",
    "2001:20::1",
    "2001:db8::",
    "2001:db8::1",
    "2001:db8:ffff::1",
    "2002::",
    "2002:7f00:1::",
    "2002:a9fe:a9fe::1",
    "2002:c0a8:101::1",
    "fc00::",
    "fc00::1",
    "fd00::1",
    "fd00:ec2::254",
    "fdff:ffff::1",
    "fe80::",
    "fe80::1",
    "fe80::a9fe:a9fe",
    "febf::1",
    "fec0::1",
    "feff::1",
    "ff00::1",
    "ff02::1",
    "ff02::2",
    "ff0e::1",
    "ffff::1",
};

START_TEST(addresses)
{
    static const char *const outer[] = {
        "1.1.1.1",        "9.255.255.255",        "11.0.0.0",   "100.63.255.255",
        "100.128.0.0",    "126.255.255.255",      "128.0.0.0",  "169.253.255.255",
        "169.255.0.0",    "172.15.255.255",       "172.32.0.0", "192.167.255.255",
        "192.169.0.0",    "198.17.255.255",       "198.20.0.0", "223.255.255.255",
        "::ffff:1.1.1.1", "2001:4860:4860::8888", "2003::1",    "2606:4700::1111",
        "2a00::1"};
    source_rules own = rules;
    for (size_t i = 0; i < sizeof(inner) / sizeof(*inner); i++) {
        network_address a = of(inner[i]);
        ck_assert_msg(!source_may_reach(&rules, &a), "%s", inner[i]);
    }
    for (size_t i = 0; i < sizeof(outer) / sizeof(*outer); i++) {
        network_address a = of(outer[i]);
        ck_assert_msg(source_may_reach(&rules, &a), "%s", outer[i]);
    }
    own.networks = "10.0.0.0/8,::1";
    network_address mine = of("10.1.2.3"), lo = of("::1"), other = of("192.168.1.1"),
                    unknown = {.bits = 0};
    ck_assert(source_may_reach(&own, &mine) && source_may_reach(&own, &lo));
    ck_assert(!source_may_reach(&own, &other) && !source_may_reach(&own, &unknown));
}
END_TEST

START_TEST(options)
{
    err e;
    ck_assert_int_eq(source_check_hosts("", &e), ERR_NONE);
    ck_assert_int_eq(source_check_hosts("a.b, c:1,[::1]:2", &e), ERR_NONE);
    ck_assert_int_eq(source_check_hosts("https://a", &e), ERR_INPUT);
    ck_assert_int_eq(source_check_hosts("a/b", &e), ERR_INPUT);
    ck_assert_int_eq(source_check_base("https://a.b:1/c", &e), ERR_NONE);
    ck_assert_int_eq(source_check_base("http://a.b", &e), ERR_INPUT);
    ck_assert_int_eq(source_check_base("https://u@a.b", &e), ERR_INPUT);
    ck_assert_int_eq(source_check_base("https://a.b/..", &e), ERR_INPUT);
}
END_TEST

static const char *text_of(const cJSON *row, const char *name)
{
    const cJSON *v = json_get(row, name);
    return cJSON_IsString(v) ? v->valuestring : NULL;
}

enum { SIGNATURES = 33 };

/* What this file holds against requests to places that they should not reach, and signatures. */
START_TEST(enough)
{
    ck_assert_uint_ge(sizeof(wrong) / sizeof(*wrong) + sizeof(inner) / sizeof(*inner) + SIGNATURES,
                      200);
}
END_TEST

START_TEST(signatures)
{
    char line[8192];
    size_t n_rows = 0;
    FILE *f = fopen("fixtures/sigv4.json", "r");
    ck_assert_ptr_nonnull(f);
    while (fgets(line, sizeof(line), f)) {
        if (line[0] != '{') continue;
        cJSON *row = cJSON_Parse(line);
        sigv4_key key = {text_of(row, "id"), text_of(row, "secret"), text_of(row, "session"),
                         text_of(row, "region")};
        char path[SIGV4_PATH_MAX], authorization[SIGV4_HEADER_MAX], date[SIGV4_DATE_MAX];
        ck_assert(sigv4_path(text_of(row, "path"), path, sizeof(path)));
        ck_assert_str_eq(path, text_of(row, "asked"));
        time_t now = (time_t)json_get(row, "time")->valuedouble;
        const sigv4_call call = {text_of(row, "method"), text_of(row, "host"), path,
                                 text_of(row, "payload")};
        ck_assert(sigv4_authorize(&key, &call, now, authorization, date));
        ck_assert_str_eq(date, text_of(row, "date"));
        ck_assert_str_eq(authorization, text_of(row, "authorization"));
        cJSON_Delete(row);
        n_rows++;
    }
    ck_assert_int_eq(fclose(f), 0);
    ck_assert_uint_eq(n_rows, SIGNATURES);
    char small[8], secret[400];
    ck_assert(!sigv4_path("/1234567", small, sizeof(small)));
    memset(secret, 'x', sizeof(secret));
    secret[sizeof(secret) - 1] = 0;
    char authorization[SIGV4_HEADER_MAX], date[SIGV4_DATE_MAX];
    const sigv4_call call = {"GET", "h", "/", SIGV4_UNSIGNED};
    ck_assert(
        !sigv4_authorize(&(sigv4_key){"a", secret, NULL, "r"}, &call, 0, authorization, date));
}
END_TEST

int main(void)
{
    Suite *s = suite_create("source");
    TCase *tc = tcase_create("all");
    tcase_add_test(tc, sources);
    tcase_add_test(tc, refused);
    tcase_add_test(tc, addresses);
    tcase_add_test(tc, options);
    tcase_add_test(tc, signatures);
    tcase_add_test(tc, enough);
    suite_add_tcase(s, tc);
    return run_suite(s);
}
