/* pass.c - the pipeline as a table. */
#include "pass/pass.h"

/* clang-format off */
static const pass_row pipeline[] = {
    {"autodiff", pass_autodiff, "append the backward ops"},
    {"optimizer", pass_optimizer, "append norm, clip and AdamW"},
    {"fuse", pass_fuse, "residual + norm, bias into linear, norm + rope of heads"},
    {"fp8", pass_fp8, "products of 8 bits in the layers"},
    {"recompute", pass_recompute, "drop activations, compute them again before their backward"},
    {"chunk", pass_chunk, "the MLP of a block for a few tokens at a time"},
    {"shard", pass_shard, "ZeRO: what each rank of the data axis keeps"},
    {"pipeline", pass_pipeline, "all micro-batches of a stage in one section"},
    {"place", pass_place, "chosen layers on chosen devices"},
    {"offload", pass_offload, "homes on host or nvme"},
    {"localize", pass_localize, "copies to where an op runs"},
    {"schedule", pass_schedule, "a stream for every op"},
    {"workspace", pass_workspace, "scratch becomes part of the plan"},
    {"turn", pass_turn, "the update beside the next step's first micro-batch"},
    {"layout", pass_layout, "an address for every value"},
    {"waits", pass_waits, "where streams meet"},
    {NULL, NULL, NULL},
};
/* clang-format on */

status pass_run(program *p, pass_context *c) {
    if (c->verify) TRY(program_verify(p));
    for (const pass_row *row = pipeline; row->name; row++) {
        TRY(row->run(p, c));
        /* Between these, values already have their homes and ops do not have their copies yet. */
        bool is_between = row->run == pass_shard || row->run == pass_pipeline || row->run == pass_place;
        if (!c->verify || is_between || row->run == pass_offload) continue;
        if (program_verify(p) != OK) {
            char was[512];
            snprintf(was, sizeof was, "%s", error_message());
            return ERR(ERR_BUG, "after pass %s: %s", row->name, was);
        }
    }
    return OK;
}
