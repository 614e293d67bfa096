/* adapter_source.h -- an adapter that the server fetches itself, from where its tenant says.
 *
 * POST /v1/adapters/{name}/versions with {"source": "https://... | hf://... | s3://... | oci://...",
 * "sha256"?: of adapter_model.safetensors, or of the tar, "credentials"?: {"bearer"} or
 * {"access_key_id", "secret_access_key", "session_token"?}, "description"?, "activate"?}.  Files
 * go the way of an uploaded tar (adapters/store/upload.h), so all its limits and refusals hold.
 * Credentials are used for this call, and are neither kept nor logged.
 *
 * Threads: workers; the call lasts as long as the transfer.
 */
#ifndef GATEWAY_REST_ADAPTER_SOURCE_H
#define GATEWAY_REST_ADAPTER_SOURCE_H

#include <cjson/cJSON.h>

#include "adapters/store/upload.h"
#include "gateway/http/exchange.h"

/* Fetches, publishes, answers.  `o`: tenant, name and conditions; description and activate are the
 * body's where it has them. */
void adapter_from_source(exchange *x, const cJSON *body, const publish_options *o);

#endif
