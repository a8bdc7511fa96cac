/* room_main.c - the main function of a room's test program.
 *
 * The test files of a room are linked into one program, because linking the library once per file took most of the time
 * between an edit and its test. Each file keeps its own main, which the compiler renames to <file>_main
 * (tests/CMakeLists.txt); ROOM_TABLE is the generated list of them.
 *
 *     build/tests/test_gemm ARGUMENT...       a link to the program: runs the main of test_gemm.c, with its arguments
 *     build/tests/room-backend                runs every file of the room
 *     build/tests/room-backend test_gemm      runs the named files
 *
 * In the last two forms each file runs in a process of its own, so a crash is reported with the name of its file and
 * the other files still run. Exit status 77 of a file means that it was skipped. */
#include <errno.h>
#include <spawn.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>

typedef struct test_file {
    const char *name;
    int (*run)(void);
    int (*run_with_arguments)(int argc, char **argv);
} test_file;

#define TEST(name) int name##_main(void);
#define TEST_WITH_ARGUMENTS(name) int name##_main(int argc, char **argv);
#include ROOM_TABLE
#undef TEST
#undef TEST_WITH_ARGUMENTS

#define TEST(name) {#name, name##_main, NULL},
#define TEST_WITH_ARGUMENTS(name) {#name, NULL, name##_main},
static const test_file files[] = {
#include ROOM_TABLE
};
enum { N_FILES = sizeof files / sizeof *files };

extern char **environ;

static const test_file *file_of(const char *name) {
    for (int i = 0; i < N_FILES; i++)
        if (strcmp(files[i].name, name) == 0) return &files[i];
    return NULL;
}

/* Starts this program again under the file's name; fork alone would lose the threads that libraries start when they are
 * loaded. Returns 0 if the file passed or was skipped. */
static int run_in_process(const test_file *f) {
    pid_t pid;
    int how, rc = posix_spawn(&pid, "/proc/self/exe", NULL, NULL, (char *[]){(char *)f->name, NULL}, environ);
    if (rc != 0) {
        fprintf(stderr, "FAILED   %s: cannot start it: %s\n", f->name, strerror(rc));
        return 1;
    }
    while (waitpid(pid, &how, 0) < 0 && errno == EINTR) {}
    if (WIFSIGNALED(how))
        printf("FAILED   %s: crashed with signal %d, %s\n", f->name, WTERMSIG(how), strsignal(WTERMSIG(how)));
    else if (WEXITSTATUS(how) == 77) printf("skipped  %s\n", f->name);
    else if (WEXITSTATUS(how) != 0) printf("FAILED   %s: exit status %d\n", f->name, WEXITSTATUS(how));
    else printf("passed   %s\n", f->name);
    fflush(stdout);
    return WIFSIGNALED(how) || (WEXITSTATUS(how) != 0 && WEXITSTATUS(how) != 77);
}

int main(int argc, char **argv) {
    const char *slash = strrchr(argv[0], '/');
    const test_file *f = file_of(slash ? slash + 1 : argv[0]);
    if (f) return f->run ? f->run() : f->run_with_arguments(argc, argv);
    int n_failed = 0;
    for (int i = 1; i < argc; i++)
        if (!file_of(argv[i])) {
            fprintf(stderr, "%s has no test file '%s'; it has:", argv[0], argv[i]);
            for (int k = 0; k < N_FILES; k++) fprintf(stderr, " %s", files[k].name);
            fprintf(stderr, "\n");
            return 2;
        }
    for (int i = 1; i < argc; i++) n_failed += run_in_process(file_of(argv[i]));
    for (int i = 0; i < N_FILES && argc == 1; i++) n_failed += run_in_process(&files[i]);
    return n_failed > 0;
}
