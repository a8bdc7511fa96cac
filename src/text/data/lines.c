/* lines.c - lines of JSON Lines, and elements of a JSON list and rows of a table as such lines.
 *
 * A cell is a string, whatever it looks like, but for these, as their keys never hold text:
 *     messages, conversations, tools, chat_template_kwargs   JSON (chat_template_kwargs and tools: an empty cell is no key)
 *     is_correct, label, or what the settings name           true, false, 1 or 0, in any case of letters
 *     prompt, completion, chosen, rejected, or what the settings name    JSON where it is a list of {"role", "content"}
 * What cannot be read like that stays a string, and whoever needs more says so with line and key. */
#include "data/lines.h"
#include "data/record_parts.h"

#include <stdlib.h>
#include <string.h>
#include <strings.h>

static bool is_name(span name, const char *text) {
    return strlen(text) == name.length && memcmp(name.text, text, name.length) == 0;
}

static bool is_one_of(span name, const char *const *names, size_t n) {
    for (size_t i = 0; i < n; i++)
        if (names[i] && *names[i] && is_name(name, names[i])) return true;
    return false;
}

static json_t *load(span cell) {
    return json_loadb(cell.text, cell.length, JSON_REJECT_DUPLICATES | JSON_ALLOW_NUL, NULL);
}

/* A list of turns, as JSON in a cell; else NULL. */
static json_t *read_turns(span cell) {
    if (cell.length < 2 || cell.text[0] != '[') return NULL;
    json_t *list = load(cell), *turn;
    size_t i, n_turns = 0;
    json_array_foreach(list, i, turn) n_turns += json_object_get(turn, "role") && json_object_get(turn, "content");
    if (n_turns > 0 && n_turns == json_array_size(list)) return list;
    json_decref(list);
    return NULL;
}

static json_t *read_bool(span cell) {
    static const struct {
        const char *word;
        bool is_true;
    } words[] = {{"true", true}, {"1", true}, {"false", false}, {"0", false}};
    for (size_t i = 0; i < ARRAY_LENGTH(words); i++)
        if (cell.length == strlen(words[i].word) && strncasecmp(cell.text, words[i].word, cell.length) == 0)
            return json_boolean(words[i].is_true);
    return NULL;
}

/* NULL: a key that is absent. */
static json_t *read_cell(const record_options *o, span name, span cell) {
    static const char *const lists[] = {"messages", "conversations"}, *const beside[] = {"tools",
                                                                                         "chat_template_kwargs"};
    const char *const truths[] = {"is_correct", "label", o->correct_column, o->label_column};
    const char *const answers[] = {"prompt",         "completion",       "chosen",         "rejected",
                                   o->prompt_column, o->response_column, o->chosen_column, o->rejected_column};
    json_t *v = NULL;
    if (is_one_of(name, beside, ARRAY_LENGTH(beside)) && cell.length == 0) return NULL;
    if (is_one_of(name, lists, ARRAY_LENGTH(lists)) || is_one_of(name, beside, ARRAY_LENGTH(beside))) v = load(cell);
    else if (is_one_of(name, truths, ARRAY_LENGTH(truths))) v = read_bool(cell);
    else if (is_one_of(name, answers, ARRAY_LENGTH(answers))) v = read_turns(cell);
    return v ? v : json_stringn(cell.length ? cell.text : "", cell.length);
}

static int append(const char *text, size_t n_bytes, void *context) {
    strbuf_add_bytes(context, text, n_bytes);
    return 0;
}

static void write_object(record_lines *l) {
    json_t *object = json_object();
    for (size_t i = 0; i < csv_columns(l->table); i++) {
        span name = csv_name(l->table, i);
        if (name.length == 0) continue; /* pandas' index */
        json_t *v = read_cell(l->options, name, csv_cell(l->table, i));
        if (!v) continue;
        char *key = mem_alloc(name.length + 1); /* no NUL in it: the header was checked */
        memcpy(key, name.text, name.length);
        json_object_set_new(object, key, v);
        free(key);
    }
    l->object.length = 0;
    json_dump_callback(object, append, &l->object, JSON_COMPACT);
    json_decref(object);
}

/* ---- the face ---------------------------------------------------------------------------------------------------- */

status record_lines_open(record_lines *l, reader *in, const record_options *o) {
    *l = (record_lines){.in = in, .options = o};
    strbuf_init(&l->object);
    data_format f = data_format_of(in->path, o->format);
    uint64_t most = o->max_line ? o->max_line : RECORD_MAX_LINE;
    if (f == FORMAT_CSV || f == FORMAT_TSV) return csv_open(&l->table, in, f == FORMAT_CSV ? ',' : '\t', most);
    TRY(json_list_begins(in, &l->is_list));
    if (l->is_list) json_list_open(&l->list, in, most);
    return OK;
}

void record_lines_close(record_lines *l) {
    csv_close(l->table);
    json_list_close(&l->list);
    strbuf_fini(&l->object);
    *l = (record_lines){0};
}

status record_lines_next(record_lines *l, line *out, bool *found) {
    const char *problem;
    if (!record_lines_are_made(l))
        return reader_line(l->in, l->options->max_line ? l->options->max_line : RECORD_MAX_LINE, out, found);
    if (l->is_list) TRY(json_list_next(&l->list, out, &problem, found));
    else TRY(csv_row(l->table, out, &problem, found));
    if (!*found || out->too_long) return OK;
    out->is_wrong = problem != NULL;
    if (problem) out->text = (span){problem, strlen(problem)};
    else if (!l->is_list) {
        write_object(l);
        out->text = (span){l->object.text, l->object.length};
    }
    return OK;
}

bool record_lines_are_made(const record_lines *l) { return l->table || l->is_list; }

status record_line_check(const char *path, const line *l, const record_options *o) {
    if (l->too_long) return record_too_long(path, l->number, l->n_bytes, o);
    if (l->is_wrong)
        return ERR(ERR_INPUT, "%s:%llu: %.*s" SKIP_HINT, path, (unsigned long long)l->number,
                   (int)MIN(l->text.length, (size_t)800), l->text.text);
    return OK;
}

const char *record_file_expected(const char *path, const record_options *o) {
    return data_format_of(path, o->format) == FORMAT_JSONL ? "JSON objects, one on each line, or a list of them"
                                                           : "rows under the one that names the columns";
}
