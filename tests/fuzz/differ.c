/* differ.c -- our side of differ.py: a case a line, an answer a line.
 *
 *   v HEX          variables for templates, an object of JSON; no answer
 *   p HEX HEX      PEFT's expression and a text; g: the grammar's.  y: it matches; n: it does not
 *   j HEX          JSON.  y and the tree printed again in hexadecimal digits
 *   t HEX          a template.  y and its text in hexadecimal digits
 *
 * What is refused is answered with e, the code without its sign, and the sentence.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "adapters/format/pattern.h"
#include "engine/base/json.h"
#include "engine/chat/jinja.h"
#include "tests/fuzz/fuzz.h"
#include "tests/fuzz/fuzz_walk.h"

static g_walk walk;
static cJSON *variables;

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    (void)data;
    (void)size;
    return 0; /* fuzz.c's door, of no use here */
}

static int digit(char c)
{
    return c >= 'a' ? c - 'a' + 10 : c - '0';
}

/* In place. */
static char *unhex(char *s, size_t *len)
{
    size_t n = 0;
    for (size_t i = 0; s[i] && s[i + 1]; i += 2)
        s[n++] = (char)(digit(s[i]) * 16 + digit(s[i + 1]));
    s[n] = 0;
    *len = n;
    return s;
}

static void answer(const char *text, size_t len)
{
    (void)putchar('y');
    (void)putchar(' ');
    for (size_t i = 0; i < len; i++) printf("%02x", (unsigned char)text[i]);
    (void)putchar('\n');
}

static void refuse(const err *e)
{
    printf("e %d %s\n", -(int)e->code, e->msg);
}

static void match_pattern(const char *expression, const char *text)
{
    pattern *p;
    err e;
    err_code rc = pattern_create(&p, expression, &e);
    if (rc) {
        refuse(&e);
        return;
    }
    (void)puts(pattern_matches(p, text, NULL) ? "y" : "n");
    pattern_destroy(p);
}

static void match_grammar(const char *expression, const char *text)
{
    g_auto a;
    err e;
    err_code rc = fuzz_walk_regex(&a, expression, false, &e);
    if (rc) {
        refuse(&e);
        return;
    }
    (void)puts(fuzz_walk_takes(&walk, &a, text) ? "y" : "n");
    g_auto_clear(&a);
}

static void read_json(const char *text, size_t len)
{
    cJSON *tree;
    err e;
    err_code rc = json_parse(text, len, &json_limits_request, &tree, &e);
    if (rc) {
        refuse(&e);
        return;
    }
    char *printed = cJSON_PrintUnformatted(tree);
    if (!printed) abort();
    answer(printed, strlen(printed));
    free(printed);
    cJSON_Delete(tree);
}

static int64_t then(void)
{
    return 1721995200;
}

static void render(const char *text, size_t len)
{
    jinja *t;
    err e;
    jinja_text out;
    const cJSON *v;
    err_code rc = jinja_read(&t, text, len, &e);
    if (rc) {
        refuse(&e);
        return;
    }
    jinja_run *r = jinja_begin(t, 64 << 20, then);
    if (!r) abort();
    cJSON_ArrayForEach(v, variables) jinja_set_json(r, v->string, v, true);
    rc = jinja_render(r, &out, &e);
    if (rc)
        refuse(&e);
    else
        answer(out.text, out.len);
    jinja_end(r);
    jinja_destroy(t);
}

int main(void)
{
    char *line = NULL;
    size_t cap = 0, n, n_text;
    while (getline(&line, &cap, stdin) > 0) {
        char *save = NULL, *kind = strtok_r(line, " \n", &save);
        char *first = strtok_r(NULL, " \n", &save), *second = strtok_r(NULL, " \n", &save);
        char none[1] = "";
        first = unhex(first ? first : none, &n);
        second = unhex(second ? second : none, &n_text);
        switch (kind ? *kind : 0) {
        case 'v':
            cJSON_Delete(variables);
            if (json_parse(first, n, &json_limits_trusted, &variables, NULL)) return 2;
            break;
        case 'p': match_pattern(first, second); break;
        case 'g': match_grammar(first, second); break;
        case 'j': read_json(first, n); break;
        case 't': render(first, n); break;
        default: return 2;
        }
    }
    cJSON_Delete(variables);
    free(line);
    return 0;
}
