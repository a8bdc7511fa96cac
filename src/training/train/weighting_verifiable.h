#pragma once
/* weighting_verifiable.h - private to train: what verifiable weights and their shuffled control have in common. */
#include "train/weighting.h"

status verifiable_shape(train_request *r); /* needs a critic */
