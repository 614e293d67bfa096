/* cut.h -- which of a row's tokens top-k, top-p and min-p leave, and the one that a draw falls on.
 *
 * Tokens rank by their logits, the lowest id first among equals (-0 equals 0).  What is left
 * is always the head of that ranking, and a draw falls on the token where the running sum of
 * weights in that order passes its share of it.  Nothing is sorted: both questions are "where
 * does a running sum pass a target", and are answered by a histogram over the logits as
 * ordered integers, then one over the bucket where it happens, and so on, at most three: a row
 * costs O(n) however flat it is.
 *
 * Weights are whole multiples of 2^-40 of the best's, so sums are exact in any order:
 * the answer is the one that sorting everything would give, to the token.  A token of a
 * lower weight is never drawn.
 *
 * Ownership: a cut is scratch for one thread, 8 bytes a token; logits are borrowed.
 */
#ifndef ENGINE_SAMPLE_CUT_H
#define ENGINE_SAMPLE_CUT_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct cut cut;

/* NULL: no memory.  Serves rows of up to n_max values. */
cut *cut_create(int n_max);
void cut_destroy(cut *c);

/* Looks at a row: `logits` [n] stay as they are until the last draw from it.  `max` is the highest
 * of them and finite, temperature > 0. */
void cut_begin(cut *c, const float *logits, int n, float max, float temperature);

/* The weight of a token of the row, in units of 2^-40 of the best's. */
uint64_t cut_weight(const cut *c, int32_t token);

/* Draws by u in (0, 1) from what the rules leave: the top_k best (0: all); of these as few of the
 * best as have top_p of their weight (1: all); of these the ones with at least min_p of the best's
 * weight (0: all).  The best is always left. */
int32_t cut_draw(cut *c, int top_k, float top_p, float min_p, double u);

/* The last in the ranking of what these rules leave and that weighs something. */
int32_t cut_last(cut *c, int top_k, float top_p, float min_p);

/* Draws from all, in the order of ids: cheaper where nothing is cut off. */
int32_t cut_draw_any(const cut *c, double u);

/* ---- the same rules for a list that is in order already ---- */

/* The lowest logit that min_p leaves. */
float cut_floor(float max, float temperature, float min_p);
uint64_t cut_units(float weight);
/* The least sum of weights that is top_p of `mass`, from 1 to mass. */
uint64_t cut_share(float top_p, uint64_t mass);
/* Which unit of `mass` u falls on, from 0. */
uint64_t cut_aim(double u, uint64_t mass);

#ifdef __cplusplus
}
#endif

#endif
