/* test_gpu_checks.c - what a GPU host may lack, with made-up drivers and GPUs: which are refused, and that each refusal says
 * what was found, what was expected and what to do. */
#include "backend/cuda/gpu_checks.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <cmocka.h>

#define MUST_SAY(call, code, ...) must_say(call, code, (const char *const[]){__VA_ARGS__, NULL})
static void must_say(status rc, status expected, const char *const *texts) {
    assert_int_equal(rc, expected);
    for (; *texts; texts++)
        if (!strstr(error_message(), *texts)) fail_msg("'%s' is not in: %s", *texts, error_message());
    error_clear();
}

static void drivers(void **state) {
    (void)state;
    assert_int_equal(gpu_check_driver(13000, 13000), OK);
    assert_int_equal(gpu_check_driver(13000, 13020), OK); /* within a major version */
    assert_int_equal(gpu_check_driver(14000, 13000), OK);
    MUST_SAY(gpu_check_driver(0, 13000), ERR_INPUT, "no NVIDIA driver is running", "install one", "run.device to cpu");
    MUST_SAY(gpu_check_driver(12080, 13010), ERR_INPUT, "serves CUDA 12.8", "built with 13.1", "update the driver",
             "older toolkit", "run.device to cpu");
}

static void which_gpu(void **state) {
    (void)state;
    assert_int_equal(gpu_check_index(0, 1), OK);
    assert_int_equal(gpu_check_index(7, 8), OK);
    MUST_SAY(gpu_check_index(0, 0), ERR_INPUT, "shows no GPU", "CUDA_VISIBLE_DEVICES", "run.device to cpu");
    MUST_SAY(gpu_check_index(1, 1), ERR_INPUT, "run.gpu: found 1, expected 0 to 0", "shows 1 GPU");
    MUST_SAY(gpu_check_index(-1, 2), ERR_INPUT, "run.gpu: found -1, expected 0 to 1", "2 GPUs");
}

static void kernels(void **state) {
    (void)state;
    assert_int_equal(gpu_check_kernels(0, "NVIDIA H200", 90, true), OK);
    MUST_SAY(gpu_check_kernels(0, "NVIDIA B200", 100, false), ERR_INPUT, "GPU 0, NVIDIA B200", "capability 10.0",
             "RALO_CUDA_ARCHS=100");
    MUST_SAY(gpu_check_kernels(2, "Tesla V100", 70, false), ERR_INPUT, "GPU 2, Tesla V100", "capability 7.0",
             "expected 8.0 or later", "run.device to cpu");
}

static void memory(void **state) {
    (void)state;
    MUST_SAY(gpu_error_memory((uint64_t)20 << 30, (uint64_t)3 << 30, (uint64_t)24 << 30), ERR_FIT, "needs 20", "3.0",
             "24", "nvidia-smi", "memory.device");
    MUST_SAY(gpu_error_context(1, "NVIDIA H200", (uint64_t)140 << 30), ERR_FIT, "GPU 1, NVIDIA H200", "140", "500 MiB",
             "nvidia-smi", "fewer ranks");
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(drivers), cmocka_unit_test(which_gpu),
                                       cmocka_unit_test(kernels), cmocka_unit_test(memory)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
