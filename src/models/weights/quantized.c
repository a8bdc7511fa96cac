/* quantized.c - numbers to the codes of a running program.
 *
 * The numbers are those of the file or the seed as fp32, not rounded to what the program computes with: the codes of a base are
 * the same in every precision, so that a run is generated with and evaluated over the base that it was trained over.
 * Threads quantise rows beside each other; blocks of nf4 go across the ends of rows, so they take runs of 64 rows. */
#include "weights/quantized.h"
#include "weights/params.h"

#include <stdlib.h>

enum {
    TASK_ROWS = NF4_BLOCK,
    BLOCK_MOST = 1 << 23
}; /* BLOCK_MOST: elements, where 64 rows have no more: tasks for 16 threads at 8,192 columns */

typedef struct job {
    exec *e;
    const net_param *param;
    const param_part *part;
    quantized_rows *read;
    void *context;
    int64_t block_rows, columns;
    float *block;
    quantizer q;
    const base_hash *hash; /* NULL: not asked for */
    /* of the block in progress */
    int64_t first, n; /* rows of the part */
    float *largest;   /* of each task */
    uint64_t *sums;
    bool *failed;
} job;

bool quantized_is(const plan *p, size_t i) { return p->net.params[i].base != BASE_COMPUTE; }

int quantized_values(const plan *p, size_t i, value_id out[QUANTIZED_VALUES]) {
    int n = 0;
    for (int k = 0; k < p->net.params[i].n_parts; k++) {
        const base_values *b = &p->step.base[i].part[k];
        const value_id all[] = {b->codes, b->scale, b->scale_codes, b->offset};
        for (size_t j = 0; j < ARRAY_LENGTH(all); j++)
            if (all[j]) out[n++] = all[j];
    }
    return n;
}

/* ---- one block of rows ------------------------------------------------------------------------------------------- */

static const float *task_rows(const job *j, int64_t task, int64_t *first, int64_t *n) {
    *first = task * TASK_ROWS;
    *n = MIN((int64_t)TASK_ROWS, j->n - *first);
    return j->block + *first * j->columns;
}

static void largest_task(void *context, int64_t task, int thread) {
    (void)thread;
    job *j = context;
    int64_t first, n;
    const float *rows = task_rows(j, task, &first, &n);
    j->largest[task] = quantize_absmax(0, rows, n * j->columns);
}

static void codes_task(void *context, int64_t task, int thread) {
    (void)thread;
    job *j = context;
    int64_t first, n;
    const float *rows = task_rows(j, task, &first, &n);
    j->failed[task] = quantizer_add_at(&j->q, j->first + first, rows, n) != OK;
    if (j->hash)
        j->sums[task] = params_hash_elements(j->param->name, (j->part->first_row + j->first + first) * j->columns, rows,
                                             n * j->columns, j->hash->as);
}

/* Errors belong to the thread that makes them: the first one is made once more on this thread. */
static status check_tasks(job *j, int64_t n_tasks, base_hash *hash) {
    for (int64_t task = 0; task < n_tasks; task++) {
        int64_t first, n;
        const float *rows = task_rows(j, task, &first, &n);
        if (j->failed[task]) return quantizer_add_at(&j->q, j->first + first, rows, n);
        if (hash) hash->sum += j->sums[task];
    }
    return OK;
}

static void read_block(job *j, int64_t first) {
    j->first = first;
    j->n = MIN(j->block_rows, j->part->n_rows - first);
    j->read(j->context, j->part->first_row + first, j->n, j->block);
}

static float find_largest(job *j) {
    float most = 0;
    for (int64_t row = 0; row < j->part->n_rows; row += j->block_rows) {
        read_block(j, row);
        int64_t n_tasks = divide_up(j->n, TASK_ROWS);
        exec_parallel(j->e, largest_task, j, n_tasks);
        for (int64_t k = 0; k < n_tasks; k++) most = MAX(most, j->largest[k]);
    }
    return most;
}

/* ---- one part ---------------------------------------------------------------------------------------------------- */

static void write_value(exec *e, const plan *p, value_id v, const void *from) {
    if (v) exec_write(e, v, 0, from, value_bytes(program_get(&p->program, v)));
}

static status quantize_part(job *j, const plan *p, const base_values *to, base_hash *hash) {
    status rc = OK;
    const base_format f = j->param->base;
    base_sizes n = base_sizes_of(f, j->part->n_rows, j->columns);
    base_codes codes = {.codes = mem_alloc((size_t)n.codes),
                        .scale = mem_alloc((size_t)n.scales * sizeof(float)),
                        .scale_codes = n.scale_codes ? mem_alloc((size_t)n.scale_codes) : NULL,
                        .offset = n.offsets ? mem_alloc((size_t)n.offsets * sizeof(float)) : NULL};
    quantizer_options o = {
        .name = j->part->file_name, .format = f, .n_out = j->part->n_rows, .n_in = j->columns, .to = codes};
    if (f == BASE_FP8) o.absmax = find_largest(j);
    quantizer_init(&j->q, &o);
    for (int64_t row = 0; row < j->part->n_rows; row += j->block_rows) {
        read_block(j, row);
        int64_t n_tasks = divide_up(j->n, TASK_ROWS);
        exec_parallel(j->e, codes_task, j, n_tasks);
        TRY_GOTO(rc, check_tasks(j, n_tasks, hash), done);
    }
    TRY_GOTO(rc, quantizer_finish(&j->q), done);
    write_value(j->e, p, to->codes, codes.codes);
    write_value(j->e, p, to->scale, codes.scale);
    write_value(j->e, p, to->scale_codes, codes.scale_codes);
    write_value(j->e, p, to->offset, codes.offset);
done:
    quantizer_fini(&j->q);
    free(codes.codes);
    free(codes.scale);
    free(codes.scale_codes);
    free(codes.offset);
    return rc;
}

status quantized_write(exec *e, const plan *p, size_t i, quantized_rows *read, void *context, base_hash *hash) {
    const net_param *q = &p->net.params[i];
    status rc = OK;
    if (q->of_reference || q->of_other_head || shard_counted(&p->step, &p->net, &p->request.mesh, i).n == 0)
        hash = NULL; /* a copy, which only training has, or another rank counts it */
    job j = {.e = e, .param = q, .read = read, .context = context, .columns = q->shape.dim[1], .hash = hash};
    j.block_rows =
        MIN(MAX(BLOCK_MOST / j.columns / TASK_ROWS, (int64_t)1), divide_up(q->shape.dim[0], TASK_ROWS)) * TASK_ROWS;
    j.block = mem_alloc((size_t)(j.block_rows * j.columns) * sizeof *j.block);
    size_t n_tasks = (size_t)divide_up(j.block_rows, TASK_ROWS);
    j.largest = mem_alloc(n_tasks * sizeof *j.largest);
    j.sums = mem_alloc(n_tasks * sizeof *j.sums);
    j.failed = mem_alloc(n_tasks * sizeof *j.failed);
    for (int k = 0; k < q->n_parts && rc == OK; k++) {
        j.part = &q->parts[k];
        rc = quantize_part(&j, p, &p->step.base[i].part[k], hash);
    }
    free(j.block);
    free(j.largest);
    free(j.sums);
    free(j.failed);
    return rc;
}
