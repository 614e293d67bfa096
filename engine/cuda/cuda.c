/* cuda.c -- opens a CUDA device, classifies its faults, waits for it, and has the table of
 * operations.
 *
 * cuda_open(): device, arena (one allocation), streams, kernels' attributes, cuBLAS, optional
 * kernels (each may be left out by the mask `without` after a fault), pool, step buffers.  A
 * failure at any point goes through cuda_close(), which accepts a state that is partly open.
 *
 * Faults: every CUDA call passes through CU() or CU_TRY().  remedy_of() sorts errors by CUDA's
 * reference: those after which the process must be replaced, those for which a new context may
 * help, and those of one call.  The first of the former two is kept in `lost`, whichever thread met
 * it, and the engine sees it at its next wait.
 *
 * A hung device can't even be closed: calls would wait forever.  So leave_hung() frees only host
 * memory, and the process is replaced.
 *
 * Marks: two events alternate, because at most two steps are in flight.
 */
#include "engine/cuda/cuda.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "engine/base/log.h"
#include "engine/base/pool.h"

enum {
    WORKSPACE_BYTES = 32 << 20,
    LEAST_CAPABILITY = 80, /* sm_80: bf16 tensor cores, cp.async */
    PATIENCE_US = 25000000,
};

/* ---- faults ---------------------------------------------------------------------------- */

/* By CUDA's reference (cudaError).  Other errors fail only the call, and with it the step. */
static be_remedy remedy_of(cudaError_t code)
{
    switch ((int)code) {
    case 226:                     /* cudaErrorContained */
    case 700:                     /* cudaErrorIllegalAddress */
    case 702:                     /* cudaErrorLaunchTimeout */
    case 710:                     /* cudaErrorAssert */
    case 714:                     /* cudaErrorHardwareStackError */
    case 715:                     /* cudaErrorIllegalInstruction */
    case 716:                     /* cudaErrorMisalignedAddress */
    case 717:                     /* cudaErrorInvalidAddressSpace */
    case 718:                     /* cudaErrorInvalidPc */
    case 719:                     /* cudaErrorLaunchFailure */
    case 721:                     /* cudaErrorTensorMemoryLeak */
    case 810:                     /* cudaErrorMpsClientTerminated */
    case 911:                     /* cudaErrorExternalDevice */
        return BE_HEALS_NEVER;    /* "the process must be terminated and relaunched" */
    case 46:                      /* cudaErrorDevicesUnavailable */
    case 214:                     /* cudaErrorECCUncorrectable */
    case 220:                     /* cudaErrorNvlinkUncorrectable */
    case 709:                     /* cudaErrorContextIsDestroyed */
    case 999:                     /* cudaErrorUnknown */
        return BE_HEALS_REOPENED; /* the reference is silent on
                                                                * these */
    default: return BE_HEALS_ITSELF;
    }
}

bool cuda_sticky(cudaError_t code)
{
    return remedy_of(code) != BE_HEALS_ITSELF;
}

static void note(cuda_state *cu, cudaError_t code)
{
    int none = 0;
    if (cuda_sticky(code)) (void)atomic_compare_exchange_strong(&cu->lost, &none, (int)code);
}

static const char *text_of(const cuda_state *cu, cudaError_t code)
{
    bool hung = code == cudaErrorLaunchTimeout && cu->wait && atomic_load(&cu->wait->hung);
    return hung ? "the device hangs: no answer within engine.cuda_patience"
                : cudaGetErrorString(code);
}

bool cuda_ok(backend *be, cudaError_t code, const char *call, const char *file, int line)
{
    if (code == cudaSuccess) return true;
    if (cuda_of(be)->graphs.recording && !cuda_sticky(code)) {
        cuda_graph_spoil(cuda_of(be), call, cudaGetErrorString(code));
        return false;
    }
    note(cuda_of(be), code);
    const char *slash = strrchr(file, '/');
    int name = (int)strcspn(call, "(");
    backend_fail(be, ERR_DEVICE, "%.*s: %s (%s:%d)", name, call, text_of(cuda_of(be), code),
                 slash ? slash + 1 : file, line);
    return false;
}

err_code cuda_err(cuda_state *cu, cudaError_t code, const char *call, err *e)
{
    if (code == cudaSuccess) return ERR_NONE;
    note(cu, code);
    return err_set(e, code == cudaErrorMemoryAllocation ? ERR_NOMEM : ERR_DEVICE, "%.*s: %s",
                   (int)strcspn(call, "("), call, text_of(cu, code));
}

static void cuda_sync(backend *be)
{
    cuda_state *cu = cuda_of(be);
    cu->step.of = NULL;
    (void)CU(be, wait_stream(cu->wait, cu->stream));
    int lost = atomic_load(&cu->lost);
    if (lost) (void)CU(be, (cudaError_t)lost); /* a loader met it */
}

static int cuda_mark(backend *be)
{
    cuda_state *cu = cuda_of(be);
    int mark = (int)(cu->n_mark++ & 1);
    (void)CU(be, cudaEventRecord(cu->mark[mark], cu->stream));
    return mark;
}

static void cuda_await(backend *be, int mark)
{
    cuda_state *cu = cuda_of(be);
    (void)CU(be, wait_event(cu->wait, cu->mark[mark]));
    int lost = atomic_load(&cu->lost);
    if (lost) (void)CU(be, (cudaError_t)lost); /* a loader met it */
}

static bool cuda_lost(const backend *be)
{
    return atomic_load(&cuda_of(be)->lost) != 0;
}

/* A failed call leaves the stream usable: what was enqueued before is waited for. */
static be_remedy cuda_remedy(backend *be)
{
    cuda_state *cu = cuda_of(be);
    cu->step.of = NULL;
    if (!atomic_load(&cu->lost)) note(cu, wait_stream(cu->wait, cu->side));
    if (!atomic_load(&cu->lost)) note(cu, wait_stream(cu->wait, cu->stream));
    (void)cudaGetLastError();
    return remedy_of((cudaError_t)atomic_load(&cu->lost));
}

static const char *cuda_suspect(const backend *be)
{
    return cuda_of(be)->blas.trying;
}

static uint64_t cuda_order(const backend *be)
{
    return blas_order(&cuda_of(be)->blas);
}

/* ---- life -------------------------------------------------------------------------------- */

/* On a hung device every call may wait forever; its resources are freed when the process ends. */
static void leave_hung(backend *be, cuda_state *cu)
{
    if (cu->pool) pool_destroy(cu->pool);
    free(cu->mlp.cols);
    free(cu);
    be->impl = NULL;
    be->spent = true;
}

static void cuda_close(backend *be)
{
    cuda_state *cu = cuda_of(be);
    if (!cu) return;
    if (cu->stream) (void)wait_stream(cu->wait, cu->stream);
    if (cu->mem.stream) (void)wait_stream(cu->wait, cu->mem.stream);
    if (atomic_load(&cu->wait->hung)) {
        leave_hung(be, cu);
        return;
    }
    be_remedy remedy = remedy_of((cudaError_t)atomic_load(&cu->lost));
    cuda_graphs_drop(cu);
    cuda_tables_close(cu);
    cuda_expert_tables_close(cu);
    cuda_step_close(cu);
    cuda_draw_close(cu);
    if (remedy != BE_HEALS_NEVER) blas_close(&cu->blas); /* else its behaviour is undefined */
    cuda_memory_close(cu);
    for (int i = 0; i < 2; i++) {
        if (cu->mark[i]) (void)cudaEventDestroy(cu->mark[i]);
    }
    if (cu->forked) (void)cudaEventDestroy(cu->forked);
    if (cu->joined) (void)cudaEventDestroy(cu->joined);
    if (cu->side) (void)cudaStreamDestroy(cu->side);
    if (cu->stream) (void)cudaStreamDestroy(cu->stream);
    free(cu->mlp.cols);
    if (cu->pool) pool_destroy(cu->pool);
    /* A broken context is destroyed, so that the next one begins anew. */
    if (remedy == BE_HEALS_REOPENED) {
        (void)cudaSetDevice(cu->device);
        (void)cudaDeviceReset();
    }
    free(cu);
    be->impl = NULL;
}

static double gib(size_t bytes)
{
    return (double)bytes / (double)(1ULL << 30);
}

static bool may_use(const backend_config *cfg, const char *kernels)
{
    return !be_has_kernel(cfg->without, kernels);
}

/* Whether products of many rows can use wgmma: a device of sm_90, and kernels for it. */
static bool opens_wide(const struct cudaDeviceProp *p)
{
    if (p->major != 9 || p->minor != 0) return false;
    cudaError_t ce = cu_gemm_wide_setup();
    if (ce == cudaSuccess) return true;
    log_info("engine", "products of many rows do without wgmma: %s", cudaGetErrorString(ce));
    return false;
}

/* The remedy, for operators, where the CUDA runtime finds no device. */
static const char *advice_of(cudaError_t ce)
{
    switch ((int)ce) {
    case 35: /* cudaErrorInsufficientDriver, also where there is no driver */
        return "install an NVIDIA driver that supports this build's CUDA version, 580 or newer "
               "for CUDA 13";
    case 0:
    case 100: /* cudaErrorNoDevice */
        return "load the NVIDIA driver, let this process open /dev/nvidia*, and check "
               "CUDA_VISIBLE_DEVICES";
    default: return "nvidia-smi and the kernel's log (dmesg) can say more";
    }
}

static err_code choose_device(cuda_state *cu, int device, struct cudaDeviceProp *p, err *e)
{
    int n = 0;
    cudaError_t ce = cudaGetDeviceCount(&n);
    if (ce || n == 0) {
        return err_set(e, ERR_UNSUPPORTED, "no CUDA device (%s): %s",
                       ce ? cudaGetErrorString(ce) : "none is there", advice_of(ce));
    }
    if (device < 0 || device >= n) {
        return err_set(e, ERR_UNSUPPORTED, "there is no CUDA device %d: this machine has %d",
                       device, n);
    }
    cu->device = device;
    err_code rc = CU_TRY(cu, cudaSetDevice(device), e);
    if (!rc) rc = CU_TRY(cu, cudaGetDeviceProperties(p, device), e);
    if (rc) return rc;
    if (p->major * 10 + p->minor < LEAST_CAPABILITY) {
        return err_set(e, ERR_UNSUPPORTED, "%s has compute capability %d.%d; 8.0 is the least",
                       p->name, p->major, p->minor);
    }
    cu->n_sm = p->multiProcessorCount;
    cu->shared_per_sm = p->sharedMemPerMultiprocessor;
    return ERR_NONE;
}

static size_t device_bytes(int device)
{
    struct cudaDeviceProp p;
    cuda_state cu = {0};
    err e;
    return choose_device(&cu, device, &p, &e) ? 0 : p.totalGlobalMem;
}

static err_code open_arena(cuda_state *cu, double fraction, err *e)
{
    size_t free_bytes, total;
    err_code rc = CU_TRY(cu, cudaMemGetInfo(&free_bytes, &total), e);
    if (rc) return rc;
    size_t asked = (size_t)((double)total * fraction);
    if (asked > free_bytes) {
        return err_set(e, ERR_NOMEM,
                       "device-memory-fraction %.2f of %.1f GiB is %.1f GiB, but others leave %.1f "
                       "GiB free",
                       fraction, gib(total), gib(asked), gib(free_bytes));
    }
    return cuda_memory_open(cu, asked, e);
}

/* Experts' products need plain values. */
static bool takes_codes(const weight_source *src, bool expert)
{
    return !expert && codes_takes(src);
}

static err_code cuda_open(backend *be, const backend_config *cfg, err *e)
{
    cuda_state *cu = calloc(1, sizeof(*cu));
    struct cudaDeviceProp p;
    if (!cu) return err_set(e, ERR_NOMEM, "no memory for the CUDA backend");
    be->impl = cu;
    cuda_memory_init(&cu->mem);
    cu->max_rows = cfg->max_rows > 0 ? cfg->max_rows : 512;
    cu->max_seqs = cfg->max_seqs > 0 ? cfg->max_seqs : 64;
    cu->max_context = cfg->max_context > 0 ? cfg->max_context : 8192;
    cu->wait = &cu->own_wait;
    cu->wait->patience_us = cfg->patience_us > 0 ? cfg->patience_us : PATIENCE_US;
    cu->graphs.on = !cfg->no_graphs;
    cu->part.n = 1;
    err_code rc = choose_device(cu, cfg->device, &p, e);
    if (!rc) cu->early = p.major >= 9 && cu_code_waits();
    if (!rc) rc = open_arena(cu, cfg->fraction > 0 ? cfg->fraction : 0.9, e);
    if (!rc) rc = CU_TRY(cu, cudaStreamCreateWithFlags(&cu->stream, cudaStreamNonBlocking), e);
    if (!rc) rc = CU_TRY(cu, cudaStreamCreateWithFlags(&cu->side, cudaStreamNonBlocking), e);
    if (!rc) rc = CU_TRY(cu, cudaEventCreateWithFlags(&cu->forked, cudaEventDisableTiming), e);
    if (!rc) rc = CU_TRY(cu, cudaEventCreateWithFlags(&cu->joined, cudaEventDisableTiming), e);
    for (int i = 0; !rc && i < 2; i++) {
        rc = CU_TRY(cu, cudaEventCreateWithFlags(&cu->mark[i], cudaEventDisableTiming), e);
    }
    if (!rc) rc = CU_TRY(cu, cu_attend_setup(), e);
    if (!rc) rc = CU_TRY(cu, cu_gemm_setup(), e);
    if (!rc) rc = CU_TRY(cu, cu_sgmv_setup(), e);
    if (!rc) rc = CU_TRY(cu, cu_grouped_setup(), e);
    if (!rc && !(cu->workspace = cuda_take(cu, WORKSPACE_BYTES, false)))
        rc = err_set(e, ERR_NOMEM, "not enough device memory for cuBLAS");
    if (!rc) rc = blas_open(&cu->blas, cu->workspace, WORKSPACE_BYTES, cu->n_sm, cu->wait, e);
    if (!rc) cu->blas.choice = blas_choice_of(p.major * 10 + p.minor);
    if (!rc) cu->blas.wide = may_use(cfg, KERNELS_WGMMA) && opens_wide(&p);
    if (!rc)
        cu->blas.streams =
            may_use(cfg, KERNELS_CHAIN) && p.major >= 9 && cu_gemm_stream_setup() == cudaSuccess;
    if (!rc && cu->blas.streams && may_use(cfg, KERNELS_INSIDE) &&
        cu_gemm_lora_setup() == cudaSuccess) {
        size_t bytes = GEMM_LORA_COUNTERS * sizeof(*cu->drawn);
        cu->drawn = cuda_take(cu, bytes, false);
        rc = cu->drawn ? cuda_clear(cu, cu->drawn, bytes, e)
                       : err_set(e, ERR_NOMEM, "not enough device memory for counters");
    }
    if (!rc) rc = pool_create(&cu->pool, cfg->n_threads, e);
    if (!rc) rc = cuda_step_open(cu, e);
    if (rc) {
        if (remedy_of((cudaError_t)atomic_load(&cu->lost)) == BE_HEALS_NEVER) be->spent = true;
        cuda_close(be);
        return rc;
    }
    be->caps.page_tokens = CU_PAGE_TOKENS;
    be->caps.lora_cols = SGMV_COLS;
    be->caps.kv_types = 1U << DT_F32 | 1U << DT_BF16 | 1U << DT_F16 | 1U << DT_I8;
    be->caps.f16_kv = true;
    be->caps.rules = (weight_rules){.takes = takes_codes, .bf16 = true};
    be->caps.extras = EXTRA_SUMS | EXTRA_LAYER_NORM | EXTRA_GELU | EXTRA_SCORE_CAP | EXTRA_WINDOWS |
                      EXTRA_LOGITS | EXTRA_ROPE_PAIRS | EXTRA_WIDE_NORM | EXTRA_NO_GATE |
                      EXTRA_EXPERTS | EXTRA_SINKS | EXTRA_CHUNKS | EXTRA_TEMPER | EXTRA_LATENT |
                      EXTRA_ACTS | EXTRA_XIELU | EXTRA_NORM_LAST | EXTRA_LOGIT_BIAS |
                      EXTRA_POSITIONS | EXTRA_APART | EXTRA_SPARSE_MIX;
    snprintf(be->caps.detail, sizeof(be->caps.detail), "%.40s, sm_%d%d, %.1f GiB, cuBLAS %zu",
             p.name, p.major, p.minor, gib(cu->mem.bytes), cu->blas.api.version());
    return ERR_NONE;
}

/* ---- small ops ------------------------------------------------------------------------------ */

static size_t cuda_room_op(backend *be)
{
    return cuda_room(cuda_of(be));
}

static void cuda_host_free(backend *be, void *p, size_t bytes)
{
    cuda_state *cu = cuda_of(be);
    if (p == cu->logits.host) {
        cuda_graphs_drop(cu);
        cuda_draw_close(cu);
        cuda_give(cu, cu->logits.device);
        cu->logits = (cuda_logits){0};
    }
    (void)munmap(p, bytes);
}

/* Logits are computed on the device, in memory of the same size: the caller's memory, which only
 * be_logits_fetch() fills, is not pinned. */
static void *cuda_host_alloc(backend *be, size_t bytes)
{
    cuda_state *cu = cuda_of(be);
    err e;
    void *p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (p == MAP_FAILED) return NULL;
    float *twin = cu->logits.host ? NULL : cuda_take(cu, bytes, false);
    if (!twin) {
        (void)munmap(p, bytes);
        return NULL;
    }
    cu->logits = (cuda_logits){.host = p, .device = twin, .bytes = bytes};
    /* The space between rows of logits (step.logit_stride) is scaled with them. */
    if (cuda_clear(cu, twin, bytes, &e) || cuda_draw_open(be, 0, &e)) {
        cuda_host_free(be, p, bytes);
        return NULL;
    }
    return p;
}

/* The widths of MLPs and of latents are for adapters' tables; and room for masks of all tokens that
 * may be added. */
static bool cuda_reserve(backend *be, const step_bounds *most)
{
    cuda_state *cu = cuda_of(be);
    err e;
    size_t mlp = (size_t)most->n_layer * sizeof(*cu->mlp.cols);
    free(cu->mlp.cols);
    cu->mlp.cols = malloc(mlp);
    if (!cu->mlp.cols) return false;
    memcpy(cu->mlp.cols, most->mlp, mlp);
    cu->mlp.gate_apart = most->act != ACT_SILU && most->act != ACT_GELU_TANH;
    cu->latent = most->latent;
    cu->q_rank = most->q_rank;
    cuda_experts_reserve(cu, most);
    if (most->stride <= cu->draw.stride) return true;
    cuda_draw_close(cu);
    return cuda_draw_open(be, most->stride, &e) == ERR_NONE;
}

static void cuda_parallel(backend *be, void (*fn)(void *arg, int i), void *arg, int n)
{
    pool_each(cuda_of(be)->pool, fn, arg, n);
}

const backend_ops backend_cuda = {
    .name = "cuda",
    .open = cuda_open,
    .close = cuda_close,
    .memory = device_bytes,
    .lost = cuda_lost,
    .remedy = cuda_remedy,
    .suspect = cuda_suspect,
    .order = cuda_order,
    .alloc = cuda_alloc,
    .free = cuda_free,
    .map = cuda_alloc,
    .unmap = cuda_unmap,
    .room = cuda_room_op,
    .host_alloc = cuda_host_alloc,
    .host_free = cuda_host_free,
    .upload = cuda_upload,
    .download = cuda_download,
    .sync = cuda_sync,
    .weight_create = cuda_weight_create,
    .weight_destroy = cuda_weight_destroy,
    .table_create = cuda_table_create,
    .table_destroy = cuda_table_destroy,
    .prepare = cuda_prepare,
    .experts_prepare = cuda_experts_prepare,
    .reserve = cuda_reserve,
    .lora_a_bytes = cuda_lora_a_bytes,
    .lora_b_bytes = cuda_lora_b_bytes,
    .lora_pack = cuda_lora_pack,
    .lora_pack_embed = cuda_lora_pack_embed,
    .lora_weight_create = cuda_lora_weight_create,
    .lora_gain = cuda_lora_gain,
    .kv_page_bytes = cuda_kv_page_bytes,
    .kv_create = cuda_kv_create,
    .kv_attach = cuda_kv_attach,
    .kv_destroy = cuda_kv_destroy,
    .kv_save = cuda_kv_save,
    .kv_load = cuda_kv_load,
    .kv_copy = cuda_kv_copy,
    .kv_copied = cuda_kv_copied,
    .pin = cuda_pin,
    .unpin = cuda_unpin,
    .step_begin = cuda_step_begin,
    .step_end = cuda_step_end,
    .embed = cuda_embed,
    .positions = cuda_positions,
    .rms_norm = cuda_rms_norm,
    .layer_norm = cuda_layer_norm,
    .linear = cuda_linear,
    .rope_append = cuda_rope_append,
    .attend = cuda_attend,
    .latent_norm = cuda_latent_norm,
    .latent_spread = cuda_latent_spread,
    .gate = cuda_gate,
    .xielu = cuda_xielu,
    .experts = cuda_experts_run,
    .add = cuda_add,
    .scale = cuda_scale,
    .logits_bend = cuda_logits_bend,
    .logits_bias = cuda_logits_bias,
    .logits = cuda_logits_run,
    .logits_fetch = cuda_logits_fetch,
    .sample = cuda_sample,
    .mark = cuda_mark,
    .await = cuda_await,
    .parallel = cuda_parallel,
};
