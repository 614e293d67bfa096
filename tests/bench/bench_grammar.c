/* bench_grammar.c -- random answers under grammars, without a model.
 *
 *     bench_grammar TOKENIZER_DIR SPECS N [--time | --check] [--documents ADDRESS=FOLDER,..]
 *
 * SPECS holds one JSON object a line: {"schema": ...}, {"regex": "..."}, {"choice": [...]},
 * {"tags": ...} or {"grammar": "..."}.  For each, N answers are made by drawing among the allowed
 * tokens, and written as {"line": i, "text": "..."}.  --time: instead, microseconds per token for
 * mask and accept, and for compiling, by line.  --check: instead, whether the token ids in "tests":
 * [[..], ..] are answers of the grammar, and the processor's time in nanoseconds of all threads for
 * compiling, for the first mask and for each other one.  --documents: as grammar.documents.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "engine/base/clock.h"
#include "engine/base/json.h"
#include "engine/grammar/grammar.h"

enum { LINE_MAX_BYTES = 1 << 20, TOKENS_MAX = 3000 };

static uint64_t state = 0x123456789ABCDEFULL;

static uint32_t draw(uint32_t n)
{
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return (uint32_t)((state >> 11) % n);
}

/* Uniform among the allowed ones; now and then the shortest way out: a
 * token that may end something. */
static int32_t pick(const uint32_t *mask, int n_vocab, const tokenizer *tok, bool hurry)
{
    int32_t got = -1, way_out = -1;
    uint32_t seen = 0, n_out = 0;
    for (int w = 0; w < (n_vocab + 31) / 32; w++) {
        for (uint32_t bits = mask[w]; bits; bits &= bits - 1) {
            int32_t id = w * 32 + __builtin_ctz(bits);
            size_t len;
            const char *s = tokenizer_bytes(tok, id, &len);
            if (draw(++seen) == 0) got = id;
            bool closes = s && len > 0 && strchr("\"}],:", s[0]);
            if (closes && draw(++n_out) == 0) way_out = id;
        }
    }
    return hurry && way_out >= 0 ? way_out : got;
}

static bool one_answer(grammar *g, const tokenizer *tok, grammar_walk *w, char *out, size_t *len,
                       int64_t *us, int *n_tokens)
{
    int32_t eos = tokenizer_eos(tok);
    int n_vocab = tokenizer_vocab(tok);
    grammar_run *r = grammar_run_create(g, &eos, eos >= 0 ? 1 : 0);
    *len = 0;
    bool ok = r != NULL;
    int64_t start = clock_now_us();
    if (ok) grammar_run_prepare(r);
    for (int i = 0; ok && i < TOKENS_MAX && !grammar_run_over(r); i++) {
        const uint32_t *mask;
        while (!(mask = grammar_run_mask(r, w)) && !grammar_run_failed(r)) {
            struct timespec t = {0, 50000};
            (void)nanosleep(&t, NULL);
        }
        ok = !grammar_run_failed(r);
        int64_t pause = clock_now_us();
        int32_t id = ok ? pick(mask, n_vocab, tok, draw(4) > 0 || i > 60) : -1;
        start += clock_now_us() - pause;
        if (id < 0) ok = false;
        if (!ok) break;
        grammar_run_accept(r, w, id);
        (*n_tokens)++;
        size_t n = 0;
        const char *s = tokenizer_bytes(tok, id, &n);
        if (grammar_run_over(r) && id == eos) break;
        if (*len + n < LINE_MAX_BYTES) {
            memcpy(out + *len, s, n);
            *len += n;
        }
    }
    *us += clock_now_us() - start;
    ok = ok && grammar_run_over(r);
    grammar_run_release(r);
    return ok;
}

static int64_t spent_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

/* One answer, token by token; its masks' times are written behind one another. */
static bool is_answer(grammar *g, const tokenizer *tok, grammar_walk *w, const cJSON *ids)
{
    int32_t eos = tokenizer_eos(tok);
    const cJSON *id = ids->child;
    int64_t start = spent_ns();
    grammar_run *r = grammar_run_create(g, &eos, eos >= 0 ? 1 : 0);
    bool ok = r != NULL;
    if (ok) grammar_run_prepare(r);
    for (bool more = true; ok && more; id = id ? id->next : NULL) {
        const uint32_t *mask;
        int32_t token = id ? (int32_t)id->valuedouble : eos;
        while (!(mask = grammar_run_mask(r, w)) && !grammar_run_failed(r)) {
            struct timespec t = {0, 20000};
            (void)nanosleep(&t, NULL);
        }
        printf("%s%lld", id == ids->child ? "" : ",", (long long)(spent_ns() - start));
        more = id != NULL;
        ok = mask && mask[token / 32] >> (token % 32) & 1;
        start = spent_ns();
        if (ok && more) grammar_run_accept(r, w, token);
        if (ok && more && grammar_run_over(r)) {
            ok = !id->next;
            break;
        }
    }
    grammar_run_release(r);
    return ok;
}

static void check_line(grammar_maker *m, const tokenizer *tok, grammar_walk *w, const cJSON *tree,
                       const grammar_spec *spec, int number)
{
    err e;
    grammar *g = NULL;
    const cJSON *ids;
    int64_t start = spent_ns();
    bool ok = grammar_acquire(m, spec, &g, &e) == ERR_NONE;
    printf("{\"line\":%d,\"ok\":%s,\"compile_ns\":%lld,\"masks_ns\":[", number,
           ok ? "true" : "false", (long long)(spent_ns() - start));
    bool accepted[256];
    int n = 0;
    cJSON_ArrayForEach(ids, json_get(tree, "tests"))
    {
        if (!ok || n == 256) break;
        printf(n ? ",[" : "[");
        accepted[n++] = is_answer(g, tok, w, ids);
        printf("]");
    }
    printf("],\"accepted\":[");
    for (int i = 0; i < n; i++) printf("%s%s", i ? "," : "", accepted[i] ? "true" : "false");
    cJSON *why = cJSON_CreateString(ok ? "" : e.msg);
    char *quoted = cJSON_PrintUnformatted(why);
    printf("],\"why\":%s}\n", quoted);
    cJSON_free(quoted);
    cJSON_Delete(why);
    if (ok) grammar_release(g);
}

static bool one_line(grammar_maker *m, const tokenizer *tok, grammar_walk *w, const char *line,
                     int number, int n, const char *how)
{
    bool timing = strcmp(how, "--time") == 0;
    static char text[LINE_MAX_BYTES];
    err e;
    cJSON *tree;
    if (json_parse(line, strlen(line), &json_limits_trusted, &tree, &e)) {
        fprintf(stderr, "line %d: %s\n", number, e.msg);
        if (strcmp(how, "--check") == 0) printf("{\"line\":%d,\"ok\":false}\n", number);
        return false;
    }
    grammar_spec spec = {.kind = GRAMMAR_SCHEMA, .json = json_get(tree, "schema")};
    const cJSON *regex = json_get(tree, "regex"), *choice = json_get(tree, "choice");
    if (regex) spec = (grammar_spec){.kind = GRAMMAR_REGEX, .text = regex->valuestring};
    const cJSON *tags = json_get(tree, "tags");
    if (tags) spec = (grammar_spec){.kind = GRAMMAR_TAGS, .json = tags};
    if (choice) spec = (grammar_spec){.kind = GRAMMAR_CHOICE, .json = choice};
    const cJSON *gbnf = json_get(tree, "grammar");
    if (gbnf) spec = (grammar_spec){.kind = GRAMMAR_CFG, .text = gbnf->valuestring};
    if (strcmp(how, "--check") == 0) {
        check_line(m, tok, w, tree, &spec, number);
        cJSON_Delete(tree);
        return true;
    }
    grammar *g;
    int64_t start = clock_now_us(), us = 0;
    bool ok = grammar_acquire(m, &spec, &g, &e) == ERR_NONE;
    int64_t compile_us = clock_now_us() - start;
    if (!ok) fprintf(stderr, "line %d: %s\n", number, e.msg);
    int n_tokens = 0, failed = 0;
    for (int i = 0; ok && i < n; i++) {
        size_t len;
        if (!one_answer(g, tok, w, text, &len, &us, &n_tokens)) {
            failed++;
            if (!timing) printf("{\"line\":%d,\"text\":null}\n", number);
            continue;
        }
        text[len] = 0;
        cJSON *v = cJSON_CreateString(text);
        char *quoted = cJSON_PrintUnformatted(v);
        if (!timing) printf("{\"line\":%d,\"text\":%s}\n", number, quoted);
        cJSON_free(quoted);
        cJSON_Delete(v);
    }
    if (ok && timing) {
        printf(
            "{\"line\":%d,\"compile_us\":%lld,\"us_per_token\":%.2f,\"tokens\":%d,\"failed\":%d}\n",
            number, (long long)compile_us, n_tokens ? (double)us / n_tokens : 0.0, n_tokens,
            failed);
    }
    if (ok) grammar_release(g);
    cJSON_Delete(tree);
    return ok;
}

int main(int argc, char **argv)
{
    const char *how = "", *documents = "";
    bool ok = argc >= 4;
    for (int i = 4; i < argc; i++) {
        if (strcmp(argv[i], "--documents") == 0 && i + 1 < argc)
            documents = argv[++i];
        else
            how = argv[i];
        ok = ok && (!*how || strcmp(how, "--time") == 0 || strcmp(how, "--check") == 0);
    }
    if (!ok) {
        fprintf(stderr, "usage: bench_grammar TOKENIZER_DIR SPECS N [--time | --check] "
                        "[--documents ADDRESS=FOLDER,..]\n");
        return 2;
    }
    err e;
    tokenizer *tok;
    grammar_maker *m;
    grammar_documents *read;
    if (tokenizer_load(&tok, argv[1], &e) ||
        grammar_maker_create(&m, tok, tokenizer_vocab(tok), &e) ||
        grammar_documents_read(&read, documents, "", &e)) {
        fprintf(stderr, "bench_grammar: %s\n", e.msg);
        return 2;
    }
    grammar_maker_take_documents(m, read);
    grammar_walk *w = grammar_walk_create();
    FILE *f = fopen(argv[2], "r");
    char *line = NULL;
    size_t cap = 0;
    int number = 0, bad = 0;
    while (f && w && getline(&line, &cap, f) > 0) {
        bad += !one_line(m, tok, w, line, number++, atoi(argv[3]), how);
    }
    free(line);
    if (f) (void)fclose(f);
    grammar_walk_destroy(w);
    grammar_maker_destroy(m);
    tokenizer_destroy(tok);
    return bad ? 1 : 0;
}
