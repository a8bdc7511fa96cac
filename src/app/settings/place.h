#pragma once
/* place.h - private to settings: memory.place, which part of the model on which device.
 *
 *     memory:
 *       place: {embed: "cuda:0", layers.0-11: "cuda:0", layers.12-23: "cpu", head: "cuda:0"}
 *
 * On a command line the same as text: layers.12-23=cpu. Parts that are not named stay on the first device. */
#include "pass/pass.h"

/* gpu: index of the one GPU that this process may drive. ERR_INPUT names the part: unknown, twice, outside the model, no such
 * device. Whether the run has a GPU is the plan's to check. */
status place_parse(const char *text, int64_t n_layers, int gpu, place_options *out);
