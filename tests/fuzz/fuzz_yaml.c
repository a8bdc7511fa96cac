/* fuzz_yaml.c - a configuration file, and assignments of the command line.
 *
 * Sections: the file, then one --set after the other.
 * A file with stages is read as its first stage.
 * Of settings that are accepted: written out they are read again, and then written out the same. */
#include "settings/stages.h"
#include "fuzz/fuzz.h"

#include <stdlib.h>
#include <string.h>

enum { SETS_MOST = 16 };

static void write_out(const config *c, strbuf *out) {
    char *text;
    size_t n;
    FILE *f = open_memstream(&text, &n);
    ASSERT(f);
    config_write_yaml(c, f, false);
    ASSERT(fclose(f) == 0);
    strbuf_add_bytes(out, text, n);
    free(text);
}

static void check_round_trip(const config *c) {
    config again;
    strbuf first, second;
    strbuf_init(&first);
    strbuf_init(&second);
    write_out(c, &first);
    config_init(&again);
    ASSERT(config_read_file(&again, fuzz_file(1, first.text, first.length)) == OK);
    write_out(&again, &second);
    ASSERT(first.length == second.length && memcmp(first.text, second.text, first.length) == 0);
    config_fini(&again);
    strbuf_fini(&first);
    strbuf_fini(&second);
}

/* As `ralo train FILE --stage NAME` reads it, with the name that stands first. */
static status read_settings(config *c, const char *path) {
    arena memory;
    yaml_node *root;
    stage_list list;
    arena_init(&memory);
    status rc = yaml_read_file(path, &memory, &root);
    if (rc == OK && stages_are_in(root)) {
        rc = stages_read(&list, path, "dir", &memory);
        if (rc == OK) rc = stages_apply(c, root, path, list.names[0], "dir", &memory);
    } else if (rc == OK) {
        rc = config_read_tree(c, root, path);
    }
    arena_fini(&memory);
    return rc;
}

void fuzz_one(const uint8_t *data, size_t size) {
    fuzz_input in = {data, size};
    span file = fuzz_section(&in);
    static config defaults; /* made once: reading a hundred defaults costs more than many files */
    if (!defaults.memory_of_strings.blocks) config_init(&defaults);
    config c;
    config_copy(&c, &defaults);
    status rc = read_settings(&c, fuzz_file(0, file.text, file.length));
    if (rc != OK) fuzz_refused(rc);
    for (int i = 0; i < SETS_MOST && in.n_left && rc == OK; i++) {
        span section = fuzz_section(&in);
        char *assignment = fuzz_text(&section);
        status set = config_set(&c, assignment, "--set");
        if (set != OK) fuzz_refused(set);
        free(assignment);
    }
    if (rc == OK) {
        if (fuzz_sometimes(data, size, 4)) check_round_trip(&c);
        if (config_check(&c) != OK) fuzz_refused(error_code());
    }
    config_fini(&c);
}
