#pragma once
/* disk_room.h - private to train: the arithmetic of disk_room.c, apart from any disk. */
#include "train/train.h"

/* Checkpoints that a run saves which continues from step `first`, without those that a signal asks for. */
int64_t disk_room_saves(const train_request *r, int64_t first);
/* How many more checkpoints exist at the same time at most, if n_present exist at the start. */
int64_t disk_room_at_once(int64_t n_saves, int64_t keep, int64_t n_present);

/* What a run puts on one file system: n pieces of n_bytes each, at once. */
typedef struct disk_need {
    const char *key, *dir;  /* the setting, and its value */
    const char *one, *many; /* "a checkpoint", "checkpoints"; many: NULL where n is 1 at the most */
    const char *instead;    /* what to do if not even one fits; NULL: another part of the program reports it */
    uint64_t n_bytes;
    int64_t n; /* 0: nothing is written */
    dir_space space;
} disk_need;
/* ERR_INPUT if one piece is larger than all free space. If only the sum for a file system is, *warning says so; else
 * it stays empty. */
status disk_room_check(const disk_need *needs, size_t n, strbuf *warning);
