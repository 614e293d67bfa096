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
    if (localtime_r(&now, &tm)) (void)strftime(clock, sizeof(clock), "%H:%M:%S", &tm);
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

/* A server that was there may be away for a while: it is asked again.  What is wrong from the start
 * stays wrong. */
static bool goes_on(int status, bool first)
{
    if (status == CTL_OK) return true;
    return !first && (status == CTL_REFUSED || status == CTL_UNREACHABLE);
}

int ctl_watch(ctl *c)
{
    const char *pace = cli_value(&c->cli, "watch");
    int64_t seconds;
    if (!take_pace(pace, &seconds))
        return ctl_usage("--watch: '%s' is no time of at least a second, such as 2s or 1m", pace);
    ctl_keep_running();
    for (bool first = true;; first = false) {
        look_at_screen(c);
        if (c->width) begin_picture(c, seconds);
        int status = c->cli.command->run(c);
        if (fflush(stdout) != 0) return CTL_REFUSED; /* nobody reads on */
        if (status == CTL_INTERRUPTED) return CTL_OK;
        if (!goes_on(status, first)) return status;
        if (!ctl_wait(-1, seconds * 1000)) return CTL_OK;
    }
}
