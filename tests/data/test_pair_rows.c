/* test_pair_rows.c - preferences in rows: every example stands whole in one row, once in an epoch and under its own number;
 * loaders, ranks and the cache give the same; examples that are too long are counted; built-in pairs are right. */
#include "example_rows.h"
#include "exec/guard.h"

#include <math.h>
#include <stdlib.h>

/* ---- rows ------------------------------------------------------------------------------------------------------ */

static void random_text(char *out, uint64_t key, uint64_t least, uint64_t most) {
    uint64_t n = least + rng_below(key, 0, most - least + 1);
    for (uint64_t i = 0; i < n; i++) out[i] = (char)('a' + rng_below(key, i + 1, 26));
    out[n] = 0;
}

static void pair_texts(uint64_t i, char prompt[64], char chosen[64], char rejected[64]) {
    random_text(prompt, 3 * i, 1, 20);
    random_text(chosen, 3 * i + 1, 1, 12);
    random_text(rejected, 3 * i + 2, 13, 20); /* another length: never equal */
}

static void write_pairs(uint64_t n, uint64_t first) {
    FILE *f = fopen(path, "wb");
    char p[64], c[64], r[64];
    for (uint64_t i = 0; i < n; i++) {
        pair_texts(first + i, p, c, r);
        fprintf(f, "{\"prompt\": \"%s\", \"chosen\": \"%s\", \"rejected\": \"%s\"}\n", p, c, r);
    }
    fclose(f);
}

/* One epoch: every example once, whole, in order of its parts. `base`: the first record of the split in the file. */
static void check_epoch(const dataset *d, split s, int64_t T, uint64_t epoch, uint64_t base, bool pack) {
    uint64_t n = dataset_n_examples(d, s), n_rows = rows_of(d, s), n_seen = 0;
    unsigned char *seen = calloc(n, 1);
    for (uint64_t i = 0; i < n_rows; i++) {
        full_row r;
        get_row(d, s, epoch * n_rows + i, &r);
        int64_t at = 0, n_slots = count_slots(&r, T);
        assert_true(n_slots > 0 && (pack || n_slots == 1));
        for (int64_t slot = 0; slot < n_slots; slot++, n_seen++) {
            char p[64], c[64], rejected[64];
            seen_part parts[2];
            assert_true((uint64_t)r.examples[slot] < n && !seen[r.examples[slot]]);
            seen[r.examples[slot]] = 1;
            pair_texts(base + (uint64_t)r.examples[slot], p, c, rejected);
            at = read_part(&r, T, at, slot, &parts[0]);
            at = read_part(&r, T, at, slot, &parts[1]);
            assert_int_equal(parts[0].part, PART_CHOSEN);
            assert_int_equal(parts[1].part, PART_REJECTED);
            for (int k = 0; k < 2; k++) assert_string_equal(parts[k].prompt, p);
            assert_string_equal(parts[0].response, c);
            assert_string_equal(parts[1].response, rejected);
        }
        check_padding(&r, T, at);
    }
    assert_int_equal(n_seen, n);
    free(seen);
}

static void every_pair_stands_whole_in_one_row_once_an_epoch(void **state) {
    write_pairs(200, 0);
    for (int pack = 0; pack < 2; pack++) {
        int64_t T = 128;
        dataset *d =
            open_data((data_options){.kind = DATA_PAIRS, .seq_len = T, .pack = pack, .eval_fraction = 0.1, .seed = 4});
        data_report report;
        dataset_report(d, SPLIT_TRAIN, &report);
        assert_int_equal(dataset_kind(d), DATA_PAIRS);
        assert_int_equal(dataset_n_examples(d, SPLIT_TRAIN), 180);
        assert_int_equal(dataset_n_examples(d, SPLIT_EVAL), 20);
        assert_int_equal(report.n_documents, 180);
        assert_int_equal(report.n_dropped_documents + report.n_cut_documents + report.n_dropped_tokens, 0);
        assert_true(pack ? report.rows_per_epoch < 100 && report.fill > 0.9 : report.rows_per_epoch == 180);
        for (uint64_t epoch = 0; epoch < 3; epoch++) {
            check_epoch(d, SPLIT_TRAIN, T, epoch, 0, pack);
            check_epoch(d, SPLIT_EVAL, T, epoch, 180, pack);
        }
        uint64_t n_targets = 0, n_tokens = 0;
        for (uint64_t i = 0; i < report.rows_per_epoch; i++) {
            full_row r;
            get_row(d, SPLIT_TRAIN, i, &r);
            for (int64_t t = 0; t < T; t++) n_targets += r.targets[t] >= 0, n_tokens += r.tokens[t] != TOKEN_PAD;
        }
        assert_int_equal(n_targets, report.n_trained_tokens);
        assert_int_equal(n_tokens, report.n_tokens);
        assert_true(fabs(report.fill - (double)n_tokens / (double)(report.rows_per_epoch * (uint64_t)T)) < 1e-12);
        dataset_close(d);
    }
}

/* With the prompt in a row once, the second document begins with the last token before its answer: the rest of it is that of a row with
 * two prompts, and the tokens that it shares are those that the first document begins with. */
static void shared_prompts_stand_in_a_row_once(void **state) {
    enum { T = 128 };
    write_pairs(60, 0);
    data_options o = {.kind = DATA_PAIRS, .seq_len = T, .seed = 4}, other = o;
    other.share_prompts = true;
    dataset *two = open_data(o), *one = open_data(other);
    data_report of_two, of_one;
    uint64_t n_shared = 0;
    dataset_report(two, SPLIT_TRAIN, &of_two);
    dataset_report(one, SPLIT_TRAIN, &of_one);
    assert_true(dataset_shares_prompts(one) && !dataset_shares_prompts(two));
    for (uint64_t i = 0; i < of_two.rows_per_epoch; i++) {
        full_row x;
        int32_t tokens[T], targets[T], doc_start[T], segments[T], shared[T];
        get_row(two, SPLIT_TRAIN, i, &x);
        dataset_row_get(
            one, SPLIT_TRAIN, i,
            &(data_row){
                .tokens = tokens, .targets = targets, .doc_start = doc_start, .segments = segments, .shared = shared});
        int64_t second = 0, n;
        while (x.doc_start[second] == 0) {
            assert_true(tokens[second] == x.tokens[second] && targets[second] == x.targets[second] && !shared[second]);
            second++;
        }
        n = shared[second];
        n_shared += (uint64_t)n;
        for (int64_t t = 0; t < n; t++) assert_true(x.tokens[second + t] == tokens[t] && x.targets[second + t] < 0);
        assert_true(x.targets[second + n] >= 0); /* what it repeats has a target in both */
        for (int64_t t = second; t + n < T && x.doc_start[t + n] == second; t++) {
            assert_true(tokens[t] == x.tokens[t + n] && targets[t] == x.targets[t + n]);
            assert_true(segments[t] == x.segments[t + n] && doc_start[t] == second && shared[t] == n);
        }
    }
    assert_true(n_shared > 0 && of_one.n_shared_tokens == n_shared && of_two.n_shared_tokens == 0);
    assert_int_equal(of_two.n_tokens - of_one.n_tokens, n_shared);
    assert_int_equal(of_two.n_trained_tokens, of_one.n_trained_tokens);
    dataset_close(one);
    dataset_close(two);
}

static void rows_depend_on_seed_and_index_alone(void **state) {
    write_pairs(100, 0);
    data_options o = {.kind = DATA_PAIRS, .seq_len = 128, .pack = true, .seed = 1, .n_threads = 1}, other = o;
    other.seed = 2;
    dataset *a = open_data(o), *c = open_data(other);
    o.n_threads = 3;
    dataset *b = open_data(o);
    uint64_t n_rows = rows_of(a, SPLIT_TRAIN), n_moved = 0, n_other = 0;
    assert_int_equal(dataset_fingerprint(a), dataset_fingerprint(b));
    for (uint64_t i = 2 * n_rows; i-- > 0;) {
        full_row x, y, z, next;
        get_row(a, SPLIT_TRAIN, i, &x);
        get_row(b, SPLIT_TRAIN, i, &y);
        get_row(c, SPLIT_TRAIN, i, &z);
        get_row(a, SPLIT_TRAIN, i + n_rows, &next);
        assert_memory_equal(&x, &y, sizeof x);
        n_other += memcmp(&x, &z, sizeof x) != 0;
        n_moved += memcmp(&x, &next, sizeof x) != 0;
    }
    assert_true(n_other > n_rows && n_moved > n_rows); /* another order for every seed and epoch */
    dataset_close(a);
    dataset_close(b);
    dataset_close(c);
}

static void a_loader_carries_segments_and_examples_for_all_ranks(void **state) {
    write_pairs(100, 0);
    enum { T = 128, ROWS = 3, SLOTS = T / PART_STRIDE };
    data_options o = {.kind = DATA_PAIRS, .seq_len = T, .pack = true, .seed = 7};
    dataset *d = open_data(o);
    for (int n_parts = 1; n_parts <= 2; n_parts++)
        for (uint64_t first = 0; first < 12; first += 6)
            for (int part = 0; part < n_parts; part++) {
                loader *l;
                assert_int_equal(loader_open(&l, d, SPLIT_TRAIN, ROWS, first, part, n_parts), OK);
                for (uint64_t k = 0; k < 9; k++) {
                    const batch *b = loader_next(l);
                    uint64_t row = first + (k * (uint64_t)n_parts + (uint64_t)part) * ROWS;
                    int64_t n_valid = 0;
                    assert_int_equal(b->first_row, row);
                    for (uint64_t i = 0; i < ROWS; i++) {
                        full_row r;
                        get_row(d, SPLIT_TRAIN, row + i, &r);
                        assert_memory_equal(b->tokens + i * T, r.tokens, T * sizeof(int32_t));
                        assert_memory_equal(b->targets + i * T, r.targets, T * sizeof(int32_t));
                        assert_memory_equal(b->doc_start + i * T, r.doc_start, T * sizeof(int32_t));
                        assert_memory_equal(b->segments + i * T, r.segments, T * sizeof(int32_t));
                        assert_memory_equal(b->examples + i * SLOTS, r.examples, SLOTS * sizeof(int32_t));
                        for (int t = 0; t < T; t++) n_valid += r.targets[t] >= 0;
                    }
                    assert_int_equal(b->n_valid, n_valid);
                    assert_int_equal(loader_position(l), first + (k + 1) * (uint64_t)n_parts * ROWS);
                }
                loader_close(l);
            }
    assert_int_equal(loader_examples_host_bytes(ROWS, T), 3 * ROWS * (T + SLOTS) * sizeof(int32_t));
    dataset_close(d);
}

static void rows_and_batches_allocate_nothing(void **state) {
    if (!guard_present()) skip(); /* the counting malloc is not linked in */
    for (data_kind kind = DATA_PAIRS; kind <= DATA_LABELLED; kind++) {
        write_text(path, kind == DATA_PAIRS ? "{\"prompt\": \"a\", \"chosen\": \"b\", \"rejected\": \"c\"}\n"
                                            : "{\"prompt\": \"a\", \"completion\": \"b\", \"label\": true}\n");
        for (int builtin = 0; builtin < 2; builtin++) {
            dataset *d = open_data((data_options){.kind = kind,
                                                  .source = builtin ? "builtin:preferences" : path,
                                                  .seq_len = 128,
                                                  .pack = true,
                                                  .difficulty = 2});
            loader *l;
            full_row r;
            assert_int_equal(loader_open(&l, d, SPLIT_TRAIN, 4, 0, 0, 1), OK);
            uint64_t before = guard_count();
            guard_arm();
            for (uint64_t i = 0; i < 20; i++) {
                get_row(d, SPLIT_TRAIN, i, &r);
                (void)loader_next(l);
            }
            guard_disarm();
            assert_int_equal(guard_count(), before);
            loader_close(l);
            dataset_close(d);
        }
    }
}

static void text_has_no_segments(void **state) {
    dataset *d =
        open_data((data_options){.source = "builtin:arithmetic", .seq_len = 64, .pack = true, .difficulty = 2});
    full_row r;
    loader *l;
    get_row(d, SPLIT_TRAIN, 0, &r);
    for (int t = 0; t < 64; t++) assert_int_equal(r.segments[t], -1);
    for (int i = 0; i < 16; i++) assert_int_equal(r.examples[i], -1);
    assert_int_equal(dataset_n_examples(d, SPLIT_TRAIN), 0);
    assert_int_equal(dataset_kind(d), DATA_TEXT);
    assert_int_equal(loader_open(&l, d, SPLIT_TRAIN, 2, 0, 0, 1), OK);
    const batch *b = loader_next(l);
    assert_null(b->segments);
    assert_null(b->examples);
    loader_close(l);
    dataset_close(d);
}

/* Files with weights have rows of their own; their examples are counted through. */
static void files_of_a_mixture_share_one_numbering(void **state) {
    char first[128], source[300];
    snprintf(first, sizeof first, "%s", path_of("first.jsonl"));
    write_pairs(30, 0);
    assert_int_equal(rename(path, first), 0);
    write_pairs(50, 30);
    for (int weighted = 0; weighted < 2; weighted++) {
        int64_t T = 128;
        snprintf(source, sizeof source, "%s%s, %s%s", first, weighted ? ":0.3" : "", path, weighted ? ":0.7" : "");
        dataset *d = open_data((data_options){.kind = DATA_PAIRS, .source = source, .seq_len = T, .pack = true});
        assert_int_equal(dataset_n_examples(d, SPLIT_TRAIN), 80);
        int n_seen = 0;
        unsigned char seen[80] = {0};
        for (uint64_t i = 0; i < rows_of(d, SPLIT_TRAIN); i++) {
            full_row r;
            seen_part part;
            get_row(d, SPLIT_TRAIN, i, &r);
            int64_t at = 0, n = count_slots(&r, T);
            for (int64_t slot = 0; slot < n; slot++) {
                char p[64], c[64], rejected[64];
                pair_texts((uint64_t)r.examples[slot], p, c, rejected);
                at = read_part(&r, T, at, slot, &part);
                assert_string_equal(part.prompt, p);
                assert_string_equal(part.response, c);
                at = read_part(&r, T, at, slot, &part);
                assert_string_equal(part.response, rejected);
                n_seen += !seen[r.examples[slot]];
                seen[r.examples[slot]] = 1;
            }
        }
        assert_int_equal(n_seen, 80); /* an epoch of a mixture sees every file whole */
        dataset_close(d);
    }
}

/* ---- labelled answers -------------------------------------------------------------------------------------------- */

/* The two documents of labelled example `number`. */
static void find_example(const dataset *d, int64_t T, int32_t number, seen_part parts[2]) {
    for (uint64_t i = 0; i < rows_of(d, SPLIT_TRAIN); i++) {
        full_row r;
        int64_t at = 0;
        get_row(d, SPLIT_TRAIN, i, &r);
        for (int64_t slot = 0, n = count_slots(&r, T); slot < n; slot++) {
            at = read_part(&r, T, read_part(&r, T, at, slot, &parts[0]), slot, &parts[1]);
            if (r.examples[slot] == number) return;
        }
        check_padding(&r, T, at);
    }
    fail_msg("example %d is in no row", number);
}

static void a_labelled_answer_has_a_mismatched_one_beside_it(void **state) {
    write_text(path, "{\"prompt\": \"one\", \"completion\": \"A\", \"label\": true}\n"
                     "{\"prompt\": \"one\", \"completion\": \"B\", \"label\": false}\n"
                     "{\"prompt\": \"two\", \"completion\": \"CC\", \"label\": false}\n"
                     "{\"prompt\": \"three\", \"completion\": \"DDD\", \"label\": true}\n"
                     "{\"prompt\": \"one\", \"completion\": \"E\", \"label\": true}\n");
    /* the next with another prompt; the last and the first have the same one, so it goes on around the end */
    static const char *const mismatched[] = {"CC", "CC", "DDD", "E", "CC"};
    static const data_part part_of[] = {PART_CHOSEN, PART_REJECTED, PART_REJECTED, PART_CHOSEN, PART_CHOSEN};
    static const char *const prompts[] = {"one", "one", "two", "three", "one"};
    static const char *const answers[] = {"A", "B", "CC", "DDD", "E"};
    for (int pack = 0; pack < 2; pack++) {
        dataset *d = open_data((data_options){.kind = DATA_LABELLED, .seq_len = 48, .pack = pack});
        data_report report;
        dataset_report(d, SPLIT_TRAIN, &report);
        assert_int_equal(report.n_undesirable, 2);
        assert_int_equal(report.n_documents, 5);
        for (int32_t i = 0; i < 5; i++) {
            seen_part parts[2];
            find_example(d, 48, i, parts);
            assert_int_equal(parts[0].part, part_of[i]);
            assert_int_equal(parts[1].part, PART_MISMATCHED);
            assert_string_equal(parts[0].prompt, prompts[i]);
            assert_string_equal(parts[1].prompt, prompts[i]);
            assert_string_equal(parts[0].response, answers[i]);
            assert_string_equal(parts[1].response, mismatched[i]);
        }
        uint64_t n_targets = 0, n_tokens = 0;
        for (uint64_t i = 0; i < report.rows_per_epoch; i++) {
            full_row r;
            get_row(d, SPLIT_TRAIN, i, &r);
            for (int64_t t = 0; t < 48; t++) n_targets += r.targets[t] >= 0, n_tokens += r.tokens[t] != TOKEN_PAD;
        }
        assert_int_equal(n_targets, report.n_trained_tokens);
        assert_int_equal(n_tokens, report.n_tokens);
        dataset_close(d);
    }
}

static void mismatched_answers_stay_in_their_split_and_their_row(void **state) {
    FILE *f = fopen(path, "wb");
    for (int i = 0; i < 20; i++) /* every prompt another; the response of 7 is long */
        fprintf(f, "{\"prompt\": \"p%d\", \"completion\": \"%c%s\", \"label\": %s}\n", i, 'a' + i,
                i == 7    ? "0123456789012345678901234567890123456789"
                : i == 12 ? ""
                          : "xy",
                i % 3 ? "true" : "false");
    fclose(f);
    dataset *d = open_data((data_options){.kind = DATA_LABELLED, .seq_len = 32, .pack = true, .eval_fraction = 0.2});
    data_report report;
    dataset_report(d, SPLIT_TRAIN, &report);
    assert_int_equal(dataset_n_examples(d, SPLIT_TRAIN), 16);
    assert_int_equal(report.n_dropped_documents, 1); /* 7, and only that one */
    for (int32_t i = 0; i < 16; i++) {
        seen_part parts[2];
        if (i == 7) continue;
        find_example(d, 32, i, parts);
        int expected = i == 6 ? 12 : (i + 1) % 16; /* where the next one does not fit: the shortest of all */
        assert_int_equal(parts[1].response[0], 'a' + expected);
    }
    dataset_close(d);
    /* where all prompts are the same: the next one */
    write_text(path, "{\"prompt\": \"p\", \"completion\": \"a\", \"label\": true}\n"
                     "{\"prompt\": \"p\", \"completion\": \"b\", \"label\": true}\n"
                     "{\"prompt\": \"p\", \"completion\": \"c\", \"label\": true}\n");
    d = open_data((data_options){.kind = DATA_LABELLED, .seq_len = 32, .pack = true});
    for (int32_t i = 0; i < 3; i++) {
        seen_part parts[2];
        find_example(d, 32, i, parts);
        assert_int_equal(parts[1].response[0], 'a' + (i + 1) % 3);
    }
    dataset_close(d);
}

/* ---- what does not fit, and what is kept --- */

static void examples_that_are_too_long_are_counted_and_never_cut(void **state) {
    FILE *f = fopen(path, "wb");
    for (int i = 0; i < 10; i++) /* documents of 3 + i + 1 tokens, two in a pair */
        fprintf(f, "{\"prompt\": \"abc\", \"chosen\": \"%.*s\", \"rejected\": \"%.*s\"}\n", i + 1, "0123456789abc",
                i + 1, "xxxxxxxxxxxxxx");
    fclose(f);
    data_options o = {.kind = DATA_PAIRS, .source = path, .seq_len = 20, .pack = true};
    dataset *d = open_data(o);
    data_report report;
    dataset_report(d, SPLIT_TRAIN, &report);
    assert_int_equal(report.n_documents, 10);
    assert_int_equal(report.n_dropped_documents, 4); /* 2 (4 + i + 1) > 20 */
    assert_int_equal(report.n_cut_documents, 0);
    assert_int_equal(report.n_dropped_tokens, 22 + 24 + 26 + 28);
    assert_int_equal(dataset_n_examples(d, SPLIT_TRAIN), 10); /* a number belongs to a line, whatever the row's size */
    for (uint64_t i = 0; i < 3 * report.rows_per_epoch; i++) {
        full_row r;
        seen_part parts[2];
        get_row(d, SPLIT_TRAIN, i, &r);
        int64_t at = 0, n = count_slots(&r, 20);
        for (int64_t slot = 0; slot < n; slot++) {
            at = read_part(&r, 20, read_part(&r, 20, at, slot, &parts[0]), slot, &parts[1]);
            assert_int_equal(strlen(parts[0].response), r.examples[slot] + 1);
            assert_int_equal(strlen(parts[1].response), r.examples[slot] + 1);
        }
    }
    dataset_close(d);
    o.seq_len = 9;
    expect_error(dataset_open(&d, &o), ERR_INPUT,
                 "10 examples|training|9 tokens|data.seq_len=18 would hold half|data.seq_len=28 all");
    /* A length that the model would refuse is not advised. */
    o.positions = 28;
    expect_error(dataset_open(&d, &o), ERR_INPUT, "data.seq_len=18 would hold half of them, data.seq_len=28 all");
    o.positions = 20;
    expect_error(dataset_open(&d, &o), ERR_INPUT,
                 "data.seq_len=18 would hold half of them, the model has 20 positions, and rows of 28 would "
                 "hold all|shorter|model.max_positions");
    o.positions = 12;
    expect_error(dataset_open(&d, &o), ERR_INPUT,
                 "expected one that fits; the model has 12 positions, and rows of 18 would hold half of them, of "
                 "28 all|shorter|model.max_positions");
    o.positions = 0;
    o.seq_len = 18;
    d = open_data(o);
    dataset_report(d, SPLIT_TRAIN, &report);
    assert_int_equal(report.n_dropped_documents, 5); /* as it said */
    dataset_close(d);
    o.seq_len = 28;
    d = open_data(o);
    dataset_report(d, SPLIT_TRAIN, &report);
    assert_int_equal(report.n_dropped_documents, 0);
    dataset_close(d);
    o.seq_len = 20;
    o.eval_fraction = 0.2;
    expect_error(dataset_open(&d, &o), ERR_INPUT, "2 examples|evaluation|20 tokens|data.seq_len=26|data.seq_len=28");
}

static uint64_t digest(const data_options *o, uint64_t *n_cached) {
    dataset *d = open_data(*o);
    data_report report;
    uint64_t hash = dataset_fingerprint(d);
    dataset_report(d, SPLIT_TRAIN, &report);
    *n_cached = report.n_cached;
    for (uint64_t i = 0; i < report.rows_per_epoch; i++) {
        full_row r;
        get_row(d, SPLIT_TRAIN, i, &r);
        const int32_t *words = (const int32_t *)(const void *)&r;
        for (size_t k = 0; k < sizeof r / sizeof *words; k++) hash = rng_u64(hash, (uint64_t)(uint32_t)words[k]);
    }
    dataset_close(d);
    return hash;
}

static void the_cache_keeps_kinds_apart(void **state) {
    char cache[80];
    snprintf(cache, sizeof cache, "%s", path_of("cache"));
    FILE *f = fopen(path, "wb"); /* every line is a record of each kind */
    for (int i = 0; i < 40; i++)
        fprintf(f,
                "{\"prompt\": \"p%d\", \"completion\": \"a%d\", \"chosen\": \"a%d\", \"rejected\": \"b%d\", \"label\": "
                "%s, \"bad\": \"c\"}\n",
                i, i, i, i, i % 2 ? "true" : "false");
    fclose(f);
    data_options o[4] = {{.kind = DATA_TEXT}, {.kind = DATA_PAIRS}, {.kind = DATA_LABELLED}, {.kind = DATA_PAIRS}};
    o[3].records.rejected_column = "bad";
    uint64_t hashes[4], n_cached;
    for (int i = 0; i < 4; i++) {
        o[i].source = path;
        o[i].seq_len = 64;
        o[i].pack = true;
        hashes[i] = digest(&o[i], &n_cached);
        assert_int_equal(n_cached, 0);
        o[i].cache = cache;
        assert_int_equal(digest(&o[i], &n_cached), hashes[i]);
        assert_int_equal(n_cached, 0);
        for (int k = 0; k < i; k++) assert_true(hashes[k] != hashes[i]);
    }
    assert_int_equal(files_in(cache), 4);
    for (int i = 0; i < 4; i++) {
        assert_int_equal(digest(&o[i], &n_cached), hashes[i]);
        assert_int_equal(n_cached, 1);
    }
}

static void memory_is_what_was_announced(void **state) {
    write_pairs(500, 0);
    for (data_kind kind = DATA_PAIRS; kind <= DATA_LABELLED; kind++) {
        data_options o = {.kind = kind, .source = path, .seq_len = 128, .pack = true};
        if (kind == DATA_LABELLED) {
            FILE *f = fopen(path, "wb");
            for (int i = 0; i < 500; i++) fprintf(f, "{\"prompt\":\"%d\",\"completion\":\"x\",\"label\":true}\n", i);
            fclose(f);
        }
        dataset *d = open_data(o);
        assert_true(dataset_host_bytes(d) > 0 && dataset_host_bytes(d) <= dataset_host_bytes_at_most(&o));
        dataset_close(d);
    }
}

/* ---- built-in data ------------------------------------------------------------------------------------------------ */

static int64_t number_of(const char *digits) { /* units first */
    int64_t value = 0;
    for (size_t i = strlen(digits); i-- > 0;) {
        assert_in_range(digits[i], '0', '9');
        value = value * 10 + digits[i] - '0';
    }
    return value;
}

static int64_t solve(const char *prompt) {
    char a[16], b[16];
    size_t n = strspn(prompt, "0123456789"), m = strspn(prompt + n + 1, "0123456789");
    assert_true(n > 0 && m == n && strcmp(prompt + n + 1 + m, "=") == 0);
    snprintf(a, sizeof a, "%.*s", (int)n, prompt);
    snprintf(b, sizeof b, "%.*s", (int)m, prompt + n + 1);
    int64_t x = number_of(a), y = number_of(b);
    return prompt[n] == '+' ? x + y : prompt[n] == '-' ? x - y : x * y;
}

static void check_builtin_part(const seen_part *p, bool right) {
    int64_t difference = number_of(p->response) - solve(p->prompt);
    if (right) assert_int_equal(difference, 0);
    else assert_true(difference != 0 && difference >= -10 && difference <= 10);
}

/* Every example of a split by number, as text. */
static char (*collect_builtin(const dataset *d, split s, int64_t T, uint64_t epoch))[64] {
    uint64_t n = dataset_n_examples(d, s), n_rows = rows_of(d, s), n_seen = 0;
    char(*texts)[64] = calloc(n, sizeof *texts);
    for (uint64_t i = 0; i < n_rows; i++) {
        full_row r;
        get_row(d, s, epoch * n_rows + i, &r);
        int64_t at = 0, n_slots = count_slots(&r, T);
        for (int64_t slot = 0; slot < n_slots; slot++, n_seen++) {
            seen_part parts[2];
            at = read_part(&r, T, read_part(&r, T, at, slot, &parts[0]), slot, &parts[1]);
            assert_string_equal(parts[0].prompt, parts[1].prompt);
            check_builtin_part(&parts[0], parts[0].part == PART_CHOSEN);
            if (dataset_kind(d) == DATA_PAIRS) {
                assert_int_equal(parts[0].part, PART_CHOSEN);
                assert_int_equal(parts[1].part, PART_REJECTED);
                check_builtin_part(&parts[1], false);
            } else {
                assert_int_equal(parts[1].part, PART_MISMATCHED);
            }
            char *text = texts[r.examples[slot]];
            assert_int_equal(*text, 0); /* once in an epoch */
            snprintf(text, sizeof *texts, "%.20s%.10s|%.10s", parts[0].prompt, parts[0].response, parts[1].response);
        }
        check_padding(&r, T, at);
    }
    assert_int_equal(n_seen, n);
    return texts;
}

static void built_in_preferences_prefer_right_answers(void **state) {
    for (int64_t difficulty = 1; difficulty <= 6; difficulty += difficulty == 1 ? 1 : 2)
        for (data_kind kind = DATA_PAIRS; kind <= DATA_LABELLED; kind++) {
            int64_t T = 120;
            data_options o = {.kind = kind,
                              .source = "builtin:preferences",
                              .seq_len = T,
                              .pack = true,
                              .difficulty = difficulty,
                              .seed = 1};
            dataset *d = open_data(o);
            o.seed = 2;
            dataset *other = open_data(o);
            assert_int_equal(dataset_n_examples(d, SPLIT_TRAIN), 10000);
            assert_true(dataset_n_examples(d, SPLIT_EVAL) > 5);
            for (split s = SPLIT_TRAIN; s <= SPLIT_EVAL; s++) {
                char(*first)[64] = collect_builtin(d, s, T, 0), (*later)[64] = collect_builtin(d, s, T, 5);
                char(*seeded)[64] = collect_builtin(other, s, T, 0);
                uint64_t n = dataset_n_examples(d, s);
                assert_memory_equal(first, later, n * sizeof *first);
                assert_memory_equal(first, seeded, n * sizeof *first); /* the seed decides the order alone */
                free(first);
                free(later);
                free(seeded);
                data_report report;
                dataset_report(d, s, &report);
                assert_int_equal(report.n_documents, n);
                if (kind == DATA_LABELLED && n > 1000)
                    assert_true(report.n_undesirable > n * 2 / 5 && report.n_undesirable < n * 3 / 5);
            }
            full_row a, b;
            get_row(d, SPLIT_TRAIN, 0, &a);
            get_row(other, SPLIT_TRAIN, 0, &b);
            assert_true(memcmp(&a, &b, sizeof a) != 0);
            dataset_close(d);
            dataset_close(other);
        }
}

static void built_in_preferences_hold_out_the_problems_of_arithmetic(void **state) {
    data_options o = {
        .kind = DATA_PAIRS, .source = "builtin:preferences", .seq_len = 20, .difficulty = 2, .pack = true};
    dataset *d = open_data(o), *sft;
    uint64_t n_held = 0, n_train = dataset_n_examples(d, SPLIT_TRAIN);
    strbuf prompt, answer;
    strbuf_init(&prompt);
    strbuf_init(&answer);
    char(*texts)[64] = collect_builtin(d, SPLIT_TRAIN, 20, 0), (*held)[64] = collect_builtin(d, SPLIT_EVAL, 20, 0);
    sft = open_data((data_options){.source = "builtin:arithmetic", .seq_len = 20, .difficulty = 2});
    for (; dataset_problem(sft, n_held, &prompt, &answer); n_held++) {
        for (uint64_t i = 0; i < n_train; i++) assert_int_not_equal(strncmp(texts[i], prompt.text, prompt.length), 0);
        assert_int_equal(strncmp(held[n_held], prompt.text, prompt.length), 0);
        prompt.length = answer.length = 0;
    }
    assert_int_equal(n_held, dataset_n_examples(d, SPLIT_EVAL));
    assert_true(data_source_has_problems("builtin:preferences"));
    assert_true(dataset_problem(d, 0, &prompt, &answer));
    free(texts);
    free(held);
    strbuf_fini(&prompt);
    strbuf_fini(&answer);
    dataset_close(sft);
    dataset_close(d);
    o.seq_len = 19;
    expect_error(dataset_open(&d, &o), ERR_INPUT, "builtin:preferences|19|20");
    o.kind = DATA_TEXT;
    expect_error(dataset_open(&d, &o), ERR_INPUT, "builtin:preferences|train.task=preference|builtin:arithmetic");
    o.kind = DATA_LABELLED;
    o.source = "builtin:grammar";
    expect_error(dataset_open(&d, &o), ERR_INPUT, "builtin:preferences");
}

static int open_all(void **state) {
    if (test_dir_open(state) != 0) return -1;
    snprintf(path, sizeof path, "%s", path_of("pairs.jsonl"));
    return 0;
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_pair_stands_whole_in_one_row_once_an_epoch),
        cmocka_unit_test(shared_prompts_stand_in_a_row_once),
        cmocka_unit_test(rows_depend_on_seed_and_index_alone),
        cmocka_unit_test(a_loader_carries_segments_and_examples_for_all_ranks),
        cmocka_unit_test(rows_and_batches_allocate_nothing),
        cmocka_unit_test(text_has_no_segments),
        cmocka_unit_test(files_of_a_mixture_share_one_numbering),
        cmocka_unit_test(a_labelled_answer_has_a_mismatched_one_beside_it),
        cmocka_unit_test(mismatched_answers_stay_in_their_split_and_their_row),
        cmocka_unit_test(examples_that_are_too_long_are_counted_and_never_cut),
        cmocka_unit_test(the_cache_keeps_kinds_apart),
        cmocka_unit_test(memory_is_what_was_announced),
        cmocka_unit_test(built_in_preferences_prefer_right_answers),
        cmocka_unit_test(built_in_preferences_hold_out_the_problems_of_arithmetic),
    };
    return cmocka_run_group_tests(tests, open_all, test_dir_close);
}
