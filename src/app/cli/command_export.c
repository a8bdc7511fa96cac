/* command_export.c - ralo export: a run or a checkpoint as a Hugging Face directory, adapters as PEFT's or merged; or as one
 * GGUF file. */
#include "cli/export_card.h"
#include "cli/output.h"

static void print_json(const char *dir, const export_report *r) {
    json_t *root =
        json_pack("{s:o, s:o, s:b, s:I, s:s, s:I, s:I, s:i}", "export", json_name(dir), "checkpoint",
                  json_name(r->from), "adapter", r->is_adapter, "step", (json_int_t)r->step, "dtype", r->format,
                  "parameters", (json_int_t)r->n_parameters, "bytes", (json_int_t)r->n_bytes, "files", r->n_files);
    json_print(root, "export", ALL_DIGITS);
}

status command_export(command_line *l) {
    static const dtype types[] = {DTYPE_F32, DTYPE_BF16, DTYPE_F16}; /* the row of --dtype */
    export_options o = {.dir = l->arguments[1],
                        .gguf =
                            l->gguf < 0 ? GGUF_NONE : (gguf_format)(GGUF_F16_FILE + l->gguf), /* the row of --gguf */
                        .shard_bytes = l->shard_bytes,
                        .type = l->dtype < 0 ? DTYPE_COUNT : types[l->dtype],
                        .merge = l->merge,
                        .heads = (export_heads)l->heads, /* the row of --heads */
                        .adapter = l->generation.adapter,
                        .tokenizer = l->generation.tokenizer};
    export_report r;
    char count[32], size[32];
    TRY(export_from_run(l->arguments[0], &o, &r));
    char step[40] = "";
    if (r.step) snprintf(step, sizeof step, " (step %lld)", (long long)r.step);
    fprintf(stderr, "exported  %s%s: %s%s parameters in %s, %s in %d file%s\nsaved     %s\n", r.from, step,
            r.is_adapter ? "an adapter with " : "", str_format_count(count, (double)r.n_parameters), r.format,
            str_format_bytes(size, r.n_bytes), r.n_files, r.n_files == 1 ? "" : "s", o.dir);
    if (l->json) print_json(o.dir, &r);
    return OK;
}
