/* copy.c -- see copy.h.
 *
 * An int8 copy lists the tensors in the order of the layout: A and B as groups [scale f32][64 x
 * int8], the last one short; the others byte for byte.  The image that it is opened to has them in
 * the same order, A and B as f32, each at a multiple of 64.
 */
#include "adapters/store/copy.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "adapters/format/validate.h"
#include "engine/program/mapping.h"

static bool packed_small(int part)
{
    return part < 2; /* A and B */
}

static uint64_t values_of(const adapter_tensor *t)
{
    return t->bytes / dtype_bytes(t->type);
}

static uint64_t small_bytes(uint64_t n)
{
    return n + (n + COPY_GROUP - 1) / COPY_GROUP * sizeof(float);
}

static uint64_t rounded(uint64_t n)
{
    return (n + 63) / 64 * 64;
}

/* n values to int8 groups; returns the end. */
static uint8_t *squeeze(uint8_t *to, const uint8_t *from, dtype type, uint64_t n)
{
    static const st_dtype types[] = {[DT_F32] = ST_F32, [DT_F16] = ST_F16, [DT_BF16] = ST_BF16};
    const st_tensor view = {
        .dtype = types[type], .count = n, .bytes = n * dtype_bytes(type), .data = from};
    for (uint64_t i = 0; i < n; i += COPY_GROUP) {
        float v[COPY_GROUP], top = 0;
        uint64_t m = n - i < COPY_GROUP ? n - i : COPY_GROUP;
        st_read_f32(&view, i, m, v);
        for (uint64_t k = 0; k < m; k++) top = fmaxf(top, fabsf(v[k]));
        float scale = top / 127, inverse = top > 0 ? 127 / top : 0;
        memcpy(to, &scale, sizeof scale);
        to += sizeof scale;
        for (uint64_t k = 0; k < m; k++) *to++ = (uint8_t)(int8_t)lrintf(v[k] * inverse);
    }
    return to;
}

static const uint8_t *stretch(float *to, const uint8_t *from, uint64_t n)
{
    for (uint64_t i = 0; i < n; i += COPY_GROUP) {
        float scale;
        uint64_t m = n - i < COPY_GROUP ? n - i : COPY_GROUP;
        memcpy(&scale, from, sizeof scale);
        from += sizeof scale;
        for (uint64_t k = 0; k < m; k++) to[i + k] = (float)(int8_t)*from++ * scale;
    }
    return from;
}

/* Rewrites the layout for the image, as the data is filled. */
static bool squeeze_all(adapter_copy *c, const uint8_t *file)
{
    uint64_t bytes = 0, image = 0;
    for (size_t slot = 0; slot < peft_slots(&c->layout.peft); slot++)
        for (int part = 0; part < ADAPTER_PARTS; part++) {
            const adapter_tensor *t = adapter_part(&c->layout.pair[slot], part);
            if (t->present) bytes += packed_small(part) ? small_bytes(values_of(t)) : t->bytes;
        }
    c->data = malloc(bytes > 0 ? (size_t)bytes : 1);
    c->bytes = bytes;
    if (!c->data) return false;
    uint8_t *to = c->data;
    for (size_t slot = 0; slot < peft_slots(&c->layout.peft); slot++)
        for (int part = 0; part < ADAPTER_PARTS; part++) {
            adapter_tensor *t = adapter_part(&c->layout.pair[slot], part);
            if (!t->present) continue;
            const uint8_t *from = file + t->offset;
            if (packed_small(part)) {
                uint8_t *spare = t->n_col > 0 ? malloc((size_t)t->bytes) : NULL;
                if (t->n_col > 0 && !spare) return false;
                if (spare) adapter_tensor_gather(t, file, spare);
                to = squeeze(to, spare ? spare : from, t->type, values_of(t));
                free(spare);
                t->n_col = 0;
                t->bytes = values_of(t) * sizeof(float);
                t->type = DT_F32;
            } else {
                memcpy(to, from, (size_t)t->bytes);
                to += t->bytes;
            }
            t->offset = image;
            image += rounded(t->bytes);
        }
    c->image_bytes = image > 0 ? image : 64;
    return true;
}

static bool inside(const adapter_layout *al, uint64_t len)
{
    for (size_t slot = 0; slot < peft_slots(&al->peft); slot++)
        for (int part = 0; part < ADAPTER_PARTS; part++) {
            const adapter_tensor *t = adapter_part(&al->pair[slot], part);
            if (t->present && (t->offset > len || adapter_tensor_span(t) > len - t->offset))
                return false;
        }
    return true;
}

adapter_copy *copy_make(adapter_layout *layout, uint8_t *file, uint64_t len, bool int8)
{
    adapter_copy *c = calloc(1, sizeof(*c));
    bool ok = c != NULL && inside(layout, len);
    if (c) {
        c->layout = *layout;
        memset(layout, 0, sizeof(*layout));
    } else {
        adapter_layout_clear(layout);
    }
    if (ok && int8) {
        ok = squeeze_all(c, file);
    } else if (ok) {
        c->data = file;
        c->bytes = len;
        file = NULL;
    }
    free(file);
    if (ok) return c;
    copy_free(c);
    return NULL;
}

adapter_copy *copy_map(adapter_layout *layout, int fd, uint64_t len)
{
    void *file = MAP_FAILED;
    adapter_copy *c = calloc(1, sizeof(*c));
    if (c && inside(layout, len))
        file = mmap(NULL, (size_t)len, PROT_READ, MAP_SHARED | MAP_POPULATE, fd, 0);
    if (file == MAP_FAILED) {
        adapter_layout_clear(layout);
        free(c);
        return NULL;
    }
    *c = (adapter_copy){.layout = *layout, .data = file, .bytes = len, .mapped = true};
    mapping_add(file, (size_t)len);
    memset(layout, 0, sizeof(*layout));
    return c;
}

void copy_free(adapter_copy *c)
{
    if (!c) return;
    adapter_layout_clear(&c->layout);
    if (c->mapped) {
        mapping_remove(c->data);
        (void)munmap(c->data, (size_t)c->bytes);
    } else {
        free(c->data);
    }
    free(c);
}

const uint8_t *copy_open(const adapter_copy *c, void **spare)
{
    *spare = NULL;
    if (c->image_bytes == 0) return c->data;
    uint8_t *image = aligned_alloc(64, (size_t)rounded(c->image_bytes));
    if (!image) return NULL;
    const uint8_t *from = c->data;
    for (size_t slot = 0; slot < peft_slots(&c->layout.peft); slot++)
        for (int part = 0; part < ADAPTER_PARTS; part++) {
            const adapter_tensor *t = adapter_part(&c->layout.pair[slot], part);
            if (!t->present) continue;
            void *to = image + t->offset;
            if (packed_small(part)) {
                from = stretch(to, from, values_of(t));
            } else {
                memcpy(to, from, (size_t)t->bytes);
                from += t->bytes;
            }
        }
    *spare = image;
    return image;
}
