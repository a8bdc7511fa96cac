/* disk.c - how fast large blocks are written to a directory's disk and read back, through the same code as the nvme
 * tier. */
#include "measure/probe.h"

#include <stdlib.h>

#define BLOCK ((size_t)16 << 20)
#define MOST_BLOCKS 16
#define MOST_SECONDS 2.0

static status move_blocks(disk *d, bool writes, void *buffer, int n_blocks, int *n_done, double *bytes_per_s) {
    double begin = clock_s();
    int i = 0;
    for (; i < n_blocks && clock_s() - begin < MOST_SECONDS; i++) {
        uint64_t at = (uint64_t)i * BLOCK;
        if (writes) TRY(disk_write(d, DISK_WRITER, buffer, at, BLOCK));
        else TRY(disk_read(d, DISK_READER, buffer, at, BLOCK));
    }
    if (writes) TRY(disk_flush(d));
    *bytes_per_s = (double)i * (double)BLOCK / (clock_s() - begin);
    *n_done = i;
    return OK;
}

/* As many blocks as fit in a quarter of the free space. */
static int count_blocks(const char *dir) {
    dir_space space;
    if (!dir_space_get(dir, &space) || space.total == 0) return MOST_BLOCKS; /* disk_open reports what is wrong */
    double room = (double)space.free / 4;
    return (int)MAX(1, MIN(room / (double)BLOCK, (double)MOST_BLOCKS));
}

status measure_disk(const char *dir, hardware *h, bool *direct) {
    int n_blocks = count_blocks(dir), n_written = 0, n_read = 0;
    void *buffer = NULL;
    disk *d = NULL;
    status rc = OK;
    if (posix_memalign(&buffer, NVME_SECTOR, BLOCK) != 0) return ERR(ERR_FIT, "no memory for %zu bytes", BLOCK);
    rng_normal_fill(1, 0, buffer, BLOCK / sizeof(float), 0, 1); /* a drive may store zeros without writing them */
    TRY_GOTO(rc, disk_open(&d, dir, (uint64_t)n_blocks * BLOCK, buffer, BLOCK), done);
    *direct = disk_is_direct(d);
    TRY_GOTO(rc, move_blocks(d, true, buffer, n_blocks, &n_written, &h->disk_write), done);
    TRY_GOTO(rc, move_blocks(d, false, buffer, n_written, &n_read, &h->disk_read), done);
done:
    if (rc != OK) {
        char why[512];
        snprintf(why, sizeof why, "%s", error_message());
        rc = ERR(ERR_IO, "cannot measure the disk of %s (%s); name another directory with --path", dir, why);
    }
    disk_close(d);
    free(buffer);
    return rc;
}
