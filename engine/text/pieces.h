/* pieces.h -- which pieces of a vocabulary a text begins with: a trie over bytes.
 *
 * A node's children stand behind one another in the order of their bytes.
 *
 * Ownership: pieces_clear() frees what pieces_build() made.  Threads: never written again.
 */
#ifndef ENGINE_TEXT_PIECES_H
#define ENGINE_TEXT_PIECES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct piece {
    const char *s; /* not empty; only needed while it is built */
    size_t len;
    int32_t id;
} piece;

typedef struct piece_node {
    int32_t first; /* child */
    int32_t id;    /* of the piece that ends here; -1: none */
    uint16_t n;    /* children */
    uint8_t byte;
} piece_node;

typedef struct piece_set {
    piece_node *node; /* [0] is the root */
    int32_t n;
} piece_set;

/* Sorts `list`; no two are alike.  False: no memory. */
bool pieces_build(piece_set *p, piece *list, size_t n);
void pieces_clear(piece_set *p);

/* From a node over one byte; -1: nowhere. */
int32_t pieces_step(const piece_set *p, int32_t node, char byte);

#endif
