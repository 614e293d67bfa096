/* loractl_table.c -- the table of loractl's options and commands, with examples; no code.
 *
 * Everything that describes the command line is derived from it: parsing and error messages
 * (tui/cli.c), --help, the man page, shell completion (cli_completion.c) and
 * docs/reference/cli.md. A new command is one row here and one function ctl_<group>_<verb>()
 * that is declared in loractl.h.
 *
 * Rules of a row:
 *
 * - `name` is one word or "group verb". Rows of a group stand together; `heading` begins a
 * section of --help.
 * - `least` and `most` bound the number of arguments; most -1: any number.
 * - `shows`: the command prints objects, so it also has the options of showing[] (--fields,
 * --watch).
 * - `words` says what completion offers for an argument: FILE, a list of words, or "@models",
 * "@tenants" and their like, which completion fetches from the server.
 * - `examples` must be valid command lines: e2e/programs/test_loractl_ease.py parses each of them.
 */
#include "tui/ctl/loractl.h"

/* ------------------------------------------------------------------------- options -- */

#define END                       \
    {                             \
        NULL, 0, NULL, NULL, NULL \
    }

static const cli_option everywhere[] = {
    {"context", 'c', "NAME", "Use this context instead of the current one", "@contexts"},
    {"output", 'o', "FORMAT", "table, wide, json, yaml, csv or name (the first column alone)",
     "table wide json yaml csv name"},
    {"json", 0, NULL, "The same as -o json", NULL},
    {"yes", 'y', NULL, "Do not ask for confirmation", NULL},
    {"quiet", 'q', NULL, "No progress and no remarks", NULL},
    {"timeout", 0, "TIME", "Give up after so long (30s, 5m)", NULL},
    {"url", 0, "URL", "Server for tenants (https://host:port)", NULL},
    {"admin-url", 0, "URL", "Server for operators", NULL},
    {"ca", 0, "FILE", "Authority that has signed the server's certificate (PEM)", "FILE"},
    {"key-file", 0, "FILE", "File whose first line is the tenant's key", "FILE"},
    {"admin-key-file", 0, "FILE", "File whose first line is the operator's key", "FILE"},
    {"help", 'h', NULL, "This help", NULL},
    END,
};

static const cli_option showing[] = {
    {"fields", 0, "A,B", "Only these (limits.tokens_per_day: a part), in every format", NULL},
    {"watch", 0, "[TIME]", "Again and again, every so often (2s), until Ctrl-C", NULL},
    END,
};

/* Options that several commands have. */
#define PURPOSE                                     \
    {                                               \
        "name", 'n', "TEXT", "What it is for", NULL \
    }
#define EXPIRES                                                                               \
    {                                                                                         \
        "expires", 0, "TIME", "Not accepted after this span (30d) or date (2026-12-31)", NULL \
    }
#define NETWORKS                                                                                   \
    {                                                                                              \
        "networks", 0, "A,B", "CIDR blocks that its requests must come from; none: anywhere", NULL \
    }

#define OF_TENANT                                                                                  \
    {"weight", 0, "NUMBER", "Share among tenants that compete (1 is normal)", NULL},               \
        {"class", 0, "CLASS", "Class of requests that ask for none", "@classes"},                  \
        {"classes", 0, "A,B", "Classes that may be asked for", NULL},                              \
        {"target", 0, "CLASS=TTFT,TPOT",                                                           \
         "Its own targets in a class (300ms,40ms; none: the class's); may be repeated", NULL},     \
        {"models", 0, "A,B", "Models that may be asked for", NULL},                                \
        {"source", 0, "TEMPLATE",                                                                  \
         "Source of adapters that are fetched at their first use (hf://acme/{name}); empty: none", \
         NULL},                                                                                    \
        NETWORKS,                                                                                  \
    {                                                                                              \
        "limit", 0, "NAME=NUMBER", "One limit, as in 'limits set'; may be repeated", NULL          \
    }

static const cli_option tenant_settings[] = {OF_TENANT, END};

static const cli_option tenant_new[] = {
    OF_TENANT,
    {"out", 0, "FILE", "Make a key for inference and adapters, too, into this file", "FILE"},
    END,
};

static const cli_option of_tenant[] = {
    {"tenant", 't', "NAME", "Only this tenant's", "@tenants"},
    END,
};

static const cli_option key_settings[] = {
    {"tenant", 't', "NAME", "Whose key it is", "@tenants"},
    PURPOSE,
    {"scopes", 0, "A,B", "What it may do (inference)",
     "inference adapters.read adapters.write admin.read admin"},
    EXPIRES,
    {"requests-per-minute", 0, "N", "Limit of this key alone", NULL},
    {"tokens-per-minute", 0, "N", "Limit of this key alone", NULL},
    {"max-concurrent", 0, "N", "Limit of this key alone", NULL},
    NETWORKS,
    {"out", 0, "FILE", "Write the key into this new file (mode 600) instead of showing it", "FILE"},
    END,
};

static const cli_option key_changes[] = {
    PURPOSE,
    EXPIRES,
    {"requests-per-minute", 0, "N", "Limit of this key alone; none lifts it", NULL},
    {"tokens-per-minute", 0, "N", "Limit of this key alone; none lifts it", NULL},
    {"max-concurrent", 0, "N", "Limit of this key alone; none lifts it", NULL},
    NETWORKS,
    END,
};

static const cli_option rotate_settings[] = {
    {"grace", 0, "TIME", "How long the old secret still works (1d)", NULL},
    {"out", 0, "FILE", "Write the key into this new file (mode 600) instead of showing it", "FILE"},
    END,
};

static const cli_option usage_settings[] = {
    {"start", 0, "TIME", "From this time on: 2026-12-31, -7d, seconds since 1970 (-1d)", NULL},
    {"end", 0, "TIME", "Up to this time (now)", NULL},
    {"bucket", 0, "WIDTH", "1m, 1h or 1d", "1m 1h 1d"},
    {"by", 0, "A,B", "Sums for each of model, adapter, key, class, tenant",
     "model adapter key class tenant"},
    {"model", 0, "NAME", "Only this model's", NULL},
    {"tenant", 't', "NAME", "Of this tenant, with the operator's key", "@tenants"},
    {"all", 'a', NULL, "Of all tenants, with the operator's key", NULL},
    END,
};

static const cli_option request_settings[] = {
    {"tenant", 't', "NAME", "Only this tenant's", "@tenants"},
    {"state", 0, "STATE", "Only those: waiting, prefill, decode or ended",
     "waiting prefill decode ended"},
    {"ended", 0, NULL, "Ended requests, the latest first", NULL},
    {"slow", 0, "TIME", "Ended requests that took at least this long (10s), the slowest first",
     NULL},
    END,
};

static const cli_option history_settings[] = {
    {"by", 0, "WHAT", "class, tenant or adapter (class)", "class tenant adapter"},
    {"start", 0, "TIME", "From this time on: 2026-12-31, -7d, seconds since 1970 (-1h)", NULL},
    {"end", 0, "TIME", "Up to this time (now)", NULL},
    {"step", 0, "WIDTH", "10s or 10m; 10s are kept for an hour, 10m for 30 days", "10s 10m"},
    END,
};

static const cli_option event_settings[] = {
    {"follow", 'f', NULL, "Print new ones as they come, until Ctrl-C", NULL},
    {"level", 0, "LEVEL", "Only these: audit, info, warning or error", "audit info warning error"},
    END,
};

static const cli_option audit_settings[] = {
    {"follow", 'f', NULL, "Print new ones as they come, until Ctrl-C", NULL},
    {"before", 0, "ID", "Those before this one (-o wide shows ids)", NULL},
    END,
};

static const cli_option config_settings[] = {
    {"changed", 0, NULL, "Only what differs from the default", NULL},
    END,
};

static const cli_option list_settings[] = {
    {"all", 'a', NULL, "Of all tenants, with the operator's key", NULL},
    END,
};

static const cli_option push_settings[] = {
    {"name", 'n', "NAME", "Name of the adapter (the folder's)", NULL},
    {"description", 0, "TEXT", "A line about it", NULL},
    {"no-activate", 0, NULL, "Publish the version without moving the alias 'default'", NULL},
    {"new", 0, NULL, "Only if there is no adapter of this name yet", NULL},
    {"sha256", 0, "HEX", "For a URL: the digest of adapter_model.safetensors, or of the tar", NULL},
    {"credentials", 0, "FILE", "For a URL: a JSON object, as in the API", NULL},
    END,
};

static const cli_option rollback_settings[] = {
    {"alias", 0, "NAME", "Alias to move back (default)", NULL},
    END,
};

static const cli_option alias_settings[] = {
    {"delete", 0, NULL, "Remove the alias", NULL},
    END,
};

static const cli_option warm_settings[] = {
    {"wait", 0, "TIME", "Wait until it is in memory, at most this long", NULL},
    END,
};

static const cli_option register_settings[] = {
    {"tenant", 't', "NAME", "Whose adapters they are", "@tenants"},
    END,
};

static const cli_option delete_settings[] = {
    {"drain", 0, NULL, "Let the requests that use it finish first", NULL},
    END,
};

static const cli_option batch_settings[] = {
    {"endpoint", 0, "URL", "The API of all lines (the url of the first)",
     "/v1/chat/completions /v1/completions /v1/responses /v1/embeddings"},
    {"follow", 0, NULL, "Wait until it has ended; exit with 1 if it is not completed", NULL},
    END,
};

static const cli_option result_settings[] = {
    {"errors", 0, NULL, "The lines that failed instead", NULL},
    {"out", 0, "FILE", "Write them into this new file instead of standard output", "FILE"},
    END,
};

static const cli_option chat_settings[] = {
    {"system", 's', "TEXT", "Instruction before the talk", NULL},
    {"max-tokens", 'm', "N", "Longest answer", NULL},
    {"temperature", 'T', "NUMBER", "0 chooses the most likely token each time", NULL},
    {"top-p", 0, "NUMBER", "Sample from the most likely tokens with this total probability", NULL},
    {"seed", 0, "N", "The same seed gives the same answer", NULL},
    {"stop", 0, "TEXT", "End before this text; may be repeated", NULL},
    {"class", 0, "CLASS", "Class of service", "@classes"},
    {"no-stream", 0, NULL, "Print the answer when it is complete", NULL},
    END,
};

static const cli_option context_settings[] = {
    {"metrics-url", 0, "URL", "Where /metrics and /healthz are", NULL},
    {"cert", 0, "FILE", "Client certificate (PEM)", "FILE"},
    {"cert-key", 0, "FILE", "Its private key", "FILE"},
    {"key", 0, NULL, "Read the tenant's key from standard input", NULL},
    {"admin-key", 0, NULL, "Read the operator's key from standard input", NULL},
    {"use", 0, NULL, "Make it the current one", NULL},
    END,
};

/* ------------------------------------------------------------------------ commands -- */

static const cli_command commands[] = {
    {.name = "chat",
     .heading = "For tenants",
     .args = "MODEL [PROMPT...]",
     .least = 1,
     .most = -1,
     .help = "Talk to a model; without a prompt: with history",
     .options = chat_settings,
     .run = ctl_chat,
     .words = "@models",
     .examples = "loractl chat support\n"
                 "echo 'Say this in Spanish: five' | loractl chat spanish\n"
                 "loractl chat base --temperature 0 'What is 7 plus 5?'\n"},
    {.name = "complete",
     .args = "MODEL [PROMPT...]",
     .least = 1,
     .most = -1,
     .help = "Continue a text (- or nothing: standard input)",
     .options = chat_settings,
     .run = ctl_complete,
     .words = "@models",
     .examples = "loractl complete base 'Once upon a time' --max-tokens 50\n"
                 "loractl complete base - < prompt.txt\n"},
    {.name = "models",
     .args = "",
     .least = 0,
     .most = 0,
     .help = "List the models that the key can use",
     .run = ctl_models,
     .shows = true,
     .examples = "loractl models\n"
                 "loractl models --fields id,max_model_len\n"},
    {.name = "whoami",
     .args = "",
     .least = 0,
     .most = 0,
     .help = "Show the key, its limits, and what is left of each",
     .run = ctl_whoami,
     .shows = true,
     .examples = "loractl whoami\n"
                 "loractl whoami --fields tenant,scopes\n"},
    {.name = "batch create",
     .args = "FILE.jsonl",
     .least = 1,
     .most = 1,
     .help = "Upload a file of requests, which run when the server has capacity to spare",
     .options = batch_settings,
     .run = ctl_batch_create,
     .words = "FILE",
     .examples = "loractl batch create requests.jsonl -o name\n"
                 "loractl batch create requests.jsonl --follow\n"},
    {.name = "batch list",
     .args = "",
     .least = 0,
     .most = 0,
     .help = "List batches, the latest first",
     .run = ctl_batch_list,
     .shows = true,
     .examples = "loractl batch list --watch\n"},
    {.name = "batch show",
     .args = "BATCH",
     .least = 1,
     .most = 1,
     .help = "Show how far a batch is",
     .run = ctl_batch_show,
     .shows = true,
     .examples = "loractl batch show batch_6a1f --watch\n"},
    {.name = "batch wait",
     .args = "BATCH",
     .least = 1,
     .most = 1,
     .help = "Wait until it has ended; exit with 1 if it is not completed",
     .run = ctl_batch_wait,
     .examples = "loractl batch wait batch_6a1f && loractl batch results batch_6a1f\n"},
    {.name = "batch results",
     .args = "BATCH",
     .least = 1,
     .most = 1,
     .help = "Fetch the answers of a batch that has ended",
     .options = result_settings,
     .run = ctl_batch_results,
     .examples = "loractl batch results batch_6a1f --out answers.jsonl\n"
                 "loractl batch results batch_6a1f --errors\n"},
    {.name = "batch cancel",
     .args = "BATCH",
     .least = 1,
     .most = 1,
     .help = "Cancel a batch: its lines that have not started do not run",
     .run = ctl_batch_cancel,
     .examples = "loractl batch cancel batch_6a1f\n"},
    {.name = "adapter list",
     .args = "",
     .least = 0,
     .most = 0,
     .help = "List adapters",
     .options = list_settings,
     .run = ctl_adapter_list,
     .shows = true,
     .examples = "loractl adapter list\n"
                 "loractl adapter list --watch\n"
                 "loractl adapter list --json --fields name,residency\n"},
    {.name = "adapter show",
     .args = "NAME[@VERSION]",
     .least = 1,
     .most = 1,
     .help = "Show an adapter or one version of it",
     .run = ctl_adapter_show,
     .words = "@adapters",
     .shows = true,
     .examples = "loractl adapter show support\n"
                 "loractl adapter show support@2 -o wide\n"
                 "loractl adapter show support --fields residency -o name\n"},
    {.name = "adapter push",
     .args = "DIR|FILE.gguf|URL",
     .least = 1,
     .most = 1,
     .help = "Upload the folder that PEFT saved (or a GGUF) and publish it; continues an "
             "interrupted upload. A URL (https://, hf://, s3://) is fetched by the server",
     .options = push_settings,
     .run = ctl_adapter_push,
     .words = "DIR",
     .examples = "loractl adapter push ./my-adapter --name support\n"
                 "loractl adapter push support.gguf --no-activate\n"
                 "loractl adapter push hf://owner/repository@main --name support\n"},
    {.name = "adapter versions",
     .args = "NAME",
     .least = 1,
     .most = 1,
     .help = "List the versions of an adapter",
     .run = ctl_adapter_versions,
     .words = "@adapters",
     .shows = true,
     .examples = "loractl adapter versions support\n"},
    {.name = "adapter activate",
     .args = "NAME VERSION",
     .least = 2,
     .most = 2,
     .help = "Make this version the one that the bare name selects",
     .run = ctl_adapter_activate,
     .words = "@adapters",
     .examples = "loractl adapter activate support 2\n"},
    {.name = "adapter rollback",
     .args = "NAME",
     .least = 1,
     .most = 1,
     .help = "Go back to the version before",
     .options = rollback_settings,
     .run = ctl_adapter_rollback,
     .words = "@adapters",
     .examples = "loractl adapter rollback support\n"
                 "loractl adapter rollback support --alias canary\n"},
    {.name = "adapter alias",
     .args = "NAME ALIAS [VERSION]",
     .least = 2,
     .most = 3,
     .help = "Let NAME:ALIAS mean this version",
     .options = alias_settings,
     .run = ctl_adapter_alias,
     .words = "@adapters",
     .examples = "loractl adapter alias support canary 3\n"
                 "loractl adapter alias support canary --delete\n"},
    {.name = "adapter pin",
     .args = "NAME",
     .least = 1,
     .most = 1,
     .help = "Keep it in memory",
     .run = ctl_adapter_pin,
     .words = "@adapters",
     .examples = "loractl adapter pin support\n"},
    {.name = "adapter unpin",
     .args = "NAME",
     .least = 1,
     .most = 1,
     .help = "Allow its eviction when other adapters need the memory",
     .run = ctl_adapter_unpin,
     .words = "@adapters",
     .examples = "loractl adapter unpin support\n"},
    {.name = "adapter warm",
     .args = "NAME",
     .least = 1,
     .most = 1,
     .help = "Load it before the first request does",
     .options = warm_settings,
     .run = ctl_adapter_warm,
     .words = "@adapters",
     .examples = "loractl adapter warm support --wait 30s\n"},
    {.name = "adapter share",
     .args = "NAME none|all|TENANT...",
     .least = 2,
     .most = -1,
     .help = "Select the tenants that can also use owner/NAME",
     .run = ctl_adapter_share,
     .words = "@adapters",
     .examples = "loractl adapter share support acme globex\n"
                 "loractl adapter share support none\n"},
    {.name = "adapter events",
     .args = "NAME",
     .least = 1,
     .most = 1,
     .help = "List who changed what",
     .run = ctl_adapter_events,
     .words = "@adapters",
     .shows = true,
     .examples = "loractl adapter events support\n"},
    {.name = "adapter register",
     .args = "PATH",
     .least = 1,
     .most = 1,
     .help = "Serve a tree of adapter folders from its place on the server, without copies",
     .options = register_settings,
     .run = ctl_adapter_register,
     .examples = "loractl adapter register /srv/adapters --tenant acme\n"},
    {.name = "adapter delete",
     .args = "NAME[@VERSION]...",
     .least = 1,
     .most = -1,
     .help = "Delete adapters or versions",
     .options = delete_settings,
     .run = ctl_adapter_delete,
     .words = "@adapters",
     .examples = "loractl adapter delete support@1\n"
                 "loractl adapter delete support --drain --yes\n"},
    {.name = "usage",
     .args = "",
     .least = 0,
     .most = 0,
     .help = "Show requests and tokens by time",
     .options = usage_settings,
     .run = ctl_usage_show,
     .shows = true,
     .examples = "loractl usage --by model --start -7d --bucket 1d\n"
                 "loractl usage --all --by tenant -o csv\n"},
    {.name = "tenant list",
     .heading = "For operators",
     .args = "",
     .least = 0,
     .most = 0,
     .help = "List tenants",
     .run = ctl_tenant_list,
     .shows = true,
     .examples = "loractl tenant list -o wide\n"},
    {.name = "tenant create",
     .args = "NAME",
     .least = 1,
     .most = 1,
     .help = "Make a tenant",
     .options = tenant_new,
     .run = ctl_tenant_create,
     .examples = "loractl tenant create acme --out acme.key\n"
                 "loractl tenant create acme --weight 2 --limit tokens_per_day=2M\n"},
    {.name = "tenant show",
     .args = "NAME",
     .least = 1,
     .most = 1,
     .help = "Show a tenant",
     .run = ctl_tenant_show,
     .words = "@tenants",
     .shows = true,
     .examples = "loractl tenant show acme\n"},
    {.name = "tenant set",
     .args = "NAME",
     .least = 1,
     .most = 1,
     .help = "Change a tenant's settings",
     .options = tenant_settings,
     .run = ctl_tenant_set,
     .words = "@tenants",
     .examples = "loractl tenant set acme --classes standard,batch --target standard=300ms,40ms\n"},
    {.name = "tenant suspend",
     .args = "NAME",
     .least = 1,
     .most = 1,
     .help = "Refuse a tenant's requests until it is resumed",
     .run = ctl_tenant_suspend,
     .words = "@tenants",
     .examples = "loractl tenant suspend acme --yes\n"},
    {.name = "tenant resume",
     .args = "NAME",
     .least = 1,
     .most = 1,
     .help = "Serve a suspended tenant again",
     .run = ctl_tenant_resume,
     .words = "@tenants",
     .examples = "loractl tenant resume acme\n"},
    {.name = "tenant delete",
     .args = "NAME",
     .least = 1,
     .most = 1,
     .help = "Delete a tenant; its usage records stay",
     .run = ctl_tenant_delete,
     .words = "@tenants",
     .examples = "loractl tenant delete acme --yes\n"},
    {.name = "key list",
     .args = "",
     .least = 0,
     .most = 0,
     .help = "List keys",
     .options = of_tenant,
     .run = ctl_key_list,
     .shows = true,
     .examples = "loractl key list --tenant acme\n"},
    {.name = "key create",
     .args = "",
     .least = 0,
     .most = 0,
     .help = "Create a key; it is shown once",
     .options = key_settings,
     .run = ctl_key_create,
     .examples =
         "loractl key create --tenant acme --scopes inference,adapters.write --out acme.key\n"},
    {.name = "key set",
     .args = "ID",
     .least = 1,
     .most = 1,
     .help = "Change a key's settings",
     .options = key_changes,
     .run = ctl_key_set,
     .words = "@keys",
     .examples = "loractl key set 7 --expires 30d --networks 10.0.0.0/8\n"},
    {.name = "key rotate",
     .args = "ID",
     .least = 1,
     .most = 1,
     .help = "Give a key a new secret",
     .options = rotate_settings,
     .run = ctl_key_rotate,
     .words = "@keys",
     .examples = "loractl key rotate 7 --grace 7d --out acme.key\n"},
    {.name = "key revoke",
     .args = "ID...",
     .least = 1,
     .most = -1,
     .help = "Refuse keys from now on",
     .run = ctl_key_revoke,
     .words = "@keys",
     .examples = "loractl key revoke 7 8 --yes\n"},
    {.name = "limits show",
     .args = "[TENANT[/ADAPTER]]",
     .least = 0,
     .most = 1,
     .help = "Show limits and their use",
     .run = ctl_limits_show,
     .words = "@tenants",
     .shows = true,
     .examples = "loractl limits show\n"
                 "loractl limits show acme\n"
                 "loractl limits show acme/support\n"},
    {.name = "limits set",
     .args = "TENANT[/ADAPTER] NAME=NUMBER...",
     .least = 2,
     .most = -1,
     .help =
         "Set limits, budgets (cost_per_day in micros) and adapters' surcharges; none: no limit",
     .run = ctl_limits_set,
     .words = "@tenants",
     .more_words = "requests_per_minute= tokens_per_minute= max_concurrent= max_queued= "
                   "tokens_per_day= tokens_per_month= cost_per_day= cost_per_month= "
                   "max_adapters= max_adapter_bytes= surcharge_prompt= surcharge_cached= "
                   "surcharge_output=",
     .examples = "loractl limits set acme tokens_per_day=2M max_concurrent=16\n"
                 "loractl limits set acme cost_per_month=250M\n"
                 "loractl limits set acme/support requests_per_minute=none\n"
                 "loractl limits set acme/support surcharge_output=500k\n"},
    {.name = "requests list",
     .args = "",
     .least = 0,
     .most = 0,
     .help = "List running and waiting requests, or ended ones",
     .options = request_settings,
     .run = ctl_requests_list,
     .shows = true,
     .examples = "loractl requests list --watch=1s\n"
                 "loractl requests list --slow 10s\n"
                 "loractl requests list --state waiting -o name | xargs -r loractl requests cancel "
                 "--yes\n"},
    {.name = "requests cancel",
     .args = "ID...",
     .least = 1,
     .most = -1,
     .help = "End running or waiting requests",
     .run = ctl_requests_cancel,
     .words = "@requests",
     .examples = "loractl requests cancel 4711\n"},
    {.name = "ping",
     .args = "",
     .least = 0,
     .most = 0,
     .help = "Is the server ready? (needs metrics_url, no key)",
     .run = ctl_ping,
     .examples = "loractl ping\n"},
    {.name = "history",
     .args = "[NAME]",
     .least = 0,
     .most = 1,
     .help = "Show the history of classes, tenants or adapters, one row per span",
     .options = history_settings,
     .run = ctl_history,
     .words = "@classes",
     .shows = true,
     .examples = "loractl history interactive\n"
                 "loractl history --by tenant --start -1d --step 10m\n"},
    {.name = "why",
     .args = "[REQUEST|CLASS|TENANT]",
     .least = 0,
     .most = 1,
     .help = "Name what is wrong now, or why something was slow in the last hour",
     .run = ctl_why,
     .words = "@classes",
     .shows = true,
     .examples = "loractl why\n"
                 "loractl why interactive\n"
                 "loractl why acme\n"
                 "loractl why req_5f2c\n"},
    {.name = "stats",
     .args = "",
     .least = 0,
     .most = 0,
     .help = "Show the server's counters",
     .run = ctl_stats,
     .shows = true,
     .examples = "loractl stats\n"
                 "loractl stats --fields server.uptime_s -o name\n"},
    {.name = "classes",
     .args = "",
     .least = 0,
     .most = 0,
     .help = "List the classes of service",
     .run = ctl_classes,
     .shows = true,
     .examples = "loractl classes\n"
                 "loractl classes --watch=10s\n"
                 "loractl classes -o wide\n"},
    {.name = "audit",
     .args = "",
     .least = 0,
     .most = 0,
     .help = "List the changes that operators and tenants made",
     .options = audit_settings,
     .run = ctl_audit,
     .shows = true,
     .examples = "loractl audit\n"
                 "loractl audit --follow --json\n"
                 "loractl audit --fields time,action,object -o csv\n"},
    {.name = "events",
     .args = "",
     .least = 0,
     .most = 0,
     .help = "List the server's events, oldest first",
     .options = event_settings,
     .run = ctl_events,
     .shows = true,
     .examples = "loractl events\n"
                 "loractl events --follow --level warning\n"},
    {.name = "drain",
     .args = "",
     .least = 0,
     .most = 0,
     .help = "Refuse new requests, finish the running ones, stop",
     .run = ctl_drain,
     .examples = "loractl drain --yes\n"},
    {.name = "node list",
     .args = "",
     .least = 0,
     .most = 0,
     .help = "List the servers of the fleet",
     .run = ctl_node_list,
     .shows = true,
     .examples = "loractl node list --watch=1s\n"},
    {.name = "node drain",
     .args = "NODE",
     .least = 1,
     .most = 1,
     .help = "Make a server of the fleet finish its running requests and stop",
     .run = ctl_node_drain,
     .examples = "loractl node drain 2 --yes\n"},
    {.name = "node fence",
     .args = "NODE",
     .least = 1,
     .most = 1,
     .help = "Release the limits that a server held that is gone",
     .run = ctl_node_fence,
     .examples = "loractl node fence 2 --yes\n"},
    {.name = "config show",
     .args = "[BEGINNING...]",
     .least = 0,
     .most = CLI_ARGS_MAX,
     .help = "Show the options in force, their origin, and which can change at run time",
     .options = config_settings,
     .run = ctl_config_show,
     .words = "@options",
     .shows = true,
     .examples = "loractl config show --changed\n"
                 "loractl config show class. log.\n"},
    {.name = "config diff",
     .args = "",
     .least = 0,
     .most = 0,
     .help = "Show what a reload would change, and what needs a restart",
     .run = ctl_config_diff,
     .shows = true,
     .examples = "loractl config diff\n"},
    {.name = "config set",
     .args = "OPTION=VALUE...",
     .least = 1,
     .most = CLI_ARGS_MAX,
     .help = "Set options of the running server, all or none, until it stops",
     .run = ctl_config_set,
     .words = "@live",
     .examples = "loractl config set class.batch.weight=0.5 class.batch.overload=reject\n"
                 "loractl config set log.level=debug\n"},
    {.name = "config reset",
     .args = "OPTION...",
     .least = 1,
     .most = CLI_ARGS_MAX,
     .help = "Reset options to the values of the configuration",
     .run = ctl_config_reset,
     .words = "@live",
     .examples = "loractl config reset log.level\n"},
    {.name = "reload",
     .args = "",
     .least = 0,
     .most = 0,
     .help = "Read certificate and configuration again, and apply the live options",
     .run = ctl_reload,
     .examples = "loractl reload\n"},
    {.name = "backup",
     .args = "PATH",
     .least = 1,
     .most = 1,
     .help = "Write a copy of the database to a path on the server",
     .run = ctl_backup,
     .examples = "loractl backup /srv/backup/lorad.db\n"},
    {.name = "context list",
     .heading = "On this machine",
     .args = "",
     .least = 0,
     .most = 0,
     .help = "List the contexts",
     .run = ctl_context_list,
     .shows = true,
     .examples = "loractl context list\n"},
    {.name = "context show",
     .args = "[NAME]",
     .least = 0,
     .most = 1,
     .help = "Show a context",
     .run = ctl_context_show,
     .words = "@contexts",
     .shows = true,
     .examples = "loractl context show home\n"},
    {.name = "context use",
     .args = "NAME",
     .least = 1,
     .most = 1,
     .help = "Make a context the current one",
     .run = ctl_context_use,
     .words = "@contexts",
     .examples = "loractl context use home\n"},
    {.name = "context set",
     .args = "NAME",
     .least = 1,
     .most = 1,
     .help = "Create or change a context; it stores --url, --ca, --key-file and the others",
     .options = context_settings,
     .run = ctl_context_set,
     .words = "@contexts",
     .examples = "loractl context set home --url https://localhost:8443 --ca "
                 "/srv/lorad/tls/cert.pem --key\n"},
    {.name = "context delete",
     .args = "NAME",
     .least = 1,
     .most = 1,
     .help = "Forget a context",
     .run = ctl_context_delete,
     .words = "@contexts",
     .examples = "loractl context delete old\n"},
    {.name = "completion",
     .args = "SHELL|names [KIND]",
     .least = 1,
     .most = 2,
     .help =
         "Print a completion script (bash, zsh, fish), or the names of a kind that the server has",
     .run = ctl_completion,
     .words = "bash zsh fish names",
     .examples = "loractl completion bash > ~/.local/share/bash-completion/completions/loractl\n"
                 "loractl completion names adapters\n"},
    {.name = "version",
     .args = "",
     .least = 0,
     .most = 0,
     .help = "Print the version",
     .run = ctl_version,
     .examples = "loractl version\n"},
    {.name = NULL},
};

static const char description[] =
    "loractl speaks HTTPS to a lorad: for tenants (adapters, chat, usage) and for operators "
    "(tenants, "
    "keys, limits, requests, the server itself).\n\n"
    "Which server, and with which key, stands in a context. The file of contexts is "
    "$LORAD_CLIENT_CONFIG, else $XDG_CONFIG_HOME/lorad/contexts.conf, else "
    "~/.config/lorad/contexts.conf; it holds keys and must not be readable by others. Variables of "
    "the "
    "environment come before the file, options before both. With none of them, localhost and "
    "lorad's "
    "default ports are asked.\n\n"
    "Names and texts that come from a server are shown without control characters.";

static const char after[] =
    ".SH EXIT STATUS\n"
    ".TP\n.B 0\nDone.\n.TP\n.B 1\nThe server refused it, or something else went wrong.\n"
    ".TP\n.B 2\nWrong usage; nothing was asked.\n.TP\n.B 3\nThe server cannot be reached, or is "
    "not "
    "trusted.\n.TP\n.B 130\nInterrupted.\n"
    ".SH ENVIRONMENT\n"
    ".TP\n.B LORAD_CONTEXT\nThe context to use.\n"
    ".TP\n.BR LORAD_URL \", \" LORAD_ADMIN_URL \", \" LORAD_METRICS_URL \", \" LORAD_CA \", \" "
    "LORAD_CERT "
    "\", \" LORAD_CERT_KEY\nReplace the context's settings of the same names.\n"
    ".TP\n.BR LORAD_KEY \", \" LORAD_KEY_FILE \", \" LORAD_ADMIN_KEY \", \" "
    "LORAD_ADMIN_KEY_FILE\nKeys, or "
    "files whose first line is one.\n"
    ".TP\n.B LORAD_CLIENT_CONFIG\nThe file of contexts.\n"
    ".SH EXAMPLES\n.nf\n"
    "loractl context set home \\-\\-url https://localhost:8443 \\-\\-ca /srv/lorad/tls/cert.pem "
    "\\-\\-key\n"
    "loractl adapter push ./my\\-adapter \\-\\-name support\n"
    "loractl chat support\n"
    "echo 'Say this in Spanish: five' | loractl chat spanish\n"
    "loractl key create \\-\\-tenant acme \\-\\-scopes inference,adapters.write \\-\\-out "
    "acme.key\n"
    "loractl limits set acme tokens_per_day=2M max_concurrent=16\n"
    "loractl requests list \\-\\-state waiting \\-o name | xargs \\-r loractl requests cancel "
    "\\-\\-yes\n"
    ".fi\n"
    ".SH SEE ALSO\n.BR lorad (1),\n.BR lorad.conf (5)\n";

const cli_program loractl_program = {
    .name = "loractl",
    .tagline = "command line for lorad's tenants and operators",
    .commands = commands,
    .options = everywhere,
    .showing = showing,
    .description = description,
    .after = after,
};
