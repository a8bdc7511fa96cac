#pragma once
/* live.h - a web page that shows a run while it trains, and afterwards.
 *
 * Promises
 *   - It reads the files of the run directory and nothing else; a step shares no lock and no callback with it. Its
 * threads have a lower priority than those of the run, and bounded memory however long the run is.
 *   - Nothing can be written or started through it: GET and HEAD on a fixed list of paths, none of which is a file
 * name.
 *   - Nobody reads it without its token: other users of a machine reach its loopback addresses too. Other web pages
 * cannot read it (gate.h).
 *
 *     live *page;
 *     TRY(live_open(&page, &(live_options){.run_dir = dir, .listen = "127.0.0.1:0"}));
 *     puts(live_url(page));
 *     live_close(page); */
#include "base/base.h"

typedef struct live_options {
    const char *run_dir;
    const char *name;   /* of the run, as the page shows it; NULL: the last part of run_dir */
    const char *listen; /* ADDR:PORT, [ADDR]:PORT or PORT; NULL: loopback and a free port */
    const char *token;  /* NULL: RALO_LIVE_TOKEN of the environment; where that is not set, made at random */
} live_options;
typedef struct live live;

/* What live_open would refuse without looking at the run directory: the address, the token, a missing library. */
status live_check(const live_options *o);
status live_open(live **out, const live_options *o);
const char *live_url(const live *l); /* with the token */
/* The page shows another run from now on, at the same address: open pages change to it by themselves. */
status live_follow(live *l, const char *run_dir, const char *name);
/* Sends what the files say now to open pages, tells them that this was the end, and ends the threads. NULL: nothing to do. */
void live_close(live *l);
