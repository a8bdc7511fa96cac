/* fuzz_adapter.c - PEFT's adapter_config.json, for a model of each family with other names of modules.
 *
 * Of a config that is accepted: rank, alpha and dropout are in range, its modules are some of the model's, and written out
 * it reads back to the same options. */
#include "fuzz/fuzz.h"
#include "model/model.h"
#include "weights/adapter.h"

#include <math.h>

static void check(const model_config *c, const json_t *root) {
    adapter_config a, again;
    uint32_t all;
    status rc = adapter_config_from_json(&a, c, root, "adapter_config.json");
    if (rc != OK) {
        fuzz_refused(rc);
        return;
    }
    ASSERT(lora_modules_parse(c, "all-linear", "fuzz", &all) == OK);
    ASSERT(a.lora.rank >= 1 && a.lora.rank <= LORA_RANK_MOST);
    ASSERT(a.lora.alpha > 0 && isfinite(a.lora.alpha) && a.lora.dropout >= 0 && a.lora.dropout < 1);
    ASSERT(a.lora.modules && !(a.lora.modules & ~all));
    json_t *written = adapter_config_to_json(c, &a.lora, a.base[0] ? a.base : NULL);
    ASSERT(written && adapter_config_from_json(&again, c, written, "again") == OK);
    ASSERT(again.lora.rank == a.lora.rank && again.lora.alpha == a.lora.alpha && again.lora.dropout == a.lora.dropout);
    ASSERT(again.lora.rslora == a.lora.rslora && again.lora.modules == a.lora.modules);
    json_decref(written);
}

void fuzz_one(const uint8_t *data, size_t size) {
    json_t *root;
    status rc = json_read_file(fuzz_file(0, data, size), 1 << 20, &root);
    if (rc != OK) {
        fuzz_refused(rc);
        return;
    }
    check(model_preset_find("test-gpt2"), root);
    check(model_preset_find("test-qwen3"), root);
    json_decref(root);
}
