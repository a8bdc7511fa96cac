/* test_extremes.c - sizes and settings at their limits: every run of two steps ends well or is refused with a message.
 *
 * Settings are taken from config.def, each at both ends of its range or at every one of its choices, and sizes of the
 * model, of rows and of techniques are drawn together, on every set of CPU kernels that this machine has. A case runs
 * in a child, so that an abort, a report of a sanitizer or a hang is named with its settings. RALO_MATRIX=large runs
 * every setting and RALO_EXTREMES draws (4,000 unless given); without it a part that meets every size, every technique
 * and every set of kernels. */
#include "backend/cpu/attention.h"
#include "backend/cpu/gemm.h"
#include "backend/cpu/linear_int8.h"
#include "ralo.h"
#include "settings/setting.h"
#include "training.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

/* ---- sets of kernels -------------------------------------------------------------------------------------------- */

/* What one kind of processor chooses; NULL: as this machine would. */
typedef struct kernel_set {
    const char *name, *gemm, *attention, *int8;
} kernel_set;

static const kernel_set SETS[] = {
#if defined(__x86_64__)
    {"amx", "amx", "matrix", "amx"},        {"avx512bf16", "avx512bf16", "avx512", "vnni"},
    {"avx512", "avx512", "avx512", NULL},   {"avx2", "avx2", "avx2", NULL},
#elif defined(__aarch64__)
    {"bfmmla", "bfmmla", "matrix", "smmla"},
    {"neon", "neon", "base", "sdot"},
#endif
    {"portable", "portable", "base", NULL},
};

static bool use_set(const kernel_set *s) {
    return gemm_force_kernel(s->gemm) && attention_force_functions(s->attention) && int8_force_kernel(s->int8);
}

/* Those of this machine; the others are named. */
static int sets_here(const kernel_set *out[ARRAY_LENGTH(SETS)]) {
    int n = 0;
    for (size_t i = 0; i < ARRAY_LENGTH(SETS); i++) {
        if (use_set(&SETS[i])) out[n++] = &SETS[i];
        else print_message("skipped: this processor lacks the kernels %s\n", SETS[i].name);
    }
    gemm_force_kernel(NULL), attention_force_functions(NULL), int8_force_kernel(NULL);
    assert_true(n > 0);
    return n;
}

/* ---- one case --------------------------------------------------------------------------------------------------- */

enum { SECONDS = 300, MESSAGE = 512, CASE_MOST = 64, CASE_TEXT = 96 };

typedef struct limit_case {
    const kernel_set *set;
    bool evaluates, samples;
    int n;
    char settings[CASE_MOST][CASE_TEXT];
} limit_case;

static void put(limit_case *c, const char *key, const char *value) {
    ASSERT(c->n < CASE_MOST);
    snprintf(c->settings[c->n++], CASE_TEXT, "%s=%s", key, value);
}
static void put_all(limit_case *c, const char *const *settings) {
    for (; settings && *settings; settings++) {
        ASSERT(c->n < CASE_MOST);
        snprintf(c->settings[c->n++], CASE_TEXT, "%s", *settings);
    }
}

typedef struct outcome {
    int rc;
    char message[MESSAGE];
} outcome;

static int told; /* the end of a pipe to the parent */
static void tell(ralo_status rc) {
    outcome o = {.rc = rc};
    if (rc != RALO_OK) snprintf(o.message, sizeof o.message, "%s", ralo_error_message());
    if (write(told, &o, sizeof o) != (ssize_t)sizeof o) _exit(99);
}

/* As a program that uses the library does it: two steps and an evaluation. */
static ralo_status run_settings(const limit_case *c) {
    ralo_settings *s;
    ralo_trainer *t = NULL;
    ralo_evaluation e;
    ralo_status rc = ralo_settings_new(&s);
    for (int i = 0; i < c->n && rc == RALO_OK; i++) {
        char key[CASE_TEXT], *value;
        snprintf(key, sizeof key, "%s", c->settings[i]);
        value = strchr(key, '=');
        *value = 0;
        rc = ralo_settings_set(s, key, value + 1);
    }
    if (rc == RALO_OK) rc = ralo_trainer_open(&t, s);
    for (int i = 0; i < 2 && rc == RALO_OK; i++) rc = ralo_trainer_step(t, NULL);
    if (rc == RALO_OK && c->evaluates) rc = ralo_trainer_evaluate(t, &e);
    if (rc == RALO_OK && c->samples) rc = ralo_trainer_sample(t);
    if (rc != RALO_OK) tell(rc);
    ralo_trainer_close(t);
    ralo_settings_free(s);
    return rc;
}

static void run_case(const limit_case *c) {
    ASSERT(use_set(c->set));
    if (run_settings(c) == RALO_OK) tell(RALO_OK);
}

static void describe(const limit_case *c, FILE *out) {
    fprintf(out, "kernels %s:", c->set->name);
    for (int i = 0; i < c->n; i++) fprintf(out, " --set %s", c->settings[i]);
    fprintf(out, "\n");
}

enum { RAN, REFUSED, FAILED, OUTCOMES };

/* stderr of the child is kept in a file: what a sanitizer says is shown with the case. */
static int try_case(const limit_case *c, outcome *out) {
    int ends[2], how;
    assert_int_equal(pipe(ends), 0);
    fflush(NULL);
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        struct rlimit no_core = {0, 0};
        setrlimit(RLIMIT_CORE, &no_core);
        signal(SIGABRT, SIG_DFL), signal(SIGSEGV, SIG_DFL), signal(SIGFPE, SIG_DFL), signal(SIGBUS, SIG_DFL);
        int log = open("stderr", O_WRONLY | O_CREAT | O_TRUNC, 0600);
        dup2(log, STDERR_FILENO);
        close(ends[0]);
        told = ends[1];
        alarm(SECONDS);
        run_case(c);
        _exit(0);
    }
    close(ends[1]);
    *out = (outcome){0};
    ssize_t n = read(ends[0], out, sizeof *out);
    close(ends[0]);
    assert_int_equal(waitpid(child, &how, 0), child);
    bool ended = WIFEXITED(how) && WEXITSTATUS(how) == 0 && n == (ssize_t)sizeof *out;
    if (ended && out->rc == RALO_OK) return RAN;
    if (ended && out->rc != RALO_ERROR_BUG && *out->message) return REFUSED;
    print_message("%s %d, %s\n", WIFSIGNALED(how) ? "ended by signal" : "exit status",
                  WIFSIGNALED(how) ? WTERMSIG(how) : WEXITSTATUS(how), n > 0 ? out->message : "no message");
    describe(c, stderr);
    fflush(NULL);
    if (system("head -n 40 stderr >&2") != 0) print_message("its stderr is lost\n");
    return FAILED;
}

typedef struct tally {
    int n[OUTCOMES];
    FILE *refusals; /* RALO_EXTREMES_LOG: every refusal, for people */
} tally;

static void count_case(tally *t, const limit_case *c) {
    outcome o;
    int k = try_case(c, &o);
    t->n[k]++;
    if (k != REFUSED || !t->refusals) return;
    fprintf(t->refusals, "%s\n    ", o.message);
    describe(c, t->refusals);
}

static void tally_open(tally *t) {
    const char *path = getenv("RALO_EXTREMES_LOG");
    *t = (tally){.refusals = path ? fopen(path, "a") : NULL};
}

static void tally_close(tally *t, const char *what) {
    print_message("%s: %d ran, %d were refused with a message, %d failed\n", what, t->n[RAN], t->n[REFUSED],
                  t->n[FAILED]);
    if (t->refusals) fclose(t->refusals);
    assert_int_equal(t->n[FAILED], 0);
    assert_true(t->n[RAN] > 0);
}

/* Small memory: what would be large is refused, and a wrong size shows as quickly. */
static const char *const ALWAYS[] = {"memory.device=200M",      "memory.host=400M",
                                     "train.steps=2",           "data.cache=none",
                                     "data.difficulty=1",       "run.bind=false",
                                     "run.device=cpu",          "train.warmup=0",
                                     "model.preset=test-llama", "data.source=builtin:grammar",
                                     "data.seq_len=24",         "train.micro_batch=2",
                                     "train.eval_rows=2",       NULL};

/* ---- every limit of every setting ------------------------------------------------------------------------------ */

/* Settings that act only with others. */
static const struct {
    const char *begins, *with[8];
} NEEDS[] = {
    {"critic.", {"train.task=critic", "data.source=builtin:solutions", "data.seq_len=72"}},
    {"preference.", {"train.task=preference", "data.source=builtin:preferences", "data.seq_len=64"}},
    {"rl.",
     {"train.task=rloo", "data.source=builtin:arithmetic", "data.seq_len=32", "rl.max_completion=4",
      "reward.list=length", "reward.length=4"}},
    {"reward.",
     {"train.task=rloo", "data.source=builtin:arithmetic", "data.seq_len=32", "rl.max_completion=4",
      "reward.list=length", "reward.length=4"}},
    {"rho1.", {"train.weighting=rho1"}},
    {"model.lora.", {"model.lora.rank=2"}},
    {"model.base", {"model.lora.rank=2"}},
    {"model.layers", {"memory.strategy=manual"}}, /* a search over 1,000 layers takes a minute */
    {"model.mtp.", {"model.layers=9"}},
    {"train.fp8.", {"precision=fp8"}},
    {"train.fp16.", {"precision=fp16"}},
    {"train.sample", {"train.sample_every=1"}},
    {"train.problems", {"data.source=builtin:arithmetic"}},
};
/* Ranks, which this test has none of; other devices; a step that would take minutes at the upper limit. */
static const char *const LEFT_OUT[] = {
    "train.accumulation", "train.batch", "rl.prompts",  "rl.k",  "rl.updates", "parallel.", "comm.",
    "run.device",         "run.gpu",     "run.threads", "track."};

static const char *const *needs_of(const char *key) {
    for (size_t i = 0; i < ARRAY_LENGTH(NEEDS); i++)
        if (str_starts_with(key, NEEDS[i].begins)) return NEEDS[i].with;
    return NULL;
}
static bool is_left_out(const char *key) {
    for (size_t i = 0; i < ARRAY_LENGTH(LEFT_OUT); i++)
        if (str_starts_with(key, LEFT_OUT[i])) return true;
    return false;
}

typedef struct singles {
    tally t;
    const kernel_set *const *sets;
    int n_sets, step; /* every step-th value is tried */
    int seen;
} singles;

static void try_value(singles *s, const char *key, const char *value) {
    bool is_size = str_starts_with(key, "model."); /* kernels compute on it: one set after the other */
    for (int i = 0; i < (is_size && s->step == 1 ? s->n_sets : 1); i++) {
        if (s->seen++ % s->step) continue;
        limit_case c = {.set = s->sets[(s->seen + i) % s->n_sets]};
        put_all(&c, ALWAYS);
        put_all(&c, needs_of(key));
        put(&c, key, value);
        /* As many rows as there are whole numbers are not evaluated. */
        c.evaluates = !str_starts_with(key, "train.eval") && !str_starts_with(key, "train.problems") &&
                      !str_starts_with(key, "rl.eval");
        c.samples = str_starts_with(key, "train.sample");
        count_case(&s->t, &c);
    }
}

static void try_setting(singles *s, const setting *row) {
    char list[512], part[128], low[64], high[64];
    const char *rest = list;
    snprintf(list, sizeof list, "%s", row->range);
    if (row->type == TYPE_BOOL) {
        try_value(s, row->key, "false");
        try_value(s, row->key, "true");
    } else if (row->type == TYPE_CHOICE) {
        while (rest && (rest = part_next(rest, '|', part, sizeof part), *part)) try_value(s, row->key, part);
    } else if (row->type == TYPE_INT || row->type == TYPE_REAL || row->type == TYPE_BYTES) {
        if (sscanf(row->range, "%*1[[(]%63[^,], %63[^])]", low, high) != 2)
            fail_msg("%s: range %s", row->key, row->range);
        char end = row->range[strlen(row->range) - 1];
        /* Next to a bound that does not belong to the range. */
        if (*row->range == '(') snprintf(low, sizeof low, "1e-30");
        if (end == ')') snprintf(high, sizeof high, "0.9999999");
        try_value(s, row->key, low);
        try_value(s, row->key, high);
    }
}

static void limits_of_settings_run_or_are_refused(void **state) {
    (void)state;
    const kernel_set *sets[ARRAY_LENGTH(SETS)];
    singles s = {.sets = sets, .n_sets = sets_here(sets), .step = matrix_is_large() ? 1 : SANITIZED ? 61 : 11};
    tally_open(&s.t);
    for (size_t i = 0; setting_at(i); i++)
        if (!is_left_out(setting_at(i)->key)) try_setting(&s, setting_at(i));
    tally_close(&s.t, "limits of settings");
}

/* ---- sizes and techniques together ------------------------------------------------------------------------------ */

typedef struct dimension {
    const char *key;
    const char *values[16];
} dimension;

static const dimension SIZES[] = {
    {"model.preset", {"test-llama", "test-gpt2", "test-qwen2", "test-qwen3", "test-gemma2", "test-mistral"}},
    {"model.hidden", {"1", "2", "8", "33", "64", "97", "128", "257", "1024"}},
    {"model.heads", {"1", "2", "3", "4", "7", "16", "64"}},
    {"model.kv_heads", {"1", "1", "2", "3", "4"}},
    {"model.head_dim", {"1", "2", "6", "16", "64", "98", "128", "256", "512", "514", "770", "1024"}},
    {"model.ffn", {"1", "3", "64", "257", "1021", "4096"}},
    {"model.vocab", {"260", "261", "300", "509", "4096", "65537"}},
    {"model.layers", {"1", "2", "3", "5"}},
    {"data.seq_len", {"2", "3", "17", "64", "127", "514", "1026"}},
    {"train.micro_batch", {"1", "2", "3", "7", "31"}},
    {"train.accumulation", {"1", "1", "2", "3"}},
    {"precision", {"fp32", "bf16", "bf16_sr", "fp16", "fp8", "fp8_sr"}},
    {"memory.states", {"fp32", "bf16", "int8"}},
    {"run.threads", {"1", "2", "3"}},
};

/* Each with what it needs. */
static const char *const TECHNIQUES[][7] = {
    {NULL},
    {"model.lora.rank=1"},
    {"model.lora.rank=7", "model.lora.dropout=0.5"},
    {"model.lora.rank=512"},
    {"model.lora.rank=3", "model.lora.init=pissa"},
    {"model.lora.rank=8", "model.base=nf4"},
    {"model.lora.rank=5", "model.base=int8"},
    {"model.lora.rank=64", "model.base=fp8"},
    {"train.task=mtp", "model.mtp.heads=2", "model.layers=5"},
    {"model.mtp.heads=8", "train.task=mtp", "model.layers=9"},
    {"memory.chunk_tokens=1", "memory.strategy=manual"},
    {"memory.chunk_tokens=64", "memory.strategy=manual"},
    {"memory.recompute=full", "memory.strategy=manual"},
    {"memory.recompute=selective", "memory.strategy=manual"},
    {"memory.overlap_update=true", "memory.strategy=manual"},
    {"memory.offload.params=host", "memory.offload.states=host", "memory.offload.activations=host",
     "memory.strategy=manual"},
    {"memory.logits_chunk=4K"},
    {"train.fp8.logits=true"},
    {"train.fp8.attention=true"},
    {"train.fp8.scales=block"},
    {"train.fp8.scales=power"},
    {"train.weighting=random"},
    {"train.weighting=rho1", "rho1.k_percent=0.01"},
    {"data.pack=false"},
    {"train.task=preference", "data.source=builtin:preferences"},
    {"train.task=preference", "data.source=builtin:preferences", "preference.loss=kto", "preference.reference=copy"},
    {"train.task=preference", "data.source=builtin:preferences", "preference.reference=base", "model.lora.rank=3"},
    {"train.task=critic", "data.source=builtin:solutions", "critic.dropout=0.5"},
    {"train.task=critic", "data.source=builtin:solutions", "critic.head=sigmoid", "critic.loss=lambda"},
    {"train.task=rloo", "data.source=builtin:arithmetic", "rl.max_completion=3", "rl.prompts=2", "reward.list=length",
     "reward.length=2"},
    {"train.task=rloo", "data.source=builtin:arithmetic", "rl.max_completion=3", "rl.k=5", "reward.list=length",
     "reward.length=2", "rl.loss=gspo"},
    {"train.eval_rows=3", "train.problems=2", "data.source=builtin:arithmetic"},
    {"train.sample_every=1", "train.sample_tokens=1"},
};

static size_t n_values(const dimension *d) {
    size_t n = 0;
    while (n < ARRAY_LENGTH(d->values) && d->values[n]) n++;
    return n;
}

static double last_of(const limit_case *c, const char *key) {
    size_t n = strlen(key);
    for (int i = c->n; i-- > 0;)
        if (str_starts_with(c->settings[i], key) && c->settings[i][n] == '=') return atof(c->settings[i] + n + 1);
    return 1;
}

/* Arithmetic of a step, roughly; the sizes that are drawn together must not make one of minutes. */
static double work_of(const limit_case *c) {
    double C = last_of(c, "model.hidden"), HD = last_of(c, "model.heads") * last_of(c, "model.head_dim"),
           T = last_of(c, "data.seq_len"), layers = last_of(c, "model.layers");
    double losses = last_of(c, "model.mtp.heads") * last_of(c, "model.vocab") * C;
    return (layers * (C * (4 * HD + 3 * last_of(c, "model.ffn")) + HD * T) + losses) * T *
           last_of(c, "train.micro_batch") * last_of(c, "train.accumulation");
}

static bool has_setting(const limit_case *c, const char *begins) {
    for (int i = 0; i < c->n; i++)
        if (str_starts_with(c->settings[i], begins)) return true;
    return false;
}

/* Most draws are made ones that a model can have: refusals are met early, and hide what comes behind them. */
static void make_possible(limit_case *c, const size_t *at) {
    long long x[ARRAY_LENGTH(SIZES)];
    for (size_t i = 0; i < ARRAY_LENGTH(SIZES); i++) x[i] = atoll(SIZES[i].values[at[i]]);
    bool is_gpt2 = has_setting(c, "model.preset=test-gpt2"), has_task = has_setting(c, "train.task=");
    char width[24], heads[24];
    snprintf(width, sizeof width, "%lld", x[4] % 2 ? 2 : x[4]);
    snprintf(heads, sizeof heads, "%lld", x[2] % x[3] ? x[2] : x[3]);
    if (is_gpt2 && x[1] % x[2] == 0) {
        snprintf(width, sizeof width, "%lld", x[1] / x[2]);
        snprintf(heads, sizeof heads, "%lld", x[2]);
    } else if (is_gpt2) {
        put(c, "model.preset", "test-qwen2");
    }
    put(c, "model.head_dim", width);
    put(c, "model.kv_heads", heads);
    if (x[8] < 64 && has_task) put(c, "data.seq_len", "72");
    else if (x[8] < 4) put(c, "data.seq_len", "5");
    if (x[1] % 8 && has_setting(c, "train.task=critic") && !has_setting(c, "critic.head"))
        put(c, "critic.head", "linear");
    if (has_setting(c, "train.fp8.")) put(c, "precision", "fp8");
    if (has_setting(c, "model.base=")) {
        put(c, "precision", "bf16");
        put(c, "model.hidden", "64");
        put(c, "model.head_dim", "64");
        put(c, "model.ffn", "192");
    }
}

static void draw(limit_case *c, uint64_t number, double most) {
    const limit_case empty = *c;
    size_t at[ARRAY_LENGTH(SIZES)];
    uint64_t n = number << 20;
    do {
        *c = empty;
        for (size_t i = 0; i < ARRAY_LENGTH(SIZES); i++) at[i] = rng_below(49, n++, n_values(&SIZES[i]));
        put_all(c, ALWAYS);
        for (size_t i = 0; i < ARRAY_LENGTH(SIZES); i++) put(c, SIZES[i].key, SIZES[i].values[at[i]]);
        put(c, "model.max_positions", "2048");
        put_all(c, TECHNIQUES[number % ARRAY_LENGTH(TECHNIQUES)]);
        if (number / ARRAY_LENGTH(TECHNIQUES) % 2)
            put_all(c, TECHNIQUES[rng_below(50, number, ARRAY_LENGTH(TECHNIQUES))]);
        if (number % 8) make_possible(c, at);
    } while (work_of(c) > most);
    c->evaluates = true;
    c->samples = has_setting(c, "train.sample_every");
}

static void sizes_drawn_together_run_or_are_refused(void **state) {
    (void)state;
    const kernel_set *sets[ARRAY_LENGTH(SETS)];
    const char *asked = getenv("RALO_EXTREMES");
    int n_sets = sets_here(sets), n = matrix_is_large() ? asked ? atoi(asked) : 4000 : SANITIZED ? 12 : 70;
    tally t;
    tally_open(&t);
    for (int i = 0; i < n; i++) {
        limit_case c = {.set = sets[i % n_sets]};
        draw(&c, (uint64_t)i, matrix_is_large() ? 3e8 : 2e7);
        count_case(&t, &c);
    }
    tally_close(&t, "sizes drawn together");
}

/* The widest heads on every set of kernels, and the widest that a set of tiles takes in one block of steps. */
static void the_widest_heads_run_on_every_set_of_kernels(void **state) {
    (void)state;
    static const char *const widths[] = {"512", "514", "600", "1024"};
    const kernel_set *sets[ARRAY_LENGTH(SETS)];
    int n_sets = sets_here(sets);
    tally t;
    tally_open(&t);
    for (int i = 0; i < n_sets; i++)
        for (size_t w = 0; w < ARRAY_LENGTH(widths); w++) {
            limit_case c = {.set = sets[i]};
            put_all(&c, ALWAYS);
            put_all(&c, SETTINGS("precision=bf16", "model.layers=1", "model.heads=1", "model.kv_heads=1",
                                 "model.hidden=8"));
            put(&c, "model.head_dim", widths[w]);
            count_case(&t, &c);
        }
    assert_int_equal(t.n[REFUSED], 0);
    tally_close(&t, "widest heads");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_widest_heads_run_on_every_set_of_kernels),
        cmocka_unit_test(limits_of_settings_run_or_are_refused),
        cmocka_unit_test(sizes_drawn_together_run_or_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
