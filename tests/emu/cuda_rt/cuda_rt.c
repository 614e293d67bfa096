/* cuda_rt.c -- streams as queues that run when somebody waits, memory from
 * malloc(), faults on demand.
 *
 * A stream's operations run in order, on the thread that waits for them; an event is a place in a
 * stream's queue, and waiting for it runs that stream up to there.  What real devices do at some
 * time, this one does as late as it may: a missing event or a staging buffer that is written too
 * early is then always wrong.  With $EMU_EAGER it does it as early as it may, or now so, now so.
 * A graph is the operations that were captured, each with the arguments
 * it had then (kernels': their bytes), and a launch performs them again: what hung on the
 * host at capture stays as it was.  Each stream that took part is a lane of it; what another lane
 * does runs as late as it may, as early, or by the seed, as $EMU_EAGER has it.  While a thread
 * captures, its calls that wait, allocate or free spoil the capture, as CUDA has it for what it
 * calls unsafe.
 *
 * Several devices: a stream, an event and memory are of the device that was the thread's own when
 * they were made.  Kernels reach other devices' memory after cudaDeviceEnablePeerAccess() alone.
 *
 * A fault is sticky, as on a device, and of all devices that are at work: every call answers it
 * until cudaDeviceReset(), which frees all that the thread's own device has.
 */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/emu/cuda_rt/emu_rt.h"

typedef enum { OP_RUN, OP_COPY, OP_SET, OP_RECORD, OP_WAIT } op_kind;

typedef struct op {
    struct op *next;
    op_kind kind;
    int device; /* of its stream */
    bool to_device, from_device;
    char name[48];
    bool poisoned; /* the fault shows when it runs */
    void (*run)(void *arg);
    void (*drop)(void *arg);
    void *arg;
    void *dst; /* copies: height lines of width bytes */
    const void *src;
    void *owned; /* the source of a pageable copy */
    size_t width, height, dpitch, spitch;
    int value;
    struct CUstream_st *on; /* OP_WAIT: run that stream up to `place` */
    uint64_t place;
    bool lent;   /* belongs to a graph */
    bool hangs;  /* of a graph: some of its launches do */
    bool breaks; /* the device, when it runs */
    /* In a graph: */
    int lane;
    const struct op *need; /* OP_WAIT: the record that it waits for */
    bool done;
} op;

enum { LANES_MAX = 16, DEVICES_MAX = EMU_RT_DEVICES };

struct CUgraph_st {
    op *head, **tail;
    int n, refs, n_lane;
    struct CUstream_st *lane[LANES_MAX]; /* while it is captured; the first is the origin */
};

struct CUgraphExec_st {
    cudaGraph_t g;
    size_t bytes; /* that its nodes take on the device */
};

enum { NODE_BYTES = 256, NAMES_MAX = 64 };

struct CUstream_st {
    struct CUstream_st *next;
    op *head, **tail;
    uint64_t enqueued, done;
    int device; /* of the thread that made it */
    cudaGraph_t capture;
    enum cudaStreamCaptureMode mode;
    pthread_t thread; /* that captures */
    bool spoilt;
    bool asked; /* whether all is done, and was told that it is not */
};

struct CUevent_st {
    struct CUevent_st *next;
    int device;
    cudaStream_t on;
    uint64_t place;
    cudaGraph_t in; /* recorded in this capture last, as `record`; NULL: in none */
    const op *record;
    bool asked; /* since then */
};

typedef struct block {
    struct block *next;
    void *p;
    size_t bytes;
    bool pinned;
    int device;
} block;

static struct {
    pthread_mutex_t mu;
    int n_devices;
    size_t memory, taken[DEVICES_MAX]; /* of each device */
    bool no_peers, peer[DEVICES_MAX][DEVICES_MAX];
    cudaStream_t streams;
    cudaEvent_t events;
    block *blocks;
    cudaError_t lost[DEVICES_MAX], last;
    bool used[DEVICES_MAX]; /* has had streams or memory */
    char fail_what[48];
    bool fail_any;
    int fail_in;
    cudaError_t fail_code;
    char break_what[48];
    int break_in;
    cudaError_t break_code;
    emu_rt_counts n;
    FILE *trace;
    cudaStream_t traced; /* the first that it saw: launches on others are branches */
    bool no_cublas;
    int capability; /* 0: not asked for yet */
    uint64_t eager;
    bool eager_known;
    struct {
        char name[48];
        uint64_t n;
    } launched[NAMES_MAX];
    const void *registered; /* one is enough: the swap pool */
    size_t registered_bytes;
} rt = {.mu = PTHREAD_MUTEX_INITIALIZER,
        .n_devices = 1,
        .memory = (size_t)1 << 30,
        .fail_in = -1,
        .break_in = -1};

static _Thread_local int current; /* device of this thread */

static void lock(void)
{
    pthread_mutex_lock(&rt.mu);
}

static cudaError_t leave(cudaError_t e)
{
    if (e != cudaSuccess) rt.last = e;
    pthread_mutex_unlock(&rt.mu);
    return e;
}

/* ---- faults ---------------------------------------------------------------------------- */

static bool of_capture(cudaError_t e)
{
    return e >= cudaErrorStreamCaptureUnsupported && e <= cudaErrorStreamCaptureInvalidated;
}

/* A call that no thread may make which captures (or any, where the capture is global). */
static bool spoils(void)
{
    bool found = false;
    for (cudaStream_t s = rt.streams; s; s = s->next) {
        if (!s->capture || s->mode == cudaStreamCaptureModeRelaxed) continue;
        if (s->mode != cudaStreamCaptureModeGlobal && !pthread_equal(s->thread, pthread_self()))
            continue;
        s->spoilt = found = true;
    }
    return found;
}

static bool strikes(const char *name)
{
    if (rt.fail_in < 0) return false;
    if (!rt.fail_any && strncmp(name, rt.fail_what, strlen(rt.fail_what)) != 0) return false;
    return rt.fail_in-- == 0;
}

/* Other faults are of the call alone. */
static bool stays(cudaError_t e)
{
    return e != cudaErrorMemoryAllocation && e != cudaErrorLaunchOutOfResources;
}

/* All devices that somebody works with: they reach each other's memory. */
static void lose(cudaError_t e)
{
    for (int i = 0; i < DEVICES_MAX; i++) {
        if (rt.used[i] && !rt.lost[i]) rt.lost[i] = e;
    }
}

/* The state of the device at the beginning of each call; the lock is taken. */
static cudaError_t enter(const char *name)
{
    lock();
    if (rt.lost[current] != cudaSuccess) return rt.lost[current];
    if (!rt.fail_any && strikes(name)) {
        if (of_capture(rt.fail_code))
            (void)spoils();
        else if (stays(rt.fail_code))
            lose(rt.fail_code);
        return rt.fail_code;
    }
    return cudaSuccess;
}

/* The same for what spoils a capture. */
#define ENTER_UNSAFE(name)                                             \
    do {                                                               \
        ENTER(name);                                                   \
        if (spoils()) return leave(cudaErrorStreamCaptureUnsupported); \
    } while (0)

#define ENTER(name)                              \
    do {                                         \
        cudaError_t e_ = enter(name);            \
        if (e_ != cudaSuccess) return leave(e_); \
    } while (0)

void emu_rt_fail_at(const char *what, int n, cudaError_t code)
{
    lock();
    rt.fail_any = what == NULL;
    snprintf(rt.fail_what, sizeof(rt.fail_what), "%s", what ? what : "");
    rt.fail_in = n;
    rt.fail_code = code;
    pthread_mutex_unlock(&rt.mu);
}

void emu_rt_break_at(const char *what, int n, cudaError_t code)
{
    lock();
    snprintf(rt.break_what, sizeof(rt.break_what), "%s", what);
    rt.break_in = n;
    rt.break_code = code;
    for (cudaStream_t s = rt.streams; n < 0 && s; s = s->next) {
        for (op *o = s->head; o; o = o->next) o->hangs = false;
    }
    pthread_mutex_unlock(&rt.mu);
}

/* The lock is taken. */
static void maybe_break(op *o)
{
    if (rt.break_in < 0 || !strstr(o->name, rt.break_what) || rt.break_in-- > 0) return;
    o->hangs = rt.break_code == cudaErrorNotReady;
    o->breaks = !o->hangs;
}

void emu_rt_device(int n_devices, size_t memory_bytes)
{
    lock();
    rt.n_devices = n_devices;
    rt.memory = memory_bytes;
    pthread_mutex_unlock(&rt.mu);
}

void emu_rt_peers(bool can)
{
    rt.no_peers = !can;
}

void emu_rt_count(emu_rt_counts *out)
{
    lock();
    *out = rt.n;
    pthread_mutex_unlock(&rt.mu);
}

/* The lock is taken. */
static void count_launch(const char *name)
{
    int i = 0;
    while (rt.launched[i].n && strncmp(rt.launched[i].name, name, sizeof(rt.launched[i].name) - 1))
        i++;
    if (i >= NAMES_MAX - 1) abort(); /* more kernels than there are */
    if (!rt.launched[i].n) snprintf(rt.launched[i].name, sizeof(rt.launched[i].name), "%s", name);
    rt.launched[i].n++;
}

uint64_t emu_rt_launched(const char *part)
{
    uint64_t n = 0;
    lock();
    for (int i = 0; i < NAMES_MAX; i++)
        n += strstr(rt.launched[i].name, part) ? rt.launched[i].n : 0;
    pthread_mutex_unlock(&rt.mu);
    return n;
}

void emu_rt_no_cublas(bool none)
{
    rt.no_cublas = none;
}

bool emu_rt_has_cublas(void)
{
    return !rt.no_cublas;
}

void emu_rt_trace(FILE *to)
{
    lock();
    rt.trace = to;
    rt.traced = NULL;
    pthread_mutex_unlock(&rt.mu);
}

static const struct {
    cudaError_t code;
    const char *name, *text;
} errors[] = {
    {cudaSuccess, "cudaSuccess", "no error"},
    {cudaErrorInvalidValue, "cudaErrorInvalidValue", "invalid argument"},
    {cudaErrorMemoryAllocation, "cudaErrorMemoryAllocation", "out of memory"},
    {cudaErrorInsufficientDriver, "cudaErrorInsufficientDriver",
     "CUDA driver version is insufficient for CUDA runtime version"},
    {cudaErrorNoDevice, "cudaErrorNoDevice", "no CUDA-capable device is detected"},
    {cudaErrorInvalidDevice, "cudaErrorInvalidDevice", "invalid device ordinal"},
    {cudaErrorECCUncorrectable, "cudaErrorECCUncorrectable", "uncorrectable ECC error encountered"},
    {cudaErrorIllegalAddress, "cudaErrorIllegalAddress",
     "an illegal memory access was encountered"},
    {cudaErrorLaunchTimeout, "cudaErrorLaunchTimeout", "the launch timed out and was terminated"},
    {cudaErrorPeerAccessAlreadyEnabled, "cudaErrorPeerAccessAlreadyEnabled",
     "peer access is already enabled"},
    {cudaErrorLaunchFailure, "cudaErrorLaunchFailure", "unspecified launch failure"},
    {cudaErrorStreamCaptureUnsupported, "cudaErrorStreamCaptureUnsupported",
     "operation not permitted when stream is capturing"},
    {cudaErrorStreamCaptureUnjoined, "cudaErrorStreamCaptureUnjoined",
     "capturing stream has unjoined work"},
    {cudaErrorStreamCaptureInvalidated, "cudaErrorStreamCaptureInvalidated",
     "operation failed due to a previous error during capture"},
};

static size_t error_index(cudaError_t e)
{
    size_t i = 0, n = sizeof(errors) / sizeof(errors[0]);
    while (i < n && errors[i].code != e) i++;
    return i < n ? i : n;
}

const char *cudaGetErrorName(cudaError_t e)
{
    size_t i = error_index(e);
    return i < sizeof(errors) / sizeof(errors[0]) ? errors[i].name : "cudaErrorUnknown";
}

const char *cudaGetErrorString(cudaError_t e)
{
    size_t i = error_index(e);
    return i < sizeof(errors) / sizeof(errors[0]) ? errors[i].text : "unknown error";
}

cudaError_t cudaPeekAtLastError(void)
{
    lock();
    cudaError_t e = rt.lost[current] ? rt.lost[current] : rt.last;
    pthread_mutex_unlock(&rt.mu);
    return e;
}

cudaError_t cudaGetLastError(void)
{
    lock();
    cudaError_t e = rt.lost[current] ? rt.lost[current] : rt.last;
    rt.last = cudaSuccess;
    pthread_mutex_unlock(&rt.mu);
    return e;
}

/* ---- the device ------------------------------------------------------------------------- */

cudaError_t cudaDriverGetVersion(int *v)
{
    *v = rt.n_devices < 0 ? 0 : CUDART_VERSION;
    return cudaSuccess;
}

cudaError_t cudaRuntimeGetVersion(int *v)
{
    *v = CUDART_VERSION;
    return cudaSuccess;
}

cudaError_t cudaGetDeviceCount(int *n)
{
    ENTER("cudaGetDeviceCount");
    *n = rt.n_devices > 0 ? rt.n_devices : 0;
    return leave(rt.n_devices < 0    ? cudaErrorInsufficientDriver
                 : rt.n_devices == 0 ? cudaErrorNoDevice
                                     : cudaSuccess);
}

cudaError_t cudaSetDevice(int device)
{
    cudaError_t e = enter("cudaSetDevice");
    bool is = device >= 0 && device < rt.n_devices;
    if (is) current = device; /* also where the device is lost */
    return leave(e ? e : is ? cudaSuccess : cudaErrorInvalidDevice);
}

cudaError_t cudaDeviceCanAccessPeer(int *can, int device, int peer)
{
    ENTER("cudaDeviceCanAccessPeer");
    int n = rt.n_devices;
    if (device < 0 || device >= n || peer < 0 || peer >= n) return leave(cudaErrorInvalidDevice);
    *can = device != peer && !rt.no_peers;
    return leave(cudaSuccess);
}

/* Tells the emulator. */
static void allow_peers(void)
{
    emu_bridge_peer(-1, -1);
    for (int i = 0; i < DEVICES_MAX; i++) {
        for (int j = 0; j < DEVICES_MAX; j++)
            if (rt.peer[i][j]) emu_bridge_peer(i, j);
    }
}

cudaError_t cudaDeviceEnablePeerAccess(int peer, unsigned flags)
{
    ENTER_UNSAFE("cudaDeviceEnablePeerAccess");
    if (flags != 0 || peer < 0 || peer >= rt.n_devices || peer == current || rt.no_peers)
        return leave(cudaErrorInvalidDevice);
    if (rt.peer[current][peer]) return leave(cudaErrorPeerAccessAlreadyEnabled);
    rt.peer[current][peer] = true;
    allow_peers();
    return leave(cudaSuccess);
}

cudaError_t cudaGetDevice(int *device)
{
    ENTER("cudaGetDevice");
    *device = current;
    return leave(cudaSuccess);
}

void emu_rt_capability(int is)
{
    rt.capability = is;
}

static int capability(void)
{
    const char *text = rt.capability ? NULL : getenv("EMU_CAPABILITY");
    if (!rt.capability) rt.capability = text ? atoi(text) : 80;
    return rt.capability;
}

cudaError_t cudaGetDeviceProperties(struct cudaDeviceProp *p, int device)
{
    ENTER("cudaGetDeviceProperties");
    if (device < 0 || device >= rt.n_devices) return leave(cudaErrorInvalidDevice);
    *p = (struct cudaDeviceProp){.name = "emulated device",
                                 .totalGlobalMem = rt.memory,
                                 .sharedMemPerBlockOptin = 99 * 1024,
                                 .sharedMemPerMultiprocessor = 100 * 1024,
                                 .major = capability() / 10,
                                 .minor = capability() % 10,
                                 .multiProcessorCount = 4};
    return leave(cudaSuccess);
}

cudaError_t cudaDeviceGetAttribute(int *value, enum cudaDeviceAttr attr, int device)
{
    ENTER("cudaDeviceGetAttribute");
    if (device < 0 || device >= rt.n_devices) return leave(cudaErrorInvalidDevice);
    *value = attr == cudaDevAttrComputeCapabilityMajor   ? capability() / 10
             : attr == cudaDevAttrComputeCapabilityMinor ? capability() % 10
                                                         : 4;
    return leave(cudaSuccess);
}

cudaError_t cudaMemGetInfo(size_t *free_bytes, size_t *total)
{
    ENTER("cudaMemGetInfo");
    *total = rt.memory;
    size_t taken = rt.taken[current] + rt.n.graph_bytes;
    *free_bytes = rt.memory > taken ? rt.memory - taken : 0;
    return leave(cudaSuccess);
}

/* ---- memory -------------------------------------------------------------------------------- */

static cudaError_t take(void **p, size_t bytes, bool pinned)
{
    *p = NULL;
    if (!pinned && (bytes > rt.memory || rt.taken[current] > rt.memory - bytes))
        return cudaErrorMemoryAllocation;
    block *b = calloc(1, sizeof(*b));
    if (!pinned) emu_bridge_open();
    if (!pinned) emu_bridge_device(current);
    if (b && !pinned) b->p = emu_bridge_alloc(bytes ? bytes : 1);
    if (!b || (pinned ? posix_memalign(&b->p, 512, bytes + 1) != 0 : b->p == NULL)) {
        free(b);
        return cudaErrorMemoryAllocation;
    }
    b->bytes = bytes;
    b->pinned = pinned;
    b->device = current;
    rt.used[current] = true;
    if (!pinned) rt.taken[current] += bytes;
    b->next = rt.blocks;
    rt.blocks = b;
    if (pinned) memset(b->p, 0xA5, bytes);
    *(pinned ? &rt.n.pinned_bytes : &rt.n.device_bytes) += bytes;
    rt.n.mallocs++;
    *p = b->p;
    return cudaSuccess;
}

static void free_block(block **at)
{
    block *b = *at;
    *at = b->next;
    *(b->pinned ? &rt.n.pinned_bytes : &rt.n.device_bytes) -= b->bytes;
    if (!b->pinned) rt.taken[b->device] -= b->bytes;
    if (b->pinned)
        free(b->p);
    else
        emu_bridge_free(b->p);
    free(b);
}

static block **find_block(const void *p)
{
    block **at = &rt.blocks;
    while (*at && ((const char *)p < (char *)(*at)->p ||
                   (const char *)p >= (char *)(*at)->p + (*at)->bytes)) {
        at = &(*at)->next;
    }
    return at;
}

static bool known_host(const void *p)
{
    block **at = find_block(p);
    return *at && (*at)->pinned;
}

cudaError_t cudaMalloc(void **p, size_t bytes)
{
    ENTER_UNSAFE("cudaMalloc");
    return leave(take(p, bytes, false));
}

cudaError_t cudaHostAlloc(void **p, size_t bytes, unsigned flags)
{
    (void)flags;
    ENTER_UNSAFE("cudaHostAlloc");
    return leave(take(p, bytes, true));
}

/* The caller's memory; copies are no other ones for it. */
cudaError_t cudaHostRegister(void *p, size_t bytes, unsigned flags)
{
    (void)flags;
    ENTER_UNSAFE("cudaHostRegister");
    if (!p || !bytes || rt.registered) return leave(cudaErrorInvalidValue);
    rt.registered = p;
    rt.registered_bytes = bytes;
    rt.n.pinned_bytes += bytes;
    return leave(cudaSuccess);
}

static cudaError_t await(cudaStream_t s, uint64_t place);

static cudaError_t drain_all(void)
{
    cudaError_t e = cudaSuccess;
    for (cudaStream_t s = rt.streams; s && !e; s = s->next) e = await(s, s->enqueued);
    return e;
}

static void unregister(void)
{
    rt.n.pinned_bytes -= rt.registered_bytes;
    rt.registered = NULL;
    rt.registered_bytes = 0;
}

cudaError_t cudaHostUnregister(void *p)
{
    ENTER_UNSAFE("cudaHostUnregister");
    if (rt.registered != p) return leave(cudaErrorInvalidValue);
    unregister();
    return leave(drain_all()); /* copies may be on their way */
}

static cudaError_t give_back(void *p, bool pinned)
{
    if (!p) return cudaSuccess;
    cudaError_t e = drain_all(); /* cudaFree() waits for the device */
    block **at = find_block(p);
    if (!*at || (*at)->p != p || (*at)->pinned != pinned) return cudaErrorInvalidValue;
    free_block(at);
    return e;
}

cudaError_t cudaFree(void *p)
{
    ENTER_UNSAFE("cudaFree");
    return leave(give_back(p, false));
}

cudaError_t cudaFreeHost(void *p)
{
    ENTER_UNSAFE("cudaFreeHost");
    return leave(give_back(p, true));
}

/* ---- operations ------------------------------------------------------------------------------ */

static void drop_op(op *o)
{
    if (o->drop) o->drop(o->arg);
    free(o->owned);
    free(o);
}

static void drop_graph(cudaGraph_t g)
{
    if (--g->refs > 0) return;
    for (op *o = g->head, *next; o; o = next) {
        next = o->next;
        o->lent = false;
        drop_op(o);
    }
    free(g);
}

static void perform(const op *o)
{
    switch (o->kind) {
    case OP_RUN:
        emu_bridge_device(o->device);
        o->run(o->arg);
        break;
    case OP_COPY:
        for (size_t i = 0; i < o->height; i++) {
            char *to = (char *)o->dst + i * o->dpitch;
            const char *from = (const char *)o->src + i * o->spitch;
            if (o->from_device) emu_bridge_read("cudaMemcpy", from, o->width);
            memmove(to, from, o->width);
            if (o->to_device) emu_bridge_wrote(to, o->width);
        }
        break;
    case OP_SET:
        memset(o->dst, o->value, o->width);
        emu_bridge_wrote(o->dst, o->width);
        break;
    case OP_RECORD:
    case OP_WAIT: break;
    }
}

/* Runs the stream's operations until `place` of them are done. */
static cudaError_t drain(cudaStream_t s, uint64_t place)
{
    while (s->done < place && s->head) {
        op *o = s->head;
        if (o->kind == OP_WAIT && o->on != s) {
            cudaError_t e = drain(o->on, o->place);
            if (e) return e;
        }
        if (o->poisoned || o->breaks) lose(o->breaks ? rt.break_code : rt.fail_code);
        if (rt.lost[s->device]) return rt.lost[s->device];
        if (o->hangs) return cudaErrorNotReady;
        s->head = o->next;
        if (!s->head) s->tail = &s->head;
        s->done++;
        perform(o);
        drop_op(o);
    }
    return rt.lost[s->device];
}

/* The same by who waits until it is so. */
static cudaError_t await(cudaStream_t s, uint64_t place)
{
    cudaError_t e = drain(s, place);
    if (e != cudaErrorNotReady) return e;
    (void)fprintf(stderr, "emulated device: this waits for a launch that never ends\n");
    abort();
}

/* Whether what is enqueued runs at once: $EMU_EAGER is 0 for never (as without it), 1 for always,
 * else a seed by which every other one does. */
static bool hurries(void)
{
    if (!rt.eager_known) {
        const char *text = getenv("EMU_EAGER");
        rt.eager = text ? strtoull(text, NULL, 10) : 0;
        rt.eager_known = true;
    }
    if (rt.eager <= 1) return rt.eager == 1;
    rt.eager = rt.eager * 6364136223846793005ULL + 1442695040888963407ULL;
    rt.eager |= 2;
    return rt.eager >> 40 & 1;
}

static cudaError_t enqueue(cudaStream_t s, op *o)
{
    if (!o) return cudaErrorMemoryAllocation;
    o->device = s->device;
    o->poisoned = rt.fail_any && strikes(o->name);
    if (s->capture) {
        *s->capture->tail = o;
        s->capture->tail = &o->next;
        s->capture->n++;
        while (s->capture->lane[o->lane] != s) o->lane++;
        o->lent = true;
        return cudaSuccess;
    }
    *s->tail = o;
    s->tail = &o->next;
    s->enqueued++;
    if (hurries()) (void)drain(s, s->enqueued); /* a fault shows at the next call */
    return cudaSuccess;
}

static op *make(op_kind kind, const char *name)
{
    op *o = calloc(1, sizeof(*o));
    if (!o) return NULL;
    o->kind = kind;
    snprintf(o->name, sizeof(o->name), "%s", name);
    return o;
}

cudaError_t emu_rt_submit(cudaStream_t s, const char *name, bool early, void (*run)(void *arg),
                          void (*drop)(void *arg), void *arg)
{
    cudaError_t e = enter(name);
    if (e || !s || s->device != current) { /* launches go to the thread's own device */
        if (drop) drop(arg);
        return leave(e ? e : cudaErrorInvalidResourceHandle);
    }
    op *o = make(OP_RUN, name);
    if (o) {
        o->run = run;
        o->drop = drop;
        o->arg = arg;
        maybe_break(o);
        count_launch(name);
        if (!rt.traced) rt.traced = s;
        const char *how = s != rt.traced ? "~" : early ? "+" : "";
        if (rt.trace) (void)fprintf(rt.trace, "%s%s;", how, name);
        if (!s->capture) *(strncmp(name, "cublas", 6) == 0 ? &rt.n.products : &rt.n.launches) += 1;
    }
    return leave(enqueue(s, o));
}

cudaError_t cudaMemcpy2DAsync(void *dst, size_t dpitch, const void *src, size_t spitch,
                              size_t width, size_t height, enum cudaMemcpyKind kind, cudaStream_t s)
{
    ENTER("cudaMemcpy");
    if (!s || kind == cudaMemcpyHostToHost || width > dpitch || width > spitch)
        return leave(cudaErrorInvalidValue);
    block *d = *find_block(dst), *f = *find_block(src);
    bool to_device = kind == cudaMemcpyHostToDevice || kind == cudaMemcpyDeviceToDevice;
    bool from_device = kind == cudaMemcpyDeviceToHost || kind == cudaMemcpyDeviceToDevice;
    if (kind != cudaMemcpyDefault &&
        ((to_device != (d && !d->pinned)) || (from_device != (f && !f->pinned))))
        return leave(cudaErrorInvalidValue);
    size_t extent = height ? (height - 1) * dpitch + width : 0;
    if (d && (char *)dst + extent > (char *)d->p + d->bytes) return leave(cudaErrorInvalidValue);
    op *o = make(OP_COPY, "cudaMemcpy");
    if (!o) return leave(cudaErrorMemoryAllocation);
    o->to_device = to_device;
    o->from_device = from_device;
    o->dst = dst;
    o->src = src;
    o->width = width;
    o->height = height;
    o->dpitch = dpitch;
    o->spitch = spitch;
    rt.n.copies++;
    if (from_device && !to_device) {
        rt.n.copies_to_host++;
        rt.n.bytes_to_host += width * height;
    }
    bool pageable_from = !f, pageable_to = !d;
    if (s->capture && (pageable_from || pageable_to)) {
        drop_op(o);
        return leave(cudaErrorStreamCaptureUnsupported);
    }
    if (pageable_from && !pageable_to) { /* is read before the call returns */
        o->owned = malloc(width * height + 1);
        if (!o->owned) {
            drop_op(o);
            return leave(cudaErrorMemoryAllocation);
        }
        for (size_t i = 0; i < height; i++)
            memcpy((char *)o->owned + i * width, (const char *)src + i * spitch, width);
        o->src = o->owned;
        o->spitch = width;
    }
    cudaError_t e = enqueue(s, o);
    if (!e && pageable_to) e = await(s, s->enqueued); /* has arrived when the call returns */
    return leave(e);
}

cudaError_t cudaMemcpyAsync(void *dst, const void *src, size_t bytes, enum cudaMemcpyKind kind,
                            cudaStream_t s)
{
    return cudaMemcpy2DAsync(dst, bytes, src, bytes, bytes, bytes ? 1 : 0, kind, s);
}

cudaError_t cudaMemsetAsync(void *p, int value, size_t bytes, cudaStream_t s)
{
    ENTER("cudaMemset");
    if (!s || known_host(p) || !*find_block(p)) return leave(cudaErrorInvalidValue);
    op *o = make(OP_SET, "cudaMemset");
    if (o) {
        o->dst = p;
        o->value = value;
        o->width = bytes;
    }
    return leave(enqueue(s, o));
}

/* ---- streams and events ---------------------------------------------------------------------- */

cudaError_t cudaStreamCreateWithFlags(cudaStream_t *s, unsigned flags)
{
    (void)flags;
    ENTER("cudaStreamCreate");
    *s = calloc(1, sizeof(**s));
    if (!*s) return leave(cudaErrorMemoryAllocation);
    (*s)->tail = &(*s)->head;
    (*s)->device = current;
    rt.used[current] = true;
    (*s)->next = rt.streams;
    rt.streams = *s;
    return leave(cudaSuccess);
}

/* No stream takes part any more. */
static void end_capture(cudaGraph_t g, bool drop)
{
    for (cudaEvent_t ev = rt.events; ev; ev = ev->next) {
        if (ev->in == g) ev->in = NULL;
    }
    for (int i = 0; i < g->n_lane; i++) g->lane[i]->capture = NULL;
    if (drop) drop_graph(g);
}

static void free_stream(cudaStream_t s)
{
    cudaStream_t *at = &rt.streams;
    while (*at != s) at = &(*at)->next;
    *at = s->next;
    for (op *o = s->head, *next; o; o = next) {
        next = o->next;
        drop_op(o);
    }
    for (cudaStream_t other = rt.streams; other; other = other->next) { /* nobody waits for it */
        for (op *o = other->head; o; o = o->next)
            if (o->kind == OP_WAIT && o->on == s) o->on = other;
    }
    if (s->capture && s->capture->lane[0] == s) end_capture(s->capture, true);
    for (cudaEvent_t ev = rt.events; ev; ev = ev->next) {
        if (ev->on == s) ev->on = NULL;
    }
    free(s);
}

static bool live_stream(cudaStream_t s)
{
    cudaStream_t at = rt.streams;
    while (at && at != s) at = at->next;
    return at != NULL;
}

cudaError_t cudaStreamDestroy(cudaStream_t s)
{
    ENTER_UNSAFE("cudaStreamDestroy");
    if (!live_stream(s)) return leave(cudaErrorInvalidResourceHandle);
    cudaError_t e = await(s, s->enqueued);
    free_stream(s);
    return leave(e);
}

cudaError_t cudaStreamSynchronize(cudaStream_t s)
{
    ENTER_UNSAFE("cudaStreamSynchronize");
    if (!live_stream(s)) return leave(cudaErrorInvalidResourceHandle);
    rt.n.syncs++;
    return leave(await(s, s->enqueued));
}

/* Nothing is ever done before somebody waits.  Not yet, then, when it is asked for the first time;
 * who goes on asking waits, and sees it happen. */
static cudaError_t see(bool *asked, cudaStream_t s, uint64_t place)
{
    if (s->done >= place) {
        *asked = false;
        return cudaSuccess;
    }
    if (!*asked) {
        *asked = true;
        return cudaErrorNotReady;
    }
    return drain(s, place);
}

/* Of a stream nobody wants to know but who waits. */
cudaError_t cudaStreamQuery(cudaStream_t s)
{
    ENTER_UNSAFE("cudaStreamQuery");
    cudaError_t e = see(&s->asked, s, s->enqueued);
    if (e != cudaErrorNotReady) rt.n.syncs++;
    return leave(e);
}

cudaError_t cudaDeviceSynchronize(void)
{
    ENTER_UNSAFE("cudaDeviceSynchronize");
    rt.n.syncs++;
    return leave(drain_all());
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t *ev, unsigned flags)
{
    (void)flags;
    ENTER("cudaEventCreate");
    *ev = calloc(1, sizeof(**ev));
    if (!*ev) return leave(cudaErrorMemoryAllocation);
    (*ev)->device = current;
    (*ev)->next = rt.events;
    rt.events = *ev;
    return leave(cudaSuccess);
}

static void free_event(cudaEvent_t ev)
{
    cudaEvent_t *at = &rt.events;
    while (*at && *at != ev) at = &(*at)->next;
    if (!*at) return;
    *at = ev->next;
    free(ev);
}

cudaError_t cudaEventDestroy(cudaEvent_t ev)
{
    ENTER("cudaEventDestroy");
    free_event(ev);
    return leave(cudaSuccess);
}

cudaError_t cudaEventRecord(cudaEvent_t ev, cudaStream_t s)
{
    ENTER("cudaEventRecord");
    if (!live_stream(s) || ev->device != s->device) return leave(cudaErrorInvalidResourceHandle);
    op *o = make(OP_RECORD, "cudaEventRecord");
    cudaError_t e = enqueue(s, o);
    ev->in = s->capture;
    if (s->capture) {
        ev->record = o;
    } else {
        ev->on = s;
        ev->place = s->enqueued;
        ev->asked = false;
    }
    return leave(e);
}

/* The stream takes part in the capture from here on, where it did not. */
static cudaError_t wait_captured(cudaStream_t s, cudaEvent_t ev)
{
    cudaGraph_t g = ev->in;
    if (s->capture && s->capture != g) return cudaErrorStreamCaptureUnsupported;
    if (!s->capture) {
        if (g->n_lane == LANES_MAX) abort(); /* more streams than this knows */
        s->capture = g;
        s->mode = g->lane[0]->mode;
        s->thread = g->lane[0]->thread;
        s->spoilt = false;
        g->lane[g->n_lane++] = s;
    }
    op *o = make(OP_WAIT, "cudaStreamWaitEvent");
    if (o) o->need = ev->record;
    return enqueue(s, o);
}

cudaError_t cudaStreamWaitEvent(cudaStream_t s, cudaEvent_t ev, unsigned flags)
{
    (void)flags;
    ENTER("cudaStreamWaitEvent");
    if (ev->in) return leave(wait_captured(s, ev));
    if (!ev->on) return leave(cudaSuccess);
    if (s->capture) { /* on work that is not of the graph */
        s->spoilt = true;
        return leave(cudaErrorStreamCaptureUnsupported);
    }
    op *o = make(OP_WAIT, "cudaStreamWaitEvent");
    if (o) {
        o->on = ev->on;
        o->place = ev->place;
    }
    return leave(enqueue(s, o));
}

cudaError_t cudaEventSynchronize(cudaEvent_t ev)
{
    ENTER_UNSAFE("cudaEventSynchronize");
    rt.n.syncs++;
    return leave(ev->on ? await(ev->on, ev->place) : cudaSuccess);
}

cudaError_t cudaEventQuery(cudaEvent_t ev)
{
    ENTER_UNSAFE("cudaEventQuery");
    bool again = ev->asked;
    cudaError_t e = ev->on ? see(&ev->asked, ev->on, ev->place) : cudaSuccess;
    if (again && e != cudaErrorNotReady) rt.n.syncs++;
    return leave(e);
}

/* ---- graphs ---------------------------------------------------------------------------------- */

cudaError_t cudaStreamBeginCapture(cudaStream_t s, enum cudaStreamCaptureMode mode)
{
    ENTER("cudaStreamBeginCapture");
    if (!live_stream(s)) return leave(cudaErrorInvalidResourceHandle);
    if (s->capture) return leave(cudaErrorStreamCaptureUnsupported);
    s->capture = calloc(1, sizeof(*s->capture));
    if (!s->capture) return leave(cudaErrorMemoryAllocation);
    s->capture->tail = &s->capture->head;
    s->capture->refs = 1;
    s->capture->lane[s->capture->n_lane++] = s;
    s->mode = mode;
    s->thread = pthread_self();
    s->spoilt = false;
    return leave(cudaSuccess);
}

/* Whether some lane waits for the last operation of this one. */
static bool is_joined(const struct CUgraph_st *g, int lane)
{
    const op *last = NULL;
    for (const op *o = g->head; o; o = o->next) last = o->lane == lane ? o : last;
    for (const op *o = g->head; o; o = o->next) {
        if (o->lane != lane && o->need == last) return true;
    }
    return false;
}

cudaError_t cudaStreamEndCapture(cudaStream_t s, cudaGraph_t *g)
{
    cudaError_t e = enter("cudaStreamEndCapture");
    *g = NULL;
    if (!s->capture || s->capture->lane[0] != s)
        return leave(e ? e : cudaErrorStreamCaptureInvalidated);
    for (int i = 0; i < s->capture->n_lane && !e; i++) {
        if (s->capture->lane[i]->spoilt)
            e = cudaErrorStreamCaptureInvalidated;
        else if (i > 0 && !is_joined(s->capture, i))
            e = cudaErrorStreamCaptureUnjoined;
    }
    if (!e) *g = s->capture;
    end_capture(s->capture, e != cudaSuccess); /* whatever happens */
    if (*g) rt.n.captures++;
    return leave(e);
}

cudaError_t cudaGraphInstantiate(cudaGraphExec_t *exec, cudaGraph_t g, unsigned long long flags)
{
    (void)flags;
    ENTER_UNSAFE("cudaGraphInstantiate");
    *exec = NULL;
    size_t bytes = (size_t)g->n * NODE_BYTES;
    if (bytes > rt.memory - rt.taken[current] - rt.n.graph_bytes)
        return leave(cudaErrorMemoryAllocation);
    *exec = calloc(1, sizeof(**exec));
    if (!*exec) return leave(cudaErrorMemoryAllocation);
    (*exec)->g = g;
    (*exec)->bytes = bytes;
    rt.n.graph_bytes += bytes;
    g->refs++;
    return leave(cudaSuccess);
}

/* The lane's next operation; NULL: there is none, or it waits for another lane's. */
static op *next_of(cudaGraph_t g, int lane)
{
    op *o = g->head;
    while (o && (o->done || o->lane != lane)) o = o->next;
    return o && (!o->need || o->need->done) ? o : NULL;
}

static void run_graph(void *arg)
{
    cudaGraph_t g = arg;
    for (op *o = g->head; o; o = o->next) o->done = false;
    /* Its launches begin beside one another, and beside none that stood before it. */
    for (int i = 0; i < g->n_lane; i++) emu_bridge_apart(g->lane[i]);
    for (int left = g->n; left > 0 && !rt.lost[g->head->device]; left--) {
        op *o = NULL;
        bool hurry = g->n_lane > 1 && hurries();
        for (int i = 0; i < g->n_lane && !o; i++) o = next_of(g, hurry ? g->n_lane - 1 - i : i);
        if (!o) abort(); /* a capture has no circles */
        if (o->poisoned || o->breaks) lose(o->breaks ? rt.break_code : rt.fail_code);
        if (!rt.lost[o->device]) perform(o);
        o->done = true;
    }
}

static void unref_graph(void *arg)
{
    drop_graph(arg);
}

cudaError_t cudaGraphLaunch(cudaGraphExec_t exec, cudaStream_t s)
{
    ENTER("cudaGraphLaunch");
    op *o = make(OP_RUN, "cudaGraphLaunch");
    if (!o) return leave(cudaErrorMemoryAllocation);
    o->run = run_graph;
    o->drop = unref_graph;
    o->arg = exec->g;
    for (const op *of = exec->g->head; of; of = of->next) o->hangs |= of->hangs;
    exec->g->refs++;
    rt.n.graph_launches++;
    rt.n.graph_nodes += (uint64_t)exec->g->n;
    return leave(enqueue(s, o));
}

/* A graph outlives a lost device until its owner gives it back. */
cudaError_t cudaGraphDestroy(cudaGraph_t g)
{
    lock();
    drop_graph(g);
    return leave(cudaSuccess);
}

cudaError_t cudaGraphExecDestroy(cudaGraphExec_t exec)
{
    lock();
    rt.n.graph_bytes -= exec->bytes;
    drop_graph(exec->g);
    free(exec);
    return leave(cudaSuccess);
}

/* ---- after a fault --------------------------------------------------------------------------- */

cudaError_t cudaDeviceReset(void)
{
    lock();
    for (cudaStream_t s = rt.streams, next; s; s = next) {
        next = s->next;
        if (s->device == current) free_stream(s);
    }
    for (cudaEvent_t ev = rt.events, next; ev; ev = next) {
        next = ev->next;
        if (ev->device == current) free_event(ev);
    }
    for (block **at = &rt.blocks; *at;) { /* pinned memory goes with its context too */
        if ((*at)->device == current)
            free_block(at);
        else
            at = &(*at)->next;
    }
    for (int i = 0; i < DEVICES_MAX; i++) rt.peer[current][i] = rt.peer[i][current] = false;
    allow_peers();
    rt.lost[current] = rt.last = cudaSuccess;
    rt.used[current] = false;
    unregister();
    rt.n.resets++;
    return leave(cudaSuccess);
}
