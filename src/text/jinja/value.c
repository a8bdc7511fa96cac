/* value.c - making, comparing and going through values; the limits of steps and memory. */
#include "base/memory.h"
#include "jinja/render.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ---- limits and errors ---------------------------------------------------------------------------------------------- */

value fail(render *r, const char *fmt, ...) {
    if (!r->has_failed) {
        va_list args;
        va_start(args, fmt);
        vsnprintf(r->message, sizeof r->message, fmt, args);
        va_end(args);
        r->has_failed = true;
        r->failed_line = r->line;
    }
    return undefined_hint(r, "");
}

bool failed(const render *r) { return r->has_failed; }

bool steps_take(render *r, uint64_t n) {
    r->n_steps += n;
    if (r->n_steps > r->most.steps)
        fail(r, "more than %" PRIu64 " steps: the template does too much work", r->most.steps);
    return !r->has_failed;
}

bool bytes_take(render *r, size_t n_bytes) { return steps_take(r, n_bytes / 64); }

enum { BYTES_AHEAD = 4 << 20 };

/* Is there room for that much more? An error where not. */
static bool memory_take(render *r, size_t n_bytes) {
    size_t most = r->most.value_bytes, used = r->memory.n_bytes + r->builder_bytes;
    if (n_bytes > most || used > most - n_bytes) fail(r, "more than %zu MiB of values", most >> 20);
    else if (used + n_bytes > r->n_bytes_there) { /* an arena's blocks are smaller than what is looked for ahead */
        r->n_bytes_there = used + n_bytes + BYTES_AHEAD;
        if (!mem_is_there(n_bytes + BYTES_AHEAD)) fail(r, "no memory for %zu bytes of values", used + n_bytes);
    }
    return !r->has_failed;
}

void *render_alloc(render *r, size_t n_bytes) {
    memory_take(r, n_bytes);
    return arena_alloc(&r->memory, n_bytes);
}

#define NEW(r, type) ((type *)render_alloc((r), sizeof(type)))

/* ---- undefined ------------------------------------------------------------------------------------------------------ */

static value undefined_new(render *r, undefined from) {
    undefined *u = arena_new(&r->memory, undefined);
    *u = from;
    return (value){.kind = V_UNDEFINED, .u = u};
}

value undefined_hint(render *r, const char *hint) { return undefined_new(r, (undefined){.hint = hint}); }
value undefined_name(render *r, const char *name) {
    return undefined_new(r, (undefined){.key = string_literal(r, name), .of = V_MISSING});
}
value undefined_member(render *r, value of, value key) {
    return undefined_new(r, (undefined){.key = key, .of = of.kind});
}
value undefined_unsafe(render *r, value of, const char *attribute) {
    return undefined_new(r, (undefined){.key = string_literal(r, attribute), .of = of.kind, .is_unsafe = true});
}

value undefined_fail(render *r, value v) {
    const undefined *u = v.u;
    if (u->hint) return fail(r, "%s", u->hint);
    const char *type = value_type((value){.kind = u->of});
    if (u->is_unsafe)
        return fail(r, "access to attribute '%s' of '%s' object is unsafe: templates cannot change values",
                    string_quote(r, u->key.s), type);
    if (u->of == V_MISSING) return fail(r, "'%s' is undefined", string_quote(r, u->key.s));
    const char *object = u->of == V_NONE ? "" : " object";
    if (u->of == V_NONE) type = "None";
    if (u->key.kind == V_STRING)
        return fail(r, "'%s%s' has no attribute '%s'", type, object, string_quote(r, u->key.s));
    builder b;
    builder_init(&b, r);
    repr_add(&b, u->key, 0);
    value key = builder_take(&b);
    return fail(r, "%s%s has no element %s", type, object, string_quote(r, key.s));
}

/* ---- strings -------------------------------------------------------------------------------------------------------- */

value string_of(render *r, const char *text, size_t n_bytes, uint8_t marks) {
    string *s = NEW(r, string);
    *s = (string){.text = text, .length = n_bytes, .marks = marks};
    return (value){.kind = V_STRING, .s = s};
}

value string_literal(render *r, const char *text) { return string_of(r, text, strlen(text), 0); }

value string_slice(render *r, const string *s, size_t begin, size_t end) {
    value v = string_of(r, s->text + begin, end > begin ? end - begin : 0, s->marks);
    ((string *)v.s)->mask = s->mask ? s->mask + begin : NULL;
    return v;
}

uint8_t string_marks(const string *s) {
    uint8_t marks = s->mask ? 0 : s->marks;
    for (size_t i = 0; s->mask && i < s->length; i++) marks |= s->mask[i];
    return marks;
}

bool string_is(const string *s, const char *text) {
    return strlen(text) == s->length && memcmp(text, s->text, s->length) == 0;
}

bool string_equal(const string *a, const string *b) {
    return a->length == b->length && (a->length == 0 || memcmp(a->text, b->text, a->length) == 0);
}

/* The order of UTF-8 bytes is that of the code points. */
int string_compare(const string *a, const string *b) {
    size_t n = MIN(a->length, b->length);
    int order = n ? memcmp(a->text, b->text, n) : 0;
    return order ? order : (a->length > b->length) - (a->length < b->length);
}

const char *string_quote(render *r, const string *s) {
    size_t n = MIN(s->length, (size_t)200);
    while (n && n < s->length && (s->text[n] & 0xc0) == 0x80) n--;
    char *out = arena_alloc(&r->memory, n + 1);
    if (n) memcpy(out, s->text, n);
    return out;
}

/* ---- lists ---------------------------------------------------------------------------------------------------------- */

list *list_new(render *r, size_t capacity) {
    list *l = NEW(r, list);
    if (capacity && memory_take(r, capacity * sizeof *l->items)) {
        l->items = arena_array(&r->memory, value, capacity);
        l->capacity = capacity;
    }
    return l;
}

void list_add(render *r, list *l, value v) {
    if (l->n == l->capacity) {
        size_t capacity = l->capacity ? l->capacity * 2 : 4;
        if (!memory_take(r, capacity * sizeof v)) return;
        value *items = arena_array(&r->memory, value, capacity);
        if (l->n) memcpy(items, l->items, l->n * sizeof v);
        l->items = items;
        l->capacity = capacity;
    }
    l->items[l->n++] = v;
}

value iterator_value(render *r, list *items, const char *name) {
    struct iterator *it = NEW(r, struct iterator);
    *it = (struct iterator){.items = items, .name = name};
    return (value){.kind = V_ITERATOR, .it = it};
}

/* ---- dictionaries --------------------------------------------------------------------------------------------------- */

static uint64_t hash_bytes(const char *s, size_t n) {
    uint64_t h = 0xcbf29ce484222325u;
    for (size_t i = 0; i < n; i++) h = (h ^ (unsigned char)s[i]) * 0x100000001b3u;
    return h ^ h >> 29;
}

static uint64_t hash_int(int64_t i) {
    uint64_t h = (uint64_t)i * 0x9e3779b97f4a7c15u;
    return h ^ h >> 32;
}

/* Equal values have equal hashes: 1, 1.0 and true are one key. */
static bool hash_value(render *r, value v, int depth, uint64_t *out) {
    switch (v.kind) {
    case V_STRING:
        bytes_take(r, v.s->length);
        *out = hash_bytes(v.s->text, v.s->length);
        return true;
    case V_BOOL:
    case V_INT: *out = hash_int(value_int(v)); return true;
    case V_FLOAT:
        *out = fabs(v.f) < 0x1p62 && v.f == floor(v.f) ? hash_int((int64_t)v.f) : hash_bytes((char *)&v.f, 8);
        return true;
    case V_NONE: *out = 1; return true;
    case V_UNDEFINED: *out = 2; return true;
    case V_TUPLE: /* may hold one tuple many times, at each depth */
        *out = 3;
        for (size_t i = 0; i < v.l->n && depth < JINJA_MAX_DEPTH; i++) {
            uint64_t h;
            if (!steps_take(r, 1) || !hash_value(r, v.l->items[i], depth + 1, &h)) return false;
            *out = (*out ^ h) * 0x100000001b3u;
        }
        return true;
    case V_LIST:
    case V_DICT:
    case V_VIEW: fail(r, "unhashable type: '%s'", value_type(v)); return false;
    default: *out = hash_int((int64_t)(intptr_t)v.l); return true;
    }
}

dict *dict_new(render *r) { return NEW(r, dict); }

static void dict_index(render *r, dict *d, size_t n_slots) {
    if (!memory_take(r, n_slots * sizeof *d->index)) return;
    d->index = arena_array(&r->memory, uint32_t, n_slots);
    d->n_slots = n_slots;
    for (size_t i = 0; i < d->n; i++) {
        size_t slot = d->entries[i].hash & (n_slots - 1);
        while (d->index[slot]) slot = (slot + 1) & (n_slots - 1);
        d->index[slot] = (uint32_t)i + 1;
    }
}

static bool same_key(render *r, value a, value b) {
    if (a.kind == V_STRING && b.kind == V_STRING) return string_equal(a.s, b.s);
    return value_equal(r, a, b);
}

/* The entry of a key; `key` NULL: of this text. Keys that were made to collide cost steps. */
static dict_entry *dict_entry_find(render *r, const dict *d, const value *key, const char *text, size_t n,
                                   uint64_t hash) {
    size_t slot = d->index ? hash & (d->n_slots - 1) : 0;
    for (size_t n_tried = 0;; slot++) {
        if (++n_tried > 32 && !steps_take(r, 1)) return NULL;
        size_t i = slot;
        if (d->index) {
            slot &= d->n_slots - 1;
            if (!d->index[slot]) return NULL;
            i = d->index[slot] - 1;
        } else if (i >= d->n) return NULL;
        dict_entry *e = &d->entries[i];
        if (e->hash != hash) continue;
        if (key ? same_key(r, e->key, *key)
                : e->key.kind == V_STRING && e->key.s->length == n && (n == 0 || memcmp(e->key.s->text, text, n) == 0))
            return e;
    }
}

void dict_set(render *r, dict *d, value key, value v) {
    uint64_t hash;
    if (!hash_value(r, key, 0, &hash)) return;
    dict_entry *e = dict_entry_find(r, d, &key, NULL, 0, hash);
    if (e) {
        e->value = v;
        return;
    }
    if (d->n == d->capacity) {
        size_t capacity = d->capacity ? d->capacity * 2 : 4;
        if (!memory_take(r, capacity * sizeof *d->entries)) return;
        dict_entry *entries = arena_array(&r->memory, dict_entry, capacity);
        if (d->n) memcpy(entries, d->entries, d->n * sizeof *entries);
        d->entries = entries;
        d->capacity = capacity;
    }
    d->entries[d->n++] = (dict_entry){key, v, hash};
    if (!d->index ? d->n > 8 : d->n * 2 > d->n_slots) dict_index(r, d, d->index ? d->n_slots * 2 : 32);
    else if (d->index) {
        size_t slot = hash & (d->n_slots - 1);
        while (d->index[slot]) slot = (slot + 1) & (d->n_slots - 1);
        d->index[slot] = (uint32_t)d->n;
    }
}

const value *dict_find(render *r, const dict *d, value key) {
    uint64_t hash;
    if (!hash_value(r, key, 0, &hash)) return NULL;
    dict_entry *e = dict_entry_find(r, d, &key, NULL, 0, hash);
    return e ? &e->value : NULL;
}

const value *dict_find_text(render *r, const dict *d, const char *key, size_t n) {
    dict_entry *e = dict_entry_find(r, d, NULL, key, n, hash_bytes(key, n));
    return e ? &e->value : NULL;
}

/* ---- out of JSON ---------------------------------------------------------------------------------------------------- */

value value_from_json(render *r, const json_t *j, uint8_t marks, int depth) {
    marks |= part_marks(r, j);
    value v = {.marks = marks};
    if (depth > JINJA_MAX_DEPTH) return fail(r, "a variable is nested deeper than %d", JINJA_MAX_DEPTH);
    switch (json_typeof(j)) {
    case JSON_NULL: v.kind = V_NONE; return v;
    case JSON_TRUE:
    case JSON_FALSE:
        v.kind = V_BOOL;
        v.b = json_is_true(j);
        return v;
    case JSON_INTEGER:
        v.kind = V_INT;
        v.i = json_integer_value(j);
        return v;
    case JSON_REAL:
        v.kind = V_FLOAT;
        v.f = json_real_value(j);
        return v;
    case JSON_STRING: return string_of(r, json_string_value(j), json_string_length(j), marks);
    case JSON_ARRAY: {
        list *l = list_new(r, json_array_size(j));
        for (size_t i = 0; i < json_array_size(j) && !failed(r); i++)
            list_add(r, l, value_from_json(r, json_array_get(j, i), marks, depth + 1));
        return list_value(l);
    }
    case JSON_OBJECT: break;
    }
    dict *d = dict_new(r);
    json_t *object = (json_t *)j; /* iterating changes nothing */
    for (void *i = json_object_iter(object); i && !failed(r); i = json_object_iter_next(object, i)) {
        value key = string_of(r, json_object_iter_key(i), strlen(json_object_iter_key(i)), marks);
        dict_set(r, d, key, value_from_json(r, json_object_iter_value(i), marks, depth + 1));
    }
    return dict_value(d);
}

/* ---- what they are -------------------------------------------------------------------------------------------------- */

bool value_truth(value v) {
    switch (v.kind) {
    case V_MISSING:
    case V_UNDEFINED:
    case V_NONE: return false;
    case V_BOOL: return v.b;
    case V_INT: return v.i != 0;
    case V_FLOAT: return v.f != 0;
    case V_STRING: return v.s->length > 0;
    case V_LIST:
    case V_TUPLE:
    case V_VIEW: return v.l->n > 0;
    case V_DICT: return v.d->n > 0;
    case V_RANGE: return v.range->n > 0;
    default: return true;
    }
}

const char *value_type(value v) {
    static const char *const names[] = {
        [V_MISSING] = "missing",
        [V_UNDEFINED] = "Undefined",
        [V_NONE] = "NoneType",
        [V_BOOL] = "bool",
        [V_INT] = "int",
        [V_FLOAT] = "float",
        [V_STRING] = "str",
        [V_LIST] = "list",
        [V_TUPLE] = "tuple",
        [V_DICT] = "dict",
        [V_VIEW] = "dict_items",
        [V_RANGE] = "range",
        [V_ITERATOR] = "generator",
        [V_NAMESPACE] = "Namespace",
        [V_MACRO] = "Macro",
        [V_LOOP] = "LoopContext",
        [V_FUNCTION] = "function",
        [V_METHOD] = "builtin_function_or_method",
        [V_CYCLER] = "Cycler",
        [V_JOINER] = "Joiner",
    };
    return names[v.kind];
}

bool value_is_number(value v) { return v.kind == V_BOOL || v.kind == V_INT || v.kind == V_FLOAT; }
bool value_is_int(value v) { return v.kind == V_BOOL || v.kind == V_INT; }
int64_t value_int(value v) { return v.kind == V_BOOL ? v.b : v.i; }
double value_number(value v) { return v.kind == V_FLOAT ? v.f : (double)value_int(v); }

/* An integer against a float, exactly. */
static int compare_numbers(value a, value b) {
    if (value_is_int(a) && value_is_int(b)) return (value_int(a) > value_int(b)) - (value_int(a) < value_int(b));
    if (a.kind == V_FLOAT && b.kind == V_FLOAT) return (a.f > b.f) - (a.f < b.f);
    if (a.kind == V_FLOAT) return -compare_numbers(b, a);
    if (b.f >= 0x1p63) return -1;
    if (b.f < -0x1p63) return 1;
    int64_t whole = (int64_t)b.f;
    double rest = b.f - (double)whole;
    if (value_int(a) != whole) return value_int(a) < whole ? -1 : 1;
    return (rest < 0) - (rest > 0);
}

static bool equal(render *r, value a, value b, int depth);

static bool equal_lists(render *r, const list *a, const list *b, int depth) {
    if (a == b) return true;
    if (a->n != b->n) return false;
    for (size_t i = 0; i < a->n; i++)
        if (!equal(r, a->items[i], b->items[i], depth + 1)) return false;
    return true;
}

static bool equal_dicts(render *r, const dict *a, const dict *b, int depth) {
    if (a == b) return true;
    if (a->n != b->n) return false;
    for (size_t i = 0; i < a->n; i++) {
        const value *other = dict_find(r, b, a->entries[i].key);
        if (!other || !equal(r, a->entries[i].value, *other, depth + 1)) return false;
    }
    return true;
}

/* Keys and items compare as sets, values only with themselves. */
static bool equal_views(render *r, const list *a, const list *b, int depth) {
    if (a == b) return true;
    if (a->n != b->n || strcmp(a->view, b->view) != 0 || strcmp(a->view, "dict_values") == 0) return false;
    for (size_t i = 0; i < a->n; i++) {
        size_t k = 0;
        while (k < b->n && !equal(r, a->items[i], b->items[k], depth + 1)) k++;
        if (k == b->n || failed(r)) return false;
    }
    return true;
}

static bool equal(render *r, value a, value b, int depth) {
    if (depth > JINJA_MAX_DEPTH) {
        fail(r, "compared values are nested deeper than %d", JINJA_MAX_DEPTH);
        return false;
    }
    if (!steps_take(r, 1)) return false;
    if (value_is_number(a) && value_is_number(b)) {
        if ((a.kind == V_FLOAT && isnan(a.f)) || (b.kind == V_FLOAT && isnan(b.f))) return false;
        return compare_numbers(a, b) == 0;
    }
    if (a.kind != b.kind) return false;
    switch (a.kind) {
    case V_UNDEFINED:
    case V_NONE: return true;
    case V_STRING: return bytes_take(r, a.s->length) && string_equal(a.s, b.s);
    case V_LIST:
    case V_TUPLE: return equal_lists(r, a.l, b.l, depth);
    case V_DICT: return equal_dicts(r, a.d, b.d, depth);
    case V_RANGE:
        return a.range->n == b.range->n && (a.range->n == 0 || a.range->start == b.range->start) &&
               (a.range->n < 2 || a.range->step == b.range->step);
    case V_VIEW: return equal_views(r, a.l, b.l, depth);
    case V_METHOD: return a.method->row == b.method->row && equal(r, a.method->self, b.method->self, depth + 1);
    default: return a.l == b.l;
    }
}

bool value_equal(render *r, value a, value b) { return equal(r, a, b, 0); }

static int compare(render *r, value a, value b, const char *op, int depth) {
    if (depth > JINJA_MAX_DEPTH || !steps_take(r, 1)) {
        fail(r, "compared values are nested deeper than %d", JINJA_MAX_DEPTH);
        return 0;
    }
    if (a.kind == V_UNDEFINED || b.kind == V_UNDEFINED) {
        undefined_fail(r, a.kind == V_UNDEFINED ? a : b);
        return 0;
    }
    if (value_is_number(a) && value_is_number(b)) return compare_numbers(a, b);
    if (a.kind == V_STRING && b.kind == V_STRING && bytes_take(r, a.s->length)) return string_compare(a.s, b.s);
    if (a.kind == b.kind && (a.kind == V_LIST || a.kind == V_TUPLE)) {
        for (size_t i = 0; i < a.l->n && i < b.l->n; i++)
            if (!equal(r, a.l->items[i], b.l->items[i], depth + 1))
                return compare(r, a.l->items[i], b.l->items[i], op, depth + 1);
        return (a.l->n > b.l->n) - (a.l->n < b.l->n);
    }
    fail(r, "'%s' not supported between instances of '%s' and '%s'", op, value_type(a), value_type(b));
    return 0;
}

int value_compare(render *r, value a, value b, const char *op) { return compare(r, a, b, op, 0); }

int64_t value_length(render *r, value v) {
    switch (v.kind) {
    case V_UNDEFINED: return 0;
    case V_STRING: bytes_take(r, v.s->length); return (int64_t)text_length(v.s);
    case V_LIST:
    case V_TUPLE:
    case V_VIEW: return (int64_t)v.l->n;
    case V_DICT: return (int64_t)v.d->n;
    case V_RANGE: return v.range->n;
    default: return -1;
    }
}

bool value_contains(render *r, value container, value item) {
    walk w;
    value v;
    if (container.kind == V_DICT) return dict_find(r, container.d, item) != NULL;
    if (container.kind == V_STRING) {
        if (item.kind == V_STRING)
            return bytes_take(r, container.s->length) && text_find(container.s, item.s, 0) != SIZE_MAX;
        if (item.kind == V_UNDEFINED) return value_truth(undefined_fail(r, item));
        fail(r, "'in <string>' requires string as left operand, not %s", value_type(item));
        return false;
    }
    if (!value_is_iterable(container)) {
        fail(r, "argument of type '%s' is not iterable", value_type(container));
        return false;
    }
    if (!walk_begin(r, &w, container)) return false;
    while (walk_next(r, &w, &v))
        if (value_equal(r, v, item)) return true;
    return false;
}

/* ---- going through them --------------------------------------------------------------------------------------------- */

bool value_is_iterable(value v) {
    switch (v.kind) {
    case V_UNDEFINED:
    case V_STRING:
    case V_LIST:
    case V_TUPLE:
    case V_DICT:
    case V_VIEW:
    case V_RANGE:
    case V_ITERATOR: return true;
    default: return false;
    }
}

bool walk_begin(render *r, walk *w, value v) {
    *w = (walk){.of = v};
    if (value_is_iterable(v)) return true;
    w->of = undefined_hint(r, "");
    if (v.kind == V_LOOP) fail(r, "iterating over 'loop' itself is not supported");
    else fail(r, "'%s' object is not iterable", value_type(v));
    return false;
}

bool walk_next(render *r, walk *w, value *out) {
    size_t n;
    if (!steps_take(r, 1)) return false;
    switch (w->of.kind) {
    case V_STRING:
        if (w->i >= w->of.s->length) return false;
        char_at(w->of.s, w->i, &n);
        *out = string_slice(r, w->of.s, w->i, w->i + n);
        w->i += n;
        return true;
    case V_LIST:
    case V_TUPLE:
    case V_VIEW:
        if (w->i >= w->of.l->n) return false;
        *out = w->of.l->items[w->i++];
        return true;
    case V_DICT:
        if (w->i >= w->of.d->n) return false;
        *out = w->of.d->entries[w->i++].key;
        return true;
    case V_RANGE:
        if ((int64_t)w->i >= w->of.range->n) return false;
        *out = int_value(w->of.range->start + (int64_t)w->i++ * w->of.range->step);
        return true;
    case V_ITERATOR:
        if (w->of.it->next >= w->of.it->items->n) return false;
        *out = w->of.it->items->items[w->of.it->next++];
        return true;
    default: return false;
    }
}

list *value_to_list(render *r, value v) {
    walk w;
    value item;
    list *l = list_new(r, v.kind == V_LIST || v.kind == V_TUPLE || v.kind == V_VIEW ? v.l->n : 0);
    if (walk_begin(r, &w, v))
        while (walk_next(r, &w, &item)) list_add(r, l, item);
    return l;
}

/* ---- builders ------------------------------------------------------------------------------------------------------- */

void builder_init(builder *b, render *r) { *b = (builder){.r = r}; }

void builder_fini(builder *b) {
    b->r->builder_bytes -= b->mask ? b->capacity * 2 : b->capacity;
    free(b->text);
    free(b->mask);
    *b = (builder){.r = b->r};
}

/* No text is longer than the output may be, whether it is printed or not. */
static bool builder_reserve(builder *b, size_t n) {
    size_t most = b->r->most.output_bytes;
    if (n > most || b->length > most - n) fail(b->r, "more than %zu MiB of output, or of one text", most >> 20);
    if (failed(b->r)) return false;
    if (n <= b->capacity - b->length) return true;
    size_t grown = MAX(MIN(b->capacity * 2, most), MAX(b->length + n, (size_t)64)), widths = b->mask ? 2 : 1;
    if (!memory_take(b->r, (grown - b->capacity) * widths)) return false;
    char *text = realloc(b->text, grown);
    if (text) b->text = text;
    uint8_t *mask = b->mask && text ? realloc(b->mask, grown) : NULL;
    if (mask) b->mask = mask;
    if (!text || (b->mask && !mask)) {
        fail(b->r, "no memory for a text of %zu bytes", grown);
        return false;
    }
    b->r->builder_bytes += (grown - b->capacity) * widths;
    b->capacity = grown;
    return true;
}

/* From here on bytes have marks of their own. */
static bool builder_split(builder *b) {
    if (b->mask) return true;
    if (!memory_take(b->r, b->capacity)) return false;
    b->mask = malloc(b->capacity);
    if (!b->mask) {
        fail(b->r, "no memory for a text of %zu bytes", b->capacity);
        return false;
    }
    b->r->builder_bytes += b->capacity;
    memset(b->mask, b->marks, b->length);
    return true;
}

static bool builder_open(builder *b, size_t n, uint8_t marks) {
    if (!n || failed(b->r) || !bytes_take(b->r, n) || !builder_reserve(b, n)) return false;
    if (!b->length) b->marks = marks;
    return b->mask || b->marks == marks || builder_split(b);
}

void builder_add(builder *b, const char *text, size_t n, uint8_t marks) {
    if (!builder_open(b, n, marks)) return;
    memcpy(b->text + b->length, text, n);
    if (b->mask) memset(b->mask + b->length, marks, n);
    b->length += n;
}

void builder_add_text(builder *b, const char *text) { builder_add(b, text, strlen(text), 0); }

void builder_add_part(builder *b, const string *s, size_t begin, size_t end) {
    if (begin >= end) return;
    if (!s->mask) {
        builder_add(b, s->text + begin, end - begin, s->marks);
        return;
    }
    if (!builder_reserve(b, end - begin) || failed(b->r) || !builder_split(b)) return;
    bytes_take(b->r, end - begin);
    memcpy(b->text + b->length, s->text + begin, end - begin);
    memcpy(b->mask + b->length, s->mask + begin, end - begin);
    b->length += end - begin;
}

void builder_add_string(builder *b, const string *s) { builder_add_part(b, s, 0, s->length); }

void builder_fill(builder *b, const char *unit, size_t n_unit, uint8_t marks, int64_t times) {
    size_t n;
    if (times <= 0 || !n_unit) return;
    if (__builtin_mul_overflow(n_unit, (size_t)times, &n)) n = SIZE_MAX / 2;
    if (!builder_open(b, n, marks)) return;
    char *to = b->text + b->length; /* one unit, then what is there twice as often */
    memcpy(to, unit, n_unit);
    for (size_t done = n_unit; done < n; done *= 2) memcpy(to + done, to, MIN(done, n - done));
    if (b->mask) memset(b->mask + b->length, marks, n);
    b->length += n;
}

void builder_mark(builder *b, size_t begin, uint8_t marks) {
    if (begin == b->length) return;
    if (begin == 0 && !b->mask) {
        b->marks |= marks;
        return;
    }
    if (!builder_split(b)) return;
    for (size_t i = begin; i < b->length; i++) b->mask[i] |= marks;
}

value builder_take(builder *b) {
    render *r = b->r;
    value v = string_of(r, "", 0, b->marks);
    string *s = (string *)v.s;
    if (b->length && memory_take(r, b->length * (b->mask ? 2 : 1))) {
        s->text = arena_copy(&r->memory, b->text, b->length);
        s->mask = b->mask ? arena_copy(&r->memory, b->mask, b->length) : NULL;
        s->length = b->length;
    }
    builder_fini(b);
    return v;
}
