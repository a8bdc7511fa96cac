#pragma once
/* file_kind.h - private to data: what a file is by its name and its first bytes (file_kind.c). */
#include "data/data.h"
#include "data/reader.h"

data_format data_file_format(const data_options *o, const char *path); /* never FORMAT_AUTO */
/* As bytes any file is text, so a model, a picture or a table in columns would be trained on without a warning: an error, with the
 * command that makes text of it. With data.format=text nothing is refused. */
status data_refuse_kind(reader *in, const record_options *o);
/* Is it there? setting: the one that names it. Who gives the name of a data set of the hub is told how to get it. */
status data_check_file(const char *setting, const char *path);
bool data_is_data_name(const char *name); /* is it taken from a directory? */
/* Appends how files with such names (Parquet, Arrow) are made into JSON Lines, those of the pattern together; nothing for other names. */
void data_name_columnar(const char *pattern, const char *name, strbuf *out);
