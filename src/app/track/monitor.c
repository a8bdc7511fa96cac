/* monitor.c - what a run is, how it goes and where its memory is, as files of its run directory that other programs
 * read.
 *
 * run.json and plan.json are written whole by the thread that trains, before the first step and after the last.
 * Everything else is the sampler's: one thread that wakes every second (later every ten), reads /proc/self/statm and
 * the numbers that the last step left in atomics, asks the management library of a GPU (gpu_meter.h), and adds a line.
 * A step only stores these numbers: it takes no lock, allocates nothing and writes nothing. The driver's reading comes
 * with them, from between two steps (train/step.c).
 *
 * Files fail one by one: a failure is reported once, that file is given up, and the run goes on. */
#include "show/show.h"
#include "track/gpu_meter.h"
#include "track/jsonl.h"
#include "track/track.h"

#include <errno.h>
#include <math.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

enum {
    OFTEN_S = 1,       /* between two samples, in the beginning ... */
    RARELY_S = 10,     /* ... and after ... */
    OFTEN_FOR_S = 600, /* ... this long */
    HOST_BYTES = 256,
};

struct monitor {
    monitor_options options;
    int rank, world;
    bool begun;
    bool run_failed, memory_failed;  /* run.json, memory.json: given up */
    double started_s;                /* real time */
    sys_cores cores;                 /* at that time */
    char host[HOST_BYTES], file[32]; /* file: of the samples */

    /* Written by the thread that trains, read by the sampler. */
    _Atomic int64_t step;
    _Atomic uint64_t tier_bytes[TIER_COUNT], driver_bytes;
    _Atomic uint64_t pace_ns; /* 0: not known */
    _Atomic bool measured;    /* the first step has left its numbers */
    int64_t first_step;       /* that was reported, and when it was done; of the thread that trains alone */
    uint64_t first_ns;

    pthread_t thread;
    bool sampling; /* the thread runs */
    pthread_mutex_t lock;
    pthread_cond_t changed;
    bool closing; /* guarded by lock */

    /* The sampler's, and after it ended monitor_close's. */
    jsonl samples;
    bool has_gpu;
    uint8_t gpu_id[16];
    gpu_meter gpu;
    uint64_t begin_ns;
    bool written_measured; /* what memory.json holds */
    uint64_t written[TIER_COUNT];
};

/* ---- failures ------------------------------------------------------------------------------------------------------- */

static void warn(const monitor *m, const char *text) {
    if (m->options.track) track_message(m->options.track, text);
    else log_warn("%s", text);
}

/* Reports this thread's error as the reason why a file is given up, and forgets it. */
static void give_up(const monitor *m, const char *what) {
    char text[1024];
    snprintf(text, sizeof text, "warning: %s; %s", error_message(), what);
    error_clear();
    warn(m, text);
}

static status write_json(const monitor *m, const char *name, json_t *root) {
    char path[4200];
    snprintf(path, sizeof path, "%s/%s", m->options.request->run_dir, name);
    char *text = json_dumps(root, JSON_PRESERVE_ORDER);
    json_decref(root);
    if (!text) return ERR(ERR_BUG, "%s cannot be written as JSON", path);
    strbuf line;
    strbuf_init(&line);
    strbuf_printf(&line, "%s\n", text);
    status rc = file_replace(path, line.text, line.length);
    strbuf_fini(&line);
    free(text);
    return rc;
}

/* ---- run.json ------------------------------------------------------------------------------------------------------- */

static double now_s(void) {
    struct timespec t;
    clock_gettime(CLOCK_REALTIME, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static json_t *name_json(const char *text) { return text ? json_text(text, strlen(text)) : json_null(); }

static json_t *records_json(const train_request *r, const dataset *d) {
    data_report report;
    dataset_report(d, SPLIT_TRAIN, &report);
    bool known = dataset_kind(d) != DATA_TEXT || data_source_has_records(&r->data);
    return known && report.n_documents ? json_integer((json_int_t)report.n_documents) : json_null();
}

/* Speeds of a run that shared its cores say little. Ranks are programs, too: with several only what was stolen is known. */
static json_t *cores_json(const monitor *m) {
    sys_cores now;
    sys_cores_get(&now);
    sys_contention c = sys_contention_between(&m->cores, &now);
    return json_pack("{s:f, s:f}", "others", m->world > 1 ? 0 : c.others, "stolen", c.stolen);
}

static void write_run(monitor *m, const char *state, bool ended, const char *error) {
    const train_request *r = m->options.request;
    if (m->rank != 0 || m->run_failed) return;
    double epochs = train_epochs(m->options.data, m->options.plan, r->train.steps);
    json_t *root = json_pack(
        "{s:i, s:s, s:o, s:o, s:o, s:o, s:I, s:i, s:f, s:o, s:s, s:o, s:I, s:I, s:o, s:o, s:o, s:i}", "version", 1,
        "ralo", m->options.version, "task", name_json(task_name(r->task ? r->task : task_of(TASK_SFT))), "model",
        name_json(model_of(&r->plan.source)->name), "data", name_json(r->data.source), "host", name_json(m->host),
        "pid", (json_int_t)getpid(), "world", m->world, "started", m->started_s, "ended",
        ended ? json_real(now_s()) : json_null(), "state", state, "error", name_json(error), "step",
        (json_int_t)atomic_load_explicit(&m->step, memory_order_relaxed), "steps", (json_int_t)r->train.steps, "epochs",
        epochs > 0 ? json_real(epochs) : json_null(), "records", records_json(r, m->options.data), "cores",
        ended ? cores_json(m) : json_null(), "restarts", m->options.restarts);
    if (write_json(m, "run.json", root) == OK) return;
    m->run_failed = true;
    give_up(m, "other programs will not see the state of this run");
}

/* Room for the last state of the run on a disk that is full by then: a file that is removed before it is written. */
static void keep_room(monitor *m, bool keep) {
    enum { ROOM_BYTES = 32 << 10 }; /* run.json twice: the old one stays until the new one is whole */
    char path[4200];
    if (m->rank != 0) return;
    snprintf(path, sizeof path, "%s/.run.json.room", m->options.request->run_dir);
    if (keep) {
        char *zeros = mem_alloc(ROOM_BYTES);
        (void)file_replace(path, zeros, ROOM_BYTES); /* a disk without that much is told by what needs it */
        free(zeros);
    } else {
        (void)unlink(path);
    }
    error_clear();
}

/* ---- plan.json and memory.json ----------------------------------------------------------------------------------------- */

static void write_plan(const monitor *m) {
    plan_view view;
    status rc = plan_view_init(&view, m->options.request, m->options.plan);
    if (!view.survey.n && m->options.data)
        dataset_survey(m->options.data, &view.survey); /* it was not needed to choose rows */
    if (rc == OK) rc = write_json(m, "plan.json", plan_view_json(&view));
    if (rc != OK) give_up(m, "the run directory has no plan.json");
    plan_view_fini(&view);
}

/* Before the first step without measured bytes, and again whenever these have changed: after the first step, and where a later section
 * (evaluation, generation) reaches further. */
static void write_memory(monitor *m) {
    uint64_t peak[TIER_COUNT];
    bool measured = atomic_load_explicit(&m->measured, memory_order_acquire);
    for (tier t = 0; t < TIER_COUNT; t++) peak[t] = atomic_load_explicit(&m->tier_bytes[t], memory_order_relaxed);
    if (m->rank != 0 || m->memory_failed) return;
    if (measured == m->written_measured && memcmp(peak, m->written, sizeof peak) == 0) return;
    m->written_measured = measured;
    memcpy(m->written, peak, sizeof peak);
    if (write_json(m, "memory.json", plan_timeline_json(m->options.plan, measured ? peak : NULL)) == OK) return;
    m->memory_failed = true;
    give_up(m, "memory.json does not follow the run");
}

/* ---- the sampler ---------------------------------------------------------------------------------------------------- */

static json_t *known_or_null(double x, double unit) {
    return isfinite(x) ? json_real(round(x / unit) * unit) : json_null();
}

static void add_gpu(const monitor *m, json_t *line) {
    if (!m->gpu.device) return;
    gpu_reading r = gpu_meter_read(&m->gpu);
    json_object_set_new(line, "gpu_busy_percent", known_or_null(r.busy_percent, 1));
    json_object_set_new(line, "gpu_watts", known_or_null(r.watts, 0.125));
    json_object_set_new(line, "gpu_celsius", known_or_null(r.celsius, 1));
}

static void add_sample(monitor *m) {
    char text[512];
    uint64_t pace = atomic_load_explicit(&m->pace_ns, memory_order_relaxed);
    uint64_t driver = atomic_load_explicit(&m->driver_bytes, memory_order_relaxed);
    if (!jsonl_is_open(&m->samples)) return;
    json_t *line = json_pack("{s:f, s:I, s:I, s:I, s:o, s:I, s:o}", "time", now_s(), "step",
                             (json_int_t)atomic_load_explicit(&m->step, memory_order_relaxed), "rss_bytes",
                             (json_int_t)sys_rss_bytes(), "device_bytes",
                             (json_int_t)atomic_load_explicit(&m->tier_bytes[TIER_DEVICE], memory_order_relaxed),
                             "driver_bytes", driver ? json_integer((json_int_t)driver) : json_null(), "host_bytes",
                             (json_int_t)atomic_load_explicit(&m->tier_bytes[TIER_HOST], memory_order_relaxed),
                             "pace_ms", pace ? json_real((double)pace * 1e-6) : json_null());
    add_gpu(m, line);
    char *dumped = json_dumps(line, JSON_PRESERVE_ORDER | JSON_REAL_PRECISION(15));
    strbuf_printf(&m->samples.lines, "%s\n", dumped);
    free(dumped);
    json_decref(line);
    if (!jsonl_flush(&m->samples, text, sizeof text)) warn(m, text);
}

/* Until the next sample, or until the run ends; true: it ended. */
static bool wait_for_next(monitor *m) {
    struct timespec until;
    clock_gettime(CLOCK_MONOTONIC, &until);
    until.tv_sec += clock_ns() - m->begin_ns < OFTEN_FOR_S * 1000000000ull ? OFTEN_S : RARELY_S;
    int rc = 0;
    pthread_mutex_lock(&m->lock);
    while (!m->closing && rc == 0) rc = pthread_cond_timedwait(&m->changed, &m->lock, &until);
    bool closing = m->closing;
    pthread_mutex_unlock(&m->lock);
    return closing;
}

static void *sampler_main(void *argument) {
    monitor *m = argument;
    if (m->has_gpu) gpu_meter_open(&m->gpu, m->gpu_id);
    do {
        add_sample(m);
        write_memory(m);
    } while (!wait_for_next(m));
    return NULL;
}

/* A link of that name is not followed: in a run directory from elsewhere it could lead anywhere. */
static status open_samples(monitor *m) {
    char dir[4200];
    struct stat info;
    snprintf(dir, sizeof dir, "%s/monitor", m->options.request->run_dir);
    if (lstat(dir, &info) == 0 && !S_ISDIR(info.st_mode))
        return ERR(ERR_INPUT, "%s is not a directory, expected one; remove it", dir);
    TRY(jsonl_open(&m->samples, dir));
    if (m->options.request->resume || m->samples.whole == 0) return OK;
    if (ftruncate(m->samples.fd, 0) != 0) return ERR(ERR_IO, "cut %s: %s", m->samples.path, strerror(errno));
    m->samples.whole = 0;
    return OK;
}

static void find_gpu(monitor *m) {
    const train_request *r = m->options.request;
    device_info info;
    m->has_gpu = r->backend && r->backend->discrete && r->backend->describe(r->gpu.index, &info) == OK;
    if (m->has_gpu) memcpy(m->gpu_id, info.id, sizeof m->gpu_id);
    error_clear();
}

static void start_sampler(monitor *m) {
    m->begin_ns = clock_ns();
    find_gpu(m);
    write_memory(m);
    if (open_samples(m) != OK) give_up(m, "memory is not sampled over this run");
    int error = thread_start(&m->thread, sampler_main, m);
    m->sampling = error == 0;
    if (error) {
        ERR(ERR_RUN, "the thread that samples memory did not start: %s", strerror(error));
        give_up(m, "memory is not sampled over this run");
    }
}

static void stop_sampler(monitor *m) {
    if (!m->sampling) return;
    pthread_mutex_lock(&m->lock);
    m->closing = true;
    pthread_cond_signal(&m->changed);
    pthread_mutex_unlock(&m->lock);
    pthread_join(m->thread, NULL);
    m->sampling = false;
    add_sample(m);
    gpu_meter_close(&m->gpu);
    write_memory(m);
}

/* ---- the caller's side ---------------------------------------------------------------------------------------------- */

static void begin(monitor *m) {
    m->begun = true;
    write_run(m, "running", false, NULL);
    keep_room(m, true);
    if (m->rank == 0) write_plan(m);
    if (m->options.has_memory) start_sampler(m);
}

monitor *monitor_open(const monitor_options *o) {
    const train_request *r = o->request;
    if (!r->run_dir) return NULL;
    monitor *m = mem_alloc(sizeof *m);
    m->options = *o;
    m->rank = r->comm ? comm_rank(r->comm) : 0;
    m->world = r->comm ? comm_size(r->comm) : 1;
    m->started_s = now_s();
    sys_cores_get(&m->cores);
    m->written[TIER_DEVICE] = UINT64_MAX; /* nothing is written yet */
    if (gethostname(m->host, HOST_BYTES - 1) != 0) snprintf(m->host, HOST_BYTES, "unknown host");
    snprintf(m->file, sizeof m->file, "rank-%05d", m->rank);
    jsonl_init(&m->samples, m->file);
    pthread_mutex_init(&m->lock, NULL);
    pthread_condattr_t monotonic;
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_cond_init(&m->changed, &monotonic);
    pthread_condattr_destroy(&monotonic);
    if (!r->resume) begin(m);
    return m;
}

void monitor_start(monitor *m, int64_t step) {
    if (!m) return;
    atomic_store_explicit(&m->step, step, memory_order_relaxed);
    if (!m->begun) begin(m);
}

void monitor_step(monitor *m, const train_step_report *r) {
    if (!m) return;
    uint64_t now = clock_ns();
    if (!m->first_ns) m->first_step = r->step, m->first_ns = now;
    double pace_ns = track_pace_ms(m->first_step, m->first_ns, r, now) * 1e6;
    atomic_store_explicit(&m->pace_ns, pace_ns > 0 ? (uint64_t)fmin(pace_ns, 1e18) : 0, memory_order_relaxed);
    atomic_store_explicit(&m->step, r->step, memory_order_relaxed);
    for (tier t = 0; t < TIER_COUNT; t++)
        atomic_store_explicit(&m->tier_bytes[t], r->tier_bytes[t], memory_order_relaxed);
    atomic_store_explicit(&m->driver_bytes, r->driver_bytes, memory_order_relaxed);
    atomic_store_explicit(&m->measured, true, memory_order_release);
}

void monitor_close(monitor *m, status rc) {
    if (!m) return;
    error_record why;
    error_take(&why);
    stop_sampler(m);
    const char *state = rc == OK ? "finished" : rc == ERR_INTERRUPTED ? "stopped" : "failed";
    keep_room(m, false);
    if (m->begun) write_run(m, state, true, rc == OK || rc == ERR_INTERRUPTED ? NULL : why.message);
    jsonl_close(&m->samples);
    pthread_cond_destroy(&m->changed);
    pthread_mutex_destroy(&m->lock);
    free(m);
    if (rc != OK) error_give(&why);
}
