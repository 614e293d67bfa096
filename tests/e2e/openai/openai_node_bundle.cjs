// openai_node_bundle.cjs -- openai-node out of a web page's bundle: its code as it is, minified, where npm has no registry to ask.
//
//   const { OpenAI } = require('./openai_node_bundle.cjs')(folder)
//
// The folder holds chunks as webpack writes them: each pushes [ids, {id: function (module, exports, require)}] to a list in
// the global scope.  Here the list is a collection, and `require` is what webpack's run-time says it is.
'use strict';
const { readdirSync, readFileSync } = require('node:fs');
const { join } = require('node:path');
const vm = require('node:vm');

function collect(folder) {
  const found = {};
  const list = { push: ([, modules]) => Object.assign(found, modules) };
  const scope = new Proxy(globalThis, { get: (o, name) => (/^webpackChunk/.test(String(name)) ? list : Reflect.get(o, name)) });
  for (const name of readdirSync(folder).filter((f) => /^\d+\.\w+\.js$/.test(f))) {
    const text = readFileSync(join(folder, name), 'utf8');
    vm.runInThisContext(`(function (self) {${text}\n})`, { filename: name })(scope);
  }
  return found;
}

module.exports = (folder) => {
  const modules = collect(folder);
  const made = {};
  const load = (id) => {
    if (!made[id]) {
      made[id] = { exports: {} };
      modules[id].call(made[id].exports, made[id], made[id].exports, load);
    }
    return made[id].exports;
  };
  load.o = (object, name) => Object.hasOwn(object, name);
  load.d = (exports, getters) => {
    for (const name of Object.keys(getters)) Object.defineProperty(exports, name, { enumerable: true, get: getters[name] });
  };
  load.r = (exports) => Object.defineProperty(exports, '__esModule', { value: true });
  load.n = (module) => {
    const get = module && module.__esModule ? () => module.default : () => module;
    load.d(get, { a: get });
    return get;
  };
  load.nmd = load.hmd = (module) => module;
  load.g = globalThis;
  for (const id of Object.keys(modules)) {
    if (!modules[id].toString().includes('"OpenAI-Organization"')) continue;
    const OpenAI = Object.values(load(id)).find((v) => typeof v === 'function' && v.OpenAI === v);
    if (OpenAI) return { OpenAI };
  }
  throw new Error(`no openai-node in ${folder}`);
};
