/* pass.c - the pipeline: the rows of passes.def, one after the other. */
#include "pass/pass.h"

enum { PLACED, OPEN };
static const struct {
    const char *name;
    pass_function *run;
    bool leaves_copies_open;
} pipeline[] = {
#define PASS(name, copies, what) {#name, pass_##name, copies == OPEN},
#include "pass/passes.def"
#undef PASS
};

status pass_run(program *p, const pass_options *options, step_interface *step) {
    if (options->verify) TRY(program_verify(p));
    for (size_t i = 0; i < ARRAY_LENGTH(pipeline); i++) {
        TRY(pipeline[i].run(p, options, step));
        if (!options->verify || pipeline[i].leaves_copies_open) continue;
        if (program_verify(p) != OK) {
            char was[512];
            snprintf(was, sizeof was, "%s", error_message());
            return ERR(ERR_BUG, "after pass %s: %s", pipeline[i].name, was);
        }
    }
    return OK;
}
