#pragma once
/* cli.h - private to cli: one function per command, and what commands share.
 *
 * Only this room prints to stdout and only main exits. A command returns a status; main turns it into the exit code. */
#include "cli/config.h"
#include "cli/foreign.h"

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

/* Options that several commands share. */
typedef struct common_options {
    config config;
    bool json, program_text, help, annotated;
    const char *trace_path;
    foreign foreign; /* what was translated from files of other programs, if any */
} common_options;
/* Reads [CONFIG] [--deepspeed FILE] [--set key=value]... and the flags; `allowed` names the flags of this command: "json,trace,...". */
status options_parse(common_options *o, int argc, char **argv, const char *allowed);
void options_fini(common_options *o);

/* From settings to what the rooms below understand. */
status model_from_config(const config *c, model_config *out);
status request_from_config(const config *c, train_request *out);
