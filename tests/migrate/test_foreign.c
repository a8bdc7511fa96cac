/* test_foreign.c - files of DeepSpeed: each key becomes the setting it means, or is reported, or is refused by name. */
#include "foreign_files.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <stdlib.h>

static const char zero2[] =
    "{\n"
    " \"train_batch_size\": 32, \"train_micro_batch_size_per_gpu\": 4,\n"
    " \"gradient_clipping\": 0.5, \"steps_per_print\": 7, \"wall_clock_breakdown\": true,\n"
    " \"fp16\": {\"enabled\": true, \"loss_scale\": 0, \"initial_scale_power\": 12,\n"
    "   \"loss_scale_window\": 500, \"hysteresis\": 3, \"consecutive_hysteresis\": true,\n"
    "   \"min_loss_scale\": 2},\n"
    " \"zero_optimization\": {\"stage\": 2, \"overlap_comm\": true, \"reduce_bucket_size\": 5e8,\n"
    "   \"offload_optimizer\": {\"device\": \"cpu\", \"pin_memory\": true}}\n"
    "}\n";

static void test_stage_2_with_cpu_offload_and_fp16(void **state) {
    GIVES(DS(zero2), "train.micro_batch", "4", "train.accumulation", "8", "train.clip", "0.5", "train.log_every", "7",
          "run.breakdown", "true", "precision", "fp16", "train.fp16.loss_scale", "dynamic",
          "train.fp16.initial_scale_power", "12", "train.fp16.loss_scale_window", "500", "train.fp16.hysteresis", "3",
          "train.fp16.consecutive_hysteresis", "true", "train.fp16.min_loss_scale", "2", "memory.strategy", "manual",
          "parallel.zero", "2", "memory.offload.states", "host", "memory.offload.grads", "host",
          "memory.offload.params", "auto", "memory.recompute", "auto", "parallel.overlap", "true",
          "parallel.reduce_bucket", "1953125K");
    REPORTS(DS(zero2), "from      ds.json (DeepSpeed)", "train_batch_size = 32", "-> train.accumulation = 8",
            "32 = 4 x 8 x 1 rank", "-> memory.offload.states = host", "-> memory.offload.grads = host",
            "zero_optimization.stage = 2", "-> parallel.zero = 2", "zero_optimization.overlap_comm = true",
            "5e8 elements of 4 bytes");
    GIVES(DS("{\"zero_optimization\": {\"stage\": 1, \"offload_optimizer\": {\"device\": \"cpu\"}}}"),
          "memory.offload.states", "host", "memory.offload.grads", "auto");
    GIVES(DS("{\"zero_optimization\": {\"stage\": 2, \"offload_optimizer\": {\"device\": \"none\"}}}"),
          "memory.offload.states", "none", "memory.offload.grads", "none");
}

static void test_the_share_of_states_that_moves(void **state) {
#define SHARE(device, ratio)                                                                                       \
    DS("{\"zero_optimization\": {\"stage\": 1,\n\"offload_optimizer\": {\"device\": " device ", \"ratio\": " ratio \
       "}}}")
    request q = SHARE("\"cpu\"", "0.3");
    q.set[0] = "model.preset=llama2-7b"; /* 32 layers: 22.4 of them */
    GIVES(q, "memory.offload.states", "host", "memory.offload.keep_states", "22");
    REPORTS(q, "zero_optimization.offload_optimizer.ratio = 0.3", "-> memory.offload.keep_states = 22", "of 32 layers");
    q = SHARE("\"nvme\"", "0.25");
    q.set[0] = "model.preset=llama2-7b";
    GIVES(q, "memory.offload.states", "nvme", "memory.offload.keep_states", "24");
    q.set[1] = "memory.offload.keep_states=5"; /* what the configuration says wins */
    GIVES(q, "memory.offload.keep_states", "5");
    q = SHARE("\"auto\"", "0.5");
    q.set[0] = "model.preset=llama2-7b";
    GIVES(q, "memory.offload.keep_states", "16");
    GIVES(SHARE("\"cpu\"", "1.0"), "memory.offload.keep_states", "0");
    GIVES(SHARE("\"cpu\"", "\"auto\""), "memory.offload.keep_states", "auto");
    GIVES(SHARE("\"none\"", "0.3"), "memory.offload.keep_states", "auto");
    REPORTS(SHARE("\"none\"", "0.3"), "no effect here: states stay on the device");
    GIVES(DS("{\"zero_optimization\": {\"offload_optimizer\": {\"ratio\": 0.3}}}"), "memory.offload.keep_states",
          "auto");
    REFUSED(SHARE("\"cpu\"", "1.5"), "ds.json:2", "offload_optimizer.ratio", "found 1.5", "[0, 1]");
    REFUSED(SHARE("\"cpu\"", "-0.5"), "offload_optimizer.ratio", "found -0.5", "[0, 1]");
    REFUSED(SHARE("\"cpu\"", "\"half\""), "offload_optimizer.ratio", "'half'", "a number");
#undef SHARE
}

static void test_stage_3_with_nvme(void **state) {
    static const char text[] =
        "{\"bf16\": {\"enabled\": true}, \"train_micro_batch_size_per_gpu\": 1, \"zero_optimization\": {\"stage\": 3,\n"
        " \"offload_optimizer\": {\"device\": \"nvme\", \"nvme_path\": \"/local nvme\", \"buffer_count\": 4},\n"
        " \"offload_param\": {\"device\": \"nvme\", \"nvme_path\": \"/local nvme\", \"buffer_size\": 1e6},\n"
        " \"stage3_prefetch_bucket_size\": 20000},\n"
        " \"aio\": {\"block_size\": 262144, \"queue_depth\": 8}}";
    request q = DS(text);
    q.set[0] = "model.preset=llama2-7b";
    GIVES(q, "precision", "bf16", "memory.offload.states", "nvme", "memory.offload.grads", "nvme",
          "memory.offload.params", "nvme", "memory.nvme_path", "/local nvme", "memory.bucket", "2000000",
          "memory.prefetch", "1");
    REPORTS(q, "1e6 elements of 2 bytes", "blocks of 202.4M elements, rounded up", "aio.{block_size, queue_depth}",
            "memory.bucket");
    /* A prefetch of no elements is none, one of many blocks is the most there is. */
    /* by the names of the fields, as files of Axolotl have them */
    request fields = DS("{\"zero_optimization\": {\"stage\": 3, \"max_live_parameters\": 0, \"max_reuse_distance\": 0, "
                        "\"param_persistence_threshold\": 1000, \"prefetch_bucket_size\": 0, "
                        "\"gather_16bit_weights_on_model_save\": true}, \"fp16\": {\"enabled\": true, "
                        "\"initial_scale_power\": 32}}");
    GIVES(fields, "parallel.zero", "3", "parallel.persist_below", "1001", "parallel.prefetch", "0",
          "train.fp16.initial_scale_power", "32");
    GIVES(DS("{\"zero_optimization\": {\"offload_param\": {\"device\": \"cpu\"}, \"stage3_prefetch_bucket_size\": 0}}"),
          "memory.prefetch", "0", "memory.offload.params", "host");
    GIVES(DS("{\"zero_optimization\": {\"offload_param\": {\"device\": \"cpu\"}, \"stage3_prefetch_bucket_size\": "
             "9e15}}"),
          "memory.prefetch", "16");
    GIVES(DS("{\"zero_optimization\": {\"offload_param\": {\"device\": \"nvme\"}}}"), "memory.offload.params", "nvme",
          "memory.nvme_path", "auto");
    REFUSED(DS("{\"zero_optimization\": {\n\"offload_param\": {\"device\": \"nvme\", \"nvme_path\": \"/a\"},\n"
               "\"offload_optimizer\": {\"device\": \"nvme\", \"nvme_path\": \"/b\"}}}"),
            "ds.json:3", "/a", "/b", "one directory");
    REFUSED(DS("{\"zero_optimization\": {\"offload_param\": {\"device\": \"gpu\"}}}"), "offload_param.device", "'gpu'",
            "none, cpu or nvme");
    REFUSED(DS("{\"zero_optimization\": {\"stage\": 4}}"), "zero_optimization.stage", "found 4", "0, 1, 2 or 3");
}

/* 8 ranks, of which some share layers and rows: the others have rows of their own. */
static void test_ranks_that_share(void **state) {
    (void)state;
    request q = DS("{\"train_batch_size\": 32, \"train_micro_batch_size_per_gpu\": 4, \"sequence_parallel_size\": 2,"
                   "\"tensor_parallel\": {\"autotp_size\": 2, \"preset_model\": \"llama\"}}");
    q.n_ranks = 8;
    GIVES(q, "parallel.sequence", "2", "parallel.tensor", "2", "train.micro_batch", "4", "train.accumulation", "4");
    q = DS(
        "{\"train_batch_size\": 32, \"train_micro_batch_size_per_gpu\": 4, \"tensor_parallel\": {\"autotp_size\": 4}}");
    q.n_ranks = 8;
    GIVES(q, "parallel.sequence", "auto", "parallel.tensor", "4", "train.accumulation", "4");
    q.set[0] = "parallel.tensor=2"; /* what the configuration says wins */
    GIVES(q, "parallel.tensor", "2", "train.accumulation", "2");
    q = DS("{\"train_micro_batch_size_per_gpu\": 4, \"tensor_parallel\": {\"autotp_size\": 0}}");
    GIVES(q, "parallel.tensor", "1", "train.micro_batch", "4");
    REFUSED(DS("{\"sequence_parallel_size\": 0}"), "sequence_parallel_size", "found 0");
    REFUSED(DS("{\"tensor_parallel\": {\"autotp_size\": -1}}"), "autotp_size", "found -1");
    REFUSED(DS("{\"tensor_parallel\": {\"autotp_sise\": 2}}"), "did you mean");
}

static void test_the_batch_triangle(void **state) {
    static const struct {
        const char *text, *set, *micro, *accumulation;
    } right[] = {
        {"{\"train_batch_size\": 32, \"train_micro_batch_size_per_gpu\": 4, \"gradient_accumulation_steps\": 8}", NULL,
         "4", "8"},
        {"{\"train_batch_size\": 32, \"train_micro_batch_size_per_gpu\": 4}", NULL, "4", "8"},
        {"{\"train_batch_size\": 32, \"gradient_accumulation_steps\": 4}", NULL, "8", "4"},
        {"{\"train_micro_batch_size_per_gpu\": 4, \"gradient_accumulation_steps\": 3}", NULL, "4", "3"},
        {"{\"train_batch_size\": 32}", NULL, "32", "1"},
        {"{\"train_micro_batch_size_per_gpu\": 5}", NULL, "5", "1"},
        /* "auto" and silence leave it to the rest of the configuration */
        {"{\"train_batch_size\": 32, \"train_micro_batch_size_per_gpu\": \"auto\"}", NULL, "32", "1"},
        {"{\"train_batch_size\": 32, \"train_micro_batch_size_per_gpu\": \"auto\"}", "train.micro_batch=4", "4", "8"},
        {"{\"train_batch_size\": 32}", "train.accumulation=4", "8", "4"},
        {"{\"train_micro_batch_size_per_gpu\": 4}", "train.accumulation=6", "4", "6"},
        {"{\"gradient_accumulation_steps\": 4}", "train.micro_batch=6", "6", "4"},
        {"{\"train_batch_size\": \"auto\", \"gradient_accumulation_steps\": \"auto\"}", NULL, "auto", "auto"},
        {"{\"train_micro_batch_size_per_gpu\": \"auto\", \"gradient_accumulation_steps\": 4}", NULL, "auto", "4"},
        /* what the configuration says wins */
        {"{\"train_batch_size\": 32, \"train_micro_batch_size_per_gpu\": 4}", "train.micro_batch=2", "2", "8"},
    };
    for (size_t i = 0; i < ARRAY_LENGTH(right); i++) {
        request q = DS(right[i].text);
        q.set[0] = right[i].set;
        GIVES(q, "train.micro_batch", right[i].micro, "train.accumulation", right[i].accumulation);
    }
    request open = DS("{\"train_batch_size\": 32, \"train_micro_batch_size_per_gpu\": 4}");
    open.set[0] = "train.micro_batch=auto"; /* the plan cuts the step */
    GIVES(open, "train.batch", "32", "train.micro_batch", "auto", "train.accumulation", "auto");
    open.deepspeed_text = "{\"gradient_accumulation_steps\": 3, \"train_micro_batch_size_per_gpu\": 4}";
    GIVES(open, "train.batch", "12", "train.micro_batch", "auto");
    open.deepspeed_text = "{\"train_batch_size\": \"auto\", \"gradient_accumulation_steps\": 3}";
    GIVES(open, "train.batch", "auto", "train.micro_batch", "auto");
    REFUSED(
        DS("{\n\"train_batch_size\": 32, \"train_micro_batch_size_per_gpu\": 4, \"gradient_accumulation_steps\": 4}"),
        "ds.json:2", "train_batch_size is 32", "4 x gradient_accumulation_steps 4 x 1 rank = 16");
    REFUSED(DS("{\"train_batch_size\": 10, \"train_micro_batch_size_per_gpu\": 4}"), "train_batch_size 10",
            "train_micro_batch_size_per_gpu 4", "4 x 2 x 1 rank = 8");
    REFUSED(DS("{\"gradient_accumulation_steps\": 4}"), "alone", "train_micro_batch_size_per_gpu");
    REFUSED(DS("{\"train_batch_size\": 0}"), "train_batch_size", "found 0");
    REFUSED(DS("{\"train_batch_size\": 2.5}"), "train_batch_size", "'2.5'", "whole number");
    REFUSED(DS("{\"train_micro_batch_size_per_gpu\": 1e6}"), "ds.json:1", "train_micro_batch_size_per_gpu",
            "[1, 65536]");
}

static void test_keys_that_are_wrong(void **state) {
    REFUSED(DS("{\"zero_optimization\": {\n\"stage\": 2,\n\"ofload_optimizer\": {\"device\": \"cpu\"}}}"), "ds.json:3",
            "unknown DeepSpeed key 'zero_optimization.ofload_optimizer'",
            "did you mean 'zero_optimization.offload_optimizer'");
    REFUSED(DS("{\"train_batch_sise\": 8}"), "did you mean 'train_batch_size'");
    REFUSED(DS("{\"zero_optimizaton\": {\"stage\": 2}}"), "did you mean 'zero_optimization'");
    REFUSED(DS("{\"activation_checkpointing\": {\"cpu_checkpoint\": true}}"),
            "did you mean 'activation_checkpointing.cpu_checkpointing'");
    REFUSED(DS("{\"stage\": 2}"), "did you mean 'zero_optimization.stage'");
    static const char *const two_names[] = {"prefetch_bucket_size", "param_persistence_threshold",
                                            "model_persistence_threshold"};
    for (size_t i = 0; i < ARRAY_LENGTH(two_names); i++) {
        char text[256];
        snprintf(text, sizeof text, "{\"zero_optimization\": {\"stage\": 3,\n\"stage3_%s\": 5,\n\"%s\": 5}}",
                 two_names[i], two_names[i]);
        REFUSED(DS(text), "ds.json:3", two_names[i], "in line 2 is the same key; keep one");
    }
    REFUSED(DS("{\"completely_other\": 2}"), "unknown DeepSpeed key 'completely_other'; remove it");
    REFUSED(DS("{\"zero_optimization.stage\": 2}"), "unknown DeepSpeed key 'zero_optimization.stage'");
    REFUSED(DS("{\"\": 2}"), "unknown DeepSpeed key ''");
    REFUSED(DS("{\"fp16\": true}"), "'fp16' is a group of keys", "expected a map");
    REFUSED(DS("{\"fp16\": {\"enabled\": {}}}"), "fp16.enabled", "a map", "true or false");
    REFUSED(DS("{\"fp16\": {\"enabled\": \"maybe\"}}"), "fp16.enabled", "'maybe'", "true or false");
    REFUSED(DS("{\"gradient_clipping\": -1}"), "ds.json:1: gradient_clipping: found '-1'", "[0, 1e30]");
    REFUSED(DS("{\"gradient_clipping\": [1]}"), "gradient_clipping", "a list", "a number");
    REFUSED(DS("{\"zero_optimization\": {\"overlap_comm\": 3}}"), "overlap_comm", "'3'", "true or false");
    REFUSED(DS("{\"fp16\": {\"enabled\": true},\n\"bf16\": {\"enabled\": true}}"), "ds.json:1", "fp16.enabled",
            "line 2");
    REFUSED(DS("{\"fp16\": {\"fp16_master_weights_and_grads\": true}}"), "fp16_master_weights_and_grads", "bf16");
    REFUSED(DS("{\"bf16\": {\"enabled\": true, \"bf16_optimizer_states\": true}}"), "bf16_master_weights_and_grads");
    REFUSED(DS("{\"optimizer\": {\"type\": \"Lamb\"}}"), "optimizer.type", "'Lamb'", "AdamW");
    REFUSED(DS("{\"optimizer\": {\"type\": \"Adam\", \"params\": {\"adam_w_mode\": false, \"weight_decay\": 0.1}}}"),
            "adam_w_mode", "L2");
    REFUSED(DS("{\"scheduler\": {\"type\": \"OneCycle\"}}"), "scheduler.type", "'OneCycle'", "WarmupCosineLR");
    REFUSED(DS("{\"scheduler\": {\"type\": \"WarmupDecayLR\"}}"), "total_num_steps");
    REFUSED(DS("{\"scheduler\": {\"type\": \"WarmupLR\", \"params\": {\"total_num_steps\": 9}}}"), "total_num_steps",
            "WarmupLR does not have it");
    REFUSED(DS("{\"scheduler\": {\"type\": \"WarmupLR\", \"params\": {\"warmup_type\": \"cubic\"}}}"),
            "scheduler.params.warmup_type: found 'cubic'", "linear, log");
    REFUSED(DS("{\"activation_checkpointing\": {\"number_checkpoints\": 0}}"), "number_checkpoints", "from 1");
    REFUSED(DS("{\"sparse_attention\": {\"mode\": \"fixed\"}}"), "sparse_attention", "leave it out");
    REFUSED(DS("{\"sparse_gradients\": true}"), "sparse_gradients", "found true");
    REFUSED(DS("[1]"), "expected an object");
}

/* Sections that are written out and switched off ask for nothing. */
static void test_sections_that_are_off(void **state) {
    REPORTS(DS("{\"curriculum_learning\": {\"enabled\": false, \"x\": 1}, \"compression_training\": {}, "
               "\"pipeline\": {\"stages\": \"auto\"}, \"timers\": {\"throughput\": {\"enabled\": true}}}"),
            "curriculum_learning", "off", "compression_training", "pipeline", "timers");
    REFUSED(DS("{\"curriculum_learning\": {\"enabled\": true}}"), "it would change the training");
    REFUSED(DS("{\"data_efficiency\": {\"seed\": 1}}"), "it would change the training");
}

/* DeepSpeed's reader takes comments and trailing commas. */
static void test_comments_and_trailing_commas(void **state) {
    GIVES(DS("// first\n{\n  // the batch\n  \"train_batch_size\": 8, # rows\n  /* two\n lines */ \"fp16\": "
             "{\"enabled\": true,},\n}\n"
             "# last\n"),
          "train.micro_batch", "8", "precision", "fp16");
    GIVES(DS("{\"optimizer\": {\"params\": {\"betas\": [0.9, 0.99 /* late */, ],},},}"), "train.betas", "[0.9, 0.99]");
    GIVES(DS("\t{\"train_batch_size\":8,\r\n\t\"fp16\":{\"enabled\":true}}\n"), "train.micro_batch", "8", "precision",
          "fp16");
    /* In a string they are text, and a line stays a line. */
    GIVES(DS("{\"zero_optimization\": {\"offload_param\": {\"device\": \"nvme\", \"nvme_path\": \"/a//b#c/*d,]\"}}}"),
          "memory.nvme_path", "/a//b#c/*d,]");
    REFUSED(DS("/* one\ntwo */ {\n\"train_batch_sise\": 8, // typo\n}"), "ds.json:3", "train_batch_size");
    /* The same file as CONFIG: by its name, or by its shape whatever its name is; RALO's keys as JSON too. */
    request named = {.config_name = "a.json", .config_text = "// why\n{\n // here\n\"train_batch_size\": 8,}"};
    GIVES(named, "train.micro_batch", "8");
    request shaped = {.config_name = "a.conf", .config_text = "{\n\"train_batch_size\": 8, # too\n}"};
    GIVES(shaped, "train.micro_batch", "8");
    request ralo = {.config_name = "old.json",
                    .config_text = "{ // RALO\n\"trainer\": {\"params\": {\"accum_steps\": 3, /* x */},},\n}",
                    .set = {"model.preset=test-llama"}};
    GIVES(ralo, "train.accumulation", "3");
    request ours = {.config_name = "c.json", .config_text = "{\"train\": {\"micro_batch\": 3,}, // ours\n}"};
    GIVES(ours, "train.micro_batch", "3");
}

static void test_text_that_is_not_json(void **state) {
    REFUSED(DS("{\n\"train_batch_size\": 8,\n\"train_batch_size\": 9}"), "ds.json:3", "duplicate");
    REFUSED(DS("{\"train_batch_size\": 8"), "ds.json:1");
    REFUSED(DS("{\"train_batch_size\": NaN}"), "ds.json:1");
    REFUSED(DS(""), "ds.json:1");
    REFUSED(DS("{\"train_batch_size\": 1e999}"), "ds.json:1");
    REFUSED(DS("{\n/* no end\n\"train_batch_size\": 8}"), "ds.json:2", "close the comment");
    REFUSED(DS("{\"train_batch_size\": 8,,}"), "ds.json:1");
    REFUSED(DS("{,}"), "ds.json:1");
    REFUSED(DS("{\"optimizer\": {\"params\": {\"betas\": [,]}}}"), "ds.json:1");
    REFUSED(DS("{\"train_batch_size\":,}"), "ds.json:1");
    /* hjson takes the comment as part of such a text, so it stays an error here. */
    REFUSED(DS("{\n\"zero_optimization\": {\"offload_param\": {\"device\": cpu # it\n}}}"), "ds.json:2");
}

/* One look is enough: every reason that a file has is in one message. */
static void test_all_reasons_at_once(void **state) {
    REFUSED(
        DS("{\"train_batch_sise\": 8,\n\"gradient_clipping\": -1,\n\"optimizer\": {\"type\": \"Lamb\"},\n\"zero\": 3,\n"
           "\"steps_per_print\": \"often\", \"sparse_gradients\": true}"),
        "6 things cannot be translated", "ds.json:1: unknown DeepSpeed key 'train_batch_sise'",
        "ds.json:2: gradient_clipping: found '-1'", "ds.json:3: optimizer.type: found 'Lamb'",
        "ds.json:4: unknown DeepSpeed key 'zero'", "ds.json:5: steps_per_print: found 'often'", "sparse_gradients");
}

/* The blocks of the documents, with their keys, values and places of comments. */
static void test_blocks_of_the_documents(void **state) {
    GIVES(FIXTURE("documents/accumulation.json"), "train.micro_batch", "16", "train.accumulation", "4");
    GIVES(FIXTURE("documents/mixed-precision.json"), "precision", "fp16", "train.fp16.loss_scale", "dynamic",
          "train.fp16.initial_scale_power", "16");
    request q = FIXTURE("documents/recompute.json");
    q.set[0] = "model.preset=llama2-7b"; /* 4 checkpoints over 32 layers */
    GIVES(q, "memory.recompute", "{every: 8}", "memory.offload.activations", "none", "memory.strategy", "manual");
    q.fixture = "documents/zero3.json";
    GIVES(q, "parallel.zero", "3", "memory.offload.states", "host", "memory.offload.params", "host",
          "memory.offload.grads", "host", "parallel.overlap", "true", "parallel.reduce_bucket", "781250K",
          "parallel.prefetch", "1", "memory.prefetch", "1", "parallel.persist_below", "200000001");
    REPORTS(q, "6.7B of 6.7B parameters (100 %) whole on every rank");
}

static void test_a_config_is_known_by_its_shape(void **state) {
    request ds = {.config_name = "c.json", .config_text = "{\"train_batch_size\": 8, \"bf16\": {\"enabled\": true}}"};
    GIVES(ds, "train.micro_batch", "8", "precision", "bf16");
    request ours = {.config_name = "c.json",
                    .config_text = "{\"train\": {\"micro_batch\": 3}, \"precision\": \"bf16\"}"};
    GIVES(ours, "train.micro_batch", "3", "precision", "bf16");
    request yaml = {.config_name = "c.yaml", .config_text = "train: {lr: 0.5}\nfp16: {enabled: true}\n"};
    REFUSED(yaml, "c.yaml:2", "unknown setting 'fp16.enabled'"); /* DeepSpeed's files are JSON */
    request mixed = {.config_name = "c.json",
                     .config_text = "{\"precision\": \"bf16\", \"fp16\": {\"enabled\": true}}"};
    REFUSED(mixed, "c.json:1", "unknown setting 'fp16.enabled'"); /* a file is ours or theirs, never both */
    request twice = ds;
    twice.deepspeed_text = "{}";
    REFUSED(twice, "c.json", "ds.json", "keep one");
    outcome o;
    translate(&o, &ours);
    assert_false(foreign_was_read(&o.f));
    char *text = printed(&o);
    assert_string_equal(text, "");
    free(text);
    outcome_fini(&o);
}

static void test_auto_is_what_the_rest_says(void **state) {
    static const char text[] =
        "{\"gradient_clipping\": \"auto\", \"fp16\": {\"enabled\": \"auto\"}, \"bf16\": {\"enabled\": \"auto\"},\n"
        "\"optimizer\": {\"type\": \"AdamW\", \"params\": {\"lr\": \"auto\", \"betas\": \"auto\", \"eps\": \"auto\","
        " \"weight_decay\": \"auto\"}},\n"
        "\"scheduler\": {\"type\": \"WarmupDecayLR\", \"params\": {\"warmup_min_lr\": \"auto\", \"warmup_max_lr\": "
        "\"auto\","
        " \"warmup_num_steps\": \"auto\", \"total_num_steps\": \"auto\", \"warmup_type\": \"auto\"}},\n"
        "\"zero_optimization\": {\"reduce_bucket_size\": \"auto\", \"stage3_prefetch_bucket_size\": \"auto\","
        " \"stage3_param_persistence_threshold\": \"auto\"}, \"activation_checkpointing\": {\"number_checkpoints\": "
        "\"auto\"}}";
    request q = DS(text);
    const char *const set[] = {"train.lr=0.25", "precision=bf16", "train.clip=none", "train.steps=77",
                               "train.betas=[0.1, 0.2]"};
    memcpy(q.set, set, sizeof set);
    GIVES(q, "train.lr", "0.25", "precision", "bf16", "train.clip", "none", "train.steps", "77", "train.betas",
          "[0.1, 0.2]", "train.weight_decay", "0.1", "train.warmup", "auto", "train.warmup_kind", "linear",
          "train.schedule", "linear", "memory.recompute", "full");
    REPORTS(q, "optimizer.params.lr = auto", "-> train.lr = 0.25  (auto)", "-> precision = bf16  (auto)",
            "-> train.clip = none  (auto)", "-> train.steps = 77  (auto)");
}

static void test_what_was_said_wins_and_is_shown(void **state) {
    request q = {.config_name = "mine.yaml",
                 .config_text = "train: {clip: 2, log_every: 5, steps: 50}\n",
                 .deepspeed_text =
                     "{\"gradient_clipping\": 1.0, \"steps_per_print\": 5, \"scheduler\": {\"type\": "
                     "\"WarmupCosineLR\", \"params\": {\"total_num_steps\": 200, \"warmup_num_steps\": 9}}}",
                 .set = {"train.warmup=3"}};
    GIVES(q, "train.clip", "2", "train.log_every", "5", "train.steps", "50", "train.schedule_steps", "200",
          "train.warmup", "3", "train.schedule", "cosine", "train.schedule_style", "deepspeed", "train.min_lr_ratio",
          "0.0001");
    REPORTS(q, "-> train.clip = 2  (conflict: the config file says so, ds.json would give 1.0)",
            "-> train.log_every = 5\n",
            "-> train.warmup = 3  (conflict: the command line says so, ds.json would give 9)");
    q.set[0] = NULL;
    q.deepspeed_text = "{\"gradient_clipping\": -3}"; /* what gives way has to be in range too */
    REFUSED(q, "gradient_clipping", "'-3'");
}

static void test_optimizer_and_scheduler(void **state) {
    GIVES(DS("{\"optimizer\": {\"type\": \"AdamW\", \"params\": {\"lr\": 2e-5, \"betas\": [0.8, 0.999], \"eps\": 1e-6, "
             "\"weight_decay\": 3e-7}}}"),
          "train.lr", "2e-05", "train.betas", "[0.8, 0.999]", "train.eps", "1e-06", "train.weight_decay", "3e-07",
          "train.schedule", "cosine", "train.schedule_style", "ralo");
    GIVES(DS("{\"optimizer\": {\"type\": \"Adam\"}}"), "train.lr", "0.001", "train.betas", "[0.9, 0.999]",
          "train.weight_decay", "0");
    GIVES(DS("{\"optimizer\": {\"type\": \"Adam\", \"params\": {\"lr\": 5e-4}}, \"scheduler\": {\"type\": "
             "\"WarmupLR\"}}"),
          "train.lr", "0.0005", "train.schedule", "constant", "train.warmup", "1000", "train.warmup_kind", "log",
          "train.warmup_min_lr", "0", "train.schedule_style", "deepspeed");
    GIVES(
        DS("{\"optimizer\": {\"type\": \"Adam\", \"params\": {\"lr\": 5e-4}}, \"scheduler\": {\"type\": "
           "\"WarmupDecayLR\", "
           "\"params\": {\"warmup_min_lr\": 1e-5, \"warmup_max_lr\": 1e-3, \"warmup_num_steps\": 10, \"warmup_type\": "
           "\"linear\", \"total_num_steps\": 100}}}"),
        "train.lr", "0.001", "train.schedule", "linear", "train.warmup", "10", "train.warmup_kind", "linear",
        "train.warmup_min_lr", "1e-05", "train.min_lr_ratio", "0.01", "train.steps", "100", "train.schedule_steps",
        "auto");
    GIVES(DS("{\"optimizer\": {\"type\": \"Adam\", \"params\": {\"lr\": 5e-4}}, \"scheduler\": {\"type\": "
             "\"WarmupCosineLR\", "
             "\"params\": {\"warmup_min_ratio\": 0.5, \"cos_min_ratio\": 0.25, \"total_num_steps\": 2000}}}"),
          "train.lr", "0.0005", "train.schedule", "cosine", "train.warmup_min_lr", "0.00025", "train.min_lr_ratio",
          "0.25", "train.steps", "2000");
    REPORTS(DS("{\"optimizer\": {\"params\": {\"lr\": 5e-4}}, \"scheduler\": {\"type\": \"WarmupLR\", \"params\": "
               "{\"warmup_max_lr\": 1e-3}}}"),
            "optimizer.params.lr = 5e-4", "no effect here: the scheduler's warmup_max_lr", "-> train.lr = 0.001");
}

static void test_precision(void **state) {
    GIVES(DS("{\"fp16\": {\"enabled\": false, \"loss_scale\": 0}}"), "precision", "fp32");
    GIVES(DS("{\"bf16\": {\"enabled\": true, \"check_grad_overflow\": true}}"), "precision", "bf16", "train.nonfinite",
          "skip", "memory.states", "auto");
    GIVES(
        DS("{\"bf16\": {\"enabled\": true, \"bf16_master_weights_and_grads\": true, \"bf16_optimizer_states\": true}}"),
        "precision", "bf16_sr", "memory.states", "bf16");
    GIVES(DS("{\"bf16\": {\"enabled\": true, \"bf16_master_weights_and_grads\": true}}"), "precision", "bf16_sr",
          "memory.states", "fp32");
    GIVES(DS("{\"fp16\": {\"enabled\": true, \"loss_scale\": 128}}"), "precision", "fp16", "train.fp16.loss_scale",
          "128");
}

static void test_activation_checkpointing_alone_recomputes(void **state) {
    GIVES(DS("{\"activation_checkpointing\": {}}"), "memory.recompute", "full", "memory.strategy", "manual");
    GIVES(DS("{\"activation_checkpointing\": null}"), "memory.recompute", "auto", "memory.strategy", "auto");
    GIVES(DS("{\"activation_checkpointing\": {\"partition_activations\": false}}"), "memory.recompute", "full");
    GIVES(DS("{\"activation_checkpointing\": {\"cpu_checkpointing\": true}}"), "memory.recompute", "full",
          "memory.offload.activations", "host");
    GIVES(DS("{\"activation_checkpointing\": {\"cpu_checkpointing\": false}}"), "memory.offload.activations", "none");
    request q = DS("{\"activation_checkpointing\": {\"number_checkpoints\": 8}}");
    q.set[0] = "model.preset=llama2-7b"; /* 32 layers */
    GIVES(q, "memory.recompute", "{every: 4}");
    q.deepspeed_text = "{\"activation_checkpointing\": {\"number_checkpoints\": 5}}";
    GIVES(q, "memory.recompute", "{every: 7}");
    q.deepspeed_text = "{\"activation_checkpointing\": {\"number_checkpoints\": 1000}}";
    GIVES(q, "memory.recompute", "{every: 1}");
}

/* Llama-2 7B: 6,738,415,616 parameters, none of its tensors above 2e8 elements, its largest (32000, 4096). */
static void test_a_threshold_that_defeats_itself(void **state) {
    request q = DS("{\"zero_optimization\": {\"stage\": 3, \"stage3_param_persistence_threshold\": 2e8}}");
    q.set[0] = "model.preset=llama2-7b";
    REPORTS(q, "stage3_param_persistence_threshold = 2e8", "6.7B of 6.7B parameters (100 %) whole on every rank");
    /* 1e5 keeps the norms: 65 x 4096 = 266,240 */
    q.deepspeed_text = "{\"zero_optimization\": {\"stage\": 3, \"stage3_param_persistence_threshold\": 1e5}}";
    REPORTS(q, "266.2K of 6.7B parameters (0 %)");
    /* q, k, v, o of 4096 x 4096 stay whole, the MLP (4096 x 11008) does not: 64 per block of 16,777,216 ... = 2.1B */
    q.deepspeed_text = "{\"zero_optimization\": {\"stage\": 3, \"stage3_param_persistence_threshold\": 16777216}}";
    REPORTS(q, "2.1B of 6.7B parameters (32 %)");
    q.deepspeed_text = "{\"zero_optimization\": {\"stage\": 3, \"stage3_param_persistence_threshold\": 16777215}}";
    REPORTS(q, "266.2K of 6.7B parameters");
    GIVES(q, "parallel.persist_below", "16777216");
    q.deepspeed_text = "{\"zero_optimization\": {\"stage\": 2, \"stage3_param_persistence_threshold\": 2e8, "
                       "\"stage3_model_persistence_threshold\": 1000000}}";
    REPORTS(q, "no effect here: parameters are whole in this stage",
            "no effect here: parallel.persist_below is the one");
    GIVES(q, "parallel.persist_below", "0");
    REFUSED(DS("{\"zero_optimization\": {\"stage\": 3,\n\"stage3_param_persistence_threshold\": -1}}"), "ds.json:2",
            "found -1", "whole number from 0");
    REFUSED(DS("{\"zero_optimization\": {\"stage\": 3, \"stage3_param_persistence_threshold\": 9223372036854775807}}"),
            "stage3_param_persistence_threshold", "[0, 1000000000]");
}

/* Buckets of elements are buckets of bytes: of gradients in fp32 where there is a master, of parameters as they are. */
static void test_what_is_sent_in_one_go(void **state) {
    GIVES(DS("{\"bf16\": {\"enabled\": true}, \"zero_optimization\": {\"stage\": 1, \"reduce_bucket_size\": 1000000, "
             "\"allgather_bucket_size\": 1000000, \"overlap_comm\": false}}"),
          "parallel.reduce_bucket", "4000000", "parallel.allgather_bucket", "2000000", "parallel.overlap", "false",
          "parallel.zero", "1");
    GIVES(DS("{\"bf16\": {\"enabled\": true, \"bf16_master_weights_and_grads\": true}, \"zero_optimization\": "
             "{\"stage\": 2,"
             " \"reduce_bucket_size\": 1000000, \"allgather_bucket_size\": \"auto\"}}"),
          "parallel.reduce_bucket", "2000000", "parallel.allgather_bucket", "auto");
    request q =
        DS("{\"bf16\": {\"enabled\": true}, \"zero_optimization\": {\"stage\": 3, \"stage3_prefetch_bucket_size\": "
           "300000000, \"offload_param\": {\"device\": \"cpu\"}}}");
    q.set[0] = "model.preset=llama2-7b"; /* blocks of 202.4M elements */
    GIVES(q, "memory.prefetch", "2", "parallel.prefetch", "2");
    REPORTS(DS("{\"zero_optimization\": {\"stage\": 2, \"stage3_prefetch_bucket_size\": 5}}"), "parameters are whole");
    REFUSED(DS("{\"zero_optimization\": {\"stage\": 2,\n\"reduce_bucket_size\": 12}}"), "ds.json:2",
            "reduce_bucket_size = 12: found '48'", "[4K, 1T]");
    REFUSED(DS("{\"zero_optimization\": {\"allgather_bucket_size\": 9223372036854775807}}"), "allgather_bucket_size",
            "[4K, 1T]");
    GIVES(DS("{\"zero_optimization\": {\"stage\": \"auto\"}}"), "parallel.zero", "auto");
}

/* Each key that counts elements, with what is no number of them: the line, the key and what stands there, never what it was
 * multiplied to, and nothing that reads as auto. */
static void test_sizes_that_are_none(void **state) {
    static const char *const keys[] = {"reduce_bucket_size", "allgather_bucket_size", "stage3_prefetch_bucket_size",
                                       "stage3_param_persistence_threshold", "offload_param.buffer_size"};
    static const struct {
        const char *value, *found;
    } wrong[] = {
        {"-1", "found -1,"},
        {"-9223372036854775808", "found -9223372036854775808,"},
        {"-1e15", "found -1e15,"},
        {"\"-5\"", "found -5,"},
        {"1.5", "found '1.5', expected a whole number"},
        {"1e30", "found '1e30', expected a whole number"},
        {"9223372036854775808", "9223372036854775808"}, /* more than JSON's reader has bits for */
        {"\"big\"", "found 'big', expected a whole number"},
        {"\"\"", "found '', expected a whole number"},
        {"true", "found 'true', expected a whole number"},
        {"[5]", "found a list, expected a whole number"},
        {"{\"a\": 1}", "found a map, expected a whole number"},
    };
    for (size_t k = 0; k < ARRAY_LENGTH(keys); k++) {
        bool nested = str_starts_with(keys[k], "offload_param.");
        const char *name = nested ? strchr(keys[k], '.') + 1 : keys[k];
        for (size_t i = 0; i < ARRAY_LENGTH(wrong); i++) {
            char text[256];
            snprintf(text, sizeof text, "{\"zero_optimization\": {\"stage\": 3, %s\n\"%s\": %s}}%s",
                     nested ? "\"offload_param\": {\"device\": \"cpu\"," : "", name, wrong[i].value, nested ? "}" : "");
            REFUSED(DS(text), "ds.json:2", wrong[i].found);
        }
    }
    REFUSED(DS("{\"zero_optimization\": {\"reduce_bucket_size\": 0}}"), "found 0, expected a whole number from 1");
    REFUSED(DS("{\"zero_optimization\": {\"allgather_bucket_size\": 0}}"), "found 0, expected a whole number from 1");
    REFUSED(DS("{\"zero_optimization\": {\"offload_param\": {\"device\": \"cpu\", \"buffer_size\": 0}}}"),
            "found 0, expected a whole number from 1");
    REFUSED(DS("{\"zero_optimization\": {\"reduce_bucket_size\": 4611686018427387904}}"),
            "reduce_bucket_size = 4611686018427387904: found", "[4K, 1T]");
    GIVES(DS("{\"zero_optimization\": {\"stage\": 3, \"stage3_prefetch_bucket_size\": 9223372036854775807}}"),
          "parallel.prefetch", "16");
    REFUSED(DS("{\"zero_optimization\": {\"stage\": 1.5}}"), "zero_optimization.stage: found '1.5'");
    REFUSED(DS("{\"zero_optimization\": {\"stage\": 4}}"), "zero_optimization.stage: found 4, expected 0, 1, 2 or 3");
    REFUSED(DS("{\"zero_optimization\": {\"stage\": -1}}"), "zero_optimization.stage: found -1");
}

/* The triangle has a fourth side: the ranks with rows of their own. */
static void test_the_batch_triangle_of_many_ranks(void **state) {
    static const struct {
        const char *text, *set, *micro, *accumulation;
    } right[] = {
        {"{\"train_batch_size\": 32, \"train_micro_batch_size_per_gpu\": 2, \"gradient_accumulation_steps\": 4}", NULL,
         "2", "4"},
        {"{\"train_batch_size\": 32, \"train_micro_batch_size_per_gpu\": 2}", NULL, "2", "4"},
        {"{\"train_batch_size\": 32, \"gradient_accumulation_steps\": 4}", NULL, "2", "4"},
        {"{\"train_batch_size\": 32}", NULL, "8", "1"},
        {"{\"train_micro_batch_size_per_gpu\": 3}", NULL, "3", "1"},
        {"{\"train_batch_size\": 32, \"train_micro_batch_size_per_gpu\": 2}", "parallel.tensor=2", "2", "8"},
        {"{\"train_batch_size\": 32, \"train_micro_batch_size_per_gpu\": 2}", "parallel.sequence=4", "2", "16"},
        {"{\"train_batch_size\": 32, \"train_micro_batch_size_per_gpu\": 2}", "parallel.data=2", "2", "8"},
        /* for more ranks than there are: one has rows */
        {"{\"train_batch_size\": 32, \"train_micro_batch_size_per_gpu\": 2}", "parallel.sequence=8", "2", "16"},
        {"{\"train_batch_size\": 32, \"train_micro_batch_size_per_gpu\": 2}", "parallel.tensor=65536", "2", "16"},
    };
    for (size_t i = 0; i < ARRAY_LENGTH(right); i++) {
        request q = DS(right[i].text);
        q.set[0] = right[i].set;
        q.n_ranks = 4;
        GIVES(q, "train.micro_batch", right[i].micro, "train.accumulation", right[i].accumulation);
    }
    request q = DS("{\"train_batch_size\": 32, \"train_micro_batch_size_per_gpu\": 2}");
    q.n_ranks = 4;
    REPORTS(q, "32 = 2 x 4 x 4 ranks");
    q.n_ranks = 3;
    REFUSED(q, "train_batch_size 32", "2 x 5 x 3 ranks = 30");
    q.n_ranks = 4;
    q.deepspeed_text =
        "{\"train_batch_size\": 32, \"train_micro_batch_size_per_gpu\": 2, \"gradient_accumulation_steps\": 16}";
    REFUSED(q, "2 x gradient_accumulation_steps 16 x 4 ranks = 128");
    q.set[0] = "train.micro_batch=auto";
    q.deepspeed_text = "{\"gradient_accumulation_steps\": 3, \"train_micro_batch_size_per_gpu\": 4}";
    GIVES(q, "train.batch", "48");
    /* Axes that are too long together are refused by config_check, which comes after this. */
    q = DS("{\"train_micro_batch_size_per_gpu\": 2}");
    memcpy(q.set, (const char *const[]){"parallel.data=65536", "parallel.sequence=65536"}, 2 * sizeof *q.set);
    GIVES(q, "train.micro_batch", "2");
    memcpy(q.set, (const char *const[]){"parallel.tensor=65536", "parallel.pipeline=65536"}, 2 * sizeof *q.set);
    GIVES(q, "train.micro_batch", "2");
}

static void test_the_report_as_json(void **state) {
    request q = DS(zero2);
    outcome o;
    translate(&o, &q);
    assert_int_equal(o.rc, OK);
    json_t *list = foreign_json(&o.f, &o.c);
    bool clip = false, idle = false;
    size_t i;
    json_t *one;
    json_array_foreach(list, i, one) {
        const char *key = json_string_value(json_object_get(one, "key"));
        bool set = json_object_get(one, "setting") != NULL;
        assert_true(set == (json_object_get(one, "value") != NULL));
        assert_true(set != (json_object_get(one, "no_effect") != NULL));
        if (!key) continue;
        if (strcmp(key, "gradient_clipping") == 0) {
            clip = true;
            assert_string_equal(json_string_value(json_object_get(one, "setting")), "train.clip");
            assert_string_equal(json_string_value(json_object_get(one, "value")), "0.5");
            assert_string_equal(json_string_value(json_object_get(one, "given")), "0.5");
            assert_int_equal(json_integer_value(json_object_get(one, "line")), 3);
        }
        idle |= strcmp(key, "zero_optimization.offload_optimizer.pin_memory") == 0 && !set;
    }
    assert_true(clip && idle);
    json_decref(list);
    outcome_fini(&o);
}

/* Text of a file does not steer the terminal, and a long one does not flood it. */
static void test_the_report_is_safe_to_print(void **state) {
    char text[600];
    snprintf(text, sizeof text, "{\"communication_data_type\": \"\\u001b[31m%0300d\"}", 0);
    request q = DS(text);
    outcome o;
    translate(&o, &q);
    if (o.rc != OK) fail_msg("%s", error_message());
    char *shown = printed(&o);
    assert_null(strchr(shown, 27));
    assert_in(shown, "?[31m000");
    assert_in(shown, "...");
    assert_true(strlen(shown) < 300);
    free(shown);
    outcome_fini(&o);
}

/* To compare each with all others, or with all names, would take 10^10 steps here. */
static void test_many_unknown_keys_take_no_square_time(void **state) {
    enum { N = 100000 };
    strbuf text;
    strbuf_init(&text);
    strbuf_add(&text, "{\n");
    for (int i = 0; i < N; i++) strbuf_printf(&text, "\"u%d\":1%s\n", i, i + 1 < N ? "," : "}");
    REFUSED(DS(text.text), "100000 things cannot be translated", "ds.json:2: unknown DeepSpeed key 'u0'",
            "ds.json:31: unknown DeepSpeed key 'u29'", "... and 999");
    strbuf_fini(&text);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_stage_2_with_cpu_offload_and_fp16),
        cmocka_unit_test(test_the_share_of_states_that_moves),
        cmocka_unit_test(test_stage_3_with_nvme),
        cmocka_unit_test(test_ranks_that_share),
        cmocka_unit_test(test_the_batch_triangle),
        cmocka_unit_test(test_keys_that_are_wrong),
        cmocka_unit_test(test_sections_that_are_off),
        cmocka_unit_test(test_comments_and_trailing_commas),
        cmocka_unit_test(test_text_that_is_not_json),
        cmocka_unit_test(test_all_reasons_at_once),
        cmocka_unit_test(test_blocks_of_the_documents),
        cmocka_unit_test(test_a_config_is_known_by_its_shape),
        cmocka_unit_test(test_auto_is_what_the_rest_says),
        cmocka_unit_test(test_what_was_said_wins_and_is_shown),
        cmocka_unit_test(test_optimizer_and_scheduler),
        cmocka_unit_test(test_precision),
        cmocka_unit_test(test_activation_checkpointing_alone_recomputes),
        cmocka_unit_test(test_a_threshold_that_defeats_itself),
        cmocka_unit_test(test_what_is_sent_in_one_go),
        cmocka_unit_test(test_sizes_that_are_none),
        cmocka_unit_test(test_the_batch_triangle_of_many_ranks),
        cmocka_unit_test(test_the_report_as_json),
        cmocka_unit_test(test_the_report_is_safe_to_print),
        cmocka_unit_test(test_many_unknown_keys_take_no_square_time),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
