/* command_export.c - ralo export: a run or a checkpoint as a Hugging Face directory. */
#include "cli/cli.h"

#include <string.h>

typedef struct export_arguments {
    const char *from;
    export_options options;
    bool json, help;
} export_arguments;

static status parse_dtype(const char *text, dtype *out) {
    static const dtype types[] = {DTYPE_F32, DTYPE_BF16, DTYPE_F16};
    for (size_t i = 0; i < ARRAY_LENGTH(types); i++)
        if (strcmp(text, dtype_name(types[i])) == 0) {
            *out = types[i];
            return OK;
        }
    return ERR(ERR_INPUT, "export: --dtype: found '%s', expected one of: fp32, bf16, fp16", text);
}

static status parse(export_arguments *a, int argc, char **argv) {
    *a = (export_arguments){.options.type = DTYPE_COUNT};
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--json") == 0) a->json = true;
        else if (strcmp(argv[i], "--help") == 0) a->help = true;
        else if (str_starts_with(argv[i], "--dtype=")) TRY(parse_dtype(argv[i] + strlen("--dtype="), &a->options.type));
        else if (strcmp(argv[i], "--dtype") == 0) {
            if (++i == argc) return ERR(ERR_INPUT, "export: --dtype needs a value");
            TRY(parse_dtype(argv[i], &a->options.type));
        } else if (str_starts_with(argv[i], "--")) {
            return ERR(ERR_INPUT, "export: unknown option '%s'; 'ralo --help' lists them", argv[i]);
        } else if (!a->from) a->from = argv[i];
        else if (!a->options.dir) a->options.dir = argv[i];
        else return ERR(ERR_INPUT, "export: found a third argument '%s', expected a run and a directory", argv[i]);
    }
    if (!a->options.dir && !a->help)
        return ERR(ERR_INPUT, "export: found %s, expected: ralo export RUN|CHECKPOINT DIR",
                   a->from ? "no DIR" : "no RUN and no DIR");
    return OK;
}

static void print_json(const export_arguments *a, const export_report *r) {
    json_t *root = json_pack("{s:s, s:s, s:I, s:s, s:I, s:I, s:i}", "export", a->options.dir, "checkpoint", r->from,
                             "step", (json_int_t)r->step, "dtype", dtype_name(r->type), "parameters",
                             (json_int_t)r->n_parameters, "bytes", (json_int_t)r->n_bytes, "files", r->n_files);
    json_dumpf(root, stdout, JSON_PRESERVE_ORDER);
    putchar('\n');
    json_decref(root);
}

status command_export(int argc, char **argv) {
    export_arguments a;
    export_report r;
    char count[32], size[32];
    TRY(parse(&a, argc, argv));
    if (a.help) {
        puts("ralo export RUN|CHECKPOINT DIR [--dtype fp32|bf16|fp16] [--json]\n"
             "Writes the newest checkpoint of a run, or one checkpoint, as a directory that transformers loads.\n"
             "DIR must be new or empty. Without --dtype the parameters keep the dtype they were trained in.");
        return OK;
    }
    TRY(export_checkpoint(a.from, &a.options, &r));
    fprintf(stderr, "exported  %s (step %lld): %s parameters in %s, %s in %d file%s\nsaved     %s\n", r.from,
            (long long)r.step, str_format_count(count, (double)r.n_parameters), dtype_name(r.type),
            str_format_bytes(size, r.n_bytes), r.n_files, r.n_files == 1 ? "" : "s", a.options.dir);
    if (a.json) print_json(&a, &r);
    return OK;
}
