#pragma once
/* board.h - private to live: what the files of a run directory say, kept up to date, and as JSON.
 *
 * Files come from anyone: every text is checked and cut, every table has an end. One thread calls board_poll; the functions that write
 * JSON, and the stream, are called with the lock held. */
#include "format/format.h"
#include "live/curve.h"
#include "live/stream.h"
#include "live/tail.h"

#include <pthread.h>

enum {
    BOARD_METRICS_MOST = 256,
    BOARD_NAME_MOST = 128, /* bytes of a metric's name */
    BOARD_CURVE_BUCKETS = 2048,
    BOARD_FRESH_BUCKETS = 32, /* of the points that one event carries */
    BOARD_SAMPLES_MOST = 40,  /* of each kind */
    BOARD_TEXT_MOST = 4000,   /* bytes of a prompt or completion */
    BOARD_RANKS_MOST = 1024,
    BOARD_RANKS_DRAWN = 8, /* whose memory is kept over the whole run */
    BOARD_FILE_MOST = 4 << 20,
};

typedef struct board_metric {
    char *name;
    curve all, fresh; /* fresh: since the last event */
} board_metric;

/* A small file that is replaced as a whole. */
typedef struct board_file {
    const char *name;
    uint64_t inode, size;
    int64_t changed_ns;
    bool is_yaml; /* root: what it says as JSON */
    json_t *root; /* NULL: not there, or no object */
    char *text;   /* the same, printed */
} board_file;

enum {
    MONITOR_RSS,
    MONITOR_DEVICE,
    MONITOR_DRIVER,
    MONITOR_HOST,
    MONITOR_BUSY,
    MONITOR_WATTS,
    MONITOR_CELSIUS,
    MONITOR_PACE,
    MONITOR_VALUES
};
typedef struct board_rank {
    int rank;
    char path[32];
    tail tail;
    double time; /* unix seconds of its newest line; 0: none */
    int64_t step;
    double values[MONITOR_VALUES]; /* NAN: not reported */
    curve curves[MONITOR_VALUES];  /* of the first few ranks */
} board_rank;

typedef struct board {
    pthread_mutex_t lock;
    stream stream;
    int dir;
    char *path;     /* of it: another directory may get that name */
    char name[256]; /* of the run */
    char *buffer;   /* of tail_read */

    tail metrics_tail;
    board_metric *metrics;
    size_t n_metrics, n_metrics_unseen; /* the latter: more than the table takes */
    int64_t step;                       /* of the last line; 0: none */
    double step_ms;                     /* moving average */
    bool is_reading;                    /* the file is long and not yet read to its end */

    tail samples_tail, completions_tail;
    json_t *samples, *completions; /* arrays, oldest first */
    json_t *fresh_samples;         /* since the last event */

    board_file run, plan, memory, config;
    board_rank *ranks; /* in order of rank */
    size_t n_ranks, ranks_room, n_ranks_unseen;
    bool ranks_changed;
    uint64_t ranks_ns, beat_ns; /* when ranks were last looked at, and anything was last sent */
    char *run_sent;             /* the last event of the run, less its clock */
} board;

/* name: what the page calls the run; NULL: the last part of its directory. */
status board_open(board *b, const char *run_dir, const char *name, stream_wake_fn wake, void *context);
/* Another run from now on, also while board_poll runs; the clients load everything again. */
status board_follow(board *b, const char *run_dir, const char *name);
void board_close(board *b);
/* Reads what is new and tells the clients. True: there is more to read at once. Takes the lock itself. */
bool board_poll(board *b);

void board_write_run(board *b, strbuf *out);
void board_write_metrics(board *b, size_t width, double after, strbuf *out);
void board_write_samples(board *b, strbuf *out);
void board_write_memory(board *b, size_t width, strbuf *out);
void board_write_plan(board *b, strbuf *out);

/* ---- ranks.c ------------------------------------------------------------------------------------------------------ */

void ranks_fini(board *b);
void ranks_poll(board *b);
void ranks_write(const board *b, strbuf *out); /* {"now", "unseen", "ranks": [...]} */
void ranks_write_curves(const board *b, size_t width, strbuf *out);

/* ---- run_state.c -------------------------------------------------------------------------------------------------- */

void board_file_poll(board_file *f, int dir, bool *changed);
void board_file_fini(board_file *f);
json_t *run_state_make(const board *b); /* the object of /api/run, but for its clock; the caller calls json_decref */
