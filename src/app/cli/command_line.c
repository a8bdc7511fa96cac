/* command_line.c - parse the command line by the rows of commands.def.
 *
 * CONFIG is read before any flag, wherever it is on the line: the command line overrides the file. A file of another
 * program is translated last and overrides neither.
 * Refused: flags of other commands (with the nearest flag), values out of range, too many or too few arguments. */
#include "checkpoint/checkpoint.h"
#include "cli/cli.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static bool takes_settings(const command *c) {
    for (size_t i = 0; flag_at(i); i++)
        if (flag_at(i)->key && flag_belongs(flag_at(i), c)) return true;
    return false;
}

/* "--steps" for train.steps: the settings whose last part is this word, at most three of them. */
static size_t settings_called(const char *typed, strbuf *out) {
    char word[64];
    size_t n = 0;
    snprintf(word, sizeof word, "%s", typed);
    for (char *p = word; *p; p++)
        if (*p == '-') *p = '_';
    for (size_t i = 0; setting_at(i); i++)
        if (strcmp(str_after_last_dot(setting_at(i)->key), word) == 0 && n++ < 3)
            strbuf_printf(out, "%s--set %s=VALUE", n > 1 ? " or " : "", setting_at(i)->key);
    return n;
}

static status refuse_flag(const command *c, const char *given) {
    const char *name = given + strspn(given, "-");
    size_t length = strcspn(name, "=");
    char typed[64];
    snprintf(typed, sizeof typed, "%.*s", (int)MIN(length, sizeof typed - 1), name);
    str_nearest nearest = {.wanted = typed};
    for (size_t i = 0; flag_at(i); i++)
        if (flag_belongs(flag_at(i), c) && flag_at(i)->name[1]) str_nearest_try(&nearest, flag_at(i)->name);
    for (size_t i = 0; !typed[1] && !*nearest.name && flag_at(i); i++) /* -o is --out elsewhere */
        if (flag_belongs(flag_at(i), c) && flag_at(i)->name[0] == typed[0])
            snprintf(nearest.name, sizeof nearest.name, "%s", flag_at(i)->name);
    if (takes_settings(c) && config_knows(typed))
        return ERR(ERR_INPUT, "%s: unknown option '%.100s'; give a setting as --set %s=VALUE", c->name, given, typed);
    strbuf how;
    strbuf_init(&how);
    if (takes_settings(c) && config_foreign_names.explain_key(typed, true, &how)) {
        status rc = ERR(ERR_INPUT, "%s: unknown option '%.100s'; %s", c->name, given, how.text);
        strbuf_fini(&how);
        return rc;
    }
    if (takes_settings(c) && settings_called(typed, &how) > 0) {
        status rc = ERR(ERR_INPUT, "%s: unknown option '%.100s'; give %s", c->name, given, how.text);
        strbuf_fini(&how);
        return rc;
    }
    strbuf_fini(&how);
    if (*nearest.name)
        return ERR(ERR_INPUT, "%s: unknown option '%.100s'; did you mean '--%s'? 'ralo %s --help' lists them", c->name,
                   given, nearest.name, c->name);
    return ERR(ERR_INPUT, "%s: unknown option '%.100s'; 'ralo %s --help' lists them%s", c->name, given, c->name,
               takes_settings(c) ? ", give settings as --set KEY=VALUE" : "");
}

/* --top_p is --top-p, as users of Python write it. */
static bool is_same_name(const char *name, const char *typed, size_t length) {
    for (size_t i = 0; i < length; i++)
        if (name[i] != typed[i] && !(name[i] == '-' && typed[i] == '_')) return false;
    return true;
}

/* The flag that argv[i] names; value: what stands after its '=', or NULL. */
static const flag *flag_of(const command *c, const char *given, const char **value) {
    const char *name = given + (given[1] == '-' ? 2 : 1), *equals = strchr(name, '=');
    size_t length = equals ? (size_t)(equals - name) : strlen(name);
    *value = equals ? equals + 1 : NULL;
    for (size_t i = 0; flag_at(i); i++) {
        const flag *f = flag_at(i);
        bool dashes = given[1] == '-' || length == 1; /* one dash serves names of one letter */
        if (dashes && flag_belongs(f, c) && strlen(f->name) == length && is_same_name(f->name, name, length)) return f;
    }
    return NULL;
}

static status store_text(command_line *l, const flag *f, const char *where, const char *key, const char *text) {
    void *field = (char *)l + f->row.offset;
    if (*text == 0 && strcmp(f->row.range, "any") != 0)
        return ERR(ERR_INPUT, "%s: %s: found '', expected %s", where, key, f->value);
    if (f->row.storage == STORE_TEXT) {
        *(const char **)field = text;
        return OK;
    }
    text_list *list = field;
    list->items = array_grow(list->items, &list->capacity, list->n + 1, sizeof *list->items);
    list->items[list->n++] = text;
    return OK;
}

static status apply(command_line *l, const flag *f, const char *text) {
    char key[64];
    /* Of other flags the last one counts; several adapters are for generate alone. */
    if (strcmp(f->name, "adapter") == 0 && f->row.storage == STORE_TEXT && l->given[f - flag_at(0)])
        return ERR(ERR_INPUT, "%s: found a second --adapter, '%.300s', expected one: the model is run with one adapter",
                   l->command->name, text);
    l->given[f - flag_at(0)] = true;
    const char *otherwise = strchr(f->value, '=');
    if (!text && *f->value == '[' && otherwise) /* [VALUE=16], and none stands there */
        text = arena_format(&l->memory, "%.*s", (int)strcspn(otherwise + 1, "]"), otherwise + 1);
    if (!text && *f->value) return OK; /* [VALUE], and none stands there */
    snprintf(key, sizeof key, "%s%s", flag_dashes(f), f->name);
    if (f->key) {
        if (*f->key == 0) return config_set(&l->config, text, key);
        return config_set(&l->config, arena_format(&l->memory, "%s=%s", f->key, text), key);
    }
    if (f->row.type == TYPE_BOOL) {
        *(bool *)((char *)l + f->row.offset) = true;
        return OK;
    }
    if (f->row.type == TYPE_TEXT) return store_text(l, f, l->command->name, key, text);
    return setting_store(&f->row, l, &l->memory, -1, text, false, l->command->name, key);
}

static void defaults(command_line *l) {
    for (size_t i = 0; flag_at(i); i++) {
        const flag *f = flag_at(i);
        if (f->key || f->row.storage == STORE_LIST) continue;
        if (f->row.storage == STORE_TEXT) {
            *(const char **)((char *)l + f->row.offset) = *f->row.initial ? f->row.initial : NULL;
            continue;
        }
        status rc = setting_store(&f->row, l, &l->memory, -1, f->row.initial, false, "commands.def", f->name);
        ASSERT(rc == OK);
    }
}

/* Every argument has a place in the row, and every required place is filled. */
static status check_arguments(const command_line *l, size_t n_given, const char *surplus) {
    const command *c = l->command;
    char name[64];
    bool optional;
    size_t n = 0;
    for (const char *rest = c->arguments; (rest = argument_next(rest, name, sizeof name, &optional)); n++)
        if (!optional && n >= n_given)
            return ERR(ERR_INPUT, "%s: found no %s, expected: ralo %s %s", c->name, name, c->name, c->arguments);
    if (!surplus) return OK;
    return ERR(ERR_INPUT, "%s: found one argument too many, '%.100s'%s%.100s%s, expected: ralo %s%s%s", c->name,
               surplus, n ? " after '" : "", n ? l->arguments[n - 1] : "", n ? "'" : "", c->name, n ? " " : "",
               c->arguments);
}

/* generate RUN, chat RUN, eval RUN: what --model names, without the flag. A Hugging Face directory is as good. */
static status use_model_argument(command_line *l) {
    const char *model = l->arguments[0];
    status (*run)(command_line *) = l->command->run;
    bool takes_model = run == command_generate || run == command_chat || run == command_eval;
    if (!takes_model || !model || strcmp(model, "-") == 0) return OK;
    if (l->generation.source)
        return ERR(ERR_INPUT, "%s: found '%.100s' and --model %.100s, expected one model%s", l->command->name, model,
                   l->generation.source, run == command_generate ? "; a prompt is given with --prompt" : "");
    l->generation.source = model;
    for (size_t i = 0; flag_at(i); i++)
        if (strcmp(flag_at(i)->name, "model") == 0 && flag_belongs(flag_at(i), l->command)) l->given[i] = true;
    memmove(l->arguments, l->arguments + 1, sizeof l->arguments - sizeof *l->arguments);
    l->arguments[MAX_ARGUMENTS - 1] = NULL;
    return OK;
}

static status check_needed(const command_line *l) {
    for (size_t i = 0; flag_at(i); i++) {
        const flag *f = flag_at(i);
        if (flag_is_needed(f) && flag_belongs(f, l->command) && !l->given[i])
            return ERR(ERR_INPUT, "%s: %s%s is missing: %s", l->command->name, flag_dashes(f), f->name, f->row.help);
    }
    return OK;
}

/* --config FILE is CONFIG. */
static status use_config_flag(command_line *l) {
    if (!l->config_path) return OK;
    if (l->arguments[0])
        return ERR(ERR_INPUT, "%s: found CONFIG '%.100s' and --config %.100s, expected one of them", l->command->name,
                   l->arguments[0], l->config_path);
    l->arguments[0] = l->config_path;
    return OK;
}

static size_t arguments_most(const command *c) {
    char name[64];
    bool optional;
    size_t n = 0;
    for (const char *rest = c->arguments; (rest = argument_next(rest, name, sizeof name, &optional)); n++) {}
    ASSERT(n <= MAX_ARGUMENTS);
    return n;
}

/* --live CONFIG: a value that may be left out is taken for one only where it looks like it. */
static bool is_address(const char *text) {
    const char *colon = strrchr(text, ':'), *port = colon ? colon + 1 : text;
    return *port && strspn(port, "0123456789") == strlen(port);
}

/* The value of the flag argv[*i] without '=': the next word, if the flag takes a value. *i moves past it. */
static status find_value(const command_line *l, const flag *f, int *i, const char **value) {
    const char *name = l->command->name, *next = *i + 1 < l->argc ? l->argv[*i + 1] : NULL;
    bool takes_one = *f->value != 0, optional = *f->value == '[';
    if (!takes_one && *value) return ERR(ERR_INPUT, "%s: --%s takes no value, found '%.100s'", name, f->name, *value);
    if (!takes_one || *value) return OK;
    if (!next && !optional) return ERR(ERR_INPUT, "%s: %s needs a value: %s", name, l->argv[*i], f->value);
    bool is_number = next && next[0] == '-' && next[1] >= '0' && next[1] <= '9'; /* --lora -3: refused by its range */
    if (!next || (optional && next[0] == '-' && !is_number)) return OK;
    if (strcmp(f->value, "[ADDR:PORT]") == 0 && !is_address(next)) return OK;
    if (optional && f->row.type == TYPE_CHOICE && !f->key && (access(next, F_OK) == 0 || export_is_gguf_name(next)))
        return OK; /* --gguf RUN FILE */
    *value = next;
    (*i)++;
    return OK;
}

static void add_path(command_line *l, const char *path) {
    l->paths.items = array_grow(l->paths.items, &l->paths.capacity, l->paths.n + 1, sizeof *l->paths.items);
    l->paths.items[l->paths.n++] = path;
}

static bool has_checkpoint(const char *dir) {
    char newest[4096];
    if (checkpoint_find_newest_quietly(dir, newest, sizeof newest) == OK) return *newest != 0;
    error_clear();
    return false;
}

/* A name without the ending of a file is that of a run. */
static status refuse_absent(command_line *l, const char *path) {
    bool takes_run = l->command->run == command_train || l->command->run == command_plan;
    if (!takes_run || str_ends_with(path, ".yaml") || str_ends_with(path, ".yml") || str_ends_with(path, ".json"))
        return ERR(ERR_INPUT, "CONFIG %s: no such file; expected a file of settings in YAML or JSON", path);
    const char *slash = strrchr(path, '/'),
               *in = slash ? arena_format(&l->memory, "%.*s", (int)(slash - path), path) : ".";
    return ERR(ERR_INPUT,
               "%s: found no run and no file %s, expected the directory of a run to continue, or a file of settings in "
               "YAML or JSON; `ralo runs %s` lists the runs there",
               l->command->name, path, *in ? in : "/");
}

/* Users of programs that take a bare key=value are told how to write it here. */
static status read_config(command_line *l, const char *path) {
    if (strchr(path, '=') && access(path, F_OK) != 0)
        return ERR(ERR_INPUT, "%s: found '%.100s', expected a file; give a setting as --set %.100s", l->command->name,
                   path, path);
    if (access(path, F_OK) != 0 && model_preset_find(path))
        return ERR(ERR_INPUT, "%s: found '%s', expected a file of settings; give a model known by name as --preset %s",
                   l->command->name, path, path);
    struct stat st;
    if (stat(path, &st) == 0 && S_ISDIR(st.st_mode)) {
        const char *how = "";
        if (model_dir_is(path)) how = arena_format(&l->memory, "; a model is given with --set model.path=%s", path);
        else if (access(arena_format(&l->memory, "%s/config.yaml", path), F_OK) ==
                 0) /* of a command that takes no run */
            how = arena_format(&l->memory, ", such as %s/config.yaml", path);
        else if (has_checkpoint(path))
            how = arena_format(&l->memory,
                               "; it is a run without its config.yaml: give its settings again, and --resume %s", path);
        else if (access(arena_format(&l->memory, "%s/run.json", path), F_OK) == 0) /* killed while its model was read */
            how = "; it is a run that ended before its first step and has no config.yaml: give the command that began "
                  "it again";
        return ERR(ERR_INPUT, "%s: found the directory '%s', expected a file of settings%s", l->command->name, path,
                   how);
    }
    if (data_is_records(path) && !str_ends_with(path, ".json"))
        return ERR(ERR_INPUT, "%s: found '%s', expected a file of settings; data to train on is given with --data %s",
                   l->command->name, path, path);
    if (str_ends_with(path, ".gguf") || str_ends_with(path, ".safetensors"))
        return ERR(ERR_INPUT,
                   "%s: found '%s', expected a file of settings; a model is given by its directory: --model DIR",
                   l->command->name, path);
    if (access(path, F_OK) != 0 && errno == ENOENT) return refuse_absent(l, path);
    l->foreign.stage = l->stage, l->foreign.stages_dir = l->stages_dir;
    return foreign_read_config(&l->foreign, &l->config, path);
}

/* A directory of a run is given in the place of CONFIG, or by --resume alone: its own settings, and it goes on where it lies, wherever that
 * was when it began. */
static bool is_run(const command_line *l, const char *path) {
    strbuf file;
    if (l->command->run != command_train && l->command->run != command_plan) return false;
    if (model_dir_is(path)) return false; /* whatever else lies in it */
    strbuf_init(&file);
    strbuf_printf(&file, "%s/config.yaml", path);
    bool found = access(file.text, F_OK) == 0;
    strbuf_fini(&file);
    return found;
}

static status read_run(command_line *l, const char *dir) {
    TRY(read_config(l, arena_format(&l->memory, "%s/config.yaml", dir)));
    TRY(config_set(&l->config, arena_format(&l->memory, "run.dir=%s", dir), "RUN"));
    return config_set(&l->config, "run.resume=auto", "RUN");
}

/* What --resume says, before it is applied; NULL: nothing. */
static const char *resume_of(const command_line *l) {
    for (int i = 1; i < l->argc; i++) {
        const char *text, *given = l->argv[i];
        if (strcmp(given, "--") == 0) break;
        if (given[0] != '-' || !given[1]) continue;
        const flag *f = flag_of(l->command, given, &text);
        if (!f || !f->key || strcmp(f->key, "run.resume") != 0) continue;
        return text ? text : i + 1 < l->argc ? l->argv[i + 1] : NULL;
    }
    return NULL;
}

/* CONFIG, the run in its place, or the run that --resume names. */
static status read_settings(command_line *l) {
    const char *path = l->arguments[0], *resume = resume_of(l);
    if (path && is_run(l, path)) return read_run(l, path);
    if (path) return read_config(l, path);
    return resume && strcmp(resume, "auto") != 0 && is_run(l, resume) ? read_run(l, resume) : OK;
}

/* --resume RUN in the directory of that run is what auto means. */
static void resolve_resume(config *c) {
    if (*c->run.dir && strcmp(c->run.resume, c->run.dir) == 0) c->run.resume = "auto";
}

/* --hardware h100x8 means those eight, unless parallel.* says how many or a single plan is asked for. */
static void use_named_count(command_line *l) {
    bool single = l->longest || l->profile || l->timeline || l->program || l->dry_run;
    int64_t n = l->hardware ? hardware_named_count(l->hardware) : 0;
    if (l->command->run != command_plan || l->world || n < 2 || l->config.parallel.size[AXIS_DATA]) return;
    if (!single) l->world = (int)n;
    else if (!l->dry_run) log_info("planned for one of the %lld devices of %s", (long long)n, l->hardware);
}

status command_line_parse(command_line *l, const command *c, int argc, char **argv) {
    *l = (command_line){.command = c, .argc = argc, .argv = argv};
    arena_init(&l->memory);
    config_init(&l->config);
    foreign_init(&l->foreign);
    defaults(l);
    size_t most = arguments_most(c), n_given = 0;
    const char *surplus = NULL;
    bool is_config = str_starts_with(c->arguments, "[CONFIG]");
    for (int pass = 0; pass < 2; pass++) {
        bool flags_end = false;
        for (int i = 1; i < argc; i++) {
            const char *text;
            if (flags_end || argv[i][0] != '-' || argv[i][1] == 0) {
                if (pass == 1) continue;
                if (arguments_repeat(c)) add_path(l, argv[i]);
                if (n_given < most) l->arguments[n_given++] = argv[i];
                else if (!surplus && !arguments_repeat(c)) surplus = argv[i];
                continue;
            }
            if (strcmp(argv[i], "--") == 0) {
                flags_end = true;
                continue;
            }
            const flag *f = flag_of(c, argv[i], &text);
            if (!f) return refuse_flag(c, argv[i]);
            TRY(find_value(l, f, &i, &text));
            bool takes_value = *f->value != 0;
            bool reads_config =
                f->row.storage == STORE_TEXT && !f->key &&
                (strcmp(f->name, "stage") == 0 || strcmp(f->name, "dir") == 0 || strcmp(f->name, "config") == 0);
            if (pass == 1 || !takes_value || reads_config) TRY(apply(l, f, text));
        }
        if (l->help) return OK;
        if (pass == 1) break;
        if (is_config) TRY(use_config_flag(l));
        TRY(check_arguments(l, n_given, surplus));
        if (is_config) TRY(read_settings(l));
    }
    TRY(use_model_argument(l));
    TRY(check_needed(l));
    if (is_config && !l->arguments[0] && (l->stage || l->stages_dir))
        return ERR(ERR_INPUT, "%s: --%s is about a CONFIG with stages, and none is given", c->name,
                   l->stage ? "stage" : "dir");
    if (!takes_settings(c)) return OK;
    if (l->deepspeed) TRY(foreign_read_deepspeed(&l->foreign, l->deepspeed));
    int rank = 0, launched = 0;
    bool is_rank = comm_launched(&rank, &launched);
    use_named_count(l);
    l->foreign.n_ranks = is_rank ? launched : MAX(l->ranks, l->world);
    TRY(foreign_apply(&l->foreign, &l->config));
    resolve_resume(&l->config);
    config_resolve(&l->config);
    bool launches = l->ranks > 1 && !is_rank && !l->dry_run && !l->show_config; /* then the first rank prints it */
    l->config.warned_elsewhere = rank > 0 || launches;
    if (!l->config.warned_elsewhere && !l->quiet) foreign_print(&l->foreign, &l->config, stderr);
    if (c->run == command_reward) return OK; /* it makes no run, whose settings would have to agree */
    return config_check(&l->config);
}

void command_line_fini(command_line *l) {
    for (size_t i = 0; flag_at(i); i++)
        if (flag_at(i)->row.storage == STORE_LIST && !flag_at(i)->key) {
            text_list *list = (text_list *)((char *)l + flag_at(i)->row.offset);
            free(list->items);
            *list = (text_list){0};
        }
    free(l->paths.items);
    foreign_fini(&l->foreign);
    config_fini(&l->config);
    arena_fini(&l->memory);
}

bool command_line_given(const command_line *l, const char *name) {
    for (size_t i = 0; flag_at(i); i++)
        if (l->given[i] && strcmp(flag_at(i)->name, name) == 0) return true;
    return false;
}
