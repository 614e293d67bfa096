/* vllm_api.c -- what trainers call on a vLLM server: adapters that come and go by name, and the few
 * questions and marks around them.
 *
 *   POST /v1/load_lora_adapter    application/json: {"lora_name", "lora_path", "load_inplace"?}:
 *              the folder is copied, from below ROOT/TENANT of adapters.roots.
 *              multipart/form-data: the same fields but the path, then the folder's files, each
 *              with its filename.
 *   POST /v1/unload_lora_adapter  {"lora_name"}: the name is deleted; what runs goes on.
 *
 * A load makes the name's next version, which is `default` from then on; without load_inplace the
 * name must be new, as vLLM has it.  Nothing stands still meanwhile, and no KV of an older version
 * is ever used for a newer one: the prefix cache is keyed by version.  So POST /pause?mode=keep,
 * /resume and /reset_prefix_cache have nothing to do, and say so.
 */
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>
#include <unistd.h>

#include "adapters/store/upload.h"
#include "engine/base/clock.h"
#include "engine/base/json.h"
#include "engine/program/hurry.h"
#include "gateway/adapter_parts.h"
#include "gateway/auth.h"
#include "gateway/engine_parts.h"
#include "gateway/handlers.h"
#include "gateway/http/api_fields.h"
#include "gateway/http/multipart.h"
#include "gateway/process_parts.h"
#include "gateway/rest/adapter_fields.h"
#include "gateway/rest/api_audit.h"

enum { VALUE_MAX = 255 /* bytes of a form's field */ };

typedef struct lora_load {
    exchange *x;
    const char *name; /* NULL: not known yet */
    bool inplace;
    upload *u; /* NULL: no file has begun */
    multipart form;
    char value[VALUE_MAX + 1], own_name[VALUE_MAX + 1]; /* of the field that is coming; lora_name */
    size_t n_value;
    enum { NO_FIELD, FIELD_NAME, FIELD_INPLACE, A_FILE } now;
    bool bad_begin; /* `why` is of the name, the limits or the form, not of what a file holds */
    bool refused;   /* by what is sent, not by the connection */
    err why;
    hurry hurry;    /* a trainer waits for the answer */
    pace_turn turn; /* and streams wait for their steps */
} lora_load;

/* ------------------------------------------------------------------------- a load -- */

static err_code already_loaded(const lora_load *l, err *e)
{
    return err_set(e, ERR_STALE,
                   "The lora adapter '%.64s' has already been loaded. If you want to load the "
                   "adapter in place, set 'load_inplace' to True.",
                   l->name);
}

/* What can be refused before a byte of it is read. */
static err_code begin_load(lora_load *l, err *e)
{
    exchange *x = l->x;
    adapter_entry known;
    const upload_env env = adapters_upload(x);
    publish_options o = adapter_options(x, l->name);
    o.if_generation = !l->inplace;
    if (o.if_generation &&
        !registry_get(registry_of(x->app), x->caller->tenant.id, l->name, &known, NULL))
        return already_loaded(l, e);
    return upload_begin(&l->u, &env, &o, e);
}

static void refuse_load(lora_load *l, const err *e)
{
    exchange *x = l->x;
    err again;
    if (e->code == ERR_STALE) (void)already_loaded(l, &again);
    if (e->code == ERR_STALE || (e->code == ERR_INPUT && l->bad_begin))
        exchange_error(x, 400, "invalid_request_error", "invalid_value", "lora_name", "%s",
                       e->code == ERR_STALE ? again.msg : e->msg);
    else
        adapter_refuse(x, e, NULL);
}

/* Publishes what has come, and answers. */
static void end_load(lora_load *l)
{
    exchange *x = l->x;
    adapter_version v;
    bool existed = false;
    char said[128], hex[DIGEST_HEX];
    err e;
    uint64_t before = adapter_default_id(x, l->name);
    err_code rc = upload_finish(l->u, &v, &existed, &e);
    l->u = NULL;
    if (rc) {
        refuse_load(l, &e);
        return;
    }
    adapter_published(x, &v, existed, before);
    digest_hex(v.digest, hex);
    exchange_add_header(x, "x-adapter-version", "%s@%d", v.name, v.version);
    exchange_add_header(x, "x-adapter-digest", "%s", hex);
    int n = snprintf(said, sizeof(said), "Success: LoRA adapter '%s' added successfully.", v.name);
    exchange_reply(x, 200, "text/plain; charset=utf-8", said, (size_t)n);
    hurry_end(&l->hurry, clock_now_us(), clock_thread_us());
    adapter_note(x, &v, existed);
    adapter_prune(x, v.name);
}

/* -------------------------------------------------------------- a folder of its own -- */

/* A member of `body` that is a text and not empty; false: answered. */
static bool take_text(exchange *x, const cJSON *body, const char *name, const char **out)
{
    err e;
    *out = NULL;
    if (json_str(body, name, out, NULL, &e)) {
        exchange_reply_err(x, &e, name);
        return false;
    }
    if (*out && **out) return true;
    exchange_error(x, 400, "invalid_request_error", "invalid_value", name, "'%s' must be provided.",
                   name);
    return false;
}

/* A folder of the server's disk, which must lie in the tenant's own folder of a root; it is
 * copied. */
static void load_path(exchange *x)
{
    /* Which way experts lie is told by the tensors themselves. */
    static const char *const known[] = {"lora_name", "lora_path", "load_inplace",
                                        "is_3d_lora_weight", NULL};
    lora_load l = {.x = x, .bad_begin = true};
    const cJSON *body;
    const char *path;
    char real[PATH_MAX];
    bool ignored = false;
    int fd = -1;
    err e;
    if (!exchange_read_json(x, &body) || !api_only_fields(x, body, known) ||
        !take_text(x, body, "lora_name", &l.name) || !take_text(x, body, "lora_path", &path))
        return;
    if (json_bool(body, "load_inplace", &l.inplace, NULL, &e) ||
        json_bool(body, "is_3d_lora_weight", &ignored, NULL, &e)) {
        exchange_reply_err(x, &e, NULL);
        return;
    }
    if (folder_open_in(x->conf->adapters.roots, x->caller->tenant.name, path, real, &fd, &e)) {
        exchange_reply_err(x, &e, "lora_path");
        return;
    }
    err_code rc = begin_load(&l, &e);
    l.bad_begin = rc != ERR_NONE;
    if (!rc) rc = upload_copy(l.u, fd, &e);
    close(fd);
    if (!rc) {
        end_load(&l);
        return;
    }
    upload_abort(l.u);
    refuse_load(&l, &e);
}

/* ------------------------------------------------------------------ files in the body -- */

static err_code begin_file(lora_load *l, const char *file, err *e)
{
    l->now = A_FILE;
    if (!l->name) return err_set(e, ERR_INPUT, "'lora_name' must stand before the files");
    err_code rc = l->u ? ERR_NONE : begin_load(l, e);
    l->bad_begin = rc != ERR_NONE;
    return rc ? rc : upload_file_begin(l->u, file, -1, e);
}

static err_code begin_part(void *arg, const char *name, const char *file, err *e)
{
    lora_load *l = arg;
    l->n_value = 0;
    if (file) return begin_file(l, file, e);
    if (strcmp(name, "lora_name") == 0 && !l->name)
        l->now = FIELD_NAME;
    else if (strcmp(name, "load_inplace") == 0 && !l->u)
        l->now = FIELD_INPLACE;
    else
        return err_set(e, ERR_INPUT,
                       "the field '%.60s' is none of lora_name and load_inplace, which stand "
                       "before the files, or there twice",
                       name);
    return ERR_NONE;
}

static err_code take_part(void *arg, const void *data, size_t len, err *e)
{
    lora_load *l = arg;
    if (l->now == A_FILE) return upload_file_write(l->u, data, len, e);
    if (l->n_value + len > VALUE_MAX)
        return err_set(e, ERR_INPUT, "a field has more than %d bytes", VALUE_MAX);
    memcpy(l->value + l->n_value, data, len);
    l->n_value += len;
    return ERR_NONE;
}

static err_code end_part(void *arg, err *e)
{
    lora_load *l = arg;
    if (l->now == A_FILE) return upload_file_end(l->u, e);
    l->value[l->n_value] = 0;
    if (l->now == FIELD_NAME) {
        memcpy(l->own_name, l->value, sizeof(l->own_name));
        l->name = l->own_name;
        return ERR_NONE;
    }
    l->inplace = strcasecmp(l->value, "true") == 0;
    return l->inplace || strcasecmp(l->value, "false") == 0
               ? ERR_NONE
               : err_set(e, ERR_INPUT, "'load_inplace' must be true or false");
}

static bool take_body(void *arg, const void *data, size_t len)
{
    lora_load *l = arg;
    int64_t busy_us = clock_thread_us();
    if (hurry_look(&l->hurry, clock_now_us(), busy_us))
        residency_turn(residency_of(l->x->app), &l->turn, busy_us);
    err_code rc = auth_still(l->x, false, &l->why);
    if (!rc) rc = multipart_feed(&l->form, data, len, &l->why);
    l->refused = rc != ERR_NONE;
    return !l->refused;
}

static void load_form(exchange *x)
{
    lora_load l = {.x = x, .bad_begin = true};
    const multipart_sink sink = {begin_part, take_part, end_part, &l};
    err e;
    if (multipart_begin(&l.form, exchange_header(x, "Content-Type"), &sink, &e)) {
        exchange_reply_err(x, &e, "Content-Type");
        return;
    }
    (void)hurry_begin(&l.hurry, clock_now_us(), clock_thread_us());
    err_code rc = exchange_stream_body(x, adapters_upload(x).max_bytes, take_body, &l, &e);
    if (!rc) rc = multipart_finish(&l.form, &l.why);
    if (!rc) rc = auth_still(x, true, &l.why);
    if (!rc && !l.u) {
        l.bad_begin = true;
        rc = err_set(&l.why, ERR_INPUT, "the body needs 'lora_name', then the adapter's files");
    }
    if (!rc) {
        end_load(&l);
        hurry_end(&l.hurry, clock_now_us(), clock_thread_us());
        return;
    }
    upload_abort(l.u);
    hurry_end(&l.hurry, clock_now_us(), clock_thread_us());
    x->close_after = true;
    if (l.refused || l.why.code)
        refuse_load(&l, &l.why);
    else
        exchange_refuse_body(x, &e);
}

void lora_load_adapter(exchange *x)
{
    if (!adapter_need_tenant(x) || adapter_refuse_draining(x)) return;
    const char *type = exchange_header(x, "Content-Type");
    if (type && strncasecmp(type, "multipart/", 10) == 0)
        load_form(x);
    else
        load_path(x);
}

void lora_unload_adapter(exchange *x)
{
    static const char *const known[] = {"lora_name", "lora_int_id", NULL};
    const cJSON *body;
    const char *name;
    char said[128];
    bool draining;
    err e;
    if (!adapter_need_tenant(x) || !exchange_read_json(x, &body) ||
        !api_only_fields(x, body, known) || !take_text(x, body, "lora_name", &name))
        return;
    err_code rc =
        registry_delete(registry_of(x->app), x->caller->tenant.id, name, 0, true, &draining, &e);
    if (rc == ERR_NOT_FOUND) {
        exchange_error(x, 404, "invalid_request_error", "not_found", "lora_name",
                       "The lora adapter '%.64s' cannot be found.", name);
        return;
    }
    if (rc) {
        exchange_reply_err(x, &e, "lora_name");
        return;
    }
    api_audit(x, x->caller->tenant.id, "adapter.delete", name, NULL);
    int n =
        snprintf(said, sizeof(said), "Success: LoRA adapter '%.64s' removed successfully.", name);
    exchange_reply(x, 200, "text/plain; charset=utf-8", said, (size_t)n);
}

/* ------------------------------------------------------------------ around an update -- */

static void reply_note(exchange *x, const char *note)
{
    jsonw w;
    jsonw_init(&w);
    jsonw_open(&w, NULL, '{');
    jsonw_str(&w, "status", "running");
    jsonw_str(&w, "note", note);
    jsonw_close(&w, '}');
    exchange_reply_json(x, 200, &w);
    jsonw_clear(&w);
}

void vllm_pause(exchange *x)
{
    const char *mode = exchange_query(x, "mode");
    if (mode && strcmp(mode, "keep") == 0) {
        reply_note(x, "requests keep the version that they began with, so none is paused");
        return;
    }
    exchange_error(x, 400, "invalid_request_error", "unsupported_parameter", "mode",
                   "only mode=keep is supported: other tenants' requests are never stopped, and a "
                   "new version changes nothing of what runs");
}

void vllm_resume(exchange *x)
{
    reply_note(x, "nothing was paused");
}

void vllm_reset_prefix_cache(exchange *x)
{
    reply_note(x, "what is cached belongs to one version of an adapter and is never used for "
                  "another");
}

void vllm_server_info(exchange *x)
{
    static const char *const formats[] = {"json", NULL};
    static const char *const types[] = {
        [DT_F32] = "torch.float32", [DT_F16] = "torch.float16", [DT_BF16] = "torch.bfloat16"};
    const server *s = x->app;
    const model_config *mc = model_get_config(engine_of(s)->model);
    int format;
    if (!api_query_word(x, "config_format", formats, &format)) return;
    jsonw w;
    jsonw_init(&w);
    jsonw_open(&w, NULL, '{');
    jsonw_open(&w, "vllm_config", '{');
    jsonw_open(&w, "model_config", '{');
    jsonw_str(&w, "model", process_of(s)->cfg->model.name);
    jsonw_str(&w, "dtype", types[mc->type]);
    jsonw_int(&w, "max_model_len", sched_max_context(sched_of(s)));
    jsonw_str(&w, "logprobs_mode", process_of(s)->cfg->engine.logprobs_mode);
    jsonw_close(&w, '}');
    jsonw_open(&w, "parallel_config", '{');
    jsonw_int(&w, "tensor_parallel_size", 1);
    jsonw_int(&w, "pipeline_parallel_size", 1);
    jsonw_int(&w, "data_parallel_size", 1);
    jsonw_close(&w, '}');
    jsonw_open(&w, "lora_config", '{');
    jsonw_int(&w, "max_loras",
              process_of(s)->cfg->engine.max_seqs); /* each sequence may have its own */
    jsonw_int(&w, "max_lora_rank", LORA_RANK_MAX);
    jsonw_close(&w, '}');
    jsonw_close(&w, '}');
    jsonw_close(&w, '}');
    exchange_reply_json(x, 200, &w);
    jsonw_clear(&w);
}
