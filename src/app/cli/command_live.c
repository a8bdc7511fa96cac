/* command_live.c - ralo live: the page of a run directory, until Ctrl-C. */
#include "cli/cli.h"
#include "live/live.h"
#include "report/report.h"

#include <signal.h>

status command_live(command_line *l) {
    const char *dir = l->arguments[0];
    live *page;
    if (!run_is_dir(dir))
        return ERR(ERR_INPUT, "live: found no run in '%.300s', expected a directory with run.json or metrics.jsonl",
                   dir);
    /* Before any thread is there, so that none of them takes the signal. */
    sigset_t stop;
    sigemptyset(&stop);
    sigaddset(&stop, SIGINT);
    sigaddset(&stop, SIGTERM);
    sigaddset(&stop, SIGHUP);
    sigprocmask(SIG_BLOCK, &stop, NULL);
    TRY(live_open(&page, &(live_options){.run_dir = dir, .listen = l->live_listen, .token = l->live_token}));
    printf("%s\n", live_url(page));
    fflush(stdout);
    int number;
    sigwait(&stop, &number);
    live_close(page);
    return OK;
}
