/* setting.c - the rows of config.def, and how one value is read as its row says.
 *
 * Files, --set, flags and defaults go through one parser, and help, messages and the written YAML print the same range
 * and default that it checks, so they always agree.
 * Refused: numbers that are not finite or out of range, text that is not UTF-8 (it could not be written back). */
#include "settings/assign.h"
#include "settings/form.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <strings.h>

static const setting settings[] = {
#define SETTING(key, effect, field, type, range, initial, word, aliases, help) \
    {key, offsetof(config, field), STORAGE_OF(config, field), TYPE_##type, range, initial, word, aliases, help},
#include "settings/config.def"
#undef SETTING
};
enum { N_SETTINGS = ARRAY_LENGTH(settings), MAX_TEXT = 4096 };
_Static_assert(ARRAY_LENGTH(settings) <= (size_t)CONFIG_ROWS_MOST, "config.origin has one byte per row");
_Static_assert(offsetof(config, train.beta2) == offsetof(config, train.beta1) + sizeof(double), "betas are a PAIR");
_Static_assert(offsetof(config, train.rl.clip_high) == offsetof(config, train.rl.clip_low) + sizeof(double),
               "the smallest and the largest reward are a PAIR");
_Static_assert(sizeof(schedule_kind) == sizeof(int32_t) && sizeof(precision) == sizeof(int32_t) &&
                   sizeof(state_format) == sizeof(int32_t),
               "CHOICE is 32 bits");

/* ---- text to numbers ------------------------------------------------------------------------------------------- */

/* Decimal only: strtod would also take hexadecimal, inf and nan. A number too large for a double is refused too. */
bool real_read(const char *text, double *out) {
    const char *p = text + (*text == '-' || *text == '+');
    if (*text == 0 || p[strspn(p, "0123456789.eE+-")] != 0 || strpbrk(p, "0123456789") == NULL) return false;
    char *end;
    *out = strtod(text, &end);
    return *end == 0 && isfinite(*out);
}

/* 1e5 and 2.0 are whole numbers; above 2^53 only plain digits are exact. */
bool int_read(const char *text, int64_t *out) {
    double real;
    if (!real_read(text, &real)) return false;
    char *end;
    errno = 0;
    *out = strtoll(text, &end, 10);
    if (*end == 0) return errno == 0;
    if (real != floor(real) || fabs(real) > 0x1p53) return false;
    *out = (int64_t)real;
    return true;
}

static bool bytes_read(const char *text, int64_t *out) {
    if (int_read(text, out)) return true;
    uint64_t n_bytes;
    if (str_parse_bytes(text, &n_bytes) != OK || n_bytes > INT64_MAX) return false;
    *out = (int64_t)n_bytes;
    return true;
}

bool bool_read(const char *text, bool *out) {
    static const char *const words[] = {"false", "true", "no", "yes", "off", "on"};
    for (size_t i = 0; i < ARRAY_LENGTH(words); i++) {
        if (strcasecmp(text, words[i]) != 0) continue;
        *out = i % 2;
        return true;
    }
    return false;
}

/* The next code point of p, or -1 where p is not UTF-8 (also overlong forms, surrogates, above U+10FFFF). */
static bool text_is_utf8(const char *text) {
    while (*text)
        if (utf8_next(&text) < 0) return false;
    return true;
}

/* ---- rows ------------------------------------------------------------------------------------------------------ */

const char *part_next(const char *list, char stop, char *out, size_t n) {
    if (!list || *list == 0) return NULL;
    size_t length = strcspn(list, (char[]){stop, 0});
    ASSERT(length < n);
    memcpy(out, list, length);
    out[length] = 0;
    return list + length + (list[length] == stop);
}

/* The word of a row, and the text it stands for; false when it has none. */
bool setting_word(const setting *s, char word[32], const char **means) {
    return (*means = part_next(s->word, '=', word, 32)) != NULL;
}

static bool setting_number_read(const setting *s, const char *text, double *out) {
    int64_t whole;
    if (s->type == TYPE_REAL || s->type == TYPE_PAIR) return real_read(text, out);
    if (!(s->type == TYPE_BYTES ? bytes_read(text, &whole) : int_read(text, &whole))) return false;
    *out = (double)whole; /* bounds are exact in a double, so rounding cannot carry a number across one */
    return true;
}

static bool setting_in_range(const setting *s, double x) {
    char low[32], high[32];
    double lo, hi;
    const char *rest = part_next(s->range + 1, ',', low, sizeof low);
    snprintf(high, sizeof high, "%.*s", (int)strcspn(rest + 1, ")]"), rest + 1);
    ASSERT(setting_number_read(s, low, &lo) && setting_number_read(s, high, &hi));
    bool open_low = s->range[0] == '(', open_high = str_ends_with(s->range, ")");
    return (open_low ? x > lo : x >= lo) && (open_high ? x < hi : x <= hi);
}

/* Other names of number formats, as PyTorch, llama.cpp and others write them, in capitals too; NULL: it is none. */
static const char *format_name(const char *name) {
    static const char *const names[][2] = {
        {"bfloat16", "bf16"}, {"float16", "fp16"}, {"half", "fp16"},   {"f16", "fp16"},
        {"float32", "fp32"},  {"float", "fp32"},   {"f32", "fp32"},    {"float8", "fp8"},
        {"4bit", "nf4"},      {"8bit", "int8"},    {"q4_k_m", "q4_k"}, {"fp32", "fp32"},
        {"bf16", "bf16"},     {"fp16", "fp16"},    {"q8_0", "q8_0"},   {"q4_k", "q4_k"}};
    if (str_starts_with(name, "torch.")) name += strlen("torch.");
    for (size_t i = 0; i < ARRAY_LENGTH(names); i++)
        if (strcasecmp(names[i][0], name) == 0) return names[i][1];
    return NULL;
}

static int choice_find(const setting *s, const char *name) {
    char part[64];
    const char *rest = s->range, *other = format_name(name);
    for (int i = 0; (rest = part_next(rest, '|', part, sizeof part)); i++)
        if (strcmp(part, name) == 0 || (other && strcmp(part, other) == 0)) return i;
    return -1;
}

void setting_expected(const setting *s, strbuf *out) {
    char part[64], word[32];
    const char *rest = s->range, *means;
    switch (s->type) {
    case TYPE_BOOL: strbuf_add(out, "true or false"); break;
    case TYPE_INT: strbuf_printf(out, "a whole number in %s", s->range); break;
    case TYPE_REAL: strbuf_printf(out, "a number in %s", s->range); break;
    case TYPE_BYTES: strbuf_printf(out, "bytes in %s, such as 512M", s->range); break;
    case TYPE_TEXT:
        if (strcmp(s->range, "pairs") == 0) strbuf_add(out, "a map, or its pairs as text: name=value, name=value");
        else if (strcmp(s->range, "json") == 0) strbuf_add(out, "a JSON object");
        else strbuf_add(out, strcmp(s->range, "some") == 0 ? "text that is not empty" : "text");
        break;
    case TYPE_PAIR: strbuf_printf(out, "a list of two numbers in %s, such as [0.9, 0.95]", s->range); break;
    case TYPE_FORM: form_expected(s->range, out); break;
    case TYPE_CHOICE:
        strbuf_add(out, "one of: ");
        for (int i = 0; (rest = part_next(rest, '|', part, sizeof part)); i++)
            strbuf_printf(out, "%s%s", i ? ", " : "", part);
        break;
    }
    if (setting_word(s, word, &means))
        strbuf_printf(out, "%s %s", s->type == TYPE_CHOICE || s->type == TYPE_FORM ? "," : ", or", word);
}

/* Is `name` this row's key or one of its aliases? element: which half of a PAIR the alias means, or WHOLE. */
static bool setting_answers_to(const setting *s, const char *name, int *element) {
    *element = WHOLE;
    if (strcmp(s->key, name) == 0) return true;
    char alias[64];
    for (const char *rest = s->aliases; (rest = part_next(rest, ' ', alias, sizeof alias));) {
        char *at = strchr(alias, '@');
        if (at) *at = 0;
        if (strcmp(alias, name) != 0) continue;
        if (at) *element = at[1] - '0';
        return true;
    }
    return false;
}

const setting *setting_find(const char *name, int *element) {
    for (size_t i = 0; i < N_SETTINGS; i++)
        if (setting_answers_to(&settings[i], name, element)) return &settings[i];
    return NULL;
}

bool setting_group_exists(const char *name) {
    size_t length = strlen(name);
    for (size_t i = 0; i < N_SETTINGS; i++)
        if (strncmp(settings[i].key, name, length) == 0 && settings[i].key[length] == '.') return true;
    return false;
}

/* ---- one value into the struct --------------------------------------------------------------------------------- */

bool text_is_null(const char *text) { return *text == 0 || strcmp(text, "~") == 0 || strcasecmp(text, "null") == 0; }

static void whole_store(void *base, const setting *s, int64_t whole) {
    void *field = setting_field(base, s);
    switch (s->storage) {
    case STORE_I32: memcpy(field, &(int32_t){(int32_t)whole}, sizeof(int32_t)); return;
    case STORE_I64: *(int64_t *)field = whole; return;
    case STORE_U64: *(uint64_t *)field = (uint64_t)whole; return;
    default: ASSERT(!"a whole number in a field of another kind");
    }
}

int64_t setting_whole(const void *base, const setting *s) {
    const void *field = setting_field(base, s);
    int32_t narrow;
    switch (s->storage) {
    case STORE_I32: memcpy(&narrow, field, sizeof narrow); return narrow;
    case STORE_I64: return *(const int64_t *)field;
    case STORE_U64: return *(const int64_t *)field; /* ranges end at INT64_MAX */
    default: ASSERT(!"a whole number in a field of another kind");
    }
    return 0;
}

/* Splits "[a, b]" in place. */
static bool pair_split(char *text, char *parts[PAIR]) {
    size_t length = strlen(text);
    char *comma = strchr(text, ',');
    if (length < 2 || text[0] != '[' || text[length - 1] != ']' || !comma || strchr(comma + 1, ',')) return false;
    text[length - 1] = *comma = 0;
    parts[0] = text + 1;
    parts[1] = comma + 1;
    return true;
}

char *spaces_trim(char *text) {
    text += strspn(text, " \t");
    size_t length = strlen(text);
    while (length && (text[length - 1] == ' ' || text[length - 1] == '\t')) text[--length] = 0;
    return text;
}

static bool real_store(void *base, const setting *s, int element, char *text) {
    double x;
    if (!real_read(spaces_trim(text), &x) || !setting_in_range(s, x)) return false;
    ((double *)setting_field(base, s))[element] = x;
    return true;
}

static bool form_store(const setting *s, void *base, arena *memory, const char *text, const char *word_value) {
    strbuf form;
    strbuf_init(&form);
    bool taken = strlen(text) < MAX_TEXT && text_is_utf8(text);
    if (taken && word_value && strcmp(text, word_value) == 0) strbuf_add(&form, text);
    else taken = taken && form_read(s->range, text, &form);
    if (taken) *(const char **)setting_field(base, s) = arena_string(memory, form.text);
    strbuf_fini(&form);
    return taken;
}

/* Stores `text` in the row's field; false if the row does not accept it. word_value: the text that the row's word
 * stands for, if the word was given: the range is not checked then. Else NULL, except for TEXT. text is scratch. */
static bool value_store(const setting *s, void *base, arena *memory, int element, char *text, const char *word_value) {
    int64_t whole, special;
    double real, zero;
    bool flag;
    char *parts[PAIR];
    switch (s->type) {
    case TYPE_BOOL:
        if (!bool_read(text, &flag)) return false;
        *(bool *)setting_field(base, s) = flag;
        return true;
    case TYPE_INT:
    case TYPE_BYTES:
        if (!(s->type == TYPE_BYTES ? bytes_read(text, &whole) : int_read(text, &whole))) return false;
        if (!setting_in_range(s, (double)whole) && !(word_value && int_read(word_value, &special) && whole == special))
            return false;
        whole_store(base, s, whole);
        return true;
    case TYPE_REAL:
        if (!real_read(text, &real)) return false;
        if (!setting_in_range(s, real) && !(word_value && real_read(word_value, &zero) && real == zero)) return false;
        *(double *)setting_field(base, s) = real;
        return true;
    case TYPE_CHOICE:
        if (word_value && strcmp(text, word_value) == 0 && int_read(word_value, &whole)) {
            whole_store(base, s, whole);
            return true;
        }
        if ((whole = choice_find(s, text)) < 0) return false;
        whole_store(base, s, whole);
        return true;
    case TYPE_TEXT:
        if (strlen(text) >= MAX_TEXT || !text_is_utf8(text)) return false;
        if (*text == 0 && (strcmp(s->range, "some") == 0 || strcmp(s->range, "json") == 0) &&
            !(word_value && *word_value == 0))
            return false;
        *(const char **)setting_field(base, s) = arena_string(memory, text);
        return true;
    case TYPE_PAIR:
        if (element != WHOLE) return real_store(base, s, element, text);
        if (!pair_split(text, parts)) return false;
        return real_store(base, s, 0, parts[0]) && real_store(base, s, 1, parts[1]);
    case TYPE_FORM: return form_store(s, base, memory, text, word_value);
    }
    return false;
}

/* value: what other programs may call so; NULL: nothing. */
static status value_refuse(const setting *s, const char *where, const char *key, const char *found, const char *value) {
    strbuf expected, meant;
    strbuf_init(&expected);
    strbuf_init(&meant);
    setting_expected(s, &expected);
    if (value && s->key && config_foreign_names.explain_value(s->key, value, &meant))
        strbuf_printf(&expected, "; %s", meant.text);
    strbuf_fini(&meant);
    int64_t whole;
    if (value && s->type == TYPE_BYTES && int_read(value, &whole) && whole > 0 && !setting_in_range(s, (double)whole))
        strbuf_printf(&expected, "; %lld is a number of bytes: is it %lldG?", (long long)whole, (long long)whole);
    status rc = ERR(ERR_INPUT, "%s: %s: found %.200s, expected %s", where, key, found, expected.text);
    strbuf_fini(&expected);
    return rc;
}

status setting_refuse(const setting *s, const char *where, const char *key, const char *found) {
    return value_refuse(s, where, key, found, NULL);
}

status setting_store(const setting *s, void *base, arena *memory, int element, const char *text, bool quoted,
                     const char *where, const char *key) {
    char word[32];
    const char *means = NULL;
    bool has_word = setting_word(s, word, &means);
    bool literal = quoted && s->type == TYPE_TEXT;
    bool is_word = has_word && !literal && (strcmp(text, word) == 0 || (!quoted && text_is_null(text)));
    if (is_word) text = means;

    char *copy = mem_alloc(strlen(text) + 1);
    memcpy(copy, text, strlen(text));
    /* A number that only a word stands for is not shown in help; a text in quotes may be as empty as the word's. */
    const char *word_value = is_word || (has_word && s->type == TYPE_TEXT) ? means : NULL;
    bool taken = value_store(s, base, memory, element, s->type == TYPE_TEXT ? copy : spaces_trim(copy), word_value);
    free(copy);
    if (taken) return OK;
    if (!text_is_utf8(text)) return setting_refuse(s, where, key, "bytes that are not UTF-8");
    char found[256];
    snprintf(found, sizeof found, "'%.180s'%s", text, strlen(text) >= MAX_TEXT ? "... (too long)" : "");
    return value_refuse(s, where, key, found, text);
}

const char *map_json(const yaml_node *map, arena *memory) {
    json_t *object = yaml_to_json(map);
    char *text = json_dumps(object, JSON_COMPACT | JSON_SORT_KEYS);
    const char *out = text ? arena_string(memory, text) : NULL;
    free(text);
    json_decref(object);
    return out;
}

size_t config_count(void) { return N_SETTINGS; }

size_t setting_row(const setting *s) { return (size_t)(s - settings); }

const setting *setting_at(size_t row) { return row < N_SETTINGS ? &settings[row] : NULL; }

const char *config_key(size_t row) { return row < N_SETTINGS ? settings[row].key : NULL; }
