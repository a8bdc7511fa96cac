#pragma once
/* pass.h - rewrites of the program. One technique, one pass, one file.
 *
 * Promises
 *   - A pass may move, repeat or split work; it never changes arithmetic. The exceptions: fuse and fp8, which belong to a
 *     precision, and base, which belongs to a format of weights: they have no other program to be equal to; chunk, whose
 *     weight gradients are summed in another order.
 *   - After every pass the program verifies; pass_run checks that when asked (tests always ask).
 *   - Nothing is allocated on any device: after the layout pass every value has an address and every tier its exact size.
 *
 *     pass_options options = {.target = &t, .model = &m, .choice = choice, .n_micros = 4, ...};
 *     step_interface step = {0};
 *     TRY(pass_run(&p, &options, &step));   // every pass of the table that applies, in order
 *     p.arena_bytes[TIER_DEVICE];           // the peak, to the byte
 *     step.grads[i];                        // the gradient of parameter i
 */
#include "machine/machine.h"
#include "pass/choice.h"
#include "pass/step.h"

typedef struct optimizer_options {
    float beta1, beta2, eps, weight_decay, clip;
    float head_lr_scale; /* of the learning rate, for a value head; 0: it has the same rate */
    bool normalize_by_weights;
} optimizer_options;

/* Which device computes a part of the model, as memory.place names it. What that means depends on the target: on a CPU cpu:0 is
 * the first device and the others have arenas of their own; beside a GPU, which is the first device, cpu:0 is the host's
 * cores with the host's memory. */
typedef enum place_device { PLACE_FIRST, PLACE_CUDA, PLACE_CPU /* cpu:0; cpu:1 is the next */ } place_device;
enum { PLACE_LAYERS_MAX = 1024, PLACE_DEVICES = PLACE_CPU + DEVICES_MAX };
typedef struct place_options {
    uint8_t embed, head; /* of the embedding; of the last norm, the unembedding and the loss */
    uint8_t layers[PLACE_LAYERS_MAX];
} place_options;
tier place_tier(int device, const target *t);
/* Is a part of a model of so many layers anywhere but on the first device? */
bool place_splits(const place_options *l, int64_t n_layers, const target *t);

/* Input of all passes, read-only. */
typedef struct pass_options {
    const target *target;
    const net *net;
    step_choice choice;
    int64_t n_micros; /* micro-batches in the program: all of a step, or a few where a pipeline is shortened */
    optimizer_options optimizer;
    place_options place;
    mesh mesh;
    bool verify; /* after every pass */
} pass_options;

/* Rewrites the program, and records in `step` the values that the executor reads and writes. */
typedef status pass_function(program *p, const pass_options *options, step_interface *step);
#define PASS(name, ...) pass_function pass_##name;
#include "pass/passes.def"
#undef PASS
int64_t chunk_rows(int64_t asked); /* rounds a number of tokens to one that pass_chunk accepts */
enum { MLP_CHUNKS_MOST = 256 };    /* per MLP: each adds a few ops to the program */

status pass_run(program *p, const pass_options *options, step_interface *step);

/* ---- what layout found --------------------------------------------------------------------------------------- */

/* First and last op (inclusive, by index in the program) at which a value's bytes are in use; persistent values span
 * everything. Unused values give first > last. */
typedef struct lifetime {
    size_t first, last;
} lifetime;
void layout_lifetimes(const program *p, lifetime *out); /* n_values of them */
