/* planning.c - what ralo plan prints around a plan of many ranks: a sign of life while it searches, and the commands
 * that start the ranks.
 *
 * The commands repeat the settings of the command line. Flags that are about planning are left out, and precision and
 * micro-batch are added where they were not given, so that what runs is what was planned. */
#define _GNU_SOURCE
#include "cli/planning.h"
#include "cli/console.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* ---- a sign of life --------------------------------------------------------------------------------------------------- */

static uint64_t began_ns, shown_ns;
static int n_tried;

void planning_show(void) {
    enum { FIRST_MS = 500, EVERY_MS = 100 };
    uint64_t now = clock_ns();
    if (began_ns == 0) began_ns = now;
    n_tried++;
    if (now - began_ns < FIRST_MS * 1000000ull || now - shown_ns < EVERY_MS * 1000000ull || !isatty(STDERR_FILENO))
        return;
    shown_ns = now;
    char line[80];
    snprintf(line, sizeof line, "planning  %d candidates compared, %.0f s \x1b[K", n_tried,
             (double)(now - began_ns) * 1e-9);
    console_redraw(line, false);
}

void planning_hide(void) {
    if (shown_ns) console_redraw("\x1b[K", false);
    shown_ns = 0;
}

/* ---- the commands ------------------------------------------------------------------------------------------------------ */

static bool is_about_planning(const char *flag) {
    static const char *const names[] = {"hardware", "world", "json", "program", "timeline", "longest", "profile"};
    const char *name = flag + strspn(flag, "-");
    for (size_t i = 0; i < ARRAY_LENGTH(names); i++)
        if (strncmp(name, names[i], strcspn(name, "=")) == 0 && strlen(names[i]) == strcspn(name, "=")) return true;
    return false;
}

static bool takes_value(const char *flag) {
    const char *name = flag + strspn(flag, "-");
    for (size_t i = 0; flag_at(i); i++)
        if (strcmp(flag_at(i)->name, name) == 0) return *flag_at(i)->value != 0;
    return false;
}

static void add_arguments(const command_line *l, const plan *p, strbuf *out) {
    for (int i = 1; i < l->argc; i++) {
        const char *given = l->argv[i];
        if (given[0] == '-' && given[1] && is_about_planning(given)) {
            i += !strchr(given, '=') && takes_value(given);
            continue;
        }
        strbuf_add(out, " ");
        strbuf_add_word(out, given);
    }
    if (!config_was_given(&l->config, "precision"))
        strbuf_printf(out, " --set precision=%s", precision_name(p->request.choice.precision));
    if (p->request.open.micro_batch)
        strbuf_printf(out, " --set train.micro_batch=%lld --set train.batch=%lld",
                      (long long)p->request.choice.micro_batch,
                      (long long)(p->request.choice.micro_batch * p->request.choice.accumulation *
                                  mesh_size(&p->request.mesh, AXIS_DATA)));
}

void planning_print_launch(const command_line *l, const plan *p, FILE *out) {
    const hardware *h = p->request.hardware;
    int n = mesh_world(&p->request.mesh), per_node = h ? (int)MIN(h->devices_per_node, (int64_t)n) : n;
    if (n < 2 || l->dry_run || !plan_fits(p)) return;
    int nodes = (n + per_node - 1) / per_node;
    bool gpus = h && !h->unified;
    strbuf settings;
    strbuf_init(&settings);
    add_arguments(l, p, &settings);
    if (nodes == 1) fprintf(out, "launch    ralo train --ranks %d%s\n", n, settings.text);
    else
        fprintf(out, "launch    mpirun -n %d --hostfile hosts --map-by ppr:%d:node --bind-to none ralo train%s\n", n,
                per_node, settings.text);
    fprintf(out, "          srun --mpi=pmix --nodes=%d --ntasks-per-node=%d", nodes, per_node);
    if (gpus) fprintf(out, " --gpus-per-node=%d", per_node);
    fprintf(out, " ralo train%s\n", settings.text);
    strbuf_fini(&settings);
}
