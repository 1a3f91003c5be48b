/* Heat maps and videos. */
const colorAt = (name, fraction) => { /* fraction 0 … 1 along five colors of the style sheet */
  const at = Math.min(Math.max(fraction, 0), 1) * 4, from = Math.min(Math.floor(at), 3), rest = Math.round(100 * (at - from));
  return `color-mix(in oklab, var(--${name}${from + 1}) ${rest}%, var(--${name}${from}))`;
};

function blobUrl(text, type) {
  const bytes = Uint8Array.from(atob(text), (sign) => sign.charCodeAt(0));
  return URL.createObjectURL(new Blob([bytes], { type }));
}

function heat(figure) {
  const found = DATA.heats[+figure.dataset.heat], { size } = found;
  const most = Math.log1p(found.visits.reduce((a, b) => Math.max(a, b), 1));
  const svg = draw("svg", { viewBox: `0 0 ${size} ${size}`, tabindex: 0, role: "group", "aria-roledescription": "heat map",
    "aria-label": `Visits of ${found.name}. Arrow keys move from cell to cell.`, "shape-rendering": "crispEdges" });
  svg.append(draw("rect", { width: size, height: size, style: "fill: var(--floor)" }));
  const square = (cell) => `M${cell % size},${Math.floor(cell / size)}h1v1h-1z`;
  svg.append(draw("path", { d: found.walls.map(square).join(""), style: "fill: var(--wall)" }));
  found.visits.forEach((visits, cell) => {
    if (visits) svg.append(draw("path", { d: square(cell), style: `fill: ${colorAt("h", Math.log1p(visits) / most)}` }));
  });
  for (const [cell, letter] of [[found.start, "S"], [found.goal, "G"]]) {
    if (cell === null) continue;
    const cx = (cell % size) + 0.5, cy = Math.floor(cell / size) + 0.5;
    svg.append(draw("circle", { cx, cy, r: 0.42, style: "fill: var(--card)", "shape-rendering": "auto" }));
    svg.append(draw("text", { x: cx, y: cy + 0.03, "font-size": 0.6, style: "fill: var(--ink)" }, letter));
  }
  const frame = draw("rect", { width: 1, height: 1, fill: "none", style: "stroke: var(--ink)", "stroke-width": 0.12, visibility: "hidden" });
  svg.append(frame);
  const readout = make("p", { class: "readout", "aria-live": "polite" }, "\u00a0");
  let at = found.start;
  const read = (cell) => {
    at = cell;
    frame.setAttribute("x", cell % size);
    frame.setAttribute("y", Math.floor(cell / size));
    frame.setAttribute("visibility", "visible");
    const what = found.walls.includes(cell) ? "wall" : `${count(found.visits[cell])} visits`;
    readout.textContent = `row ${Math.floor(cell / size)}, column ${cell % size}: ${what}`;
  };
  const leave = () => { frame.setAttribute("visibility", "hidden"); readout.textContent = "\u00a0"; };
  svg.addEventListener("pointermove", (event) => {
    const box = svg.getBoundingClientRect();
    const clamp = (part, of) => Math.min(size - 1, Math.max(0, Math.floor((part / of) * size)));
    read(clamp(event.clientY - box.top, box.height) * size + clamp(event.clientX - box.left, box.width));
  });
  svg.addEventListener("pointerleave", leave);
  svg.addEventListener("blur", leave);
  svg.addEventListener("focus", () => read(at));
  svg.addEventListener("keydown", (event) => {
    const by = { ArrowLeft: -1, ArrowRight: 1, ArrowUp: -size, ArrowDown: size }[event.key];
    if (by === undefined) return;
    event.preventDefault();
    if (at + by >= 0 && at + by < size * size) read(at + by);
  });
  figure.prepend(svg);
  figure.append(readout);
}

for (const figure of document.querySelectorAll(".heat")) heat(figure);
for (const video of document.querySelectorAll("video[data-clip]")) video.src = blobUrl(DATA.clips[+video.dataset.clip], "video/mp4");
for (const button of document.querySelectorAll(".play")) {
  const videos = [...button.closest(".scene").querySelectorAll("video")];
  button.addEventListener("click", () => {
    const stop = videos.some((video) => !video.paused);
    button.textContent = stop ? "Play all" : "Pause all";
    for (const video of videos) { if (stop) video.pause(); else { video.currentTime = 0; video.play(); } }
  });
}
