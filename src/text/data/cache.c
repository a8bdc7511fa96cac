/* cache.c - tokens on disk between runs: a file that is whole, of this tokenizer, of this text, or not used.
 *
 * One file per (path of the text, tokenizer, options that change tokens), named by a hash of these:
 *     header 4096 bytes | tokens, filled up to 8 bytes | documents
 * The header carries a magic, a version, the key, what the text looked like (size, times, inode, hash of its bytes), the
 * counts, a hash of the payload and one of itself. Nothing of it is trusted before all of it was checked: a file that
 * is cut off, damaged, of another version or of someone else is named in the log and built again.
 *
 * Is the text still the same? Size, inode and both times equal: yes, unless the text was written so shortly before the
 * cache that a second writing could bear the same time. Else its bytes are hashed, which is still far cheaper than to
 * tokenize them. Written to a temporary name, flushed, renamed: two processes that build the same slot at once each
 * write their own, and the last one stays. Readers keep what they mapped. */
#include "data/cache_header.h"
#include "data/store.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>
#include <xxhash.h>

enum { CHECKED_TOKENS = 1 << 22 };
#define SAME_TICK_NS INT64_C(2000000000) /* file systems keep times of 2 s and less */

static const char MAGIC[8] = "ralotok\n";

static uint64_t hash_of(const cache_header *h) { return XXH3_64bits(h, offsetof(cache_header, header_hash)); }

/* ---- places -------------------------------------------------------------------------------------------------- */

bool cache_directory(const char *setting, strbuf *out) {
    out->length = 0;
    if (!setting || !*setting) return false;
    if (strcmp(setting, "auto") != 0) {
        strbuf_add(out, setting);
        return true;
    }
    const char *xdg = getenv("XDG_CACHE_HOME"), *home = getenv("HOME");
    if (xdg && xdg[0] == '/') strbuf_printf(out, "%s/ralo", xdg);
    else if (home && home[0] == '/') strbuf_printf(out, "%s/.cache/ralo", home);
    else log_warn("data.cache: neither XDG_CACHE_HOME nor HOME names a directory; tokens are kept in memory only");
    return out->length > 0;
}

void cache_slot_init(cache_slot *c, const char *directory, hash128 key) {
    *c = (cache_slot){.key = key, .fd = -1};
    strbuf_init(&c->path);
    strbuf_init(&c->temporary);
    strbuf_printf(&c->path, "%s/%016llx%016llx.tokens", directory, (unsigned long long)key.high,
                  (unsigned long long)key.low);
}

void cache_slot_fini(cache_slot *c) {
    if (c->fd >= 0) {
        close(c->fd);
        unlink(c->temporary.text);
    }
    strbuf_fini(&c->path);
    strbuf_fini(&c->temporary);
    *c = (cache_slot){.fd = -1};
}

/* ---- reading ------------------------------------------------------------------------------------------------- */

static uint64_t payload_bytes(const cache_header *h, uint64_t *documents_at) {
    *documents_at = align_up(h->n_tokens * h->width, 8);
    return *documents_at + h->n_documents * sizeof(store_document);
}

/* What is wrong with the file as a file; NULL: nothing. */
static const char *find_damage(const cache_header *h, uint64_t file_bytes, const cache_slot *c) {
    uint64_t documents_at;
    if (memcmp(h->magic, MAGIC, sizeof MAGIC) != 0) return "is not a token cache";
    if (h->version != CACHE_VERSION || h->byte_order != 0x01020304) return "is of another version or machine";
    if (h->header_hash != hash_of(h)) return "has a damaged header";
    if (!hash128_equal(h->key, c->key) || h->kind != (uint32_t)c->kind) return "belongs to other data";
    if ((h->width != 1 && h->width != 2 && h->width != 4) || h->n_tokens > (uint64_t)1 << 56 ||
        h->n_documents > (uint64_t)1 << 48 || (h->is_text && (h->n_documents != 1 || h->has_prompts)) ||
        (h->kind != DATA_TEXT && !h->has_prompts) || (h->kind == DATA_PAIRS && h->n_documents % 2))
        return "has impossible counts";
    if (file_bytes != CACHE_HEADER_BYTES + payload_bytes(h, &documents_at))
        return "is cut off or has bytes behind its end";
    return NULL;
}

/* An answer of an example follows something and has a token to learn from (see data_example_slots). */
static bool is_answer(const token_store *s, uint64_t document) {
    return s->documents[document].n_trained > 0 && !store_trained(s, store_document_begin(s, document));
}

/* Checks the payload: complete, and no index outside of a table. Checked pages are released, so that checking a file
 * larger than memory does not fill it. */
static const char *find_payload_damage(const token_store *s, const cache_header *h, int64_t vocab) {
    XXH3_state_t *state = XXH3_createState();
    ASSERT(state && XXH3_128bits_reset(state) == XXH_OK);
    int32_t largest = 0;
    uint64_t document = 0, n_trained = 0, n_miscounted = 0;
    for (uint64_t at = 0; at < s->n_tokens;) {
        uint64_t end = MIN(at + CHECKED_TOKENS, s->n_tokens);
        const char *bytes = (const char *)s->tokens + at * s->width;
        ASSERT(XXH3_128bits_update(state, bytes, (end - at) * s->width) == XXH_OK);
        while (at < end) { /* document by document; whether they are in order is asked below */
            const store_document *d = document < s->n_documents ? &s->documents[document] : NULL;
            uint64_t stop = d && d->end > at ? MIN(d->end, end) : end;
            for (; at < stop; at++) {
                int32_t id = store_token(s, at);
                largest = MAX(largest, id);
                n_trained += store_trained(s, at);
            }
            if (!d || at != d->end) continue;
            n_miscounted += n_trained != d->n_trained;
            n_trained = 0;
            document++;
        }
        madvise(s->map, s->map_bytes, MADV_DONTNEED);
    }
    ASSERT(XXH3_128bits_update(state, s->documents, s->n_documents * sizeof *s->documents) == XXH_OK);
    XXH128_hash_t got = XXH3_128bits_digest(state);
    XXH3_freeState(state);
    if (!hash128_equal((hash128){got.low64, got.high64}, h->payload_hash)) return "is damaged (its checksum differs)";
    if (largest >= vocab) return "holds tokens beyond the vocabulary";
    for (uint64_t i = 0; i < s->n_documents; i++)
        if (s->documents[i].end <= store_document_begin(s, i)) return "has documents out of order";
    if (s->n_documents == 0 || s->documents[s->n_documents - 1].end != s->n_tokens) return "has tokens of no document";
    if (n_miscounted) return "has documents with other counts than their tokens";
    for (uint64_t i = 0; i < s->n_documents; i++) {
        if (s->documents[i].is_undesirable && s->kind != DATA_LABELLED) return "has labels where there are none";
        if (s->kind != DATA_TEXT && !is_answer(s, i)) return "has examples without an answer";
    }
    return NULL;
}

static status hash_file(const char *path, hash128 *out) {
    reader r;
    TRY(reader_open_as_is(&r, path));
    status rc = reader_finish(&r, out);
    reader_close(&r);
    return rc;
}

static status source_is_same(const cache_header *h, const char *source, const file_stamp *now, bool *same) {
    bool equal = h->device == now->device && h->inode == now->inode && h->mtime_ns == now->mtime_ns &&
                 h->ctime_ns == now->ctime_ns;
    *same = h->source_bytes == now->n_bytes;
    if (!*same || (equal && now->ctime_ns + SAME_TICK_NS < h->built_ns)) return OK;
    hash128 bytes;
    TRY(hash_file(source, &bytes));
    *same = hash128_equal(bytes, h->source_hash);
    return OK;
}

static status map_store(const cache_slot *c, int fd, const cache_header *h, token_store *s) {
    uint64_t documents_at, n_bytes = CACHE_HEADER_BYTES + payload_bytes(h, &documents_at);
    void *map = mmap(NULL, n_bytes, PROT_READ, MAP_SHARED, fd, 0);
    if (map == MAP_FAILED) return ERR(ERR_IO, "map %s: %s", c->path.text, strerror(errno));
    *s = (token_store){.width = h->width,
                       .is_text = h->is_text,
                       .has_prompts = h->has_prompts,
                       .kind = (data_kind)h->kind,
                       .n_tokens = h->n_tokens,
                       .n_documents = h->n_documents,
                       .n_skipped = h->n_skipped,
                       .n_replaced = h->n_replaced,
                       .n_incorrect = h->n_incorrect,
                       .n_problems = h->n_problems,
                       .n_unpaired = h->n_unpaired,
                       .n_unused_pairs = h->n_unused_pairs,
                       .tokens = (const char *)map + CACHE_HEADER_BYTES,
                       .documents = (const store_document *)((const char *)map + CACHE_HEADER_BYTES + documents_at),
                       .hash = h->payload_hash,
                       .map = map,
                       .map_bytes = n_bytes};
    return OK;
}

static bool read_header(int fd, cache_header *h, uint64_t *file_bytes) {
    struct stat info;
    if (fstat(fd, &info) != 0 || !S_ISREG(info.st_mode)) return false;
    *file_bytes = (uint64_t)info.st_size;
    if (pread(fd, h, sizeof *h, 0) != sizeof *h) memset(h, 0, sizeof *h); /* no magic: cut off */
    return true;
}

static status load_from(cache_slot *c, int fd, const char *source, const file_stamp *stamp, int64_t vocab, bool strict,
                        token_store *out, bool *found) {
    cache_header h;
    uint64_t file_bytes;
    if (!read_header(fd, &h, &file_bytes)) {
        log_warn("token cache %s is not a file; it is built again", c->path.text);
        return OK;
    }
    const char *damage = find_damage(&h, file_bytes, c);
    if (!damage) {
        bool same;
        TRY(source_is_same(&h, source, stamp, &same));
        if (!same) {
            log_info("%s changed since its tokens were cached; they are built again", source);
            return OK;
        }
        if (strict && h.n_skipped + h.n_replaced > 0) return OK; /* to name what was left out then */
        TRY(map_store(c, fd, &h, out));
        damage = find_payload_damage(out, &h, vocab);
        if (damage) store_close(out);
    }
    if (damage) log_warn("token cache %s %s; it is built again", c->path.text, damage);
    *found = !damage;
    out->from_cache = *found;
    return OK;
}

status cache_load(cache_slot *c, const char *source, const file_stamp *stamp, int64_t vocab, bool strict,
                  token_store *out, bool *found) {
    *found = false;
    int fd = open(c->path.text, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
    if (fd < 0) {
        if (errno != ENOENT && errno != ENOTDIR)
            log_warn("token cache %s: %s; it is built again", c->path.text, strerror(errno));
        return OK;
    }
    status rc = load_from(c, fd, source, stamp, vocab, strict, out, found);
    close(fd);
    return rc;
}

/* ---- writing ------------------------------------------------------------------------------------------------- */

static status write_failed(cache_slot *c, const char *what) {
    c->failed = true;
    return ERR(ERR_IO, "data.cache: %s %s: %s; name another directory, or none", what,
               c->temporary.length ? c->temporary.text : c->path.text, strerror(errno));
}

status cache_begin(cache_slot *c) {
    static const char zeros[CACHE_HEADER_BYTES];
    char dir[4096];
    snprintf(dir, sizeof dir, "%.*s", (int)(strrchr(c->path.text, '/') - c->path.text), c->path.text);
    if (dir_make(*dir ? dir : "/") != OK) {
        error_record why;
        error_take(&why);
        c->failed = true;
        return ERR(ERR_IO, "data.cache %s: %s; name another directory, or none", dir, why.message);
    }
    if (temporary_make(c->path.text, false, &c->temporary, &c->fd) != OK) {
        error_record why;
        error_take(&why);
        c->failed = true;
        return ERR(ERR_IO, "data.cache: %s; name another directory, or none", why.message);
    }
    if (fchmod(c->fd, 0600) != 0) return write_failed(c, "chmod"); /* tokens are as private as their text */
    return cache_write(c, zeros, sizeof zeros);                    /* the header comes last */
}

status cache_write(cache_slot *c, const void *bytes, size_t n_bytes) {
    const char *at = bytes;
    while (n_bytes > 0) {
        ssize_t n = write(c->fd, at, n_bytes);
        if (n < 0 && errno == EINTR) continue;
        if (n < 0) return write_failed(c, "write");
        at += n;
        n_bytes -= (size_t)n;
        c->n_written += (uint64_t)n;
    }
    return OK;
}

static status publish(cache_slot *c) {
    char dir[4096];
    if (fsync(c->fd) != 0) return write_failed(c, "fsync");
    if (rename(c->temporary.text, c->path.text) != 0) return write_failed(c, "rename");
    snprintf(dir, sizeof dir, "%.*s", (int)(strrchr(c->path.text, '/') - c->path.text), c->path.text);
    int fd = open(*dir ? dir : "/", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0 || (fsync(fd) != 0 && errno != EINVAL)) { /* EINVAL: this file system keeps no directory to flush */
        status rc = write_failed(c, "fsync the directory of");
        if (fd >= 0) close(fd);
        return rc;
    }
    close(fd);
    return OK;
}

status cache_commit(cache_slot *c, const file_stamp *stamp, hash128 source_hash, token_store *s) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    cache_header h = {.version = CACHE_VERSION,
                      .byte_order = 0x01020304,
                      .width = s->width,
                      .is_text = s->is_text,
                      .has_prompts = s->has_prompts,
                      .kind = s->kind,
                      .key = c->key,
                      .device = stamp->device,
                      .inode = stamp->inode,
                      .source_bytes = stamp->n_bytes,
                      .mtime_ns = stamp->mtime_ns,
                      .ctime_ns = stamp->ctime_ns,
                      .built_ns = (int64_t)now.tv_sec * 1000000000 + now.tv_nsec,
                      .source_hash = source_hash,
                      .n_tokens = s->n_tokens,
                      .n_documents = s->n_documents,
                      .n_skipped = s->n_skipped,
                      .n_replaced = s->n_replaced,
                      .n_incorrect = s->n_incorrect,
                      .n_problems = s->n_problems,
                      .n_unpaired = s->n_unpaired,
                      .n_unused_pairs = s->n_unused_pairs,
                      .payload_hash = s->hash};
    memcpy(h.magic, MAGIC, sizeof MAGIC);
    h.header_hash = hash_of(&h);
    uint64_t documents_at;
    ASSERT(c->n_written == CACHE_HEADER_BYTES + payload_bytes(&h, &documents_at));
    ssize_t n = pwrite(c->fd, &h, sizeof h, 0);
    if (n != sizeof h) return write_failed(c, "write the header of");
    TRY(publish(c));
    status rc = map_store(c, c->fd, &h, s);
    close(c->fd);
    c->fd = -1;
    return rc;
}
