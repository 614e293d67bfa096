"""openapi_doors.py -- the Responses API's and the Messages API's part of conf/openapi.json (see make_openapi.py).

Answers are held to the SDKs' own types, member by member, by tests/e2e/openai/test_responses.py and its like; here stands
what each of them must have."""
from openapi_words import ANY, BOOL, COUNT, STACK, STR, arr, maybe, obj, operation, opt, query


def open_obj(required):
    return {"type": "object", "properties": required, "required": list(required)}


STATUS = {"enum": ["completed", "incomplete", "in_progress", "queued", "failed", "cancelled"]}
RESPONSE = open_obj({"id": {"type": "string", "pattern": "^resp_[0-9a-f]{48}$"}, "object": {"const": "response"}, "created_at": COUNT,
                     "status": STATUS, "model": STR, "output": arr(ANY), "error": maybe(ANY), "incomplete_details": maybe(ANY),
                     "usage": maybe(ANY), "store": BOOL, "tools": arr(ANY)})
RESPONSE_EVENT = open_obj({"type": STR, "sequence_number": COUNT})
CONVERSATION = obj({"id": {"type": "string", "pattern": "^conv_[0-9a-f]{48}$"}, "object": {"const": "conversation"}, "created_at": COUNT,
                    "metadata": ANY})
ITEMS = obj({"object": {"const": "list"}, "data": arr(ANY), "first_id": STR, "last_id": STR, "has_more": BOOL})

POOLED_USAGE = obj({"prompt_tokens": COUNT, "total_tokens": COUNT})
SCORED = {"id": STR, "object": {"const": "list"}, "created": COUNT, "model": STR}
NUMBER = {"type": "number"}
POOLED_SCHEMAS = {
    "Embeddings": obj({"object": {"const": "list"}, "model": STR, "usage": POOLED_USAGE, "data": arr(obj(
        {"object": {"const": "embedding"}, "index": COUNT, "embedding": {"anyOf": [arr(NUMBER), STR]}}))}),
    "Scores": obj({**SCORED, "usage": POOLED_USAGE, "data": arr(obj(
        {"index": COUNT, "object": {"const": "score"}, "score": NUMBER}))}),
    "TextClasses": obj({**SCORED, "usage": POOLED_USAGE, "data": arr(obj(
        {"index": COUNT, "label": STR, "probs": arr(NUMBER), "num_classes": COUNT}))}),
    "Ranking": obj({"id": STR, "model": STR, "usage": POOLED_USAGE, "results": arr(open_obj(
        {"index": COUNT, "relevance_score": NUMBER}))}),
}

SCHEMAS = {
    "Response": RESPONSE, "ResponseEvent": RESPONSE_EVENT, "Items": ITEMS, "Conversation": CONVERSATION,
    "Health": obj({"status": STR}),
    "Message": open_obj({"id": {"type": "string", "pattern": "^msg_[0-9a-f]{48}$"}, "type": {"const": "message"},
                         "role": {"const": "assistant"}, "model": STR, "content": arr(ANY), "stop_reason": STR,
                         "stop_sequence": maybe(STR), "usage": ANY}),
    "MessageEvent": open_obj({"type": STR}), "MessageTokens": obj({"input_tokens": COUNT}),
    "ResponseTokens": obj({"object": {"const": "response.input_tokens"}, "input_tokens": COUNT}),
    "MessageError": obj({"type": {"const": "error"}, "error": obj({"type": STR, "message": STR}), "request_id": STR}),
    **POOLED_SCHEMAS,
    "ResponseDeleted": obj({"id": STR, "object": {"enum": ["response", "conversation.deleted"]}, "deleted": {"const": True}}),
}

MESSAGE = {"type": "object", "required": ["role"], "properties": {
    "type": {"enum": ["message", None]}, "role": {"enum": ["user", "assistant", "system", "developer"]}, "content": opt(STR)}}
METADATA = {"type": ["object", "null"], "maxProperties": 16, "additionalProperties": {"type": "string", "maxLength": 512},
            "description": "names of at most 64 bytes"}
ASK = {"type": "object", "required": ["model", "input"], "properties": {
    "model": {"type": "string", "minLength": 1, "maxLength": 256}, "input": {"anyOf": [STR, arr(MESSAGE, minItems=1, maxItems=2048)]},
    "instructions": opt(STR), "max_output_tokens": {"type": ["integer", "null"], "minimum": 1},
    "temperature": {"type": ["number", "null"], "minimum": 0, "maximum": 2},
    "top_p": {"type": ["number", "null"], "exclusiveMinimum": 0, "maximum": 1}, "stream": opt(BOOL), "store": opt(BOOL), "background": opt(BOOL),
    "adapters": STACK, "parallel_tool_calls": opt(BOOL), "truncation": {"enum": ["auto", "disabled", None]}, "metadata": METADATA}}
MESSAGES = {"model": ASK["properties"]["model"], "messages": arr({"type": "object", "required": ["role"], "properties": {
    "role": {"enum": ["user", "assistant"]}, "content": opt(STR)}}, minItems=1, maxItems=2047), "system": opt(STR),
    "temperature": {"type": ["number", "null"], "minimum": 0, "maximum": 1}, "top_k": {"type": ["integer", "null"], "minimum": 0},
    "top_p": ASK["properties"]["top_p"], "stream": opt(BOOL), "stop_sequences": opt(arr({"type": "string", "pattern": "\\S", "maxLength": 256}, maxItems=16)),
    "service_tier": {"enum": ["auto", "standard_only", None]}, "adapters": STACK}
ASK_MESSAGE = {"type": "object", "required": ["model", "messages", "max_tokens"],
               "properties": {**MESSAGES, "max_tokens": {"type": "integer", "minimum": 1}}}
ASK_COUNT = {"type": "object", "required": ["model", "messages"], "properties": MESSAGES}
INPUTS = {"anyOf": [STR, arr(COUNT), arr(STR, minItems=1, maxItems=2048), arr(arr(COUNT), minItems=1, maxItems=2048)]}
ONE_TEXT = {"anyOf": [STR, open_obj({"text": STR})]}
TEXTS = {"anyOf": [*ONE_TEXT["anyOf"], arr(ONE_TEXT, minItems=1, maxItems=2048)]}
POOLED = {"model": ASK["properties"]["model"], "service_tier": opt(STR), "cache_salt": opt({"type": "string", "maxLength": 1024}),
          "priority": {"type": ["integer", "null"], "minimum": -1000000, "maximum": 1000000}, "add_special_tokens": opt(BOOL),
          "truncate_prompt_tokens": {"type": ["integer", "null"], "minimum": -1, "not": {"const": 0}}}


def ask_pooled(required, more=None):
    return {"type": "object", "required": ["model", *required], "properties": {**POOLED, **required, **(more or {})}}


ASK_EMBEDDINGS = ask_pooled({"input": INPUTS}, {"encoding_format": {"enum": ["float", "base64", None]}, "normalize": opt(BOOL),
                                                "dimensions": {"type": ["integer", "null"], "minimum": 1}})
ASK_CLASSES = ask_pooled({"input": INPUTS})
ASK_SCORES = ask_pooled({}, {n: {"anyOf": [*TEXTS["anyOf"], {"type": "null"}], "description": "two sides of one way to name them"}
                             for n in ("text_1", "text_2", "queries", "documents", "items", "data_1", "data_2")})
ASK_RANKING = ask_pooled({"query": ONE_TEXT, "documents": TEXTS},
                         {"top_n": {"type": ["integer", "null"], "minimum": 0}, "return_documents": opt(BOOL)})
NEW_CONVERSATION = {"type": "object", "properties": {"items": opt(arr(MESSAGE, maxItems=20)), "metadata": METADATA}}
PAGE = [query("limit", {"type": "integer", "minimum": 1, "maximum": 100}), query("order", {"enum": ["asc", "desc"]}), query("after", STR)]

ROUTES = [
    *((m, p, {**what, "security": []}) for m, p, what in (  # without a key
        operation(method, path, "Health") for method, path in (("GET", "/health"), ("GET", "/ping"), ("POST", "/ping")))),
    *(operation("POST", path, answer, ask, errors=[404, 409, 422, 504], limited=["requests", "tokens"]) for path, answer, ask in (
        ("/v1/embeddings", "Embeddings", ASK_EMBEDDINGS), ("/v1/score", "Scores", ASK_SCORES), ("/v1/classify", "TextClasses", ASK_CLASSES),
        ("/v1/rerank", "Ranking", ASK_RANKING), ("/v2/rerank", "Ranking", ASK_RANKING))),
    operation("POST", "/v1/messages", "Message", ASK_MESSAGE, "MessageEvent", errors=[404, 409, 422, 504], limited=["requests", "tokens"],
              error="MessageError"),
    operation("POST", "/v1/messages/count_tokens", "MessageTokens", ASK_COUNT, errors=[404], limited=["requests"], error="MessageError"),
    operation("POST", "/v1/responses", "Response", ASK, "ResponseEvent", errors=[404, 409, 422, 504], limited=["requests", "tokens"]),
    operation("POST", "/v1/responses/input_tokens", "ResponseTokens", {**ASK, "required": ["input"]}, errors=[404], limited=["requests"]),
    operation("GET", "/v1/responses/{response}", "Response", frames="ResponseEvent", errors=[404],
              parameters=[query("stream", {"enum": ["true", "false"]}), query("starting_after", {"type": "integer", "minimum": 0})]),
    operation("DELETE", "/v1/responses/{response}", "ResponseDeleted", errors=[404]),
    operation("POST", "/v1/responses/{response}/cancel", "Response", errors=[404]),
    operation("GET", "/v1/responses/{response}/input_items", "Items", errors=[404], parameters=PAGE),
    operation("POST", "/v1/conversations", "Conversation", NEW_CONVERSATION),
    operation("GET", "/v1/conversations/{conversation}", "Conversation", errors=[404]),
    operation("DELETE", "/v1/conversations/{conversation}", "ResponseDeleted", errors=[404]),
    operation("GET", "/v1/conversations/{conversation}/items", "Items", errors=[404], parameters=PAGE),
]
