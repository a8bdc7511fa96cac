/* hold_gpu.c - takes the memory of the first GPU but for so many bytes, says so, and holds it until it is killed or a minute and a
 * half has passed: another process that came before. Tests build it; the driver is loaded as it is where there is a GPU.
 *
 *     hold_gpu LEAVE_BYTES */
#include <dlfcn.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

enum { HELD_S = 90 };
#define STEP ((size_t)64 << 20) /* a GPU has less in one piece than it has free */

static void *find(void *driver, const char *name) {
    void *f = dlsym(driver, name);
    if (!f) exit((fprintf(stderr, "hold_gpu: no %s\n", name), 1));
    return f;
}

int main(int argc, char **argv) {
    void *driver = dlopen("libcuda.so.1", RTLD_NOW), *context;
    if (argc != 2 || !driver) return fprintf(stderr, "usage: hold_gpu LEAVE_BYTES, on a machine with a GPU\n"), 1;
    int (*init)(unsigned) = (int (*)(unsigned))find(driver, "cuInit");
    int (*retain)(void **, int) = (int (*)(void **, int))find(driver, "cuDevicePrimaryCtxRetain");
    int (*use)(void *) = (int (*)(void *))find(driver, "cuCtxSetCurrent");
    int (*info)(size_t *, size_t *) = (int (*)(size_t *, size_t *))find(driver, "cuMemGetInfo_v2");
    int (*take)(uint64_t *, size_t) = (int (*)(uint64_t *, size_t))find(driver, "cuMemAlloc_v2");
    size_t leave = (size_t)strtoull(argv[1], NULL, 10), left = 0, all = 0;
    uint64_t at;
    if (init(0) || retain(&context, 0) || use(context)) return fprintf(stderr, "hold_gpu: no context\n"), 1;
    for (size_t piece = STEP << 8; piece >= STEP; piece /= 2)
        while (info(&left, &all) == 0 && left >= leave + piece && take(&at, piece) == 0) {}
    printf("holds all but %zu MiB of %zu MiB\n", left >> 20, all >> 20);
    fflush(stdout);
    return (int)sleep(HELD_S);
}
