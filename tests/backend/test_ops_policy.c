/* test_ops_policy.c - POLICY: losses of completions with advantages and the weight of every token.
 *
 * The reference is written from the definitions, in double, without looking at the kernel's formulas; weights are compared with
 * finite differences of it. Both sides add a few dozen numbers in double, so sums agree to 1e-12; a weight is rounded to fp32
 * once, and differences with a step of 1e-4 cost at most 1e-8. */
#include "op_check.h"

enum { ROWS = 3, T = 61, N = ROWS * T };

typedef struct completion_at {
    int row, number, start, n;
    double advantage;
} completion_at;
static const completion_at of[] = {
    {0, 0, 3, 5, 1.5}, {0, 1, 12, 30, -0.75}, {0, 2, 45, 1, 2}, {2, 0, 0, 40, -1.25}, {2, 1, 41, 20, 0.5}};
enum { COMPLETIONS = ARRAY_LENGTH(of) };
/* Places without a token where a masked completion is counted. */
static const int counted[] = {0 * T + 2, 1 * T + 7};

typedef struct batch_case {
    policy_options o;
    double losses[N], old[N], reference[N], rollout[N], advantages[N];
    int32_t segments[N];
} batch_case;

/* spread: how far old and rollout are from the losses; rounded as the op reads them. */
static batch_case make_case(policy_options o, double spread) {
    batch_case c = {.o = o};
    for (int i = 0; i < N; i++) {
        double u[4];
        for (uint64_t k = 0; k < 4; k++) u[k] = (double)rng_below(31 + k, (uint64_t)i, 1000) / 1000;
        c.losses[i] = (float)(0.01 + 1.5 * u[0]);
        c.old[i] = (float)(c.losses[i] + spread * (u[1] - 0.5));
        c.rollout[i] = (float)(c.old[i] + spread * (u[2] - 0.5));
        c.reference[i] = (float)(c.losses[i] + u[3] - 0.5);
        c.advantages[i] = NAN; /* of no token: not read */
        c.segments[i] = POLICY_NONE;
    }
    for (int i = 0; i < COMPLETIONS; i++)
        for (int t = 0; t < of[i].n; t++) {
            c.segments[of[i].row * T + of[i].start + t] = of[i].number;
            c.advantages[of[i].row * T + of[i].start + t] = of[i].advantage;
        }
    for (size_t i = 0; i < ARRAY_LENGTH(counted); i++) c.segments[counted[i]] = POLICY_COUNTED;
    return c;
}

static op_case *run_case(const batch_case *c, uint32_t micro, const double *sums) {
    op_attr a = {.batch = ROWS, .seq_len = T, .policy = c->o};
    op_case *o = op_case_open(OP_POLICY, &a);
    op_case_floats(o, POLICY_LOSSES, DTYPE_F32, SHAPE(N), c->losses);
    if (c->o.is_old) op_case_floats(o, POLICY_OLD, DTYPE_F32, SHAPE(N), c->old);
    if (c->o.beta > 0) op_case_floats(o, POLICY_REFERENCE, DTYPE_F32, SHAPE(N), c->reference);
    if (c->o.cap > 0) op_case_floats(o, POLICY_ROLLOUT, DTYPE_F32, SHAPE(N), c->rollout);
    op_case_floats(o, POLICY_ADVANTAGES, DTYPE_F32, SHAPE(N), c->advantages);
    op_case_ints(o, POLICY_SEGMENTS, SHAPE(N), c->segments);
    op_case_bytes(o, POLICY_SCALARS, SHAPE((int64_t)sizeof(step_scalars)), &(step_scalars){.micro = micro});
    op_case_output(o, POLICY_WEIGHTS, DTYPE_F32, SHAPE(N));
    op_case_output_floats(o, POLICY_SUMS, DTYPE_F64, SHAPE(POLICY_SUM_COUNT), sums);
    op_case_run(o, 2);
    return o;
}

/* ---- the definitions, as TRL writes them -------------------------------------------------------------------------- */

static double clamp(double x, double low, double high) { return fmin(fmax(x, low), high); }

/* The sum of the step before it is divided; before: the losses that importance weights are made from, without a gradient. */
static double step_loss(const batch_case *c, const double *before, double *sums) {
    const policy_options *o = &c->o;
    double total = 0;
    for (int i = 0; i < POLICY_SUM_COUNT; i++) sums[i] = 0;
    for (int i = 0; i < COMPLETIONS; i++) {
        int at = of[i].row * T + of[i].start, n = of[i].n;
        double log_ratio = 0, log_importance = 0, A = (double)(float)of[i].advantage, loss = 0;
        const double *old = o->is_old && !isnan(c->old[at]) ? c->old : before;
        for (int t = at; t < at + n; t++) {
            log_ratio += old[t] - c->losses[t];
            log_importance += c->rollout[t] - old[t];
        }
        for (int t = at; t < at + n; t++) {
            double x = old[t] - c->losses[t], y = c->rollout[t] - old[t], d = c->losses[t] - c->reference[t];
            if (o->level != POLICY_TOKEN) x = log_ratio, y = log_importance;
            if (o->level == POLICY_MEAN) x /= n, y /= n;
            double rho = exp(x), weight = o->cap > 0 ? fmin(exp(y), (double)o->cap) : 1;
            double low = 1 - (double)o->low, high = 1 + (double)o->high;
            double token = -weight * fmin(rho * A, clamp(rho, low, high) * A);
            double kl = o->beta > 0 ? exp(d) - d - 1 : 0;
            loss += token + (double)o->beta * kl;
            sums[SUM_POLICY_KL] += kl;
            if (o->level != POLICY_TOKEN && t > at) continue;
            sums[SUM_POLICY_LOW] += rho < low && A < 0;
            sums[SUM_POLICY_HIGH] += rho > high && A > 0;
            sums[SUM_POLICY_RATIO] += rho;
        }
        total += o->mean == POLICY_OF_COMPLETIONS ? loss / n
                 : o->mean == POLICY_OF_LENGTH    ? loss / (double)o->length
                                                  : loss;
        sums[SUM_POLICY_TOKENS] += n;
        sums[SUM_POLICY_COMPLETIONS] += 1;
        sums[SUM_VALID] += o->mean == POLICY_OF_TOKENS ? n : 1;
    }
    sums[SUM_VALID] += ARRAY_LENGTH(counted);
    sums[SUM_WEIGHTS] = sums[SUM_VALID];
    sums[SUM_WEIGHTED_LOSS] = sums[SUM_LOSS] = total;
    return total;
}

static void check_sums(const batch_case *c, op_case *o, const double *before) {
    double want[POLICY_SUM_COUNT];
    step_loss(c, c->losses, want);
    const double *got = op_case_values(o, POLICY_SUMS);
    for (int i = 0; i < POLICY_SUM_COUNT; i++) {
        double sum = want[i] + (before ? before[i] : 0);
        if (!(fabs(got[i] - sum) <= 1e-12 * (1 + fabs(sum))))
            fail_msg("level %d, mean %d: sum %d is %.17g, expected %.17g", c->o.level, c->o.mean, i, got[i], sum);
    }
}

static void check_weights(batch_case *c, op_case *o) {
    static const double factors[] = {1.0 / 12, -8.0 / 12, 0, 8.0 / 12, -1.0 / 12};
    double before[N], sums[POLICY_SUM_COUNT], step = 1e-4;
    const double *got = op_case_values(o, POLICY_WEIGHTS);
    for (int i = 0; i < N; i++) before[i] = c->losses[i];
    for (int i = 0; i < N; i++) {
        double at = c->losses[i], slope = 0;
        for (int k = -2; k <= 2; k++) {
            c->losses[i] = at + k * step;
            slope += factors[k + 2] * step_loss(c, before, sums) / step;
        }
        c->losses[i] = at;
        check_element(got[i], slope / (double)c->o.temperature, 1e-8, DTYPE_F32, "weight", (size_t)i);
    }
}

/* Ratios far from a border of the clipping, where the loss has no derivative. */
static bool is_smooth(const batch_case *c) {
    batch_case near = *c;
    double a[POLICY_SUM_COUNT], b[POLICY_SUM_COUNT];
    step_loss(c, c->losses, a);
    for (int i = 0; i < N; i++) near.losses[i] += 5e-3;
    step_loss(&near, c->losses, b);
    return a[SUM_POLICY_LOW] == b[SUM_POLICY_LOW] && a[SUM_POLICY_HIGH] == b[SUM_POLICY_HIGH];
}

static const double poisoned[POLICY_SUM_COUNT] = {NAN, NAN, NAN, NAN, NAN, NAN, NAN, NAN, NAN, NAN};

/* Every level, division, with and without KL, importance and an older policy. */
static void losses_and_weights_are_those_of_the_definitions(void **state) {
    int n_clipped = 0, n_smooth = 0;
    for (int i = 0; i < POLICY_LEVEL_COUNT * POLICY_MEAN_COUNT * 8; i++) {
        policy_options o = {.on = true,
                            .level = (policy_level)(i / 8 % POLICY_LEVEL_COUNT),
                            .mean = (policy_mean)(i / 8 / POLICY_LEVEL_COUNT),
                            .is_old = i & 1,
                            .beta = i & 2 ? 0.25f : 0,
                            .cap = i & 4 ? 1.05f : 0,
                            .low = 0.2f,
                            .high = 0.28f,
                            .length = 48,
                            .temperature = i & 2 ? 1 : 0.5f};
        double spread = o.level == POLICY_MEAN ? 4 : 1;
        batch_case c = make_case(o, spread);
        double sums[POLICY_SUM_COUNT];
        op_case *k = run_case(&c, 0, poisoned);
        check_sums(&c, k, NULL);
        step_loss(&c, c.losses, sums);
        n_clipped += sums[SUM_POLICY_LOW] + sums[SUM_POLICY_HIGH] > 0;
        if (!o.is_old || o.level != POLICY_TOKEN || is_smooth(&c)) check_weights(&c, k), n_smooth++;
        op_case_close(k);
    }
    assert_true(n_clipped > 8 && n_smooth > 48);
}

/* The first update of a rollout: NAN as the old losses, as none at all, gives ratios of exactly 1. */
static void unknown_old_losses_are_those_of_now(void **state) {
    for (policy_level l = 0; l < POLICY_LEVEL_COUNT; l++) {
        policy_options o = {
            .on = true, .is_old = true, .level = l, .low = 0.2f, .high = 0.2f, .cap = 2, .length = 9, .temperature = 1};
        batch_case c = make_case(o, 1);
        for (int i = 0; i < N; i++) c.old[i] = NAN;
        op_case *a = run_case(&c, 0, poisoned);
        check_sums(&c, a, NULL);
        assert_true(op_case_values(a, POLICY_SUMS)[SUM_POLICY_RATIO] == (l == POLICY_TOKEN ? 96 : COMPLETIONS));
        c.o.is_old = false;
        op_case *b = run_case(&c, 0, poisoned);
        check_equal_bits(a, POLICY_WEIGHTS, b, POLICY_WEIGHTS, N, "weights");
        check_equal_bits(a, POLICY_SUMS, b, POLICY_SUMS, POLICY_SUM_COUNT, "sums");
        op_case_close(a);
        op_case_close(b);
    }
}

static void the_first_micro_batch_restarts_the_sums(void **state) {
    double before[POLICY_SUM_COUNT];
    for (int i = 0; i < POLICY_SUM_COUNT; i++) before[i] = 3.5 * i - 7;
    policy_options o = {.on = true, .level = POLICY_SEQUENCE, .low = 0.2f, .high = 0.2f, .temperature = 1};
    batch_case c = make_case(o, 1);
    op_case *first = run_case(&c, 0, before), *next = run_case(&c, 1, before);
    check_sums(&c, first, NULL);
    check_sums(&c, next, before);
    check_equal_bits(first, POLICY_WEIGHTS, next, POLICY_WEIGHTS, N, "weights");
    op_case_close(first);
    op_case_close(next);
}

/* Where nothing is better than anything else, nothing moves: exact zeros, with ratios that overflow too. */
static void no_advantage_no_weight(void **state) {
    for (policy_level l = 0; l < POLICY_LEVEL_COUNT; l++) {
        policy_options o = {.on = true, .is_old = true, .level = l, .low = 0.2f, .high = 0.2f, .temperature = 1};
        batch_case c = make_case(o, 1);
        for (int i = 0; i < N; i++) c.advantages[i] = 0, c.old[i] += i % 2 ? 1e4 : 0;
        op_case *k = run_case(&c, 0, poisoned);
        for (int i = 0; i < N; i++) assert_true(op_case_values(k, POLICY_WEIGHTS)[i] == 0);
        assert_true(op_case_values(k, POLICY_SUMS)[SUM_LOSS] == 0);
        op_case_close(k);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(losses_and_weights_are_those_of_the_definitions),
        cmocka_unit_test(unknown_old_losses_are_those_of_now),
        cmocka_unit_test(the_first_micro_batch_restarts_the_sums),
        cmocka_unit_test(no_advantage_no_weight),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
