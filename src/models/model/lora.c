/* lora.c - which linear layers have an adapter, and how it is scaled.
 *
 * Modules are named as in weight files, so that a list from a PEFT adapter_config.json is a valid setting. GPT-2 has q, k and v
 * as one module and calls two modules c_proj: as in PEFT a name matches every module whose last parts it is. */
#include "model/model.h"

#include <math.h>

float lora_scale(const lora_options *o) {
    return (float)(o->alpha / (o->rslora ? sqrt((double)o->rank) : (double)o->rank));
}

bool lora_base_is_beginning(const lora_options *o) { return o->rank > 0 && !o->pissa; }

lora_options lora_exported(const lora_options *o) {
    lora_options out = *o;
    if (!o->pissa) return out;
    out.rank = 2 * o->rank;
    out.alpha = o->alpha * (o->rslora ? sqrt(2.0) : 2.0); /* the same scale */
    out.pissa = false;
    return out;
}

/* "transformer.h.%d.attn.c_proj" */
static const char *module_format(const tensor_names *n, lora_module m) {
    if (m < LORA_MODULE_OUT) return n->qkv[m - LORA_MODULE_QKV];
    if (m == LORA_MODULE_OUT) return n->out;
    return m < LORA_MODULE_DOWN ? n->up[m - LORA_MODULE_UP] : n->down;
}

static const tensor_names *names_of(const model_config *c) { return model_family_traits(c->family)->names; }

const char *lora_module_name(const model_config *c, lora_module m) {
    const char *format = module_format(names_of(c), m);
    return format ? strrchr(format, '.') + 1 : NULL;
}

/* Is `name`, of n characters, the whole of the format or what follows one of its dots? */
static bool ends_with_parts(const char *format, const char *name, size_t n) {
    size_t length = strlen(format);
    if (n == 0 || n > length || memcmp(format + length - n, name, n) != 0) return false;
    return n == length || format[length - n - 1] == '.';
}

/* The modules with a short name; 0: it is none. */
static uint32_t short_name(const model_config *c, const char *name, size_t n) {
    static const char *const shorts[LORA_MODULE_COUNT] = {"q", "k", "v", "o", "gate", "up", "down"};
    static const char *const metas[LORA_MODULE_COUNT] = {"wq", "wk", "wv", "wo", "w1", "w3", "w2"};
    const tensor_names *names = names_of(c);
    for (lora_module m = 0; m < LORA_MODULE_COUNT; m++) {
        const char *meta = c->family == FAMILY_LLAMA ? metas[m] : shorts[m];
        if ((strlen(shorts[m]) != n || memcmp(shorts[m], name, n) != 0) &&
            (strlen(meta) != n || memcmp(meta, name, n) != 0))
            continue;
        if (m == LORA_MODULE_UP + 1 && !names->up[1]) return 1u << LORA_MODULE_UP; /* up without a gate is the first */
        if (m == LORA_MODULE_UP && !names->up[1]) return 0;
        return module_format(names, m) && (m >= LORA_MODULE_OUT || names->qkv[1]) ? 1u << m : 0;
    }
    return 0;
}

static status refuse(const model_config *c, const char *where, const char *name, size_t n) {
    strbuf known;
    strbuf_init(&known);
    for (lora_module m = 0; m < LORA_MODULE_COUNT; m++) {
        const char *format = module_format(names_of(c), m);
        if (!format) continue;
        const char *layer = strstr(format, "%d.");
        strbuf_printf(&known, "%s%s", known.length ? ", " : "", layer ? layer + strlen("%d.") : format);
    }
    status rc = ERR(ERR_INPUT, "%s: found '%.*s', which is no linear layer of %s; expected all-linear or some of %s",
                    where, (int)MIN(n, (size_t)64), name, c->name, known.text);
    strbuf_fini(&known);
    return rc;
}

status lora_modules_parse(const model_config *c, const char *text, const char *where, uint32_t *modules) {
    const tensor_names *names = names_of(c);
    *modules = 0;
    if (strcmp(text, "all-linear") == 0) {
        for (lora_module m = 0; m < LORA_MODULE_COUNT; m++)
            if (module_format(names, m)) *modules |= 1u << m;
        return OK;
    }
    for (const char *at = text; *at;) {
        at += strspn(at, " ,");
        size_t n = strcspn(at, " ,");
        if (!n) break;
        uint32_t found = short_name(c, at, n);
        for (lora_module m = 0; m < LORA_MODULE_COUNT; m++)
            if (module_format(names, m) && ends_with_parts(module_format(names, m), at, n)) found |= 1u << m;
        if (!found) return refuse(c, where, at, n);
        *modules |= found;
        at += n;
    }
    return *modules ? OK : refuse(c, where, text, strlen(text));
}

size_t lora_targets(const model_config *c, uint32_t modules, const char *out[LORA_MODULE_COUNT]) {
    const tensor_names *names = names_of(c);
    size_t n = 0;
    for (lora_module m = 0; m < LORA_MODULE_COUNT; m++) {
        if (!(modules & 1u << m)) continue;
        const char *format = module_format(names, m), *name = lora_module_name(c, m);
        for (lora_module k = 0; k < LORA_MODULE_COUNT; k++) { /* "c_proj" would also mean one that is not adapted */
            bool meant = module_format(names, k) && ends_with_parts(module_format(names, k), name, strlen(name));
            if (meant && !(modules & 1u << k)) name = strstr(format, "%d.") + strlen("%d.");
        }
        size_t at = n;
        while (at > 0 && strcmp(out[at - 1], name) > 0) at--;
        if (at > 0 && strcmp(out[at - 1], name) == 0) continue;
        memmove(out + at + 1, out + at, (n - at) * sizeof *out);
        out[at] = name;
        n++;
    }
    return n;
}
