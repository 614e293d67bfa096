/* charsmap.h -- SentencePiece's precompiled map of characters, as Hugging Face's Precompiled uses
 * it.
 *
 * The map is a double array of bytes and the texts that its keys become.  A grapheme of less than
 * six bytes becomes the text of the shortest key that it begins with; of others that is asked of
 * each character.  Every place in the map is checked when it is used: the file may be hostile.
 *
 * Ownership: charsmap_destroy() ends what charsmap_read() made.  Threads: never written again.
 */
#ifndef ENGINE_TEXT_CHARSMAP_H
#define ENGINE_TEXT_CHARSMAP_H

#include <stddef.h>

#include "engine/base/err.h"

typedef struct charsmap charsmap;

/* Decodes `text`, a map in base64.  ERR_CORRUPT: it is not a valid map. */
err_code charsmap_read(charsmap **out, const char *text, err *e);
void charsmap_destroy(charsmap *m);

/* Bytes of the first grapheme of a text, which has at least one character. */
size_t charsmap_grapheme(const char *s, size_t len);
/* Whether a grapheme of so many bytes is looked up whole. */
#define CHARSMAP_WHOLE(len) ((len) < 6)

/* What the shortest key becomes that these bytes begin with: borrowed, NUL-ended; NULL: there is
 * none. */
const char *charsmap_find(const charsmap *m, const char *s, size_t len);

#endif
