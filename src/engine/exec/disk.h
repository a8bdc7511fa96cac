#pragma once
/* disk.h - the nvme tier as one file without a name.
 *
 * The file is removed from its directory as soon as it is open, so nothing is left behind however the process ends. Its
 * space is taken at open: a disk that is too small is an error before the first step, not in the middle of a run.
 * Transfers are in whole sectors past the page cache (O_DIRECT) through io_uring where both are to be had. */
#include "program/program.h"

/* Who transfers: each has a queue of its own, used by one thread. */
typedef enum disk_lane { DISK_READER, DISK_WRITER, DISK_LANES } disk_lane;

typedef struct disk disk;
/* staging: the memory that transfers will be made from and to, registered with the kernel where it allows that. */
status disk_open(disk **out, const char *dir, uint64_t n_bytes, void *staging, size_t staging_bytes);
void disk_close(disk *d);
bool disk_is_direct(const disk *d);     /* past the page cache */
status disk_flush(disk *d);             /* what was written is on the drive, and no longer in the page cache */
const char *disk_method(const disk *d); /* "io_uring, O_DIRECT, registered buffers": for people */
/* memory and offset are multiples of a sector, and both sides have room for n_bytes rounded up to one. */
status disk_read(disk *d, disk_lane lane, void *memory, uint64_t offset, size_t n_bytes);
status disk_write(disk *d, disk_lane lane, const void *memory, uint64_t offset, size_t n_bytes);
/* Any bytes, from any thread: for loading, saving and hashing, not for steps. */
status disk_read_bytes(disk *d, void *memory, uint64_t offset, size_t n_bytes);
status disk_write_bytes(disk *d, const void *memory, uint64_t offset, size_t n_bytes);
