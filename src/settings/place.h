#pragma once
/* place.h - private to settings: memory.place, which part of the model on which device.
 *
 *     memory:
 *       place: {embed: "cpu:0", layers.0-11: "cpu:1", layers.12-23: "cpu:0", head: "cpu:0"}
 *
 * On a command line the same as text: embed=cpu:0,layers.0-11=cpu:1. Parts that are not named stay on the first device. */
#include "pass/pass.h"

/* ERR_INPUT names the part: unknown, twice, outside the model, no such device. */
status place_parse(const char *text, int64_t n_layers, place_options *out);
