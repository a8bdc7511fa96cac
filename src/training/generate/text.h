#pragma once
/* text.h - private to generate: the text of one completion as its tokens come, and the strings that end it. */
#include "generate/generate.h"

typedef struct text_stream {
    decode_stream *decoder;
    const char *const *stops; /* borrowed */
    size_t n_stops, longest_stop;
    strbuf text;       /* all that is decoded */
    size_t n_reported; /* of it, what was handed out: never taken back */
    size_t n_clean;    /* of it, what is known to hold no stop string */
} text_stream;

void text_stream_open(text_stream *s, const tokenizer *t, const char *const *stops, size_t n_stops);
void text_stream_close(text_stream *s);
/* A token's text; *stopped when a stop string is complete: the text then ends before it and takes no more tokens. */
status text_stream_push(text_stream *s, int32_t token, bool *stopped);
/* No token follows: text that was held is now final. *stopped as above. */
status text_stream_end(text_stream *s, bool *stopped);
/* New text that no later token can change. */
span text_stream_new_text(text_stream *s, bool ended);
