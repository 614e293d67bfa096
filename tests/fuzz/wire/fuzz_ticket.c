/* fuzz_ticket.c -- what a client or another node sends to have a stream go on.  The first byte says
 * what follows:
 *
 *   t  a ticket's text, as a client gives it: none that this server has not written is taken
 *   s  the bytes of a ticket: sealed and read again; with a change, as another tenant, not at all
 *   r  a request in the form of wire.h: what is read can be written, and read again as the same
 *   k  tokens in the form of wire.h: the same in whatever pieces they come
 *   a  who asks for pages, and what describes them
 */
#include <stdlib.h>
#include <string.h>

#include "gateway/move/ticket.h"
#include "gateway/move/wire.h"
#include "tests/fuzz/fuzz.h"

static const uint8_t key[SEAL_KEY_BYTES] = {1, 2, 3}, other_key[SEAL_KEY_BYTES] = {1, 2, 4};

/* ---- tickets ---------------------------------------------------------------------------- */

static void read_text(const tenant_parts *s, const uint8_t *data, size_t size)
{
    ticket t;
    char *text = fuzz_text(data, size);
    FUZZ_CHECK(!ticket_read(s, fuzz_hash(data, size) % 4, text, &t));
    free(text);
}

static void seal_and_read(const tenant_parts *s, const uint8_t *data, size_t size)
{
    static tenant_parts other;
    char text[TICKET_TEXT], changed[TICKET_TEXT + 1];
    ticket t, back;
    uint32_t h = fuzz_hash(data, size);
    memset(&t, 'x', sizeof(t));
    memcpy(&t, data, size < sizeof(t) ? size : sizeof(t));
    memcpy(other.resume_key, other_key, sizeof(other_key));
    FUZZ_CHECK(ticket_write(s, h % 4, &t, text) && strlen(text) == TICKET_TEXT - 1);
    bool whole = memchr(t.id, 0, sizeof(t.id)) != NULL;
    FUZZ_CHECK(ticket_read(s, h % 4, text, &back) == whole);
    FUZZ_CHECK(!whole || memcmp(&t, &back, sizeof(t)) == 0);
    FUZZ_CHECK(!ticket_read(s, h % 4 + 1, text, &back));
    FUZZ_CHECK(!ticket_read(&other, h % 4, text, &back));
    memcpy(changed, text, sizeof(text));
    char *at = &changed[h / 4 % (TICKET_TEXT - 1)];
    *at = *at == '0' ? 'a' : '0';
    FUZZ_CHECK(!ticket_read(s, h % 4, changed, &back));
    memcpy(changed, text, sizeof(text));
    changed[h / 4 % (TICKET_TEXT - 1)] = 0;
    FUZZ_CHECK(!ticket_read(s, h % 4, changed, &back));
    memcpy(changed, text, sizeof(text));
    memcpy(changed + TICKET_TEXT - 1, "0", 2);
    FUZZ_CHECK(!ticket_read(s, h % 4, changed, &back));
}

/* ---- requests and tokens between nodes -------------------------------------------------- */

static void check_bounds(const request *rq, const move_name *name, size_t size)
{
    const char *end = (const char *)(rq->rules.bias + rq->rules.n_bias);
    FUZZ_CHECK(rq->n_prompt >= 1 && rq->n_given >= 0 && rq->n_given < rq->max_tokens);
    FUZZ_CHECK(rq->rules.n_top >= -1 && rq->rules.n_top <= SAMPLE_TOP_MAX);
    FUZZ_CHECK(rq->rules.n_stop_id <= SAMPLE_STOP_MAX && rq->rules.n_bias <= SAMPLE_BIAS_MAX);
    FUZZ_CHECK((size_t)(end - (const char *)rq->prompt) == size - sizeof(move_head));
    FUZZ_CHECK(strlen(name->adapter) < sizeof(name->adapter));
}

/* `given` stands in for what request_give() would have put into the request. */
static void write_again(request *rq, const move_name *name, const int32_t *given)
{
    enum { NOW = 1000 };
    request back;
    move_name name_back;
    const int32_t *given_back;
    arena memory;
    void *order;
    size_t len;
    err e;
    rq->out.token = (int32_t *)(uintptr_t)given;
    atomic_store(&rq->out.n_pushed, rq->n_given);
    arena_init(&memory, 1 << 20);
    if (move_write(rq, name, rq->max_tokens, NOW, &order, &len, &e)) abort();
    FUZZ_CHECK(move_read(order, len, NOW, &memory, &back, &name_back, &given_back, &e) == 0);
    FUZZ_CHECK(back.n_prompt == rq->n_prompt && back.n_given == rq->n_given);
    FUZZ_CHECK(memcmp(name, &name_back, sizeof(name_back)) == 0);
    FUZZ_CHECK(memcmp(rq->prompt, back.prompt, 4 * (size_t)rq->n_prompt) == 0);
    FUZZ_CHECK(memcmp(given, given_back, 4 * (size_t)rq->n_given) == 0);
    FUZZ_CHECK(back.rules.seed == rq->rules.seed && back.rules.n_bias == rq->rules.n_bias);
    FUZZ_CHECK(back.expires_us == rq->expires_us || rq->expires_us <= NOW);
    free(order);
    arena_clear(&memory);
}

static void read_request(const uint8_t *data, size_t size)
{
    request rq;
    move_name name;
    const int32_t *given;
    arena memory;
    err e = {.msg = ""};
    arena_init(&memory, 1 << 20);
    err_code rc = move_read(data, size, 1000, &memory, &rq, &name, &given, &e);
    FUZZ_CHECK(rc == ERR_NONE || (rc == ERR_INPUT && e.msg[0]));
    if (!rc) {
        check_bounds(&rq, &name, size);
        write_again(&rq, &name, given);
    }
    arena_clear(&memory);
}

static void read_tokens(const uint8_t *data, size_t size)
{
    char again[MOVE_TOKEN_MAX];
    sampled t;
    for (size_t at = 0; at < size;) {
        int n = move_take(data + at, size - at, &t);
        FUZZ_CHECK(n >= -1 && (n < 0 || (size_t)n <= size - at));
        if (n <= 0) return;
        for (size_t cut = 0; cut < (size_t)n; cut += 7)
            FUZZ_CHECK(move_take(data + at, cut, &(sampled){0}) == 0);
        FUZZ_CHECK(move_put(&t, again) == (size_t)n && memcmp(again, data + at, (size_t)n) == 0);
        at += (size_t)n;
    }
}

static void read_pages(const uint8_t *data, size_t size)
{
    move_ask ask;
    move_pages come = {.magic = ""}, ours;
    err e = {.msg = ""};
    err_code rc = move_read_ask(data, size, &ask, &e);
    FUZZ_CHECK(rc == ERR_NONE || (rc == ERR_INPUT && e.msg[0]));
    if (!rc) FUZZ_CHECK(ask.first >= 0 && strlen(ask.build) < sizeof(ask.build));
    memcpy(&come, data, size < sizeof(come) ? size : sizeof(come));
    move_write_pages("fp_1", 4096, 32, 3, &ours);
    rc = move_check_pages(&come, &ours, &e);
    FUZZ_CHECK(rc == ERR_NONE ? memcmp(&come, &ours, sizeof(ours)) == 0 : e.msg[0] != 0);
    move_add_state(512, 9, &ours);
    rc = move_check_pages(&come, &ours, &e);
    FUZZ_CHECK(rc || (come.state_bytes == 512 && come.state_pages > 3 && come.state_pages <= 9));
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static tenant_parts s;
    memcpy(s.resume_key, key, sizeof(key));
    if (size == 0) return 0;
    /* A block of its own: its address has any alignment, and a sanitizer sees its end. */
    uint8_t *bytes = malloc(size);
    if (!bytes) abort();
    memcpy(bytes, data, size);
    switch (bytes[0]) {
    case 't': read_text(&s, bytes + 1, size - 1); break;
    case 's': seal_and_read(&s, bytes + 1, size - 1); break;
    case 'r': read_request(bytes + 1, size - 1); break;
    case 'k': read_tokens(bytes + 1, size - 1); break;
    default: read_pages(bytes + 1, size - 1);
    }
    free(bytes);
    return 0;
}
