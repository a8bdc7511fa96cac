/* place.c - read memory.place. */
#include "settings/place.h"

#include <stdlib.h>

enum { NOT_SET = 255, PART_BYTES = 64 };

static status bad_part(const char *part, const char *expected) {
    return ERR(ERR_INPUT, "memory.place: found '%.64s', expected %s", part, expected);
}

/* Parses a number; *s moves past it. */
static bool read_number(const char **s, int64_t *out) {
    char *end;
    if (**s < '0' || **s > '9') return false;
    *out = strtoll(*s, &end, 10);
    *s = end;
    return true;
}

static status read_device(const char *text, int *out) {
    const char *s = strchr(text, ':');
    int64_t index = 0;
    if (str_starts_with(text, "cuda:"))
        return ERR(ERR_INPUT, "memory.place: found '%.64s', expected cpu:0 to cpu:%d: one process drives one GPU", text,
                   DEVICES_MAX - 1);
    if (!str_starts_with(text, "cpu:") || (s++, !read_number(&s, &index)) || *s || index >= DEVICES_MAX)
        return ERR(ERR_INPUT, "memory.place: found the device '%.64s', expected cpu:0 to cpu:%d", text,
                   DEVICES_MAX - 1);
    *out = (int)index;
    return OK;
}

static status set_once(uint8_t *at, int device, const char *part) {
    if (*at != NOT_SET) return ERR(ERR_INPUT, "memory.place: '%.64s' is placed twice", part);
    *at = (uint8_t)device;
    return OK;
}

/* Device of each part; NOT_SET: not given. */
typedef struct parts {
    uint8_t embed, head, layers[PLACE_LAYERS_MAX];
} parts;

static status set_part(parts *p, const char *part, int device, int64_t n_layers) {
    if (strcmp(part, "embed") == 0) return set_once(&p->embed, device, part);
    if (strcmp(part, "head") == 0) return set_once(&p->head, device, part);
    const char *s = part + strlen("layers.");
    int64_t first = 0, last = 0;
    if (!str_starts_with(part, "layers.") || !read_number(&s, &first))
        return bad_part(part, "embed, head, layers.N or layers.N-M");
    last = first;
    if (*s == '-' && (s++, !read_number(&s, &last))) return bad_part(part, "layers.N-M");
    if (*s || last < first) return bad_part(part, "layers.N or layers.N-M, the first not above the last");
    if (last >= n_layers)
        return ERR(ERR_INPUT, "memory.place: found '%.64s', expected layers 0 to %lld of this model", part,
                   (long long)n_layers - 1);
    for (int64_t i = first; i <= last; i++) TRY(set_once(&p->layers[i], device, part));
    return OK;
}

/* "part=device" up to a comma, without the blanks around it. */
static const char *read_entry(const char *s, char part[PART_BYTES], char device[PART_BYTES]) {
    char *out = part;
    part[0] = device[0] = 0;
    for (; *s && *s != ','; s++) {
        if (*s == '=' && out == part) {
            out = device;
            continue;
        }
        size_t n = strlen(out);
        if (*s != ' ' && n < PART_BYTES - 1) out[n] = *s, out[n + 1] = 0;
    }
    return *s ? s + 1 : s;
}

status place_parse(const char *text, int64_t n_layers, place_options *out) {
    parts p;
    *out = (place_options){.n_devices = 1};
    memset(&p, NOT_SET, sizeof p);
    if (*text && n_layers > PLACE_LAYERS_MAX)
        return ERR(ERR_INPUT, "memory.place: found a model of %lld layers, expected at most %d", (long long)n_layers,
                   PLACE_LAYERS_MAX);
    for (const char *s = text; *s;) {
        char part[PART_BYTES], device[PART_BYTES];
        int index = 0;
        s = read_entry(s, part, device);
        if (!*device) return bad_part(part, "a part and its device, such as embed=cpu:0, layers.0-5=cpu:1");
        TRY(read_device(device, &index));
        TRY(set_part(&p, part, index, n_layers));
        out->n_devices = MAX(out->n_devices, index + 1);
    }
    if (p.embed != NOT_SET) out->embed = p.embed;
    if (p.head != NOT_SET) out->head = p.head;
    for (int64_t i = 0; i < n_layers && i < PLACE_LAYERS_MAX; i++)
        if (p.layers[i] != NOT_SET) out->layers[i] = p.layers[i];
    return OK;
}
