/* The live table: asks for /status.json again and again, and changes only what is new. */
const EVERY_MS = 2000, GROUPS = ["running", "failed", "stopped", "waiting", "pruned", "done"], BADGES = { done: "good", failed: "failed", stopped: "warn", running: "running" };
const byId = (id) => document.getElementById(id), table = new Map();
let only = "", latest = null;

function humanCount(value) {
  for (const unit of ["", "k", "M", "B", "T"]) {
    if (Math.abs(value) < 999.5 || unit === "T") return `${Number(value.toPrecision(3))}${unit}`;
    value /= 1000;
  }
}

function humanSeconds(seconds) {
  const whole = Math.max(0, Math.round(seconds)), two = (number) => String(Math.floor(number)).padStart(2, "0");
  for (const [size, part, large, small] of [[86400, 3600, "d", "h"], [3600, 60, "h", "m"], [60, 1, "m", "s"]]) {
    if (whole >= size) return `${Math.floor(whole / size)}${large}${two((whole % size) / part)}${small}`;
  }
  return `${whole}s`;
}

function element(tag, className, parent) {
  const made = document.createElement(tag);
  if (className) made.className = className;
  if (parent) parent.append(made);
  return made;
}

function setText(node, text) { if (node.textContent !== text) node.textContent = text; }

function makeRow(name) {
  const tr = element("tr"), th = element("th", "arm", tr), row = { tr };
  th.scope = "row";
  row.name = element("a", "", th);
  row.why = element("small", "why", th);
  const cell = (label, className) => { const td = element("td", className, tr); td.dataset.label = label; return td; };
  row.state = element("span", "badge", cell("state", "state"));
  const steps = cell("steps", "steps");
  row.steps = element("span", "", steps);
  row.share = element("i", "", element("span", "bar", steps));
  row.rate = cell("steps/s", "number");
  row.eta = cell("eta", "number");
  row.score = cell("score");
  row.node = cell("node", "node");
  row.beat = cell("heartbeat", "number");
  row.log = element("a", "", cell("log", "log"));
  row.log.textContent = "log";
  row.name.href = `/report?run=${encodeURIComponent(name)}`;
  row.log.href = `/log?run=${encodeURIComponent(name)}`;
  return row;
}

function fill(row, run) {
  const alive = run.group === "running", score = { "eval/return": "evaluation", "eval/success": "success", "episode/return": "return" }[run.score_name];
  if (row.tr.className !== run.group) row.tr.className = run.group;
  setText(row.name, run.name);
  setText(row.why, run.note);
  setText(row.state, run.state);
  row.state.className = `badge ${BADGES[run.group] || ""}`;
  setText(row.steps, `${humanCount(run.steps)} of ${humanCount(run.total_steps)}`);
  row.share.style.width = `${Math.min(100, (100 * run.steps) / Math.max(1, run.total_steps))}%`;
  setText(row.rate, run.rate === null ? "" : humanCount(run.rate));
  setText(row.eta, run.seconds_left === null ? "" : humanSeconds(run.seconds_left));
  setText(row.score, run.score === null ? "" : `${score || run.score_name.split("/").pop()} ${humanCount(run.score)}`);
  setText(row.node, [run.host.split(".")[0], run.device, run.ranks > 1 ? `×${run.ranks}` : ""].filter(Boolean).join(" "));
  setText(row.beat, alive && run.heartbeat_age !== null ? humanSeconds(run.heartbeat_age) : "");
  row.log.style.display = run.log === null ? "none" : "";
  if (run.state === "waiting" && !run.steps) row.name.removeAttribute("href");
  else row.name.href = `/report?run=${encodeURIComponent(run.name)}`;
}

function showFilters(counts) {
  const filters = byId("filters");
  for (const group of ["", ...GROUPS]) {
    let button = filters.querySelector(`[data-group="${group}"]`);
    if (!button) {
      button = element("button", group, filters);
      button.type = "button";
      button.dataset.group = group;
      element("b", "", button);
      element("span", "", button).textContent = ` ${group || "runs"}`;
      button.addEventListener("click", () => { only = only === group ? "" : group; show(latest); });
    }
    setText(button.firstChild, String(counts[group || "runs"]));
    button.setAttribute("aria-pressed", String(only === group));
    button.hidden = group !== "" && group !== only && !counts[group];
  }
}

function show(data) {
  const { summary, runs } = latest = data;
  byId("share").style.width = `${(100 * summary.steps) / Math.max(1, summary.total_steps)}%`;
  const left = summary.seconds_left === null ? "" : ` · eta of all ${humanSeconds(summary.seconds_left)}`;
  setText(byId("sums"), `${summary.done} of ${summary.runs} done · ${humanCount(summary.steps)} of ${humanCount(summary.total_steps)} steps${left}`);
  setText(byId("made"), `As of ${new Date(data.made).toLocaleTimeString()}.`);
  showFilters(summary);
  const shown = runs.filter((run) => !only || run.group === only), rows = byId("rows");
  const nodes = shown.map((run) => {
    if (!table.has(run.name)) table.set(run.name, makeRow(run.name));
    const row = table.get(run.name);
    fill(row, run);
    return row.tr;
  });
  if (nodes.length !== rows.children.length || nodes.some((node, i) => node !== rows.children[i])) rows.replaceChildren(...nodes);
}

async function look() {
  const gone = byId("gone");
  try {
    const answer = await fetch("/status.json", { cache: "no-store" });
    if (!answer.ok) throw new Error((await answer.text()).trim());
    show(await answer.json());
    gone.hidden = true;
  } catch (error) {
    gone.hidden = false;
    const why = error instanceof TypeError ? "No answer: `voidrl report --watch` has ended, or cannot be reached" : error.message;
    setText(gone, latest ? `${why}. What is shown is old.` : `${why}.`);
  }
  setTimeout(look, EVERY_MS);
}
look();
