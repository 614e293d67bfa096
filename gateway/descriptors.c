/* descriptors.c -- adds up the descriptors that the configuration needs, and raises the limit. */
#include "gateway/descriptors.h"

#include <dirent.h>
#include <sys/resource.h>

#include "gateway/http/listener.h"

enum {
    /* The database with its readers and logs, meters, lock, log, epoll,
     * model; CUDA's run-time library. */
    SHARED_FILES = 192,
    WORKER_FILES = 3, /* of an upload: its folder, the file that comes, the one that is read */
    LOADER_FILES = 3, /* of an adapter: its folder and parts */
};

/* How many the configuration comes to. */
static int64_t count_needed(const config *c)
{
    /* server.http2 may be turned on later. */
    return listener_sockets(c->server.listen, c->server.plain_listen,
                            config_max_connections(&c->server), c->server.max_streams) +
           listener_sockets(c->admin.listen, "", LISTENER_SMALL_CONNECTIONS, 0) +
           listener_sockets(c->metrics.listen, "", LISTENER_SMALL_CONNECTIONS, 0) +
           WORKER_FILES * (c->server.max_streams + LISTENER_ADMIN_THREADS) +
           LOADER_FILES * c->debug.loaders + SHARED_FILES;
}

err_code descriptors_claim(const config *c, err *e)
{
    struct rlimit r;
    int64_t need = count_needed(c);
    if (getrlimit(RLIMIT_NOFILE, &r) != 0) return ERR_NONE;
    if (r.rlim_cur < r.rlim_max) {
        r.rlim_cur = r.rlim_max;
        if (setrlimit(RLIMIT_NOFILE, &r) != 0) (void)getrlimit(RLIMIT_NOFILE, &r);
    }
    if (r.rlim_cur >= (rlim_t)need) return ERR_NONE;
    return err_set(
        e, ERR_INPUT,
        "this configuration needs %lld open files and sockets, and the limit is %lld: raise "
        "it (LimitNOFILE= of the unit, ulimit -n), or lower server.max_connections, now %lld",
        (long long)need, (long long)r.rlim_cur, (long long)config_max_connections(&c->server));
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
