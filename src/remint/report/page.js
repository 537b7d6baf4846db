"use strict";
// Draws what report/data.py wrote into the page. Every chart is a canvas with a tooltip; charts of one run share
// their time axis (drag to zoom, double click to see all).
const DATA = JSON.parse(document.getElementById("data").textContent);
const css = name => getComputedStyle(document.documentElement).getPropertyValue("--" + name).trim();
const COLOR = Object.fromEntries(["ink", "soft", "line", "pinned", "first", "again", "scratch", "evicted", "fetched", "offloaded", "budget"].map(n => [n, css(n)]));
const KINDS = { pinned: "pinned: weights, gradients, what the program holds for good", first: "made by the program's op", again: "rematerialized", fetched: "fetched from the tier", scratch: "scratch of one op" };
const isAway = kind => kind === "evicted" || kind === "offloaded";
const SERIES = ["#d5322d", "#4a86e8", "#2e9d5b", "#f39c1f", "#8e5bd0", "#17a2b8", "#b5651d", "#e2589f", "#7b8794", "#9aa800", "#1c2530", "#00695c", "#ad1457", "#5c6bc0"];

const el = (tag, attributes = {}, ...children) => {
  const node = Object.assign(document.createElement(tag), attributes);
  node.append(...children);
  return node;
};
const trim = x => x.replace(/(\.\d*?)0+$/, "$1").replace(/\.$/, "");
function bytes(n) {
  if (n < 1024) return `${Math.round(n)} B`;
  for (const unit of ["KiB", "MiB", "GiB", "TiB"]) if ((n /= 1024) < 1024 || unit === "TiB") return `${trim(n.toFixed(n < 10 ? 2 : 1))} ${unit}`;
}
function seconds(s) {
  if (s === 0) return "0";
  for (const [f, unit] of [[1, "s"], [1e3, "ms"], [1e6, "µs"], [1e9, "ns"]]) if (Math.abs(s * f) >= 1 || unit === "ns") return `${trim((s * f).toPrecision(4))} ${unit}`;
}
// Math.max(...values) would overflow the stack.
const largest = values => values.reduce((a, b) => Math.max(a, b), 0);
const count = n => n.toLocaleString("en");
const escape = s => String(s).replace(/[&<>]/g, c => ({ "&": "&amp;", "<": "&lt;", ">": "&gt;" }[c]));

// Tick values that people like, at most `most` of them; bytes in powers of two.
function ticks(low, high, most, binary) {
  const span = high - low || 1;
  let step = binary ? 2 ** Math.ceil(Math.log2(span / most)) : 10 ** Math.ceil(Math.log10(span / most));
  if (!binary) for (const part of [5, 2]) if (span / (step / part) <= most) { step /= part; break; }
  const values = [];
  for (let k = Math.ceil(low / step - 1e-9); k * step <= high + span * 1e-9; k++) values.push(k * step);
  return values;
}

const tip = document.getElementById("tip");
function showTip(event, html) {
  if (!html) { tip.hidden = true; return; }
  tip.innerHTML = html;
  tip.hidden = false;
  const x = event.clientX + 16, y = event.clientY + 14;
  tip.style.left = Math.min(x, innerWidth - tip.offsetWidth - 8) + "px";
  tip.style.top = (y + tip.offsetHeight > innerHeight ? event.clientY - tip.offsetHeight - 10 : y) + "px";
}

// A canvas with axes. `draw(chart, pen)` draws inside, `hover(chart, x, y)` returns the tooltip's text.
class Chart {
  constructor(parent, { height, x, y, xLabel, yLabel, formatX, formatY, binaryX, binaryY, draw, hover, view }) {
    Object.assign(this, { height, x, y, xLabel, yLabel, formatX, formatY, binaryX, binaryY, drawInside: draw, hover, view });
    this.margin = { left: 74, right: 30, top: 18, bottom: 40 };
    this.canvas = el("canvas");
    parent.append(this.canvas);
    view?.charts.push(this);
    this.canvas.addEventListener("mousemove", e => this.moved(e));
    this.canvas.addEventListener("mouseleave", () => { this.point = null; showTip(null, ""); this.draw(); });
    if (view) this.zoomable();
    new ResizeObserver(() => this.draw()).observe(this.canvas.parentElement);
    this.draw();
  }
  get range() { return this.view ? this.view.range : this.x; }
  px(v) { const [a, b] = this.range; return this.margin.left + (v - a) / (b - a || 1) * this.inner; }
  py(v) { const [a, b] = this.y; return this.height - this.margin.bottom - (v - a) / (b - a || 1) * (this.height - this.margin.top - this.margin.bottom); }
  vx(px) { const [a, b] = this.range; return a + (px - this.margin.left) / this.inner * (b - a); }
  vy(py) { const [a, b] = this.y; return a + (this.height - this.margin.bottom - py) / (this.height - this.margin.top - this.margin.bottom) * (b - a); }
  draw() {
    const width = this.canvas.parentElement.clientWidth - 40, ratio = devicePixelRatio || 1;
    if (width <= 0) return;
    this.inner = width - this.margin.left - this.margin.right;
    this.canvas.width = width * ratio; this.canvas.height = this.height * ratio; this.canvas.style.height = this.height + "px";
    const pen = this.pen = this.canvas.getContext("2d");
    pen.scale(ratio, ratio);
    pen.font = "12px system-ui, 'DejaVu Sans', sans-serif";
    const { left, top, bottom } = this.margin, floor = this.height - bottom;
    pen.strokeStyle = COLOR.line; pen.fillStyle = COLOR.soft; pen.textAlign = "right"; pen.textBaseline = "middle";
    for (const v of ticks(...this.y, 6, this.binaryY)) { this.line(left, this.py(v), left + this.inner, this.py(v)); pen.fillText(this.formatY(v), left - 8, this.py(v)); }
    pen.textAlign = "center"; pen.textBaseline = "top";
    for (const v of ticks(...this.range, Math.max(2, this.inner / 110), this.binaryX)) pen.fillText(this.formatX(v), this.px(v), floor + 7);
    pen.fillText(this.xLabel, left + this.inner / 2, floor + 23);
    pen.save(); pen.translate(10, (top + floor) / 2); pen.rotate(-Math.PI / 2); pen.textBaseline = "middle"; pen.fillText(this.yLabel, 0, 0); pen.restore();
    pen.save(); pen.beginPath(); pen.rect(left, 0, this.inner, floor + 1); pen.clip();
    this.drawInside(this, pen);
    if (this.dragFrom != null) { pen.fillStyle = "#4a86e833"; pen.fillRect(this.dragFrom, top, this.dragTo - this.dragFrom, floor - top); }
    pen.restore();
  }
  line(x0, y0, x1, y1) { this.pen.beginPath(); this.pen.moveTo(x0, y0); this.pen.lineTo(x1, y1); this.pen.stroke(); }
  moved(event) {
    const box = this.canvas.getBoundingClientRect(), x = event.clientX - box.left, y = event.clientY - box.top;
    this.point = [x, y];
    if (this.dragFrom != null) this.dragTo = x;
    const inside = x >= this.margin.left && x <= this.margin.left + this.inner && y >= 0 && y <= this.height - this.margin.bottom;
    showTip(event, inside ? this.hover(this, x, y) : "");
    this.draw();
  }
  zoomable() {
    this.canvas.addEventListener("mousedown", e => { this.dragFrom = this.dragTo = e.clientX - this.canvas.getBoundingClientRect().left; });
    addEventListener("mouseup", () => {
      if (this.dragFrom == null) return;
      const [a, b] = [this.dragFrom, this.dragTo].sort((p, q) => p - q).map(p => this.vx(p));
      const wide = Math.abs(this.dragTo - this.dragFrom) > 5;
      this.dragFrom = null;
      if (wide) this.view.zoom([Math.max(a, this.view.all[0]), Math.min(b, this.view.all[1])]); else this.draw();
    });
    this.canvas.addEventListener("dblclick", () => this.view.zoom(this.view.all));
  }
}

// The time axis that the charts of one run share.
class View {
  constructor(all) { this.all = this.range = all; this.charts = []; }
  zoom(range) { this.range = range; this.charts.forEach(c => c.draw()); }
}

// The last index whose value is at most `v`.
function before(values, v) {
  let low = 0, high = values.length;
  while (low < high) { const mid = (low + high) >> 1; if (values[mid] <= v) low = mid + 1; else high = mid; }
  return low - 1;
}

function section(parent, title, note) {
  const node = el("section", {}, el("h2", { textContent: title }));
  if (note) node.append(el("p", { className: "note", textContent: note }));
  parent.append(node);
  return node;
}
function legend(parent, entries) {
  const node = el("div", { className: "legend" });
  for (const [color, text] of entries) node.append(el("span", {}, Object.assign(el("i", { className: "swatch" }), { style: `background:${color}` }), text));
  parent.append(node);
  return node;
}
function cards(parent, entries) {
  parent.append(el("div", { className: "cards" }, ...entries.map(([value, text, bad]) => el("div", { className: "card" + (bad ? " bad" : "") }, el("b", { textContent: value }), el("span", { textContent: text })))));
}
function table(parent, headings, rows) {
  const numeric = h => h.startsWith("#");
  const head = el("tr", {}, ...headings.map(h => el("th", { textContent: h.replace("#", ""), className: numeric(h) ? "n" : "" })));
  const body = rows.map(row => el("tr", {}, ...row.map((cell, k) => cell instanceof Node ? cell : el("td", { innerHTML: cell, className: numeric(headings[k]) ? "n" : "" }))));
  parent.append(el("div", { className: "scroll" }, el("table", {}, el("thead", {}, head), el("tbody", {}, ...body))));
}

function phases(chart, pen, marks) {
  if (!marks.length) return;
  const names = [[0, marks[0][1] === "backward" ? "forward" : "start"], ...marks], [, end] = chart.view.all;
  pen.textBaseline = "middle"; pen.textAlign = "left"; pen.fillStyle = COLOR.soft; pen.strokeStyle = COLOR.soft;
  names.forEach(([at, name], k) => {
    const x0 = chart.px(at), x1 = chart.px(names[k + 1]?.[0] ?? end);
    if (k > 0) { pen.setLineDash([2, 3]); chart.line(x0, 0, x0, chart.height - chart.margin.bottom); pen.setLineDash([]); }
    if (x1 - x0 > pen.measureText(name).width + 10) pen.fillText(name, Math.max(x0, chart.margin.left) + 5, 8);
  });
}
function budgetLine(chart, pen, budget, named = true) {
  if (!budget) return;
  const y = chart.py(budget);
  pen.strokeStyle = COLOR.budget; pen.fillStyle = COLOR.budget; pen.lineWidth = 1.5; pen.setLineDash([7, 4]);
  chart.line(chart.margin.left, y, chart.margin.left + chart.inner, y);
  pen.setLineDash([]); pen.lineWidth = 1; pen.textAlign = "right"; pen.textBaseline = "bottom";
  if (named) pen.fillText(`budget ${bytes(budget)}`, chart.margin.left + chart.inner - 6, y - 3);
}
function steps(chart, pen, t, values, close) {
  pen.beginPath();
  const [a, b] = chart.range, floor = chart.py(0);
  const first = Math.max(0, before(t, a)), last = Math.min(t.length - 1, before(t, b) + 1);
  if (close) pen.moveTo(chart.px(t[first]), floor);
  for (let k = first; k <= last; k++) {
    if (k > first) pen.lineTo(chart.px(t[k]), chart.py(values[k - 1]));
    pen[k === first && !close ? "moveTo" : "lineTo"](chart.px(t[k]), chart.py(values[k]));
  }
  if (last === t.length - 1) pen.lineTo(chart.px(Math.max(chart.view.all[1], t[last])), chart.py(values[last]));
  if (close) { pen.lineTo(chart.px(last === t.length - 1 ? chart.view.all[1] : t[last]), floor); pen.closePath(); }
}

// What leaves for the tier at the foot of the chart, what comes back above it.
function transferMarks(chart, pen, { t, leaves }) {
  const floor = chart.height - chart.margin.bottom, tall = 9;
  for (let k = 0; k < t.length; k++) {
    pen.fillStyle = leaves[k] ? COLOR.offloaded : COLOR.fetched;
    pen.fillRect(chart.px(t[k]) - 1, floor - (leaves[k] ? tall : 2 * tall + 2), 1.6, tall);
  }
}

function timeline(parent, run, view) {
  const { t, resident, pinned, evicted, offloaded } = run.line, moves = run.transfers;
  const needed = evicted && resident.map((r, k) => r + evicted[k] + (offloaded ? offloaded[k] : 0));
  const node = section(parent, "Memory over time", run.type === "plan" ? "Bytes resident while the plan is carried out, counted at each op before anything is freed." : `Bytes in use over the time that ops ${moves ? "and transfers " : ""}took. Drag to zoom, double-click for everything.`);
  const top = Math.max(run.budget || 0, largest(needed || resident));
  const chart = new Chart(node, {
    height: 270, view, y: [0, top * 1.08], xLabel: "time of ops", yLabel: "bytes", formatX: seconds, formatY: bytes, binaryY: true,
    draw(chart, pen) {
      pen.fillStyle = COLOR.first + "40"; steps(chart, pen, t, resident, true); pen.fill();
      if (pinned) { pen.fillStyle = COLOR.pinned + "a0"; steps(chart, pen, t, pinned, true); pen.fill(); }
      if (needed) { pen.strokeStyle = COLOR.evicted; pen.setLineDash([3, 2]); steps(chart, pen, t, needed, false); pen.stroke(); pen.setLineDash([]); }
      pen.strokeStyle = COLOR.first; pen.lineWidth = 1.3; steps(chart, pen, t, resident, false); pen.stroke(); pen.lineWidth = 1;
      if (offloaded) { pen.strokeStyle = COLOR.offloaded; pen.lineWidth = 1.6; steps(chart, pen, t, offloaded, false); pen.stroke(); pen.lineWidth = 1; }
      if (moves) transferMarks(chart, pen, moves);
      phases(chart, pen, run.marks); budgetLine(chart, pen, run.budget);
      if (chart.point) { pen.strokeStyle = "#0005"; chart.line(chart.point[0], chart.margin.top, chart.point[0], chart.height - chart.margin.bottom); }
    },
    hover(chart, x) {
      const k = Math.max(0, before(t, chart.vx(x)));
      return `<b>${seconds(chart.vx(x))}</b>\nresident ${bytes(resident[k])}` + (pinned ? `\npinned ${bytes(pinned[k])}` : "") + (evicted ? `\nevicted, needed again ${bytes(evicted[k])}` : "") + (offloaded ? `\nin the tier only ${bytes(offloaded[k])}` : "") + (run.budget ? `\n${(100 * resident[k] / run.budget).toFixed(1)}% of the budget` : "");
    },
  });
  const entries = [[COLOR.first + "70", "resident"]];
  if (pinned) entries.push([COLOR.pinned, "of which pinned"]);
  if (needed) entries.push([COLOR.evicted, `resident + evicted${offloaded ? " + offloaded" : ""}: what it would take without eviction from here`]);
  if (offloaded) entries.push([COLOR.offloaded, "offloaded: in the tier only"]);
  if (moves) entries.push([COLOR.offloaded, "tick at the foot: leaves for the tier"], [COLOR.fetched, "tick above: comes back"]);
  legend(node, entries);
  return chart;
}

function hue(name) { let h = 7; for (const c of name) h = (h * 31 + c.charCodeAt(0)) % 360; return `hsl(${h} 58% 62%)`; }

function arenaMap(parent, run, view) {
  const r = run.rects, n = r.begin.length, labels = run.labels;
  const node = section(parent, "Arena map", "Every block of the arena: address against time. White is free; white between blocks, too small for anyone, is fragmentation. A red edge: evicted to make space. Hover to follow one storage through all its places.");
  let byOp = false;
  const name = k => r.label[k] < 0 ? "scratch" : labels[r.label[k]][0];
  const find = (chart, x, y) => {
    const t = chart.vx(x), a = chart.vy(y);
    for (let k = n - 1; k >= 0; k--) if (r.begin[k] <= t && t < r.end[k] && r.address[k] <= a && a < r.address[k] + r.nbytes[k] && !isAway(r.kind[k])) return k;
    return -1;
  };
  const chart = new Chart(node, {
    height: 430, view, y: [0, run.budget], xLabel: "time of ops", yLabel: "address", formatX: seconds, formatY: bytes, binaryY: true,
    draw(chart, pen) {
      const [a, b] = chart.range;
      pen.fillStyle = "#fff"; pen.fillRect(chart.margin.left, chart.margin.top, chart.inner, chart.height - chart.margin.top - chart.margin.bottom);
      const box = k => { const x = chart.px(r.begin[k]), y = chart.py(r.address[k] + r.nbytes[k]); return [x, y, Math.max(chart.px(r.end[k]) - x, .6), Math.max(chart.py(r.address[k]) - y, .6)]; };
      for (let k = 0; k < n; k++) {
        if (r.end[k] < a || r.begin[k] > b || isAway(r.kind[k])) continue;
        const [x, y, w, h] = box(k);
        pen.fillStyle = byOp && r.label[k] >= 0 ? hue(name(k)) : COLOR[r.kind[k]];
        pen.fillRect(x, y, w, h);
        if (w > 3 && h > 3) { pen.strokeStyle = "#ffffffb0"; pen.lineWidth = .6; pen.strokeRect(x, y, w, h); }
        if (isAway(r.ending[k])) { pen.fillStyle = COLOR[r.ending[k]]; pen.fillRect(x + w - Math.min(2.5, Math.max(1, w / 3)), y, Math.min(2.5, Math.max(1, w / 3)), h); }
        if (w > 60 && h > 13) { pen.fillStyle = "#fff"; pen.textAlign = "left"; pen.textBaseline = "middle"; const text = name(k); if (pen.measureText(text).width < w - 8) pen.fillText(text, Math.max(x, chart.margin.left) + 4, y + h / 2); }
      }
      phases(chart, pen, run.marks);
      const at = chart.point ? find(chart, ...chart.point) : -1;
      if (at < 0) return;
      // All places of the storage under the mouse, and the way between them.
      const same = r.storage[at] < 0 ? [at] : [...r.begin.keys()].filter(k => r.storage[k] === r.storage[at] && !isAway(r.kind[k])).sort((p, q) => r.begin[p] - r.begin[q]);
      pen.strokeStyle = COLOR.ink; pen.lineWidth = 2;
      same.forEach((k, i) => {
        const [x, y, w, h] = box(k); pen.strokeRect(x, y, w, h);
        if (i > 0) { const [px, py, pw, ph] = box(same[i - 1]); pen.setLineDash([4, 3]); chart.line(px + pw, py + ph / 2, x, y + h / 2); pen.setLineDash([]); }
      });
      pen.lineWidth = 1;
    },
    hover(chart, x, y) {
      const k = find(chart, x, y);
      if (k < 0) return `<b>free</b>\naddress ${bytes(chart.vy(y))}`;
      const source = r.label[k] >= 0 ? shortPath(labels[r.label[k]][1]) : "";
      const places = r.storage[k] < 0 ? [] : [...r.begin.keys()].filter(j => r.storage[j] === r.storage[k]);
      const times = places.filter(j => r.kind[j] === "again").length, trips = places.filter(j => r.kind[j] === "offloaded").length;
      return `<b>${escape(name(k))}</b>${source ? `  ${escape(source)}` : ""}\n${bytes(r.nbytes[k])} at ${bytes(r.address[k])}\n${seconds(r.begin[k])} – ${seconds(r.end[k])}, then ${r.ending[k]}\n${KINDS[r.kind[k]]}${times ? `\nrematerialized ${times}×` : ""}${trips ? `\noffloaded ${trips}×` : ""}`;
    },
  });
  const foot = legend(node, [[COLOR.pinned, "pinned"], [COLOR.first, "first time"], [COLOR.again, "rematerialized"], ...(run.transfers ? [[COLOR.fetched, "fetched from the tier"]] : []), [COLOR.scratch, "scratch"], [COLOR.evicted, "evicted here"], ...(run.transfers ? [[COLOR.offloaded, "offloaded here"]] : [])]);
  const buttons = ["by kind", "by op"].map((text, k) => {
    const button = el("button", { textContent: text, className: k === 0 ? "on" : "" });
    button.onclick = () => { byOp = k === 1; buttons.forEach(b => b.classList.toggle("on", b === button)); chart.draw(); };
    return button;
  });
  foot.append(el("span", { className: "right" }, "colour ", ...buttons));
  if (run.left_out) foot.append(el("span", { textContent: `${count(run.left_out)} smallest blocks are not drawn` }));
  return chart;
}

function againTable(parent, run) {
  if (!run.again.length) return;
  const total = run.again_seconds, most = Math.max(...run.again.map(row => row[3])) || 1;
  const node = section(parent, "What was rematerialized, and why", `${seconds(total)} in all. ${run.again_left_out ? `The ${run.again.length} most expensive of ${count(run.again.length + run.again_left_out)}.` : ""}`);
  const columns = [[4, "needed by"], [5, "module"], [6, "line"]].filter(([k]) => run.again.some(row => row[k]));
  table(node, ["op", "#times", "#seconds", "#share", "", ...columns.map(([, name]) => name)], run.again.map(row => {
    const [name, , times, s] = row, bar = el("i"); bar.style.width = `${100 * s / most}%`;
    const cell = k => k === 4 ? escape(row[k]) : sourceCell(row[k], k === 6);
    return [`<code>${escape(name)}</code>`, count(times), seconds(s), `${(100 * s / (total || 1)).toFixed(1)}%`, el("td", { className: "bar" }, bar), ...columns.map(([k]) => cell(k))];
  }));
}

function offloadedTable(parent, run) {
  if (!run.offloaded?.length) return;
  const left = run.offloaded_left_out, most = largest(run.offloaded.map(row => row[2])) || 1;
  const node = section(parent, "What was offloaded, and why", left ? `The ${run.offloaded.length} largest of ${count(run.offloaded.length + left)}.` : "");
  const columns = [[4, "module"], [5, "line"]].filter(([k]) => run.offloaded.some(row => row[k]));
  table(node, ["made by", "#times", "#bytes", "", "why", ...columns.map(([, name]) => name)], run.offloaded.map(row => {
    const bar = el("i"); bar.style.width = `${100 * row[2] / most}%`;
    return [`<code>${escape(row[0])}</code>`, count(row[1]), bytes(row[2]), el("td", { className: "bar" }, bar), escape(row[3]), ...columns.map(([k]) => sourceCell(row[k], k === 5))];
  }));
}

// Of a path, the folder and the name say enough; all of it is in the tooltip.
function sourceCell(text, isPath) {
  return el("td", { title: text }, el("code", { textContent: isPath ? shortPath(text) : text }));
}
function shortPath(text) { return text.replace(/\/\S*\/(?=[^/]+\/[^/]+$)/, ""); }

function schedule(parent, plan, view) {
  const { op, begin, end, again } = plan.schedule;
  const node = section(parent, "The schedule", "Which op runs when: a dot per run, in the graph's order from bottom to top. What is below the diagonal is rematerialized.");
  new Chart(node, {
    height: 330, view, y: [0, plan.ops.length], xLabel: "time of ops", yLabel: "op of the graph", formatX: seconds, formatY: v => count(Math.round(v) || 0),
    draw(chart, pen) {
      for (let k = 0; k < op.length; k++) {
        const x = chart.px(begin[k]), h = Math.max(2, chart.py(0) - chart.py(1));
        pen.fillStyle = again[k] ? COLOR.again : COLOR.first;
        pen.fillRect(x, chart.py(op[k] + 1), Math.max(2, chart.px(end[k]) - x), h);
      }
    },
    hover(chart, x, y) {
      const k = before(begin, chart.vx(x));
      if (k < 0) return "";
      const [name, source, cost] = plan.ops[op[k]];
      return `<b>${escape(name)}</b>${source ? `  ${escape(source)}` : ""}\n${again[k] ? "rematerialized" : "first run"}, ${seconds(cost)}`;
    },
  });
  legend(node, [[COLOR.first, "first run"], [COLOR.again, "rematerialized"]]);
}

function sweepChart(parent, sweep, note = "Lower and further left is better. A line ends where a policy or planner finds no way any more. Click a name to hide it.") {
  if (sweep.verdict) parent.append(el("p", { className: "verdict", textContent: sweep.verdict }));
  const node = section(parent, `Slowdown against budget: ${sweep.name}`, note);
  // The default stands out where there is one: the others are thin.
  const plain = !sweep.series.some(s => s.prominent), order = [...sweep.series.keys()].sort((a, b) => sweep.series[a].prominent - sweep.series[b].prominent);
  const bottom = Math.min(1, ...sweep.series.flatMap(s => s.points).filter(p => p.slowdown !== null).map(p => p.slowdown));
  const hidden = new Set(), points = sweep.series.flatMap(s => s.points);
  const ok = points.filter(p => p.slowdown !== null);
  const xs = points.map(p => p.x), format = sweep.percent ? v => `${trim(v.toFixed(1))}%` : bytes;
  const low = Math.min(...xs), high = Math.max(...xs), pad = (high - low || 1) * .04;
  let near = null;
  const chart = new Chart(node, {
    height: 400, x: [low - pad, high + pad], y: [Math.floor(bottom * 20) / 20, 1 + Math.min(1.6, Math.max(.05, ...ok.map(p => p.slowdown - 1))) * 1.08],  // beyond is not worth the space
    xLabel: sweep.percent ? "budget, percent of the peak without one" : "budget", yLabel: "slowdown", binaryX: !sweep.percent, formatX: format, formatY: v => `${trim(v.toFixed(2))}×`,
    draw(chart, pen) {
      order.forEach(k => {
        const s = sweep.series[k];
        if (hidden.has(s.name)) return;
        pen.globalAlpha = plain || s.prominent || near?.series === s ? 1 : .55;
        pen.strokeStyle = pen.fillStyle = SERIES[k % SERIES.length]; pen.lineWidth = near?.series === s ? 4 : s.prominent ? 3.4 : plain ? 1.8 : 1.2;
        pen.setLineDash(s.planner ? [6, 3] : []);
        pen.beginPath();
        let drawing = false;
        for (const p of s.points) {
          if (p.slowdown === null) { drawing = false; continue; }
          pen[drawing ? "lineTo" : "moveTo"](chart.px(p.x), chart.py(p.slowdown)); drawing = true;
        }
        pen.stroke(); pen.setLineDash([]);
        for (const p of s.points) if (p.slowdown !== null) { pen.beginPath(); pen.arc(chart.px(p.x), chart.py(p.slowdown), near?.point === p ? 6 : s.prominent ? 4.5 : 3, 0, 7); pen.fill(); }
      });
      pen.lineWidth = 1; pen.globalAlpha = 1;
    },
    hover(chart, x, y) {
      near = null;
      let best = 40;
      for (const s of sweep.series) if (!hidden.has(s.name)) for (const p of s.points) {
        if (p.slowdown === null) continue;
        const d = Math.hypot(chart.px(p.x) - x, chart.py(p.slowdown) - y);
        if (d < best) { best = d; near = { series: s, point: p }; }
      }
      return near && `<b>${escape(near.series.name)}</b> at ${format(near.point.x)}\nslowdown ${near.point.slowdown.toFixed(3)}×\npeak ${bytes(near.point.peak)} of ${bytes(near.point.budget)}` + (near.point.times == null ? "" : `\n${count(near.point.times)} rematerializations`);
    },
  });
  const foot = legend(node, sweep.series.map((s, k) => [SERIES[k % SERIES.length], s.name + (s.ends ? ` (${s.ends})` : "")]));
  [...foot.children].forEach((child, k) => {
    child.classList.add("toggle");
    if (sweep.series[k].prominent) child.classList.add("main");
    child.onclick = () => { const name = sweep.series[k].name; hidden.has(name) ? hidden.delete(name) : hidden.add(name); child.classList.toggle("off"); chart.draw(); };
  });
}

function holdersTable(parent, holders, peak) {
  const node = section(parent, "What holds memory at the peak", "The moment at which most is in use. A * stands for the numbers of layers.");
  const most = largest(holders.map(row => row[3])) || 1;
  table(node, ["", "made by", "#tensors", "#bytes", "#share", ""], holders.map(([kind, where, n, size]) => {
    const bar = el("i"); bar.style.width = `${100 * size / most}%`;
    return [escape(kind), where ? `<code>${escape(where)}</code>` : "", count(n), bytes(size), `${(100 * size / (peak || 1)).toFixed(1)}%`, el("td", { className: "bar" }, bar)];
  }));
}

function stepsTable(parent, { rows, note }) {
  const node = section(parent, "Steps", "Greedy: the policy knows only the past. Learned: the step is known from before. Planned: it follows a plan of another process.");
  if (rows.length) table(node, ["", "#steps", "#slowdown", "#rematerialized", "#searching"], rows.map(row => row.map(escape)));
  node.append(el("p", { className: "note", textContent: `All steps: ${note}` }));
}

function showAdvice(parent, advice) {
  parent.append(el("p", { className: "verdict", textContent: advice.verdict }));
  if (advice.estimated) parent.append(el("p", { className: "note", textContent: `Estimated: ${advice.estimated}.` }));
  if (advice.use) section(parent, "Use it", advice.about).append(el("pre", { textContent: advice.use }));
  holdersTable(parent, advice.holders, advice.peak);
  if (advice.outside.length) parent.lastChild.append(el("p", { className: "note", textContent: `Outside of the budget: ${advice.outside.map(([kind, size]) => `${kind} ${bytes(size)}`).join(", ")}.` }));
  sweepChart(parent, advice.chart, `How many times longer a step takes. ${advice.proof}`);
  table(section(parent, "Budgets", ""), advice.headings.map(text => text && `#${text}`), advice.table.map(row => row.map(escape)));
}

function showRun(parent, run, many) {
  if (many) parent.append(el("h2", { className: "item", textContent: run.label }));
  if (run.verdict) parent.append(el("p", { className: "verdict", textContent: run.verdict }));
  if (run.holders?.length) holdersTable(parent, run.holders, run.holders.reduce((sum, row) => sum + row[3], 0));
  cards(parent, run.cards);
  if (run.failure) section(parent, "Why it ended", run.failure);
  if (run.steps) stepsTable(parent, run.steps);
  if (!run.line) return;
  const view = new View([0, run.end]);
  timeline(parent, run, view);
  if (run.rects) arenaMap(parent, run, view);
  if (run.schedule) schedule(parent, run, view);
  againTable(parent, run);
  offloadedTable(parent, run);
}

function compare(parent, runs) {
  const node = section(parent, "Side by side", "Plans and runs on one time axis.");
  const view = new View([0, Math.max(...runs.map(r => r.end))]);
  const top = Math.max(...runs.map(r => Math.max(r.budget || 0, largest(r.line.resident))));
  new Chart(node, {
    height: 270, view, y: [0, top * 1.06], xLabel: "time of ops", yLabel: "resident", formatX: seconds, formatY: bytes, binaryY: true,
    draw(chart, pen) {
      runs.forEach((run, k) => { pen.strokeStyle = SERIES[k % SERIES.length]; pen.lineWidth = 1.6; const all = chart.view.all; chart.view.all = [0, run.end]; steps(chart, pen, run.line.t, run.line.resident, false); chart.view.all = all; pen.stroke(); });
      pen.lineWidth = 1;
      let above = -Infinity;  // names that would stand in each other are left out
      [...new Set(runs.map(r => r.budget))].filter(b => b).sort((a, b) => b - a).forEach(b => {
        const named = chart.py(b) - above > 16;
        if (named) above = chart.py(b);
        budgetLine(chart, pen, b, named);
      });
    },
    hover(chart, x) {
      const t = chart.vx(x);
      return `<b>${seconds(t)}</b>` + runs.map(r => `\n${escape(r.label)}: ${t > r.end ? "done" : bytes(r.line.resident[Math.max(0, before(r.line.t, t))])}`).join("");
    },
  });
  legend(node, runs.map((r, k) => [SERIES[k % SERIES.length], r.label]));
  const ranks = runs.some(r => r.collectives);
  const row = r => [escape(r.label), bytes(r.peak), r.budget ? bytes(r.budget) : "–", seconds(r.end), `${r.slowdown.toFixed(3)}×`, count(r.times)];
  table(node, ["", "#peak", "#budget", "#time of ops", "#slowdown", "#rematerializations", ...(ranks ? ["#collectives"] : [])], runs.map(r => [...row(r), ...(ranks ? [seconds(r.collectives || 0)] : [])]));
}

document.getElementById("title").textContent = DATA.title;
document.getElementById("subtitle").textContent = DATA.subtitle;
const main = document.getElementById("main");
DATA.advice.forEach(a => showAdvice(main, a));
// Runs of one group are compared with each other, and stand together.
const groups = [...new Set(DATA.runs.map(r => r.group))];
if (groups.length !== 1) DATA.sweeps.forEach(s => sweepChart(main, s));
groups.forEach(group => {
  const runs = DATA.runs.filter(r => r.group === group), drawn = runs.filter(r => r.line);
  if (groups.length > 1) main.append(el("h2", { className: "group", textContent: group }));
  if (drawn.length > 1) compare(main, drawn);
  if (groups.length === 1) DATA.sweeps.forEach(s => sweepChart(main, s));
  runs.forEach(r => showRun(main, r, DATA.runs.length > 1));
});
document.body.dataset.ready = "yes";
