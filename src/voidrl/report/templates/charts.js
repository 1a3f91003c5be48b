"use strict";
/* Learning curves. Strings from runs are inserted as text, never as markup. */
const DATA = JSON.parse(document.getElementById("data").textContent);
const SVG = "http://www.w3.org/2000/svg";

function build(element, attributes, children) {
  for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
  element.append(...children);
  return element;
}
const make = (name, attributes = {}, ...children) => build(document.createElement(name), attributes, children);
const draw = (name, attributes = {}, ...children) => build(document.createElementNS(SVG, name), attributes, children);

/* Numbers as text: 16k, 2.5M, 0.031, 86%. */
function short(value) {
  const size = Math.abs(value);
  for (const [unit, of] of [["M", 1e6], ["k", 1e3]]) if (size >= of) return `${+(value / of).toPrecision(4)}${unit}`;
  return size && size < 1e-3 ? value.toExponential(1) : `${+value.toPrecision(4)}`;
}
const format = (value, fraction) => (fraction ? `${+(100 * value).toPrecision(3)}%` : short(value));
const count = (value) => Math.round(value).toString().replace(/\B(?=(\d{3})+$)/g, ",");

/* About n round numbers from low to high. */
function ticks(low, high, n) {
  const raw = (high - low) / n, size = 10 ** Math.floor(Math.log10(raw));
  const step = [1, 2, 2.5, 5, 10].map((by) => by * size).find((by) => by >= raw * 0.999);
  const found = [];
  for (let at = Math.ceil(low / step - 1e-9); at * step <= high + step * 1e-9; at += 1) found.push(+(at * step).toPrecision(12));
  return found;
}

const runsAt = (curve, i) => (Array.isArray(curve.runs) ? curve.runs[i] : curve.runs);

/* Index of the step nearest to x; −1 beyond the ends of the curve. */
function nearest(grid, x, slack) {
  if (x < grid[0] - slack || x > grid[grid.length - 1] + slack) return -1;
  let low = 0, high = grid.length - 1;
  while (high - low > 1) { const mid = (low + high) >> 1; if (grid[mid] <= x) low = mid; else high = mid; }
  return x - grid[low] <= grid[high] - x ? low : high;
}

/* One plot. `onRead(step | null)` is called with the step under the cursor. */
function plot(home, panel, metric, hidden, options, onRead) {
  const fraction = DATA.metrics[metric].fraction;
  const curves = (panel.curves[metric] || []).filter((curve) => !hidden.has(panel.arms[curve.arm].label));
  home.replaceChildren();
  if (!curves.length) {
    home.append(make("p", { class: "empty" }, panel.curves[metric] ? "All arms are hidden." : "No run logged this metric."));
    return;
  }
  const width = Math.max(110, home.clientWidth || options.width), height = options.height;
  const all = curves.flatMap((curve) => [...(curve.low || curve.mean), ...(curve.high || curve.mean)]);
  let low = Math.min(...all.slice(0, 1)), high = low;
  for (const value of all) { if (value < low) low = value; if (value > high) high = value; }
  if (fraction || (low > 0 && low < 0.6 * high)) low = Math.min(0, low);
  if (fraction) high = high > 0.5 ? Math.max(high, 1) : high * 1.05;
  if (!fraction) { const room = 0.05 * (high - low); high += room; if (low !== 0) low -= room; }
  if (high === low) { high += Math.abs(high) * 0.5 || 1; low -= low > 0 ? Math.abs(low) * 0.5 : 0; }
  const right = Math.max(...curves.map((curve) => DATA.grids[curve.grid].at(-1))) || 1;
  const marks = ticks(low, high, height > 200 ? 5 : 3);
  const labels = marks.map((mark) => format(mark, fraction));
  const margin = { left: 12 + 6.6 * Math.max(...labels.map((text) => text.length)), right: 14, top: 8, bottom: options.bare ? 20 : 38 };
  const x = (step) => margin.left + (step / right) * (width - margin.left - margin.right);
  const y = (value) => height - margin.bottom - ((value - low) / (high - low)) * (height - margin.top - margin.bottom);
  const svg = draw("svg", { viewBox: `0 0 ${width} ${height}`, tabindex: 0, role: "group", "aria-roledescription": "chart",
    "aria-label": `${DATA.metrics[metric].name}, ${panel.env}. Arrow keys move along the steps.` });
  marks.forEach((mark, i) => {
    svg.append(draw("line", { class: "rule", x1: margin.left, x2: width - margin.right, y1: y(mark), y2: y(mark) }));
    svg.append(draw("text", { x: margin.left - 7, y: y(mark) + 4, "text-anchor": "end" }, labels[i]));
  });
  const under = height - margin.bottom;
  svg.append(draw("line", { class: "axis", x1: margin.left, x2: width - margin.right, y1: under, y2: under }));
  for (const mark of ticks(0, right, Math.max(2, Math.floor(width / 75)))) {
    const anchor = x(mark) > width - 30 ? "end" : "middle";
    svg.append(draw("text", { x: x(mark), y: under + 16, "text-anchor": anchor }, short(mark)));
  }
  if (!options.bare) svg.append(draw("text", { x: (margin.left + width - margin.right) / 2, y: height - 4, "text-anchor": "middle" }, "environment steps"));
  for (const curve of curves) {
    const grid = DATA.grids[curve.grid], arm = panel.arms[curve.arm], style = `s${arm.style % 16}`;
    const line = (values, from, to) => values.slice(from, to).map((value, i) => `${x(grid[from + i]).toFixed(1)},${y(value).toFixed(1)}`);
    if (curve.low) {
      const edge = [...line(curve.low, 0), ...line(curve.high, 0).reverse()];
      svg.append(draw("path", { class: `band ${style}`, d: `M${edge.join("L")}Z` }));
    }
    const points = line(curve.mean, 0);
    if (points.length === 1) {
      const [cx, cy] = points[0].split(",");
      svg.append(draw("circle", { class: `dot ${style}`, cx, cy, r: 4 }));
      continue;
    }
    svg.append(draw("path", { class: `line faint ${style}`, d: `M${points.join("L")}` }));
    for (let i = 0; i < points.length; i += 1) { /* thick where every run has values */
      let end = i;
      while (end < points.length && runsAt(curve, end) >= arm.runs) end += 1;
      if (end - i > 1) svg.append(draw("path", { class: `line ${style}`, d: `M${points.slice(i, end).join("L")}` }));
      i = Math.max(end, i);
    }
  }
  const cursor = draw("g", { "aria-hidden": "true" });
  svg.append(cursor);
  home.append(svg);

  const stops = [...new Set(curves.flatMap((curve) => DATA.grids[curve.grid]))].sort((a, b) => a - b);
  let place = -1;
  const show = (to) => {
    place = to;
    cursor.replaceChildren();
    const step = to < 0 ? null : stops[to];
    if (step !== null) {
      cursor.append(draw("line", { class: "cursor", x1: x(step), x2: x(step), y1: margin.top, y2: under }));
      for (const curve of curves) {
        const i = nearest(DATA.grids[curve.grid], step, right / 100);
        if (i >= 0) cursor.append(draw("circle", { class: `dot s${panel.arms[curve.arm].style % 16}`, cx: x(DATA.grids[curve.grid][i]), cy: y(curve.mean[i]), r: 4 }));
      }
    }
    onRead(step);
  };
  svg.addEventListener("pointermove", (event) => {
    const box = svg.getBoundingClientRect();
    const step = (((event.clientX - box.left) / box.width) * width - margin.left) / (width - margin.left - margin.right) * right;
    show(nearest(stops, Math.min(Math.max(step, stops[0]), stops.at(-1)), 0));
  });
  svg.addEventListener("pointerleave", () => show(-1));
  svg.addEventListener("blur", () => show(-1));
  svg.addEventListener("keydown", (event) => {
    const jump = Math.max(1, Math.round(stops.length / 40)), last = stops.length - 1, from = place < 0 ? last : place;
    const to = { ArrowRight: place < 0 ? last : from + jump, ArrowLeft: from - jump, Home: 0, End: last, Escape: -1 }[event.key];
    if (to === undefined) return;
    event.preventDefault();
    show(event.key === "Escape" ? -1 : Math.min(Math.max(to, 0), last));
  });
}

/* A card with controls, one plot or a small one for each environment, and a legend with values. */
class Chart {
  constructor(figure) {
    this.stage = figure.dataset.stage;
    this.panels = DATA.panels.filter((panel) => panel.stage === this.stage);
    const wanted = figure.dataset.metrics ? figure.dataset.metrics.split(" ") : Object.keys(DATA.metrics);
    this.metrics = wanted.filter((metric) => this.panels.some((panel) => panel.curves[metric]));
    this.panels = this.panels.filter((panel) => this.metrics.some((metric) => panel.curves[metric]));
    this.hidden = new Set();
    if (!this.metrics.length) {
      figure.append(make("p", { class: "empty" }, "Nothing has been logged yet."));
      return;
    }
    this.metric = this.first(figure.dataset.avoid);
    if (this.metrics.length === 1) figure.append(make("p", { class: "readout" }, DATA.metrics[this.metric].name));
    this.env = this.panels.length > 1 ? -1 : 0;
    this.home = make("div", { class: "plot" });
    this.legend = make("table", { class: "legend" });
    this.live = make("p", { class: "readout", "aria-live": "polite", style: "position:absolute;left:-9999px" });
    figure.append(this.controls(), this.home, this.legend, this.live);
    this.render();
    let before = this.home.clientWidth;
    new ResizeObserver(() => {
      if (this.home.clientWidth === before) return;
      before = this.home.clientWidth;
      this.render();
    }).observe(this.home);
  }

  /* The metric that most environments have, except those shown in another section. */
  first(avoid) {
    const have = (metric) => this.panels.filter((panel) => panel.curves[metric]).length;
    const open = this.metrics.filter((metric) => !avoid || !metric.startsWith(avoid));
    const preferred = (this.stage === "pretrain" && open.find((metric) => metric === "train/reward_mean")) || null;
    return preferred || [...(open.length ? open : this.metrics)].sort((a, b) => have(b) - have(a))[0];
  }

  controls() {
    const bar = make("div", { class: "controls" });
    const metric = make("select", { "data-role": "metric" });
    const groups = {};
    for (const key of this.metrics) {
      const about = DATA.metrics[key];
      groups[about.group] ||= metric.appendChild(make("optgroup", { label: about.group }));
      groups[about.group].append(make("option", { value: key }, about.name));
    }
    metric.value = this.metric;
    metric.addEventListener("change", () => { this.metric = metric.value; this.render(); });
    if (this.metrics.length > 1) bar.append(make("label", {}, "Metric", metric));
    if (this.panels.length > 1) {
      const env = make("select", { "data-role": "env" }, make("option", { value: -1 }, `all ${this.panels.length} environments`));
      this.panels.forEach((panel, i) => env.append(make("option", { value: i }, panel.env)));
      env.addEventListener("change", () => { this.env = +env.value; this.render(); });
      bar.append(make("label", {}, "Environment", env));
    }
    return bar;
  }

  render() {
    const several = this.env < 0;
    this.home.classList.toggle("small", several);
    this.home.replaceChildren();
    if (!several) {
      const panel = this.panels[this.env];
      plot(this.home, panel, this.metric, this.hidden, { width: 560, height: window.innerWidth < 640 ? 230 : 290 }, (step) => this.read(panel, step));
      this.list(panel.arms);
      this.read(panel, null, true);
      return;
    }
    const arms = new Map();
    for (const panel of this.panels) {
      for (const arm of panel.arms) arms.set(arm.label, arm);
      const place = make("div"), readout = make("span", { class: "readout" });
      this.home.append(make("div", {}, make("h5", {}, panel.env), place, readout));
      plot(place, panel, this.metric, this.hidden, { width: 240, height: 140, bare: true }, (step) => {
        const values = step === null ? [] : this.values(panel, step).map(({ arm, text }) => `${arm.label} ${text}`);
        readout.textContent = step === null ? "" : `${count(step)}: ${values.join(", ")}`;
      });
    }
    this.list([...arms.values()]);
  }

  list(arms) {
    const body = make("tbody");
    this.rows = new Map();
    for (const arm of arms) {
      const sign = draw("svg", { class: `swatch s${arm.style % 16}`, width: 26, height: 8, "aria-hidden": "true" }, draw("line", { x1: 1, y1: 4, x2: 25, y2: 4 }));
      const button = make("button", { type: "button", "aria-pressed": !this.hidden.has(arm.label) }, sign, arm.label);
      button.addEventListener("click", () => {
        if (!this.hidden.delete(arm.label)) this.hidden.add(arm.label);
        this.render();
        [...this.legend.querySelectorAll("button")].find((other) => other.textContent === arm.label)?.focus();
      });
      const value = make("td", { class: "number" }), range = make("td"), runs = make("td");
      this.rows.set(arm.label, { value, range, runs });
      body.append(make("tr", {}, make("th", { scope: "row" }, button, ...(arm.phase ? [make("small", {}, arm.phase)] : [])), value, range, runs));
    }
    this.at = make("th", { scope: "col" });
    const head = make("tr", {}, this.at, make("th", { scope: "col", class: "number" }, "mean"), make("th", { scope: "col" }, "range"), make("th", { scope: "col" }, "runs"));
    this.legend.replaceChildren(...(this.env < 0 ? [] : [make("thead", {}, head)]), body);
  }

  values(panel, step) {
    const fraction = DATA.metrics[this.metric].fraction, found = [];
    for (const curve of panel.curves[this.metric] || []) {
      const arm = panel.arms[curve.arm], grid = DATA.grids[curve.grid];
      if (this.hidden.has(arm.label)) continue;
      const i = step === null ? grid.length - 1 : nearest(grid, step, grid.at(-1) / 100);
      if (i < 0) continue;
      const range = curve.low && runsAt(curve, i) > 1 ? `${format(curve.low[i], fraction)} to ${format(curve.high[i], fraction)}` : "";
      found.push({ arm, text: format(curve.mean[i], fraction), range, runs: `${runsAt(curve, i)} of ${arm.runs}` });
    }
    return found;
  }

  read(panel, step, quiet = false) {
    this.at.textContent = step === null ? "at the end" : `step ${count(step)}`;
    for (const { value, range, runs } of this.rows.values()) { value.textContent = "–"; range.textContent = runs.textContent = ""; }
    const found = this.values(panel, step);
    for (const { arm, text, range, runs } of found) {
      const row = this.rows.get(arm.label);
      row.value.textContent = text;
      row.range.textContent = range;
      row.runs.textContent = runs;
    }
    if (!quiet && step !== null) this.live.textContent = `Step ${count(step)}: ${found.map(({ arm, text }) => `${arm.label} ${text}`).join(", ")}`;
  }
}

for (const figure of document.querySelectorAll(".chart")) new Chart(figure);
