/* staging.c -- resumable uploads: sessions in memory, each with a manifest and a folder on the
 * disk.
 *
 *   create(manifest) --> files are created or linked --> write at an offset, hash --> commit -->
 *   version
 *
 * The manifest is complete on the disk (temporary name, sync, rename) before the first byte is
 * accepted, and a file's confirmed offset is its size: there is no second record that a crash could
 * contradict. After a restart sessions are loaded from their folders (session_load()).
 *
 * A file that one of the tenant's versions already has is linked instead of sent. A linked file may
 * be another version's, so a file is never written below its confirmed offset, only dropped and
 * created again.
 *
 * Space: each file reserves its announced size. An idle session lends what it has not filled to
 * others that are short (lend()); its bytes stay, and it reserves again when it continues.
 *
 * Threads: `mu` guards list, offsets and marks. A writer marks its file busy, a commit the whole
 * upload: they then own the files without the lock.
 */
#include "adapters/store/staging.h"

#include <assert.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "adapters/format/words.h"
#include "engine/base/clock.h"
#include "engine/base/durable.h"
#include "engine/base/hex.h"
#include "engine/base/json.h"
#include "engine/base/lock.h"
#include "engine/base/log.h"

enum { MANIFEST_MAX = 16384, OPEN_DEFAULT = 8 };
static const int64_t EXPIRY_DEFAULT_US = 86400ll * 1000000;
static const uint64_t UPLOAD_MAX = 2ull << 30;

typedef struct session {
    struct session *next;
    char id[STAGING_ID_MAX + 1];
    uint64_t tenant_id;
    char name[ADAPTER_NAME_MAX + 1];
    char *description; /* NULL: keep */
    bool activate;
    struct {
        uint64_t bytes, offset;
        uint8_t sha[DIGEST_BYTES];
        bool skipped, busy;
        bool verified; /* the whole file was hashed by this process */
        bool taken;    /* its whole room is its own; with a writer: under the writer's `mu`, too */
        struct staged_writer *writer; /* that may be writing now */
    } file[PART_ALL];                 /* without bytes: it has none of this name */
    bool making;                      /* its files are being made */
    bool committing;
    int64_t last_us; /* of progress; monotonic */
} session;

struct staging {
    upload_env env;
    int max_open;
    int64_t expiry_us;
    char root[FOLDER_PATH_MAX];
    lock mu;   /* guards all below */
    cond made; /* a session that was being made is, or is gone */
    session *list;
    int n;
};

struct staged_writer {
    staging *sg;
    session *s;
    folder_part part;
    int fd;
    uint64_t at, end;
    lock mu; /* over each write, so that nobody cuts the file meanwhile */
};

/* ---- paths -------------------------------------------------------------------------------- */

bool staging_is_id(const char *s)
{
    return s[0] == 'u' && strlen(s) == STAGING_ID_MAX &&
           strspn(s + 1, HEX_DIGITS) == STAGING_ID_MAX - 1;
}

/* Paths are the root, an id of ours and a fixed ending, so they fit. */
static void path_of(const staging *sg, const char *id, const char *ending, char *out)
{
    snprintf(out, FOLDER_PATH_MAX + 300, "%s/%s%s", sg->root, id, ending);
}

static void part_path(const staging *sg, const char *id, int part, char *out)
{
    snprintf(out, FOLDER_PATH_MAX + 300, "%s/%s/%s", sg->root, id, folder_part_names[part]);
}

typedef char path_text[FOLDER_PATH_MAX + 300];

static void remove_files(const staging *sg, const char *id)
{
    path_text path;
    path_of(sg, id, ".json", path); /* first: a folder without a manifest is rubbish */
    unlink(path);
    path_of(sg, id, ".new", path);
    unlink(path);
    path_of(sg, id, "", path);
    folder_remove(path);
}

/* ---- sessions (mu is held) ---------------------------------------------------------------- */

static void session_free(session *s)
{
    if (!s) return;
    free(s->description);
    free(s);
}

static session *session_find(staging *sg, uint64_t tenant_id, const char *name, const char *id)
{
    lock_assert_held(&sg->mu);
    session *s = sg->list;
    while (s && (s->tenant_id != tenant_id || strcmp(s->id, id) != 0 || strcmp(s->name, name) != 0))
        s = s->next;
    return s;
}

static void session_unlink(staging *sg, session *s)
{
    lock_assert_held(&sg->mu);
    session **at = &sg->list;
    while (*at && *at != s) at = &(*at)->next;
    assert(*at && sg->n > 0);
    *at = s->next;
    sg->n--;
}

static bool session_busy(const session *s)
{
    bool busy = s->committing || s->making;
    for (int p = 0; p < PART_ALL; p++) busy |= s->file[p].busy;
    return busy;
}

static uint64_t session_bytes(const session *s)
{
    uint64_t sum = 0;
    for (int p = 0; p < PART_ALL; p++) sum += s->file[p].bytes;
    return sum;
}

/* The end of one that is in the list no more. */
static void session_end(staging *sg, session *s)
{
    remove_files(sg, s->id);
    storeroom_unhold(sg->env.room, s->tenant_id, session_bytes(s));
    session_free(s);
}

static void session_copy(const staging *sg, const session *s, staged_upload *out)
{
    memset(out, 0, sizeof(*out));
    memcpy(out->id, s->id, sizeof out->id);
    memcpy(out->name, s->name, sizeof out->name);
    out->has_description = s->description != NULL;
    if (s->description) snprintf(out->description, sizeof out->description, "%s", s->description);
    out->activate = s->activate;
    for (int p = 0; p < PART_ALL; p++) {
        out->file[p] = (staged_file){.bytes = s->file[p].bytes,
                                     .offset = s->file[p].offset,
                                     .skipped = s->file[p].skipped,
                                     .busy = s->file[p].busy};
        memcpy(out->file[p].sha, s->file[p].sha, DIGEST_BYTES);
    }
    out->idle_us = clock_now_us() - s->last_us;
    out->expires_in_us = sg->expiry_us > out->idle_us ? sg->expiry_us - out->idle_us : 0;
}

static err_code no_upload(err *e)
{
    return err_set(e, ERR_NOT_FOUND,
                   "there is no such upload: it was committed, given up, or has expired");
}

static err_code no_memory(err *e)
{
    return err_set(e, ERR_NOMEM, "out of memory");
}

/* ---- the manifest on the disk ------------------------------------------------------------- */

static char *manifest_print(const session *s)
{
    char hex[DIGEST_HEX], owner[24];
    snprintf(owner, sizeof owner, "%llu", (unsigned long long)s->tenant_id);
    cJSON *o = cJSON_CreateObject();
    cJSON_AddStringToObject(o, "tenant", owner); /* 63 bits: JSON readers round */
    cJSON_AddStringToObject(o, "name", s->name);
    if (s->description) cJSON_AddStringToObject(o, "description", s->description);
    cJSON_AddBoolToObject(o, "activate", s->activate);
    for (int p = 0; p < PART_ALL; p++) {
        if (s->file[p].bytes == 0) continue;
        cJSON *f = cJSON_AddObjectToObject(o, folder_part_names[p]);
        digest_hex(s->file[p].sha, hex);
        cJSON_AddNumberToObject(f, "bytes", (double)s->file[p].bytes);
        cJSON_AddStringToObject(f, "sha256", hex);
        cJSON_AddBoolToObject(f, "skipped", s->file[p].skipped);
    }
    char *text = cJSON_PrintUnformatted(o);
    cJSON_Delete(o);
    return text;
}

static bool write_whole(int fd, const char *p, size_t len)
{
    while (len > 0) {
        ssize_t n = write(fd, p, len);
        if (n < 0 && errno == EINTR) continue;
        if (n < 0) return false;
        p += n;
        len -= (size_t)n;
    }
    return true;
}

static err_code manifest_write(const staging *sg, const session *s, err *e)
{
    path_text fresh, path;
    char *text = manifest_print(s);
    if (!text) return no_memory(e);
    path_of(sg, s->id, ".new", fresh);
    path_of(sg, s->id, ".json", path);
    int fd = open(fresh, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW, 0600);
    bool ok = fd >= 0 && write_whole(fd, text, strlen(text)) && fsync(fd) == 0;
    err_code rc = ok ? ERR_NONE : folder_disk_error(e, "record");
    if (fd >= 0) close(fd);
    free(text);
    if (!rc && (rename(fresh, path) != 0 || !durable_sync(sg->root)))
        rc = folder_disk_error(e, "record");
    return rc;
}

static bool read_part(const cJSON *tree, int p, session *s)
{
    const cJSON *f = json_get(tree, folder_part_names[p]);
    int64_t bytes = -1;
    const char *hex = "";
    err ignored;
    if (!f || json_int(f, "bytes", 1, INT64_C(1) << 50, &bytes, NULL, &ignored) ||
        json_str(f, "sha256", &hex, NULL, &ignored) ||
        json_bool(f, "skipped", &s->file[p].skipped, NULL, &ignored))
        return false;
    s->file[p].bytes = (uint64_t)bytes;
    return bytes > 0 && digest_from_hex(hex, s->file[p].sha);
}

static bool manifest_parse(const char *text, size_t len, session *s)
{
    const json_limits limits = {.max_bytes = MANIFEST_MAX, .max_depth = 4, .max_values = 64};
    cJSON *tree = NULL;
    err ignored;
    const char *owner = "", *name = "", *description = NULL;
    if (json_parse(text, len, &limits, &tree, &ignored) != ERR_NONE) return false;
    bool ok = json_str(tree, "tenant", &owner, NULL, &ignored) == ERR_NONE &&
              json_str(tree, "name", &name, NULL, &ignored) == ERR_NONE &&
              json_str(tree, "description", &description, NULL, &ignored) == ERR_NONE &&
              json_bool(tree, "activate", &s->activate, NULL, &ignored) == ERR_NONE &&
              read_part(tree, PART_CONFIG, s) && read_part(tree, PART_WEIGHTS, s);
    for (int p = PART_COUNT; p < PART_ALL && ok; p++)
        ok = json_get(tree, folder_part_names[p]) == NULL || read_part(tree, p, s);
    ok = ok && publish_check_names(name, description, &ignored) == ERR_NONE;
    if (ok) {
        s->tenant_id = strtoull(owner, NULL, 10);
        snprintf(s->name, sizeof s->name, "%s", name);
        if (description) s->description = strdup(description);
        ok = s->tenant_id != 0 && (!description || s->description);
    }
    cJSON_Delete(tree);
    return ok;
}

/* ---- lending ------------------------------------------------------------------------------ */

/* Has it room that it does not use?  A writer at work is no hindrance: from then
 * on it asks for each piece. */
static bool lendable(const session *s, int p)
{
    return !s->making && !s->committing && (!s->file[p].busy || s->file[p].writer) &&
           s->file[p].taken && s->file[p].offset < s->file[p].bytes;
}

/* The session that lends next: of the tenant that holds most, the one idle for longest. */
static session *next_lender(staging *sg)
{
    lock_assert_held(&sg->mu);
    session *best = NULL;
    uint64_t most = 0;
    for (session *s = sg->list; s != NULL; s = s->next) {
        bool some = false;
        for (int p = 0; p < PART_ALL; p++) some |= lendable(s, p);
        if (!some) continue;
        uint64_t held = storeroom_held(sg->env.room, s->tenant_id);
        if (best && (held < most || (held == most && s->last_us >= best->last_us))) continue;
        best = s;
        most = held;
    }
    return best;
}

static uint64_t lend_part(staging *sg, session *s, int p)
{
    lock_assert_held(&sg->mu);
    path_text path;
    struct stat before = {0}, after = {0};
    staged_writer *w = s->file[p].writer;
    part_path(sg, s->id, p, path);
    int fd = open(path, O_WRONLY | O_CLOEXEC | O_NOFOLLOW);
    if (w) lock_take(&w->mu);
    s->file[p].taken = false;
    if (fd >= 0 && fstat(fd, &before) == 0) {
        storeroom_give_back(fd);
        (void)!fstat(fd, &after);
    }
    if (w) lock_release(&w->mu);
    if (fd >= 0) close(fd);
    return before.st_blocks > after.st_blocks ? (uint64_t)(before.st_blocks - after.st_blocks) * 512
                                              : 0;
}

/* A storeroom_on_short(): what uploads have not filled; their bytes stay. */
static bool lend(void *self, uint64_t bytes)
{
    staging *sg = self;
    uint64_t got = 0;
    int n = 0;
    lock_take(&sg->mu);
    for (session *s; got < bytes && (s = next_lender(sg)) != NULL; n++)
        for (int p = 0; p < PART_ALL; p++)
            if (lendable(s, p)) got += lend_part(sg, s, p);
    lock_release(&sg->mu);
    if (n > 0)
        log_info("adapters", "the disk is short: %d uploads lend %llu bytes", n,
                 (unsigned long long)got);
    return got > 0;
}

/* ---- start -------------------------------------------------------------------------------- */

static void newest(const struct stat *sb, int64_t *us)
{
    int64_t t = (int64_t)sb->st_mtim.tv_sec * 1000000 + sb->st_mtim.tv_nsec / 1000;
    if (t > *us) *us = t;
}

/* An upload of an earlier process; false: it is not whole. */
static bool session_load(staging *sg, const char *id, session *s)
{
    path_text path;
    char text[MANIFEST_MAX + 1];
    struct stat sb;
    path_of(sg, id, ".json", path);
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
    if (fd < 0) return false;
    ssize_t n = read(fd, text, sizeof text);
    close(fd);
    memcpy(s->id, id, STAGING_ID_MAX + 1);
    if (n <= 0 || n > MANIFEST_MAX || !manifest_parse(text, (size_t)n, s)) return false;
    int64_t touched_us = 0;
    for (int p = 0; p < PART_ALL; p++) {
        part_path(sg, id, p, path);
        if (lstat(path, &sb) != 0) continue; /* nothing sent yet */
        if (!S_ISREG(sb.st_mode) || (uint64_t)sb.st_size > s->file[p].bytes) return false;
        s->file[p].offset = (uint64_t)sb.st_size;
        s->file[p].taken = (uint64_t)sb.st_blocks * 512 >= s->file[p].bytes;
        /* A linked file's time is the old version's. */
        if (!s->file[p].skipped) newest(&sb, &touched_us);
    }
    path_of(sg, id, "", path);
    if (lstat(path, &sb) != 0 || !S_ISDIR(sb.st_mode)) return false;
    newest(&sb, &touched_us);
    int64_t age_us = clock_wall_us() - touched_us;
    s->last_us = clock_now_us() - (age_us > 0 ? age_us : 0);
    return true;
}

/* At the start: uploads whose manifest is whole go on, if the store still has room for them;
 * files without one are removed. */
static err_code load_all(staging *sg, err *e)
{
    DIR *d = opendir(sg->root);
    if (!d) return err_set(e, ERR_IO, "cannot read the uploads: %s", strerror(errno));
    for (struct dirent *de; (de = readdir(d)) != NULL;) {
        char id[STAGING_ID_MAX + 1];
        if (de->d_name[0] == '.' || strlen(de->d_name) < STAGING_ID_MAX) continue;
        memcpy(id, de->d_name, STAGING_ID_MAX);
        id[STAGING_ID_MAX] = 0;
        const char *ending = de->d_name + STAGING_ID_MAX;
        if (!staging_is_id(id)) continue;
        if (strcmp(ending, ".json") == 0) {
            session *s = calloc(1, sizeof(*s));
            if (s && session_load(sg, id, s) &&
                storeroom_hold_again(sg->env.room, s->tenant_id, session_bytes(s), NULL) ==
                    ERR_NONE) {
                s->next = sg->list;
                sg->list = s;
                sg->n++;
            } else {
                session_free(s);
                remove_files(sg, id);
            }
        } else {
            path_text path;
            path_of(sg, id, ".json", path);
            if (access(path, F_OK) != 0) remove_files(sg, id); /* its manifest was never finished */
        }
    }
    closedir(d);
    if (sg->n > 0) log_info("adapters", "%d interrupted uploads can go on", sg->n);
    return ERR_NONE;
}

static void take_limits(staging *sg, const staging_config *cfg, uint64_t max_bytes)
{
    sg->env.max_bytes = max_bytes ? max_bytes : UPLOAD_MAX;
    sg->max_open = cfg->max_open > 0 ? cfg->max_open : OPEN_DEFAULT;
    sg->expiry_us = cfg->expiry_us > 0 ? cfg->expiry_us : EXPIRY_DEFAULT_US;
}

void staging_limit(staging *sg, const staging_config *cfg, uint64_t max_bytes)
{
    lock_take(&sg->mu);
    take_limits(sg, cfg, max_bytes);
    lock_release(&sg->mu);
}

err_code staging_open(staging **out, const upload_env *env, const staging_config *cfg, err *e)
{
    *out = NULL;
    staging *sg = calloc(1, sizeof(*sg));
    if (!sg) return no_memory(e);
    sg->env = *env;
    take_limits(sg, cfg, env->max_bytes);
    lock_init(&sg->mu, LOCK_STAGING);
    cond_init(&sg->made);
    snprintf(sg->root, sizeof sg->root, "%s/adapters/uploads", store_dir(registry_store(env->reg)));
    err_code rc = ERR_NONE;
    if (mkdir(sg->root, 0700) != 0 && errno != EEXIST)
        rc = err_set(e, ERR_IO, "cannot make the uploads' directory: %s", strerror(errno));
    if (!rc) rc = load_all(sg, e);
    if (rc) {
        staging_close(sg);
        return rc;
    }
    staging_expire(sg, clock_now_us());
    storeroom_on_short(sg->env.room, lend, sg);
    *out = sg;
    return ERR_NONE;
}

void staging_close(staging *sg)
{
    if (!sg) return;
    for (session *s = sg->list, *next; s != NULL; s = next) {
        next = s->next;
        session_free(s);
    }
    storeroom_on_short(sg->env.room, NULL, NULL);
    cond_free(&sg->made);
    lock_free(&sg->mu);
    free(sg);
}

int staging_expire(staging *sg, int64_t now_us)
{
    int n = 0;
    lock_take(&sg->mu);
    for (session *s = sg->list, *next; s != NULL; s = next) {
        next = s->next;
        if (session_busy(s) || now_us - s->last_us < sg->expiry_us) continue;
        session_unlink(sg, s);
        session_end(sg, s);
        n++;
    }
    lock_release(&sg->mu);
    if (n > 0) log_info("adapters", "%d abandoned uploads removed", n);
    return n;
}

/* ---- begin -------------------------------------------------------------------------------- */

static err_code check_manifest(const staging *sg, const staging_manifest *m, err *e)
{
    err_code rc = publish_check_names(m->name, m->description, e);
    if (!rc) rc = registry_check_name(sg->env.reg, m->name, e);
    if (rc) return rc;
    if (m->bytes[PART_CONFIG] > FOLDER_CONFIG_MAX)
        return err_set(e, ERR_LIMIT, "%s has %llu bytes; at most %d are read",
                       folder_part_names[PART_CONFIG], (unsigned long long)m->bytes[PART_CONFIG],
                       FOLDER_CONFIG_MAX);
    uint64_t left = sg->env.max_bytes;
    bool fits = true;
    for (int p = 0; p < PART_ALL; p++) {
        if (m->bytes[p] == 0 && p < PART_COUNT)
            return err_set(e, ERR_INPUT, "%s is empty", folder_part_names[p]);
        if (p >= PART_COUNT && m->bytes[p] > WORDS_FILE_MAX)
            return err_set(e, ERR_LIMIT, "%s has %llu bytes; at most %d are read",
                           folder_part_names[p], (unsigned long long)m->bytes[p], WORDS_FILE_MAX);
        fits &= m->bytes[p] <= left;
        if (fits) left -= m->bytes[p];
    }
    if (!fits)
        return err_set(e, ERR_LIMIT, "the adapter has more than %llu bytes, which is the limit",
                       (unsigned long long)sg->env.max_bytes);
    return ERR_NONE;
}

static bool same_manifest(const session *s, const staging_manifest *m)
{
    if (s->tenant_id != m->tenant_id || strcmp(s->name, m->name) != 0 || s->committing ||
        s->activate != m->activate || !s->description != !m->description)
        return false;
    if (m->description && strcmp(s->description, m->description) != 0) return false;
    for (int p = 0; p < PART_ALL; p++)
        if (s->file[p].bytes != m->bytes[p] || memcmp(s->file[p].sha, m->sha[p], DIGEST_BYTES) != 0)
            return false;
    return true;
}

/* The open upload of the same manifest, or the reason why no further one may begin. */
static err_code find_open(staging *sg, const staging_manifest *m, session **out, err *e)
{
    lock_assert_held(&sg->mu);
    int n = 0;
    *out = NULL;
    for (session *s = sg->list; s != NULL; s = s->next) {
        if (same_manifest(s, m)) {
            *out = s;
            return ERR_NONE;
        }
        n += s->tenant_id == m->tenant_id;
    }
    if (n >= sg->max_open || sg->n >= STAGING_OPEN_MAX)
        return err_set(e, ERR_LIMIT,
                       "%d uploads are open already: commit them, or give them up with DELETE", n);
    return ERR_NONE;
}

/* Links a file that one of the tenant's versions has.  False: it must be sent. */
static bool link_known(staging *sg, const session *s, int p)
{
    uint8_t digest[DIGEST_BYTES];
    char folder[FOLDER_PATH_MAX + 80];
    path_text from, to;
    struct stat sb;
    bool found = false, linked = false;
    if (adapter_rows_find_part(registry_store(sg->env.reg), s->tenant_id, p, s->file[p].sha, digest,
                               &found, NULL) != ERR_NONE ||
        !found)
        return false;
    registry_path(sg->env.reg, digest, folder, sizeof folder);
    snprintf(from, sizeof from, "%s/%s", folder, folder_part_names[p]);
    part_path(sg, s->id, p, to);
    registry_files_lock(sg->env.reg);
    /* Not through a link to an operator's folder: those files are not ours to share. */
    if (lstat(folder, &sb) == 0 && S_ISDIR(sb.st_mode) && lstat(from, &sb) == 0 &&
        S_ISREG(sb.st_mode) && (uint64_t)sb.st_size == s->file[p].bytes)
        linked = link(from, to) == 0;
    registry_files_unlock(sg->env.reg);
    return linked;
}

/* A new file with its whole room.  Its owner's to call: who makes, writes or commits it. */
static err_code make_part(staging *sg, session *s, int p, err *e)
{
    path_text path;
    part_path(sg, s->id, p, path);
    unlink(path);
    int fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600);
    if (fd < 0) return folder_disk_error(e, "store");
    err_code rc = storeroom_take(sg->env.room, fd, s->file[p].bytes, &s->file[p].taken, e);
    close(fd);
    return rc;
}

static err_code session_files(staging *sg, session *s, err *e)
{
    path_text path;
    path_of(sg, s->id, "", path);
    if (mkdir(path, 0700) != 0) return folder_disk_error(e, "make room for");
    err_code rc = ERR_NONE;
    for (int p = 0; p < PART_ALL && !rc; p++) {
        if (s->file[p].bytes == 0) continue;
        s->file[p].skipped = p < PART_COUNT && link_known(sg, s, p);
        if (s->file[p].skipped)
            s->file[p].offset = s->file[p].bytes;
        else
            rc = make_part(sg, s, p, e);
    }
    if (!rc && !durable_sync(path)) rc = folder_disk_error(e, "sync");
    return rc == ERR_NONE ? manifest_write(sg, s, e) : rc;
}

static session *session_new(staging *sg, const staging_manifest *m)
{
    session *s = calloc(1, sizeof(*s));
    if (!s) return NULL;
    snprintf(s->id, sizeof s->id, "u%016llx",
             (unsigned long long)store_next_id(registry_store(sg->env.reg)));
    s->tenant_id = m->tenant_id;
    snprintf(s->name, sizeof s->name, "%s", m->name);
    if (m->description) s->description = strdup(m->description);
    s->activate = m->activate;
    for (int p = 0; p < PART_ALL; p++) {
        s->file[p].bytes = m->bytes[p];
        memcpy(s->file[p].sha, m->sha[p], DIGEST_BYTES);
    }
    s->last_us = clock_now_us();
    if (!m->description || s->description) return s;
    session_free(s);
    return NULL;
}

/* One more session, in the list but with no files yet; `mu` is held. */
static err_code begin_locked(staging *sg, const staging_manifest *m, session **out, err *e)
{
    lock_assert_held(&sg->mu);
    session *s = session_new(sg, m);
    if (!s) return no_memory(e);
    err_code rc =
        storeroom_hold(sg->env.room, sg->env.reg, s->tenant_id, session_bytes(s), &m->quota, e);
    if (rc) {
        session_free(s);
        return rc;
    }
    s->making = true;
    s->next = sg->list;
    sg->list = s;
    sg->n++;
    *out = s;
    return ERR_NONE;
}

err_code staging_create(staging *sg, const staging_manifest *m, staged_upload *out, bool *resumed,
                        err *e)
{
    session *s;
    *resumed = false;
    err_code rc = check_manifest(sg, m, e);
    if (rc) return rc;
    lock_take(&sg->mu);
    /* Two equal manifests at the same time make one upload. */
    while ((rc = find_open(sg, m, &s, e)) == ERR_NONE && s && s->making)
        cond_wait(&sg->made, &sg->mu);
    *resumed = rc == ERR_NONE && s != NULL;
    if (!rc && !*resumed) rc = begin_locked(sg, m, &s, e);
    if (!rc && !*resumed) {
        lock_release(&sg->mu); /* nobody else waits for the disk */
        rc = session_files(sg, s, e);
        lock_take(&sg->mu);
        s->making = false;
        cond_broadcast(&sg->made);
        if (rc) {
            session_unlink(sg, s);
            session_end(sg, s);
        }
    }
    if (!rc) {
        s->last_us = clock_now_us();
        session_copy(sg, s, out);
    }
    lock_release(&sg->mu);
    return rc;
}

err_code staging_get(staging *sg, uint64_t tenant_id, const char *name, const char *id,
                     staged_upload *out, err *e)
{
    lock_take(&sg->mu);
    const session *s = session_find(sg, tenant_id, name, id);
    if (s) session_copy(sg, s, out);
    lock_release(&sg->mu);
    return s != NULL ? ERR_NONE : no_upload(e);
}

err_code staging_drop(staging *sg, uint64_t tenant_id, const char *name, const char *id, err *e)
{
    err_code rc = ERR_NONE;
    lock_take(&sg->mu);
    session *s = session_find(sg, tenant_id, name, id);
    if (!s) {
        rc = no_upload(e);
    } else if (session_busy(s)) {
        rc = err_set(e, ERR_BUSY, "another request is writing this upload");
    } else {
        session_unlink(sg, s);
        session_end(sg, s);
    }
    lock_release(&sg->mu);
    return rc;
}

int staging_drop_all(staging *sg, uint64_t tenant_id)
{
    int n = 0;
    lock_take(&sg->mu);
    for (session *s = sg->list, *next; s != NULL; s = next) {
        next = s->next;
        if (s->tenant_id != tenant_id || session_busy(s)) continue;
        session_unlink(sg, s);
        session_end(sg, s);
        n++;
    }
    lock_release(&sg->mu);
    return n;
}

/* ---- write -------------------------------------------------------------------------------- */

/* The file from the start again: a new one, because the old may be another version's, too.  Its
 * writer's or the commit's to call. */
static err_code restart_part(staging *sg, session *s, folder_part p, err *e)
{
    lock_take(&sg->mu);
    s->file[p].offset = 0;
    s->file[p].skipped = false;
    lock_release(&sg->mu);
    s->file[p].verified = false;
    return make_part(sg, s, p, e);
}

/* The writer is done: `at` is confirmed, others may come. */
static void let_go(staged_writer *w, uint64_t at)
{
    lock_take(&w->sg->mu);
    assert(at <= w->s->file[w->part].bytes && w->s->file[w->part].busy);
    w->s->file[w->part].offset = at;
    w->s->last_us = clock_now_us();
    w->s->file[w->part].busy = false;
    lock_release(&w->sg->mu);
    lock_free(&w->mu);
    free(w);
}

/* Shows the writer at work, whose file may be cut behind what it has written; NULL: no more. */
static void set_writer(staged_writer *w, staged_writer *to)
{
    lock_take(&w->sg->mu);
    w->s->file[w->part].writer = to;
    lock_release(&w->sg->mu);
}

err_code staging_write_begin(staging *sg, uint64_t tenant_id, const char *name, const char *id,
                             folder_part part, int64_t offset, staged_writer **out, uint64_t *at,
                             err *e)
{
    path_text path;
    err_code rc = ERR_NONE;
    *out = NULL;
    *at = 0;
    uint64_t held = 0;
    staged_writer *w = calloc(1, sizeof(*w));
    if (!w) return no_memory(e);
    lock_init(&w->mu, LOCK_STAGED_WRITER);
    lock_take(&sg->mu);
    session *s = session_find(sg, tenant_id, name, id);
    if (!s) {
        rc = no_upload(e);
    } else if (s->file[part].busy || s->committing || s->making) {
        *at = s->file[part].offset;
        rc = err_set(e, ERR_BUSY, "another request is writing %s of this upload",
                     folder_part_names[part]);
    } else if (offset >= 0 && (uint64_t)offset != s->file[part].offset) {
        *at = s->file[part].offset;
        rc = err_set(e, ERR_CONFLICT, "the server has %llu bytes of %s: go on there",
                     (unsigned long long)*at, folder_part_names[part]);
    } else {
        s->file[part].busy = true;
        held = s->file[part].offset;
    }
    lock_release(&sg->mu);
    if (rc) {
        lock_free(&w->mu);
        free(w);
        return rc;
    }
    w->sg = sg;
    w->s = s;
    w->part = part;
    w->end = s->file[part].bytes;
    if (offset < 0 && held > 0) {
        rc = restart_part(sg, s, part, e);
        held = 0;
    }
    w->at = held;
    part_path(sg, id, part, path);
    w->fd = rc == ERR_NONE ? open(path, O_WRONLY | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600) : -1;
    if (!rc && (w->fd < 0 || lseek(w->fd, (off_t)w->at, SEEK_SET) < 0))
        rc = folder_disk_error(e, "store");
    if (!rc && !s->file[part].taken) /* lent, or an earlier process's */
        rc = storeroom_take(sg->env.room, w->fd, w->end - w->at, &s->file[part].taken, e);
    *at = w->at;
    if (!rc) {
        set_writer(w, w);
        *out = w;
        return ERR_NONE;
    }
    if (w->fd >= 0) close(w->fd);
    let_go(w, w->at);
    return rc;
}

err_code staging_write(staged_writer *w, const void *data, size_t len, err *e)
{
    const char *p = data;
    if (len > w->end - w->at)
        return err_set(e, ERR_LIMIT, "%s has %llu bytes by the manifest; more were sent",
                       folder_part_names[w->part], (unsigned long long)w->end);
    lock_take(&w->mu);
    bool taken = w->s->file[w->part].taken;
    lock_release(&w->mu);
    err_code rc = taken ? ERR_NONE : storeroom_check(w->sg->env.room, len, e);
    lock_take(&w->mu);
    while (len > 0 && !rc) {
        ssize_t n = write(w->fd, p, len);
        if (n < 0 && errno == EINTR) continue;
        if (n < 0) {
            rc = folder_disk_error(e, "store");
            break;
        }
        p += n;
        len -= (size_t)n;
        w->at += (uint64_t)n;
        assert(w->at <= w->end);
    }
    lock_release(&w->mu);
    return rc;
}

/* Hashes a complete file; ERR_CORRUPT: it is another one than the manifest's and was restarted. */
static err_code verify_part(staging *sg, session *s, folder_part p, err *e)
{
    path_text path;
    uint8_t got[DIGEST_BYTES];
    part_path(sg, s->id, p, path);
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
    if (fd < 0) return folder_disk_error(e, "read");
    err_code rc = folder_hash(fd, got, e);
    close(fd);
    if (rc) return rc;
    if (memcmp(got, s->file[p].sha, DIGEST_BYTES) == 0) {
        s->file[p].verified = true;
        return ERR_NONE;
    }
    rc = restart_part(sg, s, p, e);
    return rc != ERR_NONE
               ? rc
               : err_set(e, ERR_CORRUPT,
                         "the SHA-256 of %s is not the manifest's: send it again from the start",
                         folder_part_names[p]);
}

err_code staging_write_end(staged_writer *w, uint64_t *at, err *e)
{
    staging *sg = w->sg;
    session *s = w->s;
    err_code rc = ERR_NONE;
    set_writer(w, NULL);
    if (fsync(w->fd) != 0) {
        /* What is on the disk is in doubt, and a second sync would not tell: begin anew. */
        rc = folder_disk_error(e, "sync");
        (void)restart_part(sg, s, w->part, NULL);
        w->at = 0;
    }
    close(w->fd);
    if (!rc && w->at == w->end) {
        rc = verify_part(sg, s, w->part, e);
        if (rc) w->at = rc == ERR_CORRUPT ? 0 : w->at;
    }
    *at = w->at;
    let_go(w, w->at);
    return rc;
}

/* ---- commit ------------------------------------------------------------------------------- */

static err_code commit_begin(staging *sg, const char *id, const publish_options *o, session **out,
                             err *e)
{
    err_code rc = ERR_NONE;
    lock_take(&sg->mu);
    session *s = session_find(sg, o->tenant_id, o->name, id);
    if (!s)
        rc = no_upload(e);
    else if (session_busy(s))
        rc = err_set(e, ERR_BUSY, "another request is writing or committing this upload");
    for (int p = 0; p < PART_ALL && !rc; p++)
        if (s->file[p].offset != s->file[p].bytes)
            rc = err_set(e, ERR_CONFLICT, "%s is incomplete: %llu of %llu bytes are there",
                         folder_part_names[p], (unsigned long long)s->file[p].offset,
                         (unsigned long long)s->file[p].bytes);
    if (!rc) s->committing = true;
    lock_release(&sg->mu);
    *out = rc == ERR_NONE ? s : NULL;
    return rc;
}

/* The files under a second name in a folder of their own: the upload stays whole until the version
 * is durable, so a crash in between costs nothing. */
static err_code publish_links(staging *sg, const session *s, const publish_options *o,
                              adapter_version *out, bool *existed, err *e)
{
    char path[FOLDER_PATH_MAX];
    path_text from;
    uint64_t bytes[PART_ALL];
    uint8_t sha[PART_ALL][DIGEST_BYTES];
    static const int synced[PART_COUNT] = {-1, -1};
    int dir_fd;
    err_code rc = publish_tmp(sg->env.reg, path, &dir_fd, e);
    for (int p = 0; p < PART_ALL && !rc; p++) {
        if (s->file[p].bytes == 0) continue;
        part_path(sg, s->id, p, from);
        bytes[p] = s->file[p].bytes;
        memcpy(sha[p], s->file[p].sha, DIGEST_BYTES);
        if (linkat(AT_FDCWD, from, dir_fd, folder_part_names[p], 0) != 0)
            rc = folder_disk_error(e, "store");
    }
    if (!rc)
        rc = publish_folder(&sg->env, o, path, dir_fd, synced, bytes,
                            (const uint8_t(*)[DIGEST_BYTES])sha, out, existed, e);
    if (dir_fd >= 0) close(dir_fd);
    if (path[0] != 0) folder_remove(path);
    return rc;
}

static bool hopeless(err_code rc)
{
    return rc == ERR_INPUT || rc == ERR_UNSUPPORTED || rc == ERR_CORRUPT;
}

err_code staging_commit(staging *sg, const char *id, const publish_options *o, const bool *activate,
                        adapter_version *out, bool *existed, folder_part *bad_part, err *e)
{
    session *s;
    *bad_part = PART_ALL;
    err_code rc = commit_begin(sg, id, o, &s, e);
    if (rc) return rc;
    for (int p = 0; p < PART_ALL && !rc; p++) {
        if (s->file[p].verified || s->file[p].bytes == 0) continue;
        rc = verify_part(sg, s, (folder_part)p, e);
        if (rc == ERR_CORRUPT) *bad_part = (folder_part)p;
    }
    bool done = false;
    if (!rc) {
        publish_options with = *o;
        with.description = s->description;
        with.activate = activate != NULL ? *activate : s->activate;
        rc = publish_links(sg, s, &with, out, existed, e);
        done = rc == ERR_NONE || hopeless(rc);
    }
    lock_take(&sg->mu);
    s->committing = false;
    s->last_us = clock_now_us();
    if (done) {
        session_unlink(sg, s);
        session_end(sg, s);
    }
    lock_release(&sg->mu);
    return rc;
}
