/* smooth.c - lines that show the course of noisy numbers.
 *
 * A moving mean lowers every peak and, where the curve is steep on one side, moves it. For memory that would be a lie: the peak is
 * the number that decides whether a run fits. series_smooth_keep_peak bends the smooth line up to the true peak, at its place. */
#include "report/report.h"

#include <math.h>
#include <stdlib.h>

/* The mean of the finite numbers at most `half` away, by sums that move along. Sums start anew now and then: what is added
 * and taken away again leaves rounding errors behind. */
static void running_mean(const double *y, size_t n, size_t half, double *out) {
    enum { ANEW = 4096 };
    double sum = 0;
    size_t count = 0, begin = 0, end = 0;
    for (size_t i = 0; i < n; i++) {
        size_t from = i > half ? i - half : 0, to = MIN(i + half + 1, n);
        if (i % ANEW == 0) sum = 0, count = 0, begin = end = from;
        for (; end < to; end++)
            if (isfinite(y[end])) sum += y[end], count++;
        for (; begin < from; begin++)
            if (isfinite(y[begin])) sum -= y[begin], count--;
        out[i] = isfinite(y[i]) && count ? sum / (double)count : NAN;
    }
}

void series_smooth(const double *y, size_t n, size_t width, double *out) {
    double *once = mem_alloc(MAX(n, (size_t)1) * sizeof *once);
    running_mean(y, n, width / 4, once);
    running_mean(once, n, width / 4, out);
    free(once);
}

void series_smooth_keep_peak(const double *y, size_t n, size_t width, double *out) {
    size_t peak = n;
    for (size_t i = 0; i < n; i++)
        if (isfinite(y[i]) && (peak == n || y[i] > y[peak])) peak = i;
    series_smooth(y, n, width, out);
    if (peak == n) return;
    double missing = y[peak] - out[peak], reach = (double)MAX(width / 2, (size_t)1);
    for (size_t i = 0; i < n; i++) {
        double away = fabs((double)i - (double)peak) / reach;
        if (away < 1) out[i] += missing * (1 + cos(away * acos(-1.0))) / 2; /* 1 at the peak, 0 at the reach */
        if (i != peak && out[i] > y[peak])
            out[i] = nextafter(y[peak], -INFINITY); /* below it, so that the peak is one point */
    }
    out[peak] = y[peak];
}
