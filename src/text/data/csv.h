#pragma once
/* csv.h - private to data: tables as RFC 4180 writes them, and the same with tabs.
 *
 * Cells are separated by commas, rows by "\n" or "\r\n"; a cell in quotes may hold all of these, and a quote twice. The first row
 * names the columns; every other row has as many cells. Spaces belong to a cell. An empty line is no row. With tabs, a quote is
 * special only where a cell begins; with commas one inside of a cell without quotes is an error.
 *
 * Promises: what is handed out has a cell for every column, each a view of exactly what the file says; a row that is wrong is said so with its
 * line and column and is passed over; a row is never longer in memory than the limit. */
#include "data/reader.h"

enum { CSV_COLUMNS_MOST = 4096 };
typedef struct csv csv;
/* Reads the header. The reader stays the caller's. delimiter: ',' or '\t'. */
status csv_open(csv **out, reader *in, char delimiter, uint64_t max_row);
void csv_close(csv *c); /* also of NULL */
size_t csv_columns(const csv *c);
span csv_name(const csv *c, size_t column); /* UTF-8, no two alike; only the first may be empty: pandas' index */
/* The next row that has anything in it, with the line on which it begins; views live until the next call. *problem: what is wrong with
 * it (owned by c), NULL: nothing. too_long: more than max_row bytes, n_bytes says how many; then there are no cells. */
status csv_row(csv *c, line *out, const char **problem, bool *found);
span csv_cell(const csv *c, size_t column);
