/* sinks.c - one queue and one thread for each sink of a run, so that one that hangs holds up no other.
 *
 * Lines are put into the queues by the writer of track.c, off the step. A sink that fails is tried again after 1, 2, 4 ... 60 seconds
 * for as long as the run lasts; the first failure and the first recovery are said on the terminal, all of them are lines of
 * RUN/track/log.txt. At the end of the run what is left is sent for some seconds, then it stays in the queue for `ralo track sync`. */
#define _GNU_SOURCE 1 /* pthread_timedjoin_np */
#include "track/sinks.h"
#include "track/sink.h"
#include "track/sink_queue.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define SECOND_NS 1000000000ull
#define LINGER_NS (SECOND_NS / 2) /* between two batches, so that a batch is more than a step */
#define PAUSE_FIRST_NS SECOND_NS  /* after a failure; then twice as long each time */
#define PAUSE_MOST_NS (60 * SECOND_NS)
#define PAUSE_END_NS (SECOND_NS / 2) /* ... while the run waits at its end */
#define BATCH_BYTES ((size_t)1 << 18)

typedef struct sink {
    const sink_row *row; /* NULL: not asked for */
    sinks *all;
    sink_queue queue;
    pthread_t thread;
    bool closing; /* guarded by the queue's lock */

    /* The rest belongs to the sink's thread. */
    void *self; /* NULL: not open */
    char *batch;
    uint64_t next_ns, pause_ns; /* not before; 0: it works */
    bool given_up, said_where, said_failure, said_given_up, said_recovery, said_damage;
    uint64_t n_damaged;
} sink;

enum { SINKS_MOST = 8 };
struct sinks {
    sink list[SINKS_MOST];
    sink_settings settings;
    sink_run run;
    char *run_dir;
    _Atomic uint64_t deadline_ns;
    sinks_say say;
    void *context;
    pthread_mutex_t log_lock;
    atomic_bool said_unwritten;
};

const sink_row *sink_row_at(size_t i) {
#define SINK(ID, name) extern const sink_kind sink_kind_##ID;
#include "track/sinks.def"
#undef SINK
    static const sink_row rows[] = {
#define SINK(ID, name) {name, &sink_kind_##ID},
#include "track/sinks.def"
#undef SINK
    };
    _Static_assert(ARRAY_LENGTH(rows) <= SINKS_MOST, "sinks.def has more rows than there is room for");
    return i < ARRAY_LENGTH(rows) ? &rows[i] : NULL;
}

/* ---- what the user hears ------------------------------------------------------------------------------------------ */

static void log_line(sinks *all, const char *sink_name, const char *text) {
    strbuf path, line;
    strbuf_init(&path);
    strbuf_init(&line);
    strbuf_printf(&path, "%s/track/log.txt", all->run_dir);
    time_t now = time(NULL);
    struct tm tm;
    char stamp[32];
    strftime(stamp, sizeof stamp, "%Y-%m-%dT%H:%M:%SZ", gmtime_r(&now, &tm));
    strbuf_printf(&line, "%s %s: ", stamp, sink_name);
    strbuf_add_escaped(&line, text, strlen(text));
    strbuf_add(&line, "\n");
    pthread_mutex_lock(&all->log_lock);
    int fd = open(path.text, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK, 0644);
    /* A log that cannot be written is no reason to stop: the terminal has the first lines of it. */
    if (fd >= 0 && write(fd, line.text, line.length) < 0) errno = 0;
    if (fd >= 0) close(fd);
    pthread_mutex_unlock(&all->log_lock);
    strbuf_fini(&path);
    strbuf_fini(&line);
}

__attribute__((format(printf, 3, 4))) static void tell(sink *s, bool *once, const char *fmt, ...) {
    char text[1024], line[1100];
    va_list args;
    va_start(args, fmt);
    vsnprintf(text, sizeof text, fmt, args);
    va_end(args);
    log_line(s->all, s->row->name, text);
    if (!*once) {
        snprintf(line, sizeof line, "%s: %s", s->row->name, text);
        s->all->say(s->all->context, line);
    }
    *once = true;
}

/* ---- the sink's thread --------------------------------------------------------------------------------------------- */

static void sink_shut(sink *s) {
    if (s->self) s->row->kind->close(s->self);
    s->self = NULL;
}

static status sink_open_again(sink *s) {
    if (s->self) return OK;
    TRY(s->row->kind->open(&s->self, &s->all->run));
    strbuf where;
    strbuf_init(&where);
    s->row->kind->where(s->self, &where);
    tell(s, &s->said_where, "%s", where.text);
    strbuf_fini(&where);
    return OK;
}

/* A batch is done with when the sink has flushed it. */
static status send_batch(sink *s) {
    size_t n_bytes;
    uint64_t n_damaged = 0;
    TRY(sink_queue_peek(&s->queue, s->batch, BATCH_BYTES, &n_bytes, &s->n_damaged));
    if (n_bytes == 0) return OK;
    TRY(sink_open_again(s));
    for (size_t at = 0; at < n_bytes;) {
        size_t length = (size_t)((char *)memchr(s->batch + at, '\n', n_bytes - at) - (s->batch + at));
        TRY(sink_deliver(s->row->kind, s->self, s->batch + at, length, &n_damaged));
        at += length + 1;
    }
    TRY(s->row->kind->flush(s->self));
    s->n_damaged += n_damaged;
    sink_queue_drop(&s->queue, n_bytes);
    return OK;
}

static void after_failure(sink *s, status rc) {
    char why[512];
    snprintf(why, sizeof why, "%s", error_message());
    error_clear();
    sink_shut(s);
    if (sink_out_of_time(&s->all->run)) return; /* the end of the run says what is left */
    s->given_up = rc == ERR_INPUT;
    bool first = s->pause_ns == 0;
    if (s->given_up)
        tell(s, &s->said_given_up, "%s; nothing more is sent. Numbers are kept in %s: afterwards, ralo track sync %s",
             why, s->queue.path, s->all->run_dir);
    else if (first)
        tell(s, &s->said_failure, "%s; trying again, and until then numbers are kept in %s", why, s->queue.path);
    s->pause_ns = first ? PAUSE_FIRST_NS : MIN(2 * s->pause_ns, PAUSE_MOST_NS);
    s->next_ns = clock_ns() + s->pause_ns;
}

static void after_success(sink *s) {
    if (s->pause_ns) tell(s, &s->said_recovery, "works again, and sends what was kept");
    s->pause_ns = 0;
    s->next_ns = clock_ns() + LINGER_NS;
    if (s->n_damaged > 0 && !s->said_damage)
        tell(s, &s->said_damage, "%llu damaged lines of %s were left out", (unsigned long long)s->n_damaged,
             s->queue.path);
}

/* False: there is nothing more to do before the end of the run, or no time. */
static bool wait_for_work(sink *s) {
    sink_queue *q = &s->queue;
    bool found = false;
    pthread_mutex_lock(&q->lock);
    for (;;) {
        bool empty = q->taken == q->written;
        uint64_t now = clock_ns(), next = s->next_ns;
        if (s->closing) next = s->pause_ns ? MIN(next, now + PAUSE_END_NS) : now;
        if (s->closing && (empty || s->given_up || sink_out_of_time(&s->all->run))) break;
        if (empty || s->given_up) {
            pthread_cond_wait(&q->changed, &q->lock);
        } else if (next > now) {
            struct timespec until = {.tv_sec = (time_t)(next / SECOND_NS), .tv_nsec = (long)(next % SECOND_NS)};
            pthread_cond_timedwait(&q->changed, &q->lock, &until);
            if (s->closing) s->next_ns = MIN(s->next_ns, next);
        } else {
            found = true;
            break;
        }
    }
    pthread_mutex_unlock(&q->lock);
    return found;
}

static void *sink_main(void *argument) {
    sink *s = argument;
    while (wait_for_work(s)) {
        status rc = send_batch(s);
        if (rc == OK) after_success(s);
        else after_failure(s, rc);
    }
    sink_shut(s);
    uint64_t left = sink_queue_count(&s->queue);
    bool said = false;
    if (left > 0)
        tell(s, &said, "%llu records were not sent and are kept in %s; send them with: ralo track sync %s",
             (unsigned long long)left, s->queue.path, s->all->run_dir);
    return NULL;
}

/* ---- all of them --------------------------------------------------------------------------------------------------- */

static status sink_start(sinks *all, size_t i) {
    sink *s = &all->list[i];
    const sink_row *row = sink_row_at(i);
    TRY(sink_queue_open(&s->queue, all->run_dir, row->name));
    s->all = all;
    s->batch = mem_alloc(BATCH_BYTES);
    s->row = row;
    int error = thread_start(&s->thread, sink_main, s);
    if (!error) return OK;
    s->row = NULL;
    free(s->batch);
    sink_queue_close(&s->queue);
    return ERR(ERR_RUN, "the thread of the sink %s did not start: %s", row->name, strerror(error));
}

status sinks_open(sinks **out, const track_sinks *o, const char *run_dir, sinks_say say, void *context) {
    *out = NULL;
    sinks *all = mem_alloc(sizeof *all);
    status rc = sink_settings_init(&all->settings, o, run_dir);
    bool any = false;
    for (size_t i = 0; i < SINKS_MOST; i++) any |= all->settings.on[i];
    if (rc != OK || !any) {
        sink_settings_fini(&all->settings);
        free(all);
        return rc;
    }
    all->run_dir = mem_string(run_dir);
    all->say = say;
    all->context = context;
    atomic_init(&all->deadline_ns, UINT64_MAX);
    all->run = (sink_run){all->run_dir, &all->settings, &all->deadline_ns};
    pthread_mutex_init(&all->log_lock, NULL);
    for (size_t i = 0; sink_row_at(i) && rc == OK; i++)
        if (all->settings.on[i]) rc = sink_start(all, i);
    if (rc == OK) *out = all;
    else {
        error_record why; /* closing must not replace it */
        error_take(&why);
        sinks_close(all);
        rc = error_give(&why);
    }
    return rc;
}

void sinks_put(sinks *all, const char *lines, size_t n_bytes) {
    if (!all || n_bytes == 0) return;
    for (size_t i = 0; i < SINKS_MOST; i++) {
        sink *s = &all->list[i];
        if (s->row && sink_queue_put(&s->queue, lines, n_bytes) != OK) {
            bool said = atomic_exchange(&all->said_unwritten, true);
            tell(s, &said, "%s; it will lack these numbers", error_message());
            error_clear();
        }
    }
}

/* Most ends take no time; of one that does the user should know why nothing moves. */
static void join_and_say(sink *s) {
    struct timespec soon;
    clock_gettime(CLOCK_REALTIME, &soon);
    soon.tv_sec += 1;
    if (pthread_timedjoin_np(s->thread, NULL, &soon) == 0) return;
    char line[160];
    snprintf(line, sizeof line, "%s: sending what is left, for at most %g s (track.wait)", s->row->name,
             s->all->settings.wait);
    s->all->say(s->all->context, line);
    pthread_join(s->thread, NULL);
}

void sinks_close(sinks *all) {
    if (!all) return;
    atomic_store(&all->deadline_ns, clock_ns() + (uint64_t)(all->settings.wait * 1e9));
    for (size_t i = 0; i < SINKS_MOST; i++) {
        sink *s = &all->list[i];
        if (!s->row) continue;
        pthread_mutex_lock(&s->queue.lock);
        s->closing = true;
        pthread_cond_signal(&s->queue.changed);
        pthread_mutex_unlock(&s->queue.lock);
    }
    for (size_t i = 0; i < SINKS_MOST; i++) {
        sink *s = &all->list[i];
        if (!s->row) continue;
        join_and_say(s);
        free(s->batch);
        sink_queue_close(&s->queue);
    }
    pthread_mutex_destroy(&all->log_lock);
    sink_settings_fini(&all->settings);
    free(all->run_dir);
    free(all);
}
