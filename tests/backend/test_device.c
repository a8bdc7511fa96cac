/* test_device.c - which backend is chosen: auto takes the CPU where no GPU works, and a GPU that is there and not used is noticed. */
#include "backend/backend.h"
#include "files.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include <cmocka.h>

static void test_a_driver_is_seen_by_its_files(void **state) {
    assert_false(backend_gpu_is_there(test_dir));
    assert_int_equal(dir_make(path_of("dev")), OK);
    assert_false(backend_gpu_is_there(test_dir));
    write_text(path_of("dev/nvidiactl"), "");
    assert_true(backend_gpu_is_there(test_dir));
    assert_int_equal(dir_make(path_of("other/proc/driver/nvidia")), OK);
    write_text(path_of("other/proc/driver/nvidia/version"), "NVRM version\n");
    assert_true(backend_gpu_is_there(path_of("other")));
}

static void test_auto_is_the_cpu_without_a_plugin(void **state) {
    const backend *b = NULL;
    setenv("RALO_CUDA_PLUGIN", "none", 1);
    assert_int_equal(backend_choose(DEVICE_AUTO, 0, &b), OK);
    assert_ptr_equal(b, backend_cpu());
    expect_error(backend_choose(DEVICE_CUDA, 0, &b), ERR_INPUT, "RALO_CUDA_PLUGIN=none");
    assert_null(b);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_driver_is_seen_by_its_files),
        cmocka_unit_test(test_auto_is_the_cpu_without_a_plugin),
    };
    return cmocka_run_group_tests(tests, test_dir_open, test_dir_close);
}
