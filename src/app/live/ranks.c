/* ranks.c - monitor/rank-NNNNN.jsonl: signs of life and memory of every rank.
 *
 * Of the first few ranks memory is kept over the whole run, of the others the newest line; more than BOARD_RANKS_MOST are counted. */
#include "live/board.h"

#include <dirent.h>
#include <fcntl.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { NEWEST_BYTES = 4096 };

static const char *const keys[MONITOR_VALUES] = {"rss_bytes",        "device_bytes", "driver_bytes", "host_bytes",
                                                 "gpu_busy_percent", "gpu_watts",    "gpu_celsius",  "pace_ms"};

static bool is_drawn(const board_rank *r) { return r->rank < BOARD_RANKS_DRAWN; }

void ranks_fini(board *b) {
    for (size_t i = 0; i < b->n_ranks; i++)
        for (int v = 0; v < MONITOR_VALUES; v++) curve_fini(&b->ranks[i].curves[v]);
    free(b->ranks);
    b->ranks = NULL;
    b->n_ranks = b->ranks_room = 0;
}

static void name_file(char out[32], int rank) { snprintf(out, 32, "rank-%05d.jsonl", rank); }

static void rank_init(board_rank *r, int rank) {
    *r = (board_rank){.rank = rank};
    name_file(r->path, rank);
    tail_init(&r->tail, NULL, is_drawn(r) ? 0 : NEWEST_BYTES);
    for (int v = 0; v < MONITOR_VALUES; v++) {
        r->values[v] = NAN;
        curve_init(&r->curves[v], BOARD_CURVE_BUCKETS);
    }
}

/* Of "rank-00012.jsonl" the number; -1: no rank writes a file of this name. */
static int rank_of(const char *file) {
    char expected[32];
    int rank;
    if (sscanf(file, "rank-%5d", &rank) != 1 || rank < 0) return -1;
    name_file(expected, rank);
    return strcmp(file, expected) == 0 ? rank : -1;
}

static void add_rank(board *b, int rank) {
    size_t at = 0;
    while (at < b->n_ranks && b->ranks[at].rank < rank) at++;
    if (at < b->n_ranks && b->ranks[at].rank == rank) return;
    if (b->n_ranks == BOARD_RANKS_MOST) {
        b->n_ranks_unseen++;
        return;
    }
    b->ranks = array_grow(b->ranks, &b->ranks_room, b->n_ranks + 1, sizeof *b->ranks);
    memmove(&b->ranks[at + 1], &b->ranks[at], (b->n_ranks - at) * sizeof *b->ranks);
    rank_init(&b->ranks[at], rank);
    b->n_ranks++;
    b->ranks_changed = true;
}

static void monitor_line(void *context, const char *line, size_t n) {
    board_rank *r = context;
    json_t *root = json_loadb(line, n, JSON_REJECT_DUPLICATES, NULL);
    const json_t *time_at = json_object_get(root, "time"), *step = json_object_get(root, "step");
    double at = json_number_value(time_at);
    if (json_is_number(time_at) && at >= r->time && at < 1e11) {
        r->time = at;
        r->step = json_is_integer(step) && json_integer_value(step) >= 0 ? json_integer_value(step) : 0;
        for (int v = 0; v < MONITOR_VALUES; v++) {
            const json_t *value = json_object_get(root, keys[v]);
            double y = json_number_value(value);
            r->values[v] = json_is_number(value) && y >= 0 && y < 1e18 ? y : NAN;
            if (is_drawn(r) && !isnan(r->values[v])) curve_add(&r->curves[v], at, y);
        }
    }
    json_decref(root);
}

static void monitor_again(void *context) {
    board_rank *r = context;
    r->time = 0;
    for (int v = 0; v < MONITOR_VALUES; v++) curve_clear(&r->curves[v]);
}

void ranks_poll(board *b) {
    int fd = openat(b->dir, "monitor", O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    DIR *listing = fd < 0 ? NULL : fdopendir(fd);
    if (!listing) {
        if (fd >= 0) close(fd);
        return;
    }
    b->n_ranks_unseen = 0;
    for (struct dirent *e; (e = readdir(listing));) {
        int rank = rank_of(e->d_name);
        if (rank >= 0) add_rank(b, rank);
    }
    for (size_t i = 0; i < b->n_ranks; i++) {
        board_rank *r = &b->ranks[i];
        double before = r->time;
        r->tail.name = r->path; /* the table may have moved */
        while (tail_read(&r->tail, fd, b->buffer, monitor_again, monitor_line, r)) {}
        if (r->time != before) b->ranks_changed = true;
    }
    closedir(listing);
}

void ranks_write(const board *b, strbuf *out) {
    strbuf_printf(out, "{\"now\":%lld,\"unseen\":%zu,\"ranks\":[", (long long)time(NULL), b->n_ranks_unseen);
    for (size_t i = 0; i < b->n_ranks; i++) {
        const board_rank *r = &b->ranks[i];
        strbuf_printf(out, "%s{\"rank\":%d,\"time\":%.15g,\"step\":%lld", i ? "," : "", r->rank, r->time,
                      (long long)r->step);
        for (int v = 0; v < MONITOR_VALUES; v++)
            if (!isnan(r->values[v])) strbuf_printf(out, ",\"%s\":%.15g", keys[v], r->values[v]);
        strbuf_add(out, "}");
    }
    strbuf_add(out, "]}");
}

void ranks_write_curves(const board *b, size_t width, strbuf *out) {
    strbuf_add(out, "[");
    for (size_t i = 0, n = 0; i < b->n_ranks; i++) {
        const board_rank *r = &b->ranks[i];
        if (!is_drawn(r)) continue;
        strbuf_printf(out, "%s{\"rank\":%d", n++ ? "," : "", r->rank);
        for (int v = 0; v < MONITOR_VALUES; v++) {
            strbuf_printf(out, ",\"%s\":", keys[v]);
            curve_write_json(&r->curves[v], width, -INFINITY, out);
        }
        strbuf_add(out, "}");
    }
    strbuf_add(out, "]");
}
