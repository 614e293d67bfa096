/* emu_wgmma.cpp -- products of warpgroups (emu.h): rounding of sm_90, operands in shared memory,
 * groups in flight.
 *
 * A product is done as late as it may, at the first wait that asks for it; until then its registers
 * are NaN.  What it reads must have been written, fenced and ordered before it was begun, and may
 * not be written before it is done: so one that was done earlier would give the same.
 */
#include <algorithm>
#include <deque>
#include <memory>
#include <string.h>
#include <vector>

#include "tests/emu/emu_inside.h"

namespace
{

enum {
    GROUP = 128,
    GROUPS = EMU_THREADS_MAX / GROUP,
    ROWS = 64,
    COLS = 256,
    K = 16,
    PIECE = 16,
    PIECES = 2
};

struct product {
    uint64_t a, b;
    int n, commit;
    bool bf16, add;
    uint32_t serial;                          /* of writes, when it was begun */
    float *d[GROUP];                          /* of each thread */
    std::shared_ptr<std::vector<float>> sums; /* [ROWS][n], of all that go on with these d */
    bool done;
    int landed; /* threads that have their registers */
};

struct warpgroup {
    std::deque<product> all;
    int first; /* the number of all[0] */
} groups[GROUPS];

struct member {
    product asked;
    float *d;
    int commits, landed; /* groups closed, products whose registers are there */
    bool fenced;
} members[EMU_THREADS_MAX];

bool used; /* since the block began */

/* d[i] of a thread in the sums. */
float *place_of(std::vector<float> *sums, int n, int thread, int i)
{
    int g = thread % EMU_WARP / 4, q = thread % 4;
    int row = thread / EMU_WARP * 16 + g + i / 2 % 2 * 8, col = i / 4 * 8 + 2 * q + i % 2;
    return &(*sums)[static_cast<size_t>(row * n + col)];
}

/* The 16 bytes with k 8 `piece` .. of a row of an operand. */
char *piece_of(uint64_t operand, int row, int piece)
{
    if (operand >> 62 != 1 || operand >> 49 & 7)
        emu_fault(EMU_CONFIG, "wgmma of an operand %016lx, which is not permuted by 128 bytes",
                  static_cast<unsigned long>(operand));
    uint32_t begin = (operand & 0x3FFF) << 4, apart = (operand >> 32 & 0x3FFF) << 4;
    if ((begin & ~127U) % 1024 || apart % 1024)
        emu_fault(EMU_MISALIGNED, "wgmma of an operand at %x, eight rows %x bytes apart", begin,
                  apart);
    uint32_t r = static_cast<uint32_t>(row);
    uint32_t at = begin + r / 8 * apart + r % 8 * 128 + static_cast<uint32_t>(piece * PIECE);
    at ^= (at >> 7 & 7) << 4;
    char *base = static_cast<char *>(emu_dynamic_shared());
    return base + ((at - emu_shared_address(base)) & 0x3FFFF);
}

template <class F>
void each_piece(const product *p, F visit)
{
    for (int i = 0; i < (ROWS + p->n) * PIECES; i++) {
        int row = i / PIECES, piece = i % PIECES;
        visit(row < ROWS ? piece_of(p->a, row, piece) : piece_of(p->b, row - ROWS, piece), row,
              piece);
    }
}

/* All threads of the group have come; emu_cur is the last one. */
void begin()
{
    int first = emu_cur->tid / GROUP * GROUP;
    warpgroup *w = &groups[emu_cur->tid / GROUP];
    product p = members[emu_cur->tid].asked;
    for (int i = 0; i < GROUP; i++) p.d[i] = members[first + i].d;
    p.serial = emu_write_serial();
    each_piece(&p, [](const char *at, int, int) { emu_async_begin(at, PIECE); });
    for (const product &o : w->all) {
        if (o.d[0] == p.d[0]) p.sums = o.sums;
    }
    if (!p.sums) {
        p.sums = std::make_shared<std::vector<float>>(static_cast<size_t>(ROWS * p.n));
        for (int i = 0; p.add && i < GROUP * p.n / 2; i++)
            *place_of(p.sums.get(), p.n, i / (p.n / 2), i % (p.n / 2)) =
                p.d[i / (p.n / 2)][i % (p.n / 2)];
    }
    for (float *d : p.d) memset(d, 0xFF, static_cast<size_t>(p.n / 2) * sizeof(*d));
    w->all.push_back(p);
}

void finish(product *p)
{
    static double x[ROWS + COLS][K], turned[K][COLS], sum[COLS];
    each_piece(p, [p](const char *at, int row, int piece) {
        emu_async_done(at, PIECE, p->serial);
        for (int i = 0; i < PIECE / 2; i++) {
            uint16_t h;
            memcpy(&h, at + 2 * i, 2);
            x[row][piece * (PIECE / 2) + i] = emu_half_value(h, p->bf16);
        }
    });
    int n = p->n;
    bool rounding = emu_mma_rounding() != 0;
    for (int k = 0; !rounding && k < K; k++) {
        for (int i = 0; i < n; i++) turned[k][i] = x[ROWS + i][k];
    }
    for (int row = 0; row < ROWS; row++) {
        const double *a = x[row];
        float *c = &(*p->sums)[static_cast<size_t>(row * n)];
        if (!p->add) memset(c, 0, static_cast<size_t>(n) * sizeof(*c));
        for (int i = 0; rounding && i < n; i++)
            c[i] = emu_add_aligned(c[i], a, x[ROWS + i], K, p->bf16);
        if (rounding) continue;
        memset(sum, 0, sizeof(sum));
        for (int k = 0; k < K; k++) {
            for (int i = 0; i < n; i++) sum[i] += a[k] * turned[k][i];
        }
        for (int i = 0; i < n; i++) c[i] = static_cast<float>(static_cast<double>(c[i]) + sum[i]);
    }
    p->done = true;
}

} // namespace

float emu_add_aligned(float c, const double *x, const double *y, int n, bool bf16)
{
    enum { BITS = 25, NONE = -4000 };
    auto exponent = [](double v, int least) {
        return v == 0 ? static_cast<int>(NONE) : std::max(emu_exponent(v), least);
    };
    int least = bf16 ? -126 : -14, top = exponent(static_cast<double>(c), -126);
    double plain = static_cast<double>(c);
    for (int k = 0; k < n; k++) {
        plain += x[k] * y[k];
        if (x[k] != 0 && y[k] != 0)
            top = std::max(top, exponent(x[k], least) + exponent(y[k], least));
    }
    if (!__builtin_isfinite(plain) || top == NONE) return static_cast<float>(plain);
    double scale = emu_power(BITS - top);
    int64_t sum = static_cast<int64_t>(static_cast<double>(c) * scale);
    for (int k = 0; k < n; k++) sum += static_cast<int64_t>(x[k] * y[k] * scale);
    return emu_cut(static_cast<double>(sum) * emu_power(top - BITS));
}

void emu_wgmma_reset(void)
{
    if (!used) return;
    for (warpgroup &w : groups) w = warpgroup();
    for (member &m : members) m = member();
    used = false;
}

void emu_wgmma_end(void)
{
    if (!used) return;
    const member *m = &members[emu_cur->tid];
    const warpgroup *w = &groups[emu_cur->tid / GROUP];
    int begun = w->first + static_cast<int>(w->all.size());
    if (m->landed < begun)
        emu_fault(EMU_IN_FLIGHT, "thread %d ends with %d wgmma not waited for", emu_cur->tid,
                  begun - m->landed);
}

uint32_t emu_shared_address(const void *p)
{
    return static_cast<uint32_t>(reinterpret_cast<uintptr_t>(p) & 0x3FFFF);
}

void emu_wgmma_fence(void)
{
    used = true;
    members[emu_cur->tid].fenced = true;
}

void emu_wgmma(float *d, uint64_t a, uint64_t b, int n, int bf16, int add)
{
    member *m = &members[emu_cur->tid];
    const warpgroup *w = &groups[emu_cur->tid / GROUP];
    bool goes_on = m->landed < w->first + static_cast<int>(w->all.size()) &&
                   w->all.back().d[emu_cur->tid % GROUP] == d;
    used = true;
    if (!goes_on && !m->fenced)
        emu_fault(EMU_UNFENCED, "wgmma with registers that were touched, and no wgmma.fence since");
    m->asked = product();
    m->asked.a = a;
    m->asked.b = b;
    m->asked.n = n;
    m->asked.bf16 = bf16 != 0;
    m->asked.add = add != 0;
    m->asked.commit = m->commits;
    m->d = d;
    uint64_t key = a * 31 + b * 1009 + static_cast<uint64_t>(n * 8 + m->asked.bf16 * 2) +
                   m->asked.add + (static_cast<uint64_t>(m->commits) << 40);
    emu_group_meet(key, begin);
}

void emu_wgmma_commit(void)
{
    members[emu_cur->tid].commits++;
}

void emu_wgmma_wait(int groups_left)
{
    int me = emu_cur->tid % GROUP;
    member *m = &members[emu_cur->tid];
    warpgroup *w = &groups[emu_cur->tid / GROUP];
    for (size_t i = 0; i < w->all.size(); i++) {
        product *p = &w->all[i];
        if (w->first + static_cast<int>(i) < m->landed) continue;
        if (p->commit >= m->commits - groups_left) break;
        if (!p->done) finish(p);
        m->landed++;
        p->landed++;
        bool later = false;
        for (size_t k = i + 1; k < w->all.size(); k++) later |= w->all[k].d[me] == p->d[me];
        for (int k = 0; !later && k < p->n / 2; k++)
            p->d[me][k] = *place_of(p->sums.get(), p->n, me, k);
        if (!later) m->fenced = false;
    }
    while (!w->all.empty() && w->all[0].landed == GROUP) {
        w->all.pop_front();
        w->first++;
    }
}
