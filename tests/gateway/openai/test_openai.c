/* test_openai.c -- bodies of completion requests: what is taken, refused by name, or ignored. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <check.h>

#include "engine/base/json.h"
#include "gateway/http/jsonw.h"
#include "gateway/openai/openai.h"
#include "gateway/openai/openai_tools.h"
#include "tests/run_suite.h"

static const openai_limits limits = {.n_vocab = 1000,
                                     .base = "base",
                                     .max_context = 512,
                                     .max_choices = 8,
                                     .max_beams = 4,
                                     .defaults = {SAMPLING_MODEL_LIST(SAMPLING_NEUTRAL)}};

typedef struct {
    arena mem;
    cJSON *tree;
    openai_request rq;
    openai_problem p;
    bool ok;
} parsed;

static void parse(parsed *out, bool chat, const char *body)
{
    memset(out, 0, sizeof(*out));
    arena_init(&out->mem, 1 << 20);
    err e;
    ck_assert_msg(json_parse(body, strlen(body), &json_limits_request, &out->tree, &e) == ERR_NONE,
                  "%s: %s", body, e.msg);
    out->ok = openai_parse(&out->rq, chat, out->tree, &limits, &out->mem, &out->p);
}

static void drop(parsed *p)
{
    openai_request_clear(&p->rq);
    cJSON_Delete(p->tree);
    arena_clear(&p->mem);
}

#define MSG        "\"model\":\"m\",\"messages\":[{\"role\":\"user\",\"content\":\"hi\"}]"
#define TOOL(name) "{\"type\":\"function\",\"function\":{\"name\":\"" name "\"}}"
#define CALL(args)                                                                          \
    "{\"role\":\"assistant\",\"content\":null,\"tool_calls\":[{\"id\":\"c\",\"function\":{" \
    "\"name\":"                                                                             \
    "\"f\",\"arguments\":" args "}}]}"
#define TXT   "\"model\":\"m\",\"prompt\":\"hi\""
#define BEAMS TXT ",\"use_beam_search\":true"

typedef struct {
    bool chat;
    const char *body, *param, *code;
} refusal;

static const refusal refusals[] = {
    {true, "[]", "", "invalid_value"},
    {true, "null", "", "invalid_value"},
    {true, "42", "", "invalid_value"},
    {true, "{}", "model", "missing_required_parameter"},
    {true, "{\"Model\":\"m\",\"messages\":[]}", "model", "missing_required_parameter"},
    {true, "{\"model\":\"\",\"messages\":[]}", "model", "missing_required_parameter"},
    {true, "{\"model\":7,\"messages\":[]}", "model", "invalid_value"},
    {true, "{\"model\":\"m\"}", "messages", "missing_required_parameter"},
    {true, "{\"model\":\"m\",\"messages\":[]}", "messages", "invalid_value"},
    {true, "{\"model\":\"m\",\"messages\":{}}", "messages", "invalid_value"},
    {true, "{\"model\":\"m\",\"messages\":[1]}", "messages[0]", "invalid_value"},
    {true, "{\"model\":\"m\",\"messages\":[{}]}", "messages[0].role", "invalid_value"},
    {true, "{\"model\":\"m\",\"messages\":[{\"role\":\"root\",\"content\":\"x\"}]}",
     "messages[0].role", "invalid_value"},
    {true, "{\"model\":\"m\",\"messages\":[{\"role\":\"tool\",\"content\":\"x\"}]}",
     "messages[0].tool_call_id", "missing_required_parameter"},
    {true, "{\"model\":\"m\",\"messages\":[{\"role\":\"user\",\"content\":42}]}",
     "messages[0].content", "invalid_value"},
    {true,
     "{\"model\":\"m\",\"messages\":[{\"role\":\"user\",\"content\":[{\"type\":\"image_url\"}]}]}",
     "messages[0].content[0].type", "invalid_value"},
    {true, "{\"model\":\"m\",\"messages\":[{\"role\":\"user\",\"content\":[{\"type\":\"text\"}]}]}",
     "messages[0].content[0].text", "invalid_value"},
    {false, "{\"model\":\"m\"}", "prompt", "missing_required_parameter"},
    {false, "{\"model\":\"m\",\"prompt\":null}", "prompt", "missing_required_parameter"},
    {false, "{\"model\":\"m\",\"prompt\":7}", "prompt", "invalid_value"},
    {false, "{\"model\":\"m\",\"prompt\":[]}", "prompt", "invalid_value"},
    {false, "{\"model\":\"m\",\"prompt\":[\"a\",7]}", "prompt[1]", "invalid_value"},
    {false, "{\"model\":\"m\",\"prompt\":[1,-1]}", "prompt", "invalid_value"},
    {false, "{\"model\":\"m\",\"prompt\":[1,1000]}", "prompt", "invalid_value"},
    {false, "{\"model\":\"m\",\"prompt\":[1,2147483648]}", "prompt", "invalid_value"},
    {false, "{\"model\":\"m\",\"prompt\":[1,0.5]}", "prompt", "invalid_value"},
    {false, "{\"model\":\"m\",\"prompt\":[[1],[\"a\"]]}", "prompt[1]", "invalid_value"},
    {false, "{" TXT ",\"suffix\":\"x\"}", "suffix", "unsupported_parameter"},
    {false, "{" TXT ",\"best_of\":2,\"n\":3}", "best_of", "invalid_value"},
    {false, "{" TXT ",\"best_of\":2,\"stream\":true}", "best_of", "unsupported_parameter"},
    {false, "{" TXT ",\"best_of\":9}", "best_of", "invalid_value"},
    {false, "{" TXT ",\"length_penalty\":1}", "length_penalty", "unsupported_parameter"},
    {false, "{" TXT ",\"early_stopping\":true}", "early_stopping", "unsupported_parameter"},
    {false, "{" BEAMS ",\"n\":5}", "n", "invalid_value"},
    {false, "{" BEAMS ",\"best_of\":5}", "best_of", "invalid_value"},
    {false, "{" BEAMS ",\"early_stopping\":\"soon\"}", "early_stopping", "invalid_value"},
    {false, "{" BEAMS ",\"temperature\":0.5}", "temperature", "unsupported_parameter"},
    {false, "{" BEAMS ",\"top_k\":5}", "top_k", "unsupported_parameter"},
    {false, "{" BEAMS ",\"stream\":true}", "stream", "unsupported_parameter"},
    {false, "{" BEAMS ",\"echo\":true}", "echo", "unsupported_parameter"},
    {false, "{" BEAMS ",\"stop\":\"x\"}", "stop", "unsupported_parameter"},
    {false, "{" BEAMS ",\"prompt_logprobs\":1}", "prompt_logprobs", "unsupported_parameter"},
    {false, "{" BEAMS ",\"logprobs_mode\":\"raw_logprobs\"}", "logprobs_mode",
     "unsupported_parameter"},
    {false, "{" TXT ",\"best_of\":1000000}", "best_of", "invalid_value"},
    {false, "{" TXT ",\"logprobs\":21}", "logprobs", "invalid_value"},
    {false, "{" TXT ",\"logprobs\":true}", "logprobs", "invalid_value"},
    {false, "{" TXT ",\"echo\":1}", "echo", "invalid_value"},
    {true, "{" MSG ",\"max_tokens\":-1}", "max_tokens", "invalid_value"},
    {true, "{" MSG ",\"max_tokens\":0}", "max_tokens", "invalid_value"},
    {true, "{" MSG ",\"max_tokens\":1.5}", "max_tokens", "invalid_value"},
    {true, "{" MSG ",\"max_tokens\":\"10\"}", "max_tokens", "invalid_value"},
    {true, "{" MSG ",\"max_tokens\":2147483648}", "max_tokens", "invalid_value"},
    {true, "{" MSG ",\"max_tokens\":9007199254740993}", "max_tokens", "invalid_value"},
    {true, "{" MSG ",\"max_tokens\":1e308}", "max_tokens", "invalid_value"},
    {true, "{" MSG ",\"max_tokens\":5,\"max_completion_tokens\":6}", "max_tokens", "invalid_value"},
    {true, "{" MSG ",\"max_tokens\":5,\"min_tokens\":6}", "min_tokens", "invalid_value"},
    {true, "{" MSG ",\"temperature\":-0.1}", "temperature", "invalid_value"},
    {true, "{" MSG ",\"temperature\":2.1}", "temperature", "invalid_value"},
    {true, "{" MSG ",\"temperature\":\"1\"}", "temperature", "invalid_value"},
    {true, "{" MSG ",\"temperature\":true}", "temperature", "invalid_value"},
    {true, "{" MSG ",\"top_p\":0}", "top_p", "invalid_value"},
    {true, "{" MSG ",\"top_p\":-1}", "top_p", "invalid_value"},
    {true, "{" MSG ",\"top_p\":1.0001}", "top_p", "invalid_value"},
    {true, "{" MSG ",\"top_k\":-2}", "top_k", "invalid_value"},
    {true, "{" MSG ",\"top_k\":1000000000}", "top_k", "invalid_value"},
    {true, "{" MSG ",\"min_p\":1.5}", "min_p", "invalid_value"},
    {true, "{" MSG ",\"repetition_penalty\":0}", "repetition_penalty", "invalid_value"},
    {true, "{" MSG ",\"repetition_penalty\":-1}", "repetition_penalty", "invalid_value"},
    {true, "{" MSG ",\"presence_penalty\":3}", "presence_penalty", "invalid_value"},
    {true, "{" MSG ",\"frequency_penalty\":-3}", "frequency_penalty", "invalid_value"},
    {true, "{" MSG ",\"n\":0}", "n", "invalid_value"},
    {true, "{" MSG ",\"n\":9}", "n", "invalid_value"},
    {true, "{" MSG ",\"n\":129}", "n", "invalid_value"},
    {false, "{\"model\":\"m\",\"prompt\":[\"a\",\"b\",\"c\"],\"n\":3}", "n", "invalid_value"},
    {true, "{" MSG ",\"seed\":9223372036854775808}", "seed", "invalid_value"},
    {true, "{" MSG ",\"seed\":-9223372036854775809}", "seed", "invalid_value"},
    {true, "{" MSG ",\"seed\":1.5}", "seed", "invalid_value"},
    {true, "{" MSG ",\"seed\":\"x\"}", "seed", "invalid_value"},
    {true, "{" MSG ",\"stop\":7}", "stop", "invalid_value"},
    {true, "{" MSG ",\"stop\":[[]]}", "stop", "invalid_value"},
    {true,
     "{" MSG ",\"stop\":[\"a\",\"b\",\"c\",\"d\",\"e\",\"f\",\"g\",\"h\",\"i\",\"j\",\"k\",\"l\","
     "\"m\",\"n\",\"o\",\"p\",\"q\"]}",
     "stop", "invalid_value"},
    {true, "{" MSG ",\"stop_token_ids\":[1000]}", "stop_token_ids", "invalid_value"},
    {true, "{" MSG ",\"stop_token_ids\":3}", "stop_token_ids", "invalid_value"},
    {true, "{" MSG ",\"logit_bias\":[]}", "logit_bias", "invalid_value"},
    {true, "{" MSG ",\"logit_bias\":{\"-1\":1}}", "logit_bias", "invalid_value"},
    {true, "{" MSG ",\"logit_bias\":{\"+1\":1}}", "logit_bias", "invalid_value"},
    {true, "{" MSG ",\"logit_bias\":{\"x\":1}}", "logit_bias", "invalid_value"},
    {true, "{" MSG ",\"logit_bias\":{\"\":1}}", "logit_bias", "invalid_value"},
    {true, "{" MSG ",\"logit_bias\":{\"999999999\":1}}", "logit_bias", "invalid_value"},
    {true, "{" MSG ",\"logit_bias\":{\"5\":1e300}}", "logit_bias", "invalid_value"},
    {true, "{" MSG ",\"logit_bias\":{\"5\":\"1\"}}", "logit_bias", "invalid_value"},
    {true, "{" MSG ",\"logprobs\":1}", "logprobs", "invalid_value"},
    {true, "{" MSG ",\"top_logprobs\":3}", "top_logprobs", "invalid_value"},
    {true, "{" MSG ",\"logprobs\":true,\"top_logprobs\":21}", "top_logprobs", "invalid_value"},
    {true, "{" MSG ",\"logprobs\":true,\"top_logprobs\":-1}", "top_logprobs", "invalid_value"},
    {true, "{" MSG ",\"stream\":\"true\"}", "stream", "invalid_value"},
    {true, "{" MSG ",\"stream\":1}", "stream", "invalid_value"},
    {true, "{" MSG ",\"stream_options\":{}}", "stream_options", "invalid_value"},
    {true, "{" MSG ",\"stream\":true,\"stream_options\":[]}", "stream_options", "invalid_value"},
    {true, "{" MSG ",\"stream\":true,\"stream_options\":{\"include_usage\":1}}", "include_usage",
     "invalid_value"},
    {true, "{" MSG ",\"response_format\":\"text\"}", "response_format", "invalid_value"},
    {true, "{" MSG ",\"response_format\":{\"type\":\"xml\"}}", "response_format", "invalid_value"},
    {true, "{" MSG ",\"response_format\":{\"type\":\"json_schema\",\"json_schema\":{}}}",
     "response_format.json_schema.schema", "missing_required_parameter"},
    {true, "{" MSG ",\"structured_outputs\":[]}", "structured_outputs", "invalid_value"},
    {true, "{" MSG ",\"structured_outputs\":{\"grammar\":[]}}", "structured_outputs.grammar",
     "invalid_value"},
    {true, "{" MSG ",\"structured_outputs\":{\"new\":1}}", "structured_outputs",
     "unsupported_parameter"},
    {true, "{" MSG ",\"structured_outputs\":{\"json\":\"{\"}}", "structured_outputs.json",
     "invalid_value"},
    {true, "{" MSG ",\"structured_outputs\":{\"json\":\"{}\",\"regex\":\"a\"}}",
     "structured_outputs.regex", "invalid_value"},
    {true, "{" MSG ",\"guided_json\":{},\"response_format\":{\"type\":\"json_object\"}}",
     "guided_json", "invalid_value"},
    {true, "{" MSG ",\"guided_regex\":7}", "guided_regex", "invalid_value"},
    {true, "{" MSG ",\"guided_choice\":\"a\"}", "guided_choice", "invalid_value"},
    {true, "{" MSG ",\"guided_grammar\":{}}", "guided_grammar", "invalid_value"},
    {true, "{" MSG ",\"grammar\":\"root ::= \\\"a\\\"\",\"guided_regex\":\"a\"}", "grammar",
     "invalid_value"},
    {true, "{" MSG ",\"tools\":[{}]}", "tools[0].type", "invalid_value"},
    {true, "{" MSG ",\"tools\":{}}", "tools", "invalid_value"},
    {true, "{" MSG ",\"tools\":[],\"tool_choice\":\"required\"}", "tool_choice", "invalid_value"},
    {true,
     "{\"model\":\"m\",\"messages\":[{\"role\":\"assistant\",\"content\":\"\",\"tool_calls\":{}}]}",
     "messages[0].tool_calls", "invalid_value"},
    {true, "{" MSG ",\"tools\":[{\"type\":\"function\"}]}", "tools[0].function", "invalid_value"},
    {true, "{" MSG ",\"tools\":[" TOOL("a b") "]}", "tools[0].function.name", "invalid_value"},
    {true, "{" MSG ",\"tools\":[" TOOL("f") "," TOOL("f") "]}", "tools[1].function.name",
     "invalid_value"},
    {true,
     "{" MSG ",\"tools\":[{\"type\":\"function\",\"function\":{\"name\":\"f\",\"parameters\":3}}]}",
     "tools[0].function.parameters", "invalid_value"},
    {true, "{" MSG ",\"tool_choice\":\"auto\"}", "tool_choice", "invalid_value"},
    {true, "{" MSG ",\"tools\":[" TOOL("f") "],\"tool_choice\":\"any\"}", "tool_choice",
     "invalid_value"},
    {true,
     "{" MSG ",\"tools\":[" TOOL("f") "],\"tool_choice\":{\"type\":\"function\",\"function\":"
                                      "{\"name\":\"g\"}}}",
     "tool_choice", "invalid_value"},
    {true, "{" MSG ",\"tools\":[" TOOL("f") "],\"parallel_tool_calls\":1}", "parallel_tool_calls",
     "invalid_value"},
    {true,
     "{\"model\":\"m\",\"messages\":[{\"role\":\"user\",\"content\":\"\",\"tool_calls\":[1]}]}",
     "messages[0].tool_calls", "invalid_value"},
    {true, "{\"model\":\"m\",\"messages\":[{\"role\":\"user\",\"content\":\"\",\"name\":1}]}",
     "messages[0].name", "invalid_value"},
    {true, "{" MSG ",\"modalities\":[\"text\",\"audio\"]}", "modalities", "unsupported_parameter"},
    {true, "{" MSG ",\"functions\":[]}", "functions", "unsupported_parameter"},
    {true, "{" MSG ",\"audio\":{}}", "audio", "unsupported_parameter"},
    {true, "{" MSG ",\"lora\":[]}", "lora", "unsupported_parameter"},
    {true, "{" MSG ",\"adapter_path\":\"/etc\"}", "adapter_path", "unsupported_parameter"},
    {true, "{" MSG ",\"tenant\":\"B\"}", "tenant", "unsupported_parameter"},
    {true, "{" MSG ",\"priority\":0.5}", "priority", "invalid_value"},
    {true, "{" MSG ",\"chat_template\":\"x\"}", "chat_template", "unsupported_parameter"},
    {true, "{" MSG ",\"truncate_prompt_tokens\":0}", "truncate_prompt_tokens", "invalid_value"},
    {false, "{" TXT ",\"truncate_prompt_tokens\":-2}", "truncate_prompt_tokens", "invalid_value"},
    {true, "{" MSG ",\"prompt_logprobs\":21}", "prompt_logprobs", "invalid_value"},
    {false, "{" TXT ",\"prompt_logprobs\":-1}", "prompt_logprobs", "invalid_value"},
    {false, "{" TXT ",\"prompt_logprobs\":0,\"stream\":true}", "prompt_logprobs", "invalid_value"},
    {true, "{" MSG ",\"prompt_logprobs\":0,\"max_tokens\":0}", "max_tokens", "invalid_value"},
    {true, "{" MSG ",\"allowed_token_ids\":[]}", "allowed_token_ids", "invalid_value"},
    {true, "{" MSG ",\"allowed_token_ids\":7}", "allowed_token_ids", "invalid_value"},
    {true, "{" MSG ",\"allowed_token_ids\":[1000]}", "allowed_token_ids", "invalid_value"},
    {false, "{" TXT ",\"bad_words\":\"x\"}", "bad_words", "invalid_value"},
    {false, "{" TXT ",\"bad_words\":[\"\"]}", "bad_words", "invalid_value"},
    {false, "{" TXT ",\"bad_words\":[\" \\n\"]}", "bad_words", "invalid_value"},
    {false, "{" TXT ",\"bad_words\":[7]}", "bad_words", "invalid_value"},
    {true, "{" MSG ",\"continue_final_message\":true,\"add_generation_prompt\":true}",
     "continue_final_message", "invalid_value"},
    {true, "{" MSG ",\"continue_final_message\":\"yes\"}", "continue_final_message",
     "invalid_value"},
    {true, "{" MSG ",\"documents\":[{\"text\":\"x\"}]}", "documents", "unsupported_parameter"},
    {true, "{" MSG ",\"documents\":7}", "documents", "invalid_value"},
    {true, "{" MSG ",\"reasoning_effort\":\"loud\"}", "reasoning_effort", "invalid_value"},
    {true, "{" MSG ",\"service_tier\":7}", "service_tier", "invalid_value"},
};

START_TEST(each_refusal_names_its_field)
{
    const refusal *r = &refusals[_i];
    parsed p;
    parse(&p, r->chat, r->body);
    /* as who knows the model's vocabulary goes on */
    bool ok = p.ok && openai_check_ids(&p.rq, 1000, &p.p);
    ck_assert_msg(!ok, "accepted: %s", r->body);
    ck_assert_int_eq(p.p.status, 400);
    ck_assert_msg(strcmp(p.p.param, r->param) == 0, "%s: param is '%s', not '%s' (%s)", r->body,
                  p.p.param, r->param, p.p.msg);
    ck_assert_msg(strcmp(p.p.code, r->code) == 0, "%s: code is '%s'", r->body, p.p.code);
    ck_assert(p.p.msg[0]);
    drop(&p);
}
END_TEST

/* Arguments of earlier calls, as the template gets them, and as one does that needs an object. */
static const struct {
    const char *arguments, *text, *object;
} calls[] = {
    {"\"{\\\"a\\\":1}\"", "{\"a\":1}", "{\"a\":1}"},
    {"\"{\\\"a\\\":1,\\\"b\\\":{\\\"c\\\":1,\\\"c\\\":2},\\\"a\\\":3}\"",
     "{\"b\":{\"c\":2},\"a\":3}", "{\"b\":{\"c\":2},\"a\":3}"},
    {"{\"a\":1}", "{\"a\":1}", "{\"a\":1}"},
    {"null", "{}", "{}"},
    {"\"\"", "{}", "{}"},
    {"\" \\n\"", "{}", "{}"},
    {"\"{\"", "\"{\"", "{}"},
    {"\"{\\\"value\\\": \"", "\"{\\\"value\\\": \"", "{}"},
    {"\"{\\\"value\\\": \\\"ab\"", "\"{\\\"value\\\": \\\"ab\"", "{\"value\":\"ab\"}"},
    {"\"{\\\"a\\\": [1, {\\\"b\\\": 2}, {\\\"c\"", "\"{\\\"a\\\": [1, {\\\"b\\\": 2}, {\\\"c\"",
     "{\"a\":[1,{\"b\":2},{}]}"},
    {"\"{\\\"a\\\": \\\"x\\\\\\\\\\\", \\\"b\\\": tr\"",
     "\"{\\\"a\\\": \\\"x\\\\\\\\\\\", \\\"b\\\": tr\"", "{\"a\":\"x\\\\\"}"},
    {"\"{\\\"a\\\": \\\"x\\\\\"", "\"{\\\"a\\\": \\\"x\\\\\"", "{}"},
    {"\"[1]\"", "\"[1]\"", "{\"arguments\":\"[1]\"}"},
    {"\"ls -l\"", "\"ls -l\"", "{\"arguments\":\"ls -l\"}"},
    {"[1]", "\"[1]\"", "{\"arguments\":\"[1]\"}"},
    {"true", "\"true\"", "{\"arguments\":\"true\"}"},
    {"\"}\"", "\"}\"", "{\"arguments\":\"}\"}"},
};

static void check_arguments(const parsed *p, const char *want)
{
    char *got = json_print(json_get(
        json_get(cJSON_GetArrayItem(p->rq.msgs[0].tool_calls, 0), "function"), "arguments"));
    ck_assert_str_eq(got, want);
    free(got);
}

START_TEST(arguments_of_earlier_calls_are_never_refused)
{
    char body[512];
    parsed p;
    snprintf(body, sizeof(body),
             "{\"model\":\"m\",\"messages\":[{\"role\":\"assistant\",\"tool_calls\":[{\"id\":\"c\","
             "\"function\":{\"name\":\"f\",\"arguments\":%s}}]}]}",
             calls[_i].arguments);
    parse(&p, true, body);
    ck_assert_msg(p.ok, "%s: %s", body, p.p.msg);
    check_arguments(&p, calls[_i].text);
    ck_assert_int_eq(openai_mend_calls(&p.rq), calls[_i].text[0] == '"');
    check_arguments(&p, calls[_i].object);
    ck_assert(!openai_mend_calls(&p.rq));
    drop(&p);
}
END_TEST

static const char *const empties[] = {
    "{\"role\":\"assistant\"}",
    "{\"role\":\"assistant\",\"content\":null}",
    "{\"role\":\"assistant\",\"content\":[]}",
    "{\"role\":\"assistant\",\"content\":\"\",\"tool_calls\":[]}",
    "{\"role\":\"assistant\",\"content\":null,\"tool_calls\":null}",
    "{\"role\":\"assistant\",\"content\":null,\"reasoning_content\":\"hm\"}",
    "{\"role\":\"user\",\"content\":[],\"tool_calls\":[]}",
    "{\"role\":\"tool\",\"tool_call_id\":\"c\"}",
};

START_TEST(empty_messages_have_an_empty_text)
{
    char body[512];
    parsed p;
    snprintf(body, sizeof(body),
             "{\"model\":\"m\",\"tools\":[],\"tool_choice\":\"auto\",\"messages\":[%s]}",
             empties[_i]);
    parse(&p, true, body);
    ck_assert_msg(p.ok, "%s: %s", body, p.p.msg);
    ck_assert_str_eq(p.rq.msgs[0].text, "");
    ck_assert_ptr_null(p.rq.msgs[0].tool_calls);
    ck_assert_ptr_null(p.rq.tools);
    ck_assert_int_eq(p.rq.tool_choice, TOOL_CHOICE_NONE);
    drop(&p);
}
END_TEST

/* Fields by which other servers' clients select an adapter: the model, or what is said. */
static const struct {
    const char *members, *model, *said; /* model NULL: refused, and the sentence has `said` */
} selects[] = {
    {"\"lora_path\":\"pirate\"", "pirate", NULL},
    {"\"lora_path\":[\"pirate\"]", "pirate", NULL},
    {"\"lora_adapter\":\"pirate\"", "pirate", NULL},
    {"\"lora_name\":\"pirate@3\"", "pirate@3", NULL},
    {"\"lora_request\":{\"lora_name\":\"pirate\",\"lora_int_id\":1,\"lora_path\":\"/x\"}", "pirate",
     NULL},
    {"\"lora_id\":\"pirate\"", "pirate", NULL},
    {"\"loras\":[{\"name\":\"pirate\"}]", "pirate", NULL},
    {"\"adapter\":\"owner/pirate\"", "owner/pirate", NULL},
    {"\"adapter_name\":\"pirate\",\"lora_path\":\"pirate\"", "pirate", NULL},
    {"\"adapter_id\":\"pirate\"", "pirate", NULL},
    {"\"lora_path\":null,\"loras\":[],\"adapter\":\"\",\"lora_id\":[null]", "base", NULL},
    {"\"lora_id\":7", NULL, "name it in 'model'"},
    {"\"loras\":[\"a\",\"b\"]", NULL, "several in 'adapters'"},
    {"\"lora_path\":true", NULL, "name it in 'model'"},
    {"\"lora_path\":\"a\",\"adapter\":\"b\"", NULL, "name the adapter in 'model' alone"},
    {"\"lora_path\":\"a\",\"adapters\":[{\"name\":\"b\"}]", NULL, "give 'adapters'"},
    {"\"lora\":[{\"id\":0,\"scale\":1}]", NULL, "name the adapter in 'model'"},
    {"\"adapter_path\":\"/x\"", NULL, "name the adapter in 'model'"},
    {"\"merged_adapters\":{}", NULL, "several in 'adapters'"},
};

START_TEST(adapters_are_selected_by_other_servers_fields)
{
    for (int chat = 0; chat < 2; chat++) {
        char body[512];
        parsed p;
        snprintf(body, sizeof(body), "{\"model\":\"base\",\"prompt\":\"a\",%s%s}",
                 selects[_i].members,
                 chat ? ",\"messages\":[{\"role\":\"user\",\"content\":\"a\"}]" : "");
        parse(&p, chat, body);
        ck_assert_msg(p.ok == (selects[_i].model != NULL), "%s: %s", body, p.p.msg);
        if (p.ok)
            ck_assert_str_eq(p.rq.model, selects[_i].model);
        else
            ck_assert_msg(strstr(p.p.msg, selects[_i].said) != NULL, "%s: %s", body, p.p.msg);
        drop(&p);
    }
}
END_TEST

START_TEST(another_model_is_not_changed_by_a_field)
{
    parsed p;
    parse(&p, false, "{\"model\":\"bard\",\"prompt\":\"a\",\"lora_path\":\"pirate\"}");
    ck_assert(!p.ok && strcmp(p.p.param, "lora_path") == 0);
    drop(&p);
    parse(&p, false, "{\"model\":\"bard\",\"prompt\":\"a\",\"lora_path\":\"bard\"}");
    ck_assert(p.ok);
    ck_assert_str_eq(p.rq.model, "bard");
    drop(&p);
}
END_TEST

START_TEST(every_field_arrives)
{
    parsed p;
    parse(
        &p, true,
        "{\"model\":\"pirate@3\",\"messages\":[{\"role\":\"system\",\"content\":\"be\"},"
        "{\"role\":\"user\",\"content\":[{\"type\":\"text\",\"text\":\"a\"},"
        "{\"type\":\"text\",\"text\":\"bc\"}]}],\"max_completion_tokens\":7,"
        "\"temperature\":0.5,\"top_p\":0.25,\"top_k\":-1,\"min_p\":0.125,"
        "\"repetition_penalty\":1.5,\"presence_penalty\":-1,\"frequency_penalty\":2,"
        "\"logit_bias\":{\"5\":-100,\"999\":1.5},\"seed\":-9223372036854775808,\"n\":2,"
        "\"stop\":[\"x\",\"yz\"],\"stop_token_ids\":[1,2,3],\"ignore_eos\":true,"
        "\"min_tokens\":2,\"skip_special_tokens\":false,\"logprobs\":true,\"top_logprobs\":4,"
        "\"stream\":true,\"stream_options\":{\"include_usage\":true},"
        "\"service_tier\":\"flex\",\"cache_salt\":\"s\",\"user\":\"u\",\"wat\":1,\"audio\":null}");
    ck_assert_msg(p.ok, "%s", p.p.msg);
    const openai_request *r = &p.rq;
    ck_assert_str_eq(r->model, "pirate@3");
    ck_assert_int_eq(r->n_msgs, 2);
    ck_assert_str_eq(r->msgs[0].role, "system");
    ck_assert_uint_eq(r->msgs[1].len, 3);
    ck_assert_str_eq(r->msgs[1].text, "abc");
    ck_assert_int_eq(r->max_tokens, 7);
    ck_assert_float_eq(r->rules.temperature, 0.5F);
    ck_assert_float_eq(r->rules.top_p, 0.25F);
    ck_assert_int_eq(r->rules.top_k, 0);
    ck_assert_float_eq(r->rules.min_p, 0.125F);
    ck_assert_float_eq(r->rules.repetition_penalty, 1.5F);
    ck_assert_float_eq(r->rules.presence_penalty, -1);
    ck_assert_float_eq(r->rules.frequency_penalty, 2);
    ck_assert_int_eq(r->rules.n_bias, 2);
    ck_assert_int_eq(r->rules.bias[1].token, 999);
    ck_assert_float_eq(r->rules.bias[0].bias, -100);
    ck_assert(r->seed_given);
    ck_assert(r->rules.seed == (uint64_t)INT64_MIN);
    ck_assert_int_eq(r->n, 2);
    ck_assert_int_eq(r->n_stop, 2);
    ck_assert_uint_eq(r->stop_len[1], 2);
    ck_assert_int_eq(r->rules.n_stop_id, 3);
    ck_assert(r->rules.ignore_eos);
    ck_assert_int_eq(r->rules.min_tokens, 2);
    ck_assert(r->keep_special);
    ck_assert_int_eq(r->rules.n_top, 4);
    ck_assert(r->stream && r->include_usage);
    ck_assert_str_eq(r->service_tier, "flex");
    ck_assert_str_eq(r->cache_salt, "s");
    ck_assert_int_eq(r->n_ignored, 2); /* user, wat; a null is no value */
    ck_assert_str_eq(r->ignored[0], "user");
    ck_assert_str_eq(r->ignored[1], "wat");
    drop(&p);
}
END_TEST

/* Members inside of others are named with where they stand, once. */
START_TEST(what_is_ignored_inside)
{
    parsed p;
    const char *body =
        "{\"model\":\"m\",\"messages\":[{\"role\":\"user\",\"content\":\"a\",\"refusal\":null},"
        "{\"role\":\"assistant\",\"content\":\"b\",\"refusal\":\"c\",\"annotations\":[],\"odd\":1},"
        "{\"role\":\"user\",\"content\":\"d\",\"odd\":2}],\"stream\":true,\"stream_options\":"
        "{\"include_usage\":true,\"include_obfuscation\":true}}";
    parse(&p, true, body);
    ck_assert_msg(p.ok, "%s", p.p.msg);
    ck_assert_int_eq(p.rq.n_ignored, 3);
    ck_assert_str_eq(p.rq.ignored[0], "messages.refusal");
    ck_assert_str_eq(p.rq.ignored[1], "messages.odd");
    ck_assert_str_eq(p.rq.ignored[2], "stream_options.include_obfuscation");
    drop(&p);
    parse(&p, true, "{" MSG ",\"stream\":true,\"stream_options\":{\"include_obfuscation\":false}}");
    ck_assert_msg(p.ok, "%s", p.p.msg);
    ck_assert_int_eq(p.rq.n_ignored, 0);
    drop(&p);
}
END_TEST

START_TEST(defaults_and_neutral_values)
{
    parsed p;
    parse(&p, false,
          "{" TXT ",\"max_tokens\":null,\"best_of\":1,\"response_format\":"
          "{\"type\":\"text\"},\"service_tier\":\"auto\"}");
    ck_assert_msg(p.ok, "%s", p.p.msg);
    ck_assert_int_eq(p.rq.max_tokens, OPENAI_TEXT_MAX_TOKENS);
    ck_assert_int_eq(p.rq.n, 1);
    ck_assert_ptr_null(p.rq.service_tier);
    ck_assert_int_eq(p.rq.rules.n_top, -1);
    ck_assert(!p.rq.seed_given);
    drop(&p);
    parse(&p, true,
          "{" MSG ",\"tools\":[" TOOL("f") "],\"tool_choice\":\"none\",\"modalities\":[\"text\"]}");
    ck_assert_msg(p.ok, "%s", p.p.msg);
    ck_assert_int_eq(p.rq.max_tokens, -1);
    drop(&p);
    parse(&p, false, "{" TXT ",\"echo\":true,\"max_tokens\":0,\"logprobs\":0}");
    ck_assert_msg(p.ok, "%s", p.p.msg);
    ck_assert_int_eq(p.rq.max_tokens, 0);
    ck_assert(p.rq.logprobs);
    drop(&p);
}
END_TEST

START_TEST(forms_of_an_answer)
{
    static const struct {
        const char *field, *param;
        grammar_kind kind;
        bool json;
    } cases[] = {
        {"\"response_format\":{\"type\":\"json_object\"}", "response_format", GRAMMAR_SCHEMA,
         false},
        {"\"response_format\":{\"type\":\"json_schema\",\"json_schema\":{\"schema\":{}}}",
         "response_format.json_schema.schema", GRAMMAR_SCHEMA, true},
        {"\"structured_outputs\":{\"json\":{},\"regex\":null}", "structured_outputs.json",
         GRAMMAR_SCHEMA, true},
        {"\"structured_outputs\":{\"json\":\"{}\",\"disable_any_whitespace\":true}",
         "structured_outputs.json", GRAMMAR_SCHEMA, true},
        {"\"structured_outputs\":{\"json_object\":true}", "structured_outputs.json_object",
         GRAMMAR_SCHEMA, false},
        {"\"structured_outputs\":{\"regex\":\"a\"}", "structured_outputs.regex", GRAMMAR_REGEX,
         false},
        {"\"guided_json\":{}", "guided_json", GRAMMAR_SCHEMA, true},
        {"\"guided_regex\":\"a\"", "guided_regex", GRAMMAR_REGEX, false},
        {"\"guided_choice\":[\"a\"]", "guided_choice", GRAMMAR_CHOICE, true},
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        char body[400];
        parsed p;
        snprintf(body, sizeof(body), "{%s,%s,\"ignore_eos\":true}", i % 2 ? MSG : TXT,
                 cases[i].field);
        parse(&p, i % 2, body);
        ck_assert_msg(p.ok, "%s: %s", body, p.p.msg);
        ck_assert_str_eq(p.rq.format_param, cases[i].param);
        ck_assert_int_eq((int)p.rq.format.kind, (int)cases[i].kind);
        ck_assert((p.rq.format.json != NULL) == cases[i].json);
        ck_assert((p.rq.format.text != NULL) == (cases[i].kind == GRAMMAR_REGEX));
        ck_assert(!p.rq.rules.ignore_eos);
        ck_assert_str_eq(p.rq.ignored[p.rq.n_ignored - 1], "ignore_eos");
        drop(&p);
    }
}
END_TEST

START_TEST(strict_clients_are_told_of_unknown_fields)
{
    openai_limits strict = limits;
    strict.strict = true;
    static const struct {
        const char *body;
        bool ok;
    } cases[] = {{"{" TXT ",\"user\":\"u\",\"top_k\":3,\"nothing\":null}", true},
                 {"{" TXT ",\"temprature\":1}", false},
                 {"{" TXT ",\"messages\":[]}", false}};
    for (size_t i = 0; i < 3; i++) {
        arena mem;
        cJSON *tree;
        err e;
        openai_request rq;
        openai_problem p;
        arena_init(&mem, 1 << 20);
        const char *s = cases[i].body;
        ck_assert_int_eq(json_parse(s, strlen(s), &json_limits_request, &tree, &e), ERR_NONE);
        bool ok = openai_parse(&rq, false, tree, &strict, &mem, &p);
        ck_assert_msg(ok == cases[i].ok, "%s", s);
        if (!ok) ck_assert_str_eq(p.code, "unknown_parameter");
        openai_request_clear(&rq);
        cJSON_Delete(tree);
        arena_clear(&mem);
    }
}
END_TEST

START_TEST(prompts_of_all_four_kinds)
{
    parsed p;
    parse(&p, false, "{\"model\":\"m\",\"prompt\":[\"a\",\"bc\"]}");
    ck_assert(p.ok);
    ck_assert_int_eq(p.rq.n_prompts, 2);
    ck_assert_uint_eq(p.rq.prompts[1].len, 2);
    drop(&p);
    parse(&p, false, "{\"model\":\"m\",\"prompt\":[1,2,999]}");
    ck_assert(p.ok);
    ck_assert_int_eq(p.rq.n_prompts, 1);
    ck_assert_int_eq(p.rq.prompts[0].n_ids, 3);
    ck_assert_int_eq(p.rq.prompts[0].ids[2], 999);
    ck_assert_ptr_null(p.rq.prompts[0].text);
    drop(&p);
    parse(&p, false, "{\"model\":\"m\",\"prompt\":[[1],[2,3],\"x\"]}");
    ck_assert(p.ok);
    ck_assert_int_eq(p.rq.n_prompts, 3);
    ck_assert_int_eq(p.rq.prompts[1].n_ids, 2);
    ck_assert_str_eq(p.rq.prompts[2].text, "x");
    drop(&p);
}
END_TEST

START_TEST(a_request_can_not_take_more_memory_than_its_arena)
{
    static char body[400000];
    strcpy(body, "{\"model\":\"m\",\"prompt\":[1");
    size_t n = strlen(body);
    for (int i = 0; i < 60000; i++, n += 2) memcpy(body + n, ",1", 2);
    strcpy(body + n, "]}");
    cJSON *tree;
    ck_assert_int_eq(json_parse(body, strlen(body), &json_limits_request, &tree, NULL), ERR_NONE);
    arena small;
    arena_init(&small, 1000);
    openai_request rq;
    openai_problem p;
    ck_assert(!openai_parse(&rq, false, tree, &limits, &small, &p));
    ck_assert_str_eq(p.code, "request_too_large");
    ck_assert_str_eq(p.param, "prompt");
    arena_clear(&small);
    cJSON_Delete(tree);
}
END_TEST

START_TEST(writer_escapes_and_puts_commas)
{
    jsonw w;
    jsonw_init(&w);
    jsonw_open(&w, NULL, '{');
    jsonw_str(&w, "a\"b", "x\\y\n\t\x01\x7f\xC3\xA9");
    jsonw_open(&w, "l", '[');
    jsonw_int(&w, NULL, -5);
    jsonw_num(&w, NULL, 0.5);
    jsonw_num(&w, NULL, (double)INFINITY);
    jsonw_bool(&w, NULL, true);
    jsonw_open(&w, NULL, '{');
    jsonw_close(&w, '}');
    jsonw_close(&w, ']');
    jsonw_str(&w, "z", NULL);
    jsonw_close(&w, '}');
    ck_assert(!w.failed);
    ck_assert_str_eq(w.text, "{\"a\\\"b\":\"x\\\\y\\n\\t\\u0001\\u007f\xC3\xA9\","
                             "\"l\":[-5,0.5,null,true,{}],\"z\":null}");
    ck_assert_int_eq(json_check(w.text, w.len, &json_limits_request, NULL), ERR_NONE);
    jsonw_clear(&w);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("openai");
    TCase *tc = tcase_create("all");
    tcase_add_loop_test(tc, each_refusal_names_its_field, 0,
                        (int)(sizeof(refusals) / sizeof(refusals[0])));
    tcase_add_loop_test(tc, arguments_of_earlier_calls_are_never_refused, 0,
                        sizeof(calls) / sizeof(*calls));
    tcase_add_loop_test(tc, empty_messages_have_an_empty_text, 0,
                        sizeof(empties) / sizeof(*empties));
    tcase_add_loop_test(tc, adapters_are_selected_by_other_servers_fields, 0,
                        sizeof(selects) / sizeof(*selects));
    tcase_add_test(tc, another_model_is_not_changed_by_a_field);
    tcase_add_test(tc, every_field_arrives);
    tcase_add_test(tc, what_is_ignored_inside);
    tcase_add_test(tc, defaults_and_neutral_values);
    tcase_add_test(tc, prompts_of_all_four_kinds);
    tcase_add_test(tc, forms_of_an_answer);
    tcase_add_test(tc, strict_clients_are_told_of_unknown_fields);
    tcase_add_test(tc, a_request_can_not_take_more_memory_than_its_arena);
    tcase_add_test(tc, writer_escapes_and_puts_commas);
    suite_add_tcase(s, tc);
    return run_suite(s);
}
