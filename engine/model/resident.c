/* resident.c -- reads blocks of the packed weights ahead of their use, and drops them behind it.
 *
 * resident_divide() chooses once, at load, which blocks stay: it tries 0, 1, 2 ... streamed
 * layers, spread evenly over the model, and takes the first number at which the blocks that stay
 * plus the largest two neighbouring streamed blocks fit the budget. Whatever is left then holds
 * experts.
 *
 * At run time two threads work for the engine's, one that reads and one that drops: to drop a
 * block of 90 MB takes 80 ms of processor time, in which the disk would do nothing.  Jobs are
 * numbered, so that the memory never holds more than in their order:
 *
 *     use(i + 1):  drop i (1)   read i + 2 (2)
 *     disk         ... i + 1 ...|... i + 2 ...      a read waits for the drops before it,
 *     drops           i |                           a drop for the reads of its unit before it
 *
 * The least number of those that are not done can always begin, so neither thread waits for ever.
 *
 * A unit may be dropped while its read is still queued. Each job carries the unit's `turn`; a
 * read whose turn is no longer the unit's last one does not mark the unit HERE. At most three
 * jobs per unit can be queued (read, drop, read), which bounds the rings: nothing is allocated
 * after resident_create().
 *
 * Experts stay by LFU with aging. Instead of multiplying all counts by 1 / aging in each step,
 * the value of one new use (`step_count`) grows by `aging`; the order of the counts is the same.
 * All of them are scaled down before they lose precision.
 *
 * The kernel frees page cache in large pages and reads ahead beyond what was asked, so drop()
 * also covers the large page at each end and BEHIND bytes. Pages that another run has mapped
 * stay, since the kernel does not evict mapped pages.
 */
#include "engine/model/resident.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "engine/base/clock.h"
#include "engine/base/lock.h"
#include "engine/base/round.h"

enum {
    PAGE = 4096,
    ASK = 128 << 10, /* bytes of one request for read-ahead: the system's limit of a request */
    PIECE = 4 << 20, /* bytes that are mapped in one call */
    LONG_RUN = 16 << 20,
    LARGE_PAGE = 2 << 20,
    BEHIND = 16 << 20, /* bytes behind a run that read-ahead may have read */
    NONE = -1,         /* of a block: there is none */
    RATE_PIECE = 32 << 20,
};
static const double aging = 1.01;     /* of counts, for each step: half after 70 steps */
static const double count_most = 1e9; /* before all are scaled down */

typedef enum { OUT, QUEUED, HERE } place;

/* A block of a layer, or an expert.  Guarded by resident.mu. */
typedef struct resident_unit {
    resident_run run;
    place place;
    bool kept;     /* stays when the layer is over */
    double count;  /* of an expert: uses, decayed */
    unsigned turn; /* of its last job */
} resident_unit;

typedef struct job {
    int unit;
    unsigned turn;
    uint64_t number; /* among all jobs */
} job;

/* Jobs in their order, a ring of resident.cap; the first stays there until it is done. */
typedef struct job_queue {
    job *at;
    size_t head, n;
} job_queue;

struct resident {
    char *map;
    int fd, n_block, n_expert, n_unit;
    size_t budget, experts_most; /* experts_most: bytes of experts that may stay */
    lock mu;
    cond work, done;
    pthread_t reader, dropper;
    bool stop;
    resident_unit *unit; /* [n_unit]: blocks, then experts by layer */
    job_queue reads, drops;
    size_t cap;
    uint64_t numbered;  /* jobs so far */
    int current, ahead; /* streamed blocks: in use, and read ahead of use; or NONE */
    int *using;         /* [n_expert]: units of the experts in use */
    int n_using;
    size_t experts_kept; /* bytes */
    double step_count;   /* what a use adds to a count */
    atomic_size_t here;  /* resident bytes */
    atomic_ullong read_bytes, read_us, waited_us;
};

/* -------------------------------------------------------------------------- divide -- */

/* The most that two streamed blocks in a row take; the last is followed by the first. */
static size_t window_of(const resident_sizes *s, const bool *stream)
{
    size_t most = 0, first = 0, last = 0;
    for (int i = 0; i < s->n_block; i++) {
        if (!stream[i] || s->block[i] == 0) continue;
        if (last + s->block[i] > most) most = last + s->block[i];
        if (first == 0) first = s->block[i];
        last = s->block[i];
    }
    return last + first > most ? last + first : most;
}

/* n of the layers are streamed, spread evenly, and the output layer if `head`. */
static size_t try_streams(const resident_sizes *s, int n, bool head, bool *stream,
                          resident_plan *out)
{
    int layers = s->n_block - 1;
    out->kept = out->streamed = 0;
    for (int i = 0; i < layers; i++)
        stream[i] = (int64_t)(i + 1) * n / layers > (int64_t)i * n / layers;
    stream[layers] = head;
    for (int i = 0; i < s->n_block; i++) *(stream[i] ? &out->streamed : &out->kept) += s->block[i];
    out->window = window_of(s, stream);
    return out->kept + out->window;
}

/* The fewest streamed layers that fit.  Of two streamed blocks both would always be in memory. */
static bool divide_blocks(const resident_sizes *s, size_t budget, bool *stream, resident_plan *out)
{
    int layers = s->n_block - 1;
    if (try_streams(s, 0, false, stream, out) <= budget) return true;
    for (int head = 0; head < 2; head++)
        for (int n = 1; n <= layers; n++)
            if (try_streams(s, n, head != 0, stream, out) <= budget) return true;
    return false;
}

err_code resident_divide(const resident_sizes *s, size_t budget, resident_plan *out, bool *stream,
                         err *e)
{
    bool *mine = stream ? stream : calloc((size_t)s->n_block, sizeof(*mine));
    size_t row = (size_t)s->top_k * s->expert; /* experts of one row */
    if (!mine) return err_set(e, ERR_NOMEM, "no memory to divide model.resident_bytes");
    *out = (resident_plan){.kept = 0};
    bool fits = row <= budget && divide_blocks(s, budget - row, mine, out);
    if (!fits) {
        size_t least = row + try_streams(s, s->n_block - 1, true, mine, out);
        for (int i = 0; i < s->n_block; i++) mine[i] = false;
        if (!stream) free(mine);
        return err_set(e, ERR_INPUT,
                       "model.resident_bytes is %zu; this model needs at least %zu bytes: its two "
                       "largest layers in a row and the experts of one token",
                       budget, least);
    }
    size_t left = budget - row - out->kept - out->window;
    out->experts = left < s->experts ? left : s->experts;
    double all = (double)s->experts, missed = all > 0 ? 1 - (double)out->experts / all : 0;
    double token = (double)row * s->expert_layers;
    out->token_bytes = (double)out->streamed + missed * token;
    if (!stream) free(mine);
    return ERR_NONE;
}

/* ------------------------------------------------------------------ the threads -- */

/* Two ways to read a run.  Large ones are read as the mapping is touched, with the system's own
 * read-ahead for sequential use: it takes large pages, which cost a fiftieth of the processor time,
 * but reads on behind the run's end (read_ahead_kb).  Of small ones, experts as a rule, exactly the
 * run is asked for at once, in single pages. */
static bool is_long(const resident_run *run)
{
    return run->bytes >= LONG_RUN;
}

static void advise(char *map, const resident_run *run)
{
    (void)madvise(map + run->at, run->bytes, is_long(run) ? MADV_SEQUENTIAL : MADV_RANDOM);
}

static void ask(int fd, const resident_run *run)
{
    for (size_t k = 0; k < run->bytes; k += ASK) {
        size_t n = run->bytes - k < ASK ? run->bytes - k : ASK;
        (void)readahead(fd, (off_t)(run->at + k), n);
    }
}

/* Waits for the pages and maps them.  Where the disk fails, the thread that computes finds it
 * (engine/program/mapping.h). */
static void bring(char *map, int fd, const resident_run *run)
{
    char *from = map + run->at;
    if (!is_long(run)) ask(fd, run);
    for (size_t k = 0; k < run->bytes; k += PIECE) {
        size_t n = run->bytes - k < PIECE ? run->bytes - k : PIECE;
#ifdef MADV_POPULATE_READ
        if (madvise(from + k, n, MADV_POPULATE_READ) == 0 || errno != EINVAL) continue;
#endif
        for (size_t at = 0; at < n; at += PAGE) (void)*(volatile char *)(from + k + at);
    }
}

/* Out of the mapping, then out of the page cache, with large pages that lie across the run's ends
 * and what was read behind it.  Pages that are mapped stay there: those of other runs. */
static void drop(char *map, int fd, const resident_run *run)
{
    size_t first = run->at / LARGE_PAGE * LARGE_PAGE;
    size_t end = round_up_size(run->at + run->bytes, LARGE_PAGE) + BEHIND;
    (void)madvise(map + run->at, run->bytes, MADV_DONTNEED);
    (void)posix_fadvise(fd, (off_t)first, (off_t)(end - first), POSIX_FADV_DONTNEED);
}

static void push_locked(resident *r, int unit, bool is_drop)
{
    lock_assert_held(&r->mu);
    job_queue *q = is_drop ? &r->drops : &r->reads;
    assert(q->n < r->cap);
    q->at[(q->head + q->n++) % r->cap] = (job){unit, ++r->unit[unit].turn, ++r->numbered};
    r->unit[unit].place = is_drop ? OUT : QUEUED;
    cond_broadcast(&r->work);
}

static void pop_locked(resident *r, job_queue *q)
{
    q->head = (q->head + 1) % r->cap;
    q->n--;
    cond_broadcast(&r->work);
}

/* Whether the first read can begin: no drop before it is left. */
static bool can_read_locked(const resident *r)
{
    if (r->reads.n == 0) return false;
    return r->drops.n == 0 || r->drops.at[r->drops.head].number > r->reads.at[r->reads.head].number;
}

/* Whether the first drop can begin: no read of the same unit before it is left. */
static bool can_drop_locked(const resident *r)
{
    if (r->drops.n == 0) return false;
    const job *drop = &r->drops.at[r->drops.head];
    for (size_t i = 0; i < r->reads.n; i++) {
        const job *read = &r->reads.at[(r->reads.head + i) % r->cap];
        if (read->number > drop->number) break;
        if (read->unit == drop->unit) return false;
    }
    return true;
}

/* A unit that was dropped meanwhile is not in memory for long. */
static void read_first_locked(resident *r)
{
    lock_assert_held(&r->mu);
    job j = r->reads.at[r->reads.head];
    resident_run run = r->unit[j.unit].run;
    lock_release(&r->mu);
    int64_t began_us = clock_now_us();
    atomic_fetch_add(&r->here, run.bytes);
    bring(r->map, r->fd, &run);
    atomic_fetch_add(&r->read_bytes, run.bytes);
    atomic_fetch_add(&r->read_us, (unsigned long long)(clock_now_us() - began_us));
    lock_take(&r->mu);
    pop_locked(r, &r->reads);
    if (r->unit[j.unit].turn != j.turn) return;
    r->unit[j.unit].place = HERE;
    cond_broadcast(&r->done);
}

static void drop_first_locked(resident *r)
{
    lock_assert_held(&r->mu);
    resident_run run = r->unit[r->drops.at[r->drops.head].unit].run;
    lock_release(&r->mu);
    drop(r->map, r->fd, &run);
    atomic_fetch_sub(&r->here, run.bytes);
    lock_take(&r->mu);
    pop_locked(r, &r->drops);
}

/* One of the two threads, until stop_thread(). */
static void serve(resident *r, bool (*can_locked)(const resident *), void (*do_locked)(resident *))
{
    lock_take(&r->mu);
    while (!r->stop) {
        if (can_locked(r))
            do_locked(r);
        else
            cond_wait(&r->work, &r->mu);
    }
    lock_release(&r->mu);
}

static void *reader_main(void *arg)
{
    (void)pthread_setname_np(pthread_self(), "weights");
    serve(arg, can_read_locked, read_first_locked);
    return NULL;
}

static void *dropper_main(void *arg)
{
    (void)pthread_setname_np(pthread_self(), "weights-drop");
    serve(arg, can_drop_locked, drop_first_locked);
    return NULL;
}

/* ---------------------------------------------------------------------------- life -- */

static void take_units(resident *r, const resident_file *f, const bool *stream)
{
    for (int i = 0; i < f->n_block; i++)
        r->unit[i] = (resident_unit){.run = f->block[i], .kept = !stream[i]};
    for (int i = f->n_block; i < r->n_unit; i++)
        r->unit[i] = (resident_unit){.run = f->expert[i - f->n_block]};
}

static resident_sizes sizes_of(const resident_file *f, size_t *block)
{
    resident_sizes s = {
        .n_block = f->n_block, .block = block, .n_expert = f->n_expert, .top_k = f->top_k};
    for (int i = 0; i < f->n_block; i++) block[i] = f->block[i].bytes;
    for (int i = 0; f->expert && i < f->n_block - 1; i++) {
        const resident_run *e = f->expert + (size_t)i * (size_t)f->n_expert;
        for (int k = 0; k < f->n_expert; k++) {
            s.experts += e[k].bytes;
            if (e[k].bytes > s.expert) s.expert = e[k].bytes;
        }
        s.expert_layers += e[0].bytes > 0;
    }
    return s;
}

static err_code divide_file(resident *r, const resident_file *f, err *e)
{
    size_t *block = calloc((size_t)f->n_block, sizeof(*block));
    bool *stream = calloc((size_t)f->n_block, sizeof(*stream));
    resident_plan plan = {.kept = 0};
    err_code rc = ERR_NONE;
    if (!block || !stream) {
        rc = err_set(e, ERR_NOMEM, "no memory for the table of the weights' blocks");
    } else {
        resident_sizes s = sizes_of(f, block);
        rc = resident_divide(&s, r->budget, &plan, stream, e);
    }
    if (!rc) take_units(r, f, stream);
    r->experts_most = plan.experts;
    free(block);
    free(stream);
    return rc;
}

static void release(resident *r)
{
    free(r->unit);
    free(r->reads.at);
    free(r->drops.at);
    free(r->using);
    free(r);
}

static void stop_thread(resident *r, pthread_t thread)
{
    lock_take(&r->mu);
    r->stop = true;
    cond_broadcast(&r->work);
    lock_release(&r->mu);
    (void)pthread_join(thread, NULL);
}

static bool start_threads(resident *r)
{
    if (pthread_create(&r->reader, NULL, reader_main, r) != 0) return false;
    if (pthread_create(&r->dropper, NULL, dropper_main, r) == 0) return true;
    stop_thread(r, r->reader);
    return false;
}

/* All that stays is read at once; steps wait for what they use. */
static err_code start(resident *r, const resident_file *f, err *e)
{
    const resident_run all = {0, f->bytes};
    drop(r->map, r->fd, &all);
    for (int i = 0; i < r->n_unit; i++)
        if (r->unit[i].run.bytes > 0) advise(r->map, &r->unit[i].run);
    lock_init(&r->mu, LOCK_RESIDENT);
    cond_init(&r->work);
    cond_init(&r->done);
    lock_take(&r->mu);
    for (int i = 0; i < r->n_block; i++)
        if (r->unit[i].kept && r->unit[i].run.bytes > 0) push_locked(r, i, false);
    lock_release(&r->mu);
    if (start_threads(r)) return ERR_NONE;
    cond_free(&r->work);
    cond_free(&r->done);
    lock_free(&r->mu);
    return err_set(e, ERR_NOMEM, "cannot start the threads that read and drop weights");
}

err_code resident_create(resident **out, const resident_file *f, size_t budget, err *e)
{
    resident *r = calloc(1, sizeof(*r));
    *out = NULL;
    if (!r) return err_set(e, ERR_NOMEM, "no memory for the table of the weights' blocks");
    size_t experts = f->expert ? (size_t)(f->n_block - 1) * (size_t)f->n_expert : 0;
    r->map = f->map;
    r->fd = f->fd;
    r->n_block = f->n_block;
    r->n_expert = f->n_expert;
    r->n_unit = f->n_block + (int)experts;
    r->budget = budget;
    r->current = r->ahead = NONE;
    r->step_count = 1;
    r->cap = 3 * (size_t)r->n_unit + 8; /* a unit is read, dropped and read again at most */
    r->unit = calloc((size_t)r->n_unit, sizeof(*r->unit));
    r->reads.at = calloc(r->cap, sizeof(job));
    r->drops.at = calloc(r->cap, sizeof(job));
    r->using = calloc((size_t)f->n_expert + 1, sizeof(*r->using));
    err_code rc = r->unit && r->reads.at && r->drops.at && r->using
                      ? divide_file(r, f, e)
                      : err_set(e, ERR_NOMEM, "no memory for the table of the weights' blocks");
    if (!rc) rc = start(r, f, e);
    if (rc) {
        release(r);
        return rc;
    }
    *out = r;
    return ERR_NONE;
}

void resident_destroy(resident *r)
{
    if (!r) return;
    stop_thread(r, r->reader);
    stop_thread(r, r->dropper);
    cond_free(&r->work);
    cond_free(&r->done);
    lock_free(&r->mu);
    release(r);
}

/* ----------------------------------------------------------------------------- use -- */

static void want_locked(resident *r, int unit)
{
    if (r->unit[unit].place == OUT) push_locked(r, unit, false);
}

/* A unit that is being read is dropped after that. */
static void leave_locked(resident *r, int unit)
{
    assert(r->unit[unit].place != OUT);
    push_locked(r, unit, true);
}

static void await_locked(resident *r, int unit)
{
    lock_assert_held(&r->mu);
    if (r->unit[unit].place == HERE) return;
    int64_t began_us = clock_now_us();
    while (r->unit[unit].place != HERE) cond_wait(&r->done, &r->mu);
    atomic_fetch_add(&r->waited_us, (unsigned long long)(clock_now_us() - began_us));
}

/* The streamed block after this one; NONE: there is no other. */
static int next_streamed(const resident *r, int block)
{
    for (int k = 1; k < r->n_block; k++) {
        int i = (block + k) % r->n_block;
        if (!r->unit[i].kept && r->unit[i].run.bytes > 0) return i;
    }
    return NONE;
}

static bool in_use(const resident *r, int unit)
{
    for (int i = 0; i < r->n_using; i++)
        if (r->using[i] == unit) return true;
    return false;
}

/* The kept expert with the lowest count below `count`; NONE: there is none. */
static int least_locked(const resident *r, double count)
{
    int least = NONE;
    for (int i = r->n_block; i < r->n_unit; i++) {
        const resident_unit *u = &r->unit[i];
        if (!u->kept || u->count >= count || in_use(r, i)) continue;
        count = u->count;
        least = i;
    }
    return least;
}

static bool room_locked(resident *r, int unit)
{
    size_t bytes = r->unit[unit].run.bytes;
    while (r->experts_kept + bytes > r->experts_most) {
        int least = least_locked(r, r->unit[unit].count);
        if (least == NONE) return false;
        r->unit[least].kept = false;
        r->experts_kept -= r->unit[least].run.bytes;
        leave_locked(r, least);
    }
    return true;
}

/* The layer is over: which of its experts stay? */
static void settle_experts_locked(resident *r)
{
    for (int i = 0; i < r->n_using; i++) {
        int at = r->using[i];
        if (r->unit[at].kept) continue;
        if (room_locked(r, at)) {
            r->unit[at].kept = true;
            r->experts_kept += r->unit[at].run.bytes;
        } else {
            leave_locked(r, at);
        }
    }
    r->n_using = 0;
}

static void age_locked(resident *r)
{
    r->step_count *= aging;
    if (r->step_count < count_most) return;
    for (int i = r->n_block; i < r->n_unit; i++) r->unit[i].count /= r->step_count;
    r->step_count = 1;
}

void resident_use(resident *r, int block)
{
    assert(block >= 0 && block < r->n_block);
    lock_take(&r->mu);
    settle_experts_locked(r);
    if (block == 0) age_locked(r);
    bool streamed = !r->unit[block].kept && r->unit[block].run.bytes > 0;
    if (r->current != NONE && r->current != block) {
        leave_locked(r, r->current);
        r->current = NONE;
    }
    if (streamed) {
        if (r->ahead != NONE && r->ahead != block) leave_locked(r, r->ahead);
        r->ahead = NONE;
        r->current = block;
        want_locked(r, block);
    }
    int next = next_streamed(r, block);
    if (next != NONE && r->ahead == NONE && next != r->current) {
        want_locked(r, next);
        r->ahead = next;
    }
    if (r->unit[block].run.bytes > 0) await_locked(r, block);
    lock_release(&r->mu);
}

void resident_experts(resident *r, int layer, const int *expert, int n)
{
    assert(layer >= 0 && layer < r->n_block - 1 && n <= r->n_expert);
    lock_take(&r->mu);
    settle_experts_locked(r);
    for (int i = 0; i < n; i++) {
        int at = r->n_block + layer * r->n_expert + expert[i];
        r->using[r->n_using++] = at;
        r->unit[at].count += r->step_count;
        want_locked(r, at);
    }
    for (int i = 0; i < n; i++) await_locked(r, r->using[i]);
    lock_release(&r->mu);
}

void resident_count(const resident *r, resident_counts *out)
{
    *out = (resident_counts){.budget_bytes = r->budget,
                             .resident_bytes = atomic_load(&r->here),
                             .read_bytes = atomic_load(&r->read_bytes),
                             .read_us = atomic_load(&r->read_us),
                             .waited_us = atomic_load(&r->waited_us)};
}

/* ---------------------------------------------------------------------------- rate -- */

/* Bytes of a run that are not in the page cache once it has been dropped: others may map it. */
static size_t missing(char *map, int fd, const resident_run *run)
{
    static unsigned char there[RATE_PIECE / PAGE];
    size_t n = 0;
    drop(map, fd, run);
    if (mincore(map + run->at, run->bytes, there) != 0) return 0;
    for (size_t i = 0; i < (run->bytes + PAGE - 1) / PAGE; i++) n += !(there[i] & 1);
    return n * PAGE;
}

/* Piece by piece, as a step reads layers; pieces that somebody else has in memory are left out. */
static double rate_of(char *map, int fd, size_t bytes)
{
    double read = 0, us = 0;
    for (size_t at = 0; at < bytes; at += RATE_PIECE) {
        resident_run run = {at, bytes - at < RATE_PIECE ? bytes - at : RATE_PIECE};
        size_t from_disk = missing(map, fd, &run);
        if (from_disk < run.bytes / 8 * 7) continue;
        int64_t began_us = clock_now_us();
        bring(map, fd, &run);
        us += (double)(clock_now_us() - began_us);
        read += (double)from_disk;
        drop(map, fd, &run);
    }
    return us > 0 ? read * 1e6 / us : 0;
}

err_code resident_disk_rate(const char *path, size_t most, double *bytes_per_s, err *e)
{
    struct stat st = {.st_size = 0};
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    bool ok = fd >= 0 && fstat(fd, &st) == 0 && st.st_size > 0;
    size_t bytes = (uint64_t)st.st_size < most ? (size_t)st.st_size : most;
    void *map = ok ? mmap(NULL, bytes, PROT_READ, MAP_SHARED, fd, 0) : MAP_FAILED;
    *bytes_per_s = 0;
    if (map != MAP_FAILED) {
        (void)madvise(map, bytes, MADV_SEQUENTIAL);
        *bytes_per_s = rate_of(map, fd, bytes);
        (void)munmap(map, bytes);
    } else {
        (void)err_set(e, ERR_IO, "%s cannot be read to measure the disk: %s", path,
                      ok || fd < 0 ? strerror(errno) : "it is empty");
    }
    if (fd >= 0) (void)close(fd);
    if (map == MAP_FAILED) return ERR_IO;
    return *bytes_per_s > 0
               ? ERR_NONE
               : err_set(e, ERR_IO, "%s is in memory: the disk cannot be measured", path);
}
