/* mapping.c -- the table, and the handler of SIGBUS. */
#include "engine/program/mapping.h"

#include <signal.h>
#include <stdatomic.h>
#include <stdint.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

typedef struct place {
    _Atomic uintptr_t at; /* 0: free; 1: being filled */
    _Atomic size_t bytes;
} place;

static place places[MAPPINGS_MAX];
static atomic_int n_places; /* places beyond were never used */
static atomic_bool lost;
static uintptr_t page_mask;

static const place *place_of(uintptr_t address)
{
    int n = atomic_load(&n_places);
    for (int i = 0; i < n; i++) {
        uintptr_t at = atomic_load(&places[i].at);
        if (at > 1 && address >= at && address - at < atomic_load(&places[i].bytes))
            return &places[i];
    }
    return NULL;
}

/* mmap() is a bare system call in the C libraries that lorad is built with. */
static void on_bus(int sig, siginfo_t *info, void *context)
{
    uintptr_t address = (uintptr_t)info->si_addr, page = address & page_mask;
    const place *p = place_of(address);
    (void)context;
    if (p) {
        size_t rest = atomic_load(&p->at) + atomic_load(&p->bytes) - page;
        void *got = mmap((void *)page, rest, PROT_READ,
                         MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED | MAP_NORESERVE, -1, 0);
        if (got != MAP_FAILED) {
            atomic_store(&lost, true);
            return;
        }
    }
    (void)signal(sig, SIG_DFL); /* the instruction raises it again */
}

void mapping_watch(void)
{
    struct sigaction a = {.sa_sigaction = on_bus, .sa_flags = SA_SIGINFO | SA_NODEFER | SA_RESTART};
    page_mask = ~((uintptr_t)sysconf(_SC_PAGESIZE) - 1);
    (void)sigemptyset(&a.sa_mask);
    (void)sigaction(SIGBUS, &a, NULL);
}

void mapping_add(const void *at, size_t bytes)
{
    for (int i = 0; i < MAPPINGS_MAX; i++) {
        uintptr_t empty = 0;
        if (!atomic_compare_exchange_strong(&places[i].at, &empty, 1)) continue;
        atomic_store(&places[i].bytes, bytes);
        atomic_store(&places[i].at, (uintptr_t)at);
        int n = atomic_load(&n_places);
        while (n <= i && !atomic_compare_exchange_weak(&n_places, &n, i + 1)) continue;
        return;
    }
}

void mapping_remove(const void *at)
{
    int n = atomic_load(&n_places);
    for (int i = 0; i < n; i++) {
        uintptr_t is = (uintptr_t)at;
        if (atomic_compare_exchange_strong(&places[i].at, &is, 0)) return;
    }
}

bool mapping_lost(void)
{
    return atomic_load_explicit(&lost, memory_order_relaxed);
}
