#pragma once
/* codes.h - LINEAR_CODES by few_codes.cu, alone or with the gate behind it. */
#include "backend/backend.h"
#include "backend/cuda/launch_codes.h"

/* The product of a call; pick is left to the caller. */
few_codes_product codes_product(const kernel_call *k);
/* For all rows, whatever their number. */
void codes_launch(backend_context *c, few_codes_product q);
