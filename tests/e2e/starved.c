/* starved.c -- linked into lorad_starved, the server of starving.py, and into nothing else:
 * memory that runs out when told.
 *
 * These stand before the C library's malloc() for the whole process, so the allocations of SQLite,
 * OpenSSL, cJSON, civetweb and the C library's own (strdup(), fopen(), threads) fail like ours;
 * under a sanitizer they stand before its malloc(), which then still watches.  $LORAD_STARVED names
 * a file that both sides map: the test arms it, the server counts.  With $LORAD_STARVED_TRACE, a
 * file, the stack of each failed call is appended.
 *
 * Threads: any; a call is counted once.
 */
#include <dlfcn.h>
#include <errno.h>
#include <execinfo.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#ifdef STARVED_UNDER_SANITIZER
#    define REAL(name) __interceptor_##name
#else
#    define REAL(name) __libc_##name
#endif
void *REAL(malloc)(size_t bytes);
void *REAL(calloc)(size_t n, size_t bytes);
void *REAL(realloc)(void *p, size_t bytes);
void *REAL(memalign)(size_t align, size_t bytes);

enum { SITES_MAX = 16384, SITE_FRAMES = 24, SITE_SLOTS = 1 << 16 };

/* starving.py knows the places. */
typedef struct {
    _Atomic int64_t armed;      /* calls are counted; the test writes this last */
    _Atomic int64_t from, upto; /* these of them fail */
    _Atomic int64_t counted, failed;
    _Atomic int64_t seek_sites; /* the first call of each stack is noted */
    _Atomic int64_t n_sites;
    int64_t site[SITES_MAX]; /* indexes of calls */
} control;

static control *told;
static int trace_fd = -1;
static _Thread_local bool inside; /* a stack is being taken */

__attribute__((constructor)) static void map_control(void)
{
    const char *path = getenv("LORAD_STARVED"), *trace = getenv("LORAD_STARVED_TRACE");
    int fd = path ? open(path, O_RDWR | O_CLOEXEC) : -1;
    if (fd < 0) return;
    void *frame[4];
    (void)backtrace(frame, 4); /* loads its library now */
    if (trace) trace_fd = open(trace, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
    void *p = mmap(NULL, sizeof(control), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    (void)close(fd);
    if (p != MAP_FAILED) told = p;
}

/* The loader's own lists are nobody's leak; LeakSanitizer knows their caller,
 * but sees us in its place. */
const char *__lsan_default_suppressions(void);
const char *__lsan_default_suppressions(void)
{
    return "leak:_dl_map_object_deps\nleak:ld-linux\n";
}

static void note_site(int64_t call)
{
    static _Atomic uint64_t seen[SITE_SLOTS];
    void *frame[SITE_FRAMES];
    uint64_t h = 1469598103934665603u;
    int n = backtrace(frame, SITE_FRAMES);
    for (int i = 2; i < n; i++) h = (h ^ (uint64_t)(uintptr_t)frame[i]) * 1099511628211u;
    h |= 1;
    for (size_t i = 0; i < SITE_SLOTS; i++) {
        _Atomic uint64_t *slot = &seen[(h + i) % SITE_SLOTS];
        uint64_t none = 0;
        if (atomic_compare_exchange_strong(slot, &none, h)) break;
        if (none == h) return;
    }
    int64_t at = atomic_fetch_add(&told->n_sites, 1);
    if (at < SITES_MAX) told->site[at] = call;
}

static void trace(void)
{
    void *frame[SITE_FRAMES];
    int n = backtrace(frame, SITE_FRAMES);
    (void)!write(trace_fd, "--\n", 3);
    backtrace_symbols_fd(frame, n, trace_fd);
}

#ifdef STARVED_UNDER_SANITIZER
/* The sanitizer asks each new thread for its stack, and can't do without the answer. */
int pthread_getattr_np(pthread_t thread, pthread_attr_t *attr)
{
    static int (*real)(pthread_t, pthread_attr_t *);
    bool was = inside;
    inside = true;
    if (!real) real = (int (*)(pthread_t, pthread_attr_t *))dlsym(RTLD_NEXT, "pthread_getattr_np");
    int rc = real(thread, attr);
    inside = was;
    return rc;
}
#endif

/* Is there no memory for this call? */
static bool starved(void)
{
    if (!told || inside || !atomic_load(&told->armed)) return false;
    int64_t call = atomic_fetch_add(&told->counted, 1);
    bool fails = call >= atomic_load(&told->from) && call < atomic_load(&told->upto);
    inside = true;
    if (atomic_load(&told->seek_sites)) note_site(call);
    if (fails && trace_fd >= 0) trace();
    inside = false;
    if (!fails) return false;
    atomic_fetch_add(&told->failed, 1);
    errno = ENOMEM;
    return true;
}

void *malloc(size_t bytes)
{
    return starved() ? NULL : REAL(malloc)(bytes);
}

void *calloc(size_t n, size_t bytes)
{
    return starved() ? NULL : REAL(calloc)(n, bytes);
}

void *realloc(void *p, size_t bytes)
{
    return starved() ? NULL : REAL(realloc)(p, bytes);
}

void *memalign(size_t align, size_t bytes)
{
    return starved() ? NULL : REAL(memalign)(align, bytes);
}

void *aligned_alloc(size_t align, size_t bytes)
{
    return starved() ? NULL : REAL(memalign)(align, bytes);
}

int posix_memalign(void **out, size_t align, size_t bytes)
{
    void *p = starved() ? NULL : REAL(memalign)(align, bytes);
    if (p) *out = p;
    return p ? 0 : ENOMEM;
}
