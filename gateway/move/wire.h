/* wire.h -- a running request on its way from one node to another, and its tokens on their way
 * back.  Little-endian, between nodes of one build.
 *
 *   order:   struct move_head, prompt [n_prompt], answer so far [n_given], stop ids [n_stop],
 *            biases [n_bias] (int32 token, float)
 *   answer:  one struct move_token after another, each with its n_top alternatives (n_top ids, then
 *            n_top floats); MOVE_END is the last one, MOVE_PING says nothing
 *
 * Its keys and values are asked back by the node that goes on with it:
 *
 *   ask:     struct move_ask
 *   answer:  struct move_pages, then each page behind its SHA-256 (move_digest()), to the end of
 *            its text or of what is there; of a model with recurrent states to the last page with
 *            a snapshot, which follows behind its SHA-256 (move_state_digest())
 *
 * Threads: any; there is no state.
 */
#ifndef GATEWAY_MOVE_WIRE_H
#define GATEWAY_MOVE_WIRE_H

#include <stddef.h>
#include <stdint.h>

#include "engine/base/arena.h"
#include "engine/base/err.h"
#include "engine/sched/sched.h"
#include "storage/digest.h"

#define MOVE_PATH          "/fleet/v1/requests"
#define MOVE_PAGES_PATH    "/fleet/v1/pages"
#define MOVE_ADAPTERS_PATH "/fleet/v1/adapters"

/* Negative tokens of an answer.  In `rank`, MOVE_END has the finish_reason, MOVE_CACHED the prompt
 * tokens that the prefix cache had. */
enum { MOVE_END = -1, MOVE_PING = -2, MOVE_CACHED = -3 };
enum { MOVE_TOKEN_MAX = 16 + 8 * SAMPLE_TOP_MAX };

/* What of a request is not in struct request: in whose words it names a class and an adapter, and
 * where its keys and values are. */
typedef struct move_name {
    char build[32];               /* both nodes compute the same: the server's fingerprint */
    char class[48];               /* its class's name */
    char adapter[112];            /* "name@7"; empty: the bare base */
    uint8_t digest[DIGEST_BYTES]; /* of the adapter's content; zero: the bare base */
    uint64_t owner, version_id;   /* of the adapter */
    uint64_t pass;                /* nobody can guess it: with it its pages are asked for ... */
    int64_t node;                 /* ... of that node */
} move_name;

/* Sampling parameters, each in four bytes. */
typedef float move_real, move_above;
typedef int32_t move_whole, move_flag;
#define MOVE_FIELD(kind, name, low, high, neutral, most, gguf) move_##kind name;

typedef struct move_head {
    char magic[8];
    move_name name;
    uint64_t id, tenant_id, isolation, seed;
    int64_t left_us; /* until it expires; 0: it does not */
    int32_t adapter_from, n_prompt, n_given, max_tokens, n_stop, n_bias, n_top, logprobs;
    float weight;
    SAMPLING_LIST(MOVE_FIELD)
} move_head;

typedef struct move_token {
    int32_t token;
    float logprob;
    int32_t rank, n_top; /* n_top -1: no log-probabilities */
} move_token;

typedef struct move_ask {
    char magic[8];
    char build[32];
    uint64_t pass; /* move_name's */
    int64_t first; /* of the pages that are wanted: all from it on */
} move_ask;

typedef struct move_notice {
    char magic[8];
    move_name name; /* class, pass and node are not used */
} move_notice;

typedef struct move_pages {
    char magic[8];
    char build[32];
    uint64_t page_bytes;
    int32_t page_tokens, first;
    uint64_t state_bytes; /* 0: the model has no states */
    int64_t state_pages;  /* of the text, at whose end the state is; 0: none follows */
} move_pages;

/* The order for a request that no engine has, until its answer has max_tokens; malloced.
 * ERR_NOMEM. */
err_code move_write(const request *rq, const move_name *name, int max_tokens, int64_t now_us,
                    void **out, size_t *len, err *e);
/* Zone 1 of `rq`, of which prompt, *given behind it, and rules point into `memory`; *name
 * NUL-ended.  Checked are lengths and counts: what the numbers may be, sched_submit() and the
 * caller say.  ERR_INPUT names what is wrong. */
err_code move_read(const void *data, size_t len, int64_t now_us, arena *memory, request *rq,
                   move_name *name, const int32_t **given, err *e);

/* Malloced.  ERR_NOMEM. */
err_code move_write_notice(const move_name *name, void **out, size_t *len, err *e);
/* ERR_INPUT: it is none. */
err_code move_read_notice(const void *data, size_t len, move_name *name, err *e);
/* Whose keys and values those of this request are. */
kv_domain move_domain(const request *rq, const move_name *name);

void move_write_ask(const char *build, uint64_t pass, int first, move_ask *out);
/* ERR_INPUT: it is none. */
err_code move_read_ask(const void *data, size_t len, move_ask *out, err *e);
/* What pages of this server are, from `first` on. */
void move_write_pages(const char *build, size_t page_bytes, int page_tokens, int first,
                      move_pages *out);
/* And that of the state at the end of the text's first n_pages pages. */
void move_add_state(size_t bytes, int n_pages, move_pages *out);
/* ERR_CONFLICT names what of those that come is not as ours must be.  The state must be behind
 * `first`, and at most where it is in ours. */
err_code move_check_pages(const move_pages *come, const move_pages *ours, err *e);
/* Of page `index` of a text: over its tokens and whose they are, too, so that it is no other
 * page. */
void move_digest(const sched_text *t, int index, int page_tokens, const void *page, size_t bytes,
                 uint8_t out[DIGEST_BYTES]);
/* Of the state at the end of n_pages pages: over all tokens before it. */
void move_state_digest(const sched_text *t, int n_pages, int page_tokens, const void *state,
                       size_t bytes, uint8_t out[DIGEST_BYTES]);

/* A token of an answer; its bytes. */
size_t move_put(const sampled *t, char out[MOVE_TOKEN_MAX]);
/* The bytes of the token that [data, data + len) begins with, 0: not all there; -1: none is. */
int move_take(const void *data, size_t len, sampled *out);

#endif
