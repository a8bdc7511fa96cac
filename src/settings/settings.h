#pragma once
/* settings.h - what a user may set, from files of ralo and of other trainers, and the way from there to a job that can run.
 *
 *     config c;
 *     config_init(&c);
 *     TRY(config_read_file(&c, "run.yaml"));
 *     config_settle(&c);
 *     job j;
 *     TRY(job_init(&j, &c, NULL));
 *     TRY(job_open(&j));
 *     TRY(job_check(&j));
 */
#include "settings/config.h"
#include "settings/foreign.h"
#include "settings/setting.h"

/* ---- from settings to what the rooms below understand (request.c) -------------------------------------------------- */

/* Defaults that give way to what was given: a short run gets a short warmup, a model's directory brings its tokenizer. */
void config_settle(config *c);
status model_from_config(const config *c, model_config *out);
status request_from_config(const config *c, train_request *out);
/* What `ralo plan` plans: the first rank of parallel.* (or of a world of so many ranks; 0: not asked), on the machine that was
 * named or this one. */
status request_for_plan(train_request *r, const config *c, const char *asked, int world, hardware *machine);
/* The ranks this process is one of: their mesh, and each one's share of the machine. NULL: alone. */
status request_use_comm(train_request *r, const config *c, comm *ranks);
status config_save(const config *c, const char *run_dir); /* run_dir/config.yaml (job.c) */
/* The machine that time is predicted for: what --hardware names, else this machine as measured, else as estimated.
 * (machine.c) */
status machine_describe(const char *asked, const train_request *r, hardware *out);

/* A training job on its way to train_run or trainer_open (job.c). It points into the config it was made from. */
typedef struct job {
    train_request request;
    hardware machine; /* whose time the plan predicts */
    plan plan;
    dataset *data;
    double read_seconds; /* that opening the data took */
} job;
/* The request alone: it may still be changed. hardware: as machine_describe takes it. The job may not be moved. */
status job_init(job *j, const config *c, const char *hardware);
status job_open(job *j);                     /* data and plan; job_close also after an error */
status job_check(const job *j);              /* all that can be refused before anything is written */
status job_use_dir(job *j, const char *dir); /* makes it; refuses others' checkpoints and full disks. Borrows dir */
void job_close(job *j);
void note_say(const plan *p); /* its note, as a warning */
