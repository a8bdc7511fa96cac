/* trainer.c - see trainer.h.
 *
 * A model or dataset that is named and not here is no error of translation: the settings are right, but `train` ends
 * with the exact commands that fetch what is missing. Nothing is downloaded by ralo itself. */
#include "migrate/trainer.h"

#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/stat.h>

static bool path_is(const char *path, mode_t kind) {
    struct stat st;
    return stat(path, &st) == 0 && (st.st_mode & S_IFMT) == kind;
}

static const char *last_part(const char *name) {
    const char *slash = strrchr(name, '/');
    return slash && slash[1] ? slash + 1 : name;
}

/* May the text stand in a command that a user copies into a shell? */
static bool is_plain(const char *name) {
    return *name && *name != '-' &&
           !name[strspn(name, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._/-[]:%+")];
}

static bool is_given(foreign_reader *r, const foreign_item *i, const char *setting) {
    if (!config_was_given(r->c, setting)) return false;
    foreign_report_set(r, i, setting, foreign_format(r, "conflict: %s says so", config_given_by(r->c, setting)));
    return true;
}

status trainer_model(foreign_reader *r, const foreign_item *i) {
    if (!i || is_given(r, i, "model.path") || is_given(r, i, "model.preset")) return OK;
    if (path_is(i->text, S_IFDIR)) return foreign_offer(r, i, "model.path", i->text, NULL);
    const char *last = last_part(i->text), *where = foreign_where(r, i);
    if (is_plain(last) && model_dir_is(last)) return foreign_offer(r, i, "model.path", last, "downloaded here");
    const model_config *preset = model_preset_find(last);
    const char *shape =
        preset ? foreign_format(r, ", or say --preset %s to train that shape from random weights", preset->name) : "";
    if (is_plain(i->text))
        foreign_refuse_train(r, foreign_format(r,
                                               "%s: %s: there is no directory '%.200s'; download it with\n"
                                               "        hf download %s --local-dir %s\n"
                                               "    and give the same command again, or --model %s%s",
                                               where, i->key, i->text, i->text, last, last, shape));
    else
        foreign_refuse_train(
            r, foreign_format(r, "%s: %s: there is no directory '%.200s'; download the model and give --model DIR%s",
                              where, i->key, i->text, shape));
    if (preset) return foreign_offer(r, i, "model.preset", preset->name, "the shape only: there is no such directory");
    return foreign_offer(r, i, "model.path", i->text, "there is no such directory yet");
}

const foreign_item *trainer_dataset_of(const foreign_reader *r, const char *list, int i, const char *key) {
    return foreign_find(r,
                        i < 0 ? foreign_format(r, "%s.%s", list, key) : foreign_format(r, "%s[%d].%s", list, i, key));
}

trainer_source trainer_source_find(const foreign_reader *r, const char *list, int i, const char *keys) {
    const foreign_item *items[4] = {NULL};
    char key[32];
    for (size_t k = 0; (keys = part_next(keys, ' ', key, sizeof key)); k++)
        items[k] = trainer_dataset_of(r, list, i, key);
    return (trainer_source){.path = items[0], .config = items[1], .split = items[2], .files = items[3]};
}

/* ---- data -------------------------------------------------------------------------------------------------------- */

static const char *source_name(const trainer_source *s) { return s->name ? s->name : s->path->text; }

/* The name of the .jsonl that a dataset becomes here. */
static const char *converted_name(const foreign_reader *r, const trainer_source *s) {
    char base[128];
    const foreign_item *part = s->is_again ? (s->split ? s->split : s->config) : NULL;
    snprintf(base, sizeof base, "%.100s", last_part(source_name(s)));
    for (int k = 0; k < 2; k++) {
        char *dot = strrchr(base, '.');
        if (dot && dot != base && (strcmp(dot, ".json") == 0 || strcmp(dot, ".jsonl") == 0 || strcmp(dot, ".gz") == 0))
            *dot = 0;
    }
    return part ? foreign_format(r, "%s-%s.jsonl", base, part->text) : foreign_format(r, "%s.jsonl", base);
}

static const char *hub_command(const foreign_reader *r, const trainer_source *s, const char *name) {
    const char *config = s->config ? s->config->text : "", *split = s->split ? s->split->text : "train";
    const char *files = s->files ? s->files->text : "";
    if (!is_plain(name) || (*config && !is_plain(config)) || !is_plain(split) || (*files && !is_plain(files)))
        return NULL;
    return foreign_format(
        r, "python3 -c \"from datasets import load_dataset; load_dataset('%s'%s%s%s%s%s%s, split='%s').to_json('%s')\"",
        name, *config ? ", '" : "", config, *config ? "'" : "", *files ? ", data_files='" : "", files,
        *files ? "'" : "", split, converted_name(r, s));
}

/* The file of a source, if it is here: itself, or what the command makes of it; NULL: it is not. */
static const char *source_file(const foreign_reader *r, const trainer_source *s) {
    const char *name = source_name(s), *made = converted_name(r, s);
    if (!s->convert && path_is(name, S_IFREG)) return name;
    if (!s->convert && s->files && path_is(s->files->text, S_IFREG)) return s->files->text;
    return path_is(made, S_IFREG) ? made : NULL;
}

/* A colon would begin a weight. */
static void source_add(strbuf *out, const char *path) {
    if (out->length) strbuf_add(out, ", ");
    for (const char *c = path; *c; c++) strbuf_printf(out, *c == ':' || *c == '\\' ? "\\%c" : "%c", *c);
}

/* How a user names the files of this setting. */
static const char *flag_of(const char *setting) {
    return strcmp(setting, "data.source") == 0 ? "--data " : "--set data.eval_source=";
}

static void refuse_missing(foreign_reader *r, const trainer_source *s, const char *setting) {
    const char *name = source_name(s), *where = foreign_where(r, s->path),
               *command = s->convert ? s->convert : hub_command(r, s, name);
    if (command)
        foreign_refuse_train(
            r, foreign_format(r, "%s: %s: '%.200s' is no file of JSON Lines here; make one with\n        %s", where,
                              s->path->key, name, command));
    else
        foreign_refuse_train(r, foreign_format(r,
                                               "%s: %s: there is no file '%.200s'; make JSON Lines of it (one object "
                                               "per line) and give %sFILE",
                                               where, s->path->key, name, flag_of(setting)));
}

static status offer_files(foreign_reader *r, const char *setting, const trainer_source *sources, size_t n) {
    strbuf files;
    bool is_here = true, is_sound = true;
    if (n == 0) return OK;
    if (config_was_given(r->c, setting)) {
        for (size_t i = 0; i < n; i++)
            if (!i || sources[i].path != sources[i - 1].path) is_given(r, sources[i].path, setting);
        return OK;
    }
    strbuf_init(&files);
    for (size_t i = 0; i < n; i++) {
        const char *file = source_file(r, &sources[i]);
        if (!file) refuse_missing(r, &sources[i], setting);
        is_here &= file != NULL;
        is_sound &= file || (is_plain(source_name(&sources[i])) && is_plain(converted_name(r, &sources[i])));
        source_add(&files, file ? file : converted_name(r, &sources[i]));
    }
    if (!is_here && is_sound)
        foreign_refuse_train(
            r, foreign_format(r, "then give %s\"%s\", or the same command again, which takes files of these names",
                              flag_of(setting), files.text));
    status rc = OK;
    if (is_sound)
        rc = foreign_offer(r, sources[0].path, setting, files.text,
                           is_here ? NULL : "not all of it is here; `train` says how to make it");
    else
        foreign_report_no_effect(
            r, sources[0].path,
            foreign_format(r, "it is no file here; make JSON Lines of it and give %sFILE", flag_of(setting)));
    for (size_t i = 1; i < n && rc == OK; i++)
        if (sources[i].path != sources[i - 1].path) foreign_report_set(r, sources[i].path, setting, NULL);
    strbuf_fini(&files);
    return rc;
}

status trainer_data(foreign_reader *r, const trainer_source *sources, size_t n) {
    if (n == 0 && !config_was_given(r->c, "data.source")) /* a script has them in Python */
        foreign_refuse_train(r, foreign_format(r, "%s names no data; give --data FILE", r->file->path));
    return offer_files(r, "data.source", sources, n);
}

status trainer_eval_data(foreign_reader *r, const trainer_source *sources, size_t n) {
    return offer_files(r, "data.eval_source", sources, n);
}

status trainer_held_out(foreign_reader *r, const foreign_item *share, bool named) {
    if (named) {
        foreign_report_no_effect(r, share, "data.eval_source names what is evaluated on");
        return OK;
    }
    if (!share || item_real(share) <= 1) return foreign_offer_text(r, share, "data.eval_fraction", "0");
    if (config_was_given(r->c, "data.eval_fraction")) is_given(r, share, "data.eval_fraction");
    else foreign_refuse(r, share, "give the share of the records: data.eval_fraction");
    return OK;
}

/* ---- how long, how fast ----------------------------------------------------------------------------------------- */

/* Where the command line says how long in the other way, that counts. */
static bool length_is_given(foreign_reader *r, const foreign_item *i) {
    bool by_epochs = config_was_given(r->c, "train.epochs");
    const char *setting = by_epochs ? "train.epochs" : "train.steps";
    if (!by_epochs && !config_was_given(r->c, "train.steps")) return false;
    if (i) foreign_report_set(r, i, setting, foreign_format(r, "conflict: %s says so", config_given_by(r->c, setting)));
    return true;
}

status trainer_length(foreign_reader *r, const foreign_item *epochs, const foreign_item *steps, const char *otherwise) {
    bool has_steps = steps && item_whole(steps) > 0;
    if (has_steps) foreign_report_no_effect(r, epochs, "max_steps says how long");
    else foreign_report_no_effect(r, steps, "epochs say how long");
    if (length_is_given(r, has_steps ? steps : epochs)) return OK;
    if (has_steps) return foreign_offer_text(r, steps, "train.steps", NULL);
    if (epochs && foreign_is_off(epochs)) foreign_refuse(r, epochs, "a run has to train for some steps");
    else return foreign_offer(r, epochs, "train.epochs", epochs ? epochs->text : otherwise, NULL);
    return OK;
}

static status offer_ratio(foreign_reader *r, const foreign_item *i, double ratio) {
    if (ratio < 0 || ratio > 1) {
        foreign_refuse(r, i, "expected a share of the run from 0 to 1");
        return OK;
    }
    if (ratio == 0) return foreign_offer(r, i, "train.warmup", "0", NULL);
    return foreign_offer(r, i, "train.warmup_ratio", foreign_format(r, "%.17g", ratio), NULL);
}

status trainer_warmup(foreign_reader *r, const foreign_item *steps, const foreign_item *ratio, const char *otherwise) {
    if (!otherwise) {
        foreign_report_no_effect(r, steps, "lr_scheduler_type constant has no warmup");
        foreign_report_no_effect(r, ratio, "lr_scheduler_type constant has no warmup");
        return foreign_offer(r, NULL, "train.warmup", "0", "constant has no warmup");
    }
    bool has_steps = steps && item_real(steps) > 0;
    if (ratio && has_steps) foreign_report_no_effect(r, ratio, "warmup_steps says it");
    else if (ratio) TRY(offer_ratio(r, ratio, item_real(ratio)));
    if (has_steps && item_real(steps) < 1) return offer_ratio(r, steps, item_real(steps));
    if (steps && (has_steps || !ratio)) return foreign_offer_text(r, steps, "train.warmup", NULL);
    foreign_report_no_effect(r, steps, "warmup_ratio says it");
    return ratio ? OK : foreign_offer(r, NULL, "train.warmup", otherwise, "no warmup");
}

bool trainer_is_switch(foreign_reader *r, const foreign_item *i, const char *words) {
    bool flag;
    if (foreign_is_off(i) || i->is_auto || bool_read(i->text, &flag) || strcmp(i->text, "1") == 0 ||
        trainer_word_in(i->text, words))
        return true;
    foreign_refuse(r, i, "expected true or false");
    return false;
}

status trainer_precision(foreign_reader *r, const foreign_item *bf16, const foreign_item *fp16, const char *otherwise) {
    if (strcmp(config_given_by(r->c, "precision"), "another file") == 0) { /* by another key of this one */
        if (bf16) foreign_report_set(r, bf16, "precision", NULL);
        if (fp16) foreign_report_set(r, fp16, "precision", NULL);
        return OK;
    }
    bool right = trainer_is_switch(r, bf16, "auto full"); /* full: a word of Axolotl */
    if (!trainer_is_switch(r, fp16, "auto") || !right) return OK;
    bool is_bf16 = bf16 && !foreign_is_off(bf16), is_fp16 = fp16 && !foreign_is_off(fp16);
    if (is_bf16 && is_fp16 && strcmp(bf16->text, "auto") != 0) {
        foreign_refuse(r, fp16, "%s in line %d is on too; keep one", bf16->key, bf16->line);
        foreign_report_no_effect(r, bf16, "see above");
        return OK;
    }
    bool uses_fp16 = is_fp16;
    const foreign_item *said = uses_fp16 ? fp16 : bf16 ? bf16 : fp16;
    const char *value = uses_fp16 ? "fp16" : is_bf16 ? "bf16" : bf16 ? "fp32" : otherwise;
    TRY(foreign_offer(r, said, "precision", value, said ? NULL : "its default"));
    if (bf16 && fp16) foreign_report_set(r, said == bf16 ? fp16 : bf16, "precision", NULL);
    return OK;
}

status trainer_betas(foreign_reader *r) {
    const foreign_item *first = foreign_find(r, "adam_beta1"), *second = foreign_find(r, "adam_beta2");
    const char *betas = foreign_format(r, "[%s, %s]", first ? first->text : "0.9", second ? second->text : "0.999");
    TRY(foreign_offer(r, first ? first : second, "train.betas", betas, first || second ? NULL : "its default"));
    if (first && second) foreign_report_set(r, second, "train.betas", NULL);
    return OK;
}

#define MOVES "the strategy moves states to the host if they do not fit"
#define IN_BLOCKS "8 bits, in blocks with a scale each"

status trainer_optimizer(foreign_reader *r, const foreign_item *i) {
    static const struct {
        const char *words, *states, *note;
    } rows[] = {
        {"adamw_torch adamw_torch_fused adamw_torch_npu_fused adamw_apex_fused adamw_hf adamw", NULL, "AdamW"},
        {"paged_adamw_32bit paged_adamw", "fp32", MOVES},
        {"adamw_bnb_8bit adamw_8bit adamw_torch_8bit ao_adamw_8bit", "int8", NULL},
        {"paged_adamw_8bit", "int8", MOVES},
        {"adamw_torch_4bit ao_adamw_4bit", "int8", "8 bits are the fewest here"},
        {"adamw_torch_fp8 ao_adamw_fp8", "int8", IN_BLOCKS},
    };
    char word[64];
    for (size_t k = 0; i && k < ARRAY_LENGTH(rows); k++) {
        bool is_named = false;
        for (const char *rest = rows[k].words; (rest = part_next(rest, ' ', word, sizeof word));)
            is_named |= strcasecmp(word, i->text) == 0;
        if (!is_named) continue;
        if (rows[k].states) return foreign_offer(r, i, "memory.states", rows[k].states, rows[k].note);
        foreign_report_set(r, i, "memory.states", rows[k].note);
        return OK;
    }
    if (i) foreign_refuse(r, i, ONLY_ADAMW);
    return OK;
}

/* ---- where things lie ------------------------------------------------------------------------------------------- */

status trainer_deepspeed(foreign_reader *r, const foreign_item *i) {
    if (!i) return OK;
    if (foreign_is_off(i)) {
        foreign_report_no_effect(r, i, "off");
        return OK;
    }
    for (size_t k = 0; k < r->f->n_files; k++)
        if (r->f->files[k].dialect == &foreign_deepspeed) {
            foreign_report_no_effect(r, i, foreign_format(r, "--deepspeed gives %s", r->f->files[k].path));
            return OK;
        }
    if (!path_is(i->text, S_IFREG)) {
        foreign_refuse(r, i, "there is no such file here; give it with --deepspeed FILE, or remove the key");
        return OK;
    }
    foreign_report_file(r, i);
    return foreign_read_deepspeed(r->f, i->text);
}

status trainer_fsdp(foreign_reader *r, const foreign_item *i) {
    char word[64];
    if (!i) return OK;
    if (foreign_is_off(i)) {
        foreign_report_no_effect(r, i, "off");
        return OK;
    }
    for (const char *rest = trainer_list(r, i); (rest = part_next(rest, ',', word, sizeof word));) {
        const char *stage = foreign_word(r, "true=3|full_shard=3|shard_grad_op=2|no_shard=0", word, false);
        if (stage) {
            TRY(foreign_offer(r, i, "parallel.zero", stage, NULL));
        } else if (strcmp(word, "offload") == 0) {
            TRY(foreign_offer(r, i, "memory.offload.params", "host", NULL));
            TRY(foreign_offer(r, i, "memory.offload.grads", "host", NULL));
            TRY(foreign_offer(r, i, "memory.offload.states", "host", NULL));
        } else if (strcmp(word, "auto_wrap") != 0) {
            foreign_refuse(r, i, "'%s' is not here; ralo has full_shard, shard_grad_op, no_shard and offload", word);
        }
    }
    if (strcmp(trainer_list(r, i), "auto_wrap") == 0)
        foreign_report_no_effect(r, i, "layers are the units of sharding");
    return OK;
}

/* ---- the rest --------------------------------------------------------------------------------------------------- */

/* What of the list ralo sends to; of others the run's own files have the numbers. */
status trainer_report_to(foreign_reader *r, const foreign_item *i) {
    if (!i) return OK;
    strbuf kept;
    strbuf_init(&kept);
    bool is_whole = true;
    for (const char *at = trainer_list(r, i); *at;) {
        const char *name = foreign_format(r, "%.*s", (int)strcspn(at, ","), at);
        bool is_here = trainer_word_in(name, "none all mlflow tensorboard trackio");
        if (is_here) strbuf_printf(&kept, "%s%s", kept.length ? "," : "", name);
        is_whole &= is_here;
        at += strcspn(at, ",");
        at += *at == ',';
    }
    status rc = OK;
    if (kept.length)
        rc = foreign_offer(r, i, "track.to", kept.text, is_whole ? NULL : "the others have no effect here: " NUMBERS);
    else foreign_report_no_effect(r, i, NUMBERS "; track.to=trackio has a page like wandb's");
    strbuf_fini(&kept);
    return rc;
}

status trainer_resume(foreign_reader *r, const foreign_item *i) {
    bool flag;
    if (!i) return OK;
    bool is_flag = bool_read(i->text, &flag);
    return foreign_offer(r, i, "run.resume", !is_flag ? i->text : flag ? "auto" : "none", NULL);
}

status trainer_weights(foreign_reader *r, const foreign_item *four, const foreign_item *eight, bool has_adapter) {
    bool is_four = item_is_true(four), is_eight = item_is_true(eight);
    if (is_four && is_eight) {
        foreign_refuse(r, four, "%s in line %d is on too; keep one", eight->key, eight->line);
        foreign_report_no_effect(r, eight, "see above");
        return OK;
    }
    const foreign_item *on = is_four ? four : is_eight ? eight : NULL;
    if (on && !has_adapter) foreign_refuse(r, on, "weights of so few bits are frozen, so it needs LoRA beside them");
    else if (on) TRY(foreign_offer(r, on, "model.base", is_four ? "nf4" : "int8", NULL));
    if (four != on) foreign_report_no_effect(r, four, "off");
    if (eight != on) foreign_report_no_effect(r, eight, "off");
    return OK;
}

status trainer_every(foreign_reader *r, const trainer_rhythm *e) {
    const char *word = e->strategy ? e->strategy->text : e->otherwise;
    bool flag;
    if (bool_read(word, &flag) && !flag) word = "no"; /* YAML's no */
    if (strcmp(word, "steps") == 0) {
        const foreign_item *said = e->steps ? e->steps : e->strategy;
        if (!said) return OK;
        if (e->steps && item_real(e->steps) > 0 && item_real(e->steps) < 1) {
            foreign_refuse(r, e->steps, "a share of the run is not counted here; give steps");
        } else {
            TRY(foreign_offer(r, said, e->setting, e->steps ? e->steps->text : e->usual, NULL));
        }
        if (e->strategy && said != e->strategy) foreign_report_set(r, e->strategy, e->setting, NULL);
        return OK;
    }
    if (strcmp(word, "no") == 0 && e->strategy) foreign_report_set(r, e->strategy, e->setting, "only at the end");
    else if (strcmp(word, "epoch") == 0 && e->strategy) TRY(foreign_offer(r, e->strategy, e->per_epoch, "1", NULL));
    else if (strcmp(word, "best") == 0) TRY(foreign_offer(r, e->strategy, "train.save_best", "loss", NULL));
    else if (e->strategy) foreign_refuse(r, e->strategy, "expected no, steps, epoch or best");
    foreign_report_no_effect(r, e->steps, "its strategy is not steps");
    return OK;
}

const char *trainer_list(const foreign_reader *r, const foreign_item *i) {
    strbuf out;
    strbuf_init(&out);
    for (const char *at = i->text; *(at += strspn(at, "[], "));) {
        size_t length = strcspn(at, "[], ");
        strbuf_printf(&out, "%s%.*s", out.length ? "," : "", (int)length, at);
        at += length;
    }
    const char *text = foreign_format(r, "%s", out.text ? out.text : "");
    strbuf_fini(&out);
    return text;
}

static status offer_targets(foreign_reader *r, const foreign_item *i) {
    if (strpbrk(i->text, "\\(*|?")) {
        foreign_refuse(r, i, "a pattern; list the layers: q, k, v, o, gate, up, down, or all-linear");
        return OK;
    }
    const char *list = trainer_list(r, i);
    return foreign_offer(r, i, "model.lora.targets", strcmp(list, "all") == 0 ? "all-linear" : list, NULL);
}

status trainer_lora(foreign_reader *r, const trainer_adapter *a) {
    const struct {
        const char *key, *setting, *usual;
    } rows[] = {{a->rank, "model.lora.rank", a->usual_rank},
                {a->alpha, "model.lora.alpha", a->usual_alpha},
                {a->dropout, "model.lora.dropout", a->usual_dropout},
                {a->targets, "model.lora.targets", a->usual_targets}};
    for (size_t i = 0; i < ARRAY_LENGTH(rows); i++) {
        const foreign_item *item = rows[i].key ? foreign_find(r, rows[i].key) : NULL;
        if (!a->is_on) foreign_report_no_effect(r, item, a->why_off);
        else if (item && rows[i].key == a->targets) TRY(offer_targets(r, item));
        else TRY(foreign_offer_text(r, item, rows[i].setting, rows[i].usual));
    }
    return OK;
}

status trainer_implied(foreign_reader *r, const char *const rows[][3], size_t n) {
    for (size_t i = 0; i < n; i++)
        if (!config_was_given(r->c, rows[i][0])) TRY(foreign_offer(r, NULL, rows[i][0], rows[i][1], rows[i][2]));
    return OK;
}

/* Without packing the others pad a batch to its longest record and cut at the length that they are given. */
status trainer_row_length(foreign_reader *r, const foreign_item *said, const char *usual) {
    const char *task = foreign_value(r, "train.task"), *value = said ? said->text : usual;
    bool has_pairs = strcmp(task, "preference") == 0, packs = strcmp(foreign_value(r, "data.pack"), "true") == 0;
    if (strcmp(task, "rloo") == 0 || (packs && !has_pairs))
        return foreign_offer(r, said, "data.seq_len", value, said ? NULL : "its default");
    if (!has_pairs)
        return foreign_offer(r, said, "data.seq_len_max", value, "rows follow the records, up to this length");
    long long n = said ? (long long)item_whole(said) : strtoll(usual, NULL, 10);
    const char *both = n <= INT32_MAX ? foreign_format(r, "%lld", 2 * n) : value;
    return foreign_offer(r, said, "data.seq_len_max", both, "a row holds two answers; rows follow the records");
}

bool trainer_word_in(const char *word, const char *words) {
    char one[64];
    while ((words = part_next(words, ' ', one, sizeof one)))
        if (strcmp(one, word) == 0) return true;
    return false;
}

bool trainer_has_any(const foreign_reader *r, const char *prefix, const char *keys) {
    char key[64];
    while ((keys = part_next(keys, ' ', key, sizeof key)))
        if (foreign_find(r, foreign_format(r, "%s%s", prefix, key))) return true;
    return false;
}

void trainer_report_keys(foreign_reader *r, const char *prefix, const char *keys, const char *note) {
    char key[64];
    while ((keys = part_next(keys, ' ', key, sizeof key)))
        foreign_report_no_effect(r, foreign_find(r, foreign_format(r, "%s%s", prefix, key)), note);
}
