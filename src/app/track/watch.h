#pragma once
/* watch.h - private to track, part of its face: looks at the losses of a run as they come, and says when something is wrong with them.
 *
 *     loss_watch w = {.spikes = 4};
 *     loss_event e;
 *     if (loss_watch_step(&w, &report, &e)) ... e.message
 */
#include "train/train.h"

enum { WATCH_WINDOW = 200, WATCH_RECENT = 20, WATCH_FIRST = 10 };
typedef struct loss_watch {
    double spikes;        /* track.spikes; 0: nothing is watched */
    bool is_no_objective; /* the loss of the task does not fall as it learns: only whether it is finite counts */
    const char *advice;   /* what to try against divergence; borrowed */

    double window[WATCH_WINDOW]; /* of losses, in the order in which they are replaced */
    int n_window, next;
    double recent[WATCH_RECENT];
    double first[WATCH_FIRST];
    int64_t n;                    /* finite losses seen */
    double median, wide, highest; /* of the window: when last sorted; wide: 98 % are below it */
    int until_sorted;             /* steps */
    int n_above;                  /* spikes in a row */
    int64_t quiet_until;          /* step */
    double lowest;                /* median of recent losses so far */
    bool has_diverged, is_broken; /* and was reported */
    int64_t not_finite[5];        /* the last steps whose loss was not; 0: none */
} loss_watch;

/* A line at the end of every epoch. */
typedef struct epoch_watch {
    double steps; /* of an epoch; 0: the data is endless, or no line is wanted */
    double sum;   /* of the losses of this epoch that are finite ... */
    int64_t n;    /* ... and how many */
} epoch_watch;
/* True: this step ends an epoch, and out says so. */
bool epoch_watch_step(epoch_watch *w, const train_step_report *r, char *out, size_t n);

typedef struct loss_event {
    const char *name; /* spike | divergence | not-finite */
    int64_t step;
    double loss, median; /* NAN: not known */
    char message[512];
} loss_event;
/* True: something is to be reported of this step. */
bool loss_watch_step(loss_watch *w, const train_step_report *r, loss_event *out);
