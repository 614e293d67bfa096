/* fake_server.h -- exchanges without a socket, of a server that has as much as the test gives
 * it. */
#ifndef TESTS_GATEWAY_FAKE_SERVER_H
#define TESTS_GATEWAY_FAKE_SERVER_H

#include "gateway/auth.h"
#include "gateway/server.h"
#include "tests/gateway/http/fake_civetweb.h"

static server fake_server;
static config fake_config;
static caller fake_caller;

/* As fake_request(), with a server of default configuration and a caller that nobody knows. */
static inline exchange *fake_call(const char *method, const char *path)
{
    if (!fake_server.process.cfg) config_defaults(&fake_config);
    fake_server.process.cfg = &fake_config;
    if (!fake_server.process.live) fake_server.process.live = live_create(&fake_config);
    fake_host.app = &fake_server;
    fake_caller = (caller){0};
    exchange *x = fake_request(method, path);
    x->caller = &fake_caller;
    x->conf = &fake_config;
    return x;
}

#endif
