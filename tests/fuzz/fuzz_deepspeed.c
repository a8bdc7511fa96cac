/* fuzz_deepspeed.c - a configuration of DeepSpeed (`--deepspeed FILE`), and of RALO, TRL, accelerate, Axolotl and LLaMA-Factory as a CONFIG.
 *
 * Sections: the file; what is behind it, if anything, says that it is a CONFIG.
 * Of one that is accepted: the report can be printed and has every key, and the config that it makes can be written. */
#include "migrate/migrate.h"
#include "fuzz/fuzz.h"

#include <stdlib.h>
#include <string.h>

static void check_report(const foreign *f, const config *c) {
    json_t *report = foreign_json(f, c);
    char *text = json_dumps(report, JSON_COMPACT | JSON_ENCODE_ANY);
    ASSERT(text);
    free(text);
    json_decref(report);
    memstream m;
    foreign_print(f, c, memstream_open(&m));
    config_write_yaml(c, m.out, false);
    free(memstream_take(&m));
    for (size_t i = 0; i < f->n_entries; i++) ASSERT(f->entries[i].setting || f->entries[i].note);
}

void fuzz_one(const uint8_t *data, size_t size) {
    fuzz_input in = {data, size};
    span file = fuzz_section(&in);
    static config defaults; /* made once: reading a hundred defaults costs more than many files */
    if (!defaults.memory_of_strings.blocks) config_init(&defaults);
    config c;
    foreign f;
    config_copy(&c, &defaults);
    foreign_init(&f);
    f.n_ranks = in.n_left > 1 ? 4 : 0;
    const char *path = fuzz_file(0, file.text, file.length);
    status rc = in.n_left ? foreign_read_config(&f, &c, path) : foreign_read_deepspeed(&f, path);
    if (rc == OK) rc = foreign_apply(&f, &c);
    if (rc != OK) fuzz_refused(rc);
    else if (fuzz_sometimes(data, size, 4)) check_report(&f, &c);
    foreign_fini(&f);
    config_fini(&c);
}
