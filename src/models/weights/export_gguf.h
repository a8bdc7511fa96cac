#pragma once
/* export_gguf.h - private to weights: one file for llama.cpp. */
#include "weights/export_job.h"
#include "weights/source.h"

/* ERR_INPUT unless path is a name *.gguf in a place where a file can be made, and nothing has that name. */
status gguf_check_path(const char *path);
/* The parameters of the job, which are those of s, to o->dir. job->names has Hugging Face's names. */
status gguf_write(export_job *job, const model_source *s, const export_options *o, export_report *report);
