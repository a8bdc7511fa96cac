/* test_config.c - settings are read from files and flags, or refused; messages say where and what. */
#include "config_check.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <stdlib.h>
#include <sys/resource.h>

static void test_defaults(void **state) {
    config c;
    config_init(&c);
    assert_string_equal(c.model.preset, "");
    assert_string_equal(config_preset(&c), "arithmetic-tiny");
    assert_string_equal(c.model.path, "");
    assert_int_equal(c.model.init, -1);
    assert_int_equal(c.model.layers, 0);
    assert_int_equal(c.model.tied, -1);
    assert_string_equal(c.data.source, "builtin:arithmetic");
    assert_int_equal(c.data.seq_len, 0); /* auto */
    assert_true(c.data.pack);
    assert_true(c.train.beta1 == 0.9 && c.train.beta2 == 0.95 && c.train.eps == 1e-8);
    assert_int_equal(c.train.schedule, SCHEDULE_COSINE);
    assert_int_equal(c.train.eval_every, 0);
    assert_true(c.train.loss_scale == 0 && c.train.min_loss_scale == 1);
    assert_int_equal(c.choice.precision, PRECISION_FP32);
    assert_int_equal(c.memory.device, 0);
    assert_int_equal(c.memory.logits_chunk, 0);
    assert_string_equal(c.memory.recompute, "auto");
    assert_string_equal(c.run.dir, "");
    assert_string_equal(c.run.resume, "none");
    assert_int_equal(c.data.seed, c.train.seed);
    assert_int_equal(config_check(&c), OK);
    for (size_t i = 0; i < config_count(); i++) assert_false(config_was_given(&c, config_key(i)));
    assert_null(config_key(config_count()));
    config_fini(&c);
}

/* The names in config.def stand in the order of the C enums. */
static void test_choices_follow_their_enums(void **state) {
    static const struct {
        const char *assignment;
        int expected;
    } rows[] = {
        {"train.schedule=cosine", SCHEDULE_COSINE},
        {"train.schedule=linear", SCHEDULE_LINEAR},
        {"train.schedule=constant", SCHEDULE_CONSTANT},
        {"train.schedule=wsd", SCHEDULE_WSD},
        {"train.nonfinite=stop", NONFINITE_STOP},
        {"train.nonfinite=skip", NONFINITE_SKIP},
        {"precision=fp32", PRECISION_FP32},
        {"precision=bf16", PRECISION_BF16},
        {"precision=bf16_sr", PRECISION_BF16_SR},
        {"precision=fp16", PRECISION_FP16},
        {"precision=fp8", PRECISION_FP8},
        {"precision=fp8_sr", PRECISION_FP8_SR},
#define TASK(id, name, help) {"train.task=" name, TASK_##id},
#include "train/tasks.def"
#undef TASK
        {"model.tied=auto", -1},
        {"model.tied=false", 0},
        {"model.tied=true", 1},
    };
    assert_int_equal(SCHEDULE_COUNT + NONFINITE_COUNT + PRECISION_COUNT + TASK_COUNT + 3, ARRAY_LENGTH(rows));
    config c;
    config_init(&c);
    for (size_t i = 0; i < ARRAY_LENGTH(rows); i++) {
        const char *a = rows[i].assignment;
        assert_int_equal(config_set(&c, a, "--set"), OK);
        int got = str_starts_with(a, "train.schedule")    ? (int)c.train.schedule
                  : str_starts_with(a, "train.nonfinite") ? (int)c.train.nonfinite
                  : str_starts_with(a, "precision")       ? (int)c.choice.precision
                  : str_starts_with(a, "train.task")      ? (int)c.task
                                                          : c.model.tied;
        assert_int_equal(got, rows[i].expected);
    }
    assert_int_equal(config_set(&c, "precision=FP32", "--set"), OK); /* number formats, as others write them */
    assert_int_equal(c.choice.precision, PRECISION_FP32);
    assert_int_equal(config_set(&c, "precision=torch.BFloat16", "--set"), OK);
    assert_int_equal(c.choice.precision, PRECISION_BF16);
    config_fini(&c);
}

static void test_nested_and_dotted_keys(void **state) {
    config c;
    config_init(&c);
    assert_int_equal(read_text(&c, "train:\n  lr: 3e-4\n  fp16:\n    hysteresis: 4\n  fp16.loss_scale_window: 7\n"
                                   "train.steps: 1e5\ndata: {seq_length: 2.0, pack: off}\nprecision: bf16\n"
                                   "memory.device: 8G\nmodel:\n"),
                     OK);
    assert_true(c.train.lr == 3e-4);
    assert_int_equal(c.train.hysteresis, 4);
    assert_int_equal(c.train.loss_scale_window, 7);
    assert_int_equal(c.train.steps, 100000);
    assert_int_equal(c.data.seq_len, 2);
    assert_false(c.data.pack);
    assert_int_equal(c.choice.precision, PRECISION_BF16);
    assert_true(c.memory.device == 8ull << 30);
    assert_true(config_was_given(&c, "data.seq_len") && config_was_given(&c, "data.seq_length"));
    assert_false(config_was_given(&c, "train.warmup"));
    config_fini(&c);
}

static void test_json_is_read(void **state) {
    config c;
    config_init(&c);
    assert_int_equal(read_text(&c, "{\"train\": {\"lr\": 0.01, \"betas\": [0.8, 0.99], \"clip\": null}, "
                                   "\"run\": {\"dir\": \"a\\tb\"}, \"data.pack\": false}"),
                     OK);
    assert_true(c.train.lr == 0.01 && c.train.beta1 == 0.8 && c.train.beta2 == 0.99 && c.train.clip == 0);
    assert_string_equal(c.run.dir, "a\tb");
    assert_false(c.data.pack);
    config_fini(&c);
}

static void test_aliases_and_pairs(void **state) {
    config c;
    config_init(&c);
    assert_int_equal(
        read_text(&c, "train: {batch_size: 3, gradient_accumulation_steps: 5, learning_rate: 1, beta2: 0.5}"), OK);
    assert_int_equal(c.train.micro_batch, 3);
    assert_int_equal(c.train.accumulation, 5);
    assert_true(c.train.lr == 1 && c.train.beta1 == 0.9 && c.train.beta2 == 0.5);
    assert_int_equal(config_set(&c, "train.betas=[0.1,0.2]", "--set"), OK);
    assert_true(c.train.beta1 == 0.1 && c.train.beta2 == 0.2);
    assert_int_equal(config_set(&c, "train.beta1=0.3", "--set"), OK);
    assert_true(c.train.beta1 == 0.3 && c.train.beta2 == 0.2);
    config_fini(&c);
    REFUSED("train: {betas: [0.9]}", "train.betas", "list of two numbers in [0, 1)");
    REFUSED("train: {betas: [0.9, 0.9, 0.9]}", "train.betas");
    REFUSED("train: {betas: 0.9}", "'0.9'", "train.betas");
    REFUSED("train: {betas: [0.9, 1]}", "'[0.9, 1]'", "train.betas");
    REFUSED("train: {betas: [0.9, [1]]}", "train.betas");
    REFUSED("train: {beta1: [0.9, 0.9]}", "train.beta1", "a list");
}

/* PyTorch's words for what ralo does too, from a file and from the command line. */
static void test_keys_of_fsdp(void **state) {
    static const struct {
        const char *word;
        int zero;
    } rows[] = {{"FULL_SHARD", 3}, {"full_shard", 3}, {"SHARD_GRAD_OP", 2}, {"NO_SHARD", 0}};
    config c;
    config_init(&c);
    assert_int_equal(read_text(&c,
                               "distributed:\n  fsdp: {sharding_strategy: FULL_SHARD, activation_checkpointing: true, "
                               "mixed_precision: true, cpu_offload: false}\n"),
                     OK);
    assert_int_equal(c.choice.shard.zero, 3);
    assert_string_equal(c.memory.recompute, "full");
    assert_int_equal(c.choice.precision, PRECISION_BF16);
    assert_true(config_was_given(&c, "memory.offload.states"));
    assert_string_equal(config_alias(&c, "parallel.zero"), "distributed.fsdp.sharding_strategy");
    for (size_t i = 0; i < ARRAY_LENGTH(rows); i++) {
        char text[100];
        snprintf(text, sizeof text, "fsdp_config.fsdp_sharding_strategy=%s", rows[i].word);
        assert_int_equal(config_set(&c, text, "--override"), OK);
        assert_int_equal(c.choice.shard.zero, rows[i].zero);
    }
    assert_int_equal(config_set(&c, "distributed.fsdp.activation_checkpointing=false", "--override"), OK);
    assert_string_equal(c.memory.recompute, "none");
    assert_int_equal(config_set(&c, "fsdp.use_orig_params=true", "--set"), OK); /* nothing to do */
    assert_int_equal(config_set(&c, "fsdp.backward_prefetch=NO_PREFETCH", "--set"), OK);
    assert_int_equal(c.choice.shard.prefetch, 0);
    config_fini(&c);
    REFUSED("distributed: {fsdp: {sharding_strategy: HYBRID_SHARD}}", "HYBRID_SHARD", "between nodes", "FULL_SHARD");
    REFUSED("distributed: {fsdp: {sharding_strategy: ZERO}}", "'ZERO'", "FULL_SHARD, SHARD_GRAD_OP, NO_SHARD");
    REFUSED("distributed: {fsdp: {sharding_stratgy: FULL_SHARD}}", "sharding_stratgy",
            "did you mean 'sharding_strategy'");
    REFUSED("distributed: {fsdp: {ignored_modules: [a]}}", "ignored_modules", "leave it out");
    REFUSED("fsdp: {cpu_offload: maybe}", "'maybe'", "true, false");
    REFUSED("parallel: {zero: 1}\nfsdp:\n  sharding_strategy: FULL_SHARD\n", ":3:", "line 1");
    REFUSED("fsdp: {sharding_strategy: FULL_SHARD, reshard_after_forward: true}", "given already");
}

/* A map of names is the same in a file, in its braces and as pairs. */
static void test_maps_of_names(void **state) {
    static const char *const ways[] = {"memory.place=embed=cpu:0, layers.0-5=cpu:1",
                                       "memory.place={embed: cpu:0, layers.0-5: cpu:1}",
                                       "memory.place= {\"embed\": \"cpu:0\", \"layers.0-5\": \"cpu:1\"}"};
    config c;
    config_init(&c);
    assert_int_equal(read_text(&c, "memory: {place: {embed: \"cpu:0\", layers.0-5: \"cpu:1\"}}"), OK);
    assert_string_equal(c.memory.place, "embed=cpu:0, layers.0-5=cpu:1");
    config_fini(&c);
    for (size_t i = 0; i < ARRAY_LENGTH(ways); i++) {
        config_init(&c);
        assert_int_equal(config_set(&c, ways[i], "--set"), OK);
        assert_string_equal(c.memory.place, "embed=cpu:0, layers.0-5=cpu:1");
        config_fini(&c);
    }
    refused_set("memory.place={embed: [cpu:0]}");
    refused_set("memory.place={embed: cpu:0");
    refused_set("memory.place={}");
}

/* A JSON object may stand in a file as the map that it is. */
static void test_maps_as_json(void **state) {
    config c;
    config_init(&c);
    assert_int_equal(read_text(&c, "data: {chat_kwargs: {\"enable_thinking\": false, level: high}}"), OK);
    assert_string_equal(c.data.chat_kwargs, "{\"enable_thinking\":false,\"level\":\"high\"}");
    assert_int_equal(config_set(&c, "data.chat_kwargs={\"a\": 1}", "--set"), OK);
    assert_string_equal(c.data.chat_kwargs, "{\"a\": 1}");
    config_fini(&c);
    REFUSED("data: {chat_kwargs: [a]}", "data.chat_kwargs: found a list, expected a JSON object");
    refused_set("data.chat_kwargs=");
}

/* So is a list of names: in a file, in its brackets and with commas. */
static void test_lists_of_names(void **state) {
    static const char *const ways[] = {"model.lora.targets=q,v", "model.lora.targets=[q, v]",
                                       "model.lora.targets= [\"q\", \"v\"]"};
    config c;
    config_init(&c);
    assert_int_equal(read_text(&c, "model: {lora: {targets: [q, v]}}"), OK);
    assert_string_equal(c.model.lora_targets, "q,v");
    config_fini(&c);
    for (size_t i = 0; i < ARRAY_LENGTH(ways); i++) {
        config_init(&c);
        assert_int_equal(config_set(&c, ways[i], "--set"), OK);
        assert_string_equal(c.model.lora_targets, "q,v");
        config_fini(&c);
    }
    refused_set("model.lora.targets=[q, [v]]");
    refused_set("model.lora.targets=[q, v");
    refused_set("model.lora.targets=[]");
}

static void test_words_and_null(void **state) {
    config c;
    config_init(&c);
    assert_int_equal(read_text(&c, "train: {clip: none, eval_every: null, fp16.loss_scale: dynamic, save_every: 0}\n"
                                   "run: {dir: , resume: ~, threads: auto, keep: all}\nmemory: {device: auto}\n"
                                   "model: {layers: auto, tied: null}"),
                     OK);
    assert_true(c.train.clip == 0 && c.train.loss_scale == 0);
    assert_string_equal(c.run.dir, "");
    assert_string_equal(c.run.resume, "none");
    assert_int_equal(c.run.keep, 0);
    assert_int_equal(c.model.tied, -1);
    assert_reads_back(&c);
    assert_int_equal(read_text(&c, "run: {dir: \"auto\"}"), OK); /* in quotes it is a name */
    assert_string_equal(c.run.dir, "auto");
    assert_reads_back(&c);
    config_fini(&c);
    REFUSED("train: {lr: null}", "train.lr", "'null'", "(0, 10]");
    REFUSED("train: {lr: auto}", "train.lr");
    REFUSED("train:\n  seed:\n", ":2", "train.seed");
}

/* A word, a map with one entry in a file, the same map or plain text on the command line. */
static void test_forms(void **state) {
    static const struct {
        const char *given, *stored;
    } rows[] = {
        {"full", "full"},
        {" norms ", "norms"},
        {"auto", "auto"},
        {"null", "auto"},
        {"true", "full"},
        {"off", "none"},
        {"{ratio: 0.5}", "ratio:0.5"},
        {"{\"ratio\": 0.5}", "ratio:0.5"},
        {"{ratio: 0}", "ratio:0"},
        {"{every: 2.0}", "every:2"},
        {"{every: 1024}", "every:1024"},
        {"{nested: 1}", "nested:1"},
        {"{nested: 1024}", "nested:1024"},
        {"{keep: attn.y}", "keep:attn.y"},
        {"{keep: [attn.y, 'mlp.up' ]}", "keep:attn.y,mlp.up"},
        {"{\"keep\":[\"attn.y\",\"mlp.up\"]}", "keep:attn.y,mlp.up"},
        {"{keep: 'attn.y , mlp.up'}", "keep:attn.y,mlp.up"},
        {"\"ratio:1\"", "ratio:1"},
        {"{mix: [full, 12, selective]}", "mix:full,12,selective"},
    };
    static const char *const wrong[] = {"half",
                                        "{}",
                                        "{full: }",
                                        "{full: 1}",
                                        "{ratio: }",
                                        "{ratio: 1.01}",
                                        "{ratio: -0.1}",
                                        "{ratio: nan}",
                                        "{ratio: [0.5, 0.5]}",
                                        "{ratio: {a: 1}}",
                                        "{ratio: 0.5, every: 2}",
                                        "{every: 0}",
                                        "{every: 1.5}",
                                        "{every: 1025}",
                                        "{nested: 0}",
                                        "{nested: -1}",
                                        "{nested: 1.5}",
                                        "{nested: 1025}",
                                        "{nested: 9223372036854775808}",
                                        "{nested: }",
                                        "{nested: two}",
                                        "{nested: 2, keep: [attn.y]}",
                                        "nested",
                                        "{keep: []}",
                                        "{keep: [a, [b]]}",
                                        "{keep: [a, '']}",
                                        "{keep: ['', a]}",
                                        "{keep: [a b]}",
                                        "{mix: [full, 12]}",
                                        "{mix: [full, 12, norms, none]}",
                                        "{keep: 'a{b'}",
                                        "[full]",
                                        "{ratio: 0.5",
                                        "{ratio:0.5}",
                                        "ratio",
                                        "1"};
    char text[200];
    for (size_t i = 0; i < ARRAY_LENGTH(rows); i++) {
        config c;
        config_init(&c);
        snprintf(text, sizeof text, "memory:\n  recompute: %s\n", rows[i].given);
        if (read_text(&c, text) != OK) fail_msg("%s", error_message());
        assert_string_equal(c.memory.recompute, rows[i].stored);
        assert_reads_back(&c);
        if (rows[i].given[0] != '"') { /* quotes belong to files */
            config_fini(&c);
            config_init(&c);
            snprintf(text, sizeof text, "memory.recompute=%s", rows[i].given);
            if (config_set(&c, text, "--set") != OK) fail_msg("%s", error_message());
            assert_string_equal(c.memory.recompute, rows[i].stored);
        }
        snprintf(text, sizeof text, "train.gradient_checkpointing=%s", rows[i].stored); /* as text, by another name */
        if (config_set(&c, text, "--set") != OK) fail_msg("%s", error_message());
        assert_string_equal(c.memory.recompute, rows[i].stored);
        config_fini(&c);
    }
    for (size_t i = 0; i < ARRAY_LENGTH(wrong); i++) {
        snprintf(text, sizeof text, "memory.recompute=%s", wrong[i]);
        refused_set(text);
        SAYS("memory.recompute: found '",
             "expected one of: none or false, norms, selective, full or true, {ratio: number in "
             "[0, 1]}, {every: whole number in [1, 1024]}, {nested: whole number in [1, 1024]}, {keep: list of names}, "
             "{mix: [level, layers, lighter level]}, auto");
    }
    REFUSED("memory:\n  recompute: {ratio: 2}\n", ":2:", "memory.recompute", "'ratio:2'", "number in [0, 1]");
    REFUSED("memory:\n  recompute:\n    ratio: 0.5\n    every: 2\n", ":2:", "exactly one entry", "expected one of");
    REFUSED("memory: {recompute: [full]}\n", "memory.recompute", "a list");
    REFUSED("memory:\n  recompute: {nested: [1]}\n", ":2:", "memory.recompute", "'nested:[1]'", "whole number in");
    REFUSED("memory:\n  recompute: {ratio: [0.5]}\n", ":2:", "memory.recompute", "'ratio:[0.5]'", "number in [0, 1]");
    REFUSED("memory:\n  recompute: {every: [2, 3]}\n", ":2:", "memory.recompute", "'every:[2, 3]'", "whole number in");
    REFUSED("memory:\n  recompute: {keep: []}\n", ":2:", "memory.recompute", "'keep:[]'", "list of names");
    REFUSED("memory: {recompute: {keep: [a, {b: 1}]}}\n", "memory.recompute", "exactly one entry");
    REFUSED("memory: {recompute: full}\ntrain: {gradient_checkpointing: true}\n", ":2:", "line 1");
    REFUSED("memory:\n  recompute.ratio: 0.5\n", ":2:", "memory.recompute.ratio");
}

static void test_quoted_numbers_are_numbers(void **state) {
    config c;
    config_init(&c);
    assert_int_equal(
        read_text(&c, "train: {steps: \"8\", lr: '0.5'}\nmemory: {device: \"1.5 GiB\", logits_chunk: \"4096\"}"), OK);
    assert_int_equal(c.train.steps, 8);
    assert_true(c.train.lr == 0.5 && c.memory.device == 3ull << 29 && c.memory.logits_chunk == 4096);
    config_fini(&c);
}

static void test_unknown_keys_name_the_nearest(void **state) {
    REFUSED("model: {layers: 2}\ntrain:\n  lrr: 1\n", ":3:", "'train.lrr'", "did you mean 'train.lr'?");
    REFUSED("trian:\n  steps: 1\n", ":2:", "'trian.steps'", "'train.steps'");
    REFUSED("learning_rate: 1\n", ":1:", "did you mean 'train.lr'?");
    REFUSED("train.batchsize: 1\n", "here it is train.batch");
    REFUSED("train.betta1: 1\n", "did you mean 'train.beta1'?");
    REFUSED("model.seq_len: 1\n", "did you mean 'data.seq_len'?");
    REFUSED("train.hysteresis: 1\n", "did you mean 'train.fp16.hysteresis'?");
    REFUSED("precison: fp32\n", "did you mean 'precision'?");
    REFUSED("per_device_train_batch_size: 4\n", "did you mean 'train.micro_batch'?");
    REFUSED("max_length: 4\n", "did you mean 'data.seq_len'?");
    static const char *const far[] = {"model.moe=2", "model.experts=8", "train.dtyp=1", "data.shuffle=1"};
    for (size_t i = 0; i < ARRAY_LENGTH(far); i++) {
        refused_set(far[i]);
        SAYS("unknown setting", "ralo help settings");
    }
    /* What others say in another way. */
    REFUSED("num_train_epochs: 3\n", "'num_train_epochs'", "train.epochs");
    REFUSED("bf16: true\n", "'bf16'", "precision=bf16");
    REFUSED("fsdp: full_shard\n", "'fsdp'", "parallel.zero=3");
    REFUSED("warmup_ratio: 0.1\n", "'warmup_ratio'", "train.warmup_ratio");
    REFUSED("zzzzzz: {}\n", "'zzzzzz'", "ralo help settings");
    REFUSED("train: {quux_corge: 1}\n", "'train.quux_corge'", "ralo help settings");
    REFUSED("train: 3\n", ":1:", "'train'", "group", "expected a map");
    REFUSED("train: [lr, 3]\n", "'train'", "a list");
    REFUSED("train: {lr: {a: 1}}\n", "train.lr", "a map");
    REFUSED("precision: {a: 1}\n", "precision", "a map");
    REFUSED("- train\n", "expected a map of settings");
    REFUSED("just text\n", "expected a map of settings");
    refused_set("train.lrr=1");
    SAYS("'train.lrr'", "did you mean 'train.lr'?");
    refused_set("train=1");
    SAYS("group");
    refused_set("train.lr");
    SAYS("key=value");
    refused_set("=1");
    refused_set("");
    refused_set("model.path="); /* a variable of the shell that is not set */
    SAYS("model.path: found ''", "or none");
    refused_set("run.dir= ");
    refused_set("data.seq_len=");
    SAYS("data.seq_len: found ''", "or auto");
}

static void test_a_setting_given_twice(void **state) {
    REFUSED("train:\n  lr: 1\ntrain.lr: 2\n", ":3:", "train.lr", "line 2");
    REFUSED("train:\n  micro_batch: 1\n  batch_size: 2\n", ":3:", "train.batch_size", "line 2");
    REFUSED("train:\n  betas: [0, 0]\n  beta2: 0\n", ":3:", "train.beta2", "line 2");
    config c; /* the command line, later files, and the two halves of a pair do not collide */
    config_init(&c);
    assert_int_equal(read_text(&c, "train: {beta1: 0.1, beta2: 0.2}"), OK);
    assert_int_equal(read_text(&c, "train: {beta1: 0.3}"), OK);
    assert_int_equal(config_set(&c, "train.beta1=0.4", "--set"), OK);
    assert_true(c.train.beta1 == 0.4 && c.train.beta2 == 0.2);
    config_fini(&c);
}

static void test_wrong_values(void **state) {
    REFUSED("train:\n\n  lr: fast\n", ":3:", "train.lr", "'fast'", "(0, 10]");
    REFUSED("train: {schedule: cosin}", "'cosin'", "cosine, linear, constant, wsd");
    REFUSED("train: {task: rlo}", "'rlo'", "one of: sft");
    REFUSED("data: {pack: 1}", "'1'", "true or false");
    static const char *const wrong[] = {
        "train.lr=0",
        "train.lr=-1",
        "train.lr=11",
        "train.lr=nan",
        "train.lr=inf",
        "train.lr=-inf",
        "train.lr=1e999",
        "train.lr=0x1",
        "train.lr=1 2",
        "train.lr=",
        "train.lr=.",
        "train.lr=-",
        "train.lr=1e",
        "train.lr=1,5",
        "train.steps=0",
        "train.steps=1.5",
        "train.steps=1e30",
        "train.steps=-1",
        "train.steps=0x10",
        "train.steps=1e-5",
        "train.steps=9223372036854775808",
        "train.steps=99999999999999999999999",
        "train.steps=true",
        "train.steps=1k",
        "train.seed=9223372036854775808",
        "train.seed=-1",
        "train.seed=1e19",
        "train.warmup=nan",
        "data.seq_len=1",
        "data.difficulty=7",
        "data.eval_fraction=0.51",
        "data.pack=maybe",
        "data.pack=",
        "data.source=",
        "data.source=\xff",
        "data.source=\xc0\x80",
        "data.source=\xed\xa0\x80",
        "data.source=a\xe2\x82",
        "train.betas=0.9,0.95",
        "train.betas=[0.9, 1.0]",
        "train.betas=[nan, 0.9]",
        "train.betas=[]",
        "train.betas=[,]",
        "train.beta1=1",
        "train.beta1=[0.9, 0.9]",
        "memory.device=-8G",
        "memory.device=8X",
        "memory.device=1",
        "memory.device=1e30",
        "memory.device=99999999T",
        "precision=FP33",
        "model.tied=yes",
        "model.layers=1025",
        "model.layers=none",
        "run.threads=-1",
        "run.threads=0", /* the number that a word is kept as is no value of its own */
        "run.keep=0",
        "memory.device=0",
        "model.layers=0",
        "train.micro_batch=-1",
        "parallel.zero=-1",
        "memory.chunk_tokens=-1",
        "precision=-1",
        "run.threads=5000000000",
        "memory.chunk_tokens=-2",
        "memory.chunk_tokens=64K",
        "memory.chunk_tokens=none",
        "memory.host=1",
        "memory.host=-1G",
        "memory.host=2P",
        "memory.host=1e30",
        "memory.host=none",
        "model.max_positions=4K",
        "model.max_positions=1e30",
        "memory.offload.keep_layers=-2",
        "memory.offload.keep_layers=all",
        "memory.offload.keep_states=-2",
        "memory.offload.keep_states=1025",
        "memory.prefetch=auto",
        "memory.prefetch=-1",
        "parallel.zero=4",
        "parallel.zero=-2",
        "parallel.zero=2.5",
        "parallel.zero=none",
        "parallel.sequence=-1",
        "parallel.sequence=all",
        "parallel.attention=RING",
        "parallel.attention=ulysses",
        "parallel.reduce_bucket=1",
        "parallel.allgather_bucket=-4K",
        "comm.transport=tcp",
        "comm.transport=true",
        "precision=fp8_e4m3",
        "precision=fp8-sr",
    };
    for (size_t i = 0; i < ARRAY_LENGTH(wrong); i++) refused_set(wrong[i]);
    refused_set("data.source=\xff");
    SAYS("UTF-8");
    char *long_text = mem_alloc(100000);
    memset(long_text, 'x', 99999);
    memcpy(long_text, "run.dir=", 8);
    refused_set(long_text);
    SAYS("too long");
    memset(long_text, 'x', 99999);
    refused_set(long_text);
    memcpy(long_text + 90000, "=1", 2);
    refused_set(long_text);
    SAYS("unknown setting");
    free(long_text);
}

/* A list or map that becomes one line of text: the text is made in one go, not once more for every entry. */
static void test_long_lists_take_memory_of_their_length(void **state) {
    enum { N = 20000, MOST_KB = 200 << 10 };
    static const char *const heads[] = {"memory: {recompute: {keep: [", "memory: {place: {"};
    struct rusage before, after;
    for (size_t k = 0; k < ARRAY_LENGTH(heads); k++) {
        strbuf text;
        strbuf_init(&text);
        strbuf_add(&text, heads[k]);
        for (int i = 0; i < N; i++) strbuf_printf(&text, k == 0 ? "%sname%d" : "%slayers.%d: cpu:0", i ? ", " : "", i);
        strbuf_add(&text, k == 0 ? "]}}\n" : "}}\n");
        config c;
        config_init(&c);
        getrusage(RUSAGE_SELF, &before);
        if (read_text(&c, text.text) != OK) error_clear(); /* too long for one, more than a model has for the other */
        getrusage(RUSAGE_SELF, &after);
        if (after.ru_maxrss - before.ru_maxrss > MOST_KB)
            fail_msg("%s...: %ld KB for %zu bytes", heads[k], after.ru_maxrss - before.ru_maxrss, text.length);
        config_fini(&c);
        strbuf_fini(&text);
    }
}

static void test_files_that_cannot_be_read(void **state) {
    config c;
    config_init(&c);
    assert_int_not_equal(config_read_file(&c, "/nonexistent/ralo.yaml"), OK);
    SAYS("/nonexistent/ralo.yaml");
    assert_int_equal(read_text(&c, "train: {lr: 1, lr: 2}\n"), ERR_INPUT);
    assert_int_equal(read_text(&c, "train: {lr: 1\n"), ERR_INPUT);
    assert_int_equal(read_text(&c, ""), OK);
    config_fini(&c);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_defaults),
        cmocka_unit_test(test_choices_follow_their_enums),
        cmocka_unit_test(test_nested_and_dotted_keys),
        cmocka_unit_test(test_json_is_read),
        cmocka_unit_test(test_aliases_and_pairs),
        cmocka_unit_test(test_keys_of_fsdp),
        cmocka_unit_test(test_maps_of_names),
        cmocka_unit_test(test_maps_as_json),
        cmocka_unit_test(test_lists_of_names),
        cmocka_unit_test(test_words_and_null),
        cmocka_unit_test(test_forms),
        cmocka_unit_test(test_quoted_numbers_are_numbers),
        cmocka_unit_test(test_unknown_keys_name_the_nearest),
        cmocka_unit_test(test_a_setting_given_twice),
        cmocka_unit_test(test_wrong_values),
        cmocka_unit_test(test_long_lists_take_memory_of_their_length),
        cmocka_unit_test(test_files_that_cannot_be_read),
    };
    return cmocka_run_group_tests(tests, config_file_make, config_file_remove);
}
