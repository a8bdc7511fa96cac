#pragma once
/* gguf.h - part of format/format.h: the file format of ggml and llama.cpp, version 3, written; and the blocks that its
 * tensors are quantised to.
 *
 *     gguf_header h;
 *     gguf_header_init(&h);
 *     gguf_add_text(&h, "general.architecture", "llama");
 *     gguf_add_array(&h, "tokenizer.ggml.token_type", GGUF_I32, n);
 *     for (...) gguf_put_i32(&h, types[i]);                        // exactly n of them
 *     gguf_add_tensor(&h, "output_norm.weight", GGUF_TYPE_F32, 1, columns);
 *     TRY_GOTO(rc, gguf_writer_open(&w, fd, path, &h), end);       // the caller's fd, a new file; its size is reserved
 *     TRY_GOTO(rc, gguf_writer_put(&w, 0, 0, gains, n_bytes), end);
 *     rc = gguf_writer_finish(&w);                                 // on disk
 *
 * All numbers of a file are little-endian, as those of every machine that ralo runs on. */
#include "base/base.h"

/* Types of tensors, by their numbers in ggml. A row of a quantised tensor is whole blocks. */
typedef enum gguf_type {
    GGUF_TYPE_F32 = 0,
    GGUF_TYPE_F16 = 1,
    GGUF_TYPE_Q5_0 = 6,
    GGUF_TYPE_Q8_0 = 8,
    GGUF_TYPE_Q4_K = 12,
    GGUF_TYPE_Q6_K = 14,
    GGUF_TYPE_BF16 = 30,
} gguf_type;
typedef struct gguf_layout {
    int block; /* elements of a block; 1: not quantised */
    size_t block_bytes;
    const char *name; /* "q4_k" */
} gguf_layout;
gguf_layout gguf_layout_of(gguf_type t);
static inline size_t gguf_row_bytes(gguf_type t, int64_t columns) {
    gguf_layout l = gguf_layout_of(t);
    return (size_t)(columns / l.block) * l.block_bytes;
}
/* Magnitudes from here on may overflow the fp16 scale of a quantised block. */
#define GGUF_MOST 1e6f
/* n numbers, whole blocks, all finite and below GGUF_MOST, to n / block blocks. For the quantised types. */
void gguf_quantize(gguf_type t, const float *x, int64_t n, void *out);

/* Types of metadata, by their numbers in the file. */
typedef enum gguf_kind {
    GGUF_U32 = 4,
    GGUF_I32 = 5,
    GGUF_F32 = 6,
    GGUF_BOOL = 7,
    GGUF_TEXT = 8,
    GGUF_ARRAY = 9
} gguf_kind;

typedef struct gguf_tensor {
    uint64_t offset, n_bytes; /* from the start of the data */
} gguf_tensor;
typedef struct gguf_header {
    strbuf pairs, infos; /* metadata and tensors as they stand in the file */
    uint64_t n_pairs;
    gguf_tensor *tensors;
    size_t n_tensors, capacity;
    uint64_t data_bytes;
} gguf_header;
void gguf_header_init(gguf_header *h);
void gguf_header_fini(gguf_header *h);
void gguf_add_u32(gguf_header *h, const char *key, uint32_t x);
void gguf_add_f32(gguf_header *h, const char *key, float x);
void gguf_add_bool(gguf_header *h, const char *key, bool x);
void gguf_add_text(gguf_header *h, const char *key, const char *text);
void gguf_add_bytes(gguf_header *h, const char *key, const char *text, size_t n_bytes); /* a text */
void gguf_add_array(gguf_header *h, const char *key, gguf_kind of, uint64_t n);
void gguf_put_i32(gguf_header *h, int32_t x); /* elements of the array that was added last */
void gguf_put_f32(gguf_header *h, float x);
void gguf_put_text(gguf_header *h, const char *text, size_t n_bytes);
/* A matrix (rows, columns), or with rows 0 a vector of so many columns; returns its number. */
size_t gguf_add_tensor(gguf_header *h, const char *name, gguf_type t, int64_t rows, int64_t columns);

typedef struct gguf_writer {
    int fd; /* the caller's */
    const char *path;
    const gguf_header *h;
    uint64_t data_start;
} gguf_writer;
/* Writes the header and reserves the file. Tensors may then be written in any order and in pieces. Until finish the file
 * begins with zeros, so that no reader takes it for whole. path: for messages. fd, path and header stay until finish. */
status gguf_writer_open(gguf_writer *w, int fd, const char *path, const gguf_header *h);
status gguf_writer_put(gguf_writer *w, size_t tensor, uint64_t byte_offset, const void *data, size_t n_bytes);
status gguf_writer_finish(gguf_writer *w);
uint64_t gguf_file_bytes(const gguf_header *h);
