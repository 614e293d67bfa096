/* loractl_advice.c -- for a class that misses its targets: the culprit, and the next command.
 *
 * A miss has one of ten causes (engine/base/miss.h; docs/howto/watch.md says what each means).  The
 * figures of /stats name who is behind it: the tenant that holds the slots, the tenant or the
 * adapter whose requests miss most, another program, the device.  Everything printed here is read
 * from the server's answer and cleaned first.
 */
#include <stdio.h>
#include <string.h>

#include "engine/base/json.h"
#include "tui/ctl/loractl.h"
#include "tui/text.h"

enum { NAME_COLUMNS = 60, NAME_CAP = 4 * NAME_COLUMNS + 4 };

static void name_of(const cJSON *row, char out[NAME_CAP])
{
    (void)text_clean(ctl_word(row, "name"), out, NAME_CAP, NAME_COLUMNS);
}

const cJSON *ctl_most_of(const cJSON *rows, const char *field)
{
    const cJSON *row, *most = NULL;
    double best = 0;
    cJSON_ArrayForEach(row, rows)
    {
        if (ctl_real(row, field, 0) <= best) continue;
        best = ctl_real(row, field, 0);
        most = row;
    }
    return most;
}

/* Who holds the slots and the queue now; when the incident is over, who sent most. */
static void say_queue(const cJSON *stats)
{
    char name[NAME_CAP];
    const cJSON *tenants = json_get(stats, "tenants"), *engine = json_get(stats, "engine");
    const cJSON *most = ctl_most_of(tenants, "running");
    if (most) {
        name_of(most, name);
        double waits = ctl_real(most, "queued", 0);
        printf("  culprit: %s has %.0f of %.0f slots and %.0f of %.0f waiting requests\n", name,
               ctl_real(most, "running", 0) - waits,
               ctl_real(json_get(stats, "server"), "max_seqs", 0), waits,
               ctl_real(engine, "waiting", 0));
    } else {
        most = ctl_most_of(tenants, "ended");
        if (!most) return;
        name_of(most, name);
        printf("  nothing waits now; %s has sent most requests since the start: %.0f\n", name,
               ctl_real(most, "ended", 0));
    }
    printf("  next: loractl limits set %s max_concurrent=N, or raise engine.max_seqs\n", name);
}

/* TENANT/NAME of the adapter whose requests missed most by this cause; "": none did. */
static void worst_adapter(ctl *c, const char *field, char out[2 * NAME_CAP])
{
    char name[NAME_CAP], owner[NAME_CAP];
    cJSON *all = ctl_ask(c, ADMIN_SIDE, "/admin/v1/stats?tables=adapters");
    const cJSON *most = cJSON_IsObject(all) ? ctl_most_of(json_get(all, "adapters"), field) : NULL;
    out[0] = '\0';
    if (most) {
        name_of(most, name);
        (void)text_clean(ctl_word(most, "tenant"), owner, sizeof(owner), NAME_COLUMNS);
        snprintf(out, 2 * (size_t)NAME_CAP, "%s/%s", owner, name);
    }
    cJSON_Delete(all);
}

static void say_adapters(ctl *c, const cJSON *stats)
{
    char name[2 * NAME_CAP];
    const cJSON *engine = json_get(stats, "engine"), *rates = json_get(stats, "rates");
    printf("  culprit: %.1f adapters are loaded and %.1f evicted each second; the device holds "
           "%.0f of %.0f\n",
           ctl_real(rates, "loads", 0), ctl_real(rates, "evictions", 0),
           ctl_real(engine, "adapters_resident", 0), ctl_real(engine, "adapters_registered", 0));
    worst_adapter(c, "missed_adapter_load", name);
    if (*name) printf("  most of the misses: %s\n", name);
    printf("  next: loractl adapter pin %s, or raise engine.kv_memory\n",
           *name ? name : "TENANT/NAME");
}

/* One request alone takes a step and a row: above the target, no setting helps. */
static void say_machine(const cJSON *stats, const cJSON *class)
{
    char alone[32], target[32], name[NAME_CAP];
    const cJSON *engine = json_get(stats, "engine");
    double token_ms =
        (ctl_real(engine, "cost_step_us", 0) + ctl_real(engine, "cost_row_us", 0)) / 1e3;
    double target_ms = ctl_real(class, "tpot_target_ms", 0);
    text_ms(token_ms, alone, sizeof(alone));
    text_ms(target_ms, target, sizeof(target));
    name_of(class, name);
    if (target_ms > 0 && token_ms > target_ms) {
        printf("  culprit: the target. One request alone takes %s per token on this machine; the "
               "target is %s\n",
               alone, target);
        printf("  next: raise tpot of classes.%s above %s, or use a faster machine\n", name, alone);
        return;
    }
    printf("  culprit: another program. Steps took longer than this server's work explains; one "
           "request alone takes %s per token\n",
           alone);
    printf("  next: look for busy processes on the server's machine (top)\n");
}

/* The disk: usage that cannot be written is printed by `why` itself, so an adapter is left. */
static void say_disk_of(ctl *c)
{
    char name[2 * NAME_CAP];
    worst_adapter(c, "missed_storage", name);
    if (*name)
        printf(
            "  culprit: the disk of data.dir. Reading the files of adapters is slow, most of all "
            "of %s\n",
            name);
    else
        printf("  culprit: the disk of data.dir is slow or full\n");
    printf("  next: iostat -x 1 on the server's machine, or raise adapters.host_memory\n");
}

static void say_device(const cJSON *stats)
{
    char backend[NAME_CAP];
    double n = ctl_real(json_get(stats, "totals"), "engine_restarts", 0);
    (void)text_clean(ctl_word(json_get(stats, "server"), "backend"), backend, sizeof(backend),
                     NAME_COLUMNS);
    if (n > 0)
        printf("  culprit: the device (%s) failed %.0f times since the start\n", backend, n);
    else
        printf("  culprit: the server was stopped or ended\n");
    printf("  next: loractl events --level error, then the server's log\n");
}

/* The tenant with the most of a field. */
static void worst_tenant(const cJSON *stats, const char *field, char name[NAME_CAP])
{
    const cJSON *most = ctl_most_of(json_get(stats, "tenants"), field);
    snprintf(name, NAME_CAP, "TENANT");
    if (most) name_of(most, name);
}

static void say_limits(const cJSON *stats)
{
    char name[NAME_CAP];
    worst_tenant(stats, "missed_limits", name);
    printf("  culprit: the disk of data.dir. Looking up the usage of %s was slow\n"
           "  next: iostat -x 1 on the server's machine\n",
           name);
}

static void say_prompt(const cJSON *stats, const cJSON *class)
{
    char name[NAME_CAP], of[NAME_CAP];
    worst_tenant(stats, "missed_prompt", name);
    name_of(class, of);
    printf("  culprit: prompts of %s take longer than the target\n"
           "  next: loractl tenant set %s --target %s=TTFT,TPOT with a longer TTFT, or shorten the "
           "prompts\n",
           name, name, of);
}

static void say_steps(const cJSON *stats)
{
    char name[NAME_CAP];
    worst_tenant(stats, "running", name);
    printf("  culprit: requests of %s share the steps with this class\n"
           "  next: loractl limits set %s max_concurrent=N, or lower engine.max_seqs\n",
           name, name);
}

static void say_pages(const cJSON *stats)
{
    char name[NAME_CAP];
    const cJSON *engine = json_get(stats, "engine");
    worst_tenant(stats, "running", name);
    printf("  culprit: KV memory. %.0f of %.0f pages are in use, most requests are of %s\n"
           "  next: raise engine.kv_memory, or loractl limits set %s max_concurrent=N\n",
           ctl_real(engine, "pages_used", 0), ctl_real(engine, "pages", 0), name, name);
}

void ctl_say_cause(ctl *c, const cJSON *stats, const cJSON *class, const char *cause)
{
    if (strcmp(cause, "queue") == 0) say_queue(stats);
    if (strcmp(cause, "adapter_load") == 0) say_adapters(c, stats);
    if (strcmp(cause, "machine") == 0) say_machine(stats, class);
    if (strcmp(cause, "storage") == 0) say_disk_of(c);
    if (strcmp(cause, "restart") == 0) say_device(stats);
    if (strcmp(cause, "limits") == 0) say_limits(stats);
    if (strcmp(cause, "prompt") == 0) say_prompt(stats, class);
    if (strcmp(cause, "decode_steps") == 0) say_steps(stats);
    if (strcmp(cause, "preemption") == 0 || strcmp(cause, "swap") == 0) say_pages(stats);
}
