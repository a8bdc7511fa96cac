/* own_dir.c - the directory of a model without its weights, out of a checkpoint: config.json, generation_config.json and the files of the
 * tokenizer. A run whose base is gone goes on with it: sizes and tokenizer are here, and the weights are in the checkpoint. */
#include "weights/export.h"

#include <errno.h>
#include <stdio.h>
#include <unistd.h>

static status fill(const checkpoint_reader *r, const char *checkpoint, const json_t *description, const char *dir,
                   arena *memory) {
    tokenizer_files kept = {0};
    const json_t *generation = json_object_get(description, "generation");
    TRY(json_write_file(arena_format(memory, "%s/config.json", dir), json_object_get(description, "config")));
    if (json_is_object(generation))
        TRY(json_write_file(arena_format(memory, "%s/generation_config.json", dir), generation));
    if (!checkpoint_reader_tokenizer(r)) return OK;
    status rc = tokenizer_files_load(&kept, checkpoint, checkpoint_reader_tokenizer(r), true);
    if (rc == OK) rc = tokenizer_files_write(&kept, dir);
    tokenizer_files_fini(&kept);
    return rc;
}

/* Ranks may do it at the same time: the first that is done stays, and all have written the same. */
static status publish(const char *from, const char *to) {
    if (rename(from, to) == 0) return OK;
    if (errno != EEXIST && errno != ENOTEMPTY) return ERR(ERR_IO, "rename %s to %s: %s", from, to, strerror(errno));
    return dir_remove_all(from);
}

status weights_write_own_dir(const char *checkpoint, const char *dir) {
    checkpoint_reader *r = NULL;
    const json_t *description;
    strbuf temporary;
    arena memory;
    int fd = -1;
    status rc = OK;
    strbuf_init(&temporary);
    arena_init(&memory);
    TRY_GOTO(rc, checkpoint_reader_open(&r, checkpoint), done);
    TRY_GOTO(rc, checkpoint_description(r, checkpoint, &description), done);
    TRY_GOTO(rc, temporary_make(dir, true, &temporary, &fd), done);
    rc = fill(r, checkpoint, description, temporary.text, &memory);
    if (rc == OK) rc = publish(temporary.text, dir);
    if (rc != OK) {
        error_record why;
        error_take(&why);
        if (dir_remove_all(temporary.text) != OK) error_clear(); /* the first error is what counts */
        error_give(&why);
    }
done:
    if (fd >= 0) close(fd);
    checkpoint_reader_close(r);
    arena_fini(&memory);
    strbuf_fini(&temporary);
    return rc;
}
