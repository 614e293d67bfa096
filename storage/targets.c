/* targets.c -- the list of a tenant's own targets: read, and one entry of it replaced. */
#include "storage/targets.h"

#include <assert.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char name_letters[] = "abcdefghijklmnopqrstuvwxyz0123456789_-";

bool targets_next(const char **list, target *out)
{
    const char *p = *list + strspn(*list, ",");
    size_t n = strspn(p, name_letters);
    char *end;
    if (n == 0 || n > CLASS_NAME_MAX || p[n] != ':') return false;
    *out = (target){.ttft_us = 1000 * strtoll(p + n + 1, &end, 10)};
    memcpy(out->class, p, n);
    if (*end != ':') return false;
    out->tpot_us = 1000 * strtoll(end + 1, &end, 10);
    *list = end;
    return true;
}

target targets_of(const tenant *t, const char *class, int64_t ttft_us, int64_t tpot_us)
{
    const char *list = t->targets;
    target each, own = {.ttft_us = ttft_us, .tpot_us = tpot_us};
    snprintf(own.class, sizeof(own.class), "%s", class);
    while (targets_next(&list, &each)) {
        if (strcmp(each.class, class) != 0) continue;
        if (each.ttft_us) own.ttft_us = each.ttft_us;
        if (each.tpot_us) own.tpot_us = each.tpot_us;
    }
    return own;
}

static size_t append(char *out, size_t cap, size_t n, const target *one)
{
    assert(n < cap);
    int wrote = snprintf(out + n, cap - n, "%s%s:%" PRId64 ":%" PRId64, n ? "," : "", one->class,
                         one->ttft_us / 1000, one->tpot_us / 1000);
    return n + (size_t)wrote;
}

bool targets_put(tenant *t, const target *one)
{
    char out[sizeof(t->targets)];
    const char *list = t->targets;
    size_t n = 0;
    target each;
    out[0] = 0;
    while (n < sizeof(out) && targets_next(&list, &each)) {
        if (strcmp(each.class, one->class) != 0) n = append(out, sizeof(out), n, &each);
    }
    if (n < sizeof(out) && (one->ttft_us || one->tpot_us)) n = append(out, sizeof(out), n, one);
    if (n >= sizeof(out)) return false;
    memcpy(t->targets, out, sizeof(out));
    return true;
}
