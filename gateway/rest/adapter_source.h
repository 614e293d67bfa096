/* adapter_source.h -- an adapter that the server fetches itself, from where its tenant says.
 *
 * POST /v1/adapters/{name}/versions with {"source": "https://... | hf://... | s3://... |
 * oci://...", "sha256"?: of adapter_model.safetensors, or of the tar, "credentials"?:
 * (rest/source_secret.h), "description"?, "activate"?}.  Credentials of the body are used for this
 * call, and are neither kept nor logged; without them those are used that the tenant keeps.
 *
 * Threads: workers; the call lasts as long as the transfer.
 */
#ifndef GATEWAY_REST_ADAPTER_SOURCE_H
#define GATEWAY_REST_ADAPTER_SOURCE_H

#include <cjson/cJSON.h>

#include "adapters/store/publish.h"
#include "gateway/adapter_parts.h"
#include "gateway/http/exchange.h"

/* At a time, of this server; of one tenant, so that a slow source does not keep others out. */
enum { FETCHES_MAX = 4, FETCHES_OF_TENANT = 2 };

typedef enum { FETCH_GRANTED, FETCH_ALL_BUSY, FETCH_SHARE_USED } fetch_grant;

/* One fetch for the tenant, to be given back with adapter_fetch_end(). */
fetch_grant adapter_fetch_begin(adapter_parts *parts, uint64_t tenant_id);
void adapter_fetch_end(adapter_parts *parts, uint64_t tenant_id);

/* Fetches, publishes, answers.  `o`: tenant, name and conditions; description and activate are the
 * body's where it has them. */
void adapter_from_source(exchange *x, const cJSON *body, const publish_options *o);

#endif
