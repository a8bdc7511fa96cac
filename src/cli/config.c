/* config.c - from text to the config struct and back, driven by config.def.
 *
 * Files, --set and defaults go through one reader, and help, messages and the written YAML print the very range and
 * default that the reader obeys, so none of them can drift apart. Every map of a file may be nested or dotted.
 * Refused: unknown keys (with the nearest known one), a key given twice in one file under whatever spelling, numbers
 * that are not finite or not in range, text that is not UTF-8 (it could not be written back). */
#include "cli/config.h"
#include "cli/setting.h"
#include "cli/form.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <strings.h>

typedef enum origin { ORIGIN_DEFAULT, ORIGIN_FOREIGN, ORIGIN_FILE, ORIGIN_COMMAND } origin;

static const setting settings[] = {
#define SETTING(key, field, type, range, initial, word, aliases, help) \
    {key, offsetof(config, field), STORAGE_OF(config, field), TYPE_##type, range, initial, word, aliases, help},
#include "cli/config.def"
#undef SETTING
};
enum { N_SETTINGS = ARRAY_LENGTH(settings), MAX_TEXT = 4096, PAIR = 2, WHOLE = -1 };
_Static_assert(N_SETTINGS <= ARRAY_LENGTH(((config *)0)->origin), "config.origin has one byte per row");
_Static_assert(offsetof(config, train.beta2) == offsetof(config, train.beta1) + sizeof(double), "betas are a PAIR");
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
static int32_t utf8_next(const char **p) {
    const uint8_t *s = (const uint8_t *)*p;
    if (s[0] < 0x80) {
        *p += 1;
        return s[0];
    }
    int n = s[0] >= 0xf0 ? 4 : s[0] >= 0xe0 ? 3 : 2;
    static const int32_t least[] = {0, 0, 0x80, 0x800, 0x10000};
    if (s[0] < 0xc0 || s[0] > 0xf4) return -1;
    int32_t c = s[0] & (0xff >> (n + 1));
    for (int i = 1; i < n; i++) {
        if ((s[i] & 0xc0) != 0x80) return -1;
        c = c << 6 | (s[i] & 0x3f);
    }
    if (c < least[n] || c > 0x10ffff || (c >= 0xd800 && c <= 0xdfff)) return -1;
    *p += n;
    return c;
}

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
static bool setting_word(const setting *s, char word[32], const char **means) {
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

static int choice_find(const setting *s, const char *name) {
    char part[64];
    const char *rest = s->range;
    for (int i = 0; (rest = part_next(rest, '|', part, sizeof part)); i++)
        if (strcmp(part, name) == 0) return i;
    return -1;
}

static void setting_expected(const setting *s, strbuf *out) {
    char part[64], word[32];
    const char *rest = s->range, *means;
    switch (s->type) {
    case TYPE_BOOL: strbuf_add(out, "true or false"); break;
    case TYPE_INT: strbuf_printf(out, "a whole number in %s", s->range); break;
    case TYPE_REAL: strbuf_printf(out, "a number in %s", s->range); break;
    case TYPE_BYTES: strbuf_printf(out, "bytes in %s, such as 512M", s->range); break;
    case TYPE_TEXT:
        if (strcmp(s->range, "pairs") == 0) strbuf_add(out, "a map, or its pairs as text: name=value, name=value");
        else strbuf_add(out, strcmp(s->range, "some") == 0 ? "text that is not empty" : "text");
        break;
    case TYPE_PAIR: strbuf_printf(out, "a list of two numbers in %s", s->range); break;
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

static const setting *setting_find(const char *name, int *element) {
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

static const char *tail_of(const char *key) {
    const char *dot = strrchr(key, '.');
    return dot ? dot + 1 : key;
}

/* Typing errors are measured on the whole key; a right name in a wrong or missing map counts as one error more. */
static int key_distance(const char *given, const char *known) {
    return MIN(str_edit_distance(given, known), 1 + str_edit_distance(tail_of(given), tail_of(known)));
}

static status unknown_key(const char *where, const char *key) {
    char alias[64], best[64] = "";
    int least = MAX(2, (int)MIN(strlen(key), (size_t)255) / 4) + 1; /* farther than that is no typing error */
    for (size_t i = 0; i < N_SETTINGS; i++) {
        const setting *s = &settings[i];
        int d = key_distance(key, s->key);
        if (d < least) {
            least = d;
            snprintf(best, sizeof best, "%s", s->key);
        }
        for (const char *rest = s->aliases; (rest = part_next(rest, ' ', alias, sizeof alias));) {
            char *at = strchr(alias, '@');
            if (at) *at = 0;
            if ((d = key_distance(key, alias)) >= least) continue;
            least = d;
            snprintf(best, sizeof best, "%s", at ? alias : s->key);
        }
    }
    if (*best) return ERR(ERR_INPUT, "%s: unknown setting '%.100s'; did you mean '%s'?", where, key, best);
    return ERR(ERR_INPUT, "%s: unknown setting '%.100s'; `ralo help settings` lists them all", where, key);
}

/* ---- one value into the struct --------------------------------------------------------------------------------- */

static bool text_is_null(const char *text) {
    return *text == 0 || strcmp(text, "~") == 0 || strcasecmp(text, "null") == 0;
}

static void *field_of(const void *base, const setting *s) { return (char *)base + s->offset; }

static void whole_store(void *base, const setting *s, int64_t whole) {
    void *field = field_of(base, s);
    switch (s->storage) {
    case STORE_I32: memcpy(field, &(int32_t){(int32_t)whole}, sizeof(int32_t)); return;
    case STORE_I64: *(int64_t *)field = whole; return;
    case STORE_U64: *(uint64_t *)field = (uint64_t)whole; return;
    default: ASSERT(!"a whole number in a field of another kind");
    }
}

static int64_t whole_load(const config *c, const setting *s) {
    const void *field = field_of(c, s);
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
    ((double *)field_of(base, s))[element] = x;
    return true;
}

static bool form_store(const setting *s, void *base, arena *memory, const char *text, const char *word_value) {
    strbuf form;
    strbuf_init(&form);
    bool taken = strlen(text) < MAX_TEXT && text_is_utf8(text);
    if (taken && word_value && strcmp(text, word_value) == 0) strbuf_add(&form, text);
    else taken = taken && form_read(s->range, text, &form);
    if (taken) *(const char **)field_of(base, s) = arena_string(memory, form.text);
    strbuf_fini(&form);
    return taken;
}

/* Puts `text` into the row's field; false when the row does not take it. word_value: the text the row's word stands
 * for, which is taken whatever the range says; NULL without a word. text is scratch. */
static bool value_store(const setting *s, void *base, arena *memory, int element, char *text, const char *word_value) {
    int64_t whole, special;
    double real, zero;
    bool flag;
    char *parts[PAIR];
    switch (s->type) {
    case TYPE_BOOL:
        if (!bool_read(text, &flag)) return false;
        *(bool *)field_of(base, s) = flag;
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
        *(double *)field_of(base, s) = real;
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
        if (*text == 0 && strcmp(s->range, "some") == 0 && !(word_value && *word_value == 0)) return false;
        *(const char **)field_of(base, s) = arena_string(memory, text);
        return true;
    case TYPE_PAIR:
        if (element != WHOLE) return real_store(base, s, element, text);
        if (!pair_split(text, parts)) return false;
        return real_store(base, s, 0, parts[0]) && real_store(base, s, 1, parts[1]);
    case TYPE_FORM: return form_store(s, base, memory, text, word_value);
    }
    return false;
}

static status setting_refuse(const setting *s, const char *where, const char *key, const char *found) {
    strbuf expected;
    strbuf_init(&expected);
    setting_expected(s, &expected);
    status rc = ERR(ERR_INPUT, "%s: %s: found %.200s, expected %s", where, key, found, expected.text);
    strbuf_fini(&expected);
    return rc;
}

status setting_store(const setting *s, void *base, arena *memory, int element, const char *text, bool quoted,
                     const char *where, const char *key) {
    char word[32];
    const char *means = NULL;
    bool has_word = setting_word(s, word, &means);
    bool literal = quoted && s->type == TYPE_TEXT;
    if (has_word && !literal && (strcmp(text, word) == 0 || (!quoted && text_is_null(text)))) text = means;

    char *copy = mem_alloc(strlen(text) + 1);
    memcpy(copy, text, strlen(text));
    bool taken =
        value_store(s, base, memory, element, s->type == TYPE_TEXT ? copy : spaces_trim(copy), has_word ? means : NULL);
    free(copy);
    if (taken) return OK;
    if (!text_is_utf8(text)) return setting_refuse(s, where, key, "bytes that are not UTF-8");
    char found[256];
    snprintf(found, sizeof found, "'%.180s'%s", text, strlen(text) >= MAX_TEXT ? "... (too long)" : "");
    return setting_refuse(s, where, key, found);
}

/* key: as the user spelled it. */
static status setting_assign(config *c, const setting *s, int element, const char *text, bool quoted, const char *where,
                             const char *key, origin from) {
    TRY(setting_store(s, c, &c->memory_of_strings, element, text, quoted, where, key));
    c->origin[s - settings] = (unsigned char)from;
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
        if (settings[i].storage != STORE_TEXT) continue;
        const char **text = field_of(out, &settings[i]);
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
} file_reader;

/* A list of two scalars as the text "[a, b]", which is what the row's own reader takes. */
static const char *list_text(const yaml_node *list, arena *memory) {
    const yaml_node *a = list->first_child, *b = a ? a->next : NULL;
    if (!b || b->next || a->kind != YAML_SCALAR || b->kind != YAML_SCALAR) return NULL;
    return arena_format(memory, "[%s, %s]", a->text, b->text);
}

static bool takes_pairs(const setting *s) { return s->type == TYPE_TEXT && strcmp(s->range, "pairs") == 0; }

/* A map of scalars as the text "a=b, c=d". */
static const char *map_text(const yaml_node *map, arena *memory) {
    const char *text = "";
    for (const yaml_node *n = map->first_child; n; n = n->next) {
        if (n->kind != YAML_SCALAR || strpbrk(n->key, "=,") || strpbrk(n->text, "=,")) return NULL;
        text = arena_format(memory, "%s%s%s=%s", text, *text ? ", " : "", n->key, n->text);
    }
    return *text ? text : NULL;
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
    } else if (n->kind == YAML_MAP && takes_pairs(s)) {
        if (!(text = map_text(n, r->memory)))
            return setting_refuse(s, where, key, "a map with something else than text");
    } else if (n->kind == YAML_MAP && s->type == TYPE_FORM) {
        if (!(text = form_from_map(n, r->memory)))
            return setting_refuse(s, where, key, "a map that does not have exactly one entry with a value or a list");
    } else if (n->kind != YAML_SCALAR) {
        return setting_refuse(s, where, key, n->kind == YAML_MAP ? "a map" : "a list");
    }
    return setting_assign(r->c, s, element, text, n->quoted, where, key, ORIGIN_FILE);
}

static status file_walk(file_reader *r, const yaml_node *map, const char *prefix) {
    for (const yaml_node *n = map->first_child; n; n = n->next) {
        const char *key = *prefix ? arena_format(r->memory, "%s.%s", prefix, n->key) : n->key;
        const char *where = arena_format(r->memory, "%s:%d", r->path, n->line);
        int element;
        const setting *s = setting_find(key, &element);
        if (s) {
            TRY(file_assign(r, s, element, n, key));
        } else if (n->kind == YAML_MAP && n->first_child) {
            TRY(file_walk(r, n, key)); /* an unknown map is reported by its first setting, where a guess can be made */
        } else if (!group_exists(key)) {
            return unknown_key(where, key);
        } else if (n->kind == YAML_LIST || (n->kind == YAML_SCALAR && (n->quoted || !text_is_null(n->text)))) {
            return ERR(ERR_INPUT, "%s: '%s' is a group of settings: found %s, expected a map", where, key,
                       n->kind == YAML_LIST ? "a list" : "a single value");
        }
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
    rc = file_walk(r, root, "");
    if (rc != OK) error_trail(rc, __FILE__, __LINE__, __func__);
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
    if (s) TRY_GOTO(rc, setting_assign(c, s, element, equals + 1, false, where, key, ORIGIN_COMMAND), done);
    else if (group_exists(key))
        rc = ERR(ERR_INPUT, "%s: '%s' is a group of settings; set one of them, such as %s.NAME=value", where, key, key);
    else TRY_GOTO(rc, unknown_key(where, key), done);
done:
    free(copy);
    return rc;
}

static void real_write(double x, strbuf *out);
static void value_write(const config *c, const setting *s, bool yaml, strbuf *out);

status config_get(const config *c, const char *key, strbuf *out, const char *where) {
    int element;
    const setting *s = setting_find(key, &element);
    if (!s && group_exists(key))
        return ERR(ERR_INPUT, "%s: '%s' is a group of settings; ask for one of them, such as %s.NAME", where, key, key);
    if (!s) return unknown_key(where, key);
    if (element == WHOLE) value_write(c, s, false, out);
    else real_write(((const double *)field_of(c, s))[element], out);
    return OK;
}

status config_offer(config *c, const char *key, const char *text, const char *where, const char *name,
                    config_offer_result *out) {
    int element;
    const setting *s = setting_find(key, &element);
    ASSERT(s != NULL);
    config alone; /* a value that gives way must be in range too, and it may say the same in other words */
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
        value_write(c, s, false, &ours);
        value_write(&alone, s, false, &theirs);
        *out = strcmp(ours.text, theirs.text) == 0 ? OFFER_SAME : OFFER_REFUSED;
    }
done:
    strbuf_fini(&ours);
    strbuf_fini(&theirs);
    config_fini(&alone);
    return rc;
}

bool config_knows(const char *key) {
    int element;
    return setting_find(key, &element) || group_exists(key);
}

const char *config_said_by(const config *c, const char *key) {
    static const char *const names[] = {[ORIGIN_DEFAULT] = "the default",
                                        [ORIGIN_FOREIGN] = "another file",
                                        [ORIGIN_FILE] = "the config file",
                                        [ORIGIN_COMMAND] = "the command line"};
    int element;
    const setting *s = setting_find(key, &element);
    ASSERT(s != NULL);
    return names[c->origin[s - settings]];
}

/* ---- what single ranges cannot say ----------------------------------------------------------------------------- */

/* A value that was given but says what holds anyway is no mistake: saved and annotated configs name every setting. */
static bool differs_from_default(const config *c, const char *key) {
    int element;
    const setting *s = setting_find(key, &element);
    config fresh;
    strbuf ours, theirs;
    config_init(&fresh);
    strbuf_init(&ours);
    strbuf_init(&theirs);
    value_write(c, s, true, &ours);
    value_write(&fresh, s, true, &theirs);
    bool differs = strcmp(ours.text, theirs.text) != 0;
    strbuf_fini(&ours);
    strbuf_fini(&theirs);
    config_fini(&fresh);
    return differs;
}

static void warn_if_given(const config *c, const char *key, bool has_effect, const char *why) {
    if (!has_effect && config_was_given(c, key) && differs_from_default(c, key))
        log_warn("%s has no effect: %s", key, why);
}

static void config_name_idle(const config *c) {
    bool fp16 = c->precision == PRECISION_FP16, dynamic = fp16 && c->train.loss_scale == 0;
    bool builtin = str_starts_with(c->data.source, "builtin:");
    warn_if_given(c, "train.fp16.loss_scale", fp16, "precision is not fp16");
    warn_if_given(c, "train.fp16.initial_scale_power", dynamic, "there is no dynamic loss scale");
    warn_if_given(c, "train.fp16.loss_scale_window", dynamic, "there is no dynamic loss scale");
    warn_if_given(c, "train.fp16.hysteresis", dynamic, "there is no dynamic loss scale");
    warn_if_given(c, "train.fp16.consecutive_hysteresis", dynamic, "there is no dynamic loss scale");
    warn_if_given(c, "train.fp16.min_loss_scale", dynamic, "there is no dynamic loss scale");
    warn_if_given(c, "train.decay_share", c->train.schedule == SCHEDULE_WSD, "train.schedule is not wsd");
    bool warms = c->train.warmup > 0 || c->train.style == STYLE_DEEPSPEED;
    warn_if_given(c, "train.warmup_kind", warms, "train.warmup is 0");
    warn_if_given(c, "train.warmup_min_lr", warms, "train.warmup is 0");
    warn_if_given(c, "train.schedule_steps", c->train.schedule != SCHEDULE_CONSTANT, "train.schedule is constant");
    warn_if_given(c, "train.min_lr_ratio", c->train.schedule != SCHEDULE_CONSTANT, "train.schedule is constant");
    warn_if_given(c, "data.difficulty", strcmp(c->data.source, "builtin:arithmetic") == 0,
                  "data.source is not builtin:arithmetic");
    static const char *const of_files[] = {"data.format", "data.prompt_column", "data.response_column", "data.train_on",
                                           "data.chat",   "data.on_error",      "data.max_line",        "data.cache"};
    for (size_t i = 0; i < ARRAY_LENGTH(of_files); i++)
        warn_if_given(c, of_files[i], !builtin, "a built-in data.source reads no files");
    warn_if_given(c, "data.eval_fraction", !builtin, "a built-in data.source makes its own held-out rows");
}

const char *config_preset(const config *c) {
    if (*c->model.path) return NULL;
    return *c->model.preset ? c->model.preset : "arithmetic-tiny";
}

/* A directory says all about its model: nothing beside it may. */
static status check_model(const config *c) {
    if (*c->model.path == 0) {
        if (c->model.init == INIT_PRETRAINED)
            return ERR(ERR_INPUT,
                       "model.init is pretrained but model.path is not given: presets have no weights; set model.path");
        return OK;
    }
    if (*c->model.preset)
        return ERR(ERR_INPUT, "model.path (%s) and model.preset (%s) are both given; keep one of them", c->model.path,
                   c->model.preset);
    const struct {
        const char *key;
        bool given;
    } sizes[] = {{"layers", c->model.layers},     {"hidden", c->model.hidden},     {"heads", c->model.heads},
                 {"kv_heads", c->model.kv_heads}, {"head_dim", c->model.head_dim}, {"ffn", c->model.ffn},
                 {"vocab", c->model.vocab},       {"tied", c->model.tied >= 0}};
    for (size_t i = 0; i < ARRAY_LENGTH(sizes); i++)
        if (sizes[i].given)
            return ERR(ERR_INPUT,
                       "model.%s is given beside model.path: the sizes of that model stand in %s/config.json; leave "
                       "model.%s out",
                       sizes[i].key, c->model.path, sizes[i].key);
    return OK;
}

/* Each axis may be as long as all ranks together; their product is an int everywhere else. */
static status check_mesh(const config *c) {
    enum { RANKS_MOST = 65536 };
    const int *size = c->parallel.size;
    int64_t n = 1;
    for (axis a = 0; a < AXIS_COUNT && n <= RANKS_MOST; a++) n *= MAX(size[a], 1);
    if (n <= RANKS_MOST) return OK;
    return ERR(ERR_INPUT,
               "parallel.*: found data %d x tensor %d x pipeline %d x sequence %d, expected at most %d ranks in all; "
               "lower one of them",
               MAX(size[AXIS_DATA], 1), size[AXIS_TENSOR], size[AXIS_PIPELINE], MAX(size[AXIS_SEQUENCE], 1),
               RANKS_MOST);
}

status config_check(const config *c) {
    const train_options *t = &c->train;
    TRY(check_model(c));
    TRY(check_mesh(c));
    int64_t end = t->schedule_steps ? t->schedule_steps : t->steps;
    const char *end_key = t->schedule_steps ? "train.schedule_steps" : "train.steps";
    if (t->warmup > 0 && t->warmup >= end && t->schedule != SCHEDULE_CONSTANT)
        return ERR(ERR_INPUT,
                   "train.warmup is %lld and %s is %lld: nothing would be left for the schedule; "
                   "lower train.warmup to less than %lld",
                   (long long)t->warmup, end_key, (long long)end, (long long)end);
    if (t->schedule == SCHEDULE_WSD && (double)t->warmup + t->decay_share * (double)end > (double)end)
        return ERR(ERR_INPUT, "train.warmup (%lld) and train.decay_share (%g of %lld steps) overlap; lower one of them",
                   (long long)t->warmup, t->decay_share, (long long)end);
    if (t->schedule == SCHEDULE_WSD && t->style == STYLE_DEEPSPEED)
        return ERR(ERR_INPUT,
                   "train.schedule is wsd and train.schedule_style is deepspeed, which has no such schedule; "
                   "use constant, linear or cosine");
    if (t->warmup_min_lr > t->lr)
        return ERR(ERR_INPUT, "train.warmup_min_lr is %g, above train.lr (%g); lower it", t->warmup_min_lr, t->lr);
    if (c->precision == PRECISION_FP16 && t->loss_scale == 0 &&
        t->min_loss_scale > ldexp(1, (int)t->initial_scale_power))
        return ERR(ERR_INPUT,
                   "train.fp16.min_loss_scale is %g, above the first scale of 2^%lld; lower it or raise "
                   "train.fp16.initial_scale_power",
                   t->min_loss_scale, (long long)t->initial_scale_power);
    if (c->model.heads && c->model.kv_heads && c->model.heads % c->model.kv_heads != 0)
        return ERR(ERR_INPUT,
                   "model.kv_heads (%lld) does not divide model.heads (%lld): every key head serves the same "
                   "number of query heads",
                   (long long)c->model.kv_heads, (long long)c->model.heads);
    int64_t rows, tokens;
    if (__builtin_mul_overflow(t->micro_batch, c->data.seq_len, &rows) || rows > INT32_MAX ||
        __builtin_mul_overflow(rows, t->accumulation, &tokens))
        return ERR(ERR_INPUT,
                   "train.micro_batch (%lld) times data.seq_len (%lld) is more than the %d tokens of one "
                   "micro-batch; use train.accumulation instead",
                   (long long)t->micro_batch, (long long)c->data.seq_len, INT32_MAX);
    if (strcmp(c->run.resume, "auto") == 0 && *c->run.dir == 0)
        return ERR(ERR_INPUT, "run.resume is auto but run.dir is not given: a new directory has nothing to resume; "
                              "set run.dir");
    config_name_idle(c);
    return OK;
}

bool config_was_given(const config *c, const char *key) {
    int element;
    const setting *s = setting_find(key, &element);
    ASSERT(s != NULL);
    return c->origin[s - settings] != ORIGIN_DEFAULT;
}

/* ---- struct to text -------------------------------------------------------------------------------------------- */

/* The shortest decimal that reads back to the same double. */
static void real_write(double x, strbuf *out) {
    char text[40];
    for (int digits = 6; digits <= 17; digits++) {
        snprintf(text, sizeof text, "%.*g", digits, x);
        if (strtod(text, NULL) == x) break;
    }
    strbuf_add(out, text);
}

static void bytes_write(int64_t n_bytes, strbuf *out) {
    static const char units[] = "KMGTP";
    int unit = 0;
    for (; n_bytes && n_bytes % 1024 == 0 && units[unit]; unit++) n_bytes /= 1024;
    strbuf_printf(out, "%lld%.1s", (long long)n_bytes, unit ? &units[unit - 1] : "");
}

/* May the text stand without quotes, and mean the same to any YAML reader? */
static bool text_is_plain(const char *text, const char *word) {
    double real;
    bool flag;
    size_t length = strlen(text);
    if (length == 0 || strspn(text, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-+./:") != length)
        return false;
    if (strchr("-+:.", text[0]) || text[length - 1] == ':') return false;
    return !text_is_null(text) && !bool_read(text, &flag) && !real_read(text, &real) && strcmp(text, word) != 0;
}

/* In quotes everything outside printable YAML is escaped, and so is what some readers take for a line break. */
static void text_write_quoted(const char *text, strbuf *out) {
    strbuf_add(out, "\"");
    while (*text) {
        const char *start = text;
        int32_t c = utf8_next(&text);
        ASSERT(c >= 0); /* checked when it was set */
        if (c == '"' || c == '\\') strbuf_printf(out, "\\%c", c);
        else if (c == '\n') strbuf_add(out, "\\n");
        else if (c == '\t') strbuf_add(out, "\\t");
        else if (c < 0x20 || (c >= 0x7f && c < 0xa0) || c == 0x2028 || c == 0x2029 || c == 0xfeff || (c | 1) == 0xffff)
            strbuf_printf(out, "\\u%04X", (unsigned)c);
        else strbuf_add_bytes(out, start, (size_t)(text - start));
    }
    strbuf_add(out, "\"");
}

/* yaml: quoted where a reader of YAML would take the text for something else. */
static void value_write(const config *c, const setting *s, bool yaml, strbuf *out) {
    char word[32] = "", part[64];
    const char *means = NULL;
    bool has_word = setting_word(s, word, &means);
    int64_t special;
    double zero;
    if (s->storage == STORE_I32 || s->storage == STORE_I64 || s->storage == STORE_U64) {
        int64_t whole = whole_load(c, s);
        if (has_word && int_read(means, &special) && whole == special) {
            strbuf_add(out, word);
        } else if (s->type == TYPE_CHOICE) {
            const char *rest = s->range;
            for (int64_t i = 0; (rest = part_next(rest, '|', part, sizeof part)) && i < whole; i++) {}
            ASSERT(rest != NULL);
            strbuf_add(out, part);
        } else if (s->type == TYPE_BYTES) {
            bytes_write(whole, out);
        } else {
            strbuf_printf(out, "%lld", (long long)whole);
        }
    } else if (s->storage == STORE_F64) {
        const double *x = field_of(c, s);
        if (s->type == TYPE_PAIR) strbuf_add(out, "[");
        if (has_word && real_read(means, &zero) && *x == zero) strbuf_add(out, word);
        else real_write(x[0], out);
        if (s->type != TYPE_PAIR) return;
        strbuf_add(out, ", ");
        real_write(x[1], out);
        strbuf_add(out, "]");
    } else if (s->storage == STORE_TEXT) {
        const char *text = *(const char *const *)field_of(c, s);
        if (has_word && strcmp(text, means) == 0) strbuf_add(out, word);
        else if (s->type == TYPE_FORM) form_write(text, out);
        else if (!yaml || text_is_plain(text, word)) strbuf_add(out, text);
        else text_write_quoted(text, out);
    } else {
        strbuf_add(out, *(const bool *)field_of(c, s) ? "true" : "false");
    }
}

/* "a number in (0, 10]; default 0.003; also train.learning_rate" */
static void setting_facts(const setting *s, strbuf *out) {
    setting_expected(s, out);
    strbuf_printf(out, "; default %s", s->initial);
    char alias[64];
    const char *rest = s->aliases;
    for (int i = 0; (rest = part_next(rest, ' ', alias, sizeof alias)); i++)
        strbuf_printf(out, "%s%.*s", i ? ", " : "; also ", (int)strcspn(alias, "@"), alias);
}

/* Opens the maps that `key` stands in and `previous` did not, and returns its depth. */
static int maps_open(const char *previous, const char *key, FILE *out) {
    size_t shared = 0; /* characters of whole map names that both keys begin with */
    for (size_t i = 0; previous[i] && previous[i] == key[i]; i++)
        if (key[i] == '.') shared = i + 1;
    int depth = 0;
    for (size_t i = 0, start = 0; key[i]; i++) {
        if (key[i] != '.') continue;
        if (i >= shared) fprintf(out, "%*s%.*s:\n", 2 * depth, "", (int)(i - start), key + start);
        start = i + 1;
        depth++;
    }
    return depth;
}

void config_write_yaml(const config *c, FILE *out, bool annotated) {
    strbuf text;
    strbuf_init(&text);
    const char *previous = "";
    if (annotated)
        fprintf(out, "# Every setting of ralo. Maps may be nested, as here, or written with dots: train.lr: 3e-4\n");
    for (size_t i = 0; i < N_SETTINGS; i++) {
        const setting *s = &settings[i];
        if (annotated && strncmp(s->key, previous, strcspn(s->key, ".") + 1) != 0) fputc('\n', out);
        int depth = maps_open(previous, s->key, out);
        if (annotated) {
            setting_facts(s, &text);
            fprintf(out, "%*s# %s\n%*s# (%s)\n", 2 * depth, "", s->help, 2 * depth, "", text.text);
            text.length = 0;
        }
        value_write(c, s, true, &text);
        fprintf(out, "%*s%s: %s\n", 2 * depth, "", tail_of(s->key), text.text);
        text.length = 0;
        previous = s->key;
    }
    strbuf_fini(&text);
}

void config_print_help(FILE *out) {
    strbuf facts;
    strbuf_init(&facts);
    const char *previous = "";
    for (size_t i = 0; i < N_SETTINGS; i++) {
        const setting *s = &settings[i];
        if (i && strncmp(s->key, previous, strcspn(s->key, ".") + 1) != 0) fputc('\n', out);
        setting_facts(s, &facts);
        fprintf(out, "  %-31s %s\n  %31s (%s)\n", s->key, s->help, "", facts.text);
        facts.length = 0;
        previous = s->key;
    }
    strbuf_fini(&facts);
}

size_t config_count(void) { return N_SETTINGS; }

const setting *setting_at(size_t row) { return row < N_SETTINGS ? &settings[row] : NULL; }

const char *config_key(size_t row) { return row < N_SETTINGS ? settings[row].key : NULL; }
