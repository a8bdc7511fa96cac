/* command_devices.c - ralo devices: what this machine has and how fast its kernels are. */
#include "cli/cli.h"

status command_devices(command_line *l) {
    sys_info m;
    status rc = OK;
    sys_info_get(&m);
    static const dtype types[] = {DTYPE_F32, DTYPE_BF16, DTYPE_F16};
    const backend *b = backend_cpu();
    int threads = l->config.run.threads ? l->config.run.threads : m.n_cores;
    json_t *rates = json_object();
    char a[32], c[32];
    fprintf(stderr, "cpu:0     %s (%s), %d cores, %s of memory, %s free\n", m.cpu_name, m.arch, m.n_cores,
            str_format_bytes(a, m.memory_total), str_format_bytes(c, m.memory_available));
    for (size_t i = 0; i < ARRAY_LENGTH(types) && rc == OK; i++) {
        double rate = 0;
        rc = exec_measure_peak(b, threads, l->config.run.bind, types[i], &rate);
        const char *kernel = b->kernel_name ? b->kernel_name(types[i]) : "";
        if (rc == OK)
            fprintf(stderr, "  matmul  %-5s %8.1f GFLOP/s  (%s, %d threads)\n", dtype_name(types[i]), rate * 1e-9,
                    kernel, threads);
        json_object_set_new(rates, dtype_name(types[i]),
                            json_pack("{s:f, s:s}", "flops_per_second", rate, "kernel", kernel));
    }
    if (rc == OK && l->json) {
        json_t *root = json_pack("{s:s, s:s, s:s, s:i, s:I, s:I, s:O}", "device", "cpu:0", "name", m.cpu_name, "arch",
                                 m.arch, "cores", m.n_cores, "memory_total", (json_int_t)m.memory_total,
                                 "memory_available", (json_int_t)m.memory_available, "matmul", rates);
        json_dumpf(root, stdout, JSON_PRESERVE_ORDER);
        putchar('\n');
        json_decref(root);
    }
    json_decref(rates);
    return rc;
}
