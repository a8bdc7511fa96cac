/* html.c - the frame of the page and the pieces of it. Text of a run never reaches the page but through html_text and
 * svg_add_escaped.
 *
 * The script only reads numbers out of the pictures for the pointer; without it nothing is missing. The page allows this script by
 * its hash and nothing else, so text that slipped through the escaping could still not run. */
#include "report/build.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static const char script[] =
    "\"use strict\";\n"
    "const NS = \"http://www.w3.org/2000/svg\";\n"
    "const bytes = v => { let u = 0; while (Math.abs(v) >= 1024 && u < 6) { v /= 1024; u++; }\n"
    "  return (u ? v.toFixed(1) : v) + \" \" + [\"B\", \"KiB\", \"MiB\", \"GiB\", \"TiB\", \"PiB\", \"EiB\"][u]; };\n"
    "document.querySelectorAll(\"figure\").forEach(f => {\n"
    "  const hit = f.querySelector(\".hit\"), out = f.querySelector(\"output\");\n"
    "  if (!hit || !out) return;\n"
    "  const low = +hit.dataset.low, high = +hit.dataset.high, left = +hit.getAttribute(\"x\"), width = "
    "+hit.getAttribute(\"width\");\n"
    "  const show = hit.dataset.unit ? bytes : v => String(+v.toPrecision(6));\n"
    "  const list = [...f.querySelectorAll(\"svg svg path[data-x]\")].map(p => ({name: p.dataset.name,\n"
    "    x: p.dataset.x.split(\" \").map(Number), y: p.dataset.y.split(\" \").map(Number)}));\n"
    "  const rule = document.createElementNS(NS, \"line\");\n"
    "  rule.setAttribute(\"class\", \"rule\");\n"
    "  hit.parentNode.insertBefore(rule, hit);\n"
    "  const move = e => {\n"
    "    const box = hit.getBoundingClientRect(), part = (e.clientX - box.left) / box.width, at = low + (high - low) * "
    "part;\n"
    "    let shown = \"\", nearest = at, best = Infinity;\n"
    "    for (const s of list) {\n"
    "      let a = 0, b = s.x.length - 1;\n"
    "      while (a < b) { const m = (a + b + 1) >> 1; if (s.x[m] <= at) a = m; else b = m - 1; }\n"
    "      if (hit.dataset.kind === \"lines\" && a + 1 < s.x.length && s.x[a + 1] - at < at - s.x[a]) a++;\n"
    "      const away = hit.dataset.kind === \"lines\" ? Math.abs(s.x[a] - at) : at - s.x[s.x.length - 1];\n"
    "      if (away > (high - low) / 30) continue;\n"
    "      if (hit.dataset.kind === \"lines\" && away < best) { best = away; nearest = s.x[a]; }\n"
    "      shown += \" \\u00b7 \" + s.name + \" \" + show(s.y[a]);\n"
    "    }\n"
    "    out.textContent = \"at \" + +nearest.toPrecision(7) + shown;\n"
    "    for (const k of [\"x1\", \"x2\"]) rule.setAttribute(k, left + width * part);\n"
    "    rule.setAttribute(\"y1\", hit.getAttribute(\"y\"));\n"
    "    rule.setAttribute(\"y2\", +hit.getAttribute(\"y\") + +hit.getAttribute(\"height\"));\n"
    "  };\n"
    "  hit.addEventListener(\"pointermove\", move);\n"
    "  hit.addEventListener(\"pointerdown\", move);\n"
    "});\n";
/* Of the text above, SHA-256 in base 64; cli_report holds them together. */
static const char script_hash[] = "sqSgFFO8gAosqJhuTpY3sttJnQ+/Z79xzpP3GT8WApg=";

static const char style[] =
    ":root{color-scheme:light "
    "dark;--ink:#1f2328;--soft:#5f6670;--page:#f6f7f9;--card:#fff;--line:#dfe2e6;--link:#2f64ad;"
    "--first:#eef4fb}\n"
    "@media (prefers-color-scheme: "
    "dark){:root{--ink:#e6e8eb;--soft:#a4abb5;--page:#0f1215;--card:#15181c;--line:#333940;"
    "--link:#7ab0f5;--first:#172231}}\n"
    "*{box-sizing:border-box}\n"
    "body{margin:0;background:var(--page);color:var(--ink);font:16px/1.5 system-ui,sans-serif;overflow-wrap:anywhere}\n"
    "main{max-width:1320px;margin:auto;padding:16px}\n"
    "h1{font-size:1.5rem;margin:.3rem 0 .6rem}h2{font-size:1.15rem;margin:2rem 0 .6rem}h3{font-size:1rem;margin:1rem 0 "
    ".3rem}\n"
    "p{margin:.4rem 0;max-width:80ch}.soft{color:var(--soft)}nav{margin:.6rem 0}nav "
    "a{margin-right:1rem}a{color:var(--link)}\n"
    ".words{background:var(--first);border:1px solid var(--line);border-radius:8px;padding:.6rem 1rem}\n"
    ".words p:first-child{font-size:1.15rem;font-weight:600}\n"
    ".figures{display:grid;grid-template-columns:repeat(auto-fill,minmax(min(100%,400px),1fr));gap:14px;margin:.8rem "
    "0}\n"
    "figure{margin:0;background:var(--card);border:1px solid var(--line);border-radius:8px;padding:8px;min-width:0}\n"
    "figure svg{display:block;width:100%;height:auto}figure svg svg{overflow:hidden}figure "
    "output{display:block;min-height:1.4em;"
    "font-size:.8rem;color:var(--soft)}\n"
    ".rule{stroke:var(--soft);stroke-width:1;pointer-events:none}\n"
    ".scroll{overflow-x:auto;margin:.6rem 0}\n"
    "table{border-collapse:collapse;background:var(--card);font-size:.9rem}\n"
    "th,td{border:1px solid var(--line);padding:.25rem .6rem;text-align:left;vertical-align:top;overflow-wrap:normal}\n"
    "th{font-weight:600}td.n,th.n{text-align:right;font-variant-numeric:tabular-nums;white-space:nowrap}\n"
    "td .long{display:block;width:max-content;max-width:40ch;overflow-wrap:anywhere}td{white-space:nowrap}td "
    ".long{white-space:normal}\n"
    "details{margin:.6rem 0}summary{cursor:pointer;color:var(--link)}\n"
    ".text{white-space:pre-wrap;background:var(--card);border:1px solid var(--line);border-radius:8px;padding:.5rem "
    ".8rem;"
    "margin:.5rem 0;font:14px/1.45 ui-monospace,monospace}\n"
    ".texts{display:grid;grid-template-columns:repeat(auto-fill,minmax(min(100%,300px),1fr));gap:8px}.text{margin:0}\n"
    ".text b{color:var(--soft);font-weight:600}\n"
    ".dot{display:inline-block;width:.8em;height:.8em;border-radius:2px;margin-right:.4em}\n"
    "@media print{figure,details{break-inside:avoid}}\n";

/* ---- text --------------------------------------------------------------------------------------------------------------- */

void html_text(strbuf *b, const char *text) {
    size_t n_lines = 0;
    for (const char *line = text;; line++) {
        size_t n = strcspn(line, "\n");
        char *copy = mem_alloc(n + 1);
        memcpy(copy, line, n);
        for (size_t i = 0; i < n; i++)
            if (copy[i] == '\t') copy[i] = ' ';
        svg_add_escaped(b, copy, HTML_TEXT_MOST);
        free(copy);
        line += n;
        if (!*line) return;
        if (++n_lines == 200) {
            strbuf_add(b, "\n...");
            return;
        }
        strbuf_add(b, "\n");
    }
}

const char *bytes_text(arena *memory, double bytes) {
    char text[32];
    if (!(bytes >= 0 && bytes < 0x1p63)) return "unknown";
    return arena_string(memory, str_format_bytes(text, (uint64_t)bytes));
}

const char *loss_text(arena *memory, double x) {
    if (!isfinite(x)) return "unknown";
    return arena_format(memory, fabs(x) < 1e5 && fabs(x) >= 1e-3 ? "%.4f" : "%.4g", x);
}

/* ---- tables ------------------------------------------------------------------------------------------------------------- */

void html_table_begin(strbuf *b, const char *const *titles, size_t n) {
    strbuf_add(b, "<div class=\"scroll\"><table><tr>");
    for (size_t i = 0; i < n; i++) {
        strbuf_add(b, "<th><bdi>");
        html_text(b, titles[i]);
        strbuf_add(b, "</bdi></th>");
    }
    strbuf_add(b, "</tr>\n");
}

void html_cell(strbuf *b, const char *text, bool number) {
    strbuf_add(b, number ? "<td class=\"n\">" : "<td><bdi class=\"long\">");
    html_text(b, text);
    strbuf_add(b, number ? "</td>" : "</bdi></td>");
}

void html_cell_bytes(strbuf *b, double bytes) {
    char text[32];
    html_cell(b, bytes >= 0 && bytes < 0x1p63 ? str_format_bytes(text, (uint64_t)bytes) : "-", true);
}

void html_cell_number(strbuf *b, double x) {
    char text[48];
    if (!isfinite(x)) snprintf(text, sizeof text, "-");
    else if (x == floor(x) && fabs(x) < 1e6) snprintf(text, sizeof text, "%.0f", x);
    else if (fabs(x) >= 1e5) str_format_count(text, x);
    else snprintf(text, sizeof text, "%.5g", x);
    html_cell(b, text, true);
}

/* ---- the frame ---------------------------------------------------------------------------------------------------------- */

void html_head(strbuf *b, const char *title) {
    strbuf_printf(
        b,
        "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\n"
        "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n"
        "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'; "
        "script-src 'sha256-%s'\">\n<title>",
        script_hash);
    html_text(b, title);
    strbuf_printf(b, "</title>\n<style>\n%s", style);
    chart_style(b);
    strbuf_add(b, "</style></head><body><main>\n");
}

void html_foot(strbuf *b) { strbuf_printf(b, "</main>\n<script>%s</script>\n</body></html>\n", script); }
