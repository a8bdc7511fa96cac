/* child.c - see child.h. */
#include "child.h"

#include <fcntl.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

bool aborts(void (*fn)(void)) {
    fflush(NULL);
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        struct rlimit no_core = {0, 0};
        setrlimit(RLIMIT_CORE, &no_core);
        signal(SIGABRT, SIG_DFL);
        int quiet = open("/dev/null", O_WRONLY);
        dup2(quiet, STDERR_FILENO);
        fn();
        _exit(0);
    }
    int how;
    assert_int_equal(waitpid(child, &how, 0), child);
    return WIFSIGNALED(how) && WTERMSIG(how) == SIGABRT;
}

int with_little_memory(size_t n_bytes, int (*fn)(void)) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
    return SKIPPED;
#endif
    unsigned long pages = 0;
    FILE *f = fopen("/proc/self/statm", "r");
    assert_true(f && fscanf(f, "%lu", &pages) == 1);
    fclose(f);
    fflush(NULL);
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        struct rlimit no_core = {0, 0}, most;
        most.rlim_cur = most.rlim_max = pages * (rlim_t)sysconf(_SC_PAGESIZE) + n_bytes;
        setrlimit(RLIMIT_CORE, &no_core);
        setrlimit(RLIMIT_AS, &most);
        signal(SIGABRT, SIG_DFL);
        _exit(fn());
    }
    int how;
    assert_int_equal(waitpid(child, &how, 0), child);
    return WIFEXITED(how) ? WEXITSTATUS(how) : -1;
}
