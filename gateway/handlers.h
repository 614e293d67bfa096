/* handlers.h -- every handler of the route tables.  Each answers its exchange.  Threads:
 * workers. */
#ifndef GATEWAY_HANDLERS_H
#define GATEWAY_HANDLERS_H

#include "gateway/http/exchange.h"

/* completion.c */

/* POST /v1/chat/completions, and POST /v1/completions: generate text, as one answer or as a
 * stream of events. */
void completion_handle_chat(exchange *x);
void completion_handle_text(exchange *x);

/* doors/responses_api.c: OpenAI's Responses API */
void responses_create(exchange *x);      /* POST /v1/responses */
void responses_count(exchange *x);       /* POST /v1/responses/input_tokens */
void responses_get_one(exchange *x);     /* GET /v1/responses/{} */
void responses_delete_one(exchange *x);  /* DELETE /v1/responses/{} */
void responses_cancel(exchange *x);      /* POST /v1/responses/{}/cancel */
void responses_input_items(exchange *x); /* GET /v1/responses/{}/input_items */
void conversations_create(exchange *x);  /* POST /v1/conversations */
void conversations_get(exchange *x);     /* GET /v1/conversations/{} */
void conversations_delete(exchange *x);  /* DELETE /v1/conversations/{} */
void conversations_items(exchange *x);   /* GET /v1/conversations/{}/items */

/* doors/messages_api.c: Anthropic's Messages API */
void messages_create(exchange *x); /* POST /v1/messages */
void messages_count(exchange *x);  /* POST /v1/messages/count_tokens */

/* doors/embeddings_api.c, rerank_api.c, classify_api.c: prompts that become vectors or scores */
void embeddings_create(exchange *x); /* POST /v1/embeddings */
void score_create(exchange *x);      /* POST /v1/score */
void rerank_create(exchange *x);     /* POST /v1/rerank, /v2/rerank */
void classify_create(exchange *x);   /* POST /v1/classify */

/* batches/files_api.c: OpenAI's files */
void files_upload(exchange *x);  /* POST /v1/files: multipart/form-data */
void files_page(exchange *x);    /* GET /v1/files ?after= &limit= &order= &purpose= */
void files_get_one(exchange *x); /* GET /v1/files/{} */
void files_content(exchange *x); /* GET /v1/files/{}/content */
void files_drop(exchange *x);    /* DELETE /v1/files/{} */

/* batches/batches_api.c: OpenAI's batches */
void batches_create(exchange *x);     /* POST /v1/batches */
void batches_page(exchange *x);       /* GET /v1/batches ?after= &limit= */
void batches_get_one(exchange *x);    /* GET /v1/batches/{} */
void batches_cancel_one(exchange *x); /* POST /v1/batches/{}/cancel */

/* tokenize_api.c: POST /tokenize, /detokenize (vLLM's shapes) */
void tokenize_handle(exchange *x);

/* Ids to text. */
void detokenize_handle(exchange *x);
/* A chat's body, counted under the caller's limits; false: it has been answered. */
bool tokenize_count(exchange *x, const cJSON *chat, int64_t *n);

/* move/move_api.c, by other nodes of the fleet */
void move_take_request(exchange *x);   /* POST /fleet/v1/requests */
void move_give_pages(exchange *x);     /* POST /fleet/v1/pages */
void move_expect_adapter(exchange *x); /* POST /fleet/v1/adapters */

/* health.c, too: vLLM's GET /version */
void version_get(exchange *x);

/* models_api.c: GET /v1/models, /v1/models/{*}, GET /v1/key */
void models_list(exchange *x);

/* One model; the name may have slashes. */
void models_get(exchange *x);

/* The caller's key, tenant, limits, and what is left of them. */
void key_whoami(exchange *x);

/* adapters_api.c */
void adapters_list(exchange *x);           /* GET /v1/adapters */
void adapters_get(exchange *x);            /* GET /v1/adapters/{} */
void adapters_patch(exchange *x);          /* PATCH /v1/adapters/{} */
void adapters_delete(exchange *x);         /* DELETE /v1/adapters/{} ?drain=true */
void adapters_versions(exchange *x);       /* GET /v1/adapters/{}/versions */
void adapters_version(exchange *x);        /* GET /v1/adapters/{}/versions/{} */
void adapters_version_delete(exchange *x); /* DELETE /v1/adapters/{}/versions/{} */
void adapters_alias_put(exchange *x);      /* PUT /v1/adapters/{}/aliases/{}, If-Match */
void adapters_alias_delete(exchange *x);   /* DELETE /v1/adapters/{}/aliases/{} */
void adapters_rollback(exchange *x);       /* POST /v1/adapters/{}/rollback */
void adapters_pin(exchange *x);            /* POST /v1/adapters/{}/pin */
void adapters_unpin(exchange *x);          /* POST /v1/adapters/{}/unpin */
void adapters_warm(exchange *x);           /* POST /v1/adapters/{}/warm ?wait= ?version= */
void adapters_activate(exchange *x);       /* POST /v1/adapters/{}/versions/{}/activate, If-Match */
void adapters_events(exchange *x);         /* GET /v1/adapters/{}/events */
void adapters_usage(exchange *x);          /* GET /v1/adapters/{}/usage */

/* uploads_api.c */
void uploads_begin(exchange *x);  /* POST /v1/adapters/{}/versions: a tar, or a JSON manifest */
void uploads_get(exchange *x);    /* GET /v1/adapters/{}/versions/{upload} */
void uploads_drop(exchange *x);   /* DELETE /v1/adapters/{}/versions/{upload} */
void uploads_file(exchange *x);   /* HEAD, GET .../versions/{upload}/files/{} */
void uploads_put(exchange *x);    /* PUT .../versions/{upload}/files/{}: the whole file */
void uploads_patch(exchange *x);  /* PATCH .../versions/{upload}/files/{}, Upload-Offset */
void uploads_commit(exchange *x); /* POST .../versions/{upload}/commit */

/* vllm_api.c */
void lora_load_adapter(exchange *x);       /* POST /v1/load_lora_adapter */
void lora_unload_adapter(exchange *x);     /* POST /v1/unload_lora_adapter */
void vllm_pause(exchange *x);              /* POST /pause ?mode=keep */
void vllm_resume(exchange *x);             /* POST /resume */
void vllm_reset_prefix_cache(exchange *x); /* POST /reset_prefix_cache */
void vllm_server_info(exchange *x);        /* GET /server_info ?config_format=json */

/* stacks_api.c */
void stacks_list(exchange *x);   /* GET /v1/stacks */
void stacks_put(exchange *x);    /* PUT /v1/stacks/{} */
void stacks_get(exchange *x);    /* GET /v1/stacks/{} */
void stacks_delete(exchange *x); /* DELETE /v1/stacks/{} */

/* source_secret.c */
void source_credentials_list(exchange *x);   /* GET /v1/source_credentials */
void source_credentials_put(exchange *x);    /* PUT /v1/source_credentials/{} */
void source_credentials_delete(exchange *x); /* DELETE /v1/source_credentials/{} */

/* usage_api.c */
void usage_get(exchange *x);   /* GET /v1/usage */
void admin_usage(exchange *x); /* GET /admin/v1/usage */

/* admin_tenants.c: under /admin/v1 */
void admin_tenant_create(exchange *x); /* POST /tenants */
void admin_tenants_list(exchange *x);  /* GET /tenants */
void admin_tenant_get(exchange *x);    /* GET /tenants/{} (name or id) */
void admin_tenant_patch(exchange *x);  /* PATCH /tenants/{} */
void admin_tenant_delete(exchange *x); /* DELETE /tenants/{}: disables */
void admin_limits_list(exchange *x);   /* GET /limits: every tenant's, and what is used of them */
void admin_limits_get(exchange *x);    /* GET /limits/{} (tenant, by name or id) */
void admin_limits_patch(exchange *x);  /* PATCH /limits/{}: the fields that the body names */

/* admin_keys.c */
void admin_key_create(exchange *x); /* POST /keys: {"tenant","name","scopes",...} -> {"key",...} */
void admin_keys_list(exchange *x);  /* GET /keys?tenant= (none: operators'), ?all=true */
void admin_key_get(exchange *x);    /* GET /keys/{} */
void admin_key_patch(exchange *x);  /* PATCH /keys/{}: the fields that the body names */
void admin_key_rotate(exchange *x); /* POST /keys/{}/rotate */
void admin_key_revoke(exchange *x); /* DELETE /keys/{} */

/* admin_server.c */
void admin_classes(exchange *x); /* GET /classes */
void admin_audit(exchange *x);   /* GET /audit */
void admin_backup(exchange *x);  /* POST /backup {"path"} */
void admin_drain(exchange *x);   /* POST /drain */
void admin_nodes(exchange *x);   /* GET /nodes */

/* POST /nodes/{}/drain: the node refuses new requests, finishes those that run, and stops. */
void admin_node_drain(exchange *x);

/* POST /nodes/{}/fence: a node that is gone may write nothing until it starts again. */
void admin_node_fence(exchange *x);

/* admin_config.c: under /admin/v1 */
void admin_config_get(exchange *x);   /* GET /config ?pending=true: what a reload would change */
void admin_config_patch(exchange *x); /* PATCH /config {"section.key":value} */
void admin_reload(exchange *x);       /* POST /reload */

/* admin_requests.c: under /admin/v1 */
void admin_requests_list(exchange *x);  /* GET /requests ?tenant= &state= &slow= &limit= */
void admin_request_cancel(exchange *x); /* DELETE /requests/{} (id, or the x-request-id) */

/* admin_history.c: under /admin/v1 */
void admin_history(exchange *x); /* GET /history ?by= &name= &start= &end= &step= &limit= */

/* admin_adapters.c: under /admin/v1 */
void admin_adapters(exchange *x);          /* GET /adapters */
void admin_adapters_register(exchange *x); /* POST /adapters/register {"path","tenant"} */
/* POST /tenants/{}/adapters/{}/{pin,unpin,warm,rollback,evict} */
void admin_adapter_act(exchange *x);
void admin_adapter_limits_get(exchange *x);   /* GET /limits/{tenant}/{adapter} */
void admin_adapter_limits_patch(exchange *x); /* PATCH: the fields that the body names */

/* stats_api.c: GET /admin/v1/stats */
void admin_stats(exchange *x);

/* page.c: without a key */
void page_get(exchange *x);     /* GET / */
void page_style(exchange *x);   /* GET /page.css */
void page_script(exchange *x);  /* GET /page.js */
void page_openapi(exchange *x); /* GET /openapi.json */

/* health.c */
void health_live(exchange *x);  /* GET /healthz; of the inference plane /health, /ping */
void health_ready(exchange *x); /* GET /readyz */

/* metrics.c */
void metrics_get(exchange *x); /* GET /metrics */

#endif
