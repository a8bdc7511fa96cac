/* thin.c - few points that show all of many: a picture has only so many columns of pixels.
 *
 * What a reader looks for are the extremes, a spike of the loss or the peak of the memory, so every column keeps its lowest and
 * its highest point. A mean would lose both. */
#include "report/report.h"

#include <math.h>

enum { NONE = -1 };

size_t series_thin(const double *x, const double *y, size_t n, size_t columns, size_t *keep) {
    size_t first = 0, last = n, n_kept = 0;
    while (first < n && !isfinite(y[first])) first++;
    while (last > first && !isfinite(y[last - 1])) last--;
    if (first == last) return 0;
    double width = x[last - 1] - x[first];
    size_t low = first, high = first;
    double column = 0;
    keep[n_kept++] = first;
    for (size_t i = first + 1; i <= last; i++) {
        bool ends = i == last;
        if (!ends && !isfinite(y[i])) continue;
        double at = ends        ? NONE
                    : width > 0 ? fmin(floor((x[i] - x[first]) / width * (double)columns), (double)columns - 1)
                                : 0;
        if (at == column) {
            if (y[i] < y[low]) low = i;
            if (y[i] > y[high]) high = i;
            continue;
        }
        size_t earlier = MIN(low, high), later = MAX(low, high);
        if (earlier > keep[n_kept - 1]) keep[n_kept++] = earlier;
        if (later > keep[n_kept - 1]) keep[n_kept++] = later;
        if (ends) break;
        column = at;
        low = high = i;
    }
    if (keep[n_kept - 1] != last - 1) keep[n_kept++] = last - 1;
    return n_kept;
}

size_t series_fullest(const double *total, size_t n, size_t columns, size_t *keep) {
    size_t n_columns = MIN(columns, n);
    for (size_t c = 0; c < n_columns; c++) {
        size_t begin = c * n / n_columns, end = (c + 1) * n / n_columns;
        keep[c] = begin;
        for (size_t i = begin + 1; i < end; i++)
            if (total[i] > total[keep[c]]) keep[c] = i;
    }
    return n_columns;
}
