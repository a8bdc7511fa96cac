/* test_tokenizer_files.c - a broken or hostile tokenizer.json gives an error that says where, and no text takes a tokenizer
 * more than its length. */
#include "child.h"
#include "data/encode.h"
#include "token_ids.h"
#include "tokenizer_variants.h"

#include <stdlib.h>

/* ---- files that are wrong ------------------------------------------------------------------------------------ */

#define MODEL(vocab, merges) "\"model\":{\"type\":\"BPE\",\"vocab\":" vocab ",\"merges\":" merges "}"
#define AB "{\"a\":0,\"b\":1,\"ab\":2}"
#define FILE_WITH(part) "{" part "," MODEL(AB, "[]") "}"
#define SPLIT_WITH(regex)                                                             \
    FILE_WITH("\"pre_tokenizer\":{\"type\":\"Split\",\"pattern\":{\"Regex\":\"" regex \
              "\"},\"behavior\":\"Isolated\",\"invert\":false}")

static void wrong_files_are_refused_with_their_place(void **state) {
    static const struct {
        const char *text, *error;
    } bad[] = {
        {"", "top level|ends at byte 0"},
        {"[]", "expected an object"},
        {"{}", "'model' is missing"},
        {"{} x", "end of the file"},
        {"{\"model\":{}}", "model: the key 'type'"},
        {"{\"model\":{\"type\":\"Unigram\"}}", "model.type|'Unigram'|'BPE'"},
        {"{\"model\":{\"type\":\"BPE\"}}", "'vocab' is missing"},
        {"{\"model\":{\"type\":\"BPE\",\"vocab\":{}}}", "'merges' is missing"},
        {"{" MODEL(AB, "[\"a b\"]") "," MODEL(AB, "[]") "}", "'model' once"},
        {"{" MODEL("[]", "[]") "}", "model.vocab|an object"},
        {"{" MODEL("{\"a\":-1}", "[]") "}", "model.vocab|'-1|an id"},
        {"{" MODEL("{\"a\":1.5}", "[]") "}", "model.vocab|an id"},
        {"{" MODEL("{\"a\":01}", "[]") "}", "model.vocab|an id"},
        {"{" MODEL("{\"a\":99999999999999999999}", "[]") "}", "an id from 0 to 16777215"},
        {"{" MODEL("{\"a\":16777215}", "[]") "}", "the id 16777215 among 1 tokens|below 1048576"},
        {"{" MODEL("{\"a\":\"x\"}", "[]") "}", "model.vocab|an id"},
        {"{" MODEL("{\"a\":0,\"a\":1}", "[]") "}", "model.vocab|'a' twice"},
        {"{" MODEL("{\"a\":0,\"b\":0}", "[]") "}", "the id 0 for 'a' and for 'b'"},
        {"{" MODEL("{\"a\\x\":0}", "[]") "}", "an escape"},
        {"{" MODEL("{\"\\ud800\":0}", "[]") "}", "surrogate"},
        {"{" MODEL("{\"\\udc00\":0}", "[]") "}", "surrogate"},
        {"{" MODEL("{\"\\u12g4\":0}", "[]") "}", "hexadecimal"},
        {"{\"model\":{\"type\":\"BPE\",\"vocab\":{\"a", "model.vocab|the file ends"},
        {"{" MODEL("{\"a\n\":0}", "[]") "}", "control character"},
        {"{" MODEL("{\"\xff\":0}", "[]") "}", "not UTF-8"},
        {"{" MODEL(AB, "{}") "}", "model.merges|an array"},
        {"{" MODEL(AB, "[\"a b\",\"ab\"]") "}", "model.merges[1]"},
        {"{" MODEL(AB, "[\"a b \"]") "}", "model.merges[0]"},
        {"{" MODEL(AB, "[[\"a\"]]") "}", "model.merges[0]"},
        {"{" MODEL(AB, "[[\"a\",\"b\",\"c\"]]") "}", "model.merges[0]"},
        {"{" MODEL(AB, "[\"a c\"]") "}", "model.merges[0]|the part 'c'"},
        {"{" MODEL(AB, "[\"b a\"]") "}", "model.merges[0]|the result 'ba'"},
        {"{\"model\":{\"type\":\"BPE\",\"dropout\":0.1,\"vocab\":{},\"merges\":[]}}", "model.dropout"},
        {"{\"model\":{\"type\":\"BPE\",\"end_of_word_suffix\":\"</w>\",\"vocab\":{},\"merges\":[]}}",
         "end_of_word_suffix"},
        {"{\"model\":{\"type\":\"BPE\",\"fuse_unk\":1,\"vocab\":{},\"merges\":[]}}", "model.fuse_unk"},
        {"{\"model\":{\"type\":\"BPE\",\"unk_token\":1,\"vocab\":{},\"merges\":[]}}", "model.unk_token"},
        {FILE_WITH("\"added_tokens\":{}"), "added_tokens: found no array"},
        {FILE_WITH("\"added_tokens\":[3]"), "added_tokens[0]"},
        {FILE_WITH("\"added_tokens\":[{\"id\":5,\"content\":\"x\"}]"), "added_tokens[0].single_word"},
        {FILE_WITH("\"added_tokens\":[],\"added_tokens\":[]"), "added_tokens|once"},
        {FILE_WITH("\"normalizer\":{\"type\":\"BertNormalizer\"}"), "normalizer.type|'BertNormalizer'|NFC"},
        {FILE_WITH("\"normalizer\":{\"type\":\"Sequence\",\"normalizers\":[{\"type\":\"NFC\"},{\"type\":\"Nmt\"}]}"),
         "normalizer.normalizers[1].type|'Nmt'"},
        {FILE_WITH("\"normalizer\":{\"type\":\"NFC\",\"type\":\"NFD\"}"), "normalizer|duplicate"},
        {FILE_WITH("\"normalizer\":{\"type\":\"Prepend\",\"prepend\":\"\"}"), "normalizer.prepend|some text"},
        {FILE_WITH("\"normalizer\":{\"type\":\"Replace\",\"pattern\":\" \",\"content\":\"\"}"), "normalizer.pattern"},
        {FILE_WITH("\"pre_tokenizer\":{\"type\":\"BertPreTokenizer\"}"), "pre_tokenizer.type|'BertPreTokenizer'"},
        {FILE_WITH("\"pre_tokenizer\":{\"type\":\"Punctuation\",\"behavior\":\"Gone\"}"),
         "pre_tokenizer.behavior|Isolated"},
        {FILE_WITH("\"pre_tokenizer\":{\"type\":\"Metaspace\",\"replacement\":\"ab\"}"), "replacement|one character"},
        {FILE_WITH("\"pre_tokenizer\":{\"type\":\"Metaspace\",\"replacement\":\"_\",\"add_prefix_space\":false,"
                   "\"prepend_scheme\":\"always\"}"),
         "add_prefix_space"},
        {FILE_WITH("\"pre_tokenizer\":{\"type\":\"Sequence\"}"), "pre_tokenizer.pretokenizers|an array"},
        {FILE_WITH("\"decoder\":{\"type\":\"CTC\"}"), "decoder.type|'CTC'"},
        {FILE_WITH("\"decoder\":{\"type\":\"Strip\",\"content\":\" \",\"start\":-1,\"stop\":0}"), "decoder.start"},
        {FILE_WITH("\"post_processor\":{\"type\":\"BertProcessing\"}"), "post_processor.type|'BertProcessing'"},
        {FILE_WITH("\"post_processor\":{\"type\":\"TemplateProcessing\",\"single\":[{\"SpecialToken\":{\"id\":\"s\"}},"
                   "{\"Sequence\":{\"id\":\"A\"}}],\"special_tokens\":{\"s\":{\"ids\":[3]}}}"),
         "post_processor|0 to 2"},
        {FILE_WITH("\"post_processor\":{\"type\":\"TemplateProcessing\",\"single\":[],\"special_tokens\":{}}"), "'A'"},
        {SPLIT_WITH("(a"), "pre_tokenizer.pattern"},
        {SPLIT_WITH("[a[b]]"), "a character class inside another"},
        {SPLIT_WITH("[a-z&&[^b]]"), "intersection"},
        {SPLIT_WITH("\\\\h+"), "\\h"},
        {SPLIT_WITH("\\\\bx"), "\\b"},
        {SPLIT_WITH("a(?i)b"), "a kind of group"},
        {SPLIT_WITH("(?m:.)"), "a kind of group"},
        {SPLIT_WITH("\\\\p{Nonsense}"), "pre_tokenizer.pattern"},
        {SPLIT_WITH("(?<=a+)b"), "pre_tokenizer.pattern"},
        {SPLIT_WITH("a{2}?"), "{n}?"},
        {SPLIT_WITH("(*ACCEPT)"), "(*"},
        {SPLIT_WITH("[a"), "without an end"},
        {SPLIT_WITH("a\\\\"), "backslash"},
    };
    for (size_t i = 0; i < ARRAY_LENGTH(bad); i++) {
        tokenizer *t;
        write_bytes(path_of("bad.json"), bad[i].text, strlen(bad[i].text));
        char wanted[400];
        snprintf(wanted, sizeof wanted, "bad.json|%s", bad[i].error);
        expect_error(tokenizer_open(&t, path_of("bad.json")), ERR_INPUT, wanted);
        assert_null(t);
    }
}

static void deep_nesting_is_refused(void **state) {
    tokenizer *t;
    strbuf text;
    strbuf_init(&text);
    strbuf_add(&text, "{\"x\":");
    for (int i = 0; i < 100000; i++) strbuf_add(&text, "[");
    write_bytes(path_of("deep.json"), text.text, text.length);
    expect_error(tokenizer_open(&t, path_of("deep.json")), ERR_INPUT, "nesting");
    text.length = 0;
    strbuf_add(&text, "{\"normalizer\":");
    for (int i = 0; i < 20; i++) strbuf_add(&text, "{\"type\":\"Sequence\",\"normalizers\":[");
    strbuf_add(&text, "{\"type\":\"NFC\"}");
    for (int i = 0; i < 20; i++) strbuf_add(&text, "]}");
    strbuf_add(&text, "," MODEL(AB, "[]") "}");
    write_bytes(path_of("deep.json"), text.text, text.length);
    expect_error(tokenizer_open(&t, path_of("deep.json")), ERR_INPUT, "normalizers[0]|deeper than 8");
    text.length = 0;
    strbuf_add(&text, "{\"pre_tokenizer\":{\"type\":\"Sequence\",\"pretokenizers\":[{\"type\":\"Whitespace\"}");
    for (int i = 0; i < 100000; i++) strbuf_add(&text, ",{\"type\":\"Whitespace\"}");
    strbuf_add(&text, "]}," MODEL(AB, "[]") "}");
    write_bytes(path_of("deep.json"), text.text, text.length);
    expect_error(tokenizer_open(&t, path_of("deep.json")), ERR_INPUT, "pretokenizers[32]|more than 32 components");
    strbuf_fini(&text);
}

/* Bytes changed at random: an error or a tokenizer that works, never anything else. */
static void damaged_files_do_no_harm(void **state) {
    static const char *const names[] = {"llama2", "added", "decoders", "regex_intervals"};
    static const char pieces[] = "{}[]\",:0-\\u\x01 aeBt";
    size_t n_opened = 0;
    for (size_t v = 0; v < ARRAY_LENGTH(names); v++) {
        json_t *root = compose(variant_named(names[v]));
        char *text = json_dumps(root, 0), *copy = mem_alloc(strlen(text) + 1);
        size_t n = strlen(text), n_settings = (size_t)(strstr(text, "\"vocab\"") - text);
        for (uint64_t i = 0; i < 300; i++) {
            memcpy(copy, text, n + 1);
            size_t at = rng_below(7, 3 * i, i % 3 ? MIN(n_settings, n) : n);
            copy[at] = pieces[rng_below(7, 3 * i + 1, sizeof pieces - 1)];
            size_t length = i % 10 ? n : rng_below(7, 3 * i + 2, n); /* some are cut short */
            write_bytes(path_of("damaged.json"), copy, length);
            tokenizer *t;
            if (tokenizer_open(&t, path_of("damaged.json")) != OK) {
                assert_non_null(strstr(error_message(), "damaged.json"));
                continue;
            }
            n_opened++;
            ids out = {0};
            static const char probe[] = "<s>the shells\xff caf\xc3\xa9 123 \xe2\x96\x81x<mask> ";
            if (tokenizer_encode_with(t, probe, sizeof probe - 1, ENCODE_ADD_SPECIALS, &out.id, &out.n,
                                      &out.capacity) == OK) {
                strbuf back;
                strbuf_init(&back);
                for (size_t k = 0; k < out.n; k++) assert_in_range(out.id[k], 0, tokenizer_vocab(t) - 1);
                assert_int_equal(tokenizer_decode(t, out.id, out.n, &back), OK);
                strbuf_fini(&back);
            }
            free(out.id);
            tokenizer_close(t);
        }
        free(copy);
        free(text);
        json_decref(root);
    }
    assert_true(n_opened > 10); /* damage inside texts does not show */
}

static void merges_may_stand_before_the_vocabulary(void **state) {
    static const char text[] = "{\"model\":{\"merges\":[\"#version: 0.2\",\"a b\"],\"vocab\":" AB
                               ",\"x\":[1,{\"y\":null}],\"type\":\"BPE\"},\"decoder\":null}";
    tokenizer *t;
    ids out = {0};
    strbuf back;
    strbuf_init(&back);
    write_bytes(path_of("order.json"), text, sizeof text - 1);
    assert_int_equal(tokenizer_open(&t, path_of("order.json")), OK);
    encode(t, "abaxb", 5, 0, &out); /* x is unknown and, without an unk_token, left out: its neighbours meet */
    assert_int_equal(out.n, 2);
    assert_memory_equal(out.id, ((int32_t[]){2, 2}), 2 * sizeof(int32_t));
    decode(t, &out, 0, &back);
    assert_string_equal(back.text, "ab ab"); /* without a decoder, joined with spaces */
    free(out.id);
    strbuf_fini(&back);
    tokenizer_close(t);
}

/* No merge makes "aba", the longest token: only ignore_merges finds it, and only where it is the whole word. */
static void ignored_merges_leave_a_word_that_is_a_token_whole(void **state) {
    static const char text[] = "{\"model\":{\"type\":\"BPE\",\"ignore_merges\":%s,\"vocab\":{\"a\":0,\"b\":1,"
                               "\"ab\":2,\"aba\":3},\"merges\":[\"a b\"]}}";
    static const struct {
        const char *ignore, *word;
        size_t n;
        int32_t ids[2];
    } rows[] = {{"false", "aba", 2, {2, 0}}, {"true", "aba", 1, {3}}, {"true", "abab", 2, {2, 2}}};
    for (size_t i = 0; i < ARRAY_LENGTH(rows); i++) {
        tokenizer *t;
        ids out = {0};
        char file[sizeof text + 8];
        int n = snprintf(file, sizeof file, text, rows[i].ignore);
        write_bytes(path_of("ignore.json"), file, (size_t)n);
        assert_int_equal(tokenizer_open(&t, path_of("ignore.json")), OK);
        encode(t, rows[i].word, strlen(rows[i].word), 0, &out);
        assert_int_equal(out.n, rows[i].n);
        assert_memory_equal(out.id, rows[i].ids, out.n * sizeof *out.id);
        free(out.id);
        tokenizer_close(t);
    }
}

static void unknown_characters_without_their_token_are_an_error(void **state) {
    static const char text[] = "{\"model\":{\"type\":\"BPE\",\"unk_token\":\"<unk>\",\"vocab\":" AB ",\"merges\":[]}}";
    tokenizer *t;
    ids out = {0};
    write_bytes(path_of("unk.json"), text, sizeof text - 1);
    assert_int_equal(tokenizer_open(&t, path_of("unk.json")), OK);
    encode(t, "ab", 2, 0, &out);
    assert_int_equal(out.n, 2);
    expect_error(tokenizer_encode(t, "abz", 3, &out.id, &out.n, &out.capacity), ERR_INPUT,
                 "unk.json: model.unk_token|'<unk>'|'z'");
    assert_int_equal(out.n, 2); /* nothing was appended */
    free(out.id);
    tokenizer_close(t);
}

/* ---- texts that are hard ------------------------------------------------------------------------------------- */

static void catastrophic_patterns_end_in_an_error(void **state) {
    static const char *const patterns[] = {"(x+x+)+[yz]", "(?:x*)*[yz]", "(x|xx)+[yz]",
                                           "(?:x?){18}x{18}y|."}; /* slow at each place, but not too slow at any */
    char text[200];
    memset(text, 'x', sizeof text);
    for (size_t i = 0; i < ARRAY_LENGTH(patterns); i++) {
        tokenizer *t;
        ids out = {0};
        strbuf file;
        strbuf_init(&file);
        strbuf_printf(&file, SPLIT_WITH("%s"), patterns[i]);
        write_bytes(path_of("slow.json"), file.text, file.length);
        assert_int_equal(tokenizer_open(&t, path_of("slow.json")), OK);
        double start = clock_s();
        status rc = tokenizer_encode(t, text, sizeof text, &out.id, &out.n, &out.capacity);
        expect_error(rc, ERR_INPUT, "slow.json: pre_tokenizer.pattern|too many steps");
        assert_int_equal(out.n, 0);
        print_message("%s: gave up after %.2f s\n", patterns[i], clock_s() - start);
        free(out.id);
        strbuf_fini(&file);
        tokenizer_close(t);
    }
}

/* They take no step that PCRE2 counts: each reads on to the end of the text, at every place of it. */
static void patterns_that_read_to_the_end_at_every_place_end_in_an_error(void **state) {
    static const char *const patterns[] = {"(?=a*+[bc])a", "(?=a*+[bc])a|a", "a*b",
                                           "(?!a*+$)a|.",  "(?<!b)a*c|.",    "(?>a*)b|aaaa"};
    enum { N = 100000 };
    char *text = mem_alloc(N);
    memset(text, 'a', N);
    for (size_t i = 0; i < ARRAY_LENGTH(patterns); i++) {
        tokenizer *t;
        ids out = {0};
        strbuf file;
        strbuf_init(&file);
        strbuf_printf(&file, SPLIT_WITH("%s"), patterns[i]);
        write_bytes(path_of("slow.json"), file.text, file.length);
        assert_int_equal(tokenizer_open(&t, path_of("slow.json")), OK);
        encode(t, text, 500, 0, &out);
        assert_int_equal(out.n, 500); /* such a pattern is no error by itself */
        out.n = 0;
        status rc = tokenizer_encode(t, text, N, &out.id, &out.n, &out.capacity);
        expect_error(rc, ERR_INPUT, "slow.json: pre_tokenizer.pattern|too many steps");
        assert_int_equal(out.n, 0);
        free(out.id);
        strbuf_fini(&file);
        tokenizer_close(t);
    }
    free(text);
}

typedef struct found {
    size_t n, at[4096];
} found;
static void find_all(pattern *p, matcher *m, const char *text, size_t length, size_t window, found *out) {
    pattern_walk w;
    size_t start, end;
    bool is_found;
    p->window = window;
    out->n = 0;
    matcher_begin(m);
    matcher_allow(m, length);
    pattern_begin(&w, p, m, text, length);
    for (;;) {
        assert_int_equal(pattern_next(&w, &start, &end, &is_found), OK);
        if (!is_found || out->n == ARRAY_LENGTH(out->at)) break;
        out->at[out->n++] = start;
        out->at[out->n++] = end;
    }
    pattern_end(&w);
}

/* Runs of letters, digits, spaces and line breaks, most of them short and some longer than a window. */
static size_t text_of_runs(uint64_t seed, char *out, size_t most) {
    static const char *const units[] = {"a", "b", "7", " ", "\n", "\xc3\xa9", "\xe6\xb1\x89", "'s", "-"};
    size_t n = 0;
    for (uint64_t i = 0;; i += 3) {
        const char *unit = units[rng_below(seed, i, ARRAY_LENGTH(units))];
        uint64_t times = 1 + rng_below(seed, i + 1, rng_below(seed, i + 2, 12) ? 8 : 300);
        for (; times > 0; times--, n += strlen(unit)) {
            if (n + strlen(unit) > most) return n;
            memcpy(out + n, unit, strlen(unit));
        }
    }
}

static void matches_do_not_depend_on_the_window(void **state) {
    static const char *const patterns[] = {"'(?i:s|t)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}{1,3}| "
                                           "?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+",
                                           "\\p{N}{1,3}(?=(?:\\p{N}{3})*(?:\\P{N}|$))",
                                           "a*",
                                           "a*$",
                                           "^ *",
                                           "(?<=a)b+",
                                           "(?<!\\d) +\\Z",
                                           "\\z",
                                           "b+?a",
                                           "(?=a+b)a",
                                           "\\n+",
                                           "[^7]*7",
                                           "(?:ab?)*\\s",
                                           "\u6c49+(?=\u6c49)"};
    enum { MOST = 1500 };
    char text[MOST];
    static found whole, parts;
    matcher m;
    matcher_open(&m);
    for (size_t i = 0; i < ARRAY_LENGTH(patterns); i++) {
        pattern p;
        tokenizer_pattern source = {.is_regex = true, .text = {patterns[i], strlen(patterns[i])}};
        assert_int_equal(pattern_open(&p, &source, "f", "w"), OK);
        for (uint64_t seed = 0; seed < 60; seed++) {
            size_t n = text_of_runs(seed, text, MOST);
            find_all(&p, &m, text, n, MOST, &whole);
            for (size_t window = 4; window < MOST; window = window * 3 + 1) {
                find_all(&p, &m, text, n, window, &parts);
                if (parts.n != whole.n || memcmp(parts.at, whole.at, whole.n * sizeof *whole.at) != 0)
                    fail_msg("'%s' on text %llu: other matches with a window of %zu bytes", patterns[i],
                             (unsigned long long)seed, window);
            }
        }
        pattern_close(&p);
    }
    matcher_close(&m);
}

/* Thirty steps that double a text would make a gigabyte of one letter. */
static void texts_that_grow_and_grow_are_an_error(void **state) {
    static const char replace[] = "{\"type\":\"Replace\",\"pattern\":{\"String\":\"a\"},\"content\":\"aa\"}";
    static const char bytes[] = "{\"type\":\"ByteLevel\",\"add_prefix_space\":false,\"use_regex\":false}";
    static const struct {
        const char *key, *children, *component, *error;
    } chains[] = {{"normalizer", "normalizers", replace, "grow.json: normalizer.normalizers[|grows beyond"},
                  {"pre_tokenizer", "pretokenizers", bytes, "grow.json: pre_tokenizer|ByteLevel after ByteLevel"},
                  {"decoder", "decoders", replace, "grow.json: decoder|grows too long"}};
    for (size_t i = 0; i < ARRAY_LENGTH(chains); i++) {
        tokenizer *t;
        strbuf text;
        ids out = {0};
        strbuf_init(&text);
        strbuf_printf(&text, "{\"%s\":{\"type\":\"Sequence\",\"%s\":[", chains[i].key, chains[i].children);
        for (int k = 0; k < 30; k++) strbuf_printf(&text, "%s%s", k ? "," : "", chains[i].component);
        strbuf_add(&text, "]}," MODEL(AB, "[]") "}");
        write_bytes(path_of("grow.json"), text.text, text.length);
        text.length = 0;
        assert_int_equal(tokenizer_open(&t, path_of("grow.json")), OK);
        status rc = tokenizer_encode(t, "a\xc3\xa9", 3, &out.id, &out.n, &out.capacity);
        if (rc == OK) rc = tokenizer_decode(t, &(int32_t){0}, 1, &text);
        expect_error(rc, ERR_INPUT, chains[i].error);
        free(out.id);
        strbuf_fini(&text);
        tokenizer_close(t);
    }
}

static void round_trip(const tokenizer *t, const strbuf *text) {
    ids out = {0};
    strbuf back;
    strbuf_init(&back);
    encode(t, text->text, text->length, 0, &out);
    assert_int_equal(tokenizer_decode(t, out.id, out.n, &back), OK);
    assert_int_equal(back.length, text->length);
    assert_memory_equal(back.text, text->text, text->length);
    strbuf_fini(&back);
    free(out.id);
}

/* A merge that looked at every pair each time would need 10^11 steps here. */
static void long_words_take_no_square_time(void **state) {
    static const char *const names[] = {"gpt2", "no_regex", "llama2", "nfc"};
    static const char *const words[] = {"the", "sea", "\xe6\xb1\x89", " ", "\n"};
    for (size_t v = 0; v < ARRAY_LENGTH(names); v++) {
        tokenizer *t = open_variant(variant_named(names[v]));
        for (size_t w = 0; w < ARRAY_LENGTH(words); w++) {
            strbuf text;
            strbuf_init(&text);
            for (int i = 0; i < 100000; i++) strbuf_add(&text, words[w]);
            round_trip(t, &text);
            strbuf_fini(&text);
        }
        tokenizer_close(t);
    }
}

static void many_tokens_among_spaces_take_no_square_time(void **state) {
    static const char *const sides[] = {"\"lstrip\":true,\"rstrip\":false", "\"lstrip\":false,\"rstrip\":true"};
    strbuf spaces, file;
    strbuf_init(&spaces);
    strbuf_init(&file);
    for (int i = 0; i < 1000000; i++) strbuf_add(&spaces, " ");
    for (size_t i = 0; i < ARRAY_LENGTH(sides); i++) {
        tokenizer *t;
        ids out = {0};
        file.length = 0;
        strbuf_printf(&file,
                      "{\"added_tokens\":[{\"id\":3,\"content\":\" \",\"single_word\":false,\"normalized\":false,"
                      "\"special\":true,%s}]," MODEL(AB, "[]") "}",
                      sides[i]);
        write_bytes(path_of("spaces.json"), file.text, file.length);
        assert_int_equal(tokenizer_open(&t, path_of("spaces.json")), OK);
        encode(t, spaces.text, spaces.length, 0, &out);
        assert_int_equal(out.n, spaces.length); /* the reference, too, finds every one of them */
        free(out.id);
        tokenizer_close(t);
    }
    strbuf_fini(&spaces);
    strbuf_fini(&file);
}

static void marks_in_any_number_are_ordered_quickly(void **state) {
    tokenizer *t = open_variant(variant_named("nfd"));
    strbuf text, expected;
    strbuf_init(&text);
    strbuf_init(&expected);
    strbuf_add(&text, "e");
    for (int i = 0; i < 100000; i++) strbuf_add(&text, "\xcc\x81\xcc\x96"); /* above (230), below (220) */
    strbuf_add(&expected, "e");
    for (int i = 0; i < 100000; i++) strbuf_add(&expected, "\xcc\x96");
    for (int i = 0; i < 100000; i++) strbuf_add(&expected, "\xcc\x81");
    ids out = {0}, sorted = {0};
    encode(t, text.text, text.length, 0, &out);
    encode(t, expected.text, expected.length, 0, &sorted);
    assert_int_equal(out.n, sorted.n);
    assert_memory_equal(out.id, sorted.id, out.n * sizeof *out.id);
    free(out.id);
    free(sorted.id);
    strbuf_fini(&text);
    strbuf_fini(&expected);
    tokenizer_close(t);
}

static const tokenizer *of_child;
static int encode_and_decode_much(void) {
    enum { N = 30 << 20 };
    ids out = {0};
    strbuf back;
    strbuf_init(&back);
    char *text = malloc(N);
    memset(text, 'a', N);
    status rc = tokenizer_encode(of_child, text, N, &out.id, &out.n, &out.capacity);
    if (rc != ERR_RUN || !strstr(error_message(), "not enough host memory to tokenize")) return 1;
    rc = tokenizer_decode(of_child, (int32_t *)(void *)text, N / 4, &back);
    return rc == ERR_RUN && strstr(error_message(), "not enough host memory to turn tokens") ? 42 : 2;
}

/* The program that uses the library has to live on. */
static void a_text_without_memory_is_an_error(void **state) {
    tokenizer *file = open_variant(variant_named("gpt2")), *bytes;
    assert_int_equal(tokenizer_open(&bytes, "byte"), OK);
    for (int i = 0; i < 2; i++) {
        of_child = i ? file : bytes;
        int code = with_little_memory((size_t)64 << 20, encode_and_decode_much);
        assert_true(code == 42 || code == SKIPPED);
    }
    tokenizer_close(file);
    tokenizer_close(bytes);
}

enum { SHARED_TEXTS = 200 };
typedef struct shared_work {
    const tokenizer *t;
    span texts[SHARED_TEXTS];
    ids out[SHARED_TEXTS];
} shared_work;

static void encode_shared(void *context, int64_t task, int thread) {
    shared_work *w = context;
    encode(w->t, w->texts[task].text, w->texts[task].length, 0, &w->out[task]);
}

static void threads_share_a_tokenizer(void **state) {
    const json_t *texts = json_object_get(fixture, "texts");
    tokenizer *t = open_variant(variant_named("qwen"));
    shared_work w = {.t = t};
    pool *threads;
    assert_int_equal(pool_open(&threads, 4, false), OK);
    for (size_t i = 0; i < SHARED_TEXTS; i++) {
        const json_t *text = json_array_get(texts, i % json_array_size(texts));
        w.texts[i] = (span){json_string_value(text), json_string_length(text)};
    }
    pool_run(threads, encode_shared, &w, SHARED_TEXTS);
    for (size_t i = 0; i < SHARED_TEXTS; i++) {
        ids one = {0};
        encode(t, w.texts[i].text, w.texts[i].length, 0, &one);
        assert_int_equal(w.out[i].n, one.n);
        if (one.n) assert_memory_equal(w.out[i].id, one.id, one.n * sizeof *one.id);
        free(one.id);
        free(w.out[i].id);
    }
    tokenizer_close(t);
    pool_close(threads);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(wrong_files_are_refused_with_their_place),
        cmocka_unit_test(deep_nesting_is_refused),
        cmocka_unit_test(damaged_files_do_no_harm),
        cmocka_unit_test(merges_may_stand_before_the_vocabulary),
        cmocka_unit_test(ignored_merges_leave_a_word_that_is_a_token_whole),
        cmocka_unit_test(unknown_characters_without_their_token_are_an_error),
        cmocka_unit_test(catastrophic_patterns_end_in_an_error),
        cmocka_unit_test(patterns_that_read_to_the_end_at_every_place_end_in_an_error),
        cmocka_unit_test(matches_do_not_depend_on_the_window),
        cmocka_unit_test(a_text_without_memory_is_an_error),
        cmocka_unit_test(texts_that_grow_and_grow_are_an_error),
        cmocka_unit_test(long_words_take_no_square_time),
        cmocka_unit_test(many_tokens_among_spaces_take_no_square_time),
        cmocka_unit_test(marks_in_any_number_are_ordered_quickly),
        cmocka_unit_test(threads_share_a_tokenizer),
    };
    log_set_level(LOG_ERROR); /* damaged files warn of ids that moved */
    if (!tokenizer_cases_open()) return 1;
    int rc = cmocka_run_group_tests(tests, test_dir_open, test_dir_close);
    json_decref(fixture);
    return rc;
}
