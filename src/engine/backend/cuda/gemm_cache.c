/* gemm_cache.c - a text file of measured choices: one line per product, 16 hexadecimal digits and the product's name.
 *
 * It is read whole, with a bound on its size and on its lines; a line that is not as we write it is skipped and said. It is
 * written whole beside itself and renamed, under a lock, after reading again what other processes have added: of two
 * processes that measured the same product the first to write decides for both. The lock is a file of its own, because the
 * file itself is replaced. A lock that is not free within LOCK_TRIES is not waited for. */
#include "backend/cuda/gemm_cache.h"
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <time.h>
#include <unistd.h>

enum {
    ENTRIES_MOST = 8192,
    FILE_MOST = ENTRIES_MOST * (GEMM_KEY_MOST + 18) + 1024,
    LOCK_TRIES = 100,
    LOCK_PAUSE_MS = 10
};
static const char HEADER[] =
    "# ralo: the algorithm measured fastest for each matrix product on this GPU with this cuBLAS.\n"
    "# Delete the file to measure again.\n";

static bool cache_directory(const char *given, strbuf *out) {
    const char *xdg = getenv("XDG_CACHE_HOME"), *home = getenv("HOME");
    if (given) strbuf_add(out, given);
    else if (xdg && xdg[0] == '/') strbuf_printf(out, "%s/ralo", xdg);
    else if (home && home[0] == '/') strbuf_printf(out, "%s/.cache/ralo", home);
    return out->length > 0;
}

static gemm_cache_entry *entry_find(const gemm_cache *s, const char *key) {
    for (size_t i = 0; i < s->n_entries; i++)
        if (strcmp(s->entries[i].key, key) == 0) return &s->entries[i];
    return NULL;
}

static void entry_set(gemm_cache *s, const char *key, uint64_t algorithm) {
    gemm_cache_entry *e = entry_find(s, key);
    if (!e) {
        s->entries = array_grow(s->entries, &s->capacity, s->n_entries + 1, sizeof *s->entries);
        e = &s->entries[s->n_entries++];
        snprintf(e->key, sizeof e->key, "%s", key);
    }
    e->algorithm = algorithm;
}

/* ---- reading ---------------------------------------------------------------------------------------------------- */

static bool key_is_valid(const char *key, size_t length) {
    if (length == 0 || length > GEMM_KEY_MOST) return false;
    for (size_t i = 0; i < length; i++)
        if (key[i] < ' ' || key[i] > '~') return false;
    return true;
}

/* "0123456789abcdef key", without the line break. */
static bool line_parse(const char *line, size_t length, gemm_cache_entry *out) {
    if (length < 18 || line[16] != ' ' || !key_is_valid(line + 17, length - 17)) return false;
    out->algorithm = 0;
    for (int i = 0; i < 16; i++) {
        static const char digits[] = "0123456789abcdef";
        const char *digit = line[i] ? strchr(digits, line[i]) : NULL;
        if (!digit) return false;
        out->algorithm = out->algorithm << 4 | (uint64_t)(digit - digits);
    }
    memcpy(out->key, line + 17, length - 17);
    out->key[length - 17] = 0;
    return true;
}

/* What is there replaces what was known; a file that is absent or too long is an empty one. */
static void entries_read(gemm_cache *s) {
    char *text;
    size_t n_bytes;
    s->n_entries = 0;
    if (access(s->path, F_OK) != 0) return;
    if (file_read_all(s->path, FILE_MOST, &text, &n_bytes) != OK) {
        log_warn("%s; its choices are made again", error_message());
        error_clear();
        return;
    }
    int number = 0, first_bad = 0, n_bad = 0;
    for (const char *line = text, *end = text + n_bytes; line < end && s->n_entries < ENTRIES_MOST;) {
        const char *stop = memchr(line, '\n', (size_t)(end - line));
        size_t length = (size_t)((stop ? stop : end) - line);
        gemm_cache_entry e;
        number++;
        if (stop && line_parse(line, length, &e)) entry_set(s, e.key, e.algorithm);
        else if (length > 0 && line[0] != '#' && n_bad++ == 0) first_bad = number;
        line += length + 1;
    }
    if (n_bad > 0)
        log_warn("%s: line %d%s not \"16 hexadecimal digits, product\" and skipped; the file can be deleted", s->path,
                 first_bad, n_bad > 1 ? " and others are" : " is");
    free(text);
}

/* ---- writing ---------------------------------------------------------------------------------------------------- */

static int lock_take(const gemm_cache *s) {
    int fd = open(s->lock_path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    for (int i = 0; fd >= 0 && flock(fd, LOCK_EX | LOCK_NB) != 0; i++) {
        if (i == LOCK_TRIES || (errno != EWOULDBLOCK && errno != EINTR)) {
            close(fd);
            return -1;
        }
        nanosleep(&(struct timespec){.tv_nsec = LOCK_PAUSE_MS * 1000000l}, NULL);
    }
    return fd;
}

static bool entries_write(const gemm_cache *s) {
    strbuf text;
    strbuf_init(&text);
    strbuf_printf(&text, "%s", HEADER);
    for (size_t i = 0; i < s->n_entries; i++)
        strbuf_printf(&text, "%016llx %s\n", (unsigned long long)s->entries[i].algorithm, s->entries[i].key);
    bool ok = file_write_whole(s->path, text.text, text.length) == OK;
    if (!ok) {
        log_warn("%s; choices of matrix products are not kept", error_message());
        error_clear();
    }
    strbuf_fini(&text);
    return ok;
}

bool gemm_cache_keep(gemm_cache *s, const char *key, uint64_t algorithm, const uint64_t *instead_of, uint64_t *kept) {
    ASSERT(key_is_valid(key, strlen(key)));
    if (!s->writable) return false;
    uint64_t there;
    int lock = lock_take(s);
    s->writable = lock >= 0;
    if (lock < 0) {
        log_warn("cannot lock %s: %s; choices of matrix products are not kept", s->lock_path, strerror(errno));
        return false;
    }
    entries_read(s);
    if (gemm_cache_find(s, key, &there) && !(instead_of && there == *instead_of)) {
        *kept = there;
    } else {
        if (s->n_entries >= ENTRIES_MOST) s->n_entries = 0; /* start again rather than grow for ever */
        entry_set(s, key, algorithm);
        *kept = algorithm;
        s->writable = entries_write(s);
    }
    close(lock);
    return s->writable;
}

/* ---- opening ---------------------------------------------------------------------------------------------------- */

void gemm_cache_open(gemm_cache *s, const char *directory, const char *file_name) {
    *s = (gemm_cache){0};
    strbuf place;
    strbuf_init(&place);
    if (cache_directory(directory, &place)) {
        if (dir_make(place.text) != OK) error_clear(); /* the lock will not open either, and that is said below */
        strbuf path, lock;
        strbuf_init(&path);
        strbuf_init(&lock);
        strbuf_printf(&path, "%s/%s", place.text, file_name);
        strbuf_printf(&lock, "%s.lock", path.text);
        s->path = strbuf_take(&path);
        s->lock_path = strbuf_take(&lock);
        entries_read(s);
        int fd = open(s->lock_path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
        s->writable = fd >= 0;
        if (fd >= 0) close(fd);
        else
            log_warn("cannot write in %s: %s; set XDG_CACHE_HOME to a place where measured choices can be kept",
                     place.text, strerror(errno));
    }
    strbuf_fini(&place);
}

void gemm_cache_close(gemm_cache *s) {
    free(s->path);
    free(s->lock_path);
    free(s->entries);
    *s = (gemm_cache){0};
}

bool gemm_cache_find(const gemm_cache *s, const char *key, uint64_t *algorithm) {
    const gemm_cache_entry *e = entry_find(s, key);
    if (e) *algorithm = e->algorithm;
    return e != NULL;
}
