#pragma once
/* build.h - private to report: what a page is made from. */
#include "report/report.h"

enum {
    FIGURE_WIDTH = 440, /* pixels: readable on a phone, three beside each other on a wide screen */
    THIN_COLUMNS = 360,
};

typedef struct figure {
    const char *section; /* where it stands on the page */
    const char *file;    /* "train-loss.svg" */
    char *svg;
} figure;
/* Busy times of the streams in one step, in milliseconds, from a trace (trace.c). */
enum { STREAMS_MOST = 8 };
typedef struct stream_lane {
    const char *name;
    double *begin, *end; /* (n) of intervals; short breaks are closed */
    size_t n;
    double busy;    /* ms of the step */
    double covered; /* ms of them while the compute stream is busy, too */
} stream_lane;
typedef struct step_trace {
    stream_lane lanes[STREAMS_MOST];
    size_t n_lanes;
    double length;         /* ms of the step */
    double *op_begin, *op; /* (n_ops) of every op that ran in it: when, and its index in the program */
    size_t n_ops;
    arena memory;
} step_trace;
/* A step of median length; of a long file the end is read. */
status step_trace_read(step_trace *t, const char *path);
void step_trace_fini(step_trace *t);

typedef struct report {
    run *runs;
    size_t n_runs;
    const char **labels; /* of the runs: names, or paths where names are equal */
    setting_table settings;
    json_t **benches; /* results of `ralo bench rloo` */
    const char **bench_paths;
    size_t n_benches;
    figure *figures;
    size_t n_figures, figures_capacity;
    step_trace *traces;               /* (n_runs) n_lanes 0: none */
    json_t *words;                    /* sentences */
    const char *charts_dir, *png_dir; /* NULL: none */
    arena memory;
} report;

/* Draws it for the page, and as a file of its own with --charts and --png. `name` becomes the file's name. */
status report_add_chart(report *p, const char *section, const char *name, const chart *c);
/* The legend: names of those runs that are shown, by colour. */
const char **report_names(report *p, const bool *shown);

void report_say(report *p, const char *fmt, ...) __attribute__((format(printf, 2, 3))); /* a sentence */
void words_write(report *p);                                                            /* words.c */

status figures_metrics(report *p); /* figures.c */
status figures_memory(report *p);  /* figures_memory.c */
status figures_overlap(report *p); /* figures_time.c */
status figures_time_line(report *p);
status figures_bench(report *p); /* bench.c */
void bench_words(report *p);
void bench_html(const report *p, strbuf *b);

/* ---- HTML (html.c) ------------------------------------------------------------------------------------------------------- */

enum { HTML_TEXT_MOST = 4000 };
void html_text(strbuf *b, const char *text);                           /* escaped; line breaks stay */
void html_table_begin(strbuf *b, const char *const *titles, size_t n); /* titles: plain text; "" is empty */
void html_cell(strbuf *b, const char *text, bool number);
void html_cell_bytes(strbuf *b, double bytes); /* "-" where it is not finite */
void html_cell_number(strbuf *b, double x);
void html_head(strbuf *b, const char *title);
void html_foot(strbuf *b);
void page_write(const report *p, strbuf *b); /* page.c */
const char *bytes_text(arena *memory, double bytes);
const char *loss_text(arena *memory, double x);
