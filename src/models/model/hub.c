/* hub.c - a model by its name on the Hugging Face hub, from the cache of huggingface_hub on this machine.
 *
 *     HUB/models--Qwen--Qwen3-0.6B/refs/main                 the commit that the branch was at when it was downloaded
 *     HUB/models--Qwen--Qwen3-0.6B/snapshots/COMMIT/         links to its files
 * HUB is $HF_HUB_CACHE, else $HF_HOME/hub, else $XDG_CACHE_HOME/huggingface/hub, else ~/.cache/huggingface/hub. Nothing is
 * downloaded here. Names and commits come from outside: only letters, digits and ._- may be in them, so neither leads out
 * of the cache. */
#include "model/model.h"

#include <dirent.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static bool is_plain(const char *text, size_t n) {
    for (size_t i = 0; i < n; i++)
        if (!strchr("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-", text[i]) || !text[i])
            return false;
    return n > 0 && n <= 96 && text[0] != '.';
}

bool model_hub_name(const char *text) {
    const char *slash = strchr(text, '/');
    return slash && is_plain(text, (size_t)(slash - text)) && is_plain(slash + 1, strlen(slash + 1));
}

static void hub_directory(strbuf *out) {
    static const struct {
        const char *variable, *below;
    } places[] = {{"HF_HUB_CACHE", ""},
                  {"HF_HOME", "/hub"},
                  {"XDG_CACHE_HOME", "/huggingface/hub"},
                  {"HOME", "/.cache/huggingface/hub"}};
    for (size_t i = 0; i < ARRAY_LENGTH(places); i++) {
        const char *value = getenv(places[i].variable);
        if (!value || !*value) continue;
        strbuf_printf(out, "%s%s", value, places[i].below);
        return;
    }
}

/* The commit of the branch main, else the only snapshot there is; "": neither. */
static void find_commit(const char *repository, strbuf *out) {
    enum { COMMIT_MOST = 96 };
    char *text = NULL;
    size_t n = 0, found = 0;
    strbuf path;
    strbuf_init(&path);
    strbuf_printf(&path, "%s/refs/main", repository);
    if (file_read_all(path.text, COMMIT_MOST, &text, &n) == OK) {
        while (n > 0 && (text[n - 1] == '\n' || text[n - 1] == '\r' || text[n - 1] == ' ')) n--;
        if (is_plain(text, n)) strbuf_add_bytes(out, text, n);
        free(text);
    }
    error_clear();
    path.length = 0;
    strbuf_printf(&path, "%s/snapshots", repository);
    DIR *d = out->length ? NULL : opendir(path.text);
    for (struct dirent *e; d && (e = readdir(d));) {
        if (!is_plain(e->d_name, strlen(e->d_name))) continue;
        out->length = 0;
        if (++found > 1) break;
        strbuf_add(out, e->d_name);
    }
    if (d) closedir(d);
    strbuf_fini(&path);
}

bool model_hub_find(const char *name, strbuf *out) {
    strbuf repository, commit;
    const char *slash = strchr(name, '/');
    bool found = false;
    if (!model_hub_name(name)) return false;
    strbuf_init(&repository);
    strbuf_init(&commit);
    hub_directory(&repository);
    strbuf_printf(&repository, "/models--%.*s--%s", (int)(slash - name), name, slash + 1);
    find_commit(repository.text, &commit);
    if (commit.length > 0) {
        size_t before = out->length;
        strbuf_printf(out, "%s/snapshots/%s", repository.text, commit.text);
        found = model_dir_is(out->text + before);
        if (!found) out->length = before;
    }
    strbuf_fini(&commit);
    strbuf_fini(&repository);
    return found;
}
