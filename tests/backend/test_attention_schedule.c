/* test_attention_schedule.c - the tiles of keys in the backward of attention on a GPU: each is taken once, they add to dq in one order, and no block waits
 * forever, whatever the documents. */
#include "backend/cuda/attention_schedule.h"
#include "base/base.h"
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>

#include <cmocka.h>

static const struct {
    int64_t B, T;
    int H, G;
} SHAPES[] = {{1, 1, 1, 1},      {2, 130, 6, 2},   {1, 300, 6, 1},    {3, 1000, 4, 4},  {32, 1024, 12, 2},
              {40, 1024, 2, 1},  {5, 1536, 8, 2},  {4, 2048, 28, 4},  {1, 4096, 12, 2}, {7, 4000, 2, 2},
              {1, 16384, 12, 2}, {1, 20000, 3, 1}, {2, 16384, 16, 16}};
static const int BLOCKS[] = {132, 114, 16, 1};

static key_schedule schedule_of(size_t shape, size_t blocks, bool ring) {
    key_schedule s = attention_schedule_of(SHAPES[shape].B, SHAPES[shape].T, SHAPES[shape].H, SHAPES[shape].G, ring);
    return attention_schedule_on(s, BLOCKS[blocks]);
}

static void every_tile_is_taken_once(void **state) {
    (void)state;
    for (size_t i = 0; i < ARRAY_LENGTH(SHAPES); i++)
        for (size_t blocks = 0; blocks < ARRAY_LENGTH(BLOCKS); blocks++)
            for (int ring = 0; ring < 2; ring++) {
                key_schedule s = schedule_of(i, blocks, ring);
                assert_true(s.width * s.units <= BLOCKS[blocks]);
                assert_int_equal(s.n_parts * s.heads, SHAPES[i].H / SHAPES[i].G);
                int n = s.n_units * s.n_tiles;
                int *taken = mem_alloc((size_t)n * sizeof *taken);
                key_place place;
                for (int block = 0; block < s.width * s.units; block++)
                    for (int at = 0; attention_next_tile(&s, block, &at, &place); at++)
                        taken[place.unit * s.n_tiles + place.tile]++;
                for (int t = 0; t < n; t++) assert_int_equal(taken[t], 1);
                free(taken);
            }
}

static void tiles_that_see_a_query_add_one_after_the_other(void **state) {
    (void)state;
    for (int n = 1; n <= 20; n++)
        for (int width = 1; width <= (n + 1) / 2; width++)
            for (int first = 0; first < n; first++)
                for (int end = first + 1; end <= n; end++) {
                    key_schedule s = {.n_tiles = n, .n_long = (n + 1) / 2, .width = width};
                    uint32_t seen = 0;
                    for (int tile = first; tile < end; tile++)
                        seen |= 1u << attention_adds_before(&s, tile, first, end);
                    assert_int_equal(seen, (1u << (end - first)) - 1);
                }
}

/* A block's walk: tiles of 64 queries from the last to the diagonal, of those whose documents reach its keys. One head: others only repeat it. */
typedef struct walk {
    int at, query; /* query: next tile of queries */
    key_place place;
    bool done;
} walk;

static bool sees(const int *first_key, int query, int tile) { return first_key[query] <= tile && tile <= query / 2; }

static void walk_on(const key_schedule *s, int block, const int *first_key, walk *w) {
    for (;;) {
        while (--w->query >= 0)
            if (sees(first_key, w->query, w->place.tile)) return;
        w->done = !attention_next_tile(s, block, &w->at, &w->place);
        if (w->done) return;
        w->at++, w->query = 2 * s->n_tiles;
    }
}

static void run_until_done(const key_schedule *s, const int *first_key) {
    int n_blocks = s->width * s->units, n_queries = 2 * s->n_tiles, left = n_blocks;
    walk *walks = mem_alloc((size_t)n_blocks * sizeof *walks);
    int *turns = mem_alloc((size_t)(s->n_units * n_queries) * sizeof *turns);
    for (int b = 0; b < n_blocks; b++) {
        walks[b] = (walk){0};
        walk_on(s, b, first_key, &walks[b]);
        left -= walks[b].done;
    }
    while (left > 0) {
        bool moved = false;
        for (int b = 0; b < n_blocks; b++) {
            walk *w = &walks[b];
            if (w->done) continue;
            int *turn = &turns[w->place.unit * n_queries + w->query];
            if (*turn != attention_adds_before(s, w->place.tile, first_key[w->query], w->query / 2 + 1)) continue;
            ++*turn;
            moved = true;
            walk_on(s, b, first_key, w);
            left -= w->done;
        }
        assert_true(moved);
    }
    for (int u = 0; u < s->n_units; u++)
        for (int q = 0; q < n_queries; q++) assert_int_equal(turns[u * n_queries + q], q / 2 + 1 - first_key[q]);
    free(walks);
    free(turns);
}

static void no_block_waits_forever(void **state) {
    (void)state;
    for (size_t i = 0; i < ARRAY_LENGTH(SHAPES); i++)
        for (size_t blocks = 0; blocks < ARRAY_LENGTH(BLOCKS); blocks++)
            for (int documents = 0; documents < 3; documents++) {
                key_schedule s = schedule_of(i, blocks, false);
                int *first_key = mem_alloc((size_t)(2 * s.n_tiles) * sizeof *first_key);
                for (int q = 0, first = 0; q < 2 * s.n_tiles; q++) {
                    if (documents && rng_below(i, (uint64_t)q, documents == 1 ? 4 : 40) == 0) first = q / 2;
                    first_key[q] = first;
                }
                run_until_done(&s, first_key);
                free(first_key);
            }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_tile_is_taken_once),
        cmocka_unit_test(tiles_that_see_a_query_add_one_after_the_other),
        cmocka_unit_test(no_block_waits_forever),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
