/* test_safetensors.c -- good files are read, and each way to lie is caught.
 *
 * Files are made in memory: a header as text, then `data` zero bytes.  The bad ones follow the
 * published attacks on loaders (duplicate names, products that wrap, holes, overlaps, offsets
 * near 2^64, polyglots) and the rules that are our own (names, empty tensors, unknown fields).
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <check.h>

#include "engine/model/safetensors.h"
#include "tests/run_suite.h"

/* A file: length prefix, header, `data_bytes` bytes that count up.  Exact heap size, so that
 * AddressSanitizer sees one byte too far. */
static uint8_t *file_make(const char *header, size_t header_len, size_t data_bytes, size_t *len)
{
    *len = 8 + header_len + data_bytes;
    uint8_t *f = malloc(*len);
    ck_assert_ptr_nonnull(f);
    for (int i = 0; i < 8; i++) f[i] = (uint8_t)((uint64_t)header_len >> (8 * i));
    memcpy(f + 8, header, header_len);
    for (size_t i = 0; i < data_bytes; i++) f[8 + header_len + i] = (uint8_t)i;
    return f;
}

#define T(name, dtype, shape, offsets) \
    "\"" name "\":{\"dtype\":\"" dtype "\",\"shape\":" shape ",\"data_offsets\":" offsets "}"

typedef struct verdict {
    const char *header;
    size_t data_bytes;
    err_code code;
    const char *says; /* part of the message */
} verdict;

static const verdict good[] = {
    {"{" T("a", "F32", "[2,2]", "[0,16]") "}", 16, ERR_NONE, ""},
    {"{" T("a", "F32", "[2,2]", "[0,16]") "}      ", 16, ERR_NONE, ""},
    {"{ \"a\" : {\"shape\" : [ 2 ,2 ],\n\t\"data_offsets\":[0 , 16],\r\"dtype\":\"F32\"} }", 16,
     ERR_NONE, ""},
    {"{" T("b", "F16", "[4]", "[8,16]") "," T("a", "BF16", "[4]", "[0,8]") "}", 16, ERR_NONE, ""},
    {"{\"__metadata__\":{\"format\":\"pt\",\"k\":\"\\u00e9\\ud83d\\ude00 \xc3\xa9\"}," T(
         "a", "F32", "[]", "[0,4]") "}",
     4, ERR_NONE, ""},
    {"{\"__metadata__\":{}," T("a", "F4", "[2,2]", "[0,2]") "}", 2, ERR_NONE, ""},
    {"{}", 0, ERR_NONE, ""},
};

static const verdict bad[] = {
    /* JSON that is none */
    {"", 0, ERR_CORRUPT, "header is empty"},
    {"[]", 0, ERR_CORRUPT, "begin with"},
    {"\"x\"", 0, ERR_CORRUPT, "begin with"},
    {" {}", 0, ERR_CORRUPT, "begin with"},
    {"\xef\xbb\xbf{}", 0, ERR_CORRUPT, "begin with"},
    {"{", 0, ERR_CORRUPT, "expected"},
    {"{}x", 0, ERR_CORRUPT, "behind"},
    {"{}\n", 0, ERR_CORRUPT, "behind"},
    {"{,}", 0, ERR_CORRUPT, "expected"},
    {"{/* */}", 0, ERR_CORRUPT, "expected"},
    {"{" T("a", "F32", "[1]", "[0,4]") ",}", 4, ERR_CORRUPT, "expected"},
    {"{" T("a", "F32", "[1]", "[0,4]"), 4, ERR_CORRUPT, "expected"},
    {"{" T("a", "F32", "[1,]", "[0,4]") "}", 4, ERR_CORRUPT, "whole number"},
    {"{\"a", 0, ERR_CORRUPT, "without end"},
    {"{\"a\"", 0, ERR_CORRUPT, "expected ':'"},
    {"{\"a\":", 0, ERR_CORRUPT, "object"},
    {"{\"a\":null}", 0, ERR_CORRUPT, "object"},
    {"{\"a\":[\"F32\",[1],[0,4]]}", 4, ERR_CORRUPT, "object"},
    {"{\"a\":{}}", 0, ERR_CORRUPT, "expected a string"},
    /* names */
    {"{" T("", "F32", "[1]", "[0,4]") "}", 4, ERR_CORRUPT, "empty tensor name"},
    {"{" T("a b", "F32", "[1]", "[0,4]") "}", 4, ERR_CORRUPT, "character"},
    {"{" T("../../etc/passwd", "F32", "[1]", "[0,4]") "}", 4, ERR_CORRUPT, "character"},
    {"{" T("a\x1b[2J", "F32", "[1]", "[0,4]") "}", 4, ERR_CORRUPT, "character"},
    {"{" T("a\n", "F32", "[1]", "[0,4]") "}", 4, ERR_CORRUPT, "character"},
    {"{" T("\\u0061", "F32", "[1]", "[0,4]") "}", 4, ERR_CORRUPT, "character"},
    {"{" T("a\\u0000", "F32", "[1]", "[0,4]") "}", 4, ERR_CORRUPT, "character"},
    {"{" T("\xc3\xa9", "F32", "[1]", "[0,4]") "}", 4, ERR_CORRUPT, "character"},
    {"{" T("\xc0\xaf", "F32", "[1]", "[0,4]") "}", 4, ERR_CORRUPT, "character"},
    {"{" T("a", "F32", "[1]", "[0,4]") "," T("a", "F32", "[1]", "[4,8]") "}", 8, ERR_CORRUPT,
     "duplicate tensor 'a'"},
    {"{" T("a", "F32", "[1]", "[0,4]") "," T("a", "U8", "[4]", "[0,4]") "}", 4, ERR_CORRUPT,
     "duplicate tensor 'a'"},
    /* fields */
    {"{\"a\":{\"dtype\":\"F32\",\"shape\":[1]}}", 4, ERR_CORRUPT, "missing"},
    {"{\"a\":{\"dtype\":\"F32\",\"data_offsets\":[0,4]}}", 4, ERR_CORRUPT, "missing"},
    {"{\"a\":{\"shape\":[1],\"data_offsets\":[0,4]}}", 4, ERR_CORRUPT, "missing"},
    {"{\"a\":{\"dtype\":\"F32\",\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]}}", 4,
     ERR_CORRUPT, "duplicate field"},
    {"{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4],\"x\":1}}", 4, ERR_CORRUPT,
     "unknown field"},
    {"{" T("a", "F33", "[1]", "[0,4]") "}", 4, ERR_CORRUPT, "unknown dtype 'F33'"},
    {"{" T("a", "f32", "[1]", "[0,4]") "}", 4, ERR_CORRUPT, "unknown dtype"},
    {"{\"a\":{\"dtype\":1,\"shape\":[1],\"data_offsets\":[0,4]}}", 4, ERR_CORRUPT, "string"},
    {"{\"a\":{\"dtype\":\"F32\",\"shape\":1,\"data_offsets\":[0,4]}}", 4, ERR_CORRUPT, "array"},
    {"{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":4}}", 4, ERR_CORRUPT, "array"},
    /* numbers */
    {"{" T("a", "F32", "[-1]", "[0,4]") "}", 4, ERR_CORRUPT, "whole number"},
    {"{" T("a", "F32", "[+1]", "[0,4]") "}", 4, ERR_CORRUPT, "whole number"},
    {"{" T("a", "F32", "[01]", "[0,4]") "}", 4, ERR_CORRUPT, "whole number"},
    {"{" T("a", "F32", "[\"1\"]", "[0,4]") "}", 4, ERR_CORRUPT, "whole number"},
    {"{" T("a", "F32", "[1.0]", "[0,4]") "}", 4, ERR_CORRUPT, "not an integer"},
    {"{" T("a", "F32", "[1e0]", "[0,4]") "}", 4, ERR_CORRUPT, "not an integer"},
    {"{" T("a", "F32", "[-0]", "[0,4]") "}", 4, ERR_CORRUPT, "whole number"},
    {"{" T("a", "F32", "[18446744073709551616]", "[0,4]") "}", 4, ERR_CORRUPT, "2^64"},
    {"{" T("a", "F32", "[1]", "[0]") "}", 4, ERR_CORRUPT, "two numbers"},
    {"{" T("a", "F32", "[1]", "[0,4,8]") "}", 4, ERR_CORRUPT, "two numbers"},
    {"{" T("a", "F32", "[1]", "[-1000000,-1]") "}", 4, ERR_CORRUPT, "whole number"},
    /* sizes */
    {"{" T("a", "F32", "[0]", "[0,0]") "}", 0, ERR_CORRUPT, "empty"},
    {"{" T("a", "F32", "[2,0]", "[0,0]") "," T("b", "F32", "[1]", "[0,4]") "}", 4, ERR_CORRUPT,
     "empty"},
    {"{" T("a", "F32", "[0,18446744073709551615,18446744073709551615]", "[0,0]") "}", 0,
     ERR_CORRUPT, "empty"},
    {"{" T("a", "F32", "[18446744073709551615,18446744073709551615,0]", "[0,0]") "}", 0,
     ERR_CORRUPT, "empty"},
    {"{" T("a", "F32", "[4194305,4194305,211106198978564]", "[0,16]") "}", 16, ERR_CORRUPT,
     "overflow"},
    {"{" T("a", "F32", "[4294967296,4294967296]", "[0,0]") "}", 0, ERR_CORRUPT, "overflow"},
    {"{" T("a", "F64", "[2305843009213693952]", "[0,0]") "}", 0, ERR_CORRUPT, "overflow"},
    {"{" T("a", "F32", "[1000,1000]", "[0,4]") "}", 4, ERR_CORRUPT, "4000000 bytes"},
    {"{" T("a", "F32", "[1]", "[0,8]") "}", 8, ERR_CORRUPT, "its offsets give 8"},
    {"{" T("a", "F4", "[3]", "[0,1]") "}", 1, ERR_CORRUPT, "its shape needs"},
    /* layout */
    {"{" T("a", "F32", "[1]", "[4,0]") "}", 4, ERR_CORRUPT, "before its start"},
    {"{" T("a", "F32", "[1]", "[4,8]") "}", 8, ERR_CORRUPT, "unused bytes are before"},
    {"{" T("a", "F32", "[1]", "[0,4]") "," T("b", "F32", "[1]", "[8,12]") "}", 12, ERR_CORRUPT,
     "unused bytes are before"},
    {"{" T("a", "F32", "[2]", "[0,8]") "," T("b", "F32", "[2]", "[4,12]") "}", 12, ERR_CORRUPT,
     "overlap"},
    {"{" T("a", "F32", "[1]", "[0,4]") "," T("b", "F32", "[1]", "[0,4]") "}", 4, ERR_CORRUPT,
     "overlap"},
    {"{" T("a", "F32", "[2]", "[0,8]") "," T("b", "U8", "[1]", "[2,3]") "}", 8, ERR_CORRUPT,
     "overlap"},
    {"{" T("a", "F32", "[1]", "[0,4]") "}", 3, ERR_CORRUPT, "beyond the end"},
    {"{" T("a", "F32", "[1]", "[0,4]") "}", 5, ERR_CORRUPT, "unused bytes after"},
    {"{}", 4, ERR_CORRUPT, "unused bytes after"},
    {"{" T("a", "U8", "[9223372036854775808]", "[0,9223372036854775808]") "}", 4, ERR_CORRUPT,
     "overflow"},
    {"{" T("a", "U8", "[1152921504606846976]", "[0,1152921504606846976]") "}", 4, ERR_CORRUPT,
     "beyond the end"},
    {"{" T("a", "U8", "[4]", "[18446744073709551612,18446744073709551615]") "}", 4, ERR_CORRUPT,
     "its offsets give 3"},
    {"{" T("a", "U8", "[3]", "[18446744073709551612,18446744073709551615]") "}", 4, ERR_CORRUPT,
     "unused bytes are before"},
    {"{" T("a", "U8", "[1]", "[9223372036854775807,9223372036854775808]") "}", 4, ERR_CORRUPT,
     "unused bytes are before"},
    /* metadata */
    {"{\"__metadata__\":null}", 0, ERR_CORRUPT, "object"},
    {"{\"__metadata__\":[]}", 0, ERR_CORRUPT, "object"},
    {"{\"__metadata__\":{\"a\":1}}", 0, ERR_CORRUPT, "string"},
    {"{\"__metadata__\":{\"a\":{}}}", 0, ERR_CORRUPT, "string"},
    {"{\"__metadata__\":{\"a\":\"b\",\"a\":\"c\"}}", 0, ERR_CORRUPT, "duplicate key"},
    {"{\"__metadata__\":{},\"__metadata__\":{}}", 0, ERR_CORRUPT, "duplicate __metadata__"},
    {"{\"__metadata__\":{\"a\":\"\xff\"}}", 0, ERR_CORRUPT, "UTF-8"},
    {"{\"__metadata__\":{\"a\":\"\xc0\xaf\"}}", 0, ERR_CORRUPT, "UTF-8"},
    {"{\"__metadata__\":{\"a\":\"\xed\xa0\x80\"}}", 0, ERR_CORRUPT, "UTF-8"},
    {"{\"__metadata__\":{\"a\":\"\\ud800\"}}", 0, ERR_CORRUPT, "surrogate"},
    {"{\"__metadata__\":{\"a\":\"\\ud800\\u0041\"}}", 0, ERR_CORRUPT, "surrogate"},
    {"{\"__metadata__\":{\"a\":\"\\udc00\"}}", 0, ERR_CORRUPT, "surrogate"},
    {"{\"__metadata__\":{\"a\":\"\\u0000\"}}", 0, ERR_CORRUPT, "escape"},
    {"{\"__metadata__\":{\"a\":\"\\u00g0\"}}", 0, ERR_CORRUPT, "escape"},
    {"{\"__metadata__\":{\"a\":\"\\x\"}}", 0, ERR_CORRUPT, "escape"},
    {"{\"__metadata__\":{\"a\":\"\t\"}}", 0, ERR_CORRUPT, "control"},
    {"{\"__metadata__\":{\"a\":\"\\", 0, ERR_CORRUPT, "without end"},
    {"{\"__metadata__\":{\"a\":\"\\u12", 0, ERR_CORRUPT, "escape"},
    /* limits of uploads */
    {"{" T("a", "U8", "[1,1,1,1,1]", "[0,1]") "}", 1, ERR_LIMIT, "dimensions"},
};

static void expect(const char *header, size_t header_len, const verdict *v)
{
    err e = {0};
    safetensors *f;
    size_t len;
    uint8_t *bytes = file_make(header, header_len, v->data_bytes, &len);
    err_code rc = safetensors_open_memory(&f, bytes, len, &st_limits_upload, &e);
    ck_assert_msg(rc == v->code, "%s: got %d (%s), want %d", header, rc, e.msg, v->code);
    if (rc) {
        ck_assert_ptr_null(f);
        ck_assert_msg(strstr(e.msg, v->says) != NULL, "%s: says '%s'", header, e.msg);
    }
    safetensors_close(f);
    free(bytes);
}

START_TEST(good_files)
{
    expect(good[_i].header, strlen(good[_i].header), &good[_i]);
}
END_TEST

START_TEST(bad_files)
{
    expect(bad[_i].header, strlen(bad[_i].header), &bad[_i]);
}
END_TEST

START_TEST(nul_in_header)
{
    static const char h[] = "{}\0";
    verdict v = {h, 0, ERR_CORRUPT, "behind"};
    expect(h, 3, &v);
}
END_TEST

START_TEST(reads_tensors)
{
    static const char h[] =
        "{" T("b", "F16", "[2,3]", "[8,20]") "," T("a", "F32", "[2]", "[0,8]") "}";
    err e;
    safetensors *f;
    size_t len;
    uint8_t *bytes = file_make(h, strlen(h), 20, &len);
    float two[2] = {1.5F, -3.0F};
    memcpy(bytes + len - 20, two, sizeof(two));
    static const uint16_t half[6] = {0x3C00, 0xC000, 0x0001, 0x7BFF, 0x8000, 0x7C00};
    memcpy(bytes + len - 12, half, sizeof(half));
    ck_assert_int_eq(safetensors_open_memory(&f, bytes, len, &st_limits_upload, &e), ERR_NONE);

    ck_assert_int_eq(safetensors_count(f), 2);
    const st_tensor *a = safetensors_at(f, 0), *b = safetensors_find(f, "b");
    ck_assert_str_eq(a->name, "a");
    ck_assert_ptr_eq(safetensors_find(f, "a"), a);
    ck_assert_ptr_eq(safetensors_at(f, 1), b);
    ck_assert_ptr_null(safetensors_find(f, "c"));
    ck_assert_ptr_null(safetensors_find(f, ""));
    ck_assert_int_eq(b->ndim, 2);
    ck_assert_uint_eq(b->shape[0], 2);
    ck_assert_uint_eq(b->shape[1], 3);
    ck_assert_uint_eq(b->count, 6);
    ck_assert_uint_eq(b->bytes, 12);
    ck_assert_ptr_eq(b->data, bytes + b->offset);

    float v[6];
    st_read_f32(a, 1, 1, v);
    ck_assert_float_eq(v[0], -3.0F);
    st_read_f32(b, 0, 6, v);
    ck_assert_float_eq(v[0], 1.0F);
    ck_assert_float_eq(v[1], -2.0F);
    ck_assert_float_eq(v[2], 0x1p-24F);
    ck_assert_float_eq(v[3], 65504.0F);
    ck_assert(v[4] == 0.0F && __builtin_signbit(v[4]));
    ck_assert(__builtin_isinf(v[5]));
    safetensors_close(f);
    free(bytes);
}
END_TEST

/* The data may begin at any byte: such a tensor says so and can still be read. */
START_TEST(unaligned_is_marked)
{
    err e;
    static const char head[] = "{" T("a", "BF16", "[2]", "[0,4]") "}";
    for (int pad = 0; pad < 2; pad++) {
        char h[sizeof(head) + 2];
        int n = snprintf(h, sizeof(h), "%s%s", head, pad ? " " : "");
        size_t len;
        uint8_t *bytes = file_make(h, (size_t)n, 4, &len);
        static const uint16_t v[2] = {0x3F80, 0xC000};
        memcpy(bytes + len - 4, v, 4);
        safetensors *f;
        ck_assert_int_eq(safetensors_open_memory(&f, bytes, len, &st_limits_upload, &e), 0);
        const st_tensor *t = safetensors_at(f, 0);
        ck_assert_int_eq(t->aligned, (uintptr_t)t->data % 2 == 0);
        ck_assert_int_eq(t->aligned, (8 + n) % 2 == 0);
        float x[2];
        st_read_f32(t, 0, 2, x);
        ck_assert_float_eq(x[0], 1.0F);
        ck_assert_float_eq(x[1], -2.0F);
        safetensors_close(f);
        free(bytes);
    }
}
END_TEST

START_TEST(header_length_lies)
{
    static const char h[] = "{" T("a", "F32", "[1]", "[0,4]") "}";
    static const uint64_t lies[] = {
        0,          1,         sizeof(h) - 2,     sizeof(h),  1000,
        UINT32_MAX, INT64_MAX, (uint64_t)1 << 63, UINT64_MAX, UINT64_MAX - 7};
    for (size_t i = 0; i < sizeof(lies) / sizeof(lies[0]); i++) {
        err e;
        safetensors *f;
        size_t len;
        uint8_t *bytes = file_make(h, strlen(h), 4, &len);
        for (int k = 0; k < 8; k++) bytes[k] = (uint8_t)(lies[i] >> (8 * k));
        ck_assert_int_eq(safetensors_open_memory(&f, bytes, len, &st_limits_upload, &e),
                         ERR_CORRUPT);
        ck_assert_ptr_null(f);
        free(bytes);
    }
}
END_TEST

/* Every prefix of a good file and of its header, and every single changed byte: an
 * error or a table that holds. */
START_TEST(truncated_and_mutated)
{
    static const char h[] = "{\"__metadata__\":{\"format\":\"pt\"}," T(
        "a.b", "F32", "[2,2]", "[0,16]") "," T("c", "BF16", "[4]", "[16,24]") "}";
    size_t len;
    uint8_t *whole = file_make(h, strlen(h), 24, &len);
    for (size_t cut = 0; cut < len; cut++) {
        err e;
        safetensors *f;
        uint8_t *bytes = malloc(cut ? cut : 1);
        memcpy(bytes, whole, cut);
        ck_assert_int_eq(safetensors_open_memory(&f, bytes, cut, &st_limits_upload, &e),
                         ERR_CORRUPT);
        free(bytes);
        size_t short_len; /* the header cut, and nothing behind it */
        uint8_t *short_file = file_make(h, cut < strlen(h) ? cut : strlen(h) - 1, 0, &short_len);
        ck_assert_int_eq(safetensors_open_memory(&f, short_file, short_len, &st_limits_upload, &e),
                         ERR_CORRUPT);
        free(short_file);
    }
    for (size_t at = 0; at < 8 + strlen(h); at++) {
        for (int v = 0; v < 256; v += at < 8 ? 1 : 3) {
            err e;
            safetensors *f;
            uint8_t *bytes = malloc(len);
            memcpy(bytes, whole, len);
            bytes[at] = (uint8_t)v;
            if (safetensors_open_memory(&f, bytes, len, &st_limits_upload, &e) == ERR_NONE) {
                uint64_t sum = 0;
                for (int i = 0; i < safetensors_count(f); i++) {
                    const st_tensor *t = safetensors_at(f, i);
                    ck_assert(t->offset + t->bytes <= len);
                    ck_assert_ptr_eq(safetensors_find(f, t->name), t);
                    sum += t->bytes;
                }
                ck_assert_uint_eq(sum, 24);
            }
            safetensors_close(f);
            free(bytes);
        }
    }
    free(whole);
}
END_TEST

START_TEST(limits_hold)
{
    st_limits lim = st_limits_upload;
    err e;
    safetensors *f;
    size_t len;
    static const char two[] =
        "{" T("aaaa", "U8", "[1]", "[0,1]") "," T("b", "U8", "[1]", "[1,2]") "}";
    uint8_t *bytes = file_make(two, strlen(two), 2, &len);
    ck_assert_int_eq(safetensors_open_memory(&f, bytes, len, &lim, &e), ERR_NONE);
    safetensors_close(f);
    lim.max_tensors = 1;
    ck_assert_int_eq(safetensors_open_memory(&f, bytes, len, &lim, &e), ERR_LIMIT);
    lim = st_limits_upload;
    lim.max_name = 3;
    ck_assert_int_eq(safetensors_open_memory(&f, bytes, len, &lim, &e), ERR_LIMIT);
    lim = st_limits_upload;
    lim.max_header_bytes = strlen(two) - 1;
    ck_assert_int_eq(safetensors_open_memory(&f, bytes, len, &lim, &e), ERR_LIMIT);
    free(bytes);

    static const char meta[] = "{\"__metadata__\":{\"a\":\"0123456789\"}}";
    bytes = file_make(meta, strlen(meta), 0, &len);
    lim = st_limits_upload;
    lim.max_metadata_bytes = 10;
    ck_assert_int_eq(safetensors_open_memory(&f, bytes, len, &lim, &e), ERR_LIMIT);
    free(bytes);
}
END_TEST

/* Thousands of tensors, listed backwards: found by name, given in the order of offsets. */
START_TEST(many_tensors)
{
    enum { N = 5000 };
    char *h;
    size_t at;
    FILE *m = open_memstream(&h, &at);
    ck_assert_ptr_nonnull(m);
    (void)fputc('{', m);
    for (int i = N - 1; i >= 0; i--) {
        fprintf(m, "\"t.%d\":{\"dtype\":\"U8\",\"shape\":[3],\"data_offsets\":[%d,%d]}%s", i, 3 * i,
                3 * i + 3, i ? "," : "}");
    }
    ck_assert_int_eq(fclose(m), 0);
    err e;
    safetensors *f;
    size_t len;
    uint8_t *bytes = file_make(h, at, (size_t)N * 3, &len);
    ck_assert_int_eq(safetensors_open_memory(&f, bytes, len, &st_limits_upload, &e), ERR_NONE);
    ck_assert_int_eq(safetensors_count(f), N);
    for (int i = 0; i < N; i++) {
        char name[16];
        snprintf(name, sizeof(name), "t.%d", i);
        ck_assert_ptr_eq(safetensors_find(f, name), safetensors_at(f, i));
    }
    safetensors_close(f);
    free(bytes);
    free(h);
}
END_TEST

START_TEST(opens_files_and_headers)
{
    static const char h[] = "{" T("a", "F32", "[2,2]", "[0,16]") "}";
    size_t len;
    uint8_t *bytes = file_make(h, strlen(h), 16, &len);
    char path[] = "/tmp/lorad_st_XXXXXX";
    int fd = mkstemp(path);
    ck_assert_int_ge(fd, 0);
    ck_assert_int_eq(write(fd, bytes, len), (ssize_t)len);

    err e;
    safetensors *f;
    ck_assert_int_eq(safetensors_open(&f, path, &st_limits_model, &e), ERR_NONE);
    const st_tensor *t = safetensors_find(f, "a");
    ck_assert_int_eq(memcmp(t->data, bytes + t->offset, 16), 0);
    safetensors_close(f);

    ck_assert_int_eq(ftruncate(fd, (off_t)len - 1), 0);
    ck_assert_int_eq(safetensors_open(&f, path, &st_limits_model, &e), ERR_CORRUPT);
    ck_assert_int_eq(ftruncate(fd, 5), 0);
    ck_assert_int_eq(safetensors_open(&f, path, &st_limits_model, &e), ERR_CORRUPT);
    ck_assert_int_eq(safetensors_open(&f, "/tmp", &st_limits_model, &e), ERR_IO);
    ck_assert_int_eq(safetensors_open(&f, "/nonexistent/x", &st_limits_model, &e), ERR_IO);
    ck_assert_ptr_null(strstr(e.msg, "nonexistent")); /* no paths in messages */

    size_t head;
    ck_assert_int_eq(safetensors_header_bytes(bytes, len, &st_limits_upload, &head, &e), 0);
    ck_assert_uint_eq(head, len - 16);
    ck_assert_int_eq(safetensors_open_header(&f, bytes, head, len, &st_limits_upload, &e), 0);
    ck_assert_ptr_null(safetensors_at(f, 0)->data);
    ck_assert_uint_eq(safetensors_at(f, 0)->offset, head);
    safetensors_close(f);
    ck_assert_int_eq(safetensors_open_header(&f, bytes, head - 1, len, &st_limits_upload, &e),
                     ERR_CORRUPT);
    ck_assert_int_eq(safetensors_open_header(&f, bytes, head, len + 1, &st_limits_upload, &e),
                     ERR_CORRUPT);
    (void)close(fd);
    (void)unlink(path);
    free(bytes);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("safetensors");
    TCase *tc = tcase_create("format");
    tcase_set_timeout(tc, 60);
    tcase_add_loop_test(tc, good_files, 0, (int)(sizeof(good) / sizeof(good[0])));
    tcase_add_loop_test(tc, bad_files, 0, (int)(sizeof(bad) / sizeof(bad[0])));
    tcase_add_test(tc, nul_in_header);
    tcase_add_test(tc, reads_tensors);
    tcase_add_test(tc, unaligned_is_marked);
    tcase_add_test(tc, header_length_lies);
    tcase_add_test(tc, truncated_and_mutated);
    tcase_add_test(tc, limits_hold);
    tcase_add_test(tc, many_tensors);
    tcase_add_test(tc, opens_files_and_headers);
    suite_add_tcase(s, tc);
    return run_suite(s);
}
