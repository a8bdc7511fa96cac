/* text.c - decode a completion token by token and look for stop strings.
 *
 * A stop string may begin in the middle of one token and end in the middle of another, so it is looked for in the text.
 * Text whose end is the beginning of a stop string waits until it is clear which it is. Of several that end with the same
 * token, the one that begins first cuts the text. */
#include "generate/text.h"

void text_stream_open(text_stream *s, const tokenizer *t, const char *const *stops, size_t n_stops) {
    *s = (text_stream){.decoder = tokenizer_decode_stream(t, 0), .stops = stops, .n_stops = n_stops};
    strbuf_init(&s->text);
    strbuf_add(&s->text, "");
    for (size_t i = 0; i < n_stops; i++) s->longest_stop = MAX(s->longest_stop, strlen(stops[i]));
}

void text_stream_close(text_stream *s) {
    decode_stream_close(s->decoder);
    strbuf_fini(&s->text);
    *s = (text_stream){0};
}

/* Cuts the text before the first stop string that is whole. */
static bool find_stop(text_stream *s) {
    size_t first = SIZE_MAX;
    for (size_t i = 0; i < s->n_stops; i++) {
        size_t n = strlen(s->stops[i]);
        for (size_t at = s->n_clean; at + n <= s->text.length && at < first; at++)
            if (memcmp(s->text.text + at, s->stops[i], n) == 0) first = at;
    }
    if (first != SIZE_MAX) {
        s->text.length = first;
        s->text.text[first] = 0;
        return true;
    }
    size_t open = s->longest_stop ? s->longest_stop - 1 : 0; /* a stop may still begin in the last bytes */
    s->n_clean = s->text.length > open ? s->text.length - open : 0;
    return false;
}

status text_stream_push(text_stream *s, int32_t token, bool *stopped) {
    *stopped = false;
    TRY(decode_stream_push(s->decoder, token, &s->text));
    *stopped = find_stop(s);
    return OK;
}

status text_stream_end(text_stream *s, bool *stopped) {
    *stopped = false;
    TRY(decode_stream_end(s->decoder, &s->text));
    *stopped = find_stop(s);
    return OK;
}

/* The longest end of the text that is the beginning of a stop string. */
static size_t held_back(const text_stream *s) {
    size_t most = 0;
    for (size_t i = 0; i < s->n_stops; i++)
        for (size_t n = MIN(strlen(s->stops[i]) - 1, s->text.length - s->n_reported); n > most; n--)
            if (memcmp(s->text.text + s->text.length - n, s->stops[i], n) == 0) most = n;
    return most;
}

span text_stream_new_text(text_stream *s, bool ended) {
    size_t end = s->text.length - (ended ? 0 : held_back(s));
    span fresh = {s->text.text + s->n_reported, end - s->n_reported};
    s->n_reported = end;
    return fresh;
}
