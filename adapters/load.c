/* load.c -- see load.h.
 *
 * Files are read whole with pread() and hashed against the digest before a single weight is used: a
 * disk that rots fails the request, not the answer.
 */
#include "adapters/load.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "storage/digest.h"

void adapter_load_clear(adapter_load *ld)
{
    if (ld->slab != NULL) be_free(ld->be, ld->slab);
    extras_clear(&ld->extras, ld->be);
    free(ld->mat);
    adapter_layout_clear(&ld->layout);
    if (ld->dir_fd >= 0) close(ld->dir_fd);
    registry_release(ld->reg, ld->v);
}

/* Everything but the weights: the pin, the config, the header, the packed size. */
err_code adapter_load_begin(adapter_load *ld, registry *reg, backend *be, const model_config *base,
                            const model *weights, uint64_t id, err *e)
{
    char path[4200];
    *ld = (adapter_load){.reg = reg, .be = be, .base = base, .weights = weights, .dir_fd = -1};
    err_code code = registry_acquire_id(ld->reg, id, &ld->v, e);
    if (code != ERR_NONE) return code;
    registry_path(ld->reg, ld->v->digest, path, sizeof path);
    ld->dir_fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (ld->dir_fd < 0)
        return err_set(e, ERR_IO, "the files of %s@%d cannot be read", ld->v->name, ld->v->version);
    code = validate_adapter(ld->dir_fd, ld->base, 0, false, &ld->layout, e);
    if (code != ERR_NONE) return err_context(e, "%s@%d", ld->v->name, ld->v->version);
    ld->bytes = adapter_packed_bytes(&ld->layout, ld->base, ld->be);
    ld->rank_max = ld->layout.peft.rank_max;
    return ERR_NONE;
}

static err_code read_file(int dir_fd, const char *name, uint8_t **out, size_t *len, err *e)
{
    *out = NULL;
    *len = 0;
    int fd = openat(dir_fd, name, O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
    if (fd < 0) return err_set(e, ERR_IO, "%s cannot be read", name);
    off_t size = lseek(fd, 0, SEEK_END);
    uint8_t *p = size >= 0 ? malloc((size_t)size + 1) : NULL;
    size_t n = 0;
    while (p != NULL && n < (size_t)size) {
        ssize_t got = pread(fd, p + n, (size_t)size - n, (off_t)n);
        if (got < 0 && errno == EINTR) continue;
        if (got <= 0) break;
        n += (size_t)got;
    }
    close(fd);
    if (p == NULL) return err_set(e, ERR_NOMEM, "out of memory");
    if (n != (size_t)size) {
        free(p);
        return err_set(e, ERR_IO, "%s cannot be read", name);
    }
    *out = p;
    *len = n;
    return ERR_NONE;
}

/* The whole content in memory, once it is known to be what was published. */
static err_code read_checked(const adapter_load *ld, uint8_t **weights, size_t *len, err *e)
{
    uint8_t *config = NULL, got[DIGEST_BYTES];
    size_t n_config = 0;
    *weights = NULL;
    err_code code = read_file(ld->dir_fd, "adapter_config.json", &config, &n_config, e);
    if (code == ERR_NONE)
        code = read_file(ld->dir_fd, "adapter_model.safetensors", weights, len, e);
    if (code == ERR_NONE) {
        adapter_digest(config, n_config, *weights, *len, got);
        if (!digest_same(got, ld->v->digest, DIGEST_BYTES))
            code = err_set(e, ERR_CORRUPT, "the stored files of %s@%d have changed on the disk",
                           ld->v->name, ld->v->version);
    }
    free(config);
    return code;
}

/* A pointer to the tensor that its type's alignment allows to read: into the file's copy in memory,
 * or *spare (the caller frees). */
static const void *aligned(const uint8_t *file, const adapter_tensor *t, void **spare)
{
    const uint8_t *p = file + t->offset;
    if ((uintptr_t)p % dtype_bytes(t->type) == 0) return p;
    *spare = malloc((size_t)t->bytes);
    if (*spare != NULL) memcpy(*spare, p, (size_t)t->bytes);
    return *spare;
}

static err_code pack_pair(const adapter_load *ld, const adapter_pair *pair, const uint8_t *file,
                          int rank, int d_in, int d_out, void *a_dst, void *b_dst, err *e)
{
    void *spare_a = NULL, *spare_b = NULL;
    const void *a = aligned(file, &pair->a, &spare_a);
    const void *b = aligned(file, &pair->b, &spare_b);
    err_code code = a != NULL && b != NULL ? be_lora_pack(ld->be, ld->base->type, a_dst, b_dst, a,
                                                          b, pair->a.type, rank, d_in, d_out, e)
                                           : err_set(e, ERR_NOMEM, "out of memory");
    free(spare_a);
    free(spare_b);
    return code;
}

static err_code pack_all(adapter_load *ld, const uint8_t *file, size_t len, err *e)
{
    size_t n_mat = (size_t)ld->base->n_layer * PROJ_COUNT, at = 0;
    ld->mat = calloc(n_mat, sizeof *ld->mat);
    ld->slab = be_alloc(ld->be, (size_t)(ld->bytes - extras_bytes(&ld->layout, ld->base, ld->be)));
    if (ld->mat == NULL || ld->slab == NULL)
        return err_set(e, ERR_NOMEM, "no memory for an adapter of %llu bytes",
                       (unsigned long long)ld->bytes);
    err_code code = ERR_NONE;
    for (size_t i = 0; i < n_mat && code == ERR_NONE; i++) {
        const adapter_pair *pair = &ld->layout.pair[i];
        const peft_layer *pl = &ld->layout.peft.layer[i];
        if (!pl->wrapped) continue;
        if (pair->a.offset + pair->a.bytes > len || pair->b.offset + pair->b.bytes > len)
            return err_set(e, ERR_CORRUPT, "the adapter's file became shorter");
        int d_out, d_in;
        model_proj_shape(ld->base, (proj)(i % PROJ_COUNT), &d_out, &d_in);
        lora_mat *m = &ld->mat[i];
        uint8_t *slab = ld->slab;
        m->a = slab + at;
        at += adapter_padded(be_lora_a_bytes(ld->be, ld->base->type, pl->rank, d_in));
        m->b = slab + at;
        at += adapter_padded(be_lora_b_bytes(ld->be, ld->base->type, pl->rank, d_out));
        m->rank = pl->rank;
        m->scale = pl->scale;
        code = pack_pair(ld, pair, file, pl->rank, d_in, d_out, (void *)m->a, (void *)m->b, e);
    }
    return code;
}

err_code adapter_load_weights(adapter_load *ld, err *e)
{
    uint8_t *file = NULL;
    size_t len = 0;
    err_code code = read_checked(ld, &file, &len, e);
    if (code == ERR_NONE) code = pack_all(ld, file, len, e);
    if (code == ERR_NONE)
        code =
            extras_make(&ld->extras, &ld->layout, ld->base, ld->weights, ld->be, file, ld->mat, e);
    free(file);
    return code;
}
