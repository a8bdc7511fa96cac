/* fuzz_template.c - a chat template, rendered over variables.
 *
 * Sections: the template, then the variables as JSON (an object; anything else counts as none).
 * Of a template that renders: rendering again gives the same, the output is UTF-8, ranges ascend and lie inside of it, and
 * marking one message changes no text. Limits are small, so that an input costs little time: without them half of the time went
 * into a few inputs that print what they printed until a megabyte is full. */
#define _GNU_SOURCE 1 /* memmem */
#include "fuzz/fuzz.h"
#include "jinja/render.h"

#include <string.h>

static const limits small = {.steps = 2000, .value_bytes = (size_t)128 << 10, .output_bytes = (size_t)32 << 10};

static void check_ranges(const jinja_output *out, const jinja_range *ranges, size_t n) {
    size_t end = 0;
    for (size_t i = 0; i < n; i++) {
        ASSERT(ranges[i].begin < ranges[i].end && ranges[i].end <= out->text.length);
        ASSERT(i == 0 || ranges[i].begin > end);
        end = ranges[i].end;
    }
}

static void check_output(const jinja_output *out) {
    ASSERT(utf8_check(out->text.text, out->text.length).n_bad == 0);
    check_ranges(out, out->from_variables, out->n_from_variables);
    check_ranges(out, out->generated, out->n_generated);
}

static bool same_ranges(const jinja_range *a, size_t n_a, const jinja_range *b, size_t n_b) {
    return n_a == n_b && (n_a == 0 || memcmp(a, b, n_a * sizeof *a) == 0);
}

static void check_again(const jinja *t, const json_t *variables, status rc, const jinja_output *first) {
    jinja_output out = {0};
    ASSERT(render_limited(t, variables, ALL_VARIABLES, &small, &out) == rc);
    if (rc == OK) {
        ASSERT(out.text.length == first->text.length && memcmp(out.text.text, first->text.text, out.text.length) == 0);
        ASSERT(same_ranges(out.from_variables, out.n_from_variables, first->from_variables, first->n_from_variables));
        ASSERT(same_ranges(out.generated, out.n_generated, first->generated, first->n_generated));
    }
    if (render_limited(t, variables, 0, &small, &out) == OK && rc == OK) {
        check_output(&out);
        ASSERT(out.text.length == first->text.length && memcmp(out.text.text, first->text.text, out.text.length) == 0);
    }
    jinja_output_free(&out);
}

enum { INPUT_MOST = 8192 }; /* bytes: longer ones only cost time */

void fuzz_one(const uint8_t *data, size_t size) {
    if (size > INPUT_MOST) return;
    fuzz_input in = {data, size};
    span source = fuzz_section(&in), text = fuzz_section(&in);
    jinja *t;
    status rc = jinja_open(&t, source.text, source.length, "template");
    if (rc != OK) {
        fuzz_refused(rc);
        return;
    }
    json_t *variables = json_loadb(text.text, text.length, JSON_REJECT_DUPLICATES | JSON_ALLOW_NUL, NULL);
    if (!json_is_object(variables)) {
        json_decref(variables);
        variables = json_object();
    }
    jinja_output out = {0};
    rc = render_limited(t, variables, ALL_VARIABLES, &small, &out);
    if (rc != OK) fuzz_refused(rc);
    else check_output(&out);
    if (fuzz_sometimes(data, size, 8) && !memmem(source.text, source.length, "now", 3)) /* not the time of day */
        check_again(t, variables, rc, &out);
    jinja_output_free(&out);
    json_decref(variables);
    jinja_close(t);
}
