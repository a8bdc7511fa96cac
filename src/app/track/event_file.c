/* event_file.c - TensorBoard's events, as bytes: what is in the schema and not needed here is left out.
 *
 *     Event     1 wall_time double, 2 step int64, 3 file_version string, 5 summary Summary, 7 session_log SessionLog
 *     Summary   1 value Value (repeated)
 *     Value     1 tag string, 2 simple_value float, 8 tensor TensorProto, 9 metadata SummaryMetadata
 *     SummaryMetadata   1 plugin_data { 1 plugin_name string }, 4 data_class (2: tensor)
 *     TensorProto       1 dtype (7: string), 2 tensor_shape { 2 dim { 1 size int64 } }, 8 string_val bytes (repeated)
 *     SessionLog        1 status (1: START) */
#include "track/event_file.h"

#include <pthread.h>
#include <string.h>

/* ---- TFRecord ------------------------------------------------------------------------------------------------------- */

static uint32_t crc_table[256];

static void crc_table_make(void) {
    for (uint32_t i = 0; i < 256; i++) {
        uint32_t crc = i;
        for (int bit = 0; bit < 8; bit++) crc = crc >> 1 ^ (crc & 1 ? 0x82f63b78u : 0); /* Castagnoli, reflected */
        crc_table[i] = crc;
    }
}

uint32_t crc32c(const void *bytes, size_t n_bytes) {
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, crc_table_make);
    const unsigned char *p = bytes;
    uint32_t crc = ~0u;
    for (size_t i = 0; i < n_bytes; i++) crc = crc >> 8 ^ crc_table[(crc ^ p[i]) & 0xff];
    return ~crc;
}

uint32_t crc32c_masked(const void *bytes, size_t n_bytes) {
    uint32_t crc = crc32c(bytes, n_bytes);
    return (crc >> 15 | crc << 17) + 0xa282ead8u;
}

static void add_little(strbuf *out, uint64_t x, int n_bytes) {
    for (int i = 0; i < n_bytes; i++) strbuf_add_bytes(out, &(unsigned char){(unsigned char)(x >> 8 * i)}, 1);
}

static void add_record(strbuf *out, const strbuf *event) {
    size_t at = out->length;
    add_little(out, event->length, 8);
    add_little(out, crc32c_masked(out->text + at, 8), 4);
    strbuf_add_bytes(out, event->text, event->length);
    add_little(out, crc32c_masked(event->text, event->length), 4);
}

/* ---- protocol buffers ----------------------------------------------------------------------------------------------- */

enum { VARINT = 0, FIXED64 = 1, BYTES = 2, FIXED32 = 5 };

static void add_varint(strbuf *out, uint64_t x) {
    for (; x >= 0x80; x >>= 7) add_little(out, (x & 0x7f) | 0x80, 1);
    add_little(out, x, 1);
}

static void add_tag(strbuf *out, int field, int type) { add_varint(out, (uint64_t)(field << 3 | type)); }

static void add_int(strbuf *out, int field, int64_t x) {
    add_tag(out, field, VARINT);
    add_varint(out, (uint64_t)x);
}

static void add_double(strbuf *out, int field, double x) {
    uint64_t bits;
    memcpy(&bits, &x, sizeof bits);
    add_tag(out, field, FIXED64);
    add_little(out, bits, 8);
}

static void add_float(strbuf *out, int field, float x) {
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    add_tag(out, field, FIXED32);
    add_little(out, bits, 4);
}

static void add_bytes(strbuf *out, int field, const void *bytes, size_t n) {
    add_tag(out, field, BYTES);
    add_varint(out, n);
    if (n) strbuf_add_bytes(out, bytes, n);
}

static void add_string(strbuf *out, int field, const char *text) { add_bytes(out, field, text, strlen(text)); }

static void add_message(strbuf *out, int field, strbuf *inner) {
    add_bytes(out, field, inner->text, inner->length);
    strbuf_fini(inner);
}

/* ---- events ---------------------------------------------------------------------------------------------------------- */

static void event_begin(strbuf *event, double time, int64_t step) {
    strbuf_init(event);
    add_double(event, 1, time);
    if (step) add_int(event, 2, step);
}

static void event_end(strbuf *event, strbuf *out) {
    add_record(out, event);
    strbuf_fini(event);
}

void event_add_version(strbuf *out, double time) {
    strbuf event;
    event_begin(&event, time, 0);
    add_string(&event, 3, "brain.Event:2");
    event_end(&event, out);
}

void event_add_start(strbuf *out, double time, int64_t step) {
    strbuf event, log;
    strbuf_init(&log);
    event_begin(&event, time, step);
    add_int(&log, 1, 1);
    add_message(&event, 7, &log);
    event_end(&event, out);
}

void event_add_text(strbuf *out, double time, int64_t step, const char *tag, const char *text) {
    strbuf event, summary, value, tensor, shape, dim, metadata, plugin;
    strbuf *all[] = {&summary, &value, &tensor, &shape, &dim, &metadata, &plugin};
    for (size_t i = 0; i < ARRAY_LENGTH(all); i++) strbuf_init(all[i]);
    add_string(&plugin, 1, "text");
    add_message(&metadata, 1, &plugin);
    add_int(&metadata, 4, 2);
    add_int(&dim, 1, 1);
    add_message(&shape, 2, &dim);
    add_int(&tensor, 1, 7);
    add_message(&tensor, 2, &shape);
    add_string(&tensor, 8, text);
    add_string(&value, 1, tag);
    add_message(&value, 8, &tensor);
    add_message(&value, 9, &metadata);
    add_message(&summary, 1, &value);
    event_begin(&event, time, step);
    add_message(&event, 5, &summary);
    event_end(&event, out);
}

void event_scalars_begin(event_scalars *e) { strbuf_init(&e->summary); }

void event_scalars_add(event_scalars *e, const char *tag, float value) {
    strbuf one;
    strbuf_init(&one);
    add_string(&one, 1, tag);
    add_float(&one, 2, value);
    add_message(&e->summary, 1, &one);
}

void event_scalars_end(event_scalars *e, strbuf *out, double time, int64_t step) {
    strbuf event;
    event_begin(&event, time, step);
    add_message(&event, 5, &e->summary);
    event_end(&event, out);
}
