/* png.c - an SVG picture as a PNG file, drawn by librsvg and cairo.
 *
 * Both are loaded when --png asks for them and are no part of the build: they bring forty libraries, and every desktop has them. So the few
 * types and functions that are used are declared here; their interfaces have been stable since librsvg 2.52 (Ubuntu 22.04, Debian 12).
 * librsvg reads no other file for a picture that comes from memory, and takes the light colours of the style sheet. */
#include "report/png.h"

#define RSVG_LIBRARY "librsvg-2.so.2"
#define CAIRO_LIBRARY "libcairo.so.2"
#define GOBJECT_LIBRARY "libgobject-2.0.so.0"
#define PIXELS 2.0 /* per unit of the chart, in each direction: sharp on a screen of high resolution, and on paper */

/* ---- the libraries ------------------------------------------------------------------------------------------------------- */

typedef struct rsvg rsvg;
typedef struct cairo cairo;
typedef struct cairo_surface cairo_surface;
typedef struct g_error {
    uint32_t domain;
    int code;
    char *message;
} g_error;
typedef struct rsvg_rectangle {
    double x, y, width, height;
} rsvg_rectangle;
enum { CAIRO_OK = 0, CAIRO_RGB24 = 1 };
typedef int cairo_write_function(void *to, const unsigned char *bytes, unsigned n);

/* Named as in the libraries. */
static struct {
    rsvg *(*rsvg_handle_new_from_data)(const uint8_t *data, size_t n, g_error **error);
    int (*rsvg_handle_get_intrinsic_size_in_pixels)(rsvg *handle, double *width, double *height);
    int (*rsvg_handle_render_document)(rsvg *handle, cairo *to, const rsvg_rectangle *where, g_error **error);
    cairo_surface *(*cairo_image_surface_create)(int format, int width, int height);
    int (*cairo_surface_status)(cairo_surface *surface);
    int (*cairo_surface_write_to_png_stream)(cairo_surface *surface, cairo_write_function *write, void *to);
    void (*cairo_surface_destroy)(cairo_surface *surface);
    cairo *(*cairo_create)(cairo_surface *surface);
    void (*cairo_set_source_rgb)(cairo *c, double red, double green, double blue);
    void (*cairo_paint)(cairo *c);
    void (*cairo_destroy)(cairo *c);
    const char *(*cairo_status_to_string)(int status);
    void (*g_object_unref)(void *object);
} lib;

status png_open(void) {
#define SYMBOL(name) \
    { #name, &lib.name }
    static const library_symbol rsvg_symbols[] = {SYMBOL(rsvg_handle_new_from_data),
                                                  SYMBOL(rsvg_handle_get_intrinsic_size_in_pixels),
                                                  SYMBOL(rsvg_handle_render_document)};
    static const library_symbol cairo_symbols[] = {SYMBOL(cairo_image_surface_create),
                                                   SYMBOL(cairo_surface_status),
                                                   SYMBOL(cairo_surface_write_to_png_stream),
                                                   SYMBOL(cairo_surface_destroy),
                                                   SYMBOL(cairo_create),
                                                   SYMBOL(cairo_set_source_rgb),
                                                   SYMBOL(cairo_paint),
                                                   SYMBOL(cairo_destroy),
                                                   SYMBOL(cairo_status_to_string)};
    static const library_symbol gobject_symbols[] = {SYMBOL(g_object_unref)};
#undef SYMBOL
    char why[400];
    if (library_load(RSVG_LIBRARY, rsvg_symbols, ARRAY_LENGTH(rsvg_symbols), why, sizeof why) &&
        library_load(CAIRO_LIBRARY, cairo_symbols, ARRAY_LENGTH(cairo_symbols), why, sizeof why) &&
        library_load(GOBJECT_LIBRARY, gobject_symbols, ARRAY_LENGTH(gobject_symbols), why, sizeof why))
        return OK;
    return ERR(
        ERR_INPUT,
        "--png: %s; install it: apt-get install librsvg2-2 fonts-dejavu-core; or use --charts: SVG needs nothing", why);
}

/* ---- drawing ------------------------------------------------------------------------------------------------------------- */

static int keep_bytes(void *to, const unsigned char *bytes, unsigned n) {
    strbuf_add_bytes(to, (const char *)bytes, n);
    return CAIRO_OK;
}

static status draw(rsvg *picture, cairo_surface *surface, const rsvg_rectangle *where, const char *path) {
    g_error *error = NULL;
    int state = lib.cairo_surface_status(surface);
    if (state != CAIRO_OK)
        return ERR(ERR_RUN, "%s: cairo cannot make a picture of %.0f x %.0f pixels: %s", path, where->width,
                   where->height, lib.cairo_status_to_string(state));
    cairo *c = lib.cairo_create(surface);
    lib.cairo_set_source_rgb(c, 1, 1, 1);
    lib.cairo_paint(c);
    int drawn = lib.rsvg_handle_render_document(picture, c, where, &error);
    lib.cairo_destroy(c);
    return drawn ? OK
                 : ERR(ERR_RUN, "%s: librsvg cannot draw it: %s", path, error ? error->message : "no reason given");
}

status png_write(const char *path, const char *svg, size_t n_bytes) {
    g_error *error = NULL;
    rsvg_rectangle where = {0};
    status rc;
    rsvg *picture = lib.rsvg_handle_new_from_data((const uint8_t *)svg, n_bytes, &error);
    if (!picture)
        return ERR(ERR_RUN, "%s: librsvg cannot read it: %s", path, error ? error->message : "no reason given");
    lib.rsvg_handle_get_intrinsic_size_in_pixels(picture, &where.width, &where.height); /* 0 x 0: cairo refuses it */
    where.width *= PIXELS, where.height *= PIXELS;
    cairo_surface *surface = lib.cairo_image_surface_create(CAIRO_RGB24, (int)where.width, (int)where.height);
    strbuf png;
    strbuf_init(&png);
    TRY_GOTO(rc, draw(picture, surface, &where, path), done);
    int state = lib.cairo_surface_write_to_png_stream(surface, keep_bytes, &png);
    rc = state == CAIRO_OK ? file_write_whole(path, png.text, png.length)
                           : ERR(ERR_RUN, "%s: cairo: %s", path, lib.cairo_status_to_string(state));
done:
    strbuf_fini(&png);
    lib.cairo_surface_destroy(surface);
    lib.g_object_unref(picture);
    return rc;
}
