#pragma once
/* must.h - a step of a test that has to succeed, and says why where it does not. */
#include "base/base.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <string.h>

static inline void must(status rc) {
    if (rc != OK) fail_msg("%s", error_message());
}

/* It fails, and the message holds every one of these words. */
static inline void must_refuse(status rc, const char *const *words) {
    assert_int_not_equal(rc, OK);
    for (; *words; words++)
        if (!strstr(error_message(), *words)) fail_msg("'%s' is not in: %s", *words, error_message());
}
#define WORDS(...) ((const char *const[]){__VA_ARGS__, NULL})
