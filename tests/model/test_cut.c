/* test_cut.c - parameters as slices of the model's: every element has its rank, and files put the slices together again.
 *
 * Shapes are those of real models on every number of tensor ranks that they allow; a checkpoint is written by two ranks played
 * here, read back whole, and then told lies about its slices, each of which must be refused by name. */
#include "checkpoint/directory.h"
#include "model/model.h"
#include "must.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>
#include <xxhash.h>

/* ---- the model --------------------------------------------------------------------------------------------------------- */

typedef struct built {
    program p;
    net m;
} built;

static void build(built *b, const model_config *c, int n_ranks, int rank) {
    net_options o = {.batch = 1,
                     .seq_len = 8 * n_ranks,
                     .compute = DTYPE_F32,
                     .logits_chunk_bytes = 1 << 20,
                     .mesh = {.size[AXIS_TENSOR] = n_ranks, .index[AXIS_TENSOR] = rank}};
    program_init(&b->p);
    must(model_build(&b->m, &b->p, c, &o));
}

static void drop(built *b) {
    net_fini(&b->m);
    program_fini(&b->p);
}

/* Counts who counts for each element of the whole, and compares initial values with those of one rank. */
static void check_param(const net_param *q, const net_param *whole, int rank, uint8_t *counted) {
    int64_t count = shape_count(&q->shape), n, mine = net_param_counted(q, rank);
    float *here = mem_alloc((size_t)count * sizeof *here), *there = mem_alloc((size_t)count * sizeof *there);
    model_param_initial(q, 5, 0, count, here);
    for (int64_t at = 0; at < count; at += n) {
        int64_t from = param_cut_place(&q->cut, at, &n);
        assert_true(n > 0 && n <= count - at);
        if (from >= 0) model_param_initial(whole, 5, from, n, there + at);
        else memset(there + at, 0, (size_t)n * sizeof *there);
        for (int64_t k = at; k < MIN(at + n, mine) && from >= 0; k++) counted[from + k - at]++;
    }
    assert_memory_equal(here, there, (size_t)count * sizeof *here);
    free(here);
    free(there);
}

static void every_element_has_one_rank_that_counts_it(void **state) {
    (void)state;
    static const char *const presets[] = {"test-gpt2", "test-llama", "test-qwen2", "test-qwen3"};
    for (size_t i = 0; i < ARRAY_LENGTH(presets); i++)
        for (int n_ranks = 1; n_ranks <= 4; n_ranks *= 2) {
            const model_config *c = model_preset_find(presets[i]);
            built whole, ranks[4];
            build(&whole, c, 1, 0);
            for (int r = 0; r < n_ranks; r++) build(&ranks[r], c, n_ranks, r);
            for (size_t k = 0; k < whole.m.n_params; k++) {
                const net_param *q = &whole.m.params[k];
                int64_t count = shape_count(&q->shape);
                uint8_t *counted = mem_alloc((size_t)count);
                for (int r = 0; r < n_ranks; r++) {
                    assert_true(shape_equal(&ranks[r].m.params[k].cut.whole, &q->shape));
                    check_param(&ranks[r].m.params[k], q, r, counted);
                }
                for (int64_t e = 0; e < count; e++)
                    if (counted[e] != 1)
                        fail_msg("%s element %lld is counted %d times", q->name, (long long)e, counted[e]);
                free(counted);
            }
            for (int r = 0; r < n_ranks; r++) drop(&ranks[r]);
            drop(&whole);
        }
}

/* Runs inside any window of the whole are those of the whole that lie in it. */
static void windows_of_the_whole_have_their_runs(void **state) {
    (void)state;
    const param_cut cuts[] = {
        {SHAPE(7, 4), SHAPE(20, 4), 0, 3, {{0, 2, 3}, {3, 9, 1}, {4, 15, 2}}}, /* a row of padding */
        {SHAPE(5, 3), SHAPE(5, 9), 1, 1, {{0, 4, 3}}},
        {SHAPE(6), SHAPE(6), -1, 0, {{0}}}};
    for (size_t i = 0; i < ARRAY_LENGTH(cuts); i++) {
        int64_t total = shape_count(&cuts[i].whole);
        for (int64_t begin = 0; begin < total; begin++)
            for (int64_t end = begin; end <= total; end++) {
                int64_t seen = 0, expected = 0, n;
                for (param_run run = {0}; param_cut_next(&cuts[i], begin, end, &run); seen += run.n) {
                    assert_true(run.whole >= begin && run.whole + run.n <= end && run.n > 0);
                    assert_int_equal(param_cut_place(&cuts[i], run.here, &n), run.whole);
                    assert_true(run.n <= n);
                }
                for (int64_t at = 0; at < shape_count(&cuts[i].here); at++) {
                    int64_t whole = param_cut_place(&cuts[i], at, &n);
                    expected += whole >= begin && whole < end;
                }
                assert_int_equal(seen, expected);
            }
    }
}

/* ---- files --------------------------------------------------------------------------------------------------------------- */

enum { TABLE_ROWS = 5, TABLE_COLUMNS = 2, OUT_ROWS = 4, OUT_COLUMNS = 6, RANKS = 2 };

/* A table by rows, of which the second rank has one row of padding, and a matrix by columns. Element i of a tensor is i. */
static void write_by_two(const char *dir) {
    const param_cut table[RANKS] = {{SHAPE(3, 2), SHAPE(TABLE_ROWS, TABLE_COLUMNS), 0, 1, {{0, 0, 3}}},
                                    {SHAPE(3, 2), SHAPE(TABLE_ROWS, TABLE_COLUMNS), 0, 1, {{0, 3, 2}}}};
    const param_cut out[RANKS] = {{SHAPE(4, 3), SHAPE(OUT_ROWS, OUT_COLUMNS), 1, 1, {{0, 0, 3}}},
                                  {SHAPE(4, 3), SHAPE(OUT_ROWS, OUT_COLUMNS), 1, 1, {{0, 3, 3}}}};
    for (int r = 0; r < RANKS; r++) {
        const param_cut *cuts[] = {&table[r], &out[r]};
        const int64_t saved[] = {r ? 4 : 6, 12};
        checkpoint_tensor tensors[2] = {{.name = "param/table"}, {.name = "param/out"}};
        float staging[18];
        int at = 0;
        for (int k = 0; k < 2; k++) {
            tensors[k].type = DTYPE_F32;
            tensors[k].shape = cuts[k]->whole;
            tensors[k].cut = cuts[k];
            tensors[k].held = (param_share){0, shape_count(&cuts[k]->here)};
            tensors[k].saved = (param_share){0, saved[k]};
            for (int64_t e = 0, n; e < saved[k]; e++) staging[at++] = (float)param_cut_place(cuts[k], e, &n);
        }
        arena memory;
        arena_init(&memory);
        checkpoint_layout l;
        must(checkpoint_layout_make(&l, &memory, tensors, 2, CHECKPOINT_SHARD_BYTES));
        must(checkpoint_write_part(dir, &l, &(checkpoint_source){.staging = (const uint8_t *)staging}, r));
        arena_fini(&memory);
    }
    must(checkpoint_join_parts(
        dir, RANKS, &(checkpoint_metadata){.identity = "cut", .state = &(train_state){.step = 1, .scaler.scale = 1}}));
}

/* Seals checkpoint.json as the writer does: the checksum of all before it is its last member. */
static void write_sealed(const char *path, json_t *root) {
    json_object_del(root, "checksum");
    char *text = json_dumps(root, JSON_INDENT(1));
    assert_non_null(text);
    size_t n = strlen(text) - 2; /* without the last brace */
    XXH128_hash_t h = XXH3_128bits(text, n);
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    fprintf(f, "%.*s,\n \"checksum\": \"%016llx%016llx\"\n}\n", (int)n, text, (unsigned long long)h.high64,
            (unsigned long long)h.low64);
    assert_int_equal(fclose(f), 0);
    free(text);
}

static void check_numbers(const checkpoint_reader *r, const char *name, int64_t count) {
    checkpoint_found t;
    float numbers[32];
    assert_true(checkpoint_reader_find(r, name, &t));
    must(checkpoint_reader_verify(r, &t));
    assert_int_equal(shape_count(&t.shape), count);
    for (int64_t first = 0; first < count; first++) /* from anywhere to the end */
        for (int64_t n = count - first; n > 0; n--) {
            checkpoint_reader_read(r, &t, (uint64_t)first * 4, numbers, (size_t)n * 4);
            for (int64_t i = 0; i < n; i++) assert_true(numbers[i] == (float)(first + i));
        }
}

static void slices_are_put_together(void **state) {
    (void)state;
    checkpoint_reader *r;
    dir_remove_all("cut"); /* of a run that was interrupted */
    must(dir_make("cut"));
    write_by_two("cut");
    must(checkpoint_reader_open(&r, "cut"));
    check_numbers(r, "param/table", TABLE_ROWS * TABLE_COLUMNS);
    check_numbers(r, "param/out", OUT_ROWS * OUT_COLUMNS);
    checkpoint_reader_close(r);
    must(dir_remove_all("cut"));
}

static void lies_about_slices_are_refused(void **state) {
    (void)state;
    static const struct {
        const char *tensor, *lie;                             /* said of its first piece */
    } lies[] = {{"param/table", "{\"slices\": [[0, 1, 3]]}"}, /* a gap, and an overlap */
                {"param/table", "{\"slices\": [[0, 0, 4]]}"}, /* more than it has */
                {"param/table", "{\"slices\": [[0, 0, 2]]}"}, /* less */
                {"param/table", "{\"slices\": [[0, 0, 0]]}"},
                {"param/table", "{\"slices\": [[0, -1, 3]]}"},
                {"param/table", "{\"slices\": [[0, 9223372036854775807, 3]]}"},
                {"param/table", "{\"slices\": [[0, 0, 9223372036854775807]]}"},
                {"param/table", "{\"slices\": [[1, 0, 2]]}"},
                {"param/table", "{\"slices\": [[0, 0, 2], [2, 1, 1]]}"}, /* one row twice */
                {"param/table", "{\"slices\": [[0, 0]]}"},
                {"param/table", "{\"slices\": [[0, 0, 1], [1, 1, 1], [2, 2, 1], [3, 3, 1]]}"},
                {"param/table", "{\"slices\": []}"},
                {"param/table", "{\"slices\": {}}"},
                {"param/table", "{\"slices\": [[0, 0, \"3\"]]}"},
                {"param/table", "{\"dim\": 1}"},
                {"param/table", "{\"dim\": 2}"},
                {"param/table", "{\"of\": [3]}"},
                {"param/table", "{\"of\": [9223372036854775807, 2]}"},
                {"param/table", "{\"of\": [0, 2]}"},
                {"param/table", "{\"elements\": [1, 6]}"},
                {"param/table", "{\"elements\": [9223372036854775807, 6]}"},
                {"param/out", "{\"slices\": [[0, 3, 3]]}"},
                {"param/out", "{\"slices\": [[0, 0, 2]]}"}, /* columns are not padded */
                {"param/out", "{\"dim\": 0}"},
                {"param/out", "{\"of\": [5, 3]}"}};
    dir_remove_all("lies");
    must(dir_make("lies"));
    write_by_two("lies");
    for (size_t i = 0; i < ARRAY_LENGTH(lies); i++) {
        json_t *root, *said = json_loads(lies[i].lie, 0, NULL);
        must(json_read_file("lies/checkpoint.json", 1 << 20, &root));
        json_t *honest = json_deep_copy(root),
               *tensor = json_object_get(json_object_get(root, "tensors"), lies[i].tensor);
        json_object_update(json_array_get(json_object_get(tensor, "pieces"), 0), said);
        write_sealed("lies/checkpoint.json", root);
        checkpoint_reader *r;
        if (checkpoint_reader_open(&r, "lies") != ERR_INPUT)
            fail_msg("%s: %s was believed", lies[i].tensor, lies[i].lie);
        if (!strstr(error_message(), lies[i].tensor) && !strstr(error_message(), "dim"))
            fail_msg("%s: %s: %s", lies[i].tensor, lies[i].lie, error_message());
        error_clear();
        write_sealed("lies/checkpoint.json", honest);
        must(checkpoint_reader_open(&r, "lies"));
        checkpoint_reader_close(r);
        json_decref(said);
        json_decref(root);
        json_decref(honest);
    }
    must(dir_remove_all("lies"));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_element_has_one_rank_that_counts_it),
        cmocka_unit_test(windows_of_the_whole_have_their_runs),
        cmocka_unit_test(slices_are_put_together),
        cmocka_unit_test(lies_about_slices_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
