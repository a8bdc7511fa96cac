/* test_hardware.c - descriptions of machines: what is written reads back, what is wrong is refused by line and key. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

#include "backend_choice.h"
#include "exec/exec.h"
#include "files.h"
#include "measure/measure.h"

#include <fcntl.h>
#include <glob.h>
#include <math.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

static void written_descriptions_read_back_to_the_same_bits(void **state) {
    (void)state;
    size_t n = 0;
    for (; hardware_at(n); n++) {
        hardware back;
        memset(&back, 0xff, sizeof back);
        assert_int_equal(hardware_write_file(hardware_at(n), "machine.yaml"), OK);
        assert_int_equal(hardware_read_file(&back, "machine.yaml"), OK);
        assert_string_equal(back.name, hardware_at(n)->name);
        assert_string_equal(back.source, hardware_at(n)->source);
        assert_true(back.unified == hardware_at(n)->unified && back.overlap == hardware_at(n)->overlap);
        assert_int_equal(back.device_bytes, hardware_at(n)->device_bytes);
        assert_int_equal(back.host_bytes, hardware_at(n)->host_bytes);
        /* Everything behind the flags is plain numbers without padding. */
        size_t from = offsetof(hardware, device_bandwidth);
        assert_memory_equal((char *)&back + from, (const char *)hardware_at(n) + from, sizeof back - from);
    }
    assert_true(n >= 9);
    assert_int_not_equal(access("machine.yaml", R_OK), -1);
}

static void built_in_machines_are_plausible(void **state) {
    (void)state;
    for (size_t i = 0; hardware_at(i); i++) {
        const hardware *h = hardware_at(i);
        for (int t = 0; t < HARDWARE_DTYPES; t++) {
            assert_true(h->matrix[t] > 0 && h->attention[t] > 0 && h->vector[t] > 0);
            assert_true(h->sheet[t] == 0 || h->matrix[t] <= h->sheet[t]); /* nothing beats its data sheet */
            assert_true(h->attention[t] <= h->matrix[t]);
        }
        assert_true(h->copy_both >= fmax(h->copy_to_device, h->copy_to_host));
        assert_true(h->copy_both <= h->copy_to_device + h->copy_to_host);
        assert_true(h->matrix[DTYPE_BF16] >= h->matrix[DTYPE_F32]);
        for (size_t j = 0; j < i; j++) assert_string_not_equal(h->name, hardware_at(j)->name);
        hardware again;
        assert_int_equal(hardware_load(&again, h->name), OK);
        assert_memory_equal(&again, h, sizeof again);
    }
}

static void a_name_may_say_how_many_make_a_node(void **state) {
    (void)state;
    hardware one, many;
    assert_int_equal(hardware_load(&one, "h100"), OK);
    assert_int_equal(hardware_load(&many, "h100x4"), OK);
    assert_string_equal(many.name, "h100x4");
    assert_int_equal(many.devices_per_node, 4);
    assert_true(many.matrix[DTYPE_BF16] == one.matrix[DTYPE_BF16] && many.device_bytes == one.device_bytes);
    static const char *const wrong[] = {"h100x", "h100x0", "h100x4097", "h100x4y", "x8", "h300x8", "h100x-1"};
    for (size_t i = 0; i < ARRAY_LENGTH(wrong); i++) assert_int_equal(hardware_load(&many, wrong[i]), ERR_INPUT);
}

static void people_call_machines_by_many_names(void **state) {
    (void)state;
    static const struct {
        const char *called, *name;
        int64_t count;
    } names[] = {{"4090", "rtx-4090", 0},
                 {"RTX 4090", "rtx-4090", 0},
                 {"geforce-rtx-5090", "rtx-5090", 0},
                 {"8xh100", "h100x8", 8},
                 {"8 x H100", "h100x8", 8},
                 {"H100-80GB", "h100", 0},
                 {"NVIDIA H100 80GB HBM3", "h100", 0},
                 {"h100-sxm5x4", "h100x4", 4},
                 {"A100-80GB", "a100-80", 0},
                 {"a100_40gbx16", "a100-40x16", 16},
                 {"4x4090", "rtx-4090x4", 4},
                 {"MI300X", "mi300x", 0},
                 {"mi300xx8", "mi300xx8", 8},
                 {"8xmi300x", "mi300xx8", 8},
                 {"gb200", "gb200", 0},
                 {"L40S", "l40s", 0},
                 {"M4-Max", "apple-m4-max", 0},
                 {"h100x8", "h100x8", 8}};
    for (size_t i = 0; i < ARRAY_LENGTH(names); i++) {
        hardware h;
        assert_int_equal(hardware_load(&h, names[i].called), OK);
        assert_string_equal(h.name, names[i].name);
        assert_int_equal(hardware_named_count(names[i].called), names[i].count);
    }
    static const char *const wrong[] = {"a100", "h", "100", "8x", "0xh100", "8xx", "xh100", "-h", "nvidia", "gb", ""};
    for (size_t i = 0; i < ARRAY_LENGTH(wrong); i++) {
        hardware h;
        assert_int_equal(hardware_load(&h, wrong[i]), ERR_INPUT);
        assert_int_equal(hardware_named_count(wrong[i]), 0);
    }
    hardware h;
    assert_int_equal(hardware_load(&h, "h20"), ERR_INPUT);
    assert_non_null(strstr(error_message(), "did you mean 'h200'?"));
    assert_int_equal(hardware_load(&h, "4x4090"), OK); /* no NVLink: through the host, and the description says so */
    assert_true(h.link_bandwidth > 0 && h.link_bandwidth < h.copy_to_device && strstr(h.source, "over PCIe"));
    static const char *const sheet[] = {"l40s", "b200", "gb200", "mi300x"};
    for (size_t i = 0; i < ARRAY_LENGTH(sheet); i++) {
        assert_int_equal(hardware_load(&h, sheet[i]), OK);
        assert_non_null(strstr(h.source, "data sheet"));
        assert_non_null(strstr(h.source, "not measured"));
    }
}

static void unknown_names_get_the_list(void **state) {
    (void)state;
    hardware h;
    assert_int_equal(hardware_load(&h, "h300"), ERR_INPUT);
    for (size_t i = 0; hardware_at(i); i++) assert_non_null(strstr(error_message(), hardware_at(i)->name));
    assert_int_equal(hardware_load(&h, "./nowhere.yaml"), ERR_IO);
    assert_non_null(strstr(error_message(), "nowhere.yaml"));
}

static void a_base_needs_only_what_differs(void **state) {
    (void)state;
    hardware h, base;
    write_text("mine.yaml", "device: {memory: 40G}\nbase: h100\nname: mine\nmatrix.bf16.gflops: 5e5\n");
    assert_int_equal(hardware_load(&h, "mine.yaml"), OK);
    assert_int_equal(hardware_load(&base, "h100"), OK);
    assert_string_equal(h.name, "mine");
    assert_int_equal(h.device_bytes, 40ull << 30);
    assert_float_equal(h.matrix[DTYPE_BF16], 5e14, 0);
    assert_float_equal(h.matrix[DTYPE_F16], base.matrix[DTYPE_F16], 0);
}

/* Each file is wrong in one place, and the message says where. */
static void wrong_files_are_refused_by_line_and_key(void **state) {
    (void)state;
    static const struct {
        const char *text, *named[4];
    } wrong[] = {
        {"base: h100\ndevice.memroy: 8G\n", {"wrong.yaml:2", "device.memroy", "did you mean 'device.memory'"}},
        {"base: h100\nmemory: 8G\n", {"wrong.yaml:2", "'memory'", "did you mean 'device.memory'"}},
        {"base: h100\nzzzzzz: 8G\n",
         {"wrong.yaml:2", "'zzzzzz'", "expected one of: base, name, ", ", link.network_us"}},
        {"base: h100\n\ndevice:\n  memory: lots\n", {"wrong.yaml:4", "device.memory", "'lots'", "80G"}},
        {"base: h100\ndevice.memory: 0\n", {"wrong.yaml:2", "device.memory", "'0'"}},
        {"base: h100\ndevice.gb_per_s: 0\n", {"wrong.yaml:2", "device.gb_per_s", "[0.001, 1e+06]"}},
        {"base: h100\ndevice.gb_per_s: nan\n", {"wrong.yaml:2", "'nan'"}},
        {"base: h100\ndevice.gb_per_s: 0x10\n", {"wrong.yaml:2", "'0x10'"}},
        {"base: h100\ndevice.gb_per_s: 1e400\n", {"wrong.yaml:2", "'1e400'"}},
        {"base: h100\ndevice.gb_per_s: \"8\"\n", {"wrong.yaml:2", "a number"}},
        {"base: h100\ndevice.gb_per_s: [8]\n", {"wrong.yaml:2", "a list"}},
        {"base: h100\ndevice.gb_per_s: -1\n", {"wrong.yaml:2", "'-1'"}},
        {"base: h100\ndevices_per_node: 1.5\n", {"wrong.yaml:2", "whole number"}},
        {"base: h100\nunified: maybe\n", {"wrong.yaml:2", "true or false"}},
        {"base: h100\nname: \"\"\n", {"wrong.yaml:2", "name"}},
        {"base: h100\nname: 0123456789012345678901234567890123456789012345678901234567890123456789\n",
         {"wrong.yaml:2", "63"}},
        {"base: h100\ndevice.memory: 8G\ndevice: {memory: 9G}\n", {"wrong.yaml:3", "again", "line 2"}},
        {"base: h100\ndevice: 8G\n", {"wrong.yaml:2", "unknown key 'device'"}},
        {"base: h100\ncopy.both_gb_per_s: 1000\n", {"copy.both_gb_per_s", "1000", "110"}},
        {"base: h300\n", {"wrong.yaml:1", "'h300'", "h200"}},
        {"base: [h100]\n", {"wrong.yaml:1", "base"}},
        {"name: half\ndevice.memory: 8G\n", {"wrong.yaml", "missing keys", "host.memory", "base: NAME"}},
        {"- a\n- b\n", {"wrong.yaml:1", "a list", "a map"}},
        {"a: &x 1\nb: *x\n", {"wrong.yaml", "anchor"}},
    };
    for (size_t i = 0; i < ARRAY_LENGTH(wrong); i++) {
        hardware h = {.name = "untouched"};
        write_text("wrong.yaml", wrong[i].text);
        assert_int_equal(hardware_read_file(&h, "wrong.yaml"), ERR_INPUT);
        for (int k = 0; k < 4 && wrong[i].named[k]; k++)
            if (!strstr(error_message(), wrong[i].named[k]))
                fail_msg("'%s' is not in: %s", wrong[i].named[k], error_message());
        assert_string_equal(h.name, "untouched");
    }
}

static void any_cut_or_changed_file_is_read_or_refused(void **state) {
    (void)state;
    assert_int_equal(hardware_write_file(hardware_at(0), "whole.yaml"), OK);
    char *text;
    size_t n;
    assert_int_equal(file_read_all("whole.yaml", 1 << 20, &text, &n), OK);
    for (uint64_t i = 0; i < 400; i++) {
        size_t at = rng_below(7, 2 * i, n);
        char was = text[at];
        text[at] = (char)rng_below(7, 2 * i + 1, 256);
        FILE *f = fopen("changed.yaml", "w");
        fwrite(text, 1, i % 2 ? at + 1 : n, f);
        fclose(f);
        text[at] = was;
        hardware h = {0};
        if (hardware_read_file(&h, "changed.yaml") != OK) continue;
        for (int t = 0; t < HARDWARE_DTYPES; t++) assert_true(isfinite(h.matrix[t]) && h.matrix[t] > 0);
        assert_true(memchr(h.name, 0, sizeof h.name) && memchr(h.source, 0, sizeof h.source));
    }
    free(text);
}

static void a_failed_write_leaves_the_old_file(void **state) {
    (void)state;
    assert_int_equal(hardware_write_file(hardware_at(0), "./no/such/dir/x.yaml"), ERR_IO);
    assert_non_null(strstr(error_message(), "no/such/dir"));
    mkdir("taken.yaml", 0700); /* rename cannot replace a directory */
    assert_int_equal(hardware_write_file(hardware_at(0), "taken.yaml"), ERR_IO);
    struct stat s;
    assert_int_equal(stat("taken.yaml", &s), 0);
    assert_true(S_ISDIR(s.st_mode));
    glob_t left;
    assert_int_equal(glob("taken.yaml.*", 0, NULL, &left), GLOB_NOMATCH);
    rmdir("taken.yaml");
}

static void the_cache_lies_where_the_user_says(void **state) {
    (void)state;
    char path[64];
    setenv("XDG_CACHE_HOME", "/somewhere", 1);
    hardware_cache_path(path, sizeof path);
    assert_string_equal(path, "/somewhere/ralo/hardware.yaml");
    setenv("XDG_CACHE_HOME", "relative", 1); /* as the specification demands, such a path is ignored */
    setenv("HOME", "/home/me", 1);
    hardware_cache_path(path, sizeof path);
    assert_string_equal(path, "/home/me/.cache/ralo/hardware.yaml");
    unsetenv("XDG_CACHE_HOME");
    unsetenv("HOME");
    hardware_cache_path(path, sizeof path);
    assert_string_equal(path, "");
    setenv("HOME", "/a/very/long/home/directory/that/does/not/fit/into/the/buffer/given", 1);
    hardware_cache_path(path, sizeof path);
    assert_string_equal(path, "");
}

static void an_estimate_is_a_whole_description(void **state) {
    (void)state;
    sys_info m = {.cpu_name = "Some \"CPU\" \\ 3000", .arch = "x86_64", .n_cores = 4, .memory_total = 1 << 30};
    hardware h, back;
    hardware_estimate(&h, &m, 4);
    assert_int_equal(hardware_write_file(&h, "estimate.yaml"), OK);
    assert_int_equal(hardware_read_file(&back, "estimate.yaml"), OK);
    assert_string_equal(back.name, "Some \"CPU\" \\ 3000, 4 threads");
    hardware one;
    hardware_estimate(&one, &m, 1);
    assert_true(h.matrix[DTYPE_F32] > one.matrix[DTYPE_F32]);
    assert_string_not_equal(h.name, one.name); /* a measurement with other threads is not taken for this one */
    hardware_scale_cores(&one, 0.5);
    assert_float_equal(8 * one.matrix[DTYPE_F32], h.matrix[DTYPE_F32], 1e-6 * h.matrix[DTYPE_F32]);
    m.bf16_matrix = true;
    hardware_estimate(&back, &m, 4);
    assert_true(h.matrix[DTYPE_BF16] == h.matrix[DTYPE_F32] && back.matrix[DTYPE_BF16] > 2 * h.matrix[DTYPE_BF16]);
    assert_true(back.attention[DTYPE_BF16] > 2 * h.attention[DTYPE_BF16]);
    assert_true(back.attention[DTYPE_F16] == back.attention[DTYPE_F32]);
    double core = back.matrix[DTYPE_F32];
    snprintf(m.arch, sizeof m.arch, "aarch64"); /* whose cores are slower */
    hardware_estimate(&back, &m, 4);
    assert_true(back.matrix[DTYPE_F32] < core && back.attention[DTYPE_BF16] > 2 * back.attention[DTYPE_F32]);
}

/* In the unit of the file, so that no digit is added by it. */
static void numbers_are_rounded_as_they_are_written(void **state) {
    (void)state;
    hardware h = *hardware_at(0);
    h.launch_s = 3.65049e-6;
    h.vector[DTYPE_F32] = 16.28049e9;
    h.device_bandwidth = 4230.04e9;
    h.matrix[DTYPE_BF16] = 725312e9;
    hardware_round(&h, 4);
    memstream text;
    hardware_write(&h, memstream_open(&text));
    assert_int_equal(memstream_save(&text, "rounded.yaml"), OK);
    FILE *f = fopen("rounded.yaml", "r");
    char line[256];
    int found = 0;
    while (fgets(line, sizeof line, f))
        found +=
            strncmp(line, "device.launch_us: 3.65 ", 23) == 0 || strncmp(line, "vector.fp32.gflops: 16.28 ", 26) == 0 ||
            strncmp(line, "device.gb_per_s: 4230 ", 22) == 0 || strncmp(line, "matrix.bf16.gflops: 725300 ", 27) == 0;
    fclose(f);
    assert_int_equal(found, 4);
}

/* Numbers of a real measurement are whole, and the description is one that can be read back. How large they are is not
 * for a test to say. */
static void this_machine_can_be_measured(void **state) {
    (void)state;
    hardware h, back;
    const backend *b = backend_under_test();
    measure_options o = {.n_threads = 2, .disk_path = ".", .try_s = 1e-3};
    assert_int_equal(measure_machine(b, &o, &h), OK);
    assert_int_equal(hardware_write_file(&h, "measured.yaml"), OK);
    assert_int_equal(hardware_read_file(&back, "measured.yaml"), OK);
    assert_float_equal(back.matrix[DTYPE_F32], h.matrix[DTYPE_F32], 0);
    assert_true(h.unified == !b->discrete && h.overlap == b->discrete);
    assert_true(h.disk_read > 0 && h.disk_write > 0 && h.launch_s > 0 && h.host_adamw > 0 && h.host_noise > 0);
    assert_true(h.host_adamw8 > 0 && h.host_adamw8 == back.host_adamw8);
    assert_true(h.copy_both <= h.copy_to_device + h.copy_to_host);
    assert_true(b->discrete ? h.host_total > 0 : h.host_total == 0);
    o.disk_path = "no-such-directory";
    assert_int_equal(measure_machine(b, &o, &h), ERR_IO);
    assert_non_null(strstr(error_message(), "--path"));
}

/* The host alone: what the device does stays as it was known. A host that is the device has no such half. */
static void the_host_can_be_measured_again(void **state) {
    (void)state;
    hardware known, h;
    device_info info;
    const backend *b = backend_under_test();
    measure_options o = {.n_threads = 2, .disk_path = "no-such-directory", .known = &known, .try_s = 1e-3};
    assert_int_equal(hardware_load(&known, "h200"), OK);
    known.host_bandwidth = known.host_adamw = known.copy_both = 1;
    assert_int_equal(measure_machine(b, &o, &h), ERR_INPUT);
    assert_non_null(strstr(error_message(), b->discrete ? "of h200" : "whose device is its host"));
    if (!b->discrete) return;
    assert_int_equal(b->describe(0, &info), OK);
    snprintf(known.name, sizeof known.name, "%s", info.name);
    assert_int_equal(measure_machine(b, &o, &h), OK);
    assert_true(h.matrix[DTYPE_BF16] == known.matrix[DTYPE_BF16] && h.disk_read == known.disk_read);
    assert_string_equal(h.source, known.source);
    assert_true(h.host_bandwidth > 1 && h.host_adamw > 1 && h.copy_both > 1 && h.host_total > 0);
}

/* The files of these tests are named without a directory: in one of their own. */
static int enter_test_dir(void **state) { return test_dir_open(state) || chdir(test_dir) ? -1 : 0; }

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(written_descriptions_read_back_to_the_same_bits),
        cmocka_unit_test(built_in_machines_are_plausible),
        cmocka_unit_test(numbers_are_rounded_as_they_are_written),
        cmocka_unit_test(a_name_may_say_how_many_make_a_node),
        cmocka_unit_test(people_call_machines_by_many_names),
        cmocka_unit_test(unknown_names_get_the_list),
        cmocka_unit_test(a_base_needs_only_what_differs),
        cmocka_unit_test(wrong_files_are_refused_by_line_and_key),
        cmocka_unit_test(any_cut_or_changed_file_is_read_or_refused),
        cmocka_unit_test(a_failed_write_leaves_the_old_file),
        cmocka_unit_test(the_cache_lies_where_the_user_says),
        cmocka_unit_test(an_estimate_is_a_whole_description),
        cmocka_unit_test(this_machine_can_be_measured),
        cmocka_unit_test(the_host_can_be_measured_again),
    };
    return cmocka_run_group_tests(tests, enter_test_dir, test_dir_close);
}
