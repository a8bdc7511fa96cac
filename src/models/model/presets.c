/* presets.c - the public configurations as a table, how their names are spelled, and what a configuration must hold.
 *
 * A preset has the sizes of one model and its tuned versions; of a Gemma 3 that sees images, of its text model. */
#include "model/model.h"

#include <ctype.h>
#include <string.h>

/* clang-format off: tables are read by column */
#define GPT2(n, C, L, H)                                                                                             \
    {                                                                                                                \
        .name = n, .family = FAMILY_GPT2, .vocab = 50257, .hidden = C, .n_layers = L, .n_heads = H, .n_kv_heads = H, \
        .head_dim = (C) / (H), .ffn = 4 * (C), .max_positions = 1024, .norm_eps = 1e-5, .tied = true                 \
    }
#define LLAMA(n, V, C, L, H, G, F, P, base)                                                                         \
    {                                                                                                               \
        .name = n, .is_16_bit = true, .family = FAMILY_LLAMA, .vocab = V, .hidden = C, .n_layers = L, .n_heads = H, \
        .n_kv_heads = G, .head_dim = (C) / (H), .ffn = F, .max_positions = P, .norm_eps = 1e-5, .tied = false,      \
        .rope = {                                                                                                   \
            .theta = base                                                                                           \
        }                                                                                                           \
    }
#define MISTRAL(n, V, C, L, H, G, D, F, P, base, W)                                                                   \
    {                                                                                                                 \
        .name = n, .is_16_bit = true, .family = FAMILY_MISTRAL, .vocab = V, .hidden = C, .n_layers = L, .n_heads = H, \
        .n_kv_heads = G, .head_dim = D, .ffn = F, .max_positions = P, .norm_eps = 1e-5, .rope = {.theta = base},      \
        .window = W                                                                                                   \
    }
#define OLMO2(n, C, L, H, G, F)                                                                                  \
    {                                                                                                            \
        .name = n, .is_16_bit = true, .family = FAMILY_OLMO2, .vocab = 100352, .hidden = C, .n_layers = L,       \
        .n_heads = H, .n_kv_heads = G, .head_dim = (C) / (H), .ffn = F, .max_positions = 4096, .norm_eps = 1e-6, \
        .rope = {                                                                                                \
            .theta = 5e5                                                                                         \
        }                                                                                                        \
    }
#define GEMMA2(n, C, L, H, G, D, F, S)                                                                                 \
    {                                                                                                                  \
        .name = n, .is_16_bit = true, .family = FAMILY_GEMMA2, .vocab = 256000, .hidden = C, .n_layers = L,            \
        .n_heads = H, .n_kv_heads = G, .head_dim = D, .ffn = F, .max_positions = 8192, .norm_eps = 1e-6, .tied = true, \
        .rope = {.theta = 10000}, .window = 4096, .full_every = 2, .query_scalar = S, .attention_softcap = 50,         \
        .final_softcap = 30                                                                                            \
    }
#define GEMMA3(n, C, L, H, G, D, F, S)                                                                           \
    {                                                                                                            \
        .name = n, .is_16_bit = true, .family = FAMILY_GEMMA3, .vocab = 262208, .hidden = C, .n_layers = L,      \
        .n_heads = H, .n_kv_heads = G, .head_dim = D, .ffn = F, .max_positions = 131072, .norm_eps = 1e-6,       \
        .tied = true, .rope = {.type = ROPE_LINEAR, .theta = 1e6, .factor = 8}, .window = 1024, .full_every = 6, \
        .local_theta = 10000, .query_scalar = S                                                                  \
    }
#define QWEN25(n, V, C, L, H, G, F, E, T)                                                                             \
    {                                                                                                                 \
        .name = n, .is_16_bit = true, .family = FAMILY_QWEN2, .vocab = V, .hidden = C, .n_layers = L, .n_heads = H,   \
        .n_kv_heads = G, .head_dim = (C) / (H), .ffn = F, .max_positions = 32768, .norm_eps = E, .tied = T, .rope = { \
            .theta = 1e6                                                                                              \
        }                                                                                                             \
    }
#define QWEN3(n, C, L, H, G, F, T)                                                                                     \
    {                                                                                                                  \
        .name = n, .is_16_bit = true, .family = FAMILY_QWEN3, .vocab = 151936, .hidden = C, .n_layers = L,             \
        .n_heads = H, .n_kv_heads = G, .head_dim = 128, .ffn = F, .max_positions = 40960, .norm_eps = 1e-6, .tied = T, \
        .rope = {                                                                                                      \
            .theta = 1e6                                                                                               \
        }                                                                                                              \
    }
#define LLAMA31(n, C, L, H, F)                                                                                         \
    {                                                                                                                  \
        .name = n, .is_16_bit = true, .family = FAMILY_LLAMA, .vocab = 128256, .hidden = C, .n_layers = L,             \
        .n_heads = H, .n_kv_heads = 8, .head_dim = 128, .ffn = F, .max_positions = 131072, .norm_eps = 1e-5, .rope = { \
            STRETCHED(8)                                                                                               \
        }                                                                                                              \
    }
#define LLAMA_TIED(n, V, C, L, H, G, D, F, P, ...)                                                                  \
    {                                                                                                               \
        .name = n, .is_16_bit = true, .family = FAMILY_LLAMA, .vocab = V, .hidden = C, .n_layers = L, .n_heads = H, \
        .n_kv_heads = G, .head_dim = D, .ffn = F, .max_positions = P, .norm_eps = 1e-5, .tied = true, .rope = {     \
            __VA_ARGS__                                                                                             \
        }                                                                                                           \
    }
#define STRETCHED(times)                                                                             \
    .type = ROPE_LLAMA3, .theta = 5e5, .factor = times, .low_freq_factor = 1, .high_freq_factor = 4, \
    .original_max_positions = 8192
/* Byte vocabulary (260), made for tests and for the default task. */
#define SMALL(n, fam, C, L, H, G, D, F, T)                                                                 \
    {                                                                                                      \
        .name = n, .family = fam, .vocab = 260, .hidden = C, .n_layers = L, .n_heads = H, .n_kv_heads = G, \
        .head_dim = D, .ffn = F, .max_positions = 4096, .norm_eps = 1e-6, .tied = T, .rope = {             \
            .theta = 10000                                                                                 \
        }                                                                                                  \
    }

static const model_config presets[] = {
    SMALL("arithmetic-tiny", FAMILY_QWEN3, 128, 3, 4, 2, 32, 384, true),
    SMALL("test-gpt2", FAMILY_GPT2, 64, 2, 4, 4, 16, 256, true),
    SMALL("test-llama", FAMILY_LLAMA, 64, 2, 4, 2, 16, 160, false),
    SMALL("test-qwen2", FAMILY_QWEN2, 64, 2, 4, 2, 16, 160, true),
    SMALL("test-qwen3", FAMILY_QWEN3, 64, 2, 4, 2, 32, 160, true),
    {.name = "test-gemma2",
     .family = FAMILY_GEMMA2,
     .vocab = 260,
     .hidden = 64,
     .n_layers = 2,
     .n_heads = 4,
     .n_kv_heads = 2,
     .head_dim = 16,
     .ffn = 160,
     .max_positions = 4096,
     .norm_eps = 1e-6,
     .tied = true,
     .rope = {.theta = 10000},
     .window = 12,
     .full_every = 2,
     .query_scalar = 16,
     .attention_softcap = 50,
     .final_softcap = 30},
    {.name = "test-mistral",
     .family = FAMILY_MISTRAL,
     .vocab = 260,
     .hidden = 64,
     .n_layers = 2,
     .n_heads = 4,
     .n_kv_heads = 2,
     .head_dim = 16,
     .ffn = 160,
     .max_positions = 4096,
     .norm_eps = 1e-6,
     .rope = {.theta = 10000},
     .window = 12},
    GPT2("gpt2", 768, 12, 12),
    GPT2("gpt2-medium", 1024, 24, 16),
    GPT2("gpt2-large", 1280, 36, 20),
    GPT2("gpt2-xl", 1600, 48, 25),
    LLAMA("llama2-7b", 32000, 4096, 32, 32, 32, 11008, 4096, 1e4),
    LLAMA("llama2-13b", 32000, 5120, 40, 40, 40, 13824, 4096, 1e4),
    LLAMA("llama3-8b", 128256, 4096, 32, 32, 8, 14336, 8192, 5e5),
    LLAMA("llama3-70b", 128256, 8192, 80, 64, 8, 28672, 8192, 5e5),
    LLAMA31("llama3.1-8b", 4096, 32, 32, 14336),
    LLAMA31("llama3.1-70b", 8192, 80, 64, 28672),
    LLAMA31("llama3.1-405b", 16384, 126, 128, 53248),
    LLAMA_TIED("llama3.2-1b", 128256, 2048, 16, 32, 8, 64, 8192, 131072, STRETCHED(32)),
    LLAMA_TIED("llama3.2-3b", 128256, 3072, 28, 24, 8, 128, 8192, 131072, STRETCHED(32)),
    LLAMA31("llama3.3-70b", 8192, 80, 64, 28672),
    LLAMA_TIED("smollm2-135m", 49152, 576, 30, 9, 3, 64, 1536, 8192, .theta = 1e5),
    LLAMA_TIED("smollm2-360m", 49152, 960, 32, 15, 5, 64, 2560, 8192, .theta = 1e5),
    LLAMA_TIED("smollm2-1.7b", 49152, 2048, 24, 32, 32, 64, 8192, 8192, .theta = 130000),
    MISTRAL("mistral-7b-v0.1", 32000, 4096, 32, 32, 8, 128, 14336, 32768, 1e4, 4096),
    MISTRAL("mistral-7b-v0.3", 32768, 4096, 32, 32, 8, 128, 14336, 32768, 1e6, 0),
    MISTRAL("mistral-nemo-12b", 131072, 5120, 40, 32, 8, 128, 14336, 131072, 1e6, 0),
    {.name = "phi-3-mini-4k",
     .is_16_bit = true,
     .family = FAMILY_PHI3,
     .vocab = 32064,
     .hidden = 3072,
     .n_layers = 32,
     .n_heads = 32,
     .n_kv_heads = 32,
     .head_dim = 96,
     .ffn = 8192,
     .max_positions = 4096,
     .norm_eps = 1e-5,
     .rope = {.theta = 10000},
     .window = 2047},
    {.name = "phi-4",
     .is_16_bit = true,
     .family = FAMILY_PHI3,
     .vocab = 100352,
     .hidden = 5120,
     .n_layers = 40,
     .n_heads = 40,
     .n_kv_heads = 10,
     .head_dim = 128,
     .ffn = 17920,
     .max_positions = 16384,
     .norm_eps = 1e-5,
     .rope = {.theta = 250000}},
    OLMO2("olmo-2-1b", 2048, 16, 16, 16, 8192),
    OLMO2("olmo-2-7b", 4096, 32, 32, 32, 11008),
    OLMO2("olmo-2-13b", 5120, 40, 40, 40, 13824),
    OLMO2("olmo-2-32b", 5120, 64, 40, 8, 27648),
    GEMMA2("gemma-2-2b", 2304, 26, 8, 4, 256, 9216, 256),
    GEMMA2("gemma-2-9b", 3584, 42, 16, 8, 256, 14336, 256),
    GEMMA2("gemma-2-27b", 4608, 46, 32, 16, 128, 36864, 144),
    {.name = "gemma-3-1b",
     .is_16_bit = true,
     .family = FAMILY_GEMMA3,
     .vocab = 262144,
     .hidden = 1152,
     .n_layers = 26,
     .n_heads = 4,
     .n_kv_heads = 1,
     .head_dim = 256,
     .ffn = 6912,
     .max_positions = 32768,
     .norm_eps = 1e-6,
     .tied = true,
     .rope = {.theta = 1e6},
     .window = 512,
     .full_every = 6,
     .local_theta = 10000,
     .query_scalar = 256},
    GEMMA3("gemma-3-4b", 2560, 34, 8, 4, 256, 10240, 256),
    GEMMA3("gemma-3-12b", 3840, 48, 16, 8, 256, 15360, 256),
    GEMMA3("gemma-3-27b", 5376, 62, 32, 16, 128, 21504, 168),
    QWEN25("qwen2.5-0.5b", 151936, 896, 24, 14, 2, 4864, 1e-6, true),
    QWEN25("qwen2.5-1.5b", 151936, 1536, 28, 12, 2, 8960, 1e-6, true),
    QWEN25("qwen2.5-3b", 151936, 2048, 36, 16, 2, 11008, 1e-6, true),
    QWEN25("qwen2.5-7b", 152064, 3584, 28, 28, 4, 18944, 1e-6, false),
    QWEN25("qwen2.5-14b", 152064, 5120, 48, 40, 8, 13824, 1e-5, false),
    QWEN25("qwen2.5-32b", 152064, 5120, 64, 40, 8, 27648, 1e-5, false),
    QWEN25("qwen2.5-72b", 152064, 8192, 80, 64, 8, 29568, 1e-5, false),
    QWEN3("qwen3-0.6b", 1024, 28, 16, 8, 3072, true),
    QWEN3("qwen3-1.7b", 2048, 28, 16, 8, 6144, true),
    QWEN3("qwen3-4b", 2560, 36, 32, 8, 9728, true),
    QWEN3("qwen3-8b", 4096, 36, 32, 8, 12288, false),
    QWEN3("qwen3-14b", 5120, 40, 40, 8, 17408, false),
    QWEN3("qwen3-32b", 5120, 64, 64, 8, 25600, false),
    {.name = "tiny-qwen3",
     .family = FAMILY_QWEN3,
     .vocab = 151669,
     .hidden = 8,
     .n_layers = 2,
     .n_heads = 4,
     .n_kv_heads = 2,
     .head_dim = 128,
     .ffn = 32,
     .max_positions = 32768,
     .norm_eps = 1e-6,
     .tied = false,
     .rope = {.theta = 10000}},
};

/* clang-format on */

const model_config *model_preset_at(size_t i) { return i < ARRAY_LENGTH(presets) ? &presets[i] : NULL; }

/* Does a part of a name say how the model was tuned, or in its middle when (OLMo-2-0325-32B)? The sizes are the same.
 * At the end a date is that of another model (Qwen3-4B-Instruct-2507). */
static bool is_about_tuning(const char *part, size_t n) {
    static const char *const words[] = {"meta", "instruct", "chat", "it", "pt", "base", "hf"};
    bool found = n == 4 && strspn(part, "0123456789") == n && part[n];
    for (size_t i = 0; i < ARRAY_LENGTH(words); i++) found |= strlen(words[i]) == n && strncmp(words[i], part, n) == 0;
    return found;
}

/* Qwen3-8B, llama-3.1-8b, meta-llama/Meta-Llama-3-8B-Instruct, google/gemma-2-2b-it: in small letters, without the
 * organization, without what stands between parts, and without what says how the model was tuned. */
static void name_fold(const char *name, char out[64]) {
    char small[96];
    const char *slash = strchr(name, '/');
    size_t n = 0, length = 0;
    for (const char *c = slash ? slash + 1 : name; *c && n + 1 < sizeof small; c++)
        small[n++] = *c == '_' ? '-' : (char)tolower((unsigned char)*c);
    small[n] = 0;
    for (const char *part = small; *part; part += strspn(part, "-")) {
        size_t n_part = strcspn(part, "-");
        if (!is_about_tuning(part, n_part) && length + n_part < 64) {
            memcpy(out + length, part, n_part);
            length += n_part;
        }
        part += n_part;
    }
    out[length] = 0;
}

const model_config *model_preset_find(const char *name) {
    char wanted[64], folded[64];
    for (size_t i = 0; i < ARRAY_LENGTH(presets); i++)
        if (strcmp(presets[i].name, name) == 0) return &presets[i];
    name_fold(name, wanted);
    if (strcmp(wanted, "mistralnemo") == 0 || strcmp(wanted, "mistralnemo2407") == 0)
        return model_preset_find("mistral-nemo-12b"); /* on the hub its name has no size */
    for (size_t i = 0; i < ARRAY_LENGTH(presets); i++) {
        name_fold(presets[i].name, folded);
        if (strcmp(folded, wanted) == 0) return &presets[i];
    }
    return NULL;
}

status model_config_check(const model_config *c) {
    const struct {
        const char *name;
        int64_t n, max;
    } sizes[] = {
        {"vocab", c->vocab, 1 << 24},
        {"hidden", c->hidden, 1 << 20},
        {"layers", c->n_layers, NET_LAYERS_MAX},
        {"heads", c->n_heads, 4096},
        {"kv_heads", c->n_kv_heads, 4096},
        {"head_dim", c->head_dim, 1024},
        {"ffn", c->ffn, 1 << 22},
        {"max_positions", c->max_positions, 1 << 24},
    };
    for (size_t i = 0; i < ARRAY_LENGTH(sizes); i++)
        if (sizes[i].n < 1 || sizes[i].n > sizes[i].max)
            return ERR(ERR_INPUT, "model %s: %s is %lld, expected 1 to %lld", c->name, sizes[i].name,
                       (long long)sizes[i].n, (long long)sizes[i].max);
    if (c->n_heads % c->n_kv_heads)
        return ERR(ERR_INPUT,
                   "model %s: %lld heads cannot share %lld kv heads evenly; choose kv_heads that divides heads",
                   c->name, (long long)c->n_heads, (long long)c->n_kv_heads);
    if (!model_family_traits(c->family)->learned_positions && c->head_dim % 2)
        return ERR(ERR_INPUT, "model %s: head_dim is %lld, rotary positions need an even one", c->name,
                   (long long)c->head_dim);
    if (!model_family_traits(c->family)->learned_positions && (model_rotary_dim(c) < 2 || model_rotary_dim(c) % 2))
        return ERR(ERR_INPUT, "model %s: %lld dimensions of a head of %lld are rotated, expected an even number",
                   c->name, (long long)model_rotary_dim(c), (long long)c->head_dim);
    if (c->rope.type == ROPE_LONG && c->long_rope.n != model_rotary_dim(c) / 2)
        return ERR(ERR_INPUT, "model %s: longrope has %lld factors, expected %lld, one for each pair that is rotated",
                   c->name, (long long)c->long_rope.n, (long long)(model_rotary_dim(c) / 2));
    if (c->mtp_heads < 0 || c->mtp_heads > MTP_HEADS_MAX)
        return ERR(ERR_INPUT, "model.mtp.heads: found %lld, expected 1 to %d", (long long)c->mtp_heads, MTP_HEADS_MAX);
    if (c->mtp_heads > 1 && c->mtp_heads >= c->n_layers)
        return ERR(
            ERR_INPUT,
            "model.mtp.heads: found %lld heads in %lld layers, expected fewer heads than layers: model.layers counts "
            "the heads, and those before them are the trunk",
            (long long)c->mtp_heads, (long long)c->n_layers);
    if (c->value_head == VALUE_HEAD_MLP && (c->hidden < 8 || c->hidden % 8))
        return ERR(
            ERR_INPUT,
            "critic.head: found mlp with model %s, whose width of %lld has no eighth, expected a multiple of 8; set "
            "critic.head=linear or sigmoid",
            c->name, (long long)c->hidden);
    if (!(c->norm_eps > 0)) return ERR(ERR_INPUT, "model %s: norm_eps is %g, expected > 0", c->name, c->norm_eps);
    return OK;
}

bool model_rows_fit_codes(const model_config *c) {
    return c->hidden % NET_CODES_UNIT == 0 && c->ffn % NET_CODES_UNIT == 0 &&
           c->n_heads * c->head_dim % NET_CODES_UNIT == 0;
}

const char *value_head_name(value_head h) {
    static const char *const names[VALUE_HEAD_COUNT] = {"none", "mlp", "linear", "sigmoid"};
    return h < VALUE_HEAD_COUNT ? names[h] : "?";
}

int64_t model_period(const model_config *c) {
    int64_t n = model_main_layers(c), p = 1;
    for (int64_t l = 0; l + p < n;)
        if (model_layer_window(c, l) == model_layer_window(c, l + p)) l++;
        else p++, l = 0;
    return p;
}

model_config model_main_config(const model_config *c) {
    model_config main = *c;
    main.n_layers = model_main_layers(c);
    main.mtp_heads = 0;
    return main;
}
