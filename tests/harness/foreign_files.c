/* foreign_files.c - see foreign_files.h. */
#include "foreign_files.h"
#include "files.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <stdlib.h>
#include <unistd.h>

void translate(outcome *o, const request *q) {
    config_init(&o->c);
    foreign_init(&o->f);
    o->rc = OK;
    if (q->fixture) {
        char path[512];
        snprintf(path, sizeof path, "%s/foreign/%s", TEST_FIXTURES, q->fixture);
        o->rc = foreign_read_config(&o->f, &o->c, path);
    }
    if (q->config_text) {
        write_text(q->config_name, q->config_text);
        o->rc = foreign_read_config(&o->f, &o->c, q->config_name);
        unlink(q->config_name);
    }
    for (size_t i = 0; i < ARRAY_LENGTH(q->set) && q->set[i] && o->rc == OK; i++)
        assert_int_equal(config_set(&o->c, q->set[i], "--set"), OK);
    if (q->deepspeed_text && o->rc == OK) {
        write_text("ds.json", q->deepspeed_text);
        o->rc = foreign_read_deepspeed(&o->f, "ds.json");
        unlink("ds.json");
    }
    o->f.n_ranks = q->n_ranks;
    if (o->rc == OK) o->rc = foreign_apply(&o->f, &o->c);
}

void outcome_fini(outcome *o) {
    foreign_fini(&o->f);
    config_fini(&o->c);
}

void assert_value(const config *c, const char *key, const char *expected) {
    strbuf b;
    strbuf_init(&b);
    assert_int_equal(config_get(c, key, &b, "test"), OK);
    if (strcmp(b.text, expected) != 0) fail_msg("%s is %s, expected %s", key, b.text, expected);
    strbuf_fini(&b);
}

char *printed(const outcome *o) {
    memstream text;
    foreign_print(&o->f, &o->c, memstream_open(&text));
    return memstream_take(&text);
}

void assert_in(const char *text, const char *part) {
    if (!strstr(text, part)) fail_msg("'%s' is not in: %s", part, text);
}

void gives(const request *q, const char *const *expected) {
    outcome o;
    translate(&o, q);
    if (o.rc != OK) fail_msg("refused: %s", error_message());
    for (; *expected; expected += 2) assert_value(&o.c, expected[0], expected[1]);
    outcome_fini(&o);
}

void refused(const request *q, const char *const *parts) {
    outcome o;
    translate(&o, q);
    const char *text = q->fixture ? q->fixture : q->deepspeed_text ? q->deepspeed_text : q->config_text;
    if (o.rc != ERR_INPUT) fail_msg("not refused: %s", text);
    for (; *parts; parts++) assert_in(error_message(), *parts);
    outcome_fini(&o);
}

void reports(const request *q, const char *const *parts) {
    outcome o;
    translate(&o, q);
    if (o.rc != OK) fail_msg("refused: %s", error_message());
    char *text = printed(&o);
    for (; *parts; parts++) assert_in(text, *parts);
    free(text);
    outcome_fini(&o);
}
