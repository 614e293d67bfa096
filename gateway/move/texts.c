/* texts.c -- a ring: the oldest gives its place to the newest. */
#include "gateway/move/texts.h"

#include <stdlib.h>
#include <string.h>

bool texts_copy(const sched_text *from, sched_text *to)
{
    size_t n = (size_t)from->n_token;
    int32_t *token = malloc((n + 1) * sizeof(*token));
    if (!token) return false;
    memcpy(token, from->token, n * sizeof(*token));
    *to = *from;
    to->token = token;
    return true;
}

void *texts_add(texts *t, uint64_t pass, const sched_text *text, int64_t now_us)
{
    kept_text *k = &t->each[t->next];
    void *was = (void *)k->text.token;
    *k = (kept_text){.pass = pass, .until_us = now_us + TEXT_KEPT_US, .text = *text};
    t->next = (t->next + 1) % TEXTS_MAX;
    return was;
}

const sched_text *texts_find(const texts *t, uint64_t pass, int64_t now_us)
{
    for (int i = 0; i < TEXTS_MAX; i++) {
        const kept_text *k = &t->each[i];
        if (k->text.token && k->pass == pass && now_us < k->until_us) return &k->text;
    }
    return NULL;
}

void texts_clear(texts *t)
{
    for (int i = 0; i < TEXTS_MAX; i++) free((void *)t->each[i].text.token);
    memset(t, 0, sizeof(*t));
}
