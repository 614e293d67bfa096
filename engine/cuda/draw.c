/* draw.c -- sampling on the device: be_sample().
 *
 * Rules, and the lists they need (biases, histories where a penalty asks for them, token masks), go
 * up in a pinned block; these take turns.  Its size is bounded by the longest single row: more rows
 * with long lists than fit go up in several rounds, each with its own launch, and nothing is
 * allocated.  The answers of all rounds, one small struct a row, come back in one copy.
 */
#include <assert.h>
#include <string.h>

#include "engine/base/round.h"
#include "engine/cuda/cuda.h"

enum { ALIGN = 16, USUAL_BYTES = 2048 }; /* lists of a row: 500 tokens or 250 biases */

static size_t padded(size_t bytes)
{
    return round_up_size(bytes, ALIGN);
}

static size_t mask_bytes(int n_vocab)
{
    return padded(((size_t)n_vocab + 31) / 32 * sizeof(uint32_t));
}

/* ---- life ------------------------------------------------------------------------------ */

err_code cuda_draw_open(backend *be, int stride, err *e)
{
    cuda_state *cu = cuda_of(be);
    cuda_draw *d = &cu->draw;
    int n_vocab = cu->n_vocab > 0 ? cu->n_vocab : 1;
    d->stride = stride > n_vocab ? stride : n_vocab;
    size_t longest = sizeof(cu_sample_row) + mask_bytes(d->stride) +
                     padded(SAMPLE_BIAS_MAX * sizeof(logit_bias)) +
                     padded(SAMPLE_STOP_MAX * sizeof(int32_t)) +
                     padded((size_t)cu->max_context * sizeof(int32_t)) + 8 * ALIGN;
    size_t max = cu->logits.bytes / sizeof(float) / (size_t)n_vocab;
    d->max = max < (size_t)cu->max_rows ? (int)max : cu->max_rows;
    if (d->max < 1) d->max = 1;
    d->bytes = padded((size_t)d->max * (sizeof(cu_sample_row) + USUAL_BYTES) + longest);
    d->device = cuda_take(cu, d->bytes, false);
    d->out =
        cuda_alloc(be, (size_t)d->max * sizeof(*d->out)); /* zeroed: not all of it is written */
    err_code rc = d->device && d->out ? ERR_NONE : err_set(e, ERR_NOMEM, "no room for sampling");
    for (int i = 0; !rc && i < 2; i++) {
        rc = CU_TRY(cu,
                    cudaHostAlloc((void **)&d->answer[i], (size_t)d->max * sizeof(sampled),
                                  cudaHostAllocDefault),
                    e);
    }
    for (int i = 0; !rc && i < CUDA_DRAW_BLOCKS; i++) {
        rc = CU_TRY(cu, cudaHostAlloc((void **)&d->pinned[i], d->bytes, cudaHostAllocDefault), e);
        if (!rc)
            rc = CU_TRY(cu, cudaEventCreateWithFlags(&d->copied[i], cudaEventDisableTiming), e);
    }
    if (rc) cuda_draw_close(cu);
    return rc;
}

void cuda_draw_close(cuda_state *cu)
{
    cuda_draw *d = &cu->draw;
    for (int i = 0; i < CUDA_DRAW_BLOCKS; i++) {
        if (d->copied[i]) (void)cudaEventDestroy(d->copied[i]);
        wait_free_host(cu->wait, d->pinned[i]);
    }
    for (int i = 0; i < 2; i++) wait_free_host(cu->wait, d->answer[i]);
    cuda_give(cu, d->out);
    cuda_give(cu, d->device);
    memset(d, 0, sizeof(*d));
}

/* ---- one round --------------------------------------------------------------------------- */

/* The lists that a row needs; the others are not copied to the device. */
typedef struct {
    bool prompt, output, stops;
} wanted;

static wanted wants(const sample_row *r)
{
    const sampling *u = r->rules;
    bool repeat = u->repetition_penalty != 1, pick = r->score < 0;
    return (wanted){.prompt = pick && repeat,
                    .output =
                        pick && (repeat || u->presence_penalty != 0 || u->frequency_penalty != 0),
                    .stops = pick && r->n_output < u->min_tokens};
}

static size_t row_bytes(const sample_row *r, int n_vocab)
{
    wanted w = wants(r);
    size_t n = sizeof(cu_sample_row) + ALIGN;
    if (r->score < 0) n += padded((size_t)r->rules->n_bias * sizeof(logit_bias));
    if (w.stops) n += padded((size_t)r->rules->n_stop_id * sizeof(int32_t));
    if (w.prompt) n += padded((size_t)r->n_prompt * sizeof(int32_t));
    if (w.output) n += padded((size_t)r->n_output * sizeof(int32_t));
    if (r->allowed) n += mask_bytes(n_vocab);
    return n;
}

/* Tokens that row `r` of a call with n_vocab of them has. */
static int vocab_of(const sample_row *r, int n_vocab)
{
    return r->n_vocab > 0 ? r->n_vocab : n_vocab;
}

/* How many of `n` rows fit into a block, at least one. */
static int rows_that_fit(const cuda_draw *d, const sample_row *rows, int n, int n_vocab)
{
    size_t sum = ALIGN;
    int k = 0;
    while (k < n && (sum += row_bytes(&rows[k], vocab_of(&rows[k], n_vocab))) <= d->bytes) k++;
    return k;
}

typedef struct {
    char *host, *device;
    size_t at;
    int stride;
} block;

static const void *put(block *b, const void *from, size_t bytes, bool needed)
{
    if (!needed || bytes == 0) return NULL;
    const char *to = b->device + b->at;
    memcpy(b->host + b->at, from, bytes);
    b->at += padded(bytes);
    return to;
}

/* A form's mask is of the base's tokens: none is allowed behind an adapter's, if it has fewer. */
static const uint32_t *put_mask(block *b, const uint32_t *allowed, int n_vocab)
{
    uint32_t *last = (uint32_t *)(void *)(b->host + b->at) + n_vocab / 32;
    const uint32_t *to =
        put(b, allowed, ((size_t)n_vocab + 31) / 32 * sizeof(*to), allowed != NULL);
    if (to && n_vocab % 32) *last &= (1U << n_vocab % 32) - 1;
    return to;
}

static cu_sample_row row_of(block *b, const sample_row *r, int n_vocab)
{
    const sampling *from = r->rules;
    wanted w = wants(r);
    bool pick = r->score < 0;
    size_t id = sizeof(int32_t);
    assert(n_vocab <= b->stride);
    return (cu_sample_row){
        .logit_row = r->logit,
        SAMPLING_LIST(SAMPLING_COPY) /* from->temperature and so on */
            .seed = from->seed,
        .n_bias = pick ? from->n_bias : 0,
        .n_stop_id = w.stops ? from->n_stop_id : 0,
        .bias = put(b, from->bias, (size_t)from->n_bias * sizeof(logit_bias), pick),
        .stop_id = put(b, from->stop_id, (size_t)from->n_stop_id * id, w.stops),
        .prompt = put(b, r->prompt, (size_t)r->n_prompt * id, w.prompt),
        .output = put(b, r->output, (size_t)r->n_output * id, w.output),
        .allowed = put_mask(b, r->allowed, n_vocab),
        .n_prompt = w.prompt ? r->n_prompt : 0,
        .n_vocab = n_vocab,
        .n_output = r->n_output,
        .n_top = pick ? from->n_top : r->n_top,
        .processed = pick && from->logprobs == LOGPROBS_PROCESSED,
        .score = r->score,
    };
}

/* Fills a block with k rows, sends it, launches; false: the backend is marked. */
static bool run_round(backend *be, float *logits, int n_vocab, const sample_row *rows, int k,
                      sampled *out)
{
    cuda_state *cu = cuda_of(be);
    cuda_draw *d = &cu->draw;
    assert(k > 0 && k <= d->max);
    unsigned turn = ++d->turn % CUDA_DRAW_BLOCKS;
    if (!CU(be, wait_event(cu->wait, d->copied[turn]))) return false;
    int stride = cu->step.stride > 0 ? cu->step.stride : n_vocab;
    block b = {.host = d->pinned[turn], .device = d->device, .stride = stride};
    cu_sample_row *to = (cu_sample_row *)(void *)b.host;
    b.at = padded((size_t)k * sizeof(*to));
    for (int i = 0; i < k; i++) to[i] = row_of(&b, &rows[i], vocab_of(&rows[i], n_vocab));
    assert(b.at <= d->bytes); /* rows_that_fit() counted right */
    if (!CU(be, cudaMemcpyAsync(b.device, b.host, b.at, cudaMemcpyHostToDevice, cu->stream)) ||
        !CU(be, cudaEventRecord(d->copied[turn], cu->stream)))
        return false;
    cu_sample_args a = {.logits = logits,
                        .rows = (const cu_sample_row *)(void *)b.device,
                        .out = out,
                        .n_rows = k,
                        .stride = stride};
    return CU(be, cu_sample(cu->stream, &a));
}

/* ---- the ops --------------------------------------------------------------------------------- */

const sampled *cuda_sample(backend *be, float *logits, int n_vocab, const sample_row *rows, int n)
{
    cuda_state *cu = cuda_of(be);
    cuda_draw *d = &cu->draw;
    if (n > d->max || logits != cu->logits.host) {
        backend_fail(be, ERR_LIMIT, "%d rows to sample; at most %d fit", n, d->max);
        return NULL;
    }
    for (int done = 0, k; done < n; done += k) {
        k = rows_that_fit(d, rows + done, n - done, n_vocab);
        if (k == 0) {
            backend_fail(be, ERR_LIMIT, "a row's sampling rules do not fit");
            return NULL;
        }
        if (!run_round(be, cu->logits.device, n_vocab, rows + done, k, d->out + done)) return NULL;
    }
    sampled *answer = d->answer[++d->call & 1];
    if (n > 0 && !CU(be, cudaMemcpyAsync(answer, d->out, (size_t)n * sizeof(*answer),
                                         cudaMemcpyDeviceToHost, cu->stream)))
        return NULL;
    return answer;
}

void cuda_logits_fetch(backend *be, float *logits, size_t n)
{
    cuda_state *cu = cuda_of(be);
    if (logits != cu->logits.host || n * sizeof(*logits) > cu->logits.bytes) {
        backend_fail(be, ERR_LIMIT, "the logits are not in memory of be_host_alloc()");
        return;
    }
    (void)CU(be, cudaMemcpyAsync(logits, cu->logits.device, n * sizeof(*logits),
                                 cudaMemcpyDeviceToHost, cu->stream));
}
