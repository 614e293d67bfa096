"""reference_words.py -- what make_reference.py says beside the tables: introductions, which limits and constants are shown."""

CONFIGURATION = """lorad reads `/etc/lorad/lorad.conf`, or the file after `-c`. A section is a line `[name]`, an option a line `key = value`, a comment begins
with `#`. Sizes look like `512MiB` or `4GiB`, times like `500ms`, `30s` or `5min`.

- `LORAD_SECTION_KEY` in the environment overrides the file. `--set section.key=value` overrides both.
- `lorad check` validates a file, and suggests a name for a misspelt one.
- Switches for developers and diagnosis are in a section `[debug]`, which the default file does not have: `man lorad.conf`.
- Options marked "Live" can be changed while the server runs: in the file, then SIGHUP or `loractl reload`; or by name until the next restart
  (`loractl config set`, `PATCH /admin/v1/config`). All other options need a restart.
- The server applies a change completely or not at all. The response, the log and the audit log name the options that were applied and those that need
  a restart. Running requests keep the options with which they began.
- `lorad check --diff` on the host, and `loractl config diff` from elsewhere, show what a reload would change.
- Targets, weights, overload rules and tiers of a class are live. Adding, removing or reordering classes needs a restart.
"""

CLI = """The man pages `lorad(1)`, `loractl(1)` and `loratop(1)` have the same text; `--help` prints commands and options. `lorad.conf(5)` is in [Configuration](configuration.md).
`loractl completion bash|zsh|fish` prints a completion script.
"""

METRICS = """`GET /metrics` on the metrics plane answers in Prometheus' text format. It needs no key.

- The label `class` is the name of an SLO class: {classes} without `[class.NAME]` sections of your own, at most {most_classes}.
- The first {max_tenants} tenants (`metrics.max_tenants`) have series of their own. All others share `tenant="_other"`.
- The {max_adapters} adapters that made the most tokens (`metrics.max_adapters`) have the `lorad_adapter_...` series with the label `adapter`. Other adapters are
  counted in the totals only, so ten thousand of them cost nothing here.
- Histograms have fixed bounds (`engine/watch/histogram.h`).
"""
METRICS_OWN = "How to read them: [Watch](../howto/watch.md).\n"
METRICS_VLLM = "Exported while `metrics.vllm_names` is `yes`. A metric that vLLM has renamed has both names.\n"

LIMITS = """Limits that are fixed in the code. Operators set others in [Configuration](configuration.md) and with `loractl limits`.
"""

API = """The server has three planes, each with its own addresses: inference (`server.listen`), admin (`admin.listen`) and metrics (`metrics.listen`). All use HTTPS.

- Send the key as `Authorization: Bearer lk_...`; `api-key` and `x-api-key` work as well.
- Paths under `/v1` also work without `/v1`; `/tokenize` and `/detokenize` also work with it.
- HEAD works wherever GET does. OPTIONS returns `Allow`.
- Every answer has an `x-request-id`.
- [openapi.json](../../conf/openapi.json) describes the inference and the admin plane. The end-to-end tests validate every answer against it.

Differences from OpenAI and vLLM: [Compatibility](compatibility.md). Errors: [Errors](errors.md).
"""
API_METRICS = "These need no key, so keep the listener on a private address. `/healthz` and `/readyz` answer 200 or 503.\n"
API_FIELDS = "`null` is the same as leaving a field out.\n"
API_BODIES = "Members of the JSON bodies of all other calls.\n"
API_FREE = {"/v1/adapters/{name}/versions": "A folder as a tar (`application/x-tar`), or one of two objects: `files`, `description`, `activate` begin a "
                                            "resumable upload; `source`, `sha256`, `credentials`, `description`, `activate` let the server\nfetch it "
                                            "([Adapters](adapters.md#upload)).\n",
            "/admin/v1/config": "Each member is an option, `section.key`, with a string (as in the file), a number or a boolean; `null` resets it to the configured value.\n"}
API_ERRORS = """Errors have OpenAI's shape: `{"error": {"message", "type", "param", "code"}}`. [Errors](errors.md) lists every code with its cause,
what to do, and whether to send the request again.
"""

# Fields that conf/openapi.json does not describe.
FIELDS = {
    "guided_json": "as `structured_outputs.json`; vLLM's older name",
    "guided_regex": "as `structured_outputs.regex`",
    "guided_choice": "as `structured_outputs.choice`",
    "guided_grammar": "as `structured_outputs.grammar`",
    "grammar": "the same; llama.cpp's name",
    "return_token_strs": "true or false",
    "thinking_token_budget": "as `thinking_budget`; vLLM's name",
}

# (files or folders, constant, unit, what it bounds)
LIMIT_TABLES = [
    ("HTTP", [
        ("gateway/http", "HEAD_BYTES_MAX", "bytes", "Request line and fields together; 431 beyond"),
        ("gateway/http", "HEAD_TARGET_MAX", "bytes", "The request's target; 414 beyond"),
        ("gateway/http", "HEAD_FIELDS_MAX", "", "Fields of a head; 431 beyond"),
        ("gateway/http", "CHUNKS_EXTENSION_MAX", "bytes", "All chunk extensions of a chunked body"),
        ("gateway/http", "CHUNKS_TRAILER_MAX", "bytes", "The trailer of a chunked body"),
        ("gateway/net", "LOBBY_SHAKE_US", "us", "TLS handshake, from the first packet to its end"),
        ("gateway/net", "LOBBY_HEAD_US", "us", "The head of a request; 408 beyond"),
        ("gateway/net", "LOBBY_KEPT_US", "us", "Idle connection between two requests; then it is closed"),
        ("gateway/net", "LOBBY_DRAIN_US", "us", "How long the rest of a refused body is read, so that the client can read the answer"),
        ("gateway/net", "LOBBY_UNSENT_BYTES", "bytes", "Bytes of an answer in the kernel while the client does not read"),
        ("gateway/net", "LOBBY_QUEUE_US", "us", "Wait for a thread while `server.max_streams` are busy; 503 beyond"),
        ("gateway/http", "LISTENER_SMALL_CONNECTIONS", "", "Connections of the admin plane, and of the metrics plane; beyond, the oldest idle "
                                                            "one is closed"),
        ("gateway/http", "SLOWEST_BYTES", "bytes", "Minimum rate per second at which a client must send a long body and read an "
                                                              "answer"),
        ("gateway/http", "EXCHANGE_ARENA_BYTES", "bytes", "Memory for parsing one request; `request_too_large` beyond"),
        ("gateway/http", "LISTENER_ADMIN_THREADS", "", "Threads of the admin plane"),
        ("gateway/http", "LISTENER_METRICS_THREADS", "", "Threads of the metrics plane"),
        ("gateway/http", "LISTENER_QUEUE", "", "Requests of one plane that wait for a thread; 503 beyond"),
    ]),
    ("Requests", [
        ("gateway/openai", "OPENAI_TEXT_MAX_TOKENS", "", "Default of `max_tokens` in `/v1/completions`"),
        ("gateway/openai", "OPENAI_PROMPT_MAX", "", "Prompts in one request"),
        ("gateway/openai", "OPENAI_INPUT_MAX", "", "Inputs of one request to `/v1/embeddings`, `/v1/rerank`, `/v1/score`, `/v1/classify`"),
        ("engine/sample", "POOLING_LABELS_MAX", "", "Classes of a classification head"),
        ("gateway/openai", "OPENAI_MESSAGE_MAX", "", "Messages of a conversation"),
        ("gateway/openai", "OPENAI_ADAPTERS_MAX", "", "Adapters of a stack (`adapters`)"),
        ("gateway/openai", "OPENAI_ADAPTER_SCALE_MAX", "", "Absolute value of `scale`"),
        ("gateway/openai", "OPENAI_STOP_MAX", "", "Strings in `stop`"),
        ("gateway/openai", "OPENAI_STOP_BYTES_MAX", "bytes", "One string in `stop`"),
        ("gateway/openai", "OPENAI_STOP_ID_MAX", "", "Ids in `stop_token_ids`"),
        ("gateway/openai", "OPENAI_BIAS_MAX", "", "Entries of `logit_bias`"),
        ("gateway/openai", "OPENAI_BAD_MAX", "", "Words in `bad_words`"),
        ("gateway/openai", "OPENAI_BAD_WORD_BYTES_MAX", "bytes", "One word in `bad_words`"),
        ("gateway/openai", "OPENAI_TOOLS_MAX", "", "Tools of a request"),
        ("gateway/openai", "OPENAI_DOCUMENTS_MAX", "", "Documents of a request"),
        ("gateway/openai", "OPENAI_KWARGS_MAX", "", "Members of `chat_template_kwargs`"),
        ("gateway/openai", "OPENAI_SALT_MAX", "bytes", "`cache_salt`"),
        ("gateway/openai", "TOOL_CALLS_MAX", "", "Tool calls in one answer"),
        ("engine/sample", "SAMPLE_TOP_MAX", "", "Alternatives for each token (`top_logprobs`, `logprobs`)"),
    ]),
    ("Structured output and templates", [
        ("engine/grammar", "GRAMMAR_TEXT_MAX", "bytes", "A schema, a regular expression, a grammar, or all choices together"),
        ("engine/grammar/schema/grammar_schema.h", "NODES_MAX", "", "Subschemas that need a rule of their own"),
        ("engine/grammar/schema/grammar_schema.h", "NEST_MAX", "", "Nesting of schemas"),
        ("engine/grammar", "OTHERS_MAX", "", "Named members beside `additionalProperties`"),
        ("engine/grammar", "GRAMMAR_DEPTH_MAX", "", "Nesting of an answer, in grammar rules"),
        ("engine/grammar", "GRAMMAR_STATE_MAX", "", "States of one compiled grammar"),
        ("engine/grammar", "REPEAT_MAX", "", "Repetitions of one part of a regular expression"),
        ("engine/chat", "JINJA_TEXT_MAX", "bytes", "A chat template"),
        ("engine/chat", "STEPS_MAX", "", "Steps to render a template once"),
        ("engine/chat", "DEPTH_MAX", "", "Nesting of calls while a template is rendered"),
    ]),
    ("Adapters", [
        ("engine", "LORA_RANK_MAX", "", "Rank of an adapter; sum of the ranks of a stack"),
        ("adapters/format", "FOLDER_FILES_MAX", "", "Files in an adapter's folder"),
        ("adapters/format", "FOLDER_CONFIG_MAX", "bytes", "`adapter_config.json`"),
        ("adapters/format", "WORDS_FILE_MAX", "bytes", "A tokenizer file in the folder"),
        ("adapters/format", "WORDS_CONTENT_MAX", "bytes", "Text of one token that an adapter adds"),
        ("adapters/store", "MANIFEST_MAX", "bytes", "The manifest of a resumable upload"),
        ("adapters/store", "REGISTRY_ALIAS_MAX", "", "Aliases of an adapter"),
        ("adapters/store", "REGISTRY_VERSION_LEAST", "bytes", "Least size that a version counts in the tenant's quota"),
        ("storage", "ADAPTER_DESCRIPTION_MAX", "bytes", "The description of an adapter"),
        ("gateway/rest", "SHARES_MAX", "", "Tenants that one adapter is shared with by name"),
        ("gateway/rest", "WARM_WAIT_MAX_S", "s", "`wait` of `POST .../warm`"),
    ]),
    ("Tenants, keys and usage", [
        ("storage", "TENANT_NAME_MAX", "bytes", "Name of a tenant or an adapter"),
        ("storage", "TENANT_LIST_MAX", "bytes", "A tenant's list of classes, or of models"),
        ("storage", "NETWORKS_MAX", "bytes", "A list of networks"),
        ("storage", "KEY_NAME_MAX", "bytes", "Name of a key"),
        ("storage", "KEY_SECRETS_MAX", "", "Secrets of one key that are valid at the same time during rotations"),
        ("gateway/rest", "GRACE_MAX_S", "s", "Longest `grace_seconds` of a rotation"),
        ("storage", "BUSY_MS", "ms", "How long a write waits for a locked database"),
        ("storage", "METER_SLOT_BYTES", "bytes", "One completion in the spool (`data.spool`)"),
        ("storage", "MOST_BYTES", "bytes", "Largest size of the reserve file, which is deleted when the disk is full"),
    ]),
    ("The engine", [
        ("engine/sched/sched.h", "SLO_CLASS_MAX", "", "SLO classes (`[class.NAME]` sections)"),
        ("engine/sched/promise.h", "PROMISE_TENANTS", "", "Tenants with a counter of their own for predictions; the least served is dropped first"),
        ("engine/sched/sched.c", "DEFAULT_AGEING_US", "us", "Ageing: a request that has been first in its queue for longer goes before all others"),
        ("engine/sched/sched.c", "DEFAULT_FAULTS_MAX", "", "Restarts of a failing device before the server gives up"),
        ("engine/cpu", "HEAD_DIM_MAX", "", "Size of an attention head on the CPU"),
        ("engine/model", "VOCAB_MAX", "", "Tokens in a vocabulary"),
    ]),
    ("Watching", [
        ("gateway/watch", "STATS_ROWS_MAX", "", "Rows in one answer of `/admin/v1/stats`"),
        ("gateway/watch", "STREAMS_MAX", "", "Streams of `/admin/v1/stats` at the same time"),
        ("gateway/watch", "EVENTS_MAX", "", "Events that are kept"),
        ("gateway/rest", "LIMIT_MAX", "", "Rows in one answer of `/admin/v1/requests`"),
    ]),
]

# The figures of tests/bench/sim_constants.py
SEEN = {
    "sim-honest": "share of the honest tenants' interactive requests that met both targets",
    "goodput": "requests a second that met both targets",
    "sim-batch": "the batch class's share of the service",
    "sim-late": "share of admitted requests that missed a target",
    "tpot99": "seconds per further token of interactive requests, p99",
    "sim-cold": "goodput with eight times as many adapters as fit",
    "cold-wait": "the longest wait for a slot there, in seconds",
    "sim-cold-late": "share of interactive requests that are late if loads take 60 ms",
    "tpot-honest": "share of the honest tenants' interactive requests that met both targets, if a stream's row costs 300 us",
    "tpot-standard": "the same of their standard requests",
    "tpot-goodput": "requests a second that met both targets there",
    "sim-wire": "seconds to the honest tenants' first interactive token, p99, on the demo model",
}

# (files or folders, constant, unit, why)
FAIR, POLICY, COST, LENGTHS, PROMISE, AHEAD, PACE = (
    "engine/sched/fair.c", "engine/sched/policy.c", "engine/sched/cost.c", "engine/sched/lengths.c", "engine/sched/promise.c", "engine/sched/ahead.c",
    "adapters/residency/pace.c")
TUNING_TABLES = [
    ("fair: who is next", [
        ("engine/sched/fair.h", "FAIR_OUTPUT_PRICE", "", "Price of an output token in prompt tokens (VTC)"),
        (FAIR, "QUANTUM_JOBS", "", "A tenant's round, in requests of mean cost: the most that one tenant can be ahead of another"),
        (FAIR, "CLASS_QUANTUM_JOBS", "", "A class's round: work of urgent classes before the lowest class gets its share"),
        (FAIR, "DEMANDS", "", "Adapters requested at once while others wait for memory; the scheduler decides the order"),
        (FAIR, "WINDOW", "", "How many requests of a queue may overtake a head whose adapter is not loaded"),
        (FAIR, "SCARCE_US", "us", "Memory counts as short when an adapter has waited this long"),
        (FAIR, "CYCLE_US", "us", "An adapter in use for longer can be closed to new requests"),
        (FAIR, "CLOSE_AFTER_US", "us", "An adapter that has waited longer closes others to new requests"),
        (FAIR, "REST_US", "us", "A closed adapter is not loaded again for this long"),
        (FAIR, "CLOSED_SHARE", "", "At most one in this many adapters in use is closed to new requests"),
        (FAIR, "patience", "", "Share of its target that a request waits for others with the same adapter, if memory is short"),
        ("engine/sched", "policy_hurry hurry", "", "A deadline is near in this last share of the target"),
        (FAIR, "least_memory_us", "us", "Shortest memory of a queue's share of the device"),
        (FAIR, "prior_jobs", "", "Weight of \"an equal share\" for a queue with few requests so far, in requests of mean cost"),
    ]),
    ("policy: what a step holds", [
        (POLICY, "gentle", "", "Share by which prompts lengthen the streams' step while no first token needs more"),
        (POLICY, "haste", "", "If deadlines need more, this many times what they need, because more requests will arrive"),
        (POLICY, "reserve", "", "Share of the target that should remain when the first token arrives"),
        (POLICY, "thrift", "", "Share of the time until a stream's next token that a step may take"),
        (POLICY, "GAP", "targets", "A stream's next token is due at the latest after this many targets, even if it is ahead"),
        (POLICY, "stride", "", "A slot is given only if the streams of its class then still have a row in one of this many steps"),
        (POLICY, "memory_us", "us", "Memory of the prompts' share of the time, which new streams must leave"),
        (POLICY, "headroom", "", "Capacity that a tenant with more than its share of the slots leaves free, over the square root of the streams"),
        (POLICY, "most_headroom", "", "The most of the capacity that it leaves free"),
        (POLICY, "LOOK_AHEAD", "", "Prompts whose deadlines decide the length of a step"),
        (POLICY, "LEAST_KEPT", "rows", "Least rows of a prompt in each step if streams meet their targets"),
        (POLICY, "LEAST_LOOSE", "rows", "The same if they miss them anyway"),
    ]),
    ("lengths: predicted length of answers", [
        (LENGTHS, "LEAST_KNOWN", "answers", "Until a class has this many answers, only max_tokens is used"),
        (LENGTHS, "remembered", "answers", "The weight of an answer falls to 1/e after this many"),
        (LENGTHS, "borrowed", "answers", "Answers of the wider sketch that a narrower one starts with"),
        (LENGTHS, "step", "", "How far the quantile moves with one answer"),
    ]),
    ("promise: admission", [
        (PROMISE, "margin", "", "Share of the target that the prediction may use up before the request is refused"),
        (PROMISE, "bulk", "", "If its queue is long, a request's target is divided by this many times its work, in requests of mean cost"),
        (PROMISE, "most_bulk", "", "The largest divisor"),
        (PROMISE, "QUEUE", "", "A queue is long from this many waiting requests on"),
        (PROMISE, "least_share", "", "Lower bound of a queue's share of the device"),
        (PROMISE, "blur_us", "us", "Smaller errors are not counted as errors of the prediction"),
    ]),
    ("cost: how long a step takes", [
        ("engine/sched/cost.h", "COST_LEARNING", "steps", "Until this many steps, the model is not used"),
        (COST, "steady", "", "Forgetting at each step: about 200 steps are remembered"),
        (COST, "astray", "", "The same while the model is wrong: about 20 steps"),
        (COST, "too_far", "", "Mean error of the latest steps from which the model counts as wrong"),
        (COST, "prior", "", "Weight of a term's earlier value while it does not occur"),
        (COST, "agree", "steps", "This many steps must err to the same side before all times are rescaled"),
        (COST, "surprise", "", "Largest effect of one step on the pace factor"),
        (COST, "most_pace", "", "Largest pace factor (a logarithm: twofold)"),
        (COST, "clip", "", "Residuals are clipped at this many spreads"),
    ]),
    ("ahead and pace: loads during steps", [
        ("engine/sched/ahead.h", "AHEAD_LEAST", "", "Least number of waiting requests whose adapters are fetched"),
        ("engine/sched/ahead.h", "AHEAD_UNKNOWN", "", "The same until slots and loads have been measured"),
        (AHEAD, "SPARE", "", "Loads may take this many times longer than usual"),
        (AHEAD, "GAP_MAX_US", "us", "A longer gap between two starts means few requests, not slow slots"),
        (PACE, "LEAST_OF_STEP", "", "Share of a step's time that copies to the device always get"),
        ("adapters/residency", "PACE_PATIENCE_US", "us", "If the engine has not reported for this long, copies are not limited"),
    ]),
]
