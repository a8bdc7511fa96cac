/* test_timeline.c - the picture of a plan: every column equals a slower count of what is alive at its op, the highest is
 * the planned peak, and the file is well-formed whatever a model is called. */
#include "change_model.h"
#include "files.h"
#include "plan/timeline.h"
#include "programs.h"
#include "show/show.h"
#include "training.h"
#include "xml.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static plan_request request(const char *preset) {
    return (plan_request){.source = net_source_of(model_preset_find(preset)),
                          .choice.micro_batch = 2,
                          .choice.accumulation = 1,
                          .seq_len = 24,
                          .with_eval = true,
                          .verify = true,
                          .logits_chunk_bytes = 1 << 16,
                          .target = {"ragged", 3, 64, ragged_work}};
}

static const struct offload_case {
    offload_tiers homes;
    int prefetch;
} offloads[] = {
    {.prefetch = 1},
    {{.grads = TIER_HOST, .states = TIER_HOST}, .prefetch = 1},
    {{.params = TIER_HOST, .grads = TIER_HOST, .states = TIER_NVME, .activations = TIER_HOST}, .prefetch = 2},
};
static const recompute_kind recomputes[] = {RECOMPUTE_NONE, RECOMPUTE_SELECTIVE, RECOMPUTE_FULL};

/* ---- columns ------------------------------------------------------------------------------------------------------- */

/* What is alive at every op, counted value by value: one that is used at or before this op and again at or after it, alone
 * or together with those that took over its bytes. */
static plan_alive *count_alive(const program *g, tier t) {
    plan_alive *alive = calloc(g->n_ops, sizeof *alive);
    size_t *first = calloc(g->n_values, sizeof *first), *last = calloc(g->n_values, sizeof *last); /* 0: never used */
    for (size_t i = 0; i < g->n_ops; i++) {
        const op *o = &g->ops[i];
        for (int k = 0; k < OP_MAX_IN + OP_MAX_OUT + 1; k++) {
            value_id v = k < OP_MAX_IN ? o->in[k] : k < OP_MAX_IN + OP_MAX_OUT ? o->out[k - OP_MAX_IN] : o->work;
            while (g->values[v].view_of) v = g->values[v].view_of;
            while (g->values[v].in_place_of) v = g->values[v].in_place_of;
            if (!last[v]) first[v] = i;
            last[v] = i + 1;
        }
    }
    for (value_id v = 1; v < g->n_values; v++) {
        const value *a = &g->values[v];
        if (a->tier != t || a->view_of || a->in_place_of) continue;
        for (size_t i = 0; i < g->n_ops; i++)
            if (a->persistent || (last[v] && i >= first[v] && i < last[v])) alive[i].by_role[a->role] += value_bytes(a);
    }
    free(first);
    free(last);
    return alive;
}

static void check_columns(const plan *p) {
    const program *g = &p->program;
    plan_alive *counted[TIER_COUNT];
    plan_timeline t;
    uint64_t highest = 0;
    bool peak_is_shown = false;
    plan_timeline_init(&t, p);
    for (tier at = 0; at < TIER_COUNT; at++) counted[at] = count_alive(g, at);
    for (size_t i = 0; i < t.n_columns; i++) {
        const plan_column *c = &t.columns[i];
        assert_true(c->first_op <= c->op && c->op < c->end_op);
        assert_memory_equal(&c->alive, &counted[TIER_DEVICE][c->op], sizeof c->alive);
        highest = MAX(highest, plan_alive_sum(&c->alive));
        uint64_t most[TIER_COUNT] = {0};
        for (size_t k = c->first_op; k < c->end_op; k++)
            for (tier at = 0; at < TIER_COUNT; at++) most[at] = MAX(most[at], plan_alive_sum(&counted[at][k]));
        assert_int_equal(most[TIER_DEVICE], plan_alive_sum(&c->alive));
        for (tier at = 0; at < TIER_COUNT; at++) assert_int_equal(c->others[at], at == TIER_DEVICE ? 0 : most[at]);
        if (c->op != p->peak_op) continue;
        peak_is_shown = true;
        assert_memory_equal(c->alive.by_role, p->by_role, sizeof p->by_role);
    }
    assert_true(peak_is_shown);
    assert_int_equal(highest, p->planned[TIER_DEVICE] - p->gap_bytes);
    for (tier at = 0; at < TIER_COUNT; at++) free(counted[at]);
    plan_timeline_fini(&t);
}

/* Parts follow each other without a hole, in columns and (inside a section) in ops. */
static void check_parts(const plan *p) {
    plan_timeline t;
    plan_timeline_init(&t, p);
    for (size_t i = 0, column = 0; i < t.n_parts; column = t.parts[i++].end_column) {
        const plan_timeline_part *part = &t.parts[i];
        assert_int_equal(part->first_column, column);
        assert_true(part->end_column > part->first_column);
        assert_int_equal(t.columns[part->first_column].first_op, part->first_op);
        assert_int_equal(t.columns[part->end_column - 1].end_op, part->end_op);
        for (size_t k = part->first_column + 1; k < part->end_column; k++)
            assert_int_equal(t.columns[k].first_op, t.columns[k - 1].end_op);
        assert_int_equal(p->program.ops[part->first_op].section, p->program.ops[part->end_op - 1].section);
    }
    assert_int_equal(t.parts[t.n_parts - 1].end_column, t.n_columns);
    assert_true(t.n_columns <= TIMELINE_COLUMNS);
    plan_timeline_fini(&t);
}

/* ---- memory.json ---------------------------------------------------------------------------------------------------- */

static uint64_t number(const json_t *object, const char *key) {
    const json_t *x = json_object_get(object, key);
    assert_true(json_is_integer(x));
    return (uint64_t)json_integer_value(x);
}

static void check_json_tier(const plan *p, tier at, const json_t *j, const uint64_t *measured) {
    const program *g = &p->program;
    plan_alive *counted = count_alive(g, at);
    const json_t *points = json_object_get(j, "points"), *bytes = json_object_get(points, "bytes"),
                 *index = json_object_get(points, "index"), *peak = json_object_get(j, "peak"), *value;
    uint64_t arena = number(j, "planned_peak"), highest = 0, gaps = 0, sum = number(peak, "others_bytes"),
             last = UINT64_MAX;
    size_t n = json_array_size(index), i;
    assert_string_equal(json_string_value(json_object_get(j, "tier")), tier_name(at));
    assert_int_equal(arena, g->arena_bytes[at]);
    assert_int_equal(number(j, "measured_peak"), measured[at]);
    assert_int_equal(json_array_size(bytes), ROLE_COUNT + 1);
    assert_true(n > 0 && n <= 2000 && json_array_size(json_object_get(points, "op")) == n);
    for (i = 0; i < n; i++) {
        size_t op_index = (size_t)json_integer_value(json_array_get(index, i));
        uint64_t column = 0;
        for (int r = 0; r <= ROLE_COUNT; r++) {
            uint64_t x = (uint64_t)json_integer_value(json_array_get(json_array_get(bytes, r), i));
            if (r < ROLE_COUNT) assert_int_equal(x, counted[op_index].by_role[r]);
            column += x;
            gaps = x;
        }
        assert_string_equal(json_string_value(json_array_get(json_object_get(points, "op"), i)),
                            op_name(g->ops[op_index].kind));
        if (i == number(peak, "at")) assert_int_equal(column, arena);
        highest = MAX(highest, column);
    }
    assert_int_equal(highest, arena);
    json_array_foreach(json_object_get(peak, "values"), i, value) {
        assert_true(number(value, "bytes") <= last);
        sum += last = number(value, "bytes");
    }
    assert_int_equal(sum + gaps, arena);
    free(counted);
}

static void check_json(const plan *p) {
    uint64_t measured[TIER_COUNT];
    for (tier t = 0; t < TIER_COUNT; t++) measured[t] = 1000 + t;
    json_t *root = plan_timeline_json(p, measured), *tiers = json_object_get(root, "tiers");
    size_t n = 0;
    for (tier t = 0; t < TIER_COUNT; t++)
        if (p->program.arena_bytes[t]) check_json_tier(p, t, json_array_get(tiers, n++), measured);
    assert_int_equal(json_array_size(tiers), n);
    json_decref(root);
}

static void every_column_is_what_is_alive_at_its_op(void **state) {
    (void)state;
    static const char *const names[] = {"test-gpt2", "test-qwen3"};
    for (size_t i = 0; i < ARRAY_LENGTH(names); i++)
        for (size_t k = 0; k < ARRAY_LENGTH(recomputes); k++)
            for (size_t o = 0; o < ARRAY_LENGTH(offloads); o++)
                for (precision q = PRECISION_FP32; q <= PRECISION_BF16; q++) {
                    plan_request r = request(names[i]);
                    plan p;
                    r.choice.precision = q;
                    r.choice.accumulation = 1 + (int64_t)q;
                    r.choice.recompute.kind = recomputes[k];
                    r.choice.offload = offloads[o].homes;
                    r.choice.prefetch = offloads[o].prefetch;
                    training_must(plan_build(&p, &r));
                    check_columns(&p);
                    check_parts(&p);
                    check_json(&p);
                    plan_close(&p);
                }
}

static void what_stays_is_the_same_in_every_column(void **state) {
    (void)state;
    plan_request r = request("test-gpt2");
    plan p;
    plan_timeline t;
    training_must(plan_build(&p, &r));
    plan_timeline_init(&t, &p);
    uint64_t n = 4 * model_param_count(model_of(&r.source));
    for (size_t i = 0; i < t.n_columns; i++) {
        assert_int_equal(t.columns[i].alive.by_role[ROLE_PARAM], n);
        assert_int_equal(t.columns[i].alive.by_role[ROLE_GRAD], n);
        assert_int_equal(t.columns[i].alive.by_role[ROLE_STATE], 2 * n);
    }
    assert_int_equal(t.n_parts, 3);
    assert_string_equal(t.parts[0].name, "forward");
    assert_string_equal(t.parts[1].name, "backward");
    assert_string_equal(t.parts[2].name, "update");
    assert_int_equal(p.program.ops[t.parts[1].first_op].kind, OP_UNEMBED_LOSS_GRAD);
    plan_timeline_fini(&t);
    plan_close(&p);
}

static void evaluation_is_shown_where_the_peak_is_its(void **state) {
    (void)state;
    plan_request r = request("test-qwen3");
    plan p;
    plan_timeline t;
    r.no_training = true;
    training_must(plan_build(&p, &r));
    plan_timeline_init(&t, &p);
    assert_string_equal(t.parts[t.n_parts - 1].name, "evaluation");
    plan_timeline_fini(&t);
    check_columns(&p);
    plan_close(&p);
}

/* ---- the file ------------------------------------------------------------------------------------------------------- */

static char *drawn(const plan *p) {
    strbuf b;
    strbuf_init(&b);
    plan_timeline_draw(p, &b);
    assert_int_equal(strlen(b.text), b.length);
    const char *error = find_xml_error(b.text);
    if (error) fail_msg("not well-formed at byte %td: %.60s", error - b.text, error);
    return strbuf_take(&b);
}

/* Heights of a band over the columns, from its path: M0 L, then h and v by turns, H-less, down to V L and z. */
static void read_band(const char *picture, role r, int *levels, size_t n_columns) {
    char id[48];
    int floor, level = 0, move;
    size_t column = 0;
    snprintf(id, sizeof id, "<path id=\"%s\" fill=\"#", role_name(r));
    const char *s = strstr(picture, id);
    assert_non_null(s);
    s = strstr(s, " d=\"M0 ") + strlen(" d=\"M0 ");
    floor = (int)strtol(s, (char **)&s, 10);
    while (*s == 'h' || *s == 'v') {
        char kind = *s;
        move = (int)strtol(s + 1, (char **)&s, 10);
        if (kind == 'v') level -= move;
        for (int k = 0; kind == 'h' && k < move; k++) {
            assert_true(column < n_columns);
            levels[column++] = level;
        }
    }
    assert_int_equal(column, n_columns);
    assert_int_equal(*s, 'V');
    assert_int_equal(strtol(s + 1, (char **)&s, 10), floor);
    assert_true(str_starts_with(s, "z\"/>"));
}

/* The bands as drawn have the heights of the columns: the top of each, against the highest one, within one level for
 * rounding both. */
static void check_picture(const plan *p) {
    static const role order[] = {ROLE_PARAM, ROLE_GRAD, ROLE_STATE,      ROLE_INPUT,
                                 ROLE_CACHE, ROLE_COMM, ROLE_ACTIVATION, ROLE_WORK};
    plan_timeline t;
    char *picture = drawn(p);
    plan_timeline_init(&t, p);
    int *levels = calloc(t.n_columns, sizeof *levels), highest = 0;
    uint64_t *sums = calloc(t.n_columns, sizeof *sums), peak = p->planned[TIER_DEVICE] - p->gap_bytes;
    read_band(picture, ROLE_WORK, levels, t.n_columns);
    for (size_t i = 0; i < t.n_columns; i++) highest = MAX(highest, levels[i]);
    assert_true(highest > 1000);
    for (size_t k = 0; k < ARRAY_LENGTH(order); k++) {
        uint64_t ever = 0;
        for (size_t i = 0; i < t.n_columns; i++) {
            ever |= t.columns[i].alive.by_role[order[k]];
            sums[i] += t.columns[i].alive.by_role[order[k]];
        }
        if (!ever) continue;
        read_band(picture, order[k], levels, t.n_columns);
        for (size_t i = 0; i < t.n_columns; i++) {
            double expected = (double)sums[i] / (double)peak * highest;
            assert_true(levels[i] > expected - 1.1 && levels[i] < expected + 1.1);
        }
    }
    char planned[64];
    snprintf(planned, sizeof planned, "planned %llu bytes", (unsigned long long)p->planned[TIER_DEVICE]);
    assert_non_null(strstr(picture, planned));
    for (tier at = TIER_HOST; at <= TIER_NVME; at++) {
        snprintf(planned, sizeof planned, "id=\"%s\"", tier_name(at));
        assert_int_equal(strstr(picture, planned) != NULL, p->program.arena_bytes[at] > 0);
    }
    free(picture);
    free(levels);
    free(sums);
    plan_timeline_fini(&t);
}

static void what_is_drawn_is_the_columns(void **state) {
    (void)state;
    for (size_t k = 0; k < ARRAY_LENGTH(recomputes); k++)
        for (size_t o = 0; o < ARRAY_LENGTH(offloads); o++) {
            plan_request r = request(k % 2 ? "test-qwen3" : "test-gpt2");
            plan p;
            r.choice.recompute.kind = recomputes[k];
            r.choice.offload = offloads[o].homes;
            r.choice.prefetch = offloads[o].prefetch;
            training_must(plan_build(&p, &r));
            check_picture(&p);
            plan_close(&p);
        }
}

static void check_long(int64_t n_layers, const struct offload_case *o, size_t n_ops) {
    plan_request r = request("test-qwen3");
    plan p;
    plan_timeline t;
    size_t n_at_peak = 0;
    CHANGE_MODEL(r.source, c.n_layers = n_layers);
    r.choice.recompute.kind = RECOMPUTE_FULL;
    r.choice.offload = o->homes;
    r.choice.prefetch = o->prefetch;
    r.verify = false;
    training_must(plan_build(&p, &r));
    assert_true(p.program.n_ops > n_ops);
    check_parts(&p);
    check_picture(&p);
    if (n_ops < 10000) check_json(&p); /* thinned; the slower count takes too long for more */
    char *picture = drawn(&p);
    assert_true(strlen(picture) < 60000);
    free(picture);
    plan_timeline_init(&t, &p);
    assert_true(t.n_columns > TIMELINE_COLUMNS / 2);
    for (size_t i = 0; i < t.n_columns; i++)
        n_at_peak +=
            t.columns[i].op == p.peak_op && memcmp(t.columns[i].alive.by_role, p.by_role, sizeof p.by_role) == 0;
    assert_int_equal(n_at_peak, 1);
    plan_timeline_fini(&t);
    plan_close(&p);
}

static void long_programs_stay_small(void **state) {
    (void)state;
    check_long(400, &offloads[0], 20000);
    check_long(40, &offloads[2], 4000);
}

static size_t count(const char *text, const char *what) {
    size_t n = 0;
    for (; (text = strstr(text, what)); text++) n++;
    return n;
}

/* In the legend always; as a line where it does not press the bands to the floor. */
static void a_limit_near_the_plan_is_a_line(void **state) {
    (void)state;
    plan_request r = request("test-gpt2");
    plan p;
    training_must(plan_build(&p, &r));
    const struct {
        uint64_t limit;
        size_t n_lines;
    } cases[] = {{0, 0}, {p.planned[0] / 2, 2}, {p.planned[0], 2}, {p.planned[0] * 5 / 4, 2}, {p.planned[0] * 3, 1}};
    for (size_t i = 0; i < ARRAY_LENGTH(cases); i++) {
        p.request.device_limit = cases[i].limit;
        char *picture = drawn(&p);
        assert_int_equal(count(picture, "stroke=\"#d00000\""), cases[i].n_lines);
        free(picture);
    }
    plan_close(&p);
}

static void hostile_names_stay_text(void **state) {
    (void)state;
    static const char *const names[] = {"</text><script>alert(1)</script>",
                                        "a & b \"c\" 'd' <e> ]]>",
                                        "\x01\x1b[31m\n\t\x7f",
                                        "cut \xe2\x82",
                                        "\xff\xfe\xc0\x80\xed\xa0\x80",
                                        "\xef\xbf\xbe\xef\xbf\xbf",
                                        "\xed\x95\x9c\xea\xb5\xad\xec\x96\xb4",
                                        ""};
    char *endless = calloc(1, 100001);
    memset(endless, '<', 100000);
    for (size_t i = 0; i <= ARRAY_LENGTH(names); i++) {
        plan_request r = request("test-gpt2");
        plan p;
        training_must(plan_build(&p, &r));
        p.request.source.name = i < ARRAY_LENGTH(names) ? names[i] : endless;
        char *picture = drawn(&p);
        assert_null(strstr(picture, "<script"));
        assert_true(strlen(picture) < 60000);
        if (i == 0) assert_non_null(strstr(picture, "step: &lt;/text&gt;&lt;script&gt;alert(1)&lt;/script&gt;, "));
        if (i == 3) assert_non_null(strstr(picture, "step: cut \xef\xbf\xbd, "));
        if (i == 6) assert_non_null(strstr(picture, names[i])); /* other scripts are left alone */
        free(picture);
        plan_close(&p);
    }
    free(endless);
}

static void a_file_is_whole_or_not_there(void **state) {
    (void)state;
    plan_request r = request("test-gpt2");
    plan p;
    char *dir = training_dir(), path[512], *text;
    size_t n;
    training_must(plan_build(&p, &r));
    char *picture = drawn(&p);
    snprintf(path, sizeof path, "%s/a.svg", dir);
    for (int twice = 0; twice < 2; twice++) {
        training_must(plan_timeline_write(&p, path));
        training_must(file_read_all(path, 1 << 20, &text, &n));
        assert_string_equal(text, picture);
        assert_int_equal(files_in(dir), 1);
        free(text);
    }
    snprintf(path, sizeof path, "%s/a.png", dir);
    assert_int_equal(plan_timeline_write(&p, path), ERR_INPUT);
    assert_non_null(strstr(error_message(), ".svg"));
    snprintf(path, sizeof path, "%s/none/a.svg", dir);
    assert_int_equal(plan_timeline_write(&p, path), ERR_IO);
    assert_non_null(strstr(error_message(), path));
    snprintf(path, sizeof path, "%s/b.svg", dir);
    training_must(dir_make(path));
    assert_int_equal(plan_timeline_write(&p, path), ERR_IO);
    assert_non_null(strstr(error_message(), "directory"));
    assert_int_equal(files_in(dir), 2); /* a.svg and the directory b.svg */
    free(picture);
    plan_close(&p);
    training_dir_remove(dir);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_column_is_what_is_alive_at_its_op),
        cmocka_unit_test(what_stays_is_the_same_in_every_column),
        cmocka_unit_test(evaluation_is_shown_where_the_peak_is_its),
        cmocka_unit_test(what_is_drawn_is_the_columns),
        cmocka_unit_test(long_programs_stay_small),
        cmocka_unit_test(a_limit_near_the_plan_is_a_line),
        cmocka_unit_test(hostile_names_stay_text),
        cmocka_unit_test(a_file_is_whole_or_not_there),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
