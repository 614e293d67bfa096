/* option_list.h -- every option of lorad, in one table: a list of rows for each section.
 *
 * O(section, key, field, kind, flags, initial, low, high, help)
 *
 *   field      of struct config_SECTION; times end in _us
 *   kind       TEXT, INT, BYTES, TIME (microseconds), BOOL
 *   flags      OPT_LIVE: a running server accepts a new value.  OPT_PATH: the value names files or
 *              folders of the host, so the admin API can't set it.  0: neither.
 *   initial    the default, as a file has it
 *   low, high  limits of a number, both included; 0, 0 for TEXT and BOOL
 *   help       the comment above the option in lorad --print-conf; lines separated by \n
 *
 * The table generates: the section's struct (config.h), the reader with its checks and its guesses
 * at misspelt names (config.c, config_read.c), lorad --print-conf, man pages, the admin API's view
 * (config_items.c), and docs/reference/.  A new option needs a row here and its use.
 *
 * Threads: data only.
 */
#ifndef GATEWAY_CONFIG_OPTION_LIST_H
#define GATEWAY_CONFIG_OPTION_LIST_H

/* clang-format off */

#define OPTIONS_SERVER(O) \
  O(server, "listen", listen, TEXT, 0, "127.0.0.1:8443", 0, 0, \
    "Addresses of the inference API (HTTPS), comma-separated: host:port or [::1]:port. Set\n" \
    "it to an address of the network if clients are on other machines.") \
  O(server, "plain_listen", plain_listen, TEXT, 0, "", 0, 0, \
    "Addresses of the inference API without TLS, for a sidecar or a proxy that terminates\n" \
    "TLS. Empty: none.") \
  O(server, "plain_networks", plain_networks, TEXT, OPT_LIVE, "127.0.0.0/8,::1/128", 0, 0, \
    "CIDR blocks, comma-separated, that can connect to plain_listen; others get 400\n" \
    "https_required. Keys are sent unencrypted there. Add the proxy's address if it is on\n" \
    "another machine.") \
  O(server, "node", node, INT, 0, "0", 0, 255, \
    "This server's number, part of every id. In a fleet, and wherever tenants, adapters or\n" \
    "usage of several servers are compared, each server needs its own number.") \
  O(server, "max_streams", max_streams, INT, 0, "200", 4, 4096, \
    "Requests of the inference API that are answered at the same time, each by a thread.\n" \
    "Beyond: 503 with Retry-After. Increase it if the machine meets its targets with more\n" \
    "requests than this.") \
  O(server, "max_connections", max_connections, INT, OPT_LIVE, "0", 0, 65536, \
    "Connections of the inference API. Beyond: 503 with Retry-After. An idle connection uses\n" \
    "no thread. 0: ten for each of max_streams. Increase it if many clients keep idle\n" \
    "connections.") \
  O(server, "max_connections_per_ip", max_connections_per_ip, INT, OPT_LIVE, "0", 0, 65536, \
    "Connections of one IPv4 address or one IPv6 /64. Beyond: 429. If all clients come\n" \
    "through one proxy, set it to max_connections. 0: three quarters of max_streams, so that\n" \
    "no address can occupy all threads.") \
  O(server, "http2", http2, BOOL, OPT_LIVE, "yes", 0, 0, \
    "Offer HTTP/2 to new connections of the inference API over TLS (ALPN). Each stream\n" \
    "beyond a connection's first counts as a connection in the two limits above. no: only\n" \
    "HTTP/1.1. Set it to no if a client or proxy has problems with HTTP/2.") \
  O(server, "trusted_proxies", trusted_proxies, TEXT, OPT_LIVE, "", 0, 0, \
    "CIDR blocks, comma-separated, of proxies whose X-Forwarded-For is used as the client's\n" \
    "address if a tenant or key is bound to networks. Empty: none; the connection's address\n" \
    "is used.") \
  O(server, "cors_origins", cors_origins, TEXT, OPT_LIVE, "", 0, 0, \
    "Origins (https://app.example), separated by spaces or commas, whose pages can call the\n" \
    "inference API from a browser; *: all. Empty: none.") \
  O(server, "page", page, BOOL, OPT_LIVE, "yes", 0, 0, \
    "Serve a chat page at / of the inference listener, and /openapi.json. Neither needs a\n" \
    "key; the page asks for one. no: both are 404. Set it to no where strangers can reach\n" \
    "the address.") \
  O(server, "tls_cert", tls_cert, TEXT, OPT_LIVE | OPT_PATH, "tls/cert.pem", 0, 0, \
    "Certificate chain (PEM). Relative paths are relative to data.dir. Set it if clients\n" \
    "shall trust your own or a public authority instead of the certificate of lorad init.") \
  O(server, "tls_key", tls_key, TEXT, OPT_LIVE | OPT_PATH, "tls/key.pem", 0, 0, \
    "Private key (PEM) of the certificate; must not be readable by others. Set it together\n" \
    "with tls_cert.") \
  O(server, "max_body", max_body, BYTES, OPT_LIVE, "4MiB", 1024, 64 * CONFIG_MIB, \
    "Largest JSON body of a request. Increase it if clients send longer prompts or schemas.") \
  O(server, "body_timeout", body_timeout_us, TIME, OPT_LIVE, \
    "30s", CONFIG_SECOND, 3600 * CONFIG_SECOND, \
    "Time in which a JSON body must arrive completely. Beyond: 408. Increase it for clients\n" \
    "on slow links.") \
  O(server, "request_timeout", request_timeout_us, TIME, OPT_LIVE, \
    "600s", CONFIG_SECOND, 86400 * CONFIG_SECOND, \
    "Longest duration of one completion, from the last byte of its body to the end. Increase\n" \
    "it if long answers take longer on this machine; decrease it to end runaway answers\n" \
    "earlier.") \
  O(server, "drain_timeout", drain_timeout_us, TIME, OPT_LIVE, "30s", 0, 3600 * CONFIG_SECOND, \
    "Time for running requests to end after SIGTERM. Keep it below the time after which your\n" \
    "service manager kills the process.") \
  O(server, "resume", resume_us, TIME, OPT_LIVE, "10min", 0, 86400 * CONFIG_SECOND, \
    "How long a stream can be resumed whose client asked for it (x-lorad-resume: new). With\n" \
    "the same responses.key_file on all servers of a fleet, any of them can resume it;\n" \
    "without, only the server that began it, until its restart. 0: never. Increase it if\n" \
    "clients lose their connections for longer.") \
  O(server, "fleet_address", fleet_address, TEXT, 0, "", 0, 0, \
    "Address at which the other servers of a fleet reach this one's API: https://host:port.\n" \
    "When this server drains, they continue its running requests, and it forwards their\n" \
    "tokens. Empty: it neither gives nor accepts requests.") \
  O(server, "fleet_kv", fleet_kv, TEXT, OPT_LIVE, "auto", 0, 0, \
    "Whether the KV of such a request is transferred from the old server: auto, if that\n" \
    "should be faster than computing it; always; never. Set it to never if the network\n" \
    "between the servers is slow or metered.") \
  O(server, "fleet_role", fleet_role, TEXT, 0, "both", 0, 0, \
    "The role of this server in a fleet: prefill (it computes prompts; servers with another\n" \
    "role continue the streams), decode (it continues streams; servers with another role\n" \
    "compute the prompts), or both. A request moves only if that is faster; with fleet_kv =\n" \
    "always, each one that can. Needs fleet_address. Set it if long prompts slow streams down.") \
  O(server, "max_choices", max_choices, INT, OPT_LIVE, "8", 1, 128, \
    "Maximum of choices of one request (n, or best_of, times prompts). Increase it for clients\n" \
    "that sample many answers to a prompt; decrease it so that one request can't fill the\n" \
    "slots.") \
  O(server, "max_beams", max_beams, INT, OPT_LIVE, "8", 0, 16, \
    "Maximum of beams of one prompt (use_beam_search). 0: beam search is refused. Decrease it\n" \
    "if one search takes too many of the sequences that run at once.")

#define OPTIONS_ADMIN(O) \
  O(admin, "listen", listen, TEXT, 0, "127.0.0.1:8444", 0, 0, \
    "Addresses of the admin API (HTTPS, keys with the admin scope). Set it to an address of\n" \
    "a management network if operators work on other machines.") \
  O(admin, "client_ca", client_ca, TEXT, OPT_LIVE | OPT_PATH, "", 0, 0, \
    "Authorities (PEM). Clients of the admin API then need a certificate that one of them\n" \
    "signed, in addition to the key. Empty: no client certificates. Set it if a stolen key\n" \
    "alone must not give access.")

#define OPTIONS_METRICS(O) \
  O(metrics, "listen", listen, TEXT, 0, "127.0.0.1:8445", 0, 0, \
    "Addresses of /healthz, /readyz and /metrics (HTTPS, no key). Set it to an address that\n" \
    "Prometheus or a load balancer can reach.") \
  O(metrics, "inference_networks", inference_networks, TEXT, OPT_LIVE, "", 0, 0, \
    "CIDR blocks, comma-separated, that can read /healthz, /readyz and /metrics also at the\n" \
    "addresses of the inference API, without a key; for an endpoint picker. Empty: none.") \
  O(metrics, "max_tenants", max_tenants, INT, 0, "50", 0, 10000, \
    "Number of tenants with series of their own in /metrics: the first ones to send a\n" \
    "request. All others share tenant=\"_other\". A tenant has about 100 lines. Increase it to\n" \
    "watch more tenants one by one, if Prometheus can store the series.") \
  O(metrics, "max_adapters", max_adapters, INT, OPT_LIVE, "20", 0, 1000, \
    "Number of adapters with series of their own in /metrics: those with the most output\n" \
    "tokens. An adapter has 13 lines. Increase it to watch more adapters one by one.") \
  O(metrics, "vllm_names", vllm_names, BOOL, OPT_LIVE, "yes", 0, 0, \
    "Also export the metrics under vLLM's names, for dashboards made for vLLM and for the\n" \
    "endpoint picker of the Kubernetes Gateway API Inference Extension. Set it to no if\n" \
    "nothing reads these names.")

#define OPTIONS_DATA(O) \
  O(data, "dir", dir, TEXT, OPT_PATH, "/var/lib/lorad", 0, 0, \
    "Data directory: database, meters, adapters, certificate. Set it to a disk with space\n" \
    "for all adapters.") \
  O(data, "usage_days", usage_days, INT, OPT_LIVE, "0", 0, 36500, \
    "Days for which usage is kept by request. Older usage becomes sums by hour, tenant, key,\n" \
    "adapter, model and class. 0: kept by request for ever. Set it if the database grows too\n" \
    "large and older usage is billed.") \
  O(data, "audit_rows", audit_rows, INT, OPT_LIVE, "10000", 0, 100000000, \
    "Rows of the audit log that are kept for the keys of one tenant; older ones are deleted.\n" \
    "Rows of operators are always kept. 0: all are kept. Increase it if a policy demands a\n" \
    "longer record.") \
  O(data, "check_every", check_every_us, TIME, 0, "6h", 0, 365 * 86400 * CONFIG_SECOND, \
    "Interval at which a low-priority thread checks the whole database for damage\n" \
    "(lorad_database_damaged). The first check is at the start. 0: never. Increase it if its\n" \
    "reads disturb a slow disk.") \
  O(data, "spool", spool, BYTES, 0, "32MiB", 256 << 10, 256 << 20, \
    "Space in the data directory, allocated at the start, for usage while the database can't\n" \
    "be written (disk full, or locked by another program). A completion needs 576 bytes, so\n" \
    "32MiB hold 58254: 19 minutes at 50 a second. When it is full, new completions get 503\n" \
    "until the database can be written. Increase it to bridge longer failures.") \
  O(data, "min_free", min_free, BYTES, OPT_LIVE, "0", 0, 1024 * 1024 * CONFIG_GIB, \
    "Free space on the disk of data.dir that uploads and adapters never use (they get 507);\n" \
    "it is for the database. 0: the larger of 1GiB and 5 % of the file system, at most an\n" \
    "eighth of it: 128MiB of 1GiB, 1GiB of 8GiB to 20GiB, 5GiB of 100GiB, 50GiB of 1000GiB.\n" \
    "Increase it if other programs need space on the same disk.")

#define OPTIONS_STORAGE(O) \
  O(storage, "database", database, TEXT, 0, "", 0, 0, \
    "PostgreSQL of a fleet, 13 or newer: postgres://user@host/database?sslmode=verify-full,\n" \
    "without a password. Its servers share tenants, keys, adapter names and the audit. Empty:\n" \
    "this server is not in a fleet and uses SQLite.") \
  O(storage, "password_file", password_file, TEXT, OPT_PATH, "", 0, 0, \
    "File with that database's password; must not be readable by others. Relative paths are\n" \
    "relative to data.dir. Empty: no password, or what PostgreSQL's client library finds.\n" \
    "Set it unless the server logs in by a certificate or a local socket.") \
  O(storage, "limits_open", limits_open, BOOL, 0, "no", 0, 0, \
    "no: while that database does not answer, requests with limits are refused (503) when\n" \
    "this server's share of the limits is used up. yes: each server continues and applies\n" \
    "the limits by itself. Set it to yes if answers matter more than exact limits.")

#define OPTIONS_STORE(O) \
  O(store, "url", url, TEXT, 0, "", 0, 0, \
    "Object store of a fleet for adapter files: s3://bucket/prefix. Uploads are stored there\n" \
    "before they are published, and each server downloads what it needs. Each fleet needs its\n" \
    "own prefix. Empty: files stay on the server that received them.") \
  O(store, "endpoint", endpoint, TEXT, 0, "", 0, 0, \
    "The store's S3 API: https://host[:port], or http://. Buckets are part of the path. Set\n" \
    "it to your provider's address.") \
  O(store, "region", region, TEXT, 0, "us-east-1", 0, 0, \
    "The store's region, for signatures. Set it to the bucket's region.") \
  O(store, "credentials_file", credentials_file, TEXT, OPT_PATH, "", 0, 0, \
    "File with the access key's id, its secret and optionally a session token, one per line;\n" \
    "must not be readable by others. It is read before each call, so it can be changed.\n" \
    "Relative paths are relative to data.dir. Empty: AWS_ACCESS_KEY_ID,\n" \
    "AWS_SECRET_ACCESS_KEY and AWS_SESSION_TOKEN of the environment. Set it if keys are\n" \
    "rotated, or the environment must not hold them.") \
  O(store, "ca_file", ca_file, TEXT, OPT_PATH, "", 0, 0, \
    "Certificates (PEM) that verify the store. Empty: the system's. Set it for a store with\n" \
    "a certificate of your own authority.") \
  O(store, "cache_bytes", cache_bytes, BYTES, 0, "0", 0, 1024 * 1024 * CONFIG_GIB, \
    "Limit of adapter files on this server's disk. The least recently used go first, except\n" \
    "those that are pinned, in use, on the device, or not in the store. 0: only\n" \
    "data.min_free. Set it if other data share the disk.") \
  O(store, "timeout", timeout_us, TIME, 0, "10min", CONFIG_SECOND, 86400 * CONFIG_SECOND, \
    "Longest duration of the transfer of one file. Increase it for large adapters on slow\n" \
    "links.")

#define OPTIONS_MODEL(O) \
  O(model, "path", path, TEXT, OPT_PATH, "", 0, 0, \
    "The base model: a Hugging Face directory, or a GGUF (the first file, if there are\n" \
    "several). Or a model of the hub in sources.hub, which the first start downloads to\n" \
    "data.dir/models: hf://owner/repository[@revision][/folder or /file.gguf]. Later starts use\n" \
    "these files and do not ask the hub.") \
  O(model, "cache_bytes", cache_bytes, BYTES, 0, "256GiB", 0, 1024 * 1024 * CONFIG_GIB, \
    "Limit of the models in data.dir/models. Before a download the least recently used go\n" \
    "first, never the one in model.path; a larger model is refused. 0: only data.min_free.\n" \
    "Decrease it if the disk can't hold several models.") \
  O(model, "name", name, TEXT, 0, "base", 0, 0, \
    "Name of the base model in requests. Set it to the name that clients already use, such\n" \
    "as a model's name at another provider.") \
  O(model, "chat_template", chat_template, TEXT, OPT_PATH, "auto", 0, 0, \
    "auto: the model's own; or the name of a built-in template (chatml, qwen, qwen3,\n" \
    "llama-3.1, mistral ...); or the path of a Jinja file, with a '/' in it. Set it if the\n" \
    "model has no template, or a faulty one.") \
  O(model, "reasoning", reasoning, BOOL, 0, "yes", 0, 0, \
    "If the chat template has markers for reasoning (<think>, [THINK], channels ...),\n" \
    "answers have it in reasoning_content. no: it stays in content, with its markers. Set it\n" \
    "to no for clients that expect the markers in content.") \
  O(model, "pooling", pooling, TEXT, 0, "auto", 0, 0, \
    "How hidden states become a vector (/v1/embeddings). auto: by modules.json and 1_Pooling\n" \
    "of the model's directory, without them the last state. last, cls, mean, max,\n" \
    "weightedmean or mean_sqrt_len apply to the base and its adapters. Set it if the model's\n" \
    "directory does not say how it was trained.") \
  O(model, "draft", draft, TEXT, OPT_PATH, "", 0, 0, \
    "Hugging Face directory of a small model with the same tokenizer. It drafts tokens where\n" \
    "the text and the grammar give no draft, if that is worth its cost; answers do not\n" \
    "change. Only on the CPU backend. Empty: none. Set it to decode faster where cores are\n" \
    "idle.") \
  O(model, "attention_sinks", attention_sinks, INT, 0, "0", 0, 1024, \
    "Streaming attention: each token sees this many first tokens (4 is usual) and the last\n" \
    "model.attention_window tokens, at positions counted within these (Xiao et al. 2023).\n" \
    "Only these use memory, and engine.max_context can exceed the model's own limit. Only on\n" \
    "the CPU backend, for models without windows of their own. 0: each token sees the whole\n" \
    "text. Set both for endless chats on little memory, if answers need not see the middle\n" \
    "of the text.") \
  O(model, "attention_window", attention_window, INT, 0, "0", 0, 1048576, \
    "Size of the window for model.attention_sinks. Both together must not exceed the model's\n" \
    "own max_position_embeddings. 0: no window. Set it to as many tokens as answers must\n" \
    "see.") \
  O(model, "weights", weights, TEXT, 0, "auto", 0, 0, \
    "auto: as in the files; quantised weights stay quantised if the backend has kernels for\n" \
    "them. plain: quantised weights become exact values. bf16: all become BF16 values. q8,\n" \
    "q4, fp8: plain matrices (on CUDA those in BF16) are rounded to 8 or 4 bits (groups of\n" \
    "32 columns with a scale; the output layer to 8) or to E4M3 (a scale for each row), so\n" \
    "decoding reads half or a quarter of the bytes. Adapters stay exact.") \
  O(model, "resident_bytes", resident_bytes, BYTES, 0, "0", 0, 1024 * CONFIG_GIB, \
    "Memory for the model's matrices, for models larger than memory: layers are read from\n" \
    "data.dir/packed in order of use, the next one ahead of its use; some layers and the most\n" \
    "frequently used experts stay. KV pages, adapters, norms, the input table and heads of\n" \
    "latent attention come on top. Only on the CPU; answers do not change. lorad check\n" \
    "predicts tokens per second. 0: all stay. Set it if the model does not fit.") \
  O(model, "activations", activations, TEXT, 0, "mixed", 0, 0, \
    "How products with quantised weights round their input on the CPU. int8: to 8 bits, in\n" \
    "groups of 32 or 16 values. int16: to 16 bits, which is exact in practice, and slower.\n" \
    "mixed: as int8, but outliers have 16 bits in the matrices where 8 lose most. lorad\n" \
    "check prints what to expect. FP8 and NF4 weights are multiplied as floats. Set it to\n" \
    "int16 if lorad check predicts too much loss, to int8 for speed.")

#define OPTIONS_RESPONSES(O) \
  O(responses, "store", store, BOOL, OPT_LIVE, "yes", 0, 0, \
    "Store responses of /v1/responses for the tenant, unless a request has \"store\": false.\n" \
    "no: nothing is stored, and a request with \"store\": true is refused. Set it to no if\n" \
    "prompts and answers must not be on the disk.") \
  O(responses, "keep", keep_us, TIME, OPT_LIVE, "30d", 0, INT64_C(3650) * 86400 * CONFIG_SECOND, \
    "Age at which stored responses are deleted. 0: never. Set it to the period of your\n" \
    "privacy policy.") \
  O(responses, "tenant_bytes", tenant_bytes, BYTES, OPT_LIVE, "256MiB", 0, 1024 * CONFIG_GIB, \
    "Limit of one tenant's stored responses in bytes. Beyond: 429. 0: no limit. Set it to\n" \
    "the disk space that a tenant pays for.") \
  O(responses, "tenant_rows", tenant_rows, INT, OPT_LIVE, "30000", 0, 100000000, \
    "Limit of one tenant's stored responses and conversations. Beyond: 429. 0: no limit.\n" \
    "Increase it for tenants with many short conversations.") \
  O(responses, "background", background, INT, 0, "4", 0, 256, \
    "Background responses (\"background\": true) that run at the same time, each with a\n" \
    "thread; others wait. 0: they are refused. Increase it if such responses wait while\n" \
    "slots are free.") \
  O(responses, "key_file", key_file, TEXT, OPT_PATH, "", 0, 0, \
    "File with a key of 32 bytes (or 64 hexadecimal digits). It encrypts stored responses,\n" \
    "files of /v1/files, output of batches and tenants' source credentials (AES-256-GCM).\n" \
    "Data encrypted with another key can't be read; all servers of a fleet need the same\n" \
    "key. Earlier data is not changed. Empty: nothing is encrypted, and credentials can't be\n" \
    "stored. Set it if the disk or its backups can fall into other hands.")

#define OPTIONS_FILES(O) \
  O(files, "tenant_bytes", tenant_bytes, BYTES, OPT_LIVE, "1GiB", 0, 1024 * 1024 * CONFIG_GIB, \
    "Limit of one tenant's files on the disk, including those that batches write. Beyond:\n" \
    "uploads get 413. 0: only data.min_free. Set it to the disk space that a tenant pays\n" \
    "for.") \
  O(files, "tenant_files", tenant_files, INT, OPT_LIVE, "1000", 0, 1000000, \
    "Limit of one tenant's number of files. 0: no limit. Increase it for tenants with many\n" \
    "small batches.") \
  O(files, "max_bytes", max_bytes, BYTES, OPT_LIVE, "200MiB", 1024, 64 * CONFIG_GIB, \
    "Largest file of /v1/files. Increase it for larger batches.") \
  O(files, "keep", keep_us, TIME, OPT_LIVE, "30d", 0, INT64_C(3650) * 86400 * CONFIG_SECOND, \
    "Age at which a file is deleted unless a batch reads it, and at which an ended batch is\n" \
    "deleted. 0: never. Set it to the period of your privacy policy.")

#define OPTIONS_BATCHES(O) \
  O(batches, "class", class, TEXT, 0, "", 0, 0, \
    "Class in which the lines of batches run. Empty: the least urgent one. Set it if your\n" \
    "classes have one for batches that is not the last.") \
  O(batches, "in_flight", in_flight, INT, 0, "16", 1, 1024, \
    "Maximum of lines that run at the same time, of all batches; each has a thread. Fewer\n" \
    "run while more urgent requests need the slots. Increase it if slots stay free while\n" \
    "batches run.") \
  O(batches, "tenant_batches", tenant_batches, INT, OPT_LIVE, "32", 0, 100000, \
    "Limit of one tenant's batches that have not ended. 0: no limit. Increase it for tenants\n" \
    "that split their work into many batches.") \
  O(batches, "tenant_ended", tenant_ended, INT, OPT_LIVE, "1000", 0, 1000000, \
    "Ended batches that are kept for one tenant. When it creates another one, the oldest\n" \
    "ones beyond this are deleted; their files stay. 0: no limit. Increase it if tenants\n" \
    "look up older batches.") \
  O(batches, "max_lines", max_lines, INT, 0, "100000", 1, 1000000, \
    "Maximum of lines of one batch. Increase it for clients with larger batches, if memory\n" \
    "allows.") \
  O(batches, "window", window_us, TIME, OPT_LIVE, "24h", CONFIG_SECOND, 86400 * CONFIG_SECOND, \
    "Length of the completion window \"24h\", for tests or for a shorter one. Lines that have\n" \
    "not started by then end as batch_expired.")

#define OPTIONS_ENGINE(O) \
  O(engine, "backend", backend, TEXT, 0, "auto", 0, 0, \
    "auto: CUDA if there is a device of compute capability 8.0 or newer and cuBLAS,\n" \
    "otherwise the CPU; cuda or cpu: only that one. `lorad check` shows the choice and the\n" \
    "reason. Set it to cpu to leave a device to other programs, to cuda if the server must\n" \
    "not start without one.") \
  O(engine, "device", device, INT, 0, "0", 0, 63, \
    "Number of the CUDA device. Set it if the machine has several.") \
  O(engine, "tensor_parallel", tensor_parallel, INT, 0, "1", 1, 8, \
    "Number of CUDA devices that share the model, starting with `device`: of the same kind,\n" \
    "in one machine, able to access each other's memory. Each has a share of the heads and\n" \
    "of every matrix's rows. device_memory_fraction, kv_memory and adapters.device_memory\n" \
    "apply to each. Increase it if the model does not fit into one device, or must be\n" \
    "faster.") \
  O(engine, "device_memory_fraction", device_memory_fraction, TEXT, 0, "0.9", 0, 0, \
    "Share of a CUDA device's memory that is allocated at the start: weights, scratch and\n" \
    "the arena. Decrease it if other programs use the device.") \
  O(engine, "cuda_patience", cuda_patience_us, TIME, 0, \
    "25s", CONFIG_SECOND, 3600 * CONFIG_SECOND, \
    "Time after which a CUDA device that does not finish a step or a copy counts as hanging:\n" \
    "requests get 503 engine_restarting and the server restarts. Increase it if other\n" \
    "programs use the device.") \
  O(engine, "threads", threads, INT, 0, "0", 0, 256, \
    "Compute threads. 0: one for each core. Decrease it to leave cores to other programs.") \
  O(engine, "isa", isa, TEXT, 0, "auto", 0, 0, \
    "Instruction set: auto, amx, avx512bf16, avx512vnni, avx512, avxvnni, avx2, i8mm, neon,\n" \
    "portable. Set it to a lower one so that different machines give the same answers.") \
  O(engine, "max_rows", max_rows, INT, 0, "0", 0, 8192, \
    "Tokens (rows) in one step: decoded tokens and prompt tokens together, at least 16.\n" \
    "Longer prompts are computed in chunks. 0: 512; on a CUDA device of 20 GiB or more 2048,\n" \
    "of 75 GiB or more 8192. Decrease it if long prompts delay other streams; increase it\n" \
    "for more prompt tokens per second.") \
  O(engine, "max_seqs", max_seqs, INT, 0, "0", 0, 4096, \
    "Slots: sequences that run at the same time. 0: 64; on a CUDA device of 20 GiB or more\n" \
    "256. Increase it if requests wait while memory and targets allow more; decrease it for\n" \
    "faster streams.") \
  O(engine, "max_queued", max_queued, INT, OPT_LIVE, "1024", 1, 65536, \
    "Maximum of waiting requests. Beyond: 429. Values above that of the start need a\n" \
    "restart. Decrease it if clients shall go elsewhere earlier; increase it for large\n" \
    "bursts.") \
  O(engine, "max_context", max_context, INT, 0, "8192", 16, 1048576, \
    "Maximum of prompt and output tokens together; never more than the model's own limit.\n" \
    "Increase it for longer conversations; each token of a sequence needs memory.") \
  O(engine, "kv_memory", kv_memory, BYTES, 0, "0", 0, 1024 * CONFIG_GIB, \
    "Memory of the device for the KV pages of all sequences, the prefix cache and the\n" \
    "adapters that are ready to run, in one arena without a fixed split. Idle parts with the\n" \
    "lowest value (uses, time to load again, size) are evicted first. 0: 1GiB on the CPU; on\n" \
    "a CUDA device, what the model leaves of device_memory_fraction, minus a sixteenth.\n" \
    "Increase it if requests are pre-empted or the prefix cache is too small.") \
  O(engine, "kv_type", kv_type, TEXT, 0, "auto", 0, 0, \
    "Format of keys and values: f32, bf16, f16, int8 (half of bf16's memory, so twice as\n" \
    "many tokens fit; each position of a head has its own scale), or auto: f16 for models in\n" \
    "integer-quantised files on the CPU and for f16 models on a CUDA device, bf16 for bf16\n" \
    "models, otherwise f32. Set it to int8 to hold more sequences, to f32 for the most exact\n" \
    "answers.") \
  O(engine, "page_tokens", page_tokens, INT, 0, "32", 1, 64, \
    "Tokens in a KV page: 1, 2, 4, 8, 16, 32 or 64; on a CUDA device 32, with latent\n" \
    "attention 32 or 64. The prefix cache also finds parts of pages. Answers do not change,\n" \
    "but attention is slower with pages below 32 tokens (docs/howto/size.md), and a page\n" \
    "takes at least as much memory as the smallest piece of an adapter. Decrease it to waste\n" \
    "less memory on many short requests, increase it for long contexts.") \
  O(engine, "prefix_cache", prefix_cache, BOOL, 0, "yes", 0, 0, \
    "Reuse the KV of equal prompt prefixes, within one tenant and adapter version. Set it to\n" \
    "no if the time to the first token must not show whether a tenant sent a text before.") \
  O(engine, "snapshot_bytes", snapshot_bytes, BYTES, 0, "512MiB", 0, 1024 * CONFIG_GIB, \
    "Memory for the prefix cache's snapshots of recurrent states; it is touched only when\n" \
    "used. Models without such layers need none. Less than one state: no prefix cache.\n" \
    "Increase it if prompts of such a model share many beginnings.") \
  O(engine, "swap_bytes", swap_bytes, BYTES, 0, "256MiB", 0, 1024 * CONFIG_GIB, \
    "Host memory for the KV of pre-empted requests until they run again; it is touched only\n" \
    "when used. Increase it if pre-empted requests are computed again although main memory\n" \
    "is free.") \
  O(engine, "preemption", preemption, TEXT, 0, "auto", 0, 0, \
    "The KV of pre-empted requests: recompute, swap (while swap_bytes lasts), or auto: the\n" \
    "cheaper one by the cost model and by measured copies. Set it to recompute if main\n" \
    "memory is scarce.") \
  O(engine, "speculate", speculate, TEXT, 0, "auto", 0, 0, \
    "Speculation: draft the next tokens from the text so far and the grammar, and verify\n" \
    "them in one step. auto: as many as are worth the cost; always: as many as possible, for\n" \
    "comparisons; off. Answers do not change. Set it to off if other requests need the\n" \
    "cores.") \
  O(engine, "speculate_tokens", speculate_tokens, INT, 0, "8", 1, 16, \
    "Maximum of draft tokens for one request in one step. Increase it for very predictable\n" \
    "text.") \
  O(engine, "logprobs_mode", logprobs_mode, TEXT, 0, "adjusted_logprobs", 0, 0, \
    "Distribution of an answer's log-probabilities, unless the request selects one.\n" \
    "raw_logprobs: the model's own (not on a CUDA device). processed_logprobs: the one that\n" \
    "the token was sampled from; trainers need it. adjusted_logprobs: with biases, penalties\n" \
    "and excluded tokens, before temperature, top_k, top_p and min_p. Those of a prompt are\n" \
    "always raw. Set it to what your clients or trainers expect.")

#define OPTIONS_GRAMMAR(O) \
  O(grammar, "documents", documents, TEXT, OPT_LIVE | OPT_PATH, "", 0, 0, \
    "Schemas that requests' schemas can refer to by $ref, comma-separated: ADDRESS=FOLDER,\n" \
    "for example https://example.com/schemas/=/etc/lorad/schemas. Each file in the folder\n" \
    "and its subfolders is a schema; its address is ADDRESS plus its path in the folder, and\n" \
    "its own $id. All tenants can refer to them. Nothing is fetched. Folders are relative to\n" \
    "data.dir. They are read at the start and at each reload; a file that is not a schema is\n" \
    "an error that names it.")

#define OPTIONS_ADAPTERS(O) \
  O(adapters, "device_memory", device_memory, BYTES, 0, "0", 0, 1024 * CONFIG_GIB, \
    "Limit of adapters in engine.kv_memory. 0: no limit. Set it if adapters displace the\n" \
    "prefix cache.") \
  O(adapters, "host_memory", host_memory, BYTES, 0, "512MiB", 0, 1024 * CONFIG_GIB, \
    "Main memory for copies of adapters, mostly in the device's format, so that loading them\n" \
    "again is a copy instead of a read from disk. 0: no copies. Increase it if adapters are\n" \
    "read from the disk again and again.") \
  O(adapters, "host_int8", host_int8, BOOL, 0, "no", 0, 0, \
    "Keep A and B of these copies in int8 (64 values to a scale): a quarter of F32's size,\n" \
    "with each value off by at most 1/254 of the largest of its 64. Adapters are then always\n" \
    "served in this precision. Set it to yes if main memory does not hold all adapters in\n" \
    "use.") \
  O(adapters, "max_upload", max_upload, BYTES, OPT_LIVE, "1GiB", 1024, 64 * CONFIG_GIB, \
    "Largest adapter folder. Increase it for adapters of large models or ranks.") \
  O(adapters, "max_added_tokens", max_added_tokens, INT, 0, "4096", 0, 262144, \
    "Maximum of tokens that an adapter can add to the base's vocabulary; 4 bytes each for\n" \
    "every row of logits in a step. 0: such adapters are refused. Increase it for adapters\n" \
    "with larger vocabularies.") \
  O(adapters, "tenant_bytes", tenant_bytes, BYTES, OPT_LIVE, "0", 0, 1024 * 1024 * CONFIG_GIB, \
    "Limit of one tenant's adapters and open uploads on this disk, if the tenant has no\n" \
    "max_adapter_bytes. Beyond: 413. Each version counts at least 64KiB; those in\n" \
    "adapters.roots count nothing. 0: the larger of 1GiB and a 64th of the file system, at\n" \
    "most a quarter of it: 256MiB of 1GiB, 1GiB of 4GiB to 64GiB, 15.6GiB of 1000GiB. Set it\n" \
    "to the disk space that a tenant pays for.") \
  O(adapters, "max_open_uploads", max_open_uploads, INT, OPT_LIVE, "8", 1, 1024, \
    "Maximum of one tenant's open resumable uploads. Their disk space is reserved; what they\n" \
    "have not filled is lent to others when the disk is short. Increase it for tenants that\n" \
    "upload many adapters at once.") \
  O(adapters, "upload_expiry", upload_expiry_us, TIME, OPT_LIVE, \
    "24h", CONFIG_SECOND, 30 * 86400 * CONFIG_SECOND, \
    "Time without progress after which an upload is deleted. Decrease it if interrupted\n" \
    "uploads hold disk space for too long.") \
  O(adapters, "keep_versions", keep_versions, INT, OPT_LIVE, "0", 0, 1000000, \
    "Number of newest versions that a name keeps after each upload. Older ones are deleted,\n" \
    "except those with an alias; one in use is deleted with its last request. For trainers\n" \
    "that publish every minute. 0: all are kept.") \
  O(adapters, "roots", roots, TEXT, OPT_LIVE | OPT_PATH, "", 0, 0, \
    "Directories, comma-separated, with adapters that an operator can register in place,\n" \
    "without copying (POST /admin/v1/adapters/register). A tenant can copy from the folder\n" \
    "with its name in one of them (POST /v1/load_lora_adapter). Empty: none. Set it if\n" \
    "trainers write to a disk of this machine.")

#define OPTIONS_SOURCES(O) \
  O(sources, "hosts", hosts, TEXT, OPT_LIVE, "", 0, 0, \
    "Hosts, comma-separated, host or host:port, from which the server fetches adapters for\n" \
    "tenants (\"source\" in POST /v1/adapters/{name}/versions). It must include the hosts of\n" \
    "hub and s3_endpoint. Empty: none. Set it if tenants have their adapters on a hub or in\n" \
    "object storage.") \
  O(sources, "networks", networks, TEXT, OPT_LIVE, "", 0, 0, \
    "Networks (CIDR, comma-separated) that such a host can be in although they are not\n" \
    "public, for a store of your own. All other loopback, private and link-local addresses\n" \
    "are refused, also after a redirect.") \
  O(sources, "hub", hub, TEXT, OPT_LIVE, "", 0, 0, \
    "https:// address of the hub for hf://owner/repository@revision. Empty: none. Set it to\n" \
    "use a hub, such as Hugging Face or a mirror of your own.") \
  O(sources, "hub_token_file", hub_token_file, TEXT, OPT_PATH, "", 0, 0, \
    "File with your token for the hub, for model.path = hf://... of a private repository;\n" \
    "must not be readable by others. Tenants have their own. Relative paths are relative to\n" \
    "data.dir. Empty: none. Set it for such a repository.") \
  O(sources, "s3_endpoint", s3_endpoint, TEXT, OPT_LIVE, "", 0, 0, \
    "https:// address of the S3 API for s3://bucket/prefix; buckets are part of the path.\n" \
    "Empty: none. Set it to your provider's address.") \
  O(sources, "s3_region", s3_region, TEXT, OPT_LIVE, "us-east-1", 0, 0, \
    "Region of that S3 API, for signatures. Set it to the buckets' region.") \
  O(sources, "ca_file", ca_file, TEXT, OPT_LIVE | OPT_PATH, "", 0, 0, \
    "Certificates (PEM) that verify sources. Empty: the system's. Set it for hosts with\n" \
    "certificates of your own authority.") \
  O(sources, "timeout", timeout_us, TIME, OPT_LIVE, "10min", CONFIG_SECOND, 86400 * CONFIG_SECOND, \
    "Longest duration of the download of one file. Increase it for large files on slow\n" \
    "links.") \
  O(sources, "retry_after", retry_after_us, TIME, OPT_LIVE, \
    "1min", CONFIG_SECOND, 86400 * CONFIG_SECOND, \
    "How long a name that does not exist in a tenant's adapter_source is not looked up\n" \
    "again. Decrease it if new adapters shall be found sooner; increase it to send the\n" \
    "source fewer requests.")

#define OPTIONS_CLASSES(O) \
  O(classes, "default", default_name, TEXT, OPT_LIVE, "standard", 0, 0, \
    "Class of requests that select none, if the tenant has no default class. Set it if most\n" \
    "requests need other targets.")

#define OPTIONS_LOG(O) \
  O(log, "level", level, TEXT, OPT_LIVE, "info", 0, 0, \
    "debug, info, warn or error. Set it to debug to find a fault, to warn if logs are too\n" \
    "long.") \
  O(log, "format", format, TEXT, OPT_LIVE, "text", 0, 0, \
    "text (for people), logfmt or json. Prompts, answers and keys are never logged. Set it\n" \
    "to what your log collector reads.")

#define OPTIONS_TRACES(O) \
  O(traces, "endpoint", endpoint, TEXT, 0, "", 0, 0, \
    "URL of a collector for OpenTelemetry traces (OTLP over HTTP in JSON), for example\n" \
    "http://127.0.0.1:4318/v1/traces. Empty: no traces. Set it if you have a collector.") \
  O(traces, "sample", sample, TEXT, 0, "0.01", 0, 0, \
    "Share of completions that are traced, 0 to 1. If the client sends a traceparent, its\n" \
    "sampled flag decides instead. Increase it to see rare delays; decrease it if the\n" \
    "collector is overloaded.") \
  O(traces, "headers", headers, TEXT, 0, "", 0, 0, \
    "File with headers for the collector, such as its key, one per line (Name: value); must\n" \
    "not be readable by others. Empty: none. Set it if the collector needs a key.")

#define OPTIONS_WEBHOOKS(O) \
  O(webhooks, "url", url, TEXT, OPT_PATH, "", 0, 0, \
    "URL (http or https) that events are posted to, signed by the format of Standard\n" \
    "Webhooks. Redirects are not followed. Empty: none. Set it if a program shall react to\n" \
    "events, such as a pager.") \
  O(webhooks, "secret_file", secret_file, TEXT, OPT_PATH, "webhooks.secret", 0, 0, \
    "File with the key of the signatures: whsec_ and the base64 of 24 to 64 bytes, or 24 to\n" \
    "64 characters. Relative paths are relative to data.dir; must not be readable by others.\n" \
    "Set it if the receiver gave you the key.") \
  O(webhooks, "events", events, TEXT, 0, \
    "slo.broken,slo.kept,limit.near,limit.reached,certificate.ends,disk.low,disk.enough," \
    "disk.full,disk.room,adapter.publish", 0, 0, \
    "Kinds of events to post, comma-separated. Empty: all that loractl events shows. Remove\n" \
    "the kinds that nobody reacts to.")

/* Switches for diagnosis; config_print() leaves out those that have their defaults. */
#define OPTIONS_DEBUG(O) \
  O(debug, "cuda_graphs", cuda_graphs, BOOL, 0, "yes", 0, 0, \
    "On a CUDA device, record the launches of decode steps once for each padded number of\n" \
    "rows and replay them. no: launch each kernel separately.") \
  O(debug, "cuda_without", cuda_without, TEXT, 0, "", 0, 0, \
    "Kernels that are not used on a CUDA device: wgmma (products of many rows), chain (few\n" \
    "rows), inside (few rows, with LoRA). Others are used instead. If the device fails or\n" \
    "hangs while the start checks a kernel, the server restarts without that kernel by\n" \
    "itself. wgmma and chain can change the last bits of answers.") \
  O(debug, "device_root", device_root, TEXT, 0, "/", 0, 0, \
    "Folder with dev, proc and sys in which the start looks for an NVIDIA GPU that\n" \
    "engine.backend = auto could not use, to warn about it.") \
  O(debug, "overlap", overlap, BOOL, 0, "yes", 0, 0, \
    "On a CUDA device, plan and enqueue the next step while one runs. no: wait for each\n" \
    "step's tokens first, for diagnosis; the tokens are the same.") \
  O(debug, "packed_cache", packed_cache, BOOL, 0, "yes", 0, 0, \
    "On the CPU, store the packed weights in data.dir/packed. The next start maps them\n" \
    "instead of packing again. Needs as much disk as the model (one file, for the last\n" \
    "model), and never uses data.min_free.") \
  O(debug, "copy_share", copy_share, INT, 0, "50", 0, 100, \
    "Share in percent of the time that a step leaves before the tightest stream's target\n" \
    "which copies of adapters to the device can use. They always get an eighth of the step.\n" \
    "0: no limit.") \
  O(debug, "loaders", loaders, INT, 0, "1", 1, 16, \
    "Threads that load adapters from disk.") \
  O(debug, "probe", probe, BOOL, 0, "yes", 0, 0, \
    "When the engine is idle, measure how much each new version changes the logits of a fixed\n" \
    "prompt: the version's logit_change. 0 is a warning: the adapter changes no answer.")

/* All rows, in the order of the file. */
#define OPTIONS_ALL(O) \
    OPTIONS_SERVER(O) \
    OPTIONS_ADMIN(O) \
    OPTIONS_METRICS(O) \
    OPTIONS_DATA(O) \
    OPTIONS_STORAGE(O) \
    OPTIONS_STORE(O) \
    OPTIONS_MODEL(O) \
    OPTIONS_RESPONSES(O) \
    OPTIONS_FILES(O) \
    OPTIONS_BATCHES(O) \
    OPTIONS_ENGINE(O) \
    OPTIONS_GRAMMAR(O) \
    OPTIONS_ADAPTERS(O) \
    OPTIONS_SOURCES(O) \
    OPTIONS_CLASSES(O) \
    OPTIONS_LOG(O) \
    OPTIONS_TRACES(O) \
    OPTIONS_WEBHOOKS(O) \
    OPTIONS_DEBUG(O)
/* clang-format on */

#endif
