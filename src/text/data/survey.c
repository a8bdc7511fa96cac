/* survey.c - how long records are, and rows that hold them.
 *
 * Rows too short for the data are the mistake that costs most and shows least: training runs, and most records were
 * dropped. So data.seq_len follows the data unless it is given: rows hold all records if the longest has at most
 * OUTLIER times the tokens of the 99th percentile, else 99 % of them, rounded up to a multiple of STEP and at most
 * data.seq_len_max and the positions of the model. Plain text, which loses nothing at the end of a row, gets rows of TEXT_ROW tokens.
 * A run that would lose more than 1 % of its records is refused, with the seq_len that keeps them. */
#include "data/source.h"

#include <stdlib.h>

enum { STEP = 64, OUTLIER = 2, TEXT_ROW = 1024, TEXT_ROW_LEAST = 64, PERCENT = 100 };

static int compare(const void *a, const void *b) {
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return (x > y) - (x < y);
}

/* The smallest that at least `percent` of them do not exceed. */
static uint64_t percentile(const uint64_t *sorted, size_t n, size_t percent) {
    size_t whole = n / PERCENT * percent, rest = n % PERCENT * percent; /* n x percent might not fit */
    return sorted[MAX(whole + (rest + PERCENT - 1) / PERCENT, 1) - 1];
}

/* The largest length is below 2^62: token stores count in 64 bits. */
static int64_t row_for(uint64_t length, int64_t beside) { return MAX((int64_t)length + beside, 2); }

int64_t survey_row(int64_t n_tokens, int64_t positions) {
    int64_t T = (n_tokens + STEP - 1) / STEP * STEP;
    return positions ? MIN(T, positions) : T;
}

void survey_lengths(data_survey *s, uint64_t *lengths, size_t n, int64_t beside, int64_t positions) {
    s->n = n;
    if (n == 0) return;
    qsort(lengths, n, sizeof *lengths, compare);
    s->min = lengths[0];
    s->median = percentile(lengths, n, 50);
    s->p95 = percentile(lengths, n, 95);
    s->p99 = percentile(lengths, n, 99);
    s->max = lengths[n - 1];
    s->seq_len_most = row_for(s->p99, beside);
    s->seq_len_all = row_for(s->max, beside);
    bool all = s->seq_len_all <= OUTLIER * s->seq_len_most;
    s->seq_len = survey_row(all ? s->seq_len_all : s->seq_len_most, positions);
}

int64_t survey_row_most(const data_options *o) {
    return o->row_most && o->positions ? MIN(o->row_most, o->positions) : MAX(o->row_most, o->positions);
}

int64_t survey_text_row(uint64_t n_tokens, const data_options *o) {
    int64_t T = o->row_most ? o->row_most : TEXT_ROW;
    while (T > TEXT_ROW_LEAST && n_tokens < (uint64_t)T) T /= 2; /* a small file still has rows */
    return o->positions ? MIN(T, o->positions) : T;
}

int64_t data_text_row(const data_options *o) { return survey_text_row(UINT64_MAX, o); }

/* ---- in words ---------------------------------------------------------------------------------------------------- */

void data_survey_describe(const data_survey *s, strbuf *out) {
    if (s->n == 0) return;
    uint64_t longer = s->n_cut + s->n_dropped;
    strbuf_printf(
        out, "%s of %llu to %llu tokens, median %llu, 95 %% up to %llu, 99 %% up to %llu; data.seq_len %lld%s ",
        s->unit, (unsigned long long)s->min, (unsigned long long)s->max, (unsigned long long)s->median,
        (unsigned long long)s->p95, (unsigned long long)s->p99, (long long)s->seq_len, s->is_chosen ? " (auto)" : "");
    if (longer == 0) strbuf_add(out, "holds all of them");
    else strbuf_printf(out, "holds %.2f %% of them", 100 * (double)(s->n - MIN(longer, s->n)) / (double)s->n);
}

status data_survey_check(const data_survey *s, const char *source, int64_t positions) {
    uint64_t longer = s->n_cut + s->n_dropped;
    if (longer * PERCENT <= s->n) return OK;
    strbuf how;
    strbuf_init(&how);
    int64_t most = survey_row(s->seq_len_most, positions), all = survey_row(s->seq_len_all, positions);
    if (positions && s->seq_len_most > positions)
        strbuf_printf(
            &how,
            "the model has %lld positions, and 99 %% of them need rows of %lld: --set model.max_positions=%lld "
            "gives it more where they are rotary",
            (long long)positions, (long long)survey_row(s->seq_len_most, 0), (long long)survey_row(s->seq_len_most, 0));
    else if (most < all && (!positions || s->seq_len_all <= positions))
        strbuf_printf(&how, "--set data.seq_len=%lld keeps 99 %% of them, --set data.seq_len=%lld all", (long long)most,
                      (long long)all);
    else
        strbuf_printf(&how, "--set data.seq_len=%lld keeps %s", (long long)most,
                      most >= s->seq_len_all ? "all" : "99 % of them");
    status rc = ERR(
        ERR_INPUT,
        "%.500s: %llu of %llu %s are longer than a row of %lld tokens (data.seq_len): %llu would be cut at its end, "
        "%llu dropped; %s; --set data.allow_cut=true trains on what is left",
        source, (unsigned long long)longer, (unsigned long long)s->n, s->unit, (long long)s->seq_len,
        (unsigned long long)s->n_cut, (unsigned long long)s->n_dropped, how.text);
    strbuf_fini(&how);
    return rc;
}
