/* test_networks.c -- blocks, addresses, and whose word counts for an address. */
#include <arpa/inet.h>
#include <netinet/in.h>
#include <stdlib.h>
#include <string.h>

#include <check.h>

#include "gateway/http/networks.h"
#include "tests/gateway/http/fake_civetweb.h"
#include "tests/run_suite.h"

static network_address of(const char *text)
{
    struct sockaddr_storage s = {.ss_family = strchr(text, ':') ? AF_INET6 : AF_INET};
    struct sockaddr_in v4 = {.sin_family = AF_INET};
    struct sockaddr_in6 v6 = {.sin6_family = AF_INET6};
    if (s.ss_family == AF_INET) {
        ck_assert_int_eq(inet_pton(AF_INET, text, &v4.sin_addr), 1);
        memcpy(&s, &v4, sizeof(v4));
    } else {
        ck_assert_int_eq(inet_pton(AF_INET6, text, &v6.sin6_addr), 1);
        memcpy(&s, &v6, sizeof(v6));
    }
    return networks_of_socket(&s);
}

static const char *canonical(const char *text)
{
    static char out[NETWORK_TEXT_MAX];
    err e;
    return networks_canonical(text, out, &e) ? "?" : out;
}

START_TEST(one_form)
{
    ck_assert_str_eq(canonical("10.0.0.0/8"), "10.0.0.0/8");
    ck_assert_str_eq(canonical("192.0.2.7"), "192.0.2.7/32");
    ck_assert_str_eq(canonical("0.0.0.0/0"), "0.0.0.0/0");
    ck_assert_str_eq(canonical("::/0"), "::/0");
    ck_assert_str_eq(canonical("2001:DB8:0::/32"), "2001:db8::/32");
    ck_assert_str_eq(canonical("2001:db8::1"), "2001:db8::1/128");
    ck_assert_str_eq(canonical("::ffff:192.0.2.0/120"), "192.0.2.0/24");
    ck_assert_str_eq(canonical("::ffff:192.0.2.9"), "192.0.2.9/32");
    static const char *const wrong[] = {
        "",           "/8",          "10.0.0.0/",         "10.0.0.0/33",     "10.0.0.0/-1",
        "10.0.0/8",   "10.0.0.0/8x", "10.0.0.0/08",       "2001:db8::/129",  "10.0.0.0/ 8",
        "fe80::1%lo", "localhost",   "::ffff:1.2.3.0/95", "1.2.3.4,5.6.7.8", "10.0.0.0/8/8",
        "010.0.0.1"};
    for (size_t i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++)
        ck_assert_msg(strcmp(canonical(wrong[i]), "?") == 0, "%s", wrong[i]);
    err e;
    char out[NETWORK_TEXT_MAX];
    ck_assert_int_eq(networks_canonical("10.1.2.3/8", out, &e), ERR_INPUT);
    ck_assert_ptr_nonnull(strstr(e.msg, "is 10.0.0.0/8 meant?"));
    ck_assert_int_eq(networks_check_list("10.0.0.0/8, ::1", &e), ERR_NONE);
    ck_assert_int_eq(networks_check_list("", &e), ERR_NONE);
    ck_assert_int_eq(networks_check_list("10.0.0.0/8,x", &e), ERR_INPUT);
}
END_TEST

static bool held(const char *list, const char *text)
{
    network_address a = of(text);
    return networks_hold(list, &a);
}

START_TEST(what_a_block_holds)
{
    ck_assert(held("10.0.0.0/8", "10.255.255.255"));
    ck_assert(!held("10.0.0.0/8", "11.0.0.0"));
    ck_assert(held("192.0.2.0/25,198.51.100.7/32", "198.51.100.7"));
    ck_assert(held("192.0.2.128/25", "192.0.2.128") && !held("192.0.2.128/25", "192.0.2.127"));
    ck_assert(held("0.0.0.0/0", "203.0.113.9") && !held("0.0.0.0/0", "2001:db8::1"));
    ck_assert(held("::/0", "2001:db8::1") && !held("::/0", "203.0.113.9"));
    ck_assert(held("10.0.0.0/8", "::ffff:10.1.2.3")); /* as a listener on [::] sees it */
    ck_assert(!held("::/0", "::ffff:10.1.2.3"));
    ck_assert(held("2001:db8:0:4::/62", "2001:db8:0:7:ffff::1"));
    ck_assert(!held("2001:db8:0:4::/62", "2001:db8:0:8::1"));
    ck_assert(!held("", "10.0.0.1") && !held("nonsense,10.0.0.0/99", "10.0.0.1"));
    network_address unknown = {.bits = 0};
    ck_assert(!networks_hold("0.0.0.0/0,::/0", &unknown));
}
END_TEST

/* Every prefix of every length against a plain loop over bits. */
START_TEST(prefixes_bit_by_bit)
{
    srandom(1);
    for (int i = 0; i < 20000; i++) {
        int bits = i % 2 ? 32 : 128, n = (int)(random() % (bits + 1));
        network_address a = {.bits = bits}, b;
        char block[NETWORK_TEXT_MAX], text[NETWORK_TEXT_MAX];
        for (int k = 0; k < bits / 8; k++) a.b[k] = (uint8_t)random();
        a.b[0] |= 1; /* not ::ffff:0:0/96 */
        b = a;
        for (int k = n; k < bits; k++) b.b[k / 8] &= (uint8_t) ~(0x80 >> (k % 8));
        networks_print(&b, text);
        if (bits == 128 && n < 8) continue;
        snprintf(block, sizeof(block), "%.45s/%d", text, n);
        ck_assert_str_eq(canonical(block), block);
        ck_assert_msg(networks_hold(block, &a), "%s", block);
        if (n == 0) continue;
        int flip = (int)(random() % n);
        a.b[flip / 8] ^= (uint8_t)(0x80 >> (flip % 8));
        ck_assert_msg(!networks_hold(block, &a), "%s", block);
    }
}
END_TEST

static const char *client(const char *proxies, const char *peer, const char *one, const char *two)
{
    static char out[NETWORK_TEXT_MAX];
    (void)fake_request("GET", "/");
    if (one) fake_header("X-Forwarded-For", one);
    fake_header("X-Other", "192.0.2.99");
    if (two) fake_header("x-forwarded-for", two);
    network_address a = networks_client(proxies, of(peer), &fake_conn.ri);
    networks_print(&a, out);
    return out;
}

START_TEST(whose_word_counts)
{
    /* Nobody is trusted, or not this one: the header is a stranger's claim. */
    ck_assert_str_eq(client("", "127.0.0.1", "192.0.2.1", NULL), "127.0.0.1");
    ck_assert_str_eq(client("10.0.0.0/8", "127.0.0.1", "192.0.2.1", NULL), "127.0.0.1");
    const char *p = "127.0.0.1/32,10.0.0.0/8,2001:db8::/48";
    ck_assert_str_eq(client(p, "127.0.0.1", NULL, NULL), "127.0.0.1");
    ck_assert_str_eq(client(p, "127.0.0.1", "192.0.2.1", NULL), "192.0.2.1");
    ck_assert_str_eq(client(p, "::ffff:127.0.0.1", "192.0.2.1", NULL), "192.0.2.1");
    /* What the client itself has claimed stands left of what the proxies saw. */
    ck_assert_str_eq(client(p, "127.0.0.1", "198.51.100.1, 192.0.2.1", NULL), "192.0.2.1");
    ck_assert_str_eq(client(p, "127.0.0.1", "198.51.100.1", "192.0.2.1"), "192.0.2.1");
    ck_assert_str_eq(client(p, "127.0.0.1", "198.51.100.1,192.0.2.1,10.1.1.1", "10.2.2.2"),
                     "192.0.2.1");
    ck_assert_str_eq(client(p, "127.0.0.1", "192.0.2.1:443", NULL), "192.0.2.1");
    ck_assert_str_eq(client(p, "127.0.0.1", "[2001:db8:1::9]:443", NULL), "2001:db8:1::9");
    ck_assert_str_eq(client(p, "127.0.0.1", "2001:db8:1::9", NULL), "2001:db8:1::9");
    ck_assert_str_eq(client(p, "127.0.0.1", "2001:db8::9", NULL),
                     "2001:db8::9"); /* all are proxies */
    static const char *const odd[] = {"",   "unknown", "_hidden", "192.0.2.1,", "192.0.2", "[::1",
                                      "[]", ":",       " ",       "192.0.2.1:", "a:1.2.3"};
    for (size_t i = 0; i < sizeof(odd) / sizeof(odd[0]); i++) {
        const char *got = client(p, "127.0.0.1", odd[i], NULL);
        bool plain = strcmp(odd[i], "192.0.2.1:") == 0;
        ck_assert_msg(strcmp(got, plain ? "192.0.2.1" : "unknown") == 0, "'%s': %s", odd[i], got);
    }
}
END_TEST

int main(void)
{
    Suite *s = suite_create("networks");
    TCase *tc = tcase_create("all");
    tcase_add_test(tc, one_form);
    tcase_add_test(tc, what_a_block_holds);
    tcase_add_test(tc, prefixes_bit_by_bit);
    tcase_add_test(tc, whose_word_counts);
    suite_add_tcase(s, tc);
    return run_suite(s);
}
