#pragma once
/* fsdp.h - private to settings: keys of PyTorch's FSDP, as training scripts and launchers spell them (distributed.fsdp.*,
 * fsdp_config.*, fsdp.*). */
#include "base/base.h"

enum { FSDP_SETTINGS_MOST = 3 };
typedef struct fsdp_translation {
    bool is_fsdp; /* the key is one of these; else the rest says nothing */
    int n;        /* settings that it stands for, all with one value; 0: it has no effect here */
    const char *settings[FSDP_SETTINGS_MOST], *value;
    const char *why; /* it has no effect here; NULL: it has */
} fsdp_translation;
/* ERR_INPUT: a key that is not known, or a value that has no counterpart; it names those that have. */
status fsdp_translate(const char *where, const char *key, const char *text, fsdp_translation *out);
void fsdp_warn(const char *where, const char *key, const fsdp_translation *t); /* where it has no effect */
