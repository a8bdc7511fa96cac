#!/usr/bin/env python3
"""make_jinja_fixtures.py - small templates and what transformers renders of them: tests/fixtures/jinja_cases.json.

    python3 tools/make_jinja_fixtures.py tests/fixtures/jinja_cases.json       (pip install transformers jinja2)

The environment is that of apply_chat_template, taken from transformers itself. A case is [template, variables, text], or
[template, variables, null, class of the error]. Cases that print an address or the time are left out."""
import json
import sys

import jinja2
import transformers
import transformers.utils.chat_template_utils as utils

MESSAGES = [
    {"role": "system", "content": "Be \"brief\".\n"},
    {"role": "user", "content": "  Grüße, <b>Welt</b> \u65e5\u672c \U0001f600 "},
    {"role": "assistant", "content": "it's\tok", "n": 3, "x": 1.5, "ok": True, "none": None},
]
VARIABLES = {
    "messages": MESSAGES, "name": "Bob", "empty": "", "zero": 0, "n": 7, "neg": -7, "f": 2.5, "big": 1e22, "small": 1.5e-7,
    "yes": True, "no": False, "nothing": None, "list": [3, 1, 2], "words": ["b", "A", "c", "B"], "nested": [[1, 2], [3, [4]]],
    "d": {"b": 1, "a": {"x": [1, 2.0, "s", None, True]}, "items": 5}, "bos_token": "<s>", "text": "one two  three",
    "lines": "a\nb\r\nc\u2028d\n", "quote": "it's \"x\" \\ \n\t\x07\u00ad\u3000\U0001f600", "unicode": "ßﬁǆİΣΑΣ éÉ",
    "html": "<a href='x'>&\"</a>", "pad": "\u3000 x \u00a0\n", "num": "42", "numf": "42.75", "hex": "0x1f",
    "tools": [{"name": "f", "parameters": {"type": "object", "properties": {"q": {"type": "string"}}}}],
}

# Each group: templates over VARIABLES. `E(...)` wraps expressions.
def E(*expressions):
    return ["{{ " + e + " }}" for e in expressions]

CASES = []
CASES += [  # text and white space
    "", "plain", "plain\n", "plain\n\n", "a\r\nb\rc\n", "{", "{ {", "}}", "%}", "{{ 1 }}", "{{1}}{{2}}", "a {{ 1 }} b",
    "{% if true %}\nx\n{% endif %}\ny\n", "  {% if true %}\n  x\n  {% endif %}\n  y\n", "a  {% if true %} b {% endif %}  c",
    "a\n  {%- if true %}\n b\n {%- endif -%}\n  c", "a \n {{- 1 -}} \n b", "a\n  {%+ if true %}x{% endif %}", "{% if true +%}\nx{% endif %}",
    "x\n   {# comment #}\ny", "x {#- c -#}  y", "x {#c#}\n y", "a\n\t {% set x = 1 %}\t\nb", "{{ 1 }}\n{{ 2 }}\n", "{{ 1 -}}\n\n{{ 2 }}",
    "  {{ 1 }}", "\n\n{% set a = 1 %}\n\n", "a{% raw %}{{ x }}{% y %}{# z #}{% endraw %}b", "a\n  {% raw %}\n x {% endraw %}\nb",
    "a {%- raw -%}  x  {%- endraw -%} b", "{% raw %}{% endraw %}", "a\u3000\n{%- set x = 1 -%}\u3000b", "{#- a -#}{#+ b +#}\nc", "{{'}}'}}", "{{ '{%' }}",
    "{{ {'a': {'b': 1}}['a']['b'] }}", "{{ {'a':1}}}", "{%- set x = 1 -%}   \n\n  {{- x }}", "{% if true %}\n\n\nx{% endif %}",
    "{%if true%}a{%endif%}", "{%-if true-%} a {%-endif-%}", "line\n    {%- for i in [1,2] %}\n    {{ i }}\n    {%- endfor %}\nend",
    "{% for i in [1,2] -%}\n  {{ i }}\n{%- endfor %}", "   {% set x = 1 %}{{ x }}", "x   {% set x = 1 %}{{ x }}", "{{ 1 }}  {% set x = 1 %}  {{ x }}",
    "{# a #}   {# b #}x", "\x0c{% set a = 1 %}b", "{{ 'a\n  b' }}", "{% raw -%}\n x\n{%+ endraw %}", "{{ \"a\\\nb\" }}",
]
CASES += E(  # literals and operators
    "1 + 2 * 3", "(1 + 2) * 3", "2 ** 3 ** 2", "-2 ** 2", "7 // 2", "-7 // 2", "7 % 3", "-7 % 3", "7 % -3", "7 / 2", "6 / 2", "7.5 // 2", "-7.5 % 2",
    "1 + 2.0", "1e3", "1.5e-7", "1_000", "0x1F", "0b101", "0o17", "1E5", "12345678901234567", "9223372036854775807", "1e16", "1e15", "123456789.125",
    "0.1 + 0.2", "1 / 3", "100 * 1.1", "5e-324", "1.7976931348623157e308", "-0.0", "2 ** 62", "2 ** -1", "2 ** 0.5", "0 ** 0",
    "'a' 'b' \"c\"", "'a' ~ 1 ~ none ~ true ~ 1.0 ~ [1]", "'x' * 3", "3 * 'x'", "[1] + [2]", "(1,) + (2,)", "[0] * 3", "'a' + 'b'",
    "'\\n\\t\\\\\\'\\\"'", "'\\x41\\u00e9\\U0001F600\\101\\7'", "'\\q\\é'", "'é\\u00e9'", "'a\\\\n'", "'\\N'[0:0]",
    "[1, 'a', none, true, 1.5, [2], (3,), {'k': 'v'}]", "()", "(1,)", "(1, 2)", "1, 2", "[]", "{}", "[1, 2,]", "{'a': 1, 2: 'b', none: true, 1.5: 0,}",
    "{'a': 1, 'a': 2}", "{1: 'a', true: 'b', 1.0: 'c'}", "1 == 1.0", "true == 1", "'1' == 1", "none == none", "[1, 2] == [1, 2]", "(1,) == [1]",
    "{'a': 1} == {'a': 1.0}", "1 < 2 < 3", "1 < 2 > 3", "3 > 2 >= 2 != 1", "'a' < 'b'", "'a' < 'B'", "[1, 2] < [1, 3]", "(1,) < (1, 2)", "1 in [1, 2]", "'a' in 'cat'",
    "'x' not in 'cat'", "'a' in {'a': 1}", "3 in (1, 2)", "none in [none]", "1 in [true]", "not true", "not not 1", "not 1 == 2", "true and 0", "'' or 'x'",
    "0 and x.y", "1 or x.y", "none or 0 or ''", "1 if true else 2", "1 if false else 2", "1 if false", "'a' if no else 'b' if no else 'c'", "(1 if false) is defined",
    "+5", "--5", "- 5", "-(-5)", "-f", "+true", "-true", "true + true", "1 - -1", "-n|abs", "-7|abs", "(-7)|abs", "2 * 3 ~ 4", "'a' ~ 1 + 2", "1 + 2 ~ 3", "10 - 2 - 3", "2 - 3 + 4",
    "100 // 7 % 5", "2 ** 2 * 3", "not 1 in [2]", "1 is odd and 2 is even", "n == 7 and f == 2.5", "True, False, None", "true ~ false ~ none",
    "9223372036854775807 == 9223372036854775807.0", "0.5 == 1 / 2", "1 != 1.0", "'abc' > 'abd' or 1", "[1,2,3] > [1,2]", "1.0 // 0.3", "5 // 2.0", "-5 // 2.0", "5.5 % -2",
)
CASES += E(  # errors of operators
    "1 + 'a'", "'a' + 1", "'a' + none", "[1] + 1", "none + 1", "1 / 0", "1 // 0", "1 % 0", "1.0 / 0", "1.5 % 0", "1 < 'a'", "none < 1", "[1] < 1", "{} < {}", "'a' * 'b'", "-'a'", "1 in 5",
    "1 in 'abc'", "{[1]: 2}", "{}[[]]", "undefined_name + 1", "1 + undefined_name", "'a' + undefined_name", "undefined_name < 1", "-undefined_name", "0 ** -1", "[] - []",
)
CASES += E(  # names, attributes, subscripts, slices
    "name", "undefined_name", "undefined_name is defined", "undefined_name.x", "undefined_name['x']", "undefined_name.x.y", "nothing.x", "nothing.x.y", "n.x", "n.x.y", "d.b", "d['b']",
    "d.a.x[2]", "d.a['x'][3]", "d.missing", "d.missing.x", "d['missing']", "d['missing'].x", "d.items", "d['items']", "d.keys() | list", "list[0]", "list[-1]", "list[5]", "list[5].x", "list.0",
    "list['x']", "list['count']", "name[0]", "name[-1]", "name[9]", "name['upper']()", "messages[0].role", "messages[-1]['content']", "messages[1].content[3]", "list[1:]", "list[:-1]",
    "list[::-1]", "list[::2]", "list[5:]", "list[-100:100]", "list[2:0:-1]", "name[1:]", "name[:2]", "name[::-1]", "name[-2:]", "name[::2]", "name[2:0:-1]", "messages[1].content[2:9]",
    "messages[1].content[::-1]", "messages[1].content[-3:]", "messages[1].content[1:12:3]", "(1,2,3)[1:]", "range(10)[2:5]", "range(10)[::-3] | list", "list[none:2]", "list[1.5]", "list[true]", "list[::0]",
    "d[1:2]", "nothing[0]", "nothing[0].x", "undefined_name[1:]", "d.a.x", "[[1,2],[3,4]][1][0]", "{'a': {'b': 5}}.a.b", "'abc'.0", "list[n]", "messages[0:1]", "''[0]", "''[0:5]", "name[100:]", "name[-100:2]",
    "d.__class__", "name.__class__.x", "name.__len__", "d['__class__']", "list.append", "list.append(4)", "d.update({'x': 1})", "d.pop('b')", "d.clear", "list.sort()", "d.setdefault('q', 1)", "list.pop()", "nested[1][1][0]",
    "messages|length", "loop", "list.index", "list.foo()", "name.foo()", "name()", "5()", "nothing()", "undefined_name()", "d.b()", "d[(1, 2)]", "d[none]", "name['x']", "name[none]",
)
CASES += [  # statements
    "{% for x in list %}{{ x }},{% endfor %}", "{% for x in [] %}a{% else %}none{% endfor %}", "{% for x in list %}a{% else %}none{% endfor %}", "{% for k, v in d.items() %}{{ k }}={{ v }};{% endfor %}",
    "{% for k in d %}{{ k }}{% endfor %}", "{% for c in 'aé😀' %}[{{ c }}]{% endfor %}", "{% for x in undefined_name %}a{% else %}b{% endfor %}", "{% for x in nothing %}a{% endfor %}", "{% for x in 5 %}a{% endfor %}",
    "{% for a, b in [[1, 2], (3, 4)] %}{{ a + b }} {% endfor %}", "{% for a, (b, c) in [[1, [2, 3]]] %}{{ a }}{{ b }}{{ c }}{% endfor %}", "{% for a, b in [[1]] %}{% endfor %}", "{% for a, b in [[1,2,3]] %}{% endfor %}", "{% for a, b in ['xy'] %}{{ a }}{{ b }}{% endfor %}",
    "{% for a, b in [1] %}{% endfor %}", "{% for x in list if x > 1 %}{{ x }}/{{ loop.index }}/{{ loop.length }} {% endfor %}", "{% for x in list if x > 9 %}a{% else %}b{% endfor %}",
    "{% for x in list %}{{ loop.index }}{{ loop.index0 }}{{ loop.first }}{{ loop.last }}{{ loop.length }}{{ loop.revindex }}{{ loop.revindex0 }}{{ loop.depth }}{{ loop.depth0 }};{% endfor %}",
    "{% for x in list %}{{ loop.previtem }}<{{ x }}>{{ loop.nextitem }}|{% endfor %}", "{% for x in list %}{{ loop.previtem is defined }}{{ loop.nextitem is defined }}{% endfor %}", "{% for x in list %}{{ loop.cycle('a', 'b') }}{% endfor %}",
    "{% for x in [1,1,2,2,1] %}{{ loop.changed(x) }}{% endfor %}", "{% for x in list %}{{ loop.foo }}{% endfor %}", "{% for x in list %}{{ loop.cycle() }}{% endfor %}", "{% for x in list %}{{ loop }}{% endfor %}",
    "{% for x in list %}{% for y in 'ab' %}{{ loop.index }}{{ y }}{% endfor %}{{ loop.index }};{% endfor %}", "{% for x in list %}{% if loop.first %}{% continue %}{% endif %}{{ x }}{% endfor %}", "{% for x in list %}{{ x }}{% break %}{% endfor %}",
    "{% for x in list %}{% for y in 'ab' %}{% if y == 'b' %}{% break %}{% endif %}{{ y }}{% endfor %}{{ x }}{% endfor %}", "{% break %}", "{% if true %}{% continue %}{% endif %}", "{% for x in list %}{% break %}{% else %}e{% endfor %}",
    "{% for x in range(3) %}{{ x }}{% endfor %}", "{% for x in range(5, 0, -2) %}{{ x }}{% endfor %}", "{% for x in list recursive %}{{ x }}{% endfor %}x"[:0] or "x", "{% for x in list|reverse %}{{ x }}{{ loop.last }}{{ loop.length }}{% endfor %}",
    "{% set g = list|map('string') %}{% for x in g %}{{ x }}{% endfor %}{% for x in g %}{{ x }}{% else %}empty{% endfor %}", "{% for m in messages %}{{ m.role }}:{{ m['content'] }};{% endfor %}", "{% for x in list %}{% set y = x %}{% endfor %}{{ y }}",
    "{% set y = 0 %}{% for x in list %}{{ y }}{% set y = x %}{{ y }}{% endfor %}{{ y }}", "{% if true %}{% set y = 1 %}{% endif %}{{ y }}", "{% set ns = namespace(a=1, b='x') %}{% for x in list %}{% set ns.a = ns.a + x %}{% endfor %}{{ ns.a }}{{ ns.b }}{{ ns.c }}",
    "{% set ns = namespace() %}{{ ns.x }}{% set ns.x = 1 %}{{ ns.x }}{{ ns['x'] }}", "{% set ns = namespace({'a': 1}) %}{{ ns.a }}", "{% set ns = namespace(a=1) %}{{ ns }}", "{% set ns = namespace(_a=1) %}", "{% set ns = namespace() %}{% set ns._a = 1 %}",
    "{% set d.b = 5 %}", "{% set name.b = 5 %}", "{% set undefined_name.b = 5 %}", "{% set a, b = 1, 2 %}{{ a }}{{ b }}", "{% set a, b = [1, 2, 3] %}", "{% set (a, b) = 'xy' %}{{ b }}{{ a }}", "{% set a = 1, 2 %}{{ a }}", "{% set x %}a{{ 1 }}b{% endset %}[{{ x }}]",
    "{% set x | upper %}ab{% endset %}{{ x }}", "{% set x | trim | length %} ab {% endset %}{{ x + 1 }}", "{% set x %}{% set y = 1 %}{{ y }}{% endset %}{{ x }}{{ y }}", "{% set ns = namespace() %}{% set ns.a %}q{% endset %}{{ ns.a }}", "{% filter upper %}a{{ name }}b{% endfilter %}",
    "{% filter replace('a', 'b') | upper %}banana{% endfilter %}", "{% with a = 1, b = 2 %}{{ a }}{{ b }}{% endwith %}{{ a }}", "{% with %}{% set q = 1 %}{{ q }}{% endwith %}{{ q }}", "{% set a = 5 %}{% with a = 1, b = a %}{{ a }}{{ b }}{% endwith %}{{ a }}", "{% print 1, 2 %}", "{% if n %}a{% elif f %}b{% else %}c{% endif %}",
    "{% if zero %}a{% elif f %}b{% else %}c{% endif %}", "{% if zero %}a{% elif no %}b{% else %}c{% endif %}", "{% if zero %}a{% endif %}", "{% if undefined_name %}a{% else %}b{% endif %}", "{% if empty or nothing or [] or {} or () or 0.0 %}a{% else %}b{% endif %}", "{% if 'a' in d and d.b == 1 %}y{% endif %}",
    "{% macro m(a, b=2) %}[{{ a }}{{ b }}]{% endmacro %}{{ m(1) }}{{ m(1, 3) }}{{ m(b=4, a=5) }}{{ m() }}", "{% macro m(a) %}{{ a.x }}{% endmacro %}{{ m() }}", "{% macro m(a) %}{% endmacro %}{{ m(1, 2) }}", "{% macro m(a) %}{% endmacro %}{{ m(1, c=2) }}", "{% macro m(a) %}{{ a }}{% endmacro %}{{ m(1, a=2) }}",
    "{% macro m() %}{{ varargs }}{{ kwargs }}{% endmacro %}{{ m(1, 'a', k=2) }}", "{% macro m(a, b=a) %}{{ b }}{% endmacro %}{{ m(3) }}", "{% macro m() %}{{ name }}{{ later }}{% endmacro %}{% set later = 'L' %}{{ m() }}", "{% set x = 1 %}{% macro m() %}{{ x }}{% set x = 2 %}{{ x }}{% endmacro %}{{ m() }}{{ x }}",
    "{% macro m() %}({{ caller() }}){% endmacro %}{% call m() %}body{% endcall %}", "{% macro m() %}{{ caller(1, b=2) }}{% endmacro %}{% call(a, b) m() %}{{ a }}{{ b }}{{ name }}{% endcall %}", "{% macro m() %}{{ caller() }}{% endmacro %}{{ m() }}", "{% macro m() %}x{% endmacro %}{% call m() %}y{% endcall %}", "{% macro m(caller=none) %}{{ caller() if caller else 'no' }}{% endmacro %}{{ m() }}",
    "{% macro m(n) %}{{ n }}{% if n > 0 %}{{ m(n - 1) }}{% endif %}{% endmacro %}{{ m(3) }}", "{% macro m() %}x{% endmacro %}{{ m }}{{ m.name }}{{ m.arguments }}", "{% macro a() %}{{ b() }}{% endmacro %}{% macro b() %}B{% endmacro %}{{ a() }}", "{% for x in list %}{% macro m() %}{{ x }}{% endmacro %}{{ m() }}{% endfor %}", "{{ m() }}{% macro m() %}x{% endmacro %}",
    "{% macro m(x) %}{{ x|upper }}{% endmacro %}{{ m('a') ~ m('b') }}{{ m('c')|lower }}", "{% macro m() %}  x  {% endmacro %}[{{ m()|trim }}]", "{% macro outer() %}{% macro inner() %}i{% endmacro %}{{ inner() }}{% endmacro %}{{ outer() }}", "{% macro m(a, b) %}{{ a }}{{ b }}{% endmacro %}{{ m(*[1, 2]) }}{{ m(**{'a': 3, 'b': 4}) }}", "{% macro m(a, b=1, c) %}{% endmacro %}",
    "{% generation %}a{{ name }}{% endgeneration %}b", "{% generation %}{% set q = 1 %}{% endgeneration %}{{ q }}", "{% for x in list %}{% generation %}{{ x }}{% break %}{% endgeneration %}{% endfor %}", "{%- for m in messages -%}\n  {{- '<|' + m.role + '|>' }}\n  {%- if m.role == 'assistant' %}\n    {%- generation %}\n    {{- m.content }}\n    {%- endgeneration %}\n  {%- endif %}\n{%- endfor -%}",
    "{% set x = 5 %}{% for x in list %}{{ x }}{% endfor %}{{ x }}", "{% for x in list %}{{ x }}{% else %}{{ x }}{% endfor %}{{ x }}", "{% for i in list %}{% set ns = namespace(v=i) %}{{ ns.v }}{% endfor %}", "{% for x in list %}{% set y %}{{ x }}{% if x == 1 %}{% break %}{% endif %}{% endset %}{{ y }}{% endfor %}", "{% set messages = messages[1:] %}{{ messages|length }}",
    "{% if messages[0].role == 'system' %}{% set s = messages[0].content %}{% set rest = messages[1:] %}{% else %}{% set rest = messages %}{% endif %}{{ s }}{{ rest|length }}", "{% if no %}{% set name = 'x' %}{% endif %}{{ name }}", "{% for x in list %}{% if x == 3 %}{% set name = 'x' %}{% endif %}{{ name }}{% endfor %}{{ name }}", "{% set ns = namespace(found=false) %}{% for x in list if not ns.found %}{{ x }}{% set ns.found = true %}{% endfor %}",
    "{% set ns = namespace(found=false) %}{% for x in list if not ns.found %}{{ loop.last }}{{ x }}{% set ns.found = true %}{% endfor %}", "{% set c = cycler('a', 'b') %}{{ c.next() }}{{ c.next() }}{{ c.next() }}{{ c.current }}{% set _ = c.reset() %}{{ c.next() }}", "{% set j = joiner('|') %}{% for x in list %}{{ j() }}{{ x }}{% endfor %}", "{{ dict(a=1, b=[2]) }}{{ dict([('x', 1)]) }}{{ dict({'q': 1}, r=2) }}",
    "{{ range(3) }}{{ range(1, 3) }}{{ range(0, 10, 3) }}{{ range(3)|list }}{{ range(0)|list }}", "{{ range(5)|length }}{{ 3 in range(5) }}{{ range(5)[-1] }}", "{{ range('a') }}", "{{ range(1, 2, 0) }}", "{{ range() }}", "{{ range(200000) }}", "{{ raise_exception('bad ' ~ n) }}", "{% if no %}{{ raise_exception('x') }}{% endif %}ok", "{{ namespace }}"[:0] or "y", "{{ range }}"[:0] or "z",
]
CASES += [  # syntax errors
    "{{", "{{ 1", "{{ 1 }", "{% if %}", "{% if true %}", "{% endif %}", "{% for x %}{% endfor %}", "{% for in y %}{% endfor %}", "{% foo %}", "{# x", "{% raw %}x", "{{ 'a }}", "{{ ) }}", "{{ (1 }}", "{{ [1) }}", "{{ 1 2 }}", "{{ . }}", "{{ a. }}", "{{ a[ }}", "{{ a[] }}", "{{ {1} }}", "{{ | }}", "{{ x| }}", "{{ x|nofilter }}", "{{ x is }}",
    "{{ x is notest }}", "{{ 'a' is not }}", "{{ 1 is odd is even }}", "{% set %}", "{% set 1 = 2 %}", "{% set a.b.c = 1 %}", "{% macro %}{% endmacro %}", "{% macro m %}{% endmacro %}", "{% if true %}{% else %}{% else %}{% endif %}", "{% if true %}{% elif %}{% endif %}", "{{ f(a=1, 2) }}", "{{ f(*a, *b) }}", "{{ f(**a, *b) }}", "{{ '\\x4' }}", "{{ '\\u12' }}", "{{ 1..2 }}", "{{ $ }}", "{{ a ? b }}", "{{ !a }}", "{{ a & b }}", "{{ a = b }}",
    "{% call x %}{% endcall %}", "{% if x %}{% for y in z %}{% endif %}{% endfor %}", "{% for x in y %}{% endif %}", "{{ }}", "{% %}", "{{ 1 if }}", "{{ not }}", "{{ 1 + }}", "{{ 'a' 'b }}", "{% if false %}{{ x|nofilter }}{% endif %}ok", "{% if true %}{{ x|nofilter }}{% endif %}", "{{ 1 if true else x|nofilter }}", "{% if x is notest %}{% endif %}", "{% set loop = 1 %}{{ loop }}", "{% for loop in list %}{% endfor %}", "{% for x in list %}{% set loop = 1 %}{% endfor %}",
    "{{ list|map('nofilter') }}", "{{ list|map('nofilter')|list }}", "{{ list|select('notest')|list }}", "{% set true = 1 %}", "{{ True }}{{ TRUE }}", "{{ 007 }}", "{{ 1__0 }}", "{{ 0x }}", "{{ 1e }}", "{{ é }}", "{% set é = 1 %}{{ é }}",
]
CASES += E(  # filters
    "pad|trim", "'xxaxx'|trim('x')", "n|trim", "name|upper", "unicode|upper", "unicode|lower", "unicode|title", "unicode|capitalize", "'hello wORLD-foo (bar'|title", "'hELLO'|capitalize", "name|length", "messages|length", "d|length", "undefined_name|length", "n|length", "nothing|length", "unicode|length", "list|count",
    "list|join", "list|join(', ')", "messages|join('|', attribute='role')", "messages|join(attribute='n')", "'abc'|join('-')", "d|join(',')", "[1, none, true, 'x', undefined_name]|join('/')", "n|join", "undefined_name|default('x')", "undefined_name|default", "empty|default('x')", "empty|default('x', true)", "nothing|default('x')", "nothing|d('x', boolean=true)", "d.zz|default(1)", "undefined_name.x|default(1)",
    "list|first", "list|last", "[]|first", "[]|last", "[]|first is defined", "name|first", "name|last", "d|first", "d|last", "n|first", "list|map('string')|first", "list|map('string')|last", "undefined_name|first", "name|list", "d|list", "d.items()|list", "d.values()|list", "d.keys()", "d.items()", "n|list", "nothing|list", "n|string", "nothing|string ~ 'x'", "f|string", "num|int", "numf|int", "'x'|int", "'x'|int(5)", "hex|int(0, 16)", "'12'|int(base=8)", "f|int", "neg|int", "yes|int", "nothing|int", "nothing|int(3)", "list|int", "undefined_name|int", "' 12 '|int", "'1_000'|int", "'1e3'|int", "'-5'|int", "'inf'|int", "'0x1f'|int",
    "numf|float", "'x'|float", "'x'|float(1.5)", "n|float", "yes|float", "nothing|float", "'nan'|float", "'-inf'|float", "'1e400'|float", "' 1.5 '|float", "'1_0.5'|float", "undefined_name|float", "text|replace('o', '0')", "text|replace('o', '0', 1)", "text|replace('', '-')", "'aaa'|replace('aa', 'b')", "n|replace(7, 8)", "text|replace('zz', 'y')", "list|reverse|list", "name|reverse", "'aé😀'|reverse", "d|reverse|list", "n|reverse", "(1,2)|reverse|list",
    "list|sort", "list|sort(reverse=true)", "words|sort", "words|sort(case_sensitive=true)", "messages|sort(attribute='role')|map(attribute='role')|list", "[[2,1],[1,2]]|sort", "[1,'a']|sort", "['b', 'a', 'B', 'A']|sort(true)", "[{'a':1,'b':2},{'a':1,'b':1}]|sort(attribute='a,b')", "nested|sort(attribute='0')", "d|sort", "'cba'|sort", "[3, none]|sort", "[2.5, 1, true]|sort", "words|unique|list", "words|unique(true)|list", "[1, 1.0, true, 2]|unique|list", "messages|unique(attribute='role')|map(attribute='role')|join", "[[1]]|unique|list",
    "words|map('upper')|list", "messages|map(attribute='role')|list", "messages|map(attribute='n', default='?')|list", "messages|map(attribute='n')|list", "nested|map('length')|list", "nested|map(attribute=0)|list", "list|map('default', 1)|list", "['a b']|map('replace', ' ', '_')|list", "[[1,2],[3]]|map('join', ',')|list", "list|map|list", "d.a|map('upper')|list", "undefined_name|map('upper')|list", "messages|map(attribute='content.0')|list", "messages|map(attribute='x', foo=1)|list", "list|map('string')|length",
    "list|select('odd')|list", "list|reject('odd')|list", "list|select|list", "[0, 1, '', 'a', none]|select|list", "[0, 1, '']|reject|list", "list|select('gt', 1)|list", "list|select('>', 1)|list", "messages|selectattr('role', 'equalto', 'user')|list|length", "messages|selectattr('n')|map(attribute='role')|list", "messages|rejectattr('n')|map(attribute='role')|list", "messages|selectattr('n', 'defined')|map(attribute='role')|list", "messages|selectattr('role', 'in', ['user', 'system'])|map(attribute='role')|join(',')", "messages|rejectattr('role', '==', 'system')|list|length", "messages|selectattr|list", "undefined_name|select|list", "n|select|list", "zero|select|list", "messages|selectattr('none', 'none')|list|length", "list|select('divisibleby', 3)|list", "words|select('in', 'Ab')|list", "words|select('upper')|list", "(messages|selectattr('role', 'eq', 'user')|first).content|trim",
    "d|items|list", "undefined_name|items|list", "list|items|list", "d|dictsort", "{'b': 1, 'A': 3, 'c': 2}|dictsort", "{'b': 1, 'A': 3, 'c': 2}|dictsort(true)", "{'b': 1, 'A': 3, 'c': 2}|dictsort(false, 'value')", "{'b': 1, 'A': 3}|dictsort(reverse=true)", "{'b': 1}|dictsort(by='x')", "list|dictsort", "lines|indent", "lines|indent(2)", "lines|indent(2, true)", "'a\n\nb'|indent", "'a\n\nb'|indent(blank=true)", "'a\nb'|indent('> ', true)", "''|indent", "'a\n'|indent", "n|indent", "html|safe", "html|escape", "html|e", "(html|e)|e", "'<'|safe + '<'", "'<' + '>'|safe", "('<'|safe) * 2 + '&'", "('<'|safe)|upper + '<'", "'<'|safe ~ '<'", "('<x'|safe)[0] + '<'", "'a'|safe is escaped", "'<a>'|e is escaped", "'a' is escaped",
    "neg|abs", "(-2.5)|abs", "true|abs", "'x'|abs", "undefined_name|abs", "2.567|round", "2.567|round(1)", "2.5|round", "3.5|round", "2.675|round(2)", "2.1|round(method='ceil')", "2.9|round(0, 'floor')", "2.15|round(1, 'ceil')", "7|round", "7|round(1)", "-2.5|round", "(-2.5)|round", "1e300|round", "'x'|round", "2.5|round(method='x')", "2.5|round|int", "0.5|round", "1.5|round", "1234.5|round(-2)", "list|min", "list|max", "words|min", "words|max", "words|max(true)", "[]|min", "[]|min is defined", "messages|max(attribute='role')|length", "[1,'a']|max", "list|sum", "[1.5, 2]|sum", "[]|sum", "['a']|sum", "[[1],[2]]|sum(start=[])", "[{'p': 1}, {'p': 2}]|sum(attribute='p')", "[{'p': 1}, {'p': 2}]|sum('p', 10)",
    "[1,2,3,4,5]|batch(2)|list", "[1,2,3,4,5]|batch(2, 'x')|list", "[1,2,3,4,5]|slice(2)|list", "[1,2,3,4,5]|slice(2, 'x')|list", "[]|slice(2)|list", "[1]|slice(0)|list", "[1,2]|slice(3)|list", "messages|groupby('role')|length", "[{'a':1,'b':'x'},{'a':2,'b':'y'},{'a':1,'b':'z'}]|groupby('a')", "([{'a':1,'b':'x'},{'a':1,'b':'z'}]|groupby('a'))[0].grouper", "([{'a':1,'b':'x'}]|groupby('a'))[0].list", "[{'a':'B'},{'a':'b'},{'c':1}]|groupby('a', default='q')", "[{'a':'B'},{'a':'b'}]|groupby('a', case_sensitive=true)|length",
    "text|wordcount", "'don\\'t x_y 3'|wordcount", "''|wordcount", "'%s is %d'|format('a', 3)", "'%(a)s'|format(a=1)", "'%s'|format", "'%s %s'|format(1)", "'x'|format(1)", "'a'|center(5)", "'ab'|center(5)", "'abc'|center(2)", "'a'|center(4)", "text|truncate(5)", "text|truncate(5, true)", "text|truncate(9, false, '…', 0)", "'foo bar baz qux'|truncate(9)", "'foo bar baz qux'|truncate(9, true)", "'foo bar baz qux'|truncate(11)", "'foo bar baz qux'|truncate(11, false, '...', 0)", "'abc'|truncate(2)", "name|attr('upper')", "d|attr('b')", "d|attr('b') is defined", "messages[0]|attr('role') is defined",
    "d|tojson", "d|tojson(indent=2)", "d|tojson(indent=4)", "messages|tojson", "messages|tojson(ensure_ascii=true)", "quote|tojson", "quote|tojson(ensure_ascii=true)", "html|tojson", "[]|tojson(indent=2)", "{}|tojson(indent=2)", "[[],{}]|tojson(indent=1)", "[1, 2.0, 1e22, 1.5e-7, true, none, 'x']|tojson", "{'b': 1, 'a': 2}|tojson(sort_keys=true)", "{'b': 1, 'a': 2}|tojson(separators=(',', ':'))", "{1: 2, none: 3, true: 4, 1.5: 5}|tojson", "(1, 2)|tojson", "undefined_name|tojson", "range(3)|tojson", "('nan'|float)|tojson", "('inf'|float)|tojson", "name|tojson", "nothing|tojson", "tools|tojson(indent='\\t')", "tools|tojson(true)", "{(1,2): 3}|tojson", "{1: 1, 'a': 2}|tojson(sort_keys=true)", "list|map('string')|tojson", "d.items()|tojson", "'\\u2028\\x7f\\x00\\x1f/'|tojson", "[1,[2,[3]]]|tojson(indent=0)", "d|tojson(2)", "d|tojson(foo=1)", "'a'|upper(1)", "'a'|replace('a')", "'a'|trim(chars='a', x=1)", "'a'|default(1, 2, 3)", "'é😀'|tojson(ensure_ascii=true)",
)
CASES += E(  # tests
    *[f"{v} is {t}" for v in ("1", "1.0", "true", "false", "none", "'a'", "'A'", "''", "[]", "(1,)", "{}", "undefined_name", "range(2)", "d.items()", "list|map('string')", "namespace()", "range", "'a'.upper")
      for t in ("defined", "undefined", "none", "string", "number", "integer", "float", "boolean", "true", "false", "mapping", "iterable", "sequence", "callable")],
    "3 is odd", "3 is even", "4 is divisibleby 2", "4 is divisibleby(3)", "'abc' is lower", "'ABC' is upper", "'Abc' is lower", "1 is lower", "1 is eq 1", "1 is equalto 1.0", "1 is ne 2", "1 is lt 2", "2 is gt 1", "1 is le 1", "1 is ge 2", "1 is lessthan 2", "2 is greaterthan 1", "'a' is in 'abc'", "1 is in [1]", "1 is not in [1]", "none is sameas none", "true is sameas 1", "true is sameas true", "1 is not none",
    "'upper' is filter", "'foo' is filter", "'odd' is test", "'foo' is test", "undefined_name is not defined", "d.b is defined and d.zz is not defined", "messages[0].zz is defined", "undefined_name.x is defined", "'a' is odd", "1.5 is odd", "none is lt 1", "5 is divisibleby 0", "x is defined or true", "n is number and n is not float", "not n is none", "1 is odd(3)", "'a' is in", "'a' is string and 'b' is string", "name is not string", "1 is eq(1) and true", "[1, 2] is eq [1, 2]", "name is defined | string", "(name is defined)|string",
)
CASES += E(  # methods of strings
    "pad.strip()", "pad.lstrip()", "pad.rstrip()", "'xyaxy'.strip('xy')", "'xyaxy'.lstrip('x')", "'xyaxy'.rstrip('y')", "'\\u3000a'.strip()", "'a'.strip(none)", "'a'.strip(1)", "text.split()", "text.split(' ')", "text.split(' ', 1)", "text.split(none, 1)", "' a  b '.split()", "' a  b '.split(maxsplit=1)", "''.split()", "''.split(',')", "'a,b,c'.rsplit(',', 1)", "'a,b,c'.rsplit(',')", "' a  b c '.rsplit(none, 1)", "' a  b '.rsplit()", "'abab'.split('ab')", "'a'.split('')", "'a'.split(1)", "'</think>x</think>y'.split('</think>')[-1].lstrip('\\n')", "'a\\nb'.split('\\n')", "lines.splitlines()", "lines.splitlines(true)", "''.splitlines()", "'a\\n\\nb'.splitlines()",
    "name.startswith('B')", "name.startswith(('x', 'B'))", "name.startswith('o', 1)", "name.startswith('o', 1, 1)", "name.startswith('')", "name.startswith('', 9)", "name.endswith('b')", "name.endswith(('x', 'ob'))", "name.endswith('o', 0, 2)", "name.startswith(1)", "name.startswith(['B'])", "unicode.startswith('ß')", "text.replace('o', '0')", "text.replace('o', '0', 1)", "text.replace('', '.', 2)", "text.replace('o', 1)", "text.replace('o')", "'aXbX'.replace('X', '')", "name.upper()", "name.lower()", "unicode.upper()", "unicode.lower()", "unicode.title()", "unicode.capitalize()", "unicode.swapcase()", "'hello wORLD it\\'s'.title()", "'hELLO wORLD'.capitalize()", "'ΑΣ'.lower()", "'ΑΣΑ'.lower()", "'Σ'.lower()", "'ŉ'.upper()",
    "text.find('t')", "text.find('zz')", "text.rfind('t')", "text.find('t', 5)", "text.find('t', 5, 6)", "text.find('')", "text.find('', 99)", "text.index('two')", "text.index('zz')", "text.rindex('t')", "unicode.find('Σ')", "unicode.rfind('Σ')", "'日本日'.rfind('日')", "text.find('o', -5)", "text.count('o')", "text.count('')", "'aaa'.count('aa')", "text.count('o', 3)", "'-'.join(words)", "''.join(list)", "'-'.join('abc')", "', '.join(d)", "'x'.join(5)", "'-'.join(words|map('lower'))", "'prefix-x'.removeprefix('prefix-')", "'x.txt'.removesuffix('.txt')", "'x'.removeprefix('y')", "'{} and {}'.format(1, 'b')", "'{0}{1}{0}'.format('a', 'b')", "'{a}{b}'.format(a=1, b=none)", "'{{}}'.format()", "'{}'.format()", "'{x}'.format()", "'{!r}'.format('a')", "'{'.format(1)", "'}'.format(1)", "'{}{0}'.format(1, 2)", "'{}'.format(1.0)",
    "'12'.isdigit()", "'1²'.isdigit()", "'1.5'.isdigit()", "''.isdigit()", "'ab'.isalpha()", "'aé'.isalpha()", "'a1'.isalpha()", "'a1'.isalnum()", "'a 1'.isalnum()", "' \\t'.isspace()", "''.isspace()", "'AB'.isupper()", "'A1'.isupper()", "'1'.isupper()", "'ab'.islower()", "'aB'.islower()", "'Ab Cd'.istitle()", "'٣'.isdecimal()", "'½'.isnumeric()", "'é'.isascii()", "'42'.zfill(5)", "'-42'.zfill(5)", "'abc'.zfill(2)", "'a'.ljust(3) ~ '|'", "'a'.rjust(3)", "'a'.center(4, '*')", "'ab'.center(5, '*')", "'a'.ljust(3, 'xy')", "'k=v=w'.partition('=')", "'k=v=w'.rpartition('=')", "'k'.partition('=')", "'k'.rpartition('=')", "'k'.partition('')", "'a\\tb'.expandtabs(4)", "name.strip().upper().lower()[0]",
)
CASES += E(  # dictionaries and lists, printing
    "d.get('b')", "d.get('zz')", "d.get('zz', 5)", "d.get('zz', default=5)", "d.get()", "d.get([1])", "d.keys()|list", "d.values()|list|length", "d.items()|length", "d.copy() == d", "list.index(1)", "list.index(9)", "list.count(1)", "list.copy()", "(1,2,1).count(1)", "(1,2).index(2)", "d.get('a').get('x')[0]", "d.keys()[0]", "d.keys()[0] is defined", "'b' in d.keys()", "1 in d.values()", "('b', 1) in d.items()", "d.keys()|first", "(d.keys()|list)[0]", "d.items()|first", "d.keys()|length", "d.keys() == d.keys()", "d.values()|map('string')|list|length",
    "d", "messages", "nested", "quote", "[quote]", "['\\'']", "['\"']", "['\\'\"']", "[html]", "[unicode, '\\u200b', '\\ud7ff', '\\ue000', '\\x85']", "big", "small", "[big, small, f, neg]", "1e22", "123456789012345680.0", "[1.0, 100.0, 1e100, 0.0001, 0.00001]", "(nothing, yes)", "{'a': undefined_name}", "[undefined_name]", "words, list", "[none]|string", "3.0", "1e5", "1.0e-5", "[[]]", "[()]", "('a',)|string", "{'k': (1,)}",
    "'%s' % 'a'", "'%s %s' % ('a', 1)", "'%d' % 3.9", "'%5d|%-5d|%05d' % (1, 2, 3)", "'%x %X %o' % (255, 255, 8)", "'%#x' % 255", "'%.2f' % 1.005", "'%e' % 12345.678", "'%g' % 0.00001", "'%r' % 'a'", "'%5s|%-5s|%.2s' % ('a', 'b', 'cde')", "'%%' % ()", "'%(a)s' % {'a': 1}", "'%+d' % 3", "'% d' % 3", "'%s' % [1]", "'%d' % 'a'", "'%s' % ()", "'%s' % (1, 2)", "'%' % 1", "'%s' % none", "'%s' % undefined_name", "'%.0f' % 2.5", "'%*d' % (4, 1)", "'%s' % ((1, 2),)", "'a' % 1", "'a' % {}", "'%f' % 1e10",
    "[1, 2, 3]|list|string", "'a,b'.split(',')|first", "(1 if yes else 2) ~ 'x'", "messages[1:]|map(attribute='role')|list", "messages|map(attribute='content')|map('trim')|list", "messages|last", "(messages|last).role", "messages[0]['content'] + '!'", "n ~ ''", "'a' if messages[0].role == 'system' and messages|length > 1 else 'b'", "not (n > 5 or f)", "d.a.x|map('string')|join('|')", "list|sort|join(',') ~ ';'", "{'a': list}.a[0]", "[d][0].b", "('x' ~ n)|length", "text.split('two')[1].strip()|upper", "(text.split(' ')|last)[::-1]", "list + [4]", "(list + words)|length", "messages + [{'role': 'x'}]|list", "{'a': 1}.items()|list", "dict(d, z=1).z", "range(n)|sum", "range(1, n + 1)|list|last",
)

# The whole of a small chat template, over several conversations.
CHAT = """{%- set loop_messages = messages %}
{%- if messages and messages[0]['role'] == 'system' %}
    {%- set system = messages[0]['content']|trim %}
    {%- set loop_messages = messages[1:] %}
{%- else %}
    {%- set system = '' %}
{%- endif %}
{{- bos_token }}
{%- if tools is defined and tools is not none %}
    {{- '[TOOLS]\\n' }}
    {%- for tool in tools %}
        {{- tool | tojson(indent=2) }}
        {%- if not loop.last %},{% endif %}
    {%- endfor %}
{%- endif %}
{%- macro turn(role, body) -%}
    <|{{ role }}|>
{{ body }}<|end|>
{% endmacro -%}
{%- if system %}{{ turn('system', system) }}{% endif %}
{%- for message in loop_messages %}
    {%- if (message.role == 'user') != (loop.index0 % 2 == 0) %}
        {{- raise_exception('roles must alternate: ' ~ message.role) }}
    {%- endif %}
    {{- turn(message.role, message.content) }}
{%- endfor %}
{%- if add_generation_prompt %}<|assistant|>
{% endif %}"""
CHATS = [
    {"messages": MESSAGES, "bos_token": "<s>"},
    {"messages": MESSAGES[1:], "bos_token": "<s>", "add_generation_prompt": True, "tools": VARIABLES["tools"]},
    {"messages": MESSAGES[2:], "bos_token": "<s>"},
    {"messages": [], "bos_token": "<s>", "tools": None},
    {"messages": MESSAGES + [{"role": "user", "content": "again <|end|>"}], "bos_token": "", "add_generation_prompt": True},
]


def render(template, variables):
    try:
        return [utils._compile_jinja_template(template).render(**variables)]
    except (AttributeError, LookupError, OverflowError, RecursionError, SyntaxError, TypeError, ValueError, ZeroDivisionError,
            AssertionError, RuntimeError, jinja2.TemplateError) as e:
        return [None, type(e).__name__]


def main():
    cases = [[t, None] for t in dict.fromkeys(CASES)] + [[CHAT, v] for v in CHATS]
    out = []
    for template, variables in cases:
        result = render(template, VARIABLES if variables is None else variables)
        if result[0] is not None and " at 0x" in result[0]:
            continue
        out.append([template, variables] + result)
    made = {"transformers": transformers.__version__, "jinja2": jinja2.__version__, "variables": VARIABLES}
    with open(sys.argv[1], "w", encoding="utf-8") as f:
        f.write(json.dumps(made, ensure_ascii=True)[:-1] + ', "cases": [\n')
        f.write(",\n".join(json.dumps(c, ensure_ascii=True) for c in out))
        f.write("\n]}\n")
    print(f"{len(out)} cases, {sum(c[2] is None for c in out)} of them errors")


if __name__ == "__main__":
    main()
