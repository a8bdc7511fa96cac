#pragma once
/* child.h - what must end the process is tried in a child. */
#include "base/base.h"

bool aborts(void (*fn)(void)); /* runs fn in a child with a quiet stderr; true when it aborted */
