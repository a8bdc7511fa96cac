#pragma once
/* record_text.h - private to cli: records as the model reads them, for `ralo show` and `ralo train --show-example`. */
#include "cli/cli.h"

/* The text of a record; with marks, trained stretches stand between >>> and <<<. */
status record_text_write(const tokenizer *t, const chat_tokens *tokens, bool marks, strbuf *out);
size_t record_text_trained(const chat_tokens *t); /* number of trained tokens */

/* To stderr: what the first row of a run begins with. A document of text, all parts of an example, or a prompt. */
status record_text_print_first(const dataset *d, const train_request *r);
