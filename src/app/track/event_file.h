#pragma once
/* event_file.h - private to track: TensorBoard's events, as bytes.
 *
 * A record is a length, its checksum, the event and its checksum (TFRecord); an event is a protocol buffer (tensorflow/core/util/event.proto
 * and framework/summary.proto), of which a few fields are written here by hand. */
#include "base/base.h"

uint32_t crc32c(const void *bytes, size_t n_bytes);
uint32_t crc32c_masked(const void *bytes, size_t n_bytes); /* as TFRecord stores it */

/* Each appends one record. */
void event_add_version(strbuf *out, double time);             /* the first of a file */
void event_add_start(strbuf *out, double time, int64_t step); /* readers drop what they have from this step on */
void event_add_text(strbuf *out, double time, int64_t step, const char *tag, const char *text);
/* Scalars of one step: begin, one call for each, end. */
typedef struct event_scalars {
    strbuf summary;
} event_scalars;
void event_scalars_begin(event_scalars *e);
void event_scalars_add(event_scalars *e, const char *tag, float value);
void event_scalars_end(event_scalars *e, strbuf *out, double time, int64_t step);
