/* params.c - find a checkpoint, its model and its parameters. */
#include "checkpoint/checkpoint.h"

#include <errno.h>
#include <sys/stat.h>
#include <unistd.h>

status checkpoint_locate(const char *why, const char *from, const char *expected, char *out, size_t n) {
    struct stat st;
    strbuf path;
    strbuf_init(&path);
    strbuf_printf(&path, "%s/checkpoint.json", from);
    bool is_checkpoint = access(path.text, F_OK) == 0;
    strbuf_fini(&path);
    if (strlen(from) >= n) return ERR(ERR_INPUT, "%s: a path of %zu characters is too long", why, strlen(from));
    if (stat(from, &st) != 0)
        return ERR(ERR_INPUT, "%s from %s: %s; expected %s", why, from, strerror(errno), expected);
    if (!S_ISDIR(st.st_mode) && str_ends_with(from, ".gguf"))
        return ERR(ERR_INPUT,
                   "%s from %s: found a GGUF file, which ralo writes and does not read, expected %s; llama.cpp runs it",
                   why, from, expected);
    if (!S_ISDIR(st.st_mode)) return ERR(ERR_INPUT, "%s from %s: found a file, expected %s", why, from, expected);
    if (is_checkpoint) {
        snprintf(out, n, "%s", from);
        return OK;
    }
    TRY(checkpoint_find_newest(from, out, n));
    if (!out[0])
        return ERR(ERR_INPUT, "%s from %s: found no complete checkpoint there, expected %s", why, from, expected);
    return OK;
}

status checkpoint_description(const checkpoint_reader *r, const char *dir, const json_t **out) {
    *out = checkpoint_reader_model(r);
    if (json_is_object(*out)) return OK;
    return ERR(ERR_INPUT,
               "%s does not say which model it holds: an older ralo wrote it; resume the run for one step and use its "
               "new checkpoint",
               dir);
}

status checkpoint_param_find(const checkpoint_reader *r, const char *name, const shape *want, checkpoint_found *out) {
    char full[256], a[64], b[64];
    snprintf(full, sizeof full, "master/%s", name);
    bool found = checkpoint_reader_find(r, full, out);
    if (!found) {
        snprintf(full, sizeof full, "param/%s", name);
        found = checkpoint_reader_find(r, full, out);
    }
    if (!found) return ERR(ERR_INPUT, "the checkpoint has no tensor '%s', the model needs it", full);
    bool known = out->type == DTYPE_F32 || out->type == DTYPE_BF16 || out->type == DTYPE_F16;
    if (!known || !shape_equal(&out->shape, want))
        return ERR(ERR_INPUT, "the checkpoint's tensor '%s': found %s %s, expected %s in fp32, bf16 or fp16", full,
                   dtype_name(out->type), shape_format(a, &out->shape), shape_format(b, want));
    TRY(checkpoint_reader_verify(r, out));
    return OK;
}
