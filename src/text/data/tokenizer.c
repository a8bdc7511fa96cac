/* tokenizer.c - text to token ids and back: bytes, or a tokenizer.json.
 *
 * "byte": a byte is its own id, so any file can be trained on and every text survives the round trip; the vocabulary
 * ends with three specials and one unused id. Specials decode to nothing; an id that stands for nothing decodes to
 * U+FFFD, so that a model that produces one is seen to do so.
 *
 * A file: see file_tokenizer.c. A call that encodes borrows an encoder (buffers and a cache of words) from a list under
 * a lock and gives it back; there are as many as calls ever ran at once, and threads never share one.
 * BOS and EOS come from tokenizer_config.json beside the file, else from names that published models use. */
#include "base/memory.h"
#include "data/encode.h"

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <sys/stat.h>

struct tokenizer {
    int64_t vocab;
    int32_t bos, eos;
    file_tokenizer *file; /* NULL: bytes */
    pthread_mutex_t lock;
    encoder *free_encoders; /* under the lock */
};

/* ---- BOS and EOS --------------------------------------------------------------------------------------------- */

#define CONFIG_MAX_BYTES ((size_t)16 << 20)

/* eos_token is a string, or an object with the string as `content`, or null. */
static status special_from_config(const tokenizer *t, const json_t *config, const char *path, const char *key,
                                  int32_t *out) {
    const json_t *v = json_object_get(config, key);
    if (json_is_object(v)) v = json_object_get(v, "content");
    if (!v || json_is_null(v)) return OK;
    const char *text = json_string_value(v);
    if (!text) return ERR(ERR_INPUT, "%s: %s: found neither a string nor null, expected one of them", path, key);
    *out = tokenizer_special(t, text);
    if (*out < 0)
        return ERR(ERR_INPUT, "%s: %s: found '%.200s', which is not a token of %s", path, key, text,
                   t->file->file.path);
    return OK;
}

/* Configs of others say model_max_length: 1000000000000000019884624838656, so integers are read as reals. */
static status load_config(const char *path, json_t **out) {
    char *text;
    size_t n_bytes;
    json_error_t error;
    TRY(file_read_all(path, CONFIG_MAX_BYTES, &text, &n_bytes));
    *out = json_loadb(text, n_bytes, JSON_REJECT_DUPLICATES | JSON_DECODE_INT_AS_REAL, &error);
    free(text);
    if (*out) return OK;
    return ERR(ERR_INPUT, "%s:%d:%d: %s", path, MAX(error.line, 1), MAX(error.column, 1), error.text);
}

static status read_config(tokenizer *t, bool *has_config) {
    struct stat info;
    status rc = OK;
    strbuf path;
    json_t *config = NULL;
    const char *file = t->file->file.path, *slash = strrchr(file, '/');
    strbuf_init(&path);
    strbuf_add_bytes(&path, file, slash ? (size_t)(slash + 1 - file) : 0);
    strbuf_add(&path, "tokenizer_config.json");
    *has_config = stat(path.text, &info) == 0;
    if (*has_config) {
        TRY_GOTO(rc, load_config(path.text, &config), done);
        TRY_GOTO(rc, special_from_config(t, config, path.text, "bos_token", &t->bos), done);
        TRY_GOTO(rc, special_from_config(t, config, path.text, "eos_token", &t->eos), done);
    }
done:
    json_decref(config);
    strbuf_fini(&path);
    return rc;
}

static int32_t first_known(const tokenizer *t, const char *const *names) {
    for (; *names; names++) {
        int32_t id = tokenizer_special(t, *names);
        if (id >= 0) return id;
    }
    return -1;
}

static status find_specials(tokenizer *t) {
    static const char *const eos[] = {"<|endoftext|>", "</s>", "<|end_of_text|>", "<|eot_id|>", "<|im_end|>", "<eos>",
                                      "[EOS]", "<|end|>",
                                      /* DeepSeek's, with bars and blocks of their own */
                                      "<\xef\xbd\x9c"
                                      "end\xe2\x96\x81of\xe2\x96\x81sentence\xef\xbd\x9c>",
                                      NULL};
    static const char *const bos[] = {"<|begin_of_text|>", "<s>", "<bos>", "[BOS]", NULL};
    bool has_config;
    TRY(read_config(t, &has_config));
    if (t->eos < 0) t->eos = first_known(t, eos);
    if (t->bos < 0 && !has_config) t->bos = first_known(t, bos); /* a config without eos_token: there is none */
    return OK;
}

status tokenizer_set_eos(tokenizer *t, const char *text) {
    if (!text || !*text) return OK;
    if (!t->file)
        return ERR(ERR_INPUT, "data.eos_token: found '%.200s' with the tokenizer 'byte', expected none: its end is %d",
                   text, TOKEN_EOS);
    t->eos = strcmp(text, "none") == 0 ? -1 : tokenizer_special(t, text);
    if (t->eos < 0 && strcmp(text, "none") != 0)
        return ERR(ERR_INPUT, "data.eos_token: found '%.200s', which is not a token of %s, expected one of its tokens",
                   text, t->file->file.path);
    return OK;
}

/* ---- opening ------------------------------------------------------------------------------------------------- */

static status open_file(tokenizer *t, const char *name) {
    struct stat info;
    status rc = OK;
    strbuf path;
    strbuf_init(&path);
    strbuf_add(&path, name);
    if (stat(name, &info) == 0) {
        if (S_ISDIR(info.st_mode)) strbuf_add(&path, str_ends_with(name, "/") ? "tokenizer.json" : "/tokenizer.json");
        TRY_GOTO(rc, file_tokenizer_open(&t->file, path.text), done);
        t->vocab = t->file->file.n_ids;
        TRY_GOTO(rc, find_specials(t), done);
    } else {
        rc = ERR(
            ERR_INPUT,
            "tokenizer: found '%.200s' (%s), expected 'byte', a tokenizer.json or a directory that holds one; that of "
            "a model of the hub: hf download NAME tokenizer.json tokenizer_config.json --local-dir DIR",
            name, strerror(errno));
    }
done:
    strbuf_fini(&path);
    return rc;
}

status tokenizer_open(tokenizer **out, const char *name) {
    *out = NULL;
    tokenizer *t = mem_alloc(sizeof *t);
    pthread_mutex_init(&t->lock, NULL);
    t->bos = t->eos = -1;
    if (name && strcmp(name, "byte") != 0) {
        status rc = open_file(t, name);
        if (rc != OK) {
            tokenizer_close(t);
            return error_trail(rc, __FILE__, __LINE__, __func__);
        }
    } else {
        t->vocab = BYTE_VOCAB;
        t->bos = TOKEN_BOS;
        t->eos = TOKEN_EOS;
    }
    *out = t;
    return OK;
}

void tokenizer_close(tokenizer *t) {
    if (!t) return;
    for (encoder *e = t->free_encoders, *next; e; e = next) {
        next = e->next;
        encoder_close(t->file, e);
    }
    file_tokenizer_close(t->file);
    pthread_mutex_destroy(&t->lock);
    free(t);
}

bool tokenizer_is_byte(const tokenizer *t) { return !t->file; }

const tokenizer_file *tokenizer_read_from(const tokenizer *t) { return t->file ? &t->file->file : NULL; }

int64_t tokenizer_vocab(const tokenizer *t) { return t->vocab; }

int32_t tokenizer_eos(const tokenizer *t) { return t->eos; }

int32_t tokenizer_bos(const tokenizer *t) { return t->bos; }

int32_t tokenizer_text_bos(const tokenizer *t) {
    if (!t->file || t->bos < 0) return -1;
    const tokenizer_file *f = &t->file->file;
    return f->n_template > 0 && f->template[0] == t->bos ? t->bos : -1;
}

int32_t tokenizer_special(const tokenizer *t, const char *text) {
    size_t n = strlen(text);
    if (!t->file) return -1;
    const tokenizer_file *f = &t->file->file;
    for (size_t i = 0; i < f->n_added; i++)
        if (f->added[i].content.length == n && memcmp(f->added[i].content.text, text, n) == 0) return f->added[i].id;
    return tokenizer_file_find(f, text, n);
}

/* ---- encoding ------------------------------------------------------------------------------------------------ */

/* The list of free encoders is the one thing of a tokenizer that changes; callers hold it const. */
static encoder *encoder_take(const tokenizer *t) {
    tokenizer *shared = (tokenizer *)(uintptr_t)t;
    pthread_mutex_lock(&shared->lock);
    encoder *e = shared->free_encoders;
    if (e) shared->free_encoders = e->next;
    pthread_mutex_unlock(&shared->lock);
    return e ? e : encoder_open(t->file);
}

static void encoder_give(const tokenizer *t, encoder *e) {
    tokenizer *shared = (tokenizer *)(uintptr_t)t;
    pthread_mutex_lock(&shared->lock);
    e->next = shared->free_encoders;
    shared->free_encoders = e;
    pthread_mutex_unlock(&shared->lock);
}

static void encode_bytes(const char *text, size_t n_bytes, unsigned flags, id_list *out) {
    *out->ids = array_grow(*out->ids, out->capacity, *out->n + n_bytes + 1, sizeof **out->ids);
    if (flags & ENCODE_ADD_SPECIALS) id_list_add(out, TOKEN_BOS);
    for (size_t i = 0; i < n_bytes; i++) id_list_add(out, (unsigned char)text[i]);
}

static status encode_text(const tokenizer *t, encoder *e, const char *text, size_t n_bytes, unsigned flags,
                          id_list *out) {
    const tokenizer_file *f = &t->file->file;
    bool as_text = flags & ENCODE_SPECIALS_AS_TEXT;
    if (!(flags & ENCODE_ADD_SPECIALS)) return file_tokenizer_encode(t->file, e, text, n_bytes, as_text, out);
    for (size_t i = 0; i < f->n_template; i++) {
        if (f->template[i] == TOKENIZER_TEXT) TRY(file_tokenizer_encode(t->file, e, text, n_bytes, as_text, out));
        else id_list_add(out, f->template[i]);
    }
    return OK;
}

/* What a text or ids take on their way: normal forms, ids, merges. Texts are as long as an input has them. */
static status memory_check(const char *what, size_t n, size_t bytes_each) {
    if (n <= SIZE_MAX / bytes_each && mem_is_there(n * bytes_each)) return OK;
    return ERR(ERR_RUN, "not enough host memory to %s: %zu times about %zu bytes were refused; give less at once", what,
               n, bytes_each);
}

status tokenizer_encode_with(const tokenizer *t, const char *text, size_t n_bytes, unsigned flags, int32_t **tokens,
                             size_t *n, size_t *capacity) {
    id_list out = {tokens, n, capacity};
    size_t before = *n;
    TRY(memory_check("tokenize a text", n_bytes, t->file ? 16 : 6));
    if (!t->file) {
        encode_bytes(text, n_bytes, flags, &out);
        return OK;
    }
    encoder *e = encoder_take(t);
    status rc = encode_text(t, e, text, n_bytes, flags, &out);
    encoder_give(t, e);
    if (rc != OK) *n = before;
    return rc;
}

status tokenizer_encode_marked(const tokenizer *t, const char *text, size_t n_bytes, const text_marks *m,
                               int32_t **tokens, size_t *n, size_t *capacity) {
    id_list out = {tokens, n, capacity};
    size_t before = *n;
    ASSERT(t->file); /* bytes have no special tokens that a text could hold */
    TRY(memory_check("tokenize a text", n_bytes, 16));
    encoder *e = encoder_take(t);
    status rc = file_tokenizer_encode_marked(t->file, e, text, n_bytes, m, &out);
    encoder_give(t, e);
    if (rc != OK) *n = before;
    return rc;
}

int32_t tokenizer_find_special(const tokenizer *t, const char *text, size_t n_bytes, bool any, size_t *start,
                               size_t *end) {
    if (!t->file) return -1;
    const tokenizer_file *f = &t->file->file;
    for (size_t at = 0; at < n_bytes; at++) {
        const tokenizer_added *longest = NULL;
        for (size_t i = 0; i < f->n_added; i++) {
            const tokenizer_added *a = &f->added[i];
            if ((!any && !a->special) || a->content.length == 0 || a->content.length > n_bytes - at) continue;
            if (memcmp(a->content.text, text + at, a->content.length) != 0) continue;
            if (!longest || a->content.length > longest->content.length) longest = a;
        }
        if (!longest) continue;
        *start = at;
        *end = at + longest->content.length;
        return longest->id;
    }
    return -1;
}

status tokenizer_encode(const tokenizer *t, const char *text, size_t n_bytes, int32_t **tokens, size_t *n,
                        size_t *capacity) {
    return tokenizer_encode_with(t, text, n_bytes, 0, tokens, n, capacity);
}

status tokenizer_encode_part(const tokenizer *t, text_part *part, int32_t **tokens, size_t *n, size_t *capacity) {
    id_list out = {tokens, n, capacity};
    size_t before = *n;
    ASSERT(t->file);
    encoder *e = encoder_take(t);
    status rc = file_tokenizer_encode_part(t->file, e, part, &out);
    encoder_give(t, e);
    if (rc != OK) *n = before;
    return rc;
}

size_t tokenizer_deepest_level(const tokenizer *t) { return t->file ? file_tokenizer_level(t->file, SIZE_MAX) : 0; }

/* ---- decoding ------------------------------------------------------------------------------------------------ */

struct decode_stream {
    decode_chain *chain; /* NULL: bytes */
    unsigned flags;
    strbuf held; /* bytes: the beginning of a character */
};

decode_stream *tokenizer_decode_stream(const tokenizer *t, unsigned flags) {
    decode_stream *s = mem_alloc(sizeof *s);
    s->flags = flags;
    if (t->file) s->chain = decode_chain_open(t->file);
    strbuf_init(&s->held);
    return s;
}

void decode_stream_close(decode_stream *s) {
    if (!s) return;
    decode_chain_close(s->chain);
    strbuf_fini(&s->held);
    free(s);
}

/* Bytes go out as they are, whole characters at a time. */
static void push_byte(decode_stream *s, int32_t id, strbuf *out) {
    if (id >= 0 && id < 256) strbuf_add_bytes(&s->held, &(char){(char)id}, 1);
    else if (id != TOKEN_BOS && id != TOKEN_EOS && id != TOKEN_PAD) strbuf_add(&s->held, "\xef\xbf\xbd");
    for (size_t at = 0; s->held.length;) {
        utf8_scan u = utf8_check(s->held.text + at, s->held.length - at);
        at += u.n_valid;
        if (u.n_bad && !u.is_cut) {
            at += u.n_bad;
            continue;
        }
        strbuf_add_bytes(out, s->held.text, at);
        memmove(s->held.text, s->held.text + at, s->held.length - at);
        s->held.length -= at;
        break;
    }
}

status decode_stream_push(decode_stream *s, int32_t id, strbuf *out) {
    strbuf_add_bytes(out, "", 0); /* out->text is a string also when nothing was decoded */
    if (s->chain) return decode_chain_push(s->chain, id, s->flags & DECODE_KEEP_SPECIALS, out);
    push_byte(s, id, out);
    return OK;
}

status decode_stream_end(decode_stream *s, strbuf *out) {
    strbuf_add_bytes(out, "", 0);
    if (s->chain) return decode_chain_end(s->chain, out);
    strbuf_add_bytes(out, s->held.text, s->held.length);
    s->held.length = 0;
    return OK;
}

status tokenizer_decode_with(const tokenizer *t, const int32_t *tokens, size_t n, unsigned flags, strbuf *out) {
    status rc = OK;
    TRY(memory_check("turn tokens into text", n, 12));
    decode_stream *s = tokenizer_decode_stream(t, flags);
    for (size_t i = 0; i < n && rc == OK; i++) rc = decode_stream_push(s, tokens[i], out);
    if (rc == OK) rc = decode_stream_end(s, out);
    decode_stream_close(s);
    return rc;
}

status tokenizer_decode(const tokenizer *t, const int32_t *tokens, size_t n, strbuf *out) {
    return tokenizer_decode_with(t, tokens, n, 0, out);
}
