/* completion.c - ralo completion: scripts for bash and zsh, written from the tables.
 *
 * A script holds everything that it offers, so a completion starts no program and needs nothing but its shell.
 * bash's own COMP_WORDS are split at '=' and ':', so the line is split again at blanks. */
#include "cli/cli.h"

#include <string.h>

/* What may stand for a setting: names of a CHOICE, true and false, and the row's word. False: any text. */
static bool setting_candidates(const setting *s, strbuf *out) {
    char part[64];
    out->length = 0;
    if (s->type == TYPE_BOOL) strbuf_add(out, "true false");
    bool words = s->type == TYPE_CHOICE || s->type == TYPE_FORM;
    for (const char *rest = words ? s->range : NULL; (rest = part_next(rest, '|', part, sizeof part));)
        if (!strchr(part, ':')) strbuf_printf(out, "%s%.*s", out->length ? " " : "", (int)strcspn(part, "="), part);
    if (strcmp(s->key, "model.preset") == 0)
        for (size_t i = 0; model_preset_at(i); i++)
            strbuf_printf(out, "%s%s", out->length ? " " : "", model_preset_at(i)->name);
    bool closed = out->length > 0;
    if (part_next(s->word, '=', part, sizeof part)) strbuf_printf(out, "%s%s", out->length ? " " : "", part);
    if (!out->length) strbuf_add(out, "");
    return closed || s->type != TYPE_TEXT;
}

static void print_choices(FILE *out) {
    strbuf words;
    strbuf_init(&words);
    for (size_t i = 0; setting_at(i); i++) {
        const setting *s = setting_at(i);
        bool closed = setting_candidates(s, &words);
        fprintf(out, "    %s) offered='%s' files=%s ;;\n", s->key, words.text, closed ? "" : "1");
    }
    strbuf_fini(&words);
}

static void print_keys(FILE *out, const char *end) {
    for (size_t i = 0; setting_at(i); i++) fprintf(out, "%s%s%s", i ? " " : "", setting_at(i)->key, end);
}

static void print_presets(FILE *out) {
    for (size_t i = 0; model_preset_at(i); i++) fprintf(out, "%s%s", i ? " " : "", model_preset_at(i)->name);
}

static void print_commands(FILE *out) {
    for (size_t i = 0; command_at(i); i++) fprintf(out, "%s%s", i ? " " : "", command_at(i)->name);
}

static void print_machines(FILE *out) {
    for (size_t i = 0; hardware_at(i); i++) fprintf(out, "%s%s", i ? " " : "", hardware_at(i)->name);
}

enum { REPEATED = 15 }; /* an argument that may be given any number of times is offered this often */

/* Per command its flags, the flags that take a value with what it is called, and its arguments. */
static void print_cases(FILE *out) {
    for (size_t i = 0; command_at(i); i++) {
        const command *c = command_at(i);
        char name[64];
        bool optional;
        fprintf(out, "    %s)\n        flags='", c->name);
        for (size_t k = 0; flag_at(k); k++)
            if (flag_belongs(flag_at(k), c)) fprintf(out, "%s%s ", flag_dashes(flag_at(k)), flag_at(k)->name);
        fputs("'\n        values='", out);
        for (size_t k = 0; flag_at(k); k++)
            if (flag_belongs(flag_at(k), c) && *flag_at(k)->value)
                fprintf(out, "%s%s:%.*s ", flag_dashes(flag_at(k)), flag_at(k)->name,
                        (int)strcspn(flag_at(k)->value + (*flag_at(k)->value == '['),
                                     *flag_at(k)->value == '[' ? "=]" : ""),
                        flag_at(k)->value + (*flag_at(k)->value == '['));
        fputs("'\n        arguments='", out);
        for (const char *rest = c->arguments; (rest = argument_next(rest, name, sizeof name, &optional));)
            fprintf(out, "%s ", name);
        for (int k = 0; arguments_repeat(c) && k < REPEATED; k++) fprintf(out, "%s ", name);
        fputs("' ;;\n", out);
    }
}

/* What both shells understand: two functions that answer in variables. */
static void print_shared(FILE *out) {
    fputs("# What may be given for the setting $1: offered, and files=1 where any text may stand.\n"
          "_ralo_setting() {\n    offered= files=1\n    case $1 in\n",
          out);
    print_choices(out);
    fputs("    esac\n}\n\n"
          "# Flags, values of flags and arguments of the command $1.\n"
          "_ralo_command() {\n    flags= values= arguments=\n    case $1 in\n",
          out);
    print_cases(out);
    fputs("    esac\n}\n\n", out);
}

static const char bash_functions[] =
    "# Candidates for a value called $1 that begins with $2.\n"
    "_ralo_value() {\n"
    "    local kind offered files\n"
    "    local IFS='|'\n"
    "    for kind in $1; do\n"
    "        IFS=$' \\t\\n'\n"
    "        case $kind in\n"
    "        KEY=VALUE)\n"
    "            if [[ $2 == *=* ]]; then\n"
    "                _ralo_setting \"${2%%=*}\"\n"
    "                compgen -P \"${2%%=*}=\" -W \"$offered\" -- \"${2#*=}\"\n"
    "                [[ -z $files ]] || compgen -P \"${2%%=*}=\" -f -- \"${2#*=}\"\n"
    "            else\n"
    "                compgen -W \"$_ralo_keys\" -- \"$2\"\n"
    "            fi ;;\n"
    "        PRESET) compgen -W \"$_ralo_presets\" -- \"$2\" ;;\n"
    "        HARDWARE) compgen -W \"$_ralo_machines\" -- \"$2\" ;;\n"
    "        COMMAND) compgen -W \"$_ralo_commands\" -- \"$2\" ;;\n"
    "        SETTING) compgen -W \"${_ralo_keys//=/}\" -- \"$2\" ;;\n"
    "        FILE | CONFIG) compgen -f -- \"$2\" ;;\n"
    "        DIR | RUN | CHECKPOINT) compgen -d -- \"$2\" ;;\n"
    "        *[a-z]*) compgen -W \"$kind\" -- \"$2\" ;;\n"
    "        esac\n"
    "    done\n"
    "}\n\n"
    "_ralo() {\n"
    "    local line=${COMP_LINE:0:COMP_POINT} words=() word flag kind='' prefix='' n=0 i flags values arguments\n"
    "    read -ra words <<<\"$line\"\n"
    "    [[ $line == *[[:space:]] ]] && words+=('')\n"
    "    local cur=${words[${#words[@]} - 1]}\n"
    "    COMPREPLY=()\n"
    "    if ((${#words[@]} <= 2)); then\n"
    "        mapfile -t COMPREPLY < <(compgen -W \"$_ralo_commands --help --version\" -- \"$cur\")\n"
    "        return\n"
    "    fi\n"
    "    _ralo_command \"${words[1]}\"\n"
    "    # Is the last word the value of a flag? If not, which argument is it?\n"
    "    for ((i = 2; i < ${#words[@]}; i++)); do\n"
    "        word=${words[i]}\n"
    "        if [[ $word == -* ]]; then\n"
    "            flag=${word%%=*} kind=''\n"
    "            [[ \" $values\" == *\" $flag:\"* ]] && kind=${values#*\"$flag:\"} && kind=${kind%% *}\n"
    "            if [[ -n $kind && $word != *=* ]]; then\n"
    "                ((i + 1 < ${#words[@]})) || kind=''\n"
    "                ((++i + 1 < ${#words[@]})) && kind=''\n"
    "            elif [[ $word != *=* ]] || ((i + 1 < ${#words[@]})); then\n"
    "                kind=''\n"
    "            else\n"
    "                prefix=$flag= cur=${word#*=}\n"
    "            fi\n"
    "        elif ((i + 1 < ${#words[@]})); then\n"
    "            ((++n))\n"
    "        fi\n"
    "    done\n"
    "    if [[ -z $kind && $cur == -* ]]; then\n"
    "        mapfile -t COMPREPLY < <(compgen -W \"$flags\" -- \"$cur\")\n"
    "        return\n"
    "    fi\n"
    "    if [[ -z $kind ]]; then\n"
    "        read -ra words <<<\"$arguments\"\n"
    "        kind=${words[n]-}\n"
    "    fi\n"
    "    [[ -n $kind ]] || return\n"
    "    mapfile -t COMPREPLY < <(_ralo_value \"$kind\" \"$cur\" | sort -u)\n"
    "    # bash replaces what follows the last '=' or ':' of the line only.\n"
    "    local whole=$prefix$cur stem\n"
    "    stem=${whole%\"${whole##*[=:]}\"}\n"
    "    for i in \"${!COMPREPLY[@]}\"; do\n"
    "        word=$prefix${COMPREPLY[i]}\n"
    "        COMPREPLY[i]=${word#\"$stem\"}\n"
    "    done\n"
    "    case $kind in\n"
    "    *FILE* | *CONFIG* | *DIR* | *RUN*) compopt -o filenames 2>/dev/null ;;\n"
    "    KEY=VALUE) [[ $cur == *=* ]] || compopt -o nospace 2>/dev/null ;;\n"
    "    esac\n"
    "}\n"
    "complete -F _ralo ralo\n";

static void print_bash(FILE *out) {
    fputs("# bash completion of ralo, written by `ralo completion bash`.\n\n", out);
    print_shared(out);
    fputs("_ralo_keys='", out);
    print_keys(out, "=");
    fputs("'\n_ralo_presets='", out);
    print_presets(out);
    fputs("'\n_ralo_machines='", out);
    print_machines(out);
    fputs("'\n_ralo_commands='", out);
    print_commands(out);
    fputs("'\n\n", out);
    fputs(bash_functions, out);
}

static void print_zsh(FILE *out) {
    fputs("#compdef ralo\n# zsh completion of ralo, written by `ralo completion zsh`.\n\n", out);
    print_shared(out);
    fputs("# Candidates for a value called $1.\n"
          "_ralo_value() {\n"
          "    local kind offered files key\n"
          "    for kind in ${(s:|:)1}; do\n"
          "        case $kind in\n"
          "        KEY=VALUE)\n"
          "            if [[ $PREFIX == *=* ]]; then\n"
          "                key=${PREFIX%%=*}\n"
          "                compset -P '*='\n"
          "                _ralo_setting $key\n"
          "                compadd -- ${=offered}\n"
          "                [[ -z $files ]] || _files\n"
          "            else\n"
          "                compadd -S '' -- ",
          out);
    print_keys(out, "=");
    fputs("\n            fi ;;\n"
          "        PRESET) compadd -- ",
          out);
    print_presets(out);
    fputs(" ;;\n        HARDWARE) compadd -- ", out);
    print_machines(out);
    fputs(" ;;\n        COMMAND) compadd -- ", out);
    print_commands(out);
    fputs(" ;;\n        SETTING) compadd -- ", out);
    print_keys(out, "");
    fputs(" ;;\n"
          "        FILE | CONFIG) _files ;;\n"
          "        DIR | RUN | CHECKPOINT) _files -/ ;;\n"
          "        *[a-z]*) compadd -- $kind ;;\n"
          "        esac\n"
          "    done\n"
          "}\n\n"
          "_ralo() {\n"
          "    local flags values arguments word flag kind n=1 i\n"
          "    if ((CURRENT <= 2)); then\n"
          "        compadd -- --help --version ",
          out);
    print_commands(out);
    fputs("\n        return\n"
          "    fi\n"
          "    _ralo_command $words[2]\n"
          "    # Is the word at the cursor the value of a flag? If not, which argument is it?\n"
          "    for ((i = 3; i <= CURRENT; i++)); do\n"
          "        word=$words[i] kind=\n"
          "        if [[ $word == -* ]]; then\n"
          "            flag=${word%%=*}\n"
          "            [[ \" $values\" == *\" $flag:\"* ]] && kind=${values#*\"$flag:\"} && kind=${kind%% *}\n"
          "            if [[ -n $kind && $word != *=* ]]; then\n"
          "                ((i++ < CURRENT)) || kind=\n"
          "                ((i < CURRENT)) && kind=\n"
          "            elif ((i < CURRENT)); then\n"
          "                kind=\n"
          "            elif [[ -n $kind ]]; then\n"
          "                compset -P 1 '*='\n"
          "            fi\n"
          "        elif ((i < CURRENT)); then\n"
          "            ((n++))\n"
          "        fi\n"
          "    done\n"
          "    if [[ -z $kind && $PREFIX == -* ]]; then\n"
          "        compadd -- ${=flags}\n"
          "        return\n"
          "    fi\n"
          "    [[ -n $kind ]] || kind=${${=arguments}[n]}\n"
          "    [[ -z $kind ]] || _ralo_value $kind\n"
          "}\n\n"
          "_ralo \"$@\"\n",
          out);
}

status command_completion(command_line *l) {
    const char *shell = l->arguments[0];
    if (strcmp(shell, "bash") == 0) print_bash(stdout);
    else if (strcmp(shell, "zsh") == 0) print_zsh(stdout);
    else return ERR(ERR_INPUT, "completion: found '%.100s', expected bash or zsh", shell);
    return OK;
}
