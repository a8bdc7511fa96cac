/* bench_tokenizer.c - how fast texts become ids and back, on one thread and on all; and how long a tokenizer loads.
 *
 *     bench_tokenizer TOKENIZER FILE...     each file as one document; a .jsonl also line by line
 *     bench_tokenizer --answer TOKENIZER    answers tools/compare_tokenizers.py on its standard input
 *     bench_tokenizer                       what lies in ../shared, if anything does
 *
 * Best of five: this is a measure of the code, not of the machine's mood. */
#include "data/data.h"

#include <stdlib.h>

enum { ROUNDS = 5 };

/* ---- measuring ----------------------------------------------------------------------------------------------- */

static double encode_all(const tokenizer *t, const span *texts, size_t n, int32_t **ids, size_t *n_ids) {
    double best = 1e9;
    size_t capacity = 0;
    *ids = NULL;
    for (int round = 0; round < ROUNDS; round++) {
        double start = clock_s();
        *n_ids = 0;
        for (size_t i = 0; i < n; i++)
            if (tokenizer_encode(t, texts[i].text, texts[i].length, ids, n_ids, &capacity) != OK) error_print(stderr);
        best = MIN(best, clock_s() - start);
    }
    return best;
}

typedef struct encode_job {
    const tokenizer *t;
    const span *texts;
} encode_job;

static void encode_task(void *context, int64_t i, int thread) {
    (void)thread;
    const encode_job *j = context;
    int32_t *ids = NULL;
    size_t n = 0, capacity = 0;
    if (tokenizer_encode(j->t, j->texts[i].text, j->texts[i].length, &ids, &n, &capacity) != OK) error_print(stderr);
    free(ids);
}

static double encode_threads(const tokenizer *t, pool *threads, const span *texts, size_t n) {
    double best = 1e9;
    for (int round = 0; round < ROUNDS; round++) {
        double start = clock_s();
        pool_run(threads, encode_task, &(encode_job){t, texts}, (int64_t)n);
        best = MIN(best, clock_s() - start);
    }
    return best;
}

static void measure(const tokenizer *t, pool *threads, const char *name, const span *texts, size_t n) {
    size_t n_bytes = 0, n_ids;
    int32_t *ids;
    for (size_t i = 0; i < n; i++) n_bytes += texts[i].length;
    double mb = (double)n_bytes / 1e6, encode = encode_all(t, texts, n, &ids, &n_ids);
    strbuf text;
    strbuf_init(&text);
    double start = clock_s();
    if (tokenizer_decode(t, ids, n_ids, &text) != OK) error_print(stderr);
    double decode = clock_s() - start;
    printf("  %-24s %7zu texts %6.2f MB %9zu ids   encode %7.1f ms %6.1f MB/s   decode %6.1f MB/s", name, n, mb, n_ids,
           1e3 * encode, mb / encode, mb / decode);
    if (n > 1) printf("   %d threads %6.1f MB/s", pool_threads(threads), mb / encode_threads(t, threads, texts, n));
    printf("\n");
    strbuf_fini(&text);
    free(ids);
}

static void measure_file(const tokenizer *t, pool *threads, const char *path) {
    char *text;
    size_t n_bytes, n = 0, capacity = 0;
    if (file_read_all(path, (size_t)1 << 30, &text, &n_bytes) != OK) {
        error_print(stderr);
        return;
    }
    const char *slash = strrchr(path, '/');
    span *lines = NULL, whole = {text, n_bytes};
    for (const char *at = text, *end = text + n_bytes, *stop; at < end; at = stop + 1) {
        stop = memchr(at, '\n', (size_t)(end - at));
        if (!stop) stop = end;
        lines = array_grow(lines, &capacity, n + 1, sizeof *lines);
        lines[n++] = (span){at, (size_t)(stop - at)};
    }
    measure(t, threads, slash ? slash + 1 : path, &whole, 1);
    if (str_ends_with(path, ".jsonl")) measure(t, threads, "  line by line", lines, n);
    free(lines);
    free(text);
}

static int bench(const char *name, char **files, int n_files, pool *threads) {
    tokenizer *t;
    uint64_t before = sys_rss_bytes();
    double start = clock_s();
    if (tokenizer_open(&t, name) != OK) {
        error_print(stderr);
        return 2;
    }
    printf("%s: loaded in %.0f ms, %.1f MiB, %lld ids\n", name, 1e3 * (clock_s() - start),
           (double)(sys_rss_bytes() - MIN(before, sys_rss_bytes())) / (1 << 20), (long long)tokenizer_vocab(t));
    for (int i = 0; i < n_files; i++) measure_file(t, threads, files[i]);
    tokenizer_close(t);
    return 0;
}

/* ---- answering ----------------------------------------------------------------------------------------------- */

enum { ASK_DECODE = 0x100, ASK_STREAM = 0x200 };

static bool read_exactly(void *to, size_t n) { return fread(to, 1, n, stdin) == n; }

static void put(uint32_t n, const void *bytes, size_t n_bytes) {
    fwrite(&n, sizeof n, 1, stdout);
    if (n_bytes) fwrite(bytes, 1, n_bytes, stdout);
    fflush(stdout);
}

static void answer_decode(const tokenizer *t, uint32_t what, const int32_t *ids, size_t n) {
    strbuf out;
    status rc = OK;
    strbuf_init(&out);
    if (what & ASK_STREAM) {
        decode_stream *s = tokenizer_decode_stream(t, what & 0xff);
        for (size_t i = 0; i < n && rc == OK; i++) rc = decode_stream_push(s, ids[i], &out);
        if (rc == OK) rc = decode_stream_end(s, &out);
        decode_stream_close(s);
    } else {
        rc = tokenizer_decode_with(t, ids, n, what & 0xff, &out);
    }
    if (rc != OK) put(UINT32_MAX, NULL, 0);
    else put((uint32_t)out.length, out.text, out.length);
    strbuf_fini(&out);
}

/* A question: what, a count, and that many bytes (to encode) or ids (to decode). An answer: a count and ids or bytes. */
static int answer(const char *name) {
    tokenizer *t;
    uint32_t head[2];
    int32_t *ids = NULL;
    size_t n, capacity = 0;
    if (tokenizer_open(&t, name) != OK) {
        error_print(stderr);
        return 2;
    }
    put((uint32_t)tokenizer_vocab(t), NULL, 0);
    while (read_exactly(head, sizeof head)) {
        size_t n_bytes = head[0] < ASK_DECODE ? head[1] : (size_t)head[1] * sizeof *ids;
        char *payload = mem_alloc(n_bytes);
        if (!read_exactly(payload, n_bytes)) return 2;
        n = 0;
        if (head[0] >= ASK_DECODE) answer_decode(t, head[0], (const int32_t *)(const void *)payload, head[1]);
        else if (tokenizer_encode_with(t, payload, n_bytes, head[0], &ids, &n, &capacity) != OK)
            put(UINT32_MAX, NULL, 0);
        else put((uint32_t)n, ids, n * sizeof *ids);
        free(payload);
    }
    free(ids);
    tokenizer_close(t);
    return 0;
}

int main(int argc, char **argv) {
    static const char *const known[] = {"gpt2", "qwen3", "llama3", "llama2"};
    static char *files[] = {"../shared/data/tinyshakespeare.txt", "../shared/data/gsm8k/train.jsonl"};
    if (argc == 3 && strcmp(argv[1], "--answer") == 0) return answer(argv[2]);
    pool *threads;
    int rc = 0;
    FILE *probe = fopen(files[0], "rb");
    if (pool_open(&threads, 0, false) != OK) {
        error_print(stderr);
        return 2;
    }
    if (argc > 2) rc = bench(argv[1], argv + 2, argc - 2, threads);
    else if (!probe) printf("no ../shared/tokenizers here: bench_tokenizer TOKENIZER FILE...\n");
    for (size_t i = 0; argc <= 2 && probe && i < ARRAY_LENGTH(known); i++) {
        char path[64];
        snprintf(path, sizeof path, "../shared/tokenizers/%s", known[i]);
        rc |= bench(path, files, ARRAY_LENGTH(files), threads);
    }
    if (probe) fclose(probe);
    pool_close(threads);
    return rc;
}
