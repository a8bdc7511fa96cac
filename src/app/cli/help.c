/* help.c - the tables of commands and settings as text for a terminal and as a man page.
 *
 * Nothing here but the examples knows a command or a flag by name: everything comes from the rows. A terminal gets lines as wide as it
 * is; a file or a pipe gets one line for each row, to be searched. */
#include "cli/help.h"
#include "ralo.h"

#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

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
void usage_print(const command *c, int width, FILE *out) {
    int column = fprintf(out, "  ralo %s", c->name), indent = column + 1;
    if (*c->arguments) column += fprintf(out, " %s", c->arguments);
    for (size_t i = 0; flag_at(i); i++) {
        const flag *f = flag_at(i);
        char spelling[96], word[112];
        if (!flag_belongs(f, c) || strcmp(f->commands, "*") == 0 || str_starts_with(f->row.help, "the same as "))
            continue;
        flag_spelling(f, spelling, sizeof spelling);
        snprintf(word, sizeof word, flag_is_needed(f) ? "%s%s" : "[%s]%s", spelling, flag_repeats(f) ? "..." : "");
        if (column + 1 + (int)strlen(word) > width) column = fprintf(out, "\n%*s", indent - 1, "") - 1;
        column += fprintf(out, " %s", word);
    }
    fputc('\n', out);
}

/* Four lines that most first days need. */
static const char help_examples[] =
    "Fine-tune a Hugging Face model with a file of questions and answers, and take it to llama.cpp:\n\n"
    "    ralo train --model DIR --data train.jsonl --epochs 3 --lora 16 --out tuned\n"
    "    ralo eval tuned --data test.jsonl\n"
    "    ralo chat tuned\n"
    "    ralo export tuned tuned.gguf\n";

static void print_overview(FILE *out) {
    fprintf(out, "%s\n\n", help_about);
    for (size_t i = 0; command_at(i); i++) {
        const command *c = command_at(i);
        char usage[96];
        enum { USAGE_WIDTH = 32 };
        snprintf(usage, sizeof usage, "%s %s", c->name, c->arguments);
        if (strlen(usage) > USAGE_WIDTH) fprintf(out, "  ralo %s\n  %*s%s\n", usage, USAGE_WIDTH + 6, "", c->what);
        else fprintf(out, "  ralo %-*s %s\n", USAGE_WIDTH, usage, c->what);
    }
    fprintf(out, "\n%s\n", help_examples);
    fputs("  ralo COMMAND --help                   the flags of a command, and more about it\n"
          "  ralo --version\n\nExit codes:",
          out);
    const exit_code *e;
    for (size_t i = 0; (e = exit_code_at(i)); i++)
        fprintf(out, " %d %.*s%s", e->code, (int)strcspn(e->what, ":;"), e->what, exit_code_at(i + 1) ? "," : ".\n");
}

static void print_command(const command *c, int width, FILE *out) {
    strbuf facts;
    strbuf_init(&facts);
    usage_print(c, width, out);
    fprintf(out, "\n%s\n\n%s%s", c->what, c->details, *c->details ? "\n\n" : "");
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

static void preset_print(const model_config *c, FILE *out) {
    char buf[32];
    fprintf(out, "  %-16s %-11s %8s parameters, %lld layers, hidden %lld, %s\n", c->name,
            model_family_traits(c->family)->name, str_format_count(buf, (double)model_param_count(c)),
            (long long)c->n_layers, (long long)c->hidden,
            precision_name(c->is_16_bit ? PRECISION_BF16 : PRECISION_FP32));
}

/* Names that begin alike are one group; the last is what no other has. */
static void presets_print(FILE *out) {
    static const char *const groups[][2] = {{"gpt2", "GPT-2"},      {"llama", "Llama"},      {"smollm2", "SmolLM2"},
                                            {"mistral", "Mistral"}, {"phi-", "Phi"},         {"olmo-2", "OLMo 2"},
                                            {"gemma-", "Gemma"},    {"qwen2.5", "Qwen 2.5"}, {"qwen3", "Qwen 3"}};
    for (size_t k = 0; k <= ARRAY_LENGTH(groups); k++) {
        bool is_rest = k == ARRAY_LENGTH(groups);
        fprintf(out, "%s:\n", is_rest ? "Small ones, for tests and the built-in data" : groups[k][1]);
        for (size_t i = 0; model_preset_at(i); i++) {
            const model_config *c = model_preset_at(i);
            size_t of = 0;
            while (of < ARRAY_LENGTH(groups) && !str_starts_with(c->name, groups[of][0])) of++;
            if (of == k) preset_print(c, out);
        }
        fputc('\n', out);
    }
    fputs("Other spellings are taken too: Qwen3-8B, llama-3.1-8b, Qwen/Qwen3-8B-Base.\n", out);
    fputs("The last column is the precision that each is trained in unless precision is set: bf16 where the model was "
          "published\nin numbers of 16 bits. See ralo help precision.\n",
          out);
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

/* ---- lines for a terminal ------------------------------------------------------------------------------------------ */

/* Where the second column of a line begins, behind two spaces; or where the line itself does. */
static size_t second_column(const char *line, size_t n) {
    size_t first = strspn(line, " "), at = first;
    while (at + 1 < n && !(line[at] == ' ' && line[at + 1] == ' ')) at++;
    while (at < n && line[at] == ' ') at++;
    return at < n ? at : first;
}

static void print_wrapped(const char *line, size_t n, size_t width, FILE *out) {
    size_t indent = *line == ' ' ? second_column(line, n) : 0;
    size_t lead = strspn(line, " "), deepest = width / 4;
    if (indent > width / 2) indent = MIN(lead + 4, deepest);
    if (lead > deepest && lead < n && n > width) line += lead - indent, n -= lead - indent;
    for (size_t used = 0; used + n > width;) {
        size_t most = width - used, cut = most;
        while (cut > 0 && line[cut] != ' ') cut--;
        if (strspn(line, " ") >= cut) cut = most; /* one word wider than the terminal */
        fprintf(out, "%.*s\n%*s", (int)cut, line, (int)indent, "");
        line += cut, n -= cut;
        while (n > 0 && *line == ' ') line++, n--;
        used = indent;
    }
    fprintf(out, "%.*s\n", (int)n, line);
}

static int terminal_width(void) {
    struct winsize size = {0};
    enum { NARROWEST = 40 };
    bool is_known = isatty(STDOUT_FILENO) && ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0;
    return is_known && size.ws_col >= NARROWEST ? size.ws_col : 0;
}

/* Lines that begin at the margin are prose: one paragraph up to an empty line. */
static void print_page(char *text, int width) {
    for (char *p = text; *p; p++)
        if (*p == '\n' && p > text && p[1] > ' ') {
            char *start = p;
            while (start > text && start[-1] != '\n') start--;
            if (*start > ' ') *p = ' ';
        }
    for (size_t n; *text; text += n + (text[n] == '\n')) {
        n = strcspn(text, "\n");
        print_wrapped(text, n, (size_t)width, stdout);
    }
}

static void print_topic(const char *topic, const command *c, int width, FILE *out) {
    if (c) print_command(c, width, out);
    else if (!topic) print_overview(out);
    else if (strcmp(topic, "settings") == 0) config_print_help(out, "");
    else if (strcmp(topic, "presets") == 0) presets_print(out);
    else config_print_help(out, topic);
}

void help_print(const char *topic, const command *c) {
    int width = terminal_width();
    if (!width) {
        print_topic(topic, c, USAGE_COLUMNS, stdout);
        return;
    }
    char *text = NULL;
    size_t n = 0;
    FILE *page = open_memstream(&text, &n);
    ASSERT(page);
    print_topic(topic, c, MIN(width, (int)USAGE_COLUMNS), page);
    fclose(page);
    print_page(text, width);
    free(text);
}

/* ---- the command --------------------------------------------------------------------------------------------------- */

static status topic_unknown(const char *topic) {
    static const char *const others[] = {"settings", "presets", "man"};
    char group[64], last[64] = "";
    str_nearest nearest = {.wanted = topic};
    strbuf groups;
    strbuf_init(&groups);
    for (size_t i = 0; i < ARRAY_LENGTH(others); i++) str_nearest_try(&nearest, others[i]);
    for (size_t i = 0; command_at(i); i++) str_nearest_try(&nearest, command_at(i)->name);
    for (size_t i = 0; config_key(i); i++) {
        snprintf(group, sizeof group, "%.*s", (int)strcspn(config_key(i), "."), config_key(i));
        if (strcmp(group, last) == 0) continue;
        strcpy(last, group);
        str_nearest_try(&nearest, group);
        strbuf_printf(&groups, "%s%s", groups.length ? ", " : "", group);
    }
    char found[192];
    snprintf(found, sizeof found, "help: found '%.100s', expected a command, a setting or a group of settings", topic);
    status rc = *nearest.name ? ERR(ERR_INPUT, "%s; did you mean '%s'?", found, nearest.name)
                              : ERR(ERR_INPUT, "%s (%s); 'ralo --help' lists the commands", found, groups.text);
    strbuf_fini(&groups);
    return rc;
}

status command_help(command_line *l) {
    const char *topic = l->arguments[0];
    if (l->reference && topic)
        return ERR(ERR_INPUT, "help: found '%.100s' beside --reference, which writes every page; leave one out", topic);
    if (l->reference) return reference_write(l->reference);
    if (topic && strcmp(topic, "man") == 0) print_man(stdout);
    else if (!topic || strcmp(topic, "settings") == 0 || strcmp(topic, "presets") == 0) help_print(topic, NULL);
    else if (command_find(topic)) help_print(NULL, command_find(topic));
    else if (config_knows(topic)) help_print(topic, NULL);
    else if (strchr(topic, '.')) return config_unknown("help", topic);
    else return topic_unknown(topic);
    return OK;
}
