/* generate.c - endless built-in sources, for learning that can be checked without any file.
 *
 * Row i of a split is drawn from counter-based random numbers keyed by (seed, split) and counted by (i, draw): there
 * is no state to save, and rows can be made in any order.
 *
 * builtin:arithmetic  problems with one right answer. Every number is written units first and filled up with zeros:
 *     37 + 45 = 82 is "73+54=280". A digit's place then tells its weight, carries move the way the text is written, and
 *     the digits that make a digit of the answer always stand the same distance before it. Measured on a decoder of 3
 *     layers of 128, two digits, 500 steps of 192 problems: 99.3 to 100 % of held-out answers right (three seeds); with
 *     only the answer units first 60 to 99 % (three seeds); in the usual order 20 and 99 % (two); without zeros, less.
 *     The answer and its EOS alone are trained on. A tenth of all problems, chosen by a hash of the problem itself, is
 *     never trained on, whatever the seed and the difficulty.
 * builtin:grammar     a chain whose entropy per token is known exactly: no model can get a lower loss, and one that
 *     remembers less than two symbols stays far above it.
 * builtin:random      tokens from the whole vocabulary, each as likely as any other: nothing to learn, for measuring. */
#include "data/arithmetic.h"

#include <math.h>
#include <stdlib.h>

uint64_t builtin_split_key(uint64_t seed, const char *what, split which) {
    char purpose[64];
    snprintf(purpose, sizeof purpose, "data.%s.%s", what, which == SPLIT_TRAIN ? "train" : "eval");
    return rng_key(seed, purpose);
}

/* [0, n) from 32 random bits; for n up to a million the bias is below one in four thousand. */
static int64_t scaled(uint32_t word, int64_t n) { return (int64_t)((uint64_t)word * (uint64_t)n >> 32); }

/* ---- arithmetic ---------------------------------------------------------------------------------------------- */

/* With two digits: + and -. From three digits on also * by a single digit; a table of one-digit products has no rule
 * from which the held-out ones could be found. a >= b for -, so no answer is negative. */
static const char operators[] = "+-*";
enum { HELD_OUT_ONE_IN = 10, MAX_PROBLEMS = 10000 };

static int64_t second_operand_end(const arithmetic *s, char op) { return op == '*' ? 10 : s->operand_end; }

/* A sum is held out together with its mirror image, which would give the answer away. */
static bool is_held_out(const arithmetic *s, problem q) {
    int64_t a = q.a, b = q.b;
    if (q.op == '+' && a > b) a = q.b, b = q.a;
    uint64_t number = ((uint64_t)(unsigned char)q.op << 48) + (uint64_t)a * 1000000u + (uint64_t)b;
    return rng_u64(s->held_out_key, number) % HELD_OUT_ONE_IN == 0;
}

problem arithmetic_draw(const arithmetic *s, split which, uint64_t index, uint64_t *draw) {
    uint32_t w[4];
    for (;;) {
        rng_philox(s->key[which], index, (*draw)++, w);
        if (which == SPLIT_EVAL) return s->held_out[scaled(w[0], (int64_t)s->n_held_out)];
        problem q = {.op = operators[scaled(w[0], s->n_operators)]};
        q.a = (int32_t)scaled(w[1], s->operand_end);
        q.b = (int32_t)scaled(w[2], second_operand_end(s, q.op));
        if (q.op == '-' && q.a < q.b) q = (problem){.a = q.b, .b = q.a, .op = q.op};
        if (!is_held_out(s, q)) return q;
    }
}

int64_t arithmetic_answer(problem q) {
    int64_t a = q.a, b = q.b;
    return q.op == '+' ? a + b : q.op == '-' ? a - b : a * b;
}

static char *put_digits(char *at, int64_t number, int n_digits) {
    for (int i = 0; i < n_digits; i++, number /= 10) at[i] = (char)('0' + number % 10);
    return at + n_digits;
}

int arithmetic_text(const arithmetic *s, problem q, int64_t answer, char text[32], int *end) {
    char *p = put_digits(text, q.a, s->digits);
    *p++ = q.op;
    p = put_digits(p, q.b, s->digits);
    *p++ = '=';
    *end = (int)(put_digits(p, answer, s->digits + 1) - text);
    return (int)(p - text);
}

void arithmetic_put(const arithmetic *s, problem q, int64_t answer, int64_t at, const data_row *out) {
    char text[32];
    int end, prompt = arithmetic_text(s, q, answer, text, &end);
    for (int i = 0; i <= end; i++) {
        out->tokens[at + i] = i < end ? (unsigned char)text[i] : TOKEN_EOS;
        out->targets[at + i] = i + 1 < prompt || i == end ? -1 : i + 1 < end ? (unsigned char)text[i + 1] : TOKEN_EOS;
        out->doc_start[at + i] = (int32_t)at;
    }
}

static void arithmetic_row(const source *base, split which, uint64_t index, const data_row *out) {
    const arithmetic *s = (const arithmetic *)base;
    uint64_t draw = 0;
    int64_t at = 0;
    do {
        problem q = arithmetic_draw(s, which, index, &draw);
        arithmetic_put(s, q, arithmetic_answer(q), at, out);
        at += s->document_size;
    } while (base->pack && at + s->document_size <= base->seq_len);
    row_pad(base, at, out);
}

static void arithmetic_report(const source *base, split which, data_report *out) {
    const arithmetic *s = (const arithmetic *)base;
    int64_t documents = base->pack ? base->seq_len / s->document_size : 1;
    out->fill = (double)(documents * s->document_size) / (double)base->seq_len;
}

bool arithmetic_problem(const source *base, uint64_t index, strbuf *prompt, strbuf *answer) {
    const arithmetic *s = (const arithmetic *)base;
    if (index >= s->n_held_out) return false;
    char text[32];
    problem q = s->held_out[index];
    int end, n = arithmetic_text(s, q, arithmetic_answer(q), text, &end);
    strbuf_add_bytes(prompt, text, (size_t)n);
    strbuf_add_bytes(answer, text + n, (size_t)(end - n));
    return true;
}

void arithmetic_close(source *base) {
    free(((arithmetic *)base)->held_out);
    free(base);
}

/* Walks every operator's problems in a scattered order, one of each in turn. */
size_t arithmetic_collect(const arithmetic *s, split which, size_t most, problem **out) {
    size_t n_found = 0, capacity = 0;
    bool any = true;
    uint64_t key = rng_key(0, "data.arithmetic.order");
    *out = NULL;
    for (uint64_t i = 0; any && n_found < most; i++) {
        any = false;
        for (int k = 0; k < s->n_operators && n_found < most; k++) {
            uint64_t b_end = (uint64_t)second_operand_end(s, operators[k]), n = (uint64_t)s->operand_end * b_end;
            if (i >= n) continue;
            any = true;
            uint64_t number = rng_permute(key + (uint64_t)k, i, n);
            problem q = {.a = (int32_t)(number / b_end), .b = (int32_t)(number % b_end), .op = operators[k]};
            if ((q.op == '-' && q.a < q.b) || is_held_out(s, q) != (which == SPLIT_EVAL)) continue;
            *out = array_grow(*out, &capacity, n_found + 1, sizeof **out);
            (*out)[n_found++] = q;
        }
    }
    ASSERT(n_found > 0); /* a property of the hash, for each of the six difficulties */
    return n_found;
}

status arithmetic_check(const data_options *o, int64_t n_documents) {
    if (o->difficulty < 1 || o->difficulty > DIFFICULTY_MAX)
        return ERR(ERR_INPUT, "%s: found a difficulty of %lld digits, expected 1 to %d", o->source,
                   (long long)o->difficulty, DIFFICULTY_MAX);
    int64_t wanted = n_documents * (3 * o->difficulty + 4);
    if (o->seq_len < wanted)
        return ERR(ERR_INPUT, "%s: found rows of %lld tokens (seq_len), expected at least %lld, %s of difficulty %lld",
                   o->source, (long long)o->seq_len, (long long)wanted,
                   n_documents == 1 ? "one problem" : "one problem with two answers", (long long)o->difficulty);
    return OK;
}

void arithmetic_init(arithmetic *s, const source_kind *kind, const data_options *o) {
    s->base = (source){.kind = kind, .seq_len = o->seq_len, .pack = o->pack, .pad = TOKEN_PAD};
    s->digits = (int)o->difficulty;
    s->n_operators = s->digits >= 3 ? 3 : 2;
    s->document_size = 3 * o->difficulty + 4;
    s->operand_end = 1;
    for (int i = 0; i < s->digits; i++) s->operand_end *= 10;
    for (split which = SPLIT_TRAIN; which <= SPLIT_EVAL; which++)
        s->key[which] = builtin_split_key(o->seed, "arithmetic", which);
    s->held_out_key = rng_key(0, "data.arithmetic.held_out");
    s->n_held_out = arithmetic_collect(s, SPLIT_EVAL, MAX_PROBLEMS, &s->held_out);
}

status arithmetic_open(source **out, const data_options *o) {
    static const source_kind kind = {
        .row = arithmetic_row, .report = arithmetic_report, .problem = arithmetic_problem, .close = arithmetic_close};
    TRY(arithmetic_check(o, 1));
    arithmetic *s = mem_alloc(sizeof *s);
    arithmetic_init(s, &kind, o);
    *out = &s->base;
    return OK;
}

/* ---- grammar ------------------------------------------------------------------------------------------------- */

/* Documents of symbols a..h. The first two are uniform and not trained on. After them, at every place, the document
 * ends with probability 1/64; else the next symbol is one of four that the last two symbols choose (and order), with
 * probabilities 1/2, 1/4, 1/8, 1/8. The choice is a fixed table, the same for every seed.
 *
 * So every trained token, EOS among them, has the same conditional entropy given its document, whatever came before:
 *     H = h(q) + (1 - q) * 1.75 ln 2,   q = 1/64,   h(q) = -q ln q - (1 - q) ln(1 - q)
 * and the mean loss over trained tokens cannot fall below H in expectation. That a row cuts its last document does not
 * matter, because whether a place is inside the row depends only on what came before it. */
enum { N_SYMBOLS = 8, N_NEXT = 4, END_ONE_IN = 64 };

typedef struct grammar {
    source base;
    uint64_t key[2];
    char next[N_SYMBOLS][N_SYMBOLS][N_NEXT]; /* by the last two symbols, the likeliest first */
} grammar;

/* The words of one row in order. */
typedef struct words {
    uint64_t key, row, n_taken;
    uint32_t word[4];
} words;

static uint32_t words_take(words *w) {
    if (w->n_taken % 4 == 0) rng_philox(w->key, w->row, w->n_taken / 4, w->word);
    return w->word[w->n_taken++ % 4];
}

/* The token after the last two symbols of a document. High bits end it, low bits choose: both are exact. */
static int32_t grammar_next(const grammar *s, uint32_t word, int32_t before, int32_t last) {
    static const char rank[8] = {0, 0, 0, 0, 1, 1, 2, 3};
    if (word >> 26 == 0) return TOKEN_EOS;
    return 'a' + s->next[before - 'a'][last - 'a'][(int)rank[word & 7]];
}

static void grammar_row(const source *base, split which, uint64_t index, const data_row *out) {
    int32_t *tokens = out->tokens, *targets = out->targets;
    const grammar *s = (const grammar *)base;
    words w = {.key = s->key[which], .row = index};
    int64_t at = 0;
    do {
        int64_t start = at;
        for (bool more = true; more && at < base->seq_len; at++) {
            bool free_choice = at < start + 2;
            uint32_t word = words_take(&w);
            tokens[at] =
                free_choice ? 'a' + (int32_t)(word & 7) : grammar_next(s, word, tokens[at - 2], tokens[at - 1]);
            targets[at] = -1; /* until the next token of this document is known */
            if (!free_choice) targets[at - 1] = tokens[at];
            out->doc_start[at] = (int32_t)start;
            more = tokens[at] != TOKEN_EOS;
        }
    } while (base->pack && at < base->seq_len);
    row_pad(base, at, out);
}

static void grammar_report(const source *base, split which, data_report *out) {
    double q = 1.0 / END_ONE_IN, end = -q * log(q) - (1 - q) * log1p(-q);
    out->entropy_per_token = end + (1 - q) * 1.75 * log(2.0);
    /* Alone in its row a document of two symbols and a geometric rest, cut at the row's end, fills this on average. */
    double alone = 2 + (1 - pow(1 - q, (double)base->seq_len - 2)) / q;
    out->fill = base->pack ? 1.0 : alone / (double)base->seq_len;
}

static void grammar_close(source *base) { free(base); }

status grammar_open(source **out, const data_options *o) {
    static const source_kind kind = {.row = grammar_row, .report = grammar_report, .close = grammar_close};
    if (o->seq_len < 4)
        return ERR(ERR_INPUT, "builtin:grammar: found rows of %lld tokens (seq_len), expected at least 4",
                   (long long)o->seq_len);
    grammar *s = mem_alloc(sizeof *s);
    s->base = (source){.kind = &kind, .seq_len = o->seq_len, .pack = o->pack, .pad = TOKEN_PAD};
    for (split which = SPLIT_TRAIN; which <= SPLIT_EVAL; which++)
        s->key[which] = builtin_split_key(o->seed, "grammar", which);
    uint64_t key = rng_key(0, "data.grammar.table");
    for (uint64_t i = 0; i < N_SYMBOLS; i++)
        for (uint64_t j = 0; j < N_SYMBOLS; j++)
            for (uint64_t k = 0; k < N_NEXT; k++)
                s->next[i][j][k] = (char)rng_permute(rng_u64(key, i * N_SYMBOLS + j), k, N_SYMBOLS);
    *out = &s->base;
    return OK;
}

/* ---- random tokens ------------------------------------------------------------------------------------------- */

typedef struct random_tokens {
    source base;
    uint64_t key[2];
    int64_t vocab;
} random_tokens;

/* A row is one document. */
static void random_row(const source *base, split which, uint64_t index, const data_row *out) {
    int32_t *tokens = out->tokens, *targets = out->targets;
    const random_tokens *s = (const random_tokens *)base;
    words w = {.key = s->key[which], .row = index};
    for (int64_t i = 0; i < base->seq_len; i++) {
        tokens[i] = (int32_t)scaled(words_take(&w), s->vocab);
        if (i > 0) targets[i - 1] = tokens[i];
        out->doc_start[i] = 0;
    }
    targets[base->seq_len - 1] = (int32_t)scaled(words_take(&w), s->vocab);
}

static void random_report(const source *base, split which, data_report *out) {
    out->entropy_per_token = log((double)((const random_tokens *)base)->vocab);
    out->fill = 1;
}

static void random_close(source *base) { free(base); }

status random_open(source **out, const data_options *o) {
    static const source_kind kind = {.row = random_row, .report = random_report, .close = random_close};
    random_tokens *s = mem_alloc(sizeof *s);
    s->base = (source){.kind = &kind, .seq_len = o->seq_len, .pack = o->pack, .pad = TOKEN_PAD};
    s->vocab = o->vocab ? o->vocab : BYTE_VOCAB;
    for (split which = SPLIT_TRAIN; which <= SPLIT_EVAL; which++)
        s->key[which] = builtin_split_key(o->seed, "random", which);
    *out = &s->base;
    return OK;
}
