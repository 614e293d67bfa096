/* near.c -- the nearest of some words. */
#include "tui/near.h"

#include <stddef.h>
#include <string.h>

enum { WORD_MAX = 31, FAR = 99 };

static int least(int a, int b)
{
    return a < b ? a : b;
}

/* Changes that make one of the other: letters added, taken, replaced, or two that change places. */
static int distance(const char *a, const char *b)
{
    int row[3][WORD_MAX + 1] = {{0}};
    size_t n = strlen(b), m = strlen(a);
    if (n > WORD_MAX || m > WORD_MAX) return FAR;
    for (size_t j = 0; j <= n; j++) row[0][j] = (int)j;
    for (size_t i = 1; i <= m; i++) {
        int *now = row[i % 3];
        const int *above = row[(i + 2) % 3], *before = row[(i + 1) % 3];
        now[0] = (int)i;
        for (size_t j = 1; j <= n; j++) {
            int d = above[j - 1] + (a[i - 1] != b[j - 1]);
            d = least(d, least(above[j], now[j - 1]) + 1);
            if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1])
                d = least(d, before[j - 2] + 1);
            now[j] = d;
        }
    }
    return row[m % 3][n];
}

near near_to(const char *typed)
{
    size_t n = strlen(typed);
    return (near){.typed = typed, .distance = n < 3 ? 0 : n < 6 ? 2 : 3};
}

void near_offer(near *n, const char *candidate)
{
    int d = distance(n->typed, candidate);
    if (d >= n->distance) return;
    n->distance = d;
    n->best = candidate;
}
