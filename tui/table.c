/* table.c -- prints JSON objects as tables, as lists of name and value, as CSV and as JSON.
 *
 * A column has a path into the row ("limits.max_queued") and a kind, which decides how people
 * see the value; CSV and -o name have raw values. Printing takes two passes: the first measures
 * every cell in terminal columns (text_width(), so that wide characters count as two), the
 * second prints. Where the sum is wider than the terminal, fit() narrows the widest text column
 * by one cell until the line fits, and stops at LEAST_WIDTH; numbers are never cut.
 *
 * Whatever is printed went through text_clean() or table_put_escaped(): control characters, and
 * those that hide or reverse text (U+200B to U+206F), are escaped also inside JSON, where a
 * terminal would obey them.
 *
 * Colours are used only on a terminal, without NO_COLOR, and not with TERM=dumb.
 */
#include "tui/table.h"

#include <assert.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <time.h>
#include <unistd.h>

#include "engine/base/json.h"
#include "tui/text.h"

#define PLAIN "\033[0m"
#define HEAD  "\033[1m"

enum { COLUMNS_MAX = 26, CELL_MAX = 1024, LEAST_WIDTH = 8, GAP = 2, NAME_WIDTH_MAX = 48 };

bool table_format_of(const char *name, table_format *out)
{
    static const char *const names[] = {"table", "wide", "json", "csv", "name"};
    for (int i = 0; i < 5; i++) {
        if (strcmp(name, names[i]) != 0) continue;
        *out = (table_format)i;
        return true;
    }
    return false;
}

int table_width_of(FILE *f)
{
    struct winsize w;
    if (!isatty(fileno(f))) return 0;
    const char *columns = getenv("COLUMNS");
    int n = columns ? (int)strtol(columns, NULL, 10) : 0;
    if (n < 1 && ioctl(fileno(f), TIOCGWINSZ, &w) == 0) n = w.ws_col;
    return n < 1 ? 80 : n;
}

/* -------------------------------------------------------------------------- cells -- */

const cJSON *table_at(const cJSON *row, const char *path)
{
    char name[96];
    while (row && *path) {
        size_t n = strcspn(path, ".");
        if (n >= sizeof(name)) return NULL;
        memcpy(name, path, n);
        name[n] = 0;
        bool number = n > 0 && n < 9 && strspn(name, "0123456789") == n;
        if (cJSON_IsArray(row))
            row = number ? cJSON_GetArrayItem(row, (int)strtol(name, NULL, 10)) : NULL;
        else
            row = cJSON_IsObject(row) ? json_get(row, name) : NULL;
        path += n + (path[n] == '.');
    }
    return row;
}

bool table_coloured(FILE *f)
{
    const char *no = getenv("NO_COLOR"), *term = getenv("TERM");
    return isatty(fileno(f)) && !(no && *no) && term && *term && strcmp(term, "dumb") != 0;
}

static void put_number(double v, char *out, size_t cap)
{
    if (v == floor(v) && fabs(v) <= 9007199254740992.0) /* 2^53: times in microseconds, too */
        snprintf(out, cap, "%.0f", v);
    else
        snprintf(out, cap, "%.6g", v);
}

static void put_list(const cJSON *v, bool nested, char *out, size_t cap);

/* An object within one as (a=1,b=2). */
static const char *text_of_each(const cJSON *each, bool nested, char *made, size_t cap)
{
    made[0] = 0;
    if (cJSON_IsString(each)) return each->valuestring;
    if (cJSON_IsNumber(each)) put_number(each->valuedouble, made, cap);
    if (cJSON_IsObject(each) && !nested) {
        made[0] = '(';
        put_list(each, true, made + 1, cap - 2);
        strcat(made, ")");
    }
    return made;
}

static void put_list(const cJSON *v, bool nested, char *out, size_t cap)
{
    const cJSON *each;
    size_t n = 0;
    out[0] = 0;
    cJSON_ArrayForEach(each, v)
    {
        char made[128];
        if (cJSON_IsNull(each)) continue;
        const char *text = text_of_each(each, nested, made, sizeof(made));
        bool pair = each->string && cJSON_IsObject(v);
        int k = snprintf(out + n, cap - n, "%s%s%s%s", n ? "," : "", pair ? each->string : "",
                         pair ? "=" : "", text);
        assert(n < cap);
        if (k < 0 || (size_t)k >= cap - n) return; /* cut: it is for people or too long for csv */
        n += (size_t)k;
    }
}

static void put_time(double s, char *out, size_t cap)
{
    time_t t = (time_t)s;
    struct tm tm;
    if (!(s > 0 && s < 1e12) || !gmtime_r(&t, &tm) ||
        strftime(out, cap, "%Y-%m-%d %H:%M:%SZ", &tm) == 0) {
        snprintf(out, cap, "-");
    }
}

/* For people; raw: for csv. */
static void cell_text(const column *c, const cJSON *row, bool raw, char out[CELL_MAX])
{
    const cJSON *v = table_at(row, c->path);
    out[0] = 0;
    if (!v || cJSON_IsNull(v)) {
        if (!raw) strcpy(out, "-");
    } else if (cJSON_IsString(v)) {
        snprintf(out, CELL_MAX, "%s", v->valuestring);
    } else if (cJSON_IsBool(v)) {
        strcpy(out, raw ? (cJSON_IsTrue(v) ? "true" : "false") : cJSON_IsTrue(v) ? "yes" : "-");
    } else if (cJSON_IsArray(v) || cJSON_IsObject(v)) {
        put_list(v, false, out, CELL_MAX);
        if (!raw && !out[0]) strcpy(out, "-");
    } else if (!raw && c->kind == CELL_BYTES) {
        text_bytes(v->valuedouble, out, CELL_MAX);
    } else if (!raw && c->kind == CELL_TIME) {
        put_time(v->valuedouble, out, CELL_MAX);
    } else if (!raw && c->kind == CELL_MS) {
        double ms = fabs(v->valuedouble);
        if (ms < 10000)
            text_ms(ms, out + 1, CELL_MAX - 1);
        else
            text_span((int64_t)(ms / 1000), out + 1, CELL_MAX - 1);
        out[0] = '-';
        if (v->valuedouble >= 0) memmove(out, out + 1, strlen(out));
    } else if (!raw && c->kind == CELL_MICROS) {
        snprintf(out, CELL_MAX, "%.6f", v->valuedouble / 1e6);
    } else if (!raw && c->kind == CELL_LIMIT && v->valuedouble == 0) {
        strcpy(out, "-");
    } else {
        put_number(v->valuedouble, out, CELL_MAX);
    }
}

/* How a word of state looks: well, on its way, or not well. */
static const char *look_of(const char *cell)
{
    static const char *const words[3][6] = {
        {"active", "ready", "yes", "gpu", "cpu", NULL},
        {"waiting", "prefill", "loading", "draining", "partial", NULL},
        {"disabled", "suspended", "failed", "refused", "error", NULL}};
    static const char *const looks[3] = {"\033[32m", "\033[33m", "\033[31m"};
    if (strcmp(cell, "-") == 0) return "\033[2m";
    for (int i = 0; i < 3; i++) {
        for (const char *const *w = words[i]; *w; w++) {
            if (strcmp(cell, *w) == 0) return looks[i];
        }
    }
    return "";
}

static bool to_the_right(cell_kind k)
{
    return k == CELL_INT || k == CELL_NUM || k == CELL_BYTES || k == CELL_MS || k == CELL_LIMIT ||
           k == CELL_MICROS;
}

/* ------------------------------------------------------------------------- tables -- */

static void print_padded(FILE *f, const char *s, int width, bool right, bool last, const char *look)
{
    char out[CELL_MAX * 4 + 8];
    int w = text_clean(s, out, sizeof(out), width);
    int pad = width - w;
    if (right)
        fprintf(f, "%*s%s%s%s", pad > 0 ? pad : 0, "", look, out, *look ? PLAIN : "");
    else
        fprintf(f, "%s%s%s%*s", look, out, *look ? PLAIN : "", last || pad < 0 ? 0 : pad, "");
    (void)fputs(last ? "\n" : "  ", f);
}

/* Narrows the widest text column, one by one, until the line fits. */
static void fit(const column *const *c, int *width, int n, int room)
{
    int total = GAP * (n - 1);
    for (int i = 0; i < n; i++) total += width[i];
    while (room > 0 && total > room) {
        int widest = -1;
        for (int i = 0; i < n; i++) {
            if (to_the_right(c[i]->kind) || width[i] <= LEAST_WIDTH) continue;
            if (widest < 0 || width[i] > width[widest]) widest = i;
        }
        if (widest < 0) return; /* nothing more to give */
        width[widest]--;
        total--;
    }
}

static int choose(const column *columns, bool all, const column **out)
{
    int n = 0;
    for (const column *c = columns; c->head; c++) {
        assert(n < COLUMNS_MAX); /* of the program's own tables */
        if (all || !c->wide) out[n++] = c;
    }
    return n;
}

static void print_csv_cell(FILE *f, const char *s, bool last)
{
    char clean[CELL_MAX * 4 + 8];
    (void)text_clean(s, clean, sizeof(clean), 0);
    bool quote = strpbrk(clean, ",\" ") != NULL;
    if (quote) (void)fputc('"', f);
    for (const char *p = clean; *p; p++) {
        if (*p == '"') (void)fputc('"', f);
        (void)fputc(*p, f);
    }
    if (quote) (void)fputc('"', f);
    (void)fputs(last ? "\r\n" : ",", f);
}

static void print_csv(FILE *f, const column *const *c, int n, const cJSON *rows)
{
    const cJSON *row;
    char cell[CELL_MAX];
    for (int i = 0; i < n; i++) print_csv_cell(f, c[i]->path, i + 1 == n);
    cJSON_ArrayForEach(row, rows)
    {
        for (int i = 0; i < n; i++) {
            cell_text(c[i], row, true, cell);
            print_csv_cell(f, cell, i + 1 == n);
        }
    }
}

static void print_names(FILE *f, const column *c, const cJSON *rows)
{
    const cJSON *row;
    char cell[CELL_MAX], clean[CELL_MAX * 4 + 8];
    cJSON_ArrayForEach(row, rows)
    {
        cell_text(c, row, true, cell);
        (void)text_clean(cell, clean, sizeof(clean), 0);
        fprintf(f, "%s\n", clean);
    }
}

void table_print(FILE *f, const column *columns, const cJSON *rows, table_format format, int width)
{
    const column *c[COLUMNS_MAX];
    int w[COLUMNS_MAX], n = choose(columns, format != TABLE_PEOPLE, c);
    char cell[CELL_MAX];
    const cJSON *row;
    if (format == TABLE_CSV || format == TABLE_NAME) {
        if (format == TABLE_CSV)
            print_csv(f, c, n, rows);
        else
            print_names(f, c[0], rows);
        return;
    }
    for (int i = 0; i < n; i++) w[i] = text_width(c[i]->head);
    cJSON_ArrayForEach(row, rows)
    {
        for (int i = 0; i < n; i++) {
            cell_text(c[i], row, false, cell);
            int need = text_width(cell);
            if (need > w[i]) w[i] = need;
        }
    }
    fit(c, w, n, width);
    bool coloured = table_coloured(f);
    for (int i = 0; i < n; i++) {
        print_padded(f, c[i]->head, w[i], to_the_right(c[i]->kind), i + 1 == n,
                     coloured ? HEAD : "");
    }
    cJSON_ArrayForEach(row, rows)
    {
        for (int i = 0; i < n; i++) {
            cell_text(c[i], row, false, cell);
            print_padded(f, cell, w[i], to_the_right(c[i]->kind), i + 1 == n,
                         coloured ? look_of(cell) : "");
        }
    }
}

static void print_pair(FILE *f, const char *head, int head_width, const char *value, int width)
{
    char name[512], text[CELL_MAX * 4 + 8];
    int room = width > head_width + GAP ? width - head_width - GAP : 0;
    int w = text_clean(head, name, sizeof(name), head_width);
    (void)text_clean(value, text, sizeof(text), room);
    bool coloured = table_coloured(f);
    fprintf(f, "%s%s%s%*s  %s\n", coloured ? HEAD : "", name, coloured ? PLAIN : "",
            head_width > w ? head_width - w : 0, "", text);
}

void table_print_one(FILE *f, const column *columns, const cJSON *row, int width, bool all)
{
    char cell[CELL_MAX];
    int head = 0;
    for (const column *c = columns; c->head; c++) {
        if (text_width(c->head) > head) head = text_width(c->head);
    }
    for (const column *c = columns; c->head; c++) {
        if (!table_at(row, c->path)) continue;
        cell_text(c, row, false, cell);
        if (!all && (!*cell || strcmp(cell, "-") == 0)) continue;
        print_pair(f, c->head, head, cell, width);
    }
}

/* ----------------------------------------------------------------- whole answers -- */

/* What print_branch() does: prints each value, or, without a file, only measures the names. */
typedef struct {
    FILE *f;
    int width, head;
    bool all;
} tree_print;

static void print_branch(tree_print *t, const char *path, const cJSON *v, int depth)
{
    const cJSON *each;
    char name[256], cell[CELL_MAX];
    bool nested = false;
    cJSON_ArrayForEach(each, v) nested |= cJSON_IsObject(each) || cJSON_IsArray(each);
    if (depth < 16 && (cJSON_IsObject(v) || (cJSON_IsArray(v) && nested))) {
        int i = 0;
        cJSON_ArrayForEach(each, v)
        {
            if (each->string && strcmp(each->string, "object") == 0) continue;
            char number[16];
            snprintf(number, sizeof(number), "%d", i++);
            snprintf(name, sizeof(name), "%s%s%s", path, *path ? "." : "",
                     each->string ? each->string : number);
            print_branch(t, name, each, depth + 1);
        }
        return;
    }
    if (!t->all && cJSON_IsNull(v)) return;
    if (!t->f) {
        int w = text_width(path);
        t->head = w < t->head ? t->head : w < NAME_WIDTH_MAX ? w : NAME_WIDTH_MAX;
        return;
    }
    column c = {.head = "", .path = "", .kind = CELL_TEXT};
    cell_text(&c, v, false, cell);
    print_pair(t->f, path, t->head, cell, t->width);
}

void table_print_tree(FILE *f, const cJSON *tree, int width, bool all)
{
    tree_print t = {.width = width, .all = all};
    print_branch(&t, "", tree, 0);
    t.f = f;
    print_branch(&t, "", tree, 0);
}

/* Of three bytes that begin at p: a character that hides or turns text; 0: none of them. */
static unsigned odd_character(const char *p)
{
    unsigned char b = (unsigned char)p[1], last = (unsigned char)p[2];
    unsigned cp = 0x2000u + ((b & 0x3fu) << 6) + (last & 0x3fu);
    bool odd = (cp >= 0x200b && cp <= 0x200f) || (cp >= 0x2028 && cp <= 0x202e) ||
               (cp >= 0x2060 && cp <= 0x206f);
    return odd ? cp : 0;
}

int table_put_escaped(FILE *f, const char *p)
{
    unsigned char a = (unsigned char)p[0], b = (unsigned char)p[1];
    if (a == 0x7f) {
        (void)fputs("\\u007f", f);
    } else if (a == 0xc2 && b >= 0x80 && b < 0xa0) { /* C1 */
        fprintf(f, "\\u%04x", b);
        return 2;
    } else if (a == 0xe2 && (b == 0x80 || b == 0x81) && (unsigned char)p[2] >= 0x80) {
        if (odd_character(p))
            fprintf(f, "\\u%04x", odd_character(p));
        else
            (void)fwrite(p, 1, 3, f);
        return 3;
    } else {
        (void)fputc(*p, f);
    }
    return 1;
}

/* The byte behind a string that begins at p. */
static const char *behind_string(const char *p)
{
    for (p++; *p && *p != '"'; p++) {
        if (*p == '\\' && p[1]) p++;
    }
    return *p ? p + 1 : p;
}

/* Names blue, texts green. */
static const char *look_of_string(const char *p)
{
    const char *end = behind_string(p);
    return *end == ':' ? "\033[34m" : "\033[32m";
}

void table_print_json(FILE *f, const cJSON *value)
{
    bool coloured = table_coloured(f);
    char *text = isatty(fileno(f)) ? cJSON_Print(value) : cJSON_PrintUnformatted(value);
    const char *end = NULL;
    if (!text) return;
    for (const char *p = text; *p;) {
        if (coloured && !end && *p == '"') {
            end = behind_string(p);
            (void)fputs(look_of_string(p), f);
        }
        p += table_put_escaped(f, p);
        if (!end || p < end) continue;
        (void)fputs(PLAIN, f);
        end = NULL;
    }
    (void)fputc('\n', f);
    free(text);
}
