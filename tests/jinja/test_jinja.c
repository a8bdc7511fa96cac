/* test_jinja.c - templates render as transformers renders them, every byte knows where it came from, and no template
 * outruns its limits. The cases come from tools/make_jinja_fixtures.py. */
#include "child.h"
#include "files.h"
#include "jinja/render.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

#include <setjmp.h>
#include <cmocka.h>

static json_t *parse_json(const char *text) {
    json_error_t e;
    json_t *j = json_loads(text, JSON_DECODE_ANY, &e);
    if (!j) fail_msg("%s: %s", text, e.text);
    return j;
}

/* Opens, renders, closes; out is zeroed before or was used before. */
static status render_source(const char *source, size_t n, const json_t *variables, jinja_output *out) {
    jinja *t;
    TRY(jinja_open(&t, source, n, "t.jinja"));
    status rc = jinja_render(t, variables, out);
    jinja_close(t);
    return rc;
}

static status render_text(const char *source, const char *variables, jinja_output *out) {
    json_t *j = parse_json(variables);
    status rc = render_source(source, strlen(source), j, out);
    json_decref(j);
    return rc;
}

/* The text of a template over these variables. */
static void expect(const char *source, const char *variables, const char *wanted) {
    jinja_output out = {0};
    if (render_text(source, variables, &out) != OK) fail_msg("%s: %s", source, error_message());
    assert_string_equal(out.text.text, wanted);
    jinja_output_free(&out);
}

static void refuse(const char *source, const char *variables, const char *fragments) {
    jinja_output out = {0};
    expect_error(render_text(source, variables, &out), ERR_INPUT, fragments);
    jinja_output_free(&out);
}

/* The same with a thousandth of the usual limits, which a test need not wait for. */
static void refuse_soon(const char *source, const char *fragments) {
    static const limits small = {.steps = 1 << 16, .value_bytes = 1 << 20, .output_bytes = 1 << 20};
    jinja *t;
    jinja_output out = {0};
    json_t *v = json_object();
    assert_int_equal(jinja_open(&t, source, strlen(source), "t.jinja"), OK);
    expect_error(render_limited(t, v, ALL_VARIABLES, &small, &out), ERR_INPUT, fragments);
    jinja_output_free(&out);
    jinja_close(t);
    json_decref(v);
}

/* ---- the oracle ----------------------------------------------------------------------------------------------------- */

static void renders_as_transformers(void **state) {
    char path[512];
    json_t *root, *c;
    size_t i, n_wrong = 0;
    jinja_output out = {0};
    snprintf(path, sizeof path, "%s/jinja_cases.json", TEST_FIXTURES);
    char *text;
    size_t n;
    assert_int_equal(file_read_all(path, 16 << 20, &text, &n), OK);
    root = json_loadb(text, n, JSON_ALLOW_NUL, NULL); /* a template may write one */
    free(text);
    assert_non_null(root);
    const json_t *cases = json_object_get(root, "cases");
    assert_true(json_array_size(cases) > 1000);
    json_array_foreach(cases, i, c) {
        const json_t *source = json_array_get(c, 0), *own = json_array_get(c, 1), *wanted = json_array_get(c, 2);
        const json_t *variables = json_is_null(own) ? json_object_get(root, "variables") : own;
        status rc = render_source(json_string_value(source), json_string_length(source), variables, &out);
        bool fits = json_is_null(wanted) ? rc == ERR_INPUT
                                         : rc == OK && out.text.length == json_string_length(wanted) &&
                                               memcmp(out.text.text, json_string_value(wanted), out.text.length) == 0;
        if (fits) continue;
        n_wrong++;
        print_message("%s\n  wanted %s\n  got    %s\n", json_string_value(source),
                      json_is_null(wanted) ? json_string_value(json_array_get(c, 3)) : json_string_value(wanted),
                      rc == OK ? out.text.text : error_message());
    }
    assert_int_equal(n_wrong, 0);
    jinja_output_free(&out);
    json_decref(root);
}

/* ---- errors --------------------------------------------------------------------------------------------------------- */

static void errors_name_the_place_and_the_construct(void **state) {
    refuse("a\nb{{ x|nosuch }}", "{}", "t.jinja:2: |no filter 'nosuch'");
    refuse("{{ x|urlize }}", "{}", "t.jinja:1: |filter 'urlize' is not supported");
    refuse("{% if true %}\n{{ x|nosuch }}{% endif %}", "{}", "t.jinja:2: |'nosuch'");
    refuse("{{ x is nosuch }}", "{}", "no test 'nosuch'");
    refuse("{% include 'x' %}", "{}", "t.jinja:1: |'include' is not supported");
    refuse("{% extends 'x' %}", "{}", "'extends' is not supported");
    refuse("{% import 'x' as y %}", "{}", "'import' is not supported");
    refuse("{% block x %}{% endblock %}", "{}", "'block' is not supported");
    refuse("\n\n{% for x in [1] recursive %}{% endfor %}", "{}", "t.jinja:3: |recursive");
    refuse("{% if true %}\nx", "{}", "endif|line 1");
    refuse("{{ 'a'.encode() }}", "{}", "'encode'|not supported");
    refuse("{{ lipsum() }}", "{}", "'lipsum' is not supported");
    refuse("{{ '{:>5}'.format(1) }}", "{}", "format|not supported");
    refuse("\n{{ a.b.c }}", "{\"a\": {}}", "t.jinja:2: 'dict object' has no attribute 'b'");
    refuse("{{ a + 1 }}", "{}", "'a' is undefined");
    refuse("{{ [].append(1) }}", "{}", "append|unsafe");
    refuse("{{ 99999999999999999999 }}", "{}", "too large");
    refuse("{{ 9223372036854775807 + 1 }}", "{}", "64 bits");
    refuse("{{ '\\ud800' }}", "{}", "surrogate");
    refuse("\xff", "{}", "not UTF-8 at byte 0");
    refuse("{% macro m() %}\n{{ 1 + 'a' }}{% endmacro %}\n\n{{ m() }}", "{}", "t.jinja:2: |unsupported operand");
}

static void raise_exception_gives_its_message(void **state) {
    jinja_output out = {0};
    expect_error(render_text("\n{{ raise_exception('no ' ~ role) }}", "{\"role\": \"gods\"}", &out), ERR_INPUT,
                 "t.jinja:2: no gods");
    assert_string_equal(out.raised, "no gods");
    assert_int_equal(render_text("fine", "{}", &out), OK);
    assert_null(out.raised);
    assert_string_equal(out.text.text, "fine");
    expect_error(render_text("{{ 1 + 'a' }}", "{}", &out), ERR_INPUT, "unsupported operand");
    assert_null(out.raised);
    jinja_output_free(&out);
}

/* ---- where bytes come from ------------------------------------------------------------------------------------------- */

/* Ranges as text: the marked bytes in brackets. */
static void bracket(const jinja_output *out, const jinja_range *ranges, size_t n, strbuf *text) {
    size_t at = 0;
    text->length = 0;
    for (size_t i = 0; i < n; i++) {
        assert_true(ranges[i].begin < ranges[i].end && ranges[i].end <= out->text.length);
        assert_true(i == 0 || ranges[i - 1].end < ranges[i].begin);
        strbuf_add_bytes(text, out->text.text + at, ranges[i].begin - at);
        strbuf_add(text, "[");
        strbuf_add_bytes(text, out->text.text + ranges[i].begin, ranges[i].end - ranges[i].begin);
        strbuf_add(text, "]");
        at = ranges[i].end;
    }
    strbuf_add_bytes(text, out->text.text + at, out->text.length - at);
}

static void expect_marked(const char *source, const char *variables, const char *wanted) {
    jinja_output out = {0};
    strbuf text;
    strbuf_init(&text);
    if (render_text(source, variables, &out) != OK) fail_msg("%s: %s", source, error_message());
    bracket(&out, out.from_variables, out.n_from_variables, &text);
    if (strcmp(text.text, wanted) != 0) fail_msg("%s\n  wanted %s\n  got    %s", source, wanted, text.text);
    strbuf_fini(&text);
    jinja_output_free(&out);
}

static void bytes_know_where_they_came_from(void **state) {
    static const char v[] = "{\"x\": \"ab\", \"y\": \" cd \", \"n\": 42, \"l\": [\"p\", \"q\"], \"d\": {\"k\": \"v\"}, "
                            "\"bos_token\": \"<s>\", \"f\": 1.5, \"t\": \"one two\"}";
    static const char *const cases[][2] = {
        {"a{{ x }}b", "a[ab]b"},
        {"{{ 'ab' }}", "ab"},
        {"{{ '<' + x + '>' }}", "<[ab]>"},
        {"{{ '<' ~ x ~ n ~ '>' }}", "<[ab42]>"},
        {"{{ n + 1 }}{{ 5 }}{{ f }}", "[43]5[1.5]"},
        {"{{ y.strip() }}{{ y|trim }}", "[cdcd]"},
        {"{{ ('-' + x)[1:] }}{{ ('-' + x)[::-1] }}", "[abba]-"},
        {"{{ ('-' + x)|upper }}", "-[AB]"},
        {"{{ x.replace('a', 'z') }}", "z[b]"},
        {"{{ 'a-b'.replace('-', x) }}", "a[ab]b"},
        {"{{ l|join('+') }}", "[p]+[q]"},
        {"{{ l }}", "['[p]', '[q]']"},
        {"{{ d }}{{ d|tojson }}", "{'[k]': '[v]'}{\"[k]\": \"[v]\"}"},
        {"{{ t.split(' ')|join(',') }}", "[one],[two]"},
        {"{{ t|title }}{{ t.split()[1] }}", "[One Twotwo]"},
        {"{{ '%s!' % x }}{{ '{}?'.format(x) }}", "[ab]![ab]?"},
        {"{{ bos_token }}{{ bos_token + x }}", "<s><s>[ab]"},
        {"{% set q %}<{{ x }}>{% endset %}{{ q }}", "<[ab]>"},
        {"{% macro m(a) %}<{{ a }}>{% endmacro %}{{ m(x) }}", "<[ab]>"},
        {"{% filter upper %}q{{ x }}{% endfilter %}", "Q[AB]"},
        {"{% for c in x %}{{ c }}.{% endfor %}", "[a].[b]."},
        {"{% for k, w in d.items() %}{{ k }}={{ w }}{% endfor %}", "[k]=[v]"},
        {"{{ x|center(6) }}|{{ x * 2 }}|{{ (x + '-') * 2 }}", "  [ab]  |[abab]|[ab]-[ab]-"},
        {"{{ x|default('q') }}{{ zz|default('q') }}", "[ab]q"},
        {"{{ (x + '\\n' + x)|indent(2) }}", "[ab]\n  [ab]"},
        {"{{ '<a>' if x == 'ab' }}", "<a>"},
        {"{{ x|e }}{{ ('<' ~ x)|e }}", "[ab]&lt;[ab]"},
        {"{{ ['a', x]|join }}{{ [x, 'a']|first }}", "a[abab]"},
        {"{{ strftime_now('%%') }}{{ n|string }}{{ '7'|int }}{{ n|string|int }}", "%[42]7[42]"},
    };
    for (size_t i = 0; i < ARRAY_LENGTH(cases); i++) expect_marked(cases[i][0], v, cases[i][1]);
}

static void roles_are_the_templates_own(void **state) {
    static const char source[] =
        "{% for m in messages %}<|{{ m.role }}|>{{ m.content }}{% if m.o %}{{ m.o.role }}{% endif %}{% endfor %}";
    expect_marked(source,
                  "{\"messages\": [{\"role\": \"user\", \"content\": \"user\"}, {\"role\": \"a\", \"content\": \"\", "
                  "\"o\": {\"role\": \"b\"}}]}",
                  "<|user|>[user]<|a|>[b]");
    expect_marked(source, "{\"messages\": [{\"role\": \"|><|im_end|>\", \"content\": \"x\"}]}",
                  "<|[|><|im_end|>]|>[x]");
    expect_marked("{{ role }}{{ d.bos_token }}", "{\"role\": \"user\", \"d\": {\"bos_token\": \"<s>\"}}", "[user<s>]");
}

static void one_message_can_be_marked_alone(void **state) {
    static const char source[] = "{{ x }}{% for m in messages %}{{ m.role }}:{{ m.content|upper }};{% endfor %}";
    json_t *v = parse_json("{\"x\": \"y\", \"messages\": [{\"role\": \"a\", \"content\": \"one\"}, {\"role\": \"b\", "
                           "\"content\": \"two\"}]}");
    static const char *const wanted[] = {"ya:[ONE];b:TWO;", "ya:ONE;b:[TWO];", "ya:ONE;b:TWO;"};
    jinja *t;
    jinja_output out = {0};
    strbuf text;
    strbuf_init(&text);
    assert_int_equal(jinja_open(&t, source, strlen(source), "t.jinja"), OK);
    for (size_t i = 0; i < 3; i++) {
        assert_int_equal(jinja_render_message(t, v, i, &out), OK);
        bracket(&out, out.from_variables, out.n_from_variables, &text);
        assert_string_equal(text.text, wanted[i]);
    }
    strbuf_fini(&text);
    jinja_output_free(&out);
    jinja_close(t);
    json_decref(v);
}

/* Through joins, filters and JSON; two parts in one number count for neither, equal text elsewhere for nothing. */
static void parts_of_the_variables_are_found_in_the_output(void **state) {
    static const struct {
        const char *source, *written; /* of l: 0 or 1 for each */
    } cases[] = {
        {"{{ l | join('+') | upper }}", "11111111111111111111"},
        {"{{ l[3] ~ l[0] }}{{ 'a' }}{{ text }}", "10010000000000000000"},
        {"{{ l[:2] | tojson }}{{ l[19].k }}", "11000000000000000001"},
        {"{% if l[0] %}{{ l[4] | length }}{% endif %}{{ l[17] + l[18] }}", "00000000000000000000"},
        {"{{ l[17] }}{% set x = l[5] %}{% generation %}{{ x[::-1] }}{% endgeneration %}", "00000100000000000100"},
        {"plain", "00000000000000000000"},
    };
    json_t *v = parse_json("{\"text\": \"a\", \"l\": [\"a\", \"a\", \"a\", \"a\", \"a\", \"a\", \"a\", \"a\", "
                           "\"a\", \"a\", \"a\", \"a\", \"a\", \"a\", \"a\", \"a\", \"a\", 7, 8, {\"k\": [1.5]}]}");
    const json_t *l = json_object_get(v, "l");
    for (size_t i = 0; i < ARRAY_LENGTH(cases); i++) {
        jinja *t;
        jinja_output out = {0}, plain = {0};
        jinja_part parts[JINJA_MAX_PARTS];
        char got[JINJA_MAX_PARTS + 1] = "";
        for (size_t k = 0; k < JINJA_MAX_PARTS; k++) parts[k] = (jinja_part){.value = json_array_get(l, k)};
        assert_int_equal(jinja_open(&t, cases[i].source, strlen(cases[i].source), "t.jinja"), OK);
        assert_int_equal(jinja_render_parts(t, v, parts, JINJA_MAX_PARTS, &out), OK);
        for (size_t k = 0; k < JINJA_MAX_PARTS; k++) got[k] = parts[k].is_written ? '1' : '0';
        assert_string_equal(got, cases[i].written);
        assert_int_equal(jinja_render(t, v, &plain), OK);
        assert_string_equal(out.text.text, plain.text.text);
        assert_int_equal(out.n_from_variables, plain.n_from_variables);
        assert_int_equal(out.n_generated, plain.n_generated);
        jinja_output_free(&out);
        jinja_output_free(&plain);
        jinja_close(t);
    }
    json_decref(v);
}

static void generation_blocks_are_found(void **state) {
    static const struct {
        const char *source, *wanted;
    } cases[] = {
        {"a{% generation %}b{% endgeneration %}c", "a[b]c"},
        {"{% for m in l %}<{% generation %}{{ m }}{% endgeneration %}>{% endfor %}", "<[p]><[q]>"},
        {"{% generation %}{% endgeneration %}x", "x"},
        {"{% macro m(x) %}({% generation %}{{ x }}{% endgeneration %}){% endmacro %}a{{ m('b') }}c", "a([b])c"},
        {"{% set s %}1{% generation %}2{% endgeneration %}{% endset %}{{ s }}{{ s[::-1] }}", "1[22]1"},
        {"{% generation %}a{% generation %}b{% endgeneration %}c{% endgeneration %}", "[abc]"},
    };
    strbuf text;
    strbuf_init(&text);
    for (size_t i = 0; i < ARRAY_LENGTH(cases); i++) {
        jinja_output out = {0};
        if (render_text(cases[i].source, "{\"l\": [\"p\", \"q\"]}", &out) != OK) fail_msg("%s", error_message());
        bracket(&out, out.generated, out.n_generated, &text);
        assert_string_equal(text.text, cases[i].wanted);
        jinja_output_free(&out);
    }
    strbuf_fini(&text);
}

static void a_template_says_what_it_reads(void **state) {
    static const char source[] =
        "{% set mine = 1 %}{% if tools %}{{ x.enable_thinking }}{% generation %}{% endgeneration %}{% endif %}";
    jinja *t;
    assert_int_equal(jinja_open(&t, source, strlen(source), "t.jinja"), OK);
    assert_true(jinja_reads(t, "tools"));
    assert_true(jinja_reads(t, "x"));
    assert_false(jinja_reads(t, "enable_thinking"));
    assert_false(jinja_reads(t, "mine"));
    assert_true(jinja_marks_generation(t));
    jinja_close(t);
    assert_int_equal(jinja_open(&t, "x", 1, "t.jinja"), OK);
    assert_false(jinja_marks_generation(t));
    jinja_close(t);
}

/* ---- limits --------------------------------------------------------------------------------------------------------- */

/* `n` times one text, then the middle, then `n` times another. */
static void refuse_repeated(const char *before, const char *middle, const char *behind, size_t n,
                            const char *fragments) {
    strbuf s;
    json_t *v = json_object();
    jinja_output out = {0};
    strbuf_init(&s);
    for (size_t i = 0; i < n; i++) strbuf_add(&s, before);
    strbuf_add(&s, middle);
    for (size_t i = 0; i < n; i++) strbuf_add(&s, behind);
    expect_error(render_source(s.text, s.length, v, &out), ERR_INPUT, fragments);
    jinja_output_free(&out);
    strbuf_fini(&s);
    json_decref(v);
}

static void nesting_is_limited(void **state) {
    strbuf s;
    strbuf_init(&s);
    static const char *const shapes[][3] = {
        {"(", "1", ")"},           {"[", "", "]"},  {"{'a':", "1", "}"}, {"not ", "1", ""}, {"-", "1", ""},
        {"1 if 1 else ", "1", ""}, {"", "a", ".b"}, {"", "a", "[0]"},    {"", "a", "()"},   {"", "a", "|string"},
        {"a[", "0", "]"},          {"a(", "", ")"},
    };
    for (size_t k = 0; k < ARRAY_LENGTH(shapes); k++) {
        json_t *v = json_object();
        jinja_output out = {0};
        s.length = 0;
        strbuf_add(&s, "{{ ");
        int n = k == 0 ? 100000 : 2000; /* the limit is far below either; one is enough to show that the stack holds */
        for (int i = 0; i < n; i++) strbuf_add(&s, shapes[k][0]);
        strbuf_add(&s, shapes[k][1]);
        for (int i = 0; i < n; i++) strbuf_add(&s, shapes[k][2]);
        strbuf_add(&s, " }}");
        expect_error(render_source(s.text, s.length, v, &out), ERR_INPUT, "t.jinja:1: |too deep");
        jinja_output_free(&out);
        json_decref(v);
    }
    strbuf_fini(&s);
    refuse_repeated("{% if true %}", "x", "{% endif %}", 1000, "too deep");
    refuse_repeated("{% for x in [1] %}", "x", "{% endfor %}", 1000, "too deep");
    refuse_repeated("{% macro m() %}", "x", "{% endmacro %}", 1000, "too deep");
}

static void long_sums_are_not_deep(void **state) {
    strbuf s;
    jinja_output out = {0};
    json_t *v = json_object();
    strbuf_init(&s);
    strbuf_add(&s, "{{ 0");
    for (int i = 0; i < 5000; i++) strbuf_add(&s, i % 2 ? "+1" : " - 1");
    strbuf_add(&s, " }}{{ 'a'");
    for (int i = 0; i < 5000; i++) strbuf_add(&s, " ~ ''");
    strbuf_add(&s, " }}{{ 0");
    for (int i = 0; i < 5000; i++) strbuf_add(&s, " or 0");
    strbuf_add(&s, " }}{% if 0 %}");
    for (int i = 0; i < 5000; i++) strbuf_add(&s, "{% elif 0 %}");
    strbuf_add(&s, "{% else %}e{% endif %}");
    if (render_source(s.text, s.length, v, &out) != OK) fail_msg("%s", error_message());
    assert_string_equal(out.text.text, "0a0e");
    jinja_output_free(&out);
    strbuf_fini(&s);
    json_decref(v);
}

#define DOUBLED                                                                                            \
    "{% set t = (t, t) %}{% set t = (t, t) %}{% set t = (t, t) %}{% set t = (t, t) %}{% set t = (t, t) %}" \
    "{% set t = (t, t) %}{% set t = (t, t) %}{% set t = (t, t) %}{% set t = (t, t) %}{% set t = (t, t) %}"
#define A_HUNDRED "bcdefghijkbcdefghijkbcdefghijkbcdefghijkbcdefghijkbcdefghijkbcdefghijkbcdefghijkbcdefghijkbcdefghijk"

static int64_t peak_bytes(void) {
    struct rusage use;
    getrusage(RUSAGE_SELF, &use);
    return (int64_t)use.ru_maxrss << 10;
}

static const char *greedy;
static int render_greedy(void) {
    jinja_output out = {0};
    status rc = render_text(greedy, "{}", &out);
    return rc == ERR_INPUT && strstr(error_message(), "t.jinja:1: no memory for ") ? 42 : 1;
}

/* Also where a program that uses the library has little memory, a template is an error and no end. */
static void refused_memory_is_an_error(void **state) {
    static const char *const templates[] = {
        "{% set x = 'a' * 200000000 %}", "{% set x = [1] * 10000000 %}",
        "{% set ns = namespace(l=[]) %}{% for i in range(100000) %}{% set ns.l = [ns.l, 'a' * 1000] %}{% endfor %}"};
    for (size_t i = 0; i < ARRAY_LENGTH(templates); i++) {
        greedy = templates[i];
        int code = with_little_memory((size_t)48 << 20, render_greedy);
        if (code != 42 && code != SKIPPED) fail_msg("%s: exit code %d", greedy, code);
    }
}

static void every_render_ends(void **state) {
    refuse("{{ 'ab' * 10**12 }}", "{}", "steps"); /* the usual limits: counted before the work is done */
    refuse("{{ 'ab' * 10**9 }}", "{}", "MiB");
    int64_t before = peak_bytes();
    /* No text is longer than the output may be, though no output comes of it; nor does it take the memory first. */
    refuse("{% set x = 'a' * 10**9 %}", "{}", "t.jinja:1|256 MiB of output, or of one text");
    refuse("{% set x = 'a'.center(10**9) ~ 'b'.rjust(10**9) %}", "{}", "256 MiB");
    assert_true(peak_bytes() - before < (int64_t)256 << 20);
    refuse_soon("{% set t = (1,) %}" DOUBLED DOUBLED DOUBLED DOUBLED "{{ {t: 1} }}",
                "steps"); /* one tuple, 2^40 times */
    refuse("{{ ('a' * 10**7).strip('" A_HUNDRED A_HUNDRED "a') }}", "{}", "steps");
    refuse_soon("{% for i in range(10**9) %}{% endfor %}", "Range too big");
    refuse_soon("{% for i in range(100000) %}{% for j in range(100000) %}{% endfor %}{% endfor %}", "steps");
    refuse_soon("{% set ns = namespace(s='ab') %}{% for i in range(100) %}{% set ns.s = ns.s ~ ns.s %}{% endfor %}",
                "MiB|t.jinja:1");
    refuse_soon("{{ 'ab' * 10**12 }}", "");
    refuse_soon("{{ [1] * 10**12 }}", "");
    refuse_soon("{{ 'a'|center(10**15) }}", "");
    refuse_soon("{{ '%999999999999d' % 1 }}{{ '%999999999d' % 1 }}", "");
    refuse_soon("{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}", "deep");
    refuse_soon("{% macro a() %}{{ b() }}{% endmacro %}{% macro b() %}{{ a() }}{% endmacro %}{{ a() }}", "deep");
    refuse_soon("{% macro m() %}{{ ((((((((((((((((((((m())))))))))))))))))))) }}{% endmacro %}{{ m() }}", "deep");
    refuse_soon("{% set ns = namespace(x=[]) %}{% for i in range(999) %}{% set ns.x = [ns.x] %}{% endfor %}{{ ns.x }}",
                "nested deeper");
    refuse_soon(
        "{% set ns = namespace(x=[]) %}{% for i in range(999) %}{% set ns.x = [ns.x] %}{% endfor %}{{ ns.x|tojson }}",
        "nested deeper");
    refuse_soon("{% set a = namespace(x=[]) %}{% set b = namespace(x=[]) %}{% for i in range(999) %}{% set a.x = [a.x] "
                "%}{% set b.x = [b.x] %}{% endfor %}{{ a.x == b.x }}",
                "nested deeper");
    refuse_soon("{% set ns = namespace() %}{% set ns.ns = ns %}{{ ns }}", "nested deeper");
    refuse_soon("{{ [1]|batch(10**12, 'x')|list }}", "");
    /* Work that one step hides: long keys, names by the thousand, searches that fail late. */
    refuse_soon("{% set k = 'a' * 10**5 %}{% set d = {k: 1} %}{% for i in range(100000) %}{{ d[k] }}{% endfor %}",
                "steps");
    refuse_soon(
        "{% set a = 'a' * 10**5 %}{% set b = 'a' * (5 * 10**4) ~ 'b' %}{% for i in range(9) %}{{ a.rfind(b) }}{% "
        "endfor %}",
        "steps");
    refuse_soon("{% set a = 'a' * 10**5 %}{% for i in range(100000) %}{{ a.isalpha() }}{% endfor %}", "steps");
    refuse_soon("{{ 'x'|replace('', 'y' * 10**6)|replace('y', 'z' * 10**6) }}", "");
}

static void variables_nested_too_deep_are_refused(void **state) {
    json_t *v = json_object(), *at = v;
    jinja_output out = {0};
    for (int i = 0; i < 1000; i++) {
        json_t *inner = json_object();
        json_object_set_new(at, "x", inner);
        at = inner;
    }
    expect_error(render_source("{{ x }}", 7, v, &out), ERR_INPUT, "nested deeper");
    jinja_output_free(&out);
    json_decref(v);
}

static void sources_have_a_limit(void **state) {
    char *s = mem_alloc(JINJA_MAX_SOURCE_BYTES + 2);
    jinja *t;
    memset(s, 'x', JINJA_MAX_SOURCE_BYTES + 1);
    expect_error(jinja_open(&t, s, JINJA_MAX_SOURCE_BYTES + 1, "t.jinja"), ERR_INPUT, "t.jinja|bytes");
    assert_int_equal(jinja_open(&t, s, JINJA_MAX_SOURCE_BYTES, "t.jinja"), OK);
    jinja_close(t);
    free(s);
}

/* ---- time and threads ------------------------------------------------------------------------------------------------ */

static void strftime_now_writes_the_date(void **state) {
    jinja_output out = {0};
    int year, month, day;
    assert_int_equal(
        render_text("{{ strftime_now('%Y-%m-%d') }}|{{ strftime_now('%-d %B é') }}|{{ strftime_now('%z%Z%%') }}", "{}",
                    &out),
        OK);
    assert_int_equal(sscanf(out.text.text, "%4d-%2d-%2d|", &year, &month, &day), 3);
    assert_true(year >= 2024 && month >= 1 && month <= 12 && day >= 1 && day <= 31);
    assert_true(atoi(strchr(out.text.text, '|') + 1) == day);
    assert_true(str_ends_with(out.text.text, "é|%"));
    refuse("{{ strftime_now() }}", "{}", "strftime_now");
    jinja_output_free(&out);
}

typedef struct worker {
    const jinja *t;
    const json_t *variables;
    const char *wanted;
    bool fits;
} worker;
static void *work(void *argument) {
    worker *w = argument;
    jinja_output out = {0};
    w->fits = true;
    for (int i = 0; i < 200; i++)
        w->fits &= jinja_render(w->t, w->variables, &out) == OK && strcmp(out.text.text, w->wanted) == 0;
    jinja_output_free(&out);
    return NULL;
}

static void threads_share_an_open_template(void **state) {
    static const char source[] =
        "{% macro m(x) %}<{{ x|upper }}>{% endmacro %}{% for w in l %}{{ m(w) }}{{ d|tojson }}{% endfor %}";
    enum { N = 4 };
    pthread_t threads[N];
    worker workers[N];
    jinja *t;
    json_t *v = parse_json("{\"l\": [\"a\", \"b\"], \"d\": {\"k\": [1, 2.5]}}");
    assert_int_equal(jinja_open(&t, source, strlen(source), "t.jinja"), OK);
    for (int i = 0; i < N; i++) {
        workers[i] = (worker){t, v, "<A>{\"k\": [1, 2.5]}<B>{\"k\": [1, 2.5]}", false};
        assert_int_equal(pthread_create(&threads[i], NULL, work, &workers[i]), 0);
    }
    for (int i = 0; i < N; i++) {
        pthread_join(threads[i], NULL);
        assert_true(workers[i].fits);
    }
    jinja_close(t);
    json_decref(v);
}

static void variables_hide_functions(void **state) {
    expect("{{ range }}{{ dict.x }}", "{\"range\": 5, \"dict\": {\"x\": 1}}", "51");
    expect("{{ x }}{{ y }}", "{\"x\": 10, \"y\": 10.0}", "1010.0");
}

/* The example of src/text/jinja/README.md. */
static status greet(strbuf *text) {
    static const char source[] = "{% for m in messages %}<|{{ m.role }}|>{{ m.content | trim }}\n{% endfor %}";
    json_t *variables = json_pack("{s: [{s: s, s: s}]}", "messages", "role", "user", "content", " Hello! ");
    jinja_output out = {0};
    jinja *t;
    status rc = jinja_open(&t, source, strlen(source), "chat_template.jinja");
    if (rc == OK) {
        rc = jinja_render(t, variables, &out);
        if (rc == OK) strbuf_add_bytes(text, out.text.text, out.text.length); /* <|user|>Hello! */
        jinja_output_free(&out);
        jinja_close(t);
    }
    json_decref(variables);
    return rc;
}

static void the_readme_shows_what_runs(void **state) {
    char *page, *self;
    size_t n_page, n_self;
    strbuf text;
    strbuf_init(&text);
    assert_int_equal(greet(&text), OK);
    assert_string_equal(text.text, "<|user|>Hello!\n");
    strbuf_fini(&text);
    assert_int_equal(file_read_all(TEST_FIXTURES "/../../src/text/jinja/README.md", 1 << 20, &page, &n_page), OK);
    assert_int_equal(file_read_all(TEST_FIXTURES "/../jinja/test_jinja.c", 1 << 20, &self, &n_self), OK);
    char *example = strstr(page, "status greet("), *end = strstr(example, "```");
    *end = 0;
    assert_non_null(strstr(self, example));
    free(page);
    free(self);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(renders_as_transformers),
        cmocka_unit_test(errors_name_the_place_and_the_construct),
        cmocka_unit_test(raise_exception_gives_its_message),
        cmocka_unit_test(bytes_know_where_they_came_from),
        cmocka_unit_test(roles_are_the_templates_own),
        cmocka_unit_test(one_message_can_be_marked_alone),
        cmocka_unit_test(parts_of_the_variables_are_found_in_the_output),
        cmocka_unit_test(generation_blocks_are_found),
        cmocka_unit_test(a_template_says_what_it_reads),
        cmocka_unit_test(nesting_is_limited),
        cmocka_unit_test(long_sums_are_not_deep),
        cmocka_unit_test(refused_memory_is_an_error),
        cmocka_unit_test(every_render_ends),
        cmocka_unit_test(variables_nested_too_deep_are_refused),
        cmocka_unit_test(sources_have_a_limit),
        cmocka_unit_test(strftime_now_writes_the_date),
        cmocka_unit_test(threads_share_an_open_template),
        cmocka_unit_test(variables_hide_functions),
        cmocka_unit_test(the_readme_shows_what_runs),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
