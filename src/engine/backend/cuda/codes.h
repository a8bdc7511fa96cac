#pragma once
/* codes.h - LINEAR_CODES by few_codes.cu, alone or with the gate behind it. */
#include "backend/backend.h"
#include "backend/cuda/launch_codes.h"

/* The product of a call; pick is left to the caller. */
few_codes_product codes_product(const kernel_call *k);
/* Does the kernel of this GPU take x as bytes that are in scratch already? */
bool codes_take_bytes(const backend_context *c);
/* For all rows, whatever their number; of those that are cut, no more than FEW_ROWS_MOST. */
void codes_launch(backend_context *c, few_codes_product q);
