/* lines.c -- libedit, fed by a reader that ctl_wait() can interrupt.
 *
 * libedit asks for characters through read_cb(), which waits for a byte or for Ctrl-C, then
 * reads one byte; a character of several bytes is put together by mbrtowc(), whose state
 * outlasts a call. So Ctrl-C drops the line that is being typed instead of ending the program,
 * and ^D on an empty line ends the chat. The history keeps 1,000 different lines in a file.
 */
#include "tui/ctl/lines.h"

#include <histedit.h>
#include <limits.h>
#include <locale.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <wchar.h>

#include "tui/ctl/loractl.h"

enum { KEPT = 1000 };

struct lines {
    EditLine *edit;
    History *past;
    const char *prompt;
    char file[PATH_MAX];
    char *line; /* the last one */
    bool dropped;
    mbstate_t state; /* of a character whose bytes are not all there */
};

static char *prompt_cb(EditLine *edit)
{
    lines *l = NULL;
    (void)el_get(edit, EL_CLIENTDATA, &l);
    return (char *)l->prompt;
}

/* One character; 0: the end, -1: Ctrl-C.  Bytes that are none are passed over. */
static int read_cb(EditLine *edit, wchar_t *out)
{
    lines *l = NULL;
    (void)el_get(edit, EL_CLIENTDATA, &l);
    for (;;) {
        char byte;
        l->dropped = !ctl_wait(STDIN_FILENO, -1);
        if (l->dropped) return -1;
        if (read(STDIN_FILENO, &byte, 1) <= 0) return 0;
        size_t used = mbrtowc(out, &byte, 1, &l->state);
        if (used == (size_t)-1) memset(&l->state, 0, sizeof(l->state));
        if (used == 0 || used == 1) return 1;
    }
}

static bool open_edit(lines *l)
{
    HistEvent ev;
    l->edit = el_init("loractl", stdin, stderr, stderr);
    l->past = history_init();
    if (!l->edit || !l->past) return false;
    (void)history(l->past, &ev, H_SETSIZE, KEPT);
    (void)history(l->past, &ev, H_SETUNIQUE, 1);
    if (l->file[0]) (void)history(l->past, &ev, H_LOAD, l->file);
    (void)el_set(l->edit, EL_CLIENTDATA, l);
    (void)el_set(l->edit, EL_PROMPT, prompt_cb);
    (void)el_set(l->edit, EL_EDITOR, "emacs");
    (void)el_set(l->edit, EL_HIST, history, l->past);
    (void)el_set(l->edit, EL_BIND, "^R", "em-inc-search-prev", NULL);
    (void)el_source(l->edit, NULL);
    (void)el_set(l->edit, EL_GETCFN, read_cb);
    return true;
}

lines *lines_open(const char *prompt, const char *history_file)
{
    lines *l = calloc(1, sizeof(*l));
    if (!l) return NULL;
    if (!setlocale(LC_CTYPE, "") || MB_CUR_MAX == 1) (void)setlocale(LC_CTYPE, "C.UTF-8");
    l->prompt = prompt;
    snprintf(l->file, sizeof(l->file), "%s", history_file);
    if (open_edit(l)) return l;
    lines_close(l);
    return NULL;
}

void lines_close(lines *l)
{
    HistEvent ev;
    if (!l) return;
    if (l->past && l->file[0]) (void)history(l->past, &ev, H_SAVE, l->file);
    if (l->past) history_end(l->past);
    if (l->edit) el_end(l->edit);
    free(l->line);
    free(l);
}

lines_what lines_next(lines *l, const char **text)
{
    HistEvent ev;
    int n = 0;
    l->dropped = false;
    (void)el_set(l->edit, EL_PREP_TERM, 1); /* or a ^D right behind the prompt is the terminal's */
    const char *typed = el_gets(l->edit, &n);
    if (l->dropped) el_reset(l->edit);
    if (l->dropped) return LINES_DROPPED;
    if (!typed || n <= 0) return LINES_END;
    free(l->line);
    l->line = strndup(typed, strcspn(typed, "\n"));
    if (!l->line) return LINES_END;
    if (l->line[0]) (void)history(l->past, &ev, H_ENTER, l->line);
    *text = l->line;
    return LINES_LINE;
}
