/* ticket.c -- see ticket.h. */
#include "gateway/move/ticket.h"

#include <stdio.h>
#include <string.h>

#include "engine/base/hex.h"
#include "gateway/tenant_parts.h"
#include "storage/digest.h"

enum { SEALED = sizeof(ticket) + SEAL_BYTES };

_Static_assert(TICKET_TEXT == 2 * SEALED + 1, "no byte of a ticket is padding");

static void label_of(uint64_t tenant_id, char out[64])
{
    snprintf(out, 64, "resume/%llu", (unsigned long long)tenant_id);
}

bool ticket_write(const tenant_parts *parts, uint64_t tenant_id, const ticket *t,
                  char out[TICKET_TEXT])
{
    uint8_t sealed[SEALED];
    char label[64];
    label_of(tenant_id, label);
    if (!seal_close(parts->resume_key, label, t, sizeof(*t), sealed)) return false;
    hex_write(sealed, SEALED, out);
    out[TICKET_TEXT - 1] = 0;
    return true;
}

bool ticket_read(const tenant_parts *parts, uint64_t tenant_id, const char *text, ticket *out)
{
    uint8_t sealed[SEALED];
    char label[64];
    const char *end = text + TICKET_TEXT - 1;
    if (strlen(text) != TICKET_TEXT - 1) return false;
    for (int i = 0; i < SEALED; i++, text += 2) {
        int byte = hex_value(text, end, 2);
        if (byte < 0) return false;
        sealed[i] = (uint8_t)byte;
    }
    label_of(tenant_id, label);
    return seal_open(parts->resume_key, label, sealed, sizeof(*out), out) &&
           memchr(out->id, 0, sizeof(out->id));
}
