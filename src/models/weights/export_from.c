/* export_from.c - export without a running program: a checkpoint as it is, adapters merged into their base, or any model as
 * one GGUF file. */
#include "weights/adapter.h"
#include "weights/export_gguf.h"
#include "weights/export_job.h"
#include "weights/match.h"
#include "weights/params.h"
#include "weights/pissa.h"
#include "weights/source.h"

#include <stdlib.h>
#include <unistd.h>

/* The model's parameters and their names; nothing of this program runs, so its sizes are the smallest. */
static status build_names(const model_config *c, const lora_options *lora, net *m, program *g) {
    TRY(model_build(m, g, c, &(net_options){.batch = 1, .seq_len = 1, .compute = DTYPE_F32, .lora = *lora}));
    return OK;
}

/* The copy in the checkpoint. A checkpoint of an older ralo has none: the path that it names may be any file of the
 * user. */
static status kept_tokenizer(const checkpoint_reader *r, const char *dir, const json_t *description,
                             const export_options *o, tokenizer_files *out) {
    const json_t *files = checkpoint_reader_tokenizer(r);
    const char *path = json_string_value(json_object_get(description, "tokenizer"));
    if (o->tokenizer) return OK;
    if (files) return tokenizer_files_load(out, dir, files, true);
    if (!path) return OK;
    return ERR(ERR_INPUT,
               "%s keeps no copy of its tokenizer, an older ralo wrote it, and says that it was trained with %s; files "
               "are never copied from a path that a checkpoint names: give the directory with --tokenizer DIR, or "
               "--tokenizer none to "
               "export without it",
               dir, path);
}

/* ---- a checkpoint ------------------------------------------------------------------------------------------------ */

/* What the first of the parameters that are written has in the checkpoint: of adapters the master, as they are trained. */
static dtype stored_type(const checkpoint_reader *r, const net *m, bool adapters) {
    checkpoint_found found;
    char name[256];
    size_t i = 0;
    while (adapters && m->params[i].adapter == ADAPTER_NONE) i++;
    snprintf(name, sizeof name, "master/%s", m->params[i].name);
    if (adapters && checkpoint_reader_find(r, name, &found)) return DTYPE_F32;
    snprintf(name, sizeof name, "param/%s", m->params[i].name);
    bool half = checkpoint_reader_find(r, name, &found) && (found.type == DTYPE_BF16 || found.type == DTYPE_F16);
    return half ? found.type : DTYPE_F32;
}

/* The model whose parameters and names are written. adapters: alone, without their base. */
static status choose_heads(const export_options *o, const char *from, bool adapters, model_config *c) {
    if (o->heads == EXPORT_FIRST_HEAD) {
        *c = model_main_config(c);
        return OK;
    }
    if (adapters)
        return ERR(ERR_INPUT,
                   "export --heads: %s holds adapters, and PEFT knows those of the first head alone; add --merge, or "
                   "leave --heads out",
                   from);
    if (o->heads == EXPORT_ALL_HEADS && c->mtp_heads <= 1)
        return ERR(ERR_INPUT,
                   "export --heads all: %s is an ordinary model, without prediction heads; leave --heads out", from);
    c->file_heads = c->mtp_heads;
    c->meta_files = o->heads == EXPORT_META;
    json_t *params = NULL;
    status rc = c->meta_files ? model_config_to_meta(c, &params) : OK; /* refused before its names are asked for */
    json_decref(params);
    return rc;
}

static status export_stored(const char *from, const export_options *o, export_report *out) {
    status rc = OK;
    checkpoint_reader *r = NULL;
    model_config c;
    lora_base base;
    net m = {0};
    program g;
    tokenizer_files kept = {0}, read = {0};
    export_job j = {.kind = EXPORT_MODEL};
    pissa convert = {0};
    program_init(&g);
    TRY_GOTO(rc, checkpoint_locate("export", from, "a run or a checkpoint directory", out->from, sizeof out->from),
             done);
    TRY_GOTO(rc, checkpoint_reader_open(&r, out->from), done);
    TRY_GOTO(rc, checkpoint_description(r, out->from, &j.description), done);
    out->step = checkpoint_reader_step(r);
    TRY_GOTO(rc, model_config_from_json(&c, json_object_get(j.description, "config"), "of the checkpoint", out->from),
             done);
    TRY_GOTO(rc, lora_from_description(j.description, &c, out->from, &j.lora, &base), done);
    TRY_GOTO(rc, choose_heads(o, out->from, j.lora.rank > 0, &c), done);
    j.heads = o->heads;
    TRY_GOTO(rc, build_names(&c, &j.lora, &m, &g), done);
    out->is_adapter = j.lora.rank > 0;
    if (out->is_adapter) j.kind = EXPORT_ADAPTER;
    if (out->type == DTYPE_COUNT) out->type = stored_type(r, &m, out->is_adapter);
    j.from = (param_reader){.m = &m, .g = &g, .base = {.r = r}, .adapters = {.r = r}};
    TRY_GOTO(rc, kept_tokenizer(r, out->from, j.description, o, &kept), done);
    TRY_GOTO(rc, export_choose_tokenizer(o, &kept, &read, &j.tokenizer), done);
    j.is_given = o->tokenizer != NULL;
    if (j.lora.pissa) TRY_GOTO(rc, export_convert_pissa(&j, &convert, &c, out->from), done);
    rc = export_write(&j, o, out);
done:
    if (convert.threads) pissa_close(&convert);
    tokenizer_files_fini(&kept);
    tokenizer_files_fini(&read);
    checkpoint_reader_close(r);
    net_fini(&m);
    program_fini(&g);
    return rc;
}

/* ---- adapters merged into their base ----------------------------------------------------------------------------- */

typedef struct merger {
    model_source source;
    net m, names; /* names: in the layout that is written */
    program g, names_g;
    weight_files base;     /* of a Hugging Face directory */
    safetensors adapters;  /* of PEFT's */
    bool has_adapter_file; /* it is open */
    const safetensor **base_parts, **adapter_parts;
    tokenizer_files kept, read;
    json_t *description; /* of a Hugging Face directory */
    pissa convert;       /* threads: adapters that began by PiSSA */
} merger;

static void merger_fini(merger *x) {
    if (x->convert.threads) pissa_close(&x->convert);
    weight_files_close(&x->base);
    if (x->has_adapter_file) safetensors_close(&x->adapters);
    free(x->base_parts);
    free(x->adapter_parts);
    tokenizer_files_fini(&x->kept);
    tokenizer_files_fini(&x->read);
    json_decref(x->description);
    model_source_close(&x->source);
    net_fini(&x->m);
    program_fini(&x->g);
    net_fini(&x->names);
    program_fini(&x->names_g);
}

static status open_base(merger *x, param_place *out) {
    const param_origin *from = &x->source.base;
    *out = (param_place){.r = from->reader, .seed = from->seed};
    if (!from->dir) return OK;
    TRY(weight_files_open(&x->base, from->dir));
    x->base_parts = mem_alloc(match_part_count(&x->m) * sizeof *x->base_parts);
    TRY(match_weights(&x->m, x->base.files, x->base.n_files, "", x->base_parts));
    out->files = x->base_parts;
    return OK;
}

static status open_adapters(merger *x, param_place *out) {
    const param_origin *from = &x->source.adapters;
    adapter_config config;
    *out = (param_place){.r = from->reader};
    if (!from->dir) return OK;
    TRY(adapter_config_read(&config, &x->source.config, from->dir));
    TRY(adapter_file_open(&x->adapters, from->dir));
    x->has_adapter_file = true;
    x->adapter_parts = mem_alloc(match_part_count(&x->m) * sizeof *x->adapter_parts);
    TRY(match_adapter(&x->m, &x->adapters, config.base[0] ? config.base : NULL, x->adapter_parts));
    out->files = x->adapter_parts;
    return OK;
}

/* What config.json and generation_config.json are made of. */
static status describe(merger *x, const json_t **out) {
    char *text;
    *out = x->source.description;
    if (*out) return OK;
    TRY(export_describe(model_of(&x->m.source), x->source.base.dir, &(data_options){0}, NULL, &text));
    *out = x->description = json_loads(text, 0, NULL);
    free(text);
    if (!x->source.adapters_name_ends) return OK;
    json_object_set(x->description, "generation", x->source.generation);
    json_object_set(json_object_get(x->description, "config"), "eos_token_id",
                    json_object_get(x->source.generation, "eos_token_id"));
    return OK;
}

/* The copy in the checkpoint, or the files of a directory that the user named. */
static status find_tokenizer(merger *x, const export_options *o, const tokenizer_files **out) {
    const model_source *s = &x->source;
    const char *dirs[] = {s->adapters.dir, s->description ? NULL : s->base.dir};
    char path[4200];
    bool found = o->tokenizer != NULL;
    if (!found && s->kept && !s->adapters.dir) {
        TRY(tokenizer_files_load(&x->kept, s->adapters_dir, s->kept, true));
        found = true;
    }
    for (size_t i = 0; i < ARRAY_LENGTH(dirs) && !found; i++) {
        snprintf(path, sizeof path, "%s/tokenizer.json", dirs[i] ? dirs[i] : "");
        if (!dirs[i] || access(path, F_OK) != 0) continue;
        TRY(tokenizer_files_read(&x->kept, dirs[i]));
        found = true;
    }
    if (!found && s->kept) TRY(tokenizer_files_load(&x->kept, s->dir, s->kept, true));
    return export_choose_tokenizer(o, &x->kept, &x->read, out);
}

/* The base's own dtype. */
static dtype base_type(const merger *x) {
    const param_origin *from = &x->source.base;
    if (from->dir) return x->base_parts[0]->type;
    return from->reader ? stored_type(from->reader, &x->m, false) : x->source.trained_over.type;
}

static status check_base(const export_job *j) {
    uint64_t now = params_hash_finish(j->from.hash);
    return now == j->trained_over.hash ? OK : lora_base_changed(j->adapters_dir, &j->trained_over, now);
}

/* All heads in the layout that was asked for, whatever that of the base is. */
static status name_heads(merger *x, const export_options *o, export_job *j) {
    const model_source *s = &x->source;
    model_config c = s->all_heads;
    if (s->lora.pissa)
        return ERR(ERR_INPUT,
                   "export --heads: adapters that began by pissa are merged into the first head alone; leave "
                   "--heads out");
    TRY(choose_heads(o, s->dir, false, &c));
    TRY(build_names(&c, &s->lora, &x->names, &x->names_g));
    j->names = &x->names;
    j->heads = o->heads;
    return OK;
}

/* A GGUF file has the ordinary model under Hugging Face's names, whatever those of the base are. */
static status finish_gguf(merger *x, const export_options *o, export_job *j, export_report *out) {
    model_config c = x->source.config;
    c.meta_files = false, c.file_heads = 0;
    TRY(build_names(&c, &x->source.lora, &x->names, &x->names_g));
    j->names = &x->names;
    if (!x->source.lora.rank) snprintf(out->from, sizeof out->from, "%s", x->source.dir);
    if (x->source.base.reader) out->step = checkpoint_reader_step(x->source.base.reader);
    model_source *s = &x->source;
    if (s->description && !s->adapters_name_ends) {
        json_decref(s->generation);
        s->generation = export_aligned(s->description, "generation");
        export_say_aligned(s->description, s->template != NULL);
    }
    return gguf_write(j, s, o, out);
}

static status open_source(model_source *s, const char *from, const export_options *o) {
    const char *tokenizer = !o->gguf || (o->tokenizer && strcmp(o->tokenizer, "none") == 0) ? "byte" : o->tokenizer;
    return model_source_open(s, from, o->adapter, tokenizer); /* none is needed to merge */
}

static status merge(merger *x, const char *from, const export_options *o, export_report *out) {
    model_source *s = &x->source;
    export_job j = {.kind = EXPORT_MERGED};
    TRY(open_source(s, from, o));
    if (!s->lora.rank && !o->gguf)
        return ERR(ERR_INPUT, "export --merge: %s has no adapters; leave --merge out", s->dir);
    snprintf(out->from, sizeof out->from, "%s", s->adapters_dir);
    if (s->adapters.reader) out->step = checkpoint_reader_step(s->adapters.reader);
    TRY(build_names(o->heads ? &s->all_heads : &s->config, &s->lora, &x->m, &x->g));
    if (o->heads) TRY(name_heads(x, o, &j));
    j.from = (param_reader){
        .m = &x->m, .g = &x->g, .merge = true, .scale = (double)lora_scale(&s->lora), .hash_as = DTYPE_COUNT};
    TRY(open_base(x, &j.from.base));
    TRY(open_adapters(x, &j.from.adapters));
    if (s->adapters.reader) {
        j.from.hash_as = s->trained_over.type;
        j.trained_over = s->trained_over;
        j.adapters_dir = s->adapters_dir;
        j.check = check_base;
    }
    if (s->lora.pissa) { /* merged into the original weights, as its export would be */
        TRY(pissa_open(&x->convert, &s->config, &s->lora, &s->base));
        x->convert.adapters = j.from;
        x->convert.adapters.raw = x->convert.base.raw, x->convert.adapters.block = x->convert.base.block;
        j.from.m = &x->convert.wide, j.from.g = &x->convert.wide_g, j.from.pissa = &x->convert;
    }
    if (o->gguf) return finish_gguf(x, o, &j, out);
    if (s->config.meta_files && !o->heads) j.heads = EXPORT_META; /* of the first head, laid out as its base */
    TRY(describe(x, &j.description));
    TRY(find_tokenizer(x, o, &j.tokenizer));
    j.is_given = o->tokenizer != NULL || s->adapters.dir != NULL;
    if (out->type == DTYPE_COUNT) out->type = base_type(x);
    return export_write(&j, o, out);
}

/* What a GGUF file has no place for. */
static status check_gguf(const export_options *o) {
    if (o->heads) return ERR(ERR_INPUT, "export --gguf writes the ordinary model; leave --heads out");
    if (o->type != DTYPE_COUNT)
        return ERR(ERR_INPUT,
                   "export --gguf says the type of the parameters: --gguf f16, bf16, f32, q8_0 or q4_k; leave "
                   "--dtype out");
    if (o->shard_bytes) return ERR(ERR_INPUT, "export --gguf writes one file; leave --shard-size out");
    return gguf_check_path(o->dir);
}

status export_checkpoint(const char *from, const export_options *options, export_report *out) {
    export_options own = *options;
    const export_options *o = &own;
    if (!own.gguf && export_is_gguf_name(own.dir)) own.gguf = GGUF_F16_FILE;
    *out = (export_report){.type = o->type};
    if (o->adapter && !o->merge && !o->gguf)
        return ERR(ERR_INPUT,
                   "export: --adapter %s is for --merge, which writes the model with the adapter merged into it",
                   o->adapter);
    TRY(o->gguf ? check_gguf(o) : export_check_dir(NULL, o->dir));
    if (!o->merge && !o->gguf) return export_stored(from, o, out);
    merger x = {0};
    program_init(&x.g);
    program_init(&x.names_g);
    status rc = merge(&x, from, o, out);
    merger_fini(&x);
    return rc;
}
