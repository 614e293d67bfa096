/* gemm_codes.cu -- products with weights by their codes; gemm.h says how they lie.
 *
 * A code becomes its BF16 value in registers, two at a time, and what follows is gemm.cu's order of
 * mma.  Every step to the value is exact but its roundings:
 *
 *     E4M3   sign, exponent and fraction moved to their places in a BF16: the value times 2^-120.
 *            The scale is kept times 2^120.
 *     I8     cu_bf16x2_of_i8()
 *     I4     128 + code, less 128 + zero
 *     times the scale: in BF16 where it has the scale, for the f32 product of 8 by 8 bits is exact;
 *            of an F16 scale both halves, the product of the lower one is exact, and then one fma;
 *            else in f32, rounded to f32 and then to BF16.
 *
 * Held to its oracle by tests/emu/test_codes.cu.
 */
#include <limits.h>

#include "engine/cuda/products/gemm.h"
#include "engine/cuda/products/gemm_inside.h"

/* ---- from codes to BF16 ---------------------------------------------------------------------- */

template <int FORM>
CU_INLINE constexpr bool of_8_bits()
{
    return FORM < GEMM_I4;
}

/* What a record tells. */
typedef struct {
    uint32_t scale, low; /* a pair of halves each; low: what BF16 leaves of an F16 scale */
    uint32_t zero;       /* a pair of -(128 + zero) */
    float wide;
} code_scale;

enum : uint32_t { PAIR_ONE = 0x3F803F80U, PAIR_NONE = 0x80008000U }; /* 1, and -0: adds nothing */

template <int FORM>
CU_INLINE code_scale scale_of(uint32_t record)
{
    code_scale s = {0, 0, 0, 0};
    if (FORM == GEMM_E4M3_F32 || FORM == GEMM_I8_F32) {
        s.wide = cu_f32_of_bits(record);
        return s;
    }
    s.scale = (record & 0xFFFFU) * 0x10001U;
    if (of_8_bits<FORM>()) return s;
    s.zero = (record >> 16 & 0x1FU) * 0x10001U | 0xC300C300U;
    uint32_t low = record & 0xFFE00000U;
    s.low = low | low >> 16;
    return s;
}

/* d, a pair of exact BF16, times the scale. */
template <int FORM>
CU_INLINE uint32_t scaled(uint32_t d, const code_scale *s)
{
    if (FORM == GEMM_E4M3_F32 || FORM == GEMM_I8_F32)
        return cu_bf16x2_of(cu_mul(cu_bf16_lo(d), s->wide), cu_mul(cu_bf16_hi(d), s->wide));
    return cu_fma_bf16x2(d, s->scale,
                         FORM == GEMM_I4_F16 ? cu_fma_bf16x2(d, s->low, PAIR_NONE) : PAIR_NONE);
}

/* 4 codes of 8 bits: pairs of k 0, 1 and 2, 3. */
template <int FORM>
CU_INLINE uint2 values_of_4(uint32_t w, const code_scale *s)
{
    uint32_t a, b;
    if (FORM == GEMM_E4M3 || FORM == GEMM_E4M3_F32) {
        a = w & 0x87F087F0U;
        b = (w << 4 & 0x80F080F0U) | (w >> 4 & 0x07000700U);
    } else {
        a = cu_bf16x2_of_i8(w);
        b = cu_bf16x2_of_i8(w >> 8);
    }
    return make_uint2(scaled<FORM>(a, s), scaled<FORM>(b, s));
}

/* 8 codes of 4 bits; of 8. */
template <int FORM>
CU_INLINE uint4 values_of(uint32_t w, const code_scale *s)
{
    uint32_t v[4];
    CU_UNROLL
    for (int p = 0; p < 4; p++) {
        uint32_t u = (w >> 4 * p & 0x000F000FU) | 0x43004300U;
        v[p] = scaled<FORM>(cu_fma_bf16x2(u, PAIR_ONE, s->zero), s);
    }
    return make_uint4(v[0], v[1], v[2], v[3]);
}

template <int FORM>
CU_INLINE uint4 values_of(uint32_t w0, uint32_t w1, const code_scale *s)
{
    uint2 a = values_of_4<FORM>(w0, s), b = values_of_4<FORM>(w1, s);
    return make_uint4(a.x, a.y, b.x, b.y);
}

template <int FORM>
CU_INLINE constexpr size_t block_bytes()
{
    return GEMM_PANEL * GEMM_CODES_K / (of_8_bits<FORM>() ? 1 : 2);
}

/* ---- few rows -------------------------------------------------------------------------------- */

/* The 16 rows of W of a warp: both halves of a panel, or one half, which is gate's, and the same
 * half of the panel that has these rows of up. */
typedef struct {
    const char *panel;   /* or its second half's codes; NULL: there are no such rows */
    int at;              /* bytes to the first half's records, where that is a panel's second */
    size_t code, record; /* bytes from the first half's to the second's */
} code_rows;

CU_INLINE code_rows rows_of(const gemm_args *a, const few_warp *warp)
{
    size_t each = a->codes.panel_bytes;
    int col = few_column(a, warp, warp->cols, 0), half = col % GEMM_PANEL;
    const char *panel = (const char *)a->w + (size_t)(col / GEMM_PANEL) * each;
    size_t up = (size_t)(a->n / 2 / GEMM_PANEL) * each;
    code_rows r = {panel + half * 64, -half * 60, a->gated ? up : 512, a->gated ? up : 32};
    if (col >= (a->gated ? a->n / 2 : a->n)) r.panel = nullptr;
    return r;
}

/* A lane's part of a block: of its first (0) and its second row (1). */
template <int FORM>
struct code_block {
    static constexpr int WORDS = of_8_bits<FORM>() ? 2 : 1; /* of 16 bytes */
    uint4 code[2][WORDS];
    uint32_t record[2][AT_ONCE];

    /* first: of this struct's in a chunk; a record for the whole row stays. */
    CU_INLINE_METHOD void load(const gemm_args *a, const code_rows *rows, int block, int lane,
                               bool first)
    {
        const char *from = rows->panel + (size_t)block * block_bytes<FORM>() + lane * 16;
        CU_UNROLL
        for (int i = 0; i < 2 * WORDS; i++)
            code[i % 2][i / 2] = cu_ldg16_once(from + i / 2 * 1024 + i % 2 * rows->code);
        if (a->codes.shift == 31 && !first) return;
        const char *records = rows->panel + a->codes.records_at + rows->at + lane / 4 * 4;
        int k = block * GEMM_CODES_K, shift = a->codes.shift;
        if (shift >= 7) {
            const char *r = records + (size_t)(k >> shift) * (GEMM_PANEL * 4);
            record[0][0] = cu_ldg4(r);
            record[1][0] = cu_ldg4(r + rows->record);
            return;
        }
        CU_UNROLL
        for (int i = 0; i < AT_ONCE; i++) {
            int run = (k + STEP * i + lane % 4 * 8) >> shift;
            const char *r = records + (size_t)run * (GEMM_PANEL * 4);
            record[0][i] = cu_ldg4(r);
            record[1][i] = cu_ldg4(r + rows->record);
        }
    }

    /* Of step i, of the lane's first or second row. */
    CU_INLINE_METHOD uint4 values(int half, int i, const code_scale *s) const
    {
        if constexpr (of_8_bits<FORM>()) {
            uint4 c = code[half][i / 2];
            return i % 2 ? values_of<FORM>(c.z, c.w, s) : values_of<FORM>(c.x, c.y, s);
        } else {
            uint4 c = code[half][0];
            return values_of<FORM>(i == 0 ? c.x : i == 1 ? c.y : i == 2 ? c.z : c.w, s);
        }
    }

    /* acc += the block's sums over the first `left` of its k.  The lane's rows have them `at`
     * behind x. */
    template <int NT, bool WHOLE>
    CU_INLINE_METHOD void add(float (*acc)[4], const gemm_args *a, const uint16_t *const *x, int at,
                              int left, int q) const
    {
        code_scale lo = scale_of<FORM>(record[0][0]), hi = scale_of<FORM>(record[1][0]);
        CU_UNROLL
        for (int i = 0; i < AT_ONCE; i++) {
            if (!WHOLE && STEP * i >= left) break; /* the whole warp: no mma of zeros alone */
            if (i > 0 && a->codes.shift < 7) {
                lo = scale_of<FORM>(record[0][i]);
                hi = scale_of<FORM>(record[1][i]);
            }
            uint4 w_lo = values(0, i, &lo), w_hi = values(1, i, &hi);
            CU_UNROLL
            for (int nt = 0; nt < NT; nt++) {
                bool in = WHOLE || STEP * i + 8 * q < left;
                mma32<true>(acc[nt], w_lo, w_hi, in ? cu_ld16(x[nt] + at + STEP * i) : zero16());
            }
        }
    }
};

template <int NT>
CU_INLINE void step_on(const uint16_t **x, int blocks)
{
    CU_UNROLL
    for (int nt = 0; nt < NT; nt++) x[nt] += blocks * GEMM_CODES_K;
}

/* acc = the sums of one chunk, in the order of gemm.cu's sum_chunk(); x: the lane's rows at the
 * chunk's first k, and then, behind its last block. */
template <int NT, int FORM>
CU_INLINE void sum_codes(float (*acc)[4], const gemm_args *a, const code_rows *rows,
                         const uint16_t **x, int chunk, int lane)
{
    int begin = chunk * GEMM_CHUNK, q = lane % 4;
    int end = begin + GEMM_CHUNK < a->k ? begin + GEMM_CHUNK : a->k;
    int block = begin / GEMM_CODES_K, whole = end / GEMM_CODES_K;
    code_block<FORM> b;
    CU_UNROLL
    for (int nt = 0; nt < NT; nt++) acc[nt][0] = acc[nt][1] = acc[nt][2] = acc[nt][3] = 0;
    if (!rows->panel || NT == 8) cu_grid_wait();
    if (!rows->panel) return; /* no such columns */
    if constexpr (NT == 8) { /* registers hold no second block, nor other code, beside these sums */
        CU_UNROLL_BY(1)
        for (int left = end - begin; left > 0; left -= GEMM_CODES_K) {
            b.load(a, rows, block++, lane, left == end - begin);
            b.template add<NT, false>(acc, a, x, 0, left, q);
            step_on<NT>(x, 1);
        }
        return;
    }
    code_block<FORM> next;
    const int first = block;
    if (block < whole) b.load(a, rows, block, lane, true);
    cu_grid_wait(); /* for x */
    for (; block < whole; block += 2) {
        if (block + 1 < whole) next.load(a, rows, block + 1, lane, block == first);
        b.template add<NT, true>(acc, a, x, 0, GEMM_CODES_K, q);
        if (block + 1 == whole) {
            step_on<NT>(x, 1);
            break;
        }
        if (block + 2 < whole) b.load(a, rows, block + 2, lane, false);
        next.template add<NT, true>(acc, a, x, GEMM_CODES_K, GEMM_CODES_K, q);
        step_on<NT>(x, 2);
    }
    if (whole * GEMM_CODES_K == end) return;
    b.load(a, rows, whole, lane, true);
    b.template add<NT, false>(acc, a, x, 0, end - whole * GEMM_CODES_K, q);
}

/* Grid: groups of columns. */
template <int NT, int FORM>
static __global__ void __launch_bounds__(SMALL_WARPS *CU_WARP, 1)
    gemm_codes_few_kernel(gemm_args a, int split)
{
    CU_STATIC_SHARED(float, kept, SMALL_WARPS *NT *CU_WARP * 4);
    cu_grid_go();
    int lane = (int)threadIdx.x % CU_WARP, g = lane / 4, q = lane % 4;
    const few_warp warp = few_of(split);
    const code_rows rows = rows_of(&a, &warp);
    multiply_few<NT>(&a, &warp, kept, [&](float(*acc)[4], int chunk) {
        const uint16_t *x[NT];
        CU_UNROLL
        for (int nt = 0; nt < NT; nt++) {
            int row = nt * 8 + g < a.rows ? nt * 8 + g : a.rows - 1;
            x[nt] = (const uint16_t *)a.x + (size_t)row * (size_t)a.k + 8 * q +
                    (size_t)chunk * GEMM_CHUNK;
        }
        sum_codes<NT, FORM>(acc, &a, &rows, x, chunk, lane);
    });
}

/* ---- many rows ------------------------------------------------------------------------------- */

/* The weights of a stage: codes into registers before the mma of the stage that is there, values
 * into the stage after them.  Thread t has piece t % 8 of columns t / 8 + 32 i. */
template <int FORM>
struct code_tile {
    const char *panel; /* of i = 0; the others' are two further each */
    int row;           /* in the panel */
    uint32_t valid;    /* bit i: there is such a column */
    uint2 code[COPIES];
    uint32_t record[COPIES];

    CU_INLINE_METHOD void find(const gemm_args *a, int col0, int t)
    {
        int col = col0 + t / 8;
        panel = (const char *)a->w + (size_t)(col / GEMM_PANEL) * a->codes.panel_bytes;
        row = col % GEMM_PANEL;
        valid = rows_there(col, a->n);
    }

    CU_INLINE_METHOD void fetch(uint16_t *, const gemm_args *a, int k0, int t)
    {
        int k = k0 + t % 8 * 8, q = t % 4, at_step = k % GEMM_CODES_K / STEP;
        size_t at = (size_t)(k / GEMM_CODES_K) * block_bytes<FORM>() +
                    (size_t)(row / 8 * 512 + (row % 8 * 4 + q) * 16);
        at += of_8_bits<FORM>() ? at_step / 2 * 1024 + at_step % 2 * 8 : at_step * 4;
        size_t record_at =
            a->codes.records_at + (size_t)(k >> a->codes.shift) * (GEMM_PANEL * 4) + row * 4;
        CU_UNROLL
        for (int i = 0; i < COPIES; i++) {
            const char *from = panel + (size_t)(2 * i) * a->codes.panel_bytes;
            bool has = k < a->k && valid >> i & 1;
            code[i] = make_uint2(0, 0); /* such a code, with such a record, is 0 */
            record[i] = has ? cu_ldg4(from + record_at) : 0;
            if (has && of_8_bits<FORM>()) code[i] = cu_ldg8(from + at);
            if (has && !of_8_bits<FORM>()) code[i].x = cu_ldg4(from + at);
        }
    }

    CU_INLINE_METHOD void put(uint16_t *to, const gemm_args *, int, int t)
    {
        CU_UNROLL
        for (int i = 0; i < COPIES; i++) {
            code_scale s = scale_of<FORM>(record[i]);
            uint4 v;
            if constexpr (of_8_bits<FORM>())
                v = values_of<FORM>(code[i].x, code[i].y, &s);
            else
                v = values_of<FORM>(code[i].x, &s);
            cu_st16(to + swizzled(t / 8 + i * COPY_ROWS, t % 8), v);
        }
    }
};

template <int FORM>
static __global__ void __launch_bounds__(LARGE_THREADS, 1) gemm_codes_many_kernel(gemm_args a)
{
    multiply_tiles<true, code_tile<FORM>>(&a);
}

/* ---- slices ------------------------------------------------------------------------------------
 * For gemm_wide.cu: rows of w as plain BF16, whole steps of k.  A warp has a block of a panel. */

enum {
    PLAIN_WARPS = 8,
    SLICE_COLS = 208, /* of y, or of gate and of up: whole panels, and tiles of gemm_wide.cu */
};

/* Panels of w: `each` from the first on and, of gated ones, as many of up. */
typedef struct {
    int first, each, up;
} code_slice;

/* Grid (blocks of k, panels). */
template <int FORM>
static __global__ void __launch_bounds__(PLAIN_WARPS *CU_WARP)
    gemm_codes_plain_kernel(gemm_args a, code_slice s, uint16_t *out)
{
    int warp = (int)threadIdx.x / CU_WARP, lane = (int)threadIdx.x % CU_WARP;
    int block = (int)blockIdx.x * PLAIN_WARPS + warp, left = a.k - block * GEMM_CODES_K;
    int i_panel = (int)blockIdx.y, panel = s.first + i_panel;
    if (left <= 0) return; /* the whole warp */
    if (i_panel >= s.each) panel += s.up - s.each;
    code_rows rows = {(const char *)a.w + (size_t)panel * a.codes.panel_bytes, 0, 512, 32};
    code_block<FORM> b;
    b.load(&a, &rows, block, lane, true);
    uint16_t *lo = out + (size_t)(i_panel * GEMM_PANEL + lane / 4) * (size_t)a.k +
                   block * GEMM_CODES_K + lane % 4 * 8;
    uint16_t *hi = lo + (size_t)8 * (size_t)a.k;
    CU_UNROLL
    for (int i = 0; i < AT_ONCE; i++) {
        if (STEP * i >= left) break;
        int at = a.codes.shift < 7 ? i : 0;
        code_scale s_lo = scale_of<FORM>(b.record[0][at]), s_hi = scale_of<FORM>(b.record[1][at]);
        cu_st16(lo + STEP * i, b.values(0, i, &s_lo));
        cu_st16(hi + STEP * i, b.values(1, i, &s_hi));
    }
}

/* Columns of a slice: of what has room, the most of those that keep the device busy for the fewest
 * turns of all multiprocessors.  0: none has room. */
static int slice_columns(const gemm_args *a, size_t bytes)
{
    int halves = a->gated ? 2 : 1, n = a->n / halves, n_sm = a->n_sm > 0 ? a->n_sm : 1;
    size_t one = (size_t)(SLICE_COLS * halves) * (size_t)a->k * sizeof(uint16_t);
    int all = (n + SLICE_COLS - 1) / SLICE_COLS, best = 0, least = INT_MAX;
    int tiles = (a->rows + 127) / 128 * halves; /* of gemm_wide.cu, for SLICE_COLS of them */
    for (int most = bytes / one < (size_t)all ? (int)(bytes / one) : all; most > 0; most--) {
        int turns = all / most * ((most * tiles + n_sm - 1) / n_sm) +
                    (all % most * tiles + n_sm - 1) / n_sm;
        if (turns >= least) continue;
        least = turns;
        best = most * SLICE_COLS;
    }
    return best;
}

extern "C" bool gemm_slices_take(const gemm_args *a, size_t bytes)
{
    gemm_args plain = *a;
    plain.codes.form = GEMM_PLAIN;
    return a->codes.form && gemm_wide_takes(&plain) && (!a->gated || a->n / 2 % GEMM_PANEL == 0) &&
           slice_columns(a, bytes) > 0;
}

template <int FORM>
static void launch_slices(cudaStream_t stream, const gemm_args *a, void *slice, int most)
{
    int halves = a->gated ? 2 : 1, n = a->n / halves;
    int per_warp = PLAIN_WARPS * GEMM_CODES_K;
    for (int at = 0; at < n; at += most) {
        int cols = n - at < most ? n - at : most, each = (cols + GEMM_PANEL - 1) / GEMM_PANEL;
        code_slice s = {at / GEMM_PANEL, each, n / GEMM_PANEL};
        dim3 grid((unsigned)((a->k + per_warp - 1) / per_warp), (unsigned)(each * halves));
        CU_LAUNCH(gemm_codes_plain_kernel<FORM>, grid, dim3(PLAIN_WARPS * CU_WARP), 0, stream, *a,
                  s, (uint16_t *)slice);
        gemm_args part = *a;
        part.codes.form = GEMM_PLAIN;
        part.w = slice;
        part.n = cols * halves;
        if (a->gated) part.gated += at;
        if (!a->gated) part.y += at;
        if (a->bias) part.bias += at;
        if (a->res) part.res += at;
        cu_gemm_wide(stream, &part);
    }
}

/* ---- launches -------------------------------------------------------------------------------- */

template <int NT, int FORM>
static void launch_few(cudaStream_t stream, const gemm_args *a)
{
    int split = few_split(a);
    CU_LAUNCH_EARLY((gemm_codes_few_kernel<NT, FORM>), dim3(few_blocks(a, split)),
                    dim3(few_threads(split)), 0, stream, a->early, *a, split);
}

template <int FORM>
static void launch_form(cudaStream_t stream, const gemm_args *a)
{
    if (a->rows <= 8)
        launch_few<1, FORM>(stream, a);
    else if (a->rows <= 16)
        launch_few<2, FORM>(stream, a);
    else if (a->rows <= 32)
        launch_few<4, FORM>(stream, a);
    else if (a->rows <= GEMM_SMALL_ROWS)
        launch_few<8, FORM>(stream, a);
    else
        CU_LAUNCH(gemm_codes_many_kernel<FORM>, dim3(tiles_of(a)), dim3(LARGE_THREADS),
                  LARGE_SHARED, stream, *a);
}

#define FORMS(X) X(GEMM_E4M3) X(GEMM_E4M3_F32) X(GEMM_I8) X(GEMM_I8_F32) X(GEMM_I4) X(GEMM_I4_F16)

extern "C" cudaError_t cu_gemm_codes_setup(void)
{
    cudaError_t rc = cudaSuccess;
#define ALLOW(f) \
    if (rc == cudaSuccess) rc = CU_ALLOW_SHARED(gemm_codes_many_kernel<f>, LARGE_SHARED);
    FORMS(ALLOW)
    return rc;
}

extern "C" void cu_gemm_codes(cudaStream_t stream, const gemm_args *args)
{
#define LAUNCH(f) \
    if (args->codes.form == f) launch_form<f>(stream, args);
    FORMS(LAUNCH)
}

extern "C" cudaError_t cu_gemm_slices(cudaStream_t stream, const gemm_args *args, void *slice,
                                      size_t bytes)
{
    if (!gemm_slices_take(args, bytes)) return cudaErrorInvalidValue;
    int most = slice_columns(args, bytes);
#define SLICE(f) \
    if (args->codes.form == f) launch_slices<f>(stream, args, slice, most);
    FORMS(SLICE)
    return cudaGetLastError();
}
