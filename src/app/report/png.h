#pragma once
/* png.h - private to report: an SVG picture as pixels. */
#include "base/base.h"

status png_open(void); /* first: loads what draws; an error names the package to install */
status png_write(const char *path, const char *svg, size_t n_bytes);
