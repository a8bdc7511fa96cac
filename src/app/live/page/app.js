/* app.js - load the run, draw it, then append what the server sends. Everything that is shown is inserted as text. */
"use strict";

const $ = id => document.getElementById(id);
const known = { metrics: new Map(), run: null, memory: null, plan: null, samples: [], completions: [], ranks: { ranks: [], now: 0, unseen: 0 } };
let loading = null;      /* the metrics, under way */
let waiting = null;      /* events that came meanwhile */
let appended = 0;        /* points since then */
let clockOffset = 0;     /* of the server, in seconds */
let dirty = new Set();

/* The token was of use once: it must not stay in the address and the history. */
if (location.search) history.replaceState(null, "", "/");

/* JSON whose marks of writing direction become visible: names and texts come from anyone, and such a mark in them would show the
   text around it in another order. They stand as they are or as \u202e; a doubled backslash begins no escape. */
function readJson(text) {
  const marks = /\\\\|\\u(?:061c|200[ef]|202[a-e]|206[6-9])|[\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069]/gi;
  return JSON.parse(text.replace(marks, c => (c === "\\\\" ? c :
    "\\\\u" + (c.length > 1 ? c.slice(2) : c.charCodeAt(0).toString(16).padStart(4, "0")))));
}

async function get(path) {
  const answer = await fetch(path, { cache: "no-store" });
  if (!answer.ok) throw new Error(`${path}: ${answer.status} ${(await answer.text()).slice(0, 200)}`);
  return readJson(await answer.text());
}

const isNumbers = a => Array.isArray(a) && a.every(Number.isFinite);
const isCurve = c => c && isNumbers(c.x) && isNumbers(c.y) && c.x.length === c.y.length;

/* ---- drawing is asked for, and done once per frame ---- */

function redraw(...parts) {
  if (!dirty.size) requestAnimationFrame(() => {
    const now = dirty;
    dirty = new Set();
    for (const part of now) {
      try { draw[part](); } catch (e) { console.error(part, e); }  /* one strange file must not stop the rest */
    }
  });
  parts.forEach(p => dirty.add(p));
}

/* ---- progress ---- */

function drawRun() {
  const r = known.run;
  if (!r) return;
  $("name").textContent = r.name;
  $("state").textContent = r.state === "unknown" ? "state unknown" : r.state;
  $("state").dataset.state = r.state;
  $("about").textContent = [r.task, r.model, r.data, r.host && `on ${r.host}`, r.world > 1 && `${r.world} ranks`, r.ralo && `ralo ${r.ralo}`]
    .filter(Boolean).join(" · ");
  $("error").textContent = r.error || (r.state === "died" ? "The process of this run is gone, and it did not say why." : "");
  $("error").hidden = !$("error").textContent;
  const share = r.steps > 0 ? Math.min(1, r.step / r.steps) : NaN;
  $("bar-fill").style.width = `${(share || 0) * 100}%`;
  $("bar").setAttribute("aria-valuenow", Math.round((share || 0) * 100));
  const end = r.ended || (r.state === "running" ? Date.now() / 1000 + clockOffset : NaN);
  const tiles = [
    ["step", r.steps > 0 ? `${formatWhole(r.step)} / ${formatWhole(r.steps)}` : formatWhole(r.step)],
    r.epoch !== undefined && ["epoch", `${formatNumber(r.epoch)} / ${formatNumber(r.epochs)}`],
    ["loss", formatNumber(r.loss)],
    ["time left", r.state === "running" ? formatTime(r.eta_seconds) : "–"],
    ["elapsed", formatTime(end - r.started)],
    ["tokens/s", formatCount(r.tokens_per_second)],
    ["step time", Number.isFinite(r.step_ms) ? formatNumber(r.step_ms) + " ms" : "–"],
    ["tokens", formatCount(r.tokens)],
    ["device memory", formatBytes(r.device_bytes)],
    ...meterTiles(r),
    Number.isFinite(r.reading) && ["reading", Math.round(r.reading * 100) + " %"],
  ].filter(Boolean);
  $("tiles").replaceChildren(...tiles.map(([k, v]) => el("div", { "data-tile": k }, el("dt", {}, k), el("dd", {}, v))));
  document.title = `${Number.isFinite(share) ? Math.floor(share * 100) + " % · " : ""}${r.name} · ralo`;
}

/* What a GPU's driver measures: [key, name in the table and in charts, how it is written]. A run without a GPU has none. */
const METERS = [["gpu_busy_percent", "GPU busy, %", n => `${formatNumber(n)} %`], ["gpu_watts", "GPU power, W", n => `${formatWhole(n)} W`],
  ["gpu_celsius", "GPU temperature, °C", n => `${formatWhole(n)} °C`]];

/* Of several ranks the mean share, the sum of the power and the hottest. */
function meterTiles(r) {
  const of = key => known.ranks.ranks.map(one => one[key]).filter(Number.isFinite), many = known.ranks.ranks.length > 1;
  const [busy, watts, celsius] = METERS.map(([key]) => of(key)), sum = a => a.reduce((x, y) => x + y, 0);
  return r.state !== "running" ? [] : [
    busy.length && [many ? "GPUs busy, mean" : "GPU busy", METERS[0][2](sum(busy) / busy.length)],
    watts.length && [many ? "GPU power, sum" : "GPU power", METERS[1][2](sum(watts))],
    celsius.length && [many ? "hottest GPU" : "GPU temperature", METERS[2][2](Math.max(...celsius))],
  ];
}

/* ---- the settings that matter ---- */

const isGiven = v => v !== undefined && v !== "" && v !== "none" && v !== "auto";

function drawSettings() {
  const r = known.run || {}, s = r.settings || {}, p = known.plan || {}, t = p.strategy || {};
  const rank = Number(s["model.lora.rank"]) || 0, some = list => list.filter(Boolean).join(", ");
  const loss = { preference: s["preference.loss"], rloo: s["rl.loss"] }[r.task];
  const share = p.trained_parameters / p.parameters;
  const pairs = [
    ["method", r.task && some([loss && loss !== r.task ? `${r.task}: ${loss}` : r.task, r.task === "preference" && isGiven(s["preference.beta"]) && `beta ${s["preference.beta"]}`,
      isGiven(s["train.weighting"]) && s["train.weighting"] !== "baseline" && `tokens weighed by ${s["train.weighting"]}`])],
    ["model", r.model && some([r.model, Number.isFinite(p.parameters) && `${formatCount(p.parameters)} parameters`])],
    ["trained", Number.isFinite(share) && (share < 1 ? `${formatCount(p.trained_parameters)} parameters (${formatNumber(Number((share * 100).toPrecision(2)))} %)` : "all parameters")],
    ["LoRA", s["model.lora.rank"] !== undefined && (rank > 0 ? some([`rank ${rank}`, `alpha ${isGiven(s["model.lora.alpha"]) ? s["model.lora.alpha"] : 2 * rank}`, s["model.lora.targets"],
      s["model.base"] !== "bf16" && isGiven(s["model.base"]) && `base in ${s["model.base"]}`]) : isGiven(s["model.adapter"]) ? `from ${s["model.adapter"]}` : "no")],
    ["data", isGiven(s["data.source"]) ? some([s["data.source"], Number.isFinite(r.records) && `${formatWhole(r.records)} records`]) : r.data],
    ["rewards", r.task === "rloo" && isGiven(s["reward.list"]) && s["reward.list"]],
    ["epochs", Number.isFinite(r.epochs) ? formatNumber(r.epochs) : Number.isFinite(r.steps) && `${formatWhole(r.steps)} steps of endless data`],
    ["learning rate", s["train.lr"] !== undefined && some([isGiven(s["train.lr"]) ? formatNumber(Number(s["train.lr"])) : s["train.lr"], s["train.schedule"],
      isGiven(s["train.warmup_ratio"]) ? `warmup ${formatNumber(s["train.warmup_ratio"] * 100)} %` : isGiven(s["train.warmup"]) && Number(s["train.warmup"]) !== 0 && `warmup ${s["train.warmup"]} steps`])],
    ["batch", Number.isFinite(p.tokens_per_step) && t.seq_len > 0 && some([`${formatWhole(p.tokens_per_step / t.seq_len)} rows of ${formatWhole(t.seq_len)} tokens`, `micro-batch ${t.micro_batch}`])],
    ["precision", (t.precision || s.precision) && some([t.precision || s.precision, t.states && t.states !== "fp32" && `optimizer states ${t.states}`])],
    ["weight decay", s["train.weight_decay"]],
    ["seed", s["train.seed"]],
  ].filter(([, v]) => v !== undefined && v !== false && v !== "");
  $("settings-section").hidden = Object.keys(s).length === 0;
  $("settings").replaceChildren(...pairs.map(([k, v]) => el("div", { "data-setting": k }, el("dt", {}, k), el("dd", {}, v))));
}

/* ---- curves ---- */

const LOSSES = ["train/loss", "val/loss"];
const charts = new Map();  /* by metric */
let lossChart = null;

/* What a task reports comes first, what every run has comes last. */
const LATER = ["perf/", "memory/", "tokens"];
const later = name => LATER.findIndex(p => name.startsWith(p));

function chartOptions() { return { log: $("log").checked, smoothing: Number($("smoothing").value) }; }

function chartOf(name) {
  if (!charts.has(name)) {
    const bytes = name.endsWith("_bytes"), count = name === "tokens" || name.endsWith("_per_sec");
    const chart = new LineChart($("metrics"), name, { bytes, formatY: count ? formatCount : formatNumber });
    chart.figure.dataset.metric = name;
    charts.set(name, chart);
    const order = [...charts].sort(([a], [b]) => later(a) - later(b));  /* stable: else as in the file */
    order.forEach(([, c]) => $("metrics").append(c.figure));
  }
  return charts.get(name);
}

function drawCurves() {
  const losses = LOSSES.filter(n => known.metrics.has(n)).map((n, i) => ({ name: n, color: i, ...known.metrics.get(n) }));
  if (losses.length && !lossChart) {
    lossChart = new LineChart($("loss"), "loss", { height: 280 });
    lossChart.figure.dataset.metric = "loss";
  }
  if (losses.length) lossChart.setSeries(losses, chartOptions());
  for (const [name, curve] of known.metrics) {
    if (LOSSES.includes(name)) continue;
    const chart = chartOf(name);
    if ($("more").open) chart.setSeries([{ name, color: 0, ...curve }], chartOptions());
  }
  $("more").hidden = charts.size === 0;
  for (const [name, chart] of charts) chart.figure.hidden = !known.metrics.has(name);  /* a file that was written anew */
}

function append(event) {
  for (const [name, curve] of Object.entries(event.metrics || {})) {
    if (!isCurve(curve)) continue;
    if (!known.metrics.has(name)) known.metrics.set(name, { x: [], y: [] });
    const to = known.metrics.get(name);
    for (let i = 0; i < curve.x.length; i++) {
      if (to.x.length && curve.x[i] <= to.x[to.x.length - 1]) continue;  /* known already */
      to.x.push(curve.x[i]);
      to.y.push(curve.y[i]);
      appended++;
    }
  }
  redraw("curves");
  /* The server thins what is too much for the page's width. */
  if (appended > 2000 * Math.max(1, known.metrics.size)) loadMetrics().catch(failed);
}

/* ---- memory ---- */

const ROLES = ["params", "grads", "states", "inputs", "cache", "comm", "activations", "work"];
const colorOf = role => "role-" + (ROLES.includes(role) ? role : "gaps");

/* One bar: parts = [[role, bytes]], which add up to the plan of this tier. roles: those of the legend. */
function memoryBar(title, parts, total, note, roles = null) {
  const shown = parts.filter(([role, n]) => (roles ? roles.includes(role) : n > 0)), whole = Math.max(total, 1);
  const track = el("div", { class: "track", role: "img", "aria-label": `${title}: ${shown.map(([k, n]) => `${k} ${formatBytes(n)}`).join(", ")}` });
  for (const [role, n] of shown.filter(([, n]) => n > 0)) {
    const part = el("div", { class: colorOf(role), title: `${role}: ${formatBytes(n)}`, "data-role": role, "data-bytes": n });
    part.style.width = `${n / whole * 100}%`;
    track.append(part);
  }
  const legend = el("ul", { class: "legend" }, ...shown.map(([role, n]) =>
    el("li", {}, el("span", { class: "swatch " + colorOf(role) }), role, el("span", { class: "amount" }, formatBytes(n)))));
  return el("div", { class: "memory-bar", "data-total": total }, el("div", { class: "title-row" }, el("h3", {}, title), el("span", { class: "quiet" }, note)), track, legend);
}

/* memory.json is a file of anyone: what does not have its form is not drawn. */
function tiersOf(step) {
  if (!step || !Array.isArray(step.roles) || !Array.isArray(step.tiers)) return [];
  return step.tiers.filter(t => t && t.points && Array.isArray(t.points.bytes) && t.points.bytes.length === step.roles.length &&
    t.points.bytes.every(isNumbers) && t.points.bytes.every(row => row.length === t.points.bytes[0].length) && t.points.bytes[0].length > 0)
    .map(t => {
      const n = t.points.bytes[0].length, sums = new Array(n).fill(0);
      for (const row of t.points.bytes) for (let i = 0; i < n; i++) sums[i] += row[i];
      const at = t.peak && Number.isInteger(t.peak.at) && t.peak.at >= 0 && t.peak.at < n ? t.peak.at : sums.indexOf(Math.max(...sums));
      const op = i => (t.points.op && t.points.op[i]) || `op ${i}`, section = i => String((t.points.section && t.points.section[i]) || "");
      return { name: String(t.tier), roles: step.roles.map(String), bytes: t.points.bytes, sums, peak: at, planned: t.planned_peak,
        measured: t.measured_peak, limit: t.limit, section, label: i => `${op(i)}${section(i) ? ` (${section(i)})` : ""}` };
    }).filter(t => t.sums[t.peak] > 0);
}

const stackCharts = new Map();
const hovered = new Map();

function drawBars() {
  const tiers = tiersOf(known.memory && known.memory.step), bars = [];
  for (const t of tiers) {
    const i = hovered.get(t.name) ?? t.peak, at = hovered.has(t.name);
    const facts = [`plan ${formatBytes(t.planned)}`, Number.isFinite(t.measured) && t.measured !== null && `measured ${formatBytes(t.measured)}`,
      t.limit && `limit ${formatBytes(t.limit)}`].filter(Boolean).join(" · ");
    bars.push(memoryBar(`${t.name}: ${formatBytes(t.sums[i])} by role ${at ? "at " + t.label(i) : "at the peak"}`,
      t.roles.map((r, k) => [r, t.bytes[k][i]]), Math.max(t.planned || 0, t.sums[t.peak]), facts, t.roles.filter((_, k) => t.bytes[k].some(n => n > 0))));
  }
  const plan = known.plan && known.plan.memory;
  if (!tiers.length && plan && plan.by_role) {
    const planned = plan.device ? plan.device.planned : NaN;
    bars.push(memoryBar(`device: ${formatBytes(planned)} by role at the peak`, Object.entries(plan.by_role).filter(([, n]) => Number.isFinite(n)), planned,
      Number.isFinite(known.run && known.run.device_bytes) ? `measured ${formatBytes(known.run.device_bytes)}` : ""));
  }
  $("bars").replaceChildren(...bars);
  $("memory-none").hidden = bars.length > 0;
}

function drawStepMemory() {
  const tiers = tiersOf(known.memory && known.memory.step);
  for (const t of tiers) {
    if (!stackCharts.has(t.name)) {
      const chart = new StackChart($("step-memory"), `${t.name} memory over one step, by op`, i => {
        const before = hovered.get(t.name);
        if (i === null) hovered.delete(t.name); else hovered.set(t.name, i);
        if (before !== hovered.get(t.name)) redraw("bars");
      });
      chart.figure.dataset.tier = t.name;
      stackCharts.set(t.name, chart);
    }
    stackCharts.get(t.name).setData({ ...t, color: t.roles.map(colorOf) });
  }
}

const MONITORED = [["rss_bytes", "process (RSS)"], ["device_bytes", "device"], ["driver_bytes", "driver"], ["host_bytes", "host tier"]];
let runMemoryChart = null;

function drawRunMemory() {
  const curves = ((known.memory && known.memory.curves) || []).filter(c => MONITORED.some(([k]) => isCurve(c[k]) && c[k].x.length));
  $("rank-choice-row").hidden = curves.length < 2;
  if (!curves.length) return;
  const choice = $("rank-choice"), names = curves.map(c => String(c.rank));
  if ([...choice.options].map(o => o.value).join() !== names.join()) choice.replaceChildren(...names.map(n => el("option", { value: n }, n)));
  const one = curves.find(c => String(c.rank) === choice.value) || curves[0];
  const first = Math.min(...MONITORED.filter(([k]) => isCurve(one[k]) && one[k].x.length).map(([k]) => one[k].x[0]));
  const start = Math.min(first, (known.run && known.run.started) || first);
  runMemoryChart = runMemoryChart || new LineChart($("run-memory"), "memory over the run", { height: 180, bytes: true, xName: "at", formatX: formatTime, readX: formatTime });
  runMemoryChart.figure.dataset.metric = "memory over the run";
  drawRunMeters(one, start);
  runMemoryChart.setSeries(MONITORED.map(([k, name], i) => ({ name, color: i, x: isCurve(one[k]) ? one[k].x.map(t => t - start) : [], y: isCurve(one[k]) ? one[k].y : [] })));
}

const meterCharts = new Map();

function drawRunMeters(one, start) {
  for (const [key, name] of METERS) {
    if (!isCurve(one[key]) || !one[key].x.length) continue;
    if (!meterCharts.has(key)) {
      const chart = new LineChart($("run-meters"), name, { formatY: formatNumber, xName: "at", formatX: formatTime, readX: formatTime });
      chart.figure.dataset.metric = key;
      meterCharts.set(key, chart);
    }
    meterCharts.get(key).setSeries([{ name, color: 0, x: one[key].x.map(t => t - start), y: one[key].y }]);
  }
}

/* ---- ranks, samples, plan ---- */

function drawRanks() {
  const { ranks, now, unseen } = known.ranks, running = known.run && known.run.state === "running";
  $("ranks-none").hidden = ranks.length > 0;
  $("ranks").hidden = ranks.length === 0;
  const metered = ranks.some(r => METERS.some(([k]) => Number.isFinite(r[k])));
  document.querySelectorAll("#ranks [data-meter]").forEach(e => { e.hidden = !metered; });
  const rows = ranks.map(r => {
    const age = now - r.time, state = !running ? "ended" : age <= 60 ? "alive" : "silent";
    return el("tr", {}, el("td", {}, r.rank), el("td", { "data-state": state }, state), el("td", {}, formatWhole(r.step)),
      el("td", {}, r.time > 0 ? `${formatTime(Math.max(0, age))} ago` : "never"),
      ...MONITORED.map(([k]) => el("td", {}, formatBytes(r[k]))),
      ...(metered ? METERS.map(([k, , format]) => el("td", {}, Number.isFinite(r[k]) ? format(r[k]) : "–")) : []));
  });
  if (unseen) rows.push(el("tr", {}, el("td", { colspan: metered ? 11 : 8 }, `and ${unseen} more`)));
  $("ranks").tBodies[0].replaceChildren(...rows);
}

function drawSamples() {
  const all = [...known.samples, ...known.completions].sort((a, b) => b.step - a.step).slice(0, 40);
  $("samples-none").hidden = all.length > 0;
  $("samples").replaceChildren(...all.map(s => {
    const facts = [`step ${formatWhole(s.step)}`, s.stop && `stop: ${s.stop}`, Number.isFinite(s.reward) && s.reward !== null && `reward ${formatNumber(s.reward)}`,
      Number.isFinite(s.advantage) && s.advantage !== null && `advantage ${formatNumber(s.advantage)}`].filter(Boolean).join(" · ");
    return el("li", {}, el("div", { class: "quiet" }, facts), el("pre", {}, s.prompt, el("mark", {}, s.completion)));
  }));
}

function drawPlan() {
  const p = known.plan;
  $("plan-none").hidden = Boolean(p);
  if (!p) return $("plan").replaceChildren();
  const s = p.strategy || {}, m = p.memory || {}, offload = s.offload && typeof s.offload === "object" ? s.offload : {};
  const away = Object.entries(offload).filter(([, t]) => t !== "device").map(([k, t]) => `${k} to ${t}`).join(", ");
  const tier = t => m[t] && Number.isFinite(m[t].planned) ? formatBytes(m[t].planned) : undefined;
  const scalars = Object.entries(s).filter(([, v]) => v !== null && typeof v !== "object").map(([k, v]) => [k.replaceAll("_", " "), v]);
  const pairs = [["model", p.model], ["parameters", Number.isFinite(p.parameters) ? formatCount(p.parameters) : undefined],
    ["trained parameters", Number.isFinite(p.trained_parameters) ? formatCount(p.trained_parameters) : undefined],
    ["tokens per step", Number.isFinite(p.tokens_per_step) ? formatWhole(p.tokens_per_step) : undefined],
    ["planned device memory", tier("device")], ["planned host memory", tier("host")], ["planned nvme", tier("nvme")],
    ["predicted step time", Number.isFinite(p.step_ms) ? formatNumber(p.step_ms) + " ms" : undefined],
    ["offload", Object.keys(offload).length ? away || "none" : undefined], ...scalars];
  $("plan").replaceChildren(...pairs.filter(([, v]) => v !== undefined && v !== null).map(([k, v]) => el("div", {}, el("dt", {}, k), el("dd", {}, v))));
}

const draw = { run: drawRun, settings: drawSettings, curves: drawCurves, bars: drawBars, stepMemory: drawStepMemory, runMemory: drawRunMemory, ranks: drawRanks, samples: drawSamples, plan: drawPlan };

/* ---- loading ---- */

const columns = () => Math.min(2048, Math.max(200, Math.round(document.documentElement.clientWidth)));

function take(run) {
  known.run = run;
  if (Number.isFinite(run.now)) clockOffset = run.now - Date.now() / 1000;
  redraw("run", "settings", "ranks");
}

/* One at a time: an answer that was under way may be older than what asks for the next. */
function loadMetrics() {
  const mine = (loading || Promise.resolve()).catch(() => {}).then(fetchMetrics);
  loading = mine;
  return mine;
}

async function fetchMetrics() {
  waiting = [];
  appended = 0;
  try {
    const answer = await get(`/api/metrics?width=${columns()}`);
    known.metrics = new Map(Object.entries(answer.metrics || {}).filter(([, c]) => isCurve(c)));
    return answer.id;
  } finally {
    const queued = waiting;
    waiting = null;
    queued.forEach(append);
    redraw("curves");
  }
}

async function loadMemory() {
  known.memory = await get("/api/memory?width=600");
  known.ranks = known.memory.monitor || known.ranks;
  redraw("bars", "stepMemory", "runMemory", "ranks");
}

async function loadPlan() {
  known.plan = await get("/api/plan");
  redraw("plan", "settings", "bars");
}

async function loadSamples() {
  const answer = await get("/api/samples");
  known.samples = answer.samples;
  known.completions = answer.completions;
  redraw("samples");
}

async function loadAll() {
  const id = await loadMetrics();
  take(await get("/api/run"));
  await Promise.all([loadMemory(), loadPlan(), loadSamples()]);
  return id;
}

function say(text) {
  $("connection").textContent = text;
  $("connection").hidden = !text;
}

/* Ranks report once a second: their curves grow here, and are thinned by the server when all is loaded again. */
function appendRanks(event) {
  if (!event || !Array.isArray(event.ranks)) return;
  known.ranks = event;
  const curves = (known.memory && known.memory.curves) || [];
  for (const r of event.ranks) {
    const one = curves.find(c => c.rank === r.rank);
    for (const [k] of [...MONITORED, ...METERS]) {
      if (!one || !isCurve(one[k]) || !Number.isFinite(r[k]) || !(r.time > (one[k].x[one[k].x.length - 1] ?? -Infinity))) continue;
      one[k].x.push(r.time);
      one[k].y.push(r[k]);
    }
  }
  if (!curves.length && event.ranks.length) loadMemory().catch(failed);
  redraw("run", "ranks", "runMemory");
}

function addSamples(list) {
  for (const s of list) {
    const to = s.trained ? known.completions : known.samples;
    to.push(s);
    if (to.length > 40) to.shift();
  }
  redraw("samples");
}

function failed(e) { say(`The server does not answer: ${e.message}. Trying again.`); }

function listen(from) {
  const source = new EventSource(`/events?from=${from}`);
  const on = (name, fn) => source.addEventListener(name, e => fn(readJson(e.data)));
  on("metrics", e => (waiting ? waiting.push(e) : append(e)));
  on("run", take);
  on("ranks", appendRanks);
  on("samples", addSamples);
  on("files", () => Promise.all([loadMemory(), loadPlan()]).catch(failed));
  on("reload", () => loadAll().then(() => say(""), failed));
  on("end", () => {
    source.close();
    say("The server of this page has ended. `ralo live RUN` shows the run again.");
  });
  source.onopen = () => say("");
  source.onerror = () => {
    say("The connection is lost. Trying again.");
    if (source.readyState === EventSource.CLOSED) setTimeout(start, 3000);
  };
}

async function start() {
  try {
    listen(await loadAll());
  } catch (e) {
    failed(e);
    setTimeout(start, 3000);
  }
}

$("log").addEventListener("change", () => redraw("curves"));
$("more").addEventListener("toggle", () => redraw("curves"));
$("smoothing").addEventListener("input", () => redraw("curves"));
$("rank-choice").addEventListener("change", () => redraw("runMemory"));
setInterval(() => { if (known.run && known.run.state === "running") redraw("run"); }, 1000);
start();
