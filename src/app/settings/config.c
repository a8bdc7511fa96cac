/* config.c - from text to the config struct, driven by config.def.
 *
 * Files, --set and defaults go through one parser, and help, messages and the written YAML print the same range and
 * default that it checks, so they always agree. Every map of a file may be nested or dotted.
 * Refused: unknown keys (with the nearest known one), a key given twice in one file in any spelling, numbers that
 * are not finite or out of range, text that is not UTF-8 (it could not be written back). */
#include "settings/config.h"
#include "settings/foreign_words.h"
#include "settings/fsdp.h"
#include "settings/setting.h"
#include "settings/form.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <strings.h>

typedef enum origin { ORIGIN_DEFAULT, ORIGIN_FOREIGN, ORIGIN_FILE, ORIGIN_COMMAND } origin;

static const setting settings[] = {
#define SETTING(key, effect, field, type, range, initial, word, aliases, help) \
    {key, offsetof(config, field), STORAGE_OF(config, field), TYPE_##type, range, initial, word, aliases, help},
#include "settings/config.def"
#undef SETTING
};
enum { N_SETTINGS = ARRAY_LENGTH(settings), MAX_TEXT = 4096, PAIR = 2, WHOLE = -1 };
_Static_assert(N_SETTINGS <= ARRAY_LENGTH(((config *)0)->origin), "config.origin has one byte per row");
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

static bool group_exists(const char *name) {
    size_t length = strlen(name);
    for (size_t i = 0; i < N_SETTINGS; i++)
        if (strncmp(settings[i].key, name, length) == 0 && settings[i].key[length] == '.') return true;
    return false;
}

status config_unknown(const char *where, const char *key) {
    strbuf how;
    strbuf_init(&how);
    if (foreign_word_explain(key, false, &how)) {
        status rc = ERR(ERR_INPUT, "%s: unknown setting '%.100s'; %s", where, key, how.text);
        strbuf_fini(&how);
        return rc;
    }
    strbuf_fini(&how);
    char alias[64];
    str_nearest nearest = {.wanted = key, .has_groups = true};
    for (size_t i = 0; i < N_SETTINGS; i++) {
        const setting *s = &settings[i];
        str_nearest_try(&nearest, s->key);
        for (const char *rest = s->aliases; (rest = part_next(rest, ' ', alias, sizeof alias));) {
            char *at = strchr(alias, '@');
            if (at) *at = 0;
            /* An alias stands for the key, but for one half of a pair there is no other name. */
            if (str_nearest_try(&nearest, alias) && !at) snprintf(nearest.name, sizeof nearest.name, "%s", s->key);
        }
    }
    if (*nearest.name)
        return ERR(ERR_INPUT, "%s: unknown setting '%.100s'; did you mean '%s'?", where, key, nearest.name);
    return ERR(ERR_INPUT, "%s: unknown setting '%.100s'; `ralo help settings` lists them all", where, key);
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

static char *spaces_trim(char *text) {
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
    if (value && s->key && foreign_value_explain(s->key, value, &meant)) strbuf_printf(&expected, "; %s", meant.text);
    strbuf_fini(&meant);
    int64_t whole;
    if (value && s->type == TYPE_BYTES && int_read(value, &whole) && whole > 0 && !setting_in_range(s, (double)whole))
        strbuf_printf(&expected, "; %lld is a number of bytes: is it %lldG?", (long long)whole, (long long)whole);
    status rc = ERR(ERR_INPUT, "%s: %s: found %.200s, expected %s", where, key, found, expected.text);
    strbuf_fini(&expected);
    return rc;
}

static status setting_refuse(const setting *s, const char *where, const char *key, const char *found) {
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

/* key: as the user spelled it. */
static status setting_assign(config *c, const setting *s, int element, const char *text, bool quoted, const char *where,
                             const char *key, origin from) {
    TRY(setting_store(s, c, &c->memory_of_strings, element, text, quoted, where, key));
    c->origin[s - settings] = (unsigned char)from;
    c->alias[s - settings] = strcmp(key, s->key) == 0 ? NULL : arena_string(&c->memory_of_strings, key);
    c->data.seed = c->train.seed;
    return OK;
}

void config_init(config *c) {
    *c = (config){0};
    arena_init(&c->memory_of_strings);
    for (size_t i = 0; i < N_SETTINGS; i++) {
        status rc = setting_assign(c, &settings[i], WHOLE, settings[i].initial, false, "config.def", settings[i].key,
                                   ORIGIN_DEFAULT);
        ASSERT(rc == OK);
    }
}

void config_copy(config *out, const config *from) {
    *out = *from;
    arena_init(&out->memory_of_strings);
    for (size_t i = 0; i < N_SETTINGS; i++) {
        if (out->alias[i]) out->alias[i] = arena_string(&out->memory_of_strings, out->alias[i]);
        if (settings[i].storage != STORE_TEXT) continue;
        const char **text = setting_field(out, &settings[i]);
        *text = arena_string(&out->memory_of_strings, *text);
    }
}

void config_fini(config *c) {
    arena_fini(&c->memory_of_strings);
    *c = (config){0};
}

/* ---- files and the command line -------------------------------------------------------------------------------- */

typedef struct file_reader {
    config *c;
    const char *path;
    int line[N_SETTINGS][PAIR]; /* where each setting was given; 0 = not yet */
    arena *memory;
    strbuf problems; /* all are reported at once, each in a line */
    size_t n_problems;
    const char *first; /* of them */
} file_reader;

enum { PROBLEMS_MOST = 16 }; /* each looks for the nearest setting; a file with more is no file of settings */

/* An error of the user's file joins the others; any other one is passed on. */
static status problem_take(file_reader *r, status rc) {
    if (rc != ERR_INPUT) return rc;
    if (r->n_problems++ == 0) r->first = arena_string(r->memory, error_message());
    strbuf_printf(&r->problems, "\n    %s", error_message());
    error_clear();
    return OK;
}

static status problems_report(const file_reader *r, const char *path) {
    if (r->n_problems == 0) return OK;
    if (r->n_problems == 1) return ERR(ERR_INPUT, "%s", r->first);
    return ERR(ERR_INPUT, "%s: %zu errors%s:%s", path, r->n_problems,
               r->n_problems == PROBLEMS_MOST ? ", and what follows was not read" : "", r->problems.text);
}

/* A list of two scalars as the text "[a, b]", which is what the row's own reader takes. */
static const char *list_text(const yaml_node *list, arena *memory) {
    const yaml_node *a = list->first_child, *b = a ? a->next : NULL;
    if (!b || b->next || a->kind != YAML_SCALAR || b->kind != YAML_SCALAR) return NULL;
    return arena_format(memory, "[%s, %s]", a->text, b->text);
}

static bool takes_pairs(const setting *s) { return s->type == TYPE_TEXT && strcmp(s->range, "pairs") == 0; }

/* A JSON object as text; in a file the map itself will do. */
static bool takes_json(const setting *s) { return s->type == TYPE_TEXT && strcmp(s->range, "json") == 0; }

static bool takes_list(const setting *s) { return s->type == TYPE_TEXT && strcmp(s->range, "list") == 0; }

/* A list of scalars as the text "a,b,c". */
static const char *names_text(const yaml_node *list, arena *memory) {
    strbuf text;
    strbuf_init(&text);
    const yaml_node *n = list->first_child;
    for (; n && n->kind == YAML_SCALAR && *n->text && !strpbrk(n->text, ", "); n = n->next)
        strbuf_printf(&text, "%s%s", text.length ? "," : "", n->text);
    const char *out = n || !text.length ? NULL : arena_string(memory, text.text);
    strbuf_fini(&text);
    return out;
}

/* A map of scalars as the text "a=b, c=d". */
static const char *map_text(const yaml_node *map, arena *memory) {
    strbuf text;
    strbuf_init(&text);
    const yaml_node *n = map->first_child;
    for (; n && n->kind == YAML_SCALAR && !strpbrk(n->key, "=,") && !strpbrk(n->text, "=,"); n = n->next)
        strbuf_printf(&text, "%s%s=%s", text.length ? ", " : "", n->key, n->text);
    const char *out = n || !text.length ? NULL : arena_string(memory, text.text);
    strbuf_fini(&text);
    return out;
}

static status file_assign(file_reader *r, const setting *s, int element, const yaml_node *n, const char *key) {
    const char *where = arena_format(r->memory, "%s:%d", r->path, n->line), *text = n->text;
    int *line = r->line[s - settings];
    for (int i = 0; i < PAIR; i++) {
        if (element != WHOLE && element != i) continue;
        if (line[i])
            return ERR(ERR_INPUT, "%s: %s was given already in line %d; keep one of the two", where, key, line[i]);
        line[i] = n->line;
    }
    if (n->kind == YAML_LIST && s->type == TYPE_PAIR && element == WHOLE) {
        if (!(text = list_text(n, r->memory))) return setting_refuse(s, where, key, "a list that is not two numbers");
    } else if (n->kind == YAML_LIST && takes_list(s)) {
        if (!(text = names_text(n, r->memory)))
            return setting_refuse(s, where, key, "a list with something else than names");
    } else if (n->kind == YAML_MAP && takes_pairs(s)) {
        if (!(text = map_text(n, r->memory)))
            return setting_refuse(s, where, key, "a map with something else than text");
    } else if (n->kind == YAML_MAP && takes_json(s)) {
        if (!(text = map_json(n, r->memory))) return setting_refuse(s, where, key, "a map that is no JSON");
    } else if (n->kind == YAML_MAP && s->type == TYPE_FORM) {
        if (!(text = form_from_map(n, r->memory)))
            return setting_refuse(s, where, key, "a map that does not have exactly one entry with a value or a list");
    } else if (n->kind != YAML_SCALAR) {
        return setting_refuse(s, where, key, n->kind == YAML_MAP ? "a map" : "a list");
    }
    return setting_assign(r->c, s, element, text, n->quoted, where, key, ORIGIN_FILE);
}

/* A key of FSDP stands for others; each counts as given in its line. */
static status file_fsdp(file_reader *r, const yaml_node *n, const char *key, bool *taken) {
    fsdp_translation t;
    bool is_value = n->kind != YAML_MAP; /* a map is walked into */
    *taken = false;
    if (!is_value) return OK;
    const char *where = arena_format(r->memory, "%s:%d", r->path, n->line);
    TRY(fsdp_translate(where, key, n->kind == YAML_SCALAR ? n->text : "a list", &t));
    *taken = t.is_fsdp;
    fsdp_warn(where, key, &t);
    for (int i = 0; i < t.n; i++) {
        int element;
        yaml_node value = {.kind = YAML_SCALAR, .text = t.value, .line = n->line};
        TRY(file_assign(r, setting_find(t.settings[i], &element), WHOLE, &value, key));
    }
    return OK;
}

static status file_walk(file_reader *r, const yaml_node *map, const char *prefix);

static status file_key(file_reader *r, const yaml_node *n, const char *key) {
    const char *where = arena_format(r->memory, "%s:%d", r->path, n->line);
    int element;
    const setting *s = setting_find(key, &element);
    bool is_fsdp = false;
    if (s) return file_assign(r, s, element, n, key);
    TRY(file_fsdp(r, n, key, &is_fsdp));
    if (is_fsdp) return OK;
    if (n->kind == YAML_MAP && n->first_child)
        return file_walk(r, n, key); /* an unknown map is reported by its settings, where a guess can be made */
    if (!group_exists(key)) return config_unknown(where, key);
    if (n->kind == YAML_LIST || (n->kind == YAML_SCALAR && (n->quoted || !text_is_null(n->text))))
        return ERR(ERR_INPUT, "%s: '%s' is a group of settings: found %s, expected a map", where, key,
                   n->kind == YAML_LIST ? "a list" : "a single value");
    return OK;
}

static status file_walk(file_reader *r, const yaml_node *map, const char *prefix) {
    for (const yaml_node *n = map->first_child; n && r->n_problems < PROBLEMS_MOST; n = n->next) {
        const char *key = *prefix ? arena_format(r->memory, "%s.%s", prefix, n->key) : n->key;
        TRY(problem_take(r, file_key(r, n, key)));
    }
    return OK;
}

status config_read_tree(config *c, const yaml_node *root, const char *path) {
    arena memory;
    status rc;
    if (root->kind != YAML_MAP)
        return ERR(ERR_INPUT, "%s:%d: found %s, expected a map of settings", path, root->line,
                   root->kind == YAML_LIST ? "a list" : "a single value");
    arena_init(&memory);
    file_reader *r = mem_alloc(sizeof *r);
    *r = (file_reader){.c = c, .path = path, .memory = &memory};
    strbuf_init(&r->problems);
    rc = file_walk(r, root, "");
    if (rc == OK) rc = problems_report(r, path);
    if (rc != OK) error_trail(rc, __FILE__, __LINE__, __func__);
    strbuf_fini(&r->problems);
    free(r);
    arena_fini(&memory);
    return rc;
}

status config_read_file(config *c, const char *path) {
    arena memory;
    yaml_node *root;
    status rc;
    arena_init(&memory);
    TRY_GOTO(rc, yaml_read_file(path, &memory, &root), done);
    TRY_GOTO(rc, config_read_tree(c, root, path), done);
done:
    arena_fini(&memory);
    return rc;
}

/* "{a: b, c: d}" and "[a, b]" on a command line, as a map and a list in a file. */
static status set_flow(config *c, const setting *s, const char *flow, const char *where, const char *key) {
    arena memory;
    yaml_node *root;
    const char *text = NULL;
    arena_init(&memory);
    if (yaml_read_text(flow, strlen(flow), where, &memory, &root) != OK) error_clear();
    else if (root->kind == YAML_MAP) text = map_text(root, &memory);
    else if (root->kind == YAML_LIST) text = names_text(root, &memory);
    status rc = text ? setting_assign(c, s, WHOLE, text, false, where, key, ORIGIN_COMMAND)
                     : setting_refuse(s, where, key, arena_format(&memory, "'%.100s'", flow));
    arena_fini(&memory);
    return rc;
}

/* On a command line nothing after the = is a variable that was not set, not null as in a file: --model "$DIR" without a DIR is not a run
 * from random values. */
static bool takes_nothing(const setting *s) {
    return s->type == TYPE_TEXT && strcmp(s->range, "some") != 0 && !takes_json(s);
}

status config_set(config *c, const char *assignment, const char *where) {
    const char *equals = strchr(assignment, '=');
    if (!equals || equals == assignment)
        return ERR(ERR_INPUT, "%s %.100s: expected key=value, such as train.lr=3e-4", where, assignment);
    status rc = OK;
    char *copy = mem_alloc(strlen(assignment) + 1);
    memcpy(copy, assignment, (size_t)(equals - assignment));
    char *key = spaces_trim(copy);
    int element;
    const setting *s = setting_find(key, &element);
    const char *text = equals + 1 + strspn(equals + 1, " ");
    bool is_flow = s && ((takes_pairs(s) && *text == '{') || (takes_list(s) && *text == '['));
    fsdp_translation fsdp = {0};
    if (!s) TRY_GOTO(rc, fsdp_translate(where, key, text, &fsdp), done);
    fsdp_warn(where, key, &fsdp);
    for (int i = 0; i < fsdp.n; i++)
        TRY_GOTO(rc,
                 setting_assign(c, setting_find(fsdp.settings[i], &element), WHOLE, fsdp.value, false, where, key,
                                ORIGIN_COMMAND),
                 done);
    if (fsdp.is_fsdp) goto done;
    if (s && !*text && !takes_nothing(s)) TRY_GOTO(rc, setting_refuse(s, where, key, "''"), done);
    if (is_flow) TRY_GOTO(rc, set_flow(c, s, text, where, key), done);
    else if (s) TRY_GOTO(rc, setting_assign(c, s, element, equals + 1, false, where, key, ORIGIN_COMMAND), done);
    else if (group_exists(key))
        rc = ERR(ERR_INPUT, "%s: '%s' is a group of settings; set one of them, such as %s.NAME=value", where, key, key);
    else TRY_GOTO(rc, config_unknown(where, key), done);
done:
    free(copy);
    return rc;
}

status config_get(const config *c, const char *key, strbuf *out, const char *where) {
    int element;
    const setting *s = setting_find(key, &element);
    if (!s && group_exists(key))
        return ERR(ERR_INPUT, "%s: '%s' is a group of settings; ask for one of them, such as %s.NAME", where, key, key);
    if (!s) return config_unknown(where, key);
    if (element == WHOLE) setting_write(c, s, false, out);
    else real_write(((const double *)setting_field(c, s))[element], out);
    return OK;
}

status config_offer(config *c, const char *key, const char *text, const char *where, const char *name,
                    config_offer_result *out) {
    int element;
    const setting *s = setting_find(key, &element);
    ASSERT(s != NULL);
    config alone; /* a value that is overridden must be in range too, and it may be the same in other words */
    strbuf ours, theirs;
    config_init(&alone);
    strbuf_init(&ours);
    strbuf_init(&theirs);
    status rc;
    TRY_GOTO(rc, setting_assign(&alone, s, element, text, false, where, name, ORIGIN_FOREIGN), done);
    if (c->origin[s - settings] == ORIGIN_DEFAULT) {
        TRY_GOTO(rc, setting_assign(c, s, element, text, false, where, name, ORIGIN_FOREIGN), done);
        *out = OFFER_TAKEN;
    } else {
        setting_write(c, s, false, &ours);
        setting_write(&alone, s, false, &theirs);
        *out = strcmp(ours.text, theirs.text) == 0 ? OFFER_SAME : OFFER_REFUSED;
    }
done:
    strbuf_fini(&ours);
    strbuf_fini(&theirs);
    config_fini(&alone);
    return rc;
}

void config_withdraw(config *c, const char *key) {
    int element;
    const setting *s = setting_find(key, &element);
    ASSERT(s != NULL);
    if (c->origin[s - settings] == ORIGIN_FOREIGN) c->origin[s - settings] = ORIGIN_DEFAULT;
}

bool config_knows(const char *key) {
    int element;
    return setting_find(key, &element) || group_exists(key);
}

bool config_has_key(const char *key, bool is_map) {
    int element;
    const setting *s = setting_find(key, &element);
    return is_map ? group_exists(key) : s && strcmp(s->key, key) == 0;
}

const char *config_given_by(const config *c, const char *key) {
    static const char *const names[] = {[ORIGIN_DEFAULT] = "the default",
                                        [ORIGIN_FOREIGN] = "another file",
                                        [ORIGIN_FILE] = "the config file",
                                        [ORIGIN_COMMAND] = "the command line"};
    int element;
    const setting *s = setting_find(key, &element);
    ASSERT(s != NULL);
    return names[c->origin[s - settings]];
}

bool config_was_given(const config *c, const char *key) {
    int element;
    const setting *s = setting_find(key, &element);
    ASSERT(s != NULL);
    return c->origin[s - settings] != ORIGIN_DEFAULT;
}

bool config_overrules(const config *c, const char *key, const char *other) {
    int element;
    const setting *a = setting_find(key, &element), *b = setting_find(other, &element);
    ASSERT(a && b);
    return c->origin[a - settings] > c->origin[b - settings];
}

const char *config_alias(const config *c, const char *key) {
    int element;
    const setting *s = setting_find(key, &element);
    ASSERT(s != NULL);
    return c->alias[s - settings];
}

size_t config_count(void) { return N_SETTINGS; }

const setting *setting_at(size_t row) { return row < N_SETTINGS ? &settings[row] : NULL; }

const char *config_key(size_t row) { return row < N_SETTINGS ? settings[row].key : NULL; }
