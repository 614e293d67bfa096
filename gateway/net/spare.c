/* spare.c -- descriptors held back for the moment when there are no others. */
#include "gateway/net/spare.h"

#include <sys/socket.h>
#include <unistd.h>

void spare_open(spare_descriptors *s)
{
    s->n = 0;
    spare_refill(s);
}

void spare_close(spare_descriptors *s)
{
    while (spare_give(s)) {
    }
}

bool spare_give(spare_descriptors *s)
{
    bool had = s->n > 0;
    if (had) (void)close(s->fd[--s->n]);
    return had;
}

void spare_refill(spare_descriptors *s)
{
    while (s->n < SPARE_DESCRIPTORS) {
        int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
        if (fd < 0) break;
        s->fd[s->n++] = fd;
    }
}
