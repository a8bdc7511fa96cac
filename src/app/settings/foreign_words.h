#pragma once
/* foreign_words.h - private to settings, part of its face: words of other programs, by meaning and not by letters. */
#include "base/base.h"

/* What to write here instead of `key`, of which the last part counts (train.load_in_4bit, --load-in-4bit); false: it is not known.
 * is_flag: typed as a flag, so a setting is shown with --set. */
bool foreign_word_explain(const char *key, bool is_flag, strbuf *out);
/* What a value of another program is here, of this setting; false: it is not known. */
bool foreign_value_explain(const char *key, const char *value, strbuf *out);
