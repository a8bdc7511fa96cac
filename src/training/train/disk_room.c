/* disk_room.c - is there room on disk for what a run will write? Checked before it starts, not at its first save.
 *
 * A new checkpoint is complete before the oldest is removed: run.keep and one more exist for a while, and two in RUN/best. Unfinished files
 * of other writers are removed before the first save, so they count as free.
 * An error: a run directory that cannot be written to; a checkpoint, or the export, that is larger than the free space including root's reserve. A warning:
 * several of them do not fit at the same time, or only in that reserve; somebody may free space in the meantime. A
 * file system that does not report its size is not checked. */
#include "train/disk_room.h"
#include "train/frozen.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <unistd.h>

int64_t disk_room_saves(const train_request *r, int64_t first) {
    int64_t steps = r->train.steps, every = r->train.save_every;
    bool last = !r->no_last_checkpoint;
    if (first >= steps) return last; /* once more, of a run that has nothing left to do */
    if (every == 0) return last;
    return steps / every - first / every + (last && steps % every != 0);
}

int64_t disk_room_at_once(int64_t n_saves, int64_t keep, int64_t n_present) {
    return keep == 0 ? n_saves : MIN(n_saves, MAX(keep + 1 - n_present, (int64_t)1));
}

/* Of all parameters, in the most bits that whole blocks of the format have for one. */
static uint64_t gguf_bytes(const train_request *r, const plan *p) {
    static const double bits[] = {[GGUF_F16_FILE] = 16,
                                  [GGUF_BF16_FILE] = 16,
                                  [GGUF_F32_FILE] = 32,
                                  [GGUF_Q8_0_FILE] = 8.5,
                                  [GGUF_Q4_K_FILE] = 6.5625};
    model_config c = model_main_config(model_of(&p->request.source));
    return (uint64_t)((double)model_param_count(&c) * bits[r->export_gguf] / 8) +
           tokenizer_files_bytes(r->data.tokenizer);
}

static uint64_t export_bytes(const train_request *r, const plan *p) {
    if (!r->export_dir) return 0;
    if (export_is_gguf_name(r->export_dir)) return gguf_bytes(r, p);
    bool masters = p->request.lora.rank && precision_master(p->request.choice.precision);
    dtype type = masters ? DTYPE_F32 : precision_compute(p->request.choice.precision);
    plan_request exported = p->request;
    exported.lora = lora_exported(&p->request.lora);
    return plan_trained_params(&exported) * dtype_bytes(type) + tokenizer_files_bytes(r->data.tokenizer);
}

/* The one in RUN/best, and the next before that is removed. */
static int64_t best_at_once(const train_request *r) { return r->train.save_best && *r->train.save_best ? 2 : 0; }

/* Each keeps its own copy of the tokenizer. */
static uint64_t checkpoint_bytes(const train_request *r, const plan *p) {
    return plan_checkpoint_bytes(p) + tokenizer_files_bytes(r->data.tokenizer);
}

train_disk train_disk_of(const train_request *r, const plan *p) {
    return (train_disk){.checkpoint_bytes = checkpoint_bytes(r, p),
                        .n_checkpoints = disk_room_at_once(disk_room_saves(r, 0), r->keep, 0) + best_at_once(r),
                        .export_bytes = export_bytes(r, p),
                        .numbers_bytes = frozen_disk_bytes(r, p)};
}

void train_disk_print(const train_disk *d, FILE *out) {
    char a[32], b[32], c[32];
    if (d->n_checkpoints == 0 && d->export_bytes == 0 && d->numbers_bytes == 0) return;
    fputs("disk      ", out);
    if (d->n_checkpoints > 0)
        fprintf(out, "a checkpoint takes %s, at most %lld in run.dir at once", str_format_bytes(a, d->checkpoint_bytes),
                (long long)d->n_checkpoints);
    if (d->export_bytes > 0)
        fprintf(out, "%sthe export takes %s", d->n_checkpoints > 0 ? "; " : "", str_format_bytes(b, d->export_bytes));
    if (d->numbers_bytes > 0)
        fprintf(out, "%sthe numbers of the frozen model take at most %s",
                d->n_checkpoints > 0 || d->export_bytes > 0 ? "; " : "", str_format_bytes(c, d->numbers_bytes));
    fputc('\n', out);
}

json_t *train_disk_json(const train_disk *d) {
    return json_pack("{s:I, s:I, s:I, s:I}", "checkpoint", (json_int_t)d->checkpoint_bytes, "checkpoints_at_once",
                     (json_int_t)d->n_checkpoints, "export", (json_int_t)d->export_bytes, "numbers",
                     (json_int_t)d->numbers_bytes);
}

/* ---- judging --------------------------------------------------------------------------------------------------- */

static bool is_checked(const disk_need *need) { return need->n > 0 && need->space.total > 0; }

/* Sums saturate below 2^64: no disk has more. */
static uint64_t total_bytes(const disk_need *need) {
    uint64_t n = (uint64_t)need->n;
    return need->n_bytes > UINT64_MAX / 4 / n ? UINT64_MAX / 4 : need->n_bytes * n;
}

/* The needs of one file system, of which needs[first] is the first. */
static void check_file_system(const disk_need *needs, size_t n, size_t first, strbuf *warning) {
    const dir_space *s = &needs[first].space;
    uint64_t sum = 0;
    char a[32], b[32];
    strbuf parts;
    strbuf_init(&parts);
    for (size_t i = first; i < n; i++) {
        if (!is_checked(&needs[i]) || needs[i].space.file_system != s->file_system) continue;
        sum += total_bytes(&needs[i]);
        if (i > first) strbuf_add(&parts, ", ");
        if (needs[i].n > 1) strbuf_printf(&parts, "%lld %s", (long long)needs[i].n, needs[i].many);
        else strbuf_add(&parts, needs[i].one);
        strbuf_printf(&parts, " of %s", str_format_bytes(a, needs[i].n_bytes));
    }
    if (sum > s->free)
        strbuf_printf(warning,
                      "%s%s %s: %s are free there, the run will need %s at once: %s; make room, lower "
                      "run.keep, or choose other directories",
                      warning->length ? "; " : "", needs[first].key, needs[first].dir, str_format_bytes(a, s->free),
                      str_format_bytes(b, sum), parts.text);
    strbuf_fini(&parts);
}

status disk_room_check(const disk_need *needs, size_t n, strbuf *warning) {
    for (size_t i = 0; i < n; i++) {
        const disk_need *d = &needs[i];
        char a[32], b[32];
        if (is_checked(d) && d->instead && d->space.free + d->space.reserve < d->n_bytes)
            return ERR(ERR_INPUT, "%s %s: %s are free there, %s takes %s; make room, or %s", d->key, d->dir,
                       str_format_bytes(a, d->space.free), d->one, str_format_bytes(b, d->n_bytes), d->instead);
    }
    for (size_t i = 0; i < n; i++) {
        bool first = is_checked(&needs[i]);
        for (size_t k = 0; k < i && first; k++)
            first = !is_checked(&needs[k]) || needs[k].space.file_system != needs[i].space.file_system;
        if (first) check_file_system(needs, n, i, warning);
    }
    return OK;
}

/* ---- asking ---------------------------------------------------------------------------------------------------- */

/* The step that the run continues from, by the directory's name: only to count saves, the checkpoint is read later. */
static status first_step(const train_request *r, const checkpoint_survey *own, int64_t *out) {
    *out = 0;
    if (!r->resume) return OK;
    if (strcmp(r->resume, "auto") == 0) {
        *out = own->newest;
    } else if (!checkpoint_step_of(r->resume, out)) {
        checkpoint_survey other;
        TRY(checkpoint_survey_make(&other, r->resume));
        *out = other.newest;
    }
    return OK;
}

static void find_space(disk_need *need) {
    strbuf dir;
    if (!need->dir) return;
    strbuf_init(&dir);
    dir_nearest(need->dir, &dir);
    if (!dir_space_get(dir.text, &need->space)) need->space = (dir_space){0}; /* the later write reports why not */
    strbuf_fini(&dir);
}

/* Every run writes its numbers there, whatever else it saves. */
static status check_writable(const char *run_dir) {
    strbuf dir;
    strbuf_init(&dir);
    dir_nearest(run_dir, &dir);
    status rc = OK;
    if (faccessat(AT_FDCWD, dir.text, W_OK | X_OK, AT_EACCESS) != 0) {
        int why = errno;
        rc = ERR(ERR_INPUT, "run.dir %s: %s cannot be written to: %s; set run.dir (--out) to a directory that can",
                 run_dir, strcmp(dir.text, run_dir) == 0 ? "it" : dir.text, strerror(why));
    }
    strbuf_fini(&dir);
    return rc;
}

static status check_disk(const train_request *r, const plan *p, const char *run_dir) {
    enum { CHECKPOINTS, EXPORT, NUMBERS, NVME, N_NEEDS };
    checkpoint_survey found;
    int64_t first, n_ranks = r->comm ? comm_node_size(r->comm) : 1;
    TRY(check_writable(run_dir));
    TRY(checkpoint_survey_make(&found, run_dir));
    TRY(first_step(r, &found, &first));
    disk_need needs[N_NEEDS] = {
        [CHECKPOINTS] = {.key = "run.dir",
                         .dir = run_dir,
                         .one = "a checkpoint",
                         .many = "checkpoints",
                         .instead = "set run.dir to a directory of another disk, or run.save_last=false, "
                                    "train.save_every=0 and train.save_best=none for a run that saves nothing",
                         .n_bytes = checkpoint_bytes(r, p),
                         .n = disk_room_at_once(disk_room_saves(r, first), r->keep, found.n) + best_at_once(r)},
        [EXPORT] = {.key = "run.export",
                    .dir = r->export_dir,
                    .one = "the export",
                    .instead = "set run.export to a directory of another disk, or leave it out and use ralo export "
                               "when the run is done",
                    .n_bytes = export_bytes(r, p),
                    .n = r->export_dir ? 1 : 0},
        [NUMBERS] = {.key = "run.dir",
                     .dir = run_dir,
                     .one = "the numbers of the frozen model",
                     .instead = "set run.dir to a directory of another disk",
                     .n_bytes = frozen_disk_bytes(r, p),
                     .n = r->frozen.dir ? 1 : 0},
        /* The nvme file is reserved, or refused, when memory is opened. */
        [NVME] = {.key = "memory.nvme_path",
                  .dir = r->nvme_path ? r->nvme_path : run_dir,
                  .one = "offloaded values",
                  .many = "ranks' offloaded values",
                  .n_bytes = p->planned[TIER_NVME],
                  .n = p->planned[TIER_NVME] ? n_ranks : 0}};
    for (size_t i = 0; i < N_NEEDS; i++) find_space(&needs[i]);
    for (size_t i = 0; i < N_NEEDS; i++)
        if (needs[i].space.file_system == needs[CHECKPOINTS].space.file_system)
            needs[i].space.free += found.leftover_bytes;
    strbuf warning;
    strbuf_init(&warning);
    status rc = disk_room_check(needs, N_NEEDS, &warning);
    bool is_first = !r->comm || comm_rank(r->comm) == 0;
    if (warning.length > 0 && is_first) log_warn("%s", warning.text);
    strbuf_fini(&warning);
    return rc;
}

/* Ranks write into one directory, so each of them gets the same result. */
status train_check_disk(const train_request *r, const plan *p, const char *run_dir) {
    TRY(check_disk(r, p, run_dir));
    return r->comm ? comm_barrier(r->comm) : OK; /* no directory is made for a run that is refused */
}
