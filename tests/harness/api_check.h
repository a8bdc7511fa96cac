#pragma once
/* api_check.h - calls of ralo.h that must succeed, that must be refused, and the settings of a tiny run. */
#include "ralo.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <string.h>

static inline void must(ralo_status rc) {
    if (rc != RALO_OK) fail_msg("%s", ralo_error_message());
}

/* The call is refused as `code`, and the message holds `text`. */
#define REFUSED(call, code, text)                                                                            \
    do {                                                                                                     \
        assert_int_equal(call, code);                                                                        \
        if (!strstr(ralo_error_message(), text)) fail_msg("'%s' is not in: %s", text, ralo_error_message()); \
    } while (0)

static inline ralo_settings *settings_of(const char *const *pairs) {
    ralo_settings *s;
    must(ralo_settings_new(&s));
    for (; *pairs; pairs += 2) must(ralo_settings_set(s, pairs[0], pairs[1]));
    return s;
}
/* The settings that training.c gives to a run. */
#define TINY                                                                                                        \
    "model.preset", "test-llama", "data.source", "builtin:grammar", "data.seq_len", "24", "train.micro_batch", "2", \
        "train.steps", "6", "run.threads", "2", "train.warmup", "0", "run.bind", "false"
#define PAIRS(...) ((const char *const[]){__VA_ARGS__, NULL})

static inline uint64_t run_to_end(ralo_trainer *t, ralo_step *last) {
    uint64_t hash;
    ralo_step step;
    while (ralo_trainer_steps_left(t) > 0) must(ralo_trainer_step(t, last ? last : &step));
    must(ralo_trainer_param_hash(t, &hash));
    return hash;
}

/* A tiny model that was trained a little, as a directory. */
static inline void export_trained(const char *path) {
    ralo_settings *s = settings_of(PAIRS(TINY, "train.steps", "20", "train.lr", "0.01"));
    ralo_trainer *t;
    must(ralo_trainer_open(&t, s));
    run_to_end(t, NULL);
    must(ralo_trainer_export(t, path, NULL));
    ralo_trainer_close(t);
    ralo_settings_free(s);
}
