/* contexts.c -- contexts of loractl and loratop: one table of settings serves the file, the
 * environment and the defaults.
 *
 *     command line  >  environment (LORAD_URL, ...)  >  context of the file  >  default
 *
 * The file has one section for each context and a line "current = NAME" before them. It may hold
 * keys, so it must be a regular file that belongs to the user (or root) and that nobody else can
 * read; otherwise it is refused with the command that fixes it. Writing goes to a new file with
 * mode 600 that is renamed over the old one.
 *
 * Keys are wiped from every buffer that held them, including the line buffer and the list.
 */
#include "tui/contexts.h"

#include <errno.h>
#include <fcntl.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { LINE_MAX_BYTES = PATH_MAX + 64 };

typedef struct {
    const char *name, *variable;
    size_t offset, cap;
    bool secret;
    const char *initial;
} setting;

#define FIELD(f) offsetof(context, f), sizeof(((context *)0)->f)

static const setting settings[] = {
    {"url", "LORAD_URL", FIELD(url), false, "https://localhost:8443"},
    {"key", "LORAD_KEY", FIELD(key), true, ""},
    {"key_file", "LORAD_KEY_FILE", FIELD(key_file), false, ""},
    {"admin_url", "LORAD_ADMIN_URL", FIELD(admin_url), false, "https://localhost:8444"},
    {"admin_key", "LORAD_ADMIN_KEY", FIELD(admin_key), true, ""},
    {"admin_key_file", "LORAD_ADMIN_KEY_FILE", FIELD(admin_key_file), false, ""},
    {"metrics_url", "LORAD_METRICS_URL", FIELD(metrics_url), false, "https://localhost:8445"},
    {"ca", "LORAD_CA", FIELD(ca), false, ""},
    {"cert", "LORAD_CERT", FIELD(cert), false, ""},
    {"cert_key", "LORAD_CERT_KEY", FIELD(cert_key), false, ""},
};

enum { N_SETTINGS = (int)(sizeof(settings) / sizeof(settings[0])) };

static char *at(context *x, const setting *s)
{
    return (char *)x + s->offset;
}

/* ------------------------------------------------------------------------ settings -- */

err_code context_set(context *x, const char *name, const char *value, err *e)
{
    const setting *s = NULL;
    for (int i = 0; i < N_SETTINGS; i++) {
        if (strcmp(settings[i].name, name) == 0) s = &settings[i];
    }
    if (!s) return err_set(e, ERR_INPUT, "there is no setting '%.40s'", name);
    if (strlen(value) >= s->cap)
        return err_set(e, ERR_INPUT, "%s is longer than %zu bytes", name, s->cap - 1);
    for (const char *p = value; *p; p++) {
        if ((unsigned char)*p < 0x20 || *p == 0x7f)
            return err_set(e, ERR_INPUT, "%s holds control characters", name);
    }
    memcpy(at(x, s), value, strlen(value) + 1);
    return ERR_NONE;
}

const char *context_setting(const context *x, int i, const char **value, bool *secret)
{
    if (i < 0 || i >= N_SETTINGS) return NULL;
    *value = (const char *)x + settings[i].offset;
    *secret = settings[i].secret;
    return settings[i].name;
}

void context_wipe(context *x)
{
    explicit_bzero(x->key, sizeof(x->key));
    explicit_bzero(x->admin_key, sizeof(x->admin_key));
}

/* ---------------------------------------------------------------------------- file -- */

static err_code find_path(contexts *c, err *e)
{
    const char *own = getenv("LORAD_CLIENT_CONFIG"), *xdg = getenv("XDG_CONFIG_HOME"),
               *home = getenv("HOME");
    int n;
    if (own && *own)
        n = snprintf(c->path, sizeof(c->path), "%s", own);
    else if (xdg && xdg[0] == '/') /* a relative one is to be ignored, says the specification */
        n = snprintf(c->path, sizeof(c->path), "%s/lorad/contexts.conf", xdg);
    else
        n = snprintf(c->path, sizeof(c->path), "%s/.config/lorad/contexts.conf", home ? home : "");
    if (n < 0 || (size_t)n >= sizeof(c->path))
        return err_set(e, ERR_INPUT, "the path of the configuration file is too long");
    return ERR_NONE;
}

static char *trim(char *s)
{
    while (*s == ' ' || *s == '\t') s++;
    size_t n = strlen(s);
    while (n && strchr(" \t\r\n", s[n - 1])) s[--n] = 0;
    return s;
}

static err_code read_line(contexts *c, char *line, context **section, err *e)
{
    char *s = trim(line), *eq;
    size_t n = strlen(s);
    if (n == 0 || *s == '#') return ERR_NONE;
    if (*s == '[') {
        if (s[n - 1] != ']') return err_set(e, ERR_INPUT, "a section's line ends with ]");
        s[n - 1] = 0;
        if (contexts_find(c, s + 1))
            return err_set(e, ERR_INPUT, "there are two contexts '%.64s'", s + 1);
        return contexts_add(c, s + 1, section, e);
    }
    if (!(eq = strchr(s, '='))) return err_set(e, ERR_INPUT, "this is not name = value");
    *eq = 0;
    char *name = trim(s), *value = trim(eq + 1);
    if (*section) return context_set(*section, name, value, e);
    if (strcmp(name, "current") != 0 || strlen(value) > CONTEXT_NAME_MAX)
        return err_set(e, ERR_INPUT, "before the first [context] only 'current = NAME' may stand");
    memcpy(c->current, value, strlen(value) + 1);
    return ERR_NONE;
}

/* Opens a file that may hold keys.  NULL with e->code ERR_NOT_FOUND: there is none. */
static FILE *open_private(const char *path, err *e)
{
    struct stat st;
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
    FILE *f = NULL;
    if (fd < 0 || fstat(fd, &st) != 0) {
        (void)err_set(e, errno == ENOENT || errno == ENOTDIR ? ERR_NOT_FOUND : ERR_IO, "%s: %s",
                      path, strerror(errno));
    } else if (!S_ISREG(st.st_mode)) {
        (void)err_set(e, ERR_INPUT, "%s is no file", path);
    } else if (st.st_uid != geteuid() && st.st_uid != 0) {
        (void)err_set(e, ERR_DENIED, "%s belongs to somebody else", path);
    } else if (st.st_mode & 077) {
        (void)err_set(e, ERR_DENIED, "%s may be read by others (it holds keys): chmod 600 it",
                      path);
    } else if (!(f = fdopen(fd, "r"))) {
        (void)err_set(e, ERR_NOMEM, "out of memory");
    }
    if (!f && fd >= 0) (void)close(fd);
    return f;
}

err_code contexts_load(contexts *c, err *e)
{
    err why;
    char line[LINE_MAX_BYTES];
    context *section = NULL;
    *c = (contexts){0};
    err_code rc = find_path(c, e);
    if (rc) return rc;
    c->list = calloc(CONTEXTS_MAX, sizeof(*c->list));
    if (!c->list) return err_set(e, ERR_NOMEM, "out of memory");
    FILE *f = open_private(c->path, &why);
    if (!f) {
        if (why.code == ERR_NOT_FOUND) return ERR_NONE;
        if (e) *e = why;
        return why.code;
    }
    c->exists = true;
    for (int n = 1; !rc && fgets(line, sizeof(line), f); n++) {
        if (!strchr(line, '\n') && !feof(f))
            rc = err_set(e, ERR_INPUT, "the line is too long");
        else
            rc = read_line(c, line, &section, e);
        if (rc) (void)err_context(e, "%s, line %d", c->path, n);
    }
    (void)fclose(f);
    explicit_bzero(line, sizeof(line));
    return rc;
}

void contexts_clear(contexts *c)
{
    if (c->list) explicit_bzero(c->list, CONTEXTS_MAX * sizeof(*c->list));
    free(c->list);
    c->list = NULL;
    c->n = 0;
}

context *contexts_find(const contexts *c, const char *name)
{
    for (int i = 0; i < c->n; i++) {
        if (strcmp(c->list[i].name, name) == 0) return &c->list[i];
    }
    return NULL;
}

static bool name_fits(const char *s)
{
    static const char letters[] =
        "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-";
    size_t n = strlen(s);
    return n >= 1 && n <= CONTEXT_NAME_MAX && strspn(s, letters) == n && s[0] != '-';
}

err_code contexts_add(contexts *c, const char *name, context **out, err *e)
{
    if ((*out = contexts_find(c, name))) return ERR_NONE;
    if (!name_fits(name)) {
        return err_set(
            e, ERR_INPUT,
            "'%.64s' is not a name for a context (letters, digits, dot, dash, underscore)", name);
    }
    if (c->n == CONTEXTS_MAX) {
        return err_set(e, ERR_LIMIT, "more than %d contexts", CONTEXTS_MAX);
    }
    *out = &c->list[c->n++];
    **out = (context){0};
    memcpy((*out)->name, name, strlen(name) + 1);
    return ERR_NONE;
}

bool contexts_remove(contexts *c, const char *name)
{
    context *x = contexts_find(c, name);
    if (!x) return false;
    *x = c->list[--c->n]; /* order is of no meaning */
    context_wipe(&c->list[c->n]);
    if (strcmp(c->current, name) == 0) c->current[0] = 0;
    return true;
}

static err_code make_folder_of(const char *path, err *e)
{
    char dir[PATH_MAX];
    snprintf(dir, sizeof(dir), "%s", path);
    char *last = strrchr(dir, '/');
    if (!last || last == dir) return ERR_NONE;
    *last = 0;
    for (char *p = dir + 1;; p++) {
        char was = *p;
        if (was && was != '/') continue;
        *p = 0;
        if (mkdir(dir, 0700) != 0 && errno != EEXIST)
            return err_set(e, ERR_IO, "%s: %s", dir, strerror(errno));
        if (!was) return ERR_NONE;
        *p = was;
    }
}

static void write_all(const contexts *c, FILE *f)
{
    fprintf(f, "# Servers for loractl and loratop; see loractl(1).  It holds keys: mode 600.\n");
    if (c->current[0]) fprintf(f, "current = %s\n", c->current);
    for (int i = 0; i < c->n; i++) {
        fprintf(f, "\n[%s]\n", c->list[i].name);
        for (int k = 0; k < N_SETTINGS; k++) {
            const char *v = at(&c->list[i], &settings[k]);
            if (*v) fprintf(f, "%s = %s\n", settings[k].name, v);
        }
    }
}

err_code contexts_save(const contexts *c, err *e)
{
    char tmp[PATH_MAX + 16];
    err_code rc = make_folder_of(c->path, e);
    if (rc) return rc;
    snprintf(tmp, sizeof(tmp), "%s.XXXXXX", c->path);
    int fd = mkstemp(tmp); /* mode 0600 */
    FILE *f = fd < 0 ? NULL : fdopen(fd, "w");
    if (!f) {
        rc = err_set(e, ERR_IO, "%s: %s", c->path, strerror(errno));
        if (fd >= 0) (void)close(fd);
    } else {
        write_all(c, f);
        bool ok = fflush(f) == 0 && fsync(fd) == 0;
        ok = fclose(f) == 0 && ok;
        if (!ok || rename(tmp, c->path) != 0)
            rc = err_set(e, ERR_IO, "%s: %s", c->path, strerror(errno));
    }
    if (rc && fd >= 0) (void)unlink(tmp);
    return rc;
}

/* -------------------------------------------------------------------------- in use -- */

err_code context_read_key(const char *path, char out[CONTEXT_KEY_MAX], err *e)
{
    char line[CONTEXT_KEY_MAX + 2] = "";
    FILE *f = open_private(path, e);
    if (!f) return e ? e->code : ERR_IO;
    bool got = fgets(line, sizeof(line), f) != NULL;
    (void)fclose(f);
    char *s = trim(line);
    err_code rc = ERR_NONE;
    if (!got || !*s || strlen(s) >= CONTEXT_KEY_MAX)
        rc = err_set(e, ERR_INPUT, "%s: its first line is not a key", path);
    else
        memcpy(out, s, strlen(s) + 1);
    explicit_bzero(line, sizeof(line));
    return rc;
}

/* A key of its own wins over a key file of the layer below, and the other way round. */
static err_code take_environment(context *x, err *e)
{
    for (int i = 0; i < N_SETTINGS; i++) {
        const setting *s = &settings[i];
        const char *v = getenv(s->variable);
        if (!v || !*v) continue;
        if (strcmp(s->name, "key") == 0) x->key_file[0] = 0;
        if (strcmp(s->name, "admin_key") == 0) x->admin_key_file[0] = 0;
        if (strcmp(s->name, "key_file") == 0 && !getenv("LORAD_KEY")) x->key[0] = 0;
        if (strcmp(s->name, "admin_key_file") == 0 && !getenv("LORAD_ADMIN_KEY"))
            x->admin_key[0] = 0;
        err_code rc = context_set(x, s->name, v, e);
        if (rc) {
            (void)err_context(e, "%s", s->variable);
            return rc;
        }
    }
    return ERR_NONE;
}

err_code context_resolve(const contexts *c, const char *name, context *out, err *e)
{
    *out = (context){0};
    const char *chosen = name && *name ? name : getenv("LORAD_CONTEXT");
    if (!chosen || !*chosen) chosen = c->current;
    if (*chosen) {
        const context *x = contexts_find(c, chosen);
        if (!x) {
            return err_set(e, ERR_NOT_FOUND, "there is no context '%.64s' in %s", chosen, c->path);
        }
        *out = *x;
    }
    err_code rc = take_environment(out, e);
    bool urls = out->url[0] || out->admin_url[0];
    for (int i = 0; !rc && !urls && i < N_SETTINGS; i++) {
        char *v = at(out, &settings[i]);
        if (!*v) memcpy(v, settings[i].initial, strlen(settings[i].initial) + 1);
    }
    if (!rc && !out->key[0] && out->key_file[0]) rc = context_read_key(out->key_file, out->key, e);
    if (!rc && !out->admin_key[0] && out->admin_key_file[0])
        rc = context_read_key(out->admin_key_file, out->admin_key, e);
    return rc;
}
