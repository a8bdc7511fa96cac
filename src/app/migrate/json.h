#pragma once
/* json.h - private to migrate: JSON with comments and trailing commas, as DeepSpeed reads its files. */
#include "format/format.h"

bool foreign_json_begins(const char *text, size_t n_bytes); /* is { the first thing that is no comment */
/* Makes it strict JSON in place, with every key in its line, or says what is wrong. */
status foreign_json_clean(const char *path, char *text, size_t n_bytes);
