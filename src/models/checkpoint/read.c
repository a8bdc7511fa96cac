/* read.c - check and read one checkpoint directory, into a program or without one.
 *
 * Nothing is trusted: JSON seal, identity, names, dtypes, shapes, pieces that cover their tensor exactly, and then
 * all checksums on all threads are checked; only after that is the first byte written into the running program.
 * Pieces are cut along the first dimension or between elements, so each one is a contiguous range of bytes; or they
 * are ranges of a tensor whose rows or columns tensor ranks share. Other cuts are refused by name. */
#include "checkpoint/directory.h"
#include "checkpoint/seal.h"

#include <errno.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

enum { FILES_MOST = 65536 }; /* a process can map hardly more */
#define ANOTHER "; take another checkpoint of the run, by its directory"

/* ---- the directory --------------------------------------------------------------------------------------------- */

/* Each file once: what is listed twice would be opened and held twice. */
static status check_file_list(const json_t *files, const char *path) {
    status rc = OK;
    size_t i;
    json_t *file, *seen = json_object();
    if (json_array_size(files) > FILES_MOST)
        rc = ERR(ERR_INPUT, "%s: found %zu files, expected at most %d", path, json_array_size(files), FILES_MOST);
    for (i = 0; rc == OK && i < json_array_size(files); i++) {
        file = json_array_get(files, i);
        const char *name;
        TRY_GOTO(rc, json_get_string(file, "name", path, &name), done);
        if (json_object_get(seen, name)) rc = ERR(ERR_INPUT, "%s: the file '%s' is listed twice", path, name);
        else json_object_set_new(seen, name, json_true());
    }
done:
    json_decref(seen);
    return rc;
}

static status check_format(const json_t *root, const char *path) {
    const char *format;
    int64_t version;
    TRY(json_get_string(root, "format", path, &format));
    if (strcmp(format, CHECKPOINT_FORMAT) != 0)
        return ERR(ERR_INPUT, "%s: found the format '%s', expected '" CHECKPOINT_FORMAT "'", path, format);
    TRY(json_get_int(root, "version", INT64_MIN, INT64_MAX, path, &version));
    if (version != CHECKPOINT_VERSION)
        return ERR(ERR_INPUT, "%s: found format version %lld, this program reads %d", path, (long long)version,
                   CHECKPOINT_VERSION);
    if (!json_is_array(json_object_get(root, "files")) || !json_is_object(json_object_get(root, "tensors")))
        return ERR(ERR_INPUT, "%s: 'files' or 'tensors' is missing", path);
    return check_file_list(json_object_get(root, "files"), path);
}

/* Name and size of one file of the list, and that it is that long. */
static status check_file(const char *dir, const json_t *file, const char *where, arena *memory, const char **out) {
    const char *name;
    int64_t n_bytes;
    struct stat st;
    TRY(json_get_string(file, "name", where, &name));
    TRY(json_get_int(file, "bytes", 0, INT64_MAX, where, &n_bytes));
    if (strchr(name, '/') || name[0] == '.') return ERR(ERR_INPUT, "%s: '%s' is not a shard's name", where, name);
    *out = arena_format(memory, "%s/%s", dir, name);
    if (stat(*out, &st) != 0) return ERR(ERR_INPUT, "%s: %s, but %s lists it", *out, strerror(errno), where);
    if (!S_ISREG(st.st_mode) || st.st_size != n_bytes)
        return ERR(ERR_INPUT, "%s: found %lld bytes, expected %lld" ANOTHER, *out, (long long)st.st_size,
                   (long long)n_bytes);
    return OK;
}

/* The tokenizer files exist and have their sizes; checksums are verified when they are used. */
static status check_tokenizer(const json_t *root, const char *dir) {
    const json_t *list = json_object_get(root, "tokenizer_files");
    tokenizer_files files;
    if (!list) return OK;
    status rc = tokenizer_files_load(&files, dir, list, false);
    tokenizer_files_fini(&files);
    return rc;
}

/* A name that is not one of a step may be anything: a copy is. */
static status check_name(const char *dir, const json_t *root) {
    int64_t named, step;
    size_t n = strlen(dir);
    strbuf name;
    while (n > 1 && dir[n - 1] == '/') n--;
    strbuf_init(&name);
    strbuf_add_bytes(&name, dir, n);
    bool is_step = checkpoint_step_of(name.text, &named);
    strbuf_fini(&name);
    if (!is_step) return OK;
    TRY(json_get_int(json_object_get(root, "state"), "step", 0, INT64_MAX, dir, &step));
    if (step == named) return OK;
    return ERR(ERR_INPUT,
               "%s is named as step %lld and holds step %lld: it was renamed; give it back the name step-%08lld", dir,
               (long long)named, (long long)step, (long long)step);
}

status checkpoint_check(const char *dir) {
    status rc = OK;
    arena memory;
    arena_init(&memory);
    json_t *root = NULL, *file;
    size_t i;
    const char *json_path = arena_format(&memory, "%s/checkpoint.json", dir), *path;
    TRY_GOTO(rc, sealed_read(json_path, &root), done);
    TRY_GOTO(rc, check_format(root, json_path), done);
    TRY_GOTO(rc, check_name(dir, root), done);
    json_array_foreach(json_object_get(root, "files"), i, file)
        TRY_GOTO(rc, check_file(dir, file, json_path, &memory, &path), done);
    TRY_GOTO(rc, check_tokenizer(root, dir), done);
done:
    json_decref(root);
    arena_fini(&memory);
    return rc;
}

/* A piece found in a file: where its bytes are, what they must hash to, where they go. */
typedef struct found_piece {
    const char *tensor;
    const safetensors *file;
    const uint8_t *data;
    size_t n_bytes;
    const char *expected; /* hex */
    char found[CHECKSUM_BYTES + 1];
    int64_t first, count;                 /* elements of the tensor, or of what a rank had of it: */
    param_cut cut;                        /* dim -1: nothing was cut */
    const checkpoint_tensor *destination; /* NULL: not asked for */
    bool needed;                          /* this rank holds some of it, or it was not asked for: to be checked */
} found_piece;

typedef struct checkpoint_reader {
    const char *dir, *json_path;
    json_t *root;
    const json_t *task_state; /* NULL: none */
    train_state state;
    safetensors *files;
    const char **header_hex;
    size_t n_files;
    size_t *pieces_in_file;
    found_piece *pieces; /* pieces of one tensor together, in order */
    size_t n_pieces;
    exec *e; /* whose threads hash, and where tensors go; NULL for a reader without a program */
    arena memory;
} reader;

static status open_files(reader *r) {
    const json_t *list = json_object_get(r->root, "files");
    size_t n = json_array_size(list), n_headers = 0;
    r->files = arena_array(&r->memory, safetensors, n);
    r->header_hex = arena_array(&r->memory, const char *, n);
    r->pieces_in_file = arena_array(&r->memory, size_t, n);
    for (size_t i = 0; i < n; i++) {
        const json_t *file = json_array_get(list, i);
        const char *path;
        TRY(check_file(r->dir, file, r->json_path, &r->memory, &path));
        TRY(json_get_string(file, "header_xxh3_128", r->json_path, &r->header_hex[i]));
        TRY(safetensors_open(&r->files[i], path));
        r->n_files = i + 1;
        if ((n_headers += safetensors_header_bytes(&r->files[i])) > SEALED_MAX_BYTES)
            return ERR(ERR_INPUT, "%s: the headers of %zu files take %zu bytes, expected at most %d in all", path,
                       i + 1, n_headers, SEALED_MAX_BYTES);
    }
    return OK;
}

static status shape_from_json(const json_t *object, const char *key, const char *tensor, const char *where,
                              shape *out) {
    const json_t *list = json_object_get(object, key);
    size_t rank = json_array_size(list);
    *out = (shape){.rank = (int)rank};
    if (!json_is_array(list) || rank > SHAPE_MAX_RANK)
        return ERR(ERR_INPUT, "%s: tensor '%s': '%s' is not a list of at most %d numbers", where, tensor, key,
                   SHAPE_MAX_RANK);
    for (size_t i = 0; i < rank; i++) {
        const json_t *dim = json_array_get(list, i);
        if (!json_is_integer(dim) || json_integer_value(dim) < 0)
            return ERR(ERR_INPUT, "%s: tensor '%s': '%s' holds an entry that is not a count", where, tensor, key);
        out->dim[i] = json_integer_value(dim);
    }
    return OK;
}

/* Elements of a shape that a file says; false when they are more than can be counted. */
static bool count_elements(const shape *s, int64_t *out) {
    *out = 1;
    for (int i = 0; i < s->rank; i++)
        if (__builtin_mul_overflow(*out, s->dim[i], out)) return false;
    return true;
}

/* A run of elements: its shape in the file, and where it begins. */
static status piece_elements(const reader *r, const json_t *entry, const char *name, shape *size, int64_t *first) {
    shape run;
    TRY(shape_from_json(entry, "elements", name, r->json_path, &run));
    if (run.rank != 2)
        return ERR(ERR_INPUT, "%s: tensor '%s': 'elements' has %d numbers, expected the first and how many",
                   r->json_path, name, run.rank);
    *first = run.dim[0];
    *size = SHAPE(run.dim[1]);
    return OK;
}

/* The part of the tensor that a rank had: slices inside the tensor, contiguous in the piece, without overlap. */
static status piece_cut(const reader *r, const json_t *entry, const char *name, const shape *whole, param_cut *out) {
    const json_t *list = json_object_get(entry, "slices");
    size_t n = json_array_size(list);
    int64_t dim, end = 0, last = 0;
    char a[64], b[64];
    *out = (param_cut){.whole = *whole, .n_slices = (int)n};
    TRY(shape_from_json(entry, "of", name, r->json_path, &out->here));
    TRY(json_get_int(entry, "dim", 0, 1, r->json_path, &dim));
    out->dim = (int)dim;
    bool fits = n >= 1 && n <= ARRAY_LENGTH(out->slices) && (whole->rank == 2 || (whole->rank == 1 && dim == 0)) &&
                out->here.rank == whole->rank;
    for (int i = 0; i < whole->rank && fits; i++) {
        int64_t here = out->here.dim[i];
        fits = here > 0 && (i == dim ? here <= whole->dim[i] : here == whole->dim[i]);
    }
    for (size_t i = 0; i < n && fits; i++) {
        const json_t *slice = json_array_get(list, i);
        int64_t numbers[3];
        fits = json_array_size(slice) == 3;
        for (size_t k = 0; k < 3 && fits; k++) {
            numbers[k] = json_integer_value(json_array_get(slice, k));
            fits = json_is_integer(json_array_get(slice, k)) && numbers[k] >= 0;
        }
        if (!fits) break;
        param_slice *s = &out->slices[i];
        *s = (param_slice){numbers[0], numbers[1], numbers[2]};
        fits = s->at == end && s->n > 0 && s->n <= out->here.dim[dim] - s->at && s->from >= last &&
               s->from <= whole->dim[dim] && s->n <= whole->dim[dim] - s->from;
        end = s->at + s->n;
        last = s->from + s->n;
    }
    if (fits && dim == 1) fits = end == out->here.dim[1]; /* only rows are padded */
    if (!fits)
        return ERR(ERR_INPUT, "%s: tensor '%s' %s: found a piece of %s with slices that are not part of the tensor",
                   r->json_path, name, shape_format(a, whole), shape_format(b, &out->here));
    return OK;
}

/* A box that spans all but the first dimension: likewise. */
static status piece_box(const reader *r, const json_t *entry, const char *name, const shape *whole, shape *out,
                        int64_t *first) {
    shape start, size, row = *whole;
    int64_t row_elements;
    char a[64], b[64], c[64];
    TRY(shape_from_json(entry, "start", name, r->json_path, &start));
    TRY(shape_from_json(entry, "size", name, r->json_path, &size));
    if (row.rank > 0) row.dim[0] = 1;
    bool fits = start.rank == whole->rank && size.rank == whole->rank;
    for (int i = 1; i < whole->rank && fits; i++) fits = start.dim[i] == 0 && size.dim[i] == whole->dim[i];
    if (!fits)
        return ERR(ERR_INPUT,
                   "%s: tensor '%s' %s: found a piece of %s at %s; this program reads pieces cut along the first "
                   "dimension",
                   r->json_path, name, shape_format(a, whole), shape_format(b, &size), shape_format(c, &start));
    *out = size;
    *first = 0;
    if (!count_elements(&row, &row_elements) ||
        (start.rank > 0 && __builtin_mul_overflow(start.dim[0], row_elements, first)))
        return ERR(ERR_INPUT, "%s: tensor '%s' %s: found more elements than can be counted", r->json_path, name,
                   shape_format(a, whole));
    return OK;
}

/* One piece of the list against the file that holds it. */
static status find_piece(reader *r, const char *name, dtype type, const shape *whole, const json_t *entry,
                         found_piece *out) {
    int64_t file;
    shape size;
    char a[64], b[64];
    TRY(json_get_int(entry, "file", 0, (int64_t)r->n_files - 1, r->json_path, &file));
    TRY(json_get_string(entry, "xxh3_128", r->json_path, &out->expected));
    out->cut = (param_cut){.here = *whole, .whole = *whole, .dim = -1};
    if (json_object_get(entry, "of")) TRY(piece_cut(r, entry, name, whole, &out->cut));
    if (json_object_get(entry, "elements")) TRY(piece_elements(r, entry, name, &size, &out->first));
    else TRY(piece_box(r, entry, name, whole, &size, &out->first));
    const safetensor *t = safetensors_find(&r->files[file], name);
    if (!t)
        return ERR(ERR_INPUT, "%s: tensor '%s' is missing, %s expects it here", r->files[file].path, name,
                   r->json_path);
    if (t->type != type || !shape_equal(&t->shape, &size))
        return ERR(ERR_INPUT, "%s: tensor '%s': found %s %s, expected %s %s", r->files[file].path, name,
                   dtype_name(t->type), shape_format(a, &t->shape), dtype_name(type), shape_format(b, &size));
    r->pieces_in_file[file]++;
    out->tensor = name;
    out->file = &r->files[file];
    out->data = t->data;
    out->n_bytes = t->n_bytes;
    out->count = shape_count(&t->shape);
    out->needed = true;
    return OK;
}

/* The runs of a piece that lie in [begin, end) of the whole tensor: param_cut_next between the piece's own ends. */
static bool piece_next(const found_piece *piece, int64_t begin, int64_t end, param_run *run) {
    while (param_cut_next(&piece->cut, begin, end, run)) {
        int64_t first = MAX(run->here, piece->first), last = MIN(run->here + run->n, piece->first + piece->count);
        if (first >= last) continue;
        *run = (param_run){first, run->whole + first - run->here, last - first};
        return true;
    }
    return false;
}

static int by_place(const void *a, const void *b) {
    const param_run *x = a, *y = b;
    return (x->whole > y->whole) - (x->whole < y->whole);
}

/* How many leading elements of the tensor the pieces cover, each once; less than all where one is missing or there twice. */
static int64_t count_covered(const found_piece *pieces, size_t n, int64_t total) {
    param_run *runs = NULL;
    size_t n_runs = 0, capacity = 0;
    int64_t covered = 0;
    for (size_t i = 0; i < n; i++)
        for (param_run run = {0}; piece_next(&pieces[i], 0, total, &run);) {
            runs = array_grow(runs, &capacity, n_runs + 1, sizeof *runs);
            runs[n_runs++] = run;
        }
    if (n_runs > 1) qsort(runs, n_runs, sizeof *runs, by_place);
    size_t i = 0;
    for (; i < n_runs && runs[i].whole == covered; i++) covered += runs[i].n;
    free(runs);
    return i == n_runs ? covered : MIN(covered, total - 1);
}

/* All pieces of one tensor: they must cover it, without gap or overlap. */
static status find_tensor(reader *r, const char *name, const json_t *entry) {
    const char *type_name;
    dtype type;
    shape whole;
    char buf[64];
    TRY(json_get_string(entry, "dtype", r->json_path, &type_name));
    if (!dtype_from_file_name(type_name, &type))
        return ERR(ERR_INPUT, "%s: tensor '%s': found the unknown dtype '%s'", r->json_path, name, type_name);
    TRY(shape_from_json(entry, "shape", name, r->json_path, &whole));
    const json_t *list = json_object_get(entry, "pieces"), *piece;
    found_piece *first = &r->pieces[r->n_pieces];
    size_t i, n = json_array_size(list);
    int64_t total;
    if (!count_elements(&whole, &total))
        return ERR(ERR_INPUT, "%s: tensor '%s' %s: found more elements than can be counted", r->json_path, name,
                   shape_format(buf, &whole));
    json_array_foreach(list, i, piece) TRY(find_piece(r, name, type, &whole, piece, &first[i]));
    bool inside = n > 0;
    for (i = 0; i < n && inside; i++) inside = first[i].count <= shape_count(&first[i].cut.here) - first[i].first;
    int64_t covered = inside ? count_covered(first, n, total) : 0;
    if (!inside || covered != total)
        return ERR(ERR_INPUT, "%s: tensor '%s' %s: its pieces cover elements 0 to %lld and then leave a gap or overlap",
                   r->json_path, name, shape_format(buf, &whole), (long long)covered);
    r->n_pieces += n;
    return OK;
}

static status find_all(reader *r) {
    const char *name;
    json_t *tensors = json_object_get(r->root, "tensors"), *entry;
    size_t n = 0;
    json_object_foreach(tensors, name, entry) n += json_array_size(json_object_get(entry, "pieces"));
    r->pieces = arena_array(&r->memory, found_piece, n);
    json_object_foreach(tensors, name, entry) TRY(find_tensor(r, name, entry));
    for (size_t i = 0; i < r->n_files; i++)
        if (r->pieces_in_file[i] != r->files[i].n_tensors)
            return ERR(ERR_INPUT, "%s: found %zu tensors, %s expects %zu", r->files[i].path, r->files[i].n_tensors,
                       r->json_path, r->pieces_in_file[i]);
    return OK;
}

/* Elements that a piece and what the program holds of the tensor have in common, run by run. */
typedef struct common {
    param_run in_piece, in_value;
} common;

static bool next_common(const found_piece *piece, common *c) {
    const checkpoint_tensor *t = piece->destination;
    const param_cut whole = {.here = t->shape, .whole = t->shape, .dim = -1}, *cut = t->cut ? t->cut : &whole;
    for (;;) {
        while (c->in_piece.n > 0 &&
               param_cut_next(cut, c->in_piece.whole, c->in_piece.whole + c->in_piece.n, &c->in_value)) {
            param_run *v = &c->in_value;
            int64_t first = MAX(v->here, t->held.first), last = MIN(v->here + v->n, t->held.first + t->held.n);
            if (first >= last) continue;
            *v = (param_run){first, v->whole + first - v->here, last - first};
            return true;
        }
        c->in_value = (param_run){0};
        if (!piece_next(piece, 0, INT64_MAX, &c->in_piece)) return false;
    }
}

/* Each tensor the program wants is there, with its dtype and shape; its pieces learn where to go. */
static status match_wanted(reader *r, const checkpoint_tensor *wanted, size_t n) {
    const json_t *tensors = json_object_get(r->root, "tensors");
    json_t *index = json_object(); /* name -> first piece */
    status rc = OK;
    for (size_t i = r->n_pieces; i-- > 0;) json_object_set_new(index, r->pieces[i].tensor, json_integer((json_int_t)i));
    for (size_t i = 0; i < n && rc == OK; i++) {
        const char *name = wanted[i].name;
        const json_t *entry = json_object_get(tensors, name), *first = json_object_get(index, name);
        char a[64], b[64];
        shape found;
        dtype type;
        if (!entry || !first) {
            rc = ERR(ERR_INPUT, "%s: tensor '%s' is missing, the model needs it", r->json_path, name);
            break;
        }
        TRY_GOTO(rc, shape_from_json(entry, "shape", name, r->json_path, &found), done);
        ASSERT(dtype_from_file_name(json_string_value(json_object_get(entry, "dtype")), &type)); /* read before */
        if (type != wanted[i].type || !shape_equal(&found, &wanted[i].shape)) {
            rc = ERR(ERR_INPUT, "%s: tensor '%s': found %s %s, expected %s %s", r->json_path, name, dtype_name(type),
                     shape_format(a, &found), dtype_name(wanted[i].type), shape_format(b, &wanted[i].shape));
            break;
        }
        size_t k = (size_t)json_integer_value(first);
        for (; k < r->n_pieces && strcmp(r->pieces[k].tensor, name) == 0; k++) {
            found_piece *piece = &r->pieces[k];
            piece->destination = &wanted[i];
            piece->needed = next_common(piece, &(common){0});
        }
    }
done:
    json_decref(index);
    return rc;
}

static void hash_piece(void *context, int64_t task, int thread) {
    found_piece *piece = &((reader *)context)->pieces[task];
    if (!piece->needed) return;
    checksum_hex(piece->found, piece->data, piece->n_bytes);
}

static status verify_headers(const reader *r) {
    char hex[CHECKSUM_BYTES + 1];
    for (size_t i = 0; i < r->n_files; i++) {
        checksum_hex(hex, r->files[i].map, safetensors_header_bytes(&r->files[i]));
        if (strcmp(hex, r->header_hex[i]) != 0)
            return ERR(ERR_INPUT, "%s is damaged: the checksum of its header is %s, expected %s" ANOTHER,
                       r->files[i].path, hex, r->header_hex[i]);
    }
    return OK;
}

static status check_piece(const found_piece *piece) {
    if (strcmp(piece->found, piece->expected) == 0) return OK;
    return ERR(ERR_INPUT, "%s is damaged: the checksum of tensor '%s' (%zu bytes) is %s, expected %s" ANOTHER,
               piece->file->path, piece->tensor, piece->n_bytes, piece->found, piece->expected);
}

static status verify_checksums(reader *r) {
    TRY(verify_headers(r));
    exec_parallel(r->e, hash_piece, r, (int64_t)r->n_pieces);
    for (size_t i = 0; i < r->n_pieces; i++)
        if (r->pieces[i].needed) TRY(check_piece(&r->pieces[i]));
    return OK;
}

static void put_piece(void *context, int64_t task, int thread) {
    reader *r = context;
    const found_piece *piece = &r->pieces[task];
    const checkpoint_tensor *t = piece->destination;
    if (!t || !piece->needed) return;
    size_t width = dtype_bytes(t->type);
    for (common c = {0}; next_common(piece, &c);) {
        int64_t in_piece = c.in_piece.here + c.in_value.whole - c.in_piece.whole - piece->first;
        const uint8_t *from = piece->data + (size_t)in_piece * width;
        size_t to = (size_t)(c.in_value.here - t->held.first) * width, n_bytes = (size_t)c.in_value.n * width;
        for (size_t at = 0; at < n_bytes; at += CHECKPOINT_CHUNK)
            exec_write(r->e, t->value, to + at, from + at, MIN((size_t)CHECKPOINT_CHUNK, n_bytes - at));
    }
}

static void reader_fini(reader *r) {
    for (size_t i = 0; i < r->n_files; i++) safetensors_close(&r->files[i]);
    json_decref(r->root);
    arena_fini(&r->memory);
}

#define NEW_RUN "to start a new run from its weights: ralo export, then model.path (of adapters: model.adapter)"

/* task NULL: any. */
static status check_task(reader *r, const char *task) {
    const char *found;
    TRY(task_from_json(r->root, r->json_path, &found, &r->task_state));
    if (!task || strcmp(found, task) == 0) return OK;
    return ERR(ERR_INPUT, "%s was made with train.task=%s, this run has %s; set train.task=%s to continue it; " NEW_RUN,
               r->dir, found, task, found);
}

/* Where in an identity the names of the files stand, "data SOURCE as TOKENIZER, rows of ...", *n bytes of them; NULL: nowhere. */
static const char *names_in(const char *identity, size_t *n) {
    static const char before[] = "; data ", after[] = ", rows of ";
    const char *begin = strstr(identity, before), *end = NULL;
    if (!begin) return NULL;
    begin += strlen(before);
    for (const char *at = begin; (at = strstr(at, after)); at++) end = at; /* the last: a name may hold anything */
    *n = end ? (size_t)(end - begin) : 0;
    return end ? begin : NULL;
}

/* The tokens at the end are a hash of what the files hold: where it is one and equal, files and tokenizer may have moved. */
static bool is_same_identity(const char *a, const char *b) {
    static const char no_hash[] = "tokens 0000000000000000";
    size_t n_a, n_b;
    if (strcmp(a, b) == 0) return true;
    const char *in_a = names_in(a, &n_a), *in_b = names_in(b, &n_b);
    if (!in_a || !in_b || in_a - a != in_b - b || str_ends_with(a, no_hash)) return false;
    return strncmp(a, b, (size_t)(in_a - a)) == 0 && strcmp(in_a + n_a, in_b + n_b) == 0;
}

/* The data in an identity, *n bytes, "data SOURCE ..., tokens HASH"; those of rloo go up to the end, "prompts SOURCE ...". What stands
 * around it are settings of the task. */
static const char *data_in(const char *identity, size_t *n) {
    static const char tokens[] = ", tokens ", hash[] = "0123456789abcdef";
    const char *begin = identity + strcspn(identity, ";");
    const char *data = strstr(begin, "; data "), *prompts = strstr(begin, "; prompts ");
    begin = data ? data : prompts ? prompts : begin;
    *n = strlen(begin);
    const char *end = NULL;
    for (const char *at = data; at && (at = strstr(at, tokens)); at++)
        end = at; /* the last: a name may hold anything */
    if (end) *n = MIN(*n, (size_t)(end - begin) + strlen(tokens) + strlen(hash));
    return begin;
}

#define SETTINGS_DIFFER "other settings of its task"

/* Why a run that is described as `expected` does not go on with what was `found`: a model; after it, a task and its data. */
static const char *what_differs(const char *found, const char *expected) {
    size_t n_found, n_expected;
    if (strncmp(found, expected, strcspn(expected, ";") + 1) != 0) return "another model";
    const char *a = data_in(found, &n_found), *b = data_in(expected, &n_expected);
    if (n_found == n_expected && strncmp(a, b, n_found) == 0) return SETTINGS_DIFFER;
    return "other data, where its position has no meaning";
}

/* The part of two descriptions of a task in which they differ, in whole items between commas. */
static void find_difference(const char *a, const char *b, const char *from[2], int length[2]) {
    size_t begin = 0, same = 0, end = 0, n_a = strlen(a), n_b = strlen(b);
    for (; same < MIN(n_a, n_b) && a[same] == b[same]; same++)
        if (a[same] == ' ' && same > 0 && strchr(",;", a[same - 1])) begin = same + 1;
    for (size_t k = 0; k < MIN(n_a, n_b) - begin && a[n_a - 1 - k] == b[n_b - 1 - k]; k++)
        if (strchr(",;", a[n_a - 1 - k])) end = k + 1;
    from[0] = a + begin, from[1] = b + begin;
    length[0] = (int)(n_a - end - begin), length[1] = (int)(n_b - end - begin);
}

static status refuse_identity(const char *dir, const char *found, const char *expected) {
    const char *what = what_differs(found, expected), *from[2];
    int length[2];
    if (strcmp(what, SETTINGS_DIFFER) != 0)
        return ERR(ERR_INPUT, "%s was made with %s:\n  found    %s\n  expected %s\n" NEW_RUN, dir, what, found,
                   expected);
    find_difference(found, expected, from, length);
    return ERR(ERR_INPUT,
               "%s was made with %s: '%.*s', this run has '%.*s'; leave them as they were, or give this run a run.dir "
               "of its own; " NEW_RUN,
               dir, what, length[0], from[0], length[1], from[1]);
}

/* Everything up to the checksums. identity, task NULL: any. After a failure the reader holds what reader_fini releases. */
static status reader_init(reader *r, const char *dir, exec *e, const char *identity, const char *task) {
    const char *found;
    *r = (reader){.dir = dir, .e = e};
    arena_init(&r->memory);
    r->json_path = arena_format(&r->memory, "%s/checkpoint.json", dir);
    TRY(sealed_read(r->json_path, &r->root));
    TRY(check_format(r->root, r->json_path));
    TRY(check_name(dir, r->root));
    TRY(check_task(r, task)); /* another task has other data too: first the reason, then what follows from it */
    TRY(json_get_string(r->root, "identity", r->json_path, &found));
    if (identity && !is_same_identity(found, identity)) return refuse_identity(dir, found, identity);
    TRY(state_from_json(r->root, r->json_path, &r->state));
    TRY(check_tokenizer(r->root, dir));
    TRY(open_files(r));
    TRY(find_all(r));
    return OK;
}

/* A task that remembers something finds it; one that remembers nothing is not given anything. */
static status load_task(const reader *r, const checkpoint_task *task) {
    bool wanted = task && task->load;
    if (wanted && r->task_state) return task->load(task->context, r->task_state, r->json_path);
    if (!wanted && !r->task_state) return OK;
    return ERR(ERR_INPUT, "%s: task: state: found %s, expected %s; take another checkpoint", r->json_path,
               r->task_state ? "one" : "none", wanted ? "one" : "none");
}

status checkpoint_load(const char *dir, exec *e, const checkpoint_tensor *tensors, size_t n, const char *identity,
                       const checkpoint_task *task, train_state *out) {
    status rc = OK;
    reader r;
    TRY_GOTO(rc, reader_init(&r, dir, e, identity, task ? task->name : CHECKPOINT_DEFAULT_TASK), done);
    TRY_GOTO(rc, match_wanted(&r, tensors, n), done);
    TRY_GOTO(rc, verify_checksums(&r), done);
    TRY_GOTO(rc, load_task(&r, task), done);
    exec_parallel(e, put_piece, &r, (int64_t)r.n_pieces);
    *out = r.state;
done:
    reader_fini(&r);
    return rc;
}

status checkpoint_read_state(const char *dir, train_state *out) {
    json_t *root = NULL;
    strbuf path;
    strbuf_init(&path);
    strbuf_printf(&path, "%s/checkpoint.json", dir);
    status rc = sealed_read(path.text, &root);
    if (rc == OK) rc = check_format(root, path.text);
    if (rc == OK) rc = check_name(dir, root);
    if (rc == OK) rc = state_from_json(root, path.text, out);
    json_decref(root);
    strbuf_fini(&path);
    return rc;
}

/* ---- without a program --------------------------------------------------------------------------------------- */

status checkpoint_reader_open(checkpoint_reader **out, const char *dir) {
    status rc = OK;
    reader *r = mem_alloc(sizeof *r);
    *out = NULL;
    TRY_GOTO(rc, reader_init(r, dir, NULL, NULL, NULL), fail);
    TRY_GOTO(rc, verify_headers(r), fail);
    *out = r;
    return OK;
fail:
    checkpoint_reader_close(r);
    return rc;
}

void checkpoint_reader_close(checkpoint_reader *r) {
    if (!r) return;
    reader_fini(r);
    free(r);
}

const json_t *checkpoint_reader_model(const checkpoint_reader *r) { return json_object_get(r->root, "model"); }
const json_t *checkpoint_reader_tokenizer(const checkpoint_reader *r) {
    return json_object_get(r->root, "tokenizer_files");
}
int64_t checkpoint_reader_step(const checkpoint_reader *r) { return r->state.step; }

bool checkpoint_reader_find(const checkpoint_reader *r, const char *name, checkpoint_found *out) {
    size_t first = 0, end;
    while (first < r->n_pieces && strcmp(r->pieces[first].tensor, name) != 0) first++;
    if (first == r->n_pieces) return false;
    for (end = first; end < r->n_pieces && strcmp(r->pieces[end].tensor, name) == 0;) end++;
    const json_t *entry = json_object_get(json_object_get(r->root, "tensors"), name);
    *out = (checkpoint_found){.first_piece = first, .n_pieces = end - first};
    ASSERT(dtype_from_file_name(json_string_value(json_object_get(entry, "dtype")), &out->type)); /* read by open */
    ASSERT(shape_from_json(entry, "shape", name, r->json_path, &out->shape) == OK);
    return true;
}

status checkpoint_reader_verify(const checkpoint_reader *r, const checkpoint_found *t) {
    for (size_t i = 0; i < t->n_pieces; i++) {
        found_piece *piece = &r->pieces[t->first_piece + i];
        checksum_hex(piece->found, piece->data, piece->n_bytes);
        TRY(check_piece(piece));
    }
    return OK;
}

void checkpoint_reader_read(const checkpoint_reader *r, const checkpoint_found *t, uint64_t byte_offset, void *dst,
                            size_t n_bytes) {
    size_t width = dtype_bytes(t->type), n_read = 0;
    ASSERT(byte_offset % width == 0 && n_bytes % width == 0);
    int64_t begin = (int64_t)(byte_offset / width), end = begin + (int64_t)(n_bytes / width);
    for (size_t i = 0; i < t->n_pieces; i++) {
        const found_piece *piece = &r->pieces[t->first_piece + i];
        for (param_run run = {0}; piece_next(piece, begin, end, &run);) {
            memcpy((char *)dst + (size_t)(run.whole - begin) * width,
                   piece->data + (size_t)(run.here - piece->first) * width, (size_t)run.n * width);
            n_read += (size_t)run.n * width;
        }
    }
    ASSERT(n_read == n_bytes);
}

void checkpoint_reader_forget(const checkpoint_reader *r, const checkpoint_found *t) {
    uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE);
    for (size_t i = 0; i < t->n_pieces; i++) {
        const found_piece *piece = &r->pieces[t->first_piece + i];
        uintptr_t start = (uintptr_t)piece->data & ~(page - 1),
                  end = ((uintptr_t)piece->data + piece->n_bytes) & ~(page - 1);
        if (end > start) madvise((void *)start, end - start, MADV_DONTNEED); /* advice: refusal costs memory only */
    }
}
