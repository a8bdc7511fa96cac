/* fuzz_reward.c - what reward programs and servers answer, and completions in which an answer is searched.
 *
 * Of a reply: a number is finite and reads back from its digits; what is shown of another is printable. A batch of replies is that of
 * its single answers. The answer of a text lies in it; its number is finite, and is that of the answer alone. */
#include "reward/answer.h"
#include "reward/reply.h"
#include "fuzz/fuzz.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { REPLIES_MOST = 8 };

static void check_shown(const char *text, size_t room) {
    size_t n = strnlen(text, room);
    ASSERT(n < room);
    for (size_t i = 0; i < n; i++) ASSERT((unsigned char)text[i] >= 0x20 && text[i] != 0x7f);
}

static void check_reply(const reply *r) {
    check_shown(r->found, sizeof r->found);
    if (r->kind != REPLY_NUMBER) return;
    char digits[64];
    ASSERT(isfinite(r->score));
    int n = snprintf(digits, sizeof digits, "%.17g", r->score);
    reply again = reply_parse(digits, (size_t)n);
    ASSERT(again.kind == REPLY_NUMBER && again.score == r->score);
}

static void check_replies(const char *text, size_t n_bytes) {
    reply replies[REPLIES_MOST];
    char found[128];
    for (size_t n = 0; n < REPLIES_MOST; n++) {
        if (!replies_parse(text, n_bytes, n, replies, found)) {
            check_shown(found, sizeof found);
            continue;
        }
        for (size_t i = 0; i < n; i++) {
            ASSERT(replies[i].kind != REPLY_NOISE);
            check_reply(&replies[i]);
        }
    }
}

static void check_answer(span text) {
    bool is_marked, again;
    double x, y;
    span answer = answer_extract(text, &is_marked);
    ASSERT(
        answer.length <= text.length &&
        (answer.length == 0 || (answer.text >= text.text && answer.text + answer.length <= text.text + text.length)));
    if (!is_marked) {
        span same = answer_extract(answer, &again);
        ASSERT(!again && same.length == answer.length);
    }
    bool found = answer_extract_number(text, &x);
    ASSERT(!found || isfinite(x));
    if (!is_marked) ASSERT(answer_extract_number(answer, &y) == found && (!found || x == y));
}

void fuzz_one(const uint8_t *data, size_t size) {
    char *text = malloc(MAX(size, 1)); /* of its own size, so that a read behind it is seen */
    if (!text) mem_refused(size);
    if (size) memcpy(text, data, size);
    reply r = reply_parse(text, size);
    check_reply(&r);
    check_replies(text, size);
    check_answer((span){text, size});
    free(text);
}
