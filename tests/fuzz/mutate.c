/* mutate.c - mutations that know JSON; linked into the libFuzzer builds only.
 *
 * Nearly every byte-wise change of a JSON file is refused by the first reader it meets, so three inputs of four are
 * changed as a tree: a section of the input (see fuzz.h), or a line of it, that is JSON is parsed, one place in it is
 * changed, and it is written back. The rest are left to libFuzzer, whose broken texts test the first reader. */
#include "fuzz/fuzz.h"

#include <stdlib.h>
#include <string.h>

size_t LLVMFuzzerMutate(uint8_t *data, size_t size, size_t max_size);
size_t LLVMFuzzerCustomMutator(uint8_t *data, size_t size, size_t max_size, unsigned seed);

#define MUTATE_MAX_SECTION ((size_t)1 << 16)

/* ---- chance ---------------------------------------------------------------------------------------------------- */

static uint64_t chance_key, chance_index;
static size_t below(size_t n) { return n ? (size_t)rng_below(chance_key, chance_index++, n) : 0; }

/* ---- places in a tree ------------------------------------------------------------------------------------------ */

typedef struct slot {
    json_t *parent; /* an object or an array */
    const char *key;
    size_t index;
} slot;
typedef struct slots {
    slot *at;
    size_t n, capacity;
} slots;

static void collect(json_t *node, slots *out) {
    const char *key;
    json_t *child;
    size_t i;
    json_object_foreach(node, key, child) {
        out->at = array_grow(out->at, &out->capacity, out->n + 1, sizeof *out->at);
        out->at[out->n++] = (slot){node, key, 0};
        collect(child, out);
    }
    json_array_foreach(node, i, child) {
        out->at = array_grow(out->at, &out->capacity, out->n + 1, sizeof *out->at);
        out->at[out->n++] = (slot){node, NULL, i};
        collect(child, out);
    }
}

static json_t *slot_get(const slot *s) {
    return s->key ? json_object_get(s->parent, s->key) : json_array_get(s->parent, s->index);
}

/* Takes value. A key is copied first: setting may free the one that the slot borrows. */
static void slot_set(const slot *s, json_t *value) {
    if (!value) return;
    if (s->key) json_object_set_new_nocheck(s->parent, s->key, value);
    else json_array_set_new(s->parent, s->index, value);
}

/* ---- values ---------------------------------------------------------------------------------------------------- */

static json_t *odd_number(void) {
    static const json_int_t whole[] = {0,         1,         -1,        2,         64,        255,       256,
                                       65535,     65536,     1 << 20,   1 << 24,   INT32_MAX, INT32_MIN, 1ll << 31,
                                       1ll << 32, 1ll << 53, 1ll << 62, INT64_MAX, INT64_MIN};
    static const double real[] = {0.0, 0.5, -0.5, 1e-300, 1e300, 5e-324, 1e16, 9007199254740993.0};
    size_t i = below(ARRAY_LENGTH(whole) + ARRAY_LENGTH(real));
    return i < ARRAY_LENGTH(whole) ? json_integer(whole[i]) : json_real(real[i - ARRAY_LENGTH(whole)]);
}

static json_t *odd_text(void) {
    static const char *const texts[] = {"",  " ",       "\xe2\x96\x81", "\xc4\xa0",     "\xef\xbf\xbd",     "e\xcc\x81",
                                        "/", "../../x", "<0x41>",       "\xe1\xa0\x8e", "\xf0\x9f\x98\x80", "a"};
    if (below(8)) return json_string(texts[below(ARRAY_LENGTH(texts))]);
    char many[2048];
    size_t n = below(sizeof many);
    memset(many, "a (["[below(4)], n);
    return json_stringn(many, n);
}

static json_t *odd_value(void) {
    switch (below(8)) {
    case 0: return json_null();
    case 1: return json_true();
    case 2: return json_false();
    case 3: return json_array();
    case 4: return json_object();
    case 5: return odd_text();
    default: return odd_number();
    }
}

static json_t *changed_text(const json_t *old, size_t most) {
    size_t n = MIN(json_string_length(old), most);
    uint8_t *bytes = malloc(most + 1);
    ASSERT(bytes);
    memcpy(bytes, json_string_value(old), n);
    n = LLVMFuzzerMutate(bytes, n, most);
    json_t *fresh = json_stringn((const char *)bytes, n); /* NULL where that is no UTF-8 */
    free(bytes);
    return fresh;
}

/* What a value becomes that keeps its kind. */
static json_t *changed_value(json_t *old) {
    if (json_is_string(old)) return below(3) ? changed_text(old, json_string_length(old) + 16) : odd_text();
    if (json_is_integer(old)) {
        uint64_t n = (uint64_t)json_integer_value(old);
        switch (below(5)) {
        case 0: return json_integer((json_int_t)(n + 1));
        case 1: return json_integer((json_int_t)(n - 1));
        case 2: return json_integer((json_int_t)(n * 2));
        case 3: return json_integer((json_int_t)(n / 2));
        default: return odd_number();
        }
    }
    if (json_is_real(old)) return odd_number();
    if (json_is_boolean(old)) return json_boolean(!json_is_true(old));
    return odd_value();
}

/* ---- one change ------------------------------------------------------------------------------------------------ */

static json_t *wrapped(json_t *old) {
    json_t *value = json_incref(old);
    for (size_t n = 1 + below(below(8) ? 3 : 200); n > 0; n--) {
        json_t *outer = json_array();
        json_array_append_new(outer, value);
        value = outer;
    }
    return value;
}

static void add_member(const slot *s, const slots *all) {
    json_t *value = below(2) ? json_deep_copy(slot_get(&all->at[below(all->n)])) : odd_value();
    const char *key = all->at[below(all->n)].key;
    if (json_is_array(s->parent)) json_array_insert_new(s->parent, below(json_array_size(s->parent) + 1), value);
    else json_object_set_new_nocheck(s->parent, key && below(2) ? key : "x", value);
}

/* Runs of equal members: tables that grow, names that repeat. */
static void add_many(const slot *s) {
    json_t *old = slot_get(s);
    for (size_t n = 1 + below(32); n > 0; n--) {
        char key[64];
        snprintf(key, sizeof key, "%.40s%zu", s->key ? s->key : "", n);
        if (json_is_array(s->parent)) json_array_append_new(s->parent, json_deep_copy(old));
        else json_object_set_new(s->parent, key, json_deep_copy(old));
    }
}

static void change(const slot *s, const slots *all) {
    json_t *old = slot_get(s), *other;
    switch (below(12)) {
    case 0:
        if (s->key) json_object_del(s->parent, s->key);
        else json_array_remove(s->parent, s->index);
        break;
    case 1: slot_set(s, odd_value()); break;
    case 2: slot_set(s, json_deep_copy(slot_get(&all->at[below(all->n)]))); break;
    case 3: add_member(s, all); break;
    case 4: slot_set(s, wrapped(old)); break;
    case 5: add_many(s); break;
    case 6: /* two values of one kind change places */
        other = slot_get(&all->at[below(all->n)]);
        if (json_typeof(other) == json_typeof(old)) slot_set(s, json_deep_copy(other));
        break;
    default: slot_set(s, changed_value(old));
    }
}

static json_t *mutate_tree(json_t *root) {
    slots all = {0};
    collect(root, &all);
    if (all.n) change(&all.at[below(all.n)], &all);
    free(all.at);
    return root;
}

/* ---- the input ------------------------------------------------------------------------------------------------- */

static span pick_section(const uint8_t *data, size_t size) {
    fuzz_input in = {data, size};
    size_t n = 1;
    for (size_t i = 0; i < size; i++) n += data[i] == 0xff;
    span s = fuzz_section(&in);
    for (size_t i = below(n); i > 0; i--) s = fuzz_section(&in);
    return s;
}

/* One line of a section: each may be JSON of its own. */
static span pick_line(span s) {
    size_t n = 1, from = 0, i = 0;
    for (size_t k = 0; k < s.length; k++) n += s.text[k] == '\n';
    for (size_t skip = below(n); skip > 0; i++)
        if (s.text[i] == '\n') skip--, from = i + 1;
    for (i = from; i < s.length && s.text[i] != '\n';) i++;
    return (span){s.text + from, i - from};
}

/* The new size; 0 when this section is no JSON or the result has no room. */
static size_t mutate_section(uint8_t *data, size_t size, size_t max_size, const span *s) {
    if (s->length < 2 || s->length > MUTATE_MAX_SECTION) return 0;
    if (!strchr("{[ \t\r\n", s->text[0]) || !s->text[0]) return 0; /* most that is no JSON shows it at once */
    json_t *root = json_loadb(s->text, s->length, JSON_ALLOW_NUL, NULL);
    if (!root) return 0;
    char *text = json_dumps(mutate_tree(root), JSON_COMPACT);
    size_t n = text ? strlen(text) : 0, at = (size_t)(s->text - (const char *)data), behind = size - at - s->length;
    size_t fresh = at + n + behind;
    bool fits = text && fresh <= max_size;
    if (fits) {
        memmove(data + at + n, data + at + s->length, behind);
        memcpy(data + at, text, n);
    }
    free(text);
    json_decref(root);
    return fits ? fresh : 0;
}

size_t LLVMFuzzerCustomMutator(uint8_t *data, size_t size, size_t max_size, unsigned seed) {
    chance_key = rng_key(seed, "mutate");
    chance_index = 0;
    size_t changed = 0;
    if (below(4)) {
        span s = pick_section(data, size);
        changed = mutate_section(data, size, max_size, &s);
        if (!changed) {
            s = pick_line(s);
            changed = mutate_section(data, size, max_size, &s);
        }
    }
    return changed ? changed : LLVMFuzzerMutate(data, size, max_size);
}
