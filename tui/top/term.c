/* term.c -- the only file that calls ncurses: cells to the screen, keys from it.
 *
 * A screen is drawn into cells as if the terminal were empty. term_show() compares rows with
 * those that it showed last and hands over the ones that differ; ncurses then sends the cells
 * that do. ^L forgets what was shown, for a terminal that something else wrote to.
 *
 * Colours: 256 where there are as many, else eight, else attributes alone; NO_COLOR asks for
 * these. A locale that is not UTF-8, and --ascii, draw lines with ASCII; the console of Linux
 * has lines, but no blocks for charts.
 *
 * Threads: one; ncurses keeps its state in the process.
 */
#define NCURSES_WIDECHAR 1
#include "tui/top/term.h"

#include <langinfo.h>
#include <locale.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <term.h>
#include <unistd.h>
#include <wchar.h>

#include <ncurses.h>

#include "tui/top/view.h"

static struct {
    bool open, utf8, blocks;
    SCREEN *screen;
    attr_t attr[STYLES];
    short pair[STYLES];
    cells shown; /* what the terminal has */
} term;

static void set_colours(void)
{
    static const struct {
        short fg256, bg256, fg8, bg8;
        attr_t with, without; /* attributes in colour, and where there is none */
    } look[STYLES] = {
        [STYLE_NORMAL] = {-1, -1, -1, -1, A_NORMAL, A_NORMAL},
        [STYLE_DIM] = {245, -1, -1, -1, A_DIM, A_DIM},
        [STYLE_TITLE] = {252, 238, COLOR_WHITE, COLOR_BLUE, A_BOLD, A_REVERSE},
        [STYLE_HEAD] = {16, 71, COLOR_BLACK, COLOR_GREEN, A_NORMAL, A_REVERSE},
        [STYLE_GOOD] = {77, -1, COLOR_GREEN, -1, A_NORMAL, A_NORMAL},
        [STYLE_WARN] = {214, -1, COLOR_YELLOW, -1, A_NORMAL, A_BOLD},
        [STYLE_BAD] = {203, -1, COLOR_RED, -1, A_BOLD, A_BOLD | A_UNDERLINE},
        [STYLE_ACCENT] = {80, -1, COLOR_CYAN, -1, A_NORMAL, A_NORMAL},
        [STYLE_SELECT] = {16, 80, COLOR_BLACK, COLOR_CYAN, A_NORMAL, A_REVERSE | A_BOLD},
        [STYLE_TAGGED] = {226, -1, COLOR_YELLOW, -1, A_BOLD, A_BOLD},
        [STYLE_KEY] = {16, 80, COLOR_BLACK, COLOR_CYAN, A_NORMAL, A_REVERSE},
    };
    const char *no = getenv("NO_COLOR");
    bool colour = !(no && no[0]) && has_colors() && start_color() == OK;
    bool rich = colour && COLORS >= 256 && COLOR_PAIRS > STYLES;
    bool plain = use_default_colors() != OK;
    for (int i = 0; i < STYLES; i++) {
        term.attr[i] = colour ? look[i].with : look[i].without;
        if (colour && !rich && i == STYLE_DIM) term.attr[i] = A_DIM;
        term.pair[i] = 0;
        if (!colour) continue;
        short fg = rich ? look[i].fg256 : look[i].fg8, bg = rich ? look[i].bg256 : look[i].bg8;
        if (plain && fg < 0) fg = COLOR_WHITE;
        if (plain && bg < 0) bg = COLOR_BLACK;
        if (fg < 0 && bg < 0) continue;
        term.pair[i] = (short)(i + 1);
        (void)init_pair(term.pair[i], fg, bg);
    }
}

err_code term_open(bool ascii, err *e)
{
    (void)setlocale(LC_ALL, "");
    if (!isatty(STDIN_FILENO) || !isatty(STDOUT_FILENO)) {
        return err_set(e, ERR_UNSUPPORTED, "this is not a terminal; try --once, --json or --csv");
    }
    const char *name = getenv("TERM");
    int known = 0;
    if (setupterm(NULL, STDOUT_FILENO, &known) == OK && !cursor_address)
        return err_set(e, ERR_UNSUPPORTED,
                       "the terminal '%.40s' cannot move its cursor; try --once", name ? name : "");
    term.screen = newterm(NULL, stdout, stdin);
    if (!term.screen) {
        return err_set(e, ERR_UNSUPPORTED, "the terminal '%.40s' is not known here (TERM)",
                       name ? name : "");
    }
    term.open = true;
    term.utf8 = !ascii && strcmp(nl_langinfo(CODESET), "UTF-8") == 0;
    term.blocks = term.utf8 && name && strncmp(name, "linux", 5) == 0;
    (void)cbreak();
    (void)noecho();
    (void)nonl();
    (void)keypad(stdscr, TRUE);
    (void)nodelay(stdscr, TRUE);
    (void)curs_set(0);
    set_escdelay(25);
    /* The release, too: ncurses swallows an event that is not asked for and waits for
     * the next, nodelay or not. */
    (void)mousemask(BUTTON1_PRESSED | BUTTON1_RELEASED | BUTTON1_CLICKED | BUTTON4_PRESSED |
                        BUTTON5_PRESSED,
                    NULL);
    (void)mouseinterval(0);
    set_colours();
    (void)refresh();
    return ERR_NONE;
}

void term_close(void)
{
    if (!term.open) return;
    (void)endwin();
    delscreen(term.screen);
    cells_free(&term.shown);
    term.open = false;
}

bool term_size(cells *c)
{
    c->blocks = term.blocks;
    return (c->rows == LINES && c->cols == COLS) || cells_resize(c, LINES, COLS, term.utf8);
}

/* Draws all of it anew at the next term_show(). */
static void forget(void)
{
    cells_free(&term.shown);
    (void)clearok(stdscr, TRUE);
}

static void put_run(const cells *c, int row, int from, int to)
{
    wchar_t text[512];
    const cell *at = &c->at[(size_t)row * (size_t)c->cols];
    while (from < to) {
        int n = 0, i = from;
        unsigned style_now = at[from].style;
        for (; i < to && at[i].style == style_now && n < 511; i++) {
            if (at[i].ch) text[n++] = (wchar_t)at[i].ch;
        }
        text[n] = 0;
        (void)attr_set(term.attr[style_now], term.pair[style_now], NULL);
        (void)mvaddnwstr(row, from, text, n);
        from = i;
    }
}

void term_show(const cells *c)
{
    bool all = term.shown.rows != c->rows || term.shown.cols != c->cols;
    if (all && !cells_resize(&term.shown, c->rows, c->cols, c->utf8)) return;
    for (int y = 0; y < c->rows && y < LINES; y++) {
        size_t at = (size_t)y * (size_t)c->cols, bytes = (size_t)c->cols * sizeof(cell);
        if (!all && memcmp(&term.shown.at[at], &c->at[at], bytes) == 0) continue;
        put_run(c, y, 0, c->cols < COLS ? c->cols : COLS); /* curses sends what differs */
        memcpy(&term.shown.at[at], &c->at[at], bytes);
    }
    (void)refresh();
}

static int translate(int k)
{
    switch (k) {
    case KEY_UP: return KEYS_UP;
    case KEY_DOWN: return KEYS_DOWN;
    case KEY_LEFT: return KEYS_LEFT;
    case KEY_RIGHT: return KEYS_RIGHT;
    case KEY_PPAGE: return KEYS_PAGE_UP;
    case KEY_NPAGE: return KEYS_PAGE_DOWN;
    case KEY_HOME: return KEYS_HOME;
    case KEY_END: return KEYS_END;
    case KEY_BTAB: return KEYS_BACKTAB;
    case KEY_BACKSPACE: return KEYS_BACKSPACE;
    case KEY_ENTER: return KEYS_ENTER;
    default: break;
    }
    if (k >= KEY_F(1) && k <= KEY_F(10)) return KEYS_F1 + k - KEY_F(1);
    return k < 256 ? k : 0;
}

bool term_next(term_event *out)
{
    MEVENT m;
    *out = (term_event){0};
    int k = getch();
    if (k == ERR) return false;
    if (k == KEY_RESIZE) {
        out->resized = true;
    } else if (k == KEY_MOUSE) {
        if (getmouse(&m) != OK || (m.bstate & BUTTON1_RELEASED)) return true;
        out->click = true;
        out->row = m.y;
        out->col = m.x;
        out->button = m.bstate & BUTTON4_PRESSED ? 4 : m.bstate & BUTTON5_PRESSED ? 5 : 1;
    } else if (k == 12) { /* ^L */
        forget();
        out->resized = true;
    } else {
        out->key = translate(k);
    }
    return true;
}
