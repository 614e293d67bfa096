/* loractl_watch.c -- --watch: a command again and again, on a terminal in place, until Ctrl-C. */
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <time.h>
#include <unistd.h>

#include "tui/ctl/loractl.h"
#include "tui/text.h"

enum { EVERY_S = 2, FRAME = 5 }; /* lines around a table, with the one that the cursor is in */

/* The screen may have changed since. */
static void look_at_screen(ctl *c)
{
    struct winsize w;
    c->width = table_width_of(stdout);
    c->room = 0;
    if (c->width && ioctl(STDOUT_FILENO, TIOCGWINSZ, &w) == 0 && w.ws_row > 2 * FRAME)
        c->room = w.ws_row - FRAME;
}

static bool take_pace(const char *text, int64_t *seconds)
{
    *seconds = *text ? ctl_span(text) : EVERY_S;
    return *seconds >= 1;
}

/* The screen begins anew, with what is watched and when this was. */
static void begin_picture(const ctl *c, int64_t seconds)
{
    char line[512], clean[600], clock[16] = "";
    time_t now = time(NULL);
    struct tm tm;
    if (gmtime_r(&now, &tm)) (void)strftime(clock, sizeof(clock), "%H:%M:%SZ", &tm);
    snprintf(line, sizeof(line), "%s  every %lld s: %s %s%s%s (Ctrl-C ends)", clock,
             (long long)seconds, loractl_program.name, c->cli.command->name,
             c->cli.n_arg ? " " : "", c->cli.n_arg ? c->cli.arg[0] : "");
    (void)text_clean(line, clean, sizeof(clean), c->width > 0 && c->width < 140 ? c->width : 140);
    if (table_coloured(stdout))
        (void)fputs("\033[H\033[2J", stdout);
    else
        (void)fputc('\n', stdout); /* one that obeys nothing gets one below the other */
    printf("%s\n\n", clean);
}

int ctl_repeat(ctl *c, int64_t ms, int (*turn)(ctl *c, void *state), void *state)
{
    ctl_keep_running();
    for (bool first = true;; first = false) {
        int status = turn(c, state);
        bool away = !first && (status == CTL_REFUSED || status == CTL_UNREACHABLE);
        if (fflush(stdout) != 0) return CTL_REFUSED; /* nobody reads on */
        if (status == CTL_INTERRUPTED) return CTL_OK;
        if (status != CTL_OK && !away) return status;
        if (!ctl_wait(-1, ms)) return CTL_OK;
    }
}

static int show_again(ctl *c, void *seconds)
{
    look_at_screen(c);
    if (c->width) begin_picture(c, *(const int64_t *)seconds);
    return c->cli.command->run(c);
}

int ctl_watch(ctl *c)
{
    const char *pace = cli_value(&c->cli, "watch");
    int64_t seconds;
    if (!take_pace(pace, &seconds))
        return ctl_usage("--watch: '%s' is not a time of at least a second, such as 2s or 1m",
                         pace);
    return ctl_repeat(c, seconds * 1000, show_again, &seconds);
}
