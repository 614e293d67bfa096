"""reference_words.py -- what make_reference.py says beside the tables: introductions, which limits and constants are shown."""

CONFIGURATION = """The file is `/etc/lorad/lorad.conf`, or what `-c` names. Sections stand in brackets, options are `key = value` lines, comments
begin with `#`. Sizes are written `512MiB` or `4GiB`, times `500ms`, `30s` or `5min`.

- `LORAD_SECTION_KEY` in the environment overrides the file, and `--set section.key=value` overrides both.
- `lorad check` says whether a file is valid, and suggests a name for a misspelt one.
- A running server takes what is live: from the file on SIGHUP (or `loractl reload`), or by name (`loractl config set`,
  `PATCH /admin/v1/config`) until it stops. All else wants a restart. Either way everything is taken or nothing, the answer, the
  log and the audit name what was taken and what was not, and requests that run keep the options with which they began.
- `lorad check --diff` says what the file would change in the server that runs; so does `loractl config diff` from afar.
- Classes are live in their targets, weights, overload rules and tiers. Other classes, or another order, want a restart.
"""

CLI = """The same text is in the man pages `lorad(1)`, `lorad.conf(5)`, `loractl(1)` and `loratop(1)`, and in `--help`.
`loractl completion bash|zsh|fish` prints a completion script.
"""

METRICS = """`GET /metrics` on the metrics plane gives Prometheus' text format. It asks for no key.

- A class is `interactive`, `standard` or `batch`.
- The first `metrics.max_tenants` tenants have series of their own, all others share `tenant="_other"`.
- Adapters have no series of their own, so ten thousand of them cost nothing here.
- Every histogram has fixed bounds (`engine/watch/histogram.h`).
"""
METRICS_OWN = "How to read them: [Watch](../howto/watch.md).\n"
METRICS_VLLM = "Exported while `metrics.vllm_names` is `yes`. A name that vLLM has renamed stands under both names.\n"

LIMITS = """What is fixed in the code. Limits that an operator sets are in [Configuration](configuration.md) and in `loractl limits`.
"""

API = """Three planes have a listener each: inference (`server.listen`), admin (`admin.listen`) and metrics (`metrics.listen`). All speak HTTPS.

- A key goes into `Authorization: Bearer lk_...`. `api-key` and `x-api-key` work as well.
- Paths under `/v1` also answer without it. `/tokenize` and `/detokenize` also answer under it.
- HEAD works where GET does, OPTIONS gives `Allow`.
- Every answer has an `x-request-id`.
- [openapi.json](../../conf/openapi.json) describes both planes to the last member. The end-to-end tests hold every answer to it.

What the fields mean where OpenAI and vLLM differ: [Compatibility](compatibility.md).
"""
API_METRICS = "These need no key, so keep the listener on a private address. Status 200 is good, 503 is not.\n"
API_FIELDS = "`null` is the same as leaving a field out.\n"
API_BODIES = "The members of other JSON bodies.\n"
API_FREE = {"/v1/adapters/{name}/versions": "A folder as a tar (`application/x-tar`), or one of two objects: `files`, `description`, `activate` begin a "
                                            "resumable upload; `source`, `sha256`, `credentials`, `description`, `activate` let the server\nfetch it "
                                            "([Adapters](adapters.md#upload)).\n",
            "/admin/v1/config": "Each member is an option, `section.key`, with a text as the file has it, a number or a boolean; `null`: as the configuration says.\n"}
API_ERRORS = """Errors have OpenAI's shape: `{"error": {"message", "type", "param", "code"}}`. These codes come from inside the server;
a refused field of a request has a code of its own, mostly `invalid_value`, `unsupported_parameter` or `unknown_parameter`.
"""

# Fields that conf/openapi.json does not describe.
FIELDS = {
    "guided_json": "as `structured_outputs.json`; vLLM's older name",
    "guided_regex": "as `structured_outputs.regex`",
    "guided_choice": "as `structured_outputs.choice`",
    "guided_grammar": "as `structured_outputs.grammar`",
    "grammar": "the same; llama.cpp's name",
    "return_token_strs": "true or false",
}

# (files or folders, constant, unit, what it bounds)
LIMIT_TABLES = [
    ("HTTP", [
        ("gateway/http", "HEAD_BYTES_MAX", "bytes", "Request line and fields together; 431 beyond"),
        ("gateway/http", "HEAD_TARGET_MAX", "bytes", "The request's target; 414 beyond"),
        ("gateway/http", "HEAD_FIELDS_MAX", "", "Fields of a head; 431 beyond"),
        ("gateway/http", "CHUNKS_EXTENSION_MAX", "bytes", "Extensions of all chunks of a body"),
        ("gateway/http", "CHUNKS_TRAILER_MAX", "bytes", "The trailer of a chunked body"),
        ("gateway/http", "HANDSHAKE_US", "us", "A TLS handshake, from its first byte to its last"),
        ("gateway/http", "SLOWEST_BYTES", "bytes", "The least of a long body that must come each second, and of an answer that "
                                                              "must be taken"),
        ("gateway/http", "EXCHANGE_ARENA_BYTES", "bytes", "Memory of one request; beyond it the request is refused"),
        ("gateway/http", "LISTENER_ADMIN_THREADS", "", "Workers of the admin plane"),
        ("gateway/http", "LISTENER_METRICS_THREADS", "", "Workers of the metrics plane"),
        ("gateway/http", "LISTENER_QUEUE", "", "Accepted connections of a plane that wait for a worker"),
    ]),
    ("Requests", [
        ("gateway/openai", "OPENAI_TEXT_MAX_TOKENS", "", "`max_tokens` of `/v1/completions` where it is not given"),
        ("gateway/openai", "OPENAI_PROMPT_MAX", "", "Prompts in one request"),
        ("gateway/openai", "OPENAI_INPUT_MAX", "", "Inputs of one request to `/v1/embeddings` and its like"),
        ("engine/sample", "POOLING_LABELS_MAX", "", "Classes of a head"),
        ("gateway/openai", "OPENAI_MESSAGE_MAX", "", "Messages of a conversation"),
        ("gateway/openai", "OPENAI_ADAPTERS_MAX", "", "Adapters of a stack (`adapters`)"),
        ("gateway/openai", "OPENAI_ADAPTER_SCALE_MAX", "", "The `scale` of one, either way"),
        ("gateway/openai", "OPENAI_STOP_MAX", "", "Strings in `stop`"),
        ("gateway/openai", "OPENAI_STOP_BYTES_MAX", "bytes", "One of them"),
        ("gateway/openai", "OPENAI_STOP_ID_MAX", "", "Ids in `stop_token_ids`"),
        ("gateway/openai", "OPENAI_BIAS_MAX", "", "Entries of `logit_bias`"),
        ("gateway/openai", "OPENAI_BAD_MAX", "", "Words in `bad_words`"),
        ("gateway/openai", "OPENAI_BAD_WORD_BYTES_MAX", "bytes", "One of them"),
        ("gateway/openai", "OPENAI_TOOLS_MAX", "", "Tools of a request"),
        ("gateway/openai", "OPENAI_DOCUMENTS_MAX", "", "Documents of a request"),
        ("gateway/openai", "OPENAI_KWARGS_MAX", "", "Members of `chat_template_kwargs`"),
        ("gateway/openai", "OPENAI_SALT_MAX", "bytes", "`cache_salt`"),
        ("gateway/openai", "TOOL_CALLS_MAX", "", "Tool calls in one answer"),
        ("engine/sample", "SAMPLE_TOP_MAX", "", "Alternatives for each token (`top_logprobs`, `logprobs`)"),
    ]),
    ("Structured answers and templates", [
        ("engine/grammar", "GRAMMAR_TEXT_MAX", "bytes", "A schema, an expression, or all choices together"),
        ("engine/grammar/schema/grammar_schema.h", "NODES_MAX", "", "Subschemas that need a rule of their own"),
        ("engine/grammar/schema/grammar_schema.h", "NEST_MAX", "", "Schemas inside one another"),
        ("engine/grammar", "OTHERS_MAX", "", "Named members beside `additionalProperties`"),
        ("engine/grammar", "GRAMMAR_DEPTH_MAX", "", "Depth of an answer, in rules that call rules"),
        ("engine/grammar", "GRAMMAR_STATE_MAX", "", "States of one compiled form"),
        ("engine/grammar", "REPEAT_MAX", "", "Repetitions of one piece in an expression"),
        ("engine/chat", "JINJA_TEXT_MAX", "bytes", "A chat template"),
        ("engine/chat", "STEPS_MAX", "", "Steps of one rendering"),
        ("engine/chat", "DEPTH_MAX", "", "Depth of calls in one rendering"),
    ]),
    ("Adapters", [
        ("engine", "LORA_RANK_MAX", "", "The rank of an adapter, and of a stack all together"),
        ("adapters/format", "FOLDER_FILES_MAX", "", "Files of an adapter's folder"),
        ("adapters/format", "FOLDER_CONFIG_MAX", "bytes", "`adapter_config.json`"),
        ("adapters/format", "WORDS_FILE_MAX", "bytes", "A tokenizer file in the folder"),
        ("adapters/format", "WORDS_CONTENT_MAX", "bytes", "One token that an adapter adds"),
        ("adapters/store", "MANIFEST_MAX", "bytes", "The manifest of a resumable upload"),
        ("adapters/store", "REGISTRY_ALIAS_MAX", "", "Aliases of an adapter"),
        ("adapters/store", "REGISTRY_VERSION_LEAST", "bytes", "What a version counts for at least in a tenant's quota"),
        ("storage", "ADAPTER_DESCRIPTION_MAX", "bytes", "The description of an adapter"),
        ("gateway/rest", "SHARES_MAX", "", "Tenants that an adapter is shared with by name"),
        ("gateway/rest", "WARM_WAIT_MAX_S", "s", "`wait` of `warm`"),
    ]),
    ("Tenants, keys and the books", [
        ("storage", "TENANT_NAME_MAX", "bytes", "A tenant's or an adapter's name"),
        ("storage", "TENANT_LIST_MAX", "bytes", "A tenant's list of classes or of models, with its commas"),
        ("storage", "NETWORKS_MAX", "bytes", "A list of networks, with its commas"),
        ("storage", "KEY_NAME_MAX", "bytes", "A key's name"),
        ("storage", "KEY_SECRETS_MAX", "", "Secrets of a key that work at once, while it is rotated"),
        ("gateway/rest", "GRACE_MAX_S", "s", "How long an old secret may still work"),
        ("storage", "BUSY_MS", "ms", "How long a write waits for a locked database"),
        ("storage", "METER_SLOT_BYTES", "bytes", "A completion in the spool (`data.spool`)"),
        ("storage", "MOST_BYTES", "bytes", "The file that is given up when the database meets a full disk"),
    ]),
    ("The engine", [
        ("engine/sched/sched.h", "SLO_CLASS_MAX", "", "Classes that the engine could take (the gateway has three)"),
        ("engine/sched/promise.h", "PROMISE_TENANTS", "", "Tenants with a counter of their own; the least served is forgotten first"),
        ("engine/sched/sched.c", "DEFAULT_AGEING_US", "us", "Ageing bound: who has stood first in its flow for longer goes before all others"),
        ("engine/sched/sched.c", "DEFAULT_FAULTS_MAX", "", "Restarts of a failing device before it is given up"),
        ("engine/cpu", "HEAD_DIM_MAX", "", "Values of an attention head, on the CPU"),
        ("engine/model", "VOCAB_MAX", "", "Tokens of a vocabulary"),
    ]),
    ("Watching", [
        ("gateway/watch", "STATS_ROWS_MAX", "", "Rows in one answer of `/admin/v1/stats`"),
        ("gateway/watch", "STREAMS_MAX", "", "Streams of it at once"),
        ("gateway/watch", "EVENTS_MAX", "", "Events that are kept for it"),
        ("gateway/rest", "LIMIT_MAX", "", "Rows of `/admin/v1/requests`"),
    ]),
]

# The figures of tests/bench/sim_constants.py
SEEN = {
    "sim-honest": "share of the honest tenants' interactive requests that met both targets",
    "goodput": "requests a second that met both targets",
    "sim-batch": "the batch class's share of the service",
    "sim-late": "share of what was let in that missed a target",
    "tpot99": "seconds per further token of interactive requests, p99",
    "sim-cold": "goodput with eight times more adapters than fit",
    "cold-wait": "the longest wait for a seat there, in seconds",
    "sim-cold-late": "share of interactive requests that are late where loads take 60 ms",
    "tpot-honest": "share of the honest tenants' interactive requests that met both targets, where a stream's row costs 300 us",
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
        ("engine/sched/fair.h", "FAIR_OUTPUT_PRICE", "", "An output token costs a tenant as much as so many prompt tokens (VTC)"),
        (FAIR, "QUANTUM_JOBS", "", "A tenant's round, in requests of mean cost: so far may one be ahead of another"),
        (FAIR, "CLASS_QUANTUM_JOBS", "", "A class's round: so much of the urgent classes before the lowest has its share"),
        (FAIR, "DEMANDS", "", "Adapters asked for at once while others wait for room: the order is the scheduler's"),
        (FAIR, "WINDOW", "", "How far into a flow others may pass a head whose adapter is not there"),
        (FAIR, "SCARCE_US", "us", "An adapter that has waited so long says that room is short"),
        (FAIR, "CYCLE_US", "us", "An adapter in use for longer may have to make room"),
        (FAIR, "CLOSE_AFTER_US", "us", "An adapter that was asked for longer ago makes others give way"),
        (FAIR, "REST_US", "us", "An adapter that gave way is not taken up again for so long"),
        (FAIR, "CLOSED_SHARE", "", "At most every so many-th adapter in use takes nobody new"),
        (FAIR, "patience", "", "Share of its target that a request waits for company, where room is short"),
        ("engine/sched", "policy_hurry hurry", "", "The last share of the target, in which a deadline is near"),
        (FAIR, "least_memory_us", "us", "So long a flow's share of the device is remembered at least"),
        (FAIR, "prior_jobs", "", "Weight of \"an equal share\" where a flow was hardly seen, in requests of mean cost"),
    ]),
    ("policy: what a step holds", [
        (POLICY, "gentle", "", "Share by which prompts stretch the streams' step while no first token needs more"),
        (POLICY, "haste", "", "Where deadlines need more, so many times what they need: later arrivals will ask, too"),
        (POLICY, "reserve", "", "Share of its target that a first token should leave over"),
        (POLICY, "thrift", "", "Share of the time until a stream's next token that a step may take"),
        (POLICY, "GAP", "targets", "A stream's next token is due by then, however far ahead it is"),
        (POLICY, "stride", "", "A seat is given if the streams of its class then have a row in every so many-th step"),
        (POLICY, "memory_us", "us", "So long the prompts' share of the time is remembered, which seats leave to them"),
        (POLICY, "headroom", "", "Room that a tenant with more than its share of the seats leaves to others, over the root of the streams"),
        (POLICY, "most_headroom", "", "The most of the room that it leaves"),
        (POLICY, "LOOK_AHEAD", "", "Prompts whose deadlines decide about the pace"),
        (POLICY, "LEAST_KEPT", "rows", "A prompt goes on by so many rows in any step, where streams keep their pace"),
        (POLICY, "LEAST_LOOSE", "rows", "The same where they miss it all the same"),
    ]),
    ("lengths: how long answers get", [
        (LENGTHS, "LEAST_KNOWN", "answers", "Before so many of a class nothing but max_tokens is believed"),
        (LENGTHS, "remembered", "answers", "The weight of an answer falls to 1/e after so many"),
        (LENGTHS, "borrowed", "answers", "So much of the wider sketch a narrower one gets"),
        (LENGTHS, "step", "", "How far the quantile moves with one answer"),
    ]),
    ("promise: may this request come in", [
        (PROMISE, "margin", "", "Share of the target that the prediction may use up before the request is refused"),
        (PROMISE, "bulk", "", "Where its flow has a queue, a request has its target over so many times its work, in requests of mean cost"),
        (PROMISE, "most_bulk", "", "But not over more than that"),
        (PROMISE, "QUEUE", "", "So many of a flow wait: it has a queue"),
        (PROMISE, "least_share", "", "A flow's share of the device is taken to be no less"),
        (PROMISE, "blur_us", "us", "An error of so much says nothing about predictions"),
    ]),
    ("cost: how long a step takes", [
        ("engine/sched/cost.h", "COST_LEARNING", "steps", "Before that nobody believes the model"),
        (COST, "steady", "", "Forgetting at each step: about 200 steps are remembered"),
        (COST, "astray", "", "The same while the model is wrong: about 20 steps"),
        (COST, "too_far", "", "Mean error of the latest steps from which the model counts as wrong"),
        (COST, "prior", "", "Weight of what a term was, where it is not seen"),
        (COST, "agree", "steps", "So many must err to one side before all times are rescaled"),
        (COST, "surprise", "", "The most that one step counts for the pace"),
        (COST, "most_pace", "", "The most that the pace may be off (a logarithm: twofold)"),
        (COST, "clip", "", "A residual beyond so many spreads counts as that many"),
    ]),
    ("ahead and pace: loads beside the batch", [
        ("engine/sched/ahead.h", "AHEAD_LEAST", "", "Of those that wait, so many have their adapters fetched at least"),
        ("engine/sched/ahead.h", "AHEAD_UNKNOWN", "", "The same until seats and loads have been timed"),
        (AHEAD, "SPARE", "", "Loads may take so many times longer than usual"),
        (AHEAD, "GAP_MAX_US", "us", "A longer gap between two seats tells of few requests, not of slow seats"),
        (PACE, "LEAST_OF_STEP", "", "Share of a step's time that copies to the device always get"),
        ("adapters/residency", "PACE_PATIENCE_US", "us", "An engine that says nothing for so long bounds no copy"),
    ]),
]
