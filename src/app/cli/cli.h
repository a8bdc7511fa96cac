#pragma once
/* cli.h - what commands share: the table of commands, the command line as parsed.
 *
 * Only this room prints to stdout and only main exits. A command returns a status; main turns it into the exit code. */
#include "migrate/migrate.h"
#include "show/show.h"

enum { MAX_ARGUMENTS = 4, MAX_FLAGS = 128 };

typedef struct command command;

/* The command line of any command; a field belongs to the flags that commands.def gives it. */
typedef struct command_line {
    const command *command;
    const char *arguments[MAX_ARGUMENTS]; /* in the order of the command's row; NULL: left out */
    text_list paths;                      /* every argument, where the row takes any number of them */
    config config;                        /* defaults, then CONFIG, then --set and the flags short for it */
    const char *stage, *stages_dir;       /* of a CONFIG with stages */
    text_list stage_sets;                 /* pipeline: --set of every stage */
    const char *config_path;              /* --config: CONFIG, where it is no argument */
    const char *deepspeed;                /* a file of DeepSpeed beside CONFIG */
    foreign foreign;                      /* what was translated from files of other programs, if any */
    bool help, json, program, show_config, show_example, longest, profile, dry_run, quiet, verbose;
    const char *trace, *timeline;
    const char *reference; /* help: where the reference pages go */
    int dtype;             /* into the row's list; -1: as trained */
    bool merge;
    int heads;
    int gguf;             /* into the row's list; -1: not given */
    uint64_t shard_bytes; /* 0: not given */
    /* generate and eval */
    generator_options generation;
    sampling_options sampling;
    text_list prompts, stops;
    text_list adapters; /* generate: DIR, or NAME=DIR of several */
    const char *use_adapter;
    const char *samples_out; /* where completions of eval are kept; NULL: nowhere */
    const char *prompt_file, *data, *answer_regex, *system, *chat_kwargs;
    record_options records; /* of prompt_file or data, where that holds JSON Lines */
    int chat;               /* chat_format; -1: auto for JSON Lines, none for other prompts */
    double last;
    int64_t seq_len, samples, k, limit;
    int64_t show_most;
    bool show_prompts;
    int precision; /* into the row's list */
    int weights;   /* into the row's list; 0: as --precision */
    device_kind device;
    int gpu;
    bool tf32;
    bool plan;
    const char *hardware;                 /* built-in name or file; NULL: this machine */
    const char *measure_path, *disk_path; /* NULL: the user's cache; the present directory */
    bool host_only;                       /* what is measured */
    int scale;                            /* of a bench, into the row's list */
    const char *out;                      /* ... and where its files go; NULL: none are written */
    const char *charts, *png;             /* report: directories for its charts as SVG and PNG; NULL: none */
    bool compare, csv;
    const char *plot;                     /* runs: metric to draw */
    const char *live_listen, *live_token; /* of the live page; NULL: default */
    int ranks;                            /* ranks to start here; 0: those that a launcher started, or one */
    int restarts, min_ranks;              /* after a death; min_ranks 0: as many ranks as before */
    int world;                            /* ranks to plan for; 0: not given */
    bool given[MAX_FLAGS];                /* by row of commands.def */
    int argc;                             /* as it was typed, the command first */
    char **argv;
    arena memory;
} command_line;

struct command {
    const char *name;
    status (*run)(command_line *l);
    const char *arguments, *what, *details;
};

typedef struct flag {
    const char *name;     /* without dashes */
    const char *commands; /* separated by spaces; "*": all */
    const char *value;    /* ""; or what its value is called */
    const char *key;      /* the setting it is short for; "": KEY=VALUE; NULL: it has a field */
    setting row;
} flag;

status command_train(command_line *l);
status command_plan(command_line *l);
status command_show(command_line *l);
status command_reward(command_line *l);
status command_pipeline(command_line *l);
status command_generate(command_line *l);
status command_chat(command_line *l);
status command_eval(command_line *l);
status command_export(command_line *l);
status command_track(command_line *l);
status command_devices(command_line *l);
status command_bench(command_line *l);
status command_report(command_line *l);
status command_runs(command_line *l);
status command_live(command_line *l);
status command_completion(command_line *l);
status command_help(command_line *l);

/* ---- the table (commands.c) -------------------------------------------------------------------------------------- */

const command *command_at(size_t i);           /* NULL past the end */
const command *command_find(const char *name); /* NULL when unknown */
status command_unknown(const char *name);      /* the error, with the nearest name */
const flag *flag_at(size_t i);                 /* NULL past the end */
bool flag_belongs(const flag *f, const command *c);
bool flag_is_needed(const flag *f);
const char *flag_dashes(const flag *f); /* "--", or "-" before one letter */
/* The words of a command's arguments, one after the other; NULL when none is left. optional: the word is in [ ]. A word that may
 * be given any number of times comes without its dots. */
const char *argument_next(const char *arguments, char *out, size_t n, bool *optional);
bool arguments_repeat(const command *c); /* the last one may be given any number of times */

/* ---- the command line (command_line.c) ---------------------------------------------------------------------------- */

/* argv[0] is the command's name. With --help nothing else of the line is checked. Call fini also after an error. */
status command_line_parse(command_line *l, const command *c, int argc, char **argv);
void command_line_fini(command_line *l);
bool command_line_given(const command_line *l, const char *name); /* the flag of that name stands on the line */

/* To stdout. c: of a command; else a topic, NULL: of everything. */
void help_print(const char *topic, const command *c);

/* ---- generation_flags.c ------------------------------------------------------------------------------------------- */

/* Fills l->generation and l->sampling from the flags that generate and eval share. */
status generation_from_flags(command_line *l);
