/* ahead.c -- how deep into the queue adapters are fetched: the rule of ahead.h. */
#include "engine/sched/ahead.h"

#include <math.h>

static const double SMOOTH = 1.0 / 16;
static const double SPARE = 2; /* loads may take so much longer than usual */
static const double GAP_MAX_US =
    1e6; /* a longer one tells of too few requests, not of slow seats */

void ahead_seat(ahead *a, int64_t now_us)
{
    if (a->last_seat_us > 0) {
        double gap = fmin((double)(now_us - a->last_seat_us), GAP_MAX_US);
        a->seat_us += (gap - a->seat_us) * (a->seat_us > 0 ? SMOOTH : 1);
    }
    a->last_seat_us = now_us;
}

int64_t ahead_start_us(const ahead *a, int i)
{
    return (int64_t)(a->seat_us * i);
}

int ahead_depth(const ahead *a, double load_us, int room, int most)
{
    double depth = AHEAD_UNKNOWN;
    if (a->seat_us > 0 && load_us > 0) {
        /* i * seat < (i + 1) * load, loads taken as slow as they may be. */
        double load = load_us * SPARE;
        depth = a->seat_us <= load ? most : floor(load / (a->seat_us - load)) + 1;
        depth = fmax(depth, AHEAD_LEAST);
    }
    if (room > 0) depth = fmin(depth, room);
    return (int)fmin(depth, most);
}
