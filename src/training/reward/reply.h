#pragma once
/* reply.h - private to reward: what programs and servers answer. Bytes from outside; nothing is trusted. */
#include "format/format.h"

typedef enum reply_kind {
    REPLY_NUMBER,
    REPLY_NULL,  /* no score, said so */
    REPLY_VALUE, /* an answer that is no finite number: NaN, Infinity, true, "0.5" ... */
    REPLY_NOISE, /* no JSON: something that is no answer at all */
} reply_kind;
typedef struct reply {
    reply_kind kind;
    double score;   /* REPLY_NUMBER: finite */
    char found[64]; /* the last two: what was found, safe to print */
} reply;

/* One answer: a number, null, or {"score": one of these} with any other keys beside it. Spaces around it are ignored. */
reply reply_parse(const char *text, size_t n_bytes);
/* {"scores": [...]} with n answers as above. False: it is something else, and `found` says what. */
bool replies_parse(const char *text, size_t n_bytes, size_t n, reply *out, char found[128]);
