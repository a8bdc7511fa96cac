/* fuzz_hardware.c - a description of a machine (`--hardware FILE`).
 *
 * Of one that is accepted: every rate is finite and not negative, names end, and written out it reads back to the same text. */
#include "fuzz/fuzz.h"
#include "machine/hardware.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static char *written(const hardware *h, size_t *n) {
    memstream m;
    hardware_write(h, memstream_open(&m));
    char *text = memstream_take(&m);
    *n = m.n_bytes;
    return text;
}

static void check_numbers(const hardware *h) {
    ASSERT(memchr(h->name, 0, sizeof h->name) && memchr(h->source, 0, sizeof h->source));
    ASSERT(h->devices_per_node >= 0);
    const double rates[] = {h->device_bandwidth, h->launch_s,  h->host_bandwidth, h->copy_to_device,
                            h->copy_to_host,     h->disk_read, h->disk_write,     h->link_bandwidth};
    for (size_t i = 0; i < ARRAY_LENGTH(rates); i++) ASSERT(isfinite(rates[i]) && rates[i] >= 0);
    for (int i = 0; i < HARDWARE_DTYPES; i++) ASSERT(isfinite(h->matrix[i]) && h->matrix[i] >= 0);
}

void fuzz_one(const uint8_t *data, size_t size) {
    hardware h, again;
    status rc = hardware_read_file(&h, fuzz_file(0, data, size));
    if (rc != OK) {
        fuzz_refused(rc);
        return;
    }
    check_numbers(&h);
    size_t n, m;
    char *first = written(&h, &n);
    ASSERT(hardware_read_file(&again, fuzz_file(1, first, n)) == OK);
    char *second = written(&again, &m);
    ASSERT(n == m && memcmp(first, second, n) == 0);
    free(first);
    free(second);
}
