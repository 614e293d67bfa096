/* facts.c -- one list of the numbers, for both directions. */
#include "gateway/move/facts.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { FORMAT = 1, NUMBERS = 12 + COST_TERMS, WORD_MAX_BYTES = 15 };

static const double most = 1e15; /* of any number: microseconds, bytes, tokens */

static void to_numbers(const place_node *k, double v[NUMBERS])
{
    const double list[NUMBERS - COST_TERMS] = {
        k->cost.pace,     k->cost.spared, k->streams.decode, k->streams.attended,
        k->streams.ranks, k->prompt_us,   k->prompts,        k->n_prompts,
        k->free_seats,    k->free_tokens, k->setup_us,       k->byte_us};
    memcpy(v, list, sizeof(list));
    memcpy(v + NUMBERS - COST_TERMS, k->cost.theta, sizeof(k->cost.theta));
}

static void from_numbers(const double v[NUMBERS], place_node *k)
{
    k->cost.pace = v[0];
    k->cost.spared = v[1];
    k->streams = (cost_work){.decode = v[2], .attended = v[3], .ranks = v[4]};
    k->prompt_us = v[5];
    k->prompts = v[6];
    k->n_prompts = (int)v[7];
    k->free_seats = (int)v[8];
    k->free_tokens = v[9];
    k->setup_us = v[10];
    k->byte_us = v[11];
    memcpy(k->cost.theta, v + NUMBERS - COST_TERMS, sizeof(k->cost.theta));
}

void facts_write(const place_node *k, char out[NODE_FACTS_MAX + 1])
{
    double v[NUMBERS];
    to_numbers(k, v);
    int n = snprintf(out, NODE_FACTS_MAX + 1, "%d %s %llu", FORMAT, node_role_name(k->role),
                     (unsigned long long)k->cost.n);
    for (int i = 0; i < NUMBERS; i++)
        n += snprintf(out + n, (size_t)(NODE_FACTS_MAX + 1 - n), " %.6g", v[i]);
}

/* The pace is the log of a factor, and counts of free places may be negative when more waits. */
static bool is_in_range(int i, double v)
{
    if (!isfinite(v)) return false;
    if (i == 0) return fabs(v) <= 10;
    if (i == 1 || i == 6) return v >= 0 && v <= 1;
    if (i == 7 || i == 8) return fabs(v) <= 1e9;
    return v >= 0 && v <= most;
}

bool facts_read(const char *line, place_node *out)
{
    char role[WORD_MAX_BYTES + 1];
    int format, at;
    unsigned long long n;
    double v[NUMBERS];
    if (sscanf(line, "%d %15s %llu%n", &format, role, &n, &at) != 3 || format != FORMAT)
        return false;
    *out = (place_node){.role = node_role_of(role)};
    out->cost.n = n;
    for (int i = 0; i < NUMBERS; i++) {
        char *end;
        v[i] = strtod(line + at, &end);
        if (end == line + at || !is_in_range(i, v[i])) return false;
        at = (int)(end - line);
    }
    from_numbers(v, out);
    return out->role != ROLES && line[at] == '\0';
}
