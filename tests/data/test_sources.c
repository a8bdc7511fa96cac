/* test_sources.c - packed files and tables are read as what they hold: the same records as the plain JSON Lines, with the lines of the
 * file in messages; and what is cut off, damaged, a bomb or no table is refused by name. */
#include "data/file_kind.h"
#include "data/lines.h"
#include "files.h"

#include <stdlib.h>
#include <string.h>

#include <setjmp.h>
#include <cmocka.h>

static const char *fixture(const char *name) {
    static char path[512];
    snprintf(path, sizeof path, "%s/packed/%s", TEST_FIXTURES, name);
    return path;
}

/* ---- packed ------------------------------------------------------------------------------------------------------ */

static void packed_records_are_the_records_in_them(void **state) {
    static const char *const names[] = {"whole.jsonl.gz", "members.jsonl.gz", "padded.jsonl.gz", "whole.jsonl.zst",
                                        "frames.jsonl.zst"};
    for (size_t i = 0; i < ARRAY_LENGTH(names); i++) {
        records *r;
        if (records_open(&r, fixture(names[i]), &(record_options){0}) != OK) fail_msg("%s", error_message());
        assert_int_equal(records_count(r), 40);
        for (int k = 39; k >= 0; k--) { /* in any order */
            data_record q;
            char prompt[16];
            snprintf(prompt, sizeof prompt, "%d+1=", k + 1);
            assert_int_equal(records_get(r, (uint64_t)k, &q), OK);
            assert_int_equal(q.line, k + 1);
            assert_int_equal(q.prompt.length, strlen(prompt));
            assert_memory_equal(q.prompt.text, prompt, strlen(prompt));
        }
        records_close(r);
    }
}

static void what_is_packed_badly_is_refused(void **state) {
    static const struct {
        const char *name, *says;
    } cases[] = {
        {"cut.jsonl.gz", "cut.jsonl.gz: the gzip data ends after 100 bytes in the middle|download it again"},
        {"head.jsonl.gz", "head.jsonl.gz: the gzip data ends after 3 bytes"},
        {"damaged.jsonl.gz", "damaged.jsonl.gz: found damaged gzip data|download it again"},
        {"garbage.jsonl.gz", "garbage.jsonl.gz: found other bytes after the end of the gzip data (at byte 245)"},
        {"garbage.jsonl.zst", "garbage.jsonl.zst: found zstd data that cannot be unpacked"},
        {"cut.jsonl.zst", "cut.jsonl.zst: the zstd data ends after 100 bytes in the middle"},
        {"bomb.txt.zst", "bomb.txt.zst: found |expected at most 200 times as much|fill the disk|zstd -d FILE"},
    };
    for (size_t i = 0; i < ARRAY_LENGTH(cases); i++)
        for (int skip = 0; skip < 2; skip++) { /* a file that is damaged is no record to skip */
            records *r;
            record_options o = {.format = FORMAT_JSONL, .on_error = skip ? RECORDS_SKIP : RECORDS_STOP};
            expect_error(records_open(&r, fixture(cases[i].name), &o), ERR_INPUT, cases[i].says);
        }
    write_text(path_of("page.jsonl.gz"), "<html>not found</html>\n");
    reader r;
    expect_error(reader_open(&r, path_of("page.jsonl.gz")), ERR_INPUT,
                 "page.jsonl.gz: found no gzip data, as its name says");
    write_text(path_of("empty.jsonl.gz"), "");
    expect_error(reader_open(&r, path_of("empty.jsonl.gz")), ERR_INPUT, "empty.jsonl.gz: found an empty file");
    data_options o = {.source = fixture("nothing.txt.gz"), .tokenizer = "byte", .seq_len = 16, .pack = true};
    dataset *d;
    expect_error(dataset_open(&d, &o), ERR_INPUT, "nothing.txt.gz: found an empty file");
}

/* The hash that the cache keeps is of the file; a byte order mark inside is skipped; the bound of memory is of the text. */
static void packed_text_is_text(void **state) {
    reader r;
    span text;
    hash128 unpacked, as_is;
    assert_int_equal(reader_open(&r, fixture("mark.txt.gz")), OK);
    assert_int_equal(reader_peek(&r, 100, &text), OK);
    assert_int_equal(text.length, strlen("a text with a mark\n"));
    assert_memory_equal(text.text, "a text with a mark\n", text.length);
    assert_int_equal(reader_finish(&r, &unpacked), OK);
    reader_close(&r);
    assert_int_equal(reader_open_as_is(&r, fixture("mark.txt.gz")), OK);
    assert_int_equal(reader_finish(&r, &as_is), OK);
    reader_close(&r);
    assert_true(hash128_equal(unpacked, as_is));
    uint64_t n_bytes, n_lines;
    assert_int_equal(reader_measure(fixture("whole.jsonl.gz"), &n_bytes, &n_lines), OK);
    assert_int_equal(n_lines, 40);
    uint64_t n_expected = 0;
    for (int i = 1; i <= 40; i++)
        n_expected += (uint64_t)snprintf(NULL, 0, "{\"prompt\": \"%d+1=\", \"completion\": \"%d\"}", i, i + 1) + 1;
    assert_int_equal(n_bytes, n_expected);
}

/* ---- tables ------------------------------------------------------------------------------------------------------ */

/* The rows of a table as lines of JSON, "!" before what is wrong with a row. */
static void read_table(const char *text, char delimiter, strbuf *out) {
    reader in;
    record_lines lines;
    record_options o = {.format = delimiter == ',' ? FORMAT_CSV : FORMAT_TSV, .max_line = 100};
    write_text(path_of("table.csv"), text);
    assert_int_equal(reader_open(&in, path_of("table.csv")), OK);
    status rc = record_lines_open(&lines, &in, &o);
    out->length = 0;
    strbuf_add(out, "");
    for (bool found = true; rc == OK && found;) {
        line l;
        rc = record_lines_next(&lines, &l, &found);
        if (rc != OK || !found) continue;
        strbuf_printf(out, "%llu%s%.*s\n", (unsigned long long)l.number,
                      l.too_long   ? "!too long"
                      : l.is_wrong ? "!"
                                   : ":",
                      (int)l.text.length, l.text.text ? l.text.text : "");
    }
    if (rc != OK) strbuf_add(out, error_message());
    error_clear();
    record_lines_close(&lines);
    reader_close(&in);
}

static void tables_are_read_as_rfc_4180_says(void **state) {
    static const struct {
        const char *text, *rows;
    } cases[] = {
        {"a,b\n1,2\n", "1:{\"a\":\"1\",\"b\":\"2\"}\n"},
        {"\xef\xbb\xbf"
         "a,b\r\n1,2",
         "2:{\"a\":\"1\",\"b\":\"2\"}\n"},
        {"a,b\n\"x, y\",\"she said \"\"no\"\"\"\n", "2:{\"a\":\"x, y\",\"b\":\"she said \\\"no\\\"\"}\n"},
        {"a,b\n\"two\nlines\",\"\r\n\"\n,\n",
         "2:{\"a\":\"two\\nlines\",\"b\":\"\\r\\n\"}\n5:{\"a\":\"\",\"b\":\"\"}\n"},
        {"a\n\n\"\"\n\r\nx\n", "3:{\"a\":\"\"}\n5:{\"a\":\"x\"}\n"}, /* an empty line is no row; two quotes are one */
        {",a\n0,x\n1,y\n", "2:{\"a\":\"x\"}\n3:{\"a\":\"y\"}\n"},    /* the index of pandas */
        {"a,b\n1\n2,3\n", "2!found 1 values, expected 2"},
        {"a,b\n1,2,3\n4,5\n", "3:{\"a\":\"4\",\"b\":\"5\"}"}, /* and the next row is read */
        {"a,b\nx,\"y\" z\n1,2\n", "2!column 2 ('b'): found ' ' after the closing quote"},
        {"a,b\nx,y \"z\"\n", "2!column 2 ('b'): found a quote inside of a value that does not begin with one"},
        {"a,b\n1,\"2\n3,4\n", "2!column 2 ('b'): found no end of the quote that begins on line 2"},
        {"a,b\n1,\xff\n", "2!column 2 ('b'): found the byte 0xff, which is not UTF-8"},
        {"a,b\n1,2\r3,4\n", "2!column 2 ('b'): found a carriage return without a newline"},
        {"a,a\n1,2\n", "table.csv:1: columns 1 and 2: found the name 'a' twice"},
        {"a,,b\n1,2,3\n", "table.csv:1: column 2: found no name"},
        {"a;b\n1;2\n", "table.csv:1: found columns separated by ';', expected ','"},
        {"a\tb\n1\t2\n", "found columns separated by tabs, expected ','; set data.format=tsv"},
        {"", "table.csv: found an empty table"},
        {"messages,is_correct,tools\n\"[{\"\"role\"\": \"\"user\"\", \"\"content\"\": \"\"x\"\"}]\",True,\n",
         "2:{\"messages\":[{\"role\":\"user\",\"content\":\"x\"}],\"is_correct\":true}\n"},
        {"prompt,completion,label\n\"[1, 2]\",\"[{\"\"role\"\": \"\"assistant\"\", \"\"content\"\": \"\"x\"\"}]\",0\n",
         "2:{\"prompt\":\"[1, 2]\",\"completion\":[{\"role\":\"assistant\",\"content\":\"x\"}],\"label\":false}\n"},
    };
    strbuf rows;
    strbuf_init(&rows);
    for (size_t i = 0; i < ARRAY_LENGTH(cases); i++) {
        read_table(cases[i].text, ',', &rows);
        const char *want = cases[i].rows + (i == 0); /* the first row is on line 2 */
        if (!strstr(rows.text, want)) fail_msg("case %zu: got '%s', expected '%s'", i, rows.text, want);
    }
    read_table("a\tb\n1, 2\t5\" wide\n\"x\ty\"\tz\n", '\t', &rows); /* with tabs a quote inside is text */
    assert_string_equal(rows.text, "2:{\"a\":\"1, 2\",\"b\":\"5\\\" wide\"}\n3:{\"a\":\"x\\ty\",\"b\":\"z\"}\n");
    char wide[400] = "a,b\n1,";
    memset(wide + 6, 'x', 200);
    strcpy(wide + 206, "\n3,4\n");
    read_table(wide, ',', &rows);
    assert_string_equal(rows.text, "2!too long\n3:{\"a\":\"3\",\"b\":\"4\"}\n");
    strbuf_fini(&rows);
}

static uint64_t fingerprint_as(const char *path, data_kind kind) {
    dataset *d;
    data_options o = {
        .source = path, .tokenizer = "byte", .seq_len = 64, .pack = true, .kind = kind, .chat = CHAT_NONE};
    if (dataset_open(&d, &o) != OK) fail_msg("%s", error_message());
    uint64_t fingerprint = dataset_fingerprint(d);
    dataset_close(d);
    return fingerprint;
}

/* Every kind of example that JSON Lines may hold, as a table. */
static void tables_hold_every_kind_of_example(void **state) {
    static const struct {
        data_kind kind;
        const char *lines, *table;
    } cases[] = {
        {DATA_TEXT,
         "{\"instruction\": \"add, 1\", \"input\": \"2\", \"output\": \"3\"}\n{\"instruction\": \"i\", \"input\": "
         "\"\", \"output\": \"o\"}\n",
         "instruction,input,output\n\"add, 1\",2,3\ni,,o\n"},
        {DATA_PAIRS,
         "{\"prompt\": \"1+1=\", \"chosen\": \"2\", \"rejected\": \"3\\n\"}\n{\"prompt\": \"p\", \"chosen\": \"a\", "
         "\"rejected\": \"b\"}\n",
         "prompt,chosen,rejected\n1+1=,2,\"3\n\"\np,a,b\n"},
        {DATA_LABELLED,
         "{\"prompt\": \"p\", \"completion\": \"a\", \"label\": true}\n{\"prompt\": \"q\", \"completion\": \"b\", "
         "\"label\": false}\n",
         "prompt,completion,label\np,a,True\nq,b,0\n"},
        {DATA_SOLUTIONS,
         "{\"question\": \"q\", \"answer\": \"a\", \"is_correct\": true, \"task_id\": 7, \"difficulty\": 2}\n"
         "{\"question\": \"q\", \"answer\": \"b\", \"is_correct\": false, \"task_id\": 7, \"difficulty\": 2}\n",
         "question,answer,is_correct,task_id,difficulty\nq,a,TRUE,7,2\nq,b,false,7,2\n"},
    };
    for (size_t i = 0; i < ARRAY_LENGTH(cases); i++) {
        write_text(path_of("same.jsonl"), cases[i].lines);
        write_text(path_of("same.csv"), cases[i].table);
        uint64_t want = fingerprint_as(path_of("same.jsonl"), cases[i].kind);
        assert_int_equal(fingerprint_as(path_of("same.csv"), cases[i].kind), want);
    }
}

/* A row that crosses every boundary of the reader's blocks is the same row. */
static void rows_may_be_longer_than_a_block(void **state) {
    enum { N = 7 * 112348 };
    char *text = malloc(N + 100);
    size_t n = (size_t)sprintf(text, "text,n\n\"");
    for (size_t i = 0; i < N; i++) text[n++] = "ab\"\"\nc,"[i % 7];
    n += (size_t)sprintf(text + n, "\",1\nshort,2\n");
    write_bytes(path_of("long.csv"), text, n);
    records *r;
    data_record q;
    if (records_open(&r, path_of("long.csv"), &(record_options){0}) != OK) fail_msg("%s", error_message());
    assert_int_equal(records_count(r), 2);
    assert_int_equal(records_get(r, 0, &q), OK);
    assert_true(q.text.length > N / 7 * 6 - 8 && memcmp(q.text.text, "ab\"\nc,ab\"\nc,", 12) == 0);
    assert_int_equal(records_get(r, 1, &q), OK);
    assert_int_equal(q.text.length, 5);
    assert_true(q.line > N / 7);
    records_close(r);
    free(text);
}

/* ---- token ids --------------------------------------------------------------------------------------------------- */

static uint64_t fingerprint_of(const char *path, uint64_t *rows) {
    dataset *d;
    data_report report;
    data_options o = {.source = path, .tokenizer = "byte", .seq_len = 8, .pack = true, .eval_fraction = 0.2};
    if (dataset_open(&d, &o) != OK) fail_msg("%s", error_message());
    uint64_t fingerprint = dataset_fingerprint(d);
    dataset_report(d, SPLIT_TRAIN, &report);
    *rows = report.rows_per_epoch;
    dataset_close(d);
    return fingerprint;
}

/* Ids of the texts with an end token behind each, as numbers of so many bytes. */
static size_t make_ids(const char *const *texts, size_t n, size_t width, bool last_end, unsigned char *out) {
    size_t at = 0;
    for (size_t i = 0; i < n; i++)
        for (size_t k = 0; k <= strlen(texts[i]) && (last_end || i + 1 < n || texts[i][k]); k++, at += width) {
            unsigned id = texts[i][k] ? (unsigned char)texts[i][k] : TOKEN_EOS;
            memset(out + at, 0, width);
            out[at] = (unsigned char)id;
            out[at + 1] = (unsigned char)(id >> 8);
        }
    return at;
}

static size_t npy_header(char *out, const char *type, size_t n) {
    int length = sprintf(out + 10, "{'descr': '%s', 'fortran_order': False, 'shape': (%zu,), }\n", type, n);
    memcpy(out, "\x93NUMPY\1\0", 8);
    out[8] = (char)length;
    out[9] = 0;
    return 10 + (size_t)length;
}

static void files_of_ids_are_the_texts_they_were_made_of(void **state) {
    static const char *const texts[] = {"first text", "and a second one", "third", "four four four", "the fifth"};
    char bytes[2000];
    uint64_t rows, want_rows;
    FILE *f = fopen(path_of("texts.jsonl"), "wb");
    for (size_t i = 0; i < ARRAY_LENGTH(texts); i++) fprintf(f, "{\"text\": \"%s\"}\n", texts[i]);
    fclose(f);
    uint64_t want = fingerprint_of(path_of("texts.jsonl"), &want_rows);
    size_t n = make_ids(texts, ARRAY_LENGTH(texts), 2, true, (unsigned char *)bytes);
    write_bytes(path_of("ids.bin"), bytes, n);
    assert_int_equal(fingerprint_of(path_of("ids.bin"), &rows), want);
    assert_int_equal(rows, want_rows);
    static const struct {
        const char *type;
        size_t width;
    } types[] = {{"<u2", 2}, {"<i4", 4}, {"<u4", 4}, {"<i8", 8}};
    for (size_t i = 0; i < ARRAY_LENGTH(types); i++) {
        size_t at = npy_header(bytes, types[i].type, n / 2);
        at += make_ids(texts, ARRAY_LENGTH(texts), types[i].width, true, (unsigned char *)bytes + at);
        write_bytes(path_of("ids.npy"), bytes, at);
        assert_int_equal(fingerprint_of(path_of("ids.npy"), &rows), want);
    }
    memset(bytes, 0, 1024); /* llm.c */
    memcpy(bytes, &(uint32_t[]){20240520, 1, (uint32_t)n / 2}, 12);
    make_ids(texts, ARRAY_LENGTH(texts), 2, true, (unsigned char *)bytes + 1024);
    write_bytes(path_of("llmc.bin"), bytes, 1024 + n);
    assert_int_equal(fingerprint_of(path_of("llmc.bin"), &rows), want);
    /* one text, with and without its end token */
    n = make_ids(&texts[1], 1, 2, false, (unsigned char *)bytes);
    write_bytes(path_of("one.bin"), bytes, n);
    want = fingerprint_of(path_of("one.bin"), &rows);
    n = make_ids(&texts[1], 1, 2, true, (unsigned char *)bytes);
    write_bytes(path_of("one.bin"), bytes, n);
    assert_int_equal(fingerprint_of(path_of("one.bin"), &rows), want);
}

static void refuse_ids(const char *name, const void *bytes, size_t n, token_type type, const char *says) {
    dataset *d;
    data_options o = {.source = path_of(name), .tokenizer = "byte", .seq_len = 8, .pack = true, .token_type = type};
    write_bytes(path_of(name), bytes, n);
    expect_error(dataset_open(&d, &o), ERR_INPUT, says);
}

static void ids_that_are_none_are_refused(void **state) {
    uint16_t small[64] = {0}, large[4] = {1, 2, 300, 4};
    uint32_t four[64];
    char bytes[600] = {0};
    for (int i = 0; i < 64; i++) four[i] = 97;
    refuse_ids("x.bin", large, 8, 0,
               "x.bin: token 2: found the id 300, expected one below 260|data.tokenizer (byte)|uint16");
    refuse_ids("x.bin", large, 8, TOKEN_TYPE_UINT32, "found the id 131073");
    refuse_ids("x.bin", four, sizeof four, 0, "x.bin: found 0 as every second id|data.token_type=uint32");
    refuse_ids("x.bin", "abc", 3, TOKEN_TYPE_UINT32,
               "x.bin: found 3 bytes behind the last id, expected a multiple of 4");
    refuse_ids("x.bin", "", 0, 0, "x.bin: found no token");
    refuse_ids("x.bin", "PK\3\4 a checkpoint of PyTorch", 20, 0,
               "x.bin: found a file of zip|--model|data.format=tokens");
    size_t at = npy_header(bytes, "<u2", 60);
    refuse_ids("x.npy", bytes, at + 100, 0, "x.npy: found less than the 60 ids of its header");
    memset(bytes + at, 0, 200);
    refuse_ids("x.npy", bytes, at + 140, 0, "x.npy: found more than the 60 ids of its header");
    at = npy_header(bytes, "<f4", 10);
    refuse_ids("x.npy", bytes, at + 40, 0, "x.npy: found the type '<f4', expected integers|astype");
    int length = sprintf(bytes + 10, "{'descr': '<u2', 'fortran_order': False, 'shape': (3, 4), }\n");
    bytes[8] = (char)length;
    refuse_ids("x.npy", bytes, 10 + (size_t)length + 24, 0,
               "x.npy: found the shape (3, 4), expected one dimension|reshape");
    refuse_ids("x.npy", "not numpy at all", 16, 0, "x.npy: found no NumPy header");
    at = npy_header(bytes, "<i4", 1);
    memset(bytes + at, 0xff, 4);
    refuse_ids("x.npy", bytes, at + 4, 0, "x.npy: token 0: found a negative id");
    write_text(path_of("m.idx"), "");
    refuse_ids("m.bin", small, sizeof small, 0, "m.idx beside it, as Megatron|data.format=tokens");
}

/* ---- kinds ------------------------------------------------------------------------------------------------------- */

static void names_and_first_bytes_tell_what_a_file_is(void **state) {
    static const struct {
        const char *name;
        data_format format;
    } names[] = {{"a.txt", FORMAT_TEXT},    {"a.jsonl", FORMAT_JSONL},      {"a.JSONL.gz", FORMAT_JSONL},
                 {"a.csv", FORMAT_CSV},     {"a.csv.zst", FORMAT_CSV},      {"TABLE.CSV", FORMAT_CSV},
                 {"a.tsv.gz", FORMAT_TSV},  {"a.gz", FORMAT_TEXT},          {"csv", FORMAT_TEXT},
                 {"a.md.zst", FORMAT_TEXT}, {"a.ndjson.zstd", FORMAT_JSONL}};
    for (size_t i = 0; i < ARRAY_LENGTH(names); i++)
        assert_int_equal(data_format_of(names[i].name, FORMAT_AUTO), names[i].format);
    assert_true(data_is_data_name("x.txt.gz") && data_is_data_name("x.csv") && !data_is_data_name("x.gz"));
    write_text(path_of("prose.txt"), "GGUF is a format of llama.cpp, and PAR1 the magic of another.\n");
    reader prose;
    assert_int_equal(reader_open(&prose, path_of("prose.txt")), OK);
    assert_int_equal(data_refuse_kind(&prose, &(record_options){0}), OK);
    reader_close(&prose);
    static const struct {
        const char *bytes, *says;
        size_t n;
    } kinds[] = {{"PAR1\x15...", "file of Parquet|read_parquet|for f in sys.argv[1:]]\" ", 8},
                 {"ARROW1\0\0", "file of Arrow|read_feather", 8},
                 {"\xff\xff\xff\xff....", "Arrow stream|open_stream", 8},
                 {"%PDF-1.7", "file of PDF|pdftotext", 8},
                 {"GGUF\3\0\0\0", "file of GGUF|--model", 8},
                 {"\x10\0\0\0\0\0\0\0{\"a\":1}", "file of safetensors|--model", 15},
                 {"PK\3\4....", "file of zip|unzip", 8},
                 {"\x80\2}q\0", "pickle|--model", 5},
                 {"a\0b\0", "zero bytes|data.format=text", 4},
                 {"\xff\xfe"
                  "a\0",
                  "UTF-16|iconv", 4}};
    for (size_t i = 0; i < ARRAY_LENGTH(kinds); i++) {
        reader in;
        write_bytes(path_of("what.txt"), kinds[i].bytes, kinds[i].n);
        assert_int_equal(reader_open(&in, path_of("what.txt")), OK);
        expect_error(data_refuse_kind(&in, &(record_options){0}), ERR_INPUT, kinds[i].says);
        assert_int_equal(data_refuse_kind(&in, &(record_options){.format = FORMAT_TEXT}), OK);
        reader_close(&in);
    }
}

int main(void) {
    unpacker u = {0};
    if (unpacker_open(&u, PACKING_GZIP, "x") != OK) {
        printf("skipped: %s\n", error_message());
        return 77;
    }
    unpacker_close(&u);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(packed_records_are_the_records_in_them),
        cmocka_unit_test(what_is_packed_badly_is_refused),
        cmocka_unit_test(packed_text_is_text),
        cmocka_unit_test(tables_are_read_as_rfc_4180_says),
        cmocka_unit_test(tables_hold_every_kind_of_example),
        cmocka_unit_test(rows_may_be_longer_than_a_block),
        cmocka_unit_test(files_of_ids_are_the_texts_they_were_made_of),
        cmocka_unit_test(ids_that_are_none_are_refused),
        cmocka_unit_test(names_and_first_bytes_tell_what_a_file_is),
    };
    return cmocka_run_group_tests(tests, test_dir_open, test_dir_close);
}
