#pragma once
/* console.h - private to cli: stdout and stderr, which do nothing to a terminal but show text. */
#include <stdbool.h>
#include <stddef.h>

void console_open(void);   /* first thing in main: from here on all that is written to stdout and stderr is escaped */
void console_finish(void); /* after the last flush: half a character that was held back */
/* Generated text to stdout, at once: as it is, or escaped where stdout is a terminal. */
void console_write_text(const char *text, size_t n_bytes);
/* A line of ours on a terminal's stderr, over the one before; last: the next one begins a new line. */
void console_redraw(const char *line, bool last);
