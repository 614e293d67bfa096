/* grammar_unique_hash.c -- hash of a JSON value by its meaning, for uniqueItems.
 *
 * JSON Schema compares values, not texts: 1 equals 1.0, an escape equals its character, and the
 * order of members does not matter. The hash is canonical under these rules:
 *
 *   string   FNV-1a over the unescaped UTF-8 bytes
 *   number   bits of the double nearest to it; -0 is 0
 *   array    items mixed in order
 *   object   sum of the mixed (name, value) pairs, hence independent of order; of duplicate names
 *            the last one counts
 *
 * Equal values have equal hashes; two different values collide with a chance of about 2^-64, and
 * then a valid answer is excluded. Two numbers that round to the same double are equal here. An
 * object with more than MEMBERS_MAX members is hashed as if all such objects were equal.
 *
 * The text comes from the automaton, so it is valid JSON; the reader only has to stay within its
 * bounds. The mixing function is the finaliser of SplitMix64 (Steele et al. 2014).
 */
#include <stdlib.h>
#include <string.h>

#include "engine/base/hash.h"
#include "engine/base/utf8.h"
#include "engine/grammar/automaton/grammar_unique.h"

enum {
    MEMBERS_MAX = 256, /* of an object that is compared; larger ones are all the same */
    NUMBER_MAX = 400,  /* bytes of a number that is compared */
};

typedef struct {
    const uint8_t *p, *end;
} reader;

static uint64_t mixed(uint64_t h)
{
    h = (h ^ h >> 30) * 0xBF58476D1CE4E5B9ULL;
    h = (h ^ h >> 27) * 0x94D049BB133111EBULL;
    return h ^ h >> 31;
}

static bool is_space(uint8_t ch)
{
    return ch == ' ' || ch == '\n' || ch == '\t' || ch == '\r';
}

static void skip_spaces(reader *r)
{
    while (r->p < r->end && is_space(*r->p)) r->p++;
}

static uint32_t four_digits(reader *r)
{
    uint32_t v = 0;
    for (int i = 0; i < 4 && r->p < r->end; i++, r->p++)
        v = v * 16 + (uint32_t)(*r->p <= '9' ? *r->p - '0' : (*r->p | 0x20) - 'a' + 10);
    return v;
}

/* After a backslash. A grammar never generates half of a surrogate pair. */
static uint64_t hash_escaped(reader *r, uint64_t h)
{
    static const char from[] = "bfnrt", to[] = "\b\f\n\r\t";
    uint8_t ch = *r->p++;
    const char *one = strchr(from, ch);
    if (ch != 'u') {
        uint8_t byte = one && ch ? (uint8_t)to[one - from] : ch;
        return hash_bytes(h, &byte, 1);
    }
    uint32_t code = four_digits(r);
    char utf8[UTF8_MAX];
    return hash_bytes(h, utf8, (size_t)utf8_encode(code, utf8));
}

static uint64_t hash_string(reader *r)
{
    uint64_t h = HASH_BASIS;
    for (r->p++; r->p < r->end && *r->p != '"';) {
        if (*r->p == '\\' && r->end - r->p > 1) {
            r->p++;
            h = hash_escaped(r, h);
        } else {
            h = hash_bytes(h, r->p++, 1);
        }
    }
    r->p += r->p < r->end;
    return mixed(h + '"');
}

static uint64_t hash_value(reader *r, int depth);

static uint64_t hash_array(reader *r, int depth)
{
    uint64_t h = '[';
    r->p++;
    skip_spaces(r);
    while (r->p < r->end && *r->p != ']') {
        h = mixed(h + hash_value(r, depth)) + HASH_GOLDEN;
        skip_spaces(r);
        r->p += r->p < r->end && *r->p == ',';
        skip_spaces(r);
    }
    r->p += r->p < r->end;
    return mixed(h);
}

/* Of two members with one name the later one counts. */
static uint64_t hash_object(reader *r, int depth)
{
    uint64_t name[MEMBERS_MAX], value[MEMBERS_MAX], h = '{';
    int n = 0;
    r->p++;
    skip_spaces(r);
    while (r->p < r->end && *r->p != '}' && n < MEMBERS_MAX) {
        uint64_t key = *r->p == '"' ? hash_string(r) : 0;
        int i = 0;
        while (i < n && name[i] != key) i++;
        skip_spaces(r);
        r->p += r->p < r->end; /* the colon */
        name[i] = key;
        value[i] = hash_value(r, depth);
        n += i == n;
        skip_spaces(r);
        r->p += r->p < r->end && *r->p == ',';
        skip_spaces(r);
    }
    if (n == MEMBERS_MAX) {
        r->p = r->end;
        return h;
    }
    for (int i = 0; i < n; i++) h += mixed(name[i] + mixed(value[i] + HASH_GOLDEN));
    r->p += r->p < r->end;
    return mixed(h);
}

static uint64_t hash_word(reader *r)
{
    char text[NUMBER_MAX];
    size_t n = 0;
    while (r->p < r->end && !is_space(*r->p) && !strchr(",]}", *r->p)) {
        if (n + 1 < sizeof(text)) text[n++] = (char)*r->p;
        r->p++;
    }
    text[n] = 0;
    r->p += n == 0 && r->p < r->end; /* it always goes on */
    if (*text != '-' && (*text < '0' || *text > '9')) return mixed(hash_bytes(HASH_BASIS, text, n));
    double v = strtod(text, NULL);
    uint64_t bits = 0;
    if (v != 0) memcpy(&bits, &v, sizeof(bits)); /* minus zero is zero */
    return mixed(bits + HASH_GOLDEN);
}

static uint64_t hash_value(reader *r, int depth)
{
    skip_spaces(r);
    if (depth == 0 || r->p >= r->end) {
        r->p = r->end;
        return 0;
    }
    if (*r->p == '"') return hash_string(r);
    if (*r->p == '[') return hash_array(r, depth - 1);
    if (*r->p == '{') return hash_object(r, depth - 1);
    return hash_word(r);
}

uint64_t unique_hash(const uint8_t *text, size_t len)
{
    reader r = {text, text + len};
    return hash_value(&r, GRAMMAR_DEPTH_MAX);
}
