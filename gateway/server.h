/* server.h -- everything that a running server has, made once by start/parts.c.
 *
 * Its parts have headers of their own, and handlers and modules include those that they use; only
 * who makes the server includes this one.
 *
 * Ownership: start/parts.c makes and frees.  Threads: as the parts say.
 */
#ifndef GATEWAY_SERVER_H
#define GATEWAY_SERVER_H

#include "gateway/adapter_parts.h"
#include "gateway/engine_parts.h"
#include "gateway/process_parts.h"
#include "gateway/tenant_parts.h"

struct server {
    engine_parts engine;
    adapter_parts adapters;
    tenant_parts tenants;
    process_parts process;
};

#endif
