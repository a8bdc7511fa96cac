/* checkpoint.c - the directory of checkpoints: saved in the background, published whole, pruned, found again.
 *
 * In the background the step waits only for a copy of the state into staging memory, taken once at open and part of the
 * plan; a thread of our own writes that copy. Without background nothing is staged: save reads the program a little at
 * a time and returns when the checkpoint is on disk. The road there:
 *
 *     .tmp-step-00000100/ is filled; every file, then the directory, is flushed
 *     renamed to step-00000100/, and the parent flushed: from here on it is a checkpoint
 *     older ones beyond `keep` whole ones are renamed to .tmp-old-... and removed
 *
 * A writer that dies at any point leaves either no step-00000100 or a whole one. What it left under .tmp- is removed by
 * the next checkpointer_open; a lock keeps a second program from taking the files of a live one for leftovers.
 * A failed write removes what it wrote, leaves earlier checkpoints alone, and is returned by the next save or wait.
 *
 * Many ranks fill one directory, each with its share. The first of them makes it, and when all are done it writes
 * checkpoint.json and renames. Ranks talk on the thread that trains only: what was written in the background gets its name
 * at the first step, save or wait that finds all of it written. A rank that fails leaves the directory to the next
 * checkpointer_open. */
#define _GNU_SOURCE 1 /* renameat2 */
#include "checkpoint/directory.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#define TEMPORARY_PREFIX ".tmp-"
#define ASIDE_PREFIX ".old-"
#define STEP_PREFIX "step-"
enum { COPY_BYTES = 8 << 20 }; /* one task of the parallel copy */

typedef struct copy_task {
    size_t tensor, byte_offset, n_bytes;
} copy_task;

struct checkpointer {
    arena memory;
    const char *dir; /* RUN/checkpoints */
    const char *identity, *model;
    const struct tokenizer_files *tokenizer;
    checkpoint_task task; /* name NULL: the default one */
    char *task_state;     /* of the save that is being written, as JSON; NULL: none */
    int64_t keep;
    bool only_one;
    checkpoint_layout layout;
    copy_task *copies;
    size_t n_copies;
    uint8_t *staging; /* NULL: not in the background */
    int lock_fd;
    comm *comm; /* NULL: this rank writes all */
    int rank, n_ranks;
    bool shared_pending; /* this rank's share is written or on its way, and the checkpoint has no name yet */
    train_state shared_state;

    pthread_t writer;
    pthread_mutex_t mutex; /* guards what follows; staging belongs to the writer while busy */
    pthread_cond_t changed;
    bool busy, stopping;
    train_state state;
    error_record error; /* of the last write; code OK: none */
};

/* ---- the directory ------------------------------------------------------------------------------------------- */

static const char *step_name(arena *memory, int64_t step) {
    return arena_format(memory, STEP_PREFIX "%08lld", (long long)step);
}

static bool step_from_name(const char *name, int64_t *out) {
    if (!str_starts_with(name, STEP_PREFIX)) return false;
    const char *digits = name + strlen(STEP_PREFIX);
    size_t n = strspn(digits, "0123456789");
    if (n < 8 || n > 18 || digits[n]) return false;
    *out = strtoll(digits, NULL, 10);
    return true;
}

static int newest_first(const void *a, const void *b) {
    int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
    return (x < y) - (x > y);
}

/* The next entry. NULL: there is none, or rc says why the directory cannot be read further: the rest may hold
 * checkpoints. */
static struct dirent *next_entry(DIR *d, const char *dir, status *rc) {
    errno = 0;
    struct dirent *entry = readdir(d);
    if (!entry && errno) *rc = ERR(ERR_IO, "read directory %s: %s", dir, strerror(errno));
    return entry;
}

/* The steps that have a directory, newest first; none when there is no such directory. The caller frees, also what an
 * error left. */
static status list_steps(const char *dir, int64_t **out, size_t *n) {
    status rc = OK;
    size_t capacity = 0;
    *out = NULL;
    *n = 0;
    DIR *d = opendir(dir);
    if (!d && errno == ENOENT) return OK;
    if (!d) return ERR(ERR_IO, "open directory %s: %s", dir, strerror(errno));
    int64_t step;
    for (struct dirent *entry; (entry = next_entry(d, dir, &rc));) {
        if (!step_from_name(entry->d_name, &step)) continue;
        *out = array_grow(*out, &capacity, *n + 1, sizeof **out);
        (*out)[(*n)++] = step;
    }
    closedir(d);
    if (*n > 1) qsort(*out, *n, sizeof **out, newest_first);
    return rc;
}

/* After a crash: a checkpoint that was moved aside for a replacement that never came gets its name back; all other
 * leftovers of killed writers are removed. */
static status clean_up(const char *dir) {
    status rc = OK;
    DIR *d = opendir(dir);
    if (!d) return ERR(ERR_IO, "open directory %s: %s", dir, strerror(errno));
    arena memory;
    arena_init(&memory);
    for (struct dirent *entry; rc == OK && (entry = next_entry(d, dir, &rc));) {
        const char *path = arena_format(&memory, "%s/%s", dir, entry->d_name);
        if (str_starts_with(entry->d_name, ASIDE_PREFIX)) {
            const char *final_path = arena_format(&memory, "%s/%s", dir, entry->d_name + strlen(ASIDE_PREFIX));
            if (access(final_path, F_OK) != 0 && errno == ENOENT) {
                log_warn("checkpoint %s is restored: a crash interrupted its replacement", final_path);
                if (rename(path, final_path) != 0)
                    rc = ERR(ERR_IO, "rename %s to %s: %s", path, final_path, strerror(errno));
                continue;
            }
        } else if (!str_starts_with(entry->d_name, TEMPORARY_PREFIX)) {
            continue;
        }
        log_info("removing %s, left by a writer that did not finish", path);
        rc = dir_remove_all(path);
    }
    closedir(d);
    arena_fini(&memory);
    return rc;
}

bool checkpoint_step_of(const char *path, int64_t *step) {
    const char *slash = strrchr(path, '/');
    return step_from_name(slash ? slash + 1 : path, step);
}

/* Of the files in a directory, as the disk counts them. Files that cannot be read count as 0. */
static uint64_t file_bytes(const char *path) {
    uint64_t n = 0;
    struct stat s;
    DIR *d = opendir(path);
    if (!d) return 0;
    for (struct dirent *entry; (entry = readdir(d));)
        if (fstatat(dirfd(d), entry->d_name, &s, AT_SYMLINK_NOFOLLOW) == 0 && S_ISREG(s.st_mode))
            n += (uint64_t)s.st_blocks * 512;
    closedir(d);
    return n;
}

static uint64_t leftover_bytes(const char *dir) {
    uint64_t n = 0;
    DIR *d = opendir(dir);
    if (!d) return 0;
    arena memory;
    arena_init(&memory);
    for (struct dirent *entry; (entry = readdir(d));)
        if (str_starts_with(entry->d_name, TEMPORARY_PREFIX))
            n += file_bytes(arena_format(&memory, "%s/%s", dir, entry->d_name));
    closedir(d);
    arena_fini(&memory);
    return n;
}

/* Without a message: only the search for a checkpoint to use reports why one is skipped. */
static bool is_whole(const char *dir, int64_t step) {
    error_record before;
    arena memory;
    arena_init(&memory);
    error_take(&before);
    bool whole = checkpoint_check(arena_format(&memory, "%s/%s", dir, step_name(&memory, step))) == OK;
    error_clear();
    error_give(&before);
    arena_fini(&memory);
    return whole;
}

status checkpoint_survey_make(checkpoint_survey *out, const char *run_dir) {
    int64_t *steps;
    size_t n;
    arena memory;
    arena_init(&memory);
    const char *dir = arena_format(&memory, "%s/checkpoints", run_dir);
    *out = (checkpoint_survey){0};
    status rc = list_steps(dir, &steps, &n);
    if (rc == OK) out->leftover_bytes = leftover_bytes(dir);
    for (size_t i = 0; rc == OK && i < n; i++) {
        if (!is_whole(dir, steps[i])) out->n_broken++;
        else if (out->n++ == 0) out->newest = steps[i];
    }
    free(steps);
    arena_fini(&memory);
    return rc;
}

status checkpoint_publish(const char *dir, const char *temporary, const char *name, bool exchange) {
    status rc = OK;
    arena memory;
    arena_init(&memory);
    const char *from = arena_format(&memory, "%s/%s", dir, temporary);
    const char *to = arena_format(&memory, "%s/%s", dir, name), *old = from;
    if (rename(from, to) == 0) {
        TRY_GOTO(rc, dir_sync(dir), done);
        goto done;
    }
    if (errno != ENOTEMPTY && errno != EEXIST) {
        rc = ERR(ERR_IO, "rename %s to %s: %s", from, to, strerror(errno));
        goto done;
    }
    /* This step was saved before, by a run that was later resumed from an earlier step. */
    if (!exchange || renameat2(AT_FDCWD, from, AT_FDCWD, to, RENAME_EXCHANGE) != 0) {
        old = arena_format(&memory, "%s/%s%s", dir, ASIDE_PREFIX, name);
        TRY_GOTO(rc, dir_remove_all(old), done);
        if (rename(to, old) != 0 || rename(from, to) != 0) {
            rc = ERR(ERR_IO, "put %s in the place of %s: %s", from, to, strerror(errno));
            if (access(to, F_OK) != 0 && rename(old, to) != 0)
                log_warn("checkpoint %s is now %s: %s", to, old, strerror(errno));
            goto done;
        }
    }
    TRY_GOTO(rc, dir_sync(dir), done);
    TRY_GOTO(rc, dir_remove_all(old), done);
done:
    arena_fini(&memory);
    return rc;
}

/* Keeps the newest `keep` complete checkpoints up to the step just written. Later steps belong to an earlier attempt
 * of this run and are left alone. An incomplete one does not count: it stays until it is older than all that are
 * kept. A checkpoint that cannot be removed costs space, not safety: a warning. */
static void prune(const checkpointer *c, int64_t written) {
    arena memory;
    arena_init(&memory);
    int64_t *steps, kept = 0;
    size_t n;
    status rc = list_steps(c->dir, &steps, &n);
    for (size_t i = 0; i < n && rc == OK; i++) {
        if (c->only_one ? steps[i] == written : steps[i] > written) continue;
        if (!c->only_one && kept < c->keep) {
            kept += steps[i] == written || is_whole(c->dir, steps[i]);
            continue;
        }
        const char *name = step_name(&memory, steps[i]), *path = arena_format(&memory, "%s/%s", c->dir, name);
        /* Renamed first: a partly removed checkpoint must not carry a checkpoint's name. */
        const char *doomed = arena_format(&memory, "%s/" TEMPORARY_PREFIX "old-%s", c->dir, name);
        if (rename(path, doomed) != 0) rc = ERR(ERR_IO, "rename %s to %s: %s", path, doomed, strerror(errno));
        else rc = dir_remove_all(doomed);
    }
    if (rc != OK) log_warn("old checkpoints in %s were not removed: %s", c->dir, error_message());
    free(steps);
    arena_fini(&memory);
}

void checkpointer_prune(const checkpointer *c, int64_t step) {
    if (c->keep > 0 && c->rank == 0) prune(c, step);
}

static status find_newest(const char *run_dir, bool quietly, char *out, size_t out_bytes) {
    status rc = OK;
    arena memory;
    arena_init(&memory);
    int64_t *steps = NULL;
    size_t n;
    ASSERT(out_bytes > 0);
    out[0] = 0;
    const char *dir = arena_format(&memory, "%s/checkpoints", run_dir);
    TRY_GOTO(rc, list_steps(dir, &steps, &n), done);
    for (size_t i = 0; i < n; i++) {
        const char *path = arena_format(&memory, "%s/%s", dir, step_name(&memory, steps[i]));
        if (checkpoint_check(path) != OK) {
            if (!quietly) log_warn("checkpoint %s cannot be used and is skipped: %s", path, error_message());
            error_clear();
            continue;
        }
        if (strlen(path) >= out_bytes) rc = ERR(ERR_BUG, "the path %s is too long", path);
        else memcpy(out, path, strlen(path) + 1);
        break;
    }
done:
    free(steps);
    arena_fini(&memory);
    return rc;
}

status checkpoint_find_newest(const char *run_dir, char *out, size_t out_bytes) {
    return find_newest(run_dir, false, out, out_bytes);
}

status checkpoint_find_newest_quietly(const char *run_dir, char *out, size_t out_bytes) {
    return find_newest(run_dir, true, out, out_bytes);
}

/* ---- writing ------------------------------------------------------------------------------------------------- */

typedef struct save_names {
    const char *name, *temporary, *path;
} save_names;

static save_names names_of(const checkpointer *c, arena *memory, int64_t step) {
    save_names n = {.name = step_name(memory, step)};
    n.temporary = arena_format(memory, TEMPORARY_PREFIX "%s", n.name);
    n.path = arena_format(memory, "%s/%s", c->dir, n.temporary);
    return n;
}

static status make_empty(const char *path) {
    TRY(dir_remove_all(path));
    return dir_make(path);
}

static checkpoint_metadata metadata_of(const checkpointer *c, const train_state *s) {
    return (checkpoint_metadata){c->identity, c->model, c->task.name, c->task_state, s, c->tokenizer};
}

/* Every file is in the temporary directory: rename it, and only then remove older checkpoints. */
static status finish_directory(const checkpointer *c, const save_names *n, const train_state *s) {
    TRY(dir_sync(n->path));
    TRY(checkpoint_publish(c->dir, n->temporary, n->name, true));
    if (c->keep > 0) prune(c, s->step);
    return OK;
}

static status write_alone(const checkpointer *c, const save_names *n, exec *e, const train_state *s) {
    checkpoint_source source = {.staging = c->staging, .e = e};
    checkpoint_metadata w = metadata_of(c, s);
    TRY(make_empty(n->path));
    TRY(checkpoint_write(n->path, &c->layout, &source, &w));
    return finish_directory(c, n, s);
}

static status write_share(const checkpointer *c, const save_names *n, exec *e) {
    checkpoint_source source = {.staging = c->staging, .e = e};
    return checkpoint_write_part(n->path, &c->layout, &source, c->rank);
}

static status write_checkpoint(const checkpointer *c, exec *e, const train_state *s) {
    error_record why;
    arena memory;
    arena_init(&memory);
    save_names n = names_of(c, &memory, s->step);
    status rc = c->comm ? write_share(c, &n, e) : write_alone(c, &n, e, s);
    if (rc != OK) {
        rc = ERR(rc, "the checkpoint of step %lld was not written, earlier ones are untouched: %s", (long long)s->step,
                 error_message());
        error_take(&why);
        if (!c->comm && dir_remove_all(n.path) != OK) log_warn("%s", error_message());
        rc = error_give(&why);
    }
    arena_fini(&memory);
    return rc;
}

/* ---- with other ranks ------------------------------------------------------------------------------------------ */

static status begin_shared(checkpointer *c, const train_state *s) {
    status rc = OK;
    arena memory;
    arena_init(&memory);
    if (c->rank == 0) rc = make_empty(names_of(c, &memory, s->step).path);
    arena_fini(&memory);
    if (rc != OK) return error_trail(rc, __FILE__, __LINE__, __func__);
    TRY(comm_barrier(c->comm));
    c->shared_pending = true;
    c->shared_state = *s;
    return OK;
}

static status join_shares(const checkpointer *c) {
    status rc = OK;
    arena memory;
    arena_init(&memory);
    save_names n = names_of(c, &memory, c->shared_state.step);
    checkpoint_metadata w = metadata_of(c, &c->shared_state);
    TRY_GOTO(rc, checkpoint_join_parts(n.path, c->n_ranks, &w), done);
    TRY_GOTO(rc, finish_directory(c, &n, &c->shared_state), done);
done:
    arena_fini(&memory);
    return rc;
}

/* This rank's share is on disk. A rank that failed does not get here, and its error ends the wait of the others. */
static status finish_shared(checkpointer *c) {
    if (!c->shared_pending) return OK;
    c->shared_pending = false;
    TRY(comm_barrier(c->comm));
    if (c->rank == 0) TRY(join_shares(c));
    TRY(comm_barrier(c->comm));
    return OK;
}

/* ---- the thread that writes ---------------------------------------------------------------------------------- */

static void *writer_main(void *argument) {
    checkpointer *c = argument;
#ifdef MADV_POPULATE_WRITE
    /* The first save would pay for touching the pages; do it here, while training starts. Changes no byte, so a save
     * that comes meanwhile is safe; older kernels refuse, and the first save is slower. */
    madvise(c->staging, (size_t)c->layout.staging_bytes, MADV_POPULATE_WRITE);
#endif
    pthread_mutex_lock(&c->mutex);
    for (;;) {
        while (!c->busy && !c->stopping) pthread_cond_wait(&c->changed, &c->mutex);
        if (!c->busy) break; /* stopping, and nothing left to write */
        train_state s = c->state;
        pthread_mutex_unlock(&c->mutex);
        error_record error = {0};
        if (write_checkpoint(c, NULL, &s) != OK) error_take(&error);
        pthread_mutex_lock(&c->mutex);
        c->error = error;
        c->busy = false;
        pthread_cond_broadcast(&c->changed);
    }
    pthread_mutex_unlock(&c->mutex);
    return NULL;
}

/* Called with the mutex held: waits for the current write, and returns the error of the last one. */
static status wait_for_write(checkpointer *c) {
    while (c->busy) pthread_cond_wait(&c->changed, &c->mutex);
    if (c->error.code == OK) return OK;
    status rc = error_give(&c->error);
    c->error.code = OK;
    return rc;
}

static status wait_for_writer(checkpointer *c) {
    pthread_mutex_lock(&c->mutex);
    status rc = wait_for_write(c);
    pthread_mutex_unlock(&c->mutex);
    return rc;
}

status checkpointer_wait(checkpointer *c) {
    TRY(wait_for_writer(c));
    return finish_shared(c);
}

status checkpointer_poll(checkpointer *c) {
    if (!c->shared_pending) return OK;
    bool busy;
    pthread_mutex_lock(&c->mutex);
    busy = c->busy;
    pthread_mutex_unlock(&c->mutex);
    TRY(comm_any(c->comm, busy, &busy));
    return busy ? OK : checkpointer_wait(c);
}

/* ---- the face ------------------------------------------------------------------------------------------------ */

typedef struct copy_context {
    checkpointer *c;
    exec *e;
} copy_context;

static void copy_part(void *context, int64_t task, int thread) {
    copy_context *x = context;
    const copy_task *part = &x->c->copies[task];
    const checkpoint_tensor *t = &x->c->layout.tensors[part->tensor];
    exec_read(x->e, t->value, checkpoint_saved_offset(t) + part->byte_offset,
              x->c->staging + x->c->layout.staging_offsets[part->tensor] + part->byte_offset, part->n_bytes);
}

/* Nothing is being written: the text of the save before may go. */
static status take_task_state(checkpointer *c) {
    if (!c->task.save) return OK;
    free(c->task_state);
    json_t *state = c->task.save(c->task.context);
    c->task_state = json_is_object(state) ? json_dumps(state, JSON_COMPACT) : NULL;
    json_decref(state);
    if (c->task_state && strlen(c->task_state) <= CHECKPOINT_TASK_BYTES) return OK;
    return ERR(ERR_BUG, "task %s: its state is no JSON object of at most %d bytes", c->task.name,
               CHECKPOINT_TASK_BYTES);
}

status checkpointer_save(checkpointer *c, exec *e, const train_state *s) {
    TRY(checkpointer_wait(c));
    TRY(take_task_state(c));
    if (s->step < 0) return ERR(ERR_BUG, "a checkpoint of step %lld was requested", (long long)s->step);
    if (c->comm) TRY(begin_shared(c, s));
    if (!c->staging) {
        TRY(write_checkpoint(c, e, s));
        return finish_shared(c);
    }
    exec_parallel(e, copy_part, &(copy_context){c, e}, (int64_t)c->n_copies);
    TRY(exec_check(e));
    pthread_mutex_lock(&c->mutex);
    c->state = *s;
    c->busy = true;
    pthread_cond_broadcast(&c->changed);
    pthread_mutex_unlock(&c->mutex);
    return OK;
}

uint64_t checkpointer_staged_bytes(const checkpointer *c) { return c->staging ? c->layout.staging_bytes : 0; }

static void make_copies(checkpointer *c) {
    for (int pass = 0; pass < 2; pass++) { /* count, then fill */
        size_t n = 0;
        for (size_t i = 0; i < c->layout.n_tensors; i++) {
            size_t n_bytes = checkpoint_saved_bytes(&c->layout.tensors[i]);
            for (size_t at = 0; at < n_bytes; at += COPY_BYTES, n++)
                if (pass == 1) c->copies[n] = (copy_task){i, at, MIN((size_t)COPY_BYTES, n_bytes - at)};
        }
        if (pass == 0) c->copies = arena_array(&c->memory, copy_task, n);
        c->n_copies = n;
    }
}

/* Planning and loading took time since the caller checked, and another run may have written here meanwhile. */
static status check_fresh(const char *run_dir) {
    char newest[4096];
    TRY(checkpoint_find_newest(run_dir, newest, sizeof newest));
    if (!newest[0]) return OK;
    return ERR(ERR_INPUT,
               "run.dir %s holds a checkpoint of another run that ended meanwhile (%s); choose another run.dir, or "
               "continue that one with --resume auto",
               run_dir, newest);
}

static status take_lock(int *fd, const char *dir, arena *memory) {
    *fd = -1;
    TRY(dir_make(dir));
    const char *lock = arena_format(memory, "%s/.lock", dir);
    if ((*fd = open(lock, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0666)) < 0)
        return ERR(ERR_IO, "open %s: %s", lock, strerror(errno));
    /* File systems without locks return another error; there, the user must ensure one writer per directory. */
    if (flock(*fd, LOCK_EX | LOCK_NB) == 0 || errno != EWOULDBLOCK) return OK;
    close(*fd);
    *fd = -1;
    return ERR(ERR_INPUT, "%s is in use by another running ralo; give this run its own directory", dir);
}

status run_lock_take(int *fd, const char *run_dir) {
    arena memory;
    arena_init(&memory);
    status rc = take_lock(fd, arena_format(&memory, "%s/checkpoints", run_dir), &memory);
    arena_fini(&memory);
    return rc;
}

static status open_dir(checkpointer *c, const checkpoint_options *o) {
    if (o->locked) TRY(dir_make(c->dir));
    else TRY(take_lock(&c->lock_fd, c->dir, &c->memory));
    TRY(clean_up(c->dir));
    return o->fresh ? check_fresh(o->run_dir) : OK;
}

static status open_staging(checkpointer *c) {
    size_t n_bytes = MAX((size_t)c->layout.staging_bytes, (size_t)1);
    void *memory = mmap(NULL, n_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) {
        char size[32];
        return ERR(ERR_FIT, "the copy of the state that checkpoints are written from needs %s of host memory: %s",
                   str_format_bytes(size, n_bytes), strerror(errno));
    }
    c->staging = memory;
    /* Advice only: a kernel without transparent huge pages refuses it. */
    madvise(memory, n_bytes, MADV_HUGEPAGE);
    return OK;
}

static status start_writer(checkpointer *c) {
    int why = thread_start(&c->writer, writer_main, c);
    if (why != 0) return ERR(ERR_IO, "start the checkpoint thread: %s", strerror(why));
    return OK;
}

static void release(checkpointer *c) {
    if (c->staging) munmap(c->staging, MAX((size_t)c->layout.staging_bytes, (size_t)1));
    if (c->lock_fd >= 0) close(c->lock_fd);
    pthread_cond_destroy(&c->changed);
    pthread_mutex_destroy(&c->mutex);
    arena_fini(&c->memory);
    free(c->task_state);
    free(c);
}

/* A name that the reader refuses would make checkpoints that nobody can resume. */
static void remember_task(checkpointer *c, const checkpoint_task *task) {
    if (!task || (strcmp(task->name, CHECKPOINT_DEFAULT_TASK) == 0 && !task->save)) return;
    ASSERT(*task->name && strlen(task->name) <= CHECKPOINT_TASK_NAME);
    c->task = *task;
    c->task.name = arena_string(&c->memory, task->name);
}

status checkpointer_open_sharded(checkpointer **out, const checkpoint_options *o, const checkpoint_tensor *tensors,
                                 size_t n, uint64_t shard_bytes) {
    status rc = OK;
    *out = NULL;
    json_t *identity = json_string(o->identity);
    if (!identity) return ERR(ERR_INPUT, "checkpoint: the identity '%s' is not UTF-8", o->identity);
    json_decref(identity);
    if (o->model) {
        json_t *model = json_loads(o->model, JSON_REJECT_DUPLICATES, NULL);
        if (!model) return ERR(ERR_BUG, "checkpoint: the description of the model is not JSON");
        json_decref(model);
    }
    checkpointer *c = mem_alloc(sizeof *c);
    arena_init(&c->memory);
    pthread_mutex_init(&c->mutex, NULL);
    pthread_cond_init(&c->changed, NULL);
    c->lock_fd = -1;
    c->keep = o->keep;
    c->only_one = o->only_one;
    c->tokenizer = o->tokenizer;
    remember_task(c, o->task);
    c->comm = o->comm;
    c->n_ranks = c->comm ? comm_size(c->comm) : 1;
    c->rank = c->comm ? comm_rank(c->comm) : 0;
    c->identity = arena_string(&c->memory, o->identity);
    c->model = o->model ? arena_string(&c->memory, o->model) : NULL;
    TRY_GOTO(rc, checkpoint_layout_make(&c->layout, &c->memory, tensors, n, shard_bytes), fail);
    c->dir = arena_format(&c->memory, "%s/checkpoints", o->run_dir);
    if (c->rank == 0) TRY_GOTO(rc, open_dir(c, o), fail);
    if (c->comm) TRY_GOTO(rc, comm_barrier(c->comm), fail);
    if (o->background) {
        make_copies(c);
        TRY_GOTO(rc, open_staging(c), fail);
        TRY_GOTO(rc, start_writer(c), fail);
    }
    *out = c;
    return OK;
fail:
    release(c);
    return rc;
}

status checkpointer_open(checkpointer **out, const checkpoint_options *o, const checkpoint_tensor *tensors, size_t n) {
    TRY(checkpointer_open_sharded(out, o, tensors, n, CHECKPOINT_SHARD_BYTES));
    return OK;
}

void checkpointer_close(checkpointer *c) {
    if (!c) return;
    if (c->staging) {
        if (wait_for_writer(c) != OK) log_error("%s", error_message()); /* nobody asked after the last save */
        pthread_mutex_lock(&c->mutex);
        c->stopping = true;
        pthread_cond_broadcast(&c->changed);
        pthread_mutex_unlock(&c->mutex);
        pthread_join(c->writer, NULL);
    }
    release(c);
}
