/* test_backend_cpu.c - the cpu backend as a device: memory, copies, threads, and a kernel for every op. */
#include "backend/backend.h"
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include <cmocka.h>

static int open_backend(void **state) {
    backend_context *c;
    if (backend_cpu()->open(&c, &(backend_options){.n_threads = 2}) != OK) return -1;
    *state = c;
    return 0;
}

static int close_backend(void **state) {
    backend_cpu()->close(*state);
    return 0;
}

static void test_every_op_has_a_kernel(void **state) {
    for (int k = 0; k < OP_COUNT; k++)
        if (!backend_cpu()->kernels[k] != op_is_comm((op_kind)k))
            fail_msg("%s kernel for %s", op_is_comm((op_kind)k) ? "a" : "no", op_name((op_kind)k));
    assert_int_equal(backend_cpu()->threads(*state), 2);
}

static void test_memory_is_aligned_zeroed_and_writable_to_the_last_byte(void **state) {
    const backend *b = backend_cpu();
    const size_t sizes[] = {0, 1, 4096, (2u << 20) - 1, (2u << 20) + 1, 5000001};
    for (int t = TIER_DEVICE; t <= TIER_HOST; t++)
        for (size_t s = 0; s < ARRAY_LENGTH(sizes); s++) {
            uint8_t *memory = NULL;
            assert_int_equal(b->memory_open(*state, (tier)t, sizes[s], (void **)&memory), OK);
            assert_non_null(memory);
            assert_int_equal((uintptr_t)memory % (2 << 20), 0); /* so that huge pages can serve it from its start */
            for (size_t i = 0; i < sizes[s]; i += 509) assert_int_equal(memory[i], 0);
            if (sizes[s] > 0) memory[sizes[s] - 1] = 7;
            b->memory_close(*state, (tier)t, memory, sizes[s]);
        }
}

static void test_memory_that_cannot_be_had_is_an_error_that_names_the_size(void **state) {
    void *memory = NULL;
    assert_int_equal(backend_cpu()->memory_open(*state, TIER_DEVICE, (size_t)1 << 60, &memory), ERR_FIT);
    assert_non_null(strstr(error_message(), "device"));
    assert_int_equal(backend_cpu()->memory_open(*state, TIER_NVME, 4096, &memory), ERR_BUG);
    assert_null(memory);
    error_clear();
}

static void test_write_then_read_gives_the_bytes_back(void **state) {
    const backend *b = backend_cpu();
    enum { N = 100003 };
    uint8_t *sent = mem_alloc(N), *received = mem_alloc(N), *memory;
    for (size_t i = 0; i < N; i++) sent[i] = (uint8_t)rng_u64(3, i);
    assert_int_equal(b->memory_open(*state, TIER_DEVICE, N, (void **)&memory), OK);
    b->write(*state, memory, sent, N);
    b->synchronize(*state);
    b->read(*state, received, memory, N);
    assert_memory_equal(sent, received, N);
    b->memory_close(*state, TIER_DEVICE, memory, N);
    free(sent);
    free(received);
}

static void count_task(void *context, int64_t task, int thread) { ((uint8_t *)context)[task]++; }

static void test_parallel_runs_each_task_once(void **state) {
    enum { N = 1000 };
    uint8_t counts[N] = {0};
    backend_cpu()->parallel(*state, count_task, counts, N);
    for (int i = 0; i < N; i++) assert_int_equal(counts[i], 1);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_op_has_a_kernel),
        cmocka_unit_test(test_memory_is_aligned_zeroed_and_writable_to_the_last_byte),
        cmocka_unit_test(test_memory_that_cannot_be_had_is_an_error_that_names_the_size),
        cmocka_unit_test(test_write_then_read_gives_the_bytes_back),
        cmocka_unit_test(test_parallel_runs_each_task_once),
    };
    return cmocka_run_group_tests(tests, open_backend, close_backend);
}
