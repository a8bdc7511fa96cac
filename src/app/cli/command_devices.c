/* command_devices.c - ralo devices: what this machine has, how fast it is, and descriptions of machines that are not here.
 *
 * Without options: cores, memory and the rate of a large product. --measure takes less than a minute for the rest and
 * writes it where plan and train find it. --hardware prints a description as a file that --hardware reads. */
#include "cli/output.h"
#include "measure/measure.h"

#include <errno.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static const dtype types[] = {DTYPE_F32, DTYPE_BF16, DTYPE_F16};

static status print_rates(const backend *b, const backend_options *o, json_t *rates, FILE *out) {
    for (size_t i = 0; i < ARRAY_LENGTH(types); i++) {
        double rate = 0;
        TRY(measure_peak(b, o, types[i], INFINITY, &rate));
        const char *kernel = b->kernel_name ? b->kernel_name(types[i]) : "";
        fprintf(out, "  matmul  %-5s %8.1f GFLOP/s  (%s", dtype_name(types[i]), rate * 1e-9, kernel);
        if (!b->discrete) fprintf(out, ", %d thread%s", o->n_threads, o->n_threads == 1 ? "" : "s");
        fputs(")\n", out);
        json_object_set_new(rates, dtype_name(types[i]),
                            json_pack("{s:f, s:s}", "flops_per_second", rate, "kernel", kernel));
    }
    return OK;
}

static void print_measured(const hardware *h, FILE *out) {
    fprintf(out, "  %-10s %10s %10s %10s\n", "GFLOP/s", "matmul", "attention", "elements");
    for (size_t i = 0; i < ARRAY_LENGTH(types); i++)
        fprintf(out, "  %-10s %10.1f %10.1f %10.1f\n", dtype_name(types[i]), h->matrix[types[i]] * 1e-9,
                h->attention[types[i]] * 1e-9, h->vector[types[i]] * 1e-9);
    if (h->matrix_fp8 > 0) fprintf(out, "  %-10s %10.1f\n", "fp8", h->matrix_fp8 * 1e-9);
    fprintf(out, "  half of that rate at m %.0f, n %.0f, k %.0f\n", h->half[0], h->half[1], h->half[2]);
    if (h->attention_half > 0)
        fprintf(out, "  attention reaches half of its rate at %.0f tokens per sequence\n", h->attention_half);
    fprintf(out, "  memory     %8.2f GB/s on the device, %.2f GB/s on the host", h->device_bandwidth * 1e-9,
            h->host_bandwidth * 1e-9);
    if (h->host_total > 0) fprintf(out, ", %.2f with copies at the same time", h->host_total * 1e-9);
    fprintf(out, "\n");
    fprintf(out, "  copies     %8.2f GB/s to the device, %.2f to the host, %.2f both at the same time\n",
            h->copy_to_device * 1e-9, h->copy_to_host * 1e-9, h->copy_both * 1e-9);
    fprintf(out, "  AdamW      %8.3f G parameters/s from the host's caches", h->host_adamw * 1e-9);
    if (h->host_adamw8 > 0) fprintf(out, ", %.3f with 8-bit states", h->host_adamw8 * 1e-9);
    fprintf(out, "; stochastic rounding %.3f G numbers/s\n", h->host_noise * 1e-9);
    if (h->host_matrix[DTYPE_F32] > 0)
        fprintf(out, "  cores      %8.1f GFLOP/s of matmul in fp32, %.1f in bf16, for layers placed on cpu\n",
                h->host_matrix[DTYPE_F32] * 1e-9, h->host_matrix[DTYPE_BF16] * 1e-9);
    fprintf(out, "  disk       %8.2f GB/s read, %.2f GB/s write\n", h->disk_read * 1e-9, h->disk_write * 1e-9);
    fprintf(out, "  per op     %8.2f us\n", h->launch_s * 1e6);
}

/* One line that grows: half a minute without output looks like a program that hangs. */
static void print_part(void *context, const char *part) {
    bool *started = context;
    fprintf(stderr, "%s%s", *started ? ", " : "measuring ", part);
    fflush(stderr);
    *started = true;
}

/* Measuring takes half a minute: a file that cannot be written is refused before. file_replace writes beside it. */
static status check_target(const char *path, bool is_named) {
    struct stat info;
    char dir[4096];
    snprintf(dir, sizeof dir, "%s", path);
    char *slash = strrchr(dir, '/');
    if (!slash) snprintf(dir, sizeof dir, ".");
    else slash[slash == dir] = 0;
    if (!is_named)
        TRY(dir_make(dir)); /* our own cache directory; the directory of a file that the user named must exist */
    if (stat(path, &info) == 0 && S_ISDIR(info.st_mode))
        return ERR(ERR_INPUT, "devices --measure: '%s' is a directory, expected the name of a file", path);
    if (access(dir, W_OK | X_OK) != 0)
        return ERR(ERR_IO, "devices --measure: cannot create %s: %s; name a file in a directory that can be written",
                   path, strerror(errno));
    return OK;
}

static status measure(const command_line *l, const backend *b, const backend_options *with) {
    hardware h, known;
    sys_cores before, after;
    char path[4096], contention[128];
    bool started = false;
    if (l->measure_path && (!*l->measure_path || strlen(l->measure_path) >= sizeof path))
        return ERR(ERR_INPUT, "devices --measure: found a path of %zu bytes, expected 1 to %zu",
                   strlen(l->measure_path), sizeof path - 1);
    if (l->measure_path) snprintf(path, sizeof path, "%s", l->measure_path);
    else hardware_cache_path(path, sizeof path);
    if (!*path)
        return ERR(ERR_INPUT, "devices --measure: neither XDG_CACHE_HOME nor HOME is set; name a file: --measure FILE");
    measure_options o = {.n_threads = with->n_threads,
                         .bind = with->bind,
                         .gpu = with->gpu,
                         .disk_path = l->disk_path ? l->disk_path : ".",
                         .on_part = print_part,
                         .context = &started};
    if (l->host_only) {
        if (access(path, F_OK) != 0)
            return ERR(ERR_INPUT,
                       "devices --measure --host-only: %s: %s; it needs the rest of a measurement: run it once "
                       "without --host-only",
                       path, strerror(errno));
        TRY(hardware_read_file(&known, path));
        o.known = &known;
    }
    TRY(check_target(path, l->measure_path != NULL));
    sys_cores_get(&before);
    status rc = measure_machine(b, &o, &h);
    sys_cores_get(&after);
    if (started) fprintf(stderr, "\n");
    TRY(rc);
    print_measured(&h, report_stream(l->json));
    fflush(stdout);
    sys_contention taken = sys_contention_between(&before, &after);
    if (*sys_contention_text(contention, &taken))
        fprintf(stderr, "warning: %s during the measurement; measure again when they are idle\n", contention);
    TRY(hardware_write_file(&h, path));
    fprintf(stderr, "written   %s%s\n", path, l->measure_path ? "" : "; plan and train use it from now on");
    return OK;
}

static status show(const command_line *l) {
    hardware h;
    TRY(hardware_load(&h, l->hardware));
    hardware_write(&h, stdout);
    return OK;
}

/* One device: its line, its rates, and the same as JSON. */
static status show_device(const backend *b, const backend_options *o, const sys_info *m, json_t *devices, FILE *out) {
    char total[32], free_bytes[32];
    json_t *rates = json_object();
    json_t *root = NULL;
    if (b->discrete) {
        device_info d;
        char name[32];
        status rc = b->describe(o->gpu.index, &d);
        if (rc != OK) json_decref(rates);
        TRY(rc);
        snprintf(name, sizeof name, "cuda:%d", o->gpu.index);
        fprintf(
            out,
            "%-9s %s (compute capability %d.%d), %d multiprocessors, %s of memory, %s free; driver for CUDA %d.%d\n",
            name, d.name, d.capability / 10, d.capability % 10, d.n_multiprocessors, str_format_bytes(total, d.memory),
            str_format_bytes(free_bytes, d.free_memory), d.driver / 1000, d.driver % 1000 / 10);
        root = json_pack("{s:s, s:s, s:i, s:i, s:I, s:I, s:o}", "device", name, "name", d.name, "capability",
                         d.capability, "multiprocessors", d.n_multiprocessors, "memory_total", (json_int_t)d.memory,
                         "memory_available", (json_int_t)d.free_memory, "matmul", rates);
    } else {
        fprintf(out, "cpu:0     %s (%s), %d cores, %s of memory, %s free\n", m->cpu_name, m->arch, m->n_cores,
                str_format_bytes(total, m->memory_total), str_format_bytes(free_bytes, m->memory_available));
        root = json_pack("{s:s, s:s, s:s, s:i, s:I, s:I, s:o}", "device", "cpu:0", "name", m->cpu_name, "arch", m->arch,
                         "cores", m->n_cores, "memory_total", (json_int_t)m->memory_total, "memory_available",
                         (json_int_t)m->memory_available, "matmul", rates);
    }
    json_array_append_new(devices, root);
    return print_rates(b, o, rates, out);
}

status command_devices(command_line *l) {
    sys_info m;
    const backend *b;
    const config *c = &l->config;
    if (l->hardware && l->json)
        return ERR(ERR_INPUT, "devices: --hardware prints a file in YAML and --json one JSON object; leave one out");
    if (l->hardware) return show(l);
    if (l->host_only && !command_line_given(l, "measure"))
        return ERR(ERR_INPUT, "devices: --host-only needs --measure; give both");
    if (l->disk_path && !command_line_given(l, "measure"))
        return ERR(ERR_INPUT, "devices: --path needs --measure, which measures the disk of DIR; give both");
    sys_info_get(&m);
    int gpu = MAX(c->run.gpu, 0);
    TRY(backend_choose(c->run.device, gpu, &b));
    backend_options o = {.n_threads = c->run.threads ? c->run.threads : m.n_cores,
                         .bind = c->run.bind,
                         .gpu = {.index = gpu, .tf32 = c->run.tf32}};
    json_t *devices = json_array();
    bool measures = command_line_given(l, "measure"); /* then that is what was asked for */
    FILE *out = report_stream(l->json || measures);
    status rc = show_device(backend_cpu(), &o, &m, devices, out);
    if (rc == OK && b->discrete) rc = show_device(b, &o, &m, devices, out);
    if (rc == OK && measures) rc = measure(l, b, &o);
    if (rc == OK && l->json) {
        /* The device that a run would use comes first, at the top level; the list has every device. */
        json_t *root = json_deep_copy(json_array_get(devices, json_array_size(devices) - 1));
        json_object_set(root, "devices", devices);
        json_print(root, "devices", ALL_DIGITS);
    }
    json_decref(devices);
    return rc;
}
