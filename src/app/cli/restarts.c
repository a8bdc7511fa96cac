/* restarts.c - ralo train --ranks N: run many ranks and say why they ended; --restarts K: go on by itself from the
 * newest complete checkpoint after a death.
 *
 * A death is a rank that was killed, crashed or no longer responds, or a killed mpirun. An error that a rank reports
 * would come again and is not restarted: wrong input, no room in memory or on the disk, a loss that is not finite. Nor
 * is a run that somebody stopped, with Ctrl-C or by a signal to mpirun. An mpirun that reacts to the signal by itself
 * exits with 1 as after a rank's error, prints nothing of the ranks any more, and has sent SIGTERM to all of them;
 * after an error or a death one rank had ended before.
 *
 * The ranks are started again with the same command line and a few arguments behind it, of which the last counts:
 * --resume auto with the directory that the run had chosen and, with --min-ranks, fewer ranks that take the
 * micro-batches of those that are gone. The micro-batches and the rows of a step stay the same. K bounds a run that
 * dies again and again at the same step. */
#define _GNU_SOURCE
#include "cli/restarts.h"
#include "cli/notes.h"
#include "cli/ranks.h"
#include "track/track.h"

#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_MORE = 24 };

typedef struct supervisor {
    const command_line *l;
    char notes_path[4096];
    run_notes notes;
    int ranks, ranks_before; /* now, and before the last death */
    int restart;
    int64_t died_in; /* the step of the death before; 0: none */
    int64_t saved;   /* step of the newest checkpoint; 0: there is none */
    int n_more;      /* arguments behind those that were typed */
    char *more[MAX_MORE];
    arena memory;
} supervisor;

status restarts_check(const command_line *l) {
    int rank, size;
    bool launched = comm_launched(&rank, &size);
    if (l->min_ranks && !l->restarts)
        return ERR(ERR_INPUT, "train: --min-ranks is about restarts; give --restarts K too");
    if (!l->restarts || notes_restart() >= 0) return OK;
    if (launched)
        return ERR(
            ERR_INPUT,
            "train: --restarts works with --ranks, where ralo starts the ranks itself; these were started by mpirun or "
            "srun: leave --restarts out, and run the same command again with --resume auto after a death");
    if (l->ranks < 2)
        return ERR(ERR_INPUT, "train: --restarts: found %s, expected --ranks N with at least 2 ranks",
                   l->ranks ? "--ranks 1" : "no --ranks");
    if (l->min_ranks > l->ranks)
        return ERR(ERR_INPUT, "train: --min-ranks: found %d, expected at most the %d of --ranks", l->min_ranks,
                   l->ranks);
    return OK;
}

/* ---- the command line of the next start ------------------------------------------------------------------------------ */

static void add_more(supervisor *s, const char *flag, const char *value) {
    ASSERT(s->n_more + 2 <= MAX_MORE);
    s->more[s->n_more++] = arena_format(&s->memory, "%s", flag);
    s->more[s->n_more++] = arena_format(&s->memory, "%s", value);
}

static const char *dir_of(const supervisor *s) {
    const char *given = s->l->config.run.dir;
    return given && *given ? given : s->notes.dir;
}

/* The run began from a checkpoint that was named. */
static bool resumes_other(const supervisor *s) {
    const char *resume = s->l->config.run.resume;
    return *resume && strcmp(resume, "auto") != 0 && strcmp(resume, "none") != 0;
}

static int data_ranks(const supervisor *s, int ranks) {
    const int *size = s->notes.size;
    int others = MAX(size[AXIS_TENSOR], 1) * MAX(size[AXIS_PIPELINE], 1) * MAX(size[AXIS_SEQUENCE], 1);
    return ranks % others ? 0 : ranks / others;
}

/* Micro-batches of a step, on all data ranks. */
static int64_t step_micros(const supervisor *s) { return s->notes.accumulation * MAX(s->notes.size[AXIS_DATA], 1); }

/* Can so many ranks take the same micro-batches? */
static bool ranks_divide(const supervisor *s, int ranks) {
    const config *c = &s->l->config;
    int n = data_ranks(s, ranks);
    if (n == 0) return false;
    if (c->task == TASK_RLOO) return c->train.rl.prompts % n == 0;
    bool in_rounds = c->parallel.virtual_stages > 1; /* interleaved stages take micro-batches in rounds */
    return step_micros(s) % n == 0 && !(in_rounds && step_micros(s) / n % s->notes.size[AXIS_PIPELINE]);
}

static int choose_ranks(const supervisor *s, const ranks_end *end) {
    int least = s->l->min_ranks ? s->l->min_ranks : s->ranks;
    if (!s->notes.began || end->launcher_died) return s->ranks; /* with mpirun no rank is lost */
    for (int n = s->ranks - 1; n >= least; n--)
        if (ranks_divide(s, n)) return n;
    return s->ranks;
}

static void add_ranks(supervisor *s) {
    const config *c = &s->l->config;
    int n = data_ranks(s, s->ranks);
    add_more(s, "--ranks", arena_format(&s->memory, "%d", s->ranks));
    bool is_fewer = s->ranks != s->l->ranks;
    if (!s->notes.began) return;
    if (is_fewer && c->parallel.size[AXIS_DATA] > 0)
        add_more(s, "--set", arena_format(&s->memory, "parallel.data=%d", n));
    if (is_fewer && s->notes.size[AXIS_SEQUENCE] > 1)
        add_more(s, "--set", arena_format(&s->memory, "parallel.sequence=%d", s->notes.size[AXIS_SEQUENCE]));
    if (c->task == TASK_RLOO || (!is_fewer && c->train.micro_batch >= 0))
        return; /* with as many ranks it is as it was given */
    add_more(s, "--set", arena_format(&s->memory, "train.micro_batch=%lld", (long long)s->notes.micro_batch));
    add_more(s, "--set", arena_format(&s->memory, "train.accumulation=%lld", (long long)(step_micros(s) / n)));
}

static void prepare(supervisor *s) {
    s->n_more = 0;
    if (s->restart == 0) return;
    add_ranks(s);
    if (!*dir_of(s)) return; /* died before it had one */
    add_more(s, "--set", arena_format(&s->memory, "run.dir=%s", dir_of(s)));
    if (s->saved > 0 || !resumes_other(s)) add_more(s, "--resume", "auto");
}

static status start(supervisor *s, ranks_end *end) {
    const command_line *l = s->l;
    int n = 0, typed = 0;
    char **argv = mem_alloc((size_t)(l->argc + s->n_more) * sizeof *argv);
    while (typed < l->argc && strcmp(l->argv[typed], "--") != 0) argv[n++] = l->argv[typed++];
    for (int i = 0; i < s->n_more; i++) argv[n++] = s->more[i];
    while (typed < l->argc) argv[n++] = l->argv[typed++];
    status rc = notes_clear(s->notes_path, s->restart);
    if (rc == OK) rc = ranks_start(s->ranks, l->config.comm.timeout, n, argv, end);
    free(argv);
    if (rc == OK) notes_read(s->notes_path, &s->notes);
    return rc;
}

/* ---- after an end ------------------------------------------------------------------------------------------------------ */

static bool was_asked(const supervisor *s, const ranks_end *end) {
    if (ranks_interrupts() > 1) return end->may_be_asked;
    return end->may_be_asked && s->notes.n_here > 0 && s->notes.n_asked == s->notes.n_here;
}

static bool is_death(const supervisor *s, const ranks_end *end) {
    if (end->code != ERR_RUN || ranks_interrupts() > 0) return false;
    if (end->launcher_died) return true;
    if (s->notes.ended) return s->notes.lost;
    /* No rank was left to say anything. */
    if (end->launcher_hung) return true;
    return end->signal && end->signal != SIGTERM && end->signal != SIGINT && end->signal != SIGHUP;
}

static void find_saved(supervisor *s) {
    char path[4200] = "";
    s->saved = 0;
    if (!*dir_of(s)) return;
    if (checkpoint_find_newest_quietly(dir_of(s), path, sizeof path) != OK) error_clear();
    else if (!*path || !checkpoint_step_of(path, &s->saved)) s->saved = 0;
}

/* "rank 2 of 4 died (signal 9, Killed) in step 31" */
static void say_death(const supervisor *s, const ranks_end *end, strbuf *out) {
    const run_notes *n = &s->notes;
    if (end->launcher_died) strbuf_printf(out, "mpirun was killed");
    else if (n->lost_rank >= 0) strbuf_printf(out, "rank %d of %d died", n->lost_rank, s->ranks_before);
    else strbuf_printf(out, "a rank of %d died", s->ranks_before);
    if (end->signal && !end->launcher_died) strbuf_printf(out, " (signal %d, %s)", end->signal, strsignal(end->signal));
    else if (!end->launcher_died) strbuf_printf(out, " or does not respond");
    if (n->step > 0) strbuf_printf(out, " in step %lld", (long long)n->step);
    if (n->step > 0 && n->step == s->died_in) strbuf_printf(out, ", as the one before");
}

static int64_t lost_steps(const supervisor *s) { return MAX(s->notes.step - 1 - s->saved, (int64_t)0); }

static void say_source(const supervisor *s, strbuf *out) {
    if (s->saved > 0)
        strbuf_printf(out, "; the run goes on from step %lld, its newest complete checkpoint", (long long)s->saved);
    else if (resumes_other(s))
        strbuf_printf(out, "; it has saved nothing yet: the run goes on from %s", s->l->config.run.resume);
    else strbuf_printf(out, "; it has saved nothing yet: the run starts from the beginning");
    if (s->notes.step > 0 && (s->saved > 0 || !resumes_other(s)))
        strbuf_printf(out, ", %lld finished step%s lost", (long long)lost_steps(s),
                      lost_steps(s) == 1 ? " is" : "s are");
}

static void say_ranks(const supervisor *s, const ranks_end *end, strbuf *out) {
    const run_notes *n = &s->notes;
    int fewest = s->l->min_ranks;
    if (s->ranks == s->ranks_before) {
        strbuf_printf(out, "; with %d rank%s as before", s->ranks, s->ranks == 1 ? "" : "s");
        if (fewest && fewest < s->ranks && n->began && !end->launcher_died)
            strbuf_printf(out, ": no number from %d to %d keeps the micro-batches of a step", fewest, s->ranks - 1);
        return;
    }
    strbuf_printf(out, "; with %d rank%s instead of %d", s->ranks, s->ranks == 1 ? "" : "s", s->ranks_before);
    if (s->l->config.task == TASK_RLOO) return;
    strbuf_printf(out, ": each data rank takes %lld micro-batches of %lld row%s in a step, which keeps its %lld rows",
                  (long long)(step_micros(s) / data_ranks(s, s->ranks)), (long long)n->micro_batch,
                  n->micro_batch == 1 ? "" : "s", (long long)(step_micros(s) * n->micro_batch));
}

static void announce(supervisor *s, const ranks_end *end) {
    strbuf text;
    strbuf_init(&text);
    strbuf_printf(&text, "restart %d of %d: ", s->restart, s->l->restarts);
    say_death(s, end, &text);
    say_source(s, &text);
    say_ranks(s, end, &text);
    fprintf(stderr, "%s\n", text.text);
    track_restart r = {.step = s->saved,
                       .lost = lost_steps(s),
                       .restart = s->restart,
                       .most = s->l->restarts,
                       .rank = s->notes.lost_rank,
                       .ranks = s->ranks,
                       .message = text.text};
    if (s->notes.began && track_add_restart(dir_of(s), &r) != OK) {
        fprintf(stderr, "warning: %s; the restart is not in events.jsonl\n", error_message());
        error_clear();
    }
    strbuf_fini(&text);
}

/* Fewer ranks may need more memory each than there is, or other settings: those that ran before are known to work. */
static bool fewer_were_refused(const supervisor *s, const ranks_end *end) {
    return s->ranks < s->ranks_before && !s->notes.ended && (end->code == ERR_FIT || end->code == ERR_INPUT);
}

static status report_asked(supervisor *s, const ranks_end *end) {
    const char *dir = dir_of(s);
    status rc;
    strbuf text;
    strbuf_init(&text);
    find_saved(s);
    if (s->saved > 0) {
        strbuf_printf(&text, "; the newest complete checkpoint is of step %lld, continue with: ", (long long)s->saved);
        strbuf_add_word(&text, program_invocation_name);
        strbuf_printf(&text, " train --ranks %d ", s->ranks);
        strbuf_add_word(&text, dir);
    } else {
        strbuf_add(&text, s->notes.began ? "; nothing is saved yet" : "; the run had not begun");
    }
    if (s->notes.began && dir_holds(dir, "errors.txt"))
        strbuf_printf(&text, "; what the ranks have said is in %s/errors.txt", dir);
    rc = ERR(ERR_INTERRUPTED, "mpirun (pid %d) was asked to end by a signal%s", (int)end->launcher, text.text);
    strbuf_fini(&text);
    return rc;
}

static status run_until_end(supervisor *s) {
    ranks_end end;
    for (;;) {
        if (ranks_interrupts() > 0) return ERR(ERR_INTERRUPTED, "interrupted before the ranks were started again");
        prepare(s);
        TRY(start(s, &end));
        if (fewer_were_refused(s, &end)) {
            fprintf(stderr, "restart %d of %d: %d ranks were refused, see the message above; the run goes on with %d\n",
                    s->restart, s->l->restarts, s->ranks, s->ranks_before);
            s->ranks = s->ranks_before;
            continue;
        }
        if (was_asked(s, &end)) return report_asked(s, &end);
        if (end.code == ERR_INTERRUPTED && !s->notes.ended) /* no rank was there to say it */
            return ERR(ERR_INTERRUPTED, "interrupted before the run had begun");
        if (!s->l->restarts || !is_death(s, &end)) return end.code;
        find_saved(s);
        s->ranks_before = s->ranks;
        if (s->restart == s->l->restarts) break;
        s->restart++;
        s->ranks = choose_ranks(s, &end);
        announce(s, &end);
        s->died_in = s->notes.step;
    }
    strbuf text;
    strbuf_init(&text);
    say_death(s, &end, &text);
    status rc = ERR(ERR_RUN, "%s after %d of %d restarts; ralo train %s goes on from step %lld", text.text, s->restart,
                    s->l->restarts, *dir_of(s) ? dir_of(s) : "RUN", (long long)s->saved);
    strbuf_fini(&text);
    return rc;
}

status restarts_run(const command_line *l) {
    supervisor s = {.l = l, .ranks = l->ranks, .ranks_before = l->ranks};
    TRY(notes_open(s.notes_path, sizeof s.notes_path));
    arena_init(&s.memory);
    status rc = run_until_end(&s);
    notes_close(s.notes_path);
    arena_fini(&s.memory);
    return rc;
}
