#pragma once
/* base.h - what every room uses: errors with a trail, log, arenas, strings, rng, clock, threads.
 *
 * Promises
 *   - A function that can fail returns `status`; OK is 0. The error itself (code, message, trail of the places it
 *     passed) is kept per thread until the next ERR on that thread; reporting a failure never calls malloc.
 *   - Random numbers are a pure function of (key, counter): any thread, any order, any resume gives the same bits.
 *   - There is one thread pool and one level of threading. The caller cuts work into tasks from shapes alone,
 *     so results never depend on how many threads ran them.
 *
 *     status load(const char *path) {
 *         FILE *f = fopen(path, "rb");
 *         if (!f) return ERR(ERR_IO, "open %s: %s", path, strerror(errno));
 *         ...
 *     }
 *     status start(void) { TRY(load("a.txt")); return OK; }
 *     ...
 *     if (start() != OK) error_print(stderr); */
#include <pthread.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

/* ---- errors ------------------------------------------------------------------------------------------------- */

typedef enum status {
    OK = 0,
    ERR_RUN,         /* the run failed (NaN loss, a rank died ...)                      exit 1   */
    ERR_INPUT,       /* the request was wrong: config, arguments, files                 exit 2   */
    ERR_IO,          /* the operating system refused a file or device                   exit 2   */
    ERR_FIT,         /* it does not fit                                                 exit 3   */
    ERR_INTERRUPTED, /* a signal asked us to stop, after a checkpoint                   exit 130 */
    ERR_BUG,         /* an invariant of ralo itself broke; the message names it         exit 1   */
} status;

/* Records the error and returns its code: `return ERR(ERR_INPUT, "%s: key '%s' ...", file, key);` */
#define ERR(code, ...) error_set((code), __FILE__, __LINE__, __func__, __VA_ARGS__)
/* Passes an error up, adding this place to its trail. */
#define TRY(expr)                                                                     \
    do {                                                                              \
        status try_rc_ = (expr);                                                      \
        if (try_rc_ != OK) return error_trail(try_rc_, __FILE__, __LINE__, __func__); \
    } while (0)
#define TRY_GOTO(rc, expr, label)                            \
    do {                                                     \
        (rc) = (expr);                                       \
        if ((rc) != OK) {                                    \
            error_trail((rc), __FILE__, __LINE__, __func__); \
            goto label;                                      \
        }                                                    \
    } while (0)

status error_set(status code, const char *file, int line, const char *func, const char *fmt, ...)
    __attribute__((format(printf, 5, 6)));
status error_trail(status code, const char *file, int line, const char *func);
const char *error_message(void); /* of this thread's last error; "" if none */
status error_code(void);
int error_trail_length(void);
const char *error_trail_at(int i); /* "src/base/format/json.c:41 json_read_file"; 0 = where it was made */
void error_clear(void);
const char *error_label(status code); /* "error", or "stopped" for ERR_INTERRUPTED */
void error_print(FILE *out);          /* message, and the trail when RALO_TRAIL=1 or the code is ERR_BUG */
int error_exit_code(status code);
/* Errors made on a worker thread are carried to the caller's thread. */
typedef struct error_record {
    status code;
    int n_trail;
    char message[4000]; /* a file of another program may be refused for many reasons at once */
    char trail[16][128];
} error_record;
void error_take(error_record *out);       /* copies this thread's error and clears it */
status error_give(const error_record *r); /* makes it this thread's error */

/* Invariants stay on in release builds: a wrong plan must never become a wrong run. */
#define ASSERT(cond)                                                                     \
    do {                                                                                 \
        if (__builtin_expect(!(cond), 0)) base_assert_failed(#cond, __FILE__, __LINE__); \
    } while (0)
_Noreturn void base_assert_failed(const char *what, const char *file, int line);

#define ARRAY_LENGTH(a) (sizeof(a) / sizeof((a)[0]))
#define MIN(a, b) ((a) < (b) ? (a) : (b))
#define MAX(a, b) ((a) > (b) ? (a) : (b))

/* n in whole units: how many of them, and how much they hold. n is not negative. */
static inline int64_t divide_up(int64_t n, int64_t unit) { return (n + unit - 1) / unit; }
static inline int64_t round_up(int64_t n, int64_t unit) { return divide_up(n, unit) * unit; }
/* The same for addresses and sizes, without a division: alignment is a power of two. */
static inline size_t align_up(size_t n, size_t alignment) { return (n + alignment - 1) & ~(alignment - 1); }

/* ---- log: stderr, one line per call ------------------------------------------------------------------------- */

typedef enum log_level { LOG_DEBUG, LOG_INFO, LOG_WARN, LOG_ERROR } log_level;
void log_set_level(log_level level);
/* Sends log lines, without prefix and line break, to a callback on the thread that wrote them; NULL (the default):
 * stderr. */
typedef void (*log_sink)(void *context, log_level level, const char *line);
void log_set_sink(log_sink sink, void *context); /* before any other thread may log */
void log_write(log_level level, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
#define log_debug(...) log_write(LOG_DEBUG, __VA_ARGS__)
#define log_info(...) log_write(LOG_INFO, __VA_ARGS__)
#define log_warn(...) log_write(LOG_WARN, __VA_ARGS__)
#define log_error(...) log_write(LOG_ERROR, __VA_ARGS__)

/* ---- arena: many small objects, one life -------------------------------------------------------------------- */

typedef struct arena_block arena_block;
typedef struct arena {
    arena_block *blocks;
    size_t n_bytes; /* handed out in all */
} arena;
void arena_init(arena *a);
void arena_fini(arena *a);
void *arena_alloc(arena *a, size_t n_bytes); /* zeroed, 16-byte aligned; never NULL (out of memory aborts) */
void *arena_copy(arena *a, const void *src, size_t n_bytes);
char *arena_string(arena *a, const char *s);
char *arena_format(arena *a, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
#define arena_new(a, type) ((type *)arena_alloc((a), sizeof(type)))
#define arena_array(a, type, n) ((type *)arena_alloc((a), sizeof(type) * (size_t)(n)))

/* Growable array of anything, for code that is not in the step: xs = array_grow(xs, &cap, n + 1, sizeof *xs). */
void *array_grow(void *items, size_t *capacity, size_t needed, size_t item_bytes);
void *mem_alloc(size_t n_bytes);            /* zeroed malloc that aborts with a message instead of returning NULL */
char *mem_string(const char *s);            /* a copy, likewise; the caller frees */
_Noreturn void mem_refused(size_t n_bytes); /* that message, for memory that a library asked for */

/* ---- sort --------------------------------------------------------------------------------------------------- */

typedef struct sort_row {
    uint64_t key;
    size_t item; /* the caller's */
} sort_row;
/* Sorts by the smallest key first. Rows with equal keys keep their order (a stable sort). */
void sort_rows(sort_row *rows, size_t n);

/* ---- strings ------------------------------------------------------------------------------------------------ */

typedef struct span {
    const char *text; /* not NUL terminated */
    size_t length;
} span;

typedef struct strbuf {
    char *text; /* always NUL terminated after the first write */
    size_t length, capacity;
} strbuf;
void strbuf_init(strbuf *b);
void strbuf_fini(strbuf *b);
void strbuf_add(strbuf *b, const char *s);
void strbuf_add_bytes(strbuf *b, const void *bytes, size_t n);
void strbuf_add_word(strbuf *b, const char *text); /* as a shell reads it back: quoted where it must be */
void strbuf_printf(strbuf *b, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
char *strbuf_take(strbuf *b); /* the caller frees; b is empty again */

/* How far bytes are UTF-8: n_valid of them, then n_bad bytes (0 at the end of the text) that one U+FFFD stands for.
 * is_cut: those are the beginning of a character that the end of the text cuts off. */
typedef struct utf8_scan {
    size_t n_valid, n_bad;
    bool is_cut;
} utf8_scan;
utf8_scan utf8_check(const char *text, size_t n_bytes);
/* The code point at *text, which moves behind it; -1, and *text stays, where none begins there. Text ends with 0. */
int32_t utf8_next(const char **text);
size_t utf8_mark_bytes(const char *text,
                       size_t n_bytes); /* of a byte order mark before a text, which is none of it; or 0 */

/* Text of files, names and models, made safe to show: control characters except line break and tab, marks of writing
 * direction, and bytes that are not UTF-8, become \x1b, \x9f, \u009b or \u202e, so that they cannot control a terminal
 * or show another order of letters. JSON stays valid JSON. Writes
 * at most `room` bytes to out and returns how many; *taken: how many bytes of text they stand for. `more`: text
 * follows, so a character that is cut off at the end is left for the next call. */
size_t text_escape(const char *text, size_t n_bytes, bool more, char *out, size_t room, size_t *taken);
void strbuf_add_escaped(strbuf *b, const char *text, size_t n_bytes);

bool str_ends_with(const char *s, const char *suffix);
bool str_starts_with(const char *s, const char *prefix);
const char *str_after_last_dot(const char *key); /* the whole key where it has none */
int str_edit_distance(const char *a, const char *b);
/* "did you mean": the nearest of the names that are tried, the first of equals.
 *     str_nearest n = {.wanted = "trian"};
 *     for (size_t i = 0; i < N; i++) str_nearest_try(&n, names[i]);
 *     if (*n.name) ... did you mean n.name ... else ... where the names are listed */
typedef struct str_nearest {
    const char *wanted;
    bool has_groups; /* names are keys such as "train.lr": a wrong or missing group counts as one error more */
    char name[128];  /* "": no name is near enough */
    int distance;
} str_nearest;
bool str_nearest_try(str_nearest *n, const char *name); /* true: this is the nearest so far */
/* "8G", "8Gi", "1.5 GiB", "4096", "512M" (1024-based) -> bytes. */
status str_parse_bytes(const char *s, uint64_t *out);
/* 1536 -> "1.5 KiB". Writes into buf and returns it. */
char *str_format_bytes(char buf[32], uint64_t n_bytes);
char *str_format_count(char buf[32], double n);    /* 124439808 -> "124.4M" */
char *str_format_seconds(char buf[32], double s);  /* 0.1473 -> "147.3 ms", 49.75 -> "49.8 s", 5400 -> "1.5 h" */
char *str_format_duration(char buf[32], double s); /* of a whole run: 5 -> "5 s", 2760 -> "46 min", 5400 -> "1.5 h" */
/* A number that str_parse_bytes reads as at least n_bytes: 6190000 -> "6.0M". */
char *str_format_limit(char buf[32], uint64_t n_bytes);
/* Opens a file for reading; only a regular file. A pipe would keep the reader waiting, a device may have no end or
 * effects when it is opened. A descriptor that the user opened may be anything: /dev/stdin, and /dev/fd/N, as a
 * shell writes <(command). The caller closes *fd. */
status file_open(const char *path, int *fd);
/* A regular file named `name` in the open directory `dir` (AT_FDCWD: any path), through no link. `shown`: its path for
 * messages. *n_bytes: its size. */
status file_open_at(int dir, const char *name, const char *shown, int *fd, uint64_t *n_bytes);
status file_read_all(const char *path, size_t max_bytes, char **out, size_t *n_bytes); /* caller frees; NUL added */
/* The rest of an open file. `shown`: its path for messages. */
status file_read_fd(int fd, const char *shown, size_t max_bytes, char **out, size_t *n_bytes);
status file_write_new(const char *path, const char *text,
                      size_t n_bytes); /* that was not there; on disk when it returns */
/* All or nothing: writes a new file beside it, flushes it, and renames it over the old one. */
status file_replace(const char *path, const char *text, size_t n_bytes);
/* The same for a path that a user gave: a device or pipe is written to directly. */
status file_write_whole(const char *path, const char *text, size_t n_bytes);
/* Makes a new file or directory beside `path`, to be renamed to it when it is complete: its name, and an open fd
 * that holds a lock on it until it is closed. Removes what killed writers of the same path left behind. After an error
 * errno is the reason. */
status temporary_make(const char *path, bool directory, strbuf *name, int *fd);
const char *temporary_directory(void); /* TMPDIR, or /tmp: for files that belong beside no other */
/* A shared library that is loaded when it is first needed (library.c), and stays. `place`: of a pointer to the function `name`. False:
 * `why` says what is missing. */
typedef struct library_symbol {
    const char *name;
    void *place;
} library_symbol;
bool library_load(const char *file, const library_symbol *symbols, size_t n, char *why, size_t n_why);

/* What is printed to a FILE, as text: print to memstream_open(&m), then take it (the caller frees) or save it as
 * file_write_whole does. */
typedef struct memstream {
    FILE *out;
    char *text;
    size_t n_bytes;
} memstream;
FILE *memstream_open(memstream *m);
char *memstream_take(memstream *m);
status memstream_save(memstream *m, const char *path);
status dir_make(const char *path);                 /* mkdir -p */
status dir_sync(const char *path);                 /* the names in it are on disk */
bool dir_holds(const char *dir, const char *name); /* is there something of this name in it? */
status dir_remove_all(const char *path);           /* rm -r; no error when absent */
/* `path`, or if it does not exist the nearest directory above that does: where it would be made. out is empty
 * before. */
void dir_nearest(const char *path, strbuf *out);
typedef struct dir_space {
    uint64_t total, free; /* bytes; total 0: the file system does not count */
    uint64_t reserve;     /* beyond `free`, kept for root: 0 for everyone else */
    uint64_t file_system; /* the same number for all directories on it */
} dir_space;
bool dir_space_get(const char *path, dir_space *out); /* of what is there; false: errno says why not */

/* ---- rng: Philox4x32-10, counter based ---------------------------------------------------------------------- */

/* The four words for (key, counter). key = what the numbers are for, counter = which of them. */
void rng_philox(uint64_t key, uint64_t counter_hi, uint64_t counter_lo, uint32_t out[4]);
uint64_t rng_key(uint64_t seed, const char *purpose); /* a key per purpose: rng_key(seed, "init.wte") */
uint64_t rng_u64(uint64_t key, uint64_t index);
double rng_uniform(uint64_t key, uint64_t index);                                                /* [0, 1) */
uint64_t rng_below(uint64_t key, uint64_t index, uint64_t n);                                    /* [0, n) */
void rng_uniform_fill(uint64_t key, uint64_t first, float *out, size_t n, float bound);          /* [-bound, bound) */
void rng_normal_fill(uint64_t key, uint64_t first, float *out, size_t n, float mean, float std); /* Box-Muller */
/* Element i of the seeded permutation of 0..n-1, in O(1) memory (a Feistel walk). */
uint64_t rng_permute(uint64_t key, uint64_t i, uint64_t n);

/* Noise for stochastic rounding: counter based like Philox, at a tenth of its cost. Philox makes a key for each block of
 * RNG_NOISE_BLOCK words; inside the block a 32-bit mixer (two multiplications, the constants of lowbias32) runs over a
 * Weyl sequence. Words are uniform and neighbours, blocks and keys uncorrelated as far as rounding can tell, which is
 * what test_noise proves; good for nothing more. */
#define RNG_NOISE_BLOCK 65536
typedef struct rng_noise {
    uint32_t start, key;
} rng_noise;
rng_noise rng_noise_block(uint64_t key, uint64_t counter_hi, uint64_t block);
static inline uint32_t rng_noise_word(rng_noise n, uint32_t i) { /* i < RNG_NOISE_BLOCK */
    uint32_t x = n.start + i * 0x9e3779b9u;
    x = (x ^ x >> 16) * 0x7feb352du;
    x = ((x ^ x >> 15) + n.key) * 0x846ca68bu;
    return x ^ x >> 16;
}

/* ---- clock -------------------------------------------------------------------------------------------------- */

uint64_t clock_ns(void); /* monotonic */
double clock_s(void);

/* ---- threads ------------------------------------------------------------------------------------------------ */

/* Starts a thread that blocks every signal: handlers run on the threads of the program that has them, and a closed pipe is an error of
 * write, not a signal. 0, or the error number of pthread_create. */
int thread_start(pthread_t *out, void *(*run)(void *), void *context);

typedef struct pool pool;
/* n_threads 0: one per physical core this process may use. bind: fix each thread to a core with hwloc. */
status pool_open(pool **out, int n_threads, bool bind);
void pool_close(pool *p);
int pool_threads(const pool *p);
/* Calls fn(context, task, thread) for every task in 0..n_tasks-1 and returns when all are done. The caller's thread
 * takes part as thread 0. Tasks are claimed dynamically; fn must not care which thread runs it, except to pick its
 * own scratch memory with `thread`. Never allocates; one run at a time; not from inside a task. */
typedef void (*pool_fn)(void *context, int64_t task, int thread);
void pool_run(pool *p, pool_fn fn, void *context, int64_t n_tasks);
/* The number of the task to run as the task-th of n_tasks, so that work begins at n_places at once: tasks are
 * claimed in order, and this order takes one task of each place in turn. Every one of 0..n_tasks-1 comes once. */
static inline int64_t task_spread(int64_t task, int64_t n_tasks, int64_t n_places) {
    int64_t each = n_tasks / n_places, longer = n_tasks % n_places, place = task % n_places;
    return place * each + MIN(place, longer) + task / n_places;
}
/* First touch of fresh memory, as a task of any pool: otherwise the first step pays for it, at a gigabyte per second
 * and thread. Neighbouring pages are touched far apart in time: memory is handed out in order, and on some machines
 * a part of it is nearer than the rest (a virtual machine does not tell), so every tensor gets some of both.
 * context: a page_range. */
typedef struct page_range {
    void *memory;
    size_t n_bytes;
} page_range;
int64_t page_touch_tasks(const page_range *r);
void page_touch(void *context, int64_t task, int thread);
/* Each worker thread calls enter() before and leave() after its part of a run (the allocation guard uses it to arm
 * itself on that thread). The caller's own thread does not. NULL for none. Set it between runs. */
void pool_set_hook(pool *p, void (*enter)(void), void (*leave)(void));

/* ---- the machine -------------------------------------------------------------------------------------------- */

typedef struct sys_info {
    char cpu_name[128];
    char arch[16];    /* aarch64, x86_64 */
    int n_cores;      /* this process may use */
    bool bf16_matrix; /* has instructions that multiply matrices of bf16: BFMMLA, AMX */
    uint64_t memory_total, memory_available;
} sys_info;
void sys_info_get(sys_info *out);
uint64_t sys_rss_bytes(void);      /* resident now */
uint64_t sys_rss_peak_bytes(void); /* VmHWM */
void sys_rss_peak_reset(void);     /* to what is resident now; where the system refuses, it stays the highest so far */

/* CPU seconds of all cores of the machine since it started; all 0 if the system does not report them. */
typedef struct sys_cores {
    double own;  /* of this process and the children it has waited for */
    double busy; /* of all programs, this one too */
    double idle;
    double stolen; /* waiting for a core that the hypervisor gave to another virtual machine */
} sys_cores;
void sys_cores_get(sys_cores *out);
/* How much other load there was between two readings, as shares of the CPU time. 0 if there were idle cores, and if
 * the readings are too close to each other to tell. */
typedef struct sys_contention {
    double others; /* other programs */
    double stolen; /* other virtual machines */
} sys_contention;
sys_contention sys_contention_between(const sys_cores *before, const sys_cores *after);
/* "other programs used 12 % of the CPU time, other virtual machines 7 %"; empty if it is too little to matter. */
const char *sys_contention_text(char out[128], const sys_contention *c);
