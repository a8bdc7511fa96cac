/* methods.c - methods of strings, dictionaries, lists, tuples, loops and cyclers: one row each.
 *
 * What would change a dictionary or list is kept back by jinja2's immutable sandbox, and here too: the name is found, but
 * using it is an error. */
#include "jinja/render.h"

#include <string.h>

static const string *want_string(render *r, value v, const char *what) {
    if (v.kind == V_STRING) return v.s;
    if (v.kind == V_UNDEFINED) undefined_fail(r, v);
    else fail(r, "%s: expected a string, found '%s'", what, value_type(v));
    return string_literal(r, "").s;
}

static int64_t want_int(render *r, value v, int64_t missing, const char *what) {
    if (v.kind == V_MISSING) return missing;
    if (value_is_int(v)) return value_int(v);
    if (v.kind == V_UNDEFINED) undefined_fail(r, v);
    else fail(r, "%s: expected an integer, found '%s'", what, value_type(v));
    return 0;
}

/* ---- stripping and case --------------------------------------------------------------------------------------------- */

static value strip(render *r, value self, const value *args, bool left, bool right) {
    const string *chars = args[0].kind == V_MISSING || args[0].kind == V_NONE ? NULL : want_string(r, args[0], "strip");
    return text_strip(r, self.s, chars, left, right);
}
static value str_strip(render *r, value self, const value *args) { return strip(r, self, args, true, true); }
static value str_lstrip(render *r, value self, const value *args) { return strip(r, self, args, true, false); }
static value str_rstrip(render *r, value self, const value *args) { return strip(r, self, args, false, true); }
static value str_upper(render *r, value self, const value *args) { return text_case(r, self.s, CASE_UPPER); }
static value str_lower(render *r, value self, const value *args) { return text_case(r, self.s, CASE_LOWER); }
static value str_title(render *r, value self, const value *args) { return text_case(r, self.s, CASE_TITLE); }
static value str_capitalize(render *r, value self, const value *args) { return text_case(r, self.s, CASE_CAPITALIZE); }
static value str_swapcase(render *r, value self, const value *args) { return text_case(r, self.s, CASE_SWAP); }

/* ---- splitting and joining ------------------------------------------------------------------------------------------ */

static list *split_space(render *r, const string *s, int64_t most) {
    list *l = list_new(r, 0);
    size_t i = 0, n;
    while (i < s->length && !failed(r)) {
        while (i < s->length && space_is(char_at(s, i, &n))) i += n;
        if (i >= s->length) break;
        size_t begin = i;
        if (most == 0) {
            list_add(r, l, string_slice(r, s, i, s->length));
            break;
        }
        while (i < s->length && !space_is(char_at(s, i, &n))) i += n;
        list_add(r, l, string_slice(r, s, begin, i));
        if (most > 0) most--;
    }
    return l;
}

static size_t char_before(const string *s, size_t i) {
    do i--;
    while (i > 0 && (s->text[i] & 0xc0) == 0x80);
    return i;
}

static list *rsplit_space(render *r, const string *s, int64_t most) {
    list *l = list_new(r, 0);
    size_t end = s->length, n;
    while (end > 0 && !failed(r)) {
        while (end > 0 && space_is(char_at(s, char_before(s, end), &n))) end = char_before(s, end);
        if (end == 0) break;
        if (most == 0) {
            list_add(r, l, string_slice(r, s, 0, end));
            break;
        }
        size_t begin = end;
        while (begin > 0 && !space_is(char_at(s, char_before(s, begin), &n))) begin = char_before(s, begin);
        list_add(r, l, string_slice(r, s, begin, end));
        end = begin;
        if (most > 0) most--;
    }
    return l;
}

/* Each place costs what comparing there may cost. */
static size_t find_last(render *r, const string *s, const string *wanted, size_t end) {
    for (size_t i = end < wanted->length ? 0 : end - wanted->length + 1; i-- > 0;)
        if (wanted->length == 0 || (s->text[i] == wanted->text[0] && bytes_take(r, wanted->length) &&
                                    memcmp(s->text + i, wanted->text, wanted->length) == 0))
            return i;
    return SIZE_MAX;
}

static list *split_at(render *r, const string *s, const string *separator, int64_t most) {
    list *l = list_new(r, 0);
    size_t at = 0, found;
    while (most-- != 0 && !failed(r) && (found = text_find(s, separator, at)) != SIZE_MAX) {
        list_add(r, l, string_slice(r, s, at, found));
        at = found + separator->length;
    }
    list_add(r, l, string_slice(r, s, at, s->length));
    return l;
}

static list *rsplit_at(render *r, const string *s, const string *separator, int64_t most) {
    list *l = list_new(r, 0);
    size_t end = s->length, found;
    while (most-- != 0 && !failed(r) && (found = find_last(r, s, separator, end)) != SIZE_MAX) {
        list_add(r, l, string_slice(r, s, found + separator->length, end));
        end = found;
    }
    list_add(r, l, string_slice(r, s, 0, end));
    return l;
}

static void list_reverse(list *l) {
    for (size_t i = 0; i < l->n / 2; i++) {
        value v = l->items[i];
        l->items[i] = l->items[l->n - 1 - i];
        l->items[l->n - 1 - i] = v;
    }
}

static value split(render *r, value self, const value *args, bool from_right) {
    int64_t most = want_int(r, args[1], -1, "split");
    bool by_space = args[0].kind == V_MISSING || args[0].kind == V_NONE;
    const string *separator = by_space ? NULL : want_string(r, args[0], "split");
    if (failed(r) || !bytes_take(r, self.s->length * 2)) return NONE;
    if (most < 0) most = -1;
    if (!by_space && separator->length == 0) return fail(r, "empty separator");
    list *l;
    if (by_space) l = from_right ? rsplit_space(r, self.s, most) : split_space(r, self.s, most);
    else l = from_right ? rsplit_at(r, self.s, separator, most) : split_at(r, self.s, separator, most);
    if (from_right) list_reverse(l);
    return list_value(l);
}
static value str_split(render *r, value self, const value *args) { return split(r, self, args, false); }
static value str_rsplit(render *r, value self, const value *args) { return split(r, self, args, true); }
static value str_splitlines(render *r, value self, const value *args) {
    return list_value(text_lines(r, self.s, value_truth(args[0])));
}
static value str_join(render *r, value self, const value *args) {
    return text_join(r, self.s, value_to_list(r, args[0]), false);
}

static value partition(render *r, value self, const value *args, bool from_right) {
    const string *s = self.s, *separator = want_string(r, args[0], "partition");
    if (failed(r) || !bytes_take(r, s->length)) return NONE;
    if (separator->length == 0) return fail(r, "empty separator");
    size_t at = from_right ? find_last(r, s, separator, s->length) : text_find(s, separator, 0);
    list *l = list_new(r, 3);
    if (at == SIZE_MAX) {
        value empty = string_literal(r, "");
        list_add(r, l, from_right ? empty : self);
        list_add(r, l, empty);
        list_add(r, l, from_right ? self : empty);
    } else {
        list_add(r, l, string_slice(r, s, 0, at));
        list_add(r, l, (value){.kind = V_STRING, .s = separator});
        list_add(r, l, string_slice(r, s, at + separator->length, s->length));
    }
    return tuple_value(l);
}
static value str_partition(render *r, value self, const value *args) { return partition(r, self, args, false); }
static value str_rpartition(render *r, value self, const value *args) { return partition(r, self, args, true); }

/* ---- finding -------------------------------------------------------------------------------------------------------- */

/* s[start:end] as Python's find and startswith take them; *first: where the part begins, in characters. False: start lies
 * behind the end of the string. */
static bool part_of(render *r, const string *s, value start, value end, string *out, int64_t *first) {
    int64_t n = (int64_t)text_length(s);
    int64_t from = want_int(r, start.kind == V_NONE ? MISSING : start, 0, "start");
    int64_t to = want_int(r, end.kind == V_NONE ? MISSING : end, n, "end");
    if (from < 0) from = from < -n ? 0 : from + n;
    if (to < 0) to = to < -n ? 0 : to + n;
    if (to > n) to = n;
    *first = from;
    if (from > n || from > to || failed(r)) return false;
    *out = *string_slice(r, s, text_offset(s, (size_t)from), text_offset(s, (size_t)to)).s;
    return true;
}

static bool has_affix(const string *s, const string *affix, bool at_end) {
    if (affix->length > s->length) return false;
    return affix->length == 0 ||
           memcmp(at_end ? s->text + s->length - affix->length : s->text, affix->text, affix->length) == 0;
}

static value affix_test(render *r, value self, const value *args, bool at_end) {
    string part;
    int64_t first;
    const char *what = at_end ? "endswith" : "startswith";
    bytes_take(r, self.s->length);
    bool is_inside = part_of(r, self.s, args[1], args[2], &part, &first);
    if (failed(r)) return NONE;
    if (args[0].kind != V_TUPLE) {
        const string *affix = want_string(r, args[0], what);
        return bool_value(is_inside && has_affix(&part, affix, at_end));
    }
    for (size_t i = 0; i < args[0].l->n; i++)
        if (is_inside && has_affix(&part, want_string(r, args[0].l->items[i], what), at_end)) return bool_value(true);
    return bool_value(false);
}
static value str_startswith(render *r, value self, const value *args) { return affix_test(r, self, args, false); }
static value str_endswith(render *r, value self, const value *args) { return affix_test(r, self, args, true); }

static value find(render *r, value self, const value *args, bool last, bool must) {
    string part;
    int64_t first;
    const string *wanted = want_string(r, args[0], "find");
    bytes_take(r, self.s->length * (last ? 2 : 1));
    size_t at = SIZE_MAX;
    if (part_of(r, self.s, args[1], args[2], &part, &first))
        at = last ? find_last(r, &part, wanted, part.length) : text_find(&part, wanted, 0);
    if (failed(r)) return NONE;
    if (at == SIZE_MAX) return must ? fail(r, "substring not found") : int_value(-1);
    part.length = at;
    return int_value(first + (int64_t)text_length(&part));
}
static value str_find(render *r, value self, const value *args) { return find(r, self, args, false, false); }
static value str_rfind(render *r, value self, const value *args) { return find(r, self, args, true, false); }
static value str_index(render *r, value self, const value *args) { return find(r, self, args, false, true); }
static value str_rindex(render *r, value self, const value *args) { return find(r, self, args, true, true); }

static value str_count(render *r, value self, const value *args) {
    string part;
    int64_t first, n = 0;
    const string *wanted = want_string(r, args[0], "count");
    bytes_take(r, self.s->length);
    if (!part_of(r, self.s, args[1], args[2], &part, &first)) return int_value(0);
    if (wanted->length == 0) return int_value((int64_t)text_length(&part) + 1);
    for (size_t at = 0; (at = text_find(&part, wanted, at)) != SIZE_MAX; at += wanted->length) n++;
    return int_value(n);
}

static value str_replace(render *r, value self, const value *args) {
    const string *old = want_string(r, args[0], "replace"), *new = want_string(r, args[1], "replace");
    int64_t count = want_int(r, args[2], -1, "replace");
    return failed(r) ? NONE : text_replace(r, self.s, old, new, count);
}

static value str_removeprefix(render *r, value self, const value *args) {
    const string *affix = want_string(r, args[0], "removeprefix");
    bytes_take(r, affix->length);
    return has_affix(self.s, affix, false) ? string_slice(r, self.s, affix->length, self.s->length) : self;
}
static value str_removesuffix(render *r, value self, const value *args) {
    const string *affix = want_string(r, args[0], "removesuffix");
    bytes_take(r, affix->length);
    return has_affix(self.s, affix, true) ? string_slice(r, self.s, 0, self.s->length - affix->length) : self;
}

/* ---- classes of characters ------------------------------------------------------------------------------------------ */

static bool all_chars(render *r, const string *s, bool (*is)(int32_t c)) {
    bytes_take(r, s->length * 4);
    for (size_t i = 0, n; i < s->length; i += n)
        if (!is(char_at(s, i, &n))) return false;
    return s->length > 0;
}
static bool is_alnum(int32_t c) { return char_is_alpha(c) || char_is_digit(c) || char_is_numeral(c); }
static bool is_ascii(int32_t c) { return c < 0x80; }
static value str_isdigit(render *r, value self, const value *args) {
    return bool_value(all_chars(r, self.s, char_is_digit));
}
static value str_isdecimal(render *r, value self, const value *args) {
    return bool_value(all_chars(r, self.s, char_is_decimal));
}
static value str_isnumeric(render *r, value self, const value *args) {
    return bool_value(all_chars(r, self.s, char_is_numeral));
}
static value str_isalpha(render *r, value self, const value *args) {
    return bool_value(all_chars(r, self.s, char_is_alpha));
}
static value str_isalnum(render *r, value self, const value *args) {
    return bool_value(all_chars(r, self.s, is_alnum));
}
static value str_isspace(render *r, value self, const value *args) {
    return bool_value(all_chars(r, self.s, space_is));
}
static value str_isascii(render *r, value self, const value *args) {
    return bool_value(self.s->length == 0 || all_chars(r, self.s, is_ascii));
}

bool text_is_cased(render *r, const string *s, bool upper) {
    bool has_cased = false;
    bytes_take(r, s->length * 4);
    for (size_t i = 0, n; i < s->length; i += n) {
        int32_t c = char_at(s, i, &n);
        if (char_is_title(c) || (upper ? char_is_lower(c) : char_is_upper(c))) return false;
        has_cased |= upper ? char_is_upper(c) : char_is_lower(c);
    }
    return has_cased;
}
static value str_isupper(render *r, value self, const value *args) {
    return bool_value(text_is_cased(r, self.s, true));
}
static value str_islower(render *r, value self, const value *args) {
    return bool_value(text_is_cased(r, self.s, false));
}
static value str_istitle(render *r, value self, const value *args) {
    bool was_cased = false, has_cased = false;
    bytes_take(r, self.s->length * 4);
    for (size_t i = 0, n; i < self.s->length; i += n) {
        int32_t c = char_at(self.s, i, &n);
        bool is_upper = char_is_upper(c) || char_is_title(c), is_lower = char_is_lower(c);
        if (is_upper ? was_cased : is_lower && !was_cased) return bool_value(false);
        was_cased = is_upper || is_lower;
        has_cased |= was_cased;
    }
    return bool_value(has_cased);
}

/* ---- padding and formatting ----------------------------------------------------------------------------------------- */

static value pad(render *r, value self, const value *args, int align) {
    value fill = args[1].kind == V_MISSING ? string_literal(r, " ") : args[1];
    const string *with = want_string(r, fill, "fill");
    int64_t width = want_int(r, args[0], 0, "width");
    if (failed(r)) return NONE;
    if (text_length(with) != 1) return fail(r, "The fill character must be exactly one character long");
    return text_pad(r, self.s, width, with, align);
}
static value str_ljust(render *r, value self, const value *args) { return pad(r, self, args, -1); }
static value str_center(render *r, value self, const value *args) { return pad(r, self, args, 0); }
static value str_rjust(render *r, value self, const value *args) { return pad(r, self, args, 1); }

static value str_zfill(render *r, value self, const value *args) {
    int64_t width = want_int(r, args[0], 0, "zfill"), missing = width - (int64_t)text_length(self.s);
    bool has_sign = self.s->length && (self.s->text[0] == '+' || self.s->text[0] == '-');
    builder b;
    builder_init(&b, r);
    builder_add_part(&b, self.s, 0, has_sign);
    builder_fill(&b, "0", 1, 0, missing);
    builder_add_part(&b, self.s, has_sign, self.s->length);
    return builder_take(&b);
}

static value str_expandtabs(render *r, value self, const value *args) {
    int64_t size = want_int(r, args[0], 8, "expandtabs"), column = 0;
    builder b;
    builder_init(&b, r);
    bytes_take(r, self.s->length * 4);
    for (size_t i = 0, n; i < self.s->length && !failed(r); i += n) {
        int32_t c = char_at(self.s, i, &n);
        if (c == '\t') {
            int64_t fill = size > 0 ? size - column % size : 0;
            builder_fill(&b, " ", 1, string_mark(self.s, i), fill);
            column += fill;
            continue;
        }
        builder_add_part(&b, self.s, i, i + n);
        column = c == '\n' || c == '\r' ? 0 : column + 1;
    }
    return builder_take(&b);
}

static value str_format(render *r, value self, const arguments *a) { return format_braces(r, self.s, a); }

/* ---- dictionaries --------------------------------------------------------------------------------------------------- */

static value dict_get(render *r, value self, const value *args) {
    const value *v = dict_find(r, self.d, args[0]);
    return v ? *v : args[1].kind == V_MISSING ? NONE : args[1];
}

static value view(render *r, list *l, const char *name) {
    l->view = name;
    return (value){.kind = V_VIEW, .l = l};
}
static value dict_keys(render *r, value self, const value *args) {
    list *l = list_new(r, self.d->n);
    for (size_t i = 0; i < self.d->n && steps_take(r, 1); i++) list_add(r, l, self.d->entries[i].key);
    return view(r, l, "dict_keys");
}
static value dict_values(render *r, value self, const value *args) {
    list *l = list_new(r, self.d->n);
    for (size_t i = 0; i < self.d->n && steps_take(r, 1); i++) list_add(r, l, self.d->entries[i].value);
    return view(r, l, "dict_values");
}
value dict_items(render *r, value self, const value *args) {
    list *l = list_new(r, self.d->n);
    for (size_t i = 0; i < self.d->n && steps_take(r, 2); i++) {
        list *pair = list_new(r, 2);
        list_add(r, pair, self.d->entries[i].key);
        list_add(r, pair, self.d->entries[i].value);
        list_add(r, l, tuple_value(pair));
    }
    return view(r, l, "dict_items");
}
static value dict_copy(render *r, value self, const value *args) {
    dict *d = dict_new(r);
    for (size_t i = 0; i < self.d->n && steps_take(r, 1); i++)
        dict_set(r, d, self.d->entries[i].key, self.d->entries[i].value);
    return dict_value(d);
}

/* ---- lists and tuples ----------------------------------------------------------------------------------------------- */

static value list_index(render *r, value self, const value *args) {
    int64_t n = (int64_t)self.l->n, from = want_int(r, args[1], 0, "index"), to = want_int(r, args[2], n, "index");
    if (from < 0) from = MAX(from + n, 0);
    if (to < 0) to = MAX(to + n, 0);
    for (int64_t i = from; i < MIN(to, n) && !failed(r); i++)
        if (value_equal(r, self.l->items[i], args[0])) return int_value(i);
    return fail(r, "the value is not in the %s", value_type(self));
}
static value list_count(render *r, value self, const value *args) {
    int64_t n = 0;
    for (size_t i = 0; i < self.l->n && !failed(r); i++) n += value_equal(r, self.l->items[i], args[0]);
    return int_value(n);
}
static value list_copy(render *r, value self, const value *args) { return list_value(value_to_list(r, self)); }

/* ---- loops and cyclers ---------------------------------------------------------------------------------------------- */

static value loop_cycle(render *r, value self, const arguments *a) {
    if (a->n_named) return fail(r, "loop.cycle takes no named arguments");
    if (!a->n_positional) return fail(r, "no items for cycling given");
    return a->positional[(size_t)self.loop->index0 % a->n_positional];
}
static value loop_changed(render *r, value self, const arguments *a) {
    if (a->n_named) return fail(r, "loop.changed takes no named arguments");
    list *l = list_new(r, a->n_positional);
    for (size_t i = 0; i < a->n_positional; i++) list_add(r, l, a->positional[i]);
    value now = tuple_value(l);
    bool is_same = self.loop->last_changed.kind != V_MISSING && value_equal(r, self.loop->last_changed, now);
    if (!is_same) self.loop->last_changed = now;
    return bool_value(!is_same);
}
static value cycler_next(render *r, value self, const value *args) {
    value v = self.cycler->items->items[self.cycler->next];
    self.cycler->next = (self.cycler->next + 1) % self.cycler->items->n;
    return v;
}
static value cycler_reset(render *r, value self, const value *args) {
    self.cycler->next = 0;
    return NONE;
}

/* ---- the table ------------------------------------------------------------------------------------------------------ */

#define UNSAFE(kind, method) \
    { .of = kind, .s = {.name = method}, .refused = "unsafe" }
#define REFUSED(kind, method, why) \
    { .of = kind, .s = {.name = method}, .refused = why }
#define PLAIN(method, function) \
    { .of = V_STRING, .s = {.name = method}, .call = function }
/* clang-format off */
static const method_row methods[] = {
    {V_STRING, {"strip", .parameters = {""}}, .call = str_strip, .keeps_markup = true},
    {V_STRING, {"lstrip", .parameters = {""}}, .call = str_lstrip, .keeps_markup = true},
    {V_STRING, {"rstrip", .parameters = {""}}, .call = str_rstrip, .keeps_markup = true},
    PLAIN("upper", str_upper), PLAIN("lower", str_lower), PLAIN("title", str_title), PLAIN("capitalize", str_capitalize),
    PLAIN("swapcase", str_swapcase), PLAIN("isdigit", str_isdigit), PLAIN("isdecimal", str_isdecimal),
    PLAIN("isnumeric", str_isnumeric), PLAIN("isalpha", str_isalpha), PLAIN("isalnum", str_isalnum),
    PLAIN("isspace", str_isspace), PLAIN("isascii", str_isascii), PLAIN("isupper", str_isupper),
    PLAIN("islower", str_islower), PLAIN("istitle", str_istitle),
    {V_STRING, {"split", .parameters = {"sep", "maxsplit"}}, .call = str_split},
    {V_STRING, {"rsplit", .parameters = {"sep", "maxsplit"}}, .call = str_rsplit},
    {V_STRING, {"splitlines", .parameters = {"keepends"}}, .call = str_splitlines},
    {V_STRING, {"join", 1, .parameters = {""}}, .call = str_join},
    {V_STRING, {"partition", 1, .parameters = {""}}, .call = str_partition},
    {V_STRING, {"rpartition", 1, .parameters = {""}}, .call = str_rpartition},
    {V_STRING, {"startswith", 1, .parameters = {"", "", ""}}, .call = str_startswith, .keeps_markup = true},
    {V_STRING, {"endswith", 1, .parameters = {"", "", ""}}, .call = str_endswith, .keeps_markup = true},
    {V_STRING, {"find", 1, .parameters = {"", "", ""}}, .call = str_find, .keeps_markup = true},
    {V_STRING, {"rfind", 1, .parameters = {"", "", ""}}, .call = str_rfind, .keeps_markup = true},
    {V_STRING, {"index", 1, .parameters = {"", "", ""}}, .call = str_index, .keeps_markup = true},
    {V_STRING, {"rindex", 1, .parameters = {"", "", ""}}, .call = str_rindex, .keeps_markup = true},
    {V_STRING, {"count", 1, .parameters = {"", "", ""}}, .call = str_count, .keeps_markup = true},
    {V_STRING, {"replace", 2, .parameters = {"", "", ""}}, .call = str_replace},
    {V_STRING, {"removeprefix", 1, .parameters = {""}}, .call = str_removeprefix, .keeps_markup = true},
    {V_STRING, {"removesuffix", 1, .parameters = {""}}, .call = str_removesuffix, .keeps_markup = true},
    {V_STRING, {"ljust", 1, .parameters = {"", ""}}, .call = str_ljust},
    {V_STRING, {"center", 1, .parameters = {"", ""}}, .call = str_center},
    {V_STRING, {"rjust", 1, .parameters = {"", ""}}, .call = str_rjust},
    {V_STRING, {"zfill", 1, .parameters = {""}}, .call = str_zfill},
    {V_STRING, {"expandtabs", .parameters = {"tabsize"}}, .call = str_expandtabs},
    {V_STRING, {"format", .is_variadic = true}, .call_variadic = str_format},
    REFUSED(V_STRING, "format_map", "use format"), REFUSED(V_STRING, "encode", "templates have no bytes"),
    REFUSED(V_STRING, "translate", "use replace"), REFUSED(V_STRING, "maketrans", "use replace"),
    REFUSED(V_STRING, "casefold", "use lower"), REFUSED(V_STRING, "isidentifier", "no template needs it"),
    REFUSED(V_STRING, "isprintable", "no template needs it"),
    {V_DICT, {"get", 1, .parameters = {"", ""}}, .call = dict_get},
    {V_DICT, {.name = "keys"}, .call = dict_keys},
    {V_DICT, {.name = "values"}, .call = dict_values},
    {V_DICT, {.name = "items"}, .call = dict_items},
    {V_DICT, {.name = "copy"}, .call = dict_copy},
    REFUSED(V_DICT, "fromkeys", "use dict()"),
    UNSAFE(V_DICT, "clear"), UNSAFE(V_DICT, "pop"), UNSAFE(V_DICT, "popitem"), UNSAFE(V_DICT, "setdefault"),
    UNSAFE(V_DICT, "update"),
    {V_LIST, {"index", 1, .parameters = {"", "", ""}}, .call = list_index},
    {V_LIST, {"count", 1, .parameters = {""}}, .call = list_count},
    {V_LIST, {.name = "copy"}, .call = list_copy},
    UNSAFE(V_LIST, "append"), UNSAFE(V_LIST, "clear"), UNSAFE(V_LIST, "pop"), UNSAFE(V_LIST, "reverse"),
    UNSAFE(V_LIST, "insert"), UNSAFE(V_LIST, "sort"), UNSAFE(V_LIST, "extend"), UNSAFE(V_LIST, "remove"),
    {V_TUPLE, {"index", 1, .parameters = {"", "", ""}}, .call = list_index},
    {V_TUPLE, {"count", 1, .parameters = {""}}, .call = list_count},
    {V_LOOP, {"cycle", .is_variadic = true}, .call_variadic = loop_cycle},
    {V_LOOP, {"changed", .is_variadic = true}, .call_variadic = loop_changed},
    {V_CYCLER, {.name = "next"}, .call = cycler_next},
    {V_CYCLER, {.name = "reset"}, .call = cycler_reset},
};
/* clang-format on */

const method_row *method_find(value_kind of, const char *name, size_t n) {
    for (size_t i = 0; i < ARRAY_LENGTH(methods); i++)
        if (methods[i].of == of && strlen(methods[i].s.name) == n && memcmp(methods[i].s.name, name, n) == 0)
            return &methods[i];
    return NULL;
}

value method_call(render *r, const struct method *m, const arguments *a) {
    value args[PARAMETERS_MOST];
    if (m->row->refused)
        return fail(r, "method '%s' of '%s' is not supported (%s)", m->row->s.name, value_type(m->self),
                    m->row->refused);
    if (m->self.kind == V_STRING && m->self.s->is_markup && !m->row->keeps_markup)
        return fail(r, "method '%s' of text that was marked safe is not supported", m->row->s.name);
    if (m->row->call_variadic) return m->row->call_variadic(r, m->self, a);
    if (!arguments_bind(r, "method", &m->row->s, a, args)) return NONE;
    return markup_as(r, m->self, m->row->call(r, m->self, args));
}
