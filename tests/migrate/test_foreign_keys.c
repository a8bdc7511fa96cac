/* test_foreign_keys.c - every key that a translate function of other programs reads, alone and beside keys that choose a method, is translated, reported or refused:
 * none ends in an internal error, which is what a key becomes that a translate function forgets. */
#include "foreign_files.h"
#include "migrate/dialect.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <string.h>

/* What a file says beside the key; "" nothing. The first word is its key. */
typedef struct circumstances {
    const foreign_dialect *dialect;
    const char *texts[8];
} circumstances;

static const char *const values[][2] = {[FT_BOOL] = {"true", "false"},
                                        [FT_INT] = {"4", "0"},
                                        [FT_REAL] = {"0.5", "0"},
                                        [FT_TEXT] = {"x", "none"},
                                        [FT_PAIR] = {"[0.1, 0.2]", "[0.1, 0.2]"},
                                        [FT_ANY] = {"x", "[]"},
                                        [FT_TREE] = {"x", "[]"},
                                        [FT_JSON] = {"{a: 1}", "{}"}};

/* `a.b: value` as a map in a map, or the same as JSON. */
static void write_key(strbuf *out, const char *key, const char *value, bool is_json) {
    int depth = 0;
    bool is_word = is_json && strchr("xn", *value);
    for (const char *dot; (dot = strchr(key, '.')); key = dot + 1, depth++) {
        strbuf_printf(out, is_json ? "\"%.*s\": {" : "%.*s:\n", (int)(dot - key), key);
        if (!is_json) strbuf_printf(out, "%*s", 2 * (depth + 1), "");
    }
    if (!is_json) {
        strbuf_printf(out, "%s: %s\n", key, value);
        return;
    }
    strbuf_printf(out, "\"%s\": %s%s%s", key, is_word ? "\"" : "", value, is_word ? "\"" : "");
    for (; depth > 0; depth--) strbuf_add(out, "}");
}

static int check_key(const circumstances *c, const char *key, foreign_type type) {
    int failed = 0;
    bool is_json = c->dialect->is_json;
    if (strchr(key, '*')) return 0;
    for (size_t t = 0; t < ARRAY_LENGTH(c->texts) && c->texts[t]; t++) {
        const char *beside = c->texts[t];
        size_t n = strcspn(key, ".");
        if (strncmp(beside, key, n) == 0 && (beside[n] == ':' || beside[n] == '\n')) continue; /* twice the same key */
        for (int v = 0; v < 2; v++) {
            strbuf text;
            outcome o;
            strbuf_init(&text);
            if (is_json) strbuf_add(&text, "{");
            else strbuf_printf(&text, "%s%s", beside, *beside ? "\n" : "");
            write_key(&text, key, values[type][v], is_json);
            if (is_json) strbuf_printf(&text, "%s%s}", *beside ? ", " : "", beside);
            request q = {.config_name = "t.yaml", .config_text = text.text};
            if (is_json) q = (request){.deepspeed_text = text.text};
            translate(&o, &q);
            if (o.rc == ERR_BUG) print_error("%s: %s\n    of: %s\n", c->dialect->name, error_message(), text.text);
            failed += o.rc == ERR_BUG;
            outcome_fini(&o);
            strbuf_fini(&text);
        }
    }
    return failed;
}

static void test_no_key_is_forgotten(void **state) {
    (void)state;
    static const circumstances all[] = {
        {&foreign_trl,
         {"model_name_or_path: gpt2", "learning_rate: 1\nnum_generations: 8", "learning_rate: 1\nbeta: 0.1",
          "learning_rate: 1\ndesirable_weight: 1", "learning_rate: 1\nloss_type: orpo"}},
        {&foreign_llamafactory,
         {"finetuning_type: full", "finetuning_type: lora\nstage: sft", "finetuning_type: lora\nstage: dpo",
          "finetuning_type: full\nstage: kto", "finetuning_type: full\nstage: pt"}},
        {&foreign_axolotl,
         {"base_model: gpt2", "base_model: gpt2\nadapter: lora", "base_model: gpt2\nrl: dpo",
          "base_model: gpt2\nrl: grpo", "base_model: gpt2\nrl: kto"}},
        {&foreign_accelerate,
         {"compute_environment: LOCAL_MACHINE\ndistributed_type: NO",
          "compute_environment: LOCAL_MACHINE\ndistributed_type: FSDP",
          "compute_environment: LOCAL_MACHINE\ndistributed_type: DEEPSPEED"}},
        {&foreign_deepspeed, {"", "\"zero_optimization\": {\"stage\": 3}", "\"fp16\": {\"enabled\": true}"}},
    };
    int failed = 0;
    for (size_t d = 0; d < ARRAY_LENGTH(all); d++)
        for (size_t i = 0; i < all[d].dialect->n_rows; i++) {
            const foreign_row *row = &all[d].dialect->rows[i];
            if (row->kind != FOREIGN_OWN) continue; /* others are translated by their row */
            char key[128];
            const char *brace = strchr(row->key, '{');
            if (!brace) failed += check_key(&all[d], row->key, row->type);
            for (const char *name = brace ? brace + 1 : "}"; *name != '}';) {
                size_t length = strcspn(name, " }");
                snprintf(key, sizeof key, "%.*s%.*s", (int)(brace - row->key), row->key, (int)length, name);
                failed += check_key(&all[d], key, row->type);
                name += length + (name[length] == ' ');
            }
        }
    assert_int_equal(failed, 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_no_key_is_forgotten)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
