#pragma once
/* form.h - a setting that is a word or a map with exactly one entry: `full`, `{ratio: 0.5}`, `{keep: [attn.y,
 * mlp.up]}`.
 *
 * It is stored as one line of text, `full`, `ratio:0.5`, `keep:attn.y,mlp.up`, which is accepted too. Its range lists
 * what a row accepts, such as
 *
 *     "none=false|full=true|ratio: [0, 1]|every: whole [1, 1024]|keep: names|mix: (level, layers, lighter level)"
 *
 * a word, perhaps with the boolean that stands for it; or a name and the kind of its value: a number in an interval,
 * a list of names, or in parentheses a list of exactly so many, whose words the reader of the setting checks. */
#include "format/format.h"

/* What is stored for `text`, in the row's words; false if the row does not accept it. The map may be written as YAML
 * or JSON inside the text. */
bool form_read(const char *range, const char *text, strbuf *out);
/* A map of a file as such a text; NULL when it has not exactly one entry, a scalar or a list of scalars. */
const char *form_from_map(const yaml_node *map, arena *memory);
void form_write(const char *stored, strbuf *out); /* as YAML that reads back */
void form_expected(const char *range, strbuf *out);
