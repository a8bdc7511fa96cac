/* options.c - the command line that every command shares, and the way from settings to a request. */
#include "cli/cli.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* One row per flag: where its value goes is decided in apply_flag. */
typedef enum flag_id {
    FLAG_SET,
    FLAG_JSON,
    FLAG_TRACE,
    FLAG_PROGRAM,
    FLAG_RESUME,
    FLAG_PRESET,
    FLAG_DEVICE_MEMORY,
    FLAG_ANNOTATED,
    FLAG_HELP,
    FLAG_HARDWARE,
    FLAG_MEASURE,
    FLAG_PATH,
    FLAG_WORLD
} flag_id;
/* clang-format off */
static const struct {
    const char *name;
    flag_id id;
    bool takes_value;
} flags[] = {
    {"set", FLAG_SET, true},         {"override", FLAG_SET, true},   {"json", FLAG_JSON, false},
    {"trace", FLAG_TRACE, true},     {"program", FLAG_PROGRAM, false}, {"resume", FLAG_RESUME, true},
    {"preset", FLAG_PRESET, true},   {"device-memory", FLAG_DEVICE_MEMORY, true},
    {"show-config", FLAG_ANNOTATED, false}, {"help", FLAG_HELP, false},
    {"hardware", FLAG_HARDWARE, true},      {"measure", FLAG_MEASURE, false},
    {"path", FLAG_PATH, true},              {"world", FLAG_WORLD, true},
};
/* clang-format on */

/* `list` is comma separated. */
static bool listed(const char *list, const char *name) {
    size_t n = strlen(name);
    for (const char *s = list; s; s = strchr(s, ',') ? strchr(s, ',') + 1 : NULL)
        if (strncmp(s, name, n) == 0 && (s[n] == ',' || s[n] == 0)) return true;
    return false;
}

static status set_key(config *c, const char *key, const char *text, const char *where) {
    strbuf b;
    strbuf_init(&b);
    strbuf_printf(&b, "%s=%s", key, text);
    status rc = config_set(c, b.text, where);
    strbuf_fini(&b);
    return rc;
}

#define MOST_RANKS 65536

static status set_world(common_options *o, const char *text) {
    char *end;
    long n = strtol(text, &end, 10);
    if (*text < '0' || *text > '9' || *end || n < 2 || n > MOST_RANKS)
        return ERR(ERR_INPUT, "--world: found '%.100s', expected a whole number of ranks in [2, %d]", text, MOST_RANKS);
    o->world = (int)n;
    return OK;
}

static status apply_flag(common_options *o, flag_id id, const char *text) {
    switch (id) {
    case FLAG_SET: return config_set(&o->config, text, "--set");
    case FLAG_JSON: o->json = true; return OK;
    case FLAG_TRACE: o->trace_path = text; return OK;
    case FLAG_PROGRAM: o->program_text = true; return OK;
    case FLAG_ANNOTATED: o->annotated = true; return OK;
    case FLAG_HELP: o->help = true; return OK;
    case FLAG_RESUME: return set_key(&o->config, "run.resume", text, "--resume");
    case FLAG_PRESET: return set_key(&o->config, "model.preset", text, "--preset");
    case FLAG_HARDWARE: o->hardware = text; return OK;
    case FLAG_MEASURE: o->measure = true, o->measure_path = text; return OK;
    case FLAG_PATH: o->disk_path = text; return OK;
    case FLAG_WORLD: return set_world(o, text);
    case FLAG_DEVICE_MEMORY: return set_key(&o->config, "memory.device", text, "--device-memory");
    }
    return OK;
}

/* Defaults that give way to what was given: a short run gets a short warmup, a model's directory brings its tokenizer. */
static void settle_defaults(config *c) {
    if (!config_was_given(c, "train.warmup")) c->train.warmup = MIN(c->train.warmup, c->train.steps / 10);
    const char *own = arena_format(&c->memory_of_strings, "%s/tokenizer.json", c->model.path);
    bool builtin = str_starts_with(c->data.source, "builtin:");
    if (*c->model.path && !builtin && !config_was_given(c, "data.tokenizer") && access(own, R_OK) == 0)
        c->data.tokenizer = c->model.path;
}

status options_parse(common_options *o, int argc, char **argv, const char *allowed) {
    *o = (common_options){0};
    config_init(&o->config);
    /* The file first, whatever its place on the line: what is typed wins over what is in a file. */
    const char *file = NULL;
    for (int pass = 0; pass < 2; pass++) {
        for (int i = 1; i < argc; i++) {
            if (strncmp(argv[i], "--", 2) != 0) {
                if (file && file != argv[i])
                    return ERR(ERR_INPUT, "%s: two config files given, '%s' and '%s'", argv[0], file, argv[i]);
                file = argv[i];
                continue;
            }
            const char *name = argv[i] + 2, *text = strchr(name, '=');
            size_t length = text ? (size_t)(text - name) : strlen(name), k = 0;
            while (k < ARRAY_LENGTH(flags) && (strlen(flags[k].name) != length || strncmp(flags[k].name, name, length)))
                k++;
            if (k == ARRAY_LENGTH(flags) || !listed(allowed, flags[k].name))
                return ERR(ERR_INPUT, "%s: unknown option '%s'; 'ralo --help' lists them", argv[0], argv[i]);
            if (text) text++;
            if (flags[k].takes_value && !text) {
                if (i + 1 >= argc) return ERR(ERR_INPUT, "%s: %s needs a value", argv[0], argv[i]);
                text = argv[++i];
            }
            /* --measure takes a file where one follows. */
            bool may = flags[k].id == FLAG_MEASURE;
            if (may && !text && i + 1 < argc && strncmp(argv[i + 1], "--", 2) != 0) text = argv[++i];
            if (!flags[k].takes_value && !may && text)
                return ERR(ERR_INPUT, "%s: --%s takes no value, found '%s'", argv[0], flags[k].name, text);
            if (pass == 1) TRY(apply_flag(o, flags[k].id, text));
        }
        if (pass == 0 && file) TRY(config_read_file(&o->config, file));
    }
    settle_defaults(&o->config);
    return config_check(&o->config);
}

void options_fini(common_options *o) { config_fini(&o->config); }

/* ---- settings to request --------------------------------------------------------------------------------------------- */

static status model_from_config(const config *c, model_config *out) {
    const char *name = config_preset(c);
    if (!name) return model_config_read(out, c->model.path);
    const model_config *preset = model_preset_find(name);
    if (!preset) {
        const char *nearest = model_preset_at(0)->name;
        for (size_t i = 0; model_preset_at(i); i++)
            if (str_edit_distance(model_preset_at(i)->name, name) < str_edit_distance(nearest, name))
                nearest = model_preset_at(i)->name;
        return ERR(ERR_INPUT, "model.preset '%s' is not known; did you mean '%s'? 'ralo help presets' lists them", name,
                   nearest);
    }
    *out = *preset;
    const struct {
        int64_t given, *field;
    } overrides[] = {
        {c->model.layers, &out->n_layers},     {c->model.hidden, &out->hidden},     {c->model.heads, &out->n_heads},
        {c->model.kv_heads, &out->n_kv_heads}, {c->model.head_dim, &out->head_dim}, {c->model.ffn, &out->ffn},
        {c->model.vocab, &out->vocab},
    };
    for (size_t i = 0; i < ARRAY_LENGTH(overrides); i++)
        if (overrides[i].given) *overrides[i].field = overrides[i].given;
    if (c->model.tied >= 0) out->tied = c->model.tied;
    return model_config_check(out);
}

/* What the operating system and the rest of the process keep of the machine's memory when memory.device is auto. */
#define HOST_RESERVE (512ull << 20)

/* Rows of a step, rows at once, how often: any two give the third. */
static status batch_from_config(const config *c, plan_request *p) {
    const train_options *t = &c->train;
    p->micro_batch = t->micro_batch;
    p->accumulation = t->accumulation;
    if (!t->batch && !t->micro_batch)
        return ERR(ERR_INPUT, "train.micro_batch: found auto, which needs train.batch, the rows of one step");
    if (!t->batch) return OK;
    if (!t->micro_batch) {
        p->open.micro_batch = true;
        p->micro_batch = t->batch;
        p->accumulation = 1;
        return OK;
    }
    if (!config_was_given(c, "train.accumulation")) p->accumulation = t->batch / t->micro_batch;
    if (p->micro_batch * p->accumulation != t->batch)
        return ERR(ERR_INPUT, "train.batch: found %lld, expected train.micro_batch x train.accumulation = %lld x %lld",
                   (long long)t->batch, (long long)p->micro_batch, (long long)p->accumulation);
    return OK;
}

/* The names of the setting stand in the order of the tiers. */
static tier offload_tier(int setting) { return setting < 0 ? TIER_DEVICE : (tier)setting; }

status request_from_config(const config *c, train_request *out) {
    sys_info machine;
    sys_info_get(&machine);
    const backend *b = backend_cpu();
    int threads = c->run.threads ? c->run.threads : machine.n_cores;
    const train_options *t = &c->train;
    *out = (train_request){
        .data = c->data, .train = *t, .keep = c->run.keep, .n_threads = threads, .bind = c->run.bind, .backend = b};
    if (c->run.resume && c->run.resume[0] && strcmp(c->run.resume, "none") != 0) out->resume = c->run.resume;
    out->data.seed = t->seed;
    out->data.n_threads = threads;
    if (*c->model.path) out->model_dir = c->model.path;
    out->pretrained = out->model_dir && c->model.init != INIT_RANDOM;
    if (*c->run.export_dir) out->export_dir = c->run.export_dir;
    plan_request *p = &out->plan;
    TRY(model_from_config(c, &p->model));
    TRY(batch_from_config(c, p));
    p->seq_len = c->data.seq_len;
    p->open.precision = c->precision < 0;
    p->precision = p->open.precision ? PRECISION_FP32 : (precision)c->precision;
    p->states = c->memory.states;
    p->optimizer = (optimizer_options){.beta1 = (float)t->beta1,
                                       .beta2 = (float)t->beta2,
                                       .eps = (float)t->eps,
                                       .weight_decay = (float)t->weight_decay,
                                       .clip = (float)t->clip};
    p->with_eval = t->eval_rows > 0 || t->problems > 0;
    p->logits_chunk_bytes = c->memory.logits_chunk;
    TRY(recompute_parse(&p->recompute, c->memory.recompute));
    if (c->memory.strategy == STRATEGY_AUTO) {
        p->open.params = c->memory.offload_params < 0;
        p->open.grads = c->memory.offload_grads < 0;
        p->open.states = c->memory.offload_states < 0;
        p->open.activations = c->memory.offload_activations < 0;
    } else if (p->recompute.kind == RECOMPUTE_AUTO) {
        p->recompute.kind = RECOMPUTE_NONE;
    }
    p->offload = (offload_options){.params = offload_tier(c->memory.offload_params),
                                   .grads = offload_tier(c->memory.offload_grads),
                                   .states = offload_tier(c->memory.offload_states),
                                   .activations = offload_tier(c->memory.offload_activations),
                                   .prefetch = c->memory.prefetch,
                                   .bucket_bytes = c->memory.bucket};
    if (*c->memory.nvme_path) out->nvme_path = c->memory.nvme_path;
    p->may_nvme = out->nvme_path != NULL; /* a drive is not filled unasked */
    p->target = (target){.name = b->name, .n_threads = threads, .alignment = 64, .work_bytes = b->work_bytes};
    p->device_limit = c->memory.device;
    if (!p->device_limit)
        p->device_limit =
            machine.memory_available > HOST_RESERVE ? machine.memory_available - HOST_RESERVE : HOST_RESERVE;
    p->host_row_bytes = loader_host_bytes(1, p->seq_len) + train_host_row_bytes(p);
    /* On a CPU both tiers are one memory: what a limit leaves of it is the host's. */
    p->host_limit = machine.memory_available - MIN(machine.memory_available, c->memory.device);
    p->state_copies = t->save_every > 0 ? 1 : 0;
    return OK;
}
