/* spare.c -- descriptors held back for the moment when there are no others. */
#include "gateway/net/spare.h"

#include <sys/socket.h>
#include <unistd.h>

#include "engine/base/lock.h"

void spare_open(spare_descriptors *s)
{
    lock_init(&s->mu, LOCK_SPARE_DESCRIPTORS);
    s->n = 0;
    spare_refill(s);
}

void spare_close(spare_descriptors *s)
{
    while (spare_give(s)) {
    }
    lock_free(&s->mu);
}

bool spare_give(spare_descriptors *s)
{
    lock_take(&s->mu);
    bool had = s->n > 0;
    if (had) (void)close(s->fd[--s->n]);
    lock_release(&s->mu);
    return had;
}

void spare_refill(spare_descriptors *s)
{
    lock_take(&s->mu);
    while (s->n < SPARE_DESCRIPTORS) {
        int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
        if (fd < 0) break;
        s->fd[s->n++] = fd;
    }
    lock_release(&s->mu);
}
