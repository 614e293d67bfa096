/* descriptors.c -- a sum, a limit, and sockets that nobody connects. */
#include "gateway/http/descriptors.h"

#include <dirent.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include "gateway/http/listener.h"

enum {
    /* The database with its readers and logs, meters, lock, log, epoll, model; CUDA's run-time library. */
    SHARED_FILES = 192,
    WORKER_FILES = 3, /* of an upload: its folder, the file that comes, the one that is read */
    LOADER_FILES = 3, /* of an adapter: its folder and parts */
};

/* ------------------------------------------------------------------------- need -- */

static int64_t sockets_of(const char *addresses, int64_t threads)
{
    int64_t n = threads + LISTENER_QUEUE + 1 + SPARE_DESCRIPTORS; /* one waits for the queue */
    for (const char *p = addresses; *p;) {
        size_t len = strcspn(p, ", ");
        if (len) n++;
        p += len;
        p += strspn(p, ", ");
    }
    return n;
}

int64_t descriptors_needed(const config *c)
{
    return sockets_of(c->server_listen, c->server_threads) +
           sockets_of(c->admin_listen, LISTENER_ADMIN_THREADS) +
           sockets_of(c->metrics_listen, LISTENER_METRICS_THREADS) +
           WORKER_FILES * (c->server_threads + LISTENER_ADMIN_THREADS) +
           LOADER_FILES * c->adapters_loaders + SHARED_FILES;
}

err_code descriptors_claim(const config *c, err *e)
{
    struct rlimit r;
    int64_t need = descriptors_needed(c);
    if (getrlimit(RLIMIT_NOFILE, &r) != 0) return ERR_NONE;
    if (r.rlim_cur < r.rlim_max) {
        r.rlim_cur = r.rlim_max;
        if (setrlimit(RLIMIT_NOFILE, &r) != 0) (void)getrlimit(RLIMIT_NOFILE, &r);
    }
    if (r.rlim_cur >= (rlim_t)need) return ERR_NONE;
    return err_set(
        e, ERR_INPUT,
        "this configuration needs %lld open files and sockets, and the limit is %lld: raise "
        "it (LimitNOFILE= of the unit, ulimit -n), or lower server.threads, now %lld",
        (long long)need, (long long)r.rlim_cur, (long long)c->server_threads);
}

bool descriptors_look(int64_t *n_open, int64_t *max)
{
    struct rlimit r;
    DIR *d = opendir("/proc/self/fd");
    if (!d) return false;
    int64_t n = -1; /* that of the look itself */
    for (const struct dirent *entry; (entry = readdir(d)) != NULL;) n += entry->d_name[0] != '.';
    (void)closedir(d);
    *n_open = n;
    *max = getrlimit(RLIMIT_NOFILE, &r) == 0 ? (int64_t)r.rlim_cur : 0;
    return true;
}

/* ------------------------------------------------------------------------- spare -- */

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
