/* commands.c - commands.def as tables, and how a row is found. */
#include "cli/cli.h"

#include <string.h>

static const command commands[] = {
#define COMMAND(name, function, arguments, what, details) {name, function, arguments, what, details},
#define FLAG(...)
#define SHORTCUT(...)
#include "cli/commands.def"
#undef COMMAND
#undef FLAG
#undef SHORTCUT
};

static const flag flags[] = {
#define COMMAND(...)
#define FLAG(name, commands, value, type, range, initial, word, field, help)                                       \
    {name,                                                                                                         \
     commands,                                                                                                     \
     value,                                                                                                        \
     NULL,                                                                                                         \
     {name, offsetof(command_line, field), STORAGE_OF(command_line, field), TYPE_##type, range, initial, word, "", \
      help}},
#define SHORTCUT(name, commands, value, setting_key, text) \
    {name, commands, value, setting_key, {.key = name, .type = TYPE_TEXT, .initial = "", .help = text}},
#include "cli/commands.def"
#undef COMMAND
#undef FLAG
#undef SHORTCUT
};

_Static_assert(ARRAY_LENGTH(flags) <= MAX_FLAGS, "command_line.given has one entry per row");

const command *command_at(size_t i) { return i < ARRAY_LENGTH(commands) ? &commands[i] : NULL; }

const command *command_find(const char *name) {
    for (size_t i = 0; i < ARRAY_LENGTH(commands); i++)
        if (strcmp(commands[i].name, name) == 0) return &commands[i];
    return NULL;
}

status command_unknown(const char *name) {
    str_nearest nearest = {.wanted = name};
    for (size_t i = 0; i < ARRAY_LENGTH(commands); i++) str_nearest_try(&nearest, commands[i].name);
    if (!*nearest.name) return ERR(ERR_INPUT, "unknown command '%.100s'; 'ralo --help' lists them", name);
    return ERR(ERR_INPUT, "unknown command '%.100s'; did you mean '%s'? 'ralo --help' lists them", name, nearest.name);
}

const flag *flag_at(size_t i) { return i < ARRAY_LENGTH(flags) ? &flags[i] : NULL; }

bool flag_belongs(const flag *f, const command *c) {
    char name[32];
    if (strcmp(f->commands, "*") == 0) return true;
    for (const char *rest = f->commands; (rest = part_next(rest, ' ', name, sizeof name));)
        if (strcmp(name, c->name) == 0) return true;
    return false;
}

bool flag_is_needed(const flag *f) { return !f->key && strcmp(f->row.range, "must") == 0; }

const char *flag_dashes(const flag *f) { return f->name[1] ? "--" : "-"; }

const char *argument_next(const char *arguments, char *out, size_t n, bool *optional) {
    const char *rest = part_next(arguments, ' ', out, n);
    if (!rest) return NULL;
    size_t length = strlen(out);
    *optional = out[0] == '[';
    if (*optional) {
        memmove(out, out + 1, length);
        out[length - 2] = 0;
    }
    if (str_ends_with(out, "...")) out[strlen(out) - 3] = 0;
    return rest;
}

bool arguments_repeat(const command *c) { return strstr(c->arguments, "...") != NULL; }
