/* test_model_config.c -- what config.json may say, and the sentence that refuses the rest.
 *
 * Each case is a patch on a small good configuration: members replace those of the same name, the
 * string "-" removes one.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <check.h>

#include "engine/base/json.h"
#include "engine/model/model.h"
#include "tests/run_suite.h"
#include "tests/tmpdir.h"

#define QUANT(rest) "{\"quantization_config\":{\"quant_method\":" rest "}}"

#define OF(type, rest)     "{\"model_type\":\"" type "\",\"architectures\":\"-\"," rest "}"
#define MOE(rest)          OF("qwen3_moe", rest)
#define OSS(rest)          OF("gpt_oss", "\"rope_scaling\":{\"rope_type\":\"default\"}," rest)
#define LATENT(type, rest) OF(type, "\"num_key_value_heads\":4," rest)
#define V2(rest)           LATENT("deepseek_v2", "\"num_experts_per_tok\":2," rest)
#define V3(rest)           LATENT("deepseek_v3", rest)
#define LLAMA4(rest)       OF("llama4_text", rest)
#define LFM2(rest)         OF("lfm2", rest)
#define QWEN(rest)         OF("qwen3_5_text", rest)
#define NEXT(rest)         OF("qwen3_next", rest)
#define NEMOTRON(rest) \
    OF("nemotron_h", rest "\"mamba_num_heads\":8,\"mamba_head_dim\":8,\"hidden_act\":\"-\"")
#define FALCON(rest) OF("falcon_h1", "\"mamba_d_ssm\":64,\"mamba_n_heads\":4," rest)
#define OLMO(rest)   OF("olmo_hybrid", rest)
#define KIMI(rest)   OF("kimi_linear", "\"num_key_value_heads\":4," rest)
#define KIMI_LAYERS(full, kda) \
    KIMI("\"linear_attn_config\":{\"full_attn_layers\":" full ",\"kda_layers\":" kda "}")
#define SCAN(rest) \
    OF("granitemoehybrid", "\"mamba_n_heads\":4,\"shared_intermediate_size\":96," rest)

static const char llama[] =
    "{\"architectures\":[\"LlamaForCausalLM\"],\"model_type\":\"llama\",\"hidden_size\":64,"
    "\"num_hidden_layers\":2,\"num_attention_heads\":4,\"num_key_value_heads\":2,"
    "\"intermediate_size\":128,\"vocab_size\":300,\"max_position_embeddings\":512,"
    "\"rms_norm_eps\":1e-05,\"rope_theta\":500000.0,\"hidden_act\":\"silu\","
    "\"bos_token_id\":1,\"eos_token_id\":2,\"torch_dtype\":\"bfloat16\"}";

static const char plain_llama[] =
    "{\"hidden_size\":64,\"num_hidden_layers\":2,\"num_attention_heads\":4,"
    "\"num_key_value_heads\":2,\"intermediate_size\":128,\"vocab_size\":300}";

static char dir[64];

static void write_file(const char *name, const char *text)
{
    char path[128];
    snprintf(path, sizeof(path), "%s/%s", dir, name);
    if (!text) {
        (void)unlink(path);
        return;
    }
    FILE *f = fopen(path, "wb");
    ck_assert_ptr_nonnull(f);
    (void)fwrite(text, 1, strlen(text), f);
    (void)fclose(f);
}

static void setup(void)
{
    tmpdir_make(dir);
}

static void teardown(void)
{
    tmpdir_remove(dir);
}

static err_code read_patched(const char *patch, model_config *c, err *e)
{
    cJSON *base = cJSON_Parse(llama), *p = cJSON_Parse(patch);
    ck_assert_msg(p != NULL, "%s", patch);
    while (p->child) {
        cJSON *item = cJSON_DetachItemViaPointer(p, p->child);
        cJSON_DeleteItemFromObjectCaseSensitive(base, item->string);
        if (cJSON_IsString(item) && strcmp(item->valuestring, "-") == 0) {
            cJSON_Delete(item);
        } else {
            char *name = strdup(item->string);
            cJSON_AddItemToObject(base, name, item);
            free(name);
        }
    }
    char *text = cJSON_PrintUnformatted(base);
    write_file("config.json", text);
    cJSON_free(text);
    cJSON_Delete(base);
    cJSON_Delete(p);
    return model_config_read(dir, c, e);
}

typedef struct verdict {
    const char *patch;
    err_code code;
    const char *says;
} verdict;

static const verdict refused[] = {
    /* families */
    {"{\"model_type\":\"gemma9\"}", ERR_UNSUPPORTED, "\"gemma9\" is not supported (llama, mistral"},
    {"{\"model_type\":\"qwen3_vl_text\"}", ERR_UNSUPPORTED, "qwen3_vl_text"},
    {"{\"model_type\":\"gemma2\"}", ERR_UNSUPPORTED, "architectures"},
    {"{\"model_type\":\"gemma3\",\"architectures\":null,\"text_config\":7}", ERR_INPUT,
     "text_config"},
    {"{\"model_type\":\"gemma3\",\"architectures\":null,\"text_config\":{\"model_type\":"
     "\"gemma2\"}}",
     ERR_UNSUPPORTED, "gemma2"},
    {"{\"model_type\":\"gemma3\",\"architectures\":null,\"text_config\":{\"is_causal\":false}}",
     ERR_UNSUPPORTED, "is_causal"},
    {"{\"model_type\":\"bloom\"}", ERR_UNSUPPORTED, "bloom"},
    {"{\"model_type\":\"-\"}", ERR_INPUT, "model_type"},
    {"{\"model_type\":7}", ERR_INPUT, "model_type"},
    {"{\"architectures\":[\"LlamaForTokenClassification\"]}", ERR_UNSUPPORTED,
     "LlamaForTokenClassification"},
    {"{\"architectures\":[\"LlamaXModel\"]}", ERR_UNSUPPORTED, "LlamaXModel"},
    {"{\"architectures\":[\"QwenForSequenceClassification\"]}", ERR_UNSUPPORTED,
     "QwenForSequenceClassification"},
    {"{\"architectures\":[]}", ERR_UNSUPPORTED, "architectures"},
    {"{\"architectures\":[\"LlamaForCausalLM\",\"X\"]}", ERR_UNSUPPORTED, "architectures"},
    {"{\"model_type\":\"qwen2\"}", ERR_UNSUPPORTED, "architectures"},
    /* dimensions */
    {"{\"hidden_size\":\"-\"}", ERR_INPUT, "\"hidden_size\" is missing"},
    {"{\"hidden_size\":null}", ERR_INPUT, "\"hidden_size\" is missing"},
    {"{\"num_hidden_layers\":\"-\"}", ERR_INPUT, "num_hidden_layers"},
    {"{\"num_attention_heads\":\"-\"}", ERR_INPUT, "num_attention_heads"},
    {"{\"intermediate_size\":\"-\"}", ERR_INPUT, "intermediate_size"},
    {"{\"vocab_size\":\"-\"}", ERR_INPUT, "vocab_size"},
    {"{\"hidden_size\":0}", ERR_INPUT, "hidden_size"},
    {"{\"hidden_size\":-64}", ERR_INPUT, "hidden_size"},
    {"{\"hidden_size\":64.5}", ERR_INPUT, "hidden_size"},
    {"{\"hidden_size\":\"64\"}", ERR_INPUT, "hidden_size"},
    {"{\"hidden_size\":true}", ERR_INPUT, "hidden_size"},
    {"{\"hidden_size\":[64]}", ERR_INPUT, "hidden_size"},
    {"{\"hidden_size\":2147483647}", ERR_INPUT, "hidden_size"},
    {"{\"hidden_size\":9007199254740993}", ERR_INPUT, "hidden_size"},
    {"{\"num_hidden_layers\":1000000}", ERR_INPUT, "num_hidden_layers"},
    {"{\"num_attention_heads\":1000000}", ERR_INPUT, "num_attention_heads"},
    {"{\"intermediate_size\":1e15}", ERR_INPUT, "intermediate_size"},
    {"{\"vocab_size\":1e12}", ERR_INPUT, "vocab_size"},
    {"{\"max_position_embeddings\":1e18}", ERR_INPUT, "max_position_embeddings"},
    {"{\"num_attention_heads\":3,\"num_key_value_heads\":3}", ERR_INPUT, "not a multiple"},
    {"{\"num_key_value_heads\":3}", ERR_INPUT, "num_key_value_heads"},
    {"{\"num_key_value_heads\":8}", ERR_INPUT, "num_key_value_heads"},
    {"{\"num_key_value_heads\":0}", ERR_INPUT, "num_key_value_heads"},
    {"{\"head_dim\":15}", ERR_UNSUPPORTED, "head_dim"},
    {"{\"head_dim\":2000}", ERR_INPUT, "head_dim"},
    {"{\"num_attention_heads\":4096,\"num_key_value_heads\":2,\"head_dim\":1024}", ERR_INPUT,
     "heads"},
    /* arithmetic */
    {"{\"hidden_act\":\"tanh\"}", ERR_UNSUPPORTED, "tanh"},
    {"{\"hidden_act\":1}", ERR_INPUT, "hidden_act"},
    {"{\"rms_norm_eps\":-1}", ERR_INPUT, "rms_norm_eps"},
    {"{\"rms_norm_eps\":\"x\"}", ERR_INPUT, "rms_norm_eps"},
    {QUANT("\"gptq\",\"bits\":4"), ERR_INPUT, "group_size"},
    {QUANT("\"gptq\",\"bits\":3,\"group_size\":128"), ERR_UNSUPPORTED, "\"bits\": 3"},
    {QUANT("\"gptq\",\"bits\":4,\"group_size\":128,\"checkpoint_format\":\"marlin\""),
     ERR_UNSUPPORTED, "marlin"},
    {QUANT("\"awq\",\"bits\":4,\"group_size\":128,\"version\":\"gemv\""), ERR_UNSUPPORTED, "gemv"},
    {QUANT("\"awq\",\"bits\":8,\"group_size\":128"), ERR_UNSUPPORTED, "\"bits\": 8"},
    {QUANT("\"fp8\",\"fmt\":\"e5m2\""), ERR_UNSUPPORTED, "e5m2"},
    {QUANT("\"fp8\",\"weight_block_size\":[128]"), ERR_UNSUPPORTED, "weight_block_size"},
    {QUANT("\"bitsandbytes\",\"load_in_8bit\":true"), ERR_UNSUPPORTED, "8 bits"},
    {QUANT("\"bitsandbytes\",\"load_in_4bit\":true,\"bnb_4bit_quant_type\":\"fp4\""),
     ERR_UNSUPPORTED, "fp4"},
    {QUANT("\"compressed-tensors\",\"format\":\"nvfp4-pack-quantized\""), ERR_UNSUPPORTED, "nvfp4"},
    {QUANT("\"compressed-tensors\",\"format\":\"pack-quantized\",\"transform_config\":{\"a\":1}"),
     ERR_UNSUPPORTED, "transform_config"},
    {QUANT("\"compressed-tensors\",\"format\":\"pack-quantized\",\"config_groups\":{\"g\":"
           "{\"weights\":{\"num_bits\":3,\"type\":\"int\",\"strategy\":\"group\"}}}"),
     ERR_UNSUPPORTED, "\"num_bits\": 3"},
    {QUANT("\"mxfp4\""), ERR_UNSUPPORTED, "mxfp4"},
    {QUANT("\"hqq\""), ERR_UNSUPPORTED, "hqq"},
    {"{\"quantization_config\":{}}", ERR_INPUT, "quant_method"},
    {"{\"attention_chunk_size\":8192}", ERR_UNSUPPORTED, "attention_chunk_size"},
    {"{\"final_logit_softcapping\":30.0}", ERR_UNSUPPORTED, "final_logit_softcapping"},
    {"{\"num_experts\":8}", ERR_UNSUPPORTED, "num_experts"},
    {MOE("\"num_experts\":4,\"num_experts_per_tok\":5"), ERR_INPUT, "5 of 4 experts"},
    {MOE("\"num_experts\":2000"), ERR_INPUT, "num_experts"},
    {MOE("\"num_experts\":0"), ERR_INPUT, "num_experts"},
    {MOE("\"num_experts\":8,\"num_local_experts\":9"), ERR_UNSUPPORTED, "num_local_experts"},
    {MOE("\"num_experts_per_tok\":0"), ERR_INPUT, "num_experts_per_tok"},
    {MOE("\"moe_intermediate_size\":-1"), ERR_INPUT, "moe_intermediate_size"},
    {MOE("\"norm_topk_prob\":\"yes\""), ERR_INPUT, "norm_topk_prob"},
    {MOE("\"decoder_sparse_step\":0"), ERR_INPUT, "decoder_sparse_step"},
    {MOE("\"mlp_only_layers\":3"), ERR_UNSUPPORTED, "mlp_only_layers"},
    {MOE("\"mlp_only_layers\":[2]"), ERR_INPUT, "layers below 2"},
    {MOE("\"mlp_only_layers\":[0.5]"), ERR_INPUT, "mlp_only_layers"},
    {MOE("\"use_sliding_window\":true"), ERR_UNSUPPORTED, "use_sliding_window"},
    {OF("olmoe", "\"clip_qkv\":8"), ERR_UNSUPPORTED, "clip_qkv"},
    {OF("gpt_oss", "\"num_local_experts\":8"), ERR_INPUT, "rope_scaling"},
    {OSS("\"swiglu_limit\":5"), ERR_UNSUPPORTED, "\"swiglu_limit\": 5"},
    {OSS("\"num_local_experts\":3"), ERR_INPUT, "4 of 3 experts"},
    {"{\"swiglu_limit\":7.0}", ERR_UNSUPPORTED, "swiglu_limit"},
    {OF("deepseek_v3", "\"q_lora_rank\":8"), ERR_UNSUPPORTED, "num_key_value_heads"},
    {V3("\"kv_lora_rank\":0"), ERR_INPUT, "kv_lora_rank"},
    {V3("\"q_lora_rank\":-1"), ERR_INPUT, "q_lora_rank"},
    {V3("\"qk_rope_head_dim\":7"), ERR_UNSUPPORTED, "qk_rope_head_dim"},
    {V3("\"qk_nope_head_dim\":2000"), ERR_INPUT, "qk_nope_head_dim"},
    {V3("\"v_head_dim\":0"), ERR_INPUT, "v_head_dim"},
    {V3("\"topk_method\":\"greedy\""), ERR_UNSUPPORTED, "topk_method"},
    {V3("\"scoring_func\":\"softmax\""), ERR_UNSUPPORTED, "scoring_func"},
    {V3("\"n_group\":7"), ERR_INPUT, "7 groups of 256"},
    {V3("\"n_group\":256"), ERR_INPUT, "n_group"},
    {V3("\"topk_group\":9"), ERR_INPUT, "9 of 8 groups"},
    {V3("\"n_routed_experts\":16,\"topk_group\":3"), ERR_INPUT, "3 of 8 groups, for 8 experts"},
    {V3("\"routed_scaling_factor\":0"), ERR_INPUT, "routed_scaling_factor"},
    {V3("\"moe_layer_freq\":2"), ERR_UNSUPPORTED, "moe_layer_freq"},
    {V3("\"first_k_dense_replace\":-1"), ERR_INPUT, "first_k_dense_replace"},
    {V3("\"n_shared_experts\":0"), ERR_INPUT, "n_shared_experts"},
    {V3("\"rope_interleave\":1"), ERR_INPUT, "rope_interleave"},
    {V3("\"num_nextn_predict_layers\":-1"), ERR_INPUT, "num_nextn_predict_layers"},
    {LATENT("deepseek_v2", "\"n_group\":1"), ERR_INPUT, "\"num_experts_per_tok\" is missing"},
    {V2("\"norm_topk_prob\":true"), ERR_UNSUPPORTED, "norm_topk_prob"},
    {V2("\"topk_method\":\"noaux_tc\""), ERR_UNSUPPORTED, "noaux_tc"},
    {V2("\"topk_method\":\"group_limited_greedy\""), ERR_INPUT, "\"n_group\" is missing"},
    {LLAMA4("\"moe_layers\":[2]"), ERR_INPUT, "layers below 2"},
    {LLAMA4("\"moe_layers\":1"), ERR_UNSUPPORTED, "moe_layers"},
    {LLAMA4("\"interleave_moe_layer_step\":0"), ERR_INPUT, "interleave_moe_layer_step"},
    {LLAMA4("\"attention_chunk_size\":0"), ERR_INPUT, "attention_chunk_size"},
    {LLAMA4("\"layer_types\":[\"sliding_attention\",\"full_attention\"]"), ERR_UNSUPPORTED,
     "layer_types"},
    {LLAMA4("\"floor_scale\":0"), ERR_INPUT, "floor_scale"},
    {LLAMA4("\"use_qk_norm\":1"), ERR_INPUT, "use_qk_norm"},
    {LLAMA4("\"rope_scaling\":{\"rope_type\":\"yarn\",\"factor\":4}"), ERR_UNSUPPORTED,
     "use_qk_norm"},
    {LLAMA4("\"no_rope_layers\":[1]"), ERR_INPUT, "no_rope_layers"},
    {"{\"is_causal\":false}", ERR_UNSUPPORTED, "is_causal"},
    {"{\"tie_word_embeddings\":\"yes\"}", ERR_INPUT, "tie_word_embeddings"},
    {"{\"attention_bias\":1}", ERR_INPUT, "attention_bias"},
    {"{\"torch_dtype\":\"float8_e4m3fn\"}", ERR_UNSUPPORTED, "float8_e4m3fn"},
    {"{\"model_type\":\"mistral\",\"architectures\":null,\"mlp_bias\":true}", ERR_UNSUPPORTED,
     "mlp_bias"},
    {"{\"model_type\":\"mistral\",\"architectures\":null,\"attention_bias\":true}", ERR_UNSUPPORTED,
     "attention_bias"},
    /* rope */
    {"{\"rope_theta\":0}", ERR_INPUT, "rope_theta"},
    {"{\"rope_theta\":-5}", ERR_INPUT, "rope_theta"},
    {"{\"partial_rotary_factor\":0.5}", ERR_UNSUPPORTED, "partial_rotary_factor"},
    {"{\"rope_scaling\":{\"rope_type\":\"proportional\"}}", ERR_UNSUPPORTED, "proportional"},
    {"{\"rope_scaling\":{\"rope_type\":\"yarn\"}}", ERR_INPUT, "\"factor\" is missing"},
    {"{\"rope_scaling\":{\"rope_type\":\"yarn\",\"factor\":4,\"beta_fast\":0}}", ERR_INPUT,
     "beta_fast"},
    {"{\"rope_scaling\":{\"rope_type\":\"yarn\",\"factor\":4,\"truncate\":3}}", ERR_INPUT,
     "truncate"},
    {"{\"rope_scaling\":{\"rope_type\":\"yarn\",\"factor\":4,\"llama_4_scaling_beta\":0.1}}",
     ERR_UNSUPPORTED, "llama_4_scaling_beta"},
    {"{\"rope_scaling\":{\"type\":\"dynamic\"}}", ERR_INPUT, "\"factor\" is missing"},
    {"{\"rope_scaling\":{\"type\":\"mrope\",\"mrope_section\":[2,3,3]}}", ERR_UNSUPPORTED,
     "mrope_section"},
    {"{\"rope_parameters\":{\"rope_type\":\"longrope\"}}", ERR_INPUT, "short_factor"},
    {"{\"rope_parameters\":{\"rope_type\":\"longrope\",\"short_factor\":[1,1,1,1,1,1,1,1],"
     "\"long_factor\":[1,1,1,0,1,1,1,1]}}",
     ERR_INPUT, "long_factor"},
    {"{\"rope_scaling\":{\"type\":\"linear\"}}", ERR_INPUT, "\"factor\" is missing"},
    {"{\"rope_scaling\":{\"type\":\"linear\",\"factor\":0}}", ERR_INPUT, "factor"},
    {"{\"rope_scaling\":{\"factor\":2.0}}", ERR_UNSUPPORTED, "factor"},
    {"{\"rope_scaling\":\"linear\"}", ERR_INPUT, "rope_scaling"},
    {"{\"rope_parameters\":{\"full_attention\":{\"rope_type\":\"default\"}}}", ERR_UNSUPPORTED,
     "full_attention"},
    {"{\"rope_parameters\":{\"rope_type\":\"default\",\"partial_rotary_factor\":0.25}}",
     ERR_UNSUPPORTED, "partial_rotary_factor"},
    {"{\"rope_scaling\":{\"rope_type\":\"llama3\",\"factor\":8.0,\"low_freq_factor\":1.0,"
     "\"high_freq_factor\":4.0}}",
     ERR_INPUT, "original_max_position_embeddings"},
    {"{\"rope_scaling\":{\"rope_type\":\"llama3\",\"factor\":8.0,\"low_freq_factor\":4.0,"
     "\"high_freq_factor\":4.0,\"original_max_position_embeddings\":8192}}",
     ERR_INPUT, "high_freq_factor"},
    /* windows */
    {"{\"model_type\":\"mistral\",\"architectures\":null,\"sliding_window\":0}", ERR_INPUT,
     "sliding_window"},
    {"{\"layer_types\":[\"full_attention\"]}", ERR_INPUT, "layer_types"},
    {"{\"layer_types\":[\"full_attention\",\"sliding_attention\"]}", ERR_INPUT, "sliding_window"},
    {"{\"model_type\":\"smollm3\",\"architectures\":null,\"no_rope_layers\":[1]}", ERR_INPUT,
     "no_rope_layers"},
    {"{\"model_type\":\"smollm3\",\"architectures\":null,\"no_rope_layers\":[1,2]}", ERR_INPUT,
     "no_rope_layers"},
    {"{\"model_type\":\"smollm3\",\"architectures\":null,\"use_sliding_window\":true}",
     ERR_UNSUPPORTED, "use_sliding_window"},
    {"{\"model_type\":\"cohere2\",\"architectures\":null,\"sliding_window_pattern\":0}", ERR_INPUT,
     "sliding_window_pattern"},
    {OF("dots1", "\"n_routed_experts\":8,\"num_experts_per_tok\":2,\"sliding_window\":0"),
     ERR_INPUT, "sliding_window"},
    {OF("exaone4", "\"sliding_window_pattern\":\"LLLG\""), ERR_INPUT, "sliding_window_pattern"},
    /* what one family alone reads */
    {OF("cohere", "\"use_qk_norm\":true"), ERR_UNSUPPORTED, "use_qk_norm"},
    {OF("stablelm", "\"qk_layernorm\":true"), ERR_UNSUPPORTED, "qk_layernorm"},
    {OF("olmo", "\"clip_qkv\":8"), ERR_UNSUPPORTED, "clip_qkv"},
    {OF("ernie4_5_moe", "\"use_bias\":true"), ERR_UNSUPPORTED, "use_bias"},
    {OF("ernie4_5_moe", "\"moe_norm_min\":0.1"), ERR_UNSUPPORTED, "moe_norm_min"},
    {OF("ernie4_5_moe", "\"moe_k\":65"), ERR_INPUT, "\"moe_k\": 65 of 64"},
    {OF("ernie4_5_moe", "\"moe_layer_interval\":0"), ERR_INPUT, "moe_layer_interval"},
    {OF("ministral3", "\"sliding_window\":null"), ERR_INPUT, "rope_parameters"},
    {OF("ministral3",
        "\"rope_parameters\":{\"rope_type\":\"default\",\"llama_4_scaling_beta\":0.1}"),
     ERR_INPUT, "original_max_position_embeddings"},
    {OF("hunyuan_v1_dense", "\"rope_scaling\":{\"type\":\"dynamic\",\"alpha\":0}"), ERR_INPUT,
     "alpha"},
    {OF("llama", "\"rope_scaling\":{\"type\":\"dynamic\",\"alpha\":1000}"), ERR_INPUT, "factor"},
    {OF("granite_swa", "\"layer_rope_theta\":[0]"), ERR_INPUT, "each of the 2 layers"},
    {OF("granite_swa", "\"num_hidden_layers\":2,\"layer_rope_theta\":[0,0.5]"), ERR_INPUT,
     "layer_rope_theta"},
    {OF("granite_swa", "\"num_hidden_layers\":3,\"layer_rope_theta\":[5,1000,2000]"),
     ERR_UNSUPPORTED, "1000 and 2000 differ"},
    {OF("mellum", "\"num_hidden_layers\":2,\"mlp_layer_types\":[\"sparse\"]"), ERR_INPUT,
     "each of the 2 layers"},
    {OF("mellum", "\"num_hidden_layers\":1,\"mlp_layer_types\":[\"thick\"]"), ERR_UNSUPPORTED,
     "mlp_layer_types"},
    {OF("hunyuan_v1_moe", "\"num_experts\":4,\"moe_topk\":[2,3]"), ERR_UNSUPPORTED, "moe_topk"},
    {OF("hunyuan_v1_moe", "\"num_experts\":4,\"use_qk_norm\":false"), ERR_UNSUPPORTED,
     "use_qk_norm"},
    {OF("internlm3", "\"qkv_bias\":true"), ERR_UNSUPPORTED, "\"qkv_bias\" and \"bias\""},
    {OF("iquestcoder", "\"use_sliding_window\":true"), ERR_UNSUPPORTED, "use_sliding_window"},
    {OF("phimoe", "\"num_local_experts\":4,\"num_experts_per_tok\":3"), ERR_UNSUPPORTED,
     "num_experts_per_tok"},
    {OF("phimoe", "\"router_jitter_noise\":0"), ERR_INPUT, "router_jitter_noise"},
    {OF("llama", "\"lm_head_bias\":true"), ERR_UNSUPPORTED, "lm_head_bias"},
    {OF("llama", "\"hidden_act\":\"xielu\""), ERR_UNSUPPORTED, "xielu"},
    {OF("phi", "\"qk_layernorm\":true"), ERR_UNSUPPORTED, "qk_layernorm"},
    {OF("apertus", "\"hidden_act\":\"xielu\""), ERR_INPUT, "rope_parameters"},
    {OF("llama", "\"scale_emb\":12"), ERR_UNSUPPORTED, "scale_emb"},
    {OF("minicpm3", "\"num_key_value_heads\":4,\"dim_model_base\":0"), ERR_INPUT, "dim_model_base"},
    {OF("minicpm3", "\"num_key_value_heads\":4,\"head_dim\":30"), ERR_UNSUPPORTED, "head_dim"},
    {OF("hy_v3", "\"router_scaling_factor\":0"), ERR_INPUT, "router_scaling_factor"},
    {OF("granitemoeshared", "\"shared_intermediate_size\":-1"), ERR_INPUT,
     "shared_intermediate_size"},
    {OF("gpt_oss", "\"rope_scaling\":{\"rope_type\":\"default\"},\"swiglu_alpha\":2"),
     ERR_UNSUPPORTED, "swiglu_alpha"},
    {OF("minimax_m2", "\"rotary_dim\":0"), ERR_INPUT, "rotary_dim"},
    {OF("solar_open", "\"rope_parameters\":{\"partial_rotary_factor\":0.5}"), ERR_UNSUPPORTED,
     "partial_rotary_factor"},
    {OF("glm4", "\"head_dim\":14"), ERR_UNSUPPORTED, "7 of the 14 values"},
    {OF("smollm3", "\"use_sliding_window\":true,\"sliding_window\":12,"
                   "\"layer_types\":[\"sliding_attention\",\"full_attention\"]"),
     ERR_UNSUPPORTED, "use_sliding_window"},
    {"{\"no_rope_layers\":[1,1]}", ERR_UNSUPPORTED, "no_rope_layers"},
    {"{\"attn_logit_softcapping\":50.0}", ERR_UNSUPPORTED, "attn_logit_softcapping"},
    {"{\"model_type\":\"gemma3_text\",\"architectures\":null,\"attn_logit_softcapping\":50.0}",
     ERR_UNSUPPORTED, "attn_logit_softcapping"},
    {"{\"model_type\":\"gemma2\",\"architectures\":null,\"attn_logit_softcapping\":-1}", ERR_INPUT,
     "attn_logit_softcapping"},
    {"{\"model_type\":\"gemma2\",\"architectures\":null,\"query_pre_attn_scalar\":0}", ERR_INPUT,
     "query_pre_attn_scalar"},
    {"{\"model_type\":\"gemma3_text\",\"architectures\":null,"
     "\"use_bidirectional_attention\":true}",
     ERR_UNSUPPORTED, "use_bidirectional_attention"},
    {"{\"model_type\":\"gemma2\",\"architectures\":null,\"hidden_activation\":\"tanh\"}",
     ERR_UNSUPPORTED, "hidden_activation"},
    {"{\"model_type\":\"gemma3\",\"architectures\":null,\"text_config\":{"
     "\"final_logit_softcapping\":30}}",
     ERR_UNSUPPORTED, "final_logit_softcapping"},
    {OF("gemma4_text", "\"use_bidirectional_attention\":\"all\""), ERR_UNSUPPORTED,
     "use_bidirectional_attention"},
    {OF("gemma4_text", "\"num_kv_shared_layers\":2"), ERR_INPUT, "num_kv_shared_layers"},
    {OF("gemma4_text", "\"num_kv_shared_layers\":1"), ERR_INPUT, "layer 1 has no earlier layer"},
    {OF("gemma4_text", "\"global_head_dim\":15"), ERR_UNSUPPORTED, "global_head_dim"},
    {OF("gemma4_text", "\"attention_k_eq_v\":true,\"num_global_key_value_heads\":3"), ERR_INPUT,
     "num_global_key_value_heads"},
    {OF("gemma4_text", "\"per_layer_config\":{\"0\":{\"head_dim\":32}}"), ERR_UNSUPPORTED,
     "per_layer_config"},
    {OF("gemma4_text", "\"per_layer_config\":{\"1\":{\"sliding_window\":3}}"), ERR_UNSUPPORTED,
     "sliding_window"},
    {OF("gemma4_text", "\"per_layer_config\":7"), ERR_UNSUPPORTED, "per_layer_config"},
    {OF("gemma4_text", "\"vocab_size_per_layer_input\":1"), ERR_UNSUPPORTED,
     "vocab_size_per_layer_input"},
    {OF("gemma4_text", "\"hidden_size_per_layer_input\":-1"), ERR_INPUT,
     "hidden_size_per_layer_input"},
    {OF("gemma4_text", "\"enable_moe_block\":true"), ERR_INPUT, "num_experts"},
    {OF("gemma4_text", "\"rope_parameters\":{\"full_attention\":{\"rope_type\":\"linear\","
                       "\"factor\":2,\"partial_rotary_factor\":0.5}}"),
     ERR_UNSUPPORTED, "partial_rotary_factor"},
    {"{\"embedding_multiplier\":12}", ERR_UNSUPPORTED, "embedding_multiplier"},
    {"{\"logit_scale\":0.1}", ERR_UNSUPPORTED, "logit_scale"},
    {"{\"model_type\":\"granite\",\"architectures\":null,\"logits_scaling\":0}", ERR_INPUT,
     "logits_scaling"},
    {"{\"model_type\":\"glm4\",\"architectures\":null,\"mlp_bias\":true}", ERR_UNSUPPORTED,
     "mlp_bias"},
    {"{\"layer_types\":[\"linear_attention\",\"linear_attention\"]}", ERR_UNSUPPORTED,
     "linear_attention"},
    {"{\"layer_types\":[\"sliding_attention\",\"sliding_attention\"]}", ERR_INPUT,
     "sliding_window"},
    /* layers without attention */
    {"{\"layer_types\":[\"conv\",\"full_attention\"]}", ERR_UNSUPPORTED, "layer_types"},
    {LFM2("\"layer_types\":[\"conv\"]"), ERR_INPUT, "layer_types"},
    {LFM2("\"layer_types\":[\"conv\",\"linear_attention\"]"), ERR_UNSUPPORTED, "layer_types"},
    {LFM2("\"full_attn_idxs\":[2]"), ERR_INPUT, "full_attn_idxs"},
    {LFM2("\"full_attn_idxs\":1"), ERR_UNSUPPORTED, "full_attn_idxs"},
    {LFM2("\"full_attn_idxs\":[0],\"conv_L_cache\":1"), ERR_UNSUPPORTED, "conv_L_cache"},
    {LFM2("\"full_attn_idxs\":[0],\"conv_L_cache\":17"), ERR_INPUT, "conv_L_cache"},
    {LFM2("\"block_ffn_dim_multiplier\":0"), ERR_INPUT, "block_ffn_dim_multiplier"},
    {LFM2("\"mlp_bias\":true"), ERR_UNSUPPORTED, "mlp_bias"},
    {"{\"full_attention_interval\":2}", ERR_UNSUPPORTED, "full_attention_interval"},
    {QWEN("\"layer_types\":[\"conv\",\"full_attention\"]"), ERR_UNSUPPORTED, "layer_types"},
    {QWEN("\"full_attention_interval\":0"), ERR_INPUT, "full_attention_interval"},
    {QWEN("\"full_attention_interval\":2,\"attn_output_gate\":false"), ERR_UNSUPPORTED,
     "attn_output_gate"},
    {QWEN("\"full_attention_interval\":2,\"linear_conv_kernel_dim\":1"), ERR_UNSUPPORTED,
     "linear_conv_kernel_dim"},
    {QWEN("\"full_attention_interval\":2,\"linear_conv_kernel_dim\":17"), ERR_INPUT,
     "linear_conv_kernel_dim"},
    {QWEN("\"full_attention_interval\":2,\"linear_num_value_heads\":24"), ERR_INPUT,
     "linear_num_value_heads"},
    {QWEN("\"full_attention_interval\":2,\"linear_key_head_dim\":257"), ERR_INPUT,
     "linear_key_head_dim"},
    {NEXT("\"full_attention_interval\":2,\"linear_value_head_dim\":257"), ERR_INPUT,
     "linear_value_head_dim"},
    {NEXT("\"full_attention_interval\":2,\"hidden_act\":\"gelu_pytorch_tanh\""), ERR_UNSUPPORTED,
     "hidden_act"},
    {NEXT("\"full_attention_interval\":2,\"rope_scaling\":{\"mrope_section\":[1,2,3]}"),
     ERR_UNSUPPORTED, "mrope_section"},
    {KIMI("\"attention_bias\":true"), ERR_UNSUPPORTED, "attention_bias"},
    {KIMI("\"mla_use_nope\":false"), ERR_UNSUPPORTED, "mla_use_nope"},
    {KIMI("\"linear_head_dim\":257"), ERR_INPUT, "linear_head_dim"},
    {KIMI("\"moe_renormalize\":true,\"norm_topk_prob\":false"), ERR_INPUT, "moe_renormalize"},
    {KIMI("\"moe_router_activation_func\":\"softmax\""), ERR_UNSUPPORTED, "scoring_func"},
    {KIMI("\"linear_attn_config\":3"), ERR_UNSUPPORTED, "linear_attn_config"},
    {KIMI("\"linear_attn_config\":{\"kda_layers\":[1]}"), ERR_UNSUPPORTED, "full_attn_layers"},
    {KIMI_LAYERS("[2]", "[0]"), ERR_INPUT, "kda_layers"},
    {KIMI_LAYERS("[2]", "[1,1]"), ERR_INPUT, "kda_layers"},
    {KIMI_LAYERS("[1]", "[1]"), ERR_INPUT, "kda_layers"},
    {KIMI_LAYERS("[3]", "[1]"), ERR_INPUT, "leaves a layer out"},
    {KIMI_LAYERS("[2]", "[1,3]"), ERR_INPUT, "layer_types"},
    {KIMI_LAYERS("[1025]", "[1]"), ERR_INPUT, "full_attn_layers"},
    {OLMO("\"attention_bias\":true"), ERR_UNSUPPORTED, "attention_bias"},
    {OLMO("\"full_attention_interval\":2"), ERR_UNSUPPORTED, "full_attention_interval"},
    {OLMO("\"linear_key_head_dim\":129"), ERR_UNSUPPORTED, "129 x 258"},
    {OLMO("\"linear_allow_neg_eigval\":1"), ERR_INPUT, "linear_allow_neg_eigval"},
    /* selective scans */
    {SCAN("\"layer_types\":[\"mamba\",\"conv\"]"), ERR_UNSUPPORTED, "layer_types"},
    {SCAN("\"layers_block_type\":[\"mamba\"]"), ERR_INPUT, "layers_block_type"},
    {SCAN("\"mamba_n_heads\":7"), ERR_INPUT, "mamba_n_heads"},
    {SCAN("\"mamba_d_head\":31"), ERR_INPUT, "mamba_n_heads"},
    {SCAN("\"mamba_n_groups\":3"), ERR_INPUT, "mamba_n_groups"},
    {SCAN("\"mamba_d_conv\":1"), ERR_UNSUPPORTED, "mamba_d_conv"},
    {SCAN("\"mamba_d_conv\":17"), ERR_INPUT, "mamba_d_conv"},
    {SCAN("\"mamba_d_state\":4097"), ERR_INPUT, "mamba_d_state"},
    {SCAN("\"hidden_act\":\"gelu_pytorch_tanh\""), ERR_UNSUPPORTED, "hidden_act"},
    {SCAN("\"time_step_limit\":[1,0.5]"), ERR_UNSUPPORTED, "time_step_limit"},
    {SCAN("\"time_step_limit\":[0]"), ERR_UNSUPPORTED, "time_step_limit"},
    {SCAN("\"time_step_limit\":[0,{\"__float__\":\"NaN\"}]"), ERR_UNSUPPORTED, "time_step_limit"},
    {SCAN("\"position_embedding_type\":\"alibi\""), ERR_UNSUPPORTED, "position_embedding_type"},
    {OF("bamba", "\"mamba_n_heads\":4,\"attn_layer_indices\":[2]"), ERR_INPUT,
     "attn_layer_indices"},
    {NEMOTRON(""), ERR_INPUT, "layers_block_type"},
    {NEMOTRON("\"hybrid_override_pattern\":\"M*-\","), ERR_INPUT, "hybrid_override_pattern"},
    {NEMOTRON("\"hybrid_override_pattern\":\"MX\","), ERR_UNSUPPORTED, "hybrid_override_pattern"},
    {NEMOTRON("\"layers_block_type\":[\"mamba\",\"conv\"],"), ERR_UNSUPPORTED, "layers_block_type"},
    {NEMOTRON("\"hybrid_override_pattern\":\"M*\",\"mamba_hidden_act\":\"relu\","), ERR_UNSUPPORTED,
     "mamba_hidden_act"},
    {NEMOTRON("\"hybrid_override_pattern\":\"ME\",\"moe_latent_size\":8,"), ERR_UNSUPPORTED,
     "moe_latent_size"},
    {NEMOTRON("\"hybrid_override_pattern\":\"M*\",\"attention_head_dim\":64,"), ERR_UNSUPPORTED,
     "attention_head_dim"},
    {NEMOTRON("\"hybrid_override_pattern\":\"M*\",\"attention_bias\":true,"), ERR_UNSUPPORTED,
     "attention_bias"},
    {OF("mamba2", "\"num_heads\":4,\"head_dim\":33"), ERR_INPUT, "num_heads"},
    {FALCON("\"ssm_multipliers\":[1,1,1,1]"), ERR_UNSUPPORTED, "ssm_multipliers"},
    {FALCON("\"mlp_multipliers\":[1,\"x\"]"), ERR_UNSUPPORTED, "mlp_multipliers"},
    {FALCON("\"key_multiplier\":0"), ERR_INPUT, "key_multiplier"},
    {"{\"key_multiplier\":2}", ERR_UNSUPPORTED, "key_multiplier"},
    /* tokens */
    {"{\"eos_token_id\":300}", ERR_INPUT, "eos_token_id"},
    {"{\"eos_token_id\":-1}", ERR_INPUT, "eos_token_id"},
    {"{\"eos_token_id\":[2,\"x\"]}", ERR_INPUT, "eos_token_id"},
    {"{\"eos_token_id\":2.5}", ERR_INPUT, "eos_token_id"},
    {"{\"eos_token_id\":[1,2,3,4,5,6,7,8,9]}", ERR_LIMIT, "eos_token_id"},
    {"{\"bos_token_id\":300}", ERR_INPUT, "bos_token_id"},
};

START_TEST(refuses)
{
    const verdict *v = &refused[_i];
    model_config c;
    err e = {0};
    err_code rc = read_patched(v->patch, &c, &e);
    ck_assert_msg(rc == v->code, "%s: got %d (%s), want %d", v->patch, rc, e.msg, v->code);
    ck_assert_msg(strstr(e.msg, v->says) != NULL, "%s: says '%s'", v->patch, e.msg);
    ck_assert_msg(strstr(e.msg, "config.json") != NULL, "%s: says '%s'", v->patch, e.msg);
    ck_assert_ptr_null(strstr(e.msg, dir));
    ck_assert_int_eq(read_patched(v->patch, &c, NULL), rc); /* no err wanted */
}
END_TEST

START_TEST(not_json)
{
    static const char *const texts[] = {"",
                                        "{",
                                        "[]",
                                        "null",
                                        "{}x",
                                        "{\"a\":1,\"a\":1}",
                                        "{\"a\":NaN}",
                                        "{\"a\":1e999}",
                                        "{\"a\":\"\xff\"}"};
    for (size_t i = 0; i < sizeof(texts) / sizeof(texts[0]); i++) {
        model_config c;
        err e = {0};
        write_file("config.json", texts[i]);
        err_code rc = model_config_read(dir, &c, &e);
        ck_assert_msg(rc == ERR_INPUT || rc == ERR_LIMIT, "%s: %d %s", texts[i], rc, e.msg);
    }
    model_config c;
    err e;
    write_file("config.json", NULL);
    ck_assert_int_eq(model_config_read(dir, &c, &e), ERR_NOT_FOUND);
    ck_assert_int_eq(model_config_read("/dev/null", &c, &e), ERR_NOT_FOUND); /* is no folder */
}
END_TEST

START_TEST(reads_classic_llama)
{
    model_config c;
    err e;
    ck_assert_int_eq(read_patched("{}", &c, &e), ERR_NONE);
    ck_assert_str_eq(c.family, "llama");
    ck_assert_int_eq(c.n_layer, 2);
    ck_assert_int_eq(c.head_dim, 16);
    ck_assert_int_eq(c.n_kv_head, 2);
    ck_assert_int_eq(c.max_pos, 512);
    ck_assert_int_eq(c.window, 0);
    ck_assert_float_eq(c.rope.theta, 500000.0F);
    ck_assert_float_eq(c.norm_eps, 1e-5F);
    ck_assert_int_eq(c.rope.kind, ROPE_PLAIN);
    ck_assert_int_eq(c.type, DT_BF16);
    ck_assert_int_eq(c.bos_id, 1);
    ck_assert_int_eq(c.n_eos, 1);
    ck_assert_int_eq(c.eos_id[0], 2);
    ck_assert(!c.qkv_bias && !c.o_bias && !c.mlp_bias && !c.qk_norm && !c.tied);
    ck_assert(c.generation.temperature == 1 && c.generation.top_p == 1 && c.generation.top_k == 0);

    int d_out, d_in;
    model_proj_shape(&c, PROJ_K, &d_out, &d_in);
    ck_assert(d_out == 32 && d_in == 64);
    model_proj_shape(&c, PROJ_DOWN, &d_out, &d_in);
    ck_assert(d_out == 64 && d_in == 128);
}
END_TEST

START_TEST(reads_experts)
{
    model_config c;
    err e = {0};
    int d_out, d_in;
    const char *qwen2 = OF("qwen2_moe", "\"num_hidden_layers\":4,\"decoder_sparse_step\":2,"
                                        "\"mlp_only_layers\":[3],\"moe_intermediate_size\":24,"
                                        "\"shared_expert_intermediate_size\":40");
    ck_assert_msg(read_patched(qwen2, &c, &e) == ERR_NONE, "%s", e.msg);
    ck_assert(c.experts.route.n == 60 && c.experts.route.top_k == 4 && c.experts.ffn_dim == 24);
    ck_assert(!c.experts.route.normed && !c.experts.route.softmax_last && c.qkv_bias && !c.o_bias);
    for (int i = 0; i < 4; i++) ck_assert_int_eq(!!(c.layer[i] & LAYER_EXPERTS), i == 1);
    model_layer_shape(&c, 0, PROJ_UP, &d_out, &d_in);
    ck_assert(d_out == 128 && d_in == 64);
    model_layer_shape(&c, 1, PROJ_UP, &d_out, &d_in);
    ck_assert(d_out == 40 && d_in == 64);
    model_expert_shape(&c, PROJ_DOWN, &d_out, &d_in);
    ck_assert(d_out == 64 && d_in == 24);

    ck_assert_msg(read_patched(MOE("\"norm_topk_prob\":true"), &c, &e) == ERR_NONE, "%s", e.msg);
    ck_assert(c.experts.route.n == 128 && c.experts.route.top_k == 8 && c.experts.route.normed &&
              c.qk_norm);
    ck_assert(!model_has_proj(&c, 1, PROJ_GATE) && model_has_proj(&c, 1, PROJ_O));
    ck_assert_msg(read_patched(OF("mixtral", "\"num_local_experts\":3"), &c, &e) == ERR_NONE, "%s",
                  e.msg);
    ck_assert(c.experts.route.n == 3 && c.experts.route.top_k == 2 && c.experts.route.normed);
    ck_assert(c.experts.ffn_dim == 128 && c.window == 0);
    const char *granite = OF("granitemoe", "\"residual_multiplier\":0.5");
    ck_assert_msg(read_patched(granite, &c, &e) == ERR_NONE, "%s", e.msg);
    ck_assert(c.experts.route.softmax_last && c.residual_scale == 0.5F);
}
END_TEST

/* What the published files say, and what follows of it. */
START_TEST(reads_newer_mixtures)
{
    model_config c;
    err e = {0};
    int d_out, d_in;
    ck_assert_msg(read_patched(OSS("\"swiglu_limit\":7.0"), &c, &e) == ERR_NONE, "%s", e.msg);
    ck_assert(c.sinks && c.experts.biased && c.experts.act == ACT_SWIGLU_CLAMPED && c.o_bias);
    ck_assert(c.layer[0] & LAYER_WINDOW && !(c.layer[1] & LAYER_WINDOW) && c.window == 128);

    const char *v3 = V3("\"qk_nope_head_dim\":12,\"qk_rope_head_dim\":4,\"v_head_dim\":10,"
                        "\"kv_lora_rank\":20,\"q_lora_rank\":null,\"first_k_dense_replace\":1,"
                        "\"num_nextn_predict_layers\":1,\"topk_method\":\"noaux_tc\","
                        "\"rope_scaling\":{\"type\":\"yarn\",\"factor\":4,"
                        "\"mscale\":1.0,\"mscale_all_dim\":1.0}");
    ck_assert_msg(read_patched(v3, &c, &e) == ERR_NONE, "%s", e.msg);
    ck_assert(c.head_dim == 16 && c.rope.dim == 4 && c.q_rank == 0 && c.rope_pairs);
    ck_assert(c.experts.shared_dim == 2048 && c.spare_layers == 1 &&
              !model_has_proj(&c, 0, PROJ_Q_A));
    ck_assert(!(c.layer[0] & LAYER_EXPERTS) && c.layer[1] & LAYER_EXPERTS);
    float m = 0.1F * logf(4) + 1;
    ck_assert_float_eq_tol(c.score_scale, m * m / 4, 1e-6F);
    ck_assert_float_eq(c.rope.attention_factor, 1);
    model_proj_shape(&c, PROJ_V, &d_out, &d_in);
    ck_assert(d_out == 4 * 22 && d_in == 20);
    model_proj_shape(&c, PROJ_O, &d_out, &d_in);
    ck_assert(d_out == 64 && d_in == 40);
    ck_assert_msg(read_patched(V2("\"topk_method\":\"greedy\",\"n_group\":1"), &c, &e) == ERR_NONE,
                  "%s", e.msg);
    ck_assert(c.experts.route.n_group == 0 && !c.experts.route.sigmoid && c.q_rank == 1536);

    const char *llama4 = LLAMA4("\"no_rope_layers\":[],\"no_rope_layer_interval\":2,"
                                "\"attn_temperature_tuning\":4,\"attention_chunk_size\":32,"
                                "\"interleave_moe_layer_step\":2");
    ck_assert_msg(read_patched(llama4, &c, &e) == ERR_NONE, "%s", e.msg);
    ck_assert(c.chunked && c.window == 32 && c.layer[0] == LAYER_WINDOW);
    ck_assert(c.layer[1] == (LAYER_NO_ROPE | LAYER_EXPERTS) && c.qk_unit);
    ck_assert(c.q_scale == 0.1F && c.ffn_dim == 16384 && c.experts.ffn_dim == 128);
    ck_assert(read_patched(LLAMA4("\"attn_temperature_tuning\":0"), &c, &e) == ERR_NONE);
    ck_assert(c.q_scale == 0);
}
END_TEST

START_TEST(reads_scans)
{
    model_config c;
    err e = {0};
    int d_out, d_in;
    const char *hybrid = SCAN("\"layer_types\":[\"attention\",\"mamba\"],\"mamba_d_state\":8,"
                              "\"mamba_n_groups\":2,\"mamba_d_head\":\"auto\","
                              "\"time_step_limit\":[0.5,{\"__float__\":\"Infinity\"}]");
    ck_assert_msg(read_patched(hybrid, &c, &e) == ERR_NONE, "%s", e.msg);
    ck_assert(c.mixer[0] == MIXER_ATTENTION && c.mixer[1] == MIXER_SCAN);
    ck_assert(c.conv_bias && !c.in_bias && !c.out_bias && c.scan.normed && !c.scan.norm_first);
    ck_assert(c.scan.dt_least == 0.5F && isinf(c.scan.dt_most));
    const mixer_shape *s = &c.state;
    ck_assert(s->taps == 4 && s->heads == 4 && s->cols == 32 && s->rows == 8 && s->groups == 2);
    ck_assert_int_eq(s->channels, 128 + 2 * 2 * 8);
    ck_assert_uint_eq(model_state_floats(&c), 3 * 160 + 4 * 8 * 32);
    ck_assert(c.layer[0] & LAYER_NO_ROPE && c.layer[1] & LAYER_EXPERTS);
    model_layer_shape(&c, 1, PROJ_IN, &d_out, &d_in);
    ck_assert(d_out == 128 + 160 + 4 && d_in == 64);
    model_layer_shape(&c, 1, PROJ_UP, &d_out, &d_in);
    ck_assert(d_out == 96 && c.experts.ffn_dim == 128);
    ck_assert_str_eq(model_fused_name(&c, 1, PROJ_UP), "shared_mlp.input_linear");

    const char *dense = SCAN("\"num_local_experts\":0,\"position_embedding_type\":\"rope\"");
    ck_assert_msg(read_patched(dense, &c, &e) == ERR_NONE, "%s", e.msg);
    ck_assert(c.ffn_dim == 96 && c.layer[0] == 0 && model_attention_layers(&c) == 0);

    const char *pattern =
        NEMOTRON("\"hybrid_override_pattern\":\"ME*-\",\"num_hidden_layers\":\"-\",");
    ck_assert_msg(read_patched(pattern, &c, &e) == ERR_NONE, "%s", e.msg);
    ck_assert(c.n_layer == 4 && c.head_dim == 128 && c.ungated && c.act == ACT_RELU2);
    ck_assert(c.mixer[0] == MIXER_SCAN && c.mixer[1] == MIXER_NONE);
    ck_assert(c.layer[0] == (LAYER_NO_MLP | LAYER_NO_ROPE) && c.layer[3] == LAYER_NO_ROPE);
    ck_assert(c.layer[1] == (LAYER_EXPERTS | LAYER_NO_ROPE) && c.experts.shared_dim == 7688);
    ck_assert(model_has_proj(&c, 3, PROJ_UP) && !model_has_proj(&c, 2, PROJ_UP));
    ck_assert(!model_has_proj(&c, 3, PROJ_Q) && !model_has_proj(&c, 3, PROJ_GATE));

    const char *mamba2 =
        OF("mamba2", "\"num_heads\":4,\"head_dim\":32,\"n_groups\":2,\"use_bias\":true,"
                     "\"num_attention_heads\":\"-\",\"num_key_value_heads\":\"-\",\"head_dim\":32,"
                     "\"max_position_embeddings\":\"-\"");
    ck_assert_msg(read_patched(mamba2, &c, &e) == ERR_NONE, "%s", e.msg);
    ck_assert(model_attention_layers(&c) == 0 && c.in_bias && c.out_bias && c.max_pos == 1 << 20);
    ck_assert(c.head_dim == 2 && c.n_kv_head == 1 && c.state.cols == 32);

    const char *falcon =
        FALCON("\"key_multiplier\":0.5,\"ssm_multipliers\":[1,2,3,4,5],\"projectors_bias\":true");
    ck_assert_msg(read_patched(falcon, &c, &e) == ERR_NONE, "%s", e.msg);
    ck_assert(c.mixer[0] == MIXER_BOTH && mixer_attends(c.mixer[1]) && mixer_keeps(c.mixer[1]));
    ck_assert(c.score_scale == 0.125F && c.scan.by[4] == 5 && !c.scan.normed && c.scan.norm_first);
    ck_assert(!c.in_bias && c.out_bias && !model_multiplied(&c));
    ck_assert(model_has_proj(&c, 0, PROJ_Q) && model_has_proj(&c, 0, PROJ_OUT));

    const char *shared = OF("granitemoeshared", "\"num_local_experts\":4");
    ck_assert_msg(read_patched(shared, &c, &e) == ERR_NONE, "%s", e.msg);
    ck_assert(c.experts.shared_dim == 0 && !model_has_proj(&c, 0, PROJ_UP) && c.state.taps == 0);
    shared = OF("granitemoeshared", "\"shared_intermediate_size\":24");
    ck_assert_msg(read_patched(shared, &c, &e) == ERR_NONE, "%s", e.msg);
    ck_assert(c.experts.shared_dim == 24 && model_has_proj(&c, 1, PROJ_GATE));

    const char *lfm2 = OF("lfm2_moe", "\"num_hidden_layers\":3,\"use_expert_bias\":false,"
                                      "\"layer_types\":[\"conv\",\"full_attention\",\"conv\"],"
                                      "\"routed_scaling_factor\":2");
    ck_assert_msg(read_patched(lfm2, &c, &e) == ERR_NONE, "%s", e.msg);
    ck_assert(c.ffn_dim == 128 && !(c.layer[1] & LAYER_EXPERTS) && c.layer[2] & LAYER_EXPERTS);
    ck_assert(!c.experts.choice && c.experts.route.scale == 2 && c.experts.route.normed);

    /* as Python writes a number that JSON does not have */
    char text[1024];
    snprintf(text, sizeof(text),
             "%.*s,\"model_type\":\"bamba\",\"architectures\":null,"
             "\"mamba_n_heads\":4,\"x\":\"Infinity\\\"\",\"time_step_limit\":[0.0,Infinity]}",
             (int)strlen(plain_llama) - 1, plain_llama);
    write_file("config.json", text);
    ck_assert_msg(model_config_read(dir, &c, &e) == ERR_NONE, "%s", e.msg);
    ck_assert(isinf(c.scan.dt_most) && c.mixer[0] == MIXER_SCAN);
}
END_TEST

START_TEST(reads_mixers)
{
    model_config c;
    err e = {0};
    int d_out, d_in;
    char name[64];
    const char *lfm2 = LFM2("\"full_attn_idxs\":[1],\"conv_bias\":true,\"tie_embedding\":false,"
                            "\"block_ff_dim\":100,\"block_multiple_of\":16");
    ck_assert_msg(read_patched(lfm2, &c, &e) == ERR_NONE, "%s", e.msg);
    ck_assert(c.mixer[0] == MIXER_CONV && c.mixer[1] == MIXER_ATTENTION && c.conv_bias);
    ck_assert(c.in_bias && c.out_bias);
    ck_assert(c.ffn_dim == 80 && !c.tied && c.fixed_norms);
    ck_assert(c.state.taps == 3 && c.state.channels == 64);
    ck_assert_int_eq(model_attention_layers(&c), 1);
    ck_assert_uint_eq(model_state_floats(&c), 2 * 64);
    ck_assert(model_has_proj(&c, 0, PROJ_IN) && !model_has_proj(&c, 1, PROJ_IN));
    ck_assert(!model_has_proj(&c, 0, PROJ_Q) && model_has_proj(&c, 0, PROJ_DOWN));
    model_layer_shape(&c, 0, PROJ_IN, &d_out, &d_in);
    ck_assert(d_out == 192 && d_in == 64);
    model_proj_name(&c, 0, PROJ_DOWN, name, sizeof(name));
    ck_assert_str_eq(name, "feed_forward.w2");
    model_proj_name(&c, 0, PROJ_OUT, name, sizeof(name));
    ck_assert_str_eq(name, "conv.out_proj");
    ck_assert_msg(read_patched(LFM2("\"block_auto_adjust_ff_dim\":false"), &c, &e) == ERR_NONE,
                  "%s", e.msg);
    ck_assert(c.ffn_dim == 128 && model_state_floats(&c) == 0 && c.tied); /* all have attention */
}
END_TEST

START_TEST(reads_delta_rules)
{
    static const struct {
        proj p;
        int d_out, d_in;
        const char *name;
    } apart[] = {{PROJ_IN, 2 * 2 * 8 + 6 * 16, 64, "linear_attn.in_proj_qkv"},
                 {PROJ_Z, 6 * 16, 64, "linear_attn.in_proj_z"},
                 {PROJ_B, 6, 64, "linear_attn.in_proj_b"},
                 {PROJ_A, 6, 64, "linear_attn.in_proj_a"},
                 {PROJ_OUT, 64, 6 * 16, "linear_attn.out_proj"}},
      fused[] = {{PROJ_IN, 2 * 2 * 8 + 2 * 6 * 16, 64, "linear_attn.in_proj_qkvz"},
                 {PROJ_B, 12, 64, "linear_attn.in_proj_ba"},
                 {PROJ_OUT, 64, 6 * 16, "linear_attn.out_proj"},
                 {PROJ_Z, 0, 0, NULL},
                 {PROJ_A, 0, 0, NULL}};
#define SIZES                                                                                \
    "\"full_attention_interval\":2,\"linear_num_key_heads\":2,\"linear_num_value_heads\":6," \
    "\"linear_key_head_dim\":8,\"linear_value_head_dim\":16,\"num_attention_heads\":2,"      \
    "\"num_key_value_heads\":1,\"head_dim\":32"
    for (int n = 0; n < 2; n++) {
        model_config c;
        err e = {0};
        int d_out, d_in;
        char name[64];
        ck_assert_msg(read_patched(n ? NEXT(SIZES) : QWEN(SIZES), &c, &e) == ERR_NONE, "%s", e.msg);
        ck_assert(c.mixer[0] == MIXER_DELTA && c.mixer[1] == MIXER_ATTENTION && c.fixed_norms);
        ck_assert(c.q_gated && c.rope.dim == 8 && c.delta.form == (n ? DELTA_FUSED : DELTA_JOINT));
        ck_assert_uint_eq(model_state_floats(&c), 3 * 128 + 6 * 8 * 16);
        model_layer_shape(&c, 1, PROJ_Q, &d_out, &d_in);
        ck_assert(d_out == 128 && d_in == 64);
        for (int i = 0; i < 5; i++) {
            proj p = n ? fused[i].p : apart[i].p;
            const char *want = n ? fused[i].name : apart[i].name;
            ck_assert(model_has_proj(&c, 0, p) == (want != NULL) && !model_has_proj(&c, 1, p));
            model_layer_shape(&c, 0, p, &d_out, &d_in);
            ck_assert_int_eq(d_out, n ? fused[i].d_out : apart[i].d_out);
            ck_assert_int_eq(d_in, n ? fused[i].d_in : apart[i].d_in);
            model_proj_name(&c, 0, p, name, sizeof(name));
            if (want) ck_assert_str_eq(name, want);
        }
    }
}
END_TEST

/* Queries, keys and values by a projection each, in the slots of attention's. */
START_TEST(reads_olmo_hybrid)
{
    model_config c;
    err e = {0};
    int d_out, d_in;
    char name[64];
    const char *wide = OLMO("\"linear_num_key_heads\":2,\"linear_num_value_heads\":4,"
                            "\"linear_key_head_dim\":8,\"rope_parameters\":{\"rope_theta\":null}");
    ck_assert_msg(read_patched(wide, &c, &e) == ERR_NONE, "%s", e.msg);
    ck_assert(c.mixer[0] == MIXER_DELTA && c.mixer[1] == MIXER_ATTENTION); /* the last, at least */
    ck_assert(c.layer[1] & LAYER_NO_ROPE && c.delta.most == 2 && c.delta.eps == 1e-5F);
    ck_assert(model_has_proj(&c, 0, PROJ_V) && model_has_proj(&c, 0, PROJ_Z));
    ck_assert(!model_has_proj(&c, 0, PROJ_IN) && !model_has_proj(&c, 0, PROJ_OUT));
    ck_assert(!model_has_proj(&c, 0, PROJ_Q_A) && !model_has_proj(&c, 1, PROJ_Z));
    model_layer_shape(&c, 0, PROJ_V, &d_out, &d_in);
    ck_assert(d_out == 4 * 16 && d_in == 64);
    model_layer_shape(&c, 0, PROJ_K, &d_out, &d_in);
    ck_assert(d_out == 2 * 8 && d_in == 64);
    model_layer_shape(&c, 1, PROJ_K, &d_out, &d_in);
    ck_assert(d_out == 2 * 16 && d_in == 64);
    model_layer_shape(&c, 0, PROJ_O, &d_out, &d_in);
    ck_assert(d_out == 64 && d_in == 4 * 16);
    model_proj_name(&c, 0, PROJ_Q, name, sizeof(name));
    ck_assert_str_eq(name, "linear_attn.q_proj");
    model_proj_name(&c, 1, PROJ_Q, name, sizeof(name));
    ck_assert_str_eq(name, "self_attn.q_proj");
    const char *usual = OLMO("\"linear_allow_neg_eigval\":false");
    ck_assert_msg(read_patched(usual, &c, &e) == ERR_NONE, "%s", e.msg);
    ck_assert(c.delta.most == 1 && !(c.layer[1] & LAYER_NO_ROPE));
    ck_assert(c.state.heads == 4 && c.state.groups == 4 && c.state.rows == 12 &&
              c.state.cols == 24);
}
END_TEST

START_TEST(reads_both_rope_notations)
{
    static const char *const both[] = {
        "{\"rope_theta\":5e5,\"rope_scaling\":{\"rope_type\":\"llama3\",\"factor\":8.0,"
        "\"low_freq_factor\":1.0,\"high_freq_factor\":4.0,"
        "\"original_max_position_embeddings\":8192}}",
        "{\"rope_theta\":\"-\",\"rope_parameters\":{\"rope_type\":\"llama3\",\"factor\":8.0,"
        "\"low_freq_factor\":1.0,\"high_freq_factor\":4.0,\"rope_theta\":5e5,"
        "\"original_max_position_embeddings\":8192}}",
    };
    for (int i = 0; i < 2; i++) {
        model_config c;
        err e = {0};
        ck_assert_msg(read_patched(both[i], &c, &e) == ERR_NONE, "%s", e.msg);
        ck_assert_int_eq(c.rope.kind, ROPE_LLAMA3);
        ck_assert_float_eq(c.rope.theta, 5e5F);
        ck_assert_float_eq(c.rope.factor, 8.0F);
        ck_assert_float_eq(c.rope.high_freq, 4.0F);
        ck_assert_int_eq(c.rope.original_pos, 8192);
    }
    model_config c;
    err e = {0};
    ck_assert_int_eq(read_patched("{\"rope_scaling\":null}", &c, &e), ERR_NONE);
    ck_assert_int_eq(c.rope.kind, ROPE_PLAIN);
    ck_assert_int_eq(read_patched("{\"rope_scaling\":{\"type\":\"linear\",\"factor\":2}}", &c, &e),
                     ERR_NONE);
    ck_assert_int_eq(c.rope.kind, ROPE_LINEAR);
    ck_assert_float_eq(c.rope.factor, 2.0F);
}
END_TEST

/* As its publisher writes it. */
START_TEST(reads_kimi_linear)
{
    model_config c;
    err e = {0};
    int d_out, d_in;
    char name[64];
    const char *own = KIMI(
        "\"linear_attn_config\":{\"full_attn_layers\":[2],\"kda_layers\":[1],\"head_dim\":16,"
        "\"num_heads\":3,\"short_conv_kernel_size\":3},\"model_max_length\":77,\"head_dim\":72,"
        "\"max_position_embeddings\":\"-\",\"q_lora_rank\":null,\"kv_lora_rank\":24,"
        "\"qk_nope_head_dim\":12,\"qk_rope_head_dim\":8,\"v_head_dim\":16,\"num_experts\":6,"
        "\"moe_renormalize\":false,\"num_expert_group\":3,\"topk_group\":2,"
        "\"num_experts_per_token\":2,\"num_shared_experts\":2,\"mla_use_nope\":true,"
        "\"moe_intermediate_size\":10,\"moe_router_activation_func\":\"sigmoid\"");
    ck_assert_msg(read_patched(own, &c, &e) == ERR_NONE, "%s", e.msg);
    ck_assert(c.mixer[0] == MIXER_DELTA && c.mixer[1] == MIXER_ATTENTION && c.max_pos == 77);
    ck_assert(c.layer[1] & LAYER_NO_ROPE && c.latent.rank == 24 && c.q_rank == 0);
    ck_assert(c.state.taps == 3 && c.state.heads == 3 && c.state.groups == 3);
    ck_assert(c.state.rows == 16 && c.state.cols == 16 && c.delta.low == 16);
    ck_assert(c.delta.each && c.delta.sigmoid && c.delta.most == 1);
    ck_assert(c.experts.route.top_k == 2 && c.experts.route.n_group == 3);
    ck_assert(!c.experts.route.normed && c.experts.shared_dim == 20);
    ck_assert(!(c.layer[0] & LAYER_EXPERTS) && c.layer[1] & LAYER_EXPERTS);
    model_layer_shape(&c, 0, PROJ_A, &d_out, &d_in);
    ck_assert(d_out == 48 && d_in == 16 && model_has_proj(&c, 0, PROJ_A_LOW));
    model_layer_shape(&c, 0, PROJ_K, &d_out, &d_in);
    ck_assert(d_out == 48 && d_in == 64);
    model_layer_shape(&c, 1, PROJ_K, &d_out, &d_in);
    ck_assert(d_out == 32 && d_in == 64);
    model_proj_name(&c, 0, PROJ_K, name, sizeof(name));
    ck_assert_str_eq(name, "self_attn.k_proj");
    model_proj_name(&c, 1, PROJ_K, name, sizeof(name));
    ck_assert_str_eq(name, "self_attn.kv_a_proj_with_mqa");
    model_proj_name(&c, 0, PROJ_UP, name, sizeof(name));
    ck_assert_str_eq(name, "mlp.up_proj");
    model_proj_name(&c, 1, PROJ_UP, name, sizeof(name));
    ck_assert_str_eq(name, "block_sparse_moe.shared_experts.up_proj");
    const char *usual =
        KIMI("\"q_lora_rank\":20,\"layer_types\":[\"linear_attention\",\"full_attention\"]");
    ck_assert_msg(read_patched(usual, &c, &e) == ERR_NONE, "%s", e.msg);
    ck_assert(c.q_rank == 20 && c.state.heads == 32 && c.experts.route.normed);
}
END_TEST

/* patch, window that must come out */
static const struct {
    const char *patch;
    int window;
} windows[] = {
    {"{\"sliding_window\":64}", 0}, /* llama has none */
    {"{\"model_type\":\"mistral\"}", 4096},
    {"{\"model_type\":\"mistral\",\"sliding_window\":null}", 0},
    {"{\"model_type\":\"mistral\",\"sliding_window\":64}", 64},
    {"{\"model_type\":\"qwen2\",\"sliding_window\":64}", 0},
    {"{\"model_type\":\"qwen2\",\"sliding_window\":64,\"use_sliding_window\":false}", 0},
    {"{\"model_type\":\"qwen2\",\"sliding_window\":64,\"use_sliding_window\":true,"
     "\"max_window_layers\":2}",
     0},
    {"{\"model_type\":\"qwen2\",\"sliding_window\":64,\"use_sliding_window\":true,"
     "\"max_window_layers\":0}",
     64},
    {"{\"model_type\":\"qwen3\",\"sliding_window\":64,\"use_sliding_window\":true,"
     "\"layer_types\":[\"sliding_attention\",\"sliding_attention\"]}",
     64},
    {"{\"model_type\":\"qwen3\",\"sliding_window\":64,\"use_sliding_window\":true,"
     "\"layer_types\":[\"full_attention\",\"full_attention\"]}",
     0},
};

START_TEST(reads_windows)
{
    model_config c;
    err e = {0};
    cJSON *patch = cJSON_Parse(windows[_i].patch);
    cJSON_AddNullToObject(patch, "architectures");
    char *text = cJSON_PrintUnformatted(patch);
    ck_assert_msg(read_patched(text, &c, &e) == ERR_NONE, "%s: %s", text, e.msg);
    ck_assert_msg(c.window == windows[_i].window, "%s: window %d", text, c.window);
    cJSON_free(text);
    cJSON_Delete(patch);
}
END_TEST

START_TEST(families_differ)
{
    model_config c;
    err e;
    ck_assert_int_eq(
        read_patched("{\"model_type\":\"qwen2\",\"architectures\":[\"Qwen2ForCausalLM\"]}", &c, &e),
        0);
    ck_assert(c.qkv_bias && !c.o_bias && !c.qk_norm);
    ck_assert_int_eq(c.head_dim, 16);
    ck_assert_int_eq(
        read_patched("{\"model_type\":\"qwen3\",\"architectures\":[\"Qwen3ForCausalLM\"]}", &c, &e),
        0);
    ck_assert(!c.qkv_bias && c.qk_norm);
    ck_assert_int_eq(c.head_dim, 128);
    ck_assert_int_eq(read_patched("{\"attention_bias\":true,\"mlp_bias\":true}", &c, &e), 0);
    ck_assert(c.qkv_bias && c.o_bias && c.mlp_bias);
    ck_assert_int_eq(read_patched("{\"num_key_value_heads\":\"-\"}", &c, &e), 0);
    ck_assert_int_eq(c.n_kv_head, 4);
}
END_TEST

START_TEST(generation_config_wins)
{
    model_config c;
    err e = {0};
    write_file("generation_config.json",
               "{\"eos_token_id\":[5,6],\"bos_token_id\":null,\"temperature\":0.6,\"top_p\":0.9,"
               "\"top_k\":20,\"do_sample\":true,\"repetition_penalty\":1.05,\"min_p\":0.1,"
               "\"max_new_tokens\":77,\"suppress_tokens\":[7,9],"
               "\"bad_words_ids\":[[6],[1,2,3],[8]]}");
    ck_assert_msg(read_patched("{}", &c, &e) == ERR_NONE, "%s", e.msg);
    ck_assert_int_eq(c.n_eos, 2);
    ck_assert_int_eq(c.eos_id[1], 6);
    ck_assert_int_eq(c.bos_id, 1);
    ck_assert_float_eq(c.generation.temperature, 0.6F);
    ck_assert_float_eq(c.generation.top_p, 0.9F);
    ck_assert_int_eq(c.generation.top_k, 20);
    ck_assert_float_eq(c.generation.repetition_penalty, 1.05F);
    ck_assert_float_eq(c.generation.min_p, 0.1F);
    ck_assert_int_eq(c.gen_max_tokens, 77);
    static const int32_t barred[] = {1, 7, 1, 9, 3, 1, 2, 3, 1, 8}; /* not the end of text, 6 */
    ck_assert_int_eq(c.n_gen_barred, 10);
    ck_assert(memcmp(c.gen_barred, barred, sizeof(barred)) == 0);

    static const char *const wrong[] = {"{\"temperature\":-1}",
                                        "{\"top_p\":2}",
                                        "{\"top_k\":0.5}",
                                        "{\"max_new_tokens\":0}",
                                        "{\"repetition_penalty\":-1}",
                                        "{\"eos_token_id\":\"x\"}",
                                        "{\"suppress_tokens\":7}",
                                        "{\"suppress_tokens\":[-1]}",
                                        "{\"suppress_tokens\":[[1]]}",
                                        "{\"bad_words_ids\":[1]}",
                                        "{\"bad_words_ids\":[[1,0.5]]}",
                                        "{\"bad_words_ids\":[[100000000]]}",
                                        "{",
                                        "[]"};
    for (size_t i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++) {
        write_file("generation_config.json", wrong[i]);
        ck_assert_int_eq(read_patched("{}", &c, &e), ERR_INPUT);
        ck_assert_ptr_nonnull(strstr(e.msg, "generation_config.json"));
    }
}
END_TEST

/* What a log has got while `read` ran. */
static void logged(const char *generation, char *out, size_t cap)
{
    model_config c;
    err e = {0};
    write_file("generation_config.json", generation);
    FILE *log = tmpfile();
    int was = dup(STDERR_FILENO);
    ck_assert(log && was >= 0 && dup2(fileno(log), STDERR_FILENO) >= 0);
    err_code rc = read_patched("{}", &c, &e);
    ck_assert(dup2(was, STDERR_FILENO) >= 0 && close(was) == 0);
    ck_assert_msg(rc == ERR_NONE, "%s", e.msg);
    rewind(log);
    size_t n = fread(out, 1, cap - 1, log);
    out[n] = 0;
    (void)fclose(log);
}

START_TEST(generation_fields_without_effect_are_named)
{
    static const char *const asked[][2] = {{"begin_suppress_tokens", "[1]"},
                                           {"stop_strings", "[\"x\"]"},
                                           {"sequence_bias", "{\"a\":1}"},
                                           {"no_repeat_ngram_size", "1"},
                                           {"num_beams", "4"},
                                           {"typical_p", "0.9"},
                                           {"min_new_tokens", "3"},
                                           {"forced_eos_token_id", "2"}};
    char text[256], log[2048];
    for (size_t i = 0; i < sizeof(asked) / sizeof(asked[0]); i++) {
        snprintf(text, sizeof(text), "{\"%s\":%s}", asked[i][0], asked[i][1]);
        logged(text, log, sizeof(log));
        snprintf(text, sizeof(text), "\"%s\" has no effect", asked[i][0]);
        ck_assert_msg(strstr(log, text) != NULL, "%s: %s", text, log);
    }
    logged("{\"num_beams\":1,\"typical_p\":1.0,\"no_repeat_ngram_size\":0,\"stop_strings\":null,"
           "\"max_length\":20,\"do_sample\":true,\"bad_words_ids\":[]}",
           log, sizeof(log));
    ck_assert_ptr_null(strstr(log, "no effect"));
}
END_TEST

START_TEST(who_does_not_sample_takes_the_likeliest)
{
    model_config c;
    err e = {0};
    write_file("generation_config.json", "{\"do_sample\":false,\"temperature\":0.6}");
    ck_assert_int_eq(read_patched("{}", &c, &e), ERR_NONE);
    ck_assert_float_eq(c.generation.temperature, 0);
}
END_TEST

/* DeepSeek-V2-Lite's layer: 2.25 KiB a position in F32 where pages hold latents, else 20. */
START_TEST(bytes_of_a_position)
{
    static const struct {
        bool absorbs;
        dtype type;
        size_t bytes;
    } cases[] = {{true, DT_F32, 2304},   {true, DT_BF16, 1152},   {true, DT_I8, 580},
                 {false, DT_F32, 20480}, {false, DT_BF16, 10240}, {false, DT_I8, 5184}};
    model_config c;
    err e;
    ck_assert_msg(!model_config_read("fixtures/families/models/deepseek-v2-lite", &c, &e), "%s",
                  e.msg);
    c.n_layer = 1;
    c.latent = (latent_shape){.rank = 512, .rope = 64, .nope = 128, .v = 128, .n_head = 16};
    c.n_head = c.n_kv_head = 16;
    c.head_dim = 192;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        model_config_place(&c, &(weight_rules){.absorbs = cases[i].absorbs});
        ck_assert_uint_eq(model_kv_bytes(&c, cases[i].type), cases[i].bytes);
    }
    for (int n = 1; n <= 64; n *= 2) {
        model_config_place(&c, &(weight_rules){.absorbs = false});
        ck_assert_int_eq(model_config_pages(&c, n, &e), ERR_NONE);
        model_config_place(&c, &(weight_rules){.absorbs = true});
        ck_assert_int_eq(model_config_pages(&c, n, &e), n < 32 ? ERR_UNSUPPORTED : ERR_NONE);
        if (n < 32) ck_assert_ptr_nonnull(strstr(e.msg, "engine.page_tokens must be at least 32"));
    }
    c.latent.rank = 0; /* whatever the backend does, a model without latents keeps none */
    model_config_place(&c, &(weight_rules){.absorbs = true});
    ck_assert(!c.absorbs);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("model_config");
    TCase *tc = tcase_create("config");
    tcase_set_timeout(tc, 60);
    tcase_add_checked_fixture(tc, setup, teardown);
    tcase_add_loop_test(tc, refuses, 0, (int)(sizeof(refused) / sizeof(refused[0])));
    tcase_add_test(tc, not_json);
    tcase_add_test(tc, reads_classic_llama);
    tcase_add_test(tc, reads_experts);
    tcase_add_test(tc, reads_newer_mixtures);
    tcase_add_test(tc, reads_mixers);
    tcase_add_test(tc, reads_delta_rules);
    tcase_add_test(tc, reads_olmo_hybrid);
    tcase_add_test(tc, reads_kimi_linear);
    tcase_add_test(tc, reads_scans);
    tcase_add_test(tc, reads_both_rope_notations);
    tcase_add_loop_test(tc, reads_windows, 0, (int)(sizeof(windows) / sizeof(windows[0])));
    tcase_add_test(tc, families_differ);
    tcase_add_test(tc, generation_config_wins);
    tcase_add_test(tc, generation_fields_without_effect_are_named);
    tcase_add_test(tc, who_does_not_sample_takes_the_likeliest);
    tcase_add_test(tc, bytes_of_a_position);
    suite_add_tcase(s, tc);
    return run_suite(s);
}
