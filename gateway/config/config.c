/* config.c -- the tables of options, their values, and how they must fit together.
 *
 * A section [class.NAME] makes an SLO class; its keys are a table of their own.  config_read.c
 * reads them from files and elsewhere, config_print.c writes them.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "gateway/config/classes.h"
#include "gateway/config/config_inside.h"
#include "gateway/fetch/bucket.h"
#include "gateway/fetch/source.h"
#include "gateway/http/networks.h"

#define AT(field) offsetof(config, field)

enum { ROWS_LEAST = 16 }; /* of a step */

const option config_options[] = {
    {"server", "listen", OPT_TEXT, AT(server_listen), "127.0.0.1:8443", 0, 0,
     "Addresses of the inference API (HTTPS), comma-separated: host:port or [::1]:port."},
    {"server", "plain_listen", OPT_TEXT, AT(server_plain_listen), "", 0, 0,
     "Addresses of the inference API without TLS, for a sidecar or a gateway that speaks it to\n"
     "the clients.  Empty: none."},
    {"server", "plain_networks", OPT_TEXT | OPT_LIVE, AT(server_plain_networks),
     "127.0.0.0/8,::1/128", 0, 0,
     "CIDR blocks, comma-separated, whose connections are taken at plain_listen; others get 400\n"
     "https_required.  Keys pass there unencrypted."},
    {"server", "node", OPT_INT, AT(server_node), "0", 0, 255,
     "This server's number, which stands in every id.  Servers whose tenants, adapters or usage\n"
     "are looked at together need numbers of their own; in a fleet two cannot have the same."},
    {"server", "threads", OPT_INT, AT(server_threads), "200", 4, 4096,
     "Worker threads: each open connection holds one."},
    {"server", "max_connections", OPT_INT | OPT_LIVE, AT(server_max_connections), "0", 0, 4095,
     "Connections of the inference API; 503 and Retry-After beyond.  Must be below threads, so\n"
     "that workers are left to refuse the rest.  0: seven eighths of threads."},
    {"server", "max_connections_per_ip", OPT_INT | OPT_LIVE, AT(server_max_connections_per_ip), "0",
     0, 4096,
     "The same for one IPv4 address or one IPv6 /64; 429 beyond.  Where all clients come\n"
     "through one proxy, set it to max_connections.  0: three quarters of max_connections."},
    {"server", "trusted_proxies", OPT_TEXT | OPT_LIVE, AT(server_trusted_proxies), "", 0, 0,
     "CIDR blocks, comma-separated, of the proxies whose X-Forwarded-For tells the client's\n"
     "address where a tenant or key is bound to networks.  Empty: nobody's; the connection's\n"
     "own address counts."},
    {"server", "cors_origins", OPT_TEXT | OPT_LIVE, AT(server_cors_origins), "", 0, 0,
     "Origins of pages whose browsers may ask the inference listener (https://app.example),\n"
     "with spaces or commas between them; *: all.  Empty: none, so browsers refuse the answers."},
    {"server", "tls_cert", OPT_TEXT | OPT_LIVE, AT(server_tls_cert), "tls/cert.pem", 0, 0,
     "Certificate chain (PEM).  Relative paths are relative to data.dir."},
    {"server", "tls_key", OPT_TEXT | OPT_LIVE, AT(server_tls_key), "tls/key.pem", 0, 0,
     "Private key (PEM) of the certificate; must not be readable by others."},
    {"server", "max_body", OPT_BYTES | OPT_LIVE, AT(server_max_body), "4MiB", 1024, 64 * CONFIG_MIB,
     "Largest JSON body of a request."},
    {"server", "body_timeout", OPT_TIME | OPT_LIVE, AT(server_body_timeout_us), "30s",
     CONFIG_SECOND, 3600 * CONFIG_SECOND,
     "Time for a JSON body to arrive in full, however it drips; 408 beyond."},
    {"server", "request_timeout", OPT_TIME | OPT_LIVE, AT(server_request_timeout_us), "600s",
     CONFIG_SECOND, 86400 * CONFIG_SECOND,
     "Longest life of one completion, from the last byte of its body to the end."},
    {"server", "drain_timeout", OPT_TIME | OPT_LIVE, AT(server_drain_timeout_us), "30s", 0,
     3600 * CONFIG_SECOND, "After SIGTERM, running requests may take this long to end."},
    {"server", "resume", OPT_TIME | OPT_LIVE, AT(server_resume_us), "10min", 0,
     86400 * CONFIG_SECOND,
     "For so long a stream whose client asked for it (x-lorad-resume: new) can be resumed; with\n"
     "one responses.key_file for all at every server of a fleet, without at the one that began "
     "it,\n"
     "until it is started again.  0: none can."},
    {"server", "fleet_address", OPT_TEXT, AT(server_fleet_address), "", 0, 0,
     "Where the other servers of a fleet reach this one's API: https://host:port.  Once it drains\n"
     "they go on with what runs, and it passes their tokens on.  Empty: it neither gives nor\n"
     "takes requests."},
    {"server", "fleet_kv", OPT_TEXT | OPT_LIVE, AT(server_fleet_kv), "auto", 0, 0,
     "Whether keys and values of such a request are brought from the server that had it: auto,\n"
     "where that should take less time than computing them; always; never."},
    {"server", "max_choices", OPT_INT | OPT_LIVE, AT(server_max_choices), "8", 1, 128,
     "Most choices (n times prompts) of one request."},
    {"admin", "listen", OPT_TEXT, AT(admin_listen), "127.0.0.1:8444", 0, 0,
     "Addresses of the admin API (HTTPS, keys with the admin scope)."},
    {"admin", "client_ca", OPT_TEXT | OPT_LIVE, AT(admin_client_ca), "", 0, 0,
     "Authorities (PEM) one of which must have signed the certificate that a client of the\n"
     "admin API shows; its key is asked for as well.  Empty: no certificate is asked for."},
    {"metrics", "listen", OPT_TEXT, AT(metrics_listen), "127.0.0.1:8445", 0, 0,
     "Addresses of /healthz, /readyz and /metrics (HTTPS, no key)."},
    {"metrics", "inference_networks", OPT_TEXT | OPT_LIVE, AT(metrics_inference_networks), "", 0, 0,
     "CIDR blocks, comma-separated, whose clients find /healthz, /readyz and /metrics also at\n"
     "the addresses of the inference API, with no key: an endpoint picker's.  Empty: nobody."},
    {"metrics", "max_tenants", OPT_INT, AT(metrics_max_tenants), "50", 0, 10000,
     "So many tenants, the first to send a request, have series of their own in /metrics; the\n"
     "others share tenant=\"_other\".  A tenant's series are about 100 lines."},
    {"metrics", "max_adapters", OPT_INT | OPT_LIVE, AT(metrics_max_adapters), "20", 0, 1000,
     "So many adapters, those that most tokens were made with, have series of their own in\n"
     "/metrics.  An adapter's series are 13 lines."},
    {"metrics", "vllm_names", OPT_BOOL | OPT_LIVE, AT(metrics_vllm_names), "yes", 0, 0,
     "Export the names that vLLM uses beside lorad's own, for dashboards made for vLLM and for\n"
     "the endpoint picker of the Kubernetes Gateway API Inference Extension."},
    {"data", "dir", OPT_TEXT, AT(data_dir), "/var/lib/lorad", 0, 0,
     "Data directory: database, meters, adapters, certificate."},
    {"data", "usage_days", OPT_INT | OPT_LIVE, AT(data_usage_days), "0", 0, 36500,
     "Usage is kept by request for so many days; what is older becomes sums by hour, tenant,\n"
     "key, adapter, model and class.  0: by request for ever."},
    {"data", "spool", OPT_BYTES, AT(data_spool), "32MiB", 256 << 10, 256 << 20,
     "Room in the data directory, taken at the start, for usage that the database cannot take:\n"
     "its disk is full, or another program has it locked.  576 bytes a completion, so 32MiB\n"
     "hold 58254: 19 minutes at 50 a second.  Then new completions are refused (503) until it\n"
     "can be written."},
    {"data", "min_free", OPT_BYTES | OPT_LIVE, AT(data_min_free), "0", 0, 1024 * 1024 * CONFIG_GIB,
     "Free space on the disk of data.dir that uploads and adapters never touch (507 to them);\n"
     "it is for the database.  0: the larger of 1GiB and 5 % of the file system, at most an\n"
     "eighth of it: 128MiB of 1GiB, 1GiB of 8GiB to 20GiB, 5GiB of 100GiB, 50GiB of 1000GiB."},
    {"storage", "database", OPT_TEXT, AT(storage_database), "", 0, 0,
     "A fleet's PostgreSQL, 13 or newer: postgres://user@host/database?sslmode=verify-full.  Its\n"
     "nodes share tenants, keys, adapters' names and the audit.  No password here.  Empty: this\n"
     "server is by itself, with SQLite."},
    {"storage", "password_file", OPT_TEXT, AT(storage_password_file), "", 0, 0,
     "File with that database's password, which others must not be able to read.  Relative paths\n"
     "are relative to data.dir.  Empty: none, or what PostgreSQL's own client library finds."},
    {"storage", "limits_open", OPT_BOOL, AT(storage_limits_open), "no", 0, 0,
     "no: what has limits is refused (503) while that database is away and this server's share\n"
     "of them is used up.  yes: each server goes on with the limits by itself."},
    {"store", "url", OPT_TEXT, AT(store_url), "", 0, 0,
     "A fleet's object store for adapters' files: s3://bucket/prefix.  Uploads go there before\n"
     "they are announced, and each node brings what it is asked for.  One fleet alone may use a\n"
     "prefix.  Empty: files stay on the node that took them."},
    {"store", "endpoint", OPT_TEXT, AT(store_endpoint), "", 0, 0,
     "Its S3 API: https://host[:port], or http://; buckets by path."},
    {"store", "region", OPT_TEXT, AT(store_region), "us-east-1", 0, 0,
     "Its region, for signatures."},
    {"store", "credentials_file", OPT_TEXT, AT(store_credentials_file), "", 0, 0,
     "File with the access key's id, its secret and perhaps a session token, a line each, which\n"
     "others must not be able to read.  It is read before each call, so it may be changed.\n"
     "Relative paths are relative to data.dir.  Empty: AWS_ACCESS_KEY_ID,\n"
     "AWS_SECRET_ACCESS_KEY and AWS_SESSION_TOKEN of the environment."},
    {"store", "ca_file", OPT_TEXT, AT(store_ca_file), "", 0, 0,
     "Certificates (PEM) that it is held to.  Empty: the system's."},
    {"store", "cache_bytes", OPT_BYTES, AT(store_cache_bytes), "0", 0, 1024 * 1024 * CONFIG_GIB,
     "Bound of adapters' files on this node's disk.  What was not used longest goes first, but\n"
     "for what is pinned, in use, on the device, or not in the store.  0: none but\n"
     "data.min_free."},
    {"store", "timeout", OPT_TIME, AT(store_timeout_us), "10min", CONFIG_SECOND,
     86400 * CONFIG_SECOND, "The longest that one file may take."},
    {"sources", "retry_after", OPT_TIME | OPT_LIVE, AT(sources_retry_after_us), "1min",
     CONFIG_SECOND, 86400 * CONFIG_SECOND,
     "For so long a name that a tenant's adapter_source has not is not looked for again."},
    {"model", "path", OPT_TEXT, AT(model_path), "", 0, 0,
     "The base model: a Hugging Face directory, or a GGUF (of several files the first)."},
    {"model", "name", OPT_TEXT, AT(model_name), "base", 0, 0,
     "Name under which requests ask for the bare base model."},
    {"model", "chat_template", OPT_TEXT, AT(model_chat_template), "auto", 0, 0,
     "auto: the model's own; or the name of a built-in one (chatml, qwen, qwen3, llama-3.1,\n"
     "mistral ...); or the path of a Jinja file, with a '/' in it."},
    {"model", "reasoning", OPT_BOOL, AT(model_reasoning), "yes", 0, 0,
     "Where the chat template has marks for thoughts (<think>, [THINK], channels ...), answers\n"
     "carry them apart, in reasoning_content.  no: they stay in content, marks and all."},
    {"model", "pooling", OPT_TEXT, AT(model_pooling), "auto", 0, 0,
     "How the states of a prompt become a vector (/v1/embeddings): auto: as modules.json and\n"
     "1_Pooling of the model's directory say, without them the last state; last, cls, mean, max,\n"
     "weightedmean or mean_sqrt_len: so, for the base and its adapters."},
    {"model", "draft", OPT_TEXT, AT(model_draft), "", 0, 0,
     "Hugging Face directory of a small model of the same tokenizer.  It guesses where the text\n"
     "so far and the form of the answer give no guess, as far as that pays; the answers are the\n"
     "same.  On the CPU backend; empty: none."},
    {"model", "attention_sinks", OPT_INT, AT(model_attention_sinks), "0", 0, 1024,
     "Streams: each token sees the first so many tokens (4 is usual) and the last\n"
     "model.attention_window, at positions counted within these (Xiao et al. 2023).  Memory of a\n"
     "text is that of what is seen, and engine.max_context may be beyond the model's own.  On the\n"
     "CPU backend, for models without windows of their own.  0: all of a text is seen."},
    {"model", "attention_window", OPT_INT, AT(model_attention_window), "0", 0, 1048576,
     "Tokens of the window beside model.attention_sinks; together no more than the model's own\n"
     "max_position_embeddings.  0: there is none."},
    {"model", "weights", OPT_TEXT, AT(model_weights), "auto", 0, 0,
     "auto: as the files have them, quantised ones by their codes where the backend has\n"
     "kernels; plain: quantised ones become exact values; bf16: all become BF16 values; q8, q4,\n"
     "fp8: plain matrices (on CUDA those in BF16) are rounded to 8 or 4 bits (groups of 32\n"
     "columns with a scale; the output layer to 8) or to E4M3 (a scale for each row).  Decoding\n"
     "reads half or a quarter of the bytes.  Adapters stay exact."},
    {"model", "packed_cache", OPT_BOOL, AT(model_packed_cache), "yes", 0, 0,
     "On the CPU, keep the weights as the kernels read them in data.dir/packed, from where the\n"
     "next start maps them instead of packing them again.  Takes as much disk as the model (one\n"
     "file, that of the model served last), and none of data.min_free."},
    {"responses", "store", OPT_BOOL | OPT_LIVE, AT(responses_store), "yes", 0, 0,
     "Store what /v1/responses answers for its tenant, unless a request says \"store\": false.  "
     "no:\n"
     "nothing is stored, and a request that asks for it is refused."},
    {"responses", "keep", OPT_TIME | OPT_LIVE, AT(responses_keep_us), "30d", 0,
     INT64_C(3650) * 86400 * CONFIG_SECOND,
     "After so long what is stored is deleted, in all files.  0: never."},
    {"responses", "tenant_bytes", OPT_BYTES | OPT_LIVE, AT(responses_tenant_bytes), "256MiB", 0,
     1024 * CONFIG_GIB,
     "What the stored responses of one tenant may take; more is refused (429).  0: no limit."},
    {"responses", "background", OPT_INT, AT(responses_background), "4", 0, 256,
     "How many responses that go on without their client (\"background\": true) are made at once;\n"
     "each has a thread, the others wait.  0: such requests are refused."},
    {"responses", "key_file", OPT_TEXT, AT(responses_key_file), "", 0, 0,
     "File with a key of 32 bytes (or 64 hexadecimal digits): stored responses, files of "
     "/v1/files,\n"
     "what batches write and credentials that tenants keep for sources are encrypted with it\n"
     "(AES-256-GCM).  What another key has encrypted cannot be read; a fleet needs one key.  What\n"
     "was stored before stays as it is.  Empty: nothing is encrypted, credentials are not kept."},
    {"files", "tenant_bytes", OPT_BYTES | OPT_LIVE, AT(files_tenant_bytes), "1GiB", 0,
     1024 * 1024 * CONFIG_GIB,
     "What the files of one tenant may take on the disk, those that batches write among them;\n"
     "beyond, an upload is refused (413).  0: no limit but data.min_free."},
    {"files", "tenant_files", OPT_INT | OPT_LIVE, AT(files_tenant_files), "1000", 0, 1000000,
     "How many files one tenant may have.  0: no limit."},
    {"files", "max_bytes", OPT_BYTES | OPT_LIVE, AT(files_max_bytes), "200MiB", 1024,
     64 * CONFIG_GIB, "Largest file of /v1/files."},
    {"files", "keep", OPT_TIME | OPT_LIVE, AT(files_keep_us), "30d", 0,
     INT64_C(3650) * 86400 * CONFIG_SECOND,
     "After so long a file is deleted, unless a batch reads it; likewise what is known of a batch\n"
     "that has ended.  0: never."},
    {"batches", "class", OPT_TEXT, AT(batches_class), "", 0, 0,
     "The class in which the lines of batches run.  Empty: the least urgent."},
    {"batches", "in_flight", OPT_INT, AT(batches_in_flight), "16", 1, 1024,
     "Most lines at once, of all batches; each has a thread.  Fewer run while more urgent\n"
     "requests need the seats."},
    {"batches", "tenant_batches", OPT_INT | OPT_LIVE, AT(batches_tenant_batches), "32", 0, 100000,
     "How many batches that have not ended one tenant may have.  0: no limit."},
    {"batches", "max_lines", OPT_INT, AT(batches_max_lines), "100000", 1, 1000000,
     "Most lines of one batch."},
    {"batches", "window", OPT_TIME | OPT_LIVE, AT(batches_window_us), "24h", CONFIG_SECOND,
     86400 * CONFIG_SECOND,
     "What the completion window \"24h\" comes to, for tests and for a shorter promise; lines "
     "that\n"
     "have not begun by then end as batch_expired."},
    {"engine", "backend", OPT_TEXT, AT(engine_backend), "auto", 0, 0,
     "auto: CUDA where there is a device of compute capability 8.0 or newer and cuBLAS, else\n"
     "the CPU; cuda, cpu: that one or none.  `lorad check` says which it is, and why."},
    {"engine", "device", OPT_INT, AT(engine_device), "0", 0, 63, "Number of the CUDA device."},
    {"engine", "tensor_parallel", OPT_INT, AT(engine_tensor_parallel), "1", 1, 8,
     "CUDA devices that share the model, from `device` on: of one kind, in one machine, each "
     "within\n"
     "reach of the others' memory.  Each has a share of the heads and of every matrix's rows, and\n"
     "device_memory_fraction, kv_memory and adapters.device_memory are of each."},
    {"engine", "device_memory_fraction", OPT_TEXT, AT(engine_device_memory_fraction), "0.9", 0, 0,
     "How much of a CUDA device's memory is taken at the start: weights, scratch and the arena."},
    {"engine", "cuda_graphs", OPT_BOOL, AT(engine_cuda_graphs), "yes", 0, 0,
     "On a CUDA device, record the launches of decode steps once for each padded number of\n"
     "rows and replay them; no: launch each kernel by itself."},
    {"engine", "cuda_without", OPT_TEXT, AT(engine_cuda_without), "", 0, 0,
     "Kernels that a CUDA device is not asked about at the start, of: wgmma (products of many\n"
     "rows), chain (of few), cluster (few, shared), inside (few, with LoRA).  Others stand in.\n"
     "Where the device fails, or hangs, while one of them is tried, the server starts anew\n"
     "without it by itself.  wgmma and chain may change the last bits of answers."},
    {"engine", "cuda_patience", OPT_TIME, AT(engine_cuda_patience_us), "25s", CONFIG_SECOND,
     3600 * CONFIG_SECOND,
     "A CUDA device that does not end a step, or a copy, within so long hangs: requests get 503\n"
     "engine_restarting and the server starts anew.  More where others use the device as well."},
    {"engine", "overlap", OPT_BOOL, AT(engine_overlap), "yes", 0, 0,
     "On a CUDA device, plan and enqueue the next step while one runs; no: wait for each\n"
     "step's tokens first.  The tokens are the same; for diagnosis."},
    {"engine", "threads", OPT_INT, AT(engine_threads), "0", 0, 256,
     "Compute threads; 0: one for each core."},
    {"engine", "isa", OPT_TEXT, AT(engine_isa), "auto", 0, 0,
     "Instruction set: auto, amx, avx512bf16, avx512vnni, avx512,\navxvnni, avx2, portable."},
    {"engine", "max_rows", OPT_INT, AT(engine_max_rows), "0", 0, 8192,
     "Rows in one step: decode rows and prompt tokens together, at least 16.  Longer prompts are\n"
     "cut in chunks.  0: 512; on a CUDA device of 20 GiB or more 2048, of 75 GiB or more 8192."},
    {"engine", "max_seqs", OPT_INT, AT(engine_max_seqs), "0", 0, 4096,
     "Sequences that run at once.  0: 64; on a CUDA device of 20 GiB or more 256."},
    {"engine", "max_queued", OPT_INT | OPT_LIVE, AT(engine_max_queued), "1024", 1, 65536,
     "Requests that may wait; 429 beyond.  More than at the start need a restart."},
    {"engine", "max_context", OPT_INT, AT(engine_max_context), "8192", 16, 1048576,
     "Tokens of prompt and output together; never more than the model's own limit."},
    {"engine", "kv_memory", OPT_BYTES, AT(engine_kv_memory), "0", 0, 1024 * CONFIG_GIB,
     "Memory of the device: one arena for the KV pages of all sequences, the prefix cache and\n"
     "the adapters that are ready to run.  Nothing is split beforehand; what is idle and worth\n"
     "least (uses, time to bring it back, size) makes room.  0: 1GiB on the CPU; on a CUDA\n"
     "device what the model leaves of device_memory_fraction, less a sixteenth."},
    {"engine", "kv_type", OPT_TEXT, AT(engine_kv_type), "auto", 0, 0,
     "How keys and values are kept: bf16, f16, int8 (half of bf16's memory: twice the contexts in\n"
     "the same arena; each position of a head has its own scale), or auto: f16 for models whose\n"
     "file is quantised to integers on the CPU and for f16 models on a CUDA device, bf16 for bf16\n"
     "models, else f32."},
    {"engine", "prefix_cache", OPT_BOOL, AT(engine_prefix_cache), "yes", 0, 0,
     "Reuse the KV of equal prompt beginnings, within one tenant and adapter version."},
    {"engine", "swap_bytes", OPT_BYTES, AT(engine_swap_bytes), "256MiB", 0, 1024 * CONFIG_GIB,
     "Memory for the KV of pre-empted requests, until they run again; touched only when used."},
    {"engine", "preemption", OPT_TEXT, AT(engine_preemption), "auto", 0, 0,
     "What becomes of it: recompute, swap (as long as there is room), or auto: what is cheaper\n"
     "by the cost model and what copies have taken."},
    {"engine", "speculate", OPT_TEXT, AT(engine_speculate), "auto", 0, 0,
     "Guess the next tokens from the text so far and the form of the answer, and compute them\n"
     "in one step: auto, as many as pay by the cost model; always, as many as can be guessed,\n"
     "for comparisons; off.  The answers are the same."},
    {"engine", "speculate_tokens", OPT_INT, AT(engine_speculate_tokens), "8", 1, 16,
     "The most guesses for one request in one step."},
    {"engine", "logprobs_mode", OPT_TEXT, AT(engine_logprobs_mode), "adjusted_logprobs", 0, 0,
     "Of which distribution an answer's log-probabilities are, unless its request says:\n"
     "raw_logprobs, the model's own (not on a CUDA device); processed_logprobs, what the token\n"
     "was drawn from, as trainers want it; adjusted_logprobs, with biases, penalties and what\n"
     "may not come, before temperature, top_k, top_p and min_p.  A prompt's are always raw."},
    {"grammar", "documents", OPT_TEXT | OPT_LIVE, AT(grammar_documents), "", 0, 0,
     "Schemas that those of requests may refer to by $ref, comma-separated: ADDRESS=FOLDER, as\n"
     "https://example.com/schemas/=/etc/lorad/schemas.  Each file of the folder and of those in "
     "it\n"
     "is a schema; its address is ADDRESS with its path in the folder, and its own $id.  All\n"
     "tenants can refer to them.  Nothing is fetched.  Folders are relative to data.dir; they are\n"
     "read at the start and at each reload, and a file that is no schema is refused by name."},
    {"adapters", "device_memory", OPT_BYTES, AT(adapters_device_memory), "0", 0, 1024 * CONFIG_GIB,
     "The most of engine.kv_memory that adapters may take; 0: all of it."},
    {"adapters", "host_memory", OPT_BYTES, AT(adapters_host_memory), "512MiB", 0, 1024 * CONFIG_GIB,
     "Memory for copies of adapters, mostly as the device has them, from which they come back\n"
     "by a plain copy instead of from the disk; 0: none are kept."},
    {"adapters", "host_int8", OPT_BOOL, AT(adapters_host_int8), "no", 0, 0,
     "Keep A and B in int8 there (64 values to a scale): a quarter of F32's size, each value\n"
     "off by at most 1/254 of the largest of its 64.  Adapters are then always served in this\n"
     "precision."},
    {"adapters", "copy_share", OPT_INT, AT(adapters_copy_share), "50", 0, 100,
     "Percent of the time that a step leaves before the tightest stream's target which loads\n"
     "may take for copies to the device; they always get an eighth of the step.  0: no bound."},
    {"adapters", "loaders", OPT_INT, AT(adapters_loaders), "1", 1, 16,
     "Threads that load adapters from disk."},
    {"adapters", "max_upload", OPT_BYTES | OPT_LIVE, AT(adapters_max_upload), "1GiB", 1024,
     64 * CONFIG_GIB, "Largest adapter folder."},
    {"adapters", "max_added_tokens", OPT_INT, AT(adapters_max_added_tokens), "4096", 0, 262144,
     "Tokens that an adapter may add to the base's vocabulary; 4 bytes each for every row of\n"
     "logits that a step may have.  0: such adapters are refused."},
    {"adapters", "tenant_bytes", OPT_BYTES | OPT_LIVE, AT(adapters_tenant_bytes), "0", 0,
     1024 * 1024 * CONFIG_GIB,
     "What one tenant's adapters and open uploads may take on this disk, where the tenant has\n"
     "no max_adapter_bytes of its own; 413 beyond.  Each version counts for 64KiB at least,\n"
     "those in adapters.roots for nothing.  0: the larger of 1GiB and a 64th of the file\n"
     "system, at most a quarter of it: 256MiB of 1GiB, 1GiB of 4GiB to 64GiB, 15.6GiB of\n"
     "1000GiB."},
    {"adapters", "max_open_uploads", OPT_INT | OPT_LIVE, AT(adapters_max_open_uploads), "8", 1,
     1024,
     "Resumable uploads that one tenant may have open; their room on the disk is reserved, and\n"
     "what they have not filled is lent to others when the disk is short."},
    {"adapters", "upload_expiry", OPT_TIME | OPT_LIVE, AT(adapters_upload_expiry_us), "24h",
     CONFIG_SECOND, 30 * 86400 * CONFIG_SECOND,
     "An upload without progress for this long is given up."},
    {"adapters", "keep_versions", OPT_INT | OPT_LIVE, AT(adapters_keep_versions), "0", 0, 1000000,
     "After each upload the name keeps its newest so many versions; older ones are deleted, but\n"
     "for those that an alias names.  One that a request uses goes with the last of these.  For\n"
     "trainers that publish every minute.  0: all are kept."},
    {"adapters", "probe", OPT_BOOL, AT(adapters_probe), "yes", 0, 0,
     "Measure what each new version changes in the logits of a fixed prompt, when nobody waits\n"
     "for the engine: the version's logit_change.  0 is a warning: no answer is another one."},
    {"adapters", "roots", OPT_TEXT | OPT_LIVE, AT(adapters_roots), "", 0, 0,
     "Directories, comma-separated, whose adapters an operator may register where they lie,\n"
     "without copying (POST /admin/v1/adapters/register).  A tenant may copy from the folder of\n"
     "its name in one of them (POST /v1/load_lora_adapter).  Empty: none."},
    {"sources", "hosts", OPT_TEXT | OPT_LIVE, AT(sources_hosts), "", 0, 0,
     "Hosts, comma-separated, host or host:port, from which tenants may have an adapter fetched\n"
     "by the server (\"source\" in POST /v1/adapters/{name}/versions); those of hub and\n"
     "s3_endpoint must stand here, too.  Empty: none."},
    {"sources", "networks", OPT_TEXT | OPT_LIVE, AT(sources_networks), "", 0, 0,
     "Networks (CIDR, comma-separated) that such a host may be in although they are not public,\n"
     "for a store of your own.  Loopback, private and link-local addresses are refused else,\n"
     "also behind a redirect."},
    {"sources", "hub", OPT_TEXT | OPT_LIVE, AT(sources_hub), "", 0, 0,
     "https:// address of the hub that hf://owner/repository@revision means.  Empty: none."},
    {"sources", "s3_endpoint", OPT_TEXT | OPT_LIVE, AT(sources_s3_endpoint), "", 0, 0,
     "https:// address of the S3 API that s3://bucket/prefix means, buckets by path.  Empty:\n"
     "none."},
    {"sources", "s3_region", OPT_TEXT | OPT_LIVE, AT(sources_s3_region), "us-east-1", 0, 0,
     "Its region, for signatures."},
    {"sources", "ca_file", OPT_TEXT | OPT_LIVE, AT(sources_ca_file), "", 0, 0,
     "Certificates (PEM) that sources are held to.  Empty: the system's."},
    {"sources", "timeout", OPT_TIME | OPT_LIVE, AT(sources_timeout_us), "10min", CONFIG_SECOND,
     86400 * CONFIG_SECOND, "The longest that one file may take."},
    {"classes", "default", OPT_TEXT | OPT_LIVE, AT(classes_default), "standard", 0, 0,
     "Class of requests that ask for none, where the tenant has no default of its own."},
    {"log", "level", OPT_TEXT | OPT_LIVE, AT(log_level), "info", 0, 0,
     "debug, info, warn or error."},
    {"log", "format", OPT_TEXT | OPT_LIVE, AT(log_format), "text", 0, 0,
     "text (for people), logfmt or json.  Prompts, answers and keys are never logged."},
    {"traces", "endpoint", OPT_TEXT, AT(traces_endpoint), "", 0, 0,
     "URL of a collector that takes OpenTelemetry's traces by OTLP over HTTP in JSON, for\n"
     "example http://127.0.0.1:4318/v1/traces.  Empty: none are sent."},
    {"traces", "sample", OPT_TEXT, AT(traces_sample), "0.01", 0, 0,
     "Share of completions that are traced, 0 to 1.  Where the caller has a traceparent, its\n"
     "sampled flag decides instead."},
    {"traces", "headers", OPT_TEXT, AT(traces_headers), "", 0, 0,
     "File of header lines for the collector (Name: value), with its key; must not be readable\n"
     "by others.  Empty: none."},
};

const int config_n_options = (int)(sizeof(config_options) / sizeof(config_options[0]));

_Static_assert(sizeof(config_options) / sizeof(config_options[0]) <= CONFIG_OPTIONS_MAX,
               "each has a place in config.from");

#define OF_CLASS(field) offsetof(config_class, field)

const option config_class_options[CONFIG_CLASS_OPTIONS] = {
    {"class.NAME", "ttft", OPT_TIME | OPT_LIVE, OF_CLASS(ttft_us), NULL, 1, 86400 * CONFIG_SECOND,
     "An SLO class: a section for each, at most 8, the most urgent first.  A file without\n"
     "such a section has the three that lorad --print-conf shows.  NAME: [a-z][a-z0-9_-]{0,15}.\n"
     "This is its target for the first token."},
    {"class.NAME", "tpot", OPT_TIME | OPT_LIVE, OF_CLASS(tpot_us), NULL, 1, 86400 * CONFIG_SECOND,
     "Target for each further token."},
    {"class.NAME", "weight", OPT_MILLI | OPT_LIVE, OF_CLASS(weight_milli), "1", 1, 1000000,
     "Its share of the machine while others wait, too."},
    {"class.NAME", "overload", OPT_TEXT | OPT_LIVE, OF_CLASS(overload), "queue", 0, 0,
     "What becomes of a request whose first token would miss the target.  queue: it waits;\n"
     "reject: it is answered 429 at once, with the time to come back."},
    {"class.NAME", "tiers", OPT_TEXT | OPT_LIVE, OF_CLASS(tiers), "", 0, 0,
     "What service_tier may say for it beside its name, comma-separated; answers say the first."},
};

/* ------------------------------------------------------------------------ values -- */

static bool parse_number(const char *s, double *v, const char **unit)
{
    char *end;
    errno = 0;
    *v = strtod(s, &end);
    *unit = end;
    return end != s && !errno && *v >= 0;
}

static bool parse_bytes(const char *s, int64_t *out)
{
    static const struct {
        const char *name;
        double factor;
    } units[] = {
        {"", 1},     {"B", 1},    {"KiB", 1024.0}, {"MiB", 1048576.0}, {"GiB", 1073741824.0},
        {"kB", 1e3}, {"MB", 1e6}, {"GB", 1e9}};
    double v;
    const char *unit;
    if (!parse_number(s, &v, &unit)) return false;
    for (size_t i = 0; i < sizeof(units) / sizeof(units[0]); i++) {
        if (strcmp(unit, units[i].name) == 0 && v * units[i].factor < 9e18) {
            *out = (int64_t)(v * units[i].factor);
            return true;
        }
    }
    return false;
}

static bool parse_time(const char *s, int64_t *out)
{
    static const struct {
        const char *name;
        double us;
    } units[] = {{"us", 1}, {"ms", 1e3}, {"s", 1e6}, {"min", 6e7}, {"h", 3.6e9}, {"d", 8.64e10}};
    double v;
    const char *unit;
    if (!parse_number(s, &v, &unit)) return false;
    for (size_t i = 0; i < sizeof(units) / sizeof(units[0]); i++) {
        if (strcmp(unit, units[i].name) == 0 && v * units[i].us < 9e18) {
            *out = (int64_t)(v * units[i].us);
            return true;
        }
    }
    return false;
}

static bool parse_milli(const char *s, int64_t *out)
{
    double v;
    const char *unit;
    if (!parse_number(s, &v, &unit) || *unit || !(v < 9e12)) return false;
    *out = (int64_t)(v * 1000 + 0.5);
    return true;
}

static bool parse_bool(const char *s, bool *out)
{
    *out = strcmp(s, "yes") == 0 || strcmp(s, "true") == 0 || strcmp(s, "on") == 0;
    return *out || strcmp(s, "no") == 0 || strcmp(s, "false") == 0 || strcmp(s, "off") == 0;
}

static err_code set_number(const option *o, bool parsed, int64_t v, const char *text,
                           const char *form, int64_t *out, err *e)
{
    if (!parsed) {
        return err_set(e, ERR_INPUT, "%s.%s: '%.40s' is not %s", o->section, o->key, text, form);
    }
    if ((v < o->lo || v > o->hi) && option_kind_of(o) == OPT_MILLI) {
        return err_set(e, ERR_INPUT, "%s.%s: '%.40s' is outside %g to %g", o->section, o->key, text,
                       (double)o->lo / 1000, (double)o->hi / 1000);
    }
    if (v < o->lo || v > o->hi) {
        const char *unit = option_kind_of(o) == OPT_TIME    ? " microseconds"
                           : option_kind_of(o) == OPT_BYTES ? " bytes"
                                                            : "";
        return err_set(e, ERR_INPUT, "%s.%s: '%.40s' is outside %lld to %lld%s", o->section, o->key,
                       text, (long long)o->lo, (long long)o->hi, unit);
    }
    *out = v;
    return ERR_NONE;
}

/* No line of a file could say it. */
static bool has_control(const char *text)
{
    for (; *text; text++) {
        if (((unsigned char)*text < 0x20 && *text != '\t') || *text == 0x7f) return true;
    }
    return false;
}

err_code config_set_option(void *of, const option *o, const char *text, err *e)
{
    void *field = (char *)of + o->offset;
    int64_t v = 0;
    bool ok;
    char *end;
    switch (option_kind_of(o)) {
    case OPT_TEXT:
        if (strlen(text) >= CONFIG_TEXT_MAX) {
            return err_set(e, ERR_INPUT, "%s.%s is longer than %d bytes", o->section, o->key,
                           CONFIG_TEXT_MAX - 1);
        }
        if (has_control(text))
            return err_set(e, ERR_INPUT, "%s.%s holds a control character", o->section, o->key);
        memset(field, 0, CONFIG_TEXT_MAX);
        memcpy(field, text, strlen(text));
        return ERR_NONE;
    case OPT_INT:
        errno = 0;
        v = strtoll(text, &end, 10);
        ok = end != text && !*end && !errno;
        return set_number(o, ok, v, text, "an integer", field, e);
    case OPT_BYTES:
        ok = parse_bytes(text, &v);
        return set_number(o, ok, v, text, "a size such as 512MiB", field, e);
    case OPT_TIME:
        ok = parse_time(text, &v);
        return set_number(o, ok, v, text, "a time such as 30s or 500ms", field, e);
    case OPT_MILLI:
        ok = parse_milli(text, &v);
        return set_number(o, ok, v, text, "a number such as 4 or 0.5", field, e);
    case OPT_BOOL:
        if (parse_bool(text, field)) return ERR_NONE;
        return err_set(e, ERR_INPUT, "%s.%s: '%.40s' is neither yes nor no", o->section, o->key,
                       text);
    }
    return ERR_INTERNAL;
}

/* ------------------------------------------------------------------------- whole -- */

void config_defaults(config *c)
{
    memset(c, 0, sizeof(*c));
    for (int i = 0; i < config_n_options; i++) {
        err e;
        if (config_set_option(c, &config_options[i], config_options[i].initial, &e))
            abort(); /* a fault of the table */
    }
    classes_begin(c);
}

double config_traces_sample(const config *c)
{
    char *end;
    double share = strtod(c->traces_sample, &end);
    return c->traces_sample[0] && !*end && share >= 0 && share <= 1 ? share : -1;
}

static bool one_of(const char *s, const char *const *list)
{
    for (; *list; list++) {
        if (strcmp(s, *list) == 0) return true;
    }
    return false;
}

/* A URL without a password: what stands here is printed by check and kept in files. */
static err_code check_database(const char *url, err *e)
{
    if (!url[0]) return ERR_NONE;
    if (strncmp(url, "postgres://", 11) != 0 && strncmp(url, "postgresql://", 13) != 0)
        return err_set(e, ERR_INPUT, "is postgres://user@host/database, or empty");
    const char *user = strstr(url, "://") + 3;
    const char *at = memchr(user, '@', strcspn(user, "/?"));
    bool secret = at && memchr(user, ':', (size_t)(at - user));
    if (secret || strstr(url, "password="))
        return err_set(e, ERR_INPUT, "holds a password: put it into storage.password_file");
    return ERR_NONE;
}

static err_code check_sources(const config *c, err *e)
{
    if (source_check_hosts(c->sources_hosts, e)) return err_context(e, "sources.hosts");
    if (networks_check_list(c->sources_networks, e)) return err_context(e, "sources.networks");
    if (*c->sources_hub && source_check_base(c->sources_hub, e))
        return err_context(e, "sources.hub");
    if (*c->sources_s3_endpoint && source_check_base(c->sources_s3_endpoint, e))
        return err_context(e, "sources.s3_endpoint");
    if (!*c->sources_s3_region) return err_set(e, ERR_INPUT, "sources.s3_region is empty");
    return ERR_NONE;
}

static err_code check_store(const config *c, err *e)
{
    if (!*c->store_url) return ERR_NONE;
    if (!*c->storage_database)
        return err_set(e, ERR_INPUT, "store.url is for a fleet: storage.database is not set");
    if (bucket_check_url(c->store_url, e)) return err_context(e, "store.url");
    if (bucket_check_endpoint(c->store_endpoint, e)) return err_context(e, "store.endpoint");
    return *c->store_region ? ERR_NONE : err_set(e, ERR_INPUT, "store.region is empty");
}

static err_code check_pooling(const config *c, err *e)
{
    static const char *const words[] = {"auto", "last",         "cls",           "mean",
                                        "max",  "weightedmean", "mean_sqrt_len", NULL};
    if (one_of(c->model_pooling, words)) return ERR_NONE;
    return err_set(e, ERR_INPUT,
                   "model.pooling: '%.40s' is none of auto, last, cls, mean, max, weightedmean, "
                   "mean_sqrt_len",
                   c->model_pooling);
}

err_code config_check(const config *c, err *e)
{
    static const char *const levels[] = {"debug", "info", "warn", "error", NULL};
    static const char *const formats[] = {"text", "logfmt", "json", NULL};
    static const char *const preemptions[] = {"auto", "recompute", "swap", NULL};
    static const char *const bringings[] = {"auto", "always", "never", NULL};
    static const char *const backends[] = {"auto", "cpu", "cuda", NULL};
    static const char *const kv_types[] = {"auto", "bf16", "f16", "int8", NULL};
    static const char *const speculations[] = {"auto", "always", "off", NULL};
    if (!c->model_path[0]) return err_set(e, ERR_INPUT, "model.path is not set");
    if (!c->model_name[0]) return err_set(e, ERR_INPUT, "model.name is empty");
    if (!c->data_dir[0]) return err_set(e, ERR_INPUT, "data.dir is not set");
    if (c->engine_max_rows > 0 && c->engine_max_seqs > c->engine_max_rows) {
        return err_set(e, ERR_INPUT, "engine.max_seqs must not exceed engine.max_rows");
    }
    if (c->server_max_connections >= c->server_threads) {
        return err_set(e, ERR_INPUT, "server.max_connections must be below server.threads");
    }
    if (check_database(c->storage_database, e)) return err_context(e, "storage.database");
    if (*c->server_fleet_address && !*c->storage_database)
        return err_set(e, ERR_INPUT, "server.fleet_address: storage.database is not set");
    if (*c->server_fleet_address && source_check_base(c->server_fleet_address, e))
        return err_context(e, "server.fleet_address");
    if (networks_check_list(c->server_trusted_proxies, e))
        return err_context(e, "server.trusted_proxies");
    if (networks_check_list(c->server_plain_networks, e))
        return err_context(e, "server.plain_networks");
    if (networks_check_list(c->metrics_inference_networks, e))
        return err_context(e, "metrics.inference_networks");
    if (check_sources(c, e) || check_store(c, e)) return e->code;
    static const char *const weights[] = {"auto", "plain", "bf16", "q8", "q4", "fp8", NULL};
    static const char *const logprobs[] = {"adjusted_logprobs", "processed_logprobs",
                                           "raw_logprobs", NULL};
    if (check_pooling(c, e)) return e->code;
    if (!one_of(c->engine_logprobs_mode, logprobs)) {
        return err_set(e, ERR_INPUT,
                       "engine.logprobs_mode: '%.40s' is none of raw_logprobs, "
                       "processed_logprobs, adjusted_logprobs",
                       c->engine_logprobs_mode);
    }
    if (!one_of(c->model_weights, weights)) {
        return err_set(e, ERR_INPUT,
                       "model.weights: '%.40s' is none of auto, plain, bf16, q8, q4, fp8",
                       c->model_weights);
    }
    if (!one_of(c->log_level, levels)) {
        return err_set(e, ERR_INPUT, "log.level: '%.40s' is unknown", c->log_level);
    }
    if (!one_of(c->log_format, formats)) {
        return err_set(e, ERR_INPUT, "log.format: '%.40s' is unknown", c->log_format);
    }
    if (!one_of(c->engine_backend, backends)) {
        return err_set(e, ERR_INPUT, "engine.backend: '%.40s' is unknown", c->engine_backend);
    }
    if (c->engine_tensor_parallel > 1 && strcmp(c->engine_backend, "cpu") == 0)
        return err_set(e, ERR_INPUT, "engine.tensor_parallel is of CUDA devices");
    if (config_traces_sample(c) < 0) {
        return err_set(e, ERR_LIMIT, "traces.sample: '%.40s' is not within 0 and 1",
                       c->traces_sample);
    }
    char *end;
    double fraction = strtod(c->engine_device_memory_fraction, &end);
    if (*end || !(fraction >= 0.05 && fraction <= 0.98)) {
        return err_set(e, ERR_LIMIT,
                       "engine.device_memory_fraction: '%.40s' is not within 0.05 and "
                       "0.98",
                       c->engine_device_memory_fraction);
    }
    if (c->engine_max_rows > 0 && c->engine_max_rows < ROWS_LEAST)
        return err_set(e, ERR_INPUT, "engine.max_rows: %lld is below %d",
                       (long long)c->engine_max_rows, ROWS_LEAST);
    if (!one_of(c->engine_kv_type, kv_types)) {
        return err_set(e, ERR_INPUT, "engine.kv_type: '%.40s' is none of auto, bf16, f16, int8",
                       c->engine_kv_type);
    }
    if (!one_of(c->engine_preemption, preemptions)) {
        return err_set(e, ERR_INPUT, "engine.preemption: '%.40s' is unknown", c->engine_preemption);
    }
    if (!one_of(c->server_fleet_kv, bringings))
        return err_set(e, ERR_INPUT, "server.fleet_kv: '%.40s' is none of auto, always, never",
                       c->server_fleet_kv);
    if (!one_of(c->engine_speculate, speculations)) {
        return err_set(e, ERR_INPUT, "engine.speculate: '%.40s' is unknown", c->engine_speculate);
    }
    if (c->batches_class[0] && class_of_name(c, c->batches_class) < 0)
        return err_set(e, ERR_INPUT, "batches.class: there is no class '%.40s'", c->batches_class);
    return classes_check(c, e);
}

int64_t config_max_connections(const config *c)
{
    if (c->server_max_connections) return c->server_max_connections;
    int64_t spare = c->server_threads / 8;
    return c->server_threads - (spare ? spare : 1);
}

int64_t config_max_connections_per_ip(const config *c)
{
    if (c->server_max_connections_per_ip) return c->server_max_connections_per_ip;
    return (3 * config_max_connections(c) + 3) / 4;
}
