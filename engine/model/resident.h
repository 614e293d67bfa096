/* resident.h -- serves packed weights that are larger than memory from the disk, within a budget.
 *
 * The mapped file of packed weights (engine/model/packed.h) is cut into blocks: the matrices of one
 * layer without its experts, each expert of a layer, and the output layer.  A step uses the blocks
 * of layers in the same order each time.  Of such a cycle any LRU cache smaller than the cycle
 * holds nothing that the next step needs.  So a fixed set of blocks stays in memory, spread evenly
 * over the layers, and the others are streamed: while one is used, a thread reads the next one and
 * drops the one before.  The disk then also works while layers that stay are computed.
 *
 * Which experts a step uses is known only after the router.  They are read then, and the most
 * frequently used ones stay: each use adds to an expert's count, and counts decay with each step
 * (LFU with aging).  An expert that was read replaces the one with the lowest count if its own is
 * higher.
 *
 * Resident bytes never exceed the budget, except for a step with several rows on a model with
 * experts: it may need all experts of a layer at once, so the bound is the budget plus one layer.
 * The system's read-ahead (read_ahead_kb of the disk) comes on top of it, until it is dropped.
 * The budget covers the packed matrices alone: not the KV pages, adapters, norms, scratch, nor the
 * rows of the input table in use, which stay in the model's own file.
 *
 * Results do not depend on it: the same bytes are read through the same mapping.  A thread that
 * reads a block that is not in memory (an adapter with DoRA that is being loaded) waits for the
 * disk in a page fault.
 *
 * Ownership: borrows the mapping and its descriptor until resident_destroy().
 * Threads:   resident_use() and resident_experts() on the engine thread, resident_count() on any.
 * Source:    O'Neil et al. 1993 on LRU and cyclic scans; Eliseev, Mazur 2023, arXiv:2312.17238, on
 *            caches of experts.
 */
#ifndef ENGINE_MODEL_RESIDENT_H
#define ENGINE_MODEL_RESIDENT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "engine/base/err.h"

/* Sizes of a model's blocks, in bytes. */
typedef struct resident_sizes {
    int n_block;         /* layers, and the output layer, which is the last block */
    const size_t *block; /* [n_block]; 0: a block without matrices */
    int n_expert, top_k; /* of a layer; of a row.  0: the model has no experts */
    size_t expert;       /* bytes of the largest expert */
    size_t experts;      /* bytes of all experts of all layers */
    int expert_layers;   /* layers with experts */
} resident_sizes;

/* How a budget is divided. */
typedef struct resident_plan {
    size_t kept;        /* bytes of blocks that stay */
    size_t window;      /* bytes of the largest two streamed blocks in a row */
    size_t experts;     /* bytes of experts that may stay between steps */
    size_t streamed;    /* bytes of streamed blocks: each step reads them */
    double token_bytes; /* expected reads of a step with one row, experts at random */
} resident_plan;

/* Divides `budget` bytes; stream[n_block] says which blocks are streamed (NULL: not needed).
 * ERR_INPUT names the smallest budget.  Any thread; pure. */
err_code resident_divide(const resident_sizes *s, size_t budget, resident_plan *out, bool *stream,
                         err *e);

typedef struct resident_run {
    size_t at, bytes; /* in the mapping; at is a multiple of the page size; bytes 0: none */
} resident_run;

typedef struct resident resident;

/* The file and its blocks. */
typedef struct resident_file {
    char *map;
    int fd;
    size_t bytes;               /* of the mapping */
    int n_block, n_expert;      /* as in resident_sizes */
    int top_k;                  /* experts of a row */
    const resident_run *block;  /* [n_block] */
    const resident_run *expert; /* [(n_block - 1) * n_expert], by layer; NULL: none */
} resident_file;

/* Drops the file from memory and starts the thread that reads.  ERR_INPUT: the budget is too
 * small; ERR_NOMEM. */
err_code resident_create(resident **out, const resident_file *f, size_t budget, err *e);
void resident_destroy(resident *r);

/* A step is about to use this block: waits until it is in memory, and begins to read the next. */
void resident_use(resident *r, int block);
/* The same for n experts of a layer (ascending numbers), in addition to the layer's block. */
void resident_experts(resident *r, int layer, const int *expert, int n);

/* All zero: there is no budget. */
typedef struct resident_counts {
    uint64_t budget_bytes, resident_bytes;
    uint64_t read_bytes, read_us; /* read from the file so far, and how long that took */
    uint64_t waited_us;           /* that steps waited for reads */
} resident_counts;

void resident_count(const resident *r, resident_counts *out);

/* Drops up to `most` first bytes of a file from memory, reads them as steps do, and measures bytes
 * per second.  ERR_IO: the file cannot be read, or others keep it in memory. */
err_code resident_disk_rate(const char *path, size_t most, double *bytes_per_s, err *e);

#endif
