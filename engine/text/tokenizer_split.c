/* tokenizer_split.c -- each alternative of the patterns is one step, in the patterns' order. */
#include "engine/text/tokenizer_split.h"

#include <stdbool.h>
#include <string.h>

#include "engine/text/unicode.h"

static const struct {
    const char *pattern;
    split_kind kind;
} known[] = {
    {"'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+",
     SPLIT_GPT2},
    {"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}{1,3}| "
     "?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+",
     SPLIT_LLAMA3},
    {"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}| "
     "?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+",
     SPLIT_QWEN2},
};

split_kind split_from_regex(const char *pattern)
{
    for (size_t i = 0; i < sizeof(known) / sizeof(known[0]); i++) {
        if (strcmp(pattern, known[i].pattern) == 0) return known[i].kind;
    }
    return SPLIT_NONE;
}

static bool is_break(uint32_t c)
{
    return c == '\r' || c == '\n';
}

/* Neither space, letter nor number. */
static bool is_mark(uint32_t c)
{
    return !unicode_is_space(c) && !unicode_is_letter(c) && !unicode_is_number(c);
}

static uint32_t fold(uint32_t c)
{
    if (c >= 'A' && c <= 'Z') return c + 32;
    return c == 0x17F ? 's' : c; /* the long s folds to s */
}

/* 's 't 'm 'd 're 've 'll at c[i]; 0: none. */
static size_t contraction(const uint32_t *c, size_t n, size_t i, bool any_case)
{
    if (c[i] != '\'' || i + 1 >= n) return 0;
    uint32_t a = any_case ? fold(c[i + 1]) : c[i + 1];
    if (a == 's' || a == 't' || a == 'm' || a == 'd') return 2;
    if (i + 2 >= n) return 0;
    uint32_t b = any_case ? fold(c[i + 2]) : c[i + 2];
    return (a == 'r' && b == 'e') || (a == 'v' && b == 'e') || (a == 'l' && b == 'l') ? 3 : 0;
}

static size_t run(const uint32_t *c, size_t n, size_t i, bool (*test)(uint32_t))
{
    while (i < n && test(c[i])) i++;
    return i;
}

/* \s+(?!\S)|\s+ : all spaces but the last, unless they end the text or there is only one. */
static size_t spaces(const uint32_t *c, size_t n, size_t i)
{
    size_t e = run(c, n, i, unicode_is_space);
    return e < n && e - i > 1 ? e - 1 : e;
}

static size_t next_gpt2(const uint32_t *c, size_t n, size_t i)
{
    size_t k = contraction(c, n, i, false);
    if (k) return i + k;
    size_t j = c[i] == ' ' && i + 1 < n ? i + 1 : i; /* " ?" */
    if (unicode_is_letter(c[j])) return run(c, n, j, unicode_is_letter);
    if (unicode_is_number(c[j])) return run(c, n, j, unicode_is_number);
    if (is_mark(c[j])) return run(c, n, j, is_mark);
    return spaces(c, n, i);
}

static size_t next_llama3(const uint32_t *c, size_t n, size_t i, size_t digits)
{
    size_t k = contraction(c, n, i, true);
    if (k) return i + k;
    if (unicode_is_letter(c[i])) return run(c, n, i, unicode_is_letter);
    bool lead = !is_break(c[i]) && !unicode_is_number(c[i]);
    if (lead && i + 1 < n && unicode_is_letter(c[i + 1])) {
        return run(c, n, i + 1, unicode_is_letter);
    }
    if (unicode_is_number(c[i])) {
        size_t e = i;
        while (e < n && e - i < digits && unicode_is_number(c[e])) e++;
        return e;
    }
    size_t j = c[i] == ' ' && i + 1 < n ? i + 1 : i;
    if (is_mark(c[j])) return run(c, n, run(c, n, j, is_mark), is_break);
    size_t e = run(c, n, i, unicode_is_space), last = e;
    while (last > i && !is_break(c[last - 1])) last--;
    return last > i ? last : spaces(c, n, i);
}

size_t split_next(split_kind kind, const uint32_t *c, size_t n, size_t from)
{
    switch (kind) {
    case SPLIT_GPT2: return next_gpt2(c, n, from);
    case SPLIT_LLAMA3: return next_llama3(c, n, from, 3);
    case SPLIT_QWEN2: return next_llama3(c, n, from, 1);
    case SPLIT_NONE: break;
    }
    return n;
}
