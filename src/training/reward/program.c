/* program.c - a reward from a program of the user: one JSON line in, one line with a number out.
 *
 * N copies are kept running and get items one at a time, so that an answer belongs to the item that was sent last and to nothing
 * else; which copy an item goes to changes no score. Everything is one loop over poll with a deadline: no pipe that is full or
 * silent can stop it. A copy that is late, or that writes what is no answer, is killed and started again, because what it writes
 * next might be the answer to an earlier item. One that writes more lines than it was asked for may have shifted its answers, so
 * all scores that it gave in this call are taken back. Such a line may come at any time, also when the next item is on its way. So an item
 * is sent without the end of its line first. When the program has read that, it waits for more, and whatever it wrote for earlier items is in
 * its pipe: only if there is nothing, the line is ended. A copy that ends is started again and gets its item once more; an item with which two
 * copies ended has no score. More restarts in a row than reward.retries end the run, whatever reward.on_error says: the program is
 * broken then, and nothing would be learned. */
#define _GNU_SOURCE 1 /* ppoll */
#include "reward/kind.h"
#include "reward/reply.h"
#include "reward/sigpipe.h"
#include "reward/worker.h"

#include <errno.h>
#include <math.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { ATTEMPTS = 2, WORKERS_MOST = 1024 };
#define LINE_MOST ((size_t)64 << 10) /* of an answer */
#define START_SECONDS 0.1            /* in which a command that does not exist has ended */
#define END_SECONDS 1.0              /* for a program to end by itself when its input does */
#define EXIT_SECONDS 0.5             /* between the end of its output and its own */
#define PAUSE_LEAST 20e-6            /* between two looks at whether an item is read, in seconds: doubled up to ... */
#define PAUSE_MOST 2e-3

typedef struct slot {
    worker w;
    bool busy;
    size_t item;
    int attempts; /* that the item had */
    char *line;   /* of the item */
    size_t n_line, n_sent;
    double deadline;
    strbuf answer;
    int64_t n_in_a_row; /* restarts without an answer in between */
    uint64_t copy;      /* number of the copy that runs */
    bool has_answered;  /* this copy, anything */
} slot;

typedef struct program {
    char *command;
    double timeout;
    int64_t retries;
    slot *slots;
    size_t n;
    struct pollfd *polled; /* (2 n) */
    int life[2];
    scoring *s; /* of the call that runs */
    size_t n_next, n_done;
    double pause;        /* seconds until the next look at items that are not read yet */
    uint64_t n_copies;   /* started so far */
    uint64_t *scored_by; /* per item of the call, the copy; 0: no score yet */
    size_t capacity;
} program;

/* ---- open and close ---------------------------------------------------------------------------------------------- */

static void program_close(void *self) {
    program *p = self;
    char ignored[96];
    double until = clock_s() + END_SECONDS;
    for (size_t i = 0; i < p->n; i++) worker_close_input(&p->slots[i].w);
    for (size_t i = 0; i < p->n; i++) {
        slot *t = &p->slots[i];
        if (t->w.pid > 0) worker_ended(&t->w, MAX(until - clock_s(), 0), ignored);
        worker_stop(&t->w);
        free(t->line);
        strbuf_fini(&t->answer);
    }
    worker_life_close(p->life);
    free(p->slots);
    free(p->scored_by);
    free(p->polled);
    free(p->command);
    free(p);
}

static status check(const reward_options *o) {
    if (!o->program || !*o->program)
        return ERR(ERR_INPUT, "reward.program: found nothing, expected the command line of reward program");
    if (o->workers < 1 || o->workers > WORKERS_MOST)
        return ERR(ERR_INPUT, "reward.workers: found %lld, expected 1 to %d", (long long)o->workers, WORKERS_MOST);
    if (!(o->timeout > 0 && isfinite(o->timeout)))
        return ERR(ERR_INPUT, "reward.timeout: found %g, expected seconds above 0", o->timeout);
    if (o->retries < 0) return ERR(ERR_INPUT, "reward.retries: found %lld, expected 0 or more", (long long)o->retries);
    return OK;
}

static status start(program *p, slot *t) {
    t->copy = ++p->n_copies;
    t->has_answered = false;
    return worker_start(&t->w, p->command, p->life[0]);
}

static status start_all(program *p) {
    char why[96];
    double until = clock_s() + START_SECONDS;
    for (size_t i = 0; i < p->n; i++) TRY(start(p, &p->slots[i]));
    for (size_t i = 0; i < p->n; i++)
        if (worker_ended(&p->slots[i].w, MAX(until - clock_s(), 0), why))
            return ERR(
                ERR_INPUT,
                "reward.program: '%.200s' %s before it was asked anything, expected a program that answers each line "
                "of its input until that ends",
                p->command, why);
    return OK;
}

static status program_open(void **self, const reward_options *o) {
    status rc = OK;
    TRY(check(o));
    program *p = mem_alloc(sizeof *p);
    *p = (program){.command = mem_string(o->program), .timeout = o->timeout, .retries = o->retries, .life = {-1, -1}};
    p->n = (size_t)o->workers;
    p->slots = mem_alloc(p->n * sizeof *p->slots);
    p->polled = mem_alloc(2 * p->n * sizeof *p->polled);
    for (size_t i = 0; i < p->n; i++) p->slots[i].w = (worker){.in = -1, .out = -1};
    TRY_GOTO(rc, worker_life_open(p->life), fail);
    TRY_GOTO(rc, start_all(p), fail);
    *self = p;
    return OK;
fail:
    program_close(p);
    return rc;
}

/* ---- what goes wrong --------------------------------------------------------------------------------------------- */

static void finish(program *p, slot *t) {
    t->busy = false;
    p->n_done++;
}

static status restart(program *p, slot *t, const char *why) {
    worker_stop(&t->w);
    t->answer.length = 0;
    reward_report *report = p->s->report;
    if (report->n_restarts++ == 0)
        snprintf(report->first_restart, sizeof report->first_restart, "%s: the program %s", p->s->name, why);
    if (++t->n_in_a_row > p->retries)
        return ERR(ERR_RUN,
                   "reward.program: '%.200s' %s, after %lld restarts in a row without an answer (reward.retries); try "
                   "it by hand: "
                   "it gets one JSON object per line and answers each with one number",
                   p->command, why, (long long)t->n_in_a_row - 1);
    return start(p, t);
}

static void send_again(program *p, slot *t) {
    t->n_sent = 0;
    t->answer.length = 0;
    t->attempts++;
    t->deadline = clock_s() + p->timeout;
}

/* Its output ended, or it does not read: how did it end? */
static status lost(program *p, slot *t) {
    char why[96];
    if (!worker_ended(&t->w, EXIT_SECONDS, why)) snprintf(why, sizeof why, "closed its input or output");
    TRY(restart(p, t, why));
    if (t->attempts < ATTEMPTS) {
        send_again(p, t);
        return OK;
    }
    finish(p, t);
    return scoring_fail(p->s, t->item, "the program %s %d times with one item", why, ATTEMPTS);
}

/* It is stopped first: what it may still write belongs to nothing. */
static status give_up(program *p, slot *t, const char *why) {
    worker_stop(&t->w);
    finish(p, t);
    TRY(scoring_fail(p->s, t->item, "the program %s", why));
    return restart(p, t, why);
}

static status late(program *p, slot *t) {
    char why[96];
    snprintf(why, sizeof why, "gave no answer within %g s (does it flush its output?)", p->timeout);
    return give_up(p, t, why);
}

static status noise(program *p, slot *t, const char *found) {
    char why[160];
    snprintf(why, sizeof why, "answered %s, expected a number or null on one line", found);
    return give_up(p, t, why);
}

/* ---- one item ---------------------------------------------------------------------------------------------------- */

/* Nothing may be waiting in the pipe of a program that was asked nothing. */
static bool has_said_more(slot *t) {
    char byte;
    return t->answer.length > 0 || read(t->w.out, &byte, 1) > 0;
}

/* What it gave in an earlier call is in use: there it can only be said. */
static status take_back(program *p, const slot *t) {
    bool any = false;
    for (size_t i = 0; i < p->s->n; i++) {
        if (p->scored_by[i] != t->copy) continue;
        p->scored_by[i] = 0;
        any = true;
        TRY(scoring_fail(p->s, i, "the program wrote more than one line per item"));
    }
    if (any) return OK;
    return scoring_note(p->s, t->has_answered
                                  ? "the program wrote a line after its last answer; the answer before may be wrong"
                                  : "the program wrote a line before it was asked anything");
}

static status silence(program *p, slot *t) {
    worker_stop(&t->w);
    TRY(take_back(p, t));
    return restart(p, t, "wrote a line that nobody asked for");
}

static status check_silence(program *p, slot *t) { return t->w.pid == 0 || !has_said_more(t) ? OK : silence(p, t); }

/* It wrote a line before it had read the item, which a new copy gets. */
static status spoke_too_early(program *p, slot *t) {
    TRY(silence(p, t));
    if (t->attempts < ATTEMPTS) {
        send_again(p, t);
        return OK;
    }
    finish(p, t);
    return scoring_fail(p->s, t->item, "the program wrote a line before it had read the item, %d times", ATTEMPTS);
}

static status give(program *p, slot *t, size_t item) {
    if (t->w.pid == 0) TRY(start(p, t)); /* an earlier call ended with an error */
    TRY(check_silence(p, t));
    json_t *v = item_json(&p->s->items[item]);
    free(t->line);
    t->line = json_dumps(v, JSON_COMPACT | JSON_ENSURE_ASCII);
    json_decref(v);
    if (!t->line) mem_refused(0);
    t->n_line = strlen(t->line);
    t->line[t->n_line++] = '\n'; /* in place of the NUL: the length is known */
    t->busy = true;
    t->item = item;
    t->attempts = 0;
    send_again(p, t);
    return OK;
}

static bool is_sent(const slot *t) { return t->n_sent == t->n_line; }
static bool awaits_reading(const slot *t) {
    return t->n_sent + 1 == t->n_line;
} /* all but the end of the line is sent */

static status write_some(program *p, slot *t, size_t n_most) {
    ssize_t n = write(t->w.in, t->line + t->n_sent, n_most);
    if (n > 0) t->n_sent += (size_t)n;
    if (n >= 0 || errno == EAGAIN || errno == EINTR) return OK;
    return lost(p, t);
}

/* Ends the line once the rest of it was read. */
static status end_line(program *p, slot *t) {
    if (worker_has_unread(&t->w)) return OK;
    p->pause = PAUSE_LEAST;
    return has_said_more(t) ? spoke_too_early(p, t) : write_some(p, t, 1);
}

static status take_answer(program *p, slot *t, size_t n_bytes) {
    reply r = reply_parse(t->answer.text, n_bytes);
    char found[100];
    snprintf(found, sizeof found, "'%s'", r.found);
    if (t->answer.length > n_bytes + 1) {
        TRY(take_back(p, t));
        return noise(p, t, "more than one line");
    }
    if (r.kind == REPLY_NOISE) return noise(p, t, found);
    t->answer.length = 0;
    t->n_in_a_row = 0;
    finish(p, t);
    if (r.kind == REPLY_VALUE)
        return scoring_fail(p->s, t->item, "the program answered %s, expected a finite number or null", found);
    t->has_answered = true;
    p->scored_by[t->item] = t->copy;
    if (r.kind == REPLY_NUMBER) scoring_put(p->s, t->item, r.score);
    return OK;
}

static status read_some(program *p, slot *t) {
    char buffer[4096];
    ssize_t n = read(t->w.out, buffer, sizeof buffer);
    if (n < 0 && (errno == EAGAIN || errno == EINTR)) return OK;
    if (n <= 0) return lost(p, t);
    if (!is_sent(t)) return spoke_too_early(p, t);
    strbuf_add_bytes(&t->answer, buffer, (size_t)n);
    const char *end = memchr(t->answer.text, '\n', t->answer.length);
    if (end) return take_answer(p, t, (size_t)(end - t->answer.text));
    return t->answer.length > LINE_MOST ? noise(p, t, "a line without end") : OK;
}

/* ---- all items --------------------------------------------------------------------------------------------------- */

/* Waits until something can be read or written, or it is time. */
static status wait_for_any(program *p) {
    double until = INFINITY, now = clock_s();
    for (size_t i = 0; i < p->n; i++) {
        const slot *t = &p->slots[i];
        bool writes = t->busy && !is_sent(t) && !awaits_reading(t);
        p->polled[2 * i] = (struct pollfd){.fd = t->busy ? t->w.out : -1, .events = POLLIN};
        p->polled[2 * i + 1] = (struct pollfd){.fd = writes ? t->w.in : -1, .events = POLLOUT};
        if (t->busy) until = MIN(until, t->deadline);
        if (t->busy && awaits_reading(t)) until = MIN(until, now + p->pause);
    }
    p->pause = MIN(2 * p->pause, PAUSE_MOST);
    double wait = MIN(MAX(until - now, 0), 60.0);
    struct timespec time = {.tv_sec = (time_t)wait, .tv_nsec = (long)((wait - floor(wait)) * 1e9)};
    if (ppoll(p->polled, (nfds_t)(2 * p->n), &time, NULL) < 0 && errno != EINTR)
        return ERR(ERR_IO, "reward.program: poll: %s", strerror(errno));
    return OK;
}

/* Waits for whatever comes first, and serves it. */
static status turn(program *p) {
    TRY(wait_for_any(p));
    for (size_t i = 0; i < p->n; i++) {
        slot *t = &p->slots[i];
        if (!t->busy) continue;
        pid_t pid = t->w.pid;
        if (p->polled[2 * i].revents) TRY(read_some(p, t));
        bool same = t->busy && t->w.pid == pid; /* else what was polled is closed */
        if (same && p->polled[2 * i + 1].revents) TRY(write_some(p, t, t->n_line - 1 - t->n_sent));
        same = t->busy && t->w.pid == pid;
        if (same && awaits_reading(t)) TRY(end_line(p, t));
        if (t->busy && clock_s() > t->deadline) TRY(late(p, t));
    }
    return OK;
}

static status score_all(program *p) {
    while (p->n_done < p->s->n) {
        for (size_t i = 0; i < p->n && p->n_next < p->s->n; i++)
            if (!p->slots[i].busy) TRY(give(p, &p->slots[i], p->n_next++));
        TRY(turn(p));
    }
    for (size_t i = 0; i < p->n; i++) TRY(check_silence(p, &p->slots[i]));
    return OK;
}

static status program_score(void *self, scoring *s) {
    program *p = self;
    sigpipe_hold hold = sigpipe_hold_begin();
    p->s = s;
    p->n_next = p->n_done = 0;
    p->pause = PAUSE_LEAST;
    p->scored_by = array_grow(p->scored_by, &p->capacity, s->n, sizeof *p->scored_by);
    if (s->n) memset(p->scored_by, 0, s->n * sizeof *p->scored_by);
    status rc = score_all(p);
    for (size_t i = 0; i < p->n; i++) { /* after an error: their answers will belong to nothing */
        if (p->slots[i].busy) worker_stop(&p->slots[i].w);
        p->slots[i].busy = false;
        p->slots[i].answer.length = 0;
    }
    sigpipe_hold_end(&hold);
    return rc;
}

const reward_kind reward_kind_PROGRAM = {program_open, program_score, program_close};
