/* fuzz_export_paths.c - the tokenizer of a checkpoint, and of a directory that a user names: which files are taken.
 *
 * Sections: the checkpoint's list of tokenizer files; a list of what lies in the directory, each [kind, name, text], where kind
 * is file, link, pipe or dir and text is the content or where the link leads. A "bytes" or "xxh3_128" that says "?" is put in.
 * Beside the checkpoint lies a secret, and links may lead to it (secret) or to anywhere else.
 * Of what is taken: every name is one of a tokenizer's, the secret is in none but the file of a tokenizer that a user named
 * himself, and what is written is exactly that, as plain files of a new directory. */
#include "fuzz/fuzz.h"
#include "checkpoint/seal.h"
#include "checkpoint/tokenizer_files.h"

#include <dirent.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define SECRET "the secret of a user"
enum { ENTRIES_MOST = 24 };

static char root[4000];

static void root_remove(void) { dir_remove_all(root); }

static const char *in_root(const char *name) {
    static char paths[2][4400];
    static int next;
    char *path = paths[next++ % 2];
    snprintf(path, sizeof paths[0], "%s/%.380s", root, name);
    return path;
}

static void make_root(void) {
    const char *parent = getenv("TMPDIR");
    if (*root) return;
    snprintf(root, sizeof root, "%.3900s/fuzz-XXXXXX", parent && *parent ? parent : "/tmp");
    ASSERT(mkdtemp(root));
    atexit(root_remove);
    ASSERT(file_replace(in_root("secret"), SECRET, strlen(SECRET)) == OK);
}

/* In the directory of the tokenizer or of its templates, under a plain name. */
static bool make_entry(const json_t *entry) {
    const char *kind = json_string_value(json_array_get(entry, 0)), *name = json_string_value(json_array_get(entry, 1));
    const char *text = json_string_value(json_array_get(entry, 2)), *slash = name ? strchr(name, '/') : NULL;
    char path[300];
    if (!kind || !text || !name || !*name || strlen(name) > 200 || strstr(name, "..") || strcmp(name, ".") == 0)
        return false;
    if (slash && (strncmp(name, "additional_chat_templates/", 26) != 0 || strchr(slash + 1, '/'))) return false;
    snprintf(path, sizeof path, "checkpoint/tokenizer/%s", name);
    if (slash) mkdir(in_root("checkpoint/tokenizer/additional_chat_templates"), 0700);
    if (strcmp(kind, "dir") == 0) return mkdir(in_root(path), 0700) == 0;
    if (strcmp(kind, "pipe") == 0) return mkfifo(in_root(path), 0600) == 0;
    if (strcmp(kind, "link") == 0)
        return symlink(strcmp(text, "secret") == 0 ? in_root("secret") : text, in_root(path)) == 0;
    return file_write_new(in_root(path), text, strlen(text)) == OK;
}

static bool is_open(const json_t *object, const char *key) {
    const char *text = json_string_value(json_object_get(object, key));
    return text && strcmp(text, "?") == 0;
}

/* What only the writer of a file knows of it. */
static void fill_list(json_t *list, const json_t *entries) {
    json_t *item, *entry;
    size_t i, k;
    char hex[CHECKSUM_BYTES + 1];
    json_array_foreach(list, i, item) {
        const char *name = json_string_value(json_object_get(item, "name"));
        json_array_foreach((json_t *)(uintptr_t)entries, k, entry) {
            const char *other = json_string_value(json_array_get(entry, 1));
            const char *text = json_string_value(json_array_get(entry, 2));
            if (!name || !other || !text || strcmp(name, other) != 0) continue;
            checksum_hex(hex, text, strlen(text));
            if (is_open(item, "bytes")) json_object_set_new(item, "bytes", json_integer((json_int_t)strlen(text)));
            if (is_open(item, "xxh3_128")) json_object_set_new(item, "xxh3_128", json_string(hex));
        }
    }
}

static bool has_secret(const tokenizer_copy *item) {
    return item->n_bytes == strlen(SECRET) && memcmp(item->bytes, SECRET, item->n_bytes) == 0;
}

static size_t count_files(const char *dir) {
    size_t n = 0;
    struct stat st;
    DIR *d = opendir(dir);
    ASSERT(d);
    for (struct dirent *e; (e = readdir(d));) {
        if (e->d_name[0] == '.' && (!e->d_name[1] || strcmp(e->d_name, "..") == 0)) continue;
        ASSERT(fstatat(dirfd(d), e->d_name, &st, AT_SYMLINK_NOFOLLOW) == 0 &&
               (S_ISREG(st.st_mode) || S_ISDIR(st.st_mode)));
        n += S_ISREG(st.st_mode);
    }
    closedir(d);
    return n;
}

static void check_taken(const tokenizer_files *t, bool by_user) {
    size_t n_below = 0;
    for (size_t i = 0; i < t->n; i++) {
        const tokenizer_copy *item = &t->items[i];
        ASSERT(!strstr(item->name, "..") && item->name[0] != '/' && item->bytes);
        ASSERT(!has_secret(item) || (by_user && strcmp(item->name, "tokenizer.json") == 0));
        n_below += strchr(item->name, '/') != NULL;
        for (size_t k = 0; k < i; k++) ASSERT(strcmp(item->name, t->items[k].name) != 0);
    }
    ASSERT(dir_make(in_root("out")) == OK && tokenizer_files_write(t, in_root("out")) == OK);
    ASSERT(count_files(in_root("out")) == t->n - n_below);
    if (n_below > 0) ASSERT(count_files(in_root("out/additional_chat_templates")) == n_below);
    ASSERT(dir_remove_all(in_root("out")) == OK);
}

void fuzz_one(const uint8_t *data, size_t size) {
    fuzz_input in = {data, size};
    span texts[2] = {fuzz_section(&in), fuzz_section(&in)};
    json_t *list = json_loadb(texts[0].text, texts[0].length, 0, NULL);
    json_t *entries = json_loadb(texts[1].text, texts[1].length, 0, NULL);
    tokenizer_files t;
    make_root();
    ASSERT(dir_make(in_root("checkpoint/tokenizer")) == OK);
    for (size_t i = 0; i < json_array_size(entries) && i < ENTRIES_MOST; i++) make_entry(json_array_get(entries, i));
    fill_list(list, entries);
    status rc = tokenizer_files_load(&t, in_root("checkpoint"), list, true);
    if (rc == OK) check_taken(&t, false);
    else fuzz_refused(rc);
    tokenizer_files_fini(&t);
    rc = tokenizer_files_read(&t, in_root("checkpoint/tokenizer"));
    if (rc == OK) check_taken(&t, true);
    else fuzz_refused(rc);
    tokenizer_files_fini(&t);
    ASSERT(dir_remove_all(in_root("checkpoint")) == OK);
    json_decref(list);
    json_decref(entries);
}
