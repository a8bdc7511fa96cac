/* command_track.c - ralo track sync: send what a run could not send. */
#include "cli/cli.h"
#include "report/report.h"
#include "track/track.h"

#include <errno.h>
#include <string.h>
#include <sys/stat.h>

static void say(const char *line) { log_info("%s", line); }

status command_track(command_line *l) {
    const char *what = l->arguments[0], *run = l->arguments[1];
    struct stat info;
    if (strcmp(what, "sync") != 0)
        return ERR(ERR_INPUT, "track: found '%.60s', expected sync: ralo track sync RUN", what);
    if (stat(run, &info) != 0)
        return ERR(ERR_INPUT, "track sync: %s: %s; expected the directory of a run", run, strerror(errno));
    if (!S_ISDIR(info.st_mode)) return ERR(ERR_INPUT, "track sync: %s is a file, expected the directory of a run", run);
    if (!run_is_dir(run))
        return ERR(ERR_INPUT,
                   "track sync: found no run in '%.300s', expected a directory with run.json or metrics.jsonl", run);
    return track_send(run, say);
}
