#pragma once
/* state.h - private to generate: an open generator, and one run of a section of generation. */
#include "generate/pages.h"
#include "generate/sample.h"

struct generator {
    arena memory;
    const plan *plan;
    exec *e;
    const tokenizer *tokenizer;
    /* What it opened itself, which the above then point to; none of it where it is attached. */
    plan own_plan;
    exec *own_exec;
    tokenizer *own_tokenizer;
    const char *tokenizer_name;
    chat_format chat; /* CHAT_AUTO: as the tokenizer says */
    const char *chat_kwargs;
    int32_t *eos;
    size_t n_eos;
    /* Several adapters: where each comes from; the last, without a name, is the base alone and open when it was used. */
    model_source *adapters;
    const char **adapter_names;
    size_t n_adapters;
    const char *source_path, *tokenizer_given;
    page_pool pages;
    int32_t *page_row; /* one row of the page table, on its way to the device */
    sample_scratch *scratch;
    int n_scratch; /* one per thread */
    /* the step being put together */
    section where;
    int64_t n_tokens, n_pick;
    uint8_t *inputs; /* all inputs of the section, as they lie in its value; the next ones point into it */
    int32_t *tokens, *doc_start, *slots, *pick;
    double (*draws)[DRAW_COUNT];
    double (*drawn)[DRAWN_COUNT]; /* of the rows that were asked for, as DRAW_TOKENS gives them */
    float *logits;                /* of the same rows, at most as many as slots */
};

/* Put together a run of SECTION_PREFILL or SECTION_DECODE, token by token, and run it. */
void step_begin(generator *g, section where);
int64_t step_room(const generator *g);      /* tokens that may still be added */
int64_t step_pick_room(const generator *g); /* rows of logits that may still be asked for */
void step_add(generator *g, int32_t token, int64_t slot, int64_t position);
/* The logits of the token added last are wanted, by the first n_heads heads: as many rows. DECODE gives those of all tokens where one
 * head generates. The first head's token is drawn so, those of the others are the largest. */
void step_pick(generator *g, int64_t n_heads, double uniform, double temperature);
/* Logits are large and may be in device memory: they are fetched only if needed. */
status step_run(generator *g, bool with_logits);
const float *step_logits(const generator *g, int64_t row); /* of the row-th pick; valid until the next step */
/* The pages of a slot, in the order of its positions. */
void step_set_pages(generator *g, int64_t slot, const int32_t *pages, size_t n);

/* adapters.c */
status adapters_open(generator *g, const generator_options *o);
void adapters_close(generator *g);
const model_source *
adapters_first(const generator *g); /* whose plan serves all, and whose base is loaded with its check */
/* generate.c: tokenizer, chat format and ends of text of a source, in the place of those of another. */
status generator_describe(generator *g, const model_source *s);

/* schedule.c */
status generation_run(generator *g, const prompt *prompts, size_t n_prompts, const sampling_options *s,
                      const generation_observer *observer, completion *out, generation_report *report);
