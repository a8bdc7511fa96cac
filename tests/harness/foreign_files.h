#pragma once
/* foreign_files.h - files of other trainers, translated: what they give, what is refused, what is reported.
 *
 *     GIVES(DS("{\"train_batch_size\": 4}"), "train.micro_batch", "4");
 *     REFUSED(DS("[]"), "ds.json", "object"); */
#include "migrate/migrate.h"

/* One translation: a CONFIG (or NULL), a --deepspeed file (or NULL), then --set, then apply. */
typedef struct request {
    const char *config_name, *config_text, *deepspeed_text;
    const char *fixture; /* of tests/fixtures/foreign, as CONFIG; NULL: none */
    const char *set[6];
    int n_ranks;
} request;

typedef struct outcome {
    config c;
    foreign f;
    status rc;
} outcome;

void translate(outcome *o, const request *q);
void outcome_fini(outcome *o);
void assert_value(const config *c, const char *key, const char *expected);
char *printed(const outcome *o); /* the report; the caller frees */
void assert_in(const char *text, const char *part);

void gives(const request *q, const char *const *expected); /* setting, value, ... , NULL */
void refused(const request *q, const char *const *parts);  /* of the error's message */
void reports(const request *q, const char *const *parts);  /* of the printed report */
#define GIVES(q, ...) gives(&(q), (const char *const[]){__VA_ARGS__, NULL})
#define REFUSED(q, ...) refused(&(q), (const char *const[]){__VA_ARGS__, NULL})
#define REPORTS(q, ...) reports(&(q), (const char *const[]){__VA_ARGS__, NULL})
#define FIXTURE(name) ((request){.fixture = (name)})
#define DS(text) ((request){.deepspeed_text = (text)})
#define RALO(text) ((request){.config_name = "old.yaml", .config_text = (text), .set = {"model.preset=test-llama"}})
