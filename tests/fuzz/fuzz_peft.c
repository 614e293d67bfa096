/* fuzz_peft.c -- adapter_config.json, for a small base; with and without
 * names learnt from the weights. */
#include <stdlib.h>
#include <string.h>

#include "adapters/format/peft.h"
#include "tests/fuzz/fuzz.h"

static void check(const peft_config *pc)
{
    int n = 0;
    FUZZ_CHECK(pc->n_layer == fuzz_base.n_layer);
    for (size_t i = 0; i < peft_slots(pc); i++) {
        const peft_layer *l = &pc->layer[i];
        n += l->wrapped;
        FUZZ_CHECK(!l->wrapped || (l->rank >= 1 && l->rank <= 64 && l->rank <= pc->rank_max));
    }
    FUZZ_CHECK((n > 0) == (pc->n_wrapped > 0));
    for (int i = 0; i < pc->n_token; i++)
        FUZZ_CHECK(pc->token[i] >= 0 && pc->token[i] < pc->n_vocab);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const naming fused = {.root = -1, .qkv = true, .gate_up = true};
    char *text = fuzz_text(data, size);
    for (int i = 0; i < 2; i++) {
        peft_config pc;
        err e = {.msg = ""};
        err_code rc = peft_parse(text, size, &fuzz_base, 64, i ? &fused : NULL, &pc, &e);
        FUZZ_CHECK(rc != ERR_INTERNAL && (rc == ERR_NONE || e.msg[0]));
        if (!rc) check(&pc);
        peft_clear(&pc);
    }
    free(text);
    return 0;
}
