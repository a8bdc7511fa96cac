/* reference.c - the tables of commands, settings, models, metrics and JSON keys as Markdown pages: docs/reference.
 *
 * Pages hold only what the rows say, so that they stay true: `make reference` writes them again, and the test
 * cli_reference fails if that was forgotten. The C API's page comes from its header (tools/c-api-page). */
#include "cli/help.h"
#include "cli/json_keys.h"
#include "track/track.h"

#include <ctype.h>
#include <errno.h>
#include <string.h>

#define PRINTED_BY "<!-- Printed by `ralo help --reference`; do not edit. `make reference` writes it again. -->\n\n"

/* A cell of a table: a bar would end it, an asterisk or an angle bracket would be markup. */
static void cell(const char *text, FILE *out) {
    for (const char *p = text; *p; p++) {
        if (strchr("|<*\\", *p)) fputc('\\', out);
        fputc(*p, out);
    }
}

/* Text in backquotes, where only the bar needs care. */
static void code_cell(const char *text, FILE *out) {
    fputc('`', out);
    for (const char *p = text; *p; p++) {
        if (*p == '|') fputc('\\', out);
        fputc(*p, out);
    }
    fputc('`', out);
}

/* ---- settings ---------------------------------------------------------------------------------------------------- */

static void print_setting(const setting *s, FILE *out) {
    strbuf expected;
    char alias[64];
    const char *rest = s->aliases;
    strbuf_init(&expected);
    setting_expected(s, &expected);
    fputs("| ", out);
    code_cell(s->key, out);
    fputs(" | ", out);
    cell(s->help, out);
    for (int i = 0; (rest = part_next(rest, ' ', alias, sizeof alias)); i++)
        fprintf(out, "%s`%.*s`", i ? ", " : ". Also: ", (int)strcspn(alias, "@"), alias);
    fputs(" | ", out);
    cell(expected.text, out);
    fputs(" | ", out);
    code_cell(s->initial, out);
    fputs(" |\n", out);
    strbuf_fini(&expected);
}

static void print_presets(FILE *out) {
    fputs("\n## Presets\n\nModels known by name, for `model.preset` and `--preset`; other spellings are taken too "
          "(`Qwen3-8B`, `llama-3.1-8b`, "
          "`Qwen/Qwen3-8B-Base`). Those that were published in numbers of 16 bits\nare trained with `precision=bf16` "
          "unless "
          "`precision` is set.\n\n"
          "| preset | family | parameters | layers | hidden | precision |\n|---|---|---|---|---|---|\n",
          out);
    const model_config *c;
    for (size_t i = 0; (c = model_preset_at(i)); i++) {
        char count[32];
        fprintf(out, "| `%s` | %s | %s | %lld | %lld | %s |\n", c->name, model_family_traits(c->family)->name,
                str_format_count(count, (double)model_param_count(c)), (long long)c->n_layers, (long long)c->hidden,
                precision_name(c->is_16_bit ? PRECISION_BF16 : PRECISION_FP32));
    }
}

static void print_settings_page(FILE *out) {
    fputs("# Settings\n\n" PRINTED_BY "Settings come from CONFIG, a YAML or JSON file whose maps may be nested or "
          "dotted, and from `--set KEY=VALUE`, "
          "which wins over the file. `ralo help KEY` prints one of them, `ralo train --show-config` all of them as "
          "resolved.\n",
          out);
    const char *previous = "";
    const setting *s;
    for (size_t i = 0; (s = setting_at(i)); i++) {
        size_t group = strcspn(s->key, ".");
        if (strncmp(s->key, previous, group + 1) != 0)
            fprintf(out, "\n## %.*s\n\n| setting | meaning | value | default |\n|---|---|---|---|\n", (int)group,
                    s->key);
        print_setting(s, out);
        previous = s->key;
    }
    print_presets(out);
}

/* ---- commands ---------------------------------------------------------------------------------------------------- */

static void print_flag(const flag *f, FILE *out) {
    strbuf facts;
    char spelling[96];
    strbuf_init(&facts);
    flag_spelling(f, spelling, sizeof spelling);
    flag_facts(f, &facts);
    fputs("| ", out);
    code_cell(spelling, out);
    fputs(" | ", out);
    cell(f->row.help, out);
    if (facts.length) {
        fputs(" (", out);
        cell(facts.text, out);
        fputc(')', out);
    }
    fputs(" |\n", out);
    strbuf_fini(&facts);
}

static void print_command(const command *c, FILE *out) {
    fprintf(out, "\n## ralo %s\n\n%c%s.\n\n```\n", c->name, toupper((unsigned char)*c->what), c->what + 1);
    usage_print(c, USAGE_COLUMNS, out);
    fputs("```\n\n", out);
    if (*c->details) fprintf(out, "%s\n\n", c->details);
    fputs("| flag | meaning |\n|---|---|\n", out);
    for (size_t i = 0; flag_at(i); i++)
        if (flag_belongs(flag_at(i), c)) print_flag(flag_at(i), out);
}

static void print_cli_page(FILE *out) {
    fprintf(out, "# Commands\n\n" PRINTED_BY "%s\n", help_about);
    for (size_t i = 0; command_at(i); i++) print_command(command_at(i), out);
    fputs("\n## Exit codes\n\n| code | meaning |\n|---|---|\n", out);
    const exit_code *e;
    for (size_t i = 0; (e = exit_code_at(i)); i++) fprintf(out, "| %d | %s |\n", e->code, e->what);
    fprintf(out, "\n## Environment\n\n| variable | meaning |\n|---|---|\n| `RALO_TRAIL` | %s |\n", help_trail);
    fputs("\n## Machines\n\nKnown by name, for `--hardware`; `x8` behind a name means nodes of eight.\n\n"
          "| machine | where its numbers come from |\n|---|---|\n",
          out);
    for (size_t i = 0; hardware_at(i); i++)
        fprintf(out, "| `%s` | %s |\n", hardware_at(i)->name, hardware_at(i)->source);
}

/* ---- metrics ----------------------------------------------------------------------------------------------------- */

static void print_metrics(metric_record record, FILE *out) {
    const metric *m;
    fputs("| key | type | meaning |\n|---|---|---|\n", out);
    for (size_t i = 0; (m = metric_at(i)); i++)
        if (m->record == record) fprintf(out, "| `%s` | %s | %s |\n", m->name, m->type, m->help);
}

/* In the order in which a line has them. */
static void print_task_metrics(const task *t, FILE *out) {
    const task_metric *m;
    for (size_t i = 0; (m = task_metric_at(t, i)); i++) {
        if (i == 0)
            fprintf(out,
                    "\n## Only with train.task=%s\n\nAfter the keys above; those of evaluations begin with `val/`.\n\n"
                    "| key | type | meaning |\n|---|---|---|\n",
                    task_name(t));
        fprintf(out, "| `%s` | real | %s |\n", m->name, m->help);
    }
}

static void print_metrics_page(FILE *out) {
    fputs("# Metrics\n\n" PRINTED_BY "A run writes `metrics.jsonl` into its directory: one JSON object per line. "
          "`whole` is a whole number; `real` is a "
          "number, or `null` where it is not finite; `flag` is `true`.\n\n## After a step\n\n",
          out);
    print_metrics(METRIC_OF_STEP, out);
    fputs("\n## After an evaluation\n\n", out);
    print_metrics(METRIC_OF_EVAL, out);
    for (task_kind k = 0; k < TASK_COUNT; k++) print_task_metrics(task_of(k), out);
}

/* ---- JSON ------------------------------------------------------------------------------------------------------- */

/* The heading of a kind as the link that Markdown makes of it. */
static void print_type(const char *type, FILE *out) {
    char kind[64];
    bool list = type[0] == '[';
    snprintf(kind, sizeof kind, "%.*s", (int)strcspn(type + list, "]?"), type + list);
    fputs(list ? "list of " : "", out);
    bool linked = false;
    for (size_t i = 0; json_key_at(i) && !linked; i++)
        linked = json_key_at(i)->kind && strcmp(json_key_at(i)->kind, kind) == 0;
    fprintf(out, linked ? "[%s](#" : "%s", kind);
    for (const char *p = kind; linked && *p; p++) fputc(*p == ' ' ? '-' : *p, out);
    fputs(linked ? ")" : "", out);
    fputs(strchr(type, '?') ? " or null" : "", out);
}

static void print_json_page(FILE *out) {
    fputs("# JSON output\n\n" PRINTED_BY "`--json` prints one object as the last line of stdout. `whole` is a whole "
          "number; `real` is a number, or `null` where it "
          "is not finite; `text` may be `null` where there is none. `*` stands for any name.\n",
          out);
    const json_key *row;
    for (size_t i = 0; (row = json_key_at(i)); i++) {
        if (row->kind) {
            fprintf(out, "\n## %s\n\n", row->kind);
            if (*row->help) fprintf(out, "%s\n\n", row->help);
            fputs("| key | type | meaning |\n|---|---|---|\n", out);
            continue;
        }
        fprintf(out, "| `%s` | ", row->key);
        print_type(row->type, out);
        fprintf(out, " | %s |\n", row->help);
    }
}

/* ---- files ------------------------------------------------------------------------------------------------------- */

static status page_write(const char *dir, const char *name, void (*print)(FILE *out)) {
    status rc = OK;
    strbuf path;
    strbuf_init(&path);
    strbuf_printf(&path, "%s/%s", dir, name);
    FILE *f = fopen(path.text, "we");
    if (!f) rc = ERR(ERR_INPUT, "help --reference: open file %s: %s", path.text, strerror(errno));
    else {
        print(f);
        bool failed = ferror(f);
        if (fclose(f) != 0 || failed) rc = ERR(ERR_IO, "help --reference: write %s: %s", path.text, strerror(errno));
    }
    strbuf_fini(&path);
    return rc;
}

status reference_write(const char *dir) {
    TRY(dir_make(dir));
    TRY(page_write(dir, "settings.md", print_settings_page));
    TRY(page_write(dir, "cli.md", print_cli_page));
    TRY(page_write(dir, "json.md", print_json_page));
    return page_write(dir, "metrics.md", print_metrics_page);
}
