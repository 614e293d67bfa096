/* model_packed.c -- which packed weights are a model's, and the way from one start to the next.
 *
 * The key of the file stands for the model's files as they are, and for the shape and the layout
 * of each matrix: whatever changes one of them is another key.
 */
#include <stdlib.h>
#include <string.h>

#include "engine/model/model_inside.h"
#include "engine/weight_source.h"

static void add_source(packed_key *k, const weight_source *s)
{
    uint64_t table[2];
    _Static_assert(sizeof(table) == sizeof(s->table), "two words");
    memcpy(table, s->table, sizeof(table));
    const uint64_t words[] = {(uint64_t)s->rows,           (uint64_t)s->cols, (uint64_t)s->type,
                              (uint64_t)s->group,          (uint64_t)s->bits, s->has_min,
                              (uint64_t) !!s->order,       table[0],          table[1],
                              (uint64_t)s->scale_type,     (uint64_t)s->span, (uint64_t)s->form,
                              (uint64_t)(uint8_t)s->least, !!s->floats,       (uint64_t)s->rounded,
                              (uint64_t)s->rounding};
    for (size_t i = 0; i < sizeof(words) / sizeof(words[0]); i++) packed_key_add(k, words[i]);
}

bool model_packed_plan(const model *m, packed_key *files, const weight_source *const *src, size_t n,
                       packed_plan *plan)
{
    *plan = (packed_plan){.n = n, .in_parts = m->resident_bytes > 0};
    if (!m->packed_dir) return false;
    size_t *bytes = calloc(n, sizeof(*bytes));
    if (!bytes) return false;
    for (size_t i = 0; i < n; i++) {
        uint32_t layout;
        bytes[i] = be_weight_packed_bytes(m->be, src[i], &layout);
        if (bytes[i] == 0) {
            free(bytes);
            return false;
        }
        packed_key_add(files, layout);
        packed_key_add(files, bytes[i]);
        add_source(files, src[i]);
    }
    plan->bytes = bytes;
    plan->key = packed_key_end(files);
    return true;
}

bool model_packed_open(model *m, const packed_plan *plan)
{
    if (!plan->bytes) return false;
    m->packed = packed_open(m->packed_dir, plan, m->be);
    if (!m->packed) return false;
    const uint64_t *notes = packed_notes(m->packed);
    m->cfg.head_print = notes[0];
    m->cfg.embed_print = notes[1];
    return true;
}

void model_packed_keep(model *m, const packed_plan *plan, weight *const *w)
{
    const uint64_t notes[PACKED_NOTES] = {m->cfg.head_print, m->cfg.embed_print};
    const void **data = calloc(plan->n, sizeof(*data));
    if (!data) return;
    for (size_t i = 0; i < plan->n; i++) data[i] = be_weight_packed(m->be, w[i]);
    m->keeper = packed_keep(m->packed_dir, m->packed_floor_bytes, plan, data, notes);
    free(data);
}

void model_packed_end(model *m)
{
    packed_keep_end(m->keeper);
    m->keeper = NULL;
}

void model_packed_close(model *m)
{
    packed_close(m->packed);
    m->packed = NULL;
}

bool model_packed_settled(const model *m)
{
    return !m->keeper || packed_keep_done(m->keeper);
}

bool model_packed_mapped(const model *m)
{
    return m->packed != NULL;
}
