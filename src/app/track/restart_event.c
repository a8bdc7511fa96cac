/* restart_event.c - the line of events.jsonl that says that a run goes on by itself after a death.
 *
 * Written by the process that starts the ranks, while none of them runs. Its step is the one that the run goes on from: the run removes
 * the lines of later steps when it adds its own, and this one stays. */
#include "track/jsonl.h"
#include "track/track.h"

#include <stdlib.h>
#include <time.h>

status track_add_restart(const char *run_dir, const track_restart *r) {
    char warning[512];
    jsonl events;
    struct timespec now;
    jsonl_init(&events, "events");
    status rc = jsonl_open(&events, run_dir);
    clock_gettime(CLOCK_REALTIME, &now);
    json_t *line =
        json_pack("{s:I, s:s, s:f, s:i, s:i, s:o, s:i, s:I, s:o}", "step", (json_int_t)r->step, "event", "restart",
                  "time", (double)now.tv_sec + 1e-9 * (double)now.tv_nsec, "restart", r->restart, "restarts_most",
                  r->most, "rank", r->rank >= 0 ? json_integer(r->rank) : json_null(), "ranks", r->ranks, "lost_steps",
                  (json_int_t)r->lost, "message", json_text(r->message, strlen(r->message)));
    char *text = json_dumps(line, JSON_PRESERVE_ORDER | JSON_REAL_PRECISION(15));
    strbuf_printf(&events.lines, "%s\n", text);
    free(text);
    json_decref(line);
    if (rc == OK && !jsonl_flush(&events, warning, sizeof warning)) rc = ERR(ERR_IO, "%s", warning);
    jsonl_close(&events);
    return rc;
}
