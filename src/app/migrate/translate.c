/* translate.c - the engine that all dialects share: it translates what a row says, and has what translate functions
 * use.
 *
 * Values are offered after files and command line were read, and used only where those set nothing: that is the
 * whole precedence, and it lets "auto" mean what the rest of the configuration says.
 * What cannot be translated is collected and refused at the end, all reasons at once: a file with five keys too many
 * needs one look and not five. */
#include "migrate/dialect.h"

#include <stdlib.h>
#include <string.h>
#include <strings.h>

#define IMPLIED SIZE_MAX

void foreign_init(foreign *f) {
    *f = (foreign){0};
    arena_init(&f->memory);
}

void foreign_fini(foreign *f) {
    for (size_t i = 0; i < f->n_files; i++) free(f->files[i].items);
    free(f->entries);
    arena_fini(&f->memory);
    *f = (foreign){0};
}

bool foreign_was_read(const foreign *f) { return f->n_files > 0; }

/* ---- problems ---------------------------------------------------------------------------------------------------- */

/* The first ones are kept, each once; the others are counted. A file may hold a wrong key in each of its lines. */
static void problem_add(foreign *f, const char *text) {
    for (size_t i = 0; i < MIN(f->n_problems, (size_t)FOREIGN_PROBLEMS); i++)
        if (strcmp(f->problems[i], text) == 0) return;
    if (f->n_problems++ < FOREIGN_PROBLEMS) f->problems[f->n_problems - 1] = arena_string(&f->memory, text);
}

void foreign_problem(foreign *f, const char *format, ...) {
    char text[1024];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    problem_add(f, text);
}

/* An error of the user's file, or of a file that it names, joins the others; any other error is passed on. */
static status problem_take(foreign *f, status rc) {
    if (rc != ERR_INPUT && rc != ERR_IO) return rc;
    problem_add(f, error_message());
    error_clear();
    return OK;
}

static status problems_report(const foreign *f) {
    if (f->n_problems == 0) return OK;
    if (f->n_problems == 1) return ERR(ERR_INPUT, "%s", f->problems[0]);
    strbuf all;
    strbuf_init(&all);
    size_t shown = 0, room = sizeof((error_record *)0)->message - 128;
    for (; shown < MIN(f->n_problems, (size_t)FOREIGN_PROBLEMS) && all.length + strlen(f->problems[shown]) < room;
         shown++)
        strbuf_printf(&all, "\n    %s", f->problems[shown]);
    if (shown < f->n_problems) strbuf_printf(&all, "\n    ... and %zu more", f->n_problems - shown);
    status rc = ERR(ERR_INPUT, "%zu things cannot be translated:%s", f->n_problems, all.text);
    strbuf_fini(&all);
    return rc;
}

/* ---- what translate functions use ------------------------------------------------------------------------------- */

const foreign_item *foreign_find(const foreign_reader *r, const char *key) {
    for (size_t i = 0; i < r->file->n_items; i++)
        if (strcmp(r->file->items[i].key, key) == 0) return r->file->items[i].is_null ? NULL : &r->file->items[i];
    return NULL;
}

const foreign_item *foreign_find_either(foreign_reader *r, const char *now, const char *before) {
    const foreign_item *a = foreign_find(r, now), *b = foreign_find(r, before);
    if (a && b) foreign_refuse(r, b, "%s in line %d is the same key; keep one", now, a->line);
    return a ? a : b;
}

bool foreign_has_group(const foreign_reader *r, const char *prefix) {
    size_t n = strlen(prefix);
    for (size_t i = 0; i < r->file->n_items; i++) {
        const char *key = r->file->items[i].key;
        if (strncmp(key, prefix, n) == 0 && (key[n] == '.' || (key[n] == 0 && !r->file->items[i].is_null))) return true;
    }
    return false;
}

bool item_is_true(const foreign_item *i) {
    bool flag = false;
    return i && !i->is_auto && bool_read(i->text, &flag) && flag;
}

int64_t item_whole(const foreign_item *i) {
    int64_t whole = 0;
    ASSERT(int_read(i->text, &whole));
    return whole;
}

double item_real(const foreign_item *i) {
    double real = 0;
    ASSERT(real_read(i->text, &real));
    return real;
}

const char *foreign_where(const foreign_reader *r, const foreign_item *i) {
    return arena_format(&r->f->memory, "%s:%d", r->file->path, i->line);
}

const char *foreign_format(const foreign_reader *r, const char *format, ...) {
    char text[1024];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    return arena_string(&r->f->memory, text);
}

/* In 64 bits: that the axes fit together is checked when all settings are known. */
int64_t foreign_row_ranks(const foreign_reader *r) {
    const int *size = r->c->parallel.size;
    int64_t others = (int64_t)MAX(size[AXIS_TENSOR], 1) * MAX(size[AXIS_PIPELINE], 1);
    if (size[AXIS_DATA] > 0) return (int64_t)size[AXIS_DATA] * MAX(size[AXIS_SEQUENCE], 1);
    return MAX(r->f->n_ranks / others, (int64_t)1);
}

const char *foreign_value(const foreign_reader *r, const char *setting) {
    strbuf b;
    strbuf_init(&b);
    status rc = config_get(r->c, setting, &b, "");
    ASSERT(rc == OK); /* the tables name settings that are there */
    const char *text = arena_string(&r->f->memory, b.text);
    strbuf_fini(&b);
    return text;
}

static void entry_add(foreign_reader *r, const foreign_item *i, const char *setting, const char *note) {
    foreign *f = r->f;
    f->entries = array_grow(f->entries, &f->capacity, f->n_entries + 1, sizeof *f->entries);
    f->entries[f->n_entries++] = (foreign_entry){.file = r->file,
                                                 .place = i ? (size_t)(i - r->file->items) : IMPLIED,
                                                 .key = i ? i->key : NULL,
                                                 .given = i ? i->text : NULL,
                                                 .line = i ? i->line : 0,
                                                 .setting = setting,
                                                 .note = note};
}

void foreign_report_no_effect(foreign_reader *r, const foreign_item *i, const char *note) {
    if (i) entry_add(r, i, NULL, note);
}

void foreign_report_file(foreign_reader *r, const foreign_item *i) {
    entry_add(r, i, NULL, "translated below");
    r->f->entries[r->f->n_entries - 1].is_file = true;
}

void foreign_report_set(foreign_reader *r, const foreign_item *i, const char *setting, const char *note) {
    entry_add(r, i, setting, note);
}

/* Entries of this setting that are of another file: all of them, and those that are keys. */
static size_t count_others(const foreign_reader *r, const char *setting, size_t *n_keys) {
    size_t n = 0;
    *n_keys = 0;
    for (size_t e = 0; e < r->f->n_entries; e++) {
        const foreign_entry *one = &r->f->entries[e];
        if (one->file == r->file || !one->setting || strcmp(one->setting, setting) != 0) continue;
        n++;
        *n_keys += one->place != IMPLIED;
    }
    return n;
}

void foreign_take_over(foreign_reader *r, const char *setting) {
    size_t n_keys, kept = 0;
    if (count_others(r, setting, &n_keys) == 0) return;
    config_withdraw(r->c, setting);
    for (size_t e = 0; e < r->f->n_entries; e++) {
        foreign_entry one = r->f->entries[e];
        bool is_other = one.file != r->file && one.setting && strcmp(one.setting, setting) == 0;
        if (is_other && one.place == IMPLIED) continue;
        if (is_other) one.note = foreign_format(r, "conflict: %s says so", r->file->path);
        r->f->entries[kept++] = one;
    }
    r->f->n_entries = kept;
}

status foreign_offer(foreign_reader *r, const foreign_item *i, const char *setting, const char *value,
                     const char *note) {
    size_t n_keys;
    if (i && count_others(r, setting, &n_keys) > 0 && n_keys == 0) foreign_take_over(r, setting);
    const char *where = i ? foreign_where(r, i) : r->file->path, *who = config_given_by(r->c, setting);
    const char *name = i ? i->key : setting;
    config_offer_result result;
    if (r->f->n_files == 1 && strcmp(who, "another file") == 0) who = "another key";
    /* A number that was converted is refused with the number in the file beside it. */
    if (i && strcmp(i->text, value) != 0) name = foreign_format(r, "%s = %.100s", i->key, i->text);
    status rc = config_offer(r->c, setting, value, where, name, &result);
    if (rc != OK) {
        if (i) r->file->items[i - r->file->items].is_refused = true;
        return problem_take(r->f, rc);
    }
    if (result == OFFER_REFUSED)
        note = foreign_format(r, "conflict: %s says so, %s would give %s%s%s", who, r->file->path, value,
                              note ? "; " : "", note ? note : "");
    entry_add(r, i, setting, note);
    return OK;
}

status foreign_offer_unless_auto(foreign_reader *r, const foreign_item *i, const char *setting, const char *value,
                                 const char *note) {
    if (!i->is_auto) return foreign_offer(r, i, setting, value, note);
    foreign_report_set(r, i, setting, "auto");
    return OK;
}

status foreign_offer_text(foreign_reader *r, const foreign_item *i, const char *setting, const char *usual) {
    if (i) return foreign_offer_unless_auto(r, i, setting, i->text, NULL);
    return usual ? foreign_offer(r, NULL, setting, usual, "its default") : OK;
}

status foreign_offer_switch(foreign_reader *r, const foreign_item *i, const char *setting, const char *value,
                            const char *note) {
    if (item_is_true(i)) return foreign_offer(r, i, setting, value, note);
    foreign_report_no_effect(r, i, "off");
    return OK;
}

status foreign_expected(const foreign_reader *r, const foreign_item *i, const char *expected) {
    return ERR(ERR_INPUT, "%s: %s: found %s, expected %s", foreign_where(r, i), i->key, i->text, expected);
}

void foreign_refuse(foreign_reader *r, const foreign_item *i, const char *format, ...) {
    char text[1024];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    int shown =
        (int)MIN(strcspn(i->text, "\n"), (size_t)100); /* a text over several lines, such as a template: its first */
    foreign_problem(r->f, "%s: %s: found %.*s%s; %s", foreign_where(r, i), i->key, *i->text ? shown : 5,
                    *i->text ? i->text : "a map", i->text[shown] ? "..." : "", text);
    r->file->items[i - r->file->items].is_refused = true;
}

bool foreign_is_off(const foreign_item *i) {
    bool flag;
    double number;
    return !i || i->is_null || *i->text == 0 || strcmp(i->text, "[]") == 0 || strcasecmp(i->text, "none") == 0 ||
           (bool_read(i->text, &flag) && !flag) || (real_read(i->text, &number) && number == 0);
}

/* ---- apply ------------------------------------------------------------------------------------------------------- */

const char *foreign_word(const foreign_reader *r, const char *list, const char *word, bool any_case) {
    for (const char *at = list; *at;) {
        size_t length = strcspn(at, "|"), name = strcspn(at, "=");
        ASSERT(name < length);
        if (strlen(word) == name && (any_case ? strncasecmp : strncmp)(at, word, name) == 0)
            return foreign_format(r, "%.*s", (int)(length - name - 1), at + name + 1);
        at += length + (at[length] == '|');
    }
    return NULL;
}

static status translate_word(foreign_reader *r, const foreign_item *i) {
    const char *value = foreign_word(r, i->row->text, i->text, true);
    if (value && *value) return foreign_offer(r, i, i->row->setting, value, NULL);
    if (value) {
        foreign_report_no_effect(r, i, "it is so here by itself");
        return OK;
    }
    strbuf words;
    strbuf_init(&words);
    for (const char *at = i->row->text; *at;) {
        strbuf_printf(&words, "%s%.*s", words.length ? ", " : "", (int)strcspn(at, "="), at);
        at += strcspn(at, "|");
        at += *at == '|';
    }
    foreign_refuse(r, i, "ralo has %s", words.text);
    strbuf_fini(&words);
    return OK;
}

/* A key of FSDP stands for one or several settings. */
static status translate_fsdp(foreign_reader *r, const foreign_item *i) {
    fsdp_translation t;
    status rc = fsdp_translate(foreign_where(r, i), i->key, i->text, &t);
    if (rc != OK) {
        r->file->items[i - r->file->items].is_refused = true;
        return problem_take(r->f, rc);
    }
    if (!t.is_fsdp) foreign_refuse(r, i, "keys of FSDP stand in one map, in no list");
    if (t.why) foreign_report_no_effect(r, i, t.why);
    for (int k = 0; k < t.n; k++) TRY(foreign_offer(r, i, t.settings[k], t.value, NULL));
    return OK;
}

static status translate_row(foreign_reader *r, const foreign_item *i) {
    const foreign_row *row = i->row;
    switch (row->kind) {
    case FOREIGN_OWN: break; /* by the dialect's translate function */
    case FOREIGN_IDLE:
    case FOREIGN_WHOLE: foreign_report_no_effect(r, i, row->text); break;
    case FOREIGN_OFF:
        if (!i->is_auto && !foreign_is_off(i)) foreign_refuse(r, i, "%s", row->text);
        else foreign_report_no_effect(r, i, "off");
        break;
    case FOREIGN_SET:
    case FOREIGN_WORD:
        if (row->kind == FOREIGN_WORD && !i->is_auto) return translate_word(r, i);
        return foreign_offer_unless_auto(r, i, row->setting, i->text, row->text);
    case FOREIGN_FSDP: return translate_fsdp(r, i);
    }
    return OK;
}

/* Items that their row translates completely. */
static status translate_plain(foreign_reader *r) {
    for (size_t k = 0; k < r->file->n_items; k++) {
        const foreign_item *i = &r->file->items[k];
        if (i->is_null) foreign_report_no_effect(r, i, "null: as if it were not there");
        else if (i->row) TRY(translate_row(r, i)); /* else an empty map; translate may still report more */
    }
    return OK;
}

/* No key may get lost between the tables and the translate functions. */
static status check_all_translated(foreign_reader *r) {
    for (size_t k = 0; k < r->file->n_items; k++) {
        const foreign_item *i = &r->file->items[k];
        bool reported = i->is_refused;
        for (size_t e = 0; e < r->f->n_entries && !reported; e++)
            reported = r->f->entries[e].file == r->file && r->f->entries[e].place == k;
        if (reported) continue;
        if (i->row) return ERR(ERR_BUG, "%s: %s was read but not translated", foreign_where(r, i), i->key);
        foreign_report_no_effect(r, i, "empty");
    }
    return OK;
}

static int by_place(const void *a, const void *b) {
    const foreign_entry *x = a, *y = b;
    if (x->file != y->file) return x->file < y->file ? -1 : 1;
    if (x->place != y->place) return x->place < y->place ? -1 : 1;
    return strcmp(x->setting ? x->setting : "", y->setting ? y->setting : "");
}

status foreign_translate_parts(foreign_reader *r, const foreign_part *parts, size_t n) {
    for (size_t i = 0; i < n; i++) TRY(problem_take(r->f, parts[i](r)));
    return OK;
}

status foreign_apply(foreign *f, config *c) {
    for (size_t i = 0; i < f->n_files; i++) {
        foreign_reader r = {.f = f, .file = &f->files[i], .c = c};
        TRY(translate_plain(&r));
        status rc = r.file->dialect->translate(&r);
        TRY(problem_take(f, rc));
        if (f->n_problems == 0) TRY(check_all_translated(&r));
    }
    TRY(problems_report(f));
    if (f->n_entries) qsort(f->entries, f->n_entries, sizeof *f->entries, by_place);
    return OK;
}

status foreign_check_train(const foreign *f) { return f->refusal ? ERR(ERR_INPUT, "%s", f->refusal) : OK; }

void foreign_refuse_train(foreign_reader *r, const char *text) {
    const char *before = r->f->refusal;
    r->f->refusal = before ? arena_format(&r->f->memory, "%s\n    %s", before, text) : text;
}
