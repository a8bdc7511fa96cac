/* unpack.c - which files are packed, and what holds for every method: whole members, nothing behind them, a limit on what comes out. */
#include "data/unpack.h"

#include <string.h>

/* Text packs to a third or a tenth, the most repetitive logs to a hundredth; gzip can reach 1/1032, and zstd far more. */
#define UNPACKED_FREE ((uint64_t)256 << 20)
enum { UNPACKED_TIMES = 200 };

static const struct {
    const unpack_method *method;
    const char *magic, *endings[2];
    size_t n_magic;
} methods[PACKING_COUNT] = {
    [PACKING_GZIP] = {&unpack_gzip, "\x1f\x8b", {".gz"}, 2},
    [PACKING_ZSTD] = {&unpack_zstd, "\x28\xb5\x2f\xfd", {".zst", ".zstd"}, 4},
};

/* zstd may begin with frames to skip: pzstd and seekable files do. */
static bool is_skippable(const char *head, size_t n_bytes) {
    return n_bytes >= 4 && ((unsigned char)head[0] & 0xf0) == 0x50 && memcmp(head + 1, "\x2a\x4d\x18", 3) == 0;
}

packing packing_of(const char *head, size_t n_bytes) {
    for (packing p = PACKING_NONE + 1; p < PACKING_COUNT; p++)
        if (n_bytes >= methods[p].n_magic && memcmp(head, methods[p].magic, methods[p].n_magic) == 0) return p;
    return is_skippable(head, n_bytes) ? PACKING_ZSTD : PACKING_NONE;
}

static packing find_ending(const char *path, size_t *n_ending) {
    *n_ending = 0;
    for (packing p = PACKING_NONE + 1; p < PACKING_COUNT; p++)
        for (size_t i = 0; i < ARRAY_LENGTH(methods[p].endings); i++) {
            const char *ending = methods[p].endings[i];
            if (!ending || !str_ends_with(path, ending)) continue;
            *n_ending = strlen(ending);
            return p;
        }
    return PACKING_NONE;
}

packing packing_of_name(const char *path) {
    size_t n;
    return find_ending(path, &n);
}

size_t packing_name_bytes(const char *path) {
    size_t n;
    find_ending(path, &n);
    return strlen(path) - n;
}

const char *packing_name(packing p) { return p == PACKING_NONE ? "no packing" : methods[p].method->name; }

status unpacker_open(unpacker *u, packing p, const char *path) {
    *u = (unpacker){.method = methods[p].method, .path = path, .at_edge = true};
    return u->method->open(&u->state, path);
}

void unpacker_close(unpacker *u) {
    if (u->state) u->method->close(u->state);
    *u = (unpacker){0};
}

/* Between members: another one, or zeros up to the end. */
static status check_edge(unpacker *u, span *in) {
    if (!u->at_edge || in->length == 0) return OK;
    u->is_padding |= u->n_in > 0 && in->text[0] == 0;
    if (!u->is_padding) return OK;
    size_t n = 0;
    while (n < in->length && in->text[n] == 0) n++;
    in->text += n;
    in->length -= n;
    u->n_in += n;
    if (in->length == 0) return OK;
    return ERR(
        ERR_INPUT,
        "%s: found other bytes after the end of the %s data (at byte %llu), expected nothing or zeros; unpack it "
        "and look at it: %s",
        u->path, u->method->name, (unsigned long long)u->n_in, u->method->command);
}

static status check_size(const unpacker *u) {
    if (u->n_out <= UNPACKED_FREE || u->n_out / UNPACKED_TIMES <= u->n_in) return OK;
    char out[32], in[32], free_bytes[32];
    return ERR(ERR_INPUT,
               "%s: found %s out of %s of %s data, expected at most %d times as much (over %s): it may be made to fill "
               "the disk; if it is not, unpack it first: %s",
               u->path, str_format_bytes(out, u->n_out), str_format_bytes(in, u->n_in), u->method->name, UNPACKED_TIMES,
               str_format_bytes(free_bytes, UNPACKED_FREE), u->method->command);
}

status unpacker_run(unpacker *u, span *in, char *out, size_t capacity, size_t *n_out) {
    *n_out = 0;
    TRY(check_edge(u, in));
    if (in->length == 0 && u->at_edge) return OK;
    size_t before = in->length;
    TRY(u->method->run(u->state, u->path, in, out, capacity, n_out, &u->at_edge));
    u->n_in += before - in->length;
    u->n_out += *n_out;
    return check_size(u);
}

status unpacker_end(const unpacker *u) {
    if (u->at_edge && u->n_in > 0) return OK;
    return ERR(ERR_INPUT,
               "%s: the %s data ends after %llu bytes in the middle, expected a whole file; copy or download it again",
               u->path, u->method->name, (unsigned long long)u->n_in);
}
