/* preference.c - the names of the losses over pairs of responses. */
#include "program/program.h"

const char *preference_name(preference_kind k) {
    static const char *const names[PREFERENCE_KIND_COUNT] = {"none", "dpo", "ipo", "orpo", "simpo", "kto"};
    return names[k];
}
