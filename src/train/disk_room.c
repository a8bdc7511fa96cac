/* disk_room.c - is there room on disk for what a run will write? Asked before it starts, not at its first save.
 *
 * A new checkpoint is whole before the oldest goes: run.keep and one more lie there for a while. What other writers left
 * unfinished is removed before the first save, so it counts as free.
 * Refused is only what cannot be: a checkpoint, or the export, larger than all that is free and what root may take of the
 * system's reserve. That many of them have no room beside each other, or only in that reserve, is a warning: until then
 * somebody may have made some. A file system that does not count is not judged. */
#include "train/disk_room.h"

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

static uint64_t export_bytes(const train_request *r, const plan *p) {
    if (!r->export_dir) return 0;
    return model_param_count(&p->request.model) * dtype_bytes(precision_compute(p->request.choice.precision)) +
           tokenizer_files_bytes(r->data.tokenizer);
}

/* Each keeps its own copy of the tokenizer. */
static uint64_t checkpoint_bytes(const train_request *r, const plan *p) {
    return plan_checkpoint_bytes(p) + tokenizer_files_bytes(r->data.tokenizer);
}

train_disk train_disk_of(const train_request *r, const plan *p) {
    return (train_disk){.checkpoint_bytes = checkpoint_bytes(r, p),
                        .n_checkpoints = disk_room_at_once(disk_room_saves(r, 0), r->keep, 0),
                        .export_bytes = export_bytes(r, p)};
}

void train_disk_print(const train_disk *d, FILE *out) {
    char a[32], b[32];
    if (d->n_checkpoints == 0 && d->export_bytes == 0) return;
    fputs("disk      ", out);
    if (d->n_checkpoints > 0)
        fprintf(out, "a checkpoint takes %s, at most %lld in run.dir at once", str_format_bytes(a, d->checkpoint_bytes),
                (long long)d->n_checkpoints);
    if (d->export_bytes > 0)
        fprintf(out, "%sthe export takes %s", d->n_checkpoints > 0 ? "; " : "", str_format_bytes(b, d->export_bytes));
    fputc('\n', out);
}

json_t *train_disk_json(const train_disk *d) {
    return json_pack("{s:I, s:I, s:I}", "checkpoint", (json_int_t)d->checkpoint_bytes, "checkpoints_at_once",
                     (json_int_t)d->n_checkpoints, "export", (json_int_t)d->export_bytes);
}

/* ---- judging --------------------------------------------------------------------------------------------------- */

static bool is_judged(const disk_need *need) { return need->n > 0 && need->space.total > 0; }

/* Sums stay below 2^64: no disk has more, and whatever does is as bad. */
static uint64_t all_bytes(const disk_need *need) {
    uint64_t n = (uint64_t)need->n;
    return need->n_bytes > UINT64_MAX / 4 / n ? UINT64_MAX / 4 : need->n_bytes * n;
}

/* The needs of one file system, of which needs[first] is the first. */
static void judge_together(const disk_need *needs, size_t n, size_t first, strbuf *warning) {
    const dir_space *s = &needs[first].space;
    uint64_t sum = 0;
    char a[32], b[32];
    strbuf parts;
    strbuf_init(&parts);
    for (size_t i = first; i < n; i++) {
        if (!is_judged(&needs[i]) || needs[i].space.file_system != s->file_system) continue;
        sum += all_bytes(&needs[i]);
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

status disk_room_judge(const disk_need *needs, size_t n, strbuf *warning) {
    for (size_t i = 0; i < n; i++) {
        const disk_need *d = &needs[i];
        char a[32], b[32];
        if (is_judged(d) && d->instead && d->space.free + d->space.reserve < d->n_bytes)
            return ERR(ERR_INPUT, "%s %s: %s are free there, %s takes %s; make room, or %s", d->key, d->dir,
                       str_format_bytes(a, d->space.free), d->one, str_format_bytes(b, d->n_bytes), d->instead);
    }
    for (size_t i = 0; i < n; i++) {
        bool first = is_judged(&needs[i]);
        for (size_t k = 0; k < i && first; k++)
            first = !is_judged(&needs[k]) || needs[k].space.file_system != needs[i].space.file_system;
        if (first) judge_together(needs, n, i, warning);
    }
    return OK;
}

/* ---- asking ---------------------------------------------------------------------------------------------------- */

/* The step that the run goes on from, by names: what is resumed is looked at later, and here it only counts saves. */
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
    if (!dir_space_get(dir.text, &need->space)) need->space = (dir_space){0}; /* whoever writes there says why not */
    strbuf_fini(&dir);
}

static status check_disk(const train_request *r, const plan *p, const char *run_dir) {
    enum { CHECKPOINTS, EXPORT, NVME, N_NEEDS };
    checkpoint_survey found;
    int64_t first, n_ranks = r->comm ? comm_node_size(r->comm) : 1;
    TRY(checkpoint_survey_make(&found, run_dir));
    TRY(first_step(r, &found, &first));
    disk_need needs[N_NEEDS] = {
        [CHECKPOINTS] = {.key = "run.dir",
                         .dir = run_dir,
                         .one = "a checkpoint",
                         .many = "checkpoints",
                         .instead = "set run.dir to a directory of another disk, or run.save_last=false and "
                                    "train.save_every=0 for a run that saves nothing",
                         .n_bytes = checkpoint_bytes(r, p),
                         .n = disk_room_at_once(disk_room_saves(r, first), r->keep, found.n)},
        [EXPORT] = {.key = "run.export",
                    .dir = r->export_dir,
                    .one = "the export",
                    .instead = "set run.export to a directory of another disk, or leave it out and use ralo export "
                               "when the run is done",
                    .n_bytes = export_bytes(r, p),
                    .n = r->export_dir ? 1 : 0},
        /* Reserved when memory is opened, and refused there. */
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
    status rc = disk_room_judge(needs, N_NEEDS, &warning);
    bool speaks = !r->comm || comm_rank(r->comm) == 0;
    if (warning.length > 0 && speaks) log_warn("%s", warning.text);
    strbuf_fini(&warning);
    return rc;
}

/* Ranks write into one directory, so that each of them finds the same. */
status train_check_disk(const train_request *r, const plan *p, const char *run_dir) {
    TRY(check_disk(r, p, run_dir));
    return r->comm ? comm_barrier(r->comm) : OK; /* nobody makes a directory for a run that is refused */
}
