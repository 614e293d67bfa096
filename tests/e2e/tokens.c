/* tokens.c -- a tokenizer's answers, for test_reference.py: a line of orders, a line of answers.
 *
 *   tokens DIRECTORY      prints "ready", or "refused" and the sentence, and ends
 *   a ID -FLAGS HEX       a token that an adapter adds, before all else (s l r w n, as
 *                         adapters/format/words.c); no answer
 *   e HEX                 ids of a text, with what the post-processor adds
 *   d ID...               the text of ids, in hexadecimal digits; h: without special tokens
 *   s ID...               the same as it comes, token by token
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/text/tokenizer.h"

static int digit(char c)
{
    return c >= 'a' ? c - 'a' + 10 : c - '0';
}

static void print_hex(const char *s, size_t len)
{
    for (size_t i = 0; i < len; i++) printf("%02x", (unsigned char)s[i]);
    (void)putchar('\n');
}

/* In place. */
static size_t unhex(char *s)
{
    size_t len = 0;
    for (size_t i = 0; s[i] && s[i + 1]; i += 2)
        s[len++] = (char)(digit(s[i]) * 16 + digit(s[i + 1]));
    s[len] = 0;
    return len;
}

enum { ADDED_MAX = 64 };
static tok_added added[ADDED_MAX];
static int n_added;

static void add(char *s)
{
    char *end;
    if (n_added == ADDED_MAX) abort();
    tok_added *a = &added[n_added++];
    a->id = (int32_t)strtol(s, &end, 10);
    char *flags = end + 1, *content = strchr(flags, ' ');
    if (!content) abort();
    *content++ = 0;
    (void)unhex(content);
    a->content = strdup(content);
    a->special = strchr(flags, 's') != NULL;
    a->lstrip = strchr(flags, 'l') != NULL;
    a->rstrip = strchr(flags, 'r') != NULL;
    a->single_word = strchr(flags, 'w') != NULL;
    a->normalized = strchr(flags, 'n') != NULL;
}

static void encode(const tokenizer *t, char *s)
{
    size_t len = unhex(s);
    int flags = TOK_ADD_SPECIAL | TOK_PARSE_SPECIAL;
    int64_t n = tokenizer_encode(t, s, len, flags, NULL, 0);
    int32_t *ids = n >= 0 ? malloc(((size_t)n + 1) * sizeof(*ids)) : NULL;
    if (!ids || tokenizer_encode(t, s, len, flags, ids, (size_t)n) != n) abort();
    for (int64_t i = 0; i < n; i++) printf("%s%d", i ? " " : "", (int)ids[i]);
    (void)putchar('\n');
    free(ids);
}

static size_t read_ids(char *s, int32_t **ids)
{
    size_t n = 0;
    *ids = malloc((strlen(s) + 1) * sizeof(**ids));
    if (!*ids) abort();
    for (char *end = s;; s = end) {
        long id = strtol(s, &end, 10);
        if (end == s) return n;
        (*ids)[n++] = (int32_t)id;
    }
}

static void decode(const tokenizer *t, char *s, bool skip_special)
{
    int32_t *ids;
    size_t n = read_ids(s, &ids), len;
    char *text = tokenizer_decode(t, ids, n, skip_special, &len);
    if (!text) abort();
    print_hex(text, len);
    free(text);
    free(ids);
}

static void stream(const tokenizer *t, char *s)
{
    int32_t *ids;
    size_t n = read_ids(s, &ids), m = 0;
    char *text = malloc((n + 1) * DETOK_MAX);
    detok d;
    if (!text) abort();
    detok_init(&d, t, false);
    for (size_t i = 0; i < n; i++) m += detok_push(&d, ids[i], text + m, DETOK_MAX);
    m += detok_flush(&d, text + m, DETOK_MAX);
    print_hex(text, m);
    free(text);
    free(ids);
}

int main(int argc, char **argv)
{
    tokenizer *base, *own = NULL;
    char *line = NULL;
    size_t cap = 0;
    err e = {.msg = ""};
    if (argc != 2) return 2;
    if (tokenizer_load(&base, argv[1], &e)) {
        printf("refused %s\n", e.msg);
        return 0;
    }
    (void)puts("ready");
    for (ssize_t n; (n = getline(&line, &cap, stdin)) > 0;) {
        if (line[n - 1] == '\n') line[n - 1] = 0;
        char *rest = strlen(line) > 2 ? line + 2 : line + strlen(line);
        if (line[0] == 'a') {
            add(rest);
            continue;
        }
        if (n_added && !own && tokenizer_extend(&own, base, added, n_added, &e)) {
            fprintf(stderr, "%s\n", e.msg);
            return 1;
        }
        const tokenizer *t = own ? own : base;
        switch (line[0]) {
        case 'e': encode(t, rest); break;
        case 'd': decode(t, rest, false); break;
        case 'h': decode(t, rest, true); break;
        case 's': stream(t, rest); break;
        default: return 2;
        }
    }
    free(line);
    for (int i = 0; i < n_added; i++) free((char *)added[i].content);
    tokenizer_destroy(own);
    tokenizer_destroy(base);
    return 0;
}
