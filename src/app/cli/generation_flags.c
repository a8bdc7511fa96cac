/* generation_flags.c - turn the flags of `generate`, `chat` and `eval` into options of a generator. */
#include "cli/cli.h"

#include <unistd.h>

/* These flags narrow the choice of a sampled token; greedy decoding ignores them. */
static void warn_of_greedy(const command_line *l) {
    static const char *const flags[] = {"top-k", "top-p", "min-p"};
    for (size_t i = 0; i < ARRAY_LENGTH(flags); i++)
        if (l->sampling.temperature == 0 && command_line_given(l, flags[i]))
            log_warn("--%s has no effect: without --temperature decoding is greedy", flags[i]);
}

static void warn_of_gpu_flags(const command_line *l) {
    static const char *const flags[] = {"gpu", "tf32"};
    for (size_t i = 0; i < ARRAY_LENGTH(flags); i++)
        if (backend_kind(l->generation.backend) == DEVICE_CPU && command_line_given(l, flags[i]))
            log_warn("--%s has no effect: %s", flags[i],
                     l->device == DEVICE_CPU ? "--device is cpu" : "no GPU was found, the CPU is used");
}

/* Drafts are verified by what the model would choose itself, so its choice must be the largest logit. */
static status check_speculative(const command_line *l) {
    bool on = l->generation.speculative;
    if (!on && command_line_given(l, "draft-max"))
        return ERR(ERR_INPUT, "%s: --draft-max is for --speculative; add it", l->command->name);
    if (on && l->sampling.temperature > 0)
        return ERR(ERR_INPUT, "%s: --speculative decodes greedily, found --temperature %g; leave one of them out",
                   l->command->name, l->sampling.temperature);
    if (on && l->sampling.repetition_penalty != 1)
        return ERR(ERR_INPUT, "%s: --speculative is without --repetition-penalty; leave one of them out",
                   l->command->name);
    return OK;
}

/* A name of the hub that is no directory here: where its cache has it. */
static status find_model(command_line *l) {
    const char *name = l->generation.source;
    strbuf found;
    if (!name || access(name, F_OK) == 0 || !model_hub_name(name)) return OK;
    strbuf_init(&found);
    bool is_there = model_hub_find(name, &found);
    if (is_there) l->generation.source = arena_string(&l->memory, found.text);
    strbuf_fini(&found);
    if (is_there) return OK;
    return ERR(
        ERR_INPUT,
        "--model: found no directory %s, and no model of that name in the cache of the Hugging Face hub (HF_HOME); "
        "download it with: hf download %s",
        name, name);
}

status generation_from_flags(command_line *l) {
    TRY(find_model(l));
    warn_of_greedy(l);
    TRY(check_speculative(l));
    static const precision precisions[] = {PRECISION_FP32, PRECISION_BF16, PRECISION_FP16}; /* the row of --precision */
    l->generation.precision = precisions[l->precision];
    static const base_format formats[] = {BASE_COMPUTE, BASE_INT8, BASE_FP8, BASE_NF4}; /* the row of --weights */
    l->generation.weights = formats[l->weights];
    l->generation.trace_path = l->trace;
    l->sampling.stops = l->stops.items;
    l->sampling.n_stops = l->stops.n;
    l->generation.gpu = (gpu_options){.index = l->gpu, .tf32 = l->tf32};
    TRY(backend_choose(l->device, l->gpu, &l->generation.backend));
    warn_of_gpu_flags(l);
    return OK;
}
