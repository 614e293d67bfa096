/* pace.c -- additive increase, multiplicative decrease, within the free seats. */
#include "gateway/batches/pace.h"

enum { SPARE_SHARE = 8 }; /* of the seats one eighth stays free, for who comes next */

static int least(int a, int b)
{
    return a < b ? a : b;
}

/* Seats that others neither have nor wait for, but for the spare ones. */
static int free_seats(const pace_view *v)
{
    int others = v->n_running + v->n_waiting - v->n_lines;
    int spare = v->max_seqs > 1 ? (v->max_seqs + SPARE_SHARE - 1) / SPARE_SHARE : 0;
    int seats = v->max_seqs - spare - (others > 0 ? others : 0);
    return seats > 0 ? seats : 0;
}

static bool is_harm(const pace_view *v)
{
    if (v->n_urgent == 0) return false;
    bool slow = v->tpot_us > 0 && v->step_us > v->tpot_us / 2;
    return v->late || v->n_waiting > 0 || slow;
}

int pace_next(int allowed, const pace_view *v)
{
    int most = least(v->most, free_seats(v));
    if (v->crowded || is_harm(v)) return least(allowed / 2, most);
    if (v->n_waiting > 0) return least(allowed, most);
    return least(allowed + 1, most);
}
