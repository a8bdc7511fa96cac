/* fuzz_set.c - one `--set KEY=VALUE`.
 *
 * Of an assignment that is accepted: the value as `config_get` writes it is accepted too and is written the same again; the
 * setting counts as given. One config serves many inputs, as one command line has many --set: what an assignment does, does not
 * depend on the others. */
#include "settings/config.h"
#include "fuzz/fuzz.h"

#include <stdlib.h>
#include <string.h>

enum { INPUTS_OF_ONE = 512 }; /* texts are kept as long as their config */

static void check_again(config *c, const char *key) {
    strbuf first, second, assignment;
    strbuf_init(&first);
    strbuf_init(&second);
    strbuf_init(&assignment);
    ASSERT(config_was_given(c, key));
    ASSERT(config_get(c, key, &first, "fuzz") == OK);
    strbuf_printf(&assignment, "%s=%s", key, first.text ? first.text : "");
    ASSERT(config_set(c, assignment.text, "again") == OK);
    ASSERT(config_get(c, key, &second, "fuzz") == OK);
    ASSERT(first.length == second.length && (!first.length || memcmp(first.text, second.text, first.length) == 0));
    strbuf_fini(&first);
    strbuf_fini(&second);
    strbuf_fini(&assignment);
}

void fuzz_one(const uint8_t *data, size_t size) {
    static config c;
    static int n_inputs;
    if (n_inputs++ % INPUTS_OF_ONE == 0) {
        if (n_inputs > 1) config_fini(&c);
        config_init(&c);
    }
    span all = {(const char *)data, size};
    char *text = fuzz_text(&all), *key = text + strspn(text, " \t"), *equals = strchr(text, '=');
    status rc = config_set(&c, text, "--set");
    if (rc != OK) fuzz_refused(rc);
    else {
        ASSERT(equals);
        while (equals > key && strchr(" \t", equals[-1])) equals--; /* blanks around a key are none of it */
        *equals = 0;
        check_again(&c, key);
    }
    free(text);
}
