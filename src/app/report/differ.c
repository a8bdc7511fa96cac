/* differ.c - the settings of several runs side by side, and which of them differ. */
#include "report/report.h"

#include <stdlib.h>
#include <string.h>

/* Says where a run is, not what it does. */
static bool is_place(const char *key) {
    static const char *const places[] = {"run.dir", "run.resume", "run.export", "run.keep"};
    for (size_t i = 0; i < ARRAY_LENGTH(places); i++)
        if (strcmp(key, places[i]) == 0) return true;
    return false;
}

/* A key that no setting has, such as one of another version, is no known cause of anything. */
static setting_effect effect_of(const char *key) {
    static const struct {
        const char *key;
        setting_effect effect;
    } effects[] = {
#define SETTING(key, effect, ...) {key, EFFECT_##effect},
#include "settings/config.def"
#undef SETTING
    };
    for (size_t i = 0; i < ARRAY_LENGTH(effects); i++)
        if (strcmp(effects[i].key, key) == 0) return effects[i].effect;
    return EFFECT_NONE;
}

static setting_row *row_of(setting_table *t, const char *key, size_t guess, size_t n_runs) {
    if (guess < t->n_rows && strcmp(t->rows[guess].key, key) == 0) return &t->rows[guess];
    for (size_t i = 0; i < t->n_rows; i++)
        if (strcmp(t->rows[i].key, key) == 0) return &t->rows[i];
    t->rows = array_grow(t->rows, &t->capacity, t->n_rows + 1, sizeof *t->rows);
    t->rows[t->n_rows] = (setting_row){.key = arena_string(&t->memory, key),
                                       .effect = effect_of(key),
                                       .values = arena_array(&t->memory, const char *, n_runs)};
    return &t->rows[t->n_rows++];
}

/* A run without config.yaml says nothing, so nothing differs from it. */
static bool row_differs(const setting_row *row, const run *runs, size_t n) {
    const char *first = NULL;
    bool any = false;
    for (size_t k = 0; k < n; k++) {
        if (runs[k].n_settings == 0) continue;
        const char *value = row->values[k];
        if (any && (!first != !value || (first && strcmp(first, value) != 0))) return true;
        first = value;
        any = true;
    }
    return false;
}

void setting_table_init(setting_table *t, const run *runs, size_t n) {
    *t = (setting_table){0};
    arena_init(&t->memory);
    for (size_t k = 0; k < n; k++) {
        size_t guess = 0;
        for (size_t i = 0; i < runs[k].n_settings; i++) {
            setting_row *row = row_of(t, runs[k].settings[i].key, guess, n);
            row->values[k] = arena_string(&t->memory, runs[k].settings[i].value);
            guess = (size_t)(row - t->rows) + 1;
        }
    }
    for (size_t i = 0; i < t->n_rows; i++) {
        bool differs = row_differs(&t->rows[i], runs, n);
        t->rows[i].differs = differs && !is_place(t->rows[i].key);
        t->rows[i].is_same = !differs;
        t->n_differ += t->rows[i].differs;
        t->n_same += t->rows[i].is_same;
    }
}

void setting_table_fini(setting_table *t) {
    free(t->rows);
    arena_fini(&t->memory);
    *t = (setting_table){0};
}
