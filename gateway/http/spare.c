/* spare.c -- sockets that nobody connects. */
#include "gateway/http/spare.h"

#include <sys/socket.h>
#include <unistd.h>

void spare_open(spare_descriptors *s)
{
    pthread_mutex_init(&s->mu, NULL);
    s->n = 0;
    spare_refill(s);
}

void spare_close(spare_descriptors *s)
{
    while (spare_give(s)) {
    }
    pthread_mutex_destroy(&s->mu);
}

bool spare_give(spare_descriptors *s)
{
    pthread_mutex_lock(&s->mu);
    bool had = s->n > 0;
    if (had) (void)close(s->fd[--s->n]);
    pthread_mutex_unlock(&s->mu);
    return had;
}

void spare_refill(spare_descriptors *s)
{
    pthread_mutex_lock(&s->mu);
    while (s->n < SPARE_DESCRIPTORS) {
        int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
        if (fd < 0) break;
        s->fd[s->n++] = fd;
    }
    pthread_mutex_unlock(&s->mu);
}
