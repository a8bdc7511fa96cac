#pragma once
/* change_model.h - the model of a request with other sizes.
 *
 *     CHANGE_MODEL(r.source, (c.n_layers = 8, c.hidden = 256)); */
#include "model/model.h"

#define CHANGE_MODEL(source, changes)          \
    do {                                       \
        model_config c = *model_of(&(source)); \
        changes;                               \
        (source) = net_source_of(&c);          \
    } while (0)
