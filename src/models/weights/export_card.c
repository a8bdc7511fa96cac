/* export_card.c - README.md of an exported directory: what the model is, where it comes from, and how it is loaded. As hubs show
 * it: Markdown behind a few keys. What is not known is left out. Names and settings are the user's own words, and stand as they are
 * but for characters that would break out of a line or a table. */
#include "weights/export_job.h"

#include <math.h>
#include <stdlib.h>

/* On one line, and no end of a cell or of code. */
static void add_plain(strbuf *b, const char *text) {
    for (; *text; text++)
        strbuf_add_bytes(b, (unsigned char)*text < 32 || *text == '|' || *text == '`' ? " " : text, 1);
}

static const char *last_part(const char *path) {
    const char *slash = strrchr(path, '/');
    return slash && slash[1] ? slash + 1 : path;
}

static void add_row(strbuf *b, const char *name, const char *value) {
    if (!value || !*value) return;
    strbuf_printf(b, "| %s | ", name);
    add_plain(b, value);
    strbuf_add(b, " |\n");
}

static void add_number(strbuf *b, const char *name, double x) {
    char text[32];
    if (!isfinite(x)) return;
    snprintf(text, sizeof text, "%.6g", x);
    add_row(b, name, text);
}

static void add_facts(strbuf *b, const export_card *c, const char *base, int64_t step, uint64_t hash) {
    char text[32];
    strbuf_add(b, "| | |\n|---|---|\n");
    add_row(b, "task", c->task);
    add_row(b, "data", c->data);
    add_row(b, "base model", base);
    if (c->steps || step) add_number(b, "steps", (double)(c->steps ? c->steps : step));
    if (c->steps) add_number(b, "loss of the last step", c->loss);
    add_number(b, "loss of the evaluation", c->eval_loss);
    snprintf(text, sizeof text, "%016llx", (unsigned long long)(c->param_hash ? c->param_hash : hash));
    if (c->param_hash || hash) add_row(b, "param_hash", text);
    add_row(b, "ralo", c->version);
}

static void add_settings(strbuf *b, const char *settings) {
    if (!settings || !*settings) return;
    strbuf_add(b, "\n## Settings that differ from the defaults\n\n");
    for (const char *line = settings; *line;) { /* indented is code, whatever a line holds */
        size_t n = strcspn(line, "\n");
        strbuf_printf(b, "    %.*s\n", (int)n, line);
        line += n + (line[n] == '\n');
    }
}

/* PEFT leaves the end token as the base has it. */
static void add_adapter_usage(strbuf *b, const export_job *j, const char *name, const char *base) {
    strbuf_printf(b,
                  "    from peft import PeftModel\n    from transformers import AutoModelForCausalLM\n"
                  "    base = AutoModelForCausalLM.from_pretrained(\"%s\")\n"
                  "    model = PeftModel.from_pretrained(base, \"%s\")\n",
                  base, name);
    if (!export_eos_changes(j->description)) return;
    json_t *generation = export_aligned(j->description, "generation");
    char *ends = json_dumps(json_object_get(generation, "eos_token_id"), JSON_ENCODE_ANY);
    strbuf_printf(b, "    model.generation_config.eos_token_id = %s\n", ends);
    free(ends);
    json_decref(generation);
}

static void add_usage(strbuf *b, const export_job *j, const char *name, const char *base) {
    strbuf_add(b, "\n## Use\n\n");
    if (model_of(&j->from.m->source)->value_head) {
        strbuf_printf(b, "A critic, which ralo reads: `model.path: %s`, `verifiable.critic: %s`.\n", name, name);
        return;
    }
    if (j->heads == EXPORT_META) {
        strbuf_printf(b, "Meta's layout: `ralo generate --model %s`.\n", name);
        return;
    }
    if (j->kind == EXPORT_ADAPTER) add_adapter_usage(b, j, name, base ? base : "BASE");
    else
        strbuf_printf(b,
                      "    from transformers import AutoModelForCausalLM\n"
                      "    model = AutoModelForCausalLM.from_pretrained(\"%s\")\n",
                      name);
    strbuf_printf(b, "\nOr `ralo generate --model %s --prompt \"...\"`.\n", name);
    /* Trained on bytes: AutoTokenizer finds nothing, and nothing else says what the ids are. */
    if ((!j->tokenizer || j->tokenizer->n == 0) && !json_object_get(j->description, "tokenizer"))
        strbuf_printf(
            b,
            "\nThere is no tokenizer: tokens are bytes. Ids 0 to 255 are the bytes of a text in UTF-8, %d ends a "
            "text.\n",
            TOKEN_EOS);
}

status export_write_card(const export_job *j, const export_options *o, const export_report *report, const char *dir,
                         uint64_t hash) {
    static const export_card unknown = {.loss = NAN, .eval_loss = NAN};
    const export_card *c = o->card ? o->card : &unknown;
    const char *family = model_family_traits(model_of(&j->from.m->source)->family)->name;
    const char *path = json_string_value(json_object_get(json_object_get(j->description, "base"), "path"));
    char count[32], base[256] = "", name[256];
    strbuf b, file, plain;
    strbuf_init(&b);
    strbuf_init(&file);
    strbuf_init(&plain);
    add_plain(&plain, o->dir);
    snprintf(name, sizeof name, "%.200s", plain.text ? plain.text : "");
    plain.length = 0;
    add_plain(&plain, path ? path : "");
    if (path) snprintf(base, sizeof base, "%.200s", plain.text);
    bool adapter = j->kind == EXPORT_ADAPTER;
    strbuf_printf(&b, "---\nlibrary_name: %s\ntags: [ralo]\n---\n", adapter ? "peft" : "transformers");
    strbuf_printf(&b, "# %s\n\n%s%s model, %s parameters in %s, trained with ralo.\n\n", last_part(name),
                  adapter ? "LoRA adapter of a " : "A ", family, str_format_count(count, (double)report->n_parameters),
                  dtype_name(report->type));
    add_facts(&b, c, base, report->step, hash);
    add_settings(&b, c->settings);
    add_usage(&b, j, name, *base ? base : NULL);
    strbuf_printf(&file, "%s/README.md", dir);
    status rc = file_write_new(file.text, b.text, b.length);
    strbuf_fini(&b);
    strbuf_fini(&file);
    strbuf_fini(&plain);
    return rc;
}
