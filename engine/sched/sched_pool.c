/* sched_pool.c -- requests without an answer in tokens: their prompts' hidden states are pooled.
 *
 * Behind the forward pass the states that a request still needs are normed and come to the host, a
 * few rows at a time, before the next step may be enqueued.  The last of them makes its vector.
 */
#include <assert.h>
#include <stdlib.h>

#include "engine/sched/sched_inside.h"

enum { ROWS_EACH = 32 };

err_code sched_pool_create(sched *sc, err *e)
{
    sc->states = calloc((size_t)ROWS_EACH * (size_t)model_get_config(sc->m)->dim, sizeof(float));
    return sc->states ? ERR_NONE : err_set(e, ERR_NOMEM, "no memory for hidden states");
}

void sched_pool_destroy(sched *sc)
{
    free(sc->states);
}

/* n rows of the step from row0 on, one after another. */
static err_code take_rows(sched *sc, int s, int row0, int n, err *e)
{
    request *rq = sc->row_owner[s];
    for (int done = 0, some; done < n; done += some) {
        some = n - done < ROWS_EACH ? n - done : ROWS_EACH;
        err_code rc = model_take_states(sc->m, row0 + done, some, rq->lora, sc->states, e);
        if (rc) return rc;
        if (!pooling_take(rq->pool, sc->states, some)) {
            sc->now->broken[s] = true;
            return ERR_NONE;
        }
    }
    return ERR_NONE;
}

err_code sched_pool_step(sched *sc, err *e)
{
    err_code rc = ERR_NONE;
    for (int s = 0; s < sc->step.n_seq && !rc; s++) {
        const request *rq = sc->row_owner[s];
        if (!rq->pool) continue;
        const step_seq *q = &sc->seq[s];
        int end = q->pos0 + q->n_rows, from = pooling_from(rq->pool, rq->n_prompt);
        int n = rq->pool->sum ? end - from : 1; /* of which all are read, or one */
        assert(end <= rq->n_prompt);
        if (from < end && from >= q->pos0) rc = take_rows(sc, s, q->row0 + from - q->pos0, n, e);
    }
    return rc;
}

/* Whose head a request's classes are of: its adapter's, else the base's. */
static const pooling_head *head_of(const sched *sc, const request *rq)
{
    if (rq->lora && rq->lora->score_head) return rq->lora->score_head;
    return model_score_head(sc->m);
}

bool sched_pool_end(const sched *sc, request *rq, err *e)
{
    pooling_end(rq->pool);
    if (!rq->pool->classify) return true;
    const pooling_head *head = head_of(sc, rq);
    if (head && pooling_classify(rq->pool, head)) return true;
    (void)err_set(e, ERR_UNSUPPORTED,
                  "this model has no head for classes: neither the base's files nor the adapter's "
                  "modules_to_save hold one ('score' or 'classifier')");
    return false;
}
