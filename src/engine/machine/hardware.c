/* hardware.c - read, check and write the description of a machine.
 *
 * hardware.def is the one list of keys: files may use exactly these, and exactly these are written. An invalid file is
 * refused as a whole, with line, key, what was found and what is expected. Maps may be nested or dotted. `base: NAME` starts
 * from a built-in machine; the file then only needs what differs. */
#include "machine/hardware.h"
#include "format/format.h"

#include <ctype.h>
#include <math.h>
#include <stdlib.h>

typedef enum field_kind { KIND_TEXT, KIND_COUNT, KIND_BYTES, KIND_FLAG, KIND_NUMBER } field_kind;
typedef enum field_need { NEED_MAY, NEED_MUST } field_need;
typedef struct field {
    const char *key;
    size_t offset;
    field_kind kind;
    double scale, low, high;
    field_need need;
    const char *what;
} field;

static const field fields[] = {
#define HARDWARE(key, member, kind, scale, low, high, need, what) \
    {key, offsetof(hardware, member), KIND_##kind, scale, low, high, NEED_##need, what},
#include "machine/hardware.def"
#undef HARDWARE
};
enum { N_FIELDS = ARRAY_LENGTH(fields) };

static void *member_of(const hardware *h, const field *f) { return (char *)h + f->offset; }

/* ---- reading ----------------------------------------------------------------------------------------------------- */

typedef struct reader {
    const char *path;
    hardware h;
    int line[N_FIELDS]; /* where each key was given; 0: not yet */
    arena memory;
} reader;

/* Decimal only: strtod would also take hexadecimal, inf and nan. */
static bool number_read(const char *text, double *out) {
    size_t n = strlen(text);
    if (n == 0 || n > 64 || strspn(text, "0123456789.eE+-") != n || !strpbrk(text, "0123456789")) return false;
    char *end;
    *out = strtod(text, &end);
    return *end == 0 && isfinite(*out);
}

static const char *expected(const field *f, char out[160]) {
    switch (f->kind) {
    case KIND_TEXT: snprintf(out, 160, "text of %g to %g bytes", f->low, f->high); break;
    case KIND_COUNT: snprintf(out, 160, "a whole number in [%g, %g]", f->low, f->high); break;
    case KIND_BYTES: snprintf(out, 160, "bytes such as 80G"); break;
    case KIND_FLAG: snprintf(out, 160, "true or false"); break;
    case KIND_NUMBER: snprintf(out, 160, "a number in [%g, %g]", f->low, f->high); break;
    }
    return out;
}

static bool store(hardware *h, const field *f, const yaml_node *n) {
    void *to = member_of(h, f);
    double x;
    uint64_t n_bytes;
    if (n->kind != YAML_SCALAR || (n->quoted && f->kind != KIND_TEXT)) return false;
    switch (f->kind) {
    case KIND_TEXT: {
        size_t length = strlen(n->text);
        if ((double)length < f->low || (double)length > f->high) return false;
        memcpy(to, n->text, length + 1);
        return true;
    }
    case KIND_COUNT:
        if (!number_read(n->text, &x) || x != floor(x) || x < f->low || x > f->high) return false;
        *(int64_t *)to = (int64_t)x;
        return true;
    case KIND_BYTES:
        if (str_parse_bytes(n->text, &n_bytes) != OK) {
            error_clear();
            return false;
        }
        if ((double)n_bytes < f->low || (double)n_bytes > f->high) return false;
        *(uint64_t *)to = n_bytes;
        return true;
    case KIND_FLAG:
        if (strcmp(n->text, "true") != 0 && strcmp(n->text, "false") != 0) return false;
        *(bool *)to = n->text[0] == 't';
        return true;
    case KIND_NUMBER:
        if (!number_read(n->text, &x) || x < f->low || x > f->high) return false;
        *(double *)to = x * f->scale;
        return true;
    }
    return false;
}

static status unknown_key(const reader *r, int line, const char *key) {
    str_nearest nearest = {.wanted = key, .has_groups = true};
    for (size_t i = 0; i < N_FIELDS; i++) str_nearest_try(&nearest, fields[i].key);
    if (*nearest.name)
        return ERR(ERR_INPUT, "%s:%d: unknown key '%.100s' in a hardware description; did you mean '%s'?", r->path,
                   line, key, nearest.name);
    strbuf keys;
    strbuf_init(&keys);
    for (size_t i = 0; i < N_FIELDS; i++) strbuf_printf(&keys, ", %s", fields[i].key);
    status rc = ERR(ERR_INPUT, "%s:%d: unknown key '%.100s' in a hardware description; expected one of: base%s",
                    r->path, line, key, keys.text);
    strbuf_fini(&keys);
    return rc;
}

static bool is_group(const char *key) {
    size_t n = strlen(key);
    for (size_t i = 0; i < N_FIELDS; i++)
        if (strncmp(fields[i].key, key, n) == 0 && fields[i].key[n] == '.') return true;
    return false;
}

static status assign(reader *r, const char *key, const yaml_node *n) {
    size_t i = 0;
    char buf[160];
    while (i < N_FIELDS && strcmp(fields[i].key, key) != 0) i++;
    if (i == N_FIELDS) return unknown_key(r, n->line, key);
    if (r->line[i])
        return ERR(ERR_INPUT, "%s:%d: found '%s' again, expected it once (it is also at line %d)", r->path, n->line,
                   key, r->line[i]);
    if (!store(&r->h, &fields[i], n))
        return ERR(ERR_INPUT, "%s:%d: %s: found '%.100s', expected %s (%s)", r->path, n->line, key,
                   n->kind == YAML_SCALAR ? n->text
                   : n->kind == YAML_MAP  ? "a map"
                                          : "a list",
                   expected(&fields[i], buf), fields[i].what);
    r->line[i] = n->line;
    return OK;
}

static status walk(reader *r, const yaml_node *map, const char *prefix) {
    for (const yaml_node *n = map->first_child; n; n = n->next) {
        const char *key = *prefix ? arena_format(&r->memory, "%s.%s", prefix, n->key) : n->key;
        if (strcmp(key, "base") == 0) continue;
        if (n->kind == YAML_MAP && is_group(key)) TRY(walk(r, n, key));
        else TRY(assign(r, key, n));
    }
    return OK;
}

static const hardware *find_builtin(const char *name) {
    for (size_t i = 0; hardware_at(i); i++)
        if (strcmp(hardware_at(i)->name, name) == 0) return hardware_at(i);
    return NULL;
}

static void list_builtin(strbuf *out) {
    for (size_t i = 0; hardware_at(i); i++) strbuf_printf(out, "%s%s", i ? ", " : "", hardware_at(i)->name);
}

static status unknown_name(const char *where, const char *name) {
    strbuf names;
    str_nearest nearest = {.wanted = name};
    char guess[96] = "";
    for (size_t i = 0; hardware_at(i); i++) str_nearest_try(&nearest, hardware_at(i)->name);
    if (*nearest.name) snprintf(guess, sizeof guess, " did you mean '%.60s'?", nearest.name);
    strbuf_init(&names);
    list_builtin(&names);
    status rc =
        ERR(ERR_INPUT, "%s: hardware '%.100s' is not known;%s expected one of: %s (append x8 for nodes of eight)%s",
            where, name, guess, names.text,
            strcmp(where, "--hardware") == 0 ? ", or the path of a description file (*.yaml)" : "");
    strbuf_fini(&names);
    return rc;
}

/* `base` is read first, wherever it is in the file. */
static status take_base(reader *r, const yaml_node *root, bool *has_base) {
    for (const yaml_node *n = root->first_child; n; n = n->next) {
        if (strcmp(n->key, "base") != 0) continue;
        const char *name = n->kind == YAML_SCALAR ? n->text : "";
        const hardware *base = find_builtin(name);
        if (!base) return unknown_name(arena_format(&r->memory, "%s:%d: base", r->path, n->line), name);
        r->h = *base;
        *has_base = true;
    }
    return OK;
}

static status check_complete(const reader *r) {
    strbuf missing;
    strbuf_init(&missing);
    for (size_t i = 0; i < N_FIELDS; i++)
        if (fields[i].need == NEED_MUST && !r->line[i])
            strbuf_printf(&missing, "%s%s", missing.length ? ", " : "", fields[i].key);
    status rc = OK;
    if (missing.length)
        rc = ERR(ERR_INPUT, "%s: missing keys: %s; add them, or begin with `base: NAME` of a built-in machine", r->path,
                 missing.text);
    strbuf_fini(&missing);
    return rc;
}

static status check_combined(const reader *r) {
    const hardware *h = &r->h;
    double most = h->copy_to_device + h->copy_to_host;
    if (h->copy_both > most * (1 + 1e-9))
        return ERR(ERR_INPUT,
                   "%s: copy.both_gb_per_s is %g, more than to_device and to_host together (%g); expected at most that",
                   r->path, h->copy_both * 1e-9, most * 1e-9);
    return OK;
}

status hardware_read_file(hardware *out, const char *path) {
    status rc;
    yaml_node *root;
    bool has_base = false;
    reader *r = mem_alloc(sizeof *r);
    r->path = path;
    arena_init(&r->memory);
    TRY_GOTO(rc, yaml_read_file(path, &r->memory, &root), done);
    if (root->kind != YAML_MAP) {
        rc = ERR(ERR_INPUT, "%s:%d: found %s, expected a map of keys such as device.memory: 80G", path, root->line,
                 root->kind == YAML_LIST ? "a list" : "a single value");
        goto done;
    }
    TRY_GOTO(rc, take_base(r, root, &has_base), done);
    TRY_GOTO(rc, walk(r, root, ""), done);
    if (!has_base) TRY_GOTO(rc, check_complete(r), done);
    TRY_GOTO(rc, check_combined(r), done);
    *out = r->h;
done:
    arena_fini(&r->memory);
    free(r);
    return rc;
}

static bool looks_like_path(const char *s) {
    return strchr(s, '/') || str_ends_with(s, ".yaml") || str_ends_with(s, ".yml") || str_ends_with(s, ".json");
}

enum { DEVICES_MOST = 4096 }; /* of a node, as hardware.def has it */

/* "8xh100" and "h100x8": eight of them. The name alone goes to `name`. */
static bool split_count(const char *text, char *name, size_t n, int64_t *count) {
    const char *x = strrchr(text, 'x');
    char *end;
    *count = strtoll(text, &end, 10); /* 8xh100, "8 x H100" */
    end += strspn(end, " ");
    if (isdigit((unsigned char)text[0]) && (*end == 'x' || *end == 'X' || *end == '*') && end[1]) {
        if (*count < 1 || *count > DEVICES_MOST || strlen(end + 1) >= n) return false;
        snprintf(name, n, "%s", end + 1 + strspn(end + 1, " "));
        return true;
    }
    if (!x || x == text || (size_t)(x - text) >= n || !isdigit((unsigned char)x[1])) return false;
    *count = strtoll(x + 1, &end, 10);
    if (*end || *count < 1 || *count > DEVICES_MOST) return false;
    snprintf(name, n, "%.*s", (int)(x - text), text);
    return true;
}

/* "NVIDIA H100-80GB" and "h100" become the same: small letters without separators, makers, packages and the unit of memory. */
static void plain_name(const char *name, char *out, size_t n) {
    static const char *const words[] = {"nvidia", "geforce", "tesla", "apple", "amd", "instinct", "hbm2e", "hbm3e",
                                        "hbm3",   "sxm4",    "sxm5",  "sxm6",  "sxm", "pcie",     "gb"};
    size_t length = 0;
    for (const char *c = name; *c && length + 1 < n;) {
        const char *left_out = NULL;
        bool begins = c == name || !isalnum((unsigned char)c[-1]) || isdigit((unsigned char)c[-1]);
        for (size_t i = 0; i < ARRAY_LENGTH(words) && begins && !left_out; i++) {
            size_t k = strlen(words[i]);
            if (strncasecmp(c, words[i], k) == 0 && !isalpha((unsigned char)c[k]) &&
                !(c == name && isdigit((unsigned char)c[k])))
                left_out = c + k;
        }
        if (left_out) c = left_out;
        else if (isalnum((unsigned char)*c)) out[length++] = (char)tolower((unsigned char)*c++);
        else c++;
    }
    out[length] = 0;
}

/* A built-in machine by what people call it; NULL: it is not known. */
static const hardware *find_called(const char *called) {
    static const char *const others[][2] = {{"4090", "rtx-4090"},      {"5090", "rtx-5090"}, {"3090", "rtx-3090"},
                                            {"rtx409024", "rtx-4090"}, {"h10080", "h100"},   {"h200141", "h200"},
                                            {"b200180", "b200"},       {"b200192", "b200"},  {"gb200186", "gb200"},
                                            {"gb200nvl72", "gb200"},   {"l40s48", "l40s"},   {"mi300x192", "mi300x"},
                                            {"m4max", "apple-m4-max"}};
    char plain[64], known[64];
    plain_name(called, plain, sizeof plain);
    for (size_t i = 0; hardware_at(i); i++) {
        plain_name(hardware_at(i)->name, known, sizeof known);
        if (strcmp(plain, known) == 0) return hardware_at(i);
    }
    for (size_t i = 0; i < ARRAY_LENGTH(others); i++)
        if (strcmp(plain, others[i][0]) == 0) return find_builtin(others[i][1]);
    return NULL;
}

/* Cards without links of their own reach each other through the host. */
static void link_over_pcie(hardware *h) {
    size_t n = strlen(h->source);
    h->link_bandwidth = 0.9 * fmin(h->copy_to_device, h->copy_both / 2);
    h->link_latency = 10e-6;
    snprintf(h->source + n, sizeof h->source - n, "; between devices: its copies over PCIe");
}

int64_t hardware_named_count(const char *name_or_path) {
    char name[64];
    int64_t count;
    if (looks_like_path(name_or_path) || find_called(name_or_path)) return 0;
    return split_count(name_or_path, name, sizeof name, &count) && find_called(name) ? count : 0;
}

status hardware_load(hardware *out, const char *name_or_path) {
    char name[sizeof out->name];
    int64_t count;
    if (looks_like_path(name_or_path)) return hardware_read_file(out, name_or_path);
    const hardware *h = find_called(name_or_path);
    bool counted = !h && split_count(name_or_path, name, sizeof name, &count);
    if (counted) h = find_called(name);
    if (!h) return unknown_name("--hardware", name_or_path);
    *out = *h;
    if (counted) {
        out->devices_per_node = count;
        if (count > 1 && out->link_bandwidth == 0) link_over_pcie(out);
        snprintf(out->name, sizeof out->name, "%.50sx%lld", h->name, (long long)count);
    }
    return OK;
}

/* ---- writing ----------------------------------------------------------------------------------------------------- */

/* Names come from the system and may hold anything. */
static void write_text(const char *text, FILE *out) {
    strbuf quoted;
    strbuf_init(&quoted);
    yaml_write_quoted(text, &quoted);
    fputs(quoted.text, out);
    strbuf_fini(&quoted);
}

/* The shortest decimal that is the same number after reading, unit and all; with a power of ten only where it is long. */
static void write_number(double x, double scale, FILE *out) {
    char text[40], plain[40];
    for (int digits = 1; digits <= 17; digits++) {
        snprintf(text, sizeof text, "%.*g", digits, x / scale);
        if (strtod(text, NULL) * scale == x) break;
    }
    snprintf(plain, sizeof plain, "%.0f", x / scale);
    bool whole = x / scale < 1e9 && strtod(plain, NULL) == strtod(text, NULL);
    fputs(whole ? plain : text, out);
}

void hardware_round(hardware *h, int digits) {
    char text[40];
    for (size_t i = 0; i < N_FIELDS; i++) {
        if (fields[i].kind != KIND_NUMBER) continue;
        double *x = member_of(h, &fields[i]);
        snprintf(text, sizeof text, "%.*g", digits, *x / fields[i].scale);
        *x = strtod(text, NULL) * fields[i].scale;
    }
}

void hardware_write(const hardware *h, FILE *out) {
    for (size_t i = 0; i < N_FIELDS; i++) {
        const field *f = &fields[i];
        const void *from = member_of(h, f);
        if (f->kind == KIND_NUMBER && f->need == NEED_MAY && *(const double *)from == 0) continue;
        fprintf(out, "%s: ", f->key);
        switch (f->kind) {
        case KIND_TEXT: write_text(from, out); break;
        case KIND_COUNT: fprintf(out, "%lld", (long long)*(const int64_t *)from); break;
        case KIND_BYTES: fprintf(out, "%llu", (unsigned long long)*(const uint64_t *)from); break;
        case KIND_FLAG: fputs(*(const bool *)from ? "true" : "false", out); break;
        case KIND_NUMBER: write_number(*(const double *)from, f->scale, out); break;
        }
        fprintf(out, "  # %s\n", f->what);
    }
}

status hardware_write_file(const hardware *h, const char *path) {
    memstream text;
    hardware_write(h, memstream_open(&text));
    return memstream_save(&text, path);
}

/* ---- this machine ------------------------------------------------------------------------------------------------ */

void hardware_machine_name(char out[64], const sys_info *machine, int n_threads) {
    snprintf(out, 64, "%.40s, %d thread%s", *machine->cpu_name ? machine->cpu_name : machine->arch, n_threads,
             n_threads == 1 ? "" : "s");
}

void hardware_estimate(hardware *out, const sys_info *machine, int n_threads) {
    /* GFLOP/s of one core with our kernels in fp32: AVX-512 90; NEON 37 and, of cores so new that they have BFMMLA, 67.
     * bf16 gains by BFMMLA 3.3 to 4.0, by AMX 2.8 to 4.7; attention in bf16 by either 1.3 to 2.5. Memory: a dozen
     * cores, or six of the new ones, fill most. */
    bool x86 = strcmp(machine->arch, "x86_64") == 0, new_arm = !x86 && machine->bf16_matrix;
    double core = x86 ? 90e9 : new_arm ? 67e9 : 37e9, all = core * n_threads;
    double memory = new_arm ? 40e9 * MIN(n_threads, 6) : 15e9 * MIN(n_threads, 12); /* bytes/s */
    *out = (hardware){.devices_per_node = 1,
                      .unified = true,
                      .overlap = false,
                      .device_bytes = MAX(machine->memory_total, (uint64_t)1),
                      .host_bytes = MAX(machine->memory_total, (uint64_t)1),
                      .device_bandwidth = memory,
                      .launch_s = 1e-6,
                      .host_bandwidth = memory,
                      .half = {10, 15, 13},
                      .copy_to_device = memory / 2,
                      .copy_to_host = memory / 2,
                      .copy_both = memory / 2,
                      .disk_read = 1e9,
                      .disk_write = 0.5e9};
    for (int t = 0; t < HARDWARE_DTYPES; t++) {
        out->matrix[t] = all;
        out->attention[t] = 0.6 * all;
        out->vector[t] = 0.2 * all;
    }
    if (machine->bf16_matrix) {
        out->matrix[DTYPE_BF16] *= 3.5;
        out->attention[DTYPE_BF16] *= 2.2;
    }
    hardware_machine_name(out->name, machine, n_threads);
    snprintf(out->source, sizeof out->source, "estimated from the number of cores; `ralo devices --measure` measures");
}

void hardware_scale_device(hardware *h, double share) {
    for (int t = 0; t < HARDWARE_DTYPES; t++) {
        h->matrix[t] *= share;
        h->attention[t] *= share;
        h->vector[t] *= share;
    }
    h->matrix_fp8 *= share;
    h->noise_rate *= share;
    h->device_bandwidth *= share;
}

void hardware_scale_cores(hardware *h, double share) {
    double *const rates[] = {&h->host_bandwidth, &h->host_total,     &h->host_adamw,   &h->host_adamw8,
                             &h->host_noise,     &h->copy_to_device, &h->copy_to_host, &h->copy_both};
    hardware_scale_device(h, share);
    for (int t = 0; t < HARDWARE_DTYPES; t++) h->host_matrix[t] *= share;
    for (size_t i = 0; i < ARRAY_LENGTH(rates); i++) *rates[i] *= share;
    h->launch_s /= share;
    h->sum_s /= share;
}

void hardware_cache_path(char *out, size_t n) {
    const char *cache = getenv("XDG_CACHE_HOME"), *home = getenv("HOME");
    int length = 0;
    if (cache && cache[0] == '/') length = snprintf(out, n, "%s/ralo/hardware.yaml", cache);
    else if (home && home[0] == '/') length = snprintf(out, n, "%s/.cache/ralo/hardware.yaml", home);
    if (length <= 0 || (size_t)length >= n) out[0] = 0;
}

/* ---- rates ------------------------------------------------------------------------------------------------------- */

double hardware_product_rate(const hardware *h, dtype t, double m, double n, double k) {
    double most = t != DTYPE_F8E4M3 ? h->matrix[t] : h->matrix_fp8 > 0 ? h->matrix_fp8 : h->matrix[DTYPE_BF16];
    return most * (m / (m + h->half[0])) * (n / (n + h->half[1])) * (k / (k + h->half[2]));
}

double hardware_attention_rate(const hardware *h, dtype t, double row_tokens) {
    return h->attention[t] * row_tokens / (row_tokens + h->attention_half);
}
