/* view.h -- loratop's state and habits, without a terminal: keys in, cells and wishes out.
 *
 * view_key() and view_mouse() change what is shown and may leave actions (HTTP calls, confirmed by
 * the user) for the caller to carry out; view_draw() draws all of it onto cells.  Time comes in as
 * an argument.  Names of rows go into paths percent-encoded.
 *
 * Files: view.c state, lists, keys; view_menu.c menus, confirmations, actions;
 * view_columns.c the columns of the tables; view_layout.c which of them are shown, and where;
 * view_draw.c frame and tables; view_panels.c overview, engine, SLO, servers.
 * Ownership: view_init() to view_clear().  Threads: one.
 */
#ifndef TUI_TOP_VIEW_H
#define TUI_TOP_VIEW_H

#include <stdbool.h>
#include <stdint.h>

#include "tui/top/cells.h"
#include "tui/top/topdata.h"

enum {
    VIEW_SERVERS_MAX = 64,
    VIEW_INPUT_MAX = 64,
    VIEW_ACTIONS_MAX = 256,
    VIEW_MENU_MAX = 40,
    VIEW_COLUMNS_MAX = 24,
    VIEW_BACK_MAX = 8,
};

/* The tables of the screens: those of the server's answers, and other looks at them. */
enum { VIEW_LIMITS = TABLES, VIEW_ENDED, VIEW_TABLES };

typedef enum {
    SCREEN_OVERVIEW,
    SCREEN_TENANTS,
    SCREEN_ADAPTERS,
    SCREEN_REQUESTS,
    SCREEN_ENGINE,
    SCREEN_SLO,
    SCREEN_EVENTS,
    SCREEN_LIMITS,
    SCREEN_SERVERS,
    SCREEN_ENDED, /* behind SCREEN_REQUESTS: it has no tab */
    SCREENS
} screen;

/* Keys that are no characters; a character stands for itself. */
enum {
    KEYS_FROM = 0x110000,
    KEYS_UP,
    KEYS_DOWN,
    KEYS_LEFT,
    KEYS_RIGHT,
    KEYS_PAGE_UP,
    KEYS_PAGE_DOWN,
    KEYS_HOME,
    KEYS_END,
    KEYS_BACKTAB,
    KEYS_BACKSPACE,
    KEYS_F1 = KEYS_FROM + 100, /* to F10 */
    KEYS_F10 = KEYS_F1 + 9,
    KEYS_ENTER = 10,
    KEYS_ESC = 27,
};

typedef enum {
    MODE_NORMAL,
    MODE_SEARCH,
    MODE_FILTER,
    MODE_HELP,
    MODE_DETAIL,
    MODE_MENU,
    MODE_INPUT,
    MODE_CONFIRM,
    MODE_COMMAND
} view_mode;

/* A call for the caller to make with an admin key. */
typedef struct view_action {
    int server;
    enum { ANSWER_TOLD, ANSWER_KEYS, ANSWER_ENDED } answer; /* to view_keys_came() and the like */
    char method[8], path[400], body[160], what[160];
} view_action;

typedef struct view_server {
    char name[PROTO_NAME_CAP];
    topdata data;
    bool up;
    char error[200];
    int64_t answered_us; /* local clock; 0: never */
} view_server;

typedef struct table_view {
    int sort;
    int shift;       /* columns that are scrolled away, from the second shown one on */
    uint32_t hidden; /* columns that the user has taken out, by their bits */
    bool descending, tree;
    char (*closed)[PROTO_NAME_CAP]; /* of a tree: tenants whose rows are folded away */
    int n_closed;
    char filter[VIEW_INPUT_MAX];
    char class_name[PROTO_NAME_CAP], tenant[PROTO_NAME_CAP]; /* only theirs; empty: of all */
    uint32_t *order; /* visible rows; VIEW_GROUP marks a tenant's heading */
    size_t n, cap;
    uint32_t *sorted; /* all of the filter's, also folded ones */
    size_t n_sorted;
    size_t selected, top;
    uint64_t selected_id;
    uint64_t seen; /* version of the data that it was made from */
    bool stale;
} table_view;

#define VIEW_GROUP 0x80000000U

typedef struct view_menu {
    char title[64];
    int n, at;
    struct {
        int key; /* that picks it */
        char label[72];
        int code;
        char argument[40];
    } item[VIEW_MENU_MAX];
} view_menu;

/* Where Enter was pressed, for Esc. */
typedef struct view_place {
    screen screen;
    uint64_t selected_id;
    char class_name[PROTO_NAME_CAP], tenant[PROTO_NAME_CAP];
} view_place;

typedef struct view {
    view_server *server;
    int n_servers, current;
    screen screen;
    view_mode mode;
    table_view table[VIEW_TABLES];
    view_place back[VIEW_BACK_MAX];
    int n_back;
    size_t class_at, server_at;
    int rows, cols;
    int64_t now_us, wall_us; /* of the last draw or key */
    int64_t interval_ms;
    bool paused, read_only, quit, utf8, replay, histograms;
    char input[VIEW_INPUT_MAX], search[VIEW_INPUT_MAX];
    view_menu menu;
    int code; /* what is being confirmed or asked for */
    char argument[40], question[200];
    int help_top;
    char message[200];
    int64_t message_until_us;
    view_action action[VIEW_ACTIONS_MAX];
    int n_action;
    int64_t ended_us; /* when the ended requests were asked for; 0: not on this screen */
    bool ended_slow;  /* the slowest were */
} view;

/* A view of these servers, whose names are copied. False: no memory; view_clear() may follow. */
bool view_init(view *v, const char *const *names, int n_servers);

/* Frees what the view has. Not the struct. */
void view_clear(view *v);

/* One key, a character or KEYS_...; what it leads to is in the view when it returns. now_us:
 * clock_now_us(). */
void view_key(view *v, int key, int64_t now_us);
/* A click, or the wheel (button 4, 5). */
void view_mouse(view *v, int row, int col, int button, int64_t now_us);

/* Draws everything onto `c`, whose size decides the layout. wall_us: the local time of day. */
void view_draw(view *v, cells *c, int64_t now_us, int64_t wall_us);
/* The line above the keys, for a while. */
void view_say(view *v, int64_t now_us, const char *fmt, ...) __attribute__((format(printf, 3, 4)));
/* The answer to an action with list_keys: GET /admin/v1/keys. */
void view_keys_came(view *v, const char *json, size_t len, int64_t now_us);
/* Now and then: leaves an action where the screen wants what /stats does not have. */
void view_ask_ended(view *v, int64_t now_us);

/* The word that --screen and ":" accept; static. */
const char *view_screen_name(screen s);
/* What one word says of a server (static text), and how it is drawn. */
const char *view_server_state(const view_server *s, style *st);
/* -1: no such screen. */
int view_screen_of(const char *name);

/* ---- between the files ------------------------------------------------------------- */

/* The table of a screen; -1: it has none. */
int view_table_of(screen s);
/* The rows that it shows. */
rowset *view_rows(view *v, int table);

/* The table of the server's answer that a view's table is made of (VIEW_LIMITS: tenants). */
int view_source(int table);

/* What is known of the server that is shown. */
topdata *view_data(view *v);

/* The rows, order and selection of the screen's table; NULL: the screen has no table. Owned by
 * the view. */
table_view *view_table(view *v);

/* Filters and sorts the rows again if the data or the order has changed since. */
void view_refresh(view *v, int table);

/* Opens the menu of actions on the selected or tagged rows, of columns to sort by, of columns to
 * show. */
void view_open_menu(view *v);

/* Opens a menu of the table's columns, the present one selected. */
void view_open_sort(view *v);

/* Opens a menu of the columns behind the first, each marked if it is shown; the menu stays open. */
void view_open_columns(view *v);

/* A key while a menu, a confirmation or an input is open (view_mode). */
void view_menu_key(view *v, int key);

/* The answer to a question: y makes the calls in view->action, any other key does nothing. */
void view_confirm_key(view *v, int key);

/* Enter behind a number that was typed for a limit: asks to set it; says so if it is no number. */
void view_input_done(view *v);

/* One row of a table, as its cells are made of it. */
typedef struct view_row {
    const void *row; /* proto_tenant and the like */
    const row_side *side;
    int64_t now_us; /* the server's wall clock */
} view_row;

typedef struct view_column view_column;
struct view_column {
    const char *title;
    int width;
    bool right, wide; /* wide: takes what is left of the line */
    bool first;       /* the table is sorted by it at first, from the largest on */
    enum {
        SUM_NONE,
        SUM_MEMBER,
        SUM_SIDE
    } sum; /* in the heading of a group: of `member`, or of
                                                    the rates beside the row */
    style (*cell)(const view_column *c, const view_row *r, char *out, size_t cap);
    /* What it sorts by: *text or, where that is left NULL, the number. */
    double (*key)(const view_column *c, const view_row *r, const char **text);
    size_t member; /* of the row, for those two; 0 where they need none */
};

/* The columns of a table, in their order; static. *n: how many. */
const view_column *view_columns(int table, int *n);
/* The limit that a tenant is at; "": none. */
const char *view_limit_of(const view_row *r);
/* The place of the column marked `first`. */
int view_default_sort(int table);
/* The place of the column with this title; -1: there is none. */
int view_column_of(int table, const char *title);

/* The row's tenant; borrowed from the row. */
const char *view_tenant_of(int table, const void *row);

/* Whether some text of the row contains `needle`, in any case. */
bool view_matches(int table, const void *row, const char *needle);
/* All fields of a table's rows. */
const proto_field *view_fields(int table);

/* What a line of a table has room for: the first column always, then those that are neither hidden
 * nor scrolled away. */
typedef struct view_layout {
    int n;
    struct {
        int column, x, width;
    } at[VIEW_COLUMNS_MAX];
    bool more; /* further ones on the right */
} view_layout;

/* Chooses columns for a width of `cols` cells. */
void view_lay_out(const view *v, int table, int cols, view_layout *out);
/* The rows of a group in table_view.sorted. */
void view_group(view *v, int table, const char *tenant, size_t *first, size_t *n);
/* Folds it, or unfolds it. */
void view_fold(view *v, int table, const char *tenant);

/* Whether the tenant's group shows its sums alone. */
bool view_is_folded(const table_view *t, const char *tenant);
/* A row of sums of a group, and what stands beside it; `row` has room for any. */
void view_group_sum(view *v, int table, size_t first, size_t n, void *row, row_side *side);
/* Largest row of any table. */
enum { VIEW_ROW_BYTES = 2048 };
/* Tabs in the second line. */
int view_tabs(const view *v);

/* One screen each, into rows `top` to top + rows - 1 of the cells. */
void view_draw_overview(view *v, cells *c, int top, int rows);
void view_draw_engine(view *v, cells *c, int top, int rows);
void view_draw_slo(view *v, cells *c, int top, int rows);
void view_draw_servers(view *v, cells *c, int top, int rows);
void view_draw_table(view *v, cells *c, int table, int top, int rows);
/* A line in words above the tables of adapters and limits. */
void view_draw_sum(view *v, cells *c, int row);
/* The line of the titles of the screen's table. */
int view_heading(const view *v);
/* Columns between two tabs. */
int view_tab_gap(const view *v);
/* Where Enter has led to; "": nowhere. */
void view_trail(const view *v, char *out, size_t cap);

#endif
