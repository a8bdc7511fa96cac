/* generate.c - prompts in, completions out, with libralo.
 *
 *     cc generate.c -o generate $(pkg-config --cflags --libs ralo)
 *     ./generate MODEL MAX_NEW TEMPERATURE PROMPT...
 *
 * MODEL        a Hugging Face directory, a run directory or a checkpoint directory
 * MAX_NEW      most new tokens per prompt
 * TEMPERATURE  0: always the most likely token; else sampling, with seed 0 */
#include <ralo.h>

#include <stdio.h>
#include <stdlib.h>

static int failed(const char *what) {
    fprintf(stderr, "generate: %s: %s\n", what, ralo_error_message());
    return 1;
}

/* All prompts are given at once: they share the steps through the model, which is much faster than one by one, and it does
 * not change what each of them gets. */
static int complete(ralo_generator *g, const char *const *prompts, size_t n, const ralo_sampling *sampling) {
    static const char *const ends[] = {"the end token", "a stop text", "the length"}; /* by ralo_stop */
    ralo_completion *completions;
    size_t n_completions;
    if (ralo_generator_generate(g, prompts, n, sampling, &completions, &n_completions) != RALO_OK)
        return failed("generate");
    for (size_t i = 0; i < n_completions; i++) {
        printf("--- %s (%zu tokens, ended by %s, log probability %.4f)\n", prompts[i / (n_completions / n)],
               completions[i].n_tokens, ends[completions[i].stop], completions[i].log_probability);
        fwrite(completions[i].text, 1, completions[i].n_bytes, stdout); /* may hold any byte, also NUL */
        putchar('\n');
    }
    ralo_completions_free(completions, n_completions);
    return 0;
}

int main(int argc, char **argv) {
    if (argc < 5) {
        fprintf(stderr, "usage: generate MODEL MAX_NEW TEMPERATURE PROMPT...\n");
        return 2;
    }
    size_t n = (size_t)argc - 4;
    ralo_generator *generator;
    ralo_generator_options options;
    ralo_sampling sampling;
    /* The init fills every field, so that fields of later versions have their defaults too. */
    ralo_generator_options_init(&options);
    options.max_sequences = n < 16 ? (int64_t)n : 16;
    ralo_sampling_init(&sampling);
    sampling.max_new = atoll(argv[2]);
    sampling.temperature = atof(argv[3]);

    if (ralo_generator_open(&generator, argv[1], &options) != RALO_OK) return failed("open");
    int rc = complete(generator, (const char *const *)argv + 4, n, &sampling);
    ralo_generator_close(generator);
    return rc;
}
