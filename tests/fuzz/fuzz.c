/* fuzz.c - sections, files in memory, and the check of refusals: see fuzz.h.
 *
 * The readers take paths, so an input becomes a file: a memfd, reached through /proc/self/fd, which costs no disk and
 * leaves nothing behind. Where a reader wants names of its own (a checkpoint directory), links lead from there. */
#define _GNU_SOURCE 1 /* memfd_create */
#include "fuzz/fuzz.h"

#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/time.h>
#include <unistd.h>

enum { LIMIT_S = 10 };
bool fuzz_checks_all;

static int slots[FUZZ_SLOTS];
static char paths[FUZZ_SLOTS][32];
static char directory[4096];

/* Processor time, not libFuzzer's time of day: the machine may be busy with something else. A timer for all inputs that ticks
 * every second: setting one for each would cost more than many of them do. */
static volatile sig_atomic_t n_ticks, is_reading; /* not while libFuzzer or the search for leaks is busy */

static void tick(int signal) {
    static const char text[] = "fuzz: more than 10 s of processor time for an input\n";
    if (!is_reading || ++n_ticks <= LIMIT_S) return;
    ssize_t written = write(STDERR_FILENO, text, sizeof text - 1);
    (void)written; /* there is nothing to do about it in a signal handler */
    abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    n_ticks = 0;
    is_reading = 1;
    fuzz_one(data, size);
    is_reading = 0;
    return 0;
}

int LLVMFuzzerInitialize(int *argc, char ***argv) {
    signal(SIGPROF, tick);
    setitimer(ITIMER_PROF, &(struct itimerval){{.tv_sec = 1}, {.tv_sec = 1}}, NULL);
    log_set_level(LOG_ERROR); /* a warning for every second input says nothing */
    for (int i = 0; i < FUZZ_SLOTS; i++) {
        slots[i] = memfd_create("fuzz", 0);
        ASSERT(slots[i] >= 0);
        snprintf(paths[i], sizeof paths[i], "/proc/self/fd/%d", slots[i]);
    }
    return 0;
}

bool fuzz_sometimes(const uint8_t *data, size_t size, unsigned one_in) {
    uint32_t hash = 2166136261u; /* FNV: of the bytes alone, so that a finding is found again */
    for (size_t i = 0; i < size; i++) hash = (hash ^ data[i]) * 16777619u;
    return fuzz_checks_all || (hash >> 8) % one_in == 0;
}

span fuzz_section(fuzz_input *in) {
    const uint8_t *end = in->n_left ? memchr(in->at, 0xff, in->n_left) : NULL;
    size_t n = end ? (size_t)(end - in->at) : in->n_left;
    span s = {(const char *)in->at, n};
    in->at += n + (end != NULL);
    in->n_left -= n + (end != NULL);
    return s;
}

span fuzz_rest(fuzz_input *in) {
    span s = {(const char *)in->at, in->n_left};
    in->at += in->n_left;
    in->n_left = 0;
    return s;
}

char *fuzz_text(const span *s) {
    char *text = mem_alloc(s->length + 1);
    if (s->length) memcpy(text, s->text, s->length);
    return text;
}

const char *fuzz_file(int slot, const void *bytes, size_t n_bytes) {
    const char *at = bytes;
    for (size_t done = 0; done < n_bytes;) {
        ssize_t n = pwrite(slots[slot], at + done, n_bytes - done, (off_t)done);
        ASSERT(n > 0 || errno == EINTR);
        if (n > 0) done += (size_t)n;
    }
    ASSERT(ftruncate(slots[slot], (off_t)n_bytes) == 0); /* behind the write: its pages stay */
    return paths[slot];
}

static void directory_remove(void) { dir_remove_all(directory); }

const char *fuzz_directory(const char *const names[], int n) {
    if (*directory) return directory;
    const char *parent = getenv("TMPDIR");
    snprintf(directory, sizeof directory, "%.4000s/fuzz-XXXXXX", parent && *parent ? parent : "/tmp");
    ASSERT(mkdtemp(directory));
    atexit(directory_remove);
    for (int i = 0; i < n; i++) {
        char name[4200];
        snprintf(name, sizeof name, "%s/%s", directory, names[i]);
        ASSERT(symlink(paths[i], name) == 0);
    }
    return directory;
}

void fuzz_refused(status rc) {
    ASSERT(rc == ERR_INPUT || rc == ERR_FIT || rc == ERR_IO);
    ASSERT(error_code() == rc && *error_message());
}
