/* filters_list.c - the filters of lists, dictionaries and whatever else can be gone through.
 *
 * map, select and their like give what can be gone through once, as Python's generators; their work is done at once. */
#include "jinja/filters.h"

#include <string.h>

/* ---- attributes by name: "a.b.0" ------------------------------------------------------------------------------------- */

static value path_part(render *r, const string *path, size_t begin, size_t end) {
    value part = string_slice(r, path, begin, end), number;
    bool is_digits = end > begin;
    for (size_t i = begin; i < end; i++) is_digits &= path->text[i] >= '0' && path->text[i] <= '9';
    return is_digits && number_parse(part.s, 10, &number) ? number : part;
}

/* `attribute`: a path, an index, or missing for the item itself. */
static value follow(render *r, value item, value attribute, value fallback) {
    bool has_fallback = fallback.kind != V_MISSING && fallback.kind != V_NONE;
    if (attribute.kind == V_MISSING || attribute.kind == V_NONE) return item;
    if (attribute.kind != V_STRING) {
        item = get_item(r, item, attribute);
        return has_fallback && item.kind == V_UNDEFINED ? fallback : item;
    }
    const string *path = attribute.s;
    for (size_t begin = 0; begin <= path->length && !failed(r);) {
        size_t end = begin;
        while (end < path->length && path->text[end] != '.') end++;
        item = get_item(r, item, path_part(r, path, begin, end));
        if (has_fallback && item.kind == V_UNDEFINED) item = fallback;
        begin = end + 1;
    }
    return item;
}

static value fold(render *r, value v, bool case_sensitive) {
    return v.kind == V_STRING && !case_sensitive ? text_case(r, v.s, CASE_LOWER) : v;
}

/* "a,b" gives a list of both. */
static value sort_key(render *r, value item, value attribute, bool case_sensitive) {
    if (attribute.kind != V_STRING || !attribute.s->length || !memchr(attribute.s->text, ',', attribute.s->length))
        return fold(r, follow(r, item, attribute, MISSING), case_sensitive);
    list *keys = list_new(r, 2);
    const string *s = attribute.s;
    for (size_t begin = 0; begin <= s->length && !failed(r);) {
        size_t end = begin;
        while (end < s->length && s->text[end] != ',') end++;
        value part = string_slice(r, s, begin, end);
        list_add(r, keys, fold(r, follow(r, item, part, MISSING), case_sensitive));
        begin = end + 1;
    }
    return list_value(keys);
}

/* ---- sorting -------------------------------------------------------------------------------------------------------- */

typedef struct keyed {
    value key, item;
} keyed;

static void merge(render *r, const keyed *from, keyed *to, size_t begin, size_t middle, size_t end, bool reverse) {
    size_t i = begin, j = middle;
    for (size_t k = begin; k < end; k++) {
        bool second = i >= middle;
        if (!second && j < end) {
            int order = value_compare(r, from[j].key, from[i].key, "<");
            second = reverse ? order > 0 : order < 0;
        }
        to[k] = second ? from[j++] : from[i++];
    }
}

/* Equal ones stay in their order, either way. */
static list *sorted(render *r, const list *items, const value *keys, bool reverse) {
    size_t n = items->n;
    keyed *from = render_alloc(r, n * sizeof *from), *to = render_alloc(r, n * sizeof *to);
    for (size_t i = 0; i < n; i++) from[i] = (keyed){keys[i], items->items[i]};
    for (size_t width = 1; width < n && !failed(r); width *= 2) {
        for (size_t begin = 0; begin < n; begin += 2 * width)
            merge(r, from, to, begin, MIN(begin + width, n), MIN(begin + 2 * width, n), reverse);
        keyed *swap = from;
        from = to;
        to = swap;
    }
    list *l = list_new(r, n);
    for (size_t i = 0; i < n; i++) list_add(r, l, from[i].item);
    return l;
}

static value *keys_of(render *r, const list *items, value attribute, bool case_sensitive, value fallback) {
    value *keys = render_alloc(r, items->n * sizeof *keys);
    for (size_t i = 0; i < items->n && !failed(r); i++)
        keys[i] = fold(r, follow(r, items->items[i], attribute, fallback), case_sensitive);
    return keys;
}

value do_sort(render *r, value v, const value *args) {
    list *items = value_to_list(r, v);
    value *keys = render_alloc(r, items->n * sizeof *keys);
    for (size_t i = 0; i < items->n && !failed(r); i++)
        keys[i] = sort_key(r, items->items[i], args[2], argument_truth(args[1]));
    return failed(r) ? NONE : list_value(sorted(r, items, keys, argument_truth(args[0])));
}

value do_dictsort(render *r, value v, const value *args) {
    if (v.kind == V_UNDEFINED) return undefined_fail(r, v);
    if (v.kind != V_DICT) return fail(r, "dictsort: expected a dictionary, found '%s'", value_type(v));
    bool by_value = args[1].kind == V_STRING && string_is(args[1].s, "value");
    if (!by_value && args[1].kind != V_MISSING && !(args[1].kind == V_STRING && string_is(args[1].s, "key")))
        return fail(r, "You can only sort by either \"key\" or \"value\"");
    list *items = dict_items(r, v, NULL).l;
    value *keys = keys_of(r, items, int_value(by_value), argument_truth(args[0]), MISSING);
    return failed(r) ? NONE : list_value(sorted(r, items, keys, argument_truth(args[2])));
}

value do_groupby(render *r, value v, const value *args) {
    bool case_sensitive = argument_truth(args[2]);
    list *items = value_to_list(r, v);
    value *keys = keys_of(r, items, args[0], case_sensitive, args[1]);
    if (failed(r)) return NONE;
    items = sorted(r, items, keys, false);
    keys = keys_of(r, items, args[0], case_sensitive, args[1]);
    list *groups = list_new(r, 0), *members = NULL;
    for (size_t i = 0; i < items->n && !failed(r); i++) {
        if (!i || !value_equal(r, keys[i], keys[i - 1])) {
            list *group = list_new(r, 2);
            members = list_new(r, 0);
            group->is_group = true;
            list_add(r, group, follow(r, items->items[i], args[0], args[1]));
            list_add(r, group, list_value(members));
            list_add(r, groups, tuple_value(group));
        }
        list_add(r, members, items->items[i]);
    }
    return list_value(groups);
}

static value extreme(render *r, value v, const value *args, bool greatest) {
    list *items = value_to_list(r, v);
    if (failed(r)) return NONE;
    if (!items->n) return undefined_hint(r, "No aggregated item, sequence was empty.");
    value *keys = keys_of(r, items, args[1], argument_truth(args[0]), MISSING);
    size_t best = 0;
    for (size_t i = 1; i < items->n && !failed(r); i++) {
        int order = value_compare(r, keys[i], keys[best], greatest ? ">" : "<");
        if (greatest ? order > 0 : order < 0) best = i;
    }
    return items->items[best];
}
value do_max(render *r, value v, const value *args) { return extreme(r, v, args, true); }
value do_min(render *r, value v, const value *args) { return extreme(r, v, args, false); }

/* ---- parts ---------------------------------------------------------------------------------------------------------- */

value do_default(render *r, value v, const value *args) {
    bool is_missing = v.kind == V_UNDEFINED || (argument_truth(args[1]) && !value_truth(v));
    if (!is_missing) return v;
    return args[0].kind == V_MISSING ? string_literal(r, "") : args[0];
}

value do_length(render *r, value v, const value *args) {
    if (v.kind == V_LOOP) return loop_attribute(r, v.loop, "length", 6);
    int64_t n = value_length(r, v);
    return n < 0 ? fail(r, "object of type '%s' has no len()", value_type(v)) : int_value(n);
}

value do_list(render *r, value v, const value *args) { return list_value(value_to_list(r, v)); }

value do_first(render *r, value v, const value *args) {
    walk w;
    value item;
    if (!walk_begin(r, &w, v)) return NONE;
    return walk_next(r, &w, &item) ? item : undefined_hint(r, "No first item, sequence was empty.");
}

value do_last(render *r, value v, const value *args) {
    if (v.kind == V_ITERATOR || !value_is_iterable(v))
        return fail(r, "'%s' object is not reversible", v.kind == V_ITERATOR ? v.it->name : value_type(v));
    if (v.kind == V_STRING && v.s->length) {
        size_t at = v.s->length - 1;
        while (at > 0 && (v.s->text[at] & 0xc0) == 0x80) at--;
        return string_slice(r, v.s, at, v.s->length);
    }
    list *items = value_to_list(r, v);
    return items->n ? items->items[items->n - 1] : undefined_hint(r, "No last item, sequence was empty.");
}

value do_reverse(render *r, value v, const value *args) {
    if (v.kind == V_STRING) return slice_value(r, v, NONE, NONE, int_value(-1));
    if (!value_is_iterable(v)) return fail(r, "argument must be iterable");
    list *l = value_to_list(r, v);
    for (size_t i = 0; i < l->n / 2; i++) {
        value swap = l->items[i];
        l->items[i] = l->items[l->n - 1 - i];
        l->items[l->n - 1 - i] = swap;
    }
    return v.kind == V_ITERATOR ? list_value(l) : iterator_value(r, l, "reversed sequence");
}

value do_join(render *r, value v, const value *args) {
    value separator = args[0].kind == V_MISSING ? string_literal(r, "") : args[0];
    list *items = value_to_list(r, v);
    if (args[1].kind != V_MISSING && args[1].kind != V_NONE)
        for (size_t i = 0; i < items->n && !failed(r); i++)
            items->items[i] = follow(r, items->items[i], args[1], MISSING);
    return failed(r) ? NONE : text_join(r, value_text(r, separator), items, true);
}

value do_items(render *r, value v, const value *args) {
    if (v.kind == V_UNDEFINED) return iterator_value(r, list_new(r, 0), "generator");
    if (v.kind != V_DICT) return fail(r, "Can only get item pairs from a mapping.");
    return iterator_value(r, dict_items(r, v, NULL).l, "generator");
}

value do_attr(render *r, value v, const value *args) {
    if (args[0].kind != V_STRING) return fail(r, "attr: expected a name");
    if (v.kind == V_UNDEFINED) return undefined_fail(r, v);
    value found = own_attribute(r, v, args[0].s->text, args[0].s->length);
    return found.kind == V_MISSING ? undefined_member(r, v, args[0]) : found;
}

value do_sum(render *r, value v, const value *args) {
    value total = args[1].kind == V_MISSING ? int_value(0) : args[1], item;
    walk w;
    if (total.kind == V_STRING) return fail(r, "sum() can't sum strings [use ''.join(seq) instead]");
    if (!walk_begin(r, &w, v)) return NONE;
    while (walk_next(r, &w, &item)) {
        total = operate(r, T_ADD, total, follow(r, item, args[0], MISSING));
        if (failed(r)) return NONE;
    }
    return total;
}

value do_unique(render *r, value v, const value *args) {
    list *items = value_to_list(r, v), *l = list_new(r, 0);
    value *keys = keys_of(r, items, args[1], argument_truth(args[0]), MISSING);
    dict *seen = dict_new(r);
    for (size_t i = 0; i < items->n && !failed(r); i++) {
        if (dict_find(r, seen, keys[i])) continue;
        dict_set(r, seen, keys[i], NONE);
        list_add(r, l, items->items[i]);
    }
    return iterator_value(r, l, "generator");
}

value do_batch(render *r, value v, const value *args) {
    int64_t size = argument_int(r, args[0], 0, "batch");
    list *items = value_to_list(r, v), *rows = list_new(r, 0), *row = NULL;
    for (size_t i = 0; i < items->n && !failed(r); i++) {
        if (!row || (int64_t)row->n == size) {
            row = list_new(r, 0);
            list_add(r, rows, list_value(row));
        }
        list_add(r, row, items->items[i]);
    }
    bool fills = args[1].kind != V_MISSING && args[1].kind != V_NONE;
    while (row && fills && (int64_t)row->n < size && steps_take(r, 1)) list_add(r, row, args[1]);
    return iterator_value(r, rows, "generator");
}

value do_slice(render *r, value v, const value *args) {
    int64_t n = argument_int(r, args[0], 1, "slice"), offset = 0;
    list *items = value_to_list(r, v), *columns = list_new(r, 0);
    if (failed(r)) return NONE;
    if (n == 0) return fail(r, "integer division or modulo by zero");
    int64_t each = (int64_t)items->n / MAX(n, 1), longer = (int64_t)items->n % MAX(n, 1);
    for (int64_t i = 0; i < n && steps_take(r, 1); i++) {
        int64_t begin = offset + i * each;
        if (i < longer) offset++;
        list *column = list_new(r, 0);
        for (int64_t k = begin; k < offset + (i + 1) * each && steps_take(r, 1); k++)
            list_add(r, column, items->items[k]);
        if (args[1].kind != V_MISSING && args[1].kind != V_NONE && i >= longer) list_add(r, column, args[1]);
        list_add(r, columns, list_value(column));
    }
    return iterator_value(r, columns, "generator");
}

/* ---- map and select ------------------------------------------------------------------------------------------------- */

static const char *name_argument(render *r, value v, const char *what) {
    if (v.kind == V_STRING) return string_quote(r, v.s);
    fail(r, "%s: expected a name, found '%s'", what, value_type(v));
    return "";
}

static value map_attribute(render *r, value v, const arguments *a) {
    value attribute = MISSING, fallback = MISSING, item;
    for (size_t i = 0; i < a->n_named; i++) {
        if (strcmp(a->names[i], "attribute") == 0) attribute = a->named[i];
        else if (strcmp(a->names[i], "default") == 0) fallback = a->named[i];
        else return fail(r, "map: unexpected keyword argument '%.100s'", a->names[i]);
    }
    list *l = list_new(r, 0);
    walk w;
    if (!walk_begin(r, &w, v)) return NONE;
    while (walk_next(r, &w, &item)) list_add(r, l, follow(r, item, attribute, fallback));
    return iterator_value(r, l, "generator");
}

value do_map(render *r, value v, const arguments *a) {
    list *l = list_new(r, 0);
    walk w;
    value item;
    if (!value_truth(v)) return iterator_value(r, l, "generator");
    if (!a->n_positional && arguments_find(a, "attribute")) return map_attribute(r, v, a);
    if (!a->n_positional) return fail(r, "map requires a filter argument");
    const char *name = name_argument(r, a->positional[0], "map");
    arguments rest = *a;
    rest.positional++;
    rest.n_positional--;
    if (failed(r) || !walk_begin(r, &w, v)) return NONE;
    while (walk_next(r, &w, &item)) list_add(r, l, filter_call(r, name, item, &rest));
    return iterator_value(r, l, "generator");
}

static value choose(render *r, value v, const arguments *a, bool by_attribute, bool wanted) {
    list *l = list_new(r, 0);
    walk w;
    value item;
    size_t used = by_attribute ? 1 : 0;
    if (!value_truth(v)) return iterator_value(r, l, "generator");
    if (a->n_positional < used) return fail(r, "Missing parameter for attribute name");
    const char *name = a->n_positional > used ? name_argument(r, a->positional[used], "select") : NULL;
    arguments rest = *a;
    size_t n_read = used + (name != NULL);
    if (n_read > 0) rest.positional += n_read; /* of no arguments it is NULL */
    rest.n_positional -= n_read;
    if (failed(r) || !walk_begin(r, &w, v)) return NONE;
    while (walk_next(r, &w, &item)) {
        value tested = by_attribute ? follow(r, item, a->positional[0], MISSING) : item;
        if (failed(r)) return NONE;
        bool holds = name ? test_call(r, name, tested, &rest) : value_truth(tested);
        if (holds == wanted) list_add(r, l, item);
    }
    return iterator_value(r, l, "generator");
}
value do_select(render *r, value v, const arguments *a) { return choose(r, v, a, false, true); }
value do_reject(render *r, value v, const arguments *a) { return choose(r, v, a, false, false); }
value do_selectattr(render *r, value v, const arguments *a) { return choose(r, v, a, true, true); }
value do_rejectattr(render *r, value v, const arguments *a) { return choose(r, v, a, true, false); }
