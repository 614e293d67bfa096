/* trace.c -- reads and writes traceparent: version 00, and the beginning of later ones. */
#include "gateway/http/trace.h"

#include <string.h>

#include "engine/base/hex.h"

/* Copies n lower-case hex digits, not all of them 0 unless `zero`. */
static bool take_hex(const char *s, size_t n, bool zero, char *out)
{
    if (strspn(s, HEX_DIGITS) < n) return false;
    memcpy(out, s, n);
    out[n] = 0;
    return zero || strspn(out, "0") < n;
}

bool trace_parse(const char *h, trace_context *out)
{
    char version[3];
    trace_context t;
    *out = (trace_context){0};
    if (strlen(h) < 55 || h[2] != '-' || h[35] != '-' || h[52] != '-') return false;
    if (!take_hex(h, 2, true, version) || strcmp(version, "ff") == 0) return false;
    if (!take_hex(h + 3, 32, false, t.trace_id) || !take_hex(h + 36, 16, false, t.parent_id) ||
        !take_hex(h + 53, 2, true, t.flags)) {
        return false;
    }
    /* Later versions may add fields, but only behind a dash. */
    if (h[55] && (strcmp(version, "00") == 0 || h[55] != '-')) return false;
    *out = t;
    return true;
}
