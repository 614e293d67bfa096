"""reference_errors.py -- what docs/reference/errors.md says about each error code; make_reference.py finds the codes and statuses.

A code that a source sends and that is missing here, or a code here that no source sends, makes make_reference.py fail.
"""

NO, CHANGED, HEADER, LATER = "no", "after a change", "yes, after `Retry-After`", "yes, later"

# code: (cause, what to do, whether to send the request again)
CODES = {
    # The request itself.
    "bad_request": ("The request is not valid HTTP, or its body ended early.", "Check the client or the proxy in front of lorad.", CHANGED),
    "invalid_json": ("The body is not valid JSON.", "Send UTF-8 JSON; the message names the first fault.", CHANGED),
    "invalid_value": ("A field has a value that is not allowed. `param` names the field, the message the allowed values.",
                      "Change the field.", CHANGED),
    "missing_required_parameter": ("A required field is missing. `param` names it.", "Add the field.", CHANGED),
    "unknown_parameter": ("The request has a field that lorad does not know.", "Remove the field. [Known fields](api.md#fields-of-chat-and-completions).", CHANGED),
    "unknown_field": ("The body of an adapter, upload or admin call has a field that lorad does not know.", "Use one of the fields that the message lists.", CHANGED),
    "unsupported_parameter": ("The field is known, but this value, or this combination of fields, is not supported.",
                              "Read the message. [Differences from OpenAI and vLLM](compatibility.md).", CHANGED),
    "unsupported": ("The server does not support this; mostly an adapter's or a source's format.", "Read the message; it names the part.", CHANGED),
    "unsupported_model": ("The model can't do this: it has no chat template, no output layer or no classification head.",
                          "Use another endpoint or another model.", CHANGED),
    "context_length_exceeded": ("Prompt and `max_tokens` together are longer than the model's context.",
                                "Shorten the prompt or lower `max_tokens`. The server's limit is `engine.max_context`.", CHANGED),
    "empty_prompt": ("The prompt has no tokens.", "Send at least one token.", CHANGED),
    "request_too_large": ("The body is larger than `server.max_body`, or a field needs more memory than one request may use.",
                          "Send less, or use the [resumable upload](adapters.md#upload) for adapters.", CHANGED),
    "limit_exceeded": ("The body, an adapter or its files are larger than a [limit](limits.md); the tenant has as many adapters, files or bytes as it may have; "
                       "or prompt, `max_tokens` and adapter together don't fit into `engine.kv_memory`.",
                       "Make it smaller, or delete something; the message has both figures.", CHANGED),
    "unsupported_media_type": ("`Content-Type` is wrong for this call.", "Use the type that the message names, mostly `application/json`.", CHANGED),
    "uri_too_long": ("The request's path and query are too long.", "Shorten them.", CHANGED),
    "header_fields_too_large": ("The request has too many or too large headers.", "Send fewer headers; look for large cookies.", CHANGED),
    "expectation_failed": ("The request has an `Expect` header other than `100-continue`.", "Remove the header.", CHANGED),
    "not_implemented": ("The request uses a method or an encoding that lorad does not implement.", "Use another one.", CHANGED),
    "http_version_not_supported": ("The server does not speak this version of HTTP.", "Use a version that the message names.", CHANGED),
    "https_required": ("A plain HTTP request came to an HTTPS port.", "Use `https://`, or `server.plain_listen` behind a proxy.", CHANGED),
    "method_not_allowed": ("The path exists, but not with this method. `Allow` lists the methods.", "Use one of them.", CHANGED),
    "unknown_url": ("The path does not exist. The message names the nearest one.", "Check the base URL; it ends in `/v1`.", CHANGED),
    # Keys and permissions.
    "invalid_api_key": ("The key is missing, unknown, revoked, or the old secret of a rotated key after its grace.", "Send `Authorization: Bearer lk_...`. See [401](../howto/troubleshoot.md#401).", NO),
    "expired_api_key": ("The key has expired (`--expires`).", "Get a new key: [Rotate keys](../howto/rotate-keys.md).", NO),
    "ambiguous_credentials": ("`Authorization`, `x-api-key` and `api-key` have different keys.", "Send one key. Claude Code: set one of its two variables.", CHANGED),
    "insufficient_scope": ("The key is valid but lacks the scope that the message names.", "Create a key with that scope. See [403](../howto/troubleshoot.md#403).", NO),
    "network_not_allowed": ("The key or the tenant may not be used from this address.", "`loractl tenant set --networks`, `loractl key set --networks`. Behind a proxy: `server.trusted_proxies`.", NO),
    "tenant_suspended": ("The tenant is suspended or deleted.", "An operator can run `loractl tenant resume`.", NO),
    "tenant_required": ("The key belongs to no tenant (an admin key), and the call needs one.", "Use a tenant's key.", NO),
    "class_not_allowed": ("The tenant may not use the SLO class that batches run in.", "`loractl tenant set TENANT --classes ...`", NO),
    "not_allowed": ("The path, the host or the address is not one that the operator allows.", "The message names the option (`adapters.roots`, `sources.hosts`, `sources.hub`).", NO),
    "request_cancelled": ("An operator cancelled the request.", "Ask the operator. `x-should-retry` is `false`.", NO),
    # Things that are not there.
    "model_not_found": ("No model of this name exists for this key: no base, no adapter, or not in the tenant's list.",
                        "`loractl models` lists the names. See [404](../howto/troubleshoot.md#404).", NO),
    "not_found": ("The adapter, version, alias, file, batch, response or conversation does not exist for this tenant.", "Check the id.", NO),
    "tenant_not_found": ("No tenant has this name or id.", "`loractl tenant list`", NO),
    "key_not_found": ("No key has this id.", "`loractl key list`", NO),
    "request_not_found": ("The request to cancel has ended already.", "Nothing.", NO),
    "item_not_found": ("An item that `input` refers to does not exist or has expired.", "Send the item itself.", CHANGED),
    "previous_response_not_found": ("`previous_response_id` does not exist, has expired, or can't be decrypted (409).", "Send the whole history.", CHANGED),
    "conversation_not_found": ("The conversation does not exist, has expired, or can't be decrypted (409).", "Create a new one.", CHANGED),
    "stream_not_found": ("The stream to resume does not exist, is another tenant's, or is older than `server.resume`.", "Start a new request.", CHANGED),
    # State.
    "already_exists": ("The name is taken.", "Use another name.", CHANGED),
    "conflict": ("The object changed meanwhile, or its state does not allow this (the message says which).", "Read the object again, then decide.", CHANGED),
    "precondition_failed": ("`If-Match` is not the adapter's present generation.", "Read the adapter again and send its new `ETag`.", CHANGED),
    "adapter_in_use": ("A request uses the adapter that would be deleted.", "`drain=true`, or `loractl adapter delete --drain`.", LATER),
    "upload_busy": ("Another request is writing this upload.", "Wait until it has ended.", LATER),
    "upload_offset_mismatch": ("`Upload-Offset` is not where the file ends on the server.", "Ask for the offset and continue there; `loractl adapter push` does so.", CHANGED),
    "upload_incomplete": ("A file of the upload is not complete.", "Send the rest, then commit.", CHANGED),
    "checksum_mismatch": ("The bytes of a file don't have the SHA-256 of the manifest.", "Send the file again; it may have changed while it was read.", CHANGED),
    "adapter_invalid": ("The adapter can't be served with this base. The message names the tensor or the field.",
                        "[Models and adapters](adapters.md) lists what is supported.", CHANGED),
    "corrupt_data": ("The file, or what a source sent, is damaged or does not have the expected digest.", "Check the file at its origin, then send it again.", CHANGED),
    "source_failed": ("The server could not fetch the adapter. 502: the source did not answer properly; 422: it refused.",
                      "Check URL and credentials. 502 may pass.", "502: yes, later; 422: no"),
    "no_key": ("The server has no `responses.key_file`, so it can't keep credentials.", "The operator sets `responses.key_file`.", NO),
    # Limits.
    "rate_limit_exceeded": ("A limit of requests, tokens or concurrency of the tenant, the key or the adapter is reached; the message says which. "
                            "With `x-should-retry: false`, the request alone is larger than the limit: lower `max_tokens`.",
                            "Wait, or ask the operator for more: [429](../howto/troubleshoot.md#429).", HEADER),
    "insufficient_quota": ("The budget of the day or the month is used up (UTC).", "Wait for the next day or month, or have the operator raise it.", NO),
    "queue_full": ("The queue is full, or the request would miss its class's target and the class has `overload = reject`.",
                   "Wait. If it is common, add a server: [429](../howto/troubleshoot.md#429).", HEADER),
    "too_many_connections": ("429: the address has `server.max_connections_per_ip` connections. 503: the server has `server.max_connections`.",
                             "Reuse connections. Behind a proxy, raise the first option.", HEADER),
    "too_many_streams": ("The server is answering `server.max_streams` requests.", "Wait; raise `server.max_streams`.", HEADER),
    "storage_quota_exceeded": ("The tenant's stored responses have reached `responses.tenant_bytes` or `responses.tenant_rows`.", "Delete some, or send `store: false`.", CHANGED),
    "batch_limit_exceeded": ("The tenant has as many batches as it may have.", "Wait until one has ended.", LATER),
    "busy": ("The server is fetching as many adapters as it can.", "Wait.", LATER),
    # The server.
    "request_timeout": ("408: the request did not arrive in time. 504: the request took longer than it may, or the client's own deadline passed.",
                        "408: check the network. 504: ask for fewer tokens or allow more time.", LATER),
    "cancelled": ("The client closed the connection, or the adapter was deleted, or the server stopped the work. Mostly only the log shows it.", "Nothing.", LATER),
    "insufficient_storage": ("The disk has less than `data.min_free` left. Chat and completions continue.", "Free space: [507](../howto/troubleshoot.md#507).", LATER),
    "storage_unavailable": ("The database, the spool, PostgreSQL of a fleet or the object store can't be used right now.",
                            "Wait; the operator runs `loractl why`. See [503](../howto/troubleshoot.md#503).", HEADER),
    "out_of_memory": ("The server ran out of memory for this request.", "Wait; the operator gives the server more memory.", HEADER),
    "engine_restarting": ("The device failed or a model file changed; the engine starts again.", "Wait some seconds.", HEADER),
    "device_error": ("The device failed and could not be restarted.", "The operator looks at the log and at `/healthz`.", LATER),
    "shutting_down": ("The server is draining.", "Send the request to another server, or wait for the restart.", LATER),
    "adapter_not_on_node": ("This server of the fleet does not have the adapter's files yet, or a first fetch takes longer than the class's target.",
                            "Wait; or use [an object store](../howto/fleet.md#share-adapters-files).", HEADER),
    "adapter_load_failed": ("The adapter's files on the server can't be read or are damaged.", "Upload the adapter again.", NO),
    "adapter_damaged": ("The adapter's files on the server are damaged.", "Upload the adapter again.", NO),
    "internal_error": ("A fault in lorad.", "Report it with `x-request-id` and the log's lines.", LATER),
}

# Codes in a batch's errors: of its input file (`errors.data`), and of lines in its error file.
BATCH = {
    "invalid_json_line": "The line is not a JSON object, or is too long.",
    "missing_required_parameter": "`custom_id` or `body.model` is missing.",
    "duplicate_custom_id": "Two lines have the same `custom_id`.",
    "invalid_method": "`method` is not `POST`.",
    "invalid_url": "`url` is not the batch's endpoint.",
    "invalid_request": "`body` is not an object, or has `stream`.",
    "batch_expired": "The line was not run within the completion window.",
    "batch_cancelled": "The line was not run: the batch was cancelled, or its key was revoked.",
}

# Codes of `error` in a stored response that ran in the background.
BACKGROUND = {
    "rate_limit_exceeded": "A limit or the queue refused it (429).",
    "invalid_prompt": "The request was refused (another 4xx). The message is that of the refusal.",
    "server_error": "The server failed or ended before the response did.",
}

HEAD = """Every error has OpenAI's shape, `{"error": {"message", "type", "param", "code"}}`, and an `x-request-id`. Read `code`; messages may change.

- `param` names the field at fault, by its whole path (`messages[2].content`).
- `Retry-After` (seconds) and `retry-after-ms` say when to try again. openai-python and openai-node wait for them by themselves.
- `x-should-retry: false` says that the same request fails again; these clients read it, too.
- In a stream that has begun, the error is the last event, in the same shape, and no `[DONE]` follows.
- `/v1/messages` has Anthropic's shape: `{"type": "error", "error": {"type", "message"}, "request_id"}`, without a code.

[Troubleshoot](../howto/troubleshoot.md) lists symptoms and remedies.
"""
BATCH_HEAD = "The API of files and batches answers with the codes above. A batch itself also has these, for its lines.\n"
BACKGROUND_HEAD = "A response with `background: true` that fails is stored with `status: failed` and one of OpenAI's codes.\n"
