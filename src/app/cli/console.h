#pragma once
/* console.h - private to cli: stdout and stderr that escape control characters. */
#include <stdbool.h>
#include <stddef.h>

void console_open(void);   /* first thing in main: from here on all that is written to stdout and stderr is escaped */
void console_finish(void); /* after the last flush: half a character that was held back */
/* Writes generated text to stdout at once: unchanged, or escaped if stdout is a terminal. */
void console_write_text(const char *text, size_t n_bytes);
/* Redraws a line on a terminal's stderr; last: the next one begins a new line. */
void console_redraw(const char *line, bool last);
