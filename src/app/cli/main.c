/* main.c - from argv to a command of the table; the only place that exits. */
#define _DEFAULT_SOURCE 1 /* on_exit */
#include "base/memory.h"
#include "cli/cli.h"
#include "cli/console.h"
#include "ralo.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static status dispatch(int argc, char **argv) {
    if (argc < 1 || strcmp(argv[0], "--help") == 0 || strcmp(argv[0], "-h") == 0) {
        help_print(NULL, NULL);
        return OK;
    }
    if (strcmp(argv[0], "--version") == 0) {
        puts("ralo " RALO_VERSION);
        return OK;
    }
    const command *c = command_find(argv[0]);
    if (!c) return command_unknown(argv[0]);
    command_line l;
    status rc = command_line_parse(&l, c, argc, argv);
    if (rc == OK && l.verbose) log_set_level(LOG_DEBUG);
    if (rc == OK && l.help) help_print(NULL, c);
    else if (rc == OK) rc = c->run(&l);
    command_line_fini(&l);
    return rc;
}

/* An incomplete plan on a full disk would look complete to a caller who checks the exit code. */
static status flush_stdout(void) {
    bool written = fflush(stdout) == 0 && !ferror(stdout);
    /* The write that failed may lie far behind, and its errno with it: another one meets the same. */
    int why = !written && write(STDOUT_FILENO, "\n", 1) < 0 ? errno : EIO;
    console_finish();
    if (written) return OK;
    return ERR(ERR_RUN, "write to stdout: %s; the output is incomplete", strerror(why));
}

/* A standard descriptor that the caller closed would be reused by the next file that is opened, and metrics.jsonl
 * would get the progress lines. /dev/null takes its place, opened in the wrong direction: using it fails, as before. */
static void occupy_standard_files(void) {
    for (int fd = STDIN_FILENO; fd <= STDERR_FILENO; fd++)
        if (fcntl(fd, F_GETFD) < 0 && errno == EBADF) open("/dev/null", fd == STDIN_FILENO ? O_WRONLY : O_RDONLY);
}

/* Runs after all other exit handlers and skips the destructors of libraries: OpenBLAS waits there for its threads,
 * and a thread that gets no memory for its buffer retries forever. */
static void exit_without_destructors(int code, void *unused) {
    (void)unused;
    fflush(NULL);
    _exit(code);
}

int main(int argc, char **argv) {
    occupy_standard_files();
    console_open();
    signal(SIGXFSZ, SIG_IGN); /* a write beyond the size limit then fails with an error */
    mem_exit_when_refused(error_exit_code(ERR_RUN));
    json_set_alloc_funcs(mem_alloc, free); /* jansson silently drops what it cannot allocate */
    on_exit(exit_without_destructors, NULL);
    status rc = dispatch(argc - 1, argv + 1);
    if (rc == OK) rc = flush_stdout();
    if (rc != OK) error_print(stderr);
    return error_exit_code(rc);
}
