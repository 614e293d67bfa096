// openai_node.mjs -- openai-node against a lorad: basic, streaming, side by side, tools, JSON schema, errors.
//
//   node openai_node.mjs FOLDER      of the package that npm has installed, or of a bundle (openai_node_bundle.cjs)
//
// Run by test_openai_node.py with LORAD_URL, LORAD_KEY, LORAD_LIMITED_KEY (60 requests a minute), and the server's certificate in
// NODE_EXTRA_CA_CERTS.  A failed assertion ends it with a status other than 0.
import assert from 'node:assert/strict';
import { existsSync } from 'node:fs';
import { createRequire } from 'node:module';
import { join } from 'node:path';

const folder = process.argv[2];
const require = createRequire(import.meta.url);
const { OpenAI } = existsSync(join(folder, 'package.json')) ? require(folder) : require('./openai_node_bundle.cjs')(folder);
const client = new OpenAI({ apiKey: process.env.LORAD_KEY, baseURL: process.env.LORAD_URL, maxRetries: 0 });
const messages = [{ role: 'user', content: 'What is 7 plus 5?' }];
const ask = { model: 'base', messages, temperature: 0, max_tokens: 32 };
const add = { type: 'function', function: { name: 'add', parameters: { type: 'object', additionalProperties: false,
  properties: { a: { type: 'integer' }, b: { type: 'integer' } }, required: ['a', 'b'] } } };
const schema = { type: 'object', properties: { kind: { enum: ['town', 'river'] }, x: { type: 'integer' } },
  required: ['kind', 'x'], additionalProperties: false };

async function failsWith(kind, status, code, call) {
  await assert.rejects(call, (e) => {
    assert.ok(e instanceof kind, `${e.constructor.name}: ${e.message}`);
    assert.equal(e.status, status);
    assert.equal(e.code, code);
    return true;
  });
}

const tests = {
  async models() {
    const ids = [];
    for await (const m of client.models.list()) ids.push(m.id);
    assert.ok(ids.includes('base') && ids.includes('shout'), ids.join());
    assert.equal((await client.models.retrieve('shout')).id, 'shout');
  },
  async basic() {
    const got = await client.chat.completions.create(ask);
    assert.match(got.choices[0].message.content, /12/);
    assert.equal(got.choices[0].finish_reason, 'stop');
    assert.equal(got.usage.total_tokens, got.usage.prompt_tokens + got.usage.completion_tokens);
    const text = await client.completions.create({ model: 'base', prompt: 'The', max_tokens: 8, ignore_eos: true });
    assert.equal(text.object, 'text_completion');
    assert.equal(text.usage.completion_tokens, 8);
    assert.equal(text.choices[0].finish_reason, 'length');
  },
  async stream() {
    const whole = await client.chat.completions.create(ask);
    let text = '', usage = null, end = null;
    const stream = await client.chat.completions.create({ ...ask, stream: true, stream_options: { include_usage: true } });
    for await (const chunk of stream) {
      text += chunk.choices[0]?.delta?.content ?? '';
      end = chunk.choices[0]?.finish_reason ?? end;
      usage = chunk.usage ?? usage;
    }
    assert.equal(text, whole.choices[0].message.content);
    assert.equal(end, 'stop');
    assert.equal(usage.completion_tokens, whole.usage.completion_tokens);
  },
  async left_stream() {
    const stream = await client.chat.completions.create({ ...ask, max_tokens: 400, stream: true });
    for await (const chunk of stream) if (chunk.choices[0]?.delta?.content) break;
    assert.match((await client.chat.completions.create(ask)).choices[0].message.content, /12/);
  },
  async side_by_side() {
    const got = await Promise.all(['base', 'shout', 'base', 'shout'].map((model) =>
      client.chat.completions.create({ ...ask, model })));
    const [base, shout, again, loud] = got.map((g) => g.choices[0].message.content);
    assert.equal(base, again);
    assert.equal(shout, loud);
    assert.notEqual(base, shout);
  },
  async tools() {
    const got = await client.chat.completions.create({ ...ask, max_tokens: 200, tools: [add], tool_choice: 'required' });
    const call = got.choices[0].message.tool_calls[0];
    assert.equal(got.choices[0].finish_reason, 'tool_calls');
    assert.equal(call.function.name, 'add');
    assert.deepEqual(Object.keys(JSON.parse(call.function.arguments)).sort(), ['a', 'b']);
  },
  async stream_put_together() { // by the client's own reader of chunks
    const calls = await client.chat.completions.stream({ ...ask, max_tokens: 200, tools: [add], tool_choice: 'required' })
      .finalChatCompletion();
    const call = calls.choices[0].message.tool_calls[0];
    assert.equal(call.function.name, 'add');
    assert.deepEqual(Object.keys(JSON.parse(call.function.arguments)).sort(), ['a', 'b']);
    const whole = await client.chat.completions.create({ ...ask, logprobs: true, top_logprobs: 2 });
    const pieces = await client.chat.completions.stream({ ...ask, logprobs: true, top_logprobs: 2 }).finalChatCompletion();
    assert.deepEqual(pieces.choices[0].message.content, whole.choices[0].message.content);
    assert.deepEqual(pieces.choices[0].logprobs.content, whole.choices[0].logprobs.content);
  },
  async tries_again() { // when Retry-After says: 60 requests a minute, and two more
    const patient = new OpenAI({ apiKey: process.env.LORAD_LIMITED_KEY, baseURL: process.env.LORAD_URL, maxRetries: 2 });
    const since = Date.now();
    for (let i = 0; i < 62; i++) await patient.chat.completions.create({ ...ask, max_tokens: 1 });
    assert.ok(Date.now() - since > 500, `${Date.now() - since} ms`);
    // One request a minute: the second comes before the next minute, however slow the machine is.
    const hasty = new OpenAI({ apiKey: process.env.LORAD_HASTY_KEY, baseURL: process.env.LORAD_URL, maxRetries: 0 });
    await assert.rejects(async () => { for (let i = 0; i < 2; i++) await hasty.chat.completions.create({ ...ask, max_tokens: 1 }); },
      (e) => e instanceof OpenAI.RateLimitError && e.code === 'rate_limit_exceeded');
  },
  async json_schema() {
    const got = await client.chat.completions.create({ ...ask, max_tokens: 200,
      response_format: { type: 'json_schema', json_schema: { name: 'point', schema, strict: true } } });
    const point = JSON.parse(got.choices[0].message.content);
    assert.ok(['town', 'river'].includes(point.kind) && Number.isInteger(point.x), got.choices[0].message.content);
  },
  async errors() {
    const stranger = new OpenAI({ apiKey: 'lk_nobody', baseURL: process.env.LORAD_URL, maxRetries: 0 });
    await failsWith(OpenAI.AuthenticationError, 401, 'invalid_api_key', () => stranger.chat.completions.create(ask));
    await failsWith(OpenAI.NotFoundError, 404, 'model_not_found', () => client.chat.completions.create({ ...ask, model: 'nobody' }));
    await assert.rejects(() => client.chat.completions.create({ ...ask, temperature: 9 }),
      (e) => e instanceof OpenAI.BadRequestError && e.param === 'temperature');
  },
};

console.log(`openai-node ${client.getUserAgent()}, Node.js ${process.version}`);
let failed = 0;
for (const [name, test] of Object.entries(tests)) {
  try {
    await test();
    console.log(`ok      ${name}`);
  } catch (e) {
    failed++;
    console.log(`FAILED  ${name}\n${e.stack}`);
  }
}
process.exit(failed ? 1 : 0);
