/* command_report.c - ralo report: one HTML page about runs. */
#include "cli/output.h"
#include "report/report.h"

status command_report(command_line *l) {
    run_paths paths;
    json_t *result = NULL;
    const char *file = l->out ? l->out : "report.html";
    status rc = OK;
    run_paths_init(&paths);
    for (size_t i = 0; i < l->paths.n; i++) TRY_GOTO(rc, run_paths_add(&paths, l->paths.items[i], false), done);
    TRY_GOTO(rc,
             report_write(&paths, &(report_options){.out = file, .charts = l->charts, .png = l->png, .trace = l->trace},
                          &result),
             done);
    const json_t *words = json_object_get(result, "words"), *line;
    size_t i;
    FILE *out = report_stream(l->json);
    json_array_foreach(words, i, line) fprintf(out, "%s\n", json_string_value(line));
    fprintf(out, "%sreport    %s, %zu charts\n", json_array_size(words) ? "\n" : "", file,
            json_array_size(json_object_get(result, "charts")));
    if (l->charts) fprintf(out, "charts    %s\n", l->charts);
    if (l->png) fprintf(out, "png       %s\n", l->png);
    if (l->json) json_print(json_incref(result), "report", ALL_DIGITS);
done:
    json_decref(result);
    run_paths_fini(&paths);
    return rc;
}
