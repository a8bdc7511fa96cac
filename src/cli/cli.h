#pragma once
/* cli.h - private to cli: one function per command, and what commands share.
 *
 * Only this room prints to stdout and only main exits. A command returns a status; main turns it into the exit code. */
#include "cli/config.h"

typedef struct command {
    const char *name;
    const char *usage; /* after "ralo " */
    const char *what;
    status (*run)(int argc, char **argv); /* argv[0] is the command's name */
} command;

status command_train(int argc, char **argv);
status command_plan(int argc, char **argv);
status command_devices(int argc, char **argv);
status command_export(int argc, char **argv);
status command_generate(int argc, char **argv);
status command_eval(int argc, char **argv);

/* Options that several commands share. */
typedef struct common_options {
    config config;
    bool json, program_text, help, annotated;
    const char *trace_path;
    const char *hardware; /* built-in name or file; NULL: this machine */
    bool measure;
    const char *measure_path, *disk_path; /* NULL: the user's cache; the present directory */
    int world;                            /* ranks that are not here; 0: none asked for */
} common_options;
/* Reads [CONFIG] [--set key=value]... and the flags; `allowed` names the flags of this command: "json,trace,...". */
status options_parse(common_options *o, int argc, char **argv, const char *allowed);
void options_fini(common_options *o);

/* The machine that time is predicted for: what --hardware names, else this machine as measured, else as estimated. */
status machine_describe(const char *asked, int n_threads, hardware *out);

/* From settings to what the rooms below understand. */
status request_from_config(const config *c, train_request *out);
