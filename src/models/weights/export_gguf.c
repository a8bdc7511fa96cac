/* export_gguf.c - a model as one GGUF file, which llama.cpp loads.
 *
 * Written to FILE.tmp.<pid>.<n>, flushed, and renamed: FILE is complete or does not exist. Weights come from param_reader.h, a
 * block of rows at a time, as fp32, and are rounded or quantised once; a row is what a block of numbers is cut from, so
 * the rows of a block are done by all threads. The host holds two blocks and the adapters of one layer, as for any export,
 * and the header, whose largest part is the vocabulary. */
#include "weights/export_gguf.h"
#include "weights/gguf_parts.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

enum { BLOCK_ELEMENTS = 1 << 20 };

typedef struct item { /* one tensor of the file */
    size_t param;
    int part;
    gguf_name name;
    gguf_type type;
    bool is_copy; /* of the tied embedding */
} item;

typedef struct exporter {
    export_job *job;
    const net *names;
    const model_config *config;
    gguf_format format;
    item *items;
    size_t n_items;
    gguf_rope_tensor rope[GGUF_ROPE_TENSORS]; /* behind the items */
    int n_rope;
    gguf_header header;
    gguf_writer file;
    pool *threads;
    float *wide; /* (block) */
    void *narrow;
    int64_t block;
    arena memory;
} exporter;

static int64_t columns_of(const net_param *q) { return q->shape.rank == 2 ? q->shape.dim[1] : 1; }

/* ---- the list ---------------------------------------------------------------------------------------------------- */

static status add_item(exporter *x, size_t param, int k, bool is_copy, export_report *report) {
    const net_param *q = &x->names->params[param];
    const param_part *part = &q->parts[k];
    bool is_vector = q->shape.rank == 1;
    int64_t columns = is_vector ? part->n_rows : q->shape.dim[1];
    item *it = &x->items[x->n_items++];
    *it = (item){.param = param, .part = k, .is_copy = is_copy};
    TRY(gguf_tensor_name(x->config, q, part, &it->name));
    if (is_copy) it->name = (gguf_name){"output.weight", GGUF_ROLE_OUTPUT, false};
    it->type = gguf_tensor_type(x->config, x->format, it->name.role, q->unit - 1, is_vector, columns);
    gguf_add_tensor(&x->header, it->name.text, it->type, is_vector ? 0 : part->n_rows, columns);
    report->n_parameters += is_copy ? 0 : (uint64_t)(part->n_rows * columns_of(q));
    x->block = MAX(x->block, columns);
    return OK;
}

static status list_items(exporter *x, export_report *report) {
    size_t n = 1;
    for (size_t i = 0; i < x->names->n_params; i++) n += (size_t)x->names->params[i].n_parts;
    x->items = arena_array(&x->memory, item, n);
    x->block = BLOCK_ELEMENTS;
    for (size_t i = 0; i < x->names->n_params; i++) {
        const net_param *q = &x->names->params[i];
        if (q->adapter != ADAPTER_NONE || q->of_reference || q->of_other_head) continue;
        for (int k = 0; k < q->n_parts; k++) TRY(add_item(x, i, k, false, report));
    }
    if (gguf_needs_output(x->config))
        for (size_t i = 0, n_real = x->n_items; i < n_real; i++)
            if (x->items[i].name.role == GGUF_ROLE_EMBED) TRY(add_item(x, x->items[i].param, 0, true, report));
    x->n_rope = gguf_rope_tensors(x->config, x->rope);
    for (int k = 0; k < x->n_rope; k++) gguf_add_tensor(&x->header, x->rope[k].name, GGUF_TYPE_F32, 0, x->rope[k].n);
    return OK;
}

/* ---- tensors ----------------------------------------------------------------------------------------------------- */

typedef struct rows {
    const exporter *x;
    gguf_type type;
    int64_t columns;
} rows;

static void quantize_row(void *context, int64_t row, int thread) {
    (void)thread;
    const rows *r = context;
    gguf_quantize(r->type, r->x->wide + row * r->columns, r->columns,
                  (char *)r->x->narrow + (size_t)row * gguf_row_bytes(r->type, r->columns));
}

/* n rows of x->wide into x->narrow. */
static status narrow_rows(exporter *x, const item *it, int64_t n, int64_t columns) {
    static const dtype plain[] = {
        [GGUF_TYPE_F32] = DTYPE_F32, [GGUF_TYPE_F16] = DTYPE_F16, [GGUF_TYPE_BF16] = DTYPE_BF16};
    bool is_plain = gguf_layout_of(it->type).block == 1;
    float most = it->type == GGUF_TYPE_F16 ? 65520.0f : is_plain ? INFINITY : GGUF_MOST;
    for (int64_t i = 0; i < n * columns; i++)
        if (!(fabsf(x->wide[i]) < most) && (!is_plain || isfinite(x->wide[i])))
            return ERR(ERR_RUN, "tensor '%s' holds %g, which %s cannot; export with --gguf bf16 or f32", it->name.text,
                       (double)x->wide[i], gguf_layout_of(it->type).name);
    if (is_plain) tensor_convert(x->narrow, plain[it->type], x->wide, DTYPE_F32, (size_t)(n * columns));
    else pool_run(x->threads, quantize_row, &(rows){x, it->type, columns}, n);
    return OK;
}

static status put_rows(exporter *x, size_t tensor, int64_t row, int64_t n, int64_t columns) {
    const item *it = &x->items[tensor];
    size_t bytes = gguf_row_bytes(it->type, columns);
    if (!it->name.interleaved)
        return gguf_writer_put(&x->file, tensor, (uint64_t)row * bytes, x->narrow, (size_t)n * bytes);
    for (int64_t i = 0; i < n; i++)
        TRY(gguf_writer_put(&x->file, tensor, (uint64_t)meta_row(row + i, x->config->head_dim) * bytes,
                            (const char *)x->narrow + (size_t)i * bytes, bytes));
    return OK;
}

/* Gains of Gemma's norms are stored less 1 there, whole here. */
static void add_gain_offset(exporter *x, int64_t n) {
    float offset = model_family_traits(x->config->family)->gain_offset;
    for (int64_t i = 0; i < n && offset != 0; i++) x->wide[i] += offset;
}

static status write_item(exporter *x, size_t tensor) {
    const item *it = &x->items[tensor];
    const net_param *q = &x->names->params[it->param];
    const param_part *part = &q->parts[it->part];
    bool is_vector = q->shape.rank == 1;
    int64_t columns = columns_of(q), block = x->block / columns;
    for (int64_t row = 0; row < part->n_rows; row += block) {
        int64_t n = MIN(block, part->n_rows - row);
        TRY(param_reader_read(&x->job->from, it->param, (part->first_row + row) * columns, n * columns, x->wide));
        if (is_vector) add_gain_offset(x, n);
        TRY(narrow_rows(x, it, is_vector ? 1 : n, is_vector ? n : columns));
        if (is_vector) TRY(gguf_writer_put(&x->file, tensor, (uint64_t)row * 4, x->narrow, (size_t)n * 4));
        else TRY(put_rows(x, tensor, row, n, columns));
    }
    return OK;
}

static status write_rope(exporter *x) {
    for (int k = 0; k < x->n_rope; k++)
        TRY(gguf_writer_put(&x->file, x->n_items + (size_t)k, 0, x->rope[k].factors,
                            (size_t)x->rope[k].n * sizeof *x->rope[k].factors));
    return OK;
}

static status write_tensors(exporter *x) {
    status rc = OK;
    param_reader *from = &x->job->from;
    for (size_t i = 0; i < x->n_items; i++) {
        const item *it = &x->items[i];
        uint64_t hash = from->hash;
        if (it->part == 0) TRY_GOTO(rc, param_reader_begin(from, it->param), fail);
        TRY_GOTO(rc, write_item(x, i), fail);
        if (it->part + 1 == from->m->params[it->param].n_parts) param_reader_end(from, it->param);
        if (it->is_copy) from->hash = hash; /* it was counted before */
    }
    TRY(write_rope(x));
    return x->job->check ? x->job->check(x->job) : OK;
fail:
    param_reader_drop(from);
    return rc;
}

static status write_file(exporter *x, int fd, const char *path) {
    TRY(gguf_writer_open(&x->file, fd, path, &x->header));
    TRY(pool_open(&x->threads, 0, false));
    param_reader *from = &x->job->from;
    x->wide = mem_alloc((size_t)x->block * sizeof *x->wide);
    x->narrow = mem_alloc((size_t)x->block * sizeof(float));
    from->raw = mem_alloc((size_t)x->block * sizeof(float));
    from->block = x->block;
    status rc = write_tensors(x);
    free(x->wide);
    free(x->narrow);
    free(from->raw);
    pool_close(x->threads);
    TRY(rc);
    return gguf_writer_finish(&x->file);
}

/* ---- the file ---------------------------------------------------------------------------------------------------- */

bool export_is_gguf_name(const char *path) { return str_ends_with(path, ".gguf"); }

status gguf_check_path(const char *path) {
    struct stat there;
    if (!export_is_gguf_name(path))
        return ERR(ERR_INPUT, "export --gguf writes one file: found '%s', expected a name that ends in .gguf", path);
    if (lstat(path, &there) != 0) return errno == ENOENT ? OK : ERR(ERR_IO, "export to %s: %s", path, strerror(errno));
    return ERR(ERR_INPUT, "export to %s: %s; remove it, or choose another name", path,
               S_ISDIR(there.st_mode) ? "it is a directory, and GGUF is one file" : "the file exists");
}

status export_check_gguf(const char *setting, const char *path, const model_config *c, const char *tokenizer) {
    gguf_header header;
    error_record why;
    model_source s = {.config = model_main_config(c), .tokenizer = tokenizer && *tokenizer ? tokenizer : "byte"};
    snprintf(s.dir, sizeof s.dir, "%s", path);
    gguf_header_init(&header);
    status rc = gguf_check_path(path);
    if (rc == OK) rc = export_check_place("export to", path);
    if (rc == OK) rc = gguf_check_model(&s.config);
    if (rc == OK) rc = gguf_describe_tokenizer(&header, &s, false);
    gguf_header_fini(&header);
    if (rc == OK) return OK;
    error_take(&why);
    return ERR(rc, "%s: %s", setting, why.message);
}

/* A name that appeared meanwhile is not replaced. */
static status publish(const char *from, const char *to, const char *parent) {
    if (link(from, to) == 0) unlink(from);
    else if (errno == EEXIST || rename(from, to) != 0) /* a file system without links */
        return ERR(ERR_IO, "rename %s to %s: %s", from, to, strerror(errno));
    return dir_sync(parent);
}

static status make_file(exporter *x, const char *path) {
    status rc;
    int fd = -1;
    strbuf temporary;
    error_record why;
    const char *slash = strrchr(path, '/');
    const char *parent = !slash          ? "."
                         : slash == path ? "/"
                                         : arena_format(&x->memory, "%.*s", (int)(slash - path), path);
    strbuf_init(&temporary);
    TRY_GOTO(rc, dir_make(parent), done);
    TRY_GOTO(rc, temporary_make(path, false, &temporary, &fd), done);
    TRY_GOTO(rc, write_file(x, fd, temporary.text), fail);
    TRY_GOTO(rc, publish(temporary.text, path, parent), fail);
    goto done;
fail:
    error_take(&why);
    unlink(temporary.text);
    rc = error_give(&why);
done:
    if (fd >= 0) close(fd);
    strbuf_fini(&temporary);
    return rc;
}

status gguf_write(export_job *job, const model_source *s, const export_options *o, export_report *report) {
    status rc = OK;
    exporter state = {.job = job,
                      .names = job->names ? job->names : job->from.m,
                      .config = &s->config,
                      .format = o->gguf},
             *x = &state;
    static const char *const formats[] = {[GGUF_F16_FILE] = "f16",
                                          [GGUF_BF16_FILE] = "bf16",
                                          [GGUF_F32_FILE] = "f32",
                                          [GGUF_Q8_0_FILE] = "q8_0",
                                          [GGUF_Q4_K_FILE] = "q4_k"};
    arena_init(&x->memory);
    gguf_header_init(&x->header);
    TRY_GOTO(rc, gguf_check_model(x->config), done);
    gguf_describe_model(&x->header, x->config, o->gguf);
    TRY_GOTO(rc, gguf_describe_tokenizer(&x->header, s, o->tokenizer && strcmp(o->tokenizer, "none") == 0), done);
    TRY_GOTO(rc, list_items(x, report), done);
    report->format = formats[o->gguf];
    report->n_files = 1;
    report->n_bytes = gguf_file_bytes(&x->header);
    rc = make_file(x, o->dir);
done:
    gguf_header_fini(&x->header);
    arena_fini(&x->memory);
    return rc;
}
