#pragma once
/* unicode_table.h - private to data: general category and script of every character, of one Unicode version.
 *
 * Classes of characters decide where text is split. They must not follow the libraries that happen to be installed: the
 * version is that of the reference, the `tokenizers` library. */
#include "base/base.h"

/* In the order of the table, by the letters of their short names. */
typedef enum unicode_category {
    CATEGORY_CN, /* unassigned */
    CATEGORY_CC,
    CATEGORY_CF,
    CATEGORY_CO,
    CATEGORY_CS,
    CATEGORY_LL,
    CATEGORY_LM,
    CATEGORY_LO,
    CATEGORY_LT,
    CATEGORY_LU,
    CATEGORY_MC,
    CATEGORY_ME,
    CATEGORY_MN,
    CATEGORY_ND,
    CATEGORY_NL,
    CATEGORY_NO,
    CATEGORY_PC,
    CATEGORY_PD,
    CATEGORY_PE,
    CATEGORY_PF,
    CATEGORY_PI,
    CATEGORY_PO,
    CATEGORY_PS,
    CATEGORY_SC,
    CATEGORY_SK,
    CATEGORY_SM,
    CATEGORY_SO,
    CATEGORY_ZL,
    CATEGORY_ZP,
    CATEGORY_ZS,
    UNICODE_CATEGORIES
} unicode_category;

extern const char unicode_version[];
extern const char *const unicode_categories[UNICODE_CATEGORIES]; /* "Cn" ... */
extern const char *const unicode_scripts[];                      /* "Adlam" ... */
extern const size_t n_unicode_scripts;
extern const uint32_t unicode_runs[];       /* first | category << 24, from 0 on without a gap */
extern const uint8_t unicode_run_scripts[]; /* an index of unicode_scripts for each run */
extern const size_t n_unicode_runs;

size_t unicode_run_of(int32_t c);
unicode_category char_category(int32_t c);
static inline int32_t unicode_run_first(size_t run) { return (int32_t)(unicode_runs[run] & 0x1fffff); }
static inline int32_t unicode_run_end(size_t run) { /* one past its last */
    return run + 1 < n_unicode_runs ? unicode_run_first(run + 1) : 0x110000;
}
static inline unicode_category unicode_run_category(size_t run) { return (unicode_category)(unicode_runs[run] >> 24); }
