/* sink_trackio.c - trackio's inbox: files of JSON Lines, which its page (`trackio show`) takes in every few seconds and deletes.
 *
 * A file is written beside its name and renamed, so that it is never read half. A line's log_id is made from what it says: lines that
 * arrive twice count once. The id of the run is kept in RUN/track/trackio.json, so that a resumed run goes on as the same one.
 * Written against trackio 0.43 (fragments.py, record version 1). */
#include "track/sink.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>
#include <xxhash.h>

typedef struct trackio {
    const sink_settings *settings;
    char run_id[65];
    char writer[17];
    uint64_t n_files;
    strbuf dir, inbox; /* of trackio; of this writer */
    strbuf pending;
} trackio;

/* As trackio and huggingface_hub find it. */
static status find_dir(strbuf *out) {
    const char *own = getenv("TRACKIO_DIR"), *hf = getenv("HF_HOME"), *cache = getenv("XDG_CACHE_HOME"),
               *home = getenv("HOME");
    if (own && *own) strbuf_add(out, own);
    else if (hf && hf[0] == '~' && (hf[1] == '/' || !hf[1]) && home) strbuf_printf(out, "%s%s/trackio", home, hf + 1);
    else if (hf && *hf) strbuf_printf(out, "%s/trackio", hf);
    else if (cache && *cache) strbuf_printf(out, "%s/huggingface/trackio", cache);
    else if (home && *home) strbuf_printf(out, "%s/.cache/huggingface/trackio", home);
    else return ERR(ERR_INPUT, "there is no home directory to write to; set TRACKIO_DIR");
    return OK;
}

static void trackio_close(void *self) {
    trackio *t = self;
    strbuf_fini(&t->dir);
    strbuf_fini(&t->inbox);
    strbuf_fini(&t->pending);
    free(t);
}

static status find_run(trackio *t, const sink_run *r) {
    json_t *state = sink_state_read(r->run_dir, "trackio");
    const char *id = sink_state_id(state, "run_id");
    status rc = OK;
    if (id) {
        snprintf(t->run_id, sizeof t->run_id, "%s", id);
    } else {
        sink_id_make(t->run_id);
        json_t *fresh = json_pack("{s:s, s:s, s:s}", "project", t->settings->trackio_project, "run", t->settings->name,
                                  "run_id", t->run_id);
        rc = sink_state_write(r->run_dir, "trackio", fresh);
        json_decref(fresh);
    }
    json_decref(state);
    return rc;
}

static status trackio_open(void **self, const sink_run *r) {
    trackio *t = mem_alloc(sizeof *t);
    char id[33];
    t->settings = r->settings;
    strbuf_init(&t->dir);
    strbuf_init(&t->inbox);
    strbuf_init(&t->pending);
    sink_id_make(id);
    snprintf(t->writer, sizeof t->writer, "%.16s", id);
    status rc = find_dir(&t->dir);
    if (rc == OK) rc = find_run(t, r);
    if (rc != OK) {
        trackio_close(t);
        return rc;
    }
    strbuf_printf(&t->inbox, "%s/inbox/%s", t->dir.text, t->writer);
    *self = t;
    return OK;
}

static void format_time(char out[48], double time) {
    time_t seconds = (time_t)time;
    struct tm tm;
    size_t n = strftime(out, 48, "%Y-%m-%dT%H:%M:%S", gmtime_r(&seconds, &tm));
    snprintf(out + n, 48 - n, ".%06d+00:00", (int)((time - (double)seconds) * 1e6));
}

/* Takes metrics and config. */
static void add_line(trackio *t, double time, int64_t step, json_t *metrics, json_t *config) {
    char stamp[48], log_id[33];
    format_time(stamp, time);
    json_t *line = json_pack("{s:i, s:s, s:s, s:s, s:s, s:o, s:I, s:s, s:o}", "v", 1, "kind", "metric", "project",
                             t->settings->trackio_project, "run", t->settings->name, "run_id", t->run_id, "metrics",
                             metrics, "step", (json_int_t)step, "timestamp", stamp, "config", config);
    char *text = line ? json_dumps(line, JSON_COMPACT | JSON_PRESERVE_ORDER) : NULL;
    if (!text) mem_refused(0);
    XXH128_hash_t hash = XXH3_128bits(text, strlen(text));
    snprintf(log_id, sizeof log_id, "%016llx%016llx", (unsigned long long)hash.high64, (unsigned long long)hash.low64);
    free(text);
    json_object_set_new(line, "log_id", json_string(log_id));
    if (!(text = json_dumps(line, JSON_COMPACT | JSON_PRESERVE_ORDER))) mem_refused(0);
    strbuf_printf(&t->pending, "%s\n", text);
    free(text);
    json_decref(line);
}

/* Settings are read from a line of numbers; this one has none, so that the page shows the run before its first step. */
static status trackio_params(void *self, double time, const json_t *params) {
    char stamp[48];
    format_time(stamp, time);
    json_t *config = json_copy((json_t *)params);
    json_object_set_new(config, "_Created", json_string(stamp));
    add_line(self, time, 0, json_object(), config);
    return OK;
}

/* Numbers that JSON has no form for are the texts NaN, Infinity and -Infinity there too. */
static status trackio_metrics(void *self, double time, int64_t step, const json_t *values) {
    add_line(self, time, step, json_copy((json_t *)values), json_null());
    return OK;
}

static status trackio_text(void *self, double time, int64_t step, const char *name, const char *markdown) {
    json_t *text = json_pack("{s:s, s:s}", "_type", "trackio.markdown", "_value", markdown);
    add_line(self, time, step, json_pack("{s:o}", name, text), json_null());
    return OK;
}

static status trackio_end(void *self, double time, sink_end how) { return OK; }

static status write_file(const char *path, const strbuf *text) {
    int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW, 0644);
    status rc = fd < 0 ? ERR(ERR_IO, "open %s: %s", path, strerror(errno)) : OK;
    for (size_t done = 0; rc == OK && done < text->length;) {
        ssize_t n = write(fd, text->text + done, text->length - done);
        if (n > 0) done += (size_t)n;
        else if (n == 0 || errno != EINTR)
            rc = ERR(ERR_IO, "write %s: %s", path, n < 0 ? strerror(errno) : "nothing was written");
    }
    if (fd >= 0 && close(fd) != 0 && rc == OK) rc = ERR(ERR_IO, "write %s: %s", path, strerror(errno));
    if (rc != OK && fd >= 0) unlink(path);
    return rc;
}

/* trackio removes the directory whenever it is empty: it is made again, also when it goes between two calls. */
static status trackio_flush(void *self) {
    trackio *t = self;
    status rc = OK;
    strbuf temporary, path;
    if (t->pending.length == 0) return OK;
    strbuf_init(&temporary);
    strbuf_init(&path);
    strbuf_printf(&path, "%s/%08llu.jsonl", t->inbox.text, (unsigned long long)t->n_files);
    strbuf_printf(&temporary, "%s.tmp", path.text);
    for (int attempt = 0; attempt < 3; attempt++) {
        error_clear();
        if ((rc = dir_make(t->inbox.text)) != OK) break;
        if ((rc = write_file(temporary.text, &t->pending)) == OK && rename(temporary.text, path.text) == 0) break;
        if (rc == OK) rc = ERR(ERR_IO, "rename %s: %s", temporary.text, strerror(errno));
    }
    if (rc == OK) {
        t->n_files++;
        t->pending.length = 0;
    }
    strbuf_fini(&temporary);
    strbuf_fini(&path);
    return rc;
}

static void trackio_where(const void *self, strbuf *out) {
    const trackio *t = self;
    strbuf_printf(out, "run %s; trackio show --project ", t->settings->name);
    strbuf_add_word(out, t->settings->trackio_project);
    if (getenv("TRACKIO_DIR")) strbuf_printf(out, " (TRACKIO_DIR=%s)", t->dir.text);
}

const sink_kind sink_kind_TRACKIO = {.open = trackio_open,
                                     .params = trackio_params,
                                     .metrics = trackio_metrics,
                                     .text = trackio_text,
                                     .end = trackio_end,
                                     .flush = trackio_flush,
                                     .close = trackio_close,
                                     .where = trackio_where};
