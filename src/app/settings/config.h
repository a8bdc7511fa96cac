#pragma once
/* config.h - every setting of ralo as one plain struct, filled from config.def.
 *
 * config.def is the one list of settings: name, aliases, type, range, default and help in one row. The parser, the
 * ranges, `--help`, the "did you mean", the annotated YAML and the saved resolved config all read that row.
 *
 *     config c;
 *     config_init(&c);
 *     TRY(config_read_file(&c, "run.yaml"));
 *     TRY(config_set(&c, "train.lr=3e-4", "--set"));
 *     TRY(config_check(&c));
 *     config_write_yaml(&c, f, true);
 *     config_fini(&c);
 */
#include "train/train.h"

typedef enum init_kind { INIT_RANDOM, INIT_PRETRAINED, INIT_KIND_COUNT } init_kind;

typedef enum strategy_kind { STRATEGY_AUTO, STRATEGY_MANUAL, STRATEGY_COUNT } strategy_kind;

enum { CONFIG_ROWS_MOST = 256 }; /* rows of config.def */

typedef struct config {
    struct {
        const char *preset; /* "": config_preset says which */
        const char *path;   /* ""; or a Hugging Face directory instead of a preset */
        int init;           /* init_kind; -1: pretrained with a path, else random */
        int64_t layers, hidden, heads, kv_heads, head_dim, ffn, vocab, max_positions; /* 0: as the preset says */
        int tied;                                                                     /* -1: as the preset says */
        int64_t mtp_heads;                                                            /* 0: no multi-token prediction */
        int64_t lora_rank;                                                            /* 0: no adapters */
        double lora_alpha;                                                            /* 0: twice the rank */
        double lora_dropout;
        const char *lora_targets; /* as lora_modules_parse reads them */
        bool lora_rslora;
        int lora_pissa;      /* model.lora.init */
        int base;            /* base_format */
        const char *adapter; /* "": new adapters; or a directory to begin from */
    } model;
    data_options data;  /* data.seed always equals train.seed */
    data_survey survey; /* no setting: what config_fit_data found; n 0: nothing */
    task_kind task;
    struct {
        int loss;    /* preference_kind less 1: none is no choice */
        double beta; /* 0: as the loss has it */
        double smoothing, gamma, lambda, desirable, undesirable;
        int reference; /* reference_kind; 0: auto */
        int share;     /* share_prompt */
    } preference;
    reward_options reward;
    train_options train;
    /* As the plan's request takes it, -1 where the plan chooses. Not here: what train.* and parallel.* give together
     * (micro_batch, accumulation, sequence) and what is text (recompute). */
    step_choice choice;
    struct {
        uint64_t device;       /* bytes; 0 = auto: what this machine has */
        int strategy;          /* strategy_kind */
        uint64_t host;         /* 0: what this machine has free */
        int64_t logits_chunk;  /* bytes */
        const char *recompute; /* as recompute_parse reads it */
        const char *nvme_path; /* "": the run directory */
        const char *place;     /* as place_parse reads it; "": everything on the first device */
    } memory;
    struct {
        int size[AXIS_COUNT]; /* of the mesh; data 0: what the others leave */
        int virtual_stages;   /* chunks of layers of each pipeline stage */
        int attention;        /* attention_kind */
    } parallel;
    struct {
        double timeout; /* seconds */
        device_transport transport;
        bool shared_memory;
    } comm;
    struct {
        const char *dir;    /* "": to be made from date and preset */
        const char *resume; /* "none", "auto" or a checkpoint directory */
        int64_t keep;       /* 0: all */
        bool save_last;
        const char *export_dir; /* "": none */
        int gguf;               /* place in its row: of gguf_format without NONE */
        int threads;            /* 0: one per core */
        device_kind device;
        int gpu; /* which; -1: auto */
        bool tf32;
        bool bind;
        bool breakdown; /* show the time of each kind of op at the end */
    } run;
    struct {
        bool monitor;  /* memory.json and monitor/ in the run directory */
        double spikes; /* 0: losses are not watched */
        const char *to, *mlflow, *experiment, *name, *tensorboard, *trackio; /* "": not given */
        double wait;                                                         /* seconds */
    } track;
    bool warned_elsewhere; /* another process has the same settings and warns of them: ranks do so once */
    arena memory_of_strings;
    unsigned char origin[CONFIG_ROWS_MOST]; /* per row of config.def: default, file, command line */
    const char *alias[CONFIG_ROWS_MOST];    /* ... and the name it was given by, where that is another; NULL: its own */
} config;

/* train.steps and train.warmup at auto; epochs of a fine-tune; rows of a step on each data rank; tokens of a row
 * without data, and of a row that is short */
enum {
    STEPS_USUAL = 600,
    WARMUP_USUAL = 50,
    EPOCHS_USUAL = 3,
    ROWS_USUAL = 16,
    ROW_TOKENS_USUAL = 4096,
    ROW_TOKENS_FEW = 1024
};
#define PRESET_USUAL "arithmetic-tiny"

void config_init(config *c); /* every default */
void config_fini(config *c);
void config_copy(config *out, const config *from);    /* with strings of its own; into storage that holds nothing */
status config_read_file(config *c, const char *path); /* YAML or JSON */
status config_read_tree(config *c, const yaml_node *root, const char *path);
/* "train.lr=3e-4"; where is named in the message ("--set"). Unknown key: ERR_INPUT with the nearest key. */
status config_set(config *c, const char *assignment, const char *where);
/* Offers a value from another program's file: ranges and messages are the setting's own, but `where` and `name` are
 * that file's line and key. It is used only if no file, command line or earlier offer has set it. */
typedef enum config_offer_result { OFFER_TAKEN, OFFER_SAME, OFFER_REFUSED } config_offer_result;
status config_offer(config *c, const char *key, const char *text, const char *where, const char *name,
                    config_offer_result *out);
/* A value that is withdrawn counts as not given, so that another may be offered in its place. */
void config_withdraw(config *c, const char *key);
bool config_knows(const char *key);                            /* is it a setting or a group of them */
bool config_has_key(const char *key, bool is_map);             /* by its own name, no alias; is_map: a group of them */
const char *config_given_by(const config *c, const char *key); /* "the command line", "the default" ... */
/* Appends the value as config_set takes it; unknown keys are refused as there. */
status config_get(const config *c, const char *key, strbuf *out, const char *where);
/* Checks what single ranges cannot: settings that must agree. Settings that were given but have no effect are named
 * in the log. */
status config_check(const config *c);
status config_check_schedule(const train_options *t);    /* a part of it, once the steps of the run are known */
void config_warn_no_effect_on_cpu(const config *c);      /* the same, where run.device: auto found no GPU */
void config_warn_no_reference(const config *c);          /* ... where the task compares with no copy of the model */
data_kind config_data_kind(const config *c);             /* what train.task and its loss read data as */
const char *config_preset(const config *c);              /* the preset that counts; NULL where model.path is given */
bool config_was_given(const config *c, const char *key); /* set by file or command line, not a default */
/* The first was given by what wins over the other's source: the command line over files. */
/* Of a setting that counts epochs the one that counts steps, and the first such setting that is given; NULL: none. */
const char *config_steps_key(const char *key);
const char *config_epochs_key(const config *c, double *found);
bool config_overrules(const config *c, const char *key, const char *other);
const char *config_alias(const config *c, const char *key); /* the other name it was given by; NULL: its own, or none */
/* The config as YAML that reads back to the same struct; annotated: with every row's help as a comment. */
void config_write_yaml(const config *c, FILE *out, bool annotated);
/* Lines "train.lr: 0.001" of the settings that differ from the defaults, without those that say where a run is and is tracked. c: a
 * config. */
void config_write_changes(const void *c, strbuf *out);
/* Settings, grouped, with range and default: the one of this key or alias, those of this group, with "" all. */
void config_print_help(FILE *out, const char *topic);
status config_unknown(const char *where, const char *key); /* the refusal of a key, with the nearest one */
size_t config_count(void);
const char *config_key(size_t row); /* "train.lr"; NULL past the end */
