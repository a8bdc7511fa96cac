#pragma once
/* settings.h - what a user may set, and the way from there to a runnable job.
 *
 *     config c;
 *     config_init(&c);
 *     TRY(config_read_file(&c, "run.yaml"));
 *     config_resolve(&c);
 *     config_resolve_model(&c, NULL, true);
 *     TRY(config_fit_data(&c, false));
 *     job j;
 *     TRY(job_init(&j, &c, NULL));
 *     TRY(job_open(&j));
 *     TRY(job_check(&j)); */
#include "settings/config.h"
#include "settings/foreign_names.h"
#include "settings/setting.h"
#include "settings/stages.h"

/* ---- from settings to what the rooms below understand (resolve.c, request_model.c, request.c) -------------------------------------------------- */

/* Defaults that depend on other settings: a short run gets a short warmup, a model directory brings its tokenizer. */
void config_resolve(config *c);
/* Defaults that follow from the model and the machine: the precision that the model was published in, bf16 for a GPU on
 * one's own data, rows of a plan without data, epochs of a fine-tune. The built-in default model has its own. hardware:
 * what the plan is for, as machine_describe takes it. sizes: false for those who try micro-batches and rows themselves.
 * (fit_data.c) */
void config_resolve_model(config *c, const char *hardware, bool sizes);
/* A setting that config_resolve_model or the plan may still choose: its value so far is not that of the run. */
bool config_is_chosen_later(const config *c, const char *key);
/* Settings that follow from the data, which is read for them: data.seq_len. Before a request is made. is_plan: files may be
 * missing, and the lengths of records are looked at also where nothing follows from them. (fit_data.c) */
status config_fit_data(config *c, bool is_plan);
/* Does a plan read the data? Not where it is missing, a stream, or so large that reading it takes minutes and no
 * setting follows from it. */
bool config_reads_data(const config *c, const data_options *o);
bool config_names_model(const config *c); /* else it is the built-in default */
status model_from_config(const config *c, model_config *out);
status request_from_config(const config *c, train_request *out);
/* The request of `ralo plan`: the first rank of parallel.* (or of `world` ranks; 0: not given), on the named machine
 * or this one. */
status request_for_plan(train_request *r, const config *c, const char *asked, int world, hardware *machine);
/* Adds the ranks that this process belongs to: their mesh, and each one's share of the machine. */
status request_use_comm(train_request *r, const config *c, comm *ranks);
/* The mesh that the plan chose, perhaps opened in place of the first: who shares a device is asked again. */
status request_use_mesh(train_request *r, const config *c, comm *ranks);
status config_save(const config *c, const char *run_dir); /* run_dir/config.yaml (job.c) */
/* Ranks on one machine. */
typedef struct node_ranks {
    int n;
    double cores; /* of each: half a core where two share one */
} node_ranks;
/* The machine that time is predicted for: what --hardware names, else this machine as measured, else as estimated.
 * ranks: those that share its cores; NULL: there is one. (machine.c) */
status machine_describe(const char *asked, const train_request *r, const node_ranks *ranks, hardware *out);

/* A training job for train_run or trainer_open (job.c). It points into the config it was made from. */
typedef struct job {
    train_request request;
    hardware machine; /* whose time the plan predicts */
    plan plan;
    dataset *data;
    const char *asked_dir; /* run.dir, borrowed; "": it is named when the run begins */
    bool names_data;       /* data.source was given */
    bool is_plan;          /* nothing is run: an earlier run in asked_dir is no error */
} job;
/* Makes the request alone, which may still be changed. hardware: as machine_describe takes it. The job must not be
 * moved. */
status job_init(job *j, const config *c, const char *hardware);
/* One of several ranks: its limits and its cores, and one description of the machine for all, by which they choose. Collective. */
status job_use_ranks(job *j, const config *c, const char *hardware, comm *ranks);
/* Data and plan, and everything that can be refused whatever the plan's size is; job_close also after an error. */
status job_open(job *j);
status job_check(job *j);                    /* does the plan fit; its warnings */
status job_use_dir(job *j, const char *dir); /* makes it; refuses another run's checkpoints and a full disk */
void job_close(job *j);
/* Values that the plan chose and that change the numbers of a run stand in its settings from then on, and so in
 * config.yaml. */
void job_keep_choice(const job *j, config *c);
void note_say(const plan *p); /* its note, as a warning */
/* That weights are random although somebody may expect a pretrained model: a line without its end, or nothing. */
void weights_describe(const config *c, const train_request *r, strbuf *out);
/* Refuses what a run would refuse: run.dir, run.export, and data that is here. Warns of data that is not. */
status plan_check_input(const train_request *r, const config *c);
status plan_check_weights(const train_request *r,
                          const plan *p); /* a model whose weights are not here is planned all the same */
