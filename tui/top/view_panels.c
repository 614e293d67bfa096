/* view_panels.c -- loratop's screens that are not tables: overview, engine, SLO and all servers.
 *
 * Each function draws into `cells`, a grid of characters with a style each; nothing here writes
 * to the terminal or changes the data. It is called again for every frame with the current size,
 * so a layout has no state: every function computes its columns from c->cols and leaves out what
 * does not fit (charts first, then columns).
 *
 * A line is a label of LABEL cells, a value of VALUE cells and a chart in what is left. Charts
 * use Braille characters with two samples in a cell; draw_axis() writes how long ago the left
 * end and the middle were, from the samples' own times, since intervals differ (--interval,
 * replays, gaps).
 *
 * Rates and shares come from topdata.c, which subtracts counters of two answers. Values of -1
 * mean "not known" and are drawn as "-".
 */
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "tui/text.h"
#include "tui/top/view.h"

enum { LABEL = 13, VALUE = 17 };

static style style_of_load(double share)
{
    return share > 0.95 ? STYLE_BAD : share > 0.8 ? STYLE_WARN : STYLE_GOOD;
}

/* "Label      value   ⣀⣤⣶" in [col, col + w). */
static void line(cells *c, int row, int col, int w, const char *label, style s, const char *value,
                 const history *h, double most)
{
    if (row >= c->rows - 2 || w < LABEL + 4) return;
    (void)cells_text(c, row, col, LABEL, STYLE_DIM, label);
    (void)cells_text(c, row, col + LABEL, w - LABEL < VALUE ? w - LABEL : VALUE, s, value);
    int room = w - LABEL - VALUE - 1, n;
    if (!h || room < 4) return;
    const double *v = history_last(h, room * 2, &n);
    if (most <= 0) most = fmax(history_max(h, room * 2), 1e-9);
    cells_graph(c, row, col + LABEL + VALUE, 1, room, s, v, n, most);
}

static void rate_line(cells *c, int row, int col, int w, const char *label, style s, double now,
                      const history *h)
{
    char text[32];
    text_count(now, text, sizeof(text));
    line(c, row, col, w, label, now > 0 ? s : STYLE_DIM, text, h, 0);
}

static void bar_line(cells *c, int row, int col, int w, const char *label, double share,
                     double more, const char *text)
{
    if (row >= c->rows - 2) return;
    int t = (int)strlen(text) + 1;
    (void)cells_text(c, row, col, LABEL, STYLE_DIM, label);
    cells_bar(c, row, col + LABEL, w - LABEL - t - 1, share, style_of_load(share), more,
              STYLE_ACCENT);
    cells_right(c, row, col + w - t - 1, t, STYLE_NORMAL, text);
}

static double share_of(int64_t a, int64_t b)
{
    return b > 0 ? (double)a / (double)b : 0;
}

static void memory_bars(const topdata *d, cells *c, int row, int col, int w)
{
    const proto_engine *g = &d->engine;
    char text[96], used[16], all[16];
    double kv = share_of(g->pages_used, g->pages), cached = share_of(g->pages_cached, g->pages);
    text_bytes(kv * (double)g->kv_bytes, used, sizeof(used));
    text_bytes((double)g->kv_bytes, all, sizeof(all));
    snprintf(text, sizeof(text), "%3.0f%% %s/%s", kv * 100, used, all);
    bar_line(c, row, col, w, "KV pages", kv, cached, text);
    text_bytes((double)g->adapter_bytes, used, sizeof(used));
    text_bytes((double)g->adapter_budget_bytes, all, sizeof(all));
    double share = share_of(g->adapter_bytes, g->adapter_budget_bytes);
    snprintf(text, sizeof(text), "%3.0f%% %s/%s", share * 100, used, all);
    bar_line(c, row + 1, col, w, "Adapters", share, 0, text);
}

/* ------------------------------------------------------------------------- time -- */

/* Below a chart of two samples a column: how long ago its left end and its middle were. */
static void draw_axis(const topdata *d, cells *c, int row, int col, int w, style s)
{
    int n;
    const double *at = history_last(&d->at_s, 2 * w, &n);
    if (n < 2 || w < 16 || row >= c->rows - 2) return;
    for (int part = 2; part >= 1; part--) {
        char ago[24], text[32];
        int back = w * part; /* samples; of the half, those of half the columns */
        if (back > n) continue;
        text_span((int64_t)(at[n - 1] - at[n - back] + 0.5), ago, sizeof(ago));
        snprintf(text, sizeof(text), "-%s", ago);
        (void)cells_text(c, row, col + w - back / 2, w / 2 - 1, s, text);
    }
    if (n < w) { /* it has just begun */
        char ago[24], text[32];
        text_span((int64_t)(at[n - 1] - at[0] + 0.5), ago, sizeof(ago));
        snprintf(text, sizeof(text), "-%s", ago);
        int x = w - (n + 1) / 2, most = w - 4 - (int)strlen(text);
        (void)cells_text(c, row, col + (x < most ? x : most), 8, s, text);
    }
    cells_right(c, row, col + w - 3, 3, s, "now");
}

/* ---------------------------------------------------------------------- classes -- */

static style style_of_target(double ms, double target)
{
    return ms < 0 || target <= 0 ? STYLE_NORMAL : ms <= target ? STYLE_GOOD : STYLE_BAD;
}

static int put_ms(cells *c, int row, int x, int w, double ms, double target)
{
    char text[16];
    text_ms(ms, text, sizeof(text));
    cells_right(c, row, x, w, style_of_target(ms, target), text);
    return x + w + 1;
}

static int put_count(cells *c, int row, int x, int w, double n, style s)
{
    char text[16];
    text_count(n, text, sizeof(text));
    cells_right(c, row, x, w, n > 0 ? s : STYLE_DIM, text);
    return x + w + 1;
}

enum { CLASS_NAME = 11, CLASS_FIGURES = 75, CLASS_TIGHT = 64 };

/* Cells for the names of classes: as many as the longest has, as far as the figures leave room;
 * where there is none the figures stand one cell closer. */
static int class_cells(const topdata *d, const cells *c, bool *tight)
{
    int longest = CLASS_NAME;
    for (int i = 0; i < d->n_class; i++) {
        int n = text_width(d->classes[i].name);
        if (n > longest) longest = n;
    }
    *tight = c->cols < CLASS_NAME + CLASS_FIGURES;
    int room = c->cols - (*tight ? CLASS_TIGHT : CLASS_FIGURES);
    if (longest > room) longest = room;
    return longest > CLASS_NAME ? longest : CLASS_NAME;
}

static int draw_classes(const view *v, cells *c, int row, int rows)
{
    const topdata *d = &v->server[v->current].data;
    bool tight;
    int wide = class_cells(d, c, &tight), graph = wide + CLASS_FIGURES + 2, less = tight;
    cells_fill(c, row, 0, -1, STYLE_HEAD, ' ');
    (void)cells_printf(c, row, 0, -1, STYLE_HEAD, "%-*s%s", wide, "CLASS",
                       tight ? "  RUN WAIT TTFT50 TTFT99 TARGET TPOT50 TPOT99 TARGET SLO% GOOD/S"
                             : "   RUN  WAIT  TTFT50  TTFT99  TARGET  TPOT50  TPOT99  TARGET"
                               "  SLO%  GOOD/S");
    bool drawn = c->cols > graph + 28;
    if (drawn) draw_axis(d, c, row, graph, c->cols - graph - 2, STYLE_HEAD);
    if (drawn) (void)cells_text(c, row, graph, 7, STYLE_HEAD, "TTFT99");
    int n = d->n_class < rows - 1 ? d->n_class : rows - 1;
    for (int i = 0; i < n; i++) {
        const proto_class *k = &d->classes[i];
        int y = row + 1 + i, x = wide + 1, samples;
        char text[32];
        (void)cells_text(c, y, 0, wide, k->is_default ? STYLE_ACCENT : STYLE_NORMAL, k->name);
        x = put_count(c, y, x, 5 - less, (double)k->running, STYLE_GOOD);
        x = put_count(c, y, x, 5 - less, (double)k->waiting, STYLE_WARN);
        x = put_ms(c, y, x, 7 - less, k->ttft_p50_ms, k->ttft_target_ms);
        x = put_ms(c, y, x, 7 - less, k->ttft_p99_ms, k->ttft_target_ms);
        x = put_ms(c, y, x, 7 - less, k->ttft_target_ms, 0);
        x = put_ms(c, y, x, 7 - less, k->tpot_p50_ms, k->tpot_target_ms);
        x = put_ms(c, y, x, 7 - less, k->tpot_p99_ms, k->tpot_target_ms);
        x = put_ms(c, y, x, 7 - less, k->tpot_target_ms, 0);
        if (k->attained < 0)
            snprintf(text, sizeof(text), "-");
        else
            snprintf(text, sizeof(text), k->attained >= 0.9995 ? "%.0f" : "%.1f",
                     k->attained * 100);
        style s = k->attained < 0 ? STYLE_DIM : k->attained >= 0.99 ? STYLE_GOOD : STYLE_BAD;
        cells_right(c, y, x, 5 - less, s, text);
        (void)put_count(c, y, x + 6 - less, 7 - less, k->goodput, STYLE_GOOD);
        if (!drawn) continue;
        int w = c->cols - graph - 2;
        const double *at = history_last(&d->class_ttft[i], w * 2, &samples);
        double most = fmax(history_max(&d->class_ttft[i], w * 2), k->ttft_target_ms);
        cells_graph(c, y, graph, 1, w, s, at, samples, most);
    }
    if (v->class_at < (size_t)n) /* Enter goes down from it */
        cells_paint(c, row + 1 + (int)v->class_at, 0, wide, STYLE_SELECT);
    return row + 1 + n;
}

/* --------------------------------------------------------------------- overview -- */

/* Where it is too long for a line, its times stand on a second one. */
static int draw_verdict(cells *c, int y, int end, const proto_class *k)
{
    const char *times = strstr(k->verdict, "; ");
    size_t all = strlen(k->verdict);
    bool two = times && y + 1 < end && strlen(k->name) + 8 + all > (size_t)c->cols;
    int words = two ? (int)(times - k->verdict) : (int)all;
    (void)cells_printf(c, y, 0, -1, STYLE_BAD, "%s broken %.*s", k->name, words, k->verdict);
    if (two) (void)cells_text(c, y + 1, 4, -1, STYLE_BAD, times + 2);
    return y + (two ? 2 : 1);
}

void view_draw_overview(view *v, cells *c, int top, int rows)
{
    const topdata *d = view_data(v);
    const proto_engine *g = &d->engine;
    char text[96];
    if (!d->any) return;
    int half = c->cols / 2, w = half - 1, y = top;
    rate_line(c, y, 0, w, "Tokens in/s", STYLE_ACCENT, d->now.prompt_tokens, &d->series[SERIES_IN]);
    rate_line(c, y++, half, w, "Tokens out/s", STYLE_GOOD, d->now.output_tokens,
              &d->series[SERIES_OUT]);
    snprintf(text, sizeof(text), "%lld of %lld", (long long)g->running,
             (long long)d->server.max_seqs);
    line(c, y, 0, w, "Running", STYLE_GOOD, text, &d->series[SERIES_RUNNING],
         (double)d->server.max_seqs);
    rate_line(c, y++, half, w, "Waiting", STYLE_WARN, (double)g->waiting,
              &d->series[SERIES_WAITING]);
    rate_line(c, y, 0, w, "Requests/s", STYLE_NORMAL, d->now.requests, &d->series[SERIES_REQUESTS]);
    rate_line(c, y++, half, w, "429/s", STYLE_WARN, d->now.rate_limited,
              &d->series[SERIES_LIMITED]);
    rate_line(c, y, 0, w, "Loads/s", STYLE_ACCENT, d->now.loads, &d->series[SERIES_LOADS]);
    rate_line(c, y++, half, w, "Errors/s", STYLE_BAD, d->now.errors, &d->series[SERIES_ERRORS]);
    snprintf(text, sizeof(text), "%.0f%%", d->now.busy * 100);
    line(c, y, 0, w, "Engine busy", STYLE_GOOD, text, &d->series[SERIES_BUSY], 1);
    snprintf(text, sizeof(text), "%lld/%lld, %lld seqs", (long long)g->adapters_resident,
             (long long)g->adapters_registered, (long long)g->adapters_in_use);
    line(c, y++, half, w, "In memory", STYLE_NORMAL, text, &d->series[SERIES_ADAPTERS], 1);
    draw_axis(d, c, y, LABEL + VALUE, w - LABEL - VALUE - 1, STYLE_DIM);
    draw_axis(d, c, y++, half + LABEL + VALUE, w - LABEL - VALUE - 1, STYLE_DIM);
    memory_bars(d, c, y, 0, c->cols);
    y = draw_classes(v, c, y + 3, top + rows - (y + 3)) + 1;
    for (int i = 0; i < d->n_class && y < top + rows; i++) {
        const proto_class *k = &d->classes[i];
        if (k->verdict[0]) y = draw_verdict(c, y, top + rows, k);
    }
    /* Who uses what: as many rows as are left. */
    int left = top + rows - y;
    if (left >= 3) view_draw_table(v, c, TABLE_TENANTS, y, left);
}

/* ----------------------------------------------------------------------- engine -- */

/* One part of a bar that is whole. */
typedef struct part {
    const char *name;
    double n;
    style s;
    char mark;
} part;

/* Each part has a cell at least where it is not nothing; the last takes what is left. */
static void draw_parts(cells *c, int row, const char *label, const part *p, int n_part)
{
    double all = 0;
    for (int i = 0; i < n_part; i++) all += p[i].n;
    (void)cells_text(c, row, 0, LABEL, STYLE_DIM, label);
    int x = LABEL, end = c->cols - 1;
    for (int i = 0; i < n_part && all > 0; i++) {
        int n = (int)lround(p[i].n / all * (end - LABEL));
        if (n == 0 && p[i].n > 0) n = 1;
        if (i == n_part - 1 || n > end - x) n = end - x;
        if (n < 0) n = 0;
        cells_fill(c, row, x, n, p[i].s, (uint32_t)p[i].mark);
        x += n;
    }
}

/* Where the time of an iteration went, over the last interval. */
static void draw_split(const topdata *d, cells *c, int row)
{
    static const proto_totals none;
    const proto_totals *a = &d->before, *b = &d->totals;
    if (a->steps == b->steps) a = &none; /* nothing ran: since the start */
    const part p[] = {{"plan", (double)(b->plan_us - a->plan_us), STYLE_WARN, 'p'},
                      {"forward", (double)(b->forward_us - a->forward_us), STYLE_GOOD, 'F'},
                      {"sample", (double)(b->sample_us - a->sample_us), STYLE_ACCENT, 's'},
                      {"settle", (double)(b->settle_us - a->settle_us), STYLE_BAD, 'h'}};
    double all = 0;
    for (int i = 0; i < 4; i++) all += p[i].n;
    draw_parts(c, row, "Step time", p, 4);
    int x = LABEL;
    for (int i = 0; i < 4; i++) {
        x += cells_printf(c, row + 1, x, c->cols - x, p[i].s, "%c %s %.1f%%  ", p[i].mark,
                          p[i].name, all > 0 ? 100 * p[i].n / all : 0);
    }
    double steps = (double)(b->steps - a->steps);
    if (steps > 0) {
        (void)cells_printf(c, row + 1, x, c->cols - x, STYLE_NORMAL, "%.2f ms a step",
                           all / steps / 1e3);
    }
}

/* What the arena that KV pages and adapters share is full of. */
static void draw_arena(const topdata *d, cells *c, int row)
{
    const proto_engine *g = &d->engine;
    double bytes = (double)g->kv_bytes;
    double held = share_of(g->pages_used, g->pages) * bytes;
    double cached = share_of(g->pages_cached, g->pages) * bytes;
    double adapters = (double)g->adapter_bytes;
    const part p[] = {{"pages", held, STYLE_GOOD, 'K'},
                      {"cached", cached, STYLE_ACCENT, 'c'},
                      {"adapters", adapters, STYLE_WARN, 'A'},
                      {"free", fmax(bytes - held - cached - adapters, 0), STYLE_DIM, '.'}};
    draw_parts(c, row, "Arena", p, 4);
    int x = LABEL;
    for (int i = 0; i < 4; i++) {
        char size[16];
        text_bytes(p[i].n, size, sizeof(size));
        x += cells_printf(c, row + 1, x, c->cols - x, p[i].s, "%c %s %s  ", p[i].mark, p[i].name,
                          size);
    }
}

/* Rows of steps over time; returns the next free line. */
static int draw_step_rows(const topdata *d, cells *c, int y, int h)
{
    static const struct {
        const char *label;
        series s;
        style st;
    } graphs[] = {{"Prompt rows", SERIES_PREFILL, STYLE_ACCENT},
                  {"Decode rows", SERIES_DECODE, STYLE_GOOD}};
    int n, w = c->cols - LABEL - 8;
    char text[96];
    double most = fmax(history_max(&d->series[SERIES_PREFILL], 2 * w),
                       history_max(&d->series[SERIES_DECODE], 2 * w));
    for (int i = 0; i < 2; i++, y += h) {
        (void)cells_text(c, y, 0, LABEL, STYLE_DIM, graphs[i].label);
        const double *s = history_last(&d->series[graphs[i].s], 2 * w, &n);
        cells_graph(c, y, LABEL + 8, h, w, graphs[i].st, s, n, fmax(most, 1));
        text_count(n ? s[n - 1] : 0, text, sizeof(text));
        cells_right(c, y, LABEL, 6, STYLE_NORMAL, text);
    }
    draw_axis(d, c, y, LABEL + 8, w, STYLE_DIM);
    return y + 1;
}

/* The last step, where its time goes, how well it is foretold. */
static int draw_steps(const topdata *d, cells *c, int y)
{
    const proto_engine *g = &d->engine;
    char text[96];
    (void)cells_printf(
        c, y++, 0, -1, STYLE_NORMAL,
        "Last step    %lld rows: %lld prompt, %lld sequences, %lld adapters, %.2f ms",
        (long long)g->last_rows, (long long)g->last_prefill, (long long)g->last_seqs,
        (long long)g->last_adapters, (double)g->last_step_us / 1e3);
    draw_split(d, c, y);
    y += 2;
    snprintf(text, sizeof(text), "%.1f%% off", g->cost_error * 100);
    line(c, y++, 0, c->cols, "Cost model", g->cost_error > 0.5 ? STYLE_WARN : STYLE_GOOD, text,
         &d->series[SERIES_COST_ERROR], 1);
    snprintf(text, sizeof(text), "%.0f%%", d->now.busy * 100);
    line(c, y++, 0, c->cols, "Busy", STYLE_GOOD, text, &d->series[SERIES_BUSY], 1);
    return y;
}

/* What the device's memory holds, and what the prefix cache and the adapters' loads are worth. */
static int draw_memory(const topdata *d, cells *c, int y)
{
    const proto_engine *g = &d->engine;
    const proto_totals *t = &d->totals;
    char text[96], size[16];
    draw_arena(d, c, y);
    y += 2;
    (void)cells_printf(c, y++, LABEL, -1, STYLE_DIM,
                       "%lld pages: %lld held, %lld cached prefixes, %lld free",
                       (long long)g->pages, (long long)g->pages_used, (long long)g->pages_cached,
                       (long long)(g->pages - g->pages_used - g->pages_cached));
    double asked = (double)(t->prompt_tokens);
    (void)cells_printf(c, y++, 0, -1, STYLE_NORMAL,
                       "Prefix cache %.1f%% of %.0f prompt tokens were there already",
                       asked > 0 ? 100 * (double)t->cached_tokens / asked : 0, asked);
    double hits = (double)t->adapter_hits, takes = hits + (double)t->adapter_misses;
    snprintf(text, sizeof(text), "%.1f%% hits", takes > 0 ? 100 * hits / takes : 0);
    line(c, y++, 0, c->cols, "Adapters", STYLE_NORMAL, text, &d->series[SERIES_HITS], 1);
    text_bytes((double)t->adapter_loaded_bytes, size, sizeof(size));
    (void)cells_printf(
        c, y++, LABEL, -1, STYLE_DIM,
        "%lld loads of %s, mean %.1f ms, longest %.1f ms; %lld evicted, %lld failed; %lld loading",
        (long long)t->adapter_loads, size,
        t->adapter_loads ? (double)t->adapter_load_us / 1e3 / (double)t->adapter_loads : 0,
        (double)g->load_us_max / 1e3, (long long)t->adapter_evictions,
        (long long)t->adapter_failures, (long long)g->adapters_loading);
    return y;
}

static void draw_process(const topdata *d, cells *c, int y)
{
    const proto_totals *t = &d->totals;
    char size[16];
    text_bytes((double)d->server.rss_bytes, size, sizeof(size));
    (void)cells_printf(c, y, 0, -1, STYLE_NORMAL,
                       "Process      %s, %.0f s of CPU; %lld preempted, %lld cancelled, %lld "
                       "failed, %lld restarts",
                       size, (double)d->server.cpu_us / 1e6, (long long)t->preempted,
                       (long long)t->cancelled, (long long)t->failed,
                       (long long)t->engine_restarts);
}

void view_draw_engine(view *v, cells *c, int top, int rows)
{
    const topdata *d = view_data(v);
    if (!d->any) return;
    int h = rows > 24 ? (rows - 17) / 2 : rows > 18 ? 2 : 1;
    int y = draw_step_rows(d, c, top, h);
    y = draw_steps(d, c, y);
    y = draw_memory(d, c, y);
    if (y < top + rows) draw_process(d, c, y++);
    if (y < top + rows) (void)cells_text(c, y, 0, -1, STYLE_DIM, d->server.backend);
}

/* -------------------------------------------------------------------------- SLO -- */

static void draw_histogram(const topdata *d, cells *c, int row, int col, int h, int class,
                           int which)
{
    double v[2 * PROTO_HIST_MAX], most = 1;
    const proto_class *k = &d->classes[class];
    double target_us = 1e3 * (which ? k->tpot_target_ms : k->ttft_target_ms);
    int n = d->n_bound + 1, mark = -1, per = cells_per(c);
    if (n > PROTO_HIST_MAX) n = PROTO_HIST_MAX;
    for (int i = 0; i < n; i++) {
        double count = (double)d->hist[class][which][i];
        most = fmax(most, count);
        for (int p = 0; p < per; p++) v[i * per + p] = count;
        if (mark < 0 && i < d->n_bound && (double)d->bound_us[i] >= target_us) mark = i;
    }
    (void)cells_text(c, row, col, 4, STYLE_DIM, which ? "TPOT" : "TTFT");
    cells_graph(c, row, col + 5, h, n, which ? STYLE_ACCENT : STYLE_GOOD, v, n * per, most);
    cells_fill(c, row + h, col + 5, n, STYLE_DIM, '-');
    if (mark < 0 || target_us <= 0) return;
    cells_fill(c, row + h, col + 5 + mark, 1, STYLE_WARN, '^');
    for (int y = row; y < row + h; y++) /* too late */
        cells_paint(c, y, col + 6 + mark, n - mark - 1, STYLE_BAD);
}

/* "missed by queue 12, machine 1", with the words of the fields. */
static void draw_missed(cells *c, int row, const proto_class *k)
{
    char text[PROTO_TEXT_CAP] = "";
    for (const proto_field *f = proto_class_fields; f->name; f++) {
        if (strncmp(f->name, "missed_", 7) != 0) continue;
        int64_t n = *(const int64_t *)(const void *)((const char *)k + f->offset);
        size_t at = strlen(text);
        if (n > 0)
            snprintf(text + at, sizeof(text) - at, "%s%s %lld", at ? ", " : "missed by ",
                     f->name + 7, (long long)n);
    }
    (void)cells_text(c, row, 5, -1, STYLE_WARN, text);
}

/* The end of the last span that is over. */
static int64_t past_end_s(const topdata *d)
{
    return d->server.now_us / 1000000 / PAST_S * PAST_S;
}

/* A class's figures in `w` columns of a span or two each, up to now; columns that are beyond the
 * target are red.  which: 0 first tokens, 1 further ones. */
static void draw_past(const topdata *d, cells *c, int row, int h, const proto_class *k, int which)
{
    enum { MOST = 2 * PAST_SPANS };
    double v[MOST], target = which ? k->tpot_target_ms : k->ttft_target_ms, most = target;
    int col = 16, w = c->cols - col - 1, per = cells_per(c);
    if (w > PAST_SPANS / per) w = PAST_SPANS / per;
    if (w < 8) return;
    int n = w * per;
    int64_t end_s = past_end_s(d);
    bool late[PAST_SPANS] = {false};
    for (int i = 0; i < n; i++) {
        const past_span *s = topdata_past(d, k->name, end_s - (int64_t)(n - i) * PAST_S);
        double ms = s ? which ? s->tpot_ms : s->ttft_ms : -1;
        v[i] = fmax(ms, 0);
        most = fmax(most, ms);
        late[i / per] |= target > 0 && ms > target;
    }
    char text[16];
    text_ms(most, text, sizeof(text));
    (void)cells_printf(c, row, 0, 7, STYLE_DIM, which ? "TPOT99" : "TTFT99");
    cells_right(c, row, 7, 8, STYLE_DIM, text);
    cells_graph(c, row, col, h, w, which ? STYLE_ACCENT : STYLE_GOOD, v, n, fmax(most, 1e-3));
    for (int x = 0; x < w; x++) {
        for (int y = row; late[x] && y < row + h; y++) cells_paint(c, y, col + x, 1, STYLE_BAD);
    }
}

/* Below such charts: local times. */
static void draw_past_axis(const topdata *d, cells *c, int row)
{
    int col = 16, w = c->cols - col - 1, per = cells_per(c);
    if (w > PAST_SPANS / per) w = PAST_SPANS / per;
    if (row >= c->rows - 2 || w < 30) return;
    for (int mark = 0; mark < 3; mark++) {
        int x = mark * (w - 8) / 2;
        time_t at = (time_t)(past_end_s(d) - (int64_t)(w - x) * per * PAST_S);
        char text[16];
        struct tm tm;
        if (!gmtime_r(&at, &tm) || !strftime(text, sizeof(text), "%H:%M:%S", &tm)) return;
        (void)cells_text(c, row, col + x, 8, STYLE_DIM, text);
    }
    (void)cells_text(c, row, 0, col - 1, STYLE_DIM, "10 s a point");
}

static void draw_counts(cells *c, int y, const proto_class *k)
{
    (void)cells_printf(
        c, y, 0, -1, STYLE_NORMAL,
        "%s: %lld done, %lld met both targets, %lld missed, %lld failed, %lld limited, "
        "%lld refused (%s)",
        k->name, (long long)k->ended, (long long)k->met, (long long)k->missed, (long long)k->failed,
        (long long)k->limited, (long long)k->refused, k->on_overload);
}

/* The two histograms of each class; `h` lines high. */
static int draw_slow(const topdata *d, cells *c, int y, int h, int i)
{
    draw_histogram(d, c, y, 0, h, i, 0);
    if (c->cols >= 90) draw_histogram(d, c, y, 45, h, i, 1);
    return y + h + 2;
}

/* What has become of each, why not, and how slow: over time, or how often. */
void view_draw_slo(view *v, cells *c, int top, int rows)
{
    const topdata *d = view_data(v);
    if (!d->any) return;
    int y = draw_classes(v, c, top, rows) + 1;
    int n = d->n_class ? d->n_class : 1, end = top + rows, each = (end - y) / n;
    int h = v->histograms ? each - 4 : (each - 3) / 2;
    if (h > 8) h = 8;
    for (int i = 0; i < d->n_class && y + 1 < end; i++) {
        const proto_class *k = &d->classes[i];
        draw_counts(c, y, k);
        if (each >= 2 && k->verdict[0])
            (void)cells_printf(c, ++y, 5, -1, STYLE_BAD, "broken %s", k->verdict);
        else if (each >= 2 && k->missed > 0)
            draw_missed(c, ++y, k);
        y++;
        if (h >= 1 && v->histograms) {
            y = draw_slow(d, c, y, h, i);
        } else if (h >= 1) {
            draw_past(d, c, y, h, k, 0);
            draw_past(d, c, y + h, h, k, 1);
            y += 2 * h + 1;
        }
    }
    if (h >= 1 && v->histograms && y - 1 < end) {
        (void)cells_text(c, y - 1, 5, -1, STYLE_DIM,
                         "10us 100u 1ms  10ms 100m 1s   10s  100s   ^ target");
    } else if (h >= 1) {
        draw_past_axis(d, c, y - 1);
    }
}

/* ---------------------------------------------------------------------- servers -- */

/* What a line of servers says: of one, or added up over those that answer. */
typedef struct {
    double in, out, limited;
    int64_t running, waiting, pages_used, pages, resident, met, judged;
} server_sums;

static void add_server(server_sums *t, const topdata *d)
{
    t->in += d->now.prompt_tokens;
    t->out += d->now.output_tokens;
    t->limited += d->now.rate_limited;
    t->running += d->engine.running;
    t->waiting += d->engine.waiting;
    t->pages_used += d->engine.pages_used;
    t->pages += d->engine.pages;
    t->resident += d->engine.adapters_resident;
    for (int k = 0; k < d->n_class; k++) {
        t->met += d->classes[k].met;
        t->judged += d->classes[k].met + d->classes[k].missed;
    }
}

/* From the column of the rates on; returns the one of the age. */
static int draw_sums(cells *c, int y, const server_sums *t)
{
    char text[32] = "-";
    int x = put_count(c, y, 26, 6, t->in, STYLE_ACCENT);
    x = put_count(c, y, x, 7, t->out, STYLE_GOOD);
    x = put_count(c, y, x, 5, (double)t->running, STYLE_GOOD);
    x = put_count(c, y, x, 5, (double)t->waiting, STYLE_WARN);
    x = put_count(c, y, x, 5, 100 * share_of(t->pages_used, t->pages), STYLE_NORMAL);
    x = put_count(c, y, x, 6, (double)t->resident, STYLE_NORMAL);
    if (t->judged) snprintf(text, sizeof(text), "%.1f", 100 * share_of(t->met, t->judged));
    cells_right(c, y, x, 5, STYLE_NORMAL, text);
    return put_count(c, y, x + 6, 6, t->limited, STYLE_WARN);
}

static void draw_server(const view *v, cells *c, int y, const view_server *s)
{
    const proto_server *p = &s->data.server;
    server_sums own = {0};
    char age[32];
    style st;
    const char *state = view_server_state(s, &st);
    (void)cells_text(c, y, 0, 17, STYLE_NORMAL, s->name);
    (void)cells_text(c, y, 18, 9, st, state);
    if (!s->data.any) {
        (void)cells_text(c, y, 28, -1, STYLE_DIM, s->error);
        return;
    }
    add_server(&own, &s->data);
    int x = draw_sums(c, y, &own);
    text_span((v->now_us - s->answered_us) / 1000000, age, sizeof(age));
    x += 1 + cells_text(c, y, x, 8, s->up ? STYLE_DIM : STYLE_BAD, age);
    if (!s->up) cells_paint(c, y, 26, -1, STYLE_DIM);
    if (!s->up)
        (void)cells_text(c, y, x, -1, STYLE_BAD, s->error);
    else if (p->fleet && p->fleet_behind > 0)
        (void)cells_printf(c, y, x, -1, STYLE_WARN, "%lld behind", (long long)p->fleet_behind);
    else if (p->fleet && strcmp(p->fleet_role, "both") != 0)
        (void)cells_text(c, y, x, -1, STYLE_DIM, p->fleet_role);
}

/* Servers that are away stand in no sum: what they said last is no longer so. */
void view_draw_servers(view *v, cells *c, int top, int rows)
{
    server_sums all = {0};
    int up = 0, y = top + 1;
    cells_fill(c, top, 0, -1, STYLE_HEAD, ' ');
    (void)cells_text(
        c, top, 0, -1, STYLE_HEAD,
        "SERVER            STATE     IN/S   OUT/S   RUN  WAIT   KV%  ADAPT  SLO%  429/S  AGE");
    for (int i = 0; i < v->n_servers; i++) {
        const view_server *s = &v->server[i];
        if (s->up && s->data.any) {
            add_server(&all, &s->data);
            up++;
        }
        if (i + 2 >= rows) continue; /* the last line is the sums' */
        draw_server(v, c, y, s);
        if ((size_t)i == v->server_at) cells_paint(c, y, 0, -1, STYLE_SELECT);
        y++;
    }
    if (rows < 3) return;
    (void)cells_printf(c, y, 0, 26, STYLE_ACCENT, "all: %d of %d answer", up, v->n_servers);
    (void)draw_sums(c, y, &all);
}

/* ------------------------------------------------------------------------- sums -- */

/* The adapters that are loaded most often, of those that are loaded more than once a minute. */
static void draw_thrash(view *v, cells *c, int row)
{
    const topdata *d = view_data(v);
    const rowset *r = view_rows(v, TABLE_ADAPTERS);
    const size_t none = r->n;
    size_t most = none;
    int64_t late = 0;
    for (size_t i = 0; i < r->n; i++) {
        late += ((const proto_adapter *)rowset_row(r, i))->missed_adapter_load;
        if (r->side[i].events[0] > 1.5 &&
            (most == none || r->side[i].events[0] > r->side[most].events[0]))
            most = i;
    }
    bool thrash = d->now.evictions > 0.2 && most != none;
    int x =
        cells_printf(c, row, 0, -1, thrash ? STYLE_BAD : STYLE_DIM,
                     "%s%.1f loads/s, %.1f evictions/s, %lld requests late",
                     thrash ? "Thrashing: " : "", d->now.loads, d->now.evictions, (long long)late);
    if (most == none) return;
    const proto_adapter *a = rowset_row(r, most);
    (void)cells_printf(c, row, x, -1, thrash ? STYLE_BAD : STYLE_DIM, "; most: %s/%s, %.0f/min",
                       a->tenant, a->name, r->side[most].events[0]);
}

static void draw_limited(view *v, cells *c, int row)
{
    const rowset *r = view_rows(v, VIEW_LIMITS);
    double refusals = 0;
    int n = 0, x = 0;
    for (size_t i = 0; i < r->n; i++) refusals += r->side[i].events[0];
    x = cells_printf(c, row, 0, -1, refusals > 0 ? STYLE_WARN : STYLE_DIM, "%.0f refusals a minute",
                     refusals);
    for (size_t i = 0; i < r->n && x < c->cols - 8; i++) {
        const view_row at = {rowset_row(r, i), &r->side[i], 0};
        const char *limit = view_limit_of(&at);
        if (!limit[0]) continue;
        x += cells_printf(c, row, x, c->cols - x, STYLE_BAD, "%s%s (%s)",
                          n++ ? ", " : "; at a limit now: ", ((const proto_tenant *)at.row)->name,
                          limit);
    }
}

void view_draw_sum(view *v, cells *c, int row)
{
    if (v->screen == SCREEN_ADAPTERS)
        draw_thrash(v, c, row);
    else
        draw_limited(v, c, row);
}
