/* plugin_stamp.c - what must be the same on both sides of a plug-in: ops, sections and the shape of what they share. */
#include "backend/plugin.h"

void plugin_stamp(char stamp[128]) {
    uint64_t hash = 0xcbf29ce484222325u; /* FNV-1a over ops.def: names, operands and meaning */
    for (op_kind k = 0; k < OP_COUNT; k++)
        for (const char *text[] = {op_name(k), op_summary(k)}, **t = text; t < text + ARRAY_LENGTH(text); t++)
            for (const char *s = *t; *s; s++) hash = (hash ^ (unsigned char)*s) * 0x100000001b3u;
    snprintf(stamp, 128, "%d ops %016llx, %d sections, sizes %zu %zu %zu %zu %zu %zu %zu %zu %zu", OP_COUNT,
             (unsigned long long)hash, SECTION_COUNT, sizeof(program), sizeof(value), sizeof(op), sizeof(kernel_call),
             sizeof(backend), sizeof(backend_queues), sizeof(backend_links), sizeof(backend_options),
             sizeof(device_info));
}
