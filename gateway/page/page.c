/* page.c -- the chat page at / of the inference listener, its two files, and /openapi.json.
 *
 * The four files are part of the program: the assembler includes them (CMakeLists.txt makes this
 * object depend on them).  They need no key: all that they show comes from calls that have one.
 * The policy lets the page load and ask this server alone, and lets nothing frame it.
 */
#include <stddef.h>

#include "engine/base/embed.h"
#include "gateway/handlers.h"
#include "gateway/process_parts.h"

EMBED(page_html, "gateway/page/index.html")
EMBED(page_css_text, "gateway/page/page.css")
EMBED(page_js_text, "gateway/page/page.js")
EMBED(openapi_text, "conf/openapi.json")

/* server.page says whether there is one. */
static void serve(exchange *x, const char *type, const char *text, const char *end)
{
    if (!x->conf->server.page) {
        exchange_error(x, 404, "invalid_request_error", "unknown_url", NULL,
                       "the page is switched off (server.page)");
        return;
    }
    exchange_add_header(x, "Content-Security-Policy",
                        "default-src 'none'; script-src 'self'; style-src 'self'; img-src data:; "
                        "connect-src 'self'; base-uri 'none'; form-action 'none'; "
                        "frame-ancestors 'none'");
    exchange_add_header(x, "Referrer-Policy", "no-referrer");
    exchange_reply(x, 200, type, text, (size_t)(end - text));
}

void page_get(exchange *x)
{
    serve(x, "text/html; charset=utf-8", page_html, page_html_end);
}

void page_style(exchange *x)
{
    serve(x, "text/css; charset=utf-8", page_css_text, page_css_text_end);
}

void page_script(exchange *x)
{
    serve(x, "text/javascript; charset=utf-8", page_js_text, page_js_text_end);
}

void page_openapi(exchange *x)
{
    serve(x, "application/json", openapi_text, openapi_text_end);
}
