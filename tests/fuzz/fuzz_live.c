/* fuzz_live.c - the files of a run directory, as the live page reads them while they grow.
 *
 * Sections: metrics.jsonl, what is appended to it, samples.jsonl, run.json, memory.json, monitor/rank-00000.jsonl,
 * config.yaml. Whatever they hold: every answer is JSON, curves have as many x as y, x ascends, tables end where
 * board.h says, and every event is one line of JSON. */
#include "fuzz/fuzz.h"
#include "live/board.h"
#include "live/flat.h"

#include <fcntl.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static void no_wake(void *context, void *connection) { ASSERT(!connection); }

static void put(const char *dir, const char *name, span bytes, const char *mode) {
    char path[4200];
    snprintf(path, sizeof path, "%s/%s", dir, name);
    FILE *f = fopen(path, mode);
    ASSERT(f && fwrite(bytes.text, 1, bytes.length, f) == bytes.length && fclose(f) == 0);
}

static void check_curve(const json_t *c) {
    const json_t *x = json_object_get(c, "x"), *y = json_object_get(c, "y");
    ASSERT(json_is_array(x) && json_array_size(x) == json_array_size(y));
    for (size_t i = 0; i < json_array_size(x); i++) {
        ASSERT(json_is_number(json_array_get(x, i)) && json_is_number(json_array_get(y, i)));
        ASSERT(i == 0 || json_number_value(json_array_get(x, i - 1)) <= json_number_value(json_array_get(x, i)));
    }
}

static json_t *read_back(strbuf *out) {
    json_t *root = json_loadb(out->text, out->length, JSON_REJECT_DUPLICATES | JSON_DECODE_ANY | JSON_ALLOW_NUL, NULL);
    ASSERT(root);
    out->length = 0;
    return root;
}

static void check_answers(board *b) {
    strbuf out;
    strbuf_init(&out);
    const char *key;
    json_t *value;
    board_write_run(b, &out);
    json_t *root = read_back(&out);
    ASSERT(json_is_string(json_object_get(root, "state")) && json_is_object(json_object_get(root, "settings")));
    json_decref(root);
    board_write_metrics(b, 100, -INFINITY, &out);
    root = read_back(&out);
    ASSERT(json_object_size(json_object_get(root, "metrics")) <= BOARD_METRICS_MOST);
    json_object_foreach(json_object_get(root, "metrics"), key, value) check_curve(value);
    json_decref(root);
    board_write_memory(b, 50, &out);
    root = read_back(&out);
    json_decref(root);
    board_write_samples(b, &out);
    root = read_back(&out);
    ASSERT(json_array_size(json_object_get(root, "samples")) <= BOARD_SAMPLES_MOST);
    json_decref(root);
    board_write_plan(b, &out);
    json_decref(read_back(&out));
    strbuf_fini(&out);
}

static void check_events(const board *b) {
    for (uint64_t i = b->stream.first; i < b->stream.next; i++) {
        const char *text = b->stream.messages[i % STREAM_MESSAGES].text, *data = strstr(text, "\ndata: ");
        ASSERT(data && strcmp(text + strlen(text) - 2, "\n\n") == 0);
        const char *end = strchr(data + 7, '\n');
        ASSERT(end && end[1] == '\n' && end[2] == 0);
        json_t *root = json_loadb(data + 7, (size_t)(end - data - 7), JSON_ALLOW_NUL, NULL);
        ASSERT(root);
        json_decref(root);
    }
}

/* The quick reader takes nothing that jansson refuses, and reads the same. */
static void check_lines(span text) {
    flat_pair plain[FLAT_MOST];
    for (size_t at = 0; at < text.length;) {
        const char *end = memchr(text.text + at, '\n', text.length - at);
        size_t n_bytes = (end ? (size_t)(end - text.text) : text.length) - at;
        char *line = mem_alloc(n_bytes + 1);
        memcpy(line, text.text + at, n_bytes);
        size_t n = flat_read_plain(line, n_bytes, plain);
        json_t *root = n ? json_loadb(line, n_bytes, JSON_REJECT_DUPLICATES, NULL) : NULL;
        ASSERT(n == json_object_size(root));
        for (size_t i = 0; i < n; i++) {
            char *name = fuzz_text(&plain[i].name);
            const json_t *value = json_object_get(root, name);
            free(name);
            double x = json_is_true(value) ? 1 : json_number_value(value);
            ASSERT(value && (isnan(plain[i].value) ? json_is_null(value) : plain[i].value == x));
        }
        json_decref(root);
        free(line);
        at += n_bytes + 1;
    }
}

static void poll_all(board *b) {
    b->ranks_ns = 0;
    while (board_poll(b)) {}
}

void fuzz_one(const uint8_t *data, size_t size) {
    fuzz_input in = {data, size};
    span metrics = fuzz_section(&in), more = fuzz_section(&in), samples = fuzz_section(&in), run = fuzz_section(&in),
         memory = fuzz_section(&in), monitor = fuzz_section(&in), config = fuzz_section(&in);
    const char *dir = fuzz_directory(NULL, 0);
    char path[4200];
    snprintf(path, sizeof path, "%s/monitor", dir);
    mkdir(path, 0777);
    check_lines(metrics);
    put(dir, "metrics.jsonl", metrics, "w");
    put(dir, "samples.jsonl", samples, "w");
    put(dir, "run.json", run, "w");
    put(dir, "memory.json", memory, "w");
    put(dir, "monitor/rank-00000.jsonl", monitor, "w");
    put(dir, "config.yaml", config, "w");
    board b;
    ASSERT(board_open(&b, dir, NULL, no_wake, NULL) == OK);
    poll_all(&b);
    check_answers(&b);
    put(dir, "metrics.jsonl", more, "a");
    poll_all(&b);
    put(dir, "metrics.jsonl", more, "w"); /* written anew: shorter, or another */
    poll_all(&b);
    check_answers(&b);
    check_events(&b);
    board_close(&b);
}
