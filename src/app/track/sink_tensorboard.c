/* sink_tensorboard.c - event files, which TensorBoard and everything that reads its format show while they grow.
 *
 * Every opening makes a file of its own: readers follow all of a directory in order of their names. Its first step is marked as a
 * start, from which on readers forget what an earlier file said, so a resumed run that repeats steps shows each once, and so does a
 * batch that is written again. Values are single precision, as the format has them. */
#include "track/event_file.h"
#include "track/sink.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

typedef struct tensorboard {
    strbuf path, dir;
    int fd;
    off_t whole; /* bytes of whole records in the file */
    strbuf pending;
    int64_t last_step; /* -1: none yet */
} tensorboard;

static void tensorboard_close(void *self) {
    tensorboard *t = self;
    if (t->fd >= 0) close(t->fd);
    strbuf_fini(&t->path);
    strbuf_fini(&t->dir);
    strbuf_fini(&t->pending);
    free(t);
}

/* events.out.tfevents.<seconds>.<host>.<pid>.<n>, new. */
static status make_file(tensorboard *t, const char *dir) {
    char host[64] = "localhost";
    gethostname(host, sizeof host - 1);
    host[strcspn(host, "/")] = 0;
    for (int i = 0; i < 10000; i++) {
        t->path.length = 0;
        strbuf_printf(&t->path, "%s/events.out.tfevents.%010lld.%s.%ld.%d", dir, (long long)time(NULL), host,
                      (long)getpid(), i);
        t->fd = open(t->path.text, O_WRONLY | O_CREAT | O_EXCL | O_APPEND | O_CLOEXEC, 0644);
        if (t->fd >= 0) return OK;
        if (errno != EEXIST) break;
    }
    return ERR(ERR_IO, "open %s: %s", t->path.text, strerror(errno));
}

static status tensorboard_open(void **self, const sink_run *r) {
    const char *dir = r->settings->tensorboard_dir;
    TRY(dir_make(dir));
    tensorboard *t = mem_alloc(sizeof *t);
    t->fd = -1;
    t->last_step = -1;
    strbuf_init(&t->path);
    strbuf_init(&t->dir);
    strbuf_init(&t->pending);
    strbuf_add(&t->dir, dir);
    status rc = make_file(t, dir);
    if (rc != OK) {
        tensorboard_close(t);
        return rc;
    }
    event_add_version(&t->pending, (double)time(NULL));
    *self = t;
    return OK;
}

/* A table, as the page renders it. */
static status tensorboard_params(void *self, double time, const json_t *params) {
    tensorboard *t = self;
    strbuf text;
    const char *key;
    json_t *value;
    strbuf_init(&text);
    strbuf_add(&text, "| setting | value |\n|---|---|\n");
    json_object_foreach((json_t *)params, key, value) {
        strbuf_printf(&text, "| %s | ", key);
        for (const char *p = json_string_value(value); *p; p++)
            strbuf_printf(&text, "%s%c", *p == '|' ? "\\" : "", *p == '\n' ? ' ' : *p);
        strbuf_add(&text, " |\n");
    }
    event_add_text(&t->pending, time, 0, "config", text.text);
    strbuf_fini(&text);
    return OK;
}

/* Steps go back where a resumed run follows what a killed one had left in the queue. An evaluation belongs to a step whose own numbers
 * are already there: only what follows it is said anew. */
static void mark_start(tensorboard *t, double time, int64_t step, const json_t *values) {
    const char *first = json_object_iter_key(json_object_iter((json_t *)values));
    bool is_evaluation = first && str_starts_with(first, "val/");
    if (t->last_step < 0 || step < t->last_step || (step == t->last_step && !is_evaluation))
        event_add_start(&t->pending, time, step + is_evaluation);
    t->last_step = step;
}

static status tensorboard_metrics(void *self, double time, int64_t step, const json_t *values) {
    tensorboard *t = self;
    const char *name;
    json_t *value;
    event_scalars e;
    mark_start(t, time, step, values);
    event_scalars_begin(&e);
    json_object_foreach((json_t *)values, name, value) event_scalars_add(&e, name, (float)sink_number(value));
    event_scalars_end(&e, &t->pending, time, step);
    return OK;
}

static status tensorboard_text(void *self, double time, int64_t step, const char *name, const char *markdown) {
    event_add_text(&((tensorboard *)self)->pending, time, step, name, markdown);
    return OK;
}

static status tensorboard_end(void *self, double time, sink_end how) { return OK; }

/* A record that is cut would end every reader's reading of this file. */
static status tensorboard_flush(void *self) {
    tensorboard *t = self;
    for (size_t done = 0; done < t->pending.length;) {
        ssize_t n = write(t->fd, t->pending.text + done, t->pending.length - done);
        if (n > 0) done += (size_t)n;
        else if (n == 0 || errno != EINTR) {
            status rc = ERR(ERR_IO, "write %s: %s", t->path.text, n < 0 ? strerror(errno) : "nothing was written");
            return ftruncate(t->fd, t->whole) == 0 ? rc : ERR(ERR_IO, "%s ends with a cut record", t->path.text);
        }
    }
    t->whole += (off_t)t->pending.length;
    t->pending.length = 0;
    return OK;
}

static void tensorboard_where(const void *self, strbuf *out) {
    strbuf_add(out, "tensorboard --logdir ");
    strbuf_add_word(out, ((const tensorboard *)self)->dir.text);
}

const sink_kind sink_kind_TENSORBOARD = {.open = tensorboard_open,
                                         .params = tensorboard_params,
                                         .metrics = tensorboard_metrics,
                                         .text = tensorboard_text,
                                         .end = tensorboard_end,
                                         .flush = tensorboard_flush,
                                         .close = tensorboard_close,
                                         .where = tensorboard_where};
