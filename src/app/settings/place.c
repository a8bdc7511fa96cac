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

/* "cpu", "cpu:1": name, and perhaps a number, which else stays as it is. */
static bool read_name(const char *text, const char *name, int64_t *index) {
    size_t n = strlen(name);
    if (strncmp(text, name, n) != 0) return false;
    const char *s = text + n;
    return *s == 0 || (*s++ == ':' && read_number(&s, index) && *s == 0);
}

static status read_device(const char *text, int gpu, int *out) {
    int64_t cpu = 0, index = gpu;
    if (str_starts_with(text, "mps") || str_starts_with(text, "metal"))
        return ERR(
            ERR_INPUT,
            "memory.place: found '%.64s', expected cpu:0 to cpu:%d: there is no Metal backend; on a Mac ralo plans, "
            "and trains on the CPU's cores",
            text, DEVICES_MAX - 1);
    if (read_name(text, "cuda", &index)) {
        if (index != gpu)
            return ERR(
                ERR_INPUT,
                "memory.place: found '%.64s', expected cuda:%d, the GPU of this process (run.gpu): one process drives "
                "one GPU; several take one rank each (--ranks, parallel.pipeline)",
                text, gpu);
        *out = PLACE_CUDA;
        return OK;
    }
    if (!read_name(text, "cpu", &cpu) || cpu >= DEVICES_MAX)
        return ERR(ERR_INPUT, "memory.place: found the device '%.64s', expected cuda:%d, cpu or cpu:0 to cpu:%d", text,
                   gpu, DEVICES_MAX - 1);
    *out = PLACE_CPU + (int)cpu;
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

status place_parse(const char *text, int64_t n_layers, int gpu, place_options *out) {
    parts p;
    *out = (place_options){0};
    memset(&p, NOT_SET, sizeof p);
    if (strcmp(text, "auto") == 0) return OK; /* the plan's to choose */
    if (*text && n_layers > PLACE_LAYERS_MAX)
        return ERR(ERR_INPUT, "memory.place: found a model of %lld layers, expected at most %d", (long long)n_layers,
                   PLACE_LAYERS_MAX);
    for (const char *s = text; *s;) {
        char part[PART_BYTES], device[PART_BYTES];
        int index = 0;
        s = read_entry(s, part, device);
        if (!*device) return bad_part(part, "a part and its device, such as embed=cpu:0, layers.0-5=cpu:1");
        TRY(read_device(device, gpu, &index));
        TRY(set_part(&p, part, index, n_layers));
    }
    if (p.embed != NOT_SET) out->embed = p.embed;
    if (p.head != NOT_SET) out->head = p.head;
    for (int64_t i = 0; i < n_layers && i < PLACE_LAYERS_MAX; i++)
        if (p.layers[i] != NOT_SET) out->layers[i] = p.layers[i];
    return OK;
}
