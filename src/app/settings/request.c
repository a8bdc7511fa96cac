/* request.c - from settings to a training request.
 *
 * A request is complete before anything runs: contradictions (rows and ranks, pipeline stages and auto) are refused
 * here, by the name of the setting. Settings left to the plan are marked open. Ranks come last: before that, a
 * request is for one process that has the machine to itself. */
#include "settings/limits.h"
#include "settings/place.h"
#include "settings/request.h"

#include <math.h>
#include <string.h>

/* An epoch is every row once, or every prompt. Rounded up: 3 epochs are at least 3. */
static status steps_of_epochs(const config *c, const plan_request *p, const char *key, double epochs, int64_t *out) {
    enum { STEPS_MOST = 1000000000 };
    const train_options *t = &c->train;
    double rows = (double)c->survey.rows_per_epoch,
           per_step = (double)(p->choice.micro_batch * p->choice.accumulation * mesh_size(&p->mesh, AXIS_DATA));
    if (rows == 0)
        return ERR(ERR_INPUT, "%s counts in epochs, and data.source cannot be counted in rows; set %s", key,
                   config_steps_key(key));
    if (c->task == TASK_RLOO) per_step = (double)t->rl.prompts;
    double steps = ceil(epochs * rows / per_step * (1 - 1e-12)); /* 0.1 x 30 rows are 3, not 4 */
    if (c->task == TASK_RLOO) steps *= (double)t->rl.updates;
    if (steps > STEPS_MOST)
        return ERR(ERR_INPUT, "%s: found %g epochs, which are %.3g steps, expected at most %d; lower it", key, epochs,
                   steps, STEPS_MOST);
    *out = MAX((int64_t)steps, 1);
    return OK;
}

/* Steps and warmup of the run, once the rows of a step are known. */
static status steps_from_config(const config *c, train_request *r) {
    train_options *t = &r->train;
    t->steps = c->train.steps ? c->train.steps : STEPS_USUAL;
    if (t->epochs > 0) TRY(steps_of_epochs(c, &r->plan, "train.epochs", t->epochs, &t->steps));
    if (t->evals_per_epoch)
        TRY(steps_of_epochs(c, &r->plan, "train.evals_per_epoch", 1 / (double)t->evals_per_epoch, &t->eval_every));
    if (t->saves_per_epoch)
        TRY(steps_of_epochs(c, &r->plan, "train.saves_per_epoch", 1 / (double)t->saves_per_epoch, &t->save_every));
    int64_t end = t->schedule_steps ? MIN(t->schedule_steps, t->steps) : t->steps;
    t->warmup = c->train.warmup >= 0 ? c->train.warmup : MIN((int64_t)WARMUP_USUAL, end / 10);
    if (t->warmup_ratio > 0) t->warmup = (int64_t)ceil(t->warmup_ratio * (double)end * (1 - 1e-12));
    r->plan.run_steps = t->steps;
    return config_check_schedule(t);
}

/* The margin of orpo's rewards has its lambda as scale, as TRL has it. */
static preference_options preference_from_config(const config *c) {
    preference_kind k = c->preference.loss + 1;
    double usual = k == PREFERENCE_SIMPO ? 2 : 0.1, beta = c->preference.beta > 0 ? c->preference.beta : usual;
    if (k == PREFERENCE_ORPO) beta = c->preference.lambda; /* of its rewards, as TRL has them */
    return (preference_options){.kind = k,
                                .beta = (float)beta,
                                .smoothing = (float)c->preference.smoothing,
                                .gamma = (float)c->preference.gamma,
                                .lambda = (float)c->preference.lambda,
                                .lambda_good = (float)c->preference.desirable,
                                .lambda_bad = (float)c->preference.undesirable};
}

/* rl.baseline_memory is what a common implementation does: what would need less memory contradicts it. */
static status baseline_from_config(const config *c, plan_request *p) {
    long long rows = c->train.micro_batch, k = c->train.rl.k;
    p->baseline = c->task == TASK_RLOO && c->train.rl.baseline;
    if (!p->baseline) return OK;
    if (c->memory.logits_chunk)
        return ERR(ERR_INPUT,
                   "memory.logits_chunk: found %lld bytes with rl.baseline_memory, expected auto: the logits of all "
                   "tokens exist at once there; leave one of them out",
                   (long long)c->memory.logits_chunk);
    if (rows != k)
        return ERR(ERR_INPUT,
                   "train.micro_batch: found %lld with rl.baseline_memory, expected the %lld of rl.k: a micro-batch is "
                   "all completions of a prompt; leave it out",
                   rows, k);
    p->logits_chunk_bytes = k * config_seq_len(c) * p->source.vocab * (int64_t)sizeof(float);
    return OK;
}

/* A step over completions has as many micro-batches as they fill, at most a row for each. */
static status rollout_from_config(const config *c, plan_request *p) {
    const train_options *t = &c->train;
    int64_t ranks = mesh_size(&p->mesh, AXIS_DATA);
    if (t->micro_batch < 0)
        return ERR(ERR_INPUT, "train.micro_batch: found auto with train.task rloo, expected a number of rows");
    if (t->rl.prompts % ranks)
        return ERR(ERR_INPUT, "rl.prompts: found %lld, expected a multiple of the %lld data ranks",
                   (long long)t->rl.prompts, (long long)ranks);
    p->choice.micro_batch = t->micro_batch;
    p->rollout = t->rl.prompts / ranks * t->rl.k;
    p->choice.accumulation = divide_up(p->rollout, t->micro_batch);
    return OK;
}

/* The plan divides these rows, which are those of a step whatever it chooses. Stages of a pipeline are planned one by
 * one and must agree: they take rows one at a time, which leaves the most micro-batches in flight. */
static void leave_open(const config *c, plan_request *p, int64_t rows) {
    bool is_pipeline = c->parallel.size[AXIS_PIPELINE] > 1;
    p->open.micro_batch = !is_pipeline;
    p->choice.micro_batch = is_pipeline ? 1 : rows;
    p->choice.accumulation = is_pipeline ? rows : 1;
}

/* Batch of all ranks, micro-batch, accumulation: any two give the third. */
static status split_from_config(const config *c, plan_request *p) {
    const train_options *t = &c->train;
    int64_t ranks = mesh_size(&p->mesh, AXIS_DATA);
    if (c->task == TASK_RLOO) return rollout_from_config(c, p);
    bool is_open = t->micro_batch < 0;
    p->open.micro_batch = false;
    p->choice.micro_batch = is_open ? ROWS_USUAL : t->micro_batch;
    p->choice.accumulation = MAX(t->accumulation, (int64_t)1);
    p->step_rows = t->batch;
    if (!t->batch) {
        if (is_open && p->choice.accumulation == 1) leave_open(c, p, ROWS_USUAL);
        return OK;
    }
    if (t->batch % ranks)
        return ERR(ERR_INPUT, "train.batch: found %lld, expected a multiple of the %lld ranks that share it",
                   (long long)t->batch, (long long)ranks);
    int64_t batch = t->batch / ranks;
    if (is_open && t->accumulation > 1) { /* 1 stands in files that were written with every setting */
        if (batch % t->accumulation)
            return ERR(
                ERR_INPUT,
                "train.batch: found %lld, expected a multiple of train.accumulation (%lld)%s; change one of them",
                (long long)t->batch, (long long)t->accumulation, ranks > 1 ? " on each rank" : "");
        p->choice.micro_batch = batch / t->accumulation;
        return OK;
    }
    if (is_open) {
        leave_open(c, p, batch);
        return OK;
    }
    if (!t->accumulation) p->choice.accumulation = batch / t->micro_batch;
    const char *alias = config_alias(c, "train.micro_batch");
    if (!t->accumulation && batch % t->micro_batch)
        return ERR(
            ERR_INPUT,
            "train.batch: found %lld, expected a multiple of train.micro_batch (%lld%s%s)%s; change one of them, "
            "or set train.micro_batch=auto",
            (long long)t->batch, (long long)t->micro_batch, alias ? ", given as " : "", alias ? alias : "",
            ranks > 1 ? " on each rank" : "");
    if (p->choice.micro_batch * p->choice.accumulation != batch)
        return ERR(ERR_INPUT,
                   "train.batch: found %lld, expected train.micro_batch%s%s%s x train.accumulation = %lld x %lld%s; "
                   "leave one of them at auto",
                   (long long)t->batch, alias ? " (given as " : "", alias ? alias : "", alias ? ")" : "",
                   (long long)p->choice.micro_batch, (long long)p->choice.accumulation,
                   ranks > 1 ? " on each rank" : "");
    return OK;
}

static status batch_from_config(const config *c, plan_request *p) {
    enum { MICROS_MOST = 65536 }; /* as train.accumulation has it */
    TRY(split_from_config(c, p));
    if (p->choice.accumulation <= MICROS_MOST) return OK;
    return ERR(ERR_INPUT,
               "train.batch: found %lld, expected at most %d micro-batches of %lld row%s on each rank; raise "
               "train.micro_batch",
               (long long)c->train.batch, MICROS_MOST, (long long)p->choice.micro_batch,
               p->choice.micro_batch == 1 ? "" : "s");
}

/* The GPU of a process if run.gpu is not given. */
static int gpu_index(const config *c) { return c->run.gpu >= 0 ? c->run.gpu : backend_gpu_of(comm_launched_place()); }

static status check_transport(const config *c, device_kind kind) {
    if (kind != DEVICE_CPU || c->comm.transport != DEVICE_TRANSPORT_NCCL) return OK;
    return ERR(ERR_INPUT,
               "comm.transport: found nccl, expected auto or mpi: NCCL connects GPUs, and this run is on the CPU");
}

/* How messages reach their bytes: NCCL links reach device memory, MPI host memory. */
static void use_links(plan_request *p, bool links) {
    p->target.comm_at = links ? TIER_DEVICE : TIER_HOST;
    p->target.comm_bytes = links ? comm_link_work_bytes : comm_work_bytes;
}

/* A program with more slices than this would take longer to plan than to run. */
static status check_bucket(const config *c, const plan_request *p) {
    enum { SLICES_MOST = 32768 };
    uint64_t n_bytes = (uint64_t)net_param_count(&p->source) * sizeof(float);
    if (!c->choice.bucket_bytes || n_bytes / (uint64_t)c->choice.bucket_bytes <= SLICES_MOST) return OK;
    char found[32], expected[32];
    return ERR(ERR_INPUT, "memory.bucket: found %s, expected at least %s for the %lld parameters of %s, or auto",
               str_format_bytes(found, (uint64_t)c->choice.bucket_bytes),
               str_format_bytes(expected, n_bytes / SLICES_MOST + 1), (long long)net_param_count(&p->source),
               p->source.name);
}

/* Each stage is planned separately, so a message between two stages must not depend on a choice. */
static status check_stages(const config *c, const plan_request *p) {
    int n = c->parallel.size[AXIS_PIPELINE];
    if (n > 1 && p->open.precision)
        return ERR(ERR_INPUT, "precision: found auto with parallel.pipeline %d, expected a name: stages must agree", n);
    return OK;
}

/* Sequence ranks are taken from the data axis, so its size must be open. */
static bool sequence_is_open(const config *c) {
    return !c->parallel.size[AXIS_SEQUENCE] && !c->parallel.size[AXIS_DATA];
}

/* Of a field of the choice, which may be an enum without negative members. */
static bool is_auto(int64_t asked) { return (int)asked == -1; }
/* What the plan starts from where it chooses: nothing kept, nothing cut, everything on the device. */
static int64_t until_chosen(int64_t asked) { return is_auto(asked) ? 0 : asked; }

/* What is given by hand, and what is left to the plan. */
static void strategy_from_config(const config *c, plan_request *p) {
    const step_choice *asked = &c->choice;
    p->left_open = (plan_open){.params = is_auto(asked->offload.params),
                               .grads = is_auto(asked->offload.grads),
                               .states = is_auto(asked->offload.states),
                               .activations = is_auto(asked->offload.activations),
                               .keep_layers = is_auto(asked->keep_layers),
                               .keep_embed = is_auto(asked->keep_embed),
                               .keep_params = is_auto(asked->keep_params) && is_auto(asked->offload.params),
                               .keep_states = is_auto(asked->keep_states) && is_auto(asked->offload.states),
                               .chunk = is_auto(asked->chunk_tokens),
                               .prefetch = !config_was_given(c, "memory.prefetch"),
                               .precision = p->open.precision,
                               .micro_batch = p->open.micro_batch,
                               .zero = is_auto(asked->shard.zero),
                               .sequence = sequence_is_open(c)};
    p->left_open_recompute = p->choice.recompute.kind == RECOMPUTE_AUTO;
    p->manual = c->memory.strategy == STRATEGY_MANUAL || p->baseline;
    p->open.place = p->left_open.place = strcmp(c->memory.place, "auto") == 0;
    if (!p->manual) p->open = p->left_open;
    else if (p->left_open_recompute) p->choice.recompute.kind = RECOMPUTE_NONE;
    p->choice.offload = (offload_tiers){.params = until_chosen(asked->offload.params),
                                        .grads = until_chosen(asked->offload.grads),
                                        .states = until_chosen(asked->offload.states),
                                        .activations = until_chosen(asked->offload.activations),
                                        .reference = asked->offload.reference};
    p->choice.keep_layers = until_chosen(asked->keep_layers);
    p->choice.keep_states = until_chosen(asked->keep_states);
    p->choice.keep_params = until_chosen(asked->keep_params);
    p->choice.keep_embed = (int)until_chosen(asked->keep_embed);
    p->choice.chunk_tokens = chunk_rows(until_chosen(asked->chunk_tokens));
    p->choice.shard.zero = (int)until_chosen(asked->shard.zero);
    p->may_nvme = *c->memory.nvme_path != 0; /* auto never offloads to a drive */
}

/* All but the plan: where the run comes from, where it goes and what it runs on. */
static void run_from_config(const config *c, train_request *out) {
    sys_info machine;
    sys_info_get(&machine);
    /* A plan can be made for a GPU that is not here; backend_choose reports the missing GPU when it is to run. */
    const backend *b = NULL;
    int gpu = gpu_index(c);
    if (backend_choose(c->run.device, gpu, &b) != OK) error_clear();
    *out = (train_request){.data = c->data,
                           .train = c->train,
                           .survey = c->survey,
                           .keep = c->run.keep,
                           .no_last_checkpoint = !c->run.save_last,
                           .timed = c->run.breakdown,
                           .n_threads = c->run.threads ? c->run.threads : machine.n_cores,
                           .bind = c->run.bind,
                           .backend = b,
                           .gpu = {.index = gpu, .tf32 = c->run.tf32},
                           .export_gguf = (gguf_format)(GGUF_F16_FILE + c->run.gguf), /* the row of run.gguf */
                           .settings = c,
                           .write_settings = config_write_changes,
                           .preference = preference_from_config(c),
                           .reference = (reference_kind)c->preference.reference,
                           .share_prompt = (share_prompt)c->preference.share,
                           .reward = c->reward};
    out->data.seed = c->train.seed;
    out->data.n_threads = out->n_threads;
    if (c->run.resume && c->run.resume[0] && strcmp(c->run.resume, "none") != 0) out->resume = c->run.resume;
    if (*c->model.path) out->model_dir = c->model.path;
    out->pretrained = out->model_dir && c->model.init != INIT_RANDOM;
    if (*c->model.adapter) out->adapter = c->model.adapter;
    if (*c->run.export_dir) out->export_dir = c->run.export_dir;
    if (*c->memory.nvme_path) out->nvme_path = c->memory.nvme_path;
    /* Files without held-out text have no rows to evaluate. */
    if (!data_evaluates(&c->data)) out->train.eval_rows = 0;
}

/* The model, and how many rows and steps it is trained on. */
static status model_and_steps_from_config(const config *c, const mesh *m, train_request *out) {
    plan_request *p = &out->plan;
    model_config model;
    TRY(model_from_config(c, &model));
    TRY(config_check_tokenizer(c, &model));
    TRY(lora_from_config(c, &model, &p->lora));
    p->source = net_source_of(&model);
    p->base = (base_format)c->model.base;
    out->data.vocab = model.vocab;
    p->choice = c->choice;
    p->mesh = *m;
    TRY(batch_from_config(c, p));
    TRY(steps_from_config(c, out));
    p->seq_len = out->data.seq_len = config_seq_len(c);
    bool packs =
        c->data.pack && (c->task == TASK_SFT || c->task == TASK_MTP); /* others have a record, or a pair, in a row */
    if (packs && p->seq_len < ROW_TOKENS_FEW)
        p->longer_rows = MIN((int64_t)ROW_TOKENS_USUAL, model_of(&p->source)->max_positions);
    return OK;
}

static status request_of_ranks(const config *c, const mesh *m, train_request *out) {
    run_from_config(c, out);
    TRY(model_and_steps_from_config(c, m, out));
    device_kind kind = out->backend ? backend_kind(out->backend) : c->run.device;
    const train_options *t = &c->train;
    plan_request *p = &out->plan;
    p->open.precision = is_auto(c->choice.precision);
    p->choice.precision = until_chosen(c->choice.precision);
    p->optimizer = (optimizer_options){.beta1 = (float)t->beta1,
                                       .beta2 = (float)t->beta2,
                                       .eps = (float)t->eps,
                                       .weight_decay = (float)t->weight_decay,
                                       .clip = (float)t->clip};
    p->logits_chunk_bytes = c->memory.logits_chunk;
    TRY(baseline_from_config(c, p));
    TRY(recompute_parse(&p->choice.recompute, c->memory.recompute));
    strategy_from_config(c, p);
    TRY(place_parse(c->memory.place, p->source.n_layers, out->gpu.index, &p->place));
    p->virtual_stages = c->parallel.virtual_stages;
    p->attention = (attention_kind)c->parallel.attention;
    TRY(check_transport(c, kind));
    TRY(check_bucket(c, p));
    TRY(check_stages(c, p));
    p->target = backend_target(kind, out->n_threads);
    p->target.comm_bytes = comm_work_bytes;
    if (kind != DEVICE_CPU) use_links(p, c->comm.transport == DEVICE_TRANSPORT_NCCL);
    p->state_copies = out->train.save_every > 0 ? 1 : 0;
    TRY(task_shape(task_of(c->task), out));
    if (p->reference != REFERENCE_COPY) {
        config_warn_no_reference(c);
        p->choice.offload.reference = TIER_DEVICE;
    }
    return limits_of_machine(out, c, (limits_ranks){1, 1}, true);
}

/* Data ranks divide the rows of a step, so their number counts before their mesh is opened. The request itself is for
 * one process until request_use_comm. */
status request_from_config(const config *c, train_request *out) {
    mesh m = {0};
    int rank, size = 1;
    if (comm_launched(&rank, &size) && size > 1) {
        memcpy(m.size, c->parallel.size, sizeof m.size);
        if (!m.size[AXIS_DATA]) m.size[AXIS_DATA] = MAX(size / mesh_world(&m), 1);
    }
    TRY(request_of_ranks(c, &m, out));
    out->plan.mesh = (mesh){0};
    return OK;
}

/* The mesh of parallel.*; the data axis, if not given, is what `world` leaves for it. */
static status mesh_from_config(const config *c, int world, mesh *m) {
    int given = c->parallel.size[AXIS_DATA];
    memcpy(m->size, c->parallel.size, sizeof m->size);
    int n = mesh_world(m);
    if (!world) return OK;
    if (world % n || (given && world != n))
        return ERR(ERR_INPUT, "--world: found %d, expected %s%d, the product of parallel.*", world,
                   given ? "" : "a multiple of ", n);
    if (!given) m->size[AXIS_DATA] = world / n;
    return OK;
}

static void use_cores(train_request *r, const config *c, double cores) {
    if (!c->run.threads) r->n_threads = r->plan.target.n_threads = r->data.n_threads = MAX((int)cores, 1);
}

/* Ranks of parallel.* are what --ranks starts on this machine, where they share its cores; those of --world have nodes like it. */
static bool share_cores(train_request *r, const config *c, node_ranks *out) {
    sys_info machine;
    sys_info_get(&machine);
    int n = mesh_world(&r->plan.mesh);
    if (n < 2 || !r->backend || r->backend->discrete) return false;
    *out = (node_ranks){n, (double)machine.n_cores / n};
    use_cores(r, c, out->cores);
    return true;
}

status request_for_plan(train_request *r, const config *c, const char *asked, int world, hardware *machine) {
    plan_request *p = &r->plan;
    mesh m = {0};
    TRY(mesh_from_config(c, world, &m));
    TRY(request_of_ranks(c, &m, r));
    node_ranks ranks;
    bool sharing = !asked && !world && share_cores(r, c, &ranks);
    TRY(machine_describe(asked, r, sharing ? &ranks : NULL, machine));
    /* For a machine with devices, the plan uses the scratch sizes of their kernels. */
    if (asked && c->run.device == DEVICE_AUTO)
        p->target = backend_target(machine->unified ? DEVICE_CPU : DEVICE_CUDA, r->n_threads);
    if (asked ? machine->unified : r->backend && backend_kind(r->backend) == DEVICE_CPU)
        config_warn_no_effect_on_cpu(c);
    p->host_bytes += dataset_host_bytes_at_most(&r->data);
    if (asked || !r->backend) limits_of_hardware(r, c, machine);
    else
        TRY(limits_of_machine(r, c, (limits_ranks){(int)MIN(mesh_world(&p->mesh), machine->devices_per_node), 1},
                              false));
    return OK;
}

/* Ranks with GPUs: which of them share one, how their messages travel, and how its memory is divided. Each rank has
 * already asked for free memory, so every context exists by now and is counted. */
static status use_devices(train_request *r, const config *c, comm *ranks, int *n_sharing) {
    comm_devices found;
    TRY(comm_find_devices(ranks, r->backend, r->gpu.index, c->comm.transport, &found));
    use_links(&r->plan, found.links);
    *n_sharing = found.n_sharing;
    return OK;
}

status request_use_comm(train_request *r, const config *c, comm *ranks) {
    plan_request *p = &r->plan;
    r->comm = ranks;
    p->mesh = *comm_mesh(ranks);
    TRY(batch_from_config(c, p));
    TRY(steps_from_config(c, r));
    int here = comm_node_size(ranks), n_sharing = 1;
    use_cores(r, c, comm_cores(ranks));
    if (!config_was_given(c, "run.bind") && here > 1) r->bind = false; /* the launcher binds ranks, or nobody does */
    if (r->backend->discrete) TRY(use_devices(r, c, ranks, &n_sharing));
    TRY(limits_of_machine(r, c, (limits_ranks){here, n_sharing}, true));
    /* Free memory is read at slightly different moments; ranks with different limits might plan different steps. */
    TRY(comm_least(ranks, &p->device_limit));
    TRY(comm_least(ranks, &p->together_limit));
    return comm_least(ranks, &p->host_limit);
}

status request_use_mesh(train_request *r, const config *c, comm *ranks) {
    comm_devices found;
    r->comm = ranks;
    if (!r->backend->discrete) return OK;
    TRY(comm_find_devices(ranks, r->backend, r->gpu.index, c->comm.transport, &found));
    bool links = r->plan.target.comm_at == TIER_DEVICE;
    if (found.links != links)
        return ERR(ERR_RUN, "the ranks planned with messages through %s and now find only the other way",
                   links ? "device links" : "host memory");
    return OK;
}
