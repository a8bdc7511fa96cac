/* test_chart.c - charts as SVG: bars and lines as high as their numbers, whole files whatever text they hold, nothing from elsewhere. */
#include "chart/chart.h"
#include "xml.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

static void the_reader_of_these_tests_sees_what_is_wrong(void **state) {
    (void)state;
    static const char *const bad[] = {"",
                                      "<a>",
                                      "<a></b>",
                                      "<a/><b/>",
                                      "<a>&</a>",
                                      "<a>&nbsp;</a>",
                                      "<a b=c/>",
                                      "<a b=\"<\"/>",
                                      "<a b=\"1\" b=\"2\"/>",
                                      "<a>\x01</a>",
                                      "<a>\xff</a>",
                                      "<a>\xef\xbf\xbf</a>",
                                      "text",
                                      "<a b=\"1/>"};
    for (size_t i = 0; i < ARRAY_LENGTH(bad); i++)
        if (!find_xml_error(bad[i])) fail_msg("'%s' was taken for XML", bad[i]);
    assert_null(find_xml_error("<a b=\"1\" c=\"&lt;\"><b>x &amp; y</b>\n<c/></a>\n"));
}

static char *drawn(const chart *c) {
    strbuf b;
    strbuf_init(&b);
    chart_draw(c, &b);
    const char *error = find_xml_error(b.text);
    if (error) fail_msg("not well-formed at byte %td: %.60s", error - b.text, error);
    return strbuf_take(&b);
}

static size_t count(const char *text, const char *part) {
    size_t n = 0;
    for (; (text = strstr(text, part)); text += strlen(part)) n++;
    return n;
}

/* Attribute of the n-th element that holds `mark`. */
static int attribute(const char *text, const char *mark, size_t n, const char *name) {
    char key[32];
    snprintf(key, sizeof key, " %s=\"", name);
    for (;; text++) {
        text = strstr(text, mark);
        assert_non_null(text);
        if (n-- == 0) break;
    }
    while (*text != '<') text--;
    return atoi(strstr(text, key) + strlen(key));
}

/* ---- bars --------------------------------------------------------------------------------------------------------- */

static void bars_are_as_high_as_their_numbers(void **state) {
    static const double first[] = {1e9, 4e9, 2e9}, second[] = {NAN, 8e9, 0};
    static const bool hollow[] = {false, true, false};
    const char *groups[] = {"k = 2", "k = 4", "k = 8"}, *labels[] = {NULL, "8 GB, does not fit", "none"};
    const char *names[] = {"one", "other"};
    chart_series series[] = {{.color = 0, .y = first, .n = 3},
                             {.color = 1, .y = second, .n = 3, .labels = labels, .hollow = hollow}};
    chart_panel panel = {.title = "peak", .series = series, .n_series = 2, .groups = groups};
    char *svg =
        drawn(&(chart){.title = "t", .names = names, .n_names = 2, .panels = &panel, .n_panels = 1, .columns = 1});
    assert_int_equal(count(svg, "class=\"f0\""), 3 + 1); /* and one in the legend */
    assert_int_equal(count(svg, "class=\"f1\""), 1 + 1); /* 0 is drawn as a line of one pixel */
    assert_int_equal(count(svg, "class=\"l1\" fill=\"none\""), 1);
    int highest = attribute(svg, "class=\"l1\" fill=\"none\"", 0, "height");
    for (size_t i = 0; i < 3; i++)
        assert_true(fabs(attribute(svg, "class=\"f0\"", 1 + i, "height") - first[i] / 8e9 * highest) <= 1);
    int floor = attribute(svg, "class=\"f0\"", 1, "y") + attribute(svg, "class=\"f0\"", 1, "height");
    assert_int_equal(attribute(svg, "class=\"l1\" fill", 0, "y") + highest, floor);
    assert_non_null(strstr(svg, ">8 GB, does not fit</text>"));
    assert_non_null(strstr(svg, " GiB</text>"));
    free(svg);
}

/* ---- lines -------------------------------------------------------------------------------------------------------- */

/* A step function: every height is one of the numbers, also that of a moment too short to be seen. */
static void lines_keep_every_peak(void **state) {
    static const double x[] = {0, 1, 1.0001, 3, 4}, y[] = {100, 700, 200, 350, 350};
    const char *names[] = {NULL, NULL, "line"}, *label = "700 B";
    chart_series s = {.color = 2, .x = x, .y = y, .n = 5, .labels = &label};
    chart_panel panels[3];
    for (int i = 0; i < 3; i++) panels[i] = (chart_panel){.title = "p", .series = &s, .n_series = 1, .x_unit = "s"};
    char *svg =
        drawn(&(chart){.title = "t", .names = names, .n_names = 3, .panels = panels, .n_panels = 3, .columns = 2});
    assert_int_equal(count(svg, "<path class=\"l2\""), 3);
    assert_int_equal(count(svg, ">700 B</text>"), 3);
    assert_non_null(strstr(svg, ">4 s</text>"));
    const char *path = strstr(strstr(svg, "class=\"l2\""), " d=\"M") + strlen(" d=\"M");
    double high =
        atof(strstr(svg, "viewBox=\"0 0 ") ? strchr(strstr(strstr(svg, "<svg x="), "viewBox=\"0 0 ") + 13, ' ') : "0");
    double wanted[] = {100, 700, 200, 350};
    size_t n = 0;
    for (const char *p = strchr(path, ' '); p && *p != '"'; p = strpbrk(p + 1, "V\""))
        if (*p != '"') {
            assert_true(n < ARRAY_LENGTH(wanted));
            assert_true(fabs((high - atof(p + 1)) / high - wanted[n] / (1.12 * 700)) < 1e-3);
            n++;
        }
    assert_int_equal(n, ARRAY_LENGTH(wanted));
    free(svg);
}

/* ---- files -------------------------------------------------------------------------------------------------------- */

static void any_text_makes_a_whole_file(void **state) {
    const char *bad = "</text><script>&\"'\x01\xff\xef\xbf\xbf", *names[] = {bad}, *notes[] = {bad, ""};
    double x[] = {0}, y[] = {NAN};
    chart_series s = {.x = x, .y = y, .n = 1, .labels = &bad}, none = {.x = x, .y = y};
    chart_panel panels[] = {{.title = bad, .series = &s, .n_series = 1, .x_unit = bad},
                            {.title = "", .series = &none, .n_series = 1},
                            {.title = bad, .series = &s, .n_series = 1, .groups = &bad}};
    chart c = {
        .title = bad, .notes = notes, .n_notes = 2, .names = names, .n_names = 1, .panels = panels, .n_panels = 3};
    for (s.y = y, y[0] = NAN; isnan(y[0]) || y[0] < 2; y[0] = isnan(y[0]) ? 0 : y[0] + 1) {
        char *svg = drawn(&c);
        assert_null(strstr(svg, "<script"));
        free(svg);
    }
}

/* Characters are at most 10 pixels wide in a title of a narrow chart. */
static void long_titles_are_broken_between_words(void **state) {
    (void)state;
    char *one = drawn(&(chart){.title = "policy: device memory over one step", .width = 440});
    char *two = drawn(&(chart){.title = "baseline/policy: device memory over one step", .width = 440});
    char *many =
        drawn(&(chart){.title = "a b c d e f g h i j k l m n o p q r s t u v w x y z a b c d e f g h i j k l m "
                                "n o p q r s t u v w x y z a b c d e f g h i j k l m n o p q r s t u v w x y z "
                                "a b c d e f g h i j k l m n o p q r s t u v w x y z",
                       .width = 440});
    assert_int_equal(count(one, "font-weight=\"bold\""), 1);
    assert_int_equal(count(two, "font-weight=\"bold\""), 2);
    assert_non_null(strstr(two, ">baseline/policy: device memory over one</text>"));
    assert_non_null(strstr(two, ">step</text>"));
    assert_int_equal(attribute(two, "<svg", 0, "height"), attribute(one, "<svg", 0, "height") + 19);
    assert_int_equal(count(many, "font-weight=\"bold\""), 3);
    free(one), free(two), free(many);
}

static void nothing_comes_from_elsewhere_and_dark_viewers_are_served(void **state) {
    double y[] = {1};
    const char *group[] = {"g"}, *names[] = {"n"};
    chart_series s = {.y = y, .n = 1};
    chart_panel panel = {.title = "p", .series = &s, .n_series = 1, .groups = group};
    char *svg = drawn(&(chart){.title = "t", .names = names, .n_names = 1, .panels = &panel, .n_panels = 1});
    assert_int_equal(count(svg, "http"), 1); /* the name of the language */
    assert_int_equal(count(svg, "href") + count(svg, "url(") + count(svg, "@import") + count(svg, "<script"), 0);
    assert_int_equal(count(svg, "@media (prefers-color-scheme: dark)"), 1);
    assert_int_equal(count(svg, ".page{"), 2);
    free(svg);
}

/* ---- numbers read back -------------------------------------------------------------------------------------------- */

/* The list `key` of the element with this data-name. */
static size_t numbers_of(const char *svg, const char *name, const char *key, double *out, size_t most) {
    char mark[64];
    snprintf(mark, sizeof mark, "data-name=\"%s\"", name);
    const char *at = strstr(svg, mark);
    assert_non_null(at);
    const char *end = strchr(at, '>');
    snprintf(mark, sizeof mark, " %s=\"", key);
    at = strstr(at, mark);
    assert_true(at && at < end);
    size_t n = 0;
    for (char *p = (char *)at + strlen(mark); *p != '"' && n < most; n++) out[n] = strtod(p, &p);
    return n;
}

static void every_number_that_is_drawn_can_be_read_back(void **state) {
    static const double x[] = {0, 1, 2.5, 1e6}, y[] = {5.54433203, 1e-7, 0.1 + 0.2, 2.55784296e+10};
    static const double low[] = {10, 20, 0, 40}, high[] = {1, 2, 3, 123456789012345};
    chart_series line = {.color = 0, .name = "a line", .x = x, .y = y, .n = 4};
    chart_series areas[] = {{.color = 0, .name = "low", .x = x, .y = low, .n = 4},
                            {.color = 1, .name = "high", .x = x, .y = high, .n = 4}};
    chart_series lane = {.color = 1, .name = "copies", .x = x, .y = low, .n = 4};
    chart_panel panels[] = {
        {.title = "", .series = &line, .n_series = 1, .kind = CHART_LINES, .numbers = true, .log_y = true},
        {.title = "",
         .series = areas,
         .n_series = 2,
         .kind = CHART_AREAS,
         .x_end = 2e6,
         .mark = {1, 22, "peak"},
         .limit = 30},
        {.title = "lanes", .series = &lane, .n_series = 1, .kind = CHART_LANES, .x_unit = "ms"}};
    const char *names[] = {"one", "two"};
    char *svg =
        drawn(&(chart){.title = "t", .names = names, .n_names = 2, .panels = panels, .n_panels = 3, .width = 460});
    double back[8];
    const struct {
        const char *name, *key;
        const double *wanted;
    } lists[] = {{"a line", "data-x", x},  {"a line", "data-y", y}, {"low", "data-y", low},
                 {"high", "data-y", high}, {"copies", "data-x", x}, {"copies", "data-y", low}};
    for (size_t i = 0; i < ARRAY_LENGTH(lists); i++) {
        assert_int_equal(numbers_of(svg, lists[i].name, lists[i].key, back, 8), 4);
        for (size_t k = 0; k < 4; k++) assert_true(back[k] == lists[i].wanted[k]);
    }
    assert_non_null(strstr(svg, ">peak</text>"));
    assert_non_null(strstr(svg, "class=\"limit\""));
    free(svg);
}

/* Sums of areas reach as high as they should: the upper edge of the last is the whole. */
static void areas_stand_on_each_other(void **state) {
    static const double x[] = {0, 1}, low[] = {30, 10}, high[] = {70, 10};
    chart_series areas[] = {{.color = 0, .x = x, .y = low, .n = 2}, {.color = 1, .x = x, .y = high, .n = 2}};
    chart_panel panel = {.title = "", .series = areas, .n_series = 2, .kind = CHART_AREAS, .x_end = 2};
    char *svg = drawn(&(chart){.title = "t", .panels = &panel, .n_panels = 1});
    int top, floor_x, second;
    const char *upper = strstr(svg, "<path class=\"f1\" d=\"M"), *lower = strstr(svg, "<path class=\"f0\" d=\"M");
    assert_true(upper && lower && upper < lower); /* the lower one is drawn over it */
    const char *viewbox = strstr(strstr(svg, "<svg x="), "viewBox=\"0 0 ");
    int height = atoi(strchr(viewbox + 13, ' '));
    assert_int_equal(sscanf(upper, "<path class=\"f1\" d=\"M%d %dH%*dV%d", &floor_x, &top, &second), 3);
    assert_true(fabs((height - top) / (double)height - 1 / 1.12) < 1e-3);
    assert_true(fabs((height - second) / (double)height - 0.2 / 1.12) < 1e-3);
    assert_int_equal(sscanf(lower, "<path class=\"f0\" d=\"M%d %d", &floor_x, &top), 2);
    assert_true(fabs((height - top) / (double)height - 0.3 / 1.12) < 1e-3);
    free(svg);
}

static void axes_have_round_steps(void **state) {
    static const struct {
        double top;
        int most;
        bool of_bytes;
        int n;
        const char *last;
    } cases[] = {
        {1000, 5, true, 6, "1000 B"},          {1025, 5, true, 3, "1 KiB"}, {15.5 * (1 << 30), 5, true, 4, "15 GiB"},
        {0x1p61, 6, true, 5, "2 EiB"},         {0.24, 5, false, 3, "0.2"},  {60, 5, false, 4, "60"},
        {3.0 * (1 << 20), 6, true, 7, "3 MiB"}};
    for (size_t i = 0; i < ARRAY_LENGTH(cases); i++) {
        svg_axis a = svg_axis_make(cases[i].top, cases[i].most, cases[i].of_bytes);
        char label[48];
        assert_string_equal(svg_axis_label(&a, a.n_ticks - 1, label), cases[i].last);
        assert_int_equal(a.n_ticks, cases[i].n);
        assert_string_equal(svg_axis_label(&a, 0, label), "0");
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_reader_of_these_tests_sees_what_is_wrong),
        cmocka_unit_test(bars_are_as_high_as_their_numbers),
        cmocka_unit_test(lines_keep_every_peak),
        cmocka_unit_test(any_text_makes_a_whole_file),
        cmocka_unit_test(long_titles_are_broken_between_words),
        cmocka_unit_test(nothing_comes_from_elsewhere_and_dark_viewers_are_served),
        cmocka_unit_test(every_number_that_is_drawn_can_be_read_back),
        cmocka_unit_test(areas_stand_on_each_other),
        cmocka_unit_test(axes_have_round_steps),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
