"""openapi_admin.py -- the admin plane's part of conf/openapi.json (see make_openapi.py)."""
from openapi_words import ANY, BOOL, CLASS, COUNT, FLAG, INT, NUM, STR, TIME, arr, maybe, obj, operation, opt, query

LIMIT_NAMES = ("requests_per_minute", "tokens_per_minute", "max_concurrent", "max_queued", "tokens_per_day", "tokens_per_month",
               "cost_per_day", "cost_per_month", "max_adapters", "max_adapter_bytes")
ADAPTER_LIMITS = LIMIT_NAMES[:3]
SURCHARGES = ("surcharge_prompt", "surcharge_cached", "surcharge_output")
PRICE_MAX = 10**12  # PRICE_MAX of storage/price.h
SCOPE = {"enum": ["inference", "adapters.read", "adapters.write", "admin", "admin.read"]}
LIMITS = obj({n: COUNT for n in LIMIT_NAMES})
TARGET = obj({n: maybe(INT) for n in ("ttft_ms", "tpot_ms")})
TENANT = obj({"object": {"const": "tenant"}, "id": STR, "name": STR, "state": {"enum": ["active", "disabled"]}, "weight": NUM,
              "default_class": maybe(STR), "classes": arr(STR), "adapter_source": maybe(STR), "targets": {**ANY, "additionalProperties": TARGET},
              "models": arr(STR), "networks": arr(STR), "limits": LIMITS,
              "generation": COUNT, "created": COUNT, "durable": {"const": False}}, optional=["durable"])
KEY = obj({"object": {"const": "key"}, "id": STR, "key": STR, "public_id": STR, "name": STR, "tenant": maybe(STR),
           "scopes": arr(SCOPE), "requests_per_minute": COUNT, "tokens_per_minute": COUNT, "max_concurrent": COUNT, "networks": arr(STR),
           "secrets": COUNT, "created": COUNT, "expires_at": maybe(INT), "revoked": maybe(INT), "last_used": maybe(INT),
           "durable": {"const": False}}, optional=["key", "durable"])
USED = obj({n: INT for n in ("requests_per_minute", "tokens_per_minute", "max_concurrent", "max_queued", "tokens_per_day",
                             "tokens_per_month", "cost_per_day", "cost_per_month", "max_adapters", "max_adapter_bytes")}, optional=["requests_per_minute", "tokens_per_minute"])
REFUSED = obj({"scope": {"enum": ["tenant", "key", "adapter"]}, "limit": STR, "last_hour": COUNT})
TENANT_LIMITS = obj({"object": {"const": "limits"}, "tenant": STR, "limits": LIMITS, "used": USED, "refused": arr(REFUSED), "tenant_bytes": maybe(COUNT)})
NAME_LIMITS = obj({"object": {"const": "limits"}, "tenant": STR, "adapter": STR, "limits": obj({n: COUNT for n in ADAPTER_LIMITS + SURCHARGES}),
                   "used": obj({n: INT for n in ADAPTER_LIMITS}, optional=ADAPTER_LIMITS[:2])})
REQUEST = obj({"object": {"const": "request"}, "id": STR, "request_id": STR, "tenant": STR, "key_id": maybe(STR), "model": STR,
               "class": STR, "state": {"enum": ["waiting", "prefill", "decode"]}, "stream": BOOL, "age_ms": INT, "slack_ms": maybe(INT),
               "prompt_tokens": INT, "computed_tokens": INT, "output_tokens": INT, "max_tokens": INT, "preempted": INT, "unread_ms": INT})
PHASES = ("queue", "adapter", "prompt", "decode", "rest", "send")
ENDED = obj({"object": {"const": "request"}, "id": STR, "request_id": STR, "tenant": STR, "key_id": maybe(STR), "model": STR,
             "class": STR, "state": {"const": "ended"}, "status": INT, "finish": STR, "missed": maybe(STR), "beside": maybe(STR),
             "started": maybe(INT), "ended": maybe(INT), "duration_ms": INT, "ttft_ms": maybe(INT),
             **{p + "_ms": NUM for p in PHASES}, "prompt_tokens": INT, "cached_tokens": INT, "output_tokens": INT})
HISTORY = obj({"object": {"const": "history"}, "by": {"enum": ["class", "tenant", "adapter"]}, "name": STR, "start": INT,
               "seconds": {"enum": [10, 600]}, **{n: COUNT for n in ("ended", "failed", "refused", "limited", "met", "missed")},
               "attained": maybe(NUM), "prompt_tokens": COUNT, "output_tokens": COUNT,
               **{n: maybe(NUM) for n in ("ttft_p50_ms", "ttft_p99_ms", "tpot_p50_ms", "tpot_p99_ms")}, "causes": STR})
SOURCE = {"enum": ["default", "file", "environment", "command line", "admin API"]}
OPTION = obj({"option": STR, "value": STR, "default": STR, "source": SOURCE, "live": BOOL})
DIFFERENCE = obj({"option": STR, "value": STR, "wanted": STR, "source": SOURCE, "live": BOOL})
CHANGED = obj({n: arr(STR) for n in ("taken", "unchanged", "needs_restart")})
NEW_CONFIG = {"type": "object", "minProperties": 1, "maxProperties": 64, "examples": [{"class.batch.weight": "0.5", "log.level": None}],
              "additionalProperties": {"type": ["string", "number", "boolean", "null"]}}
ROW = obj({"tenant": STR, "name": STR, "state": STR, "default_version": COUNT, "versions": COUNT, "bytes": COUNT,
           "residency": maybe(STR), "pinned": BOOL})
AUDIT = obj({"id": STR, "time": INT, "actor_key": maybe(STR), "actor": maybe(STR), "tenant": maybe(STR), "action": STR, "object": STR, "detail": maybe(STR)})
SLO = obj({"name": CLASS, "ttft_ms": COUNT, "tpot_ms": COUNT, "weight": NUM, "default": BOOL,
           "overload": {"enum": ["queue", "reject"]}, "tiers": arr(CLASS)})
NODE = obj({"object": {"const": "node"}, "node": COUNT, "name": STR, "state": {"enum": ["alive", "draining", "silent", "stopped"]},
            "this": BOOL, "role": maybe(STR), "silent_ms": maybe(COUNT), "epoch": COUNT, "applied": COUNT, "behind": COUNT})


def page(of, cursor=False):
    return obj({"object": {"const": "list"}, "data": arr(of), "has_more": BOOL, **({"next": maybe(STR)} if cursor else {})})


SCHEMAS = {
    "Tenant": TENANT, "Tenants": page(TENANT), "AdminKey": KEY, "AdminKeys": page(KEY), "TenantLimits": TENANT_LIMITS,
    "AllLimits": page(TENANT_LIMITS), "AdapterLimits": NAME_LIMITS, "Requests": page({"anyOf": [REQUEST, ENDED]}),
    "History": page(HISTORY), "Configuration": page({"anyOf": [OPTION, DIFFERENCE]}), "Changed": CHANGED,
    "Cancelled": obj({"object": {"const": "request"}, "id": STR, "request_id": STR, "cancelled": {"const": True}}),
    "Rows": page(ROW, True), "Audit": page(AUDIT), "Classes": page(SLO), "Nodes": page(NODE), "Done": obj({"status": STR}), "Stats": ANY,
    "Registration": obj({"object": {"const": "adapter.registration"}, "errors": arr(obj({"path": STR, "message": STR})),
                         "registered": COUNT, "unchanged": COUNT, "refused": COUNT}),
}

# ------------------------------------------------------------------------------------------ what is asked

LIMIT = {"type": ["integer", "null"], "minimum": 0, "maximum": 2**50}
KEY_LIMIT = {"type": ["integer", "null"], "minimum": 0, "maximum": 2**40}
TENANT_NAME = {"type": "string", "pattern": "^[a-z0-9][a-z0-9._-]{0,63}$"}
NAMES = opt(arr({"type": "string", "pattern": "^[^,\\x00-\\x1f\\x7f]+$"}))
NETWORKS = opt(arr({"type": "string", "format": "cidr", "examples": ["192.0.2.0/24", "2001:db8::/32"]}))
NEW_LIMITS = obj({n: LIMIT for n in LIMIT_NAMES}, optional=LIMIT_NAMES)
SURCHARGE = {"type": ["integer", "null"], "minimum": 0, "maximum": PRICE_MAX}
NEW_NAME_LIMITS = obj({**{n: LIMIT for n in ADAPTER_LIMITS}, **{n: SURCHARGE for n in SURCHARGES}}, optional=ADAPTER_LIMITS + SURCHARGES)
TARGET_MS = {"type": ["integer", "null"], "minimum": 1, "maximum": 86400000}
NEW_TARGET = {**obj({"ttft_ms": TARGET_MS, "tpot_ms": TARGET_MS}, optional=("ttft_ms", "tpot_ms")), "type": ["object", "null"]}
TENANT_SET = {"weight": {"type": ["number", "null"], "minimum": 0.001, "maximum": 1000}, "disabled": opt(BOOL),
              "default_class": opt(CLASS), "classes": NAMES, "models": NAMES,
              "adapter_source": opt({"type": "string", "maxLength": 511}), "targets": {"type": ["object", "null"], "propertyNames": CLASS, "additionalProperties": NEW_TARGET},
              "networks": NETWORKS, "limits": {**NEW_LIMITS, "type": ["object", "null"]}}
TENANT_NEW = obj({"name": TENANT_NAME, **TENANT_SET}, optional=TENANT_SET)
TENANT_PATCH = obj({"name": opt(TENANT_NAME), **TENANT_SET}, optional=["name", *TENANT_SET])
KEY_SET = {"name": {"type": ["string", "null"], "maxLength": 64, "pattern": "^[^\\x00-\\x1f\\x7f]*$"}, "expires_at": KEY_LIMIT,
           **{n: KEY_LIMIT for n in ADAPTER_LIMITS}, "networks": NETWORKS}
KEY_NEW = obj({"tenant": opt(STR), "scopes": arr(SCOPE, minItems=1), **KEY_SET}, optional=["tenant", *KEY_SET])
CURSOR = COUNT
REGISTER = obj({"path": STR, "tenant": STR, "activate": opt(BOOL)}, optional=["activate"])
BACKUP = obj({"path": {"type": "string", "pattern": "^/"}})
USAGE_QUERY = [*(query(n, TIME) for n in ("start", "start_time", "end", "end_time")), query("tenant", STR), query("model", STR),
               query("bucket_width", {"enum": ["1m", "1h", "1d"]}),
               query("group_by", {"enum": ["model", "key", "tenant", "adapter", "class", "tenant,model"]})]
PAGE = [query("limit", {"type": "integer", "minimum": 1, "maximum": 1000}), query("after", STR), query("prefix", STR),
        query("state", {"enum": ["ready", "failed", "draining"]}), query("tenant", STR),
        query("residency", {"enum": ["disk", "loading", "host", "device", "failed"]})]
STATS_QUERY = [query("cursor", STR), query("limit", {"type": "integer", "minimum": 1, "maximum": 50000}),
               query("tables", {"enum": ["tenants", "adapters", "requests", "events", "tenants,events", ""]}),
               query("interval_ms", {"type": "integer", "minimum": 100, "maximum": 60000})]


def links(thing, parameter, source, *methods):
    return {f"{m.lower()}It": (m, f"/admin/v1/{thing}/{{{parameter}}}", {parameter: f"$response.body#/{source}"}) for m in methods}


ROUTES = [operation(m, "/admin/v1/" + p, gives, asked, **more) for m, p, gives, asked, more in (
    ("POST", "tenants", "Tenant", TENANT_NEW, {"statuses": [201], "errors": [409],
                                              "links": links("tenants", "tenant", "name", "GET", "PATCH", "DELETE")}),
    ("GET", "tenants", "Tenants", None, {"parameters": [query("after", CURSOR)]}),
    ("GET", "tenants/{tenant}", "Tenant", None, {"errors": [404]}),
    ("PATCH", "tenants/{tenant}", "Tenant", TENANT_PATCH, {"statuses": [200, 202], "errors": [404, 409]}),
    ("DELETE", "tenants/{tenant}", "Tenant", None, {"statuses": [200, 202], "errors": [404]}),
    ("POST", "tenants/{tenant}/adapters/{name}/{verb}", "Adapter", None, {"statuses": [200, 202], "errors": [404, 409, 412]}),
    ("POST", "keys", "AdminKey", KEY_NEW, {"statuses": [201], "errors": [404, 409],
                                          "links": links("keys", "key", "id", "GET", "PATCH", "DELETE")}),
    ("GET", "keys", "AdminKeys", None, {"errors": [404], "parameters": [query("tenant", STR), query("all", FLAG)]}),
    ("GET", "keys/{key}", "AdminKey", None, {"errors": [404]}),
    ("PATCH", "keys/{key}", "AdminKey", obj(KEY_SET, optional=KEY_SET), {"errors": [404, 409]}),
    ("POST", "keys/{key}/rotate", "AdminKey", None, {"statuses": [201], "errors": [404, 409], "parameters": [
        query("grace_seconds", {"type": "integer", "minimum": 0, "maximum": 366 * 86400})]}),
    ("DELETE", "keys/{key}", "AdminKey", None, {"statuses": [200, 202], "errors": [404]}),
    ("GET", "limits", "AllLimits", None, {"parameters": [query("after", CURSOR)]}),
    ("GET", "limits/{tenant}", "TenantLimits", None, {"errors": [404]}),
    ("PATCH", "limits/{tenant}", "TenantLimits", NEW_LIMITS, {"errors": [404]}),
    ("GET", "limits/{tenant}/{name}", "AdapterLimits", None, {"errors": [404]}),
    ("PATCH", "limits/{tenant}/{name}", "AdapterLimits", NEW_NAME_LIMITS, {"errors": [404, 409, 412]}),
    ("GET", "requests", "Requests", None, {"parameters": [
        query("limit", {"type": "integer", "minimum": 1, "maximum": 10000}), query("tenant", STR),
        query("state", {"enum": ["waiting", "prefill", "decode", "ended"]}),
        query("slow", {"type": "integer", "minimum": 1, "maximum": 86400000})]}),
    ("DELETE", "requests/{id}", "Cancelled", None, {"statuses": [202], "errors": [404]}),
    ("GET", "stats", "Stats", None, {"parameters": STATS_QUERY}),
    ("GET", "history", "History", None, {"parameters": [
        query("by", {"enum": ["class", "tenant", "adapter"]}), query("name", STR), query("start", TIME), query("end", TIME),
        query("step", {"enum": [10, 600]}), query("limit", {"type": "integer", "minimum": 1, "maximum": 50000})]}),
    ("GET", "classes", "Classes", None, {}),
    ("GET", "adapters", "Rows", None, {"errors": [404], "parameters": PAGE}),
    ("POST", "adapters/register", "Registration", REGISTER, {"errors": [404, 409, 422, 507]}),
    ("GET", "usage", "Usage", None, {"errors": [404], "parameters": USAGE_QUERY, "csv": True}),
    ("GET", "audit", "Audit", None, {"parameters": [query("before", CURSOR)]}),
    ("POST", "backup", "Done", BACKUP, {"errors": [404, 409, 507]}),
    ("POST", "drain", "Done", None, {"statuses": [202]}),
    ("GET", "nodes", "Nodes", None, {"errors": [409]}),
    ("POST", "nodes/{node}/drain", "Done", None, {"statuses": [202], "errors": [404, 409]}),
    ("POST", "nodes/{node}/fence", "Done", None, {"errors": [404, 409]}),
    ("POST", "reload", "Changed", None, {"errors": [409]}),
    ("GET", "config", "Configuration", None, {"errors": [409], "parameters": [query("pending", FLAG)]}),
    ("PATCH", "config", "Changed", NEW_CONFIG, {"errors": [409]}),
)]
