/* pass.c - the pipeline as a table. */
#include "pass/pass.h"

/* clang-format off */
static const pass_row pipeline[] = {
    {"autodiff", pass_autodiff, .what = "append the backward ops"},
    {"optimizer", pass_optimizer, .what = "append norm, clip and AdamW"},
    {"fuse", pass_fuse, .what = "residual + norm, bias into linear, norm + rope of heads"},
    {"fp8", pass_fp8, .what = "products of 8 bits in the layers"},
    {"recompute", pass_recompute, .what = "drop activations, compute them again before their backward"},
    {"chunk", pass_chunk, .what = "the MLP of a block for a few tokens at a time"},
    {"shard", pass_shard, .leaves_copies_open = true, .what = "ZeRO: what each rank of the data axis keeps"},
    {"pipeline", pass_pipeline, .leaves_copies_open = true, .what = "all micro-batches of a stage in one section"},
    {"place", pass_place, .leaves_copies_open = true, .what = "chosen layers on chosen devices"},
    {"offload", pass_offload, .leaves_copies_open = true, .what = "offload targets on host or nvme"},
    {"localize", pass_localize, .what = "copies to where an op runs"},
    {"schedule", pass_schedule, .what = "a stream for every op"},
    {"workspace", pass_workspace, .what = "scratch becomes part of the plan"},
    {"turn", pass_turn, .what = "the update beside the next step's first micro-batch"},
    {"layout", pass_layout, .what = "an address for every value"},
    {"waits", pass_waits, .what = "where streams meet"},
};
/* clang-format on */

status pass_run(program *p, const pass_options *options, step_interface *step) {
    if (options->verify) TRY(program_verify(p));
    for (const pass_row *row = pipeline; row < pipeline + ARRAY_LENGTH(pipeline); row++) {
        TRY(row->run(p, options, step));
        if (!options->verify || row->leaves_copies_open) continue;
        if (program_verify(p) != OK) {
            char was[512];
            snprintf(was, sizeof was, "%s", error_message());
            return ERR(ERR_BUG, "after pass %s: %s", row->name, was);
        }
    }
    return OK;
}
