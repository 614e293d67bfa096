/* bench_view.c -- loratop's screens without a terminal: how long a key takes to its picture.
 *
 *     bench_view [-s SCREEN] [-w COLUMNS] [-h ROWS] [-a] FRAMES RECORDING
 *
 * Plays a recording (loratop --record), over and over where it is short.  After each update
 * every screen (or the one of -s) is drawn twice, the second time after a key of all kinds.
 * -a: no character beyond ASCII.  Prints one JSON object: times of applying and drawing,
 * processor time, and memory after a third and after all.  Exit status: 0, 1 where the
 * recording cannot be played, 2 usage.
 */
#include <locale.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include "engine/base/clock.h"
#include "tui/top/replay.h"
#include "tui/top/view.h"

enum { DRAWS_MAX = 1 << 20, USAGE = 2 };

typedef struct {
    int screen, width, height; /* screen -1: all */
    bool ascii;
    int64_t frames;
    const char *path;
} options;

typedef struct {
    replay from;
    view v;
    cells c;
    int64_t n_draws, apply_us, all_us, worst_us;
    int64_t *took; /* [n_took], of the first draws */
    int64_t n_took;
    long third_kib;
} bench;

static const int keys[] = {KEYS_DOWN, KEYS_PAGE_DOWN, '>',        'I', 't',
                           ' ',       KEYS_END,       KEYS_ENTER, 'x', '\\',
                           'a',       KEYS_ENTER,     '/',        'e', KEYS_ENTER,
                           KEYS_HOME, '\\',           KEYS_ESC,   'H', 'j',
                           'x',       KEYS_F1 + 5,    KEYS_ESC,   't', 'U',
                           '<',       KEYS_UP};
enum { N_KEYS = (int)(sizeof(keys) / sizeof(keys[0])) };

static int fail(const err *e)
{
    fprintf(stderr, "bench_view: %s\n", e->msg);
    return EXIT_FAILURE;
}

static bool parse(int argc, char **argv, options *o)
{
    *o = (options){.screen = -1, .width = 200, .height = 50};
    for (int c; (c = getopt(argc, argv, "s:w:h:a")) >= 0;) {
        switch (c) {
        case 's':
            o->screen = view_screen_of(optarg);
            if (o->screen < 0) return false;
            break;
        case 'w': o->width = atoi(optarg); break;
        case 'h': o->height = atoi(optarg); break;
        case 'a': o->ascii = true; break;
        default: return false;
        }
    }
    if (argc - optind != 2) return false;
    o->frames = atoll(argv[optind]);
    o->path = argv[optind + 1];
    return o->frames > 0 && o->width > 0 && o->height > 0;
}

static err_code open_bench(bench *b, const options *o, err *e)
{
    const char *names[REPLAY_SERVERS_MAX];
    err_code rc = replay_open(&b->from, o->path, e);
    if (rc) return rc;
    for (int i = 0; i < b->from.n_servers; i++) names[i] = b->from.server[i];
    b->n_took = o->frames * 2 * SCREENS < DRAWS_MAX ? o->frames * 2 * SCREENS : DRAWS_MAX;
    b->took = calloc((size_t)b->n_took, sizeof(*b->took));
    if (!b->took || !view_init(&b->v, names, b->from.n_servers) ||
        !cells_resize(&b->c, o->height, o->width, !o->ascii))
        return err_set(e, ERR_NOMEM, "out of memory");
    b->v.replay = true;
    return ERR_NONE;
}

static void close_bench(bench *b)
{
    replay_close(&b->from);
    view_clear(&b->v);
    cells_free(&b->c);
    free(b->took);
}

/* The next answer of the recording; after the last comes the first again. */
static err_code apply_next(bench *b, err *e)
{
    replay_item it;
    int64_t start = clock_now_us();
    err_code rc = replay_next(&b->from, &it, e);
    if (rc == ERR_NOT_FOUND) {
        replay_rewind(&b->from);
        rc = replay_next(&b->from, &it, e);
    }
    if (rc) return rc;
    view_server *s = &b->v.server[it.server];
    rc = topdata_apply(&s->data, it.stats, e);
    s->up = true;
    s->answered_us = start;
    cJSON_Delete(it.tree);
    b->apply_us += clock_now_us() - start;
    return rc;
}

/* `key` 0: none. */
static void draw(bench *b, screen s, int key)
{
    int64_t start = clock_now_us();
    if (key) view_key(&b->v, key, start);
    if (b->v.mode == MODE_NORMAL) b->v.screen = s;
    view_draw(&b->v, &b->c, start, start);
    int64_t took = clock_now_us() - start;
    b->all_us += took;
    if (took > b->worst_us) b->worst_us = took;
    if (b->n_draws < b->n_took) b->took[b->n_draws] = took;
    b->n_draws++;
    b->v.quit = b->v.paused = false;
    b->v.n_action = 0;
}

static long rss_kib(void)
{
    long pages = 0, all = 0;
    FILE *f = fopen("/proc/self/statm", "re");
    if (!f) return 0;
    if (fscanf(f, "%ld %ld", &all, &pages) != 2) pages = 0;
    (void)fclose(f);
    return pages * (sysconf(_SC_PAGESIZE) / 1024);
}

static err_code play(bench *b, const options *o, err *e)
{
    int last = b->v.n_servers > 1 ? SCREENS : SCREENS - 1;
    for (int64_t f = 0; f < o->frames; f++) {
        err_code rc = apply_next(b, e);
        if (rc) return rc;
        if (f == o->frames / 3) b->third_kib = rss_kib();
        for (int s = 0; s < last; s++) {
            if (o->screen >= 0 && s != o->screen) continue;
            b->v.screen = (screen)s;
            draw(b, (screen)s, 0);
            draw(b, (screen)s, keys[(f + s) % N_KEYS]);
        }
    }
    return ERR_NONE;
}

static int by_time(const void *a, const void *b)
{
    int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
    return x < y ? -1 : x > y;
}

static void report(bench *b, const options *o)
{
    struct rusage ru;
    int64_t n = b->n_draws < b->n_took ? b->n_draws : b->n_took;
    qsort(b->took, (size_t)n, sizeof(*b->took), by_time);
    (void)getrusage(RUSAGE_SELF, &ru);
    double cpu_s = (double)(ru.ru_utime.tv_sec + ru.ru_stime.tv_sec) +
                   (double)(ru.ru_utime.tv_usec + ru.ru_stime.tv_usec) / 1e6;
    printf("{\"frames\":%lld,\"draws\":%lld,\"apply_mean_ms\":%.3f,\"draw_mean_ms\":%.3f,"
           "\"draw_p99_ms\":%.3f,\"draw_max_ms\":%.3f,\"cpu_s\":%.3f,\"rss_third_kib\":%ld,"
           "\"rss_kib\":%ld}\n",
           (long long)o->frames, (long long)b->n_draws,
           (double)b->apply_us / 1e3 / (double)o->frames,
           (double)b->all_us / 1e3 / (double)b->n_draws, (double)b->took[n * 99 / 100] / 1e3,
           (double)b->worst_us / 1e3, cpu_s, b->third_kib, rss_kib());
}

int main(int argc, char **argv)
{
    static bench b; /* large, one of it */
    options o;
    err e;
    (void)setlocale(LC_ALL, "");
    if (!parse(argc, argv, &o)) {
        (void)fputs("usage: bench_view [-s SCREEN] [-w COLUMNS] [-h ROWS] [-a] FRAMES RECORDING\n",
                    stderr);
        return USAGE;
    }
    err_code rc = open_bench(&b, &o, &e);
    if (!rc) rc = play(&b, &o, &e);
    if (!rc) report(&b, &o);
    close_bench(&b);
    return rc ? fail(&e) : EXIT_SUCCESS;
}
