/* test_answer.c - the answer of a text that reasons, as words and as a number. */
#include "reward/answer.h"
#include "must.h"

#include <math.h>
#include <stdlib.h>

static span text_of(const char *text) { return (span){text, strlen(text)}; }

static void numbers_are_found(void **state) {
    static const struct {
        const char *text;
        double number; /* NAN: none */
    } cases[] = {
        /* gsm8k: what comes after ####, whatever was calculated before */
        {"48/2 = <<48/2=24>>24 clips.\n48+24 = <<48+24=72>>72 in all.\n#### 72", 72},
        {"#### 1,234,567", 1234567},
        {"#### $18", 18},
        {"#### -5", -5},
        {"#### -$5.50", -5.5},
        {"#### $-3", -3},
        {"####20%", 20},
        {"#### 0.5", 0.5},
        {"#### .5", 0.5},
        {"#### 5.", 5},
        {"#### 2,50", 2},
        {"#### 42\n\nSome more words 7", 42},
        {"#### 1\n#### 2", 2},
        {"#### \xe2\x88\x92"
         "17",
         -17},
        {"#### \xc2\xa3"
         "12",
         12},
        {"#### 12 apples in 3 bags", 12},
        {"#### none", NAN},
        {"####", NAN},
        /* LaTeX */
        {"so \\boxed{42}.", 42},
        {"\\boxed{1} and then \\boxed{\\text{about } 7}", 7},
        {"\\boxed{\\frac{3}{4}}", 0.75},
        {"\\boxed{-\\dfrac{1}{8}}", -0.125},
        {"\\boxed{\\frac{-3}{4}}", -0.75},
        {"\\boxed{\\frac{x}{4}}", 4},
        {"\\boxed{1{,}234}", 1234},
        {"\\boxed{12\\,345}", 12345},
        {"\\boxed{\\$1,000}", 1000},
        {"\\boxed{x = 5}", 5},
        {"\\boxed{x=-5}", -5},
        {"$\\boxed{12", 12}, /* cut off: no mark; the last number */
        {"\\boxed{}", NAN},
        {"The answer is \\boxed{9} because 3*3", 9},
        /* words */
        {"The answer is 5.", 5},
        {"the answer is 5. I used 3 steps.", 5},
        {"The final answer is: 1,000 dollars", 1000},
        {"THE ANSWER IS $3.50!", 3.5},
        {"The answer is 12 + 30 = 42", 42},
        {"Answer: 7", 7},
        {"**Answer:** 8", 8},
        {"**Final Answer**: 8.5 kg", 8.5},
        {"The answer is:\n\n11\n", 11},
        {"answer isn't 5 but 6", 6}, /* no mark; the last number */
        {"#### 3\nNo, the answer is 4", 4},
        {"<think>2 or 3</think><answer>3</answer> 99", 3},
        {"<answer>The answer is 12.</answer>", 12},
        {"<answer>4</answer", 4},
        /* without a mark: the last number */
        {"72", 72},
        {"  -7.25 ", -7.25},
        {"first 1 then 2, finally 3!", 3},
        {"10-7", 7},
        {"10 -7", -7},
        {"(-4)", -4},
        {"1e-3", 1e-3},
        {"2E5", 2e5},
        {"2e", 2},
        {"3/4", 0.75},
        {"1/0", NAN},
        {"1,2,3", 3},
        {"1234,567", 567},
        {"0x10", 10},
        {"1e999", NAN},
        {"no number", NAN},
        {"", NAN},
        {"-", NAN},
        {"inf nan", NAN},
        {"\xff\xfe 5 \xff", 5},
    };
    for (size_t i = 0; i < ARRAY_LENGTH(cases); i++) {
        double x;
        bool found = answer_extract_number(text_of(cases[i].text), &x);
        bool right = found ? x == cases[i].number : isnan(cases[i].number);
        if (!right) fail_msg("'%s': found %g, expected %g", cases[i].text, found ? x : NAN, cases[i].number);
    }
}

static void words_are_found(void **state) {
    static const struct {
        const char *text, *answer;
    } cases[] = {
        {"280", "280"},
        {" 280\n", "280"},
        {"The capital is Paris", "The capital is Paris"},
        {"The answer is Paris. It lies on the Seine.", "Paris"},
        {"the answer is **Paris**.", "Paris"},
        {"#### a b \nc", "a b"},
        {"\\boxed{\\text{yes}}", "\\text{yes}"},
        {"\\boxed{$x^2$}", "x^2"},
        {"<answer>\n(B)\n</answer>", "(B)"},
        {"<answer>Answer: (B)</answer>", "(B)"},
        {"\\boxed{the answer is 4}", "4"},
        {"", ""},
    };
    for (size_t i = 0; i < ARRAY_LENGTH(cases); i++) {
        bool marked;
        span s = answer_extract(text_of(cases[i].text), &marked);
        if (s.length != strlen(cases[i].answer) || memcmp(s.text, cases[i].answer, s.length) != 0)
            fail_msg("'%s': found '%.*s', expected '%s'", cases[i].text, (int)s.length, s.text, cases[i].answer);
    }
}

/* Time stays in proportion to the text: a megabyte of each takes milliseconds, not minutes. */
static void hostile_texts_end_soon(void **state) {
    static const char *const pieces[] = {"9", ",123",       "\\boxed{", "####", "answer is ", "<answer>", "-", "1/",
                                         "=", "\\frac{1}{", "answer*",  "1e",   ". ",         "{",        "\n"};
    enum { BYTES = 1 << 20 };
    char *text = mem_alloc(BYTES + 1);
    double start = clock_s();
    for (size_t i = 0; i < ARRAY_LENGTH(pieces); i++) {
        size_t n = strlen(pieces[i]), k = 0;
        for (; k + n <= BYTES; k += n) memcpy(text + k, pieces[i], n);
        double x;
        bool marked;
        answer_extract_number((span){text, k}, &x);
        answer_extract((span){text, k}, &marked);
    }
    free(text);
    assert_true(clock_s() - start < 60); /* a quadratic search takes hours */
}

/* Every solution of gsm8k, against the expression that its authors use. RALO_GSM8K: a directory with train.jsonl and test.jsonl. */
static void all_of_gsm8k(void **state) {
    static const char *const names[] = {"train.jsonl", "test.jsonl"};
    const char *directory = getenv("RALO_GSM8K");
    if (!directory) skip();
    for (size_t i = 0; i < ARRAY_LENGTH(names); i++) {
        char path[512], line[16384];
        size_t n = 0, right = 0;
        snprintf(path, sizeof path, "%s/%s", directory, names[i]);
        FILE *in = fopen(path, "r");
        assert_non_null(in);
        for (; fgets(line, sizeof line, in); n++) {
            json_t *v = json_loads(line, 0, NULL);
            const char *answer = json_string_value(json_object_get(v, "answer"));
            const char *hashes = strstr(answer, "#### "); /* #### (\-?[0-9\.\,]+), commas removed */
            char digits[64];
            size_t k = 0;
            for (const char *c = hashes + 5; *c && strchr("-0123456789.,", *c); c++)
                if (*c != ',') digits[k++] = *c;
            digits[k] = 0;
            double x;
            bool found = answer_extract_number(text_of(answer), &x);
            if (found && x == strtod(digits, NULL)) right++;
            else print_message("%s:%zu: found %g, expected %s\n", names[i], n + 1, x, digits);
            json_decref(v);
        }
        fclose(in);
        print_message("%s: %zu of %zu solutions\n", names[i], right, n);
        assert_int_equal(right, n);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(numbers_are_found), cmocka_unit_test(words_are_found),
                                       cmocka_unit_test(hostile_texts_end_soon), cmocka_unit_test(all_of_gsm8k)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
