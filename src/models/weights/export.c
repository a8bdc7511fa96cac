/* export.c - write a trained model as a directory that transformers loads, or its adapters as one that PEFT loads.
 *
 * Everything goes to DIR.tmp.<pid>.<n> beside DIR, is flushed, and is renamed: DIR is complete or does not exist. The
 * next export to the same DIR removes leftovers of a killed one.
 * Weights come from param_reader.h, a block of rows at a time, always as fp32, and are rounded once to the requested
 * dtype. A number that fp16 cannot hold is refused by name: it would be written as infinity. */
#include "weights/adapter.h"
#include "weights/export_job.h"
#include "weights/params.h"
#include "weights/pissa.h"

#include <dirent.h>
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#define SHARD_BYTES 5000000000ull /* what transformers 4 calls 5GB */
enum { BLOCK_ELEMENTS = 1 << 20, TILE = 16 };

/* ---- weights ----------------------------------------------------------------------------------------------------- */

typedef struct item { /* one tensor of the files */
    size_t param;
    int part, shard;
} item;

typedef struct exporter {
    export_job *job;
    param_reader *from;
    dtype type;
    const char *dir; /* the temporary one */
    item *items;
    safetensors_entry *entries;
    size_t n_items;
    int n_shards;
    float *wide, *transposed;
    void *narrow;
    int64_t block;
    export_report *report;
    arena memory;
} exporter;

/* Adapters alone, all but them, or everything where there are none; heads after the first where they are asked for; never the
 * frozen copy that a task compares with. */
static bool is_written(const exporter *x, const net_param *q) {
    if (q->of_reference || (q->of_other_head && x->job->heads == EXPORT_FIRST_HEAD)) return false;
    return x->job->kind == EXPORT_ADAPTER ? q->beside_base : q->adapter == ADAPTER_NONE;
}

/* As they are called in the output. */
static const net *names_of(const exporter *x) { return x->job->names ? x->job->names : x->from->m; }

static void list_items(exporter *x, uint64_t shard_bytes) {
    const net *m = names_of(x);
    size_t n = 0;
    for (size_t i = 0; i < m->n_params; i++) n += (size_t)m->params[i].n_parts;
    x->items = arena_array(&x->memory, item, n);
    x->entries = arena_array(&x->memory, safetensors_entry, n);
    uint64_t in_shard = 0;
    x->block = BLOCK_ELEMENTS;
    for (size_t i = 0; i < m->n_params; i++) {
        const net_param *q = &m->params[i];
        const shape *s = &q->shape;
        if (!is_written(x, q)) continue;
        if (s->rank == 2) x->block = MAX(x->block, s->dim[1]);
        for (int k = 0; k < q->n_parts; k++) {
            int64_t rows = q->parts[k].n_rows;
            shape out = s->rank == 1 ? SHAPE(rows) : q->transposed ? SHAPE(s->dim[1], rows) : SHAPE(rows, s->dim[1]);
            uint64_t n_bytes = shape_bytes(&out, x->type);
            if (in_shard > 0 && in_shard + n_bytes > shard_bytes) {
                x->n_shards++;
                in_shard = 0;
            }
            in_shard += n_bytes;
            x->report->n_bytes += n_bytes;
            x->report->n_parameters += (uint64_t)shape_count(&out);
            const char *name = x->job->kind == EXPORT_ADAPTER
                                   ? arena_format(&x->memory, "base_model.model.%s", q->parts[k].file_name)
                                   : q->parts[k].file_name;
            x->entries[x->n_items] = (safetensors_entry){name, x->type, out};
            x->items[x->n_items++] = (item){i, k, x->n_shards};
        }
    }
    x->report->n_files = ++x->n_shards;
}

static const char *shard_name(exporter *x, int shard) {
    if (x->job->kind == EXPORT_ADAPTER) return "adapter_model.safetensors";
    if (x->job->heads == EXPORT_META) return "consolidated.safetensors";
    if (x->n_shards == 1) return "model.safetensors";
    return arena_format(&x->memory, "model-%05d-of-%05d.safetensors", shard + 1, x->n_shards);
}

/* Rounds n elements into x->narrow. */
static status narrow_elements(exporter *x, const float *from, int64_t n, const char *name) {
    if (x->type == DTYPE_F16)
        for (int64_t i = 0; i < n; i++)
            if (isfinite(from[i]) && fabsf(from[i]) >= 65520.0f) /* from here on fp16 rounds to infinity */
                return ERR(ERR_RUN, "tensor '%s' holds %g, which fp16 cannot; export it as bf16 or fp32", name,
                           (double)from[i]);
    tensor_convert(x->narrow, x->type, from, DTYPE_F32, (size_t)n);
    return OK;
}

/* (n, columns) -> (columns, n), in tiles so that both sides stay in the cache. */
static void transpose(float *out, const float *in, int64_t n, int64_t columns) {
    for (int64_t r = 0; r < n; r += TILE)
        for (int64_t c = 0; c < columns; c += TILE)
            for (int64_t j = c; j < MIN(c + TILE, columns); j++)
                for (int64_t i = r; i < MIN(r + TILE, n); i++) out[j * n + i] = in[i * columns + j];
}

/* n rows from x->narrow, each to its place in Meta's order. */
static status put_interleaved(exporter *x, safetensors_writer *w, size_t entry, const param_part *part, int64_t row,
                              int64_t n, int64_t columns) {
    size_t row_bytes = (size_t)columns * dtype_bytes(x->type);
    for (int64_t i = 0; i < n; i++)
        TRY(safetensors_writer_put(w, entry, (uint64_t)meta_row(row + i, part->interleaved) * row_bytes,
                                   (const char *)x->narrow + (size_t)i * row_bytes, row_bytes));
    return OK;
}

static status write_item(exporter *x, safetensors_writer *w, size_t entry, const item *it) {
    const net_param *q = &names_of(x)->params[it->param];
    const param_part *part = &q->parts[it->part];
    const shape *s = &q->shape;
    int64_t columns = s->rank == 2 ? s->dim[1] : 1, block = x->block / columns;
    size_t width = dtype_bytes(x->type);
    bool transposed = q->transposed && s->rank == 2;
    for (int64_t row = 0; row < part->n_rows; row += block) {
        int64_t n = MIN(block, part->n_rows - row);
        TRY(param_reader_read(x->from, it->param, (part->first_row + row) * columns, n * columns, x->wide));
        if (transposed) transpose(x->transposed, x->wide, n, columns);
        TRY(narrow_elements(x, transposed ? x->transposed : x->wide, n * columns, part->file_name));
        if (part->interleaved) {
            TRY(put_interleaved(x, w, entry, part, row, n, columns));
            continue;
        }
        if (!transposed) {
            TRY(safetensors_writer_put(w, entry, (uint64_t)(row * columns) * width, x->narrow,
                                       (size_t)(n * columns) * width));
            continue;
        }
        for (int64_t c = 0; c < columns; c++)
            TRY(safetensors_writer_put(w, entry, (uint64_t)(c * part->n_rows + row) * width,
                                       (const char *)x->narrow + (size_t)(c * n) * width, (size_t)n * width));
    }
    return OK;
}

static status write_shard(exporter *x, size_t first, size_t end) {
    static const char *const metadata[] = {"format", "pt", NULL}; /* transformers refuses files without it */
    status rc = OK;
    safetensors_writer w;
    const char *path = arena_format(&x->memory, "%s/%s", x->dir, shard_name(x, x->items[first].shard));
    TRY(safetensors_writer_open(&w, path, x->entries + first, end - first, metadata));
    for (size_t i = first; i < end; i++) {
        const item *it = &x->items[i];
        if (it->part == 0) TRY_GOTO(rc, param_reader_begin(x->from, it->param), fail);
        TRY_GOTO(rc, write_item(x, &w, i - first, it), fail);
        if (it->part + 1 == x->from->m->params[it->param].n_parts) param_reader_end(x->from, it->param);
    }
    return safetensors_writer_close(&w);
fail:
    param_reader_drop(x->from);
    safetensors_writer_abort(&w);
    return rc;
}

static status write_index(exporter *x) {
    json_t *map = json_object();
    for (size_t i = 0; i < x->n_items; i++)
        json_object_set_new(map, x->entries[i].name, json_string(shard_name(x, x->items[i].shard)));
    json_t *root = json_pack("{s:{s:I, s:I}, s:o}", "metadata", "total_parameters", (json_int_t)x->report->n_parameters,
                             "total_size", (json_int_t)x->report->n_bytes, "weight_map", map);
    status rc = json_write_file(arena_format(&x->memory, "%s/model.safetensors.index.json", x->dir), root);
    json_decref(root);
    return rc;
}

static status write_weights(exporter *x, uint64_t shard_bytes) {
    list_items(x, shard_bytes ? shard_bytes : SHARD_BYTES);
    x->wide = mem_alloc((size_t)x->block * sizeof *x->wide);
    x->transposed = mem_alloc((size_t)x->block * sizeof *x->transposed);
    x->narrow = mem_alloc((size_t)x->block * sizeof(float));
    x->from->raw = mem_alloc((size_t)x->block * sizeof(float));
    x->from->block = x->block;
    status rc = OK;
    for (size_t first = 0, end; first < x->n_items && rc == OK; first = end) {
        for (end = first; end < x->n_items && x->items[end].shard == x->items[first].shard;) end++;
        rc = write_shard(x, first, end);
    }
    if (rc == OK && x->n_shards > 1) rc = write_index(x);
    free(x->wide);
    free(x->transposed);
    free(x->narrow);
    free(x->from->raw);
    return rc;
}

/* ---- the other files --------------------------------------------------------------------------------------------- */

static status write_generation(const exporter *x, const json_t *description, arena *memory) {
    json_t *generation = export_aligned(description, "generation");
    status rc =
        generation ? json_write_file(arena_format(memory, "%s/generation_config.json", x->dir), generation) : OK;
    json_decref(generation);
    return rc;
}

/* Adapters bring the end token that they were trained with, where their base has another one: PEFT does not read it,
 * ralo does. */
static status write_adapter_config(const exporter *x, const json_t *description, arena *memory) {
    const char *base = json_string_value(json_object_get(json_object_get(description, "base"), "path"));
    json_t *config = adapter_config_to_json(model_of(&x->from->m->source), &x->job->lora, base);
    status rc = json_write_file(arena_format(memory, "%s/adapter_config.json", x->dir), config);
    json_decref(config);
    return rc == OK && export_eos_changes(description) ? write_generation(x, description, memory) : rc;
}

static status write_config(const exporter *x, const json_t *description, arena *memory) {
    static const char *const names[] = {[DTYPE_F32] = "float32", [DTYPE_BF16] = "bfloat16", [DTYPE_F16] = "float16"};
    if (x->job->heads == EXPORT_META) {
        json_t *params;
        TRY(model_config_to_meta(model_of(&names_of(x)->source), &params));
        status written = json_write_file(arena_format(memory, "%s/params.json", x->dir), params);
        json_decref(params);
        return written;
    }
    json_t *config = export_aligned(description, "config");
    if (x->job->heads == EXPORT_FIRST_HEAD) json_object_del(config, "n_future_tokens");
    json_object_set_new(config, "dtype", json_string(names[x->type]));
    json_object_set_new(config, "torch_dtype", json_string(names[x->type])); /* transformers 4 */
    status rc = json_write_file(arena_format(memory, "%s/config.json", x->dir), config);
    json_decref(config);
    TRY(rc);
    return write_generation(x, description, memory);
}

/* ---- the directory ----------------------------------------------------------------------------------------------- */

/* Can `dir`, which does not exist, be made? Only making one tells: root passes every permission check, and some file
 * systems refuse anyway. A test directory is made in the nearest existing directory above and removed at once. */
status export_check_place(const char *what, const char *dir) {
    status rc = OK;
    int fd = -1;
    strbuf place, probe;
    strbuf_init(&place);
    strbuf_init(&probe);
    dir_nearest(dir, &place);
    const size_t n_above = place.length;
    strbuf_add(&place, "/.ralo");
    if (temporary_make(place.text, true, &probe, &fd) == OK) {
        rmdir(probe.text);
        close(fd);
    } else {
        rc = ERR(ERR_IO, "%s %s: cannot create the directory in %.*s: %s", what, dir, (int)n_above, place.text,
                 strerror(errno));
    }
    strbuf_fini(&place);
    strbuf_fini(&probe);
    return rc;
}

status export_check_dir(const char *setting, const char *dir) {
    if (!*dir) return ERR(ERR_INPUT, "export: the directory's name is empty");
    if (str_ends_with(dir, ".safetensors"))
        return ERR(
            ERR_INPUT,
            "%s: found %s, expected a directory, which gets config.json, tokenizer and model.safetensors; leave out "
            "the ending, or end it in .gguf for one file",
            setting ? setting : "export", dir);
    DIR *d = opendir(dir);
    if (!d && errno == ENOENT) return export_check_place("export to", dir);
    if (!d) return ERR(ERR_IO, "export to %s: %s", dir, strerror(errno));
    status rc = OK;
    for (struct dirent *entry; rc == OK && (entry = readdir(d));)
        if (strcmp(entry->d_name, ".") != 0 && strcmp(entry->d_name, "..") != 0)
            rc = setting
                     ? ERR(ERR_INPUT, "%s: %s holds files already (%s); remove it, choose another %s, or set %s=none",
                           setting, dir, entry->d_name, setting, setting)
                     : ERR(ERR_INPUT, "export to %s: it holds files already (%s), expected a new or an empty directory",
                           dir, entry->d_name);
    closedir(d);
    return rc;
}

/* Are all parameters of the checkpoint written? Then what was read has the run's hash. */
static bool writes_all(const exporter *x) {
    const net *m = x->from->m;
    bool all = x->job->kind == EXPORT_MODEL && x->from->base.r;
    for (size_t i = 0; i < m->n_params && all; i++) all = m->params[i].of_reference || is_written(x, &m->params[i]);
    return all;
}

static status fill(exporter *x, const export_options *o) {
    const export_job *j = x->job;
    bool adapter = j->kind == EXPORT_ADAPTER;
    x->from->hash_stored = writes_all(x);
    TRY(adapter ? write_adapter_config(x, j->description, &x->memory) : write_config(x, j->description, &x->memory));
    bool aligns = j->tokenizer && !j->is_given;
    if (aligns) TRY(export_write_tokenizer(j->description, j->tokenizer, x->dir, &x->memory));
    else if (j->tokenizer) TRY(tokenizer_files_write(j->tokenizer, x->dir));
    export_say_aligned(j->description, aligns);
    TRY(write_weights(x, adapter || j->heads == EXPORT_META ? UINT64_MAX : o->shard_bytes));
    if (j->check) TRY(j->check(j));
    TRY(export_write_card(j, o, x->report, x->dir, x->from->hash_stored ? params_hash_finish(x->from->stored) : 0));
    TRY(dir_sync(x->dir));
    return OK;
}

static status publish(const char *from, const char *to, const char *parent) {
    if (rename(from, to) != 0) return ERR(ERR_IO, "rename %s to %s: %s", from, to, strerror(errno));
    TRY(dir_sync(parent));
    return OK;
}

status export_write(export_job *job, const export_options *o, export_report *report) {
    exporter state = {.job = job, .from = &job->from, .type = report->type, .report = report}, *x = &state;
    report->format = dtype_name(report->type);
    status rc = OK;
    error_record why;
    arena_init(&x->memory);
    size_t length = strlen(o->dir);
    while (length > 1 && o->dir[length - 1] == '/') length--;
    const char *dir = arena_format(&x->memory, "%.*s", (int)length, o->dir), *slash = strrchr(dir, '/');
    const char *parent = !slash ? "." : slash == dir ? "/" : arena_format(&x->memory, "%.*s", (int)(slash - dir), dir);
    int lock = -1;
    strbuf temporary;
    strbuf_init(&temporary);
    TRY_GOTO(rc, export_check_dir(NULL, dir), done);
    TRY_GOTO(rc, dir_make(parent), done);
    TRY_GOTO(rc, temporary_make(dir, true, &temporary, &lock), done);
    x->dir = temporary.text;
    TRY_GOTO(rc, fill(x, o), fail);
    TRY_GOTO(rc, publish(x->dir, dir, parent), fail);
    goto done;
fail:
    error_take(&why);
    if (dir_remove_all(x->dir) != OK) log_warn("%s", error_message());
    rc = error_give(&why);
done:
    if (lock >= 0) close(lock);
    strbuf_fini(&temporary);
    arena_fini(&x->memory);
    return rc;
}

status export_choose_tokenizer(const export_options *o, const tokenizer_files *kept, tokenizer_files *read,
                               const tokenizer_files **out) {
    *out = kept;
    if (!o->tokenizer) return OK;
    *out = strcmp(o->tokenizer, "none") == 0 ? NULL : read;
    if (!*out) return OK;
    if (access(o->tokenizer, R_OK) != 0)
        return ERR(ERR_INPUT, "--tokenizer %s: %s, expected a directory with tokenizer.json, or none", o->tokenizer,
                   strerror(errno));
    return tokenizer_files_read(read, o->tokenizer);
}

/* The job writes what others can use over the original base. */
status export_convert_pissa(export_job *j, struct pissa *convert, const model_config *c, const char *from) {
    lora_options o;
    lora_base base;
    TRY(lora_from_description(j->description, c, from, &o, &base));
    TRY(pissa_open(convert, c, &j->lora, &(param_origin){.dir = base.dir, .seed = base.seed}));
    TRY(pissa_check_base(convert, &base, from));
    convert->adapters = j->from;
    convert->adapters.raw = convert->base.raw, convert->adapters.block = convert->base.block;
    j->from.m = &convert->wide, j->from.g = &convert->wide_g, j->from.pissa = convert;
    j->lora = lora_exported(&j->lora);
    return OK;
}

/* Adapters keep the precision of what is trained: that of their masters. */
static dtype trained_type(const plan *p) {
    precision q = p->request.choice.precision;
    return p->request.lora.rank && precision_master(q) ? DTYPE_F32 : precision_compute(q);
}

status export_running(exec *e, const plan *p, const char *description, const tokenizer_files *tokenizer,
                      const export_options *o, export_report *out) {
    bool lora = p->request.lora.rank > 0;
    *out = (export_report){.type = o->type == DTYPE_COUNT ? trained_type(p) : o->type, .is_adapter = lora};
    json_t *root = json_loads(description, JSON_REJECT_DUPLICATES, NULL);
    ASSERT(root);
    param_place here = {.e = e, .p = p};
    export_job j = {.kind = lora ? EXPORT_ADAPTER : EXPORT_MODEL,
                    .from = {.m = &p->net, .g = &p->program, .base = here, .adapters = here},
                    .lora = p->request.lora,
                    .description = root,
                    .is_given = o->tokenizer != NULL};
    tokenizer_files read = {0};
    pissa convert = {0};
    status rc = export_choose_tokenizer(o, tokenizer, &read, &j.tokenizer);
    if (rc == OK && j.lora.pissa) rc = export_convert_pissa(&j, &convert, model_of(&p->request.source), "the run");
    if (rc == OK) rc = export_write(&j, o, out);
    if (convert.threads) pissa_close(&convert);
    tokenizer_files_fini(&read);
    json_decref(root);
    return rc;
}
