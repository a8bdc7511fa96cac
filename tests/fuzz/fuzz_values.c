/* fuzz_values.c - values of settings as text: sizes, numbers, forms, memory.place, data.source.
 *
 * One short text goes through every reader of single values.
 * Of what is accepted: a size that is written out reads back to about the same; a form's stored text reads back to itself, also
 * as the YAML it is written as; devices of a placement are there; paths of a source list are not empty and read back. */
#include "settings/form.h"
#include "settings/place.h"
#include "settings/setting.h"
#include "data/source.h"
#include "fuzz/fuzz.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define FORM \
    "none=false|norms|full=true|ratio: [0, 1]|every: whole [1, 1024]|keep: names|mix: (level, layers, lighter level)"

static void check_size(const char *text) {
    uint64_t n = 0, again = 0;
    char shown[32];
    status rc = str_parse_bytes(text, &n);
    if (rc != OK) {
        fuzz_refused(rc);
        return;
    }
    if (n > UINT64_MAX / 2) return; /* may be shown as 16.0 EiB, one byte more than there are */
    ASSERT(str_parse_bytes(str_format_bytes(shown, n), &again) == OK);
    double off = fabs((double)again - (double)n); /* one digit behind the point is shown */
    ASSERT(off <= 0.06 * (double)n || off <= 1);
}

static void check_numbers(const char *text) {
    double real;
    int64_t whole;
    bool flag;
    char shown[64];
    if (real_read(text, &real)) ASSERT(isfinite(real));
    if (int_read(text, &whole)) {
        int64_t again;
        snprintf(shown, sizeof shown, "%lld", (long long)whole);
        ASSERT(int_read(shown, &again) && again == whole);
    }
    if (bool_read(text, &flag)) ASSERT(flag == (bool)(flag & 1));
}

static void check_form(const char *text) {
    strbuf stored, again, written;
    strbuf_init(&stored);
    strbuf_init(&again);
    strbuf_init(&written);
    if (form_read(FORM, text, &stored)) {
        ASSERT(form_read(FORM, stored.text, &again) && strcmp(stored.text, again.text) == 0);
        form_write(stored.text, &written);
        again.length = 0;
        ASSERT(form_read(FORM, written.text, &again) && strcmp(stored.text, again.text) == 0);
    }
    strbuf_fini(&stored);
    strbuf_fini(&again);
    strbuf_fini(&written);
}

static void check_place(const char *text, int64_t n_layers) {
    place_options p;
    status rc = place_parse(text, n_layers, 0, &p);
    if (rc != OK) {
        fuzz_refused(rc);
        return;
    }
    ASSERT(p.embed < PLACE_DEVICES && p.head < PLACE_DEVICES);
    for (int64_t i = 0; i < n_layers; i++) ASSERT(p.layers[i] < PLACE_DEVICES);
}

/* Every path with all its characters escaped, and its weight. */
static void source_write(const file_entry *entries, size_t n, strbuf *out) {
    for (size_t i = 0; i < n; i++) {
        if (i > 0) strbuf_add(out, ",");
        for (const char *s = entries[i].path; *s; s++) strbuf_printf(out, "\\%c", *s);
        if (entries[i].weight > 0) strbuf_printf(out, ":%.17g", entries[i].weight);
    }
}

static void check_source(const char *text) {
    file_entry *entries, *again;
    size_t n, n_again;
    status rc = file_list_parse(text, &entries, &n);
    if (rc != OK) fuzz_refused(rc);
    else {
        strbuf written;
        strbuf_init(&written);
        source_write(entries, n, &written);
        ASSERT(file_list_parse(written.text, &again, &n_again) == OK && n_again == n);
        for (size_t i = 0; i < n; i++) {
            ASSERT(*entries[i].path && entries[i].weight >= 0 && (entries[i].weight > 0) == (entries[0].weight > 0));
            ASSERT(strcmp(entries[i].path, again[i].path) == 0 && entries[i].weight == again[i].weight);
        }
        file_list_free(again, n_again);
        strbuf_fini(&written);
    }
    file_list_free(entries, n);
}

void fuzz_one(const uint8_t *data, size_t size) {
    span all = {(const char *)data, size};
    char *text = fuzz_text(&all);
    check_size(text);
    check_numbers(text);
    check_form(text);
    check_place(text, 1 + (int64_t)(size % 48));
    check_source(text);
    free(text);
}
