/* fuzz_meter.c -- the meter file that a process before left: 16 bytes of its header, then its
 * slots.  Where a slot's `pad` is zero its sums are made right, so that not all of them are torn.
 *
 * It is one unit with the code under test, for the slots' layout is nobody else's business. */
#include "storage/meter_file.c"
#include "tests/fuzz/fuzz.h"
#include "tests/fuzz/fuzz_store.h"

enum { HEAD = 16, SLOTS = 6 };

static void check_row(const usage_row *r)
{
    FUZZ_CHECK(r->request_id != 0);
    FUZZ_CHECK(memchr(r->model, 0, sizeof(r->model)) &&
               memchr(r->slo_class, 0, sizeof(r->slo_class)));
    FUZZ_CHECK(memchr(r->endpoint, 0, sizeof(r->endpoint)) &&
               memchr(r->finish, 0, sizeof(r->finish)));
}

static void make_sums(uint8_t *slots, size_t n, size_t slot_bytes)
{
    for (size_t i = 0; (i + 1) * slot_bytes <= n; i++) {
        meter_slot *s = (meter_slot *)(slots + i * slot_bytes);
        if (s->pad) continue;
        s->sum = sum_of(&s->owner, sizeof(s->owner));
        if (slot_bytes == METER_SLOT_BYTES) s->end_sum = sum_of(&s->end, sizeof(s->end));
    }
}

static void put_file(const uint8_t *bytes, size_t len)
{
    char path[128];
    snprintf(path, sizeof(path), "%s/meters", fuzz_st_dir);
    int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    if (fd < 0 || write(fd, bytes, len) != (ssize_t)len || close(fd)) abort();
}

/* As a start does: what the ledger does not take stays. */
static void open_whole(store *st)
{
    meter_file *mf;
    meter_file_stats stats;
    int n_settled = 0;
    err e = {.msg = ""};
    err_code rc = meter_file_open(&mf, st, 2, 2, &n_settled, &e);
    FUZZ_CHECK(rc == ERR_NONE);
    meter_file_stats_get(mf, &stats);
    FUZZ_CHECK(n_settled <= SLOTS && stats.n_ended <= SLOTS && stats.n_running == 0);
    meter_file_close(mf);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    _Alignas(64) static uint8_t file[HEADER_BYTES + SLOTS * METER_SLOT_BYTES];
    store *st = fuzz_store();
    size_t head = size < HEAD ? size : HEAD, n = size - head;
    leftover l;
    err e = {.msg = ""};
    if (n > sizeof(file) - HEADER_BYTES) n = sizeof(file) - HEADER_BYTES;
    memset(file, 0, sizeof(file));
    if (head) memcpy(file, data, head);
    if (n) memcpy(file + HEADER_BYTES, data + head, n);
    make_sums(file + HEADER_BYTES, n,
              memcmp(file, MAGIC_BEFORE, sizeof(MAGIC_BEFORE)) ? METER_SLOT_BYTES
                                                               : SLOT_BYTES_BEFORE);
    put_file(file, n ? HEADER_BYTES + n : head);
    err_code rc = leftover_read(&l, st, false, &e);
    FUZZ_CHECK(rc == ERR_NONE && l.n <= SLOTS + 2);
    for (size_t i = 0; i < l.n; i++) check_row(&l.rows[i]);
    leftover_clear(&l);
    if (fuzz_hash(data, size) % 256 == 0) open_whole(st);
    return 0;
}
