/* config_write.c - from the config struct to text: the YAML of a run, the annotated default, the help.
 *
 * The output reads back to the same struct: numbers in the fewest digits that do, text in quotes where a YAML reader
 * would take it for something else. */
#include "settings/config.h"
#include "settings/setting.h"
#include "settings/form.h"

#include <stdlib.h>

void real_write(double x, strbuf *out) {
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

/* yaml: quoted where a reader of YAML would take the text for something else. */
void setting_write(const void *base, const setting *s, bool yaml, strbuf *out) {
    char word[32] = "", part[64];
    const char *means = NULL;
    bool has_word = setting_word(s, word, &means);
    int64_t special;
    double zero;
    if (s->storage == STORE_I32 || s->storage == STORE_I64 || s->storage == STORE_U64) {
        int64_t whole = setting_whole(base, s);
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
        const double *x = setting_field(base, s);
        if (s->type == TYPE_PAIR) strbuf_add(out, "[");
        if (has_word && real_read(means, &zero) && *x == zero) strbuf_add(out, word);
        else real_write(x[0], out);
        if (s->type != TYPE_PAIR) return;
        strbuf_add(out, ", ");
        real_write(x[1], out);
        strbuf_add(out, "]");
    } else if (s->storage == STORE_TEXT) {
        const char *text = *(const char *const *)setting_field(base, s);
        if (has_word && strcmp(text, means) == 0) strbuf_add(out, word);
        else if (s->type == TYPE_FORM) form_write(text, out);
        else if (!yaml || text_is_plain(text, word)) strbuf_add(out, text);
        else yaml_write_quoted(text, out);
    } else {
        strbuf_add(out, *(const bool *)setting_field(base, s) ? "true" : "false");
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
    const setting *s;
    for (size_t i = 0; (s = setting_at(i)); i++) {
        if (annotated && strncmp(s->key, previous, strcspn(s->key, ".") + 1) != 0) fputc('\n', out);
        int depth = maps_open(previous, s->key, out);
        if (annotated) {
            setting_facts(s, &text);
            fprintf(out, "%*s# %s\n%*s# (%s)\n", 2 * depth, "", s->help, 2 * depth, "", text.text);
            text.length = 0;
        }
        setting_write(c, s, true, &text);
        fprintf(out, "%*s%s: %s\n", 2 * depth, "", str_after_last_dot(s->key), text.text);
        text.length = 0;
        previous = s->key;
    }
    strbuf_fini(&text);
}

static bool matches_topic(const setting *s, const char *topic) {
    int element;
    size_t n = strlen(topic);
    return n == 0 || setting_find(topic, &element) == s || (str_starts_with(s->key, topic) && s->key[n] == '.');
}

void config_print_help(FILE *out, const char *topic) {
    strbuf facts;
    strbuf_init(&facts);
    const char *previous = "";
    const setting *s;
    for (size_t i = 0; (s = setting_at(i)); i++) {
        if (!matches_topic(s, topic)) continue;
        if (*previous && strncmp(s->key, previous, strcspn(s->key, ".") + 1) != 0) fputc('\n', out);
        setting_facts(s, &facts);
        fprintf(out, "  %-31s %s\n  %31s (%s)\n", s->key, s->help, "", facts.text);
        facts.length = 0;
        previous = s->key;
    }
    strbuf_fini(&facts);
}

/* A place of this machine, or an address that may hold a password. */
static bool is_private(const char *key, const char *value) {
    static const char *const keys[] = {"run.dir", "run.export", "run.resume", "run.name"};
    for (size_t i = 0; i < ARRAY_LENGTH(keys); i++)
        if (strcmp(key, keys[i]) == 0) return true;
    return str_starts_with(key, "track.") || str_starts_with(key, "live.") || strstr(value, "://");
}

void config_write_changes(const void *c, strbuf *out) {
    config usual;
    strbuf ours, theirs;
    config_init(&usual);
    strbuf_init(&ours);
    strbuf_init(&theirs);
    for (size_t i = 0; config_key(i); i++) {
        const char *key = config_key(i);
        ours.length = theirs.length = 0;
        strbuf_add(&ours, "");
        strbuf_add(&theirs, "");
        status rc = config_get(c, key, &ours, "");
        if (rc == OK) rc = config_get(&usual, key, &theirs, "");
        ASSERT(rc == OK);
        if (strcmp(ours.text, theirs.text) != 0 && !is_private(key, ours.text))
            strbuf_printf(out, "%s: %s\n", key, ours.text);
    }
    strbuf_fini(&ours);
    strbuf_fini(&theirs);
    config_fini(&usual);
}
