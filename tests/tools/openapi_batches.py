"""openapi_batches.py -- /v1/files and /v1/batches of conf/openapi.json (see make_openapi.py)."""
from openapi_doors import METADATA
from openapi_words import BOOL, COUNT, STR, arr, maybe, obj, operation, query

FILE_ID = {"type": "string", "pattern": "^file-[0-9a-f]{48}$"}
BATCH_ID = {"type": "string", "pattern": "^batch_[0-9a-f]{48}$"}
WHEN = maybe(COUNT)
FILE = obj({"id": FILE_ID, "object": {"const": "file"}, "bytes": COUNT, "created_at": COUNT, "expires_at": WHEN, "filename": STR,
            "purpose": {"enum": ["batch", "batch_output"]}, "status": {"const": "processed"}, "status_details": {"type": "null"}})
ERRORS = obj({"object": {"const": "list"}, "data": arr(obj({"code": STR, "message": STR, "param": maybe(STR), "line": maybe(COUNT)}))})
BATCH = obj({"id": BATCH_ID, "object": {"const": "batch"}, "tenant": STR, "endpoint": STR, "errors": maybe(ERRORS), "input_file_id": FILE_ID,
             "completion_window": {"const": "24h"},
             "status": {"enum": ["validating", "in_progress", "finalizing", "cancelling", "failed", "completed", "expired", "cancelled"]},
             "output_file_id": maybe(FILE_ID), "error_file_id": maybe(FILE_ID), "created_at": COUNT, "expires_at": WHEN,
             **{f"{x}_at": WHEN for x in ("in_progress", "finalizing", "cancelling", "completed", "failed", "expired", "cancelled")},
             "request_counts": obj({"total": COUNT, "completed": COUNT, "failed": COUNT}),
             "metadata": maybe({"type": "object", "additionalProperties": STR})}, optional=["tenant"])


def page(of):
    return obj({"object": {"const": "list"}, "data": arr(of), "first_id": maybe(STR), "last_id": maybe(STR), "has_more": BOOL})


SCHEMAS = {"UserFile": FILE, "UserFiles": page(FILE), "UserFileDeleted": obj({"id": FILE_ID, "object": {"const": "file"},
                                                                             "deleted": {"const": True}}),
           "Batch": BATCH, "Batches": page(BATCH)}

UPLOAD = {"multipart/form-data": {"type": "object", "required": ["file", "purpose"], "properties": {
    "file": {"type": "string", "format": "binary"}, "purpose": {"const": "batch"}}}}
CREATE = {"type": "object", "required": ["input_file_id", "endpoint", "completion_window"], "additionalProperties": False, "properties": {
    "input_file_id": {**FILE_ID, "description": "of a file with the purpose batch"},
    "endpoint": {"enum": ["/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/embeddings"]},
    "completion_window": {"const": "24h"},
    "metadata": METADATA, "output_expires_after": {"type": ["object", "null"], "required": ["anchor", "seconds"], "properties": {
        "anchor": {"const": "created_at"}, "seconds": {"type": "integer", "minimum": 3600, "maximum": 2592000}}}}}


def paged(most):
    return [query("limit", {"type": "integer", "minimum": 1, "maximum": most}), query("order", {"enum": ["asc", "desc"]}), query("after", STR)]


def as_bytes(method, path, what):
    for status in what["responses"].values():
        if "content" in status:
            status["content"] = {"application/octet-stream": {"schema": {"type": "string", "format": "binary"}}}
    return method, path, what


ROUTES = [
    operation("POST", "/v1/files", "UserFile", UPLOAD, errors=[404, 413, 507]),
    operation("GET", "/v1/files", "UserFiles", errors=[404], parameters=[*paged(10000), query("purpose", STR)]),
    operation("GET", "/v1/files/{file_id}", "UserFile", errors=[404]),
    as_bytes(*operation("GET", "/v1/files/{file_id}/content", "UserFile", errors=[404])),
    operation("DELETE", "/v1/files/{file_id}", "UserFileDeleted", errors=[404, 409]),
    operation("POST", "/v1/batches", "Batch", CREATE, errors=[404]),
    operation("GET", "/v1/batches", "Batches", errors=[404], parameters=paged(100)),
    operation("GET", "/v1/batches/{batch}", "Batch", errors=[404]),
    operation("POST", "/v1/batches/{batch}/cancel", "Batch", errors=[404, 409]),
]
