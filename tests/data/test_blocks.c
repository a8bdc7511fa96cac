/* test_blocks.c - a text in parts has the ids of the whole text: every component, every place, nasty texts.
 *
 * The promise of cuts.c is held against encoding the whole: for the beginning of a text up to each of its bytes, with
 * nothing known behind it, whatever is called a boundary must be one. Published tokenizers are looked for in ../shared,
 * beside the project; where they are not, that test says so. */
#include "data/part.h"
#include "data/source.h"
#include "data/store.h"
#include "tokenizer_variants.h"

#include <stdlib.h>
#include <sys/stat.h>

#include <setjmp.h>
#include <cmocka.h>

typedef struct ids {
    int32_t *id;
    size_t n, capacity;
} ids;

/* ---- texts --------------------------------------------------------------------------------------------------- */

static const char *const shapes[][28] = {
    {"the", "she", "shells", " ", "  ", "\n", "\n\n", "'s", "'ll", "123", "7", ",", ".", "\t", "sea", " the", NULL},
    {"(", ")", ";", ",", "!?", "...", "--", "\"", "'", "[]", "/*", "*/", "=", "==", "<", ">", NULL},
    {"e\xcc\x81", "\xcc\x81", "\xcc\x96", "o", "n\xcc\x83", "\xe1\x84\x92\xe1\x85\xa1", "\xe1\x86\xab", " ",
     "A\xcc\x8a", "\xc4\xb0", "\xef\xac\x81", "\xe2\x84\xab", "\xc3\xa9", "\xe0\xbd\xb3", "I",
     "\xf0\x91\x82\x99\xf0\x91\x82\xba", NULL},
    {"\r\n", "\r", "\n", "a", " ", "\r\n\r\n", "x=1", "\t", "\x0b", "\x0c", "\xc2\x85", "\xe2\x80\xa8", NULL},
    {"<s>",
     "</s>",
     "<mask>",
     "<word>",
     "<Norm>",
     "<norm>\xc3\xa9",
     "<norm>e\xcc\x81",
     "<s",
     "<",
     "<s>hi",
     "<wor",
     "  ",
     " ",
     "the",
     "she",
     "\n",
     "<unk>",
     "<ma",
     "sk>",
     "x",
     NULL},
    {"\xe2\x96\x81", "\xe2\x96\x81\xe2\x96\x81", " ", "  ", "the", "she", "\xe6\xb1\x89", "\xe5\xad\x97", "e", "se",
     " s", "\n", "\xf0\x9f\xa6\x8a", "\xe1\xa0\x8e", NULL},
    {"a", "b", "c", "the", "he", "sh", "ells", "sea", "es", NULL},
    {"1", "22", "333", "4444", "\xd9\xa3", "\xc2\xbd", "\xe2\x85\xa7", ".", ",", "x", " ", "#", NULL},
    {"\xe6\xb1\x89\xe5\xad\x97", "\xe3\x80\x82", "\xe3\x81\x8b\xe3\x81\xaa", "\xed\x95\x9c", "\xef\xbc\x8c",
     "\xe3\x80\x80", "A", "\xce\xb1\xce\xb2", " \xce\xb3", "\n", NULL},
    {"\xff", "\xc3", "\xe2\x96", "\xf0\x9f\xa6", "a", " ", "the", "\x80", "\xed\xa0\x80", "\n", "<s>", NULL},
};

static void make_text(strbuf *out, uint64_t seed, size_t n_bytes) {
    const char *const *words = shapes[seed % ARRAY_LENGTH(shapes)];
    size_t n = 0;
    while (words[n]) n++;
    out->length = 0;
    for (uint64_t i = 0; out->length < n_bytes; i++) {
        const char *const *from = rng_below(seed, 3 * i, 12) ? words : shapes[0]; /* now and then of the first */
        strbuf_add(out, from[rng_below(seed, 3 * i + 1, from == words ? n : 16)]);
    }
}

/* ---- parts --------------------------------------------------------------------------------------------------- */

static void encode(const tokenizer *t, const strbuf *text, ids *out) {
    out->n = 0;
    if (tokenizer_encode(t, text->text, text->length, &out->id, &out->n, &out->capacity) != OK)
        fail_msg("%s", error_message());
}

static void encode_part(const tokenizer *t, text_part *p, ids *out) {
    out->n = 0;
    if (tokenizer_encode_part(t, p, &out->id, &out->n, &out->capacity) != OK) fail_msg("%s", error_message());
}

static void show_failure(const char *name, const strbuf *text, size_t known, const text_boundary *b) {
    print_error("%s: a boundary at byte %zu (level %zu) was proven from the first %zu bytes, and is none, of:\n", name,
                b->place, b->level, known);
    for (size_t i = 0; i < text->length; i++) print_error("\\x%02x", (unsigned char)text->text[i]);
    print_error("\n");
    fail();
}

/* What was proven is true: the ids before the boundary and those of the rest are the ids of the whole. */
static void check_boundary(const char *name, const tokenizer *t, const strbuf *text, size_t known, const ids *whole,
                           const ids *before, const text_boundary *b) {
    ids rest = {0};
    text_part p = {.text = text->text + b->place, .n_bytes = text->length - b->place, .level = b->level};
    encode_part(t, &p, &rest);
    bool same = b->n_ids + rest.n == whole->n &&
                (!b->n_ids || memcmp(whole->id, before->id, b->n_ids * sizeof *whole->id) == 0) &&
                (!rest.n || memcmp(whole->id + b->n_ids, rest.id, rest.n * sizeof *whole->id) == 0);
    free(rest.id);
    if (!same) show_failure(name, text, known, b);
}

/* Every beginning of the text, with every boundary in it. Returns how many there were. */
static size_t check_beginnings(const char *name, const tokenizer *t, const strbuf *text) {
    ids whole = {0}, before = {0};
    size_t n_found = 0;
    encode(t, text, &whole);
    for (size_t known = 1; known <= text->length; known++) {
        for (size_t wanted = known > 24 ? known - 24 : 1; wanted <= known; wanted++) {
            text_part p = {.text = text->text, .n_bytes = known, .is_first = true, .is_open = true, .wanted = wanted};
            encode_part(t, &p, &before);
            if (p.at_wanted.found) check_boundary(name, t, text, known, &whole, &before, &p.at_wanted);
            n_found += p.at_wanted.found;
        }
    }
    free(whole.id);
    free(before.id);
    return n_found;
}

/* Part after part, as short as they can be. */
static size_t check_chain(const char *name, const tokenizer *t, const strbuf *text, size_t step) {
    ids whole = {0}, part = {0};
    size_t at = 0, n = 0, level = 0, n_parts = 0;
    encode(t, text, &whole);
    for (size_t length = step; at < text->length;) {
        text_part p = {.text = text->text + at, .is_first = at == 0, .level = level};
        p.n_bytes = MIN(length, text->length - at);
        p.is_open = at + p.n_bytes < text->length;
        encode_part(t, &p, &part);
        if (!p.is_open) p.last = (text_boundary){true, p.n_bytes, part.n, 0};
        if (!p.last.found) {
            length *= 2;
            continue;
        }
        if (n + p.last.n_ids > whole.n ||
            (p.last.n_ids && memcmp(whole.id + n, part.id, p.last.n_ids * sizeof *part.id) != 0))
            show_failure(name, text, at + p.n_bytes, &(text_boundary){true, at + p.last.place, 0, p.last.level});
        n += p.last.n_ids;
        at += p.last.place;
        level = p.last.level;
        length = step;
        n_parts++;
    }
    assert_int_equal(n, whole.n);
    free(whole.id);
    free(part.id);
    return n_parts;
}

/* Chains in which one rule of cuts.c alone is in the way of a wrong boundary. */
static const char *const chains[][2] = {
    {"a match with words in it",
     "{'pre_tokenizer': {'type': 'Sequence', 'pretokenizers': [{'type': 'Split', 'pattern': {'Regex': 's[a-z ]*s'}, "
     "'behavior': 'Isolated', 'invert': false}, {'type': 'ByteLevel', 'add_prefix_space': false, 'use_regex': "
     "true}]}}"},
    {"lookbehind", "{'pre_tokenizer': {'type': 'Sequence', 'pretokenizers': [{'type': 'Split', 'pattern': {'Regex': "
                   "'(?<=s)he|(?<=t)he|e'}, 'behavior': 'Isolated', 'invert': false}, {'type': 'ByteLevel', "
                   "'add_prefix_space': false, "
                   "'use_regex': false}]}}"},
    {"lines",
     "{'pre_tokenizer': {'type': 'Sequence', 'pretokenizers': [{'type': 'Split', 'pattern': {'Regex': '^the|^s|h|e$'}, "
     "'behavior': 'Isolated', 'invert': false}, {'type': 'ByteLevel', 'add_prefix_space': false, 'use_regex': "
     "false}]}}"},
    {"empty matches",
     "{'pre_tokenizer': {'type': 'Sequence', 'pretokenizers': [{'type': 'Split', 'pattern': {'Regex': 's*|he'}, "
     "'behavior': 'MergedWithNext', 'invert': false}, {'type': 'ByteLevel', 'add_prefix_space': false, 'use_regex': "
     "true}]}}"},
    {"spaces before a token",
     "{'added_tokens': [{'id': 0, 'content': '<unk>', 'lstrip': true, 'rstrip': true, 'normalized': false, 'special': "
     "true, 'single_word': false}], 'pre_tokenizer': {'type': 'Sequence', 'pretokenizers': [{'type': 'Split', "
     "'pattern': "
     "{'String': ' '}, 'behavior': 'Isolated', 'invert': false}, {'type': 'ByteLevel', 'add_prefix_space': false, "
     "'use_regex': false}]}}"},
    {"tokens that are passed over",
     "{'added_tokens': [{'id': 349, 'content': 'she', 'lstrip': false, 'rstrip': false, 'normalized': false, "
     "'special': "
     "false, 'single_word': true}, {'id': 350, 'content': 'he', 'lstrip': false, 'rstrip': false, 'normalized': false, "
     "'special': false, 'single_word': false}], 'pre_tokenizer': {'type': 'Sequence', 'pretokenizers': [{'type': "
     "'Split', 'pattern': {'Regex': '[a-z]'}, 'behavior': 'Isolated', 'invert': false}, {'type': 'ByteLevel', "
     "'add_prefix_space': false, 'use_regex': false}]}}"},
    {"composition",
     "{'normalizer': {'type': 'NFC'}, 'pre_tokenizer': {'type': 'Sequence', 'pretokenizers': [{'type': 'Split', "
     "'pattern': {'Regex': '\\\\p{L}'}, 'behavior': 'Isolated', 'invert': false}, {'type': 'ByteLevel', "
     "'add_prefix_space': false, 'use_regex': false}]}}"},
    {"spaces at the end",
     "{'normalizer': {'type': 'Strip', 'strip_left': true, 'strip_right': true}, 'pre_tokenizer': {'type': 'Sequence', "
     "'pretokenizers': [{'type': 'Split', 'pattern': {'String': ' '}, 'behavior': 'Isolated', 'invert': false}, "
     "{'type': 'ByteLevel', 'add_prefix_space': true, 'use_regex': false}]}}"},
};

static tokenizer *open_chain(size_t i) {
    char patch[1024];
    json_error_t error;
    snprintf(patch, sizeof patch, "%s", chains[i][1]);
    for (char *c = patch; *c; c++)
        if (*c == '\'') *c = '"';
    json_t *variant = json_pack("{s:s, s:O, s:o}", "base", "bytes", "model",
                                json_object_get(variant_named("gpt2"), "model"), "patch", json_loads(patch, 0, &error));
    if (!variant) fail_msg("%s: %s", chains[i][0], error.text);
    tokenizer *t = open_variant(variant);
    json_decref(variant);
    return t;
}

static void each_rule_is_needed(void **state) {
    strbuf text;
    strbuf_init(&text);
    for (size_t i = 0; i < ARRAY_LENGTH(chains); i++) {
        tokenizer *t = open_chain(i);
        for (uint64_t seed = 0; seed < 12 * ARRAY_LENGTH(shapes); seed++) {
            make_text(&text, seed, 24);
            check_beginnings(chains[i][0], t, &text);
        }
        tokenizer_close(t);
    }
    strbuf_fini(&text);
}

static void boundaries_of_every_component_are_true(void **state) {
    const json_t *variants = json_object_get(fixture, "variants");
    strbuf text;
    strbuf_init(&text);
    for (size_t v = 0; v < json_array_size(variants); v++) {
        const json_t *variant = json_array_get(variants, v);
        const char *name = json_string_value(json_object_get(variant, "name"));
        tokenizer *t = open_variant(variant);
        for (uint64_t seed = 0; seed < ARRAY_LENGTH(shapes); seed++) {
            make_text(&text, seed + 100 * v, 40);
            check_beginnings(name, t, &text);
            make_text(&text, seed + 100 * v, 600);
            check_chain(name, t, &text, 1 + seed % 20);
        }
        tokenizer_close(t);
    }
    strbuf_fini(&text);
}

/* A proof that is never found would be true as well: usual text is cut by every tokenizer of the usual kinds. */
static void usual_text_has_many_boundaries(void **state) {
    static const char *const names[] = {"gpt2",
                                        "prefix_space",
                                        "qwen",
                                        "llama3",
                                        "o200k",
                                        "deepseek",
                                        "digits",
                                        "words",
                                        "nfc",
                                        "nfkd",
                                        "lowercase",
                                        "llama2",
                                        "added",
                                        "replace_regex",
                                        "strip_True_True",
                                        "metaspace_first_True",
                                        "metaspace_always_False",
                                        "normalizers"};
    strbuf text;
    strbuf_init(&text);
    for (int i = 0; i < 60; i++) strbuf_add(&text, "She sells 12 sea shells, the shells are the best.\n");
    for (size_t i = 0; i < ARRAY_LENGTH(names); i++) {
        tokenizer *t = open_variant(variant_named(names[i]));
        size_t n = check_chain(names[i], t, &text, 64);
        if (n < 40) fail_msg("%s: %zu parts of %zu bytes, expected 40 and more", names[i], n, text.length);
        tokenizer_close(t);
    }
    strbuf_fini(&text);
}

/* ---- files --------------------------------------------------------------------------------------------------- */

static void check_file(const char *name, const char *path, const strbuf *text, size_t block, size_t overlap) {
    data_options o = {.source = "x", .tokenizer = path, .n_threads = 2, .records.on_error = RECORDS_SKIP};
    tokenizer *t;
    chat *c;
    ids whole = {0};
    tokenize_job j;
    token_store s;
    if (tokenizer_open(&t, path) != OK || chat_open(&c, t, path, &(chat_options){.format = CHAT_NONE}) != OK)
        fail_msg("%s", error_message());
    size_t bos = chat_document_bos(c) >= 0;
    encode(t, text, &whole);
    write_bytes(path_of("text.txt"), text->text, text->length);
    assert_int_equal(tokenize_job_open(&j, &o, t, c), OK);
    if (block) j.block_bytes = block, j.overlap_bytes = overlap;
    status rc = tokenize_file(&j, path_of("text.txt"), FORMAT_TEXT, &s);
    if (rc != OK && whole.n > 0) fail_msg("%s: %s", name, error_message()); /* a text without ids is refused */
    if (rc == OK && s.n_tokens != whole.n + bos)
        fail_msg("%s: %zu ids in blocks of %zu, %zu of the whole", name, (size_t)s.n_tokens - bos, block, whole.n);
    for (size_t i = 0; i < whole.n; i++)
        if (store_token(&s, i + bos) != whole.id[i]) fail_msg("%s, blocks of %zu: token %zu differs", name, block, i);
    store_close(&s);
    tokenize_job_close(&j);
    free(whole.id);
    chat_close(c);
    tokenizer_close(t);
}

static void files_in_blocks_have_the_ids_of_the_whole(void **state) {
    static const size_t blocks[][2] = {{40, 8}, {300, 16}, {900, 300}};
    const json_t *variants = json_object_get(fixture, "variants");
    strbuf text;
    strbuf_init(&text);
    for (size_t v = 0; v < json_array_size(variants); v++) {
        const json_t *variant = json_array_get(variants, v);
        tokenizer_close(open_variant(variant)); /* writes the file */
        for (uint64_t seed = 0; seed < 4; seed++) {
            make_text(&text, 7 * v + seed, 3000);
            const size_t *size = blocks[seed % ARRAY_LENGTH(blocks)];
            check_file(json_string_value(json_object_get(variant, "name")), path_of("variant.json"), &text, size[0],
                       size[1]);
        }
    }
    strbuf_fini(&text);
}

/* Lines with one word and no space: 256 bytes around a cut did not show where words begin. */
static void make_long_words(strbuf *out, int n_lines) {
    out->length = 0;
    for (int i = 0; i < n_lines; i++) {
        strbuf_add(out, "f(");
        for (int k = 0; k < 80; k++) strbuf_add(out, "a,b;");
        strbuf_add(out, ");\n\n");
    }
}

/* GPT-2's expression, and one token for two line ends: two before a word are two tokens, at the end of a text one. */
static void write_line_end_tokenizer(const char *path) {
    json_t *root = compose(variant_named("gpt2")), *model = json_object_get(root, "model");
    json_t *vocab = json_object_get(model, "vocab");
    json_object_set_new(vocab, "\xc4\x8a\xc4\x8a", json_integer((json_int_t)json_object_size(vocab)));
    json_array_append_new(json_object_get(model, "merges"), json_pack("[s, s]", "\xc4\x8a", "\xc4\x8a"));
    write_json(path, root);
    json_decref(root);
}

static void long_words_across_a_block_keep_their_ids(void **state) {
    strbuf text;
    strbuf_init(&text);
    make_long_words(&text, 8000); /* more than two blocks of the usual size */
    write_line_end_tokenizer(path_of("variant.json"));
    check_file("gpt2", path_of("variant.json"), &text, 0, 0);
    for (size_t i = 0; i < text.length; i++) /* not a single place to cut */
        text.text[i] = "xyz"[i % 3];
    text.length = 100000;
    check_file("gpt2", path_of("variant.json"), &text, 5000, 100);
    strbuf_fini(&text);
}

/* Published tokenizers, where they lie beside the project. */
static const char *shared_tokenizer(const char *name) {
    static char path[600];
    struct stat info;
    static const char *const places[] = {"../../../shared", "../../../../shared"}; /* a work tree may lie deeper */
    for (size_t i = 0; i < ARRAY_LENGTH(places); i++) {
        snprintf(path, sizeof path, "%s/%s/tokenizers/%s/tokenizer.json", TEST_FIXTURES, places[i], name);
        if (stat(path, &info) == 0) return path;
    }
    return NULL;
}

static void published_tokenizers_keep_their_ids_in_blocks(void **state) {
    static const char *const names[] = {"gpt2", "qwen3", "llama3", "llama2"};
    strbuf text;
    strbuf_init(&text);
    for (size_t i = 0; i < ARRAY_LENGTH(names); i++) {
        const char *path = shared_tokenizer(names[i]);
        if (!path) {
            print_message("no ../shared beside the project: the tokenizer %s is not tested\n", names[i]);
            continue;
        }
        for (uint64_t seed = 0; seed < 2 * ARRAY_LENGTH(shapes); seed++) {
            make_text(&text, seed, 20000);
            check_file(names[i], path, &text, 300 + 100 * seed, 32);
        }
        make_long_words(&text, 8000);
        check_file(names[i], path, &text, 0, 0);
    }
    strbuf_fini(&text);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(boundaries_of_every_component_are_true),
        cmocka_unit_test(each_rule_is_needed),
        cmocka_unit_test(usual_text_has_many_boundaries),
        cmocka_unit_test(files_in_blocks_have_the_ids_of_the_whole),
        cmocka_unit_test(long_words_across_a_block_keep_their_ids),
        cmocka_unit_test(published_tokenizers_keep_their_ids_in_blocks),
    };
    log_set_level(LOG_ERROR);
    if (!tokenizer_cases_open()) return 1;
    int rc = cmocka_run_group_tests(tests, test_dir_open, test_dir_close);
    json_decref(fixture);
    return rc;
}
