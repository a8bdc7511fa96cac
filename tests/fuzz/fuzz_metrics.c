/* fuzz_metrics.c - metrics.jsonl of an earlier run, as a run that is resumed finds it.
 *
 * Sections: the file, then the step that comes next, as JSON: [step, is it an evaluation].
 * Whatever the file holds: what stays of it is a beginning of it in whole lines, behind that stands one new line, and no line of a
 * step that is made again is left. */
#define _GNU_SOURCE 1 /* memmem */
#include "fuzz/fuzz.h"
#include "track/track.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* The step of a line as a run writes it; -1: it is another one. behind: what stands there. */
static int64_t line_step(span line, span *behind) {
    static const char head[] = "{\"step\": ";
    size_t i = sizeof head - 1, digits = 0;
    int64_t step = 0;
    if (line.length < i || memcmp(line.text, head, i) != 0) return -1;
    for (; i < line.length && line.text[i] >= '0' && line.text[i] <= '9' && digits < 18; i++, digits++)
        step = 10 * step + (line.text[i] - '0');
    *behind = (span){line.text + i, line.length - i};
    return digits && behind->length && *behind->text == ',' ? step : -1;
}

static bool is_evaluation(span behind) { return behind.length >= 7 && memcmp(behind.text, ", \"val/", 7) == 0; }

static span take_line(span *rest) {
    const char *end = memchr(rest->text, '\n', rest->length);
    size_t n = end ? (size_t)(end - rest->text) + 1 : rest->length;
    span line = {rest->text, n};
    *rest = (span){rest->text + n, rest->length - n};
    return line;
}

static void check(span before, span after, int64_t step, bool evaluation) {
    ASSERT(after.length > 0 && after.text[after.length - 1] == '\n');
    size_t kept = after.length - 1;
    while (kept > 0 && after.text[kept - 1] != '\n') kept--;
    span behind;
    ASSERT(line_step((span){after.text + kept, after.length - kept}, &behind) == step &&
           is_evaluation(behind) == evaluation);
    ASSERT(kept <= before.length && (kept == 0 || memcmp(before.text, after.text, kept) == 0));
    for (span rest = {after.text, kept}; rest.length;) {
        span line = take_line(&rest);
        int64_t found = line_step(line, &behind);
        ASSERT(found < step || (evaluation && found == step && !is_evaluation(behind)));
    }
    /* Nothing is cut off that a run did not write. */
    bool has_steps = memmem(before.text, before.length, "{\"step\":", 8) != NULL;
    size_t whole = before.length;
    while (whole > 0 && before.text[whole - 1] != '\n') whole--;
    ASSERT(has_steps || kept == whole);
}

void fuzz_one(const uint8_t *data, size_t size) {
    fuzz_input in = {data, size};
    span file = fuzz_section(&in), text = fuzz_section(&in);
    json_t *next = json_loadb(text.text, text.length, 0, NULL);
    int64_t step = MIN(MAX(json_integer_value(json_array_get(next, 0)), 1), (int64_t)1 << 50);
    bool evaluation = json_is_true(json_array_get(next, 1));
    json_decref(next);

    char path[4200];
    const char *dir = fuzz_directory(NULL, 0);
    snprintf(path, sizeof path, "%s/metrics.jsonl", dir);
    FILE *f = fopen(path, "w"); /* file_replace would wait for the disk */
    ASSERT(f && fwrite(file.text, 1, file.length, f) == file.length && fclose(f) == 0);
    track *t;
    ASSERT(track_open(&t, &(track_options){.run_dir = dir}) == OK);
    if (evaluation) track_eval(t, &(train_eval_report){.step = step, .loss = 1, .exact_match = NAN, .n_rows = 1});
    else track_step(t, &(train_step_report){.step = step, .steps = step, .loss = NAN}, 0);
    track_close(t);

    char *bytes;
    size_t n_bytes;
    ASSERT(file_read_all(path, (size_t)1 << 24, &bytes, &n_bytes) == OK);
    check(file, (span){bytes, n_bytes}, step, evaluation);
    free(bytes);
}
