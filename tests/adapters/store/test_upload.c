/* test_upload.c -- tars and safetensors from strangers: what is published, and what is refused. */
#include <dirent.h>
#include <fcntl.h>
#include <limits.h>
#include <math.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <check.h>

#include "adapters/store/upload.h"
#include "tests/adapters/make_adapter.h"
#include "tests/run_suite.h"
#include "tests/tmpdir.h"

static char dir[64];
static store *st;
static registry *reg;
static model_config base;
static uint64_t tenant_id;
static err e;

static void open_all(void)
{
    ck_assert_msg(store_open(&st, dir, &(store_options){.create = true}, &e) == ERR_NONE, "%s",
                  e.msg);
    registry_config cfg = {.reserved = {"demo-base"}, .n_reserved = 1};
    ck_assert_msg(registry_create(&reg, st, &cfg, &e) == ERR_NONE, "%s", e.msg);
}

static void close_all(void)
{
    registry_destroy(reg);
    store_close(st);
}

static void setup(void)
{
    base = tiny_base();
    tmpdir_make(dir);
    open_all();
    tenant t;
    ck_assert_int_eq(tenants_create(st, &(tenant){.name = "acme"}, &t, &e), ERR_NONE);
    tenant_id = t.id;
}

static void teardown(void)
{
    close_all();
    tmpdir_remove(dir);
}

/* Sends `tar` in pieces of `piece` bytes. */
static err_code send(const bytes *tar, size_t piece, const char *name, adapter_version *out,
                     bool *existed)
{
    upload_env env = {.reg = reg, .base = &base, .max_bytes = 1 << 20};
    upload_options o = {
        .tenant_id = tenant_id, .name = name, .activate = true, .content_bytes = -1};
    upload *u;
    err_code code = upload_begin(&u, &env, &o, &e);
    if (code != ERR_NONE) return code;
    for (size_t at = 0; at < tar->n && code == ERR_NONE; at += piece)
        code = upload_write(u, tar->p + at, tar->n - at < piece ? tar->n - at : piece, &e);
    if (code == ERR_NONE) return upload_finish(u, out, existed, &e);
    upload_abort(u);
    return code;
}

static int count_files(const char *sub)
{
    char path[128];
    snprintf(path, sizeof path, "%s/%s", dir, sub);
    int n = 0;
    DIR *d = opendir(path);
    if (d == NULL) return 0;
    for (struct dirent *de; (de = readdir(d)) != NULL;)
        n += de->d_name[0] != '.' && strcmp(de->d_name, "tmp") != 0;
    closedir(d);
    return n;
}

START_TEST(test_publish)
{
    const char *folders[] = {"", "my-adapter", "."};
    const char *types[] = {"F32", "F16", "BF16"};
    adapter_version v, first = {0};
    bool existed;
    for (int i = 0; i < 3; i++) {
        bytes config = make_config(4), weights = make_weights(&base, 4, types[i], 0.5f);
        bytes tar = make_tar(folders[i], &config, &weights);
        for (size_t piece = 1; piece < 4000; piece = piece * 7 + 3) {
            ck_assert_msg(send(&tar, piece, "poet", &v, &existed) == ERR_NONE, "%s", e.msg);
            ck_assert(existed == (piece > 1));
            ck_assert_int_eq(v.version, i + 1);
            ck_assert_int_eq(v.rank_max, 4);
            ck_assert_uint_eq(v.file_bytes, config.n + weights.n);
        }
        if (i == 0) first = v;
        bytes_free(&config);
        bytes_free(&weights);
        bytes_free(&tar);
    }
    ck_assert_int_eq(count_files("adapters"), 3);
    ck_assert_int_eq(count_files("adapters/tmp"), 0);
    version_entry ve;
    ck_assert_int_eq(registry_version(reg, tenant_id, "poet", 1, &ve, &e), ERR_NONE);
    ck_assert_ptr_nonnull(strstr(ve.info, "\"dtype\":\"F32\""));
    ck_assert_ptr_nonnull(strstr(ve.info, "\"target_modules\":[\"q_proj\",\"v_proj\"]"));
    ck_assert_mem_eq(ve.v.digest, first.digest, DIGEST_BYTES);
    close_all();
    open_all();
    const adapter_version *pin;
    ck_assert_int_eq(registry_acquire(reg, tenant_id, "poet", false, &pin, &e), ERR_NONE);
    ck_assert_int_eq(pin->version, 3);
    registry_release(reg, pin);
}
END_TEST

typedef struct part {
    const char *name;
    const bytes *data;
    int64_t told; /* how long it says to be */
} part;

/* Sends files one by one. */
static err_code send_parts(const part *p, int n, uint64_t max_bytes, adapter_version *out)
{
    upload_env env = {.reg = reg, .base = &base, .max_bytes = max_bytes};
    upload_options o = {
        .tenant_id = tenant_id, .name = "push", .activate = true, .content_bytes = -1};
    upload *u;
    err_code code = upload_begin(&u, &env, &o, &e);
    for (int i = 0; i < n && code == ERR_NONE; i++) {
        code = upload_file_begin(u, p[i].name, p[i].told, &e);
        for (size_t at = 0, piece = 1000; at < p[i].data->n && code == ERR_NONE; at += piece) {
            if (piece > p[i].data->n - at) piece = p[i].data->n - at;
            code = upload_file_write(u, p[i].data->p + at, piece, &e);
        }
        if (code == ERR_NONE) code = upload_file_end(u, &e);
    }
    if (code == ERR_NONE) return upload_finish(u, out, NULL, &e);
    upload_abort(u);
    return code;
}

/* The same version as of a tar, whether sizes are known or not, and from a folder. */
START_TEST(test_files_one_by_one)
{
    bytes config = make_config(4), weights = make_weights(&base, 4, "F32", 0.5f), big = {0};
    bytes tar = make_tar("", &config, &weights), none = {0};
    adapter_version v, of_tar;
    char folder[128], file[200];
    ck_assert_int_eq(send(&tar, 999, "poet", &of_tar, NULL), ERR_NONE);
    for (int known = 0; known < 2; known++) {
        const part parts[] = {
            {"README.md", &config, known ? (int64_t)config.n : -1},
            {"adapter_config.json", &config, known ? (int64_t)config.n : -1},
            {"adapter_model.safetensors", &weights, known ? (int64_t)weights.n : -1}};
        ck_assert_msg(send_parts(parts, 3, 1 << 20, &v) == ERR_NONE, "%s", e.msg);
        ck_assert_mem_eq(v.digest, of_tar.digest, DIGEST_BYTES);
        ck_assert_int_eq(v.version, 1);
        ck_assert_int_eq(send_parts(parts, 2, 1 << 20, &v), ERR_INPUT);
        ck_assert_ptr_nonnull(strstr(e.msg, "adapter_model.safetensors"));
    }
    while (big.n <= FOLDER_CONFIG_MAX) bytes_add(&big, weights.p, weights.n);
    const struct {
        part p[2];
        err_code code;
        const char *says;
    } wrong[] = {
        {{{"adapter_config.json", &config, -1}, {"adapter_config.json", &config, -1}},
         ERR_INPUT,
         "twice"},
        {{{"adapter_config.json", &big, -1}, {"a", &none, 0}}, ERR_LIMIT, "at most"},
        {{{"tokenizer.json", &none, (int64_t)1 << 40}, {"a", &none, 0}}, ERR_LIMIT, "at most"},
        {{{"adapter_config.json", &config, -1}, {"model.pt", &config, -1}},
         ERR_UNSUPPORTED,
         "pickle"},
        {{{"adapter_config.json", &config, -1}, {"../x", &config, -1}}, ERR_INPUT, "not a file"}};
    for (size_t i = 0; i < sizeof wrong / sizeof(*wrong); i++) {
        ck_assert_int_eq(send_parts(wrong[i].p, 2, 1 << 20, &v), wrong[i].code);
        ck_assert_msg(strstr(e.msg, wrong[i].says) != NULL, "%s", e.msg);
    }
    snprintf(folder, sizeof folder, "%s/run", dir);
    ck_assert_int_eq(mkdir(folder, 0700), 0);
    const part files[] = {{"adapter_config.json", &config, 0},
                          {"adapter_model.safetensors", &weights, 0}};
    for (int i = 0; i < 2; i++) {
        snprintf(file, sizeof file, "%s/%s", folder, files[i].name);
        FILE *f = fopen(file, "w");
        ck_assert_uint_eq(fwrite(files[i].data->p, 1, files[i].data->n, f), files[i].data->n);
        fclose(f);
    }
    for (int tries = 0; tries < 3; tries++) {
        upload_env env = {.reg = reg, .base = &base, .max_bytes = tries == 1 ? 500 : 1 << 20};
        upload_options o = {.tenant_id = tenant_id, .name = "copy", .content_bytes = -1};
        upload *u;
        int fd = open(folder, O_RDONLY | O_DIRECTORY);
        if (tries == 2) { /* the weights become a link */
            ck_assert_int_eq(unlink(file), 0);
            ck_assert_int_eq(symlink("/etc/passwd", file), 0);
        }
        ck_assert_int_eq(upload_begin(&u, &env, &o, &e), ERR_NONE);
        err_code code = upload_copy(u, fd, &e);
        ck_assert_int_eq(code, tries == 0 ? ERR_NONE : tries == 1 ? ERR_LIMIT : ERR_INPUT);
        if (code == ERR_NONE) {
            ck_assert_int_eq(upload_finish(u, &v, NULL, &e), ERR_NONE);
            ck_assert_mem_eq(v.digest, of_tar.digest, DIGEST_BYTES);
        } else {
            upload_abort(u);
        }
        close(fd);
    }
    ck_assert_int_eq(count_files("adapters/tmp"), 0);
    bytes_free(&config);
    bytes_free(&weights);
    bytes_free(&big);
    bytes_free(&tar);
}
END_TEST

/* Of a root a tenant may read its own folder, by whatever path, and nothing beside it. */
START_TEST(test_folders_of_roots)
{
    char roots[200], path[200], real[PATH_MAX];
    const char *made[] = {"/a", "/a/acme", "/a/acme/run", "/a/other", "/b"};
    for (size_t i = 0; i < sizeof made / sizeof(*made); i++) {
        snprintf(path, sizeof path, "%s%s", dir, made[i]);
        ck_assert_int_eq(mkdir(path, 0700), 0);
    }
    snprintf(path, sizeof path, "%s/a/acme/out", dir);
    ck_assert_int_eq(symlink("../other", path), 0);
    snprintf(path, sizeof path, "%s/b/in", dir);
    ck_assert_int_eq(symlink("../a/acme/run", path), 0);
    snprintf(roots, sizeof roots, " %s/a , %s/b", dir, dir);
    const struct {
        const char *path, *own;
        err_code code;
    } cases[] = {
        {"/a/acme/run", "acme", ERR_NONE},
        {"/a/acme", "acme", ERR_NONE},
        {"/b/in", "acme", ERR_NONE},
        {"/a/acme/../acme/run/", "acme", ERR_NONE},
        {"/a/acme/ghost", "acme", ERR_NOT_FOUND},
        {"/a/acme/../ghost", "acme", ERR_DENIED},
        {"/a/acme/out", "acme", ERR_DENIED},
        {"/a/other", "acme", ERR_DENIED},
        {"/a", "acme", ERR_DENIED},
        {"/b", "acme", ERR_DENIED},
        {"/a/acme/run", "acm", ERR_DENIED},
        {"/a/ghost", "acme", ERR_DENIED},
        {"/a/other", NULL, ERR_NONE},
        {"/a/acme/out", NULL, ERR_NONE},
        {"/adapters", NULL, ERR_DENIED},
        {"/a/ghost", NULL, ERR_NOT_FOUND},
    };
    for (size_t i = 0; i < sizeof cases / sizeof(*cases); i++) {
        int fd;
        snprintf(path, sizeof path, "%s%s", dir, cases[i].path);
        ck_assert_msg(folder_open_in(roots, cases[i].own, path, real, &fd, &e) == cases[i].code,
                      "%s of %s: %s", cases[i].path, cases[i].own, e.msg);
        ck_assert_int_eq(fd >= 0, cases[i].code == ERR_NONE);
        if (fd >= 0) close(fd);
        ck_assert_int_eq(folder_open_in("", cases[i].own, path, real, &fd, &e), ERR_DENIED);
    }
    int fd;
    ck_assert_int_eq(folder_open_in(roots, NULL, "org/repo", real, &fd, &e), ERR_INPUT);
}
END_TEST

/* A byte of what was published changed on the disk: the same upload once
 * more is a fresh copy of it. */
START_TEST(test_rotten_files)
{
    bytes config = make_config(4), weights = make_weights(&base, 4, "F32", 0.5f);
    bytes tar = make_tar("a", &config, &weights),
          read = {.p = calloc(1, weights.n), .n = weights.n};
    adapter_version v;
    char path[400];
    ck_assert_int_eq(send(&tar, 4096, "poet", &v, NULL), ERR_NONE);
    registry_path(reg, v.digest, path, sizeof path - 40);
    strcat(path, "/adapter_model.safetensors");
    FILE *f = fopen(path, "r+b");
    ck_assert_ptr_nonnull(f);
    ck_assert_int_eq(fseek(f, (long)weights.n - 3, SEEK_SET), 0);
    ck_assert_int_ne(fputc(weights.p[weights.n - 3] ^ 0x55, f), EOF);
    ck_assert_int_eq(fclose(f), 0);
    ck_assert_int_eq(send(&tar, 4096, "poet", &v, NULL), ERR_NONE);
    f = fopen(path, "rb");
    ck_assert_ptr_nonnull(f);
    ck_assert_uint_eq(fread(read.p, 1, read.n, f), read.n);
    fclose(f);
    ck_assert_mem_eq(read.p, weights.p, weights.n);
    ck_assert_int_eq(count_files("adapters"), 1);
    bytes_free(&config);
    bytes_free(&weights);
    bytes_free(&tar);
    bytes_free(&read);
}
END_TEST

/* Real tars come in other dialects: GNU (long names), pax (path records), files to pass over. */
START_TEST(test_dialects)
{
    bytes config = make_config(4), weights = make_weights(&base, 4, "F32", 0.25f);
    adapter_version v;
    bool existed;
    {
        bytes tar = {0};
        char folder[140], name[200];
        memset(folder, 'f', sizeof folder - 1);
        folder[sizeof folder - 1] = 0;
        snprintf(name, sizeof name, "%s/adapter_config.json", folder);
        tar_add(&tar, "././@LongLink", 'L', name, strlen(name) + 1);
        tar_add(&tar, name, '0', config.p, config.n);
        snprintf(name, sizeof name, "%s/adapter_model.safetensors", folder);
        char record[300];
        int len = (int)strlen(name) + 10;
        snprintf(record, sizeof record, "%d path=%s\n", len, name);
        ck_assert_int_eq((int)strlen(record), len);
        tar_add(&tar, "PaxHeaders/x", 'x', record, strlen(record));
        tar_add(&tar, "whatever", '0', weights.p, weights.n);
        tar_add(&tar, "g", 'g', "19 comment=nothing\n", 19);
        tar_end(&tar);
        ck_assert_msg(send(&tar, 100, "long", &v, &existed) == ERR_NONE, "%s", e.msg);
        bytes_free(&tar);
    }
    {
        bytes tar = {0};
        tar_add(&tar, "./", '5', NULL, 0);
        tar_add(&tar, "./README.md", '0', "hello", 5);
        tar_add(&tar, "./tokenizer.json", '0', "{}", 2);
        tar_add(&tar, "./tokenizer.model", '0', "x", 1);
        static const char *const trainers[] = {
            "training_args.bin", "optimizer.pt",    "scheduler.pt",      "scaler.pt",
            "rng_state.pth",     "rng_state_0.pth", "trainer_state.json"};
        for (size_t i = 0; i < sizeof trainers / sizeof(*trainers); i++)
            tar_add(&tar, trainers[i], '0', "\x80\x02pickle", 8);
        tar_add(&tar, "./._adapter_config.json", '0', "mac", 3);
        tar_add(&tar, "./empty.txt", '0', NULL, 0);
        tar_add(&tar, "./adapter_model.safetensors", 0, weights.p, weights.n);
        tar_add(&tar, "./adapter_config.json", '0', config.p, config.n);
        memcpy(tar.p + 257, "ustar  ", 8); /* GNU's magic on one of them */
        tar_checksum(tar.p);
        tar_end(&tar);
        ck_assert_msg(send(&tar, 511, "skips", &v, &existed) == ERR_NONE, "%s", e.msg);
        bytes_free(&tar);
    }
    bytes_free(&config);
    bytes_free(&weights);
}
END_TEST

/* ---- attacks on the tar --------------------------------------------------------------------- */

typedef struct tar_attack {
    const char *what;
    void (*make)(bytes *tar, const bytes *config, const bytes *weights);
    err_code code;
    const char *says;
} tar_attack;

static void good(bytes *tar, const bytes *config, const bytes *weights)
{
    tar_add(tar, "adapter_config.json", '0', config->p, config->n);
    tar_add(tar, "adapter_model.safetensors", '0', weights->p, weights->n);
}

#define ATTACK(name) static void name(bytes *tar, const bytes *config, const bytes *weights)
#define UNUSED       (void)config, (void)weights, (void)tar

ATTACK(nothing)
{
    UNUSED;
}
ATTACK(only_end)
{
    UNUSED;
    tar_end(tar);
}
ATTACK(no_end)
{
    good(tar, config, weights);
}
ATTACK(cut_data)
{
    good(tar, config, weights);
    tar->n -= 600;
}
ATTACK(cut_header)
{
    good(tar, config, weights);
    tar_end(tar);
    tar->n = 300;
}
ATTACK(junk_behind)
{
    good(tar, config, weights);
    tar_end(tar);
    bytes_add(tar, "PK\3\4", 4);
}
ATTACK(no_config)
{
    UNUSED;
    tar_add(tar, "adapter_model.safetensors", '0', weights->p, weights->n);
    tar_end(tar);
}
ATTACK(no_weights)
{
    UNUSED;
    tar_add(tar, "adapter_config.json", '0', config->p, config->n);
    tar_end(tar);
}
ATTACK(twice)
{
    good(tar, config, weights);
    tar_add(tar, "adapter_config.json", '0', config->p, config->n);
    tar_end(tar);
}
ATTACK(twice_by_dots)
{
    good(tar, config, weights);
    tar_add(tar, "././adapter_config.json", '0', config->p, config->n);
    tar_end(tar);
}
ATTACK(two_folders)
{
    tar_add(tar, "a/adapter_config.json", '0', config->p, config->n);
    tar_add(tar, "b/adapter_model.safetensors", '0', weights->p, weights->n);
    tar_end(tar);
}
ATTACK(root_and_folder)
{
    tar_add(tar, "adapter_config.json", '0', config->p, config->n);
    tar_add(tar, "b/adapter_model.safetensors", '0', weights->p, weights->n);
    tar_end(tar);
}
ATTACK(deep)
{
    UNUSED;
    tar_add(tar, "a/b/adapter_config.json", '0', config->p, config->n);
}
ATTACK(deep_folder)
{
    UNUSED;
    tar_add(tar, "a/b/", '5', NULL, 0);
}
ATTACK(bad_checksum)
{
    good(tar, config, weights);
    tar->p[3] ^= 1;
}
ATTACK(gzip)
{
    UNUSED;
    uint8_t z[512] = {0x1f, 0x8b, 8};
    bytes_add(tar, z, sizeof z);
}
ATTACK(short_gzip)
{
    UNUSED;
    bytes_add(tar, "\x1f\x8b\x08", 3);
}
ATTACK(zip)
{
    UNUSED;
    uint8_t z[512] = {'P', 'K', 3, 4};
    bytes_add(tar, z, sizeof z);
}
ATTACK(plain_text)
{
    UNUSED;
    for (int i = 0; i < 100; i++) bytes_add(tar, "{\"peft\":1}", 10);
}
ATTACK(v7)
{
    good(tar, config, weights);
    memset(tar->p + 257, 0, 8);
    tar_checksum(tar->p);
}
ATTACK(bad_size)
{
    good(tar, config, weights);
    memcpy(tar->p + 124, "00000x00100", 12);
    tar_checksum(tar->p);
}
ATTACK(negative_size)
{
    good(tar, config, weights);
    memset(tar->p + 124, 0xff, 12);
    tar_checksum(tar->p);
}
ATTACK(giant_base256)
{
    good(tar, config, weights);
    memset(tar->p + 124, 0x7f, 12);
    tar->p[124] = 0x80;
    tar_checksum(tar->p);
}
ATTACK(large_file)
{
    good(tar, config, weights);
    memcpy(tar->p + 124, "77777777777", 12);
    tar_checksum(tar->p);
}
ATTACK(large_config)
{
    UNUSED;
    uint8_t h[512];
    tar_header(h, "adapter_config.json", '0', (1 << 20) - 100);
    bytes_add(tar, h, 512);
    static uint8_t text[(1 << 20) + 100];
    bytes_add(tar, text, sizeof text);
}
ATTACK(too_much)
{
    UNUSED;
    static uint8_t text[1 << 19];
    tar_add(tar, "a.txt", '0', text, sizeof text);
    tar_add(tar, "b.txt", '0', text, sizeof text);
    tar_add(tar, "c.txt", '0', text, sizeof text);
}
ATTACK(many_entries)
{
    UNUSED;
    char name[32];
    for (int i = 0; i < 300; i++) {
        snprintf(name, sizeof name, "f%d.txt", i);
        tar_add(tar, name, '0', NULL, 0);
    }
}
ATTACK(folder_with_data)
{
    UNUSED;
    tar_add(tar, "a/", '5', "xx", 2);
}
ATTACK(pax_empty)
{
    UNUSED;
    tar_add(tar, "x", 'x', NULL, 0);
}
ATTACK(pax_large)
{
    UNUSED;
    static uint8_t text[70000];
    tar_add(tar, "x", 'x', text, sizeof text);
}
ATTACK(pax_text)
{
    UNUSED;
    tar_add(tar, "x", 'x', "no record here\n", 15);
}
ATTACK(pax_length)
{
    UNUSED;
    tar_add(tar, "x", 'x', "99 path=a\n", 10);
}
ATTACK(pax_short_length)
{
    UNUSED;
    tar_add(tar, "x", 'x', "3 path=a\n", 9);
}
ATTACK(pax_giant_length)
{
    UNUSED;
    tar_add(tar, "x", 'x', "99999999999999999999 path=a\n", 28);
}
ATTACK(pax_no_equals)
{
    UNUSED;
    tar_add(tar, "x", 'x', "8 patha\n", 8);
}
ATTACK(pax_dots)
{
    UNUSED;
    tar_add(tar, "x", 'x', "34 path=../../../../../etc/passwd\n", 34);
    tar_add(tar, "adapter_config.json", '0', config->p, config->n);
}
ATTACK(pax_size)
{
    UNUSED;
    tar_add(tar, "x", 'x', "12 size=9x9\n", 12);
}
ATTACK(pax_nul)
{
    UNUSED;
    tar_add(tar, "x", 'x', "12 path=a\0b\n", 12);
}
ATTACK(pax_sparse)
{
    UNUSED;
    tar_add(tar, "x", 'x', "22 GNU.sparse.major=1\n", 22);
}
ATTACK(pax_global_path)
{
    UNUSED;
    tar_add(tar, "g", 'g', "10 path=a\n", 10);
}
ATTACK(dangling_long_name)
{
    UNUSED;
    tar_add(tar, "././@LongLink", 'L', "name", 5);
    tar_end(tar);
}
ATTACK(long_name_empty)
{
    UNUSED;
    tar_add(tar, "././@LongLink", 'L', "\0\0", 2);
}
ATTACK(long_name_giant)
{
    UNUSED;
    char name[2000];
    memset(name, 'a', sizeof name);
    tar_add(tar, "././@LongLink", 'L', name, sizeof name);
}
ATTACK(no_name)
{
    UNUSED;
    tar_add(tar, "", '0', "x", 1);
}
ATTACK(file_named_folder)
{
    UNUSED;
    tar_add(tar, "a/", '0', "x", 1);
}

START_TEST(test_tar_attacks)
{
    static const tar_attack attacks[] = {
        {"nothing", nothing, ERR_INPUT, "empty"},
        {"only the end", only_end, ERR_INPUT, "adapter_config.json"},
        {"no end", no_end, ERR_INPUT, "ends early"},
        {"cut in the data", cut_data, ERR_INPUT, "ends early"},
        {"cut in a header", cut_header, ERR_INPUT, "ustar"},
        {"junk behind the end", junk_behind, ERR_INPUT, "after the end"},
        {"no config", no_config, ERR_INPUT, "adapter_config.json"},
        {"no weights", no_weights, ERR_INPUT, "adapter_model.safetensors"},
        {"a file twice", twice, ERR_INPUT, "twice"},
        {"a file twice, dotted", twice_by_dots, ERR_INPUT, "twice"},
        {"two folders", two_folders, ERR_INPUT, "more than one folder"},
        {"root and folder", root_and_folder, ERR_INPUT, "more than one folder"},
        {"deep file", deep, ERR_INPUT, "without folders"},
        {"deep folder", deep_folder, ERR_INPUT, "inside"},
        {"bad checksum", bad_checksum, ERR_INPUT, "damaged"},
        {"gzip", gzip, ERR_INPUT, "compressed"},
        {"short gzip", short_gzip, ERR_INPUT, "compressed"},
        {"zip", zip, ERR_INPUT, "zip"},
        {"text", plain_text, ERR_INPUT, "not a tar"},
        {"v7 without magic", v7, ERR_INPUT, "not a tar"},
        {"size no number", bad_size, ERR_INPUT, "not a number"},
        {"negative size", negative_size, ERR_INPUT, "not a number"},
        {"giant base-256 size", giant_base256, ERR_INPUT, "not a number"},
        {"8 GiB file", large_file, ERR_LIMIT, "at most"},
        {"config too large", large_config, ERR_LIMIT, "more than"},
        {"stream too large", too_much, ERR_LIMIT, "more than"},
        {"300 entries", many_entries, ERR_LIMIT, "entries"},
        {"folder with data", folder_with_data, ERR_INPUT, "folder"},
        {"empty pax", pax_empty, ERR_INPUT, "extended header"},
        {"large pax", pax_large, ERR_INPUT, "extended header"},
        {"pax without records", pax_text, ERR_INPUT, "pax"},
        {"pax record too long", pax_length, ERR_INPUT, "pax"},
        {"pax record too short", pax_short_length, ERR_INPUT, "pax"},
        {"pax record of 10^20", pax_giant_length, ERR_INPUT, "pax"},
        {"pax without =", pax_no_equals, ERR_INPUT, "pax"},
        {"pax path with ..", pax_dots, ERR_INPUT, ".."},
        {"pax size no number", pax_size, ERR_INPUT, "pax"},
        {"pax path with NUL", pax_nul, ERR_INPUT, "pax"},
        {"pax sparse", pax_sparse, ERR_INPUT, "sparse"},
        {"global path", pax_global_path, ERR_INPUT, "global"},
        {"long name, then the end", dangling_long_name, ERR_INPUT, "extended header"},
        {"empty long name", long_name_empty, ERR_INPUT, "name of 0"},
        {"giant long name", long_name_giant, ERR_INPUT, "name of 2000"},
        {"no name", no_name, ERR_INPUT, "without a name"},
        {"file with a slash", file_named_folder, ERR_INPUT, "file named"},
    };
    bytes config = make_config(4), weights = make_weights(&base, 4, "F32", 0.5f);
    for (size_t i = 0; i < sizeof attacks / sizeof(*attacks); i++)
        for (size_t piece = 1; piece <= 1 << 20; piece *= 1 << 10) {
            bytes tar = {0};
            adapter_version v;
            attacks[i].make(&tar, &config, &weights);
            if (piece == 1 && tar.n > 40000) {
                bytes_free(&tar);
                continue;
            }
            err_code code = send(&tar, piece, "bad", &v, NULL);
            ck_assert_msg(code == attacks[i].code, "%s gives %d: %s", attacks[i].what, code, e.msg);
            ck_assert_msg(strstr(e.msg, attacks[i].says) != NULL, "%s says: %s", attacks[i].what,
                          e.msg);
            bytes_free(&tar);
        }
    ck_assert_int_eq(count_files("adapters"), 0);
    ck_assert_int_eq(count_files("adapters/tmp"), 0);
    bytes_free(&config);
    bytes_free(&weights);
}
END_TEST

START_TEST(test_names_and_kinds)
{
    static const struct {
        const char *name;
        char type;
        err_code code;
        const char *says;
    } cases[] = {
        {"/etc/passwd", '0', ERR_INPUT, "absolute"},
        {"../adapter_config.json", '0', ERR_INPUT, ".."},
        {"a/../../x", '0', ERR_INPUT, ".."},
        {"a/..", '5', ERR_INPUT, ".."},
        {"a\nb.txt", '0', ERR_INPUT, "control"},
        {"a\x1b[2J.txt", '0', ERR_INPUT, "control"},
        {"a\x7f.txt", '0', ERR_INPUT, "control"},
        {"..\\..\\x.txt", '0', ERR_INPUT, "backslash"},
        {"adapter_model.bin", '0', ERR_UNSUPPORTED, "pickle"},
        {"model.pt", '0', ERR_UNSUPPORTED, "pickle"},
        {"state.PTH", '0', ERR_UNSUPPORTED, "pickle"},
        {"x.pkl", '0', ERR_UNSUPPORTED, "pickle"},
        {"x.ckpt", '0', ERR_UNSUPPORTED, "pickle"},
        {"model.safetensors", '0', ERR_UNSUPPORTED, "adapter_model.safetensors"},
        {"run.sh", '0', ERR_INPUT, "remove it"},
        {"a.so", '0', ERR_INPUT, "remove it"},
        {"adapter_config.json", '1', ERR_INPUT, "hard link"},
        {"adapter_config.json", '2', ERR_INPUT, "symbolic link"},
        {"adapter_config.json", '3', ERR_INPUT, "device"},
        {"adapter_config.json", '4', ERR_INPUT, "device"},
        {"adapter_config.json", '6', ERR_INPUT, "named pipe"},
        {"adapter_config.json", '7', ERR_INPUT, "unknown kind"},
        {"adapter_config.json", 'K', ERR_INPUT, "link"},
        {"adapter_config.json", 'S', ERR_INPUT, "sparse"},
        {"adapter_config.json", 'M', ERR_INPUT, "multi-volume"},
        {"adapter_config.json", 'V', ERR_INPUT, "unknown kind"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof(*cases); i++) {
        bytes tar = {0};
        adapter_version v;
        tar_add(&tar, cases[i].name, cases[i].type, NULL, 0);
        tar_end(&tar);
        err_code code = send(&tar, 512, "bad", &v, NULL);
        ck_assert_msg(code == cases[i].code, "%s gives %d: %s", cases[i].name, code, e.msg);
        ck_assert_msg(strstr(e.msg, cases[i].says) != NULL, "%s says: %s", cases[i].name, e.msg);
        bytes_free(&tar);
    }
    bytes config = make_config(4), weights = make_weights(&base, 4, "F32", 0.5f);
    bytes tar = make_tar("", &config, &weights);
    adapter_version v;
    const char *names[] = {"", "Poet", "a/b", "..", "a@1", "a:b", "demo-base", "a b"};
    for (size_t i = 0; i < sizeof names / sizeof(*names); i++)
        ck_assert_int_eq(send(&tar, 4096, names[i], &v, NULL), ERR_INPUT);
    ck_assert_int_eq(count_files("adapters"), 0);
    ck_assert_int_eq(count_files("adapters/tmp"), 0);
    bytes_free(&config);
    bytes_free(&weights);
    bytes_free(&tar);
}
END_TEST

/* ---- attacks on the weights ------------------------------------------------------------------ */

static err_code send_weights(const bytes *weights, const char *config_text)
{
    bytes config = make_config(4);
    if (config_text != NULL) {
        bytes_free(&config);
        bytes_add(&config, config_text, strlen(config_text));
    }
    bytes tar = make_tar("a", &config, weights);
    adapter_version v;
    err_code code = send(&tar, 4096, "bad", &v, NULL);
    bytes_free(&config);
    bytes_free(&tar);
    return code;
}

static void expect(err_code code, err_code want, const char *says)
{
    ck_assert_msg(code == want, "gives %d, not %d: %s", code, want, e.msg);
    ck_assert_msg(strstr(e.msg, says) != NULL, "says: %s (not %s)", e.msg, says);
}

/* All tensors of make_weights(), with one more or one changed. */
static bytes with_extra(const char *name, const char *type, int rows, int cols)
{
    st_maker m = {0};
    char full[200];
    const char *names[] = {"q_proj", "v_proj"};
    for (int layer = 0; layer < base.n_layer; layer++)
        for (int k = 0; k < 2; k++) {
            int d_out, d_in;
            model_proj_shape(&base, k == 0 ? PROJ_Q : PROJ_V, &d_out, &d_in);
            for (int b = 0; b < 2; b++) {
                snprintf(full, sizeof full,
                         "base_model.model.model.layers.%d.self_attn.%s.lora_%c.weight", layer,
                         names[k], b ? 'B' : 'A');
                if (strcmp(full, name) == 0) continue; /* replaced below, or left out */
                st_tensor_add(&m, full, "F32", b ? d_out : 4, b ? 4 : d_in, 0.5f);
            }
        }
    if (rows > 0) st_tensor_add(&m, name, type, rows, cols, 0.5f);
    return st_finish(&m);
}

START_TEST(test_weight_attacks)
{
#define Q0A "base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight"
#define V1B "base_model.model.model.layers.1.self_attn.v_proj.lora_B.weight"
    static const struct {
        const char *name, *type;
        int rows, cols;
        err_code code;
        const char *says;
    } cases[] = {
        {Q0A, "F32", 0, 0, ERR_INPUT, "lora_A.weight is not in the file"},
        {V1B, "F32", 0, 0, ERR_INPUT, "lora_B.weight is not in the file"},
        {Q0A, "F32", 8, 32, ERR_INPUT, "8 x 32; it must be 4 x 32"},
        {Q0A, "F32", 32, 4, ERR_INPUT, "32 x 4; it must be 4 x 32"},
        {Q0A, "F32", 4, 31, ERR_INPUT, "4 x 31"},
        {V1B, "F32", 32, 4, ERR_INPUT, "32 x 4; it must be 16 x 4"},
        {Q0A, "I32", 4, 32, ERR_UNSUPPORTED, "I32"},
        {Q0A, "I16", 4, 32, ERR_UNSUPPORTED, "I16"},
        {Q0A, "F99", 4, 32, ERR_CORRUPT, ""},
        {"base_model.model.model.layers.0.self_attn.k_proj.lora_A.weight", "F32", 4, 32, ERR_INPUT,
         "not covered"},
        {"base_model.model.model.layers.2.self_attn.q_proj.lora_A.weight", "F32", 4, 32, ERR_INPUT,
         "only 2 layers"},
        {"model.layers.0.self_attn.q_proj.lora_A.weight", "F32", 4, 32, ERR_INPUT,
         "under two names"},
        {"extra", "F32", 1, 1, ERR_INPUT, "belongs to no"},
        {"base_model.model.lm_head.lora_A.weight", "F32", 4, 32, ERR_INPUT, "not covered"},
        {"base_model.model.model.embed_tokens.lora_embedding_A", "F32", 4, 64, ERR_INPUT,
         "not covered"},
        {"base_model.model.model.layers.0.self_attn.q_proj.lora_magnitude_vector", "F32", 1, 32,
         ERR_INPUT, "use_dora"},
        {"base_model.model.model.layers.0.self_attn.q_proj.lora_B.bias", "F32", 1, 32, ERR_INPUT,
         "lora_bias"},
        {"base_model.model.model.layers.0.mlp.experts.0.up_proj.lora_A.weight", "F32", 4, 32,
         ERR_INPUT, "has 0 experts"},
        {"base_model.model.model.layers.0.self_attn.q_proj.lora_A.default.weight", "F32", 4, 32,
         ERR_INPUT, "twice"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof(*cases); i++) {
        bytes w = with_extra(cases[i].name, cases[i].type, cases[i].rows, cases[i].cols);
        expect(send_weights(&w, NULL), cases[i].code, cases[i].says);
        bytes_free(&w);
    }
    /* Values. */
    const float bad[] = {NAN, INFINITY, -INFINITY, 1e30f};
    for (size_t i = 0; i < sizeof bad / sizeof(*bad); i++) {
        bytes w = make_weights(&base, 4, "F32", 0.5f);
        memcpy(w.p + w.n - 4, &bad[i], 4);
        expect(send_weights(&w, NULL), ERR_INPUT, "v_proj.lora_B.weight: value 63 is not finite");
        bytes_free(&w);
    }
    const uint16_t bad16[] = {0x7c00, 0xfe01};
    for (size_t i = 0; i < 2; i++) {
        bytes w = make_weights(&base, 4, "F16", 0.5f);
        memcpy(w.p + w.n - 2, &bad16[i], 2);
        expect(send_weights(&w, NULL), ERR_INPUT, "not finite");
        bytes_free(&w);
    }
    bytes w = make_weights(&base, 4, "BF16", 0.5f);
    memcpy(w.p + w.n - 2, "\x80\x7f", 2);
    expect(send_weights(&w, NULL), ERR_INPUT, "not finite");
    bytes_free(&w);

    /* The file against its own header. */
    const char *says = "adapter_model.safetensors";
    w = make_weights(&base, 4, "F32", 0.5f);
    size_t whole = w.n;
    const size_t cuts[] = {0, 1, 7, 8, 9, 100, whole - 4, whole - 1};
    for (size_t i = 0; i < sizeof cuts / sizeof(*cuts); i++) {
        w.n = cuts[i];
        expect(send_weights(&w, NULL), ERR_CORRUPT, says);
    }
    w.n = whole;
    bytes_add(&w, "PK\3\4", 4);
    expect(send_weights(&w, NULL), ERR_CORRUPT, says);
    w.n = whole;
    for (int i = 0; i < 8; i++) w.p[i] = 0xff; /* a header of 2^64 - 1 bytes */
    err_code code = send_weights(&w, NULL);
    ck_assert(code == ERR_CORRUPT || code == ERR_LIMIT);
    for (int i = 0; i < 8; i++) w.p[i] = i == 7 ? 0x80 : 0; /* 2^63 */
    code = send_weights(&w, NULL);
    ck_assert(code == ERR_CORRUPT || code == ERR_LIMIT);
    bytes_free(&w);

    /* The config against the weights. */
    w = make_weights(&base, 4, "F32", 0.5f);
    expect(send_weights(&w, "{\"peft_type\":\"LORA\",\"r\":8,\"target_modules\":[\"q_proj\","
                            "\"v_proj\"]}"),
           ERR_INPUT, "it must be 8 x 32");
    expect(send_weights(&w, "{\"peft_type\":\"LORA\",\"r\":4,\"target_modules\":[\"q_proj\"]}"),
           ERR_INPUT, "not covered");
    expect(send_weights(&w, "{\"peft_type\":\"LORA\",\"r\":4,\"target_modules\":\"all-linear\"}"),
           ERR_INPUT, "not in the file");
    expect(send_weights(&w, "{\"peft_type\":\"LORA\",\"r\":4,\"use_dora\":true,"
                            "\"target_modules\":[\"q_proj\",\"v_proj\"]}"),
           ERR_INPUT, "lora_magnitude_vector");
    expect(send_weights(&w, ""), ERR_INPUT, "adapter_config.json");
    bytes_free(&w);
    ck_assert_int_eq(count_files("adapters"), 0);
    ck_assert_int_eq(count_files("adapters/tmp"), 0);
    registry_totals totals;
    registry_totals_get(reg, 0, &totals);
    ck_assert_uint_eq(totals.n_versions, 0);
}
END_TEST

START_TEST(test_types_become_f32)
{
    static const char *const types[] = {"F64", "BF16"};
    for (int i = 0; i < 2; i++) {
        bytes w = with_extra(Q0A, types[i], 4, 32);
        expect(send_weights(&w, NULL), ERR_NONE, "");
        bytes_free(&w);
    }
    registry_totals totals;
    registry_totals_get(reg, 0, &totals);
    ck_assert_uint_eq(totals.n_versions, 2);
    ck_assert_int_eq(count_files("adapters/tmp"), 0);
}
END_TEST

START_TEST(test_limits_and_leftovers)
{
    bytes config = make_config(4), weights = make_weights(&base, 4, "F32", 0.5f);
    bytes tar = make_tar("a", &config, &weights);
    upload_env env = {.reg = reg, .base = &base, .max_bytes = 1 << 20};
    upload_options o = {.tenant_id = tenant_id, .name = "x", .content_bytes = 2 << 20};
    upload *u;
    adapter_version v;
    ck_assert_int_eq(upload_begin(&u, &env, &o, &e), ERR_LIMIT);
    o.content_bytes = (int64_t)tar.n;
    env.max_packed_bytes = 100; /* residency could never hold it */
    ck_assert_int_eq(upload_begin(&u, &env, &o, &e), ERR_NONE);
    ck_assert_int_eq(upload_write(u, tar.p, tar.n, &e), ERR_NONE);
    ck_assert_int_eq(upload_finish(u, &v, NULL, &e), ERR_LIMIT);
    env.max_packed_bytes = 0;
    o.quota.bytes = 100; /* the tenant's quota: files of a refused version go again */
    ck_assert_int_eq(upload_begin(&u, &env, &o, &e), ERR_NONE);
    ck_assert_int_eq(upload_write(u, tar.p, tar.n, &e), ERR_NONE);
    ck_assert_int_eq(upload_finish(u, &v, NULL, &e), ERR_LIMIT);
    ck_assert_int_eq(count_files("adapters"), 0);
    /* After a failure nothing more is taken. */
    ck_assert_int_eq(upload_begin(&u, &env, &o, &e), ERR_NONE);
    ck_assert_int_eq(upload_write(u, "this is no tar at all", 21, &e), ERR_NONE);
    ck_assert_int_eq(upload_write(u, tar.p, tar.n, &e), ERR_INPUT);
    ck_assert_int_eq(upload_write(u, tar.p, tar.n, &e), ERR_INPUT);
    ck_assert_int_eq(upload_finish(u, &v, NULL, &e), ERR_INPUT);
    /* A crash in mid-upload leaves a directory; the sweep takes it away. */
    char path[128];
    snprintf(path, sizeof path, "%s/adapters/tmp/dead", dir);
    ck_assert_int_eq(mkdir(path, 0700), 0);
    strcat(path, "/adapter_config.json");
    FILE *f = fopen(path, "w");
    ck_assert_ptr_nonnull(f);
    fclose(f);
    ck_assert_int_eq(count_files("adapters/tmp"), 1);
    publish_sweep(dir);
    ck_assert_int_eq(count_files("adapters/tmp"), 0);
    bytes_free(&config);
    bytes_free(&weights);
    bytes_free(&tar);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("upload");
    TCase *tc = tcase_create("upload");
    tcase_add_checked_fixture(tc, setup, teardown);
    tcase_set_timeout(tc, 120);
    tcase_add_test(tc, test_publish);
    tcase_add_test(tc, test_files_one_by_one);
    tcase_add_test(tc, test_folders_of_roots);
    tcase_add_test(tc, test_rotten_files);
    tcase_add_test(tc, test_dialects);
    tcase_add_test(tc, test_tar_attacks);
    tcase_add_test(tc, test_names_and_kinds);
    tcase_add_test(tc, test_weight_attacks);
    tcase_add_test(tc, test_types_become_f32);
    tcase_add_test(tc, test_limits_and_leftovers);
    suite_add_tcase(s, tc);
    return run_suite(s);
}
