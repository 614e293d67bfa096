/* fuzz_safetensors.c -- a stranger's weights: whole, by their header alone, and placed
 * into an adapter's layout. */
#include <stdlib.h>
#include <string.h>

#include "adapters/format/validate.h"
#include "tests/fuzz/fuzz.h"

static void check_tensors(const safetensors *f, const uint8_t *bytes, size_t size)
{
    uint64_t at = 0;
    for (int i = 0; i < safetensors_count(f); i++) {
        const st_tensor *t = safetensors_at(f, i);
        dtype type;
        float v[4];
        FUZZ_CHECK(t->offset + t->bytes <= size && (i == 0 || t->offset == at));
        FUZZ_CHECK((const uint8_t *)t->data == bytes + t->offset);
        FUZZ_CHECK(safetensors_find(f, t->name) == t);
        at = t->offset + t->bytes;
        if (st_usable(t->dtype, &type))
            st_read_f32(t, t->count > 4 ? t->count - 4 : 0, t->count < 4 ? t->count : 4, v);
    }
    FUZZ_CHECK(safetensors_count(f) == 0 || at == size);
}

/* As validate.c does: names are learnt, then each tensor is placed, then nothing may be missing. */
static void place(const safetensors *f)
{
    static const char config[] =
        "{\"peft_type\":\"LORA\",\"r\":2,\"lora_alpha\":4,\"target_modules\":"
        "[\"q_proj\",\"down_proj\"],\"bias\":\"lora_only\",\"use_dora\":true}";
    adapter_layout al = {.n_vocab = fuzz_base.n_vocab};
    naming names = {.root = -1};
    err e = {.msg = ""};
    err_code rc = ERR_NONE;
    for (int i = 0; i < safetensors_count(f) && !rc; i++)
        rc = naming_learn(&names, safetensors_at(f, i)->name, &e);
    if (!rc) rc = peft_parse(config, strlen(config), &fuzz_base, 64, &names, &al.peft, &e);
    if (!rc) al.pair = calloc(peft_slots(&al.peft), sizeof(*al.pair));
    for (int i = 0; i < safetensors_count(f) && !rc; i++)
        rc = layout_place(&al, &fuzz_base, safetensors_at(f, i), &e);
    if (!rc) rc = layout_check(&al, &fuzz_base, fuzz_base.n_vocab, &e);
    FUZZ_CHECK(rc == ERR_NONE || e.msg[0]);
    adapter_layout_clear(&al);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    uint8_t *bytes = calloc(1, size ? size : 1);
    safetensors *f, *head;
    err e = {.msg = ""};
    size_t prefix = 0;
    if (!bytes) abort();
    if (size) memcpy(bytes, data, size);
    err_code rc = safetensors_open_memory(&f, bytes, size, &st_limits_upload, &e);
    FUZZ_CHECK(rc == ERR_NONE || (!f && e.msg[0]));
    err_code by_head = size < 8
                           ? ERR_CORRUPT
                           : safetensors_header_bytes(bytes, size, &st_limits_upload, &prefix, &e);
    if (!by_head)
        by_head = safetensors_open_header(&head, bytes, prefix, size, &st_limits_upload, &e);
    FUZZ_CHECK((by_head == ERR_NONE) == (rc == ERR_NONE));
    if (!rc) {
        FUZZ_CHECK(safetensors_count(head) == safetensors_count(f));
        check_tensors(f, bytes, size);
        place(head);
        safetensors_close(head);
        safetensors_close(f);
    }
    free(bytes);
    return 0;
}
