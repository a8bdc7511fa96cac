/* added.c - find added tokens in a text: at each place the longest, places from left to right.
 *
 * A trie over bytes, its nodes in one array, children of a node side by side. Nearly all texts hold no such token, and
 * nearly all such tokens begin with the same byte ('<'), so the search is a memchr until something may begin. */
#include "data/encode.h"

#include <stdlib.h>

static int by_text(const void *a, const void *b) {
    const added_text *x = a, *y = b;
    int order = memcmp(x->text.text, y->text.text, MIN(x->text.length, y->text.length));
    return order ? order : (x->text.length > y->text.length) - (x->text.length < y->text.length);
}

/* A node whose children are not made yet, and the texts [from, to) that share its first `depth` bytes. */
typedef struct open_node {
    uint32_t node;
    size_t from, to, depth;
} open_node;

/* Level by level, so that the children of one node lie together. */
static void build(added_set *s, const added_text *texts, size_t n) {
    size_t n_open = 0, open_capacity = 0, node_capacity = 0, at = 0;
    open_node *open = array_grow(NULL, &open_capacity, 1, sizeof *open);
    s->nodes = array_grow(NULL, &node_capacity, 1, sizeof *s->nodes);
    s->nodes[s->n_nodes++] = (trie_node){.added = -1};
    open[n_open++] = (open_node){0, 0, n, 0};
    while (at < n_open) {
        open_node o = open[at++];
        if (o.from < o.to && texts[o.from].text.length == o.depth) s->nodes[o.node].added = texts[o.from++].added;
        s->nodes[o.node].first_child = (uint32_t)s->n_nodes;
        for (size_t i = o.from, j; i < o.to; i = j) {
            char c = texts[i].text.text[o.depth];
            for (j = i + 1; j < o.to && texts[j].text.text[o.depth] == c;) j++;
            s->nodes = array_grow(s->nodes, &node_capacity, s->n_nodes + 1, sizeof *s->nodes);
            open = array_grow(open, &open_capacity, n_open + 1, sizeof *open);
            open[n_open++] = (open_node){(uint32_t)s->n_nodes, i, j, o.depth + 1};
            s->nodes[s->n_nodes++] = (trie_node){.byte = (unsigned char)c, .added = -1};
            s->nodes[o.node].n_children++;
        }
    }
    free(open);
}

status added_set_open(added_set *s, added_text *texts, size_t n, const char *file) {
    *s = (added_set){0};
    if (n == 0) return OK;
    qsort(texts, n, sizeof *texts, by_text);
    for (size_t i = 0; i < n; i++) {
        const span *t = &texts[i].text;
        if (t->length == 0)
            return ERR(ERR_INPUT, "%s: added_tokens: found a token whose normal form is empty, expected some text",
                       file);
        if (i > 0 && by_text(&texts[i - 1], &texts[i]) == 0)
            return ERR(ERR_INPUT, "%s: added_tokens: found two tokens with the normal form '%.*s', expected one", file,
                       (int)MIN(t->length, 100), t->text);
        unsigned char c = (unsigned char)t->text[0];
        s->n_first += !s->begins[c];
        s->begins[c] = true;
        s->first = c;
    }
    build(s, texts, n);
    return OK;
}

void added_set_close(added_set *s) { free(s->nodes); }

static size_t next_candidate(const added_set *s, const char *text, size_t length, size_t at) {
    if (s->n_first == 1) {
        const char *found = memchr(text + at, s->first, length - at);
        return found ? (size_t)(found - text) : length;
    }
    while (at < length && !s->begins[(unsigned char)text[at]]) at++;
    return at;
}

static const trie_node *child_of(const added_set *s, const trie_node *node, unsigned char byte) {
    size_t low = 0, high = node->n_children;
    while (low < high) {
        size_t middle = (low + high) / 2;
        const trie_node *child = &s->nodes[node->first_child + middle];
        if (child->byte == byte) return child;
        if (child->byte < byte) low = middle + 1;
        else high = middle;
    }
    return NULL;
}

int32_t added_set_find(const added_set *s, const char *text, size_t length, size_t from, bool open, size_t *start,
                       size_t *end) {
    if (s->n_nodes == 0) return ADDED_NONE;
    for (size_t at = from; (at = next_candidate(s, text, length, at)) < length; at++) {
        int32_t found = ADDED_NONE;
        size_t i = at;
        const trie_node *node = &s->nodes[0];
        for (; i < length && (node = child_of(s, node, (unsigned char)text[i])); i++)
            if (node->added >= 0) found = node->added, *end = i + 1;
        if (open && i == length && node->n_children) found = ADDED_UNDECIDED; /* what follows may make it longer */
        if (found != ADDED_NONE) {
            *start = at;
            return found;
        }
    }
    return ADDED_NONE;
}
