/* adapter.c - the directory of an adapter: is it one, which are below it, its tensors into a program. */
#include "weights/adapter.h"
#include "weights/match.h"

#include <dirent.h>
#include <stdlib.h>
#include <unistd.h>

enum { MOST_LISTED = 20 };

bool adapter_is_dir(const char *dir) { return dir_holds(dir, "adapter_config.json"); }

/* Directories of `dir` with an adapter in each, as PEFT saves several of one base. */
static size_t list_below(const char *dir, strbuf *names) {
    size_t n = 0;
    DIR *d = opendir(dir);
    if (!d) return 0;
    for (struct dirent *entry; (entry = readdir(d));) {
        strbuf path;
        strbuf_init(&path);
        strbuf_printf(&path, "%s/%s", dir, entry->d_name);
        bool found = entry->d_name[0] != '.' && adapter_is_dir(path.text);
        strbuf_fini(&path);
        if (!found) continue;
        if (n++ < MOST_LISTED) strbuf_printf(names, "%s%s", names->length ? ", " : "", entry->d_name);
    }
    closedir(d);
    return n;
}

bool adapter_is_run(const char *dir) { return dir_holds(dir, "checkpoint.json") || dir_holds(dir, "checkpoints"); }

/* or_run: a run or a checkpoint would do as well. */
static status not_found(const char *dir, bool or_run) {
    strbuf names;
    strbuf_init(&names);
    size_t n = list_below(dir, &names);
    status rc =
        n ? ERR(ERR_INPUT, "%s holds %zu adapter%s by name, expected one: give %s/NAME, where NAME is %s%s", dir, n,
                n == 1 ? "" : "s", dir, names.text, n > MOST_LISTED ? " ..." : "")
          : ERR(ERR_INPUT, "%s: found no adapter_config.json%s, expected PEFT's directory of an adapter%s", dir,
                or_run ? " and no checkpoint" : "",
                or_run ? ", or a run with model.lora" : "; `ralo export RUN DIR` makes one of a run with model.lora");
    strbuf_fini(&names);
    return rc;
}

status adapter_or_run_not_found(const char *dir) { return not_found(dir, true); }

/* A run keeps its adapters in checkpoints, which --adapter reads and model.adapter does not. */
status adapter_not_found(const char *dir) {
    if (!adapter_is_run(dir)) return not_found(dir, false);
    return ERR(
        ERR_INPUT,
        "model.adapter: found %s, which holds checkpoints of a run and no adapter_config.json, expected PEFT's "
        "directory of an adapter; if the run has model.lora, `ralo export %s DIR` makes one: set model.adapter=DIR",
        dir, dir);
}

status adapter_file_open(safetensors *file, const char *dir) {
    strbuf path;
    if (!dir_holds(dir, "adapter_model.safetensors"))
        return ERR(ERR_INPUT, "%s: found no adapter_model.safetensors, expected it beside adapter_config.json%s", dir,
                   dir_holds(dir, "adapter_model.bin")
                       ? "; adapter_model.bin is not read: save the adapter again with PEFT, which writes safetensors"
                       : "");
    strbuf_init(&path);
    strbuf_printf(&path, "%s/adapter_model.safetensors", dir);
    status rc = safetensors_open(file, path.text);
    strbuf_fini(&path);
    return rc;
}

/* e NULL: only checks. */
static status load(exec *e, const plan *p, const char *dir, const char *model) {
    adapter_config config;
    safetensors file;
    TRY(adapter_config_read(&config, model_of(&p->net.source), dir));
    TRY(adapter_file_open(&file, dir));
    const safetensor **sources = mem_alloc(match_part_count(&p->net) * sizeof *sources);
    status rc = match_adapter(&p->net, &file, config.base[0] ? config.base : NULL, sources);
    if (rc == OK && e) rc = weights_move(e, p, sources, NULL);
    if (rc == OK && model) adapter_warn_base(&config, dir, model);
    free(sources);
    safetensors_close(&file);
    return rc;
}

status adapter_load_dir(exec *e, const plan *p, const char *dir) {
    TRY(load(e, p, dir, NULL));
    return OK;
}

status adapter_check_dir(const plan *p, const char *dir, const char *model) {
    TRY(load(NULL, p, dir, model));
    return OK;
}
