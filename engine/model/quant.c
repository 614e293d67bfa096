/* quant.c -- reads "quantization_config" of a model's config.json: which method, bits, groups.
 *
 * Supported: GPTQ, AWQ, FP8 (blocks), compressed-tensors (integers and floats, by tensor, channel,
 * group or block), bitsandbytes (NF4), and MXFP4, which the tensors' names identify. Each reader
 * checks the fields that change how codes are interpreted, and refuses a value that is not
 * implemented by name and value.
 *
 * What the tensors themselves tell (types, shapes, presence of zero points) is not taken from the
 * configuration: stored_folder.c looks at them.
 *
 * Activations are quantised by our own kernels, or not at all; "kv_cache_scheme" only gives a
 * warning, because engine.kv_type decides.
 * Threads: the start-up thread; the result is a plain struct.
 */
#include "engine/model/quant.h"

#include <string.h>

#include "engine/base/log.h"

static const char *text(const cJSON *j, const char *name)
{
    const char *s = cJSON_GetStringValue(json_get(j, name));
    return s ? s : "";
}

static err_code refuse(err *e, const char *name, const char *value)
{
    return err_set(e, ERR_UNSUPPORTED, "\"quantization_config\": \"%s\": %.60s is not supported",
                   name, value);
}

/* Refuses with the value as the file has it. */
static err_code refuse_value(err *e, const cJSON *j, const char *name)
{
    char *value = cJSON_PrintUnformatted(json_get(j, name));
    err_code rc = refuse(e, name, value ? value : "?");
    cJSON_free(value);
    return rc;
}

static bool is_one_of(const char *s, const char *const *list)
{
    for (; *list; list++)
        if (strcmp(s, *list) == 0) return true;
    return false;
}

static err_code read_bits(const cJSON *j, bool eight, quant *q, err *e)
{
    int64_t bits = 0, group = 0;
    bool found = false;
    err_code rc = json_int(j, "bits", 1, 64, &bits, &found, e);
    if (!rc && !found) rc = json_int(j, "w_bit", 1, 64, &bits, NULL, e);
    if (!rc) rc = json_int(j, "group_size", -1, 1 << 20, &group, &found, e);
    if (!rc && !found) rc = json_int(j, "q_group_size", -1, 1 << 20, &group, NULL, e);
    if (rc) return rc;
    if (bits != 4 && !(eight && bits == 8)) return refuse_value(e, j, "bits");
    if (group == 0) return err_set(e, ERR_INPUT, "\"quantization_config\": no \"group_size\"");
    q->bits = (int)bits;
    q->group = (int)group;
    return ERR_NONE;
}

static err_code read_gptq(const cJSON *j, quant *q, err *e)
{
    const char *form = text(j, "checkpoint_format");
    q->zero_off = strcmp(form, "gptq_v2") != 0;
    if (form[0] && q->zero_off && strcmp(form, "gptq") != 0)
        return refuse(e, "checkpoint_format", form);
    return read_bits(j, true, q, e);
}

static err_code read_awq(const cJSON *j, quant *q, err *e)
{
    const char *version = text(j, "version");
    if (version[0] && strcmp(version, "gemm") != 0 && strcmp(version, "GEMM") != 0)
        return refuse(e, "version", version);
    return read_bits(j, false, q, e);
}

/* [rows, columns] of a block. */
static err_code read_block(const cJSON *j, const char *name, quant *q, err *e)
{
    const cJSON *v = json_get(j, name), *item;
    int n = 0;
    if (!v || cJSON_IsNull(v)) return ERR_NONE;
    if (!cJSON_IsArray(v) || cJSON_GetArraySize(v) != 2) return refuse_value(e, j, name);
    cJSON_ArrayForEach(item, v)
    {
        if (!cJSON_IsNumber(item) || !(item->valuedouble >= 1 && item->valuedouble <= 65536))
            return refuse_value(e, j, name);
        q->block[n++] = (int)item->valuedouble;
    }
    return ERR_NONE;
}

static err_code read_fp8(const cJSON *j, quant *q, err *e)
{
    const char *fmt = text(j, "fmt");
    if (fmt[0] && strcmp(fmt, "e4m3") != 0 && strcmp(fmt, "float8_e4m3fn") != 0)
        return refuse(e, "fmt", fmt);
    return read_block(j, "weight_block_size", q, e);
}

/* One scheme of compressed-tensors, for some modules: its integers or floats are told by the
 * tensors; what is not to be seen there is checked. */
static err_code read_scheme(const cJSON *scheme, quant *q, err *e)
{
    static const char *const strategies[] = {"tensor", "channel", "group", "block", NULL};
    const cJSON *w = json_get(scheme, "weights");
    if (!cJSON_IsObject(w)) return refuse_value(e, scheme, "weights");
    const cJSON *out = json_get(scheme, "output_activations"), *bits = json_get(w, "num_bits");
    const char *type = text(w, "type");
    if (out && !cJSON_IsNull(out)) return refuse_value(e, scheme, "output_activations");
    if (!cJSON_IsNumber(bits) || (bits->valuedouble != 4 && bits->valuedouble != 8))
        return refuse_value(e, w, "num_bits");
    if (strcmp(type, "int") != 0 && !(strcmp(type, "float") == 0 && bits->valuedouble == 8))
        return refuse_value(e, w, "type");
    if (!is_one_of(text(w, "strategy"), strategies)) return refuse_value(e, w, "strategy");
    if (cJSON_IsTrue(json_get(w, "dynamic"))) return refuse_value(e, w, "dynamic");
    return read_block(w, "block_structure", q, e);
}

static err_code read_compressed(const cJSON *j, quant *q, err *e)
{
    static const char *const formats[] = {"pack-quantized", "int-quantized", "float-quantized",
                                          "naive-quantized", NULL};
    const cJSON *groups = json_get(j, "config_groups"), *each,
                *transform = json_get(j, "transform_config"),
                *sparse = json_get(j, "sparsity_config"), *kv = json_get(j, "kv_cache_scheme");
    if (!is_one_of(text(j, "format"), formats)) return refuse_value(e, j, "format");
    if (transform && transform->child) return refuse(e, "transform_config", "a rotation");
    if (sparse && sparse->child && strcmp(text(sparse, "format"), "dense") != 0)
        return refuse_value(e, sparse, "format");
    if (kv && !cJSON_IsNull(kv))
        log_warn("model", "quantization_config: \"kv_cache_scheme\" has no effect: keys and values "
                          "are kept as they are computed");
    if (!cJSON_IsObject(groups) || !groups->child) return refuse_value(e, j, "config_groups");
    cJSON_ArrayForEach(each, groups)
    {
        err_code rc = read_scheme(each, q, e);
        if (rc) return rc;
    }
    return ERR_NONE;
}

static err_code read_bitsandbytes(const cJSON *j, quant *q, err *e)
{
    (void)q;
    const char *type = text(j, "bnb_4bit_quant_type");
    if (!cJSON_IsTrue(json_get(j, "load_in_4bit")))
        return refuse(e, "load_in_8bit", "bitsandbytes in 8 bits");
    if (strcmp(type, "nf4") != 0) return refuse_value(e, j, "bnb_4bit_quant_type");
    return ERR_NONE;
}

/* The names of the tensors tell which they are. */
static err_code read_nothing(const cJSON *j, quant *q, err *e)
{
    (void)j;
    (void)q;
    (void)e;
    return ERR_NONE;
}

err_code quant_read(const cJSON *config, quant *out, err *e)
{
    static const struct {
        const char *name;
        quant_method method;
        err_code (*read)(const cJSON *j, quant *q, err *e);
    } methods[] = {{"gptq", QUANT_GPTQ, read_gptq},
                   {"awq", QUANT_AWQ, read_awq},
                   {"fp8", QUANT_FP8, read_fp8},
                   {"compressed-tensors", QUANT_COMPRESSED, read_compressed},
                   {"bitsandbytes", QUANT_BITS, read_bitsandbytes},
                   {"mxfp4", QUANT_MXFP4, read_nothing}};
    const cJSON *j = json_get(config, "quantization_config");
    *out = (quant){.method = QUANT_NONE};
    if (!j || cJSON_IsNull(j)) return ERR_NONE;
    const char *name = text(j, "quant_method");
    for (size_t i = 0; i < sizeof(methods) / sizeof(methods[0]); i++) {
        if (strcmp(methods[i].name, name) != 0) continue;
        out->method = methods[i].method;
        return methods[i].read(j, out, e);
    }
    if (!cJSON_IsObject(j) || !name[0])
        return err_set(e, ERR_INPUT, "\"quantization_config\" has no \"quant_method\"");
    return err_set(e, ERR_UNSUPPORTED,
                   "\"quantization_config\": \"quant_method\": \"%.60s\" is not supported (gptq, "
                   "awq, fp8, compressed-tensors, bitsandbytes, mxfp4 are)",
                   name);
}
