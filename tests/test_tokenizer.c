/* test_tokenizer.c - a tokenizer.json gives the ids of the library that wrote it, whatever components it uses; a broken
 * or hostile one gives an error that says where; a stream decodes to the same text as a list.
 *
 * The numbers to compare with are in fixtures/tokenizer_cases.json (tools/make_tokenizer_fixtures.py made it). Published
 * tokenizers and data are looked for in ../shared, beside the project; where they are not, that test says so. */
#include "data/encode.h"
#include "data/unicode_table.h"
#include "files.h"
#include "tokenizer_variants.h"

#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include <setjmp.h>
#include <cmocka.h>

/* ---- helpers ------------------------------------------------------------------------------------------------- */

static uint32_t fnv(uint32_t h, uint32_t n) { return (h ^ n) * 0x01000193u; }

static uint32_t fnv_ids(uint32_t h, const int32_t *ids, size_t n) {
    for (size_t i = 0; i < n; i++) h = fnv(h, (uint32_t)ids[i]);
    return h;
}

static uint32_t fnv_text(uint32_t h, const strbuf *text) {
    for (size_t i = 0; i < text->length; i++) h = fnv(h, (unsigned char)text->text[i]);
    return h;
}

typedef struct ids {
    int32_t *id;
    size_t n, capacity;
} ids;

static void encode(const tokenizer *t, const char *text, size_t n, unsigned flags, ids *out) {
    out->n = 0;
    if (tokenizer_encode_with(t, text, n, flags, &out->id, &out->n, &out->capacity) != OK)
        fail_msg("%s", error_message());
}

/* As a list and as a stream; they must agree, and a stream never gives part of a character. */
static void decode(const tokenizer *t, const ids *in, unsigned flags, strbuf *out) {
    strbuf streamed;
    strbuf_init(&streamed);
    out->length = 0;
    assert_int_equal(tokenizer_decode_with(t, in->id, in->n, flags, out), OK);
    decode_stream *s = tokenizer_decode_stream(t, flags);
    for (size_t i = 0; i <= in->n; i++) {
        size_t before = streamed.length;
        assert_int_equal(i < in->n ? decode_stream_push(s, in->id[i], &streamed) : decode_stream_end(s, &streamed), OK);
        assert_int_equal(utf8_check(streamed.text + before, streamed.length - before).n_bad, 0);
    }
    assert_int_equal(streamed.length, out->length);
    assert_memory_equal(streamed.text, out->text, out->length);
    decode_stream_close(s);
    strbuf_fini(&streamed);
}

/* ---- small tokenizers ---------------------------------------------------------------------------------------- */

static uint32_t sum_of(const tokenizer *t, const char *text, size_t n) {
    ids plain = {0}, full = {0}, as_text = {0};
    strbuf out;
    strbuf_init(&out);
    encode(t, text, n, 0, &plain);
    encode(t, text, n, ENCODE_ADD_SPECIALS, &full);
    encode(t, text, n, ENCODE_SPECIALS_AS_TEXT, &as_text);
    uint32_t h = fnv(fnv_ids(0x811c9dc5u, plain.id, plain.n), UINT32_MAX);
    h = fnv(fnv_ids(h, full.id, full.n), UINT32_MAX);
    h = fnv(fnv_ids(h, as_text.id, as_text.n), UINT32_MAX);
    decode(t, &plain, 0, &out);
    h = fnv(fnv_text(h, &out), UINT32_MAX);
    decode(t, &full, DECODE_KEEP_SPECIALS, &out);
    h = fnv_text(h, &out);
    strbuf_fini(&out);
    free(plain.id);
    free(full.id);
    free(as_text.id);
    return h;
}

static size_t from_hex(const char *hex, char *out) {
    size_t n = strlen(hex) / 2;
    for (size_t i = 0; i < n; i++) {
        unsigned byte;
        assert_int_equal(sscanf(hex + 2 * i, "%2x", &byte), 1);
        out[i] = (char)byte;
    }
    return n;
}

static void every_component_gives_the_ids_of_the_reference(void **state) {
    const json_t *variants = json_object_get(fixture, "variants"), *texts = json_object_get(fixture, "texts");
    const json_t *bytes = json_object_get(fixture, "bytes");
    int n_bad = 0;
    assert_true(json_array_size(variants) > 60 && json_array_size(texts) > 20 && json_array_size(bytes) > 5);
    for (size_t v = 0; v < json_array_size(variants); v++) {
        const json_t *variant = json_array_get(variants, v), *sums = json_object_get(variant, "sums");
        tokenizer *t = open_variant(variant);
        assert_int_equal(json_array_size(sums), json_array_size(texts) + json_array_size(bytes));
        for (size_t i = 0; i < json_array_size(sums); i++) {
            const json_t *text = json_array_get(texts, i);
            char raw[64];
            uint32_t sum =
                text ? sum_of(t, json_string_value(text), json_string_length(text))
                     : sum_of(t, raw,
                              from_hex(json_string_value(json_array_get(bytes, i - json_array_size(texts))), raw));
            if (sum == (uint32_t)json_integer_value(json_array_get(sums, i))) continue;
            n_bad++;
            print_error("variant %s, text %zu: other ids or another text than the reference\n",
                        json_string_value(json_object_get(variant, "name")), i);
        }
        tokenizer_close(t);
    }
    assert_int_equal(n_bad, 0);
}

static void unknown_ids_are_seen_and_specials_left_out(void **state) {
    tokenizer *t = open_variant(variant_named("added"));
    strbuf out;
    ids one = {0};
    strbuf_init(&out);
    encode(t, "<s> the</s>", 11, 0, &one);
    assert_int_equal(one.n, 3);
    assert_int_equal(one.id[0], tokenizer_special(t, "<s>"));
    assert_int_equal(one.id[2], tokenizer_special(t, "</s>"));
    assert_int_equal(one.id[1], tokenizer_special(t, "\xc4\xa0the"));
    assert_int_equal(tokenizer_special(t, "<nothing>"), -1);
    decode(t, &one, 0, &out);
    assert_string_equal(out.text, " the");
    decode(t, &one, DECODE_KEEP_SPECIALS, &out);
    assert_string_equal(out.text, "<s> the</s>");
    int32_t strange[] = {one.id[1], -1, (int32_t)tokenizer_vocab(t), INT32_MAX, INT32_MIN, one.id[1]};
    decode(t, &(ids){strange, 6, 6}, 0, &out);
    assert_string_equal(out.text, " the\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd the");
    free(one.id);
    strbuf_fini(&out);
    tokenizer_close(t);
}

static void bytes_stream_whole_characters(void **state) {
    tokenizer *t;
    strbuf out;
    ids in = {0};
    const char text[] = "a\xe6\xb1\x89\xff\xf0\x9f\x92\xa9\xe6\xb1"; /* ends inside a character */
    strbuf_init(&out);
    assert_int_equal(tokenizer_open(&t, "byte"), OK);
    assert_int_equal(tokenizer_bos(t), TOKEN_BOS);
    assert_int_equal(tokenizer_special(t, "<s>"), -1);
    encode(t, text, sizeof text - 1, ENCODE_ADD_SPECIALS, &in);
    assert_int_equal(in.n, sizeof text);
    assert_int_equal(in.id[0], TOKEN_BOS);
    decode_stream *s = tokenizer_decode_stream(t, 0);
    size_t lengths[] = {0, 1, 1, 1, 4, 5, 5, 5, 5, 9, 9, 9};
    for (size_t i = 0; i < in.n; i++) {
        assert_int_equal(decode_stream_push(s, in.id[i], &out), OK);
        assert_int_equal(out.length, lengths[i]);
    }
    assert_int_equal(decode_stream_end(s, &out), OK);
    assert_int_equal(out.length, sizeof text - 1);
    assert_memory_equal(out.text, text, sizeof text - 1);
    decode_stream_close(s);
    free(in.id);
    strbuf_fini(&out);
    tokenizer_close(t);
}

/* ---- classes of characters ------------------------------------------------------------------------------------- */

static bool of_letter(int32_t c) { return unicode_categories[char_category(c)][0] == 'L'; }
static bool of_number(int32_t c) { return unicode_categories[char_category(c)][0] == 'N'; }
static bool of_symbol(int32_t c) { return unicode_categories[char_category(c)][0] == 'S'; }
static bool of_mark(int32_t c) { return unicode_categories[char_category(c)][0] == 'M'; }
static bool of_upper(int32_t c) { return char_category(c) == CATEGORY_LU; }
static bool of_none(int32_t c) { return !char_is_space(c) && !of_letter(c) && !of_number(c); }
static bool of_han(int32_t c) { return strcmp(unicode_scripts[unicode_run_scripts[unicode_run_of(c)]], "Han") == 0; }
static bool of_punctuation_or_symbol(int32_t c) {
    return of_symbol(c) || unicode_categories[char_category(c)][0] == 'P';
}

/* Whatever version of Unicode PCRE2 has: expressions see the classes of the table, for every character. */
static void expressions_see_the_classes_of_the_table(void **state) {
    static const struct {
        const char *expression;
        bool (*is)(int32_t c);
    } classes[] = {{"\\p{L}", of_letter},
                   {"\\p{N}", of_number},
                   {"\\p{S}", of_symbol},
                   {"\\p{M}", of_mark},
                   {"\\p{Lu}", of_upper},
                   {"\\s", char_is_space},
                   {"[^\\s\\p{L}\\p{N}]", of_none},
                   {"\\p{Han}", of_han},
                   {"[\\p{P}\\p{S}]", of_punctuation_or_symbol}};
    strbuf text;
    strbuf_init(&text);
    for (int32_t c = 1; c < 0x110000; c++) {
        char u[4];
        if ((c >= 0xd800 && c < 0xe000) || (c >= 0x40000 && c < 0xe0000)) continue;
        strbuf_add_bytes(&text, u, char_encode(c, u));
    }
    for (size_t i = 0; i < ARRAY_LENGTH(classes); i++) {
        tokenizer_pattern source = {{classes[i].expression, strlen(classes[i].expression)}, true};
        pattern p;
        matcher m;
        pattern_walk w;
        size_t start, end, at = 0;
        bool found = true;
        assert_int_equal(pattern_open(&p, &source, "file", "where"), OK);
        matcher_open(&m);
        pattern_begin(&w, &p, &m, text.text, text.length);
        while (found) {
            assert_int_equal(pattern_next(&w, &start, &end, &found), OK);
            if (!found) start = end = text.length;
            for (; at < end; at += char_length(text.text[at])) {
                int32_t c = char_decode(text.text + at);
                if (classes[i].is(c) != (at >= start)) fail_msg("%s: U+%04X", classes[i].expression, (unsigned)c);
            }
        }
        pattern_end(&w);
        matcher_close(&m);
        pattern_close(&p);
    }
    strbuf_fini(&text);
}

/* Characters that are newer than the tables of PCRE2 10.42, through a whole tokenizer: symbols and letters go. */
static void new_characters_belong_to_their_classes(void **state) {
    json_error_t error;
    static const char *const texts[] = {"I7\xf0\x9f\xa9\xb7 \xf0\x9f\xab\xa9!", /* U+1FA77 of 15.0, U+1FAE9 of 16.0 */
                                        "7\xe1\xb2\x89 \xf0\x90\xb5\x90!",      /* U+1C89, U+10D50 of 16.0 */
                                        "7\xf0\xb2\x8e\xaf !"};                 /* U+323AF of 15.0 */
    json_t *patch =
        json_loads("{\"pre_tokenizer\": {\"type\": \"Sequence\", \"pretokenizers\": [{\"type\": \"Split\", "
                   "\"pattern\": {\"Regex\": \"[\\\\p{S}\\\\p{L}]\"}, \"behavior\": \"Removed\", \"invert\": "
                   "false}, {\"type\": \"ByteLevel\", \"add_prefix_space\": false, \"use_regex\": false}]}}",
                   0, &error);
    assert_non_null(patch);
    json_t *variant = json_pack("{s:s, s:{}, s:o}", "base", "bytes", "model", "patch", patch);
    tokenizer *t = open_variant(variant);
    ids wanted = {0}, out = {0};
    encode(t, "7 !", 3, 0, &wanted);
    for (size_t i = 0; i < ARRAY_LENGTH(texts); i++) {
        encode(t, texts[i], strlen(texts[i]), 0, &out);
        assert_int_equal(out.n, wanted.n);
        assert_memory_equal(out.id, wanted.id, out.n * sizeof *out.id);
    }
    free(wanted.id);
    free(out.id);
    tokenizer_close(t);
    json_decref(variant);
}

/* ---- BOS and EOS --------------------------------------------------------------------------------------------- */

static void bos_and_eos_come_from_the_config_beside_the_file(void **state) {
    tokenizer *t;
    json_t *root = compose(variant_named("llama2"));
    assert_int_equal(mkdir(path_of("model"), 0700), 0);
    write_json(path_of("model/tokenizer.json"), root);
    json_decref(root);
    assert_int_equal(tokenizer_open(&t, path_of("model")), OK); /* no config: usual names */
    assert_int_equal(tokenizer_bos(t), 1);
    assert_int_equal(tokenizer_eos(t), 2);
    tokenizer_close(t);
    static const char config[] = "{\"model_max_length\": 1000000000000000019884624838656, \"bos_token\": null,"
                                 " \"eos_token\": {\"content\": \"<unk>\", \"lstrip\": false}}";
    write_bytes(path_of("model/tokenizer_config.json"), config, sizeof config - 1);
    assert_int_equal(tokenizer_open(&t, path_of("model/")), OK);
    assert_int_equal(tokenizer_bos(t), -1);
    assert_int_equal(tokenizer_eos(t), 0);
    tokenizer_close(t);
    static const struct {
        const char *text, *error;
    } bad[] = {
        {"{\"eos_token\": \"<end>\"}", "tokenizer_config.json: eos_token|'<end>'|tokenizer.json"},
        {"{\"bos_token\": 3}", "bos_token|neither"},
        {"{\"eos_token\": ", "tokenizer_config.json:1:"},
    };
    for (size_t i = 0; i < ARRAY_LENGTH(bad); i++) {
        write_bytes(path_of("model/tokenizer_config.json"), bad[i].text, strlen(bad[i].text));
        expect_error(tokenizer_open(&t, path_of("model")), ERR_INPUT, bad[i].error);
        assert_null(t);
    }
    assert_int_equal(unlink(path_of("model/tokenizer.json")), 0);
    expect_error(tokenizer_open(&t, path_of("model")), ERR_IO, "model/tokenizer.json");
    expect_error(tokenizer_open(&t, "nowhere"), ERR_INPUT, "'nowhere'|'byte'|tokenizer.json");
}

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

static void threads_share_a_tokenizer(void **state) {
    enum { TEXTS = 200 };
    const json_t *texts = json_object_get(fixture, "texts");
    tokenizer *t = open_variant(variant_named("qwen"));
    span views[TEXTS];
    encoded_document documents[TEXTS];
    pool *threads;
    assert_int_equal(pool_open(&threads, 4, false), OK);
    for (size_t i = 0; i < TEXTS; i++) {
        const json_t *text = json_array_get(texts, i % json_array_size(texts));
        views[i] = (span){json_string_value(text), json_string_length(text)};
    }
    assert_int_equal(tokenizer_encode_documents(t, threads, views, TEXTS, 0, documents), OK);
    for (size_t i = 0; i < TEXTS; i++) {
        ids one = {0};
        encode(t, views[i].text, views[i].length, 0, &one);
        assert_int_equal(documents[i].n, one.n);
        if (one.n) assert_memory_equal(documents[i].tokens, one.id, one.n * sizeof *one.id);
        free(one.id);
        free(documents[i].tokens);
    }
    tokenizer_close(t);
    /* One text that fails: the first error by number, and nothing to free. */
    static const char file[] = "{\"model\":{\"type\":\"BPE\",\"unk_token\":\"<unk>\",\"vocab\":" AB ",\"merges\":[]}}";
    write_bytes(path_of("unk.json"), file, sizeof file - 1);
    assert_int_equal(tokenizer_open(&t, path_of("unk.json")), OK);
    for (size_t i = 0; i < TEXTS; i++)
        views[i] = i == 100 ? (span){"z", 1} : i > 150 ? (span){"y", 1} : (span){"ab", 2};
    expect_error(tokenizer_encode_documents(t, threads, views, TEXTS, 0, documents), ERR_INPUT, "'z'");
    for (size_t i = 0; i < TEXTS; i++) assert_null(documents[i].tokens);
    tokenizer_close(t);
    pool_close(threads);
}

/* ---- characters ---------------------------------------------------------------------------------------------- */

static void ill_formed_bytes_are_cut_as_the_standard_says(void **state) {
    static const struct {
        const char *hex;
        size_t n_valid, n_bad;
        bool is_cut;
    } cases[] = {
        {"", 0, 0, false},       {"6162", 2, 0, false},     {"c3a9", 2, 0, false},   {"61ff", 1, 1, false},
        {"c080", 0, 1, false},   {"e2", 0, 1, true},        {"e282", 0, 2, true},    {"e28261", 0, 2, false},
        {"eda080", 0, 1, false}, {"f09f92a9", 4, 0, false}, {"f09f92", 0, 3, true},  {"f4908080", 0, 1, false},
        {"f5", 0, 1, false},     {"e08080", 0, 1, false},   {"f08080", 0, 1, false}, {"6161616161616161c3", 8, 1, true},
    };
    for (size_t i = 0; i < ARRAY_LENGTH(cases); i++) {
        char raw[32];
        utf8_scan s = utf8_check(raw, from_hex(cases[i].hex, raw));
        assert_int_equal(s.n_valid, cases[i].n_valid);
        assert_int_equal(s.n_bad, cases[i].n_bad);
        assert_int_equal(s.is_cut, cases[i].is_cut);
    }
}

static void characters_of_bytes_are_a_bijection(void **state) {
    bool seen[512] = {false};
    for (int b = 0; b < 256; b++) {
        assert_in_range(byte_chars[b], 0x21, 0x143);
        assert_false(seen[byte_chars[b]]);
        seen[byte_chars[b]] = true;
        assert_int_equal(byte_of_char(byte_chars[b]), b);
    }
    assert_int_equal(byte_chars[' '], 0x120);
    assert_int_equal(byte_chars[0xad], 0x143);
    for (int32_t c = 0; c < 0x1000; c++)
        if (c >= 512 || !seen[c]) assert_int_equal(byte_of_char(c), -1);
}

/* ---- published tokenizers ------------------------------------------------------------------------------------ */

static void torture(strbuf *out) {
    const json_t *texts = json_object_get(fixture, "texts");
    for (size_t i = 0; i < json_array_size(texts); i++) {
        if (i) strbuf_add(out, "\n");
        strbuf_add_bytes(out, json_string_value(json_array_get(texts, i)),
                         json_string_length(json_array_get(texts, i)));
    }
    for (int i = 0; i < 33334; i++) strbuf_add(out, "abc");
    for (int i = 0; i < 5000; i++) strbuf_add(out, " ");
    for (int i = 0; i < 3000; i++) strbuf_add(out, "\n");
    for (int i = 0; i < 20000; i++) strbuf_add(out, "\xe6\xb1\x89");
    for (int i = 0; i < 3000; i++) strbuf_add(out, "e\xcc\x81\xcc\x96");
}

static uint32_t sum_of_lines(const tokenizer *t, const char *path) {
    static const char *const parts[] = {"test", "train"};
    uint32_t h = 0x811c9dc5u;
    ids out = {0};
    for (int p = 0; p < 2; p++) {
        char name[512], *text;
        size_t n;
        snprintf(name, sizeof name, "%s/data/gsm8k/%s.jsonl", path, parts[p]);
        assert_int_equal(file_read_all(name, (size_t)1 << 30, &text, &n), OK);
        for (char *at = text, *end; (end = memchr(at, '\n', n - (size_t)(at - text))); at = end + 1) {
            if (end == at) continue;
            encode(t, at, (size_t)(end - at), ENCODE_ADD_SPECIALS, &out);
            h = fnv(fnv_ids(h, out.id, out.n), UINT32_MAX);
        }
        free(text);
    }
    free(out.id);
    return h;
}

static void published_tokenizers_give_the_ids_of_the_reference(void **state) {
    static const char shared[] = TEST_FIXTURES "/../../../shared";
    const json_t *rows = json_object_get(fixture, "published");
    char path[512], *text;
    size_t n;
    snprintf(path, sizeof path, "%s/data/tinyshakespeare.txt", shared);
    if (access(path, R_OK) != 0) {
        print_message("no ../shared beside the project: published tokenizers are not tested\n");
        skip();
    }
    assert_int_equal(file_read_all(path, (size_t)1 << 30, &text, &n), OK);
    strbuf hard;
    strbuf_init(&hard);
    torture(&hard);
    for (size_t i = 0; i < json_array_size(rows); i++) {
        const json_t *row = json_array_get(rows, i);
        tokenizer *t;
        ids out = {0};
        strbuf back;
        strbuf_init(&back);
        snprintf(path, sizeof path, "%s/tokenizers/%s", shared, json_string_value(json_object_get(row, "name")));
        if (tokenizer_open(&t, path) != OK) fail_msg("%s", error_message());
        encode(t, text, n, 0, &out);
        assert_int_equal(fnv_ids(0x811c9dc5u, out.id, out.n), json_integer_value(json_object_get(row, "shakespeare")));
        decode(t, &out, 0, &back);
        assert_int_equal(back.length, n);
        assert_memory_equal(back.text, text, n);
        assert_int_equal(sum_of_lines(t, shared), json_integer_value(json_object_get(row, "gsm8k")));
        encode(t, hard.text, hard.length, ENCODE_ADD_SPECIALS, &out);
        assert_int_equal(fnv_ids(0x811c9dc5u, out.id, out.n), json_integer_value(json_object_get(row, "torture")));
        free(out.id);
        strbuf_fini(&back);
        tokenizer_close(t);
    }
    strbuf_fini(&hard);
    free(text);
}

/* -------------------------------------------------------------------------------------------------------------- */

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_component_gives_the_ids_of_the_reference),
        cmocka_unit_test(unknown_ids_are_seen_and_specials_left_out),
        cmocka_unit_test(bytes_stream_whole_characters),
        cmocka_unit_test(expressions_see_the_classes_of_the_table),
        cmocka_unit_test(new_characters_belong_to_their_classes),
        cmocka_unit_test(bos_and_eos_come_from_the_config_beside_the_file),
        cmocka_unit_test(wrong_files_are_refused_with_their_place),
        cmocka_unit_test(deep_nesting_is_refused),
        cmocka_unit_test(damaged_files_do_no_harm),
        cmocka_unit_test(merges_may_stand_before_the_vocabulary),
        cmocka_unit_test(unknown_characters_without_their_token_are_an_error),
        cmocka_unit_test(catastrophic_patterns_end_in_an_error),
        cmocka_unit_test(texts_that_grow_and_grow_are_an_error),
        cmocka_unit_test(long_words_take_no_square_time),
        cmocka_unit_test(many_tokens_among_spaces_take_no_square_time),
        cmocka_unit_test(marks_in_any_number_are_ordered_quickly),
        cmocka_unit_test(threads_share_a_tokenizer),
        cmocka_unit_test(ill_formed_bytes_are_cut_as_the_standard_says),
        cmocka_unit_test(characters_of_bytes_are_a_bijection),
        cmocka_unit_test(published_tokenizers_give_the_ids_of_the_reference),
    };
    log_set_level(LOG_ERROR); /* damaged files warn of ids that moved */
    if (!tokenizer_cases_open()) return 1;
    int rc = cmocka_run_group_tests(tests, test_dir_open, test_dir_close);
    json_decref(fixture);
    return rc;
}
