/* time.c - strftime_now: the local time in a format of strftime, as Python's datetime writes it. */
#include "jinja/render.h"

#include <string.h>
#include <time.h>

/* One conversion, "%d" or "%-d"; the output of none of them is long. */
static void add_conversion(builder *b, const char *conversion, const struct timespec *now, const struct tm *local) {
    char out[256];
    char letter = conversion[strlen(conversion) - 1];
    if (letter == 'f') snprintf(out, sizeof out, "%06ld", now->tv_nsec / 1000);
    else if (letter == 'z' || letter == 'Z') out[0] = 0; /* a time without a zone */
    else if (strftime(out, sizeof out, conversion, local) == 0) out[0] = 0;
    builder_add_text(b, out);
}

value time_format_now(render *r, const string *format) {
    struct timespec now;
    struct tm local;
    builder b;
    size_t plain = 0;
    clock_gettime(CLOCK_REALTIME, &now);
    localtime_r(&now.tv_sec, &local);
    builder_init(&b, r);
    for (size_t i = 0; i < format->length && !failed(r); i++) {
        if (format->text[i] != '%') continue;
        size_t end = i + 1;
        while (end < format->length && end < i + 3 && strchr("-_0^#EO", format->text[end]) && format->text[end]) end++;
        if (end >= format->length || format->text[end] == 0 || (format->text[end] & 0x80)) continue;
        char conversion[8] = {0};
        memcpy(conversion, format->text + i, end + 1 - i);
        builder_add_part(&b, format, plain, i);
        if (strchr("aAbBcCdDeFgGhHIjkKlmMnpPrRsStTuUVwWxXyYzZf%", conversion[end - i]))
            add_conversion(&b, conversion, &now, &local);
        else builder_add_text(&b, conversion);
        plain = end + 1;
        i = end;
    }
    builder_add_part(&b, format, plain, format->length);
    return builder_take(&b);
}
