#pragma once
/* foreign_names.h - part of the face of settings: what keys and values of other programs are called here.
 *
 * The reader of settings answers `load_in_4bit` or `distributed.fsdp.cpu_offload` by what it means. The tables belong
 * to the room `migrate`, which comes after this one, so settings declares what it asks and migrate/words.c defines
 * it. */
#include "base/base.h"

enum { FSDP_SETTINGS_MOST = 3 };

/* A key of PyTorch's FSDP as settings. */
typedef struct fsdp_translation {
    bool is_fsdp; /* the key is one of these; else the rest says nothing */
    int n;        /* settings that it stands for, all with one value; 0: it has no effect here */
    const char *settings[FSDP_SETTINGS_MOST], *value;
    const char *why; /* it has no effect here; NULL: it has */
} fsdp_translation;

typedef struct foreign_names {
    /* Appends what to write here instead of `key`, of which the last part counts (train.load_in_4bit, --load-in-4bit);
     * false: the key is not known. is_flag: typed as a flag, so a setting is shown with --set. */
    bool (*explain_key)(const char *key, bool is_flag, strbuf *out);
    /* Appends what a value of another program is here, for this setting; false: it is not known. */
    bool (*explain_value)(const char *setting, const char *value, strbuf *out);
    /* ERR_INPUT: a key of FSDP that is not known, or a value that has no counterpart; it names those that have. */
    status (*translate_fsdp)(const char *where, const char *key, const char *text, fsdp_translation *out);
} foreign_names;
extern const foreign_names config_foreign_names;
