#!/usr/bin/env python3
"""Makes tests/fixtures/jinja: templates by construct and at random, and what the real Jinja makes of them.

    make_jinja_golden.py [tests/fixtures] [count]        (needs transformers)

cases.jsonl: one case a line, {"t": template, "v": variables, "o": text, or null where it is an error}.
The environment is the one that transformers' apply_chat_template compiles templates with.
"""
import copy
import json
import pathlib
import random
import sys
import warnings

import jinja2

VARS = {
    "s": "  Hello, World!\n", "e": "", "w": "naïve 日本 ½ \"q\" 'a' \\ \t.", "name": "get_weather",
    "lines": "one\n  two\n\nthree\r\nfour", "i": 7, "z": 0, "neg": -3, "f": 2.5, "big": 1e22, "tiny": 1e-7,
    "yes": True, "no": False, "nil": None, "list": [3, 1, 2, 1], "words": ["b", "A", "c", "a"],
    "mixed": [1, "x", None, True, 2.5, [1], {"k": "v"}], "empty": [], "map": {"b": 1, "a": "x", "items": [1, 2]},
    "deep": {"x": {"y": [{"z": "deep"}, {"z": None}]}},
    "messages": [{"role": "system", "content": " Be brief. "}, {"role": "user", "content": "Hi <b>&\u2028"},
                 {"role": "assistant", "content": None, "tool_calls": [
                     {"id": "c1", "type": "function",
                      "function": {"name": "f", "arguments": {"q": "ü\"", "n": 3, "l": [1, {}], "o": {}}}}]},
                 {"role": "tool", "content": "{\"t\": 21.5}", "tool_call_id": "c1"},
                 {"role": "user", "content": "Thanks"}],
    "tools": [{"type": "function", "function": {
        "name": "f", "description": "Does f", "parameters": {
            "type": "object", "properties": {"q": {"type": "string", "description": "The \"q\""},
                                             "n": {"type": "integer", "default": 1.5}}, "required": ["q"]}}},
              {"type": "function", "function": {"name": "g", "parameters": {}}}],
}

BY_HAND = r"""
a
--
a

--
{{ s }}|{{ e }}|{{ i }}|{{ f }}|{{ yes }}|{{ no }}|{{ nil }}|{{ nothing }}|{{ big }}|{{ tiny }}
--
{{ mixed }} {{ map }} {{ (1,) }} {{ (1, 2) }} {{ w }} {{ [w] }} {{ ["it's", '"', "\x07\u00e9\u200b\ud7ff"] }}
--
{% if yes %}
  y
{% endif %}
  {% if no %}n{% else %}m{% endif %}
x {% if yes %} z {% endif %}
w
--
a  {%- if yes -%}  b  {%- endif -%}  c
--
   {%+ if yes +%}
   b
   {%+ endif %}
--
{# c #}
a {# c -#}
 b
  {#- c #} d {#
two lines
#} e
--
{% raw %}{{ not }} {% here %}{% endraw %} {%- raw -%}  x  {%- endraw +%}
y
--
{% for m in messages %}{{ loop.index }}{{ loop.index0 }}{{ loop.revindex }}{{ loop.revindex0 }}{{ loop.first }}{{ loop.last }}{{ loop.length }}{{ loop.cycle('a','b') }}{{ loop.depth }}{{ loop.changed(m.role) }} {{ loop.previtem.role if not loop.first }}>{{ loop.nextitem.role if not loop.last }}
{% endfor %}
--
{% for m in messages if m.role == 'user' %}{{ loop.length }}{{ m.content }}{% else %}none{% endfor %}{% for m in empty %}x{% else %}none{% endfor %}
--
{% for k, v in map.items() %}{{ k }}={{ v }};{% endfor %}{% for k in map %}{{ k }}{% endfor %}{% for k, v in map|items %}{{ k }}={{ v }};{% endfor %}{% for k, v in map|dictsort %}{{ k }}{% endfor %}
--
{% for c in name %}{% if c == '_' %}{% continue %}{% endif %}{% if c == 'h' %}{% break %}{% endif %}{{ c }}{% endfor %}
--
{% set x = 1 %}{% for a in list %}{% set x = x + a %}{{ x }}{% endfor %}{{ x }}
--
{% set ns = namespace(x=1, y='a') %}{% for a in list %}{% set ns.x = ns.x + a %}{% endfor %}{{ ns.x }}{{ ns.y }}{{ ns.z is defined }}
--
{% set ns = namespace() %}{% set ns.a = [] %}{% for m in messages %}{% set ns.a = ns.a + [m.role] %}{% endfor %}{{ ns.a | join(',') }}
--
{% set map.x = 1 %}
--
{% set a, b = (1, 2) %}{{ a }}{{ b }}{% set c %} block {{ a }} {% endset %}[{{ c }}]{% set d | trim | upper %} block {% endset %}[{{ d }}]
--
{% set a, b = [1] %}
--
{% macro f(a, b=2, c=a) %}{{ a }}-{{ b }}-{{ c }};{% endmacro %}{{ f(1) }}{{ f(1, 3) }}{{ f(b=5, a='x') }}{{ f() }}{{ f(1, 2) | length }}
--
{% macro f(a) %}{{ a }}{% endmacro %}{{ f(1, 2) }}
--
{% macro f(a) %}{{ a }}{% endmacro %}{{ f(b=2) }}
--
{% macro outer(n) %}{% if n > 0 %}{{ n }}{{ outer(n - 1) }}{% endif %}{% endmacro %}{{ outer(5) }}
--
{% macro f(x) %}<{{ caller() }}{{ x }}>{% endmacro %}{% call f(3) %}body {{ i }}{% endcall %}
--
{% macro f(x) %}<{{ caller(x) }}>{% endmacro %}{% call(y) f(3) %}body {{ y }}{% endcall %}
--
{% set v = 5 %}{% macro f() %}{{ v }}{% endmacro %}{{ f() }}{% set v = 6 %}{{ f() }}{% macro g() %}{% set v = 9 %}{{ v }}{% endmacro %}{{ g() }}{{ v }}
--
{% with a=1, b=i %}{{ a }}{{ b }}{% set i = 3 %}{{ i }}{% endwith %}{{ a }}{{ i }}
--
{% filter upper | replace('L', '_') %}hello {{ s }}{% endfilter %}
--
{% generation %}a{{ i }}{% set q = 1 %}{% endgeneration %}{{ q }}
--
{{ 1 + 2 * 3 - 4 / 2 }} {{ 7 // 2 }} {{ -7 // 2 }} {{ 7 % 3 }} {{ -7 % 3 }} {{ 2 ** 10 }} {{ 2 ** -1 }} {{ 7.5 // 2 }} {{ -7.5 % 2 }} {{ 1 / 3 }} {{ 10 / 5 }} {{ 1e3 }} {{ 1_000 }} {{ 0x1F }} {{ 0b11 }} {{ 1.5e-5 }} {{ 123456789.125 }}
--
{{ 'a' + 'b' ~ 1 ~ none ~ true ~ [1] }} {{ 'a' * 3 }} {{ [1] + [2] }} {{ (1,) + (2,) }} {{ 3 * [0] }}
--
{{ 'a' + 1 }}
--
{{ 1 + none }}
--
{{ nothing + 'a' }}
--
{{ nothing.x }}
--
{{ map.nothing }}{{ map.nothing.x }}
--
{{ nothing() }}
--
{{ 1 < 2 < 3 }} {{ 1 < 3 < 2 }} {{ 'a' < 'b' }} {{ [1, 2] < [1, 3] }} {{ 1 == 1.0 }} {{ true == 1 }} {{ none == nothing }} {{ nothing == nothing }} {{ 'a' != 'b' }} {{ {'a': 1} == {'a': 1} }} {{ 1 == '1' }}
--
{{ 1 < 'a' }}
--
{{ 'ell' in s }} {{ 'x' not in s }} {{ 1 in list }} {{ 'b' in map }} {{ 'q' in map }} {{ 'x' in nothing }} {{ not 1 in list }}
--
{{ 1 in s }}
--
{{ yes and 'a' }} {{ no or 'b' }} {{ e or nil or 0 }} {{ not yes }} {{ not not yes }} {{ yes and no or 'c' }} {{ 'a' if yes else 'b' }} {{ 'a' if no }} {{ 'a' if no else 'b' if no else 'c' }}
--
{{ list[0] }} {{ list[-1] }} {{ list[9] }} {{ list[1:] }} {{ list[:-1] }} {{ list[::-1] }} {{ list[1:3:2] }} {{ s[2:7] }} {{ s[::-1] }} {{ w[2] }} {{ list[::2] }} {{ list[-2:] }} {{ list[10:] }} {{ list[3:1] }} {{ list[3:0:-1] }} {{ messages[0]['role'] }} {{ messages[-1].content }} {{ deep.x.y[0].z }} {{ deep['x']['y'][1]['z'] }} {{ map.items is callable }}
--
{{ map['items'] }} {{ map['b'] }} {{ map['no'] }} {{ map.get('b') }} {{ map.get('no') }} {{ map.get('no', 3) }} {{ list.0 }} {{ map.keys() | list }} {{ map.values() | list }} {{ map['get']('a') }}
--
{{ s.strip() }}|{{ s.lstrip() }}|{{ s.rstrip() }}|{{ s.strip(' H!\n') }}|{{ 'xxaxx'.strip('x') }}|{{ 'xxaxx'.lstrip('x') }}|{{ 'xxaxx'.rstrip('x') }}|{{ s.upper() }}{{ s.lower() }}{{ w.title() }}{{ w.capitalize() }}{{ 'aBc'.swapcase() }}
--
{{ 'a,b,,c'.split(',') }} {{ ' a  b c '.split() }} {{ 'a,b,c'.split(',', 1) }} {{ 'a,b,c'.rsplit(',', 1) }} {{ 'a b  c '.split(None, 1) }} {{ 'abc'.split('x') }} {{ ''.split(',') }} {{ ''.split() }} {{ lines.splitlines() }} {{ lines.split('\n') | length }} {{ 'k=v=w'.partition('=') }} {{ 'k=v=w'.rpartition('=') }} {{ 'k'.partition('=') }}
--
{{ 'a'.split('') }}
--
{{ name.startswith('get') }} {{ name.endswith('er') }} {{ name.startswith(('a', 'g')) }} {{ name.find('w') }} {{ name.find('Q') }} {{ name.rfind('e') }} {{ name.index('_') }} {{ name.count('e') }} {{ name.replace('e', 'E') }} {{ name.replace('e', '', 1) }} {{ 'ab'.replace('', '-') }} {{ ', '.join(words) }} {{ name.removeprefix('get_') }} {{ name.removesuffix('er') }}
--
{{ name.index('Q') }}
--
{{ '12'.isdigit() }} {{ 'a1'.isalnum() }} {{ 'ab'.isalpha() }} {{ ' '.isspace() }} {{ 'AB'.isupper() }} {{ 'aB'.islower() }} {{ ''.isdigit() }} {{ '5'.zfill(3) }} {{ '-5'.zfill(4) }} [{{ 'a'.ljust(3) }}] [{{ 'a'.rjust(3, '.') }}] [{{ 'ab'.center(5) }}] [{{ 'a'.center(4, '*') }}]
--
{{ s.nothing }} {{ s.nothing() }}
--
{{ list.append(1) }}
--
{{ s | trim }}|{{ 'xax' | trim('x') }}|{{ s | upper | lower }}|{{ w | title }}|{{ 'hello wOrld-foo (bar' | title }}|{{ s | length }}|{{ list | count }}|{{ map | length }}|{{ nothing | length }}|{{ nothing | trim }}|{{ 5 | string + 'a' }}|{{ s | capitalize }}
--
{{ i | length }}
--
{{ list | join }} {{ list | join(', ') }} {{ messages | join('/', attribute='role') }} {{ mixed | join('|') }} {{ 'abc' | join('.') }}
--
{{ nothing | default('d') }} {{ nothing | default }} {{ e | default('d') }} {{ e | default('d', true) }} {{ nil | default('d') }} {{ nil | d('x', boolean=true) }} {{ map.q | default(deep.x) }}
--
{{ list | sort }} {{ words | sort }} {{ words | sort(case_sensitive=true) }} {{ list | sort(reverse=true) }} {{ messages | sort(attribute='role') | map(attribute='role') | list }} {{ list | unique | list }} {{ list | min }} {{ list | max }} {{ list | sum }} {{ words | first }} {{ words | last }} {{ empty | first }} {{ 'abc' | first }} {{ 'abc' | last }} {{ list | reverse | list }} {{ 'abc' | reverse }}
--
{{ list | reverse | last }}
--
{{ messages | map(attribute='role') | list }} {{ words | map('upper') | list }} {{ words | map('replace', 'a', 'z') | join }} {{ messages | map(attribute='nope', default='?') | list }} {{ messages | selectattr('role', 'equalto', 'user') | list | length }} {{ messages | selectattr('tool_calls', 'defined') | map(attribute='role') | list }} {{ messages | rejectattr('role', 'in', ['user', 'system']) | map(attribute='role') | list }} {{ list | select('odd') | list }} {{ list | reject('gt', 1) | list }} {{ mixed | select('string') | list }} {{ mixed | select | list }} {{ deep.x.y | map(attribute='z') | list }} {{ tools | map(attribute='function.name') | join(',') }} {{ messages | selectattr('content') | list | length }}
--
{% if messages | selectattr('role', 'equalto', 'nobody') %}generators are true{% endif %}
--
{{ (list | map('string')) | length }}
--
{% set g = list | map('string') %}{{ g | list }}{{ g | list }}
--
{{ '12' | int }} {{ 'x' | int }} {{ 'x' | int(5) }} {{ '3.7' | int }} {{ 3.7 | int }} {{ '2.5' | float }} {{ 'x' | float }} {{ 3 | float }} {{ -3 | abs }} {{ 2.567 | round(2) }} {{ 2.5 | round }} {{ 3.5 | round | int }} {{ 2.1 | round(method='ceil') }} {{ 7 | round }} {{ true | int }} {{ none | int }}
--
{{ s | replace('l', 'L') }} {{ s | replace('l', 'L', 1) }} {{ 5 | replace('5', '6') }}
--
{{ lines | indent }}|{{ lines | indent(2, true) }}|{{ lines | indent(3, blank=true) }}|{{ lines | indent('> ') }}|{{ '' | indent(first=true) }}
--
{{ tools | tojson }}
--
{{ tools | tojson(indent=4) }}
--
{{ mixed | tojson(indent=2) }} {{ map | tojson(sort_keys=true) }} {{ w | tojson }} {{ w | tojson(ensure_ascii=true) }} {{ [1.0, 1e22, 1e-7, true, none, "\u0001\u007f\u2028<>&'"] | tojson }} {{ map | tojson(separators=(',', ':')) }} {{ {} | tojson(indent=1) }} {{ [] | tojson(indent=1) }} {{ (1, 2) | tojson }} {{ {1: 2, none: 3, true: 4} | tojson }} {{ "😀" | tojson(ensure_ascii=true) }}
--
{{ nothing | tojson }}
--
{{ (list | map('string')) | tojson }}
--
{{ '<a href="x">&\'' | e }} {{ '<' | escape | length }} {{ '<b>' | safe }}
--
{{ ('<b>' | safe) + '"x"' }} {{ '"x"' + ('<b>' | safe) }} {{ 'a' + '<' + ('<b>' | safe) + '&' }} {{ ('<b>' | safe) ~ '"x"' }} {{ '<' | e | e }} {{ ('<b>' | safe) * 2 }}
--
{{ (w | safe)[7:] + '<' }} {{ (w | safe)[0] + '<' }} {{ (w | safe | upper) + '<' }} {{ (w | safe | trim) + '<' }} {{ (w | safe | title) + '<' }} {{ (w | safe | replace('n', 'm')) + '<' }} {{ (w | safe | string) + '<' }} {{ (w | safe | reverse) + '<' }} {{ (lines | safe | indent) + '<' }} {{ ([w | safe, '<'] | join('&')) + '<' }} {{ (w | safe | first) + '<' }} {{ (w | safe | capitalize) + '<' }}
--
{{ (w | safe).replace('a', '<') }} {{ (w | safe).split('a')[0] + '<' }} {{ ('-' | safe).join(['<', 'b' | e]) }} {{ (w | safe).title() + '<' }} {{ (w | safe).partition('q')[2] + '<' }} {{ (w | safe).center(30) + '<' }} {{ ('<' | safe).format(1) + '<' }} {{ ('<b>{}</b>' | safe).format('<i>') }} {{ ('{} {!r} {:>4}' | safe).format('<' | safe, '<', 5) }}
--
{{ ['<' | safe] }} {{ ('<' | safe) == '<' }} {{ '<' | safe is escaped }} {{ '<' is escaped }} {{ ('<' | safe) in '<a>' }} {{ '<' | safe | tojson }} {{ ('7' | safe | int) + 1 }} {{ ('<' | safe) is string }} {{ none | safe }}{{ nothing | safe }}
--
{% set x = '<' | safe %}{{ x + '<' }}{% set y %}<{% endset %}{{ y + '<' }}{% set z | safe %}<{% endset %}{{ z + '<' }}{% macro m() %}<{% endmacro %}{{ m() + '<' }}{% filter safe %}<{% endfilter %}
--
{{ '{} {}'.format(1, 'a') }} {{ '{1}{0}{1}'.format('a', 'b') }} {{ '{a}-{b[k]}-{c.k}-{d[0]}'.format(a=1, b={'k': 2}, c={'k': 3}, d=[4]) }} {{ '{{}} {}'.format(none) }} {{ '{!r} {!s}'.format("it's", 1.5) }} {{ '<|{}:{name}|>'.format(messages[0].role, name=name) }}
--
{{ '{:5}|{:<5}|{:>5}|{:^5}|{:*^7}|{:.2}|{:05}'.format('abc', 'abc', 'abc', 'abc', 'abc', 'abc', 'ab') }} {{ '{:5}|{:<5}|{:+d}|{: d}|{:05}|{:x}|{:X}|{:,}|{:_}'.format(42, 42, 42, 42, -42, 255, 255, 1234567, 1234567) }} {{ '{:.2f}|{:8.3f}|{:e}|{:g}|{:%}|{:,.1f}|{}|{:6}|{:<6}|'.format(3.14159, 2.5, 12345.678, 0.0001, 0.25, 1234567.891, 2.5, 2.5, 2.5) }} {{ '{:{}}|{:>{w}}'.format('a', 5, 'b', w=4) }} {{ '{}{:d}'.format(true, true) }}
--
{{ '{'.format(1) }}
--
{{ '}'.format(1) }}
--
{{ '{} {0}'.format(1, 2) }}
--
{{ '{}'.format() }}
--
{{ '{x}'.format(y=1) }}
--
{{ '{:d}'.format('a') }}
--
{{ '{:s}'.format(1) }}
--
{{ '{!x}'.format(1) }}
--
{{ '{:5}'.format(none) }}
--
{{ ('{:5}' | safe).format('a' | safe) }}
--
{% if no %}{{ i | nofilter }}{% elif i is notest %}{{ i }}{% endif %}
--
{% if no %}{{ i | nofilter }}{% endif %}a
--
{% if yes %}{{ i | nofilter }}{% endif %}a
--
{% if i | nofilter %}a{% endif %}
--
{{ i if yes else i | nofilter }} {{ i | nofilter if no else 'b' }} {{ (i | nofilter) if no }}{{ i is notest if no }}
--
{{ i | nofilter if yes else 1 }}
--
{{ (i | nofilter) + (1 if no else 2) }}
--
{% if no %}{% for x in list %}{{ x | nofilter }}{% endfor %}{% endif %}
--
{% if no %}{% for x in list | nofilter %}{{ x }}{% else %}a{% endfor %}{% endif %}b
--
{% if no %}{% for x in list if x | nofilter %}{{ x }}{% endfor %}{% endif %}
--
{% if no %}{% for x in list %}{{ x }}{% else %}{{ x | nofilter }}{% endfor %}{% endif %}
--
{% if no %}{% set x = i | nofilter %}{{ x }}{% endif %}c
--
{% if no %}{% set x %}{{ i | nofilter }}{% endset %}{% endif %}
--
{% if no %}{% set x | nofilter %}{{ i }}{% endset %}{% endif %}
--
{% if no %}{% filter nofilter %}{{ i }}{% endfilter %}{% endif %}
--
{% if no %}{% macro m(a=i | nofilter) %}{{ a }}{% endmacro %}{% endif %}
--
{% if no %}{% macro m(a) %}{{ a | nofilter }}{% endmacro %}{% endif %}
--
{% if no %}{% with x = i | nofilter %}{{ x }}{% endwith %}{% endif %}d
--
{% if no %}{% with x = i %}{{ x | nofilter }}{% endwith %}{% endif %}
--
{% for x in list %}{% if no %}{{ x | nofilter }}{% endif %}{% endfor %}e
--
{% if 'tojson' is filter and 'nofilter' is not filter and 'odd' is test %}f{% endif %}
--
{{ list | batch(3) | list }} {{ list | batch(3, 0) | list }} {% for r, g in messages | groupby('role') %}{{ r }}{{ g | length }} {% endfor %}
--
{{ i is number }} {{ i is integer }} {{ f is float }} {{ yes is boolean }} {{ yes is true }} {{ no is false }} {{ yes is integer }} {{ yes is number }} {{ s is string }} {{ map is mapping }} {{ list is iterable }} {{ s is iterable }} {{ list is sequence }} {{ map is sequence }} {{ nothing is defined }} {{ nothing is undefined }} {{ nil is none }} {{ i is odd }} {{ i is even }} {{ i is divisibleby 7 }} {{ i is divisibleby(2) }} {{ i is eq 7 }} {{ i is ne(7) }} {{ i is gt 5 }} {{ i is lessthan 5 }} {{ 3 is in list }} {{ 3 is not in list }} {{ 'a' is lower }} {{ 'a' is upper }} {{ nil is sameas none }} {{ raise_exception is callable }} {{ s is not string and yes }} {{ nothing is iterable }} {{ nothing is sequence }} {{ i is iterable }}
--
{{ raise_exception('No: ' + name) }}
--
{% if messages[0].role != 'system' %}{{ raise_exception('x') }}{% endif %}ok
--
{{ strftime_now is defined }}{{ date_string is defined }}
--
{{ range(3) | list }} {{ range(1, 7, 2) | list }} {{ range(3, 0, -1) | list }} {% for i in range(2) %}{{ i }}{% endfor %}{{ i }} {{ range(0) | length }}
--
{{ dict(a=1, b=2) }} {{ dict({'x': 1}, y=2) }} {{ {'a': 1, 'b': {'c': [1]}} }} {{ {}.a }} {{ {'a': 1}['a'] }} {{ {'a': 2}.a }}
--
{{ {[1]: 2} }}
--
{{ "a\nb\t\"\\ \u00e9 \x41 \101 \q" }} {{ 'a' 'b' "c" }} {{ 'é日' | length }}
--
{%- for message in messages %}
    {%- if message.role == "system" %}
        {{- '<|im_start|>system\n' + message.content | trim + '<|im_end|>\n' }}
    {%- elif message.tool_calls %}
        {%- for tool_call in message.tool_calls %}
            {%- set tool_call = tool_call.function %}
            {{- '<tool_call>\n{"name": "' }}
            {{- tool_call.name }}
            {{- '", "arguments": ' }}
            {{- tool_call.arguments | tojson }}
            {{- '}\n</tool_call>' }}
        {%- endfor %}
    {%- elif message.role == "tool" %}
        {%- if (loop.index0 == 0) or (messages[loop.index0 - 1].role != "tool") %}{{- '<|im_start|>user' }}{%- endif %}
        {{- '\n<tool_response>\n' }}{{- message.content }}{{- '\n</tool_response>' }}
    {%- else %}
        {{- message.role ~ ': ' ~ message.content }}
    {%- endif %}
{%- endfor %}
--
{%- macro render_type(p) -%}
    {%- if p.type == "array" %}{{ render_type(p['items']) + "[]" }}
    {%- elif p.enum is defined %}{{ '"' + p.enum | join('" | "') + '"' }}
    {%- else %}{{ p.type or "any" }}{% endif -%}
{%- endmacro -%}
{%- for tool in tools | map(attribute='function') | list %}
{{ "type " ~ tool.name ~ " = (_: {" }}
    {%- for n, p in (tool.parameters.properties or {}).items() %}
        {%- if p.description %}
// {{ p.description }}
        {%- endif %}
{{ n + ("?" if n not in tool.parameters.required else "") + ": " + render_type(p) }},
    {%- endfor %}
})
{%- endfor %}
--
{%- for key, val in tools[0].function.items() if key != "return" %}"{{ key }}": {% if val is string %}"{{ val }}"{% else %}{{ val|tojson }}{% endif %}{% if not loop.last %}, {% endif %}{% endfor %}
--
{%- set loop_messages = messages[1:] %}{%- for m in loop_messages if m.role != 'tool' and not m.tool_calls %}{{ m.role }}{{ loop.index }}{% endfor %}
--
{{- bos_token | default('<s>') }}{%- if not add_generation_prompt is defined %}{%- set add_generation_prompt = true %}{%- endif %}{{ add_generation_prompt }}
--
{% if a %}x
--
{{ a
--
{% for x in %}{% endfor %}
--
{% else %}
--
{% endif %}
--
{{ 1 + }}
--
{{ (1 }}
--
{{ 'a }}
--
{# open
--
{% break %}
--
{{ a | nofilter }}
--
{{ a is notest }}
--
{% unknown %}
--
{{ a b }}
--
{{ a. }}
--
{{ }}
--
{% set %}
--
{{ 5 5 }}
--
{{ ) }}
--
{{ 'x'[1:2:3:4] }}
""".strip("\n").split("\n--\n")


class Maker:
    """Random templates out of the constructs that chat templates use."""

    def __init__(self, seed):
        self.r = random.Random(seed)
        self.local = []

    def pick(self, *options):
        return self.r.choice(options)

    def name(self):
        return self.r.choice(list(VARS) + ["nothing"] + 3 * self.local)

    def string(self):
        return self.pick("'a'", '"b c"', "' x\\n'", "''", "'<|im_start|>'", "'role'", "'l'", "'é日'", "'{\"k\": '")

    def expr(self, depth):
        r = self.r
        if depth <= 0:
            return r.choice([self.name, self.name, self.string, lambda: str(r.randint(-3, 12)),
                             lambda: r.choice(["true", "false", "none", "2.5", "[]", "{}", "messages[0]"])])()
        e = lambda d=1: self.expr(depth - r.randint(d, depth))
        op = r.randrange(17)
        if op == 0:
            return f"{e()} {self.pick('+', '-', '*', '~', '~', '+', '//', '/')} {e()}"
        if op == 1:
            return f"({e()} {self.pick('==', '!=', '<', '>=', 'in', 'not in', 'and', 'or')} {e()})"
        if op == 2:
            return f"{e()} {self.pick('==', '!=', 'and', 'or', 'in')} {e()}"
        if op == 3:
            return self.pick("not ", "") + f"{self.atom(depth)} is {self.pick('', 'not ')}" + self.pick(
                "defined", "none", "string", "mapping", "iterable", "sequence", "number", "boolean", "integer",
                "true", "odd", f"in {self.name()}", f"eq({e()})")
        if op in (4, 5, 6):
            return f"{self.atom(depth)} | {self.filter(depth)}"
        if op == 7:
            return f"{self.atom(depth)} | {self.filter(depth)} | {self.filter(depth)}"
        if op == 8:
            return f"{self.name()}[{self.pick('0', '-1', '1', '1:', ':-1', '::-1', ':2', '-2:', repr('role'), e())}]"
        if op == 9:
            return f"{self.atom(depth)}.{self.pick('role', 'content', 'name', 'function', 'x', 'tool_calls', 'b')}"
        if op in (10, 11):
            return f"{self.textual(depth)}.{self.method(depth)}"
        if op == 12:
            return f"[{', '.join(e() for _ in range(r.randint(0, 3)))}]"
        if op == 13:
            return "{" + ", ".join(f"{self.string()}: {e()}" for _ in range(r.randint(0, 2))) + "}"
        if op == 14:
            return f"({e()} if {e()} else {e()})"
        if op == 15:
            return f"({e()})"
        return f"{self.string()} + {self.textual(depth)} + {self.string()}"

    def atom(self, depth):
        return self.name() if self.r.random() < 0.6 else f"({self.expr(depth - 1)})"

    def textual(self, depth):
        return self.r.choice(["s", "w", "name", "lines", "messages[1].content", f"({self.atom(depth)} | string)",
                              f"({self.atom(depth)} ~ '')", "'k: v, w'", "e", "('<b>' | safe)", "'{}<{x}>{{'"])

    def method(self, depth):
        return self.pick("strip()", "lstrip()", "rstrip('\\n')", "split()", "split(',')", "split('e')[-1]",
                         "split('l', 1)", "upper()", "lower()", "title()", "startswith('a')", "endswith('!')",
                         "replace('l', 'LL')", "find('o')", "strip().split('\\n')", "rsplit(' ', 1)[0]",
                         "splitlines()", "count('e')", "capitalize()", "removeprefix('get_')", "isdigit()", "format(1, x='<')",
                         "partition('_')", "zfill(9)", f"replace({self.string()}, {self.string()})")

    def filter(self, depth):
        return self.pick("trim", "upper", "lower", "length", "tojson", "string", "list", "first", "last", "default('d')",
                         "default('d', true)", "join", "join(', ')", "int", "float", "replace('a', 'b')", "indent",
                         "indent(2, true)", "capitalize", "title", "reverse | list", "sort", "unique | list", "items | list",
                         "map('string') | list", "map(attribute='role') | list", "selectattr('role') | list",
                         "selectattr('role', 'equalto', 'user') | list", "rejectattr('content') | list",
                         "select('string') | list", "reject('none') | list", "tojson(indent=2)", "abs", "dictsort",
                         "min", "max", "sum", "batch(2) | list", "round", "escape", "safe", "string | safe", "tojson(sort_keys=true)",
                         "tojson(ensure_ascii=true)")

    def space(self):
        return self.pick("", "", " ", "\n", "  ", "\n  ", "text", "\n\n", "\t")

    def tag(self, body):
        return "{%" + self.pick("", "", "-", "-", "+") + " " + body + " " + self.pick("", "", "-", "+") + "%}"

    def show(self, body):
        return "{{" + self.pick("", "", "-") + " " + body + " " + self.pick("", "", "-") + "}}"

    def statement(self, depth):
        op = self.r.randrange(12)
        if depth <= 0 or op < 5:
            return self.show(self.expr(self.r.randint(0, 3)))
        if op == 5:
            if self.r.random() < 0.1:  # what Jinja does not know is an error where it is met
                return self.tag("if " + self.pick("no", "no", "yes")) + self.show("i | nofilter") + self.tag("endif")
            out = self.tag("if " + self.expr(2)) + self.body(depth - 1)
            if self.r.random() < 0.3:
                out += self.tag("elif " + self.expr(2)) + self.body(depth - 1)
            if self.r.random() < 0.5:
                out += self.tag("else") + self.body(depth - 1)
            return out + self.tag("endif")
        if op in (6, 7):
            var = self.pick("m", "x", "item")
            source = self.pick("messages", "list", "words", "map", "tools", "s", self.expr(1))
            condition = " if " + self.expr(1) if self.r.random() < 0.2 else ""
            head = self.tag(f"for {var} in {source}{condition}")
            self.local.append(var)
            if self.r.random() < 0.5:
                self.local.append("loop." + self.pick("index", "index0", "last", "first", "length", "revindex"))
            body = self.body(depth - 1)
            if self.r.random() < 0.1:
                body += self.tag(f"if {self.expr(1)}") + self.tag(self.pick("break", "continue")) + self.tag("endif") + "x"
            self.local = [v for v in self.local if v != var and not v.startswith("loop")]
            return head + body + self.tag("endfor")
        if op == 8:
            var = self.pick("v", "u", "i", "s")
            text = self.tag(f"set {var} = {self.expr(2)}")
            self.local.append(var)
            return text
        if op == 9:
            return self.tag("set v") + self.body(depth - 1) + self.tag("endset") + "{{ v | length }}"
        if op == 10:
            inner = self.body(depth - 1)
            return (self.tag("macro mac(a, b='-')") + inner + "{{ a }}{{ b }}" + self.tag("endmacro") +
                    self.show(f"mac({self.expr(1)})") + self.show(f"mac({self.expr(1)}, b={self.expr(1)})"))
        return (self.tag("set ns = namespace(n=0, t='')") + self.tag("for q in " + self.pick("messages", "list", "words")) +
                self.tag(f"set ns.n = ns.n + {self.pick('1', 'loop.index', 'q | length')}") +
                self.tag(f"set ns.t = ns.t ~ {self.expr(1)}") + self.tag("endfor") + "{{ ns.n }}{{ ns.t }}")

    def body(self, depth):
        return "".join(self.space() + self.statement(depth) for _ in range(self.r.randint(1, 3))) + self.space()


def transformers_template(text):
    from transformers.utils import chat_template_utils
    return chat_template_utils._cached_compile_jinja_template(text)


def render(text, variables, compiled=transformers_template):
    try:
        return compiled(text).render(**copy.deepcopy(variables))
    except (jinja2.TemplateError, TypeError, ValueError, KeyError, IndexError, AttributeError, ZeroDivisionError,
            OverflowError, AssertionError, RecursionError, SyntaxError):
        return None


def comparable(out):
    """Addresses and the names of Python's own types differ from run to run, or say nothing about a template."""
    return out is None or (len(out) < 4000 and not any(
        w in out for w in (" object at 0x", "<built-in", "<bound", "<function", "dict_", "range(", "<Macro", "Undefined",
                           "<class", "LoopContext", "Namespace", "<filter", "<map")))


def main():
    warnings.simplefilter("ignore", SyntaxWarning)
    fixtures = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else "tests/fixtures")
    count = int(sys.argv[2]) if len(sys.argv) > 2 else 600
    out = fixtures / "jinja"
    out.mkdir(parents=True, exist_ok=True)
    lines = [json.dumps({"v": VARS}, separators=(",", ":"))]
    for text in BY_HAND:
        made = render(text, VARS)
        if comparable(made):
            lines.append(json.dumps({"t": text, "o": made}, separators=(",", ":")))
        else:
            print("left out:", text[:100], file=sys.stderr)
    seed, made, errors = 0, 0, 0
    while made < count:
        seed += 1
        text = Maker(seed).body(3)
        got = render(text, VARS)
        if not comparable(got) or len(text) > 1500 or (got is None and errors * 4 > made):
            continue
        errors += got is None
        made += 1
        lines.append(json.dumps({"t": text, "o": got}, separators=(",", ":")))
    (out / "cases.jsonl").write_text("\n".join(lines) + "\n")
    print(f"{len(lines) - 1} cases, {errors} of the random ones are errors")


if __name__ == "__main__":
    main()
