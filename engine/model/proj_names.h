/* proj_names.h -- what the files of most models and adapters call the linear layers (enum proj).
 *
 * An initialiser of an array by proj, for engine/model/layers.c and adapters/format/naming.c, which
 * add the names of the delta rule's projections: these differ between the two.
 */
#ifndef ENGINE_MODEL_PROJ_NAMES_H
#define ENGINE_MODEL_PROJ_NAMES_H

#include "engine/lora.h"

/* clang-format off */
#define PROJ_USUAL_NAMES                                       \
    [PROJ_Q_A] = "self_attn.q_a_proj",                         \
    [PROJ_Q] = "self_attn.q_proj",                             \
    [PROJ_K] = "self_attn.k_proj",                             \
    [PROJ_V] = "self_attn.v_proj",                             \
    [PROJ_O] = "self_attn.o_proj",                             \
    [PROJ_IN] = "mixer.in_proj",                               \
    [PROJ_OUT] = "mixer.out_proj",                             \
    [PROJ_GATE] = "mlp.gate_proj",                             \
    [PROJ_UP] = "mlp.up_proj",                                 \
    [PROJ_DOWN] = "mlp.down_proj",                             \
    [PROJ_PLE_MODEL] = "per_layer_model_projection",           \
    [PROJ_PLE_GATE] = "per_layer_input_gate",                  \
    [PROJ_PLE_OUT] = "per_layer_projection",                   \
    [PROJ_LAUREL_LEFT] = "laurel.linear_left",                 \
    [PROJ_LAUREL_RIGHT] = "laurel.linear_right",               \
    [PROJ_ALTUP_IN] = "altup_projections",                     \
    [PROJ_ALTUP_OUT] = "altup_unembed_projections",            \
    [PROJ_ALTUP_ROUTER] = "altup.modality_router",             \
    [PROJ_ALTUP_PREDICT] = "altup.prediction_coefs",           \
    [PROJ_ALTUP_CORRECT] = "altup.correction_coefs",           \
    [PROJ_ROUTER] = "mlp.gate",                                \
    [PROJ_SHARED_SCORE] = "mlp.shared_expert_gate"
/* clang-format on */

#endif
