/* progress.c -- draws the line "[=====>    ]  45%  12 MiB of 27 MiB  5.1 MiB/s  3s". */
#include "tui/ctl/progress.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "engine/base/clock.h"
#include "tui/table.h"
#include "tui/text.h"

enum { BAR_MAX = 40, EVERY_US = 100000 };

void progress_begin(progress *p, const char *label, int64_t total, int64_t done, bool quiet)
{
    *p = (progress){.label = label, .total = total, .first = done};
    p->on = !quiet && isatty(STDERR_FILENO);
    p->started_us = clock_now_us();
}

void progress_set(progress *p, int64_t done)
{
    int64_t now = clock_now_us();
    if (!p->on || (now - p->shown_us < EVERY_US && done < p->total)) return;
    p->shown_us = now;
    p->drawn = true;
    char label[128], have[24], all[24], rate[24], left[24] = "", bar[BAR_MAX + 1], line[400];
    double part = p->total > 0 ? (double)done / (double)p->total : 1;
    double seconds = (double)(now - p->started_us) / 1e6;
    double speed = seconds > 0.2 ? (double)(done - p->first) / seconds : 0;
    int width = table_width_of(stderr), cells = width > 100 ? BAR_MAX : width > 70 ? 20 : 0;
    int filled = (int)(part * cells);
    (void)text_clean(p->label, label, sizeof(label), 26);
    text_bytes((double)done, have, sizeof(have));
    text_bytes((double)p->total, all, sizeof(all));
    text_bytes(speed, rate, sizeof(rate));
    if (speed > 0) text_span((int64_t)((double)(p->total - done) / speed), left, sizeof(left));
    memset(bar, ' ', sizeof(bar));
    memset(bar, '=', (size_t)filled);
    if (filled < cells) bar[filled] = '>';
    bar[cells] = 0;
    snprintf(line, sizeof(line), "%s %s%s%s%3.0f%%  %s of %s  %s/s  %s", label, cells ? "[" : "",
             bar, cells ? "] " : "", part * 100, have, all, rate, left);
    char fitted[1024];
    (void)text_clean(line, fitted, sizeof(fitted), width > 1 ? width - 1 : 0);
    fprintf(stderr, "\r%s\033[K", fitted);
    (void)fflush(stderr);
}

void progress_end(progress *p)
{
    if (p->drawn) fprintf(stderr, "\r\033[K");
    p->drawn = p->on = false;
}
