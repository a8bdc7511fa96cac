/* driver.c - main for fuzz targets where libFuzzer is not: replays files and directories of files.
 *
 *     fuzz_yaml tests/fuzz/corpus/fuzz_yaml
 *     fuzz_yaml crash-0a1b2c                    one finding
 *
 * Memory is limited about as in `make fuzz`: an input of some kilobytes has no reason to take half a gigabyte. (Not with
 * a sanitizer, which reserves terabytes of addresses.)
 * A directory without files is an error: it would pass whatever the target does. */
#include "fuzz/fuzz.h"

#include <dirent.h>
#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#define MEMORY_LIMIT ((rlim_t)512 << 20)
#define INPUT_MAX_BYTES ((size_t)16 << 20)

static char current[4096];

static void say(const char *text) {
    ssize_t written = write(STDERR_FILENO, text, strlen(text));
    (void)written; /* there is nothing to do about it in a signal handler */
}

static void on_signal(int number) {
    say("\nfuzz: stopped in ");
    say(current);
    say("\n");
    signal(number, SIG_DFL);
    raise(number);
}

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
static void limit_memory(void) {}
#else
/* Beyond what is mapped already: OpenBLAS reserves buffers when it is loaded. */
static void limit_memory(void) {
    unsigned long n_pages = 0;
    FILE *f = fopen("/proc/self/statm", "r");
    if (!f || fscanf(f, "%lu", &n_pages) != 1) n_pages = 0;
    if (f) fclose(f);
    rlim_t limit = (rlim_t)n_pages * (rlim_t)sysconf(_SC_PAGESIZE) + MEMORY_LIMIT;
    setrlimit(RLIMIT_AS, &(struct rlimit){limit, limit}); /* refusal costs the check of memory only */
}
#endif

static int replay(const char *path) {
    char *bytes;
    size_t n_bytes;
    snprintf(current, sizeof current, "%s", path);
    if (file_read_all(path, INPUT_MAX_BYTES, &bytes, &n_bytes) != OK) {
        error_print(stderr);
        return 2;
    }
    uint8_t *exact = malloc(n_bytes ? n_bytes : 1); /* without the NUL behind it, so that reading on is seen */
    ASSERT(exact);
    memcpy(exact, bytes, n_bytes);
    free(bytes);
    LLVMFuzzerTestOneInput(exact, n_bytes);
    free(exact);
    return 0;
}

static int by_name(const struct dirent **a, const struct dirent **b) { return strcmp((*a)->d_name, (*b)->d_name); }
static int is_file(const struct dirent *e) { return e->d_name[0] != '.'; }

static int replay_directory(const char *path, int *n_replayed) {
    struct dirent **entries;
    int rc = 0, n = scandir(path, &entries, is_file, by_name);
    if (n <= 0) {
        fprintf(stderr, "fuzz: %s: %s\n", path, n < 0 ? strerror(errno) : "no files, expected a corpus");
        if (n == 0) free(entries);
        return 2;
    }
    for (int i = 0; i < n; i++) {
        char file[4096];
        snprintf(file, sizeof file, "%.3800s/%.255s", path, entries[i]->d_name);
        if (rc == 0) rc = replay(file);
        free(entries[i]);
    }
    free(entries);
    *n_replayed += n;
    return rc;
}

int main(int argc, char **argv) {
    int n_replayed = 0, rc = 0;
    if (argc < 2) {
        fprintf(stderr, "usage: %s FILE|DIRECTORY...\n", argv[0]);
        return 2;
    }
    signal(SIGABRT, on_signal);
    signal(SIGSEGV, on_signal);
    LLVMFuzzerInitialize(&argc, &argv);
    fuzz_checks_all = true;
    limit_memory();
    for (int i = 1; i < argc && rc == 0; i++) {
        struct stat info;
        bool is_directory = stat(argv[i], &info) == 0 && S_ISDIR(info.st_mode);
        rc = is_directory ? replay_directory(argv[i], &n_replayed) : replay(argv[i]);
        n_replayed += !is_directory;
    }
    if (rc == 0) printf("%d inputs replayed\n", n_replayed);
    return rc;
}
