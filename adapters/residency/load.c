/* load.c -- reads one adapter version and packs it into chunks of the arena.
 *
 *   adapter_load_begin()  pin the version, validate the header, count the chunks and the extra
 *                         bytes
 *   adapter_load_read()   read the files whole, hash them, compare with the digest of publication
 *   adapter_load_pack()   convert A and B to the backend's layout, piece by piece, into the chunks
 *
 * No weight is used before the digest matches: a damaged disk fails the request, never changes an
 * answer.
 *
 * A matrix may span chunks. It is cut between groups of A_ROWS rows of A, or blocks of columns of
 * B, and lora_split lists the addresses of the later parts; count_chunks() makes the same walk
 * without data (fit(), advance()). Biases, whole tables and gains are elsewhere (extras.c) and are
 * also paid for in chunks.
 *
 * After packing, the copy in host memory is replaced by the packed form if that is not much larger
 * (compact()): the next load is then a copy.
 *
 * A stack is loaded like one adapter whose file is joined from its parts (stacked.h). Threads: a
 * loader thread, without residency's lock. Copies to the device keep within the pace of the steps
 * (pace_begin()).
 */
#include "adapters/residency/load.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "adapters/format/extent.h"
#include "adapters/format/words.h"
#include "adapters/residency/stacked.h"
#include "storage/digest.h"

enum { PIECE_ALIGN = 64, A_ROWS = 4 /* of A stay together: kernels take so many at a time */ };
enum { READ_PIECE = 256 * 1024 };

void adapter_load_clear(adapter_load *ld)
{
    if (!ld->env) return;
    for (int i = 0; ld->part && i < ld->stack->n; i++) adapter_load_clear(&ld->part[i]);
    free(ld->part);
    extras_clear(&ld->extras, ld->env->be);
    free(ld->mat);
    if (ld->own_copy) copy_free(ld->copy);
    adapter_layout_clear(&ld->layout);
    if (ld->dir_fd >= 0) close(ld->dir_fd);
    registry_release(ld->env->reg, ld->v);
    if (ld->stack) stacks_release(ld->env->stacks, ld->stack);
}

const uint8_t *adapter_load_digest(const adapter_load *ld)
{
    return ld->stack ? ld->stack->digest : ld->v->digest;
}

/* A published version is invalid now: an error of the server, not of the request. */
static err_code of_own_files(const adapter_load *ld, err_code rc, err *e)
{
    bool content = rc == ERR_INPUT || rc == ERR_CORRUPT || rc == ERR_UNSUPPORTED ||
                   rc == ERR_LIMIT || rc == ERR_NOT_FOUND;
    if (!rc || !content) return rc;
    e->code = ERR_DAMAGED;
    return err_context(e, "the stored files of %s@%d are damaged", ld->v->name, ld->v->version);
}

static int count_chunks(const adapter_layout *al, const model_config *base, const backend *be,
                        size_t chunk_bytes);

static const adapter_layout *layout_of(const adapter_load *ld)
{
    return ld->copy != NULL ? &ld->copy->layout : &ld->layout;
}

/* Pins a version; reads its header, unless there is a copy. */
static err_code open_version(adapter_load *ld, uint64_t id, err *e)
{
    char path[4200];
    const load_env *env = ld->env;
    err_code rc = registry_acquire_id(env->reg, id, &ld->v, e);
    if (rc || ld->copy) return rc;
    registry_path(env->reg, ld->v->digest, path, sizeof path);
    ld->dir_fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (ld->dir_fd < 0)
        return err_set(e, ERR_IO, "the files of %s@%d cannot be read", ld->v->name, ld->v->version);
    rc = validate_adapter(ld->dir_fd, env->base, 0, false, &ld->layout, e);
    return of_own_files(ld, rc, e);
}

/* The same for all parts of a stack. */
static err_code open_stack(adapter_load *ld, uint64_t id, err *e)
{
    const adapter_layout *layout[STACK_PARTS_MAX];
    const load_env *env = ld->env;
    if (!env->stacks) return err_set(e, ERR_NOT_FOUND, "this server has no stacks");
    err_code rc = stacks_acquire_id(env->stacks, id, &ld->stack, e);
    if (rc || ld->copy) return rc;
    ld->part = calloc((size_t)ld->stack->n, sizeof(*ld->part));
    if (!ld->part) return err_set(e, ERR_NOMEM, "no memory for a stack");
    for (int i = 0; i < ld->stack->n && !rc; i++) {
        adapter_load *p = &ld->part[i];
        *p = (adapter_load){.env = env, .dir_fd = -1, .given_fd = -1};
        rc = open_version(p, ld->stack->part[i].v->id, e);
        if (!rc) rc = stacked_check(&p->layout, env->base, e);
        if (rc == ERR_UNSUPPORTED) (void)err_context(e, "%s@%d", p->v->name, p->v->version);
        layout[i] = &p->layout;
    }
    return rc ? rc : stacked_layout(layout, ld->stack->n, env->base, &ld->layout, e);
}

err_code adapter_load_begin(adapter_load *ld, const load_env *env, uint64_t id, adapter_copy *copy,
                            err *e)
{
    *ld = (adapter_load){.env = env, .copy = copy, .dir_fd = -1, .given_fd = -1};
    err_code rc = stacks_is(id) ? open_stack(ld, id, e) : open_version(ld, id, e);
    if (rc) return rc;
    ld->n_chunks = count_chunks(layout_of(ld), env->base, env->be, env->chunk_bytes);
    /* Whole tables and biases are stored outside of chunks.  They are counted in chunks, too, so
     * that the arena's budget limits them. */
    uint64_t extra = extent_bytes(layout_of(ld), env->base, env->be);
    if (ld->n_chunks > 0 && extra / env->chunk_bytes < INT32_MAX / 2)
        ld->n_chunks += (int)((extra + env->chunk_bytes - 1) / env->chunk_bytes);
    ld->rank_max = layout_of(ld)->peft.rank_max;
    ld->n_expert = layout_of(ld)->peft.n_expert;
    ld->n_vocab = layout_of(ld)->n_vocab != env->base->n_vocab ? layout_of(ld)->n_vocab : 0;
    return ld->n_chunks > 0
               ? ERR_NONE
               : err_set(e, ERR_LIMIT, "the matrices of %s@%d are too large for this server",
                         ld->v ? ld->v->name : "a stack", ld->v ? ld->v->version : 1);
}

/* Reads a file whole.  The system reads ahead while what has come is hashed. */
static err_code read_file(int dir_fd, const char *name, uint8_t **out, uint64_t *len,
                          uint8_t sha[DIGEST_BYTES], err *e)
{
    *out = NULL;
    *len = 0;
    int fd = openat(dir_fd, name, O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
    if (fd < 0) return err_set(e, ERR_IO, "%s cannot be read", name);
    off_t size = lseek(fd, 0, SEEK_END);
    uint8_t *p = size >= 0 ? malloc((size_t)size + 1) : NULL;
    digest_state d;
    digest_begin(&d);
    size_t n = 0;
    (void)posix_fadvise(fd, 0, size, POSIX_FADV_WILLNEED);
    while (p && n < (size_t)size) {
        size_t left = (size_t)size - n;
        ssize_t got = pread(fd, p + n, left < READ_PIECE ? left : READ_PIECE, (off_t)n);
        if (got < 0 && errno == EINTR) continue;
        if (got <= 0) break;
        digest_add(&d, p + n, (size_t)got);
        n += (size_t)got;
    }
    digest_end(&d, sha);
    close(fd);
    if (!p) return err_set(e, ERR_NOMEM, "out of memory");
    if (n != (size_t)size) {
        free(p);
        return err_set(e, ERR_IO, "%s cannot be read", name);
    }
    *out = p;
    *len = n;
    return ERR_NONE;
}

/* The whole content in memory, once it is known to be what was published. */
static err_code read_checked(const adapter_load *ld, uint8_t **weights, uint64_t *len, err *e)
{
    uint8_t *config = NULL, sha[2][DIGEST_BYTES], got[DIGEST_BYTES];
    uint64_t bytes[2] = {0};
    *weights = NULL;
    err_code rc = read_file(ld->dir_fd, "adapter_config.json", &config, &bytes[0], sha[0], e);
    if (!rc) rc = read_file(ld->dir_fd, "adapter_model.safetensors", weights, &bytes[1], sha[1], e);
    if (!rc) {
        char *text = NULL;
        if (ld->v->has_words)
            rc = adapter_rows_words(registry_store(ld->env->reg), ld->v->id, &text, e);
        adapter_digest(bytes, (const uint8_t(*)[DIGEST_BYTES])sha, text, got);
        free(text);
        if (!rc && !digest_same(got, ld->v->digest, DIGEST_BYTES))
            rc = err_set(e, ERR_DAMAGED, "the stored files of %s@%d have changed on the disk",
                         ld->v->name, ld->v->version);
    }
    free(config);
    *len = bytes[1];
    return rc;
}

/* The tensor's values, contiguous and aligned for their type: in the file's copy, or in *spare,
 * which the caller frees. */
static const void *aligned(const uint8_t *file, const adapter_tensor *t, void **spare)
{
    const uint8_t *p = file + t->offset;
    if (t->n_col == 0 && (uintptr_t)p % dtype_bytes(t->type) == 0) return p;
    *spare = malloc((size_t)t->bytes);
    if (*spare) adapter_tensor_gather(t, file, *spare);
    return *spare;
}

/* ---- pieces ------------------------------------------------------------------------------- */

/* Position of the next piece: offset `at` in chunk number `chunk`. */
typedef struct walk {
    size_t chunk_bytes, at;
    int chunk;
} walk;

/* Units of a matrix (rows of A, blocks of columns of B) that fit here, `unit` bytes each; goes on
 * to the next chunk when not even `least` do. */
static int fit(walk *w, size_t unit, int left, int least)
{
    size_t room = w->chunk_bytes - w->at;
    assert(unit > 0 && left > 0 && least > 0);
    if (least > left) least = left;
    if (room < unit * (size_t)least) {
        w->chunk++;
        w->at = 0;
        room = w->chunk_bytes;
    }
    size_t n = room / unit;
    if (n >= (size_t)left) return left;
    return (int)(n / (size_t)least) * least;
}

static void advance(walk *w, size_t bytes)
{
    w->at += (bytes + PIECE_ALIGN - 1) / PIECE_ALIGN * PIECE_ALIGN;
    if (w->at > w->chunk_bytes) w->at = w->chunk_bytes;
}

static int block_cols(const backend *be)
{
    return be_caps(be)->lora_cols > 0 ? be_caps(be)->lora_cols : 1;
}

size_t adapter_chunk_least(const model_config *base, const backend *be)
{
    size_t least = 0;
    for (int p = 0; p < PROJ_COUNT; p++) {
        int d_out, d_in;
        model_proj_shape(base, (proj)p, &d_out, &d_in);
        if (d_in == 0) continue; /* none in this base */
        dtype type = model_proj_type(base, (proj)p);
        size_t rows = be_lora_a_bytes(be, type, A_ROWS, d_in);
        size_t block = be_lora_b_bytes(be, type, LORA_RANK_MAX, block_cols(be));
        if (block > rows) rows = block;
        if (rows > least) least = rows;
        if (base->experts.route.n == 0) continue;
        int ffn = base->experts.ffn_dim > base->experts.shared_dim ? base->experts.ffn_dim
                                                                   : base->experts.shared_dim;
        rows = be_lora_a_bytes(be, base->type, A_ROWS, ffn);
        if (rows > least) least = rows;
    }
    return (least + PIECE_ALIGN - 1) / PIECE_ALIGN * PIECE_ALIGN;
}

/* Chunks that an adapter takes; 0: it cannot be cut into such small ones. */
static int count_chunks(const adapter_layout *al, const model_config *base, const backend *be,
                        size_t chunk_bytes)
{
    walk w = {.chunk_bytes = chunk_bytes};
    int cols = block_cols(be);
    for (size_t slot = 0; slot < peft_slots(&al->peft); slot++) {
        const peft_layer *pl = &al->peft.layer[slot];
        int d_out, d_in;
        if (!pl->wrapped || !peft_in_layer(base->n_layer, slot)) continue;
        peft_slot_shape(base, slot, &d_out, &d_in);
        dtype type = extent_pack_type(al, base, slot);
        size_t row = be_lora_a_bytes(be, type, 1, d_in);
        size_t block = be_lora_b_bytes(be, type, pl->rank, cols);
        if (A_ROWS * row > chunk_bytes || block > chunk_bytes) return 0;
        for (int left = pl->rank, n; left > 0; left -= n) {
            n = fit(&w, row, left, A_ROWS);
            advance(&w, (size_t)n * row);
        }
        for (int left = (d_out + cols - 1) / cols, n; left > 0; left -= n) {
            n = fit(&w, block, left, 1);
            advance(&w, (size_t)n * block);
        }
    }
    return w.chunk + 1;
}

/* One adapter's packing under way; without a file only the addresses are found.  The block behind
 * `mat` holds the matrices, then a lora_split for each chunk border that may cut one, then the
 * addresses of what is behind the borders. */
typedef struct packing {
    const adapter_load *ld;
    const uint8_t *file;
    void *const *chunk;
    walk w;
    dtype type; /* that the module at hand is packed beside */
    lora_mat *mat;
    lora_split *split;
    const void **more;
} packing;

static char *place(const packing *p)
{
    return (char *)p->chunk[p->w.chunk] + p->w.at;
}

static lora_split *split_of(packing *p, lora_mat *m)
{
    if (!m->split) m->split = p->split++;
    return (lora_split *)m->split;
}

static err_code pack_a(packing *p, lora_mat *m, const void *src, dtype type, int d_in, err *e)
{
    const load_env *env = p->ld->env;
    size_t row = be_lora_a_bytes(env->be, p->type, 1, d_in);
    err_code rc = ERR_NONE;
    for (int done = 0, n; done < m->rank && !rc; done += n) {
        n = fit(&p->w, row, m->rank - done, A_ROWS);
        char *to = place(p);
        if (done == 0) {
            m->a = to;
            if (n < m->rank) {
                lora_split *sp = split_of(p, m);
                sp->a_first = n;
                sp->a_each = (int)(env->chunk_bytes / row) / A_ROWS * A_ROWS;
                sp->a = p->more;
            }
        } else {
            *p->more++ = to;
        }
        if (src) {
            const char *from = (const char *)src + (size_t)done * (size_t)d_in * dtype_bytes(type);
            int64_t begun_us = pace_begin(env->pace, (size_t)n * row, p->ld->hint);
            rc = be_lora_pack(env->be, p->type, to, NULL, from, NULL, type, n, d_in, 1, e);
            pace_end(env->pace, (size_t)n * row, begun_us);
        }
        advance(&p->w, (size_t)n * row);
    }
    return rc;
}

/* B in blocks of columns, as many as fit a chunk; a matrix that goes over chunks gets a
 * lora_split, by which kernels find each piece. src NULL: only the places. Each piece asks the
 * pace first. */
static err_code pack_b(packing *p, lora_mat *m, const void *src, dtype type, int d_out, err *e)
{
    const load_env *env = p->ld->env;
    int cols = block_cols(env->be), blocks = (d_out + cols - 1) / cols;
    size_t block = be_lora_b_bytes(env->be, p->type, m->rank, cols);
    err_code rc = ERR_NONE;
    for (int done = 0, n; done < blocks && !rc; done += n) {
        n = fit(&p->w, block, blocks - done, 1);
        char *to = place(p);
        if (done == 0) {
            m->b = to;
            if (m->split || n < blocks) {
                lora_split *sp = split_of(p, m);
                sp->b_first = n * cols;
                sp->b_each = (int)(env->chunk_bytes / block) * cols;
                sp->b = p->more;
            }
        } else {
            *p->more++ = to;
        }
        int col = done * cols, end = col + n * cols < d_out ? col + n * cols : d_out;
        if (src) {
            const char *from =
                (const char *)src + (size_t)col * (size_t)m->rank * dtype_bytes(type);
            int64_t begun_us = pace_begin(env->pace, (size_t)n * block, p->ld->hint);
            rc = be_lora_pack(env->be, p->type, NULL, to, NULL, from, type, m->rank, 1, end - col,
                              e);
            pace_end(env->pace, (size_t)n * block, begun_us);
        }
        advance(&p->w, (size_t)n * block);
    }
    return rc;
}

static err_code pack_pair(packing *p, size_t slot, err *e)
{
    const adapter_layout *al = layout_of(p->ld);
    const adapter_pair *pair = &al->pair[slot];
    int d_out, d_in;
    peft_slot_shape(p->ld->env->base, slot, &d_out, &d_in);
    lora_mat *m = &p->mat[peft_mat(al->peft.n_layer, slot)];
    p->type = extent_pack_type(al, p->ld->env->base, slot);
    m->rank = al->peft.layer[slot].rank;
    m->scale = al->peft.layer[slot].scale;
    void *spare_a = NULL, *spare_b = NULL;
    const void *a = NULL, *b = NULL;
    err_code rc = ERR_NONE;
    if (p->file) {
        a = aligned(p->file, &pair->a, &spare_a);
        b = aligned(p->file, &pair->b, &spare_b);
        if (!a || !b) rc = err_set(e, ERR_NOMEM, "no memory for an adapter");
    }
    if (!rc) rc = pack_a(p, m, a, pair->a.type, d_in, e);
    if (!rc) rc = pack_b(p, m, b, pair->b.type, d_out, e);
    if (m->split && !m->split->a) split_of(p, m)->a_first = m->rank; /* whole */
    free(spare_a);
    free(spare_b);
    return rc;
}

/* Bytes of the i-th chunk in a copy of `bytes`. */
static size_t piece_of(uint64_t bytes, size_t chunk_bytes, int i)
{
    uint64_t left = bytes - (uint64_t)i * chunk_bytes;
    return left < chunk_bytes ? (size_t)left : chunk_bytes;
}

static err_code upload_chunks(const adapter_load *ld, void *const *chunk)
{
    const adapter_copy *c = ld->copy;
    err_code rc = ERR_NONE;
    for (int i = 0; (uint64_t)i * c->chunk_bytes < c->bytes && !rc; i++) {
        size_t bytes = piece_of(c->bytes, c->chunk_bytes, i);
        int64_t begun_us = pace_begin(ld->env->pace, bytes, ld->hint);
        rc = be_upload(ld->env->be, chunk[i], c->data + (size_t)i * c->chunk_bytes, bytes);
        pace_end(ld->env->pace, bytes, begun_us);
    }
    return rc;
}

/* What is in the chunks now takes the place of the file's content in the copy, unless that would be
 * much larger, or there is more to make of the file than chunks. */
static void compact(adapter_load *ld, void *const *chunk, uint64_t bytes)
{
    adapter_copy *c = ld->copy;
    const load_env *env = ld->env;
    if (!env->keep || !ld->own_copy || c->mapped || c->image_bytes > 0 ||
        bytes > c->bytes + c->bytes / 4 * 3)
        return;
    if (extent_bytes(&c->layout, env->base, env->be) > 0) return;
    uint8_t *data = malloc((size_t)bytes);
    err_code rc = data != NULL ? ERR_NONE : ERR_NOMEM;
    for (int i = 0; (uint64_t)i * env->chunk_bytes < bytes && !rc; i++) {
        rc = be_download(env->be, data + (size_t)i * env->chunk_bytes, chunk[i],
                         piece_of(bytes, env->chunk_bytes, i));
    }
    if (rc) {
        free(data);
        return;
    }
    free(c->data);
    c->data = data;
    c->bytes = bytes;
    c->chunk_bytes = env->chunk_bytes;
}

/* Fills the matrices and, unless the copy is packed, the chunks. */
static err_code pack_layers(adapter_load *ld, packing *p, err *e)
{
    const load_env *env = ld->env;
    const peft_config *pc = &layout_of(ld)->peft;
    err_code rc = ERR_NONE;
    for (size_t slot = 0; slot < peft_slots(pc) && !rc; slot++)
        if (pc->layer[slot].wrapped && peft_in_layer(pc->n_layer, slot)) rc = pack_pair(p, slot, e);
    if (rc || !p->file) return rc;
    return extras_make(&ld->extras, layout_of(ld), env->base, env->weights, env->be, p->file,
                       ld->mat, env->pace, ld->hint, e);
}

err_code adapter_load_pack(adapter_load *ld, void *const *chunk, err *e)
{
    const load_env *env = ld->env;
    const adapter_copy *c = ld->copy;
    const peft_config *pc = &layout_of(ld)->peft;
    size_t n_mat = peft_mat(pc->n_layer, peft_slots(pc)), n = (size_t)ld->n_chunks;
    void *spare = NULL;
    const uint8_t *file = NULL;
    ld->mat = calloc(1, n_mat * sizeof(lora_mat) + n * (sizeof(lora_split) + sizeof(void *)));
    if (c->chunk_bytes == 0) file = copy_open(c, &spare);
    if (!ld->mat || (!file && c->chunk_bytes == 0)) {
        free(spare);
        return err_set(e, ERR_NOMEM, "no memory for an adapter");
    }
    packing p = {.ld = ld,
                 .file = file,
                 .chunk = chunk,
                 .w = {.chunk_bytes = env->chunk_bytes},
                 .mat = ld->mat,
                 .split = (lora_split *)(void *)(ld->mat + n_mat)};
    p.more = (const void **)(void *)(p.split + n);
    err_code rc = pack_layers(ld, &p, e);
    free(spare);
    if (rc) return rc;
    if (c->chunk_bytes == 0)
        compact(ld, chunk, (uint64_t)p.w.chunk * env->chunk_bytes + p.w.at);
    else if (upload_chunks(ld, chunk) != ERR_NONE)
        rc = err_set(e, ERR_IO, "the device took no copy of an adapter");
    return rc;
}

/* The file that a stack would have, of those of its parts. */
static err_code join_parts(const adapter_load *ld, uint8_t **out, uint64_t *len, err *e)
{
    const model_config *base = ld->env->base;
    int *row0 = calloc(peft_slots(&ld->layout.peft), sizeof(*row0));
    *len = ld->layout.file_bytes;
    *out = malloc((size_t)*len + 1);
    err_code rc = row0 && *out ? ERR_NONE : err_set(e, ERR_NOMEM, "no memory for a stack");
    for (int i = 0; i < ld->stack->n && !rc; i++) {
        const adapter_load *p = &ld->part[i];
        uint8_t *file = NULL;
        uint64_t bytes = 0;
        rc = read_checked(p, &file, &bytes, e);
        if (!rc && !stacked_add(&ld->layout, *out, &p->layout, file, bytes,
                                ld->stack->part[i].scale, row0, base))
            rc = err_set(e, ERR_DAMAGED, "the file of %s@%d is too short", p->v->name,
                         p->v->version);
        free(file);
    }
    free(row0);
    return rc;
}

err_code adapter_load_read(adapter_load *ld, err *e)
{
    uint8_t *file = NULL;
    uint64_t len = 0;
    if (ld->copy) return ERR_NONE;
    err_code rc = ERR_NONE;
    if (ld->given_fd < 0)
        rc = ld->stack ? join_parts(ld, &file, &len, e) : read_checked(ld, &file, &len, e);
    if (rc) {
        free(file);
        return rc;
    }
    ld->copy = file ? copy_make(&ld->layout, file, len, ld->env->int8)
                    : copy_map(&ld->layout, ld->given_fd, ld->n_given);
    ld->own_copy = ld->copy != NULL;
    return ld->copy != NULL ? ERR_NONE
                            : err_set(e, ERR_DAMAGED, "%s@%d cannot be kept: its file is too short",
                                      ld->v ? ld->v->name : "a stack", ld->v ? ld->v->version : 1);
}
