/* test_mtp.c - multi-token prediction: what each head predicts, the loss and every gradient against PyTorch in fp64, heads that
 * begin as the last layer of an ordinary model, and the memory that heads cost.
 *
 * The fixtures are made by tools/make_mtp_fixtures.py. fp32 sums of some hundred products differ from them by a few 1e-7 of
 * their size; the bound is 1e-5. */
#include "backend_choice.h"
#include "change_model.h"
#include "family_fixtures.h"
#include "must.h"
#include "param_fixtures.h"
#include "programs.h"
#include "train/ahead.h"
#include "train/batch.h"
#include "training.h"
#include "weightfile/weightfile.h"
#include "weights/load.h"
#include "weights/params.h"

#include <math.h>
#include <stdlib.h>

/* ---- targets and scales -------------------------------------------------------------------------------------------- */

/* Of one document of S tokens head k has targets at 0 .. S - k - 1; documents do not see each other, and a token that is not
 * trained on is no target of any head. */
static void heads_predict_inside_documents(void **state) {
    /* two documents, of five and of three tokens: 10 11 12 13 14 | 20 21 22; 12 is not trained on */
    const int32_t targets[8] = {11, -1, 13, 14, -1, 21, 22, -1}, doc_start[8] = {0, 0, 0, 0, 0, 5, 5, 5};
    const int32_t want[4][8] = {{11, -1, 13, 14, -1, 21, 22, -1},
                                {-1, 13, 14, -1, -1, 22, -1, -1},
                                {13, 14, -1, -1, -1, -1, -1, -1},
                                {14, -1, -1, -1, -1, -1, -1, -1}};
    uint64_t counts[4] = {0};
    const uint64_t counts_wanted[4] = {5, 3, 2, 1};
    for (int k = 1; k <= 4; k++)
        for (int64_t t = 0; t < 8; t++) assert_int_equal(ahead_target(targets, doc_start, 8, t, k), want[k - 1][t]);
    ahead_count(targets, doc_start, 8, 4, counts);
    assert_memory_equal(counts, counts_wanted, sizeof counts);
}

/* Sums that are multiplied by them and divided by the first count are means of their own counts, averaged over heads that have
 * targets. */
static void scales_make_a_mean_of_means(void **state) {
    float scales[4];
    ahead_scales((const uint64_t[]){12, 6, 3, 0}, 4, scales);
    assert_true(scales[0] == 1 / 3.0f && scales[1] == 12 / (3 * 6.0f) && scales[2] == 12 / (3 * 3.0f) &&
                scales[3] == 0);
    ahead_scales((const uint64_t[]){7}, 1, scales);
    assert_true(scales[0] == 1);
    ahead_scales((const uint64_t[]){0, 0}, 2, scales);
    assert_true(scales[0] == 0 && scales[1] == 0);
}

/* ---- against PyTorch ----------------------------------------------------------------------------------------------- */

static const char *const fixtures[] = {"gpt2_tied", "llama_untied_gqa", "qwen3_tied_gqa"};
enum { HEADS = 3 };

typedef struct machine {
    safetensors file;
    plan plan;
    exec *e;
} machine;

static const safetensor *get(const machine *m, const char *name) { return fixture_tensor(&m->file, "", name); }

static plan_request request_of(const machine *m, const char *name, int accumulation) {
    const safetensor *tokens = get(m, "tokens");
    model_config config = family_config(&m->file, name);
    return (plan_request){.source = net_source_of(&config),
                          .choice.micro_batch = tokens->shape.dim[0],
                          .choice.accumulation = accumulation,
                          .seq_len = tokens->shape.dim[1],
                          .with_eval = true,
                          .verify = true,
                          .optimizer = {.beta1 = 0.9f, .beta2 = 0.95f, .eps = 1e-8f, .clip = 1},
                          .logits_chunk_bytes = 4096, /* several chunks even for these small models */
                          .target = backend_target(backend_kind(backend_under_test()), 2)};
}

static void machine_start(machine *m, const plan_request *r) {
    must(plan_build(&m->plan, r));
    must(exec_open(&m->e, &m->plan.program, &(exec_options){.backend = backend_under_test(), .n_threads = 2}));
}

static void open_file(machine *m, const char *folder, const char *name) {
    char path[512];
    snprintf(path, sizeof path, "%s/%s%s.safetensors", TEST_FIXTURES, folder, name);
    must(safetensors_open(&m->file, path));
}

static void machine_close(machine *m) {
    exec_close(m->e);
    plan_close(&m->plan);
    safetensors_close(&m->file);
}

/* Inputs as the task writes them; returns the targets of the first head. */
static double write_rows(const machine *m, bool weighted) {
    const net *to = &m->plan.net;
    const safetensor *tokens = get(m, "tokens");
    const int32_t *targets = get(m, "targets")->data, *doc = get(m, "doc")->data;
    int64_t B = tokens->shape.dim[0], T = tokens->shape.dim[1];
    uint64_t counts[HEADS] = {0};
    float scales[HEADS];
    step_scalars s = step_scalars_of(1, 0);
    for (int64_t b = 0; b < B; b++) ahead_count(targets + b * T, doc + b * T, T, HEADS, counts);
    ahead_scales(counts, HEADS, scales);
    must(batch_write(
        m->e, &m->plan, &m->plan.step.inputs[0],
        &(batch_rows){tokens->data, targets, doc, weighted ? get(m, "weights")->data : NULL, .scales = scales}));
    exec_write(m->e, to->scalars, 0, &s, sizeof s);
    for (int k = 1; k <= HEADS; k++) {
        char name[32];
        int32_t *written = mem_alloc((size_t)(B * T) * sizeof *written);
        snprintf(name, sizeof name, "targets_%d", k);
        exec_read(m->e, to->loss[k - 1].targets, 0, written, (size_t)(B * T) * sizeof *written);
        assert_memory_equal(written, get(m, name)->data, (size_t)(B * T) * sizeof *written);
        free(written);
    }
    return (double)counts[0];
}

/* Gradients are divided by the targets of the first head after the step. bf16_sr and fp16 are held by equality, not here. */
static void gradients_equal_pytorch(void **state) {
    for (size_t i = 0; i < ARRAY_LENGTH(fixtures); i++)
        for (int way = 0; way < 4; way++) {
            machine m;
            double sums[HEADS][SUM_COUNT], loss = 0;
            float want;
            size_t n;
            bool weighted = way & 1;
            open_file(&m, "mtp/", fixtures[i]);
            plan_request r = request_of(&m, fixtures[i], 1 + way / 2);
            CHANGE_MODEL(r.source, c.mtp_heads = HEADS);
            r.choice.recompute.kind = way / 2 ? RECOMPUTE_FULL : RECOMPUTE_NONE;
            machine_start(&m, &r);
            fixture_load(m.e, &m.plan, &m.file, "w/", false);
            double first = write_rows(&m, weighted);
            must(exec_run(m.e, SECTION_MICRO));
            exec_read(m.e, m.plan.step.loss_sums, 0, sums, sizeof sums);
            for (int k = 0; k < HEADS; k++) loss += sums[k][SUM_WEIGHTED_LOSS] / first;
            memcpy(&want, get(&m, weighted ? "weighted" : "loss")->data, sizeof want);
            double error = fixture_gradient_error(m.e, &m.plan, &m.file, weighted ? "gw/" : "g/", first, &n);
            print_message("%-18s %zu gradients%s within %.1e, loss within %.1e\n", fixtures[i], n,
                          weighted ? " with weights" : "", error, fabs(loss / (double)want - 1));
            assert_true(sums[0][SUM_VALID] == first);
            assert_true(fabs(loss / (double)want - 1) < 1e-5);
            assert_true(n > 0 && error < 1e-5);
            machine_close(&m);
        }
}

/* Tokens that a head loses more on than a reference does, from the quantile of the micro-batch on. */
static void selected_tokens_equal_pytorch(void **state) {
    const char *name = "llama_untied_gqa";
    for (int accumulation = 1; accumulation <= 2; accumulation++) {
        machine m;
        double sums[HEADS][SUM_COUNT], selected[HEADS][SELECT_SUM_COUNT], loss = 0;
        float want;
        size_t n;
        open_file(&m, "mtp/", name);
        const float *thresholds = get(&m, "threshold")->data;
        plan_request r = request_of(&m, name, accumulation);
        CHANGE_MODEL(r.source, c.mtp_heads = HEADS);
        r.reference = REFERENCE_COPY;
        r.selection = (selection_options){.kind = SELECTION_SIGNED, .share = 0.7};
        machine_start(&m, &r);
        fixture_load(m.e, &m.plan, &m.file, "w/", false);
        fixture_load(m.e, &m.plan, &m.file, "r/", true);
        double first = write_rows(&m, false);
        must(exec_run(m.e, SECTION_MICRO));
        exec_read(m.e, m.plan.step.loss_sums, 0, sums, sizeof sums);
        exec_read(m.e, m.plan.step.loss_sums, sizeof sums, selected, sizeof selected);
        for (int k = 0; k < HEADS; k++) {
            loss += sums[k][SUM_WEIGHTED_LOSS] / first;
            double valid = sums[k][SUM_VALID], below = ceil(0.3 * (valid - 1) - 1e-9); /* tokens under the threshold */
            assert_true(fabs(selected[k][SELECT_THRESHOLD] - (double)thresholds[k]) < 1e-5);
            assert_true(selected[k][SELECT_COUNT] == valid - below);
        }
        memcpy(&want, get(&m, "rho1")->data, sizeof want);
        double error = fixture_gradient_error(m.e, &m.plan, &m.file, "gr/", first, &n);
        print_message("%-18s %zu gradients of selected tokens within %.1e, loss within %.1e\n", name, n, error,
                      fabs(loss / (double)want - 1));
        assert_true(fabs(loss / (double)want - 1) < 1e-5 && n > 0 && error < 1e-5);
        machine_close(&m);
    }
}

/* ---- from an ordinary model ---------------------------------------------------------------------------------------- */

static float *evaluate(machine *m) {
    step_scalars s = step_scalars_of(0, 0);
    must(weights_load(m->e, &m->plan, &m->file, 1, "w/"));
    exec_write(m->e, m->plan.net.scalars, 0, &s, sizeof s);
    must(batch_write(
        m->e, &m->plan, &m->plan.step.inputs[0],
        &(batch_rows){get(m, "tokens")->data, get(m, "targets")->data, get(m, "doc")->data, NULL, .first_row = 0}));
    must(exec_run(m->e, SECTION_EVAL));
    return value_read_f32(m->e, &m->plan.program, m->plan.net.eval_losses);
}

/* The first head is exactly the model that was loaded, and the others have its last layer too. */
static void heads_begin_as_the_last_layer(void **state) {
    for (size_t i = 0; i < ARRAY_LENGTH(fixtures); i++) {
        machine plain, mtp;
        open_file(&plain, "", fixtures[i]);
        open_file(&mtp, "", fixtures[i]);
        plan_request r = request_of(&plain, fixtures[i], 1);
        machine_start(&plain, &r);
        CHANGE_MODEL(r.source, c.n_layers += HEADS - 1);
        CHANGE_MODEL(r.source, c.mtp_heads = HEADS);
        machine_start(&mtp, &r);
        float *a = evaluate(&plain), *b = evaluate(&mtp);
        size_t n = (size_t)(r.choice.micro_batch * r.seq_len);
        assert_memory_equal(a, b, n * sizeof *a);
        int compared = 0;
        for (size_t k = 0; k < mtp.plan.net.n_params; k++) {
            const net_param *q = &mtp.plan.net.params[k];
            char name[128];
            const char *local = strchr(q->name + strlen("layers."), '.');
            if (!q->of_other_head) continue;
            snprintf(name, sizeof name, "layers.%lld%s", (long long)model_first_head(model_of(&r.source)), local);
            value_id first = program_find(&mtp.plan.program, name);
            assert_true(first != NO_VALUE);
            float *x = value_read_f32(mtp.e, &mtp.plan.program, q->value),
                  *y = value_read_f32(mtp.e, &mtp.plan.program, first);
            assert_memory_equal(x, y, (size_t)shape_count(&q->shape) * sizeof *x);
            free(x);
            free(y);
            compared++;
        }
        assert_true(compared > 0 && compared % (HEADS - 1) == 0);
        free(a);
        free(b);
        machine_close(&plain);
        machine_close(&mtp);
    }
}

/* ---- memory -------------------------------------------------------------------------------------------------------- */

static uint64_t transient_bytes(const plan *p) {
    return p->by_role[ROLE_ACTIVATION] + p->by_role[ROLE_WORK] + p->by_role[ROLE_INPUT];
}

static void plan_heads(compiled *k, int heads, const char *recompute, int accumulation) {
    char layers[32], n[32];
    snprintf(layers, sizeof layers, "model.layers=%d", 28 + heads);
    snprintf(n, sizeof n, "model.mtp.heads=%d", heads);
    compiled_open(k, &(training){.preset = "llama2-7b",
                                 .precision = PRECISION_BF16,
                                 .seq_len = 2048,
                                 .micro_batch = 48,
                                 .accumulation = accumulation,
                                 .more = SETTINGS(layers, n, "train.task=mtp", "memory.strategy=manual", recompute)});
}

/* Heads of the same trunk: what they cost in all is one value (N, C), the sum of the gradients that reach the trunk, and with
 * accumulation the unembedding's gradient (V, C), which lives from the first head to the last; and each its targets and weights.
 * With full recompute heads do not hold their norms, two such values: they cost less than nothing beside one head. Each head
 * costs less than 2 % of what there is without it. 48 x 2048 tokens and four heads of 32000 logits each
 * would be 25 GB of 16-bit logits; the scratch that holds them stays below 0.3 GB. */
static void heads_cost_little_memory(void **state) {
    static const char *const recompute[] = {"memory.recompute=none", "memory.recompute=full"};
    for (size_t way = 0; way < ARRAY_LENGTH(recompute); way++) {
        uint64_t one = 0, fewer = 0;
        for (int heads = 1; heads <= 8; heads *= 2) {
            compiled k;
            plan_heads(&k, heads, recompute[way], 4);
            uint64_t n = transient_bytes(&k.p);
            if (heads == 1) one = fewer = n;
            double growth = heads == 1 ? 0 : ((double)n - (double)fewer) / (heads / 2.0) / (double)one;
            uint64_t tokens = 48 * 2048, sum = tokens * 4096 * 2, inputs = tokens * 8 * (uint64_t)heads;
            uint64_t unembed = 32000ull * 4096 * sizeof(float);
            fewer = n;
            size_t scratch = 0;
            for (size_t i = 0; i < k.p.program.n_ops; i++) {
                const op *o = &k.p.program.ops[i];
                if (op_is_loss_gradient(o->kind))
                    scratch = MAX(scratch, value_bytes(program_get(&k.p.program, o->work)));
            }
            print_message("%d heads, %s: %.2f GiB, %+.2f %% per head, logits %.3f GiB\n", heads, recompute[way],
                          (double)n / 0x1p30, 100 * growth, (double)scratch / 0x1p30);
            assert_true(n <= one + (way == 0 ? sum + unembed + inputs : 0) + (1 << 20) && growth < 0.02);
            assert_true(scratch > 0 && scratch < 300000000u);
            compiled_close(&k);
        }
    }
}

/* One head is the ordinary model: the same program. */
static void one_head_is_no_head(void **state) {
    compiled one, none;
    compiled_open(&one, &(training){.more = SETTINGS("train.task=mtp", "model.mtp.heads=1")});
    compiled_open(&none, &(training){.more = SETTINGS("train.task=sft")});
    assert_true(program_hash(&one.p.program) == program_hash(&none.p.program));
    assert_memory_equal(one.p.planned, none.p.planned, sizeof one.p.planned);
    compiled_close(&one);
    compiled_close(&none);
}

static void refused(const char *words, const char *const *more) {
    config c;
    train_request r;
    status rc = training_request(&(training){.more = more}, &c, &r);
    assert_true(rc == ERR_INPUT);
    if (!strstr(error_message(), words)) fail_msg("'%s' is not in: %s", words, error_message());
    config_fini(&c);
}

static void wrong_requests_are_refused(void **state) {
    refused("found 2 heads in 2 layers", SETTINGS("train.task=mtp", "model.mtp.heads=2"));
    refused("found mtp, which needs model.mtp.heads", SETTINGS("train.task=mtp"));
    refused("found sft with model.mtp.heads 2", SETTINGS("model.layers=4", "model.mtp.heads=2"));
    refused(
        "found preference with model.mtp.heads 2",
        SETTINGS("train.task=preference", "data.source=builtin:preferences", "model.layers=4", "model.mtp.heads=2"));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(heads_predict_inside_documents),
        cmocka_unit_test(scales_make_a_mean_of_means),
        cmocka_unit_test(gradients_equal_pytorch),
        cmocka_unit_test(selected_tokens_equal_pytorch),
        cmocka_unit_test(heads_begin_as_the_last_layer),
        cmocka_unit_test(heads_cost_little_memory),
        cmocka_unit_test(one_head_is_no_head),
        cmocka_unit_test(wrong_requests_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
