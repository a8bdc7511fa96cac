/* export_describe.c - what export needs to know about a run, kept in every checkpoint.
 *
 * A checkpoint may be exported when the model's directory is gone or has changed, so its configuration is copied. */
#include "weights/export.h"

#include <limits.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

enum { JSON_MOST_BYTES = 4 << 20 };

static const char *const id_keys[] = {"bos_token_id", "eos_token_id", "pad_token_id"};

/* The directory a tokenizer was read from, absolute, because a run may be exported from elsewhere; "" when the name is
 * the built-in one's, even where a directory is called so. */
static void find_tokenizer_dir(const char *name, char out[PATH_MAX]) {
    struct stat st;
    out[0] = 0;
    if (!name || strcmp(name, "byte") == 0 || stat(name, &st) != 0 || !realpath(name, out)) {
        out[0] = 0;
        return;
    }
    char *slash = strrchr(out, '/');
    if (!S_ISDIR(st.st_mode) && slash) *slash = 0;
}

/* A file of the model's directory; NULL in *out when it is not there. */
static status read_sibling(const char *dir, const char *name, json_t **out) {
    char path[PATH_MAX];
    snprintf(path, sizeof path, "%s/%s", dir, name);
    *out = NULL;
    if (access(path, F_OK) != 0) return OK;
    TRY(json_read_file(path, JSON_MOST_BYTES, out));
    return OK;
}

status export_describe(const model_config *m, const char *model_dir, const data_options *o, const dataset *d,
                       char **out) {
    status rc = OK;
    json_t *config = model_config_to_json(m), *original = NULL, *generation = NULL, *end = NULL;
    json_t *root = json_pack("{s:o}", "config", config);
    char tokenizer[PATH_MAX];
    if (model_dir) {
        TRY_GOTO(rc, read_sibling(model_dir, "config.json", &original), done);
        TRY_GOTO(rc, read_sibling(model_dir, "generation_config.json", &generation), done);
    }
    for (size_t i = 0; i < ARRAY_LENGTH(id_keys); i++) {
        json_t *id = json_object_get(original, id_keys[i]);
        json_object_set(config, id_keys[i], id ? id : json_null());
    }
    if (d) TRY_GOTO(rc, dataset_ending(d, o, &end), done);
    bool given = o->eos_token && *o->eos_token;
    int32_t eos = original ? -1 : tokenizer_eos(dataset_tokenizer(d));
    if (eos >= 0) json_object_set_new(config, "eos_token_id", json_integer(eos));
    if (json_is_object(generation)) {
        json_object_set(root, "generation", generation);
    } else {
        json_t *own = json_pack("{s:b}", "_from_model_config", 1);
        for (size_t i = 0; i < ARRAY_LENGTH(id_keys); i++)
            json_object_set(own, id_keys[i], json_object_get(config, id_keys[i]));
        json_object_set_new(root, "generation", own);
    }
    find_tokenizer_dir(o->tokenizer, tokenizer);
    if (tokenizer[0] && json_object_set_new(root, "tokenizer", json_string(tokenizer)) != 0) {
        rc = ERR(ERR_INPUT, "data.tokenizer: the path '%s' is not valid UTF-8", tokenizer);
        goto done;
    }
    if (end && given) json_object_set_new(end, "is_given", json_true());
    if (end) json_object_set(root, "end", end);
    data_report data = {.chat = CHAT_AUTO};
    if (d) dataset_report(d, SPLIT_TRAIN, &data);
    if (data.chat != CHAT_AUTO) json_object_set_new(root, "chat", json_string(chat_format_name(data.chat)));
    if (data.chat == CHAT_TEMPLATE && o->chat_kwargs && *o->chat_kwargs)
        json_object_set_new(root, "chat_kwargs", json_string(o->chat_kwargs));
    *out = json_dumps(root, JSON_COMPACT);
    ASSERT(*out);
done:
    json_decref(root);
    json_decref(original);
    json_decref(generation);
    json_decref(end);
    return rc;
}
