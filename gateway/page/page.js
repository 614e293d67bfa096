"use strict";
// page.js -- the chat page of lorad: one column for each model, all asked at once, answers streamed.
// The key stays in the memory of this page.  Whatever the server sends becomes text, never markup.
const MOST = 6;
const at = (id) => document.getElementById(id);
const columns = new Map(); // model -> {box, turns: [{role, content}]}
let key = "";
let running = null; // AbortController of the requests that run

function say(text) {
  at("status").textContent = text;
}

function element(name, className, text, parent) {
  const e = document.createElement(name);
  if (className) e.className = className;
  e.textContent = text;
  parent.append(e);
  return e;
}

async function call(path, options = {}) {
  const answer = await fetch(path, {
    ...options,
    cache: "no-store",
    headers: { Authorization: "Bearer " + key, "Content-Type": "application/json" },
  });
  if (answer.ok) return answer;
  let text = answer.status + " " + answer.statusText;
  try {
    text = (await answer.json()).error.message;
  } catch {
    // not JSON: the status has to do
  }
  throw new Error(text);
}

function chosen() {
  return [...at("models").querySelectorAll("input:checked")].map((box) => box.value);
}

function show_columns() {
  const names = chosen();
  for (const [name, column] of columns) {
    if (!names.includes(name)) {
      column.box.remove();
      columns.delete(name);
    }
  }
  for (const name of names) {
    if (columns.has(name)) continue;
    const box = element("article", "answer", "", at("answers"));
    element("h2", "", name, box);
    columns.set(name, { box, turns: [] });
  }
  for (const box of at("models").querySelectorAll("input")) box.disabled = !box.checked && names.length >= MOST;
  at("ask-form").hidden = names.length === 0;
}

function show_models(list) {
  at("models").replaceChildren();
  for (const model of list) {
    const label = element("label", "", "", at("models"));
    const box = document.createElement("input");
    box.type = "checkbox";
    box.value = model.id;
    box.checked = columns.has(model.id);
    label.append(box, " " + model.id);
  }
  at("choice").hidden = list.length === 0;
  show_columns();
}

// Calls take(object) for each "data:" line of a stream of events.
async function read_events(answer, take) {
  const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    const lines = (rest + value).split("\n");
    rest = lines.pop();
    for (const line of lines) {
      if (line.startsWith("data: ") && line !== "data: [DONE]") take(JSON.parse(line.slice(6)));
    }
  }
}

async function ask(name, text, signal) {
  const column = columns.get(name);
  const system = at("system").value.trim();
  const box = element("div", "", "", column.box);
  element("p", "turn user", text, box);
  const words = element("p", "turn", "", box);
  const began = performance.now();
  let first = 0;
  let usage = null;
  column.turns.push({ role: "user", content: text });
  try {
    const answer = await call("v1/chat/completions", {
      method: "POST",
      signal,
      body: JSON.stringify({
        model: name,
        messages: [...(system ? [{ role: "system", content: system }] : []), ...column.turns],
        temperature: Number(at("temperature").value),
        max_tokens: Number(at("max-tokens").value),
        stream: true,
        stream_options: { include_usage: true },
      }),
    });
    await read_events(answer, (event) => {
      if (event.error) throw new Error(event.error.message);
      const piece = event.choices?.[0]?.delta?.content;
      if (piece && !first) first = performance.now();
      if (piece) words.append(piece);
      usage = event.usage ?? usage;
    });
    const s = (performance.now() - began) / 1000;
    if (usage) {
      const ttft = first ? Math.round(first - began) + " ms to the first token, " : "";
      element("p", "figures", `${usage.completion_tokens} tokens in ${s.toFixed(1)} s, ${ttft}${usage.prompt_tokens} prompt tokens`, box);
    }
  } catch (e) {
    element("p", "error", e.name === "AbortError" ? "stopped" : e.message, box);
  }
  if (words.textContent) column.turns.push({ role: "assistant", content: words.textContent });
  else column.turns.pop();
}

at("key-form").addEventListener("submit", async (event) => {
  event.preventDefault();
  key = at("key").value.trim();
  say("");
  try {
    const list = (await (await call("v1/models")).json()).data;
    show_models(list);
    say(list.length === 1 ? "1 model" : list.length + " models");
  } catch (e) {
    say(e.message);
  }
});

at("filter").addEventListener("input", () => {
  const part = at("filter").value.toLowerCase();
  for (const label of at("models").children) label.hidden = !label.textContent.toLowerCase().includes(part);
});

at("models").addEventListener("change", show_columns);

at("ask-form").addEventListener("submit", async (event) => {
  event.preventDefault();
  const text = at("prompt").value;
  if (running || !text.trim()) return;
  running = new AbortController();
  at("send").disabled = true;
  at("stop").disabled = false;
  at("prompt").value = "";
  await Promise.all([...columns.keys()].map((name) => ask(name, text, running.signal)));
  running = null;
  at("send").disabled = false;
  at("stop").disabled = true;
});

at("prompt").addEventListener("keydown", (event) => {
  if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) at("ask-form").requestSubmit();
});

at("stop").addEventListener("click", () => running?.abort());

at("clear").addEventListener("click", () => {
  running?.abort();
  for (const column of columns.values()) {
    column.turns = [];
    column.box.replaceChildren(column.box.firstChild);
  }
});
