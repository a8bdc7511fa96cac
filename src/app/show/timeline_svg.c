/* timeline_svg.c - the timeline of a plan as one SVG file.
 *
 * Bands are stacked by role. Each is one path that reaches down to zero and is drawn over the one above it, so a band
 * costs one edge, and steps of the same height cost nothing: a program of any length stays below 60 KB. The bands lie
 * in an inner <svg> of whole numbers (columns across, LEVELS up) that the viewer stretches. All coordinates are
 * integers, because a decimal point depends on the caller's locale.
 *
 * The picture has its own background, so it looks the same in light and dark viewers, and names no font. Text from
 * elsewhere (model, recompute policy) is escaped and cut. */
#include "chart/chart.h"
#include "plan/timeline.h"
#include "show/show.h"

#include <string.h>

enum {
    WIDTH = 1120,
    LEFT = 84,
    PLOT_WIDTH = 800,
    LEGEND = 902, /* left edge; the numbers end at LEGEND_END */
    LEGEND_END = 1104,
    PLOT_TOP = 88,
    PLOT_HEIGHT = 320,
    PANEL_GAP = 62, /* between the plots: the names of the parts */
    PANEL_HEIGHT = 90,
    MARGIN = 34, /* below the last plot */
    LEVELS = 2000,
    NAME_CHARACTERS = 48,
    CHARACTER_WIDTH = 7, /* of 13 px text, rounded up */
};

/* From the bottom up. */
static const role bands[ROLE_COUNT] = {ROLE_PARAM, ROLE_GRAD, ROLE_STATE,      ROLE_INPUT,
                                       ROLE_CACHE, ROLE_COMM, ROLE_ACTIVATION, ROLE_WORK};
static const char *band_color(size_t band) { return chart_color(chart_role_color(role_name(bands[band])), false); }
static const char *const line_colors[TIER_COUNT] = {"", "#3b6fb6", "#b5374a", "#2a9d9d", "#b79a2f", "#6b7280"};

/* ---- pieces ----------------------------------------------------------------------------------------------------- */

static void add_text(strbuf *b, int x, int y, const char *anchor, const char *text) {
    strbuf_printf(b, "<text x=\"%d\" y=\"%d\" text-anchor=\"%s\">%s</text>\n", x, y, anchor, text);
}

static void add_line(strbuf *b, int x, int y, int x_end, int y_end, const char *style) {
    strbuf_printf(b, "<path d=\"M%d %dL%d %d\" fill=\"none\" %s/>\n", x, y, x_end, y_end, style);
}

#define GRID "stroke=\"#d7dade\""
#define PLANNED "stroke=\"#111\" stroke-width=\"2\" stroke-dasharray=\"7 4\""
#define LIMIT "stroke=\"#d00000\" stroke-width=\"2\""

/* Where `bytes` stand in a plot of `height` whose upper edge is `top`. */
static int scaled(uint64_t bytes, double top, int height) { return (int)((double)bytes / top * height + 0.5); }

static int column_x(const plan_timeline *t, size_t column) {
    return LEFT + (int)(column * PLOT_WIDTH / MAX(t->n_columns, (size_t)1));
}

/* Lines and numbers at steps of 1, 2 or 5 times a power of ten of the largest unit below the top. */
static void add_axis(strbuf *b, int y, int height, double top, int most_ticks) {
    svg_axis a = svg_axis_make(top, most_ticks, true);
    for (int i = 0; i < a.n_ticks; i++) {
        char label[48];
        int at = y + height - (int)(i * a.step * a.unit / top * height + 0.5);
        add_line(b, LEFT, at, LEFT + PLOT_WIDTH, at, GRID);
        add_text(b, LEFT - 8, at + 4, "end", svg_axis_label(&a, i, label));
    }
}

/* ---- title and description -------------------------------------------------------------------------------------- */

static void add_places(strbuf *b, const offload_tiers *o) {
    const struct {
        tier at;
        const char *name;
    } kinds[] = {{o->params, "params"},
                 {o->reference, "reference"},
                 {o->grads, "grads"},
                 {o->states, "states"},
                 {o->activations, "activations"}};
    for (tier t = TIER_HOST; t <= TIER_NVME; t++) {
        bool first = true;
        for (size_t i = 0; i < ARRAY_LENGTH(kinds); i++) {
            if (kinds[i].at != t) continue;
            strbuf_printf(b, "%s%s", first ? "; " : ", ", kinds[i].name);
            first = false;
        }
        if (!first) strbuf_printf(b, " on %s", tier_name(t));
    }
    if (!offload_any(o)) strbuf_add(b, "; nothing offloaded");
}

static void add_strategy(strbuf *b, const plan *p) {
    const plan_request *r = &p->request;
    if (plan_generates(r)) {
        const generation_shape *g = &r->generation;
        strbuf_printf(b, "%s; %lld sequences of at most %lld tokens, %lld pages of %lld tokens, prompts by %lld tokens",
                      precision_name(r->choice.precision), (long long)g->slots, (long long)g->context,
                      (long long)g->pages, (long long)g->page_size, (long long)g->prefill_tokens);
        return;
    }
    strbuf policy;
    strbuf_init(&policy);
    recompute_write(&p->request.choice.recompute, &policy);
    strbuf_printf(b, "%s, states %s; %lld x %lld tokens", precision_name(r->choice.precision),
                  state_format_name(state_format_of(r->choice.precision, r->choice.states)),
                  (long long)r->choice.micro_batch, (long long)r->seq_len);
    if (plan_micro_runs(p) > 1) strbuf_printf(b, " (one of %lld micro-batches)", (long long)r->choice.accumulation);
    strbuf_add(b, "; recompute ");
    svg_add_escaped(b, policy.text, NAME_CHARACTERS);
    add_places(b, &p->request.choice.offload);
    strbuf_fini(&policy);
}

static void add_title(strbuf *b, const plan *p) {
    char n[32];
    strbuf_add(b, "device memory over one step: ");
    svg_add_escaped(b, p->request.source.name, NAME_CHARACTERS);
    strbuf_printf(b, ", %s parameters", str_format_count(n, (double)model_param_count(model_of(&p->request.source))));
}

static void add_peak(strbuf *b, const plan *p) {
    const op *o = &p->program.ops[p->peak_op];
    char n[32];
    uint64_t bytes = p->planned[TIER_DEVICE] - p->gap_bytes;
    strbuf_printf(b, "peak %s at op %zu, %s", str_format_bytes(n, bytes), p->peak_op, op_name(o->kind));
    if (o->layer >= 0) strbuf_printf(b, " of layer %d", o->layer);
}

static void add_header(strbuf *b, const plan *p) {
    strbuf_printf(b, "<text x=\"%d\" y=\"30\" font-size=\"18\" font-weight=\"bold\">", LEFT);
    add_title(b, p);
    strbuf_printf(b, "</text>\n<text x=\"%d\" y=\"52\">", LEFT);
    add_strategy(b, p);
    strbuf_printf(b, "</text>\n<text x=\"%d\" y=\"72\">", LEFT);
    if (p->program.n_ops) add_peak(b, p);
    strbuf_add(b, "</text>\n");
}

/* The numbers of the picture, for programs and screen readers. */
static void add_description(strbuf *b, const plan *p) {
    strbuf_add(b, "<title>");
    add_title(b, p);
    strbuf_printf(b, "</title>\n<desc>planned %llu bytes; at op %zu", (unsigned long long)p->planned[TIER_DEVICE],
                  p->peak_op);
    for (role r = 0; r < ROLE_COUNT; r++)
        if (p->by_role[r]) strbuf_printf(b, ", %s %llu", role_name(r), (unsigned long long)p->by_role[r]);
    strbuf_printf(b, ", gaps %llu</desc>\n", (unsigned long long)p->gap_bytes);
}

/* ---- the bands -------------------------------------------------------------------------------------------------- */

static bool has_role(const plan_timeline *t, role r) {
    for (size_t i = 0; i < t->n_columns; i++)
        if (t->columns[i].alive.by_role[r]) return true;
    return false;
}

/* All bytes up to and including bands[last], as one area. */
static void add_band(strbuf *b, const plan_timeline *t, size_t last, double top) {
    int level = 0;
    size_t run = 0;
    strbuf_printf(b, "<path id=\"%s\" fill=\"%s\" d=\"M0 %d", role_name(bands[last]), band_color(last), LEVELS);
    for (size_t i = 0; i < t->n_columns; i++) {
        uint64_t sum = 0;
        for (size_t k = 0; k <= last; k++) sum += t->columns[i].alive.by_role[bands[k]];
        int next = scaled(sum, top, LEVELS);
        if (next != level) {
            if (run) strbuf_printf(b, "h%zu", run);
            strbuf_printf(b, "v%d", level - next); /* y grows downwards */
            level = next;
            run = 0;
        }
        run++;
    }
    strbuf_printf(b, "h%zuV%dz\"/>\n", run, LEVELS);
}

static void add_bands(strbuf *b, const plan_timeline *t, double top) {
    strbuf_printf(
        b, "<svg x=\"%d\" y=\"%d\" width=\"%d\" height=\"%d\" viewBox=\"0 0 %zu %d\" preserveAspectRatio=\"none\">\n",
        LEFT, PLOT_TOP, PLOT_WIDTH, PLOT_HEIGHT, MAX(t->n_columns, (size_t)1), LEVELS);
    for (size_t k = ROLE_COUNT; k-- > 0;)
        if (has_role(t, bands[k])) add_band(b, t, k, top);
    strbuf_add(b, "</svg>\n");
}

/* Lines between the parts of the step, in a plot. */
static void add_cuts(strbuf *b, const plan_timeline *t, int y, int height) {
    for (size_t i = 1; i < t->n_parts; i++) {
        int x = column_x(t, t->parts[i].first_column);
        add_line(b, x, y, x, y + height, "stroke=\"#333\" stroke-dasharray=\"2 3\"");
    }
}

/* The names of the parts below the bands: one that would overlap the name before it is a row lower. */
static void add_parts(strbuf *b, const plan_timeline *t, int bottom) {
    int row_end[2] = {0, 0};
    size_t most = 0;
    for (size_t i = 0; i < t->n_columns; i++) most = MAX(most, t->columns[i].end_op - t->columns[i].first_op);
    for (size_t i = 0; i < t->n_parts; i++) {
        const plan_timeline_part *part = &t->parts[i];
        char label[64];
        int n = snprintf(label, sizeof label, "%s, %zu ops", part->name, part->end_op - part->first_op);
        int x = column_x(t, part->first_column), half = n * CHARACTER_WIDTH / 2;
        int middle = MAX((x + column_x(t, part->end_column)) / 2, LEFT + half);
        int row = middle - half < row_end[0] ? 1 : 0;
        row_end[row] = middle + half;
        add_text(b, middle, PLOT_TOP + PLOT_HEIGHT + 18 + 17 * row, "middle", label);
    }
    strbuf caption;
    strbuf_init(&caption);
    strbuf_add(&caption, "ops in the order they run");
    if (most > 1) strbuf_printf(&caption, "; a column is the fullest of up to %zu", most);
    add_text(b, LEFT + PLOT_WIDTH, bottom + (bottom == PLOT_TOP + PLOT_HEIGHT ? 52 : 20), "end", caption.text);
    strbuf_fini(&caption);
}

/* A line across the bands, with a white edge because it may cross any of them. */
static void add_level(strbuf *b, uint64_t bytes, double top, const char *style) {
    int y = PLOT_TOP + PLOT_HEIGHT - scaled(bytes, top, PLOT_HEIGHT);
    add_line(b, LEFT, y, LEFT + PLOT_WIDTH, y, "stroke=\"#fff\" stroke-width=\"4\"");
    add_line(b, LEFT, y, LEFT + PLOT_WIDTH, y, style);
}

static void add_marker(strbuf *b, const plan *p, const plan_timeline *t, double top) {
    for (size_t i = 0; i < t->n_columns; i++) {
        const plan_column *c = &t->columns[i];
        if (p->peak_op < c->first_op || p->peak_op >= c->end_op) continue;
        int x = (column_x(t, i) + column_x(t, i + 1)) / 2;
        int y = PLOT_TOP + PLOT_HEIGHT - scaled(p->planned[TIER_DEVICE], top, PLOT_HEIGHT) - 3;
        strbuf_printf(b, "<path id=\"peak\" fill=\"#111\" d=\"M%d %dl-5 -9h10z\"/>\n", x, y);
    }
}

/* A limit far above the plan would flatten the bands: then it is only in the legend. */
static bool shows_limit(const plan *p) {
    return p->request.device_limit && (double)p->request.device_limit <= 1.5 * (double)p->planned[TIER_DEVICE];
}

/* ---- legend ----------------------------------------------------------------------------------------------------- */

enum { LEGEND_ROW = 22 };

static void add_legend_text(strbuf *b, int y, const char *name, uint64_t bytes) {
    char n[32];
    add_text(b, LEGEND + 26, y, "start", name);
    add_text(b, LEGEND_END, y, "end", str_format_bytes(n, bytes));
}

static void add_legend(strbuf *b, const plan *p, const plan_timeline *t) {
    int y = PLOT_TOP + 10;
    add_text(b, LEGEND, y, "start", "alive at the peak");
    for (size_t k = ROLE_COUNT; k-- > 0;) {
        if (!has_role(t, bands[k])) continue;
        y += LEGEND_ROW;
        strbuf_printf(b, "<rect x=\"%d\" y=\"%d\" width=\"16\" height=\"13\" fill=\"%s\"/>\n", LEGEND, y - 11,
                      band_color(k));
        add_legend_text(b, y, role_name(bands[k]), p->by_role[bands[k]]);
    }
    y += LEGEND_ROW;
    add_legend_text(b, y, "gaps", p->gap_bytes);
    y += LEGEND_ROW + 6;
    add_line(b, LEGEND, y - 5, LEGEND + 18, y - 5, PLANNED);
    add_legend_text(b, y, "planned", p->planned[TIER_DEVICE]);
    if (!p->request.device_limit) return;
    y += LEGEND_ROW;
    add_line(b, LEGEND, y - 5, LEGEND + 18, y - 5, LIMIT);
    add_legend_text(b, y, shows_limit(p) ? "limit" : "limit, far above", p->request.device_limit);
}

/* ---- host, nvme and further devices ----------------------------------------------------------------------------- */

static void add_tier(strbuf *b, const plan_timeline *t, tier at, int y, double top) {
    int height = -1;
    strbuf_printf(b, "<path id=\"%s\" fill=\"none\" stroke=\"%s\" stroke-width=\"2\" d=\"M%d ", tier_name(at),
                  line_colors[at], LEFT);
    for (size_t i = 0; i < t->n_columns; i++) {
        int next = scaled(t->columns[i].others[at], top, PANEL_HEIGHT);
        if (next == height) continue;
        if (height >= 0) strbuf_printf(b, "H%dV", column_x(t, i));
        strbuf_printf(b, "%d", y + PANEL_HEIGHT - next);
        height = next;
    }
    strbuf_printf(b, "H%d\"/>\n", LEFT + PLOT_WIDTH);
}

static bool has_panel(const plan *p, const plan_timeline *t) {
    for (tier at = 0; at < TIER_COUNT; at++)
        if (at != TIER_DEVICE && p->program.arena_bytes[at] && t->n_columns) return true;
    return false;
}

static void add_panel(strbuf *b, const plan *p, const plan_timeline *t, int y) {
    uint64_t most = 1;
    int row = y + 14;
    for (tier at = 0; at < TIER_COUNT; at++)
        if (at != TIER_DEVICE) most = MAX(most, (uint64_t)p->program.arena_bytes[at]);
    double top = 1.1 * (double)most;
    add_axis(b, y, PANEL_HEIGHT, top, 3);
    add_cuts(b, t, y, PANEL_HEIGHT);
    for (tier at = 0; at < TIER_COUNT; at++) {
        if (at == TIER_DEVICE || !p->program.arena_bytes[at]) continue;
        char style[64];
        add_tier(b, t, at, y, top);
        snprintf(style, sizeof style, "stroke=\"%s\" stroke-width=\"2\"", line_colors[at]);
        add_line(b, LEGEND, row - 5, LEGEND + 18, row - 5, style);
        add_legend_text(b, row, tier_name(at), p->program.arena_bytes[at]);
        row += LEGEND_ROW;
    }
}

/* ---- the whole -------------------------------------------------------------------------------------------------- */

void plan_timeline_draw(const plan *p, strbuf *b) {
    plan_timeline t;
    plan_timeline_init(&t, p);
    bool panel = has_panel(p, &t);
    uint64_t planned = p->planned[TIER_DEVICE], limit = shows_limit(p) ? p->request.device_limit : 0;
    double top = 1.06 * (double)MAX(MAX(planned, limit), (uint64_t)1);
    int floor = PLOT_TOP + PLOT_HEIGHT, panel_top = floor + PANEL_GAP;
    int bottom = panel ? panel_top + PANEL_HEIGHT : floor, height = bottom + (panel ? MARGIN : 2 * MARGIN);
    strbuf_printf(b,
                  "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 %d %d\" width=\"%d\" height=\"%d\" "
                  "font-family=\"sans-serif\" font-size=\"13\" fill=\"#1f2328\">\n",
                  WIDTH, height, WIDTH, height);
    add_description(b, p);
    strbuf_printf(b, "<rect width=\"%d\" height=\"%d\" fill=\"#fff\" stroke=\"#d7dade\"/>\n", WIDTH, height);
    add_header(b, p);
    add_axis(b, PLOT_TOP, PLOT_HEIGHT, top, 6);
    add_bands(b, &t, top);
    if (panel) add_panel(b, p, &t, panel_top);
    add_cuts(b, &t, PLOT_TOP, PLOT_HEIGHT);
    add_parts(b, &t, bottom);
    add_level(b, planned, top, PLANNED);
    if (limit) add_level(b, limit, top, LIMIT);
    add_marker(b, p, &t, top);
    add_legend(b, p, &t);
    strbuf_add(b, "</svg>\n");
    plan_timeline_fini(&t);
}

status plan_timeline_check(const char *path) {
    if (str_ends_with(path, ".svg")) return OK;
    return ERR(ERR_INPUT, "--timeline: found '%.200s', expected a name that ends in .svg: the picture is SVG", path);
}

status plan_timeline_write(const plan *p, const char *path) {
    strbuf picture;
    TRY(plan_timeline_check(path));
    strbuf_init(&picture);
    plan_timeline_draw(p, &picture);
    status rc = file_write_whole(path, picture.text, picture.length);
    strbuf_fini(&picture);
    return rc;
}
