/* metrics.c - lines of numbers by column, a million of them in about a second.
 *
 * A scanner reads what ralo writes: objects of plain keys and numbers. A line that surprises it (escapes, nesting, numbers that
 * are not exact in one multiplication) goes through jansson, which decides. Columns mostly come in the order of the line before,
 * so a key costs one comparison. The file is read in blocks, not mapped: a run that is resumed cuts its file, and a mapping of
 * bytes that are gone ends the process. */
#include "report/report.h"

#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum {
    SERIES_MOST = 256,   /* more columns are left out: a file that makes one per line would take all memory */
    NAME_MOST = 200,     /* bytes of a column's name */
    PAIRS_MOST = 1024,   /* of one line */
    LINE_MOST = 1 << 22, /* bytes; a longer one is bad */
    BLOCK_BYTES = 1 << 20,
};

typedef struct pair {
    const char *name; /* not terminated */
    size_t length;
    double value;
} pair;
typedef struct line_pairs {
    pair list[PAIRS_MOST];
    size_t n;
} line_pairs;

void run_metrics_init(run_metrics *m, const char *x_key) {
    *m = (run_metrics){.x_key = x_key, .last_x = -INFINITY};
    arena_init(&m->names);
}

void run_metrics_fini(run_metrics *m) {
    for (size_t i = 0; i < m->n_series; i++) {
        free(m->series[i].x);
        free(m->series[i].y);
    }
    free(m->series);
    arena_fini(&m->names);
    *m = (run_metrics){.x_key = m->x_key};
}

/* ---- one line ------------------------------------------------------------------------------------------------------- */

static const char *skip_blanks(const char *p, const char *end) {
    while (p < end && (*p == ' ' || *p == '\t' || *p == '\r')) p++;
    return p;
}

static bool is_digit(char c) { return c >= '0' && c <= '9'; }

static const char *scan_digits(const char *p, const char *end, uint64_t *mantissa, int *n) {
    for (*n = 0; p < end && is_digit(*p) && *n < 20; p++, ++*n) *mantissa = *mantissa * 10 + (uint64_t)(*p - '0');
    return p;
}

/* A JSON number that one multiplication or division makes exactly: a mantissa below 2^53 and a power of ten up to 10^22, both
 * exact doubles. NULL: another one, or none. */
static const char *scan_number(const char *p, const char *end, double *out) {
    static const double tens[] = {1,    1e1,  1e2,  1e3,  1e4,  1e5,  1e6,  1e7,  1e8,  1e9,  1e10, 1e11,
                                  1e12, 1e13, 1e14, 1e15, 1e16, 1e17, 1e18, 1e19, 1e20, 1e21, 1e22};
    bool negative = p < end && *p == '-';
    uint64_t mantissa = 0, exponent = 0;
    int n_whole, n_part = 0, n_exponent = 0, e = 0;
    const char *first = p + negative;
    p = scan_digits(first, end, &mantissa, &n_whole);
    if (n_whole == 0 || (n_whole > 1 && *first == '0')) return NULL;
    if (p < end && *p == '.') {
        p = scan_digits(p + 1, end, &mantissa, &n_part);
        if (n_part == 0) return NULL;
    }
    if (n_whole + n_part > 18 || mantissa > (uint64_t)1 << 53) return NULL;
    if (p < end && (*p == 'e' || *p == 'E')) {
        bool down = ++p < end && *p == '-';
        if (p < end && (*p == '-' || *p == '+')) p++;
        p = scan_digits(p, end, &exponent, &n_exponent);
        if (n_exponent == 0 || n_exponent > 3) return NULL;
        e = down ? -(int)exponent : (int)exponent;
    }
    e -= n_part;
    if (e < -22 || e > 22) return NULL;
    double value = e < 0 ? (double)mantissa / tens[-e] : (double)mantissa * tens[e];
    *out = negative ? -value : value;
    return p;
}

static const char *scan_word(const char *p, const char *end, const char *word) {
    size_t n = strlen(word);
    return (size_t)(end - p) >= n && memcmp(p, word, n) == 0 ? p + n : NULL;
}

static const char *scan_value(const char *p, const char *end, double *out) {
    const char *after;
    if (p == end) return NULL;
    switch (*p) {
    case 'n': *out = NAN; return scan_word(p, end, "null");
    case 't': *out = 1; return scan_word(p, end, "true");
    case 'f': *out = 0; return scan_word(p, end, "false");
    default: after = scan_number(p, end, out); return after;
    }
}

/* False: the line is something else than this scanner knows. */
static bool scan_line(const char *p, const char *end, line_pairs *out) {
    out->n = 0;
    p = skip_blanks(p, end);
    if (p == end || *p++ != '{') return false;
    for (;;) {
        p = skip_blanks(p, end);
        if (p == end || *p != '"' || out->n == PAIRS_MOST) return false;
        const char *name = ++p;
        while (p < end && *p != '"' && *p != '\\' && (unsigned char)*p >= ' ' && (unsigned char)*p < 0x7f) p++;
        if (p == end || *p != '"') return false;
        pair *q = &out->list[out->n++];
        *q = (pair){.name = name, .length = (size_t)(p - name)};
        p = skip_blanks(p + 1, end);
        if (p == end || *p != ':') return false;
        p = scan_value(skip_blanks(p + 1, end), end, &q->value);
        if (!p) return false;
        p = skip_blanks(p, end);
        if (p == end) return false;
        if (*p == '}') return skip_blanks(p + 1, end) == end;
        if (*p++ != ',') return false;
    }
}

/* The same by jansson; *hold keeps the names until the line is taken. */
static bool parse_line(const char *line, size_t n, line_pairs *out, json_t **hold) {
    const char *key;
    json_t *v;
    out->n = 0;
    *hold = json_loadb(line, n, 0, NULL);
    if (!json_is_object(*hold)) return false;
    json_object_foreach(*hold, key, v) {
        bool counts = json_is_number(v) || json_is_boolean(v) || json_is_null(v);
        if (!counts || out->n == PAIRS_MOST) continue;
        double value = json_is_number(v) ? json_number_value(v) : json_is_null(v) ? NAN : json_is_true(v);
        out->list[out->n++] = (pair){key, strlen(key), value};
    }
    return true;
}

static bool is_named(const char *name, const pair *q) {
    return strncmp(name, q->name, q->length) == 0 && name[q->length] == 0;
}

/* guess: the column that probably comes. NULL: there are too many, or the name is too long. */
static metric_series *find_or_add(run_metrics *m, const pair *q, size_t guess) {
    if (guess < m->n_series && is_named(m->series[guess].name, q)) return &m->series[guess];
    for (size_t i = 0; i < m->n_series; i++)
        if (is_named(m->series[i].name, q)) return &m->series[i];
    if (m->n_series == SERIES_MOST || q->length > NAME_MOST || q->length == 0) return NULL;
    m->series = array_grow(m->series, &m->capacity, m->n_series + 1, sizeof *m->series);
    metric_series *s = &m->series[m->n_series++];
    *s = (metric_series){.name = arena_format(&m->names, "%.*s", (int)q->length, q->name)};
    return s;
}

static void series_add(metric_series *s, uint64_t line, double x, double y) {
    if (s->last_line == line) { /* a key twice in one line: the last counts, as in jansson */
        s->y[s->n - 1] = y;
        return;
    }
    size_t capacity = s->capacity;
    s->x = array_grow(s->x, &capacity, s->n + 1, sizeof *s->x);
    s->y = array_grow(s->y, &s->capacity, s->n + 1, sizeof *s->y);
    s->x[s->n] = x;
    s->y[s->n++] = y;
    s->last_line = line;
}

static void take_line(run_metrics *m, const char *line, size_t n, line_pairs *pairs) {
    json_t *hold = NULL;
    double x = NAN;
    m->n_lines++;
    bool good = n <= LINE_MOST && (scan_line(line, line + n, pairs) || parse_line(line, n, pairs, &hold));
    for (size_t i = 0; good && i < pairs->n; i++)
        if (is_named(m->x_key, &pairs->list[i])) x = pairs->list[i].value;
    if (!good || !isfinite(x) || x < m->last_x || fabs(x) > 1e15) {
        m->n_bad++;
    } else {
        m->last_x = x;
        size_t guess = 0;
        for (size_t i = 0; i < pairs->n; i++) {
            if (is_named(m->x_key, &pairs->list[i])) continue;
            metric_series *s = find_or_add(m, &pairs->list[i], guess);
            if (!s) continue;
            series_add(s, m->n_lines, x, pairs->list[i].value);
            guess = (size_t)(s - m->series) + 1;
        }
    }
    json_decref(hold);
}

/* ---- the file ------------------------------------------------------------------------------------------------------- */

static void forget(run_metrics *m) {
    const char *x_key = m->x_key;
    run_metrics_fini(m);
    run_metrics_init(m, x_key);
}

static bool still_holds_tail(const run_metrics *m, int fd) {
    char now[sizeof m->tail];
    return pread(fd, now, m->n_tail, (off_t)(m->offset - m->n_tail)) == (ssize_t)m->n_tail &&
           memcmp(now, m->tail, m->n_tail) == 0;
}

/* Lines that end in text[0..n); returns how many bytes they have. */
static size_t take_lines(run_metrics *m, const char *text, size_t n, bool skip_first, line_pairs *pairs) {
    size_t at = 0;
    for (const char *end; (end = memchr(text + at, '\n', n - at)); at = (size_t)(end - text) + 1) {
        if (!skip_first) take_line(m, text + at, (size_t)(end - text) - at, pairs);
        skip_first = false;
    }
    if (at > 0) {
        m->n_tail = MIN(at, sizeof m->tail);
        memcpy(m->tail, text + at - m->n_tail, m->n_tail);
    }
    m->offset += at;
    return at;
}

static status read_lines(run_metrics *m, int fd, const char *path, bool skip_first) {
    size_t capacity = BLOCK_BYTES, held = 0;
    char *block = mem_alloc(capacity);
    line_pairs *pairs = mem_alloc(sizeof *pairs);
    status rc = OK;
    for (;;) {
        ssize_t n = pread(fd, block + held, capacity - held, (off_t)(m->offset + held));
        if (n < 0 && errno == EINTR) continue;
        if (n < 0) rc = ERR(ERR_IO, "read %s: %s", path, strerror(errno));
        if (n <= 0) break;
        held += (size_t)n;
        size_t taken = take_lines(m, block, held, skip_first, pairs);
        if (taken > 0) skip_first = false;
        memmove(block, block + taken, held - taken);
        held -= taken;
        if (held < capacity) continue;
        if (capacity > 2 * (size_t)LINE_MOST) { /* no line of ours: it is passed over */
            m->offset += held;
            held = 0;
            skip_first = true;
            m->n_bad++;
            continue;
        }
        block = array_grow(block, &capacity, 2 * capacity, 1);
    }
    free(pairs);
    free(block);
    return rc;
}

status run_metrics_follow(run_metrics *m, const char *path, uint64_t at_most) {
    struct stat info;
    int fd;
    if (stat(path, &info) != 0 && errno == ENOENT) {
        forget(m);
        return OK;
    }
    TRY(file_open(path, &fd));
    if (fstat(fd, &info) != 0) {
        close(fd);
        return ERR(ERR_IO, "stat %s: %s", path, strerror(errno));
    }
    if (m->offset > 0 && ((uint64_t)info.st_size < m->offset || !still_holds_tail(m, fd))) forget(m);
    bool skip = m->offset == 0 && at_most > 0 && (uint64_t)info.st_size > at_most;
    if (skip) m->offset = (uint64_t)info.st_size - at_most;
    status rc = read_lines(m, fd, path, skip);
    close(fd);
    return rc;
}

/* ---- asking --------------------------------------------------------------------------------------------------------- */

const metric_series *run_metrics_find(const run_metrics *m, const char *name) {
    for (size_t i = 0; i < m->n_series; i++)
        if (strcmp(m->series[i].name, name) == 0) return &m->series[i];
    return NULL;
}

double series_last(const metric_series *s) {
    for (size_t i = s ? s->n : 0; i-- > 0;)
        if (isfinite(s->y[i])) return s->y[i];
    return NAN;
}

double series_first(const metric_series *s) {
    for (size_t i = 0; s && i < s->n; i++)
        if (isfinite(s->y[i])) return s->y[i];
    return NAN;
}

double series_most(const metric_series *s) {
    double most = NAN;
    for (size_t i = 0; s && i < s->n; i++)
        if (isfinite(s->y[i])) most = fmax(most, s->y[i]);
    return most;
}

double series_at(const metric_series *s, double x) {
    for (size_t i = s ? s->n : 0; i-- > 0;)
        if (s->x[i] <= x && isfinite(s->y[i])) return s->y[i];
    return NAN;
}

/* The k-th smallest (quickselect): a sort of a million numbers for every median would be half of a report's time. The pivots are
 * drawn, so that no file makes it slow. */
static double kth_smallest(double *list, int64_t n, int64_t k) {
    int64_t low = 0, high = n - 1;
    for (uint64_t turn = 0; low < high; turn++) {
        double pivot = list[low + (int64_t)rng_below(0x9e3779b97f4a7c15u, turn, (uint64_t)(high - low + 1))];
        int64_t i = low, j = high;
        while (i <= j) {
            while (list[i] < pivot) i++;
            while (list[j] > pivot) j--;
            if (i > j) break;
            double hold = list[i];
            list[i++] = list[j], list[j--] = hold;
        }
        if (j < k) low = i; /* up to j all are at most the pivot, from i on at least, those between are equal to it */
        if (k < i) high = j;
    }
    return list[k];
}

double series_median(const metric_series *s) {
    size_t n = 0;
    if (!s || s->n == 0) return NAN;
    double *list = mem_alloc(s->n * sizeof *list), median = NAN;
    for (size_t i = 0; i < s->n; i++)
        if (isfinite(s->y[i])) list[n++] = s->y[i];
    if (n)
        median =
            (kth_smallest(list, (int64_t)n, (int64_t)(n - 1) / 2) + kth_smallest(list, (int64_t)n, (int64_t)n / 2)) / 2;
    free(list);
    return median;
}
