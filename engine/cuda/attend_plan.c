/* attend_plan.c -- from a step to the work lists of attend.h.  Plain C on the host, once per step.
 *
 * Sequences of few packed rows (decode, short chunks) are cut into splits that run side by
 * side; longer chunks into blocks of rows that walk their splits alone.  Which way a row goes
 * changes none of its bits.
 */
#include "engine/cuda/attend_plan.h"

#include <assert.h>

enum { SMALL_TILES_MAX = 4 }; /* of CU_SMALL_ROWS packed rows: more is faster as one large item */

static int tiles_of(int packed, int rows)
{
    return (packed + rows - 1) / rows;
}

static bool is_small(const step_seq *sq, int group)
{
    return sq->n_rows == 1 || sq->n_rows * group <= SMALL_TILES_MAX * CU_SMALL_ROWS;
}

static int first_split(int pos, int window)
{
    return (window > 0 && pos >= window ? pos - window + 1 : 0) / CU_SPLIT_TOKENS;
}

void cu_attend_plan_limits(cu_attend_plan *plan, int max_seq, int max_rows, int max_page, int group,
                           int max_partial)
{
    assert(max_seq >= 0 && max_rows >= 0 && max_page >= 0 && group > 0);
    int each = tiles_of(group, CU_SMALL_ROWS);
    if (each < SMALL_TILES_MAX) each = SMALL_TILES_MAX;
    plan->max_seq = max_seq;
    plan->max_page = max_page;
    plan->max_partial = max_partial;
    plan->max_small = each * max_seq + max_partial;
    plan->max_large = tiles_of(max_rows * group, CU_LARGE_ROWS) + max_seq;
}

/* What a pass over the sequences has given away so far. */
typedef struct {
    cu_attend_plan *p;
    int group, window, n_partial;
} planner;

static bool add_small(planner *pl, cu_attend_item item)
{
    cu_attend_plan *p = pl->p;
    assert(item.split0 >= 0 && item.split0 < item.split1 && item.first >= 0);
    if (p->counts.n_small == p->max_small) return false;
    p->small[p->counts.n_small++] = item;
    return true;
}

/* Splits of one tile of a small sequence. */
static bool plan_tile(planner *pl, const step_seq *sq, int seq, int first)
{
    cu_attend_plan *p = pl->p;
    int packed = sq->n_rows * pl->group;
    int last = first + CU_SMALL_ROWS < packed ? first + CU_SMALL_ROWS - 1 : packed - 1;
    int split0 = first_split(sq->pos0 + first / pl->group, pl->window);
    int split1 = (sq->pos0 + last / pl->group) / CU_SPLIT_TOKENS + 1, n = split1 - split0;
    int units = cu_attend_units(packed - first, pl->group);
    if (n == 1 || n > (p->max_partial - pl->n_partial) / units) {
        return add_small(pl, (cu_attend_item){seq, first, split0, split1, -1, 0, 0});
    }
    for (int i = 0; i < n; i++, pl->n_partial += units) {
        int s = split0 + i;
        if (!add_small(pl, (cu_attend_item){seq, first, s, s + 1, pl->n_partial, i, n}))
            return false;
    }
    return true;
}

static bool plan_small(planner *pl, const step_seq *sq, int seq)
{
    for (int first = 0; first < sq->n_rows * pl->group; first += CU_SMALL_ROWS) {
        if (!plan_tile(pl, sq, seq, first)) return false;
    }
    return true;
}

/* The last rows have the most keys: first. */
static bool plan_large(planner *pl, const step_seq *sq, int seq)
{
    cu_attend_plan *p = pl->p;
    int packed = sq->n_rows * pl->group;
    for (int i = tiles_of(packed, CU_LARGE_ROWS) - 1; i >= 0; i--) {
        int first = i * CU_LARGE_ROWS;
        int last = first + CU_LARGE_ROWS < packed ? first + CU_LARGE_ROWS - 1 : packed - 1;
        if (p->counts.n_large == p->max_large) return false;
        p->large[p->counts.n_large++] =
            (cu_attend_item){seq,
                             first,
                             first_split(sq->pos0 + first / pl->group, pl->window),
                             (sq->pos0 + last / pl->group) / CU_SPLIT_TOKENS + 1,
                             -1,
                             0,
                             0};
    }
    return true;
}

/* Tiles of keys that an item looks at, about. */
static int weight_of(const cu_attend_plan *p, const cu_attend_item *it)
{
    const cu_attend_seq *sq = &p->seq[it->seq];
    int end = it->split1 * CU_SPLIT_TOKENS, len = sq->pos0 + sq->n_rows;
    return ((end < len ? end : len) - it->split0 * CU_SPLIT_TOKENS + CU_TILE_TOKENS - 1) /
           CU_TILE_TOKENS;
}

/* Moves small items from the `from`-th on with at least so many tiles before the others, in
 * place; returns how many come before those. */
static int heavy_first(cu_attend_plan *p, int from, int tiles)
{
    int i = from, j = p->counts.n_small - 1;
    for (;;) {
        while (i <= j && weight_of(p, &p->small[i]) >= tiles) i++;
        while (i < j && weight_of(p, &p->small[j]) < tiles) j--;
        if (i >= j) return i;
        cu_attend_item t = p->small[i];
        p->small[i] = p->small[j];
        p->small[j] = t;
    }
}

bool cu_attend_plan_fill(cu_attend_plan *plan, const step *s, int group, int window)
{
    assert(group > 0 && window >= 0);
    planner pl = {.p = plan, .group = group, .window = window};
    plan->counts = (cu_attend_counts){.n_seq = s->n_seq};
    plan->n_page = 0;
    if (s->n_seq > plan->max_seq) return false;
    for (int i = 0; i < s->n_seq; i++) {
        const step_seq *sq = &s->seq[i];
        int pages = (sq->pos0 + sq->n_rows + CU_PAGE_TOKENS - 1) / CU_PAGE_TOKENS;
        if (pages > plan->max_page - plan->n_page) return false;
        assert(sq->n_rows > 0 && sq->pos0 >= 0 && pages <= sq->n_page);
        plan->seq[i] = (cu_attend_seq){sq->row0, sq->n_rows, sq->pos0, plan->n_page};
        for (int k = 0; k < pages; k++) plan->page[plan->n_page++] = sq->page[k];
        if (!(is_small(sq, group) ? plan_small(&pl, sq, i) : plan_large(&pl, sq, i))) return false;
    }
    assert(pl.n_partial <= plan->max_partial && plan->n_page <= plan->max_page);
    /* Blocks take items in turn: those without room for partials, whole splits, the rest. */
    const int whole = CU_SPLIT_TOKENS / CU_TILE_TOKENS;
    (void)heavy_first(plan, heavy_first(plan, 0, whole + 1), whole);
    return true;
}

void cu_slots_fill(int32_t *slot, int n_slot, const step *s)
{
    for (int i = 0; i < s->n_seq; i++) {
        const step_seq *sq = &s->seq[i];
        for (int k = 0; k < sq->n_rows; k++) {
            int pos = sq->pos0 + k;
            slot[sq->row0 + k] =
                sq->page[pos / CU_PAGE_TOKENS] * CU_PAGE_TOKENS + pos % CU_PAGE_TOKENS;
        }
    }
    for (int i = s->n_rows; i < n_slot; i++) slot[i] = -1;
}
