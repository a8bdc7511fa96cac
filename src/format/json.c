/* json.c - JSON files in through jansson, out whole or not at all.
 *
 * jansson is strict (UTF-8, one root, integers of 64 bits, no NaN) and stops at 2048 levels of nesting; duplicate keys
 * are refused here because two readers of such a file may believe different things.
 * Writing goes to a temporary name in the same directory, is flushed, and is renamed over the target: whoever reads
 * the file, also after a crash, sees the old text or the new one. A failed write removes its temporary file. */
#include "format/format.h"

#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <unistd.h>

/* ---- reading ------------------------------------------------------------------------------------------------- */

status json_read_file(const char *path, size_t max_bytes, json_t **out) {
    char *text;
    size_t n_bytes;
    json_error_t error;
    *out = NULL;
    TRY(file_read_all(path, max_bytes, &text, &n_bytes));
    json_t *root = json_loadb(text, n_bytes, JSON_REJECT_DUPLICATES, &error);
    free(text);
    if (!root)
        return ERR(ERR_INPUT, "%s:%d:%d: %s (expected one JSON object or array, in UTF-8, without duplicate keys)",
                   path, MAX(error.line, 1), MAX(error.column, 1), error.text);
    *out = root;
    return OK;
}

static const char *kind_of(const json_t *v) {
    static const char *const kinds[] = {
        [JSON_OBJECT] = "an object",   [JSON_ARRAY] = "an array",     [JSON_STRING] = "a string",
        [JSON_INTEGER] = "an integer", [JSON_REAL] = "a real number", [JSON_TRUE] = "true",
        [JSON_FALSE] = "false",        [JSON_NULL] = "null"};
    return v ? kinds[json_typeof(v)] : "nothing";
}

static status member(const json_t *object, const char *key, const char *where, const char *expected,
                     const json_t **out) {
    if (!json_is_object(object))
        return ERR(ERR_INPUT, "%s: found %s where an object with the key '%s' was expected", where, kind_of(object),
                   key);
    *out = json_object_get(object, key);
    if (!*out) return ERR(ERR_INPUT, "%s: the key '%s' is missing, expected %s", where, key, expected);
    return OK;
}

status json_get_int(const json_t *object, const char *key, int64_t min, int64_t max, const char *where, int64_t *out) {
    const json_t *v;
    TRY(member(object, key, where, "an integer", &v));
    if (!json_is_integer(v))
        return ERR(ERR_INPUT, "%s: key '%s': found %s, expected an integer", where, key, kind_of(v));
    int64_t n = json_integer_value(v);
    if (n < min || n > max)
        return ERR(ERR_INPUT, "%s: key '%s': found %lld, expected an integer from %lld to %lld", where, key,
                   (long long)n, (long long)min, (long long)max);
    *out = n;
    return OK;
}

status json_get_real(const json_t *object, const char *key, const char *where, double *out) {
    const json_t *v;
    TRY(member(object, key, where, "a number", &v));
    if (!json_is_number(v)) return ERR(ERR_INPUT, "%s: key '%s': found %s, expected a number", where, key, kind_of(v));
    *out = json_number_value(v);
    return OK;
}

status json_get_string(const json_t *object, const char *key, const char *where, const char **out) {
    const json_t *v;
    TRY(member(object, key, where, "a string", &v));
    if (!json_is_string(v)) return ERR(ERR_INPUT, "%s: key '%s': found %s, expected a string", where, key, kind_of(v));
    *out = json_string_value(v);
    return OK;
}

/* ---- writing ------------------------------------------------------------------------------------------------- */

static status write_all(int fd, const char *path, const char *text, size_t n_bytes) {
    while (n_bytes > 0) {
        ssize_t n = write(fd, text, n_bytes);
        if (n < 0 && errno == EINTR) continue;
        if (n < 0) return ERR(ERR_IO, "write %s: %s (%zu bytes were left)", path, strerror(errno), n_bytes);
        text += n;
        n_bytes -= (size_t)n;
    }
    return OK;
}

/* A new file beside `path`, so that the rename stays inside one file system. Names count up, because threads of one
 * process may write and a process with our number may have died here before. */
static status temporary_open(const char *path, strbuf *name, int *fd) {
    static atomic_uint counter;
    do {
        name->length = 0;
        strbuf_printf(name, "%s.tmp.%ld.%u", path, (long)getpid(), atomic_fetch_add(&counter, 1));
        *fd = open(name->text, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    } while (*fd < 0 && errno == EEXIST);
    if (*fd < 0) return ERR(ERR_IO, "create %s: %s", name->text, strerror(errno));
    return OK;
}

/* A rename is on disk only when its directory is. */
static status directory_sync(const char *path) {
    const char *slash = strrchr(path, '/');
    size_t length = !slash ? 0 : slash == path ? 1 : (size_t)(slash - path);
    strbuf dir;
    strbuf_init(&dir);
    strbuf_add_bytes(&dir, length ? path : ".", length ? length : 1);
    status rc = OK;
    int fd = open(dir.text, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0) rc = ERR(ERR_IO, "open directory %s: %s", dir.text, strerror(errno));
    else if (fsync(fd) != 0 && errno != EINVAL) /* EINVAL: this file system keeps no directory to flush */
        rc = ERR(ERR_IO, "fsync directory %s: %s", dir.text, strerror(errno));
    if (fd >= 0) close(fd);
    strbuf_fini(&dir);
    return rc;
}

status json_write_file(const char *path, const json_t *root) {
    status rc = OK;
    int fd = -1;
    strbuf temporary;
    strbuf_init(&temporary);
    char *text = json_dumps(root, JSON_INDENT(2)); /* reals with 17 digits: they read back to the same bits */
    if (!text) {
        rc = ERR(ERR_INPUT, "write %s: this is not a JSON document (%s is no root, or a string is not UTF-8)", path,
                 kind_of(root));
        goto done;
    }
    TRY_GOTO(rc, temporary_open(path, &temporary, &fd), done);
    TRY_GOTO(rc, write_all(fd, path, text, strlen(text)), fail);
    TRY_GOTO(rc, write_all(fd, path, "\n", 1), fail);
    if (fsync(fd) != 0) {
        rc = ERR(ERR_IO, "fsync %s: %s", path, strerror(errno));
        goto fail;
    }
    if (close(fd) != 0) { /* network file systems report a full disk here */
        rc = ERR(ERR_IO, "close %s: %s", path, strerror(errno));
        fd = -1;
        goto fail;
    }
    fd = -1;
    if (rename(temporary.text, path) != 0) {
        rc = ERR(ERR_IO, "rename %s to %s: %s", temporary.text, path, strerror(errno));
        goto fail;
    }
    TRY_GOTO(rc, directory_sync(path), done);
    goto done;
fail:
    if (fd >= 0) close(fd);
    unlink(temporary.text);
done:
    free(text);
    strbuf_fini(&temporary);
    return rc;
}
