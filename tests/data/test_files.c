/* test_files.c - files as rows: records stand whole in one row and train their responses, mixtures keep their shares
 * exactly, blocks of a text give the ids of the whole, and what is left out is counted. */
#include "data/rows.h"
#include "files.h"
#include "rows.h"
#include "tokenizer_variants.h"

#include <math.h>
#include <stdlib.h>
#include <unistd.h>

#include <setjmp.h>
#include <cmocka.h>

/* ---- records ------------------------------------------------------------------------------------------------- */

/* Record i: a prompt that begins with its number, and a response; lengths from the seed. */
typedef struct made {
    char prompt[400], response[400];
    size_t n_prompt, n_response;
    int seen;
} made;

static void make_records(made *m, size_t n, size_t longest, const char *path) {
    FILE *f = fopen(path, "wb");
    assert_non_null(f);
    for (size_t i = 0; i < n; i++) {
        m[i].n_prompt = 5 + rng_below(7, 2 * i, longest);
        m[i].n_response = 1 + rng_below(7, 2 * i + 1, longest);
        snprintf(m[i].prompt, sizeof m[i].prompt, "%05zu", i);
        for (size_t k = 5; k < m[i].n_prompt; k++) m[i].prompt[k] = (char)('a' + rng_below(8, i * 1000 + k, 26));
        for (size_t k = 0; k < m[i].n_response; k++) m[i].response[k] = (char)('A' + rng_below(9, i * 1000 + k, 26));
        fprintf(f, "{\"question\": \"%.*s\", \"answer\": \"%.*s\"}\n", (int)m[i].n_prompt, m[i].prompt,
                (int)m[i].n_response, m[i].response);
    }
    assert_int_equal(fclose(f), 0);
}

/* One document of a row against the record whose number it begins with; returns the number of trained tokens. */
static int64_t check_record(const row *r, int64_t at, int64_t end, made *m, int64_t T, bool all) {
    int64_t trained = 0, number = 0;
    for (int k = 0; k < 5; k++) number = number * 10 + r->tokens[at + k] - '0';
    made *x = &m[number];
    x->seen++;
    int64_t whole = (int64_t)(x->n_prompt + x->n_response) + 1;
    assert_int_equal(end - at, MIN(whole, T));
    for (int64_t k = 0; k < end - at; k++) {
        int64_t next = k + 1, n_prompt = (int64_t)x->n_prompt;
        int32_t want = k < n_prompt ? x->prompt[k] : k + 1 < whole ? x->response[k - n_prompt] : TOKEN_EOS;
        int32_t behind = next >= whole       ? -1
                         : next < n_prompt   ? x->prompt[next]
                         : next + 1 == whole ? TOKEN_EOS
                                             : x->response[next - n_prompt];
        assert_int_equal(r->tokens[at + k], want);
        assert_int_equal(r->doc_start[at + k], at);
        assert_int_equal(r->targets[at + k], next < whole && (all || next >= n_prompt) ? behind : -1);
        trained += r->targets[at + k] >= 0;
    }
    return trained;
}

static void records_stand_whole_in_one_row_and_train_their_response(void **state) {
    enum { N = 300, T = 64 };
    static made m[N];
    make_records(m, N, 80, path_of("pairs.jsonl"));
    for (int variant = 0; variant < 8; variant++) {
        bool pack = variant & 1, all = variant & 2, held_out = variant & 4;
        dataset *d = open_data((data_options){.source = path_of("pairs.jsonl"),
                                              .seq_len = T,
                                              .pack = pack,
                                              .train_on = all ? TRAIN_ON_ALL : TRAIN_ON_RESPONSE,
                                              .eval_fraction = held_out ? 0.1 : 0,
                                              .n_threads = 1 + variant % 3,
                                              .seed = 3});
        uint64_t n_seen[2] = {0};
        for (split which = SPLIT_TRAIN; which <= SPLIT_EVAL; which++) {
            data_report report;
            dataset_report(d, which, &report);
            uint64_t n = which == SPLIT_TRAIN ? (held_out ? N * 9 / 10 : N) : (held_out ? N / 10 : 0);
            uint64_t first = which == SPLIT_TRAIN ? 0 : N - n, n_tokens = 0, n_cut = 0, n_dropped = 0, lost = 0;
            assert_int_equal(report.n_documents, n);
            for (size_t i = 0; i < N; i++) m[i].seen = 0;
            int64_t trained = 0;
            uint64_t placed = 0;
            for (uint64_t i = 0; i < report.rows_per_epoch; i++) {
                row r;
                memset(&r, 0x7f, sizeof r);
                dataset_row(d, which, report.rows_per_epoch + i, r.tokens, r.targets,
                            r.doc_start); /* the second epoch */
                int64_t at = 0, n_documents = 0;
                while (at < T && r.tokens[at] != TOKEN_PAD) {
                    int64_t end = at + 1;
                    while (end < T && r.doc_start[end] == at) end++;
                    trained += check_record(&r, at, end, m, T, all);
                    at = end;
                    n_documents++;
                }
                assert_true(n_documents > 0 && (pack || n_documents == 1));
                placed += (uint64_t)at;
                for (; at < T; at++) assert_true(r.tokens[at] == TOKEN_PAD && r.targets[at] == -1);
            }
            for (size_t i = 0; i < N; i++) {
                bool here = i >= first && i < first + n, dropped = !all && m[i].n_prompt > T;
                uint64_t whole = m[i].n_prompt + m[i].n_response + 1;
                assert_int_equal(m[i].seen, here && !dropped);
                n_seen[which] += m[i].seen > 0;
                if (!here) continue;
                n_tokens += whole;
                n_dropped += dropped;
                n_cut += !dropped && whole > T + 1;
                lost += dropped ? whole : whole > T + 1 ? whole - (T + 1) : 0;
            }
            assert_int_equal(report.n_tokens, n_tokens);
            assert_int_equal(report.n_trained_tokens, trained);
            assert_int_equal(report.n_cut_documents, n_cut);
            assert_int_equal(report.n_dropped_documents, n_dropped);
            assert_int_equal(report.n_dropped_tokens, lost);
            if (n) assert_true(fabs(report.fill - (double)placed / (double)(report.rows_per_epoch * T)) < 1e-12);
            if (n && which == SPLIT_TRAIN) assert_true(n_cut > 10 && (all || n_dropped > 10)); /* the test tests it */
        }
        assert_true(n_seen[0] > 200);
        dataset_close(d);
    }
}

static void rows_are_nearly_full_and_the_same_for_any_number_of_threads(void **state) {
    enum { N = 2000, T = 128 };
    made *m = mem_alloc(N * sizeof *m);
    make_records(m, N, 40, path_of("many.jsonl"));
    data_options o = {.source = path_of("many.jsonl"), .seq_len = T, .pack = true, .n_threads = 1};
    dataset *one = open_data(o);
    o.n_threads = 3;
    dataset *three = open_data(o);
    data_report a, b;
    dataset_report(one, SPLIT_TRAIN, &a);
    dataset_report(three, SPLIT_TRAIN, &b);
    assert_true(a.fill > 0.97);
    assert_int_equal(dataset_fingerprint(one), dataset_fingerprint(three));
    assert_memory_equal(&a, &b, offsetof(data_report, entropy_per_token));
    for (uint64_t i = 0; i < a.rows_per_epoch; i++) {
        row x, y;
        dataset_row(one, SPLIT_TRAIN, i, x.tokens, x.targets, x.doc_start);
        dataset_row(three, SPLIT_TRAIN, i, y.tokens, y.targets, y.doc_start);
        assert_memory_equal(x.tokens, y.tokens, T * sizeof(int32_t));
        assert_memory_equal(x.targets, y.targets, T * sizeof(int32_t));
    }
    dataset_close(one);
    dataset_close(three);
    free(m);
}

static void packing_puts_each_document_into_one_row(void **state) {
    row_packing full; /* a row takes a document into its last token */
    pack_rows((const uint32_t[]){7, 1, 7, 1}, 4, 8, false, &full);
    assert_int_equal(full.n_rows, 2);
    row_packing_free(&full);
    for (uint32_t T = 1; T < 20000; T = T * 3 + 1) {
        uint32_t sizes[500], n = 0;
        for (uint32_t i = 0; i < 500; i++) sizes[i] = (uint32_t)rng_below(T, i, T + 1);
        row_packing p;
        pack_rows(sizes, 500, T, false, &p);
        bool seen[500] = {false};
        for (uint64_t r = 0; r < p.n_rows; r++) {
            uint64_t sum = 0;
            assert_true(p.row_begin[r] < p.row_begin[r + 1]);
            for (uint64_t k = p.row_begin[r]; k < p.row_begin[r + 1]; k++, n++) {
                assert_false(seen[p.documents[k]]);
                seen[p.documents[k]] = true;
                sum += sizes[p.documents[k]];
            }
            assert_true(sum > 0 && sum <= T);
        }
        for (uint32_t i = 0; i < 500; i++) assert_int_equal(seen[i], sizes[i] > 0);
        row_packing_free(&p);
    }
}

/* Texts of JSON Lines are a stream: each ends with EOS, and every pair of neighbours is trained on once. */
static void text_records_are_documents_of_a_stream(void **state) {
    enum { N = 100, T = 32 };
    static uint64_t expected[260][260], found[260][260];
    for (int pack = 0; pack < 2; pack++) {
        memset(expected, 0, sizeof expected);
        memset(found, 0, sizeof found);
        FILE *f = fopen(path_of("texts.jsonl"), "wb");
        uint64_t n_tokens = 0;
        for (uint64_t i = 0; i < N; i++) {
            char text[128] = "";
            uint64_t n = 1 + rng_below(1, i, 100);
            for (uint64_t k = 0; k < n; k++) text[k] = (char)('a' + rng_below(2, i * 128 + k, 26));
            for (uint64_t k = 0; k < n; k++) expected[(int)text[k]][k + 1 < n ? text[k + 1] : TOKEN_EOS]++;
            fprintf(f, "{\"text\": \"%s\"}\n", text);
            n_tokens += n + 1;
        }
        fclose(f);
        dataset *d = open_data((data_options){.source = path_of("texts.jsonl"), .seq_len = T, .pack = pack, .seed = 1});
        data_report report;
        dataset_report(d, SPLIT_TRAIN, &report);
        assert_int_equal(report.n_tokens, n_tokens);
        assert_int_equal(report.n_trained_tokens, n_tokens - N);
        if (pack) assert_int_equal(report.rows_per_epoch, (n_tokens - 1 + T - 1) / T);
        for (uint64_t i = 0; i < report.rows_per_epoch; i++) {
            row r;
            dataset_row(d, SPLIT_TRAIN, i, r.tokens, r.targets, r.doc_start);
            for (int t = 0; t < T; t++) {
                if (r.targets[t] >= 0) found[r.tokens[t]][r.targets[t]]++;
                if (r.tokens[t] == TOKEN_EOS) assert_true(t + 1 == T || r.doc_start[t + 1] == t + 1);
                if (!pack && r.tokens[t] != TOKEN_PAD) assert_int_equal(r.doc_start[t], 0);
            }
        }
        assert_memory_equal(found, expected, sizeof found);
        dataset_close(d);
    }
}

static void what_cannot_be_trained_on_is_refused(void **state) {
    dataset *d;
    data_options o = {.source = path_of("bad.jsonl"), .seq_len = 8, .pack = true};
    write_text(path_of("bad.jsonl"), "{\"prompt\": \"a long prompt\", \"completion\": \"x\"}\n");
    expect_error(dataset_open(&d, &o), ERR_INPUT, "bad.jsonl|first 8|data.seq_len");
    write_text(path_of("bad.jsonl"), "{\"prompt\": \"a\", \"completion\": \"x\"}\n{\"text\": \"x\"}\n");
    expect_error(dataset_open(&d, &o), ERR_INPUT, "bad.jsonl:2|without prompt|two files");
    write_text(path_of("bad.jsonl"), "{\"prompt\": \"a\", \"completion\": \"x\"}\nbroken\n");
    expect_error(dataset_open(&d, &o), ERR_INPUT, "bad.jsonl:2|not JSON|data.on_error=skip");
    write_text(path_of("bad.jsonl"), "{\"messages\": [{\"role\": \"assistant\", \"content\": \"x\"}]}\n");
    expect_error(dataset_open(&d, &o), ERR_INPUT, "bad.jsonl:1|chat template|data.chat");
    write_text(path_of("bad.jsonl"), "");
    expect_error(dataset_open(&d, &o), ERR_INPUT, "bad.jsonl|no record");
    o.records.prompt_column = "x";
    expect_error(dataset_open(&d, &o), ERR_INPUT, "data.prompt_column");
    o = (data_options){.source = path_of("bad.jsonl"), .seq_len = 8, .pack = true, .eval_fraction = 0.5};
    write_text(path_of("bad.jsonl"), "{\"prompt\": \"a\", \"completion\": \"x\"}\n");
    expect_error(dataset_open(&d, &o), ERR_INPUT, "bad.jsonl|0 tokens for evaluation|eval_fraction");
}

static void skipped_lines_are_counted(void **state) {
    strbuf b;
    strbuf_init(&b);
    for (int i = 0; i < 5000; i++)
        strbuf_add(&b, i % 100 == 7 ? "{\"prompt\": 1, \"completion\": \"x\"}\n"
                                    : "{\"prompt\": \"what\", \"completion\": \"that\"}\n");
    write_bytes(path_of("skip.jsonl"), b.text, b.length);
    strbuf_fini(&b);
    data_options o = {.source = path_of("skip.jsonl"), .seq_len = 64, .pack = true, .n_threads = 2};
    dataset *d;
    expect_error(dataset_open(&d, &o), ERR_INPUT, "skip.jsonl:8:"); /* the first, whichever thread met one first */
    o.records.on_error = RECORDS_SKIP;
    log_set_level(LOG_ERROR);
    d = open_data(o);
    log_set_level(LOG_INFO);
    data_report report;
    dataset_report(d, SPLIT_TRAIN, &report);
    assert_int_equal(report.n_skipped, 50);
    assert_int_equal(report.n_documents, 4950);
    dataset_close(d);
}

/* ---- lists and mixtures -------------------------------------------------------------------------------------- */

static void lists_of_files_are_read_with_weights_and_escapes(void **state) {
    static const struct {
        const char *source;
        size_t n;
        const char *path[3];
        double weight[3];
    } good[] = {
        {"a.txt", 1, {"a.txt"}, {0}},
        {"a.txt,b.txt", 2, {"a.txt", "b.txt"}, {0, 0}},
        {" a.jsonl:0.7, b.txt:0.3 ", 2, {"a.jsonl", "b.txt"}, {0.7, 0.3}},
        {"a:7,b:1e1,c:.5", 3, {"a", "b", "c"}, {7, 10, 0.5}},
        {"run\\:1", 1, {"run:1"}, {0}},
        {"run\\:1:2", 1, {"run:1"}, {2}},
        {"C:/x.txt", 1, {"C:/x.txt"}, {0}},
        {"a:b", 1, {"a:b"}, {0}},
        {"a\\,b.txt, c\\\\d", 2, {"a,b.txt", "c\\d"}, {0, 0}},
        {"x\\ ", 1, {"x "}, {0}},
        {"a b.txt:1", 1, {"a b.txt"}, {1}},
        {":5", 1, {":5"}, {0}},
    };
    file_entry *entries;
    size_t n;
    for (size_t i = 0; i < ARRAY_LENGTH(good); i++) {
        if (file_list_parse(good[i].source, &entries, &n) != OK) fail_msg("%s", error_message());
        assert_int_equal(n, good[i].n);
        for (size_t k = 0; k < n; k++) {
            assert_string_equal(entries[k].path, good[i].path[k]);
            assert_true(entries[k].weight == good[i].weight[k]);
        }
        file_list_free(entries, n);
    }
    static const struct {
        const char *source, *fragments;
    } wrong[] = {
        {"a,,b", "empty name"},
        {"a,", "empty name"},
        {"a:1,b", "weight for 'a' and none for 'b'"},
        {"a,b:1", "weight for 'b' and none for 'a'"},
        {"a:0,b:1", "weight 0|above 0"},
        {"a:-1", "weight -1|above 0"},
        {"a:1e999", "weight inf|above 0"},
        {"a,builtin:grammar", "builtin:grammar|must be the only one"},
    };
    for (size_t i = 0; i < ARRAY_LENGTH(wrong); i++) {
        expect_error(file_list_parse(wrong[i].source, &entries, &n), ERR_INPUT, wrong[i].fragments);
        file_list_free(entries, n);
    }
}

/* a: 40 rows of 'a' with their number, b: one short record, c: 7 rows of text. */
static void mixtures_keep_their_shares_exactly(void **state) {
    enum { T = 32 };
    FILE *f = fopen(path_of("a.jsonl"), "wb");
    for (int i = 0; i < 40; i++) fprintf(f, "{\"prompt\": \"a%02d\", \"completion\": \"%028d\"}\n", i, i); /* fills T */
    fclose(f);
    write_text(path_of("b.jsonl"), "{\"prompt\": \"b\", \"completion\": \"b\"}\n");
    char text[7 * T];
    memset(text, 'c', sizeof text);
    write_bytes(path_of("c.txt"), text, sizeof text);
    char source[900];
    snprintf(source, sizeof source, "%s:0.6,%s:0.1, %s:0.3", path_of("a.jsonl"), path_of("b.jsonl"), path_of("c.txt"));
    data_options o = {.source = source, .seq_len = T, .pack = true, .seed = 5};
    dataset *d = open_data(o), *again = open_data(o);
    o.seed = 6;
    dataset *other = open_data(o);
    int64_t counts[3] = {0}, differ = 0;
    int order[40], n_a = 0, epochs_differ = 0;
    bool seen[40] = {false};
    row places[48];
    bool placed[48] = {false};
    assert_int_equal(dataset_n_places(d, SPLIT_TRAIN), 48); /* rows of a, b and c */
    for (uint64_t i = 0; i < 20000; i++) {
        row r, s;
        memset(&r, 0, sizeof r);
        dataset_row(d, SPLIT_TRAIN, i, r.tokens, r.targets, r.doc_start);
        int which = r.tokens[0] - 'a';
        assert_in_range(which, 0, 2);
        counts[which]++;
        uint64_t place = dataset_place(d, SPLIT_TRAIN, i); /* in every epoch the same row stands there */
        assert_true(place < 48);
        if (!placed[place]) places[place] = r;
        placed[place] = true;
        assert_memory_equal(&places[place], &r, sizeof r);
        if (which == 0) { /* every row once before any comes again, in another order each time */
            int number = (r.tokens[1] - '0') * 10 + r.tokens[2] - '0';
            if (n_a % 40 == 0) memset(seen, 0, sizeof seen);
            assert_false(seen[number]);
            seen[number] = true;
            if (n_a >= 40 && n_a < 80) epochs_differ += order[n_a % 40] != number;
            order[n_a++ % 40] = number;
        }
        if (i == 9999) assert_true(counts[0] == 6000 && counts[1] == 1000 && counts[2] == 3000);
        if (i % 97) continue;
        uint64_t far = 19999 - i; /* asked backwards */
        memset(&s, 0, sizeof s);
        dataset_row(again, SPLIT_TRAIN, far, s.tokens, s.targets, s.doc_start);
        memset(&s, 0, sizeof s);
        dataset_row(again, SPLIT_TRAIN, i, s.tokens, s.targets, s.doc_start);
        assert_memory_equal(&r, &s, sizeof r);
        dataset_row(other, SPLIT_TRAIN, i, s.tokens, s.targets, s.doc_start);
        differ += memcmp(&r, &s, sizeof r) != 0;
    }
    assert_true(counts[0] == 12000 && counts[1] == 2000 && counts[2] == 6000);
    assert_true(differ > 50 && epochs_differ > 20);
    for (int i = 0; i < 48; i++) assert_true(placed[i]);
    const char *path;
    double share;
    data_report report;
    static const double shares[] = {0.6, 0.1, 0.3};
    static const uint64_t documents[] = {40, 1, 1};
    for (size_t i = 0; i < 3; i++) {
        assert_true(dataset_file_report(d, SPLIT_TRAIN, i, &path, &share, &report));
        assert_true(fabs(share - shares[i]) < 1e-9 && strstr(source, path));
        assert_int_equal(report.n_documents, documents[i]);
    }
    assert_false(dataset_file_report(d, SPLIT_TRAIN, 3, &path, &share, &report));
    dataset_report(d, SPLIT_TRAIN, &report);
    assert_int_equal(report.n_documents, 42);
    assert_int_equal(report.rows_per_epoch, 10000);
    assert_true(dataset_fingerprint(d) == dataset_fingerprint(again));
    dataset_close(d);
    dataset_close(again);
    dataset_close(other);
    o.source = source;
    snprintf(source, sizeof source, "%s:1,%s:0.00001", path_of("a.jsonl"), path_of("c.txt"));
    expect_error(dataset_open(&d, &o), ERR_INPUT, "c.txt|1/10000");
}

/* Without weights text and records of several files share one row space, each token once. */
static void files_of_both_kinds_count_by_their_size(void **state) {
    enum { T = 32 };
    char text[10 * T], source[600];
    memset(text, 'c', sizeof text);
    write_bytes(path_of("c.txt"), text, sizeof text);
    write_text(path_of("p.jsonl"),
               "{\"prompt\": \"q\", \"completion\": \"rr\"}\n{\"prompt\": \"q\", \"completion\": \"r\"}\n");
    snprintf(source, sizeof source, "%s,%s", path_of("p.jsonl"), path_of("c.txt"));
    dataset *d = open_data((data_options){.source = source, .seq_len = T, .pack = true});
    data_report report;
    dataset_report(d, SPLIT_TRAIN, &report);
    assert_int_equal(report.rows_per_epoch, 11);
    assert_int_equal(report.n_trained_tokens, 10 * T + 3 + 2);
    int64_t trained = 0, c = 0;
    for (uint64_t i = 0; i < 11; i++) {
        row r;
        dataset_row(d, SPLIT_TRAIN, i, r.tokens, r.targets, r.doc_start);
        for (int t = 0; t < T; t++) trained += r.targets[t] >= 0, c += r.tokens[t] == 'c';
    }
    assert_int_equal(trained, report.n_trained_tokens);
    assert_int_equal(c, 10 * T);
    dataset_close(d);
}

/* ---- the end of a record ---------------------------------------------------------------------------------------- */

/* A tokenizer whose token for the end nobody names. */
static void write_endless_tokenizer(const char *path) {
    assert_true(tokenizer_cases_open());
    json_t *root = compose(variant_named("gpt2")), *vocab = json_object_get(json_object_get(root, "model"), "vocab");
    json_object_set(vocab, "<stop>", json_object_get(vocab, "</s>"));
    json_object_del(vocab, "</s>");
    write_json(path, root);
    json_decref(root);
    json_decref(fixture);
}

static void records_without_an_end_are_refused(void **state) {
    static const char *const lines[] = {"{\"prompt\": \"the sea\", \"completion\": \" shells\"}\n",
                                        "{\"text\": \"the sea shells\"}\n"};
    char *name = strdup(path_of("endless.json")), *source = strdup(path_of("ends.jsonl"));
    write_endless_tokenizer(name);
    for (int i = 0; i < 2; i++) {
        data_options o = {.source = source, .tokenizer = name, .seq_len = 16, .n_threads = 1};
        dataset *d;
        row r;
        int32_t last = -1;
        write_text(source, lines[i]);
        for (int skip = 0; skip < 2; skip++) { /* not a line that can be left out */
            o.records.on_error = skip ? RECORDS_SKIP : RECORDS_STOP;
            expect_error(dataset_open(&d, &o), ERR_INPUT, "ends.jsonl|endless.json|eos_token|data.eos_token|none");
        }
        o.eos_token = "<end>";
        expect_error(dataset_open(&d, &o), ERR_INPUT, "data.eos_token|'<end>'|endless.json");
        o.eos_token = "<stop>";
        d = open_data(o);
        assert_int_equal(tokenizer_eos(dataset_tokenizer(d)), 2);
        dataset_row(d, SPLIT_TRAIN, 0, r.tokens, r.targets, r.doc_start);
        for (int t = 0; t < 16; t++)
            if (r.targets[t] >= 0) last = r.targets[t];
        assert_int_equal(last, 2);
        dataset_close(d);
        o.eos_token = "none";
        d = open_data(o);
        dataset_row(d, SPLIT_TRAIN, 0, r.tokens, r.targets, r.doc_start);
        for (int t = 0; t < 16; t++) assert_int_not_equal(r.targets[t], 2);
        dataset_close(d);
    }
    write_text(source, "{\"text\": \"the sea\"}\n");
    data_options o = {.source = source, .tokenizer = "byte", .seq_len = 16, .eos_token = "<stop>", .n_threads = 1};
    dataset *d;
    expect_error(dataset_open(&d, &o), ERR_INPUT, "data.eos_token|'byte'");
    free(name);
    free(source);
}

/* ---- text through a tokenizer in blocks ------------------------------------------------------------------------ */

static char *copy_tokenizer(const char *fixture, const char *name) {
    char path[512], *text;
    size_t n;
    snprintf(path, sizeof path, "%s/chat/%s", TEST_FIXTURES, fixture);
    assert_int_equal(file_read_all(path, 1 << 20, &text, &n), OK);
    write_bytes(path_of(name), text, n);
    free(text);
    return strdup(path_of(name));
}

static void make_text(strbuf *b, uint64_t seed, size_t n_bytes) {
    static const char *const pieces[] = {"The",
                                         "answer",
                                         " is",
                                         " five",
                                         ".",
                                         "\n",
                                         "\n\n",
                                         "  ",
                                         " ",
                                         "72",
                                         " 48+24",
                                         "\xc3\xa9t\xc3\xa9",
                                         "\xe6\xb1\x89\xe5\xad\x97",
                                         "\xe3\x80\x82\n",
                                         "<|im_end|>",
                                         "'s",
                                         "\t",
                                         "\r\n",
                                         "<s>",
                                         "e\xcc\x81",
                                         " you",
                                         ",",
                                         "\n   ",
                                         "\xf0\x9f\xa6\x8a"};
    b->length = 0;
    for (uint64_t i = 0; b->length < n_bytes; i++) strbuf_add(b, pieces[rng_below(seed, i, ARRAY_LENGTH(pieces))]);
}

static void blocks_give_the_ids_of_the_whole(void **state) {
    static const char *const fixtures[] = {"bytes.json", "pieces.json"};
    strbuf text;
    strbuf_init(&text);
    for (size_t f = 0; f < 2; f++) {
        char *name = copy_tokenizer(fixtures[f], "tokenizer.json");
        data_options o = {.source = "x", .tokenizer = name, .n_threads = 2};
        tokenizer *t;
        chat *c;
        assert_int_equal(tokenizer_open(&t, name), OK);
        assert_int_equal(chat_open(&c, t, name, &(chat_options){0}), OK);
        for (uint64_t seed = 0; seed < 12; seed++) {
            make_text(&text, seed, 20000);
            if (seed == 11) /* not a single place to cut */
                for (size_t i = 0; i < text.length; i++) text.text[i] = "xyz"[i % 3];
            write_bytes(path_of("text.txt"), text.text, text.length);
            int32_t *ids = NULL;
            size_t n = 0, capacity = 0, bos = chat_document_bos(c) >= 0;
            assert_int_equal(tokenizer_encode(t, text.text, text.length, &ids, &n, &capacity), OK);
            static const size_t blocks[] = {600, 1500, 1 << 20};
            for (size_t k = 0; k < 3; k++) {
                tokenize_job j;
                token_store s;
                assert_int_equal(tokenize_job_open(&j, &o, t, c), OK);
                j.block_bytes = blocks[k];
                if (tokenize_file(&j, path_of("text.txt"), FORMAT_TEXT, &s) != OK) fail_msg("%s", error_message());
                assert_int_equal(s.n_tokens, n + bos);
                if (bos) assert_int_equal(store_token(&s, 0), chat_document_bos(c));
                for (size_t i = 0; i < n; i++)
                    if (store_token(&s, i + bos) != ids[i])
                        fail_msg("%s, seed %d, blocks of %zu: token %zu differs", fixtures[f], (int)seed, blocks[k], i);
                store_close(&s);
                tokenize_job_close(&j);
            }
            free(ids);
        }
        chat_close(c);
        tokenizer_close(t);
        free(name);
    }
    strbuf_fini(&text);
}

static void take_last_line(void *context, log_level level, const char *line) {
    if (level == LOG_INFO) snprintf(context, 256, "%s", line);
}

static void a_file_that_takes_long_says_how_far_it_is(void **state) {
    char *name = copy_tokenizer("bytes.json", "tokenizer.json"), said[256];
    data_options o = {.source = "x", .tokenizer = name, .n_threads = 2};
    tokenizer *t;
    chat *c;
    strbuf text;
    strbuf_init(&text);
    make_text(&text, 1, 20000);
    write_bytes(path_of("text.txt"), text.text, text.length);
    write_text(path_of("lines.jsonl"), "{\"text\": \"one\"}\n{\"text\": \"two\"}\n");
    assert_int_equal(tokenizer_open(&t, name), OK);
    assert_int_equal(chat_open(&c, t, name, &(chat_options){0}), OK);
    for (int is_text = 0; is_text < 2; is_text++)
        for (int is_long = 0; is_long < 2; is_long++) {
            tokenize_job j;
            token_store s;
            *said = 0;
            assert_int_equal(tokenize_job_open(&j, &o, t, c), OK);
            j.block_bytes = 600;
            if (is_long) j.report_every_s = 0;
            log_set_sink(take_last_line, said);
            assert_int_equal(tokenize_file(&j, path_of(is_text ? "text.txt" : "lines.jsonl"),
                                           is_text ? FORMAT_TEXT : FORMAT_JSONL, &s),
                             OK);
            log_set_sink(NULL, NULL);
            if (!is_long) assert_string_equal(said, "");
            else if (!strstr(said, is_text ? "text.txt: 100 %, " : "lines.jsonl: 100 %, ")) fail_msg("'%s'", said);
            store_close(&s);
            tokenize_job_close(&j);
        }
    chat_close(c);
    tokenizer_close(t);
    strbuf_fini(&text);
    free(name);
}

static void text_that_is_not_utf8_is_named_or_replaced(void **state) {
    char *name = copy_tokenizer("bytes.json", "tokenizer.json");
    data_options o = {.source = path_of("bad.txt"), .tokenizer = name, .seq_len = 16, .pack = true, .n_threads = 1};
    dataset *d;
    data_report report;
    write_text(path_of("bad.txt"),
               "\xef\xbb\xbf one line is good\nand one has a \xff in it, and \xc3 here; and so on it goes\n");
    expect_error(dataset_open(&d, &o), ERR_INPUT, "bad.txt:2:|0xff|offset 35|UTF-8|data.on_error=skip");
    o.records.on_error = RECORDS_SKIP;
    d = open_data(o);
    dataset_report(d, SPLIT_TRAIN, &report);
    assert_int_equal(report.n_replaced, 2);
    row r;
    strbuf text;
    strbuf_init(&text);
    for (uint64_t i = 0; i < report.rows_per_epoch; i++) { /* the byte order mark is no text */
        dataset_row(d, SPLIT_TRAIN, i, r.tokens, r.targets, r.doc_start);
        tokenizer_decode(dataset_tokenizer(d), r.tokens, 16, &text);
    }
    assert_null(strstr(text.text, "\xef\xbb\xbf"));
    assert_non_null(strstr(text.text, "\xef\xbf\xbd"));
    strbuf_fini(&text);
    dataset_close(d);
    o.tokenizer = "byte"; /* bytes are bytes */
    o.records.on_error = RECORDS_STOP;
    d = open_data(o);
    dataset_close(d);
    free(name);
}

static void a_file_that_changes_while_it_is_read_is_an_error(void **state) {
    for (int k = 0; k < 3; k++) {
        reader r;
        hash128 hash;
        span text;
        write_text(path_of("moving.txt"), "some text");
        assert_int_equal(reader_open(&r, path_of("moving.txt")), OK);
        assert_int_equal(reader_peek(&r, 4, &text), OK);
        if (k == 0) {
            FILE *f = fopen(path_of("moving.txt"), "ab");
            fputs(" and more", f);
            fclose(f);
        } else if (k == 1) {
            assert_int_equal(truncate(path_of("moving.txt"), 3), 0);
        } else {
            unlink(path_of("moving.txt"));
            write_text(path_of("moving.txt"), "some text");
        }
        expect_error(reader_finish(&r, &hash), ERR_INPUT, "moving.txt changed while it was read|start again");
        reader_close(&r);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(records_stand_whole_in_one_row_and_train_their_response),
        cmocka_unit_test(rows_are_nearly_full_and_the_same_for_any_number_of_threads),
        cmocka_unit_test(packing_puts_each_document_into_one_row),
        cmocka_unit_test(text_records_are_documents_of_a_stream),
        cmocka_unit_test(what_cannot_be_trained_on_is_refused),
        cmocka_unit_test(skipped_lines_are_counted),
        cmocka_unit_test(lists_of_files_are_read_with_weights_and_escapes),
        cmocka_unit_test(mixtures_keep_their_shares_exactly),
        cmocka_unit_test(files_of_both_kinds_count_by_their_size),
        cmocka_unit_test(records_without_an_end_are_refused),
        cmocka_unit_test(blocks_give_the_ids_of_the_whole),
        cmocka_unit_test(a_file_that_takes_long_says_how_far_it_is),
        cmocka_unit_test(text_that_is_not_utf8_is_named_or_replaced),
        cmocka_unit_test(a_file_that_changes_while_it_is_read_is_an_error),
    };
    return cmocka_run_group_tests(tests, test_dir_open, test_dir_close);
}
