/* automata.h -- an automaton of a schema, and whether it takes a text; for the tests beside it. */
#ifndef TESTS_ENGINE_GRAMMAR_AUTOMATA_H
#define TESTS_ENGINE_GRAMMAR_AUTOMATA_H

#include <string.h>

#include <check.h>

#include "engine/base/json.h"
#include "engine/grammar/schema/grammar_schema.h"

static inline err_code automaton_of(const char *schema, const grammar_documents *documents,
                                    g_auto *out, err *e)
{
    cJSON *tree;
    ck_assert_msg(!json_parse(schema, strlen(schema), &json_limits_trusted, &tree, e), "%s: %s",
                  schema, e->msg);
    err_code rc = grammar_build_schema(out, tree, documents, e);
    cJSON_Delete(tree);
    return rc;
}

/* The whole text, however long. */
static inline bool automaton_takes(const g_auto *a, const char *s)
{
    static g_walk walk;
    int i = 0;
    walk_begin(&walk, a, NULL, 0);
    walk_add(&walk, (g_conf){a->rule[a->root].start, 0, BOUNDS_NONE, NODE_ROOT, 0});
    for (; *s; s++) {
        if (!walk_byte(&walk, i, (uint8_t)*s)) return false;
        if (++i == GRAMMAR_TOKEN_MAX) {
            walk_go_on(&walk, i);
            i = 0;
        }
    }
    for (int k = walk.conf_at[i]; k < walk.n_conf; k++)
        if (a->is_end[walk.conf[k].state] && walk.conf[k].node == NODE_ROOT) return true;
    return false;
}

#endif
