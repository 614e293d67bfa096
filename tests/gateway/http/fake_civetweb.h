/* fake_civetweb.h -- civetweb's calls, answered from memory: exchanges without a socket.
 *
 * A test that includes this is linked with these functions instead of libcivetweb.a, whose one
 * object is then never pulled in.  The connection holds the request's headers and body, cut into
 * pieces, and collects what is written.
 */
#ifndef TESTS_GATEWAY_HTTP_FAKE_CIVETWEB_H
#define TESTS_GATEWAY_HTTP_FAKE_CIVETWEB_H

#include <ctype.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <civetweb.h>
#include <cjson/cJSON.h>

#include "gateway/http/exchange.h"
#include "gateway/http/host.h"

struct mg_context {
    void *user_data;
};

struct mg_connection {
    struct mg_context *ctx;
    struct mg_request_info ri;
    const char *body; /* what the client sends */
    size_t len, at, piece;
    bool broken; /* at the end of the body: an error instead of silence */
    bool gone;   /* writes fail */
    char out[1 << 16];
    size_t out_len;
    int n_writes;
    bool keep_alive;
};

const struct mg_request_info *mg_get_request_info(const struct mg_connection *c)
{
    return &c->ri;
}

struct mg_context *mg_get_context(const struct mg_connection *c)
{
    return c->ctx;
}

void *mg_get_user_data(const struct mg_context *ctx)
{
    return ctx->user_data;
}

const char *mg_get_header(const struct mg_connection *c, const char *name)
{
    for (int i = 0; i < c->ri.num_headers; i++) {
        if (strcasecmp(c->ri.http_headers[i].name, name) == 0) return c->ri.http_headers[i].value;
    }
    return NULL;
}

int mg_fill(struct mg_connection *c, const char **data)
{
    if (c->at == c->len) return c->broken ? -1 : 0;
    size_t n = c->piece ? c->piece : 1;
    if (n > c->len - c->at) n = c->len - c->at;
    *data = c->body + c->at;
    return (int)n;
}

void mg_take(struct mg_connection *c, int n)
{
    c->at += (size_t)n;
}

int mg_write(struct mg_connection *c, const void *buf, size_t len)
{
    if (c->gone || len >= sizeof(c->out) - c->out_len) return -1;
    memcpy(c->out + c->out_len, buf, len);
    c->out_len += len;
    c->out[c->out_len] = 0;
    c->n_writes++;
    return (int)len;
}

void mg_disable_connection_keep_alive(struct mg_connection *c)
{
    c->keep_alive = false;
}

int mg_url_decode(const char *src, int src_len, char *dst, int dst_len, int form)
{
    int n = 0;
    for (int i = 0; i < src_len; i++, n++) {
        if (n + 1 >= dst_len) return -1;
        if (src[i] == '%' && i + 2 < src_len && isxdigit((unsigned char)src[i + 1]) &&
            isxdigit((unsigned char)src[i + 2])) {
            dst[n] = (char)strtol((char[]){src[i + 1], src[i + 2], 0}, NULL, 16);
            i += 2;
        } else {
            dst[n] = form && src[i] == '+' ? ' ' : src[i];
        }
    }
    dst[n] = 0;
    return n;
}

struct mg_context *mg_start2(struct mg_init_data *init, struct mg_error_data *error)
{
    (void)init;
    (void)error;
    return NULL;
}

void mg_stop(struct mg_context *ctx)
{
    (void)ctx;
}

/* ---- a request and what came back ------------------------------------------------------- */

static struct mg_connection fake_conn;
static exchange fake_x;
static http_host fake_host = {.max_body_bytes = 4 << 20, .body_timeout_us = 10 * 1000000};

static inline void fake_header(const char *name, const char *value)
{
    fake_conn.ri.http_headers[fake_conn.ri.num_headers++] = (struct mg_header){name, value};
}

/* A new exchange; the one before is freed. */
static inline exchange *fake_request(const char *method, const char *path)
{
    static struct mg_context ctx;
    cJSON_Delete(fake_x.tree);
    arena_clear(&fake_x.arena);
    memset(&fake_conn, 0, sizeof(fake_conn));
    fake_conn.ctx = &ctx;
    fake_conn.keep_alive = true;
    fake_conn.ri.request_method = method;
    fake_conn.ri.http_version = "1.1";
    fake_x = (exchange){.host = &fake_host,
                        .app = fake_host.app,
                        .conn = &fake_conn,
                        .plane = PLANE_INFERENCE,
                        .method = method,
                        .content_length = -1,
                        .request_id = "req_1"};
    snprintf(fake_x.path, sizeof(fake_x.path), "%s", path);
    arena_init(&fake_x.arena, EXCHANGE_ARENA_BYTES);
    return &fake_x;
}

/* Content-Length: `said` bytes; the client sends `text` in pieces of `piece` bytes. */
static inline void fake_body(const char *text, int64_t said, size_t piece)
{
    fake_conn.body = text;
    fake_conn.len = strlen(text);
    fake_conn.piece = piece;
    fake_x.content_length = said;
}

/* Status of the one answer; -1: none. */
static inline int fake_status(void)
{
    int status = -1;
    return sscanf(fake_conn.out, "HTTP/1.1 %d ", &status) == 1 ? status : -1;
}

static inline const char *fake_text(void)
{
    const char *end = strstr(fake_conn.out, "\r\n\r\n");
    return end ? end + 4 : "";
}

/* Is this line, from "\r\n" to "\r\n", in the head of the answer? */
static inline bool fake_said(const char *line)
{
    char whole[600];
    snprintf(whole, sizeof(whole), "\r\n%s\r\n", line);
    const char *hit = strstr(fake_conn.out, whole);
    return hit && hit < fake_text();
}

/* error.code of the answer's JSON, in a static buffer; "" when it is no JSON of that shape. */
static inline const char *fake_code(void)
{
    static char code[64];
    code[0] = 0;
    cJSON *tree = cJSON_Parse(fake_text());
    const cJSON *v = cJSON_GetObjectItem(cJSON_GetObjectItem(tree, "error"), "code");
    if (cJSON_IsString(v)) snprintf(code, sizeof(code), "%s", v->valuestring);
    cJSON_Delete(tree);
    return code;
}

#endif
