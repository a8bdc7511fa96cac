#pragma once
/* disk_room.h - private to train: the arithmetic of disk_room.c, apart from any disk. */
#include "train/train.h"

/* Checkpoints that a run saves which goes on from step `first`. What a signal asks for is not among them. */
int64_t disk_room_saves(const train_request *r, int64_t first);
/* With n_present of them there at the start: how many more there are at once, at the most. */
int64_t disk_room_at_once(int64_t n_saves, int64_t keep, int64_t n_present);

/* What a run puts on one file system: n pieces of n_bytes each, at once. */
typedef struct disk_need {
    const char *key, *dir;  /* the setting, and its value */
    const char *one, *many; /* "a checkpoint", "checkpoints"; many: NULL where n is 1 at the most */
    const char *instead;    /* what to do where not even one has room; NULL: another part of the program says so */
    uint64_t n_bytes;
    int64_t n; /* 0: nothing is written */
    dir_space space;
} disk_need;
/* ERR_INPUT where one piece is larger than all that is free. Where the pieces of a file system are together, *warning says
 * so; otherwise it stays empty. */
status disk_room_judge(const disk_need *needs, size_t n, strbuf *warning);
