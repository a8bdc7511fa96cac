/* file_list.c - data.source as a list of files with weights.
 *
 *     shards/part-?.jsonl, more/            every file of a pattern; of a directory those that end in a name that data has
 *     corpus.txt, chat.jsonl              counted by their size
 *     corpus.txt:0.3, chat.jsonl:0.7      three rows of ten, seven rows of ten
 *     odd\:name\:1, with\,comma.txt       a backslash takes the character after it as it is
 * Spaces around a name do not belong to it. A ":" with a number after it at the end of a name is a weight; any other
 * ":" is part of the name. */
#include "data/file_kind.h"
#include "data/source.h"

#include <dirent.h>
#include <errno.h>
#include <glob.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

void file_list_free(file_entry *entries, size_t n) {
    for (size_t i = 0; i < n; i++) free(entries[i].path);
    free(entries);
}

/* Takes ":0.7" off the end of the text; false: it has no weight. */
static bool take_weight(span *text, double *out) {
    char number[64], *end;
    size_t colon = text->length;
    while (colon > 0 && text->text[colon - 1] != ':') colon--;
    size_t n = text->length - colon;
    if (colon < 2 || text->text[colon - 2] == '\\' || n == 0 || n >= sizeof number) return false;
    memcpy(number, text->text + colon, n);
    number[n] = 0;
    if (number[strspn(number, "0123456789.eE+-")] || !strpbrk(number, "0123456789")) return false;
    *out = strtod(number, &end);
    if (*end) return false;
    text->length = colon - 1;
    return true;
}

static span trim(span s) {
    while (s.length && (s.text[0] == ' ' || s.text[0] == '\t')) s.text++, s.length--;
    while (s.length && (s.text[s.length - 1] == ' ' || s.text[s.length - 1] == '\t') &&
           !(s.length > 1 && s.text[s.length - 2] == '\\'))
        s.length--;
    return s;
}

static char *unescape(span s) {
    char *out = mem_alloc(s.length + 1);
    size_t n = 0;
    for (size_t i = 0; i < s.length; i++) {
        if (s.text[i] == '\\' && i + 1 < s.length) i++;
        out[n++] = s.text[i];
    }
    return out;
}

static status add_entry(const char *source, span text, file_entry *out) {
    text = trim(text);
    bool weighted = take_weight(&text, &out->weight);
    text = trim(text);
    if (text.length == 0)
        return ERR(ERR_INPUT, "data source '%.500s': found an empty name, expected files separated by single commas",
                   source);
    if (weighted && !(out->weight > 0 && isfinite(out->weight)))
        return ERR(ERR_INPUT, "data source '%.500s': found the weight %g of '%.*s', expected a number above 0", source,
                   out->weight, (int)MIN(text.length, 200), text.text);
    if (!weighted) out->weight = 0;
    out->path = unescape(text);
    if (str_starts_with(out->path, "builtin:"))
        return ERR(ERR_INPUT,
                   "data source '%.500s': found %s in a list, expected files: a built-in source must be the only one",
                   source, out->path);
    return OK;
}

enum { NESTED_MOST = 4 }; /* directories, with the first */

/* ---- patterns and directories ---------------------------------------------------------------------------------- */

typedef struct path_list {
    char **paths;
    size_t n, capacity;
} path_list;

static void path_list_add(path_list *l, char *path) {
    l->paths = array_grow(l->paths, &l->capacity, l->n + 1, sizeof *l->paths);
    l->paths[l->n++] = path;
}

/* By bytes, not by the language of the user: the order of files is the order of rows. */
static int compare_paths(const void *a, const void *b) {
    const char *const *x = a, *const *y = b;
    return strcmp(*x, *y);
}

/* A model, a run or a checkpoint has files with names of data, which are none. */
static status refuse_model(const char *path) {
    static const struct {
        const char *file, *what;
    } marks[] = {{"checkpoint.json", "a checkpoint"}, {"run.json", "a run"},
                 {"metrics.jsonl", "a run"},          {"adapter_config.json", "an adapter"},
                 {"model.safetensors", "a model"},    {"model.safetensors.index.json", "a model"}};
    for (size_t i = 0; i < ARRAY_LENGTH(marks); i++)
        if (dir_holds(path, marks[i].file))
            return ERR(
                ERR_INPUT,
                "data.source: found %s in the directory %s (%s), expected files of data; name text to train on with "
                "--data FILE, and the model to begin from with --model DIR",
                marks[i].what, path, marks[i].file);
    return OK;
}

/* What helps with a directory that holds nothing to train on. */
static void advise(const char *path, strbuf *out) {
    DIR *d = opendir(path);
    strbuf pattern;
    bool has_model = false;
    strbuf_init(&pattern);
    for (struct dirent *e; d && out->length == 0 && (e = readdir(d));) {
        const char *dot = strrchr(e->d_name, '.');
        if (!dot || dot == e->d_name) continue;
        has_model |= strcmp(dot, ".gguf") == 0 || strcmp(dot, ".safetensors") == 0 || strcmp(dot, ".pt") == 0;
        pattern.length = 0;
        strbuf_printf(&pattern, "%s/*%s", path, dot);
        data_name_columnar(pattern.text, e->d_name, out);
    }
    if (d) closedir(d);
    if (out->length == 0 && has_model)
        strbuf_add(out,
                   "a model is no data: name its directory with --model DIR, and text to train on with --data FILE");
    if (out->length == 0) strbuf_printf(out, "name others one by one, or by a pattern: %s/*", path);
    strbuf_fini(&pattern);
}

static status no_data(const char *path) {
    strbuf advice;
    strbuf_init(&advice);
    advise(path, &advice);
    status rc = ERR(ERR_INPUT,
                    "data.source: found no file of data in the directory %s, expected some that end in .jsonl, .json, "
                    ".ndjson, .csv, .tsv, .txt, .text or .md (or those with .gz or .zst); %s",
                    path, advice.text);
    strbuf_fini(&advice);
    return rc;
}

/* The first file of data in a directory below, at most three deep; budget: entries that are still looked at. */
static bool find_nested(const char *path, int depth, int *budget, strbuf *out) {
    DIR *d = depth > 0 ? opendir(path) : NULL;
    bool found = false;
    for (struct dirent *e; d && !found && --*budget > 0 && (e = readdir(d));) {
        struct stat s;
        if (e->d_name[0] == '.') continue;
        strbuf below;
        strbuf_init(&below);
        strbuf_printf(&below, "%s%s%s", path, str_ends_with(path, "/") ? "" : "/", e->d_name);
        bool is_there = stat(below.text, &s) == 0;
        found = is_there && S_ISREG(s.st_mode) && depth < NESTED_MOST && data_is_data_name(e->d_name);
        if (found) strbuf_add(out, below.text);
        else if (is_there && S_ISDIR(s.st_mode)) found = find_nested(below.text, depth - 1, budget, out);
        strbuf_fini(&below);
    }
    if (d) closedir(d);
    return found;
}

static status refuse_nested(const char *path) {
    enum { LOOKED_AT = 10000 };
    strbuf file;
    strbuf_init(&file);
    int budget = LOOKED_AT;
    status rc = OK;
    if (find_nested(path, NESTED_MOST, &budget, &file))
        rc = ERR(ERR_INPUT,
                 "data.source: found data in directories below %s (%s), which a directory does not include; name "
                 "them, or the files by patterns: %s/*/*%s",
                 path, file.text, path, strrchr(file.text, '.'));
    strbuf_fini(&file);
    return rc;
}

/* A README beside records is not to be trained on, nor left out in silence. */
static status refuse_mixed(const char *path, const path_list *files) {
    const char *records = NULL, *text = NULL;
    for (size_t i = 0; i < files->n; i++) *(data_is_records(files->paths[i]) ? &records : &text) = files->paths[i];
    if (!records || !text) return OK;
    return ERR(ERR_INPUT,
               "data.source: found records (%s) and text (%s) in the directory %s, expected files of one kind; name "
               "those to train on, or a pattern: %s/*%s",
               records, text, path, path, strrchr(records, '.'));
}

static status list_directory(const char *path, path_list *out) {
    TRY(refuse_model(path));
    TRY(refuse_nested(path));
    DIR *d = opendir(path);
    if (!d) return ERR(ERR_IO, "data.source: open the directory %s: %s", path, strerror(errno));
    for (struct dirent *e; (e = readdir(d));) {
        struct stat s;
        strbuf file;
        if (!data_is_data_name(e->d_name)) continue;
        strbuf_init(&file);
        strbuf_printf(&file, "%s%s%s", path, str_ends_with(path, "/") ? "" : "/", e->d_name);
        if (stat(file.text, &s) == 0 && S_ISREG(s.st_mode)) path_list_add(out, mem_string(file.text));
        strbuf_fini(&file);
    }
    closedir(d);
    return out->n > 0 ? refuse_mixed(path, out) : no_data(path);
}

static status list_pattern(const char *pattern, path_list *out) {
    glob_t found = {0};
    int rc = glob(pattern, GLOB_NOSORT, NULL, &found);
    for (size_t i = 0; rc == 0 && i < found.gl_pathc; i++) {
        struct stat s;
        if (stat(found.gl_pathv[i], &s) == 0 && !S_ISDIR(s.st_mode)) path_list_add(out, mem_string(found.gl_pathv[i]));
    }
    globfree(&found);
    if (out->n > 0) return OK;
    return ERR(ERR_INPUT,
               "data.source: found no file that matches %s, expected at least one; `ls %s` shows what is there",
               pattern, pattern);
}

/* The files that an entry stands for; none: itself. A name that exists is no pattern, whatever is in it. */
static status expand(const file_entry *e, path_list *out) {
    struct stat s;
    bool exists = stat(e->path, &s) == 0;
    if (exists && S_ISDIR(s.st_mode)) TRY(list_directory(e->path, out));
    else if (!exists && strpbrk(e->path, "*?[")) TRY(list_pattern(e->path, out));
    if (out->n > 1 && e->weight > 0)
        return ERR(ERR_INPUT,
                   "data.source: found the weight %g for the %zu files of %s, expected weights for single files only",
                   e->weight, out->n, e->path);
    if (out->n > 1) qsort(out->paths, out->n, sizeof *out->paths, compare_paths);
    return OK;
}

/* Replaces the last entry by the files that it stands for. */
static status expand_last(file_entry **entries, size_t *n, size_t *capacity) {
    path_list files = {0};
    file_entry *last = &(*entries)[*n - 1];
    status rc = expand(last, &files);
    if (rc == OK && files.n > 0) {
        double weight = last->weight;
        free(last->path);
        --*n;
        *entries = array_grow(*entries, capacity, *n + files.n, sizeof **entries);
        for (size_t i = 0; i < files.n; i++) (*entries)[(*n)++] = (file_entry){files.paths[i], weight};
        files.n = 0; /* the names are the entries' now */
    }
    for (size_t i = 0; i < files.n; i++) free(files.paths[i]);
    free(files.paths);
    return rc;
}

status file_list_parse(const char *source, file_entry **out, size_t *n) {
    size_t capacity = 0;
    *out = NULL;
    *n = 0;
    for (const char *at = source;; at++) {
        const char *end = at;
        while (*end && *end != ',') end += end[0] == '\\' && end[1] ? 2 : 1;
        *out = array_grow(*out, &capacity, *n + 1, sizeof **out);
        (*out)[*n] = (file_entry){0};
        TRY(add_entry(source, (span){at, (size_t)(end - at)}, &(*out)[(*n)++]));
        TRY(expand_last(out, n, &capacity));
        if (!*end) break;
        at = end;
    }
    for (size_t i = 1; i < *n; i++)
        if (((*out)[i].weight > 0) != ((*out)[0].weight > 0))
            return ERR(
                ERR_INPUT,
                "data source '%.500s': found a weight for '%s' and none for '%s', expected weights for all files "
                "or for none",
                source, (*out)[(*out)[0].weight > 0 ? 0 : i].path, (*out)[(*out)[0].weight > 0 ? i : 0].path);
    return OK;
}

status file_list_parse_eval(const char *source, file_entry **out, size_t *n) {
    TRY(file_list_parse(source, out, n));
    if ((*out)[0].weight > 0)
        return ERR(ERR_INPUT, "data.eval_source '%.500s': found a weight for '%s', expected files without weights",
                   source, (*out)[0].path);
    return OK;
}
