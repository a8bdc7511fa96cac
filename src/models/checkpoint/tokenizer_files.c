/* tokenizer_files.c - which files belong to a tokenizer, read from a user's directory or a checkpoint, and written.
 *
 * The list of names is fixed: nothing else of a directory is copied. Sizes are limited. */
#include "checkpoint/seal.h"
#include "checkpoint/directory.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#define TEMPLATES "additional_chat_templates"
enum { FILE_MOST = 256 << 20, ALL_MOST = 512 << 20, TEMPLATES_MOST = 64, NAME_MOST = 255 };

static const char *const names[] = {
    "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json", "vocab.json",
    "merges.txt",     "tokenizer.model",       "chat_template.jinja"};

/* The part of a template's name after the directory; NULL: it is no such name. */
static const char *template_name(const char *name) {
    if (!str_starts_with(name, TEMPLATES "/")) return NULL;
    const char *file = name + strlen(TEMPLATES "/");
    size_t n = strlen(file);
    bool plain = n <= NAME_MOST && file[0] != '.' && !strchr(file, '/') && str_ends_with(file, ".jinja");
    return plain && utf8_check(file, n).n_valid == n ? file : NULL;
}

static bool is_known(const char *name) {
    for (size_t i = 0; i < ARRAY_LENGTH(names); i++)
        if (strcmp(name, names[i]) == 0) return true;
    return template_name(name) != NULL;
}

static const tokenizer_copy *find(const tokenizer_files *t, const char *name) {
    for (size_t i = 0; i < t->n; i++)
        if (strcmp(t->items[i].name, name) == 0) return &t->items[i];
    return NULL;
}

static void tokenizer_files_init(tokenizer_files *t) {
    *t = (tokenizer_files){0};
    arena_init(&t->memory);
    t->items = arena_array(&t->memory, tokenizer_copy, ARRAY_LENGTH(names) + TEMPLATES_MOST);
}

void tokenizer_files_fini(tokenizer_files *t) {
    for (size_t i = 0; i < t->n; i++) free(t->items[i].bytes);
    arena_fini(&t->memory);
    *t = (tokenizer_files){0};
}

/* Takes fd over. */
static status add_file(tokenizer_files *t, const char *name, const char *path, int fd, uint64_t n_bytes,
                       bool contents) {
    status rc = OK;
    tokenizer_copy *item = &t->items[t->n];
    uint64_t sum = n_bytes;
    for (size_t i = 0; i < t->n; i++) sum += t->items[i].n_bytes;
    *item = (tokenizer_copy){.name = arena_string(&t->memory, name), .n_bytes = (size_t)n_bytes};
    if (n_bytes > FILE_MOST || sum > ALL_MOST)
        rc =
            ERR(ERR_INPUT, "%s: found %llu bytes, %llu with the other files, expected at most %d and %d of a tokenizer",
                path, (unsigned long long)n_bytes, (unsigned long long)sum, FILE_MOST, ALL_MOST);
    else if (contents) rc = file_read_fd(fd, path, FILE_MOST, &item->bytes, &item->n_bytes);
    close(fd);
    if (rc == OK) t->n++;
    return rc;
}

/* ---- from where a user pointed ---------------------------------------------------------------------------------- */

typedef struct place {
    char dir[PATH_MAX], blobs[PATH_MAX]; /* resolved; blobs "": there are none */
    const char *main;                    /* the tokenizer's own file, in dir */
} place;

static bool is_inside(const char *path, const char *dir) {
    return *dir && str_starts_with(path, dir) && path[strlen(dir)] == '/';
}

/* False: it is the built-in one, even where a directory is called so, or is not there. */
static bool place_find(place *p, const char *tokenizer) {
    struct stat st;
    char text[PATH_MAX];
    if (!tokenizer || strcmp(tokenizer, "byte") == 0 || stat(tokenizer, &st) != 0) return false;
    const char *slash = strrchr(tokenizer, '/');
    bool is_dir = S_ISDIR(st.st_mode);
    p->main = is_dir ? "tokenizer.json" : slash ? slash + 1 : tokenizer;
    int length = is_dir ? (int)strlen(tokenizer) : slash ? (int)MAX(slash - tokenizer, 1) : 1;
    if ((size_t)length >= sizeof text) return false;
    snprintf(text, sizeof text, "%.*s", length, is_dir || slash ? tokenizer : ".");
    if (!realpath(text, p->dir)) return false;
    if (snprintf(text, sizeof text, "%.4000s/../../blobs", p->dir) >= (int)sizeof text || !realpath(text, p->blobs))
        p->blobs[0] = 0;
    return true;
}

/* Where a name of the directory leads. "": it is not there. */
static status resolve(const place *p, const char *name, bool anywhere, char out[PATH_MAX]) {
    char path[PATH_MAX + NAME_MOST + 64];
    snprintf(path, sizeof path, "%s/%s", p->dir, name);
    if (!realpath(path, out)) {
        out[0] = 0;
        struct stat st;
        if (lstat(path, &st) != 0) return OK;
        return ERR(ERR_IO, "%s: %s; remove the link, or put the file there", path, strerror(errno));
    }
    if (anywhere || is_inside(out, p->dir) || is_inside(out, p->blobs)) return OK;
    return ERR(ERR_INPUT,
               "%s is a link to %s, outside of the tokenizer's directory; checkpoints and exports hold a copy of it: "
               "put the file itself there, or remove the link",
               path, out);
}

static status read_one(tokenizer_files *t, const place *p, const char *name, const char *as, bool anywhere) {
    char path[PATH_MAX];
    uint64_t n_bytes;
    int fd;
    TRY(resolve(p, name, anywhere, path));
    if (!path[0]) return OK;
    TRY(file_open_at(AT_FDCWD, path, path, &fd, &n_bytes));
    return add_file(t, as, path, fd, n_bytes, true);
}

static int by_name(const void *a, const void *b) { return strcmp(*(char *const *)a, *(char *const *)b); }

/* Names of templates, sorted, so that a listing does not depend on the file system. */
static status list_templates(tokenizer_files *t, const char *dir, const char ***out, size_t *n) {
    status rc = OK;
    const char *path = arena_format(&t->memory, "%s/" TEMPLATES, dir);
    *out = arena_array(&t->memory, const char *, TEMPLATES_MOST);
    *n = 0;
    DIR *d = opendir(path);
    if (!d) return OK;
    for (struct dirent *e; rc == OK && (e = readdir(d));) {
        const char *name = arena_format(&t->memory, TEMPLATES "/%s", e->d_name);
        if (!template_name(name)) continue;
        if (*n == TEMPLATES_MOST)
            rc = ERR(ERR_INPUT, "%s: found more than %d templates, expected fewer", path, TEMPLATES_MOST);
        else (*out)[(*n)++] = name;
    }
    closedir(d);
    qsort(*out, *n, sizeof **out, by_name);
    return rc;
}

status tokenizer_files_read(tokenizer_files *t, const char *tokenizer) {
    place p;
    const char **templates;
    size_t n;
    tokenizer_files_init(t);
    if (!place_find(&p, tokenizer)) return OK;
    TRY(read_one(t, &p, p.main, names[0], true));
    for (size_t i = 1; i < ARRAY_LENGTH(names); i++) TRY(read_one(t, &p, names[i], names[i], false));
    TRY(list_templates(t, p.dir, &templates, &n));
    for (size_t i = 0; i < n; i++) TRY(read_one(t, &p, templates[i], templates[i], false));
    return OK;
}

uint64_t tokenizer_files_bytes(const char *tokenizer) {
    place p;
    uint64_t sum = 0;
    struct stat st;
    strbuf path;
    if (!place_find(&p, tokenizer)) return 0;
    strbuf_init(&path);
    for (size_t i = 0; i < ARRAY_LENGTH(names); i++) {
        path.length = 0;
        strbuf_printf(&path, "%s/%s", p.dir, i == 0 ? p.main : names[i]);
        if (stat(path.text, &st) == 0 && S_ISREG(st.st_mode)) sum += (uint64_t)st.st_size;
    }
    strbuf_fini(&path);
    return sum;
}

/* ---- from a checkpoint ------------------------------------------------------------------------------------------ */

static status open_dir(int parent, const char *name, const char *shown, int *fd) {
    *fd = openat(parent, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (*fd >= 0) return OK;
    return ERR(ERR_INPUT, "%s: %s, expected the directory of the checkpoint's tokenizer", shown,
               errno == ELOOP || errno == ENOTDIR ? "found a link or a file" : strerror(errno));
}

static status load_one(tokenizer_files *t, const char *dir, int fd, const json_t *entry, bool contents) {
    const char *name, *expected;
    char hex[CHECKSUM_BYTES + 1];
    int64_t n_bytes;
    uint64_t found;
    int parent = fd, file;
    TRY(json_get_string(entry, "name", dir, &name));
    TRY(json_get_string(entry, "xxh3_128", dir, &expected));
    TRY(json_get_int(entry, "bytes", 0, FILE_MOST, dir, &n_bytes));
    if (!is_known(name) || find(t, name))
        return ERR(ERR_INPUT, "%s: found the file '%s', which is not a tokenizer file, or is listed twice", dir, name);
    const char *shown = arena_format(&t->memory, "%s/%s", dir, name), *last = template_name(name);
    if (last) TRY(open_dir(fd, TEMPLATES, shown, &parent));
    status rc = file_open_at(parent, last ? last : name, shown, &file, &found);
    if (parent != fd) close(parent);
    if (rc != OK) return rc;
    TRY(add_file(t, name, shown, file, found, contents));
    const tokenizer_copy *item = &t->items[t->n - 1];
    if (item->n_bytes != (uint64_t)n_bytes)
        return ERR(ERR_INPUT, "%s: found %zu bytes, expected %lld", shown, item->n_bytes, (long long)n_bytes);
    if (!contents) return OK;
    checksum_hex(hex, item->bytes, item->n_bytes);
    if (strcmp(hex, expected) == 0) return OK;
    return ERR(ERR_INPUT, "%s is damaged: its checksum is %s, expected %s", shown, hex, expected);
}

/* What lies beside the listed files would be read with them. */
static status refuse_others(tokenizer_files *t, const char *dir, const char *below) {
    status rc = OK;
    DIR *d = opendir(*below ? arena_format(&t->memory, "%s/%s", dir, below) : dir);
    if (!d) return OK;
    for (struct dirent *e; rc == OK && (e = readdir(d));) {
        const char *name = arena_format(&t->memory, "%s%s%s", below, *below ? "/" : "", e->d_name);
        if (strcmp(e->d_name, ".") == 0 || strcmp(e->d_name, "..") == 0 || find(t, name)) continue;
        if (!*below && strcmp(e->d_name, TEMPLATES) == 0) continue;
        rc = ERR(ERR_INPUT, "%s: found '%s', which the checkpoint does not list; remove it", dir, name);
    }
    closedir(d);
    return rc;
}

status tokenizer_files_load(tokenizer_files *t, const char *checkpoint_dir, const json_t *list, bool contents) {
    status rc = OK;
    int fd;
    tokenizer_files_init(t);
    const char *dir = arena_format(&t->memory, "%s/tokenizer", checkpoint_dir);
    size_t n = json_array_size(list);
    if (!json_is_array(list) || n > ARRAY_LENGTH(names) + TEMPLATES_MOST)
        return ERR(ERR_INPUT, "%s: the checkpoint's list of tokenizer files has %zu entries, expected at most %zu", dir,
                   n, ARRAY_LENGTH(names) + TEMPLATES_MOST);
    if (n == 0) return OK;
    TRY(open_dir(AT_FDCWD, dir, dir, &fd));
    for (size_t i = 0; i < n && rc == OK; i++) rc = load_one(t, dir, fd, json_array_get(list, i), contents);
    close(fd);
    if (rc == OK) rc = refuse_others(t, dir, "");
    if (rc == OK) rc = refuse_others(t, dir, TEMPLATES);
    return rc;
}

/* ---- writing ----------------------------------------------------------------------------------------------------- */

json_t *tokenizer_files_json(const tokenizer_files *t) {
    json_t *list = json_array();
    char hex[CHECKSUM_BYTES + 1];
    for (size_t i = 0; i < t->n; i++) {
        checksum_hex(hex, t->items[i].bytes, t->items[i].n_bytes);
        json_array_append_new(list, json_pack("{s:s, s:I, s:s}", "name", t->items[i].name, "bytes",
                                              (json_int_t)t->items[i].n_bytes, "xxh3_128", hex));
    }
    return list;
}

status tokenizer_files_write(const tokenizer_files *t, const char *dir) {
    status rc = OK;
    arena memory;
    bool has_templates = false;
    arena_init(&memory);
    const char *below = arena_format(&memory, "%s/" TEMPLATES, dir);
    for (size_t i = 0; i < t->n && rc == OK; i++) {
        const tokenizer_copy *item = &t->items[i];
        if (template_name(item->name) && !has_templates) TRY_GOTO(rc, dir_make(below), done);
        has_templates |= template_name(item->name) != NULL;
        rc = file_write_new(arena_format(&memory, "%s/%s", dir, item->name), item->bytes, item->n_bytes);
    }
    if (rc == OK && has_templates) rc = dir_sync(below);
    if (rc == OK) rc = dir_sync(dir);
done:
    arena_fini(&memory);
    return rc;
}
