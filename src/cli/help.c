/* help.c - the tables of commands and settings as text for a terminal and as a man page.
 *
 * Nothing here knows a command or a flag by name: everything comes from the rows. */
#include "cli/help.h"
#include "ralo.h"

#include <string.h>

const char help_about[] =
    "ralo trains language models that do not fit in memory. It plans where every byte of a training step lives, shows\n"
    "the plan, and runs exactly that plan.";
const char help_trail[] = "1: an error is followed by the places in the source that it passed through";

const exit_code *exit_code_at(size_t i) {
    static const exit_code rows[] = {{0, "done"},
                                     {1, "the run failed"},
                                     {2, "the request was wrong: settings, arguments or files"},
                                     {3, "it does not fit; the message names the smallest change that would"},
                                     {130, "interrupted after a checkpoint"}};
    return i < ARRAY_LENGTH(rows) ? &rows[i] : NULL;
}

void flag_spelling(const flag *f, char *out, size_t n) {
    snprintf(out, n, "%s%s%s%s", flag_dashes(f), f->name, *f->value ? " " : "", f->value);
}

static bool flag_repeats(const flag *f) { return f->row.storage == STORE_LIST || (f->key && *f->key == 0); }

void flag_facts(const flag *f, strbuf *out) {
    if (f->key || f->row.type == TYPE_BOOL) return;
    if (f->row.type == TYPE_INT || f->row.type == TYPE_REAL || f->row.type == TYPE_BYTES)
        strbuf_printf(out, "in %s", f->row.range);
    if (f->row.storage == STORE_LIST) strbuf_printf(out, "%sany number of times", out->length ? "; " : "");
    if (*f->row.initial) strbuf_printf(out, "%sdefault %s", out->length ? "; " : "", f->row.initial);
}

/* "ralo plan [CONFIG] [--set KEY=VALUE]... [--json]", broken into lines. Aliases and help are left to the list below. */
void usage_print(const command *c, FILE *out) {
    int column = fprintf(out, "  ralo %s", c->name), indent = column + 1;
    if (*c->arguments) column += fprintf(out, " %s", c->arguments);
    for (size_t i = 0; flag_at(i); i++) {
        const flag *f = flag_at(i);
        char spelling[96], word[112];
        if (!flag_belongs(f, c) || strcmp(f->commands, "*") == 0 || str_starts_with(f->row.help, "the same as "))
            continue;
        flag_spelling(f, spelling, sizeof spelling);
        snprintf(word, sizeof word, flag_is_needed(f) ? "%s%s" : "[%s]%s", spelling, flag_repeats(f) ? "..." : "");
        if (column + 1 + (int)strlen(word) > 110) column = fprintf(out, "\n%*s", indent - 1, "") - 1;
        column += fprintf(out, " %s", word);
    }
    fputc('\n', out);
}

void help_print(FILE *out) {
    fprintf(out, "%s\n\n", help_about);
    for (size_t i = 0; command_at(i); i++) {
        usage_print(command_at(i), out);
        fprintf(out, "      %s\n", command_at(i)->what);
    }
    fputs("\n  ralo COMMAND --help    more about a command\n  ralo --version\n\nExit codes:", out);
    const exit_code *e;
    for (size_t i = 0; (e = exit_code_at(i)); i++)
        fprintf(out, " %d %.*s%s", e->code, (int)strcspn(e->what, ":;"), e->what, exit_code_at(i + 1) ? "," : ".\n");
}

void help_print_command(const command *c, FILE *out) {
    strbuf facts;
    strbuf_init(&facts);
    usage_print(c, out);
    fprintf(out, "\n%s\n%s%s\n", c->what, c->details, *c->details ? "\n" : "");
    for (size_t i = 0; flag_at(i); i++) {
        const flag *f = flag_at(i);
        if (!flag_belongs(f, c)) continue;
        char spelling[96];
        flag_spelling(f, spelling, sizeof spelling);
        facts.length = 0;
        flag_facts(f, &facts);
        fprintf(out, "  %-27s %s%s%s%s\n", spelling, f->row.help, facts.length ? " (" : "",
                facts.length ? facts.text : "", facts.length ? ")" : "");
    }
    strbuf_fini(&facts);
}

static void presets_print(FILE *out) {
    for (size_t i = 0; model_preset_at(i); i++) {
        const model_config *c = model_preset_at(i);
        char buf[32];
        fprintf(out, "  %-16s %-11s %8s parameters, %lld layers, hidden %lld\n", c->name,
                model_family_traits(c->family)->name, str_format_count(buf, (double)model_param_count(c)),
                (long long)c->n_layers, (long long)c->hidden);
    }
}

/* ---- the man page ------------------------------------------------------------------------------------------------ */

/* Text as roff takes it: a dot or quote that begins a line would be a request, a bare dash a typographic one. */
static void roff(const char *text, FILE *out) {
    for (const char *p = text; *p; p++) {
        if ((*p == '.' || *p == '\'') && (p == text || p[-1] == '\n')) fputs("\\&", out);
        if (*p == '\\') fputs("\\e", out);
        else if (*p == '-') fputs("\\-", out);
        else fputc(*p, out);
    }
}

static void roff_item(const char *bold, const char *rest, FILE *out) {
    fputs(".TP\n\\fB", out);
    roff(bold, out);
    fputs("\\fR", out);
    if (*rest) fputs(" \\fI", out);
    roff(rest, out);
    fputs(*rest ? "\\fR\n" : "\n", out);
}

static void roff_flag(const flag *f, FILE *out) {
    strbuf facts;
    strbuf_init(&facts);
    char name[64];
    snprintf(name, sizeof name, "%s%s", flag_dashes(f), f->name);
    roff_item(name, f->value, out);
    roff(f->row.help, out);
    flag_facts(f, &facts);
    if (facts.length) {
        fputs(" (", out);
        roff(facts.text, out);
        fputc(')', out);
    }
    fputc('\n', out);
    strbuf_fini(&facts);
}

static void print_man(FILE *out) {
    fputs(".TH RALO 1 \"\" \"ralo " RALO_VERSION
          "\" \"User Commands\"\n.SH NAME\nralo \\- plan and run training steps of language "
          "models\n"
          ".SH SYNOPSIS\n",
          out);
    for (size_t i = 0; command_at(i); i++) {
        const command *c = command_at(i);
        fprintf(out, "%s.B ralo %s\n", i ? ".br\n" : "", c->name);
        if (*c->arguments) {
            fputs(".I ", out);
            roff(c->arguments, out);
            fputc('\n', out);
        }
        fputs("[\\fIflags\\fR]\n", out);
    }
    fputs(".SH DESCRIPTION\n", out);
    roff(help_about, out);
    fputs("\n.SH COMMANDS\n", out);
    for (size_t i = 0; command_at(i); i++) {
        const command *c = command_at(i);
        fprintf(out, ".SS ralo %s ", c->name);
        roff(c->arguments, out);
        fputc('\n', out);
        roff(c->what, out);
        fputs(".\n", out);
        if (*c->details) {
            fputs(".PP\n", out);
            roff(c->details, out);
            fputc('\n', out);
        }
        for (size_t k = 0; flag_at(k); k++)
            if (flag_belongs(flag_at(k), c)) roff_flag(flag_at(k), out);
    }
    fputs(
        ".SH SETTINGS\nFor CONFIG, a YAML or JSON file whose maps may be nested or dotted, and for\n.BR \\-\\-set .\n",
        out);
    for (size_t i = 0; setting_at(i); i++) {
        const setting *s = setting_at(i);
        roff_item(s->key, "", out);
        roff(s->help, out);
        fputs("; default ", out);
        roff(s->initial, out);
        fputc('\n', out);
    }
    fputs(".SH EXIT STATUS\n", out);
    const exit_code *e;
    for (size_t i = 0; (e = exit_code_at(i)); i++) {
        char code[8];
        snprintf(code, sizeof code, "%d", e->code);
        roff_item(code, "", out);
        roff(e->what, out);
        fputc('\n', out);
    }
    fputs(".SH ENVIRONMENT\n", out);
    roff_item("RALO_TRAIL", "", out);
    roff(help_trail, out);
    fputc('\n', out);
}

/* ---- the command --------------------------------------------------------------------------------------------------- */

status command_help(command_line *l) {
    const char *topic = l->arguments[0];
    if (l->reference && topic)
        return ERR(ERR_INPUT, "help: found '%.100s' beside --reference, which writes every page; leave one out", topic);
    if (l->reference) return reference_write(l->reference);
    if (!topic) {
        help_print(stdout);
        return OK;
    }
    if (strcmp(topic, "settings") == 0) config_print_help(stdout, "");
    else if (strcmp(topic, "presets") == 0) presets_print(stdout);
    else if (strcmp(topic, "man") == 0) print_man(stdout);
    else if (command_find(topic)) help_print_command(command_find(topic), stdout);
    else if (config_knows(topic)) config_print_help(stdout, topic);
    else if (strchr(topic, '.')) return config_unknown("help", topic);
    else return command_unknown(topic);
    return OK;
}
