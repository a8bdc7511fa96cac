/* test_foreign_ralo.c - files of the old RALO keep their meaning, or are refused by name. */
#include "foreign_files.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

static void test_old_ralo_files_keep_their_meaning(void **state) {
    GIVES(RALO("lr: 1.0e-6\nupdate_steps: 16\ntrainer:\n  params:\n    train_batch_size: 2\n"
               "    accum_steps: 64\n    lr: 5.0e-6\n    grad_offload: true\n    gradient_checkpointing_ratio: 1.0\n"),
          "train.micro_batch", "2", "train.accumulation", "1024", "train.lr", "1e-06", "memory.offload.grads", "host",
          "memory.offload.states", "host", "memory.recompute", "selective", "memory.strategy", "auto", "precision",
          "bf16", "train.betas", "[0.9, 0.999]", "train.weight_decay", "0", "train.schedule", "constant",
          "train.warmup", "0");
    GIVES(RALO("trainer: {params: {accum_steps: 8, lr: 2e-6, grad_offload: false, gradient_checkpointing_ratio: 0.5}}"),
          "train.accumulation", "8", "train.lr", "2e-06", "memory.offload.grads", "none", "memory.offload.states",
          "auto", "memory.recompute", "{mix: [selective, 1, none]}"); /* of 2 layers */
    GIVES(RALO("trainer: {params: {selective_checkpointing: false, gradient_checkpointing_ratio: 0.5}}"),
          "memory.recompute", "{ratio: 0.5}");
    GIVES(RALO("trainer: {params: {gradient_checkpointing_ratio: 0}}"), "memory.recompute", "none");
    GIVES(RALO("trainer: {params: {}}"), "memory.recompute", "auto", "memory.strategy", "auto", "memory.offload.grads",
          "auto");
    GIVES(RALO("trainer: {params: {auto_memory_strategy: false}}"), "memory.strategy", "manual", "memory.recompute",
          "selective"); /* its default */
    GIVES(RALO("trainer: {params: {auto_memory_strategy: false, selective_checkpointing: false}}"), "memory.recompute",
          "full");
    GIVES(RALO("trainer: {params: {selective_checkpointing: false}}"), "memory.recompute", "auto");
    GIVES(RALO("trainer: {params: {auto_memory_strategy: true}}"), "memory.strategy", "auto", "memory.recompute",
          "auto");
    GIVES(RALO("trainer: {params: {selective_checkpointing: true}}"), "memory.recompute", "selective");
    GIVES(RALO("trainer: {params: {selective_checkpointing: true, gradient_checkpointing_ratio: 1.0}}"),
          "memory.recompute", "selective");
    GIVES(RALO("trainer: {params: {selective_checkpointing: false, gradient_checkpointing_ratio: 1.0}}"),
          "memory.recompute", "full");
    request q = RALO("trainer: {params: {selective_checkpointing: true, gradient_checkpointing_ratio: 0.5, "
                     "zero2_gradient_sharding: true, sequence_parallelism: false, rollout_num: 8}}\norchestrator: "
                     "{queue_size: 3}\n"
                     "sampler: {algorithm: treepo, params: {anything: [1, 2]}}\ndataset: {name: x, own_key: 3}\n");
    q.set[1] = "train.task=sft";
    REPORTS(q, "-> memory.recompute = {mix: [selective, 1, none]}  (selective_checkpointing in 1 of 2 layers)",
            "trainer.params.selective_checkpointing = true", "trainer.params.zero2_gradient_sharding = true",
            "-> parallel.zero = 2  (on one rank it is the same)", "trainer.params.rollout_num",
            "orchestrator.queue_size", "sampler.{algorithm, params}", "data.source says what is trained on",
            "(RALO itself)");
}

/* RALO trains on rollouts; without a word of the user this would be supervised training. */
static void test_task_of_a_ralo_file_never_becomes_another_one_unsaid(void **state) {
    REFUSED(RALO("trainer:\n  algorithm: dapo\n  params: {accum_steps: 2}\n"), "old.yaml:2",
            "trainer.algorithm: found dapo", "RALO trains on rollouts, whose keys are not translated",
            "--set train.task=rloo", "rl.loss", "rl.k", "rl.max_completion", "reward.list", "--set train.task=sft");
    REFUSED(RALO("trainer: {params: {rollout_num: 8}}"), "trainer.params.rollout_num", "--set train.task=rloo");
    REFUSED(RALO("sampler: {params: {gen_max_tokens: 64}}\ntrainer: {params: {}}\n"), "old.yaml:1", "sampler.params");
    request q = RALO("trainer: {algorithm: dapo, params: {rollout_num: 8, clip_param: 0.2}}");
    q.set[1] = "train.task=rloo";
    GIVES(q, "train.task", "rloo", "rl.loss", "dapo");
    REPORTS(q, "RALO's rollouts are not translated: set rl.k", "set rl.epsilon");
    q.set[2] = "rl.loss=grpo";
    GIVES(q, "rl.loss", "grpo");
    q.set[1] = "train.task=sft", q.set[2] = NULL;
    GIVES(q, "train.task", "sft");
    request tree = RALO("trainer: {algorithm: treepo, params: {}}");
    tree.set[1] = "train.task=rloo";
    REFUSED(tree, "trainer.algorithm: found treepo", "--set rl.loss=dapo, grpo or rloo");
    tree.set[2] = "rl.loss=rloo";
    GIVES(tree, "train.task", "rloo", "rl.loss", "rloo");
    REPORTS(RALO("trainer: {params: {grad_offload: true}}"), "-> train.task = sft  (the file names no algorithm; rloo");
}

static void test_ralo_on_many_ranks(void **state) {
    request q = RALO("trainer: {params: {zero2_gradient_sharding: true, sequence_parallelism: true}}");
    q.n_ranks = 4;
    GIVES(q, "parallel.zero", "2", "parallel.sequence", "4", "memory.strategy", "auto");
    REPORTS(q, "-> parallel.sequence = 4  (all ranks share each row)");
    q.set[0] = "parallel.tensor=2";
    GIVES(q, "parallel.zero", "2", "parallel.sequence", "2");
    q.set[0] = "parallel.sequence=1"; /* by hand wins */
    GIVES(q, "parallel.sequence", "1");
    q = RALO("trainer: {params: {zero2_gradient_sharding: false, sequence_parallelism: false}}");
    q.n_ranks = 4;
    GIVES(q, "parallel.zero", "0", "parallel.sequence", "1");
    q = RALO("trainer: {params: {auto_memory_strategy: true}}");
    q.n_ranks = 4;
    GIVES(q, "parallel.zero", "auto", "parallel.sequence", "auto");
    q = RALO(
        "trainer: {params: {auto_memory_strategy: true, sequence_parallelism: false}}"); /* the choice stays open */
    q.n_ranks = 4;
    GIVES(q, "parallel.sequence", "auto");
    REPORTS(q, "-> parallel.sequence = auto  (auto_memory_strategy chooses)");
    q = RALO("trainer: {params: {auto_memory_strategy: false, sequence_parallelism: false}}");
    q.n_ranks = 4;
    GIVES(q, "parallel.sequence", "1", "parallel.zero", "2");
}

static void test_block_of_the_document(void **state) {
    request q = FIXTURE("documents/ralo.yaml");
    q.set[0] = "model.preset=test-llama";
    q.n_ranks = 4;
    GIVES(q, "memory.offload.grads", "host", "memory.offload.states", "host", "memory.recompute", "selective",
          "parallel.zero", "2", "parallel.sequence", "auto", "memory.strategy", "auto");
}

static void test_wrong_ralo_files(void **state) {
    REFUSED(RALO("trainer:\n  params:\n    grad_ofload: true\n"), "old.yaml:3",
            "unknown RALO key 'trainer.params.grad_ofload'", "did you mean 'trainer.params.grad_offload'");
    REFUSED(RALO("trainer: {params: {}}\ntrain: {steps: 3}\n"), "old.yaml:2", "unknown RALO key 'train'", "'trainer'");
    REFUSED(RALO("trainer: {params: {gradient_checkpointing_ratio: 1.5}}"), "gradient_checkpointing_ratio", "1.5",
            "[0, 1]");
    REFUSED(RALO("trainer: {params: {grad_offload: perhaps}}"), "grad_offload", "'perhaps'", "true or false");
    REFUSED(RALO("trainer: {params: {accum_steps: 0}}"), "accum_steps", "from 1");
    REFUSED(RALO("update_steps: 8192\ntrainer: {params: {accum_steps: 8192}}"), "old.yaml:2", "accum_steps",
            "'67108864'", "[1, 65536]");
    REFUSED(RALO("update_steps: 9000000000000000000\ntrainer: {params: {accum_steps: 9}}"), "accum_steps",
            "[1, 65536]");
    REFUSED(RALO("lr: fast\ntrainer: {params: {}}"), "old.yaml:1", "lr", "'fast'", "a number");
}

static void test_ralo_models(void **state) {
    static const char text[] = "model_path: Qwen/Qwen2.5-7B\ntrainer: {params: {}}\n";
    request q = {.config_name = "old.yaml", .config_text = text};
    outcome o;
    translate(&o, &q);
    assert_int_equal(o.rc, OK);
    assert_value(&o.c, "model.preset", "qwen2.5-7b");
    assert_int_equal(foreign_check_train(&o.f), ERR_INPUT); /* planned, but not trained from random weights */
    assert_in(error_message(), "no directory 'Qwen/Qwen2.5-7B'");
    assert_in(error_message(), "--preset qwen2.5-7b");
    outcome_fini(&o);

    q.set[0] = "model.preset=test-llama";
    translate(&o, &q);
    assert_int_equal(o.rc, OK);
    assert_value(&o.c, "model.preset", "test-llama");
    assert_int_equal(foreign_check_train(&o.f), OK);
    outcome_fini(&o);

    request here = {.config_name = "old.yaml", .config_text = "model_path: .\ntrainer: {params: {}}\n"};
    GIVES(here, "model.path", ".");
    request nowhere = {.config_name = "old.yaml", .config_text = "model_path: Org/No-Such\ntrainer: {params: {}}\n"};
    GIVES(nowhere, "model.path", "Org/No-Such"); /* which `train` and `plan` do not find */
    nowhere.config_text = "model_path: Org/No-Such\ntrainer: {params: {gradient_checkpointing_ratio: 0.5}}\n";
    GIVES(nowhere, "memory.recompute", "{ratio: 0.5}");
}

/* Both at once: the CONFIG wins over --deepspeed. */
static void test_ralo_and_deepspeed_together(void **state) {
    request q = RALO("trainer: {params: {train_batch_size: 3, accum_steps: 2}}");
    q.deepspeed_text = "{\"train_micro_batch_size_per_gpu\": 5, \"steps_per_print\": 4}";
    GIVES(q, "train.micro_batch", "3", "train.accumulation", "2", "train.log_every", "4");
    REPORTS(q, "from      old.yaml (RALO)", "from      ds.json (DeepSpeed)", "conflict: another file says so");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_task_of_a_ralo_file_never_becomes_another_one_unsaid),
        cmocka_unit_test(test_ralo_on_many_ranks),
        cmocka_unit_test(test_block_of_the_document),
        cmocka_unit_test(test_old_ralo_files_keep_their_meaning),
        cmocka_unit_test(test_wrong_ralo_files),
        cmocka_unit_test(test_ralo_models),
        cmocka_unit_test(test_ralo_and_deepspeed_together),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
