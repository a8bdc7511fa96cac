#pragma once
/* must.h - a step of a test that has to succeed, and says why where it does not. */
#include "base/base.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

static inline void must(status rc) {
    if (rc != OK) fail_msg("%s", error_message());
}
