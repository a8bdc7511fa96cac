#pragma once
/* weights.h - the parameters of a model by name: initial values, Hugging Face directories in and out, adapters beside
 * them, checkpoints as models.
 *
 *     TRY(weights_load_dir(e, &plan, "models/qwen"));        // every parameter of the running program
 *     TRY(export_checkpoint("runs/mine", &(export_options){.dir = "out"}, &report)); */
#include "weights/adapter.h"
#include "weights/base.h"
#include "weights/export.h"
#include "weights/load.h"
#include "weights/params.h"
#include "weights/source.h"
