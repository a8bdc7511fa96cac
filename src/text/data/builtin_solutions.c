/* builtin_solutions.c - builtin:solutions: sums of three numbers with worked solutions, correct and wrong ones.
 *
 * Numbers are written units first and filled up with zeros, as in builtin:arithmetic and for the same reason. With two digits
 * 37 + 45 + 12 is the problem "73+54+21=", and a solution adds one number after the other:
 *     "730+54=280;280+21=490;"
 * in any order, so there are six correct ones. A wrong one makes one mistake, in the result of one step, and the steps after
 * it go on from that result without another one. Before it nothing is wrong, and data_solution_wrong_at says where it is. Most
 * mistakes are gross (see slip), so that a small critic finds them within minutes; some take one that can add. Measured on a decoder
 * of 3 layers of 128 from random values: with results that are all off by one, two or ten, 400 steps of 48 pairs ranked 50 % of
 * held-out pairs, no better than chance; with three of four gross, 88 % after 150 steps, which is all of those.
 *
 * 4,000 problems, the same for every seed, each with three correct and three wrong solutions. Those of the last tenth
 * are never trained on: they are chosen by a hash of their numbers, in any order of them. They are the problems that a policy is
 * asked: any of the six correct solutions is a right answer, and all have the same length. What is made here is a store of
 * documents as reading a file makes it, so rows, pairs and held-out examples are those of files. */
#include "data/arithmetic.h"
#include "data/solutions.h"

#include <stdlib.h>
#include <string.h>

enum {
    OPERANDS = 3,
    STEPS = OPERANDS - 1,
    ORDERS = 6,
    EACH = 3,
    PROBLEMS = 4000,
    HELD_OUT = 400,
    HELD_OUT_ONE_IN = 10
};
enum { TEXT_BYTES = 128 };
static const signed char orders[ORDERS][OPERANDS] = {{0, 1, 2}, {0, 2, 1}, {1, 0, 2}, {1, 2, 0}, {2, 0, 1}, {2, 1, 0}};

typedef struct sum_problem {
    int64_t operands[OPERANDS];
} sum_problem;

static int64_t ten_to(int64_t n) {
    int64_t x = 1;
    while (n-- > 0) x *= 10;
    return x;
}

static char *put_number(char *at, int64_t number, int64_t digits) {
    for (int64_t i = 0; i < digits; i++, number /= 10) *at++ = (char)('0' + number % 10);
    return at;
}

static int64_t get_number(const int32_t *at, int64_t digits) {
    int64_t number = 0;
    for (int64_t i = digits; i-- > 0;) number = 10 * number + (at[i] - '0');
    return number;
}

static int64_t prompt_bytes(int64_t digits) { return OPERANDS * (digits + 1); }
static int64_t step_bytes(int64_t digits) { return 3 * digits + 5; }

/* Without the EOS. */
static int64_t solution_bytes(int64_t digits) { return prompt_bytes(digits) + STEPS * step_bytes(digits); }

int64_t data_solution_wrong_at(const int32_t *tokens, int64_t n, int64_t digits) {
    if (n < solution_bytes(digits)) return -1;
    for (int step = 0; step < STEPS; step++) {
        int64_t at = prompt_bytes(digits) + step * step_bytes(digits), result = at + 2 * digits + 3;
        int64_t sum = get_number(tokens + at, digits + 1) + get_number(tokens + at + digits + 2, digits);
        for (int64_t i = 0; i <= digits; i++, sum /= 10)
            if (tokens[result + i] != '0' + sum % 10) return result + i;
    }
    return -1;
}

/* The same for every order of the numbers: one would give the others away. */
static bool is_held_out(const sum_problem *q) {
    uint64_t sum = 0, key = rng_key(0, "data.solutions.held_out");
    for (int i = 0; i < OPERANDS; i++) sum += rng_u64(key, (uint64_t)q->operands[i]);
    return rng_u64(key, sum) % HELD_OUT_ONE_IN == 0;
}

uint64_t builtin_solutions_split(const token_store *s, uint64_t n_each, int64_t digits) {
    uint64_t n = s->n_documents / n_each, at = 0;
    for (; at < n; at++) {
        sum_problem q;
        uint64_t begin = store_document_begin(s, at * n_each);
        for (int i = 0; i < OPERANDS; i++) {
            q.operands[i] = 0;
            for (int64_t k = digits; k-- > 0;)
                q.operands[i] = 10 * q.operands[i] + store_token(s, begin + (uint64_t)(i * (digits + 1) + k)) - '0';
        }
        if (is_held_out(&q)) break;
    }
    return at;
}

static sum_problem draw_problem(uint64_t number, int64_t digits) {
    uint64_t key = rng_key(0, "data.solutions.problems"), end = (uint64_t)ten_to(digits);
    sum_problem q;
    for (uint64_t draw = 0;; draw++) {
        for (uint64_t i = 0; i < OPERANDS; i++)
            q.operands[i] = (int64_t)rng_below(rng_u64(key, number), draw * OPERANDS + i, end);
        if (is_held_out(&q) == (number >= PROBLEMS - HELD_OUT)) return q;
    }
}

/* A result that is off, and has the digits that results have. Seven of eight have a first digit that no sum of three numbers has;
 * the others are off by one or two, as after a slip in the last digit. */
static int64_t slip(uint64_t word, int64_t right, int64_t digits) {
    int64_t place = ten_to(digits), by = word & 8 ? 1 : 2, wrong = word & 16 ? right + by : right - by;
    if (word & 7) return right % place + place * (OPERANDS + (int64_t)(word >> 8 & 0xffff) % (10 - OPERANDS));
    return wrong < 0 ? right + by : wrong;
}

/* wrong_step: STEPS for a correct solution. */
static size_t write_solution(const sum_problem *q, int order, int wrong_step, uint64_t word, int64_t digits,
                             char text[TEXT_BYTES]) {
    char *at = text;
    int64_t sum = q->operands[orders[order][0]], end = ten_to(digits + 1);
    for (int i = 0; i < OPERANDS; i++) {
        at = put_number(at, q->operands[i], digits);
        *at++ = i + 1 < OPERANDS ? '+' : '=';
    }
    for (int step = 0; step < STEPS; step++) {
        int64_t operand = q->operands[orders[order][step + 1]], result = (sum + operand) % end;
        if (step == wrong_step) result = slip(word, result, digits);
        at = put_number(at, sum, digits + 1);
        *at++ = '+';
        at = put_number(at, operand, digits);
        *at++ = '=';
        at = put_number(at, result, digits + 1);
        *at++ = ';';
        sum = result;
    }
    return (size_t)(at - text);
}

static void encode(const char *text, size_t n, int64_t n_prompt, chat_tokens *out) {
    out->ids = array_grow(out->ids, &out->capacity, n + 1, sizeof *out->ids);
    out->trained = array_grow(out->trained, &out->trained_capacity, n + 1, 1);
    for (size_t i = 0; i <= n; i++) {
        out->ids[i] = i < n ? (unsigned char)text[i] : TOKEN_EOS;
        out->trained[i] = (int64_t)i >= n_prompt;
    }
    out->n = n + 1;
}

static uint64_t slips_key(uint64_t number) { return rng_u64(rng_key(0, "data.solutions.slips"), number); }

/* Of the correct solution i of a problem. */
static int correct_order(uint64_t number, uint64_t i) { return (int)rng_permute(slips_key(number), i, ORDERS); }

/* Solutions of one problem: into the set, or the correct ones as documents of their own. */
static status add_problem(const data_options *o, uint64_t number, solution_set *set, store_builder *out,
                          chat_tokens *room) {
    sum_problem q = draw_problem(number, o->difficulty);
    uint64_t key = slips_key(number), prompt = 0;
    char text[TEXT_BYTES];
    for (int i = 0; i < OPERANDS; i++) prompt = prompt * (uint64_t)ten_to(o->difficulty) + (uint64_t)q.operands[i];
    for (int i = 0; i < 2 * EACH; i++) {
        bool correct = i < EACH;
        uint64_t word = rng_u64(key, (uint64_t)i);
        int order =
            correct ? correct_order(number, (uint64_t)i) : (int)rng_permute(key + 1, (uint64_t)(i % EACH), ORDERS);
        size_t n = write_solution(&q, order, correct ? STEPS : (int)((word >> 32) % STEPS), word, o->difficulty, text);
        encode(text, n, prompt_bytes(o->difficulty), room);
        if (set) {
            TRY(solution_set_add(set, room, &(solution_keys){correct, prompt, 0}, number + 1));
        } else if (correct) {
            TRY(store_add(out, room->ids, room->trained, room->n));
            store_end_document(out);
        }
    }
    return OK;
}

static status make(const data_options *o, solution_set *set, store_builder *out) {
    chat_tokens room = {0};
    status rc = OK;
    for (uint64_t i = 0; i < PROBLEMS && rc == OK; i++) rc = add_problem(o, i, set, out, &room);
    chat_tokens_free(&room);
    TRY(rc);
    if (set) TRY(solution_set_write(set, o, o->source, out));
    out->store->has_prompts = true;
    if (!set) out->store->n_incorrect = EACH * PROBLEMS;
    return store_builder_finish(out);
}

static status check(const data_options *o) {
    int64_t n = o->kind == DATA_TEXT ? 1 : 2, wanted = n * (solution_bytes(o->difficulty) + 1);
    if (o->difficulty < 1 || o->difficulty > DIFFICULTY_MAX)
        return ERR(ERR_INPUT, "%s: found a difficulty of %lld digits, expected 1 to %d", o->source,
                   (long long)o->difficulty, DIFFICULTY_MAX);
    if (o->seq_len >= wanted) return OK;
    return ERR(ERR_INPUT, "%s: found rows of %lld tokens (data.seq_len), expected at least %lld, %s of difficulty %lld",
               o->source, (long long)o->seq_len, (long long)wanted,
               n == 1 ? "one solution" : "a correct and a wrong solution", (long long)o->difficulty);
}

bool builtin_solutions_problem(uint64_t index, int64_t digits, strbuf *prompt, strbuf *answer) {
    if (index >= HELD_OUT) return false;
    uint64_t number = PROBLEMS - HELD_OUT + index;
    sum_problem q = draw_problem(number, digits);
    char text[TEXT_BYTES];
    size_t n = write_solution(&q, correct_order(number, 0), STEPS, 0, digits, text);
    strbuf_add_bytes(prompt, text, (size_t)prompt_bytes(digits));
    strbuf_add_bytes(answer, text + prompt_bytes(digits), n - (size_t)prompt_bytes(digits));
    return true;
}

bool builtin_solutions_answer(uint64_t index, int64_t digits, const char *begun, size_t n_begun, strbuf *answer) {
    if (index >= HELD_OUT) return false;
    sum_problem q = draw_problem(PROBLEMS - HELD_OUT + index, digits);
    for (int order = 0; order < ORDERS; order++) {
        char text[TEXT_BYTES];
        size_t n_prompt = (size_t)prompt_bytes(digits),
               n = write_solution(&q, order, STEPS, 0, digits, text) - n_prompt;
        if (n_begun > n || memcmp(text + n_prompt, begun, n_begun) != 0) continue;
        strbuf_add_bytes(answer, text + n_prompt, n);
        return true;
    }
    return false;
}

uint64_t builtin_solutions_bytes(const data_options *o) {
    uint64_t pairs = MIN((uint64_t)(o->pairs_per_problem ? o->pairs_per_problem : PAIRS_PER_PROBLEM), EACH * EACH);
    uint64_t documents = PROBLEMS * (o->kind == DATA_TEXT ? EACH : 2 * pairs);
    uint64_t tokens = documents * (uint64_t)(solution_bytes(o->difficulty) + 1);
    return tokens * sizeof(uint16_t) + documents * (sizeof(store_document) + sizeof(uint32_t) + sizeof(uint64_t));
}

status builtin_solutions_make(const data_options *o, token_store *out) {
    solution_set set = {0};
    store_builder b = {0};
    enum { WIDTH = 2 }; /* of bytes with a mark for those that are not trained on */
    TRY(check(o));
    status rc = store_builder_open(&b, out, WIDTH, NULL, 0);
    if (rc == OK && o->kind != DATA_TEXT) rc = solution_set_open(&set, WIDTH);
    if (rc == OK) rc = make(o, o->kind == DATA_TEXT ? NULL : &set, &b);
    solution_set_close(&set);
    store_builder_close(&b);
    return rc;
}
