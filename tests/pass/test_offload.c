/* test_offload.c - when the host adds gradients: late enough that their copy has arrived, and no later, because it
 * holds them until then. */
#include "training.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

enum { LAYERS = 6 };

/* The device goes down the layers and ends with the embedding. */
static void gradients_are_added_prefetch_layers_later(void **state) {
    (void)state;
    static const char *const settings[] = {"memory.prefetch=0", "memory.prefetch=1", "memory.prefetch=2",
                                           "memory.prefetch=3"};
    for (int prefetch = 0; prefetch < (int)ARRAY_LENGTH(settings); prefetch++) {
        compiled k;
        compiled_open(&k, &(training){.precision = PRECISION_BF16,
                                      .accumulation = 2,
                                      .more = SETTINGS("model.layers=6", "memory.strategy=manual",
                                                       "memory.offload.grads=host", settings[prefetch])});
        int at_layer = LAYERS, n_added = 0; /* of the device */
        for (size_t i = 0; i < k.p.program.n_ops; i++) {
            const op *o = &k.p.program.ops[i];
            if (o->section != SECTION_MICRO || o->kind == OP_COPY) continue;
            if (o->at == TIER_DEVICE) at_layer = o->layer;
            else if (o->layer >= 0) assert_int_equal(at_layer, MAX(o->layer - prefetch, -1)), n_added++;
        }
        assert_int_equal(n_added % LAYERS, 0); /* every gradient of every layer */
        assert_true(n_added > 0);
        compiled_close(&k);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(gradients_are_added_prefetch_layers_later)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
