#pragma once
/* family_fixtures.h - the models of tools/make_family_fixtures.py and tools/make_two_model_fixtures.py. */
#include "model/model.h"
#include "weightfile/weightfile.h"

/* From the metadata of a fixture; `name` is borrowed. */
model_config family_config(const safetensors *file, const char *name);
