/* test_place.c - memory.place=auto puts no more layers on the host's cores than the device's memory asks for. */
#include "backend/backend.h"
#include "change_model.h"
#include "must.h"
#include "plan/plan.h"

/* Few tokens: the cores are faster than parameters and states on the bus. */
static plan_request request(const hardware *h) {
    plan_request r = {.source = net_source_of(model_preset_find("gpt2")),
                      .choice = {.micro_batch = 1,
                                 .accumulation = 1,
                                 .precision = PRECISION_BF16,
                                 .prefetch = 1,
                                 .shard = {.overlap = true, .prefetch = 1}},
                      .seq_len = 16,
                      .optimizer = {.beta1 = 0.9f, .beta2 = 0.95f, .eps = 1e-8f, .clip = 1},
                      .hardware = h,
                      .target = backend_target(DEVICE_CUDA, 8)};
    CHANGE_MODEL(r.source, c.n_layers = 6);
    return r;
}

static void as_few_layers_as_possible_are_placed(void **state) {
    (void)state;
    hardware h;
    must(hardware_load(&h, "h200"));
    for (int64_t n = 0; n <= 6; n++) {
        plan_request r = request(&h);
        plan p;
        r.choice.cpu_layers = n;
        must(plan_build(&p, &r));
        r.device_limit = p.planned[TIER_DEVICE];
        plan_close(&p);
        r.choice.cpu_layers = 0;
        r.open.place = true;
        must(plan_choose(&p, &r));
        assert_true(plan_fits(&p));
        assert_int_equal(p.request.choice.cpu_layers, n);
        plan_close(&p);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(as_few_layers_as_possible_are_placed)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
