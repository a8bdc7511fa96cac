#pragma once
/* sinks.h - private to track: the sinks of one run, each with a queue on disk and a thread that empties it.
 *
 *     TRY(sinks_open(&s, &options, run_dir, say, context));       s is NULL where none was asked for
 *     sinks_put(s, lines, n);                                     as sink_records.c writes them
 *     sinks_close(s);                                             waits as long as the settings say, never longer */
#include "track/track.h"

typedef struct sinks sinks;
/* Called on any thread, with one line for the user. */
typedef void (*sinks_say)(void *context, const char *text);
/* Fails where the request is wrong or RUN/track cannot be written; never because a sink cannot be reached. */
status sinks_open(sinks **out, const track_sinks *o, const char *run_dir, sinks_say say, void *context);
void sinks_put(sinks *s, const char *lines, size_t n_bytes);
void sinks_close(sinks *s); /* NULL: nothing */
