/* test_ledger.c -- usage: sums, idempotence, and nothing lost or doubled by kill -9. */
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>

#include <check.h>

#include "storage/ledger.h"
#include "storage/meter_file.h"
#include "storage/settler.h"
#include "tests/run_suite.h"
#include "tests/storage/ledger_get.h"
#include "tests/tmpdir.h"

static char dir[64];
static store *st;
static err e;

static void open_st(void)
{
    ck_assert_msg(store_open(&st, dir, &(store_options){.create = true, .quick_check = true}, &e) ==
                      ERR_NONE,
                  "%s", e.msg);
}

static void setup(void)
{
    tmpdir_make(dir);
    open_st();
}

static void teardown(void)
{
    store_close(st);
    st = NULL;
    tmpdir_remove(dir);
}

static const int64_t MIN_US = 60000000ll, HOUR_US = 3600000000ll, DAY_US = 86400000000ll;
static const int64_t T0 = 1764547200000000ll; /* 2025-12-01T00:00:00Z */

static usage_row row(uint64_t id, uint64_t tenant_id, const char *model, int64_t at_us, int out)
{
    usage_row r = {.request_id = id,
                   .tenant_id = tenant_id,
                   .key_id = tenant_id * 10,
                   .prompt_tokens = 7,
                   .cached_tokens = 2,
                   .output_tokens = (uint32_t)out,
                   .cost = 3 * out + 1,
                   .status = 200,
                   .finish = "stop",
                   .ttft_ms = 12,
                   .duration_ms = 34,
                   .started_wall_us = at_us,
                   .ended_wall_us = at_us + 34000};
    snprintf(r.model, sizeof r.model, "%s", model);
    return r;
}

START_TEST(test_sums)
{
    usage_row rows[] = {
        row(1, 1, "base", T0 + 10 * MIN_US, 1), row(2, 1, "poet@1", T0 + 20 * MIN_US, 10),
        row(3, 1, "poet@1", T0 + HOUR_US, 100), row(4, 2, "base", T0 + HOUR_US, 1000),
        row(5, 1, "base", T0 + DAY_US, 10000),  row(6, 1, "base", T0 - DAY_US, 100000),
        row(7, 1, "base", T0 + 20 * DAY_US, 5),
    };
    size_t n_rows = sizeof rows / sizeof(*rows);
    ck_assert_int_eq(ledger_settle(st, rows, n_rows, &e), ERR_NONE);
    ck_assert_int_eq(ledger_settle(st, rows, n_rows, &e), ERR_NONE); /* changes nothing */

    usage_query q = {.tenant_id = 1,
                     .start_wall_us = T0,
                     .end_wall_us = T0 + DAY_US,
                     .bucket_us = HOUR_US,
                     .group_by = USAGE_BY_MODEL};
    usage_sum *s;
    size_t n;
    ck_assert_msg(ledger_query(st, &q, &s, &n, &e) == ERR_NONE, "%s", e.msg);
    ck_assert_uint_eq(n, 3);
    ck_assert_str_eq(s[0].model, "base");
    ck_assert_uint_eq(s[0].output_tokens, 1);
    ck_assert_str_eq(s[1].model, "poet@1");
    ck_assert_uint_eq(s[1].output_tokens, 10);
    ck_assert_int_eq(s[2].bucket_start_us, T0 + HOUR_US);
    ck_assert_int_eq(s[2].bucket_end_us, T0 + 2 * HOUR_US);
    ck_assert_uint_eq(s[2].output_tokens, 100);
    ck_assert_uint_eq(s[2].tenant_id, 0);
    free(s);

    q = (usage_query){.end_wall_us = T0 + 30 * DAY_US, .group_by = USAGE_BY_TENANT};
    ck_assert_int_eq(ledger_query(st, &q, &s, &n, &e), ERR_NONE);
    ck_assert_uint_eq(n, 2);
    ck_assert_uint_eq(s[0].tenant_id, 1);
    ck_assert_uint_eq(s[0].n_requests, 6);
    ck_assert_uint_eq(s[0].output_tokens, 110116);
    ck_assert_uint_eq(s[0].prompt_tokens, 42);
    ck_assert_uint_eq(s[0].cached_tokens, 12);
    ck_assert_uint_eq(s[1].output_tokens, 1000);
    free(s);
    q.model = "base";
    q.key_id = 20;
    ck_assert_int_eq(ledger_query(st, &q, &s, &n, &e), ERR_NONE);
    ck_assert_uint_eq(n, 1);
    ck_assert_uint_eq(s[0].n_requests, 1);
    free(s);
    q.model = "' OR 1=1 --";
    ck_assert_int_eq(ledger_query(st, &q, &s, &n, &e), ERR_NONE);
    ck_assert_uint_eq(n, 0);
    free(s);
    q.start_wall_us = q.end_wall_us + 1;
    ck_assert_int_eq(ledger_query(st, &q, &s, &n, &e), ERR_INPUT);

    ledger_sums day, month;
    ck_assert_int_eq(ledger_spent(st, 1, T0 + 5 * HOUR_US, &day, &month, &e), ERR_NONE);
    ck_assert_int_eq(day.tokens, 111 + 3 * 7);
    ck_assert_int_eq(month.tokens, 111 + 10000 + 5 + 5 * 7); /* also of later days */
    ck_assert_int_eq(day.cost, 3 * 111 + 3);
    ck_assert_int_eq(month.cost, 3 * (111 + 10000 + 5) + 5);
    ck_assert_int_eq(ledger_spent(st, 1, T0 + 21 * DAY_US, &day, &month, &e), ERR_NONE);
    ck_assert_int_eq(day.tokens, 0);
    ck_assert_int_eq(month.tokens, 111 + 10000 + 5 + 5 * 7); /* not November */
    ck_assert_int_eq(ledger_spent(st, 77, T0, &day, &month, &e), ERR_NONE);
    ck_assert_int_eq(day.tokens + month.tokens, 0);

    usage_row got;
    ck_assert_int_eq(ledger_get(st, 2, &got, &e), ERR_NONE);
    ck_assert_mem_eq(got.model, "poet@1", 7);
    ck_assert_int_eq(got.ttft_ms, 12);
    ck_assert(!got.recovered);
    ck_assert_int_eq(ledger_get(st, 99, &got, &e), ERR_NOT_FOUND);
}
END_TEST

static void same_sums(const usage_query *q, const usage_sum *want, size_t n_want)
{
    usage_sum *s;
    size_t n;
    ck_assert_msg(ledger_query(st, q, &s, &n, &e) == ERR_NONE, "%s", e.msg);
    ck_assert_uint_eq(n, n_want);
    ck_assert_mem_eq(s, want, n * sizeof(*s));
    free(s);
}

/* Rows that are old become sums by hour, a few at a time: no query by hour or
 * day, and no budget, can tell. */
START_TEST(test_prune)
{
    enum { N = 60 };
    usage_row rows[N];
    for (int i = 0; i < N; i++) {
        rows[i] = row(1000 + (uint64_t)i, 1 + (uint64_t)i % 3, i % 4 ? "base" : "poet@1",
                      T0 + i * 61 * MIN_US / 2, i + 1);
        snprintf(rows[i].slo_class, sizeof rows[i].slo_class, "%s", i % 5 ? "batch" : "standard");
    }
    ck_assert_int_eq(ledger_settle(st, rows, N, &e), ERR_NONE);
    const unsigned every = USAGE_BY_MODEL | USAGE_BY_KEY | USAGE_BY_TENANT | USAGE_BY_CLASS;
    const usage_query q[] = {
        {.end_wall_us = T0 + 9 * DAY_US, .bucket_us = HOUR_US, .group_by = every},
        {.end_wall_us = INT64_MAX, .group_by = USAGE_BY_ADAPTER},
        {.tenant_id = 2, .start_wall_us = T0 + HOUR_US, .end_wall_us = T0 + 15 * HOUR_US},
        {.tenant_id = 2, .model = "base", .end_wall_us = T0 + 9 * DAY_US, .bucket_us = DAY_US}};
    enum { QUERIES = sizeof q / sizeof(*q) };
    usage_sum *before[QUERIES];
    size_t n_before[QUERIES];
    ledger_sums day, month, day2, month2;
    int64_t n = 0, all = 0;
    for (int i = 0; i < QUERIES; i++)
        ck_assert_int_eq(ledger_query(st, &q[i], &before[i], &n_before[i], &e), ERR_NONE);
    ck_assert_uint_gt(n_before[0], 40);
    ck_assert_int_eq(ledger_spent(st, 1, T0 + HOUR_US, &day, &month, &e), ERR_NONE);
    do {
        ck_assert_msg(ledger_prune(st, T0 + DAY_US, 7, &n, &e) == ERR_NONE, "%s", e.msg);
        all += n;
        for (int i = 0; i < QUERIES; i++) same_sums(&q[i], before[i], n_before[i]);
    } while (n == 7);
    ck_assert_int_eq(all, 48); /* those of the first day */
    usage_row got;
    ck_assert_int_eq(ledger_get(st, 1000 + 47, &got, &e), ERR_NOT_FOUND);
    ck_assert_int_eq(ledger_get(st, 1000 + 48, &got, &e), ERR_NONE);
    ck_assert_int_eq(ledger_spent(st, 1, T0 + HOUR_US, &day2, &month2, &e), ERR_NONE);
    ck_assert(day.tokens == day2.tokens && month.tokens == month2.tokens && day.tokens > 0);
    ck_assert(day.cost == day2.cost && month.cost == month2.cost && day.cost > 0);
    for (int i = 0; i < QUERIES; i++) free(before[i]);
}
END_TEST

/* Rows of one hour that are summed up in three goes add to one sum. */
START_TEST(test_prune_in_goes)
{
    usage_row rows[8];
    int64_t n, all = 0;
    for (int i = 0; i < 8; i++) rows[i] = row(1 + (uint64_t)i, 1, "base", T0 + i * MIN_US, 1 + i);
    ck_assert_int_eq(ledger_settle(st, rows, 8, &e), ERR_NONE);
    usage_query q = {.end_wall_us = T0 + DAY_US, .bucket_us = HOUR_US};
    usage_sum *before;
    size_t n_before;
    ck_assert_int_eq(ledger_query(st, &q, &before, &n_before, &e), ERR_NONE);
    ck_assert_uint_eq(n_before, 1);
    ck_assert_uint_eq(before[0].n_requests, 8);
    do {
        ck_assert_int_eq(ledger_prune(st, T0 + HOUR_US, 3, &n, &e), ERR_NONE);
        all += n;
        same_sums(&q, before, 1);
    } while (n > 0);
    ck_assert_int_eq(all, 8);
    free(before);
}
END_TEST

static meter_owner owner_of(uint64_t id, int choice)
{
    meter_owner o = {.request_id = id,
                     .tenant_id = 3,
                     .key_id = 30,
                     .adapter_id = 300,
                     .started_wall_us = T0,
                     .choice = choice,
                     .model = "poet@2",
                     .slo_class = "batch",
                     .endpoint = "chat"};
    return o;
}

static int running(meter_file *mf)
{
    meter_file_stats st_now;
    meter_file_stats_get(mf, &st_now);
    ck_assert_int_eq(st_now.n_ended, 0);
    return st_now.n_running;
}

START_TEST(test_slots)
{
    meter_file *mf;
    meter_slot *s[4], *none;
    int n;
    ck_assert_int_eq(meter_file_open(&mf, st, 0, 1, &n, &e), ERR_INPUT);
    ck_assert_msg(meter_file_open(&mf, st, 4, 4, &n, &e) == ERR_NONE, "%s", e.msg);
    ck_assert_int_eq(n, 0);
    for (int i = 0; i < 4; i++) {
        meter_owner o = owner_of(100 + (uint64_t)i, i);
        ck_assert_int_eq(meter_file_acquire(mf, &o, &s[i], &e), ERR_NONE);
        atomic_store(&meter_slot_meter(s[i])->prompt_tokens, 50);
        atomic_store(&meter_slot_meter(s[i])->cached_tokens, 16);
        atomic_store(&meter_slot_meter(s[i])->output_tokens, 5 + (uint32_t)i);
    }
    atomic_store(&meter_slot_meter(s[0])->first_token_ms, 9);
    meter_owner o = owner_of(200, 0);
    ck_assert_int_eq(meter_file_acquire(mf, &o, &none, &e), ERR_BUSY);
    meter_file_release(mf, s[3]);
    ck_assert_int_eq(running(mf), 3);
    /* 101 was settled by its worker, which then died before the release. */
    usage_row r = row(101, 3, "poet@2", T0, 4242);
    ck_assert_int_eq(ledger_settle(st, &r, 1, &e), ERR_NONE);
    meter_file_close(mf); /* three slots stay in use, as after a crash */
    store_close(st);
    open_st();

    ck_assert_int_eq(meter_file_open(&mf, st, 8, 4, &n, &e), ERR_NONE);
    ck_assert_int_eq(n, 3);
    ck_assert_int_eq(running(mf), 0);
    usage_row got;
    ck_assert_int_eq(ledger_get(st, 100, &got, &e), ERR_NONE);
    ck_assert(got.recovered);
    ck_assert_uint_eq(got.prompt_tokens, 50);
    ck_assert_uint_eq(got.cached_tokens, 16);
    ck_assert_uint_eq(got.output_tokens, 5);
    ck_assert_int_eq(got.ttft_ms, 9);
    ck_assert_str_eq(got.model, "poet@2");
    ck_assert_str_eq(got.finish, "crash");
    ck_assert_int_eq(got.missed, MISS_RESTART);
    ck_assert_int_eq(ledger_get(st, 101, &got, &e), ERR_NONE);
    ck_assert_uint_eq(got.output_tokens, 4242); /* the worker's row stands */
    ck_assert_int_eq(got.missed, MISS_NONE);
    ck_assert(!got.recovered);
    ck_assert_int_eq(ledger_get(st, 102, &got, &e), ERR_NONE);
    ck_assert_uint_eq(got.prompt_tokens, 0); /* the prompt is paid once, by choice 0 */
    ck_assert_uint_eq(got.output_tokens, 7);
    ck_assert_int_eq(ledger_get(st, 103, &got, &e), ERR_NOT_FOUND);
    meter_file_close(mf);

    /* Nothing is settled twice, and rubbish in the file's place does no harm. */
    ck_assert_int_eq(meter_file_open(&mf, st, 8, 4, &n, &e), ERR_NONE);
    ck_assert_int_eq(n, 0);
    meter_file_close(mf);
    char path[128];
    snprintf(path, sizeof path, "%s/meters", dir);
    FILE *f = fopen(path, "r+");
    fputs("rubbish rubbish", f);
    fclose(f);
    ck_assert_int_eq(meter_file_open(&mf, st, 8, 4, &n, &e), ERR_NONE);
    ck_assert_int_eq(n, 0);
    meter_file_close(mf);
}
END_TEST

START_TEST(test_torn_slot)
{
    meter_file *mf;
    meter_slot *s;
    int n;
    ck_assert_int_eq(meter_file_open(&mf, st, 4, 4, &n, &e), ERR_NONE);
    meter_owner o = owner_of(500, 0);
    ck_assert_int_eq(meter_file_acquire(mf, &o, &s, &e), ERR_NONE);
    meter_file_close(mf);
    char path[128];
    snprintf(path, sizeof path, "%s/meters", dir);
    int fd = open(path, O_RDWR);
    static char data[1 << 16];
    ssize_t len = pread(fd, data, sizeof data, 0);
    ck_assert_int_gt(len, 4096);
    char *at = memmem(data, (size_t)len, "poet@2", 6);
    ck_assert_ptr_nonnull(at);
    ck_assert_int_eq(pwrite(fd, "X", 1, at - data), 1);
    close(fd);
    ck_assert_int_eq(meter_file_open(&mf, st, 4, 4, &n, &e), ERR_NONE);
    ck_assert_int_eq(n, 0);
    usage_row got;
    ck_assert_int_eq(ledger_get(st, 500, &got, &e), ERR_NOT_FOUND);
    meter_file_close(mf);
}
END_TEST

/* ---- kill -9 ------------------------------------------------------------------------------- */

/* What the "clients" saw, in memory that outlives the child. */
enum { N_WORKERS = 4, SEEN_MAX = 200000 };

struct seen {
    _Atomic uint32_t n;       /* requests begun, over all rounds */
    _Atomic uint64_t made;    /* tokens counted in meters, before they were "sent" */
    _Atomic uint64_t settled; /* tokens of requests whose settle returned */
    struct {
        _Atomic uint64_t id;
        _Atomic uint32_t tokens; /* counted so far */
        _Atomic uint32_t acked;  /* it has ended: its row stands */
    } rq[SEEN_MAX];
};

struct worker {
    meter_file *mf;
    settler *sr;
    struct seen *seen;
};

static void *worker_main(void *arg)
{
    struct worker *w = arg;
    for (;;) {
        uint32_t i = atomic_fetch_add(&w->seen->n, 1);
        if (i >= SEEN_MAX) return NULL;
        uint64_t id = store_next_id(st);
        meter_owner o = owner_of(id, 0);
        meter_slot *s;
        while (meter_file_acquire(w->mf, &o, &s, NULL) != ERR_NONE)
            usleep(100); /* the spool is full */
        atomic_store(&w->seen->rq[i].id, id);
        meter *m = meter_slot_meter(s);
        uint32_t n_tokens = 1 + i % 17;
        for (uint32_t t = 1; t <= n_tokens; t++) {
            atomic_store(&m->output_tokens, t); /* the engine counts, then hands out */
            atomic_store(&w->seen->rq[i].tokens, t);
        }
        usage_row r = row(id, 3, "poet@2", T0, (int)n_tokens);
        uint64_t turn = settler_end(w->sr, s, &r);
        atomic_store(&w->seen->rq[i].acked, 1); /* whatever becomes of us now */
        if (i % 2) settler_await(w->sr, turn);
    }
}

static _Noreturn void child(struct seen *seen)
{
    meter_file *mf;
    if (store_open(&st, dir, &(store_options){.create = true}, NULL) != ERR_NONE) _exit(3);
    if (meter_file_open(&mf, st, 64, 64, NULL, NULL) != ERR_NONE) _exit(4);
    settler *sr;
    if (settler_start(&sr, st, mf, NULL) != ERR_NONE) _exit(5);
    struct worker w = {mf, sr, seen};
    pthread_t th[N_WORKERS];
    for (int i = 0; i < N_WORKERS; i++) pthread_create(&th[i], NULL, worker_main, &w);
    for (int i = 0; i < N_WORKERS; i++) pthread_join(th[i], NULL);
    _exit(0);
}

START_TEST(test_kill_nine)
{
    struct seen *seen =
        mmap(NULL, sizeof(*seen), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    ck_assert_ptr_ne(seen, MAP_FAILED);
    store_close(st);
    st = NULL;
    for (int round = 0; round < 8; round++) {
        uint32_t before = atomic_load(&seen->n);
        pid_t pid = fork();
        if (pid == 0) child(seen);
        /* Let it work for a while that differs from round to round, then kill it in mid-work. */
        while (atomic_load(&seen->n) < before + 20u + 13u * (uint32_t)round) usleep(200);
        usleep(1000u * (unsigned)(round * 7 % 11));
        kill(pid, SIGKILL);
        int status;
        ck_assert_int_eq(waitpid(pid, &status, 0), pid);
        ck_assert(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
    }
    open_st();
    meter_file *mf;
    int n_recovered;
    ck_assert_int_eq(meter_file_open(&mf, st, 64, 64, &n_recovered, &e), ERR_NONE);
    uint32_t n = atomic_load(&seen->n);
    uint64_t sum = 0, n_rows = 0;
    for (uint32_t i = 0; i < n && i < SEEN_MAX; i++) {
        uint64_t id = atomic_load(&seen->rq[i].id);
        if (id == 0) continue; /* killed before it had its slot, or before the client knew */
        usage_row got;
        ck_assert_msg(ledger_get(st, id, &got, &e) == ERR_NONE, "request %u of %u is lost", i, n);
        uint32_t tokens = atomic_load(&seen->rq[i].tokens);
        /* Never less than what went out; at most the one token counted but not yet handed out. */
        ck_assert_uint_ge(got.output_tokens, tokens);
        ck_assert_uint_le(got.output_tokens, tokens + 1);
        if (atomic_load(&seen->rq[i].acked)) ck_assert(!got.recovered);
        sum += got.output_tokens;
        n_rows++;
    }
    usage_query q = {.end_wall_us = T0 + DAY_US};
    usage_sum *s;
    size_t n_sum;
    ck_assert_int_eq(ledger_query(st, &q, &s, &n_sum, &e), ERR_NONE);
    ck_assert_uint_eq(n_sum, 1);
    /* A slot taken in the instant before its client noted the id may add a row without tokens. */
    ck_assert_uint_eq(s[0].output_tokens, sum);
    ck_assert_uint_ge(s[0].n_requests, n_rows);
    ck_assert_uint_le(s[0].n_requests, n_rows + 8 * N_WORKERS);
    ledger_sums day, month; /* the day sums agree with the rows */
    ck_assert_int_eq(ledger_spent(st, 3, T0, &day, &month, &e), ERR_NONE);
    ck_assert_int_eq(day.tokens, (int64_t)(s[0].prompt_tokens + s[0].output_tokens));
    free(s);
    meter_file_close(mf);
    munmap(seen, sizeof(*seen));
}
END_TEST

/* A batch's line that was cut and is run again: its last attempt alone is in the books. */
START_TEST(test_a_later_attempt_replaces)
{
    usage_row was = row(5, 1, "base", T0 - MIN_US, 3), other = row(6, 1, "base", T0, 1000);
    was.recovered = true;
    usage_row now = row(5, 1, "base", T0 + MIN_US, 40), foreign = row(5, 2, "base", T0 + DAY_US, 9);
    ck_assert_int_eq(ledger_settle(st, &was, 1, &e), ERR_NONE);
    ck_assert_int_eq(ledger_settle(st, &other, 1, &e), ERR_NONE);
    for (int i = 0; i < 2; i++) {
        ck_assert_int_eq(ledger_settle(st, &now, 1, &e), ERR_NONE);
        ck_assert_int_eq(ledger_settle(st, &was, 1, &e), ERR_NONE);     /* it comes too late */
        ck_assert_int_eq(ledger_settle(st, &foreign, 1, &e), ERR_NONE); /* not its own */
    }
    usage_query q = {.end_wall_us = T0 + 2 * DAY_US, .group_by = USAGE_BY_TENANT};
    usage_sum *s;
    size_t n;
    ck_assert_int_eq(ledger_query(st, &q, &s, &n, &e), ERR_NONE);
    ck_assert_uint_eq(n, 1);
    ck_assert_uint_eq(s[0].n_requests, 2);
    ck_assert_uint_eq(s[0].output_tokens, 1040);
    ck_assert_int_eq(s[0].cost, 3 * 1040 + 2);
    free(s);
    ledger_sums day, month; /* the earlier attempt was of the day before */
    ck_assert_int_eq(ledger_spent(st, 1, T0, &day, &month, &e), ERR_NONE);
    ck_assert_int_eq(day.tokens, 7 + 40 + 7 + 1000);
    ck_assert_int_eq(day.cost, 3 * 1040 + 2);
    ck_assert_int_eq(ledger_spent(st, 1, T0 - MIN_US, &day, &month, &e), ERR_NONE);
    ck_assert_int_eq(day.tokens, 0);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("ledger");
    TCase *tc = tcase_create("ledger");
    tcase_add_checked_fixture(tc, setup, teardown);
    tcase_set_timeout(tc, 120);
    tcase_add_test(tc, test_sums);
    tcase_add_test(tc, test_a_later_attempt_replaces);
    tcase_add_test(tc, test_prune);
    tcase_add_test(tc, test_prune_in_goes);
    tcase_add_test(tc, test_slots);
    tcase_add_test(tc, test_torn_slot);
    tcase_add_test(tc, test_kill_nine);
    suite_add_tcase(s, tc);
    return run_suite(s);
}
