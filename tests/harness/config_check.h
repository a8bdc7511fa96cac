#pragma once
/* config_check.h - settings read from text, refused with words, and read back after they were written.
 *
 *     REFUSED("train: {stepz: 3}", "train.stepz", "did you mean");
 *     ...
 *     return cmocka_run_group_tests(tests, config_file_make, config_file_remove); */
#include "settings/config.h"

extern char config_path[]; /* the file that these write and read */
int config_file_make(void **state);
int config_file_remove(void **state);

status read_text(config *c, const char *text);
void assert_says(const char *const *parts); /* the message of the last error holds every one of these */
void refused_in_file(const char *text, const char *const *parts);
void refused_set(const char *assignment);
void assert_same(const config *a, const config *b); /* every field of every row, to the bit */
void assert_reads_back(const config *c);            /* written with and without notes, to the bit */
#define SAYS(...) assert_says((const char *const[]){__VA_ARGS__, NULL})
#define REFUSED(text, ...) refused_in_file(text, (const char *const[]){__VA_ARGS__, NULL})
