/* yaml.c - a YAML file as a tree of nodes that know their line and column.
 *
 * We read libyaml's events and build the tree ourselves: the depth is bounded before a level is entered, and what a
 * configuration file does not need is refused instead of half understood: aliases and anchors (a few lines of them
 * expand to gigabytes), tags, keys that are not plain text, a second document, a NUL inside a text. Types are not
 * guessed here: a scalar stays text, and whoever wants a number parses it. */
#include "format/format.h"

#include <stdlib.h>
#include <yaml.h>

#define YAML_MAX_BYTES ((size_t)4 << 20)
#define YAML_MAX_DEPTH 32

typedef struct reader {
    yaml_parser_t parser;
    yaml_event_t event; /* the one being looked at; owned until the next */
    bool has_event;
    const char *where;
    const char *text;
    size_t n_bytes;
    arena *memory;
} reader;

#define AT(mark) (int)(mark).line + 1, (int)(mark).column + 1
#define START(r) AT((r)->event.start_mark)

/* libyaml knows only a byte offset when the bytes themselves are wrong. */
static void position_of(const reader *r, size_t offset, int *line, int *column) {
    *line = *column = 1;
    for (size_t i = 0; i < MIN(offset, r->n_bytes); i++) {
        *column += ((unsigned char)r->text[i] & 0xc0) != 0x80; /* characters, not bytes */
        if (r->text[i] == '\n') {
            ++*line;
            *column = 1;
        }
    }
}

static status parser_error(const reader *r) {
    const yaml_parser_t *p = &r->parser;
    const char *problem = p->problem ? p->problem : "the parser stopped";
    if (p->error == YAML_MEMORY_ERROR)
        return ERR(ERR_RUN, "%s: no memory to parse %zu bytes of YAML", r->where, r->n_bytes);
    if (p->error == YAML_READER_ERROR) {
        int line, column;
        position_of(r, p->problem_offset, &line, &column);
        return ERR(ERR_INPUT, "%s:%d:%d: %s (found 0x%x; expected text in UTF-8)", r->where, line, column, problem,
                   (unsigned)p->problem_value);
    }
    size_t at = p->problem_mark.index;
    if (p->error == YAML_SCANNER_ERROR && at < r->n_bytes && r->text[at] == '\t')
        return ERR(ERR_INPUT,
                   "%s:%d:%d: found a tab, expected spaces: YAML indents with spaces only (expand -t 2 FILE)", r->where,
                   AT(p->problem_mark));
    if (p->context)
        return ERR(ERR_INPUT, "%s:%d:%d: %s, %s that began at line %d, column %d", r->where, AT(p->problem_mark),
                   problem, p->context, AT(p->context_mark));
    return ERR(ERR_INPUT, "%s:%d:%d: %s", r->where, AT(p->problem_mark), problem);
}

static status next_event(reader *r) {
    if (r->has_event) yaml_event_delete(&r->event);
    r->has_event = false;
    if (!yaml_parser_parse(&r->parser, &r->event)) return parser_error(r);
    r->has_event = true;
    return OK;
}

static status refuse_decoration(const reader *r, const yaml_char_t *anchor, const yaml_char_t *tag) {
    if (anchor)
        return ERR(
            ERR_INPUT,
            "%s:%d:%d: found the anchor '&%.100s'; anchors and aliases are not read, expected the value written out",
            r->where, START(r), (const char *)anchor);
    if (tag)
        return ERR(ERR_INPUT, "%s:%d:%d: found the tag '%.100s'; tags are not read, expected a plain value", r->where,
                   START(r), (const char *)tag);
    return OK;
}

/* The text of the scalar under the reader, copied. */
static status scalar_text(const reader *r, const char **out) {
    const yaml_char_t *value = r->event.data.scalar.value;
    size_t length = r->event.data.scalar.length;
    TRY(refuse_decoration(r, r->event.data.scalar.anchor, r->event.data.scalar.tag));
    if (memchr(value, 0, length))
        return ERR(ERR_INPUT, "%s:%d:%d: found a NUL character inside a text, expected none", r->where, START(r));
    *out = arena_copy(r->memory, value, length + 1); /* libyaml ends its texts with a NUL */
    return OK;
}

static int by_key_then_place(const void *a, const void *b) {
    const yaml_node *x = *(yaml_node *const *)a, *y = *(yaml_node *const *)b;
    int order = strcmp(x->key, y->key);
    if (order) return order;
    return x->line != y->line ? (x->line > y->line) - (x->line < y->line)
                              : (x->column > y->column) - (x->column < y->column);
}

/* Sorted, not compared pairwise: four megabytes hold a million keys. */
static status check_duplicates(const reader *r, const yaml_node *map, size_t n) {
    if (n < 2) return OK;
    status rc = OK;
    yaml_node **sorted = mem_alloc(n * sizeof *sorted);
    size_t i = 0;
    for (yaml_node *c = map->first_child; c; c = c->next) sorted[i++] = c;
    qsort(sorted, n, sizeof *sorted, by_key_then_place);
    for (i = 1; i < n && rc == OK; i++)
        if (strcmp(sorted[i - 1]->key, sorted[i]->key) == 0)
            rc = ERR(ERR_INPUT,
                     "%s:%d:%d: found the key '%.200s' again, expected it once (it is also at line %d, column %d)",
                     r->where, sorted[i]->line, sorted[i]->column, sorted[i]->key, sorted[i - 1]->line,
                     sorted[i - 1]->column);
    free(sorted);
    return rc;
}

static status read_node(reader *r, int depth, yaml_node **out);

static status read_children(reader *r, yaml_node *parent, int depth) {
    bool is_map = parent->kind == YAML_MAP;
    yaml_event_type_t end = is_map ? YAML_MAPPING_END_EVENT : YAML_SEQUENCE_END_EVENT;
    yaml_node **tail = &parent->first_child;
    size_t n = 0;
    if (depth > YAML_MAX_DEPTH)
        return ERR(ERR_INPUT, "%s:%d:%d: found nesting deeper than %d levels, expected at most that", r->where,
                   START(r), YAML_MAX_DEPTH);
    for (;; n++) {
        const char *key = NULL;
        int line = 0, column = 0;
        TRY(next_event(r));
        if (r->event.type == end) break;
        if (is_map) {
            if (r->event.type == YAML_ALIAS_EVENT)
                return ERR(ERR_INPUT, "%s:%d:%d: found the alias '*%.100s' as a key, expected text", r->where, START(r),
                           (const char *)r->event.data.alias.anchor);
            if (r->event.type != YAML_SCALAR_EVENT)
                return ERR(ERR_INPUT, "%s:%d:%d: found a map or a list as a key, expected text", r->where, START(r));
            line = (int)r->event.start_mark.line + 1;
            column = (int)r->event.start_mark.column + 1;
            TRY(scalar_text(r, &key));
            TRY(next_event(r));
        }
        TRY(read_node(r, depth, tail));
        if (is_map) {
            (*tail)->key = key;
            (*tail)->line = line;
            (*tail)->column = column;
        }
        tail = &(*tail)->next;
    }
    if (is_map) TRY(check_duplicates(r, parent, n));
    return OK;
}

/* The node that begins with the event under the reader; leaves the reader on its last event. */
static status read_node(reader *r, int depth, yaml_node **out) {
    yaml_node *node = arena_new(r->memory, yaml_node);
    node->line = (int)r->event.start_mark.line + 1;
    node->column = (int)r->event.start_mark.column + 1;
    switch (r->event.type) {
    case YAML_SCALAR_EVENT:
        node->kind = YAML_SCALAR;
        node->quoted = r->event.data.scalar.style != YAML_PLAIN_SCALAR_STYLE;
        TRY(scalar_text(r, &node->text));
        break;
    case YAML_MAPPING_START_EVENT:
        node->kind = YAML_MAP;
        TRY(refuse_decoration(r, r->event.data.mapping_start.anchor, r->event.data.mapping_start.tag));
        TRY(read_children(r, node, depth + 1));
        break;
    case YAML_SEQUENCE_START_EVENT:
        node->kind = YAML_LIST;
        TRY(refuse_decoration(r, r->event.data.sequence_start.anchor, r->event.data.sequence_start.tag));
        TRY(read_children(r, node, depth + 1));
        break;
    case YAML_ALIAS_EVENT:
        return ERR(ERR_INPUT,
                   "%s:%d:%d: found the alias '*%.100s'; aliases are not read, expected the value written out",
                   r->where, START(r), (const char *)r->event.data.alias.anchor);
    default:
        return ERR(ERR_BUG, "%s:%d:%d: libyaml gave event %d where a value begins", r->where, START(r),
                   (int)r->event.type);
    }
    *out = node;
    return OK;
}

static status read_stream(reader *r, yaml_node **out) {
    yaml_node *root = NULL;
    TRY(next_event(r)); /* stream start */
    TRY(next_event(r));
    if (r->event.type == YAML_DOCUMENT_START_EVENT) {
        TRY(next_event(r));
        TRY(read_node(r, 0, &root));
        TRY(next_event(r)); /* document end */
        TRY(next_event(r));
        if (r->event.type != YAML_STREAM_END_EVENT)
            return ERR(ERR_INPUT, "%s:%d:%d: found a second document, expected one", r->where, START(r));
    }
    /* Nothing, comments only, or a bare "---": no settings at all. */
    if (!root || (root->kind == YAML_SCALAR && !root->quoted && root->text[0] == 0)) {
        root = arena_new(r->memory, yaml_node);
        root->kind = YAML_MAP;
        root->line = root->column = 1;
    }
    *out = root;
    return OK;
}

status yaml_read_text(const char *text, size_t n_bytes, const char *where, arena *memory, yaml_node **out) {
    *out = NULL;
    if (n_bytes > YAML_MAX_BYTES)
        return ERR(ERR_INPUT, "%s: found %zu bytes of YAML, expected at most %zu", where, n_bytes, YAML_MAX_BYTES);
    reader r = {.where = where, .text = text, .n_bytes = n_bytes, .memory = memory};
    if (!yaml_parser_initialize(&r.parser)) return ERR(ERR_RUN, "%s: no memory for a YAML parser", where);
    /* Set explicitly: libyaml would take a byte order mark as a reason to read UTF-16. */
    yaml_parser_set_encoding(&r.parser, YAML_UTF8_ENCODING);
    yaml_parser_set_input_string(&r.parser, (const unsigned char *)text, n_bytes);
    status rc = read_stream(&r, out);
    if (rc != OK) {
        error_trail(rc, __FILE__, __LINE__, __func__);
        *out = NULL;
    }
    if (r.has_event) yaml_event_delete(&r.event);
    yaml_parser_delete(&r.parser);
    return rc;
}

status yaml_read_file(const char *path, arena *memory, yaml_node **out) {
    char *text;
    size_t n_bytes;
    *out = NULL;
    TRY(file_read_all(path, YAML_MAX_BYTES, &text, &n_bytes));
    status rc = yaml_read_text(text, n_bytes, path, memory, out);
    if (rc != OK) error_trail(rc, __FILE__, __LINE__, __func__);
    free(text);
    return rc;
}

/* What no reader shows as it is: controls, and what some of them take for a line break or a mark of byte order. */
static bool needs_escape(int32_t c) {
    return c < 0x20 || (c >= 0x7f && c < 0xa0) || c == 0x2028 || c == 0x2029 || c == 0xfeff || (c | 1) == 0xffff;
}

static json_t *scalar_to_json(const yaml_node *n) {
    if (n->quoted) return json_text(n->text, strlen(n->text));
    if (strcasecmp(n->text, "true") == 0) return json_true();
    if (strcasecmp(n->text, "false") == 0) return json_false();
    if (!*n->text || strcmp(n->text, "~") == 0 || strcasecmp(n->text, "null") == 0) return json_null();
    json_t *number = json_loads(n->text, JSON_DECODE_ANY, NULL);
    if (json_is_number(number)) return number;
    json_decref(number);
    return json_text(n->text, strlen(n->text));
}

json_t *yaml_to_json(const yaml_node *n) {
    if (n->kind == YAML_SCALAR) return scalar_to_json(n);
    json_t *out = n->kind == YAML_MAP ? json_object() : json_array();
    for (const yaml_node *c = n->first_child; c; c = c->next)
        if (n->kind == YAML_MAP) json_object_set_new(out, c->key, yaml_to_json(c));
        else json_array_append_new(out, yaml_to_json(c));
    return out;
}

void yaml_write_quoted(const char *text, strbuf *out) {
    strbuf_add(out, "\"");
    while (*text) {
        const char *start = text;
        int32_t c = utf8_next(&text);
        if (c < 0) strbuf_printf(out, "\\x%02x", (unsigned)(uint8_t)*text++);
        else if (c == '"' || c == '\\') strbuf_printf(out, "\\%c", c);
        else if (c == '\n') strbuf_add(out, "\\n");
        else if (c == '\t') strbuf_add(out, "\\t");
        else if (needs_escape(c)) strbuf_printf(out, "\\u%04X", (unsigned)c);
        else strbuf_add_bytes(out, start, (size_t)(text - start));
    }
    strbuf_add(out, "\"");
}
