/* view_layout.c -- which columns of a table stand where, and what a tree's groups add up to.
 *
 * Columns are put from the left as long as they fit. The first one always stays; `shift` skips
 * those behind it, hidden ones take no room, and a column that the table calls wide gets what is
 * left at the end.
 *
 * In a tree, rows are sorted by tenant, so a group is a run of rows that a binary search finds.
 * Its sum is made when it is drawn; only members that the table calls SUM_MEMBER are added.
 */
#include <stdlib.h>
#include <string.h>

#include "tui/top/view.h"

void view_lay_out(const view *v, int table, int cols, view_layout *out)
{
    int n, x = 0, skip = v->table[table].shift, wide = -1;
    const view_column *c = view_columns(table, &n);
    *out = (view_layout){0};
    for (int i = 0; i < n; i++) {
        if (v->table[table].hidden >> i & 1U) continue;
        if (out->n > 0 && skip-- > 0) continue;
        if (x + c[i].width > cols) {
            out->more = true;
            break;
        }
        if (c[i].wide) wide = out->n;
        out->at[out->n].column = i;
        out->at[out->n].x = x;
        out->at[out->n++].width = c[i].width;
        x += c[i].width + 1;
    }
    int spare = cols - x;
    if (wide < 0 || spare <= 0) return;
    out->at[wide].width += spare;
    for (int i = wide + 1; i < out->n; i++) out->at[i].x += spare;
}

/* ------------------------------------------------------------------------- groups -- */

static const char *tenant_at(view *v, int table, size_t i)
{
    return view_tenant_of(table, rowset_row(view_rows(v, table), v->table[table].sorted[i]));
}

/* They stand together, the groups in the order of their names. */
void view_group(view *v, int table, const char *tenant, size_t *first, size_t *n)
{
    size_t lo = 0, hi = v->table[table].n_sorted;
    while (lo < hi) {
        size_t mid = lo + (hi - lo) / 2;
        if (strcmp(tenant_at(v, table, mid), tenant) < 0)
            lo = mid + 1;
        else
            hi = mid;
    }
    *first = lo;
    while (hi < v->table[table].n_sorted && strcmp(tenant_at(v, table, hi), tenant) == 0) hi++;
    *n = hi - lo;
}

static int fold_at(const table_view *t, const char *tenant)
{
    int i = 0;
    while (i < t->n_closed && strcmp(t->closed[i], tenant) != 0) i++;
    return i;
}

bool view_is_folded(const table_view *t, const char *tenant)
{
    return fold_at(t, tenant) < t->n_closed;
}

void view_fold(view *v, int table, const char *tenant)
{
    table_view *t = &v->table[table];
    int at = fold_at(t, tenant);
    t->stale = true;
    if (at < t->n_closed) {
        memmove(t->closed[at], t->closed[t->n_closed - 1], sizeof(t->closed[0]));
        t->n_closed--;
        return;
    }
    void *more = realloc(t->closed, ((size_t)t->n_closed + 1) * sizeof(t->closed[0]));
    if (!more) return;
    t->closed = more;
    size_t len = strnlen(tenant, sizeof(t->closed[0]) - 1);
    memcpy(t->closed[t->n_closed], tenant, len);
    t->closed[t->n_closed++][len] = 0;
}

static void add_member(void *sum, const void *row, size_t member)
{
    int64_t a, b;
    memcpy(&a, (const char *)sum + member, sizeof(a));
    memcpy(&b, (const char *)row + member, sizeof(b));
    a += b;
    memcpy((char *)sum + member, &a, sizeof(a));
}

void view_group_sum(view *v, int table, size_t first, size_t n, void *row, row_side *side)
{
    int n_column;
    const view_column *c = view_columns(table, &n_column);
    const rowset *r = view_rows(v, table);
    memset(row, 0, VIEW_ROW_BYTES);
    *side = (row_side){0};
    for (size_t k = first; k < first + n; k++) {
        uint32_t i = v->table[table].sorted[k];
        side->rate += r->side[i].rate;
        for (int e = 0; e < ROW_EVENTS; e++) side->events[e] += r->side[i].events[e];
        for (int x = 0; x < n_column; x++) {
            if (c[x].sum == SUM_MEMBER) add_member(row, rowset_row(r, i), c[x].member);
        }
    }
}
