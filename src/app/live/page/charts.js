/* charts.js - lines and stacked areas as SVG. Text goes in as text, never as HTML: names and numbers come from files of anyone. */
"use strict";

const SVG = "http://www.w3.org/2000/svg";

/* An element with attributes and children; children that are no elements become text. */
function el(tag, attributes = {}, ...children) {
  const svgTags = ["svg", "g", "path", "line", "text", "circle", "rect"];
  const e = svgTags.includes(tag) ? document.createElementNS(SVG, tag) : document.createElement(tag);
  for (const [k, v] of Object.entries(attributes)) if (v !== undefined && v !== null) e.setAttribute(k, v);
  e.append(...children.map(c => (c instanceof Node ? c : document.createTextNode(String(c)))));
  return e;
}

/* ---- numbers ---- */

const trim = text => (text.includes(".") ? text.replace(/\.?0+$/, "") : text);

/* n / unit with at most `digits` digits; units are 1, K, M ... or B, KiB, MiB ... */
function formatUnit(n, base, units, digits) {
  if (!Number.isFinite(n)) return "–";
  let i = 0;
  while (Math.abs(n) >= base && i < units.length - 1) { n /= base; i++; }
  const size = Math.abs(n), places = Math.max(0, digits - (size >= 1000 ? 4 : size >= 100 ? 3 : size >= 10 ? 2 : 1));
  return trim(n.toFixed(i === 0 && base === 1024 ? 0 : places)) + units[i];
}

const formatBytes = n => formatUnit(n, 1024, [" B", " KiB", " MiB", " GiB", " TiB", " PiB"], 3);
const formatWhole = n => (Number.isFinite(n) ? Math.round(n).toLocaleString("en-US") : "–");
const formatCount = n => (Math.abs(n) >= 1000 && Math.abs(n) < 10000 ? formatWhole(n) : formatUnit(n, 1000, ["", "K", "M", "G", "T", "P"], 4));

function formatNumber(n) {
  if (!Number.isFinite(n)) return "–";
  if (n === 0) return "0";
  const size = Math.abs(n);
  if (size >= 1e6 || size < 1e-4) return n.toExponential(2).replace(/\.?0*e\+?/, "e");
  return Number(n.toPrecision(4)).toString();
}

function formatTime(s) {
  if (!Number.isFinite(s) || s < 0) return "–";
  s = Math.round(s);
  const d = Math.floor(s / 86400), h = Math.floor(s / 3600) % 24, m = Math.floor(s / 60) % 60, two = n => String(n).padStart(2, "0");
  if (d) return `${d}d ${two(h)}:${two(m)}`;
  return h ? `${h}:${two(m)}:${two(s % 60)}` : `${m}:${two(s % 60)}`;
}

const SPANS = [1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 14400, 28800, 43200, 86400];

/* Ticks at 1, 2 or 5 times a power of ten; of bytes in binary units, of seconds at those of a clock. */
function ticks(low, high, most, bytes, seconds) {
  if (!(high > low)) return [low];
  const unit = bytes ? 1024 ** Math.max(0, Math.floor(Math.log2(Math.max(high, 1)) / 10)) : 1;
  const rough = (high - low) / unit / most, power = 10 ** Math.floor(Math.log10(rough));
  let step = ([1, 2, 5, 10].find(k => k * power >= rough * 0.999) || 10) * power * unit;
  if (seconds) step = SPANS.find(k => k >= rough) || Math.ceil(rough / 86400) * 86400;
  const out = [];
  for (let v = Math.ceil(low / step - 1e-9) * step; v <= high + step * 1e-9; v += step) out.push(Math.abs(v) < step * 1e-9 ? 0 : v);
  return out;
}

function indexAt(xs, x) {  /* of the x that is nearest */
  let a = 0, b = xs.length - 1;
  while (b - a > 1) { const m = (a + b) >> 1; if (xs[m] < x) a = m; else b = m; }
  return b > 0 && Math.abs(xs[a] - x) <= Math.abs(xs[b] - x) ? a : Math.max(b, 0);
}

function smooth(ys, amount) {
  let mean = ys[0];
  return ys.map(y => (mean = amount * mean + (1 - amount) * y));
}

/* Of many points in one column of pixels: the first, the lowest, the highest, the last. Indices into xs. */
function thin(xs, ys, px) {
  const out = [];
  for (let i = 0, j; i < xs.length; i = j) {
    const column = Math.floor(px(xs[i]));
    let low = i, high = i;
    for (j = i + 1; j < xs.length && Math.floor(px(xs[j])) === column; j++) {
      if (ys[j] < ys[low]) low = j;
      if (ys[j] > ys[high]) high = j;
    }
    const a = Math.min(low, high), b = Math.max(low, high);
    out.push(i);
    if (a > i) out.push(a);
    if (b > a) out.push(b);
    if (j - 1 > b) out.push(j - 1);
  }
  return out;
}

/* In a moment without other work, one call after the other. */
const idle = window.requestIdleCallback ? f => requestIdleCallback(f, { timeout: 2000 }) : f => setTimeout(f, 200);

/* ---- the frame of a chart: caption, axes, a cursor that mouse, touch and arrow keys move ---- */

class Chart {
  constructor(parent, title, height) {
    this.height = height;
    this.caption = el("figcaption", {}, el("b", {}, title));
    this.keys = el("span", { class: "controls" });
    this.readout = el("span", { class: "readout" });
    this.caption.append(this.keys, this.readout);
    this.svg = el("svg", { role: "img", tabindex: "0", height, "aria-label": title });
    this.figure = el("figure", { class: "chart" }, this.caption, this.svg);
    this.title = title;
    parent.append(this.figure);
    this.at = null;
    this.svg.addEventListener("pointermove", e => this.pointAt(e.clientX - this.svg.getBoundingClientRect().left));
    this.svg.addEventListener("pointerleave", () => this.moveTo(null));
    this.svg.addEventListener("blur", () => this.moveTo(null));
    this.svg.addEventListener("keydown", e => this.key(e));
    /* Remembered: to ask for it between two drawings would lay out the page for each chart. */
    this.width = 0;
    new ResizeObserver(changes => {
      const width = Math.round(changes[changes.length - 1].contentRect.width);
      if (!width || width === this.width) return;
      this.width = width;
      this.update();
    }).observe(this.svg);
    /* A run may have a hundred metrics: charts that are off the screen are drawn later, in idle moments. */
    this.isSeen = false;
    this.isStale = false;
    new IntersectionObserver(changes => {
      this.isSeen = changes[changes.length - 1].isIntersecting;
      if (this.isSeen) this.drawStale();
    }, { rootMargin: "200px" }).observe(this.svg);
    addEventListener("beforeprint", () => this.drawStale());
  }
  update() {
    const wasStale = this.isStale;
    this.isStale = true;
    if (this.isSeen) this.drawStale();
    else if (!wasStale) idle(() => this.drawStale());
  }
  drawStale() {
    if (!this.isStale || !this.width) return;
    this.isStale = false;
    this.draw();
  }
  key(e) {
    const n = this.xs().length, step = { ArrowLeft: -1, ArrowRight: 1, PageUp: -20, PageDown: 20 }[e.key];
    if (e.key === "Escape") return this.moveTo(null);
    if (!step || !n) return;
    e.preventDefault();
    this.moveTo(Math.min(n - 1, Math.max(0, (this.at === null ? n - 1 : this.at) + step)));
  }
  pointAt(px) {
    const xs = this.xs();
    if (xs.length && this.plot) this.moveTo(indexAt(xs, this.plot.x0 + (px - this.plot.left) / this.plot.width * (this.plot.x1 - this.plot.x0)));
  }
  moveTo(i) {
    this.at = i;
    this.showCursor();
  }
  /* Axes for x0..x1 and y0..y1; sets this.plot and returns functions from numbers to pixels. */
  frame(x0, x1, y0, y1, formatX, formatY, o = {}) {
    const width = this.width, left = o.bytes ? 62 : 52, right = 10, top = 8, bottom = 20;
    const p = this.plot = { left, top, width: width - left - right, height: this.height - top - bottom, x0, x1 };
    const log = o.log && y0 > 0, t = log ? Math.log10 : v => v;
    const px = x => left + (x1 > x0 ? (x - x0) / (x1 - x0) : 0.5) * p.width;
    const py = y => top + p.height - (t(y1) > t(y0) ? (t(y) - t(y0)) / (t(y1) - t(y0)) : 0.5) * p.height;
    this.svg.replaceChildren();
    this.svg.setAttribute("viewBox", `0 0 ${width} ${this.height}`);
    let marks = ticks(y0, y1, Math.max(2, Math.floor(p.height / 28)), o.bytes);
    if (log) {
      marks = [];
      for (let e = Math.floor(Math.log10(y0)); e <= Math.ceil(Math.log10(y1)); e++) for (const k of [1, 2, 5]) marks.push(k * 10 ** e);
      marks = marks.filter(v => v >= y0 && v <= y1);
      if (marks.length > 8) marks = marks.filter(v => Number.isInteger(Math.round(Math.log10(v) * 1e6) / 1e6));
      if (marks.length < 3) marks = ticks(y0, y1, 4);  /* less than a decade */
    }
    for (const v of marks) {
      this.svg.append(el("line", { class: "grid", x1: left, x2: left + p.width, y1: py(v), y2: py(v) }),
        el("text", { x: left - 6, y: py(v) + 4, "text-anchor": "end" }, formatY(v)));
    }
    for (const v of ticks(x0, x1, Math.max(2, Math.floor(p.width / 70)), false, formatX === formatTime)) {
      this.svg.append(el("text", { x: px(v), y: this.height - 5, "text-anchor": px(v) > left + p.width - 24 ? "end" : "middle" }, formatX(v)));
    }
    this.svg.append(el("line", { class: "axis", x1: left, x2: left + p.width, y1: top + p.height, y2: top + p.height }));
    return { px, py };
  }
}

/* ---- lines: setSeries([{name, x, y}]) ---- */

class LineChart extends Chart {
  constructor(parent, title, o = {}) {
    super(parent, title, o.height || 150);
    this.o = { formatX: formatCount, readX: formatWhole, formatY: formatNumber, xName: "step", ...o };
    this.series = [];
  }
  xs() { return this.series.length ? this.series[0].x : []; }
  setSeries(series, o = {}) {
    this.series = series.filter(s => s.x.length);
    Object.assign(this.o, o);
    this.update();
  }
  label(v) { return this.o.bytes ? formatBytes(v) : this.o.formatY(v); }
  draw() {
    if (!this.series.length || !this.width) return;
    let x0 = Infinity, x1 = -Infinity, y0 = Infinity, y1 = -Infinity;
    const positive = this.o.log && this.series.every(s => s.y.every(v => v > 0));
    for (const s of this.series) {
      x0 = Math.min(x0, s.x[0]); x1 = Math.max(x1, s.x[s.x.length - 1]);
      for (const v of s.y) { if (v < y0) y0 = v; if (v > y1) y1 = v; }
    }
    if (this.o.bytes) y0 = 0;
    if (!positive) {
      const room = (y1 - y0) * 0.04 || Math.abs(y1) * 0.05 || 1;
      y1 += room;
      if (!this.o.bytes) y0 = y0 >= 0 && y0 < room ? 0 : y0 - room;
    }
    this.scale = this.frame(x0, x1, y0, y1, this.o.formatX, v => this.label(v), { log: positive, bytes: this.o.bytes });
    let n = 0;
    this.series.forEach((s, i) => {
      const color = "c" + (s.color === undefined ? i : s.color) % 10, amount = this.o.smoothing || 0;
      const path = ys => {
        const { px, py } = this.scale, tenth = v => Math.round(v * 10) / 10;
        return thin(s.x, ys, px).map((k, i) => `${i ? "L" : "M"}${tenth(px(s.x[k]))} ${tenth(py(ys[k]))}`).join("");
      };
      n += s.x.length;
      if (amount > 0) this.svg.append(el("path", { class: `series faint ${color}`, d: path(s.y) }));
      this.svg.append(el("path", { class: `series ${color}`, d: path(amount > 0 ? smooth(s.y, amount) : s.y) }));
      if (s.x.length === 1) this.svg.append(el("circle", { class: `dot ${color}`, cx: this.scale.px(s.x[0]), cy: this.scale.py(s.y[0]), r: 2.5 }));
    });
    this.svg.dataset.points = n;
    this.cursor = el("g");
    this.svg.append(this.cursor);
    this.values = this.series.map(() => el("span", { class: "value" }));
    this.keys.replaceChildren(...(this.series.length > 1 ? this.series.map((s, i) => el("span", { class: "key" },
      el("span", { class: "swatch c" + (s.color === undefined ? i : s.color) % 10 }), s.name, this.values[i])) : []));
    const last = s => `${this.series.length > 1 ? s.name + " " : ""}${this.label(s.y[s.y.length - 1])}`;
    this.svg.setAttribute("aria-label", `${this.title}, newest: ${this.series.map(last).join(", ")}`);
    this.showCursor();
  }
  showCursor() {
    if (!this.cursor) return;
    this.cursor.replaceChildren();
    const points = at => this.series.map(s => at === null ? s.x.length - 1 : indexAt(s.x, at));
    const x = this.at === null || this.at >= this.xs().length ? null : this.xs()[this.at], shown = points(x);
    const texts = this.series.map((s, i) => this.label(s.y[shown[i]]));
    this.values.forEach((e, i) => { e.textContent = texts[i]; });
    const one = this.series.length === 1 ? texts[0] : "";
    this.readout.textContent = x === null ? one : `${this.o.xName} ${(this.o.readX || this.o.formatX)(x)}${one && ": " + one}`;
    if (x === null) return;
    const px = this.scale.px(x);
    this.cursor.append(el("line", { class: "cursor", x1: px, x2: px, y1: this.plot.top, y2: this.plot.top + this.plot.height }),
      ...this.series.map((s, i) => el("circle", { class: "dot c" + (s.color === undefined ? i : s.color) % 10,
        cx: this.scale.px(s.x[shown[i]]), cy: this.scale.py(s.y[shown[i]]), r: 3 })));
  }
}

/* ---- stacked areas over the ops of a step ---- */

class StackChart extends Chart {
  constructor(parent, title, onMove) {
    super(parent, title, 200);
    this.onMove = onMove;
    this.columns = [];
  }
  xs() { return this.columns; }
  /* bytes[role][point]; color[role]; names of points for the readout; marks: where the peak is, and a limit. */
  setData(data) {
    this.data = data;
    this.columns = data.sums.map((_, i) => i);
    this.update();
  }
  draw() {
    if (!this.columns.length || !this.width) return;
    const d = this.data, n = this.columns.length, top = Math.max(...d.sums) * 1.12 || 1;  /* names of sections stand above */
    this.scale = this.frame(0, n, 0, d.limit && d.limit < top * 1.6 ? Math.max(top, d.limit * 1.02) : top, formatCount, formatBytes, { bytes: true });
    const below = new Array(n).fill(0);
    d.bytes.forEach((row, r) => {
      if (!row.some(v => v > 0)) return;
      let up = "", down = "";
      for (let i = 0; i < n; i++) {
        const y0 = this.scale.py(below[i]).toFixed(1), y1 = this.scale.py(below[i] + row[i]).toFixed(1), a = this.scale.px(i).toFixed(1), b = this.scale.px(i + 1).toFixed(1);
        up += `${i ? "L" : "M"}${a} ${y1}L${b} ${y1}`;
        down = `L${b} ${y0}L${a} ${y0}` + down;
        below[i] += row[i];
      }
      this.svg.append(el("path", { class: `area ${d.color[r]}`, d: up + down + "Z" }));
    });
    this.drawSections();
    if (d.limit) this.level(d.limit, "limit");
    const px = this.scale.px(d.peak + 0.5);
    this.svg.append(el("line", { class: "peak", x1: px, x2: px, y1: this.plot.top, y2: this.plot.top + this.plot.height }));
    this.svg.dataset.points = n;
    this.svg.setAttribute("aria-label", `${this.title}: ${n} points, peak ${formatBytes(d.sums[d.peak])} at ${d.label(d.peak)}`);
    this.cursor = el("g");
    this.svg.append(this.cursor);
    this.showCursor();
  }
  /* A line where a section begins, and its name where there is room. */
  drawSections() {
    const n = this.columns.length, of = this.data.section;
    for (let i = 0, end; i < n && of(i); i = end) {
      for (end = i + 1; end < n && of(end) === of(i);) end++;
      const px = this.scale.px(i), room = this.scale.px(end) - px;
      if (i) this.svg.append(el("line", { class: "cursor", x1: px, x2: px, y1: this.plot.top, y2: this.plot.top + this.plot.height }));
      if (room > 7 * of(i).length + 6) this.svg.append(el("text", { x: px + 4, y: this.plot.top + 10 }, of(i)));
    }
  }
  level(v, name) {
    const y = this.scale.py(v);
    if (y >= 0) this.svg.append(el("line", { class: name, x1: this.plot.left, x2: this.plot.left + this.plot.width, y1: y, y2: y }));
  }
  showCursor() {
    if (!this.cursor) return;
    this.cursor.replaceChildren();
    const i = this.at === null || this.at >= this.columns.length ? null : this.at;
    if (i !== null) {
      const px = this.scale.px(i + 0.5);
      this.cursor.append(el("line", { class: "cursor", x1: px, x2: px, y1: this.plot.top, y2: this.plot.top + this.plot.height }));
    }
    const shown = i === null ? this.data.peak : i;
    this.readout.textContent = `${i === null ? "peak " : ""}${formatBytes(this.data.sums[shown])} at ${this.data.label(shown)}`;
    this.onMove(i);
  }
}
