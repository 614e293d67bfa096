/* test_device.c -- how the start sees an NVIDIA GPU that it cannot use, in folders that stand for
 * /dev, /proc and /sys. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include <check.h>

#include "gateway/device.h"
#include "tests/run_suite.h"

static char root[] = "/tmp/lorad-device-XXXXXX";

/* Writes `text` to the file, and makes its folders. */
static void put(const char *file, const char *text)
{
    char path[512];
    ck_assert_int_lt(snprintf(path, sizeof(path), "%s/%s", root, file), (int)sizeof(path));
    for (char *at = path + 1; (at = strchr(at, '/')); *at++ = '/') {
        *at = '\0';
        ck_assert(mkdir(path, 0700) == 0 || errno == EEXIST);
    }
    FILE *f = fopen(path, "we");
    ck_assert_ptr_nonnull(f);
    ck_assert_int_ge(fputs(text, f), 0);
    ck_assert_int_eq(fclose(f), 0);
}

static void begin(void)
{
    memcpy(root + sizeof(root) - 7, "XXXXXX", 6);
    ck_assert_ptr_nonnull(mkdtemp(root));
}

static void end(void)
{
    char command[64];
    snprintf(command, sizeof(command), "rm -r %s", root);
    ck_assert_int_eq(system(command), 0);
}

START_TEST(a_gpu_shows_by_its_files_or_on_the_bus)
{
    static const struct {
        const char *file[2], *text[2];
        bool gpu;
    } cases[] = {
        {{NULL}, {NULL}, false},
        {{"dev/nvidia0"}, {""}, true},
        {{"dev/nvidiactl"}, {""}, true},
        {{"proc/driver/nvidia/version"}, {"580"}, true},
        {{"dev/nvme0", "proc/driver/rtc"}, {"", ""}, false},
        {{"sys/bus/pci/devices/0000:01:00.0/vendor", "sys/bus/pci/devices/0000:01:00.0/class"},
         {"0x10de\n", "0x030200\n"},
         true},
        {{"sys/bus/pci/devices/0000:01:00.0/vendor", "sys/bus/pci/devices/0000:01:00.0/class"},
         {"0x10de\n", "0x030000\n"},
         true},
        /* its sound, another maker's GPU, a device that says nothing of its class */
        {{"sys/bus/pci/devices/0000:01:00.1/vendor", "sys/bus/pci/devices/0000:01:00.1/class"},
         {"0x10de\n", "0x040300\n"},
         false},
        {{"sys/bus/pci/devices/0000:01:00.0/vendor", "sys/bus/pci/devices/0000:01:00.0/class"},
         {"0x1002\n", "0x030000\n"},
         false},
        {{"sys/bus/pci/devices/0000:01:00.0/vendor"}, {"0x10de\n"}, false},
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        begin();
        for (int f = 0; f < 2 && cases[i].file[f]; f++) put(cases[i].file[f], cases[i].text[f]);
        ck_assert_msg(device_gpu_present(root) == cases[i].gpu, "case %zu", i);
        end();
    }
}
END_TEST

START_TEST(an_operator_hears_of_it_only_with_auto)
{
    config *c = calloc(1, sizeof(*c));
    char said[320];
    ck_assert_ptr_nonnull(c);
    begin();
    snprintf(c->engine.backend, sizeof(c->engine.backend), "auto");
    snprintf(c->debug.device_root, sizeof(c->debug.device_root), "%s", root);
    device_gpu_unused(c, "no driver", said, sizeof(said));
    ck_assert_str_eq(said, ""); /* no GPU */
    put("dev/nvidia0", "");
    device_gpu_unused(c, "", said, sizeof(said));
    ck_assert_str_eq(said, ""); /* CUDA serves */
    device_gpu_unused(c, "no driver", said, sizeof(said));
    ck_assert_str_eq(said, "the CPU serves and an NVIDIA GPU is unused: no driver");
    snprintf(c->engine.backend, sizeof(c->engine.backend), "cpu");
    device_gpu_unused(c, "engine.backend is cpu", said, sizeof(said));
    ck_assert_str_eq(said, ""); /* as configured */
    end();
    free(c);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("device");
    TCase *t = tcase_create("device");
    suite_add_tcase(s, t);
    tcase_add_test(t, a_gpu_shows_by_its_files_or_on_the_bus);
    tcase_add_test(t, an_operator_hears_of_it_only_with_auto);
    return run_suite(s);
}
