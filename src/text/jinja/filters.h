#pragma once
/* filters.h - the filters of sequences, for the table, and how filters read their arguments. */
#include "jinja/render.h"

bool argument_truth(value v); /* an optional flag */
int64_t argument_int(render *r, value v, int64_t missing, const char *what);

typedef value filter_function(render *r, value v, const value *args);
typedef value variadic_filter(render *r, value v, const arguments *a);
filter_function do_attr, do_batch, do_default, do_dictsort, do_first, do_groupby, do_items, do_join, do_last, do_length,
    do_list, do_max, do_min, do_reverse, do_slice, do_sort, do_sum, do_unique;
variadic_filter do_map, do_reject, do_rejectattr, do_select, do_selectattr;
