/* page.c - the files of src/app/live/page, laid into the program by the assembler. LIVE_PAGE_DIR comes from
 * CMakeLists.txt. */
#include "live/page.h"

#include <string.h>

#define SYMBOL(name) ".global live_page_" #name "\n.hidden live_page_" #name "\nlive_page_" #name ":\n"
#define EMBED(name, file)                                                                        \
    __asm__(".section .rodata\n" SYMBOL(name) ".incbin \"" LIVE_PAGE_DIR "/" file                \
                                              "\"\n" SYMBOL(name##_end) ".byte 0\n.previous\n"); \
    extern const char live_page_##name[] __attribute__((visibility("hidden"))),                  \
        live_page_##name##_end[] __attribute__((visibility("hidden")))
EMBED(html, "page.html");
EMBED(app, "app.js");
EMBED(charts, "charts.js");
EMBED(style, "style.css");
EMBED(icon, "icon.svg");

bool page_find(const char *path, page_file *out) {
    static const struct {
        const char *path, *type, *bytes, *end;
    } files[] = {
        {"/", "text/html; charset=utf-8", live_page_html, live_page_html_end},
        {"/app.js", "text/javascript; charset=utf-8", live_page_app, live_page_app_end},
        {"/charts.js", "text/javascript; charset=utf-8", live_page_charts, live_page_charts_end},
        {"/style.css", "text/css; charset=utf-8", live_page_style, live_page_style_end},
        {"/icon.svg", "image/svg+xml", live_page_icon, live_page_icon_end},
    };
    for (size_t i = 0; i < ARRAY_LENGTH(files); i++)
        if (strcmp(files[i].path, path) == 0) {
            *out = (page_file){files[i].path, files[i].type, files[i].bytes, (size_t)(files[i].end - files[i].bytes)};
            return true;
        }
    return false;
}
