#pragma once
/* api.h - private to api: what every public function begins and ends with.
 *
 * The way from settings to a planned job is the one that `ralo train` takes (settings.h). Nothing includes this room. */
#include "settings/settings.h"
#include "show/show.h"
#include "ralo.h"

#include <locale.h>

/* In front of anything that reads or prints numbers, or may log: this thread in the C locale, the log in the caller's
 * hands. Every api_enter has its api_leave, which passes the status on. A call that succeeds leaves the thread's last
 * error as it was, whatever it tried on its way. */
typedef struct api_call {
    locale_t before;
    error_record last;
} api_call;
api_call api_enter(void);
ralo_status api_leave(api_call call, status rc);

/* NULL where something is needed. */
status api_need(const char *function, const char *what, const void *pointer);
#define API_NEED(pointer)                                          \
    do {                                                           \
        status need_rc_ = api_need(__func__, #pointer, (pointer)); \
        if (need_rc_ != OK) return (ralo_status)need_rc_;          \
    } while (0)

struct ralo_settings {
    config config;
    strbuf text; /* of the last _get */
};

struct ralo_plan {
    config config; /* the plan points into it */
    hardware machine;
    bool borrowed; /* of a trainer or a generator */
    plan own;
    const plan *plan;
    plan_view view;       /* of its own plan: what ralo plan shows beside it */
    plan_outlook outlook; /* of a borrowed one: its run */
    char *text, *json;
};

/* Texts in, completions out; function: the caller's name, for messages. */
status api_generate(generator *g, const char *function, const char *const *texts, size_t n, const ralo_sampling *s,
                    ralo_completion **out, size_t *n_out);
/* "fp32", "bf16" or "fp16"; NULL: DTYPE_COUNT. */
status api_dtype(const char *function, const char *name, dtype *out);
/* A copy that is checked, with its defaults settled: what a job is made from. config_fini also after an error. */
status api_config(config *out, const ralo_settings *s);
/* Fills text and json from p->plan, and from p->view where that is there. */
void api_plan_describe(ralo_plan *p);
