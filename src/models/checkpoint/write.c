/* write.c - lay out and write one checkpoint directory, by one rank or by many.
 *
 * Every byte of a checkpoint is under a checksum: tensors piece by piece, the header of each safetensors file, and
 * checkpoint.json by its seal. Checksums are computed from the bytes in memory as they are written: a disk or page
 * cache that returns other bytes is found when reading. */
#include "checkpoint/directory.h"
#include "checkpoint/seal.h"

#include <errno.h>
#include <fcntl.h>
#include <unistd.h>

enum { ALONE = -1 }; /* in the place of a rank */

/* ---- layout -------------------------------------------------------------------------------------------------- */

static int64_t row_count(const shape *s) { return s->rank > 0 ? s->dim[0] : 1; }

static int64_t element_count(const checkpoint_tensor *t) { return shape_count(&t->shape); }

size_t checkpoint_saved_bytes(const checkpoint_tensor *t) { return (size_t)t->saved.n * dtype_bytes(t->type); }

size_t checkpoint_saved_offset(const checkpoint_tensor *t) {
    return t->saved.n ? (size_t)(t->saved.first - t->held.first) * dtype_bytes(t->type) : 0;
}

static status check_names(const checkpoint_tensor *tensors, size_t n) {
    status rc = OK;
    json_t *seen = json_object();
    for (size_t i = 0; i < n && rc == OK; i++) {
        if (json_object_get(seen, tensors[i].name))
            rc = ERR(ERR_BUG, "checkpoint: two tensors are named '%s'", tensors[i].name);
        else if (json_object_set_new(seen, tensors[i].name, json_true()) != 0)
            rc = ERR(ERR_INPUT, "checkpoint: the tensor name '%s' is not UTF-8", tensors[i].name);
    }
    json_decref(seen);
    return rc;
}

status checkpoint_layout_make(checkpoint_layout *l, arena *memory, const checkpoint_tensor *tensors, size_t n,
                              uint64_t shard_bytes) {
    *l = (checkpoint_layout){.n_tensors = n, .n_shards = 1};
    TRY(check_names(tensors, n));
    l->tensors = arena_copy(memory, tensors, n * sizeof *tensors);
    l->staging_offsets = arena_array(memory, uint64_t, n);
    size_t n_pieces = 0;
    for (size_t i = 0; i < n; i++) { /* an upper bound: a piece of a cut tensor is a row or more than half a shard */
        uint64_t n_bytes = checkpoint_saved_bytes(&tensors[i]);
        n_pieces += n_bytes <= shard_bytes ? 1 : (n_bytes / shard_bytes + 1) * 2;
    }
    l->pieces = arena_array(memory, checkpoint_piece, n_pieces);

    uint64_t in_shard = 0;
    for (size_t i = 0; i < n; i++) {
        checkpoint_tensor *t = &l->tensors[i];
        t->name = arena_string(memory, t->name);
        bool flat = t->saved.n != element_count(t);
        int64_t rows = flat ? t->saved.n : row_count(&t->shape);
        uint64_t n_bytes = checkpoint_saved_bytes(t), row_bytes = rows > 0 ? n_bytes / (uint64_t)rows : 0;
        l->staging_offsets[i] = l->staging_bytes;
        l->staging_bytes += n_bytes;
        if (t->cut) t->cut = arena_copy(memory, t->cut, sizeof *t->cut);
        if (flat && rows == 0) continue; /* other ranks write all of it */
        /* A tensor stays whole if a shard can hold it. A larger one is cut, one piece per shard: two pieces of a
         * tensor are never in one file, so each can have the tensor's own name there. */
        int64_t rows_per_piece = n_bytes <= shard_bytes ? rows : MAX((int64_t)(shard_bytes / row_bytes), 1);
        for (int64_t row = 0; row == 0 || row < rows; row += rows_per_piece) {
            int64_t piece_rows = MIN(rows_per_piece, rows - row);
            uint64_t piece_bytes = (uint64_t)piece_rows * row_bytes;
            if (in_shard > 0 && (row > 0 || in_shard + piece_bytes > shard_bytes)) {
                l->n_shards++;
                in_shard = 0;
            }
            ASSERT(l->n_pieces < n_pieces);
            int64_t at = t->saved.first + row; /* saved.first is 0 where rows are rows */
            l->pieces[l->n_pieces++] =
                (checkpoint_piece){i, l->n_shards - 1, flat, at, piece_rows, (uint64_t)at * row_bytes, piece_bytes};
            in_shard += piece_bytes;
            if (rows == 0) break;
        }
    }
    return OK;
}

/* ---- writing ------------------------------------------------------------------------------------------------- */

static shape piece_shape(const checkpoint_layout *l, const checkpoint_piece *piece) {
    shape s = l->tensors[piece->tensor].shape;
    if (piece->flat) return SHAPE(piece->n_rows);
    if (s.rank > 0) s.dim[0] = piece->n_rows;
    return s;
}

static json_t *json_from_shape(const shape *s) {
    json_t *list = json_array();
    for (int i = 0; i < s->rank; i++) json_array_append_new(list, json_integer(s->dim[i]));
    return list;
}

static const char *shard_name(arena *memory, int rank, int shard, int n_shards) {
    if (rank != ALONE)
        return arena_format(memory, "tensors-rank-%05d-%05d-of-%05d.safetensors", rank, shard + 1, n_shards);
    return arena_format(memory, "tensors-%05d-of-%05d.safetensors", shard + 1, n_shards);
}

/* Copies one piece into its place in the file and gives its checksum. */
static status write_piece(safetensors_writer *w, size_t entry, const checkpoint_layout *l,
                          const checkpoint_source *from, const checkpoint_piece *piece, uint8_t *buffer,
                          char hex[CHECKSUM_BYTES + 1]) {
    status rc = OK;
    const checkpoint_tensor *t = &l->tensors[piece->tensor];
    size_t in_share = (size_t)piece->byte_offset - (size_t)t->saved.first * dtype_bytes(t->type);
    XXH3_state_t *hash = XXH3_createState();
    ASSERT(hash && XXH3_128bits_reset(hash) == XXH_OK);
    for (uint64_t at = 0; at < piece->n_bytes; at += CHECKPOINT_CHUNK) {
        size_t n = (size_t)MIN((uint64_t)CHECKPOINT_CHUNK, piece->n_bytes - at), offset = in_share + (size_t)at;
        const uint8_t *data = buffer;
        if (from->staging) {
            data = from->staging + l->staging_offsets[piece->tensor] + offset;
        } else {
            exec_read(from->e, t->value, checkpoint_saved_offset(t) + offset, buffer, n);
            TRY_GOTO(rc, exec_check(from->e), done);
        }
        ASSERT(XXH3_128bits_update(hash, data, n) == XXH_OK);
        TRY_GOTO(rc, safetensors_writer_put(w, entry, at, data, n), done);
    }
    checksum_format(hex, XXH3_128bits_digest(hash));
done:
    XXH3_freeState(hash);
    return rc;
}

static void describe_cut(json_t *piece, const param_cut *c) {
    json_t *slices = json_array();
    for (int i = 0; i < c->n_slices; i++)
        json_array_append_new(slices, json_pack("[I, I, I]", (json_int_t)c->slices[i].at, (json_int_t)c->slices[i].from,
                                                (json_int_t)c->slices[i].n));
    json_object_set_new(piece, "of", json_from_shape(&c->here));
    json_object_set_new(piece, "dim", json_integer(c->dim));
    json_object_set_new(piece, "slices", slices);
}

static void describe_piece(json_t *tensors, const checkpoint_layout *l, const checkpoint_piece *piece,
                           const char *hex) {
    const checkpoint_tensor *t = &l->tensors[piece->tensor];
    json_t *entry = json_object_get(tensors, t->name);
    if (!entry) {
        entry = json_pack("{s:s, s:o, s:[]}", "dtype", dtype_file_name(t->type), "shape", json_from_shape(&t->shape),
                          "pieces");
        json_object_set_new(tensors, t->name, entry);
    }
    json_t *pieces = json_object_get(entry, "pieces");
    if (piece->flat) {
        json_t *run = json_pack("{s:i, s:[I, I], s:s}", "file", piece->shard, "elements", (json_int_t)piece->row,
                                (json_int_t)piece->n_rows, "xxh3_128", hex);
        if (t->cut) describe_cut(run, t->cut);
        json_array_append_new(pieces, run);
        return;
    }
    shape start = {.rank = t->shape.rank, .dim = {piece->row}}, size = piece_shape(l, piece);
    json_array_append_new(pieces, json_pack("{s:i, s:o, s:o, s:s}", "file", piece->shard, "start",
                                            json_from_shape(&start), "size", json_from_shape(&size), "xxh3_128", hex));
}

/* Adds {name, bytes, header checksum} of a finished file. Opening it again also proves that it can be read. */
static status describe_file(json_t *files, const char *path, const char *name) {
    safetensors st;
    char hex[CHECKSUM_BYTES + 1];
    TRY(safetensors_open(&st, path));
    checksum_hex(hex, st.map, safetensors_header_bytes(&st));
    json_array_append_new(
        files, json_pack("{s:s, s:I, s:s}", "name", name, "bytes", (json_int_t)st.map_bytes, "header_xxh3_128", hex));
    safetensors_close(&st);
    return OK;
}

/* Writes pieces first..end-1 as one file. */
static status write_shard(const char *dir, const checkpoint_layout *l, const checkpoint_source *from, int rank,
                          size_t first, size_t end, json_t *files, json_t *tensors) {
    status rc = OK;
    arena memory;
    arena_init(&memory);
    safetensors_entry *entries = arena_array(&memory, safetensors_entry, end - first);
    for (size_t i = first; i < end; i++) {
        const checkpoint_tensor *t = &l->tensors[l->pieces[i].tensor];
        entries[i - first] = (safetensors_entry){t->name, t->type, piece_shape(l, &l->pieces[i])};
    }
    uint8_t *buffer = from->staging ? NULL : arena_alloc(&memory, CHECKPOINT_CHUNK);
    const char *name = shard_name(&memory, rank, l->pieces[first].shard, l->n_shards);
    const char *path = arena_format(&memory, "%s/%s", dir, name);
    safetensors_writer w;
    TRY_GOTO(rc, safetensors_writer_open(&w, path, entries, end - first, NULL), done);
    for (size_t i = first; i < end; i++) {
        char hex[CHECKSUM_BYTES + 1];
        TRY_GOTO(rc, write_piece(&w, i - first, l, from, &l->pieces[i], buffer, hex), abandon);
        describe_piece(tensors, l, &l->pieces[i], hex);
    }
    TRY_GOTO(rc, safetensors_writer_close(&w), done);
    TRY_GOTO(rc, describe_file(files, path, name), done);
    goto done;
abandon:
    safetensors_writer_abort(&w);
done:
    arena_fini(&memory);
    return rc;
}

static status write_shards(const char *dir, const checkpoint_layout *l, const checkpoint_source *source, int rank,
                           json_t *files, json_t *tensors) {
    for (size_t first = 0, end; first < l->n_pieces; first = end) {
        for (end = first; end < l->n_pieces && l->pieces[end].shard == l->pieces[first].shard;) end++;
        TRY(write_shard(dir, l, source, rank, first, end, files, tensors));
    }
    return OK;
}

/* Every checkpoint of a run has its own copy of these files, so that each can be moved alone. */
static status write_tokenizer(const char *dir, const tokenizer_files *files, json_t *root) {
    if (!files || files->n == 0) return OK;
    strbuf path;
    strbuf_init(&path);
    strbuf_printf(&path, "%s/tokenizer", dir);
    status rc = dir_make(path.text);
    if (rc == OK) rc = tokenizer_files_write(files, path.text);
    strbuf_fini(&path);
    json_object_set_new(root, "tokenizer_files", tokenizer_files_json(files));
    return rc;
}

/* checkpoint.json: the last file, without which the others are not a checkpoint. Takes files and tensors over. */
static status write_index(const char *dir, const checkpoint_metadata *w, json_t *files, json_t *tensors) {
    json_t *root =
        json_pack("{s:s, s:i, s:s, s:o, s:o, s:o}", "format", CHECKPOINT_FORMAT, "version", CHECKPOINT_VERSION,
                  "identity", w->identity, "state", state_to_json(w->state), "files", files, "tensors", tensors);
    ASSERT(root);
    if (w->task) json_object_set_new(root, "task", task_to_json(w->task, w->task_state));
    if (w->model) {
        json_t *described = json_loads(w->model, JSON_REJECT_DUPLICATES, NULL);
        ASSERT(described); /* checked when the checkpointer was opened */
        json_object_set_new(root, "model", described);
    }
    strbuf path;
    strbuf_init(&path);
    strbuf_printf(&path, "%s/checkpoint.json", dir);
    status rc = write_tokenizer(dir, w->tokenizer, root);
    if (rc == OK) rc = sealed_write(path.text, root);
    strbuf_fini(&path);
    json_decref(root);
    return rc;
}

status checkpoint_write(const char *dir, const checkpoint_layout *l, const checkpoint_source *source,
                        const checkpoint_metadata *w) {
    json_t *files = json_array(), *tensors = json_object();
    status rc = write_shards(dir, l, source, ALONE, files, tensors);
    if (rc == OK) return write_index(dir, w, files, tensors);
    json_decref(files);
    json_decref(tensors);
    return rc;
}

/* ---- by many ranks -------------------------------------------------------------------------------------------- */

static const char *part_path(arena *memory, const char *dir, int rank) {
    return arena_format(memory, "%s/part-%05d.json", dir, rank);
}

status checkpoint_write_part(const char *dir, const checkpoint_layout *l, const checkpoint_source *source, int rank) {
    arena memory;
    arena_init(&memory);
    json_t *files = json_array(), *tensors = json_object();
    json_t *root = json_pack("{s:o, s:o}", "files", files, "tensors", tensors);
    status rc = write_shards(dir, l, source, rank, files, tensors);
    if (rc == OK) rc = sealed_write(part_path(&memory, dir, rank), root);
    json_decref(root);
    arena_fini(&memory);
    return rc;
}

/* Appends one rank's part to those of the ranks before it, with its files renumbered. */
static void join_part(json_t *files, json_t *tensors, json_t *part) {
    json_int_t first = (json_int_t)json_array_size(files);
    json_t *entry, *piece;
    const char *name;
    size_t i;
    json_array_extend(files, json_object_get(part, "files"));
    json_object_foreach(json_object_get(part, "tensors"), name, entry) {
        json_t *pieces = json_object_get(entry, "pieces"), *known = json_object_get(tensors, name);
        json_array_foreach(pieces, i, piece) {
            json_int_t file = json_integer_value(json_object_get(piece, "file"));
            json_object_set_new(piece, "file", json_integer(first + file));
        }
        if (known) json_array_extend(json_object_get(known, "pieces"), pieces);
        else json_object_set(tensors, name, entry);
    }
}

status checkpoint_join_parts(const char *dir, int n_ranks, const checkpoint_metadata *w) {
    status rc = OK;
    arena memory;
    arena_init(&memory);
    json_t *files = json_array(), *tensors = json_object();
    for (int rank = 0; rank < n_ranks; rank++) {
        json_t *part;
        TRY_GOTO(rc, sealed_read(part_path(&memory, dir, rank), &part), fail);
        join_part(files, tensors, part);
        json_decref(part);
    }
    TRY_GOTO(rc, write_index(dir, w, json_incref(files), json_incref(tensors)), fail);
    for (int rank = 0; rank < n_ranks && rc == OK; rank++) {
        const char *path = part_path(&memory, dir, rank);
        if (unlink(path) != 0) rc = ERR(ERR_IO, "remove %s: %s", path, strerror(errno));
    }
fail:
    json_decref(files);
    json_decref(tensors);
    arena_fini(&memory);
    return rc;
}
