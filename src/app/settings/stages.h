#pragma once
/* stages.h - private to settings, part of its face: a file of settings with several runs in it, one after the other.
 *
 *     model: {preset: arithmetic-tiny}            settings of every stage, as in any CONFIG
 *     pipeline: {dir: runs/rho1}                  where the stages go; --dir says otherwise
 *     stages:
 *       reference: {train: {task: sft, steps: 200}}
 *       policy:                                   in this order; what a stage sets counts more
 *         train: {task: mtp, weighting: rho1}
 *         rho1: {reference: "{reference.model}"}
 *
 * A value "{NAME}" is the run directory of an earlier stage, DIR/NAME, and "{NAME.model}" its exported model, DIR/NAME-model. A stage
 * is read as if its settings stood in a CONFIG of their own, with run.dir=DIR/NAME. */
#include "settings/config.h"

enum { STAGES_MOST = 16 };
typedef struct stage_list {
    const char *dir;
    size_t n;
    const char *names[STAGES_MOST];
    bool exported[STAGES_MOST]; /* a later stage asks for its model */
} stage_list;

/* Reads the file's stages; dir: instead of the file's own, NULL: that. The strings live in memory. */
status stages_read(stage_list *out, const char *path, const char *dir, arena *memory);
const char *stage_run_dir(const stage_list *l, const char *name, arena *memory);
const char *stage_model_dir(const stage_list *l, const char *name, arena *memory);

/* For the reader of a CONFIG: does the tree have stages? Then this reads one of them. stage NULL is the only one;
 * of several it is refused with their names. */
bool stages_are_in(const yaml_node *root);
status stages_apply(config *c, yaml_node *root, const char *path, const char *stage, const char *dir, arena *memory);
