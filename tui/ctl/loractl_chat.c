/* loractl_chat.c -- `chat` and `complete`: sends a prompt, prints the answer as it comes, keeps
 * a history.
 *
 * With a prompt on the command line or in a pipe there is one question; on a terminal there is a
 * conversation with line editing (lines.h). The body is one JSON object that grows by
 * two messages for each turn. A question that the server refused is taken out again; an answer
 * that Ctrl-C interrupted stays in the history as far as it came.
 *
 * The stream is parsed by sse.c. Text goes through text_print(), which holds back incomplete
 * UTF-8 sequences between two events (carry) and replaces control characters. An error inside
 * the stream arrives as an event and is printed after the text so far.
 *
 * The limit is on silence (ANSWER_IDLE_MS), not on the whole answer.
 */
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "engine/base/json.h"
#include "tui/ctl/lines.h"
#include "tui/ctl/loractl.h"
#include "tui/text.h"

enum { STDIN_MAX = 4 << 20, ANSWER_IDLE_MS = 120000 };

static const json_limits event_limits = {
    .max_bytes = 1 << 20, .max_depth = 32, .max_values = 1 << 16};

typedef struct {
    bool chat;
    text_carry carry;
    char *answer; /* whole, for the history */
    size_t len, cap;
    char problem[512]; /* an error inside the stream */
    bool ended_line;
} listener;

static bool keep(listener *l, const char *s, size_t n)
{
    if (l->len + n + 1 > l->cap) {
        size_t cap = 2 * (l->len + n) + 256;
        char *bigger = realloc(l->answer, cap);
        if (!bigger) return false;
        l->answer = bigger;
        l->cap = cap;
    }
    memcpy(l->answer + l->len, s, n);
    l->len += n;
    l->answer[l->len] = 0;
    return true;
}

static const cJSON *member(const cJSON *o, const char *name)
{
    return cJSON_IsObject(o) ? json_get(o, name) : NULL;
}

/* choices[0].text, or with chat choices[0].<part>.content: "delta" of a chunk,
 * "message" of a whole answer. */
static const char *text_of(const cJSON *tree, bool chat, const char *part)
{
    const cJSON *choices = member(tree, "choices");
    const cJSON *first = cJSON_IsArray(choices) ? cJSON_GetArrayItem(choices, 0) : NULL;
    const cJSON *v = chat ? member(member(first, part), "content") : member(first, "text");
    return cJSON_IsString(v) ? v->valuestring : NULL;
}

/* To the terminal and into the history.  False: one of them takes no more. */
static bool show(listener *l, const char *text)
{
    size_t n = strlen(text);
    if (n == 0) return true;
    text_print(stdout, text, n, &l->carry);
    l->ended_line = text[n - 1] == '\n';
    return fflush(stdout) == 0 && keep(l, text, n);
}

static bool on_event(void *arg, const char *data, size_t len)
{
    listener *l = arg;
    cJSON *tree;
    if (strcmp(data, "[DONE]") == 0) return true;
    if (json_parse(data, len, &event_limits, &tree, NULL)) {
        snprintf(l->problem, sizeof(l->problem), "the server sent invalid JSON");
        return true;
    }
    const cJSON *message = member(member(tree, "error"), "message");
    const char *text = text_of(tree, l->chat, "delta");
    if (cJSON_IsString(message))
        snprintf(l->problem, sizeof(l->problem), "%s", message->valuestring);
    bool on = !text || show(l, text);
    cJSON_Delete(tree);
    return on;
}

/* ------------------------------------------------------------------------- asking -- */

static bool add_settings(const ctl *c, cJSON *body)
{
    static const struct {
        const char *option, *field;
        bool whole;
    } numbers[] = {{"max-tokens", "max_tokens", true},
                   {"temperature", "temperature", false},
                   {"top-p", "top_p", false},
                   {"seed", "seed", true}};
    for (size_t i = 0; i < sizeof(numbers) / sizeof(numbers[0]); i++) {
        const char *v = cli_value(&c->cli, numbers[i].option);
        char *end;
        if (!v) continue;
        double number = strtod(v, &end);
        if (end == v || *end || (numbers[i].whole && number != (double)(int64_t)number)) {
            (void)ctl_usage("--%s: '%s' is no %snumber", numbers[i].option, v,
                            numbers[i].whole ? "whole " : "");
            return false;
        }
        (void)cJSON_AddNumberToObject(body, numbers[i].field, number);
    }
    const char *class = cli_value(&c->cli, "class"), *stop;
    if (class) (void)cJSON_AddStringToObject(body, "service_tier", class);
    for (int i = 0; (stop = cli_each(&c->cli, "stop", i)); i++) {
        cJSON *list = cJSON_GetObjectItemCaseSensitive(body, "stop");
        if (!list) list = cJSON_AddArrayToObject(body, "stop");
        (void)cJSON_AddItemToArray(list, cJSON_CreateString(stop));
    }
    return true;
}

/* Sends the body (lent) and prints the answer as it comes; the whole of it in *answer (free()). */
static int ask(ctl *c, cJSON *body, bool chat, char **answer)
{
    const char *path = chat ? "/v1/chat/completions" : "/v1/completions";
    listener l = {.chat = chat, .ended_line = true};
    client_reply reply;
    bool json = c->format == TABLE_JSON, stream = !json && !cli_given(&c->cli, "no-stream");
    cJSON_DeleteItemFromObjectCaseSensitive(body, "stream");
    if (stream) (void)cJSON_AddBoolToObject(body, "stream", true);
    char *text = cJSON_PrintUnformatted(body);
    if (!text) return ctl_fail("out of memory");
    client_request rq = {.method = "POST",
                         .path = path,
                         .body = text,
                         .body_len = strlen(text),
                         .on_event = on_event,
                         .on_arg = &l,
                         .timeout_ms = -1,
                         .idle_ms = ANSWER_IDLE_MS};
    int status = ctl_run(c, TENANT_SIDE, &rq, &reply);
    free(text);
    if (!status && !stream) {
        cJSON *tree;
        err e;
        if (client_reply_json(&reply, &tree, &e)) {
            status = ctl_fail("%s", e.msg);
        } else if (json) {
            ctl_print_json(c, tree);
        } else {
            const char *whole = text_of(tree, chat, "message");
            l.ended_line = !whole;
            if (whole) (void)show(&l, whole);
        }
        cJSON_Delete(tree);
    }
    client_reply_clear(&reply);
    if (!json && !l.ended_line) (void)fputc('\n', stdout);
    if (!status && l.problem[0]) status = ctl_fail("%s", l.problem);
    if (answer)
        *answer = l.answer;
    else
        free(l.answer);
    return status;
}

/* All of standard input; NULL: said why. */
static char *read_stdin(void)
{
    size_t len = 0, cap = 65536;
    char *text = malloc(cap + 1);
    while (text) {
        size_t got = fread(text + len, 1, cap - len, stdin);
        len += got;
        if (got == 0) break;
        if (len > STDIN_MAX) {
            free(text);
            (void)ctl_fail("standard input is larger than %d bytes", STDIN_MAX);
            return NULL;
        }
        if (len == cap) {
            cap *= 2;
            char *bigger = realloc(text, cap + 1);
            if (!bigger) free(text);
            text = bigger;
        }
    }
    if (!text) {
        (void)ctl_fail("out of memory");
        return NULL;
    }
    text[len] = 0;
    return text;
}

/* Arguments from the i-th on as one text; "-" or none: standard input.  free() it. */
static char *prompt_of(const ctl *c, int first)
{
    size_t n = 1;
    if (c->cli.n_arg <= first || strcmp(c->cli.arg[first], "-") == 0) return read_stdin();
    for (int i = first; i < c->cli.n_arg; i++) n += strlen(c->cli.arg[i]) + 1;
    char *text = calloc(1, n);
    for (int i = first; text && i < c->cli.n_arg; i++) {
        if (i > first) strcat(text, " ");
        strcat(text, c->cli.arg[i]);
    }
    return text;
}

static void add_message(cJSON *messages, const char *role, const char *content)
{
    cJSON *m = cJSON_CreateObject();
    (void)cJSON_AddStringToObject(m, "role", role);
    (void)cJSON_AddStringToObject(m, "content", content);
    (void)cJSON_AddItemToArray(messages, m);
}

/* --------------------------------------------------------------------- interactive -- */

static void forget(cJSON *body, const char *system)
{
    cJSON_DeleteItemFromObjectCaseSensitive(body, "messages");
    cJSON *messages = cJSON_AddArrayToObject(body, "messages");
    if (system && *system) add_message(messages, "system", system);
}

/* Executes a line that begins with a slash.  False: the line is no command. */
static bool obey(cJSON *body, const char *line, char *system, size_t cap, bool *end)
{
    if (*line != '/') return false;
    if (strcmp(line, "/exit") == 0 || strcmp(line, "/quit") == 0) {
        *end = true;
    } else if (strcmp(line, "/reset") == 0) {
        forget(body, system);
        fprintf(stderr, "(all forgotten)\n");
    } else if (strncmp(line, "/system ", 8) == 0) {
        snprintf(system, cap, "%s", line + 8);
        forget(body, system);
        fprintf(stderr, "(all forgotten, but for the new instruction)\n");
    } else if (strncmp(line, "/model ", 7) == 0) {
        (void)cJSON_ReplaceItemInObjectCaseSensitive(body, "model", cJSON_CreateString(line + 7));
    } else {
        fprintf(stderr, "/reset  /system TEXT  /model NAME  /exit\n");
    }
    return true;
}

/* A talk of many turns, until Ctrl-D. A question that was refused is taken out of the
 * conversation again; an answer that was interrupted stays as far as it came. */
static int converse(ctl *c, cJSON *body)
{
    char system[4096] = "", history[PATH_MAX] = "";
    const char *line;
    lines_what what;
    int status = CTL_OK;
    bool end = false;
    const char *given = cli_value(&c->cli, "system");
    snprintf(system, sizeof(system), "%s", given ? given : "");
    forget(body, system);
    ctl_keep_running();
    ctl_state_path(c, "chat_history", history, sizeof(history));
    lines *typed = lines_open("> ", history);
    if (!typed) return ctl_fail("out of memory");
    fprintf(stderr, "Ctrl-C ends an answer, Ctrl-D the talk; /help for more.\n");
    while (!end && (what = lines_next(typed, &line)) != LINES_END) {
        if (what == LINES_DROPPED) {
            (void)fputc('\n', stderr);
            continue;
        }
        if (!*line || obey(body, line, system, sizeof(system), &end)) continue;
        cJSON *messages = cJSON_GetObjectItemCaseSensitive(body, "messages");
        add_message(messages, "user", line);
        char *answer = NULL;
        status = ask(c, body, true, &answer);
        if (ctl_was_interrupted()) (void)fputc('\n', stderr);
        if (status && status != CTL_INTERRUPTED) /* what was refused is not said */
            cJSON_DeleteItemFromArray(messages, cJSON_GetArraySize(messages) - 1);
        else
            add_message(messages, "assistant", answer ? answer : "");
        free(answer);
        if (status == CTL_UNREACHABLE) break;
    }
    (void)fputc('\n', stderr);
    lines_close(typed);
    return status == CTL_INTERRUPTED ? CTL_OK : status;
}

/* Model and settings; NULL: said why. */
static cJSON *begin_body(const ctl *c)
{
    cJSON *body = cJSON_CreateObject();
    (void)cJSON_AddStringToObject(body, "model", c->cli.arg[0]);
    if (add_settings(c, body)) return body;
    cJSON_Delete(body);
    return NULL;
}

int ctl_chat(void *p)
{
    ctl *c = p;
    cJSON *body = begin_body(c);
    if (!body) return CTL_USAGE;
    int status;
    if (c->cli.n_arg == 1 && isatty(STDIN_FILENO)) {
        status = converse(c, body);
    } else {
        char *prompt = prompt_of(c, 1);
        forget(body, cli_value(&c->cli, "system"));
        if (prompt) add_message(cJSON_GetObjectItemCaseSensitive(body, "messages"), "user", prompt);
        status = prompt ? ask(c, body, true, NULL) : CTL_REFUSED;
        free(prompt);
    }
    cJSON_Delete(body);
    return status;
}

int ctl_complete(void *p)
{
    ctl *c = p;
    cJSON *body = begin_body(c);
    if (!body) return CTL_USAGE;
    char *prompt = prompt_of(c, 1);
    if (prompt) (void)cJSON_AddStringToObject(body, "prompt", prompt);
    int status = prompt ? ask(c, body, false, NULL) : CTL_REFUSED;
    free(prompt);
    cJSON_Delete(body);
    return status;
}

int ctl_models(void *p)
{
    static const column columns[] = {
        {"ID", "id", CELL_TEXT, false},           {"PARENT", "parent", CELL_TEXT, false},
        {"OWNER", "owned_by", CELL_TEXT, false},  {"CONTEXT", "max_model_len", CELL_INT, false},
        {"CREATED", "created", CELL_TIME, false}, {NULL, NULL, CELL_TEXT, false},
    };
    ctl *c = p;
    cJSON *rows;
    int status = ctl_list(c, TENANT_SIDE, "/v1/models", "id", &rows);
    if (!status) status = ctl_print_rows(c, columns, rows);
    cJSON_Delete(rows);
    return status;
}
