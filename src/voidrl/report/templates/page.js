/* The page around the charts: heat maps, videos, copying. */
const colorAt = (fraction) => { /* fraction 0 … 1 along five colors of the style sheet */
  const at = Math.min(Math.max(fraction, 0), 1) * 4, from = Math.min(Math.floor(at), 3), rest = Math.round(100 * (at - from));
  return `color-mix(in oklab, var(--h${from + 1}) ${rest}%, var(--h${from}))`;
};

function heat(figure) {
  const { size, visits, walls, marks, label, range, merged } = DATA.heats[+figure.dataset.heat];
  const most = Math.log1p(visits.reduce((a, b) => Math.max(a, b), 1)), groups = {};
  const svg = draw("svg", { viewBox: `0 0 ${size} ${size}`, role: "img", "aria-label": `Visits of ${label}`, "shape-rendering": "crispEdges" });
  svg.append(draw("rect", { width: size, height: size, style: "fill: var(--floor)" }));
  const square = (cell) => `M${cell % size},${Math.floor(cell / size)}h1v1h-1z`;
  svg.append(draw("path", { d: walls.map(square).join(""), style: "fill: var(--wall)" }));
  const bin = ([low, high], i) => [i, i + 1].map((at) => +(low + (at * (high - low)) / size).toPrecision(6)).join(" to ");
  const cells = (i) => (merged > 1 ? `${merged * i} to ${merged * (i + 1) - 1}` : i);
  visits.forEach((number, cell) => {
    if (!number) return;
    const row = Math.floor(cell / size), column = cell % size;
    const place = range.x ? `x ${bin(range.x, column)}, y ${bin(range.y, size - 1 - row)}` : `row ${cells(row)}, column ${cells(column)}`;
    const about = draw("title", {}, `${place}: ${count(number)} visits`);
    const color = colorAt(Math.log1p(number) / most); /* parsed once for all cells that have it */
    groups[color] ??= svg.appendChild(draw("g", { style: `fill: ${color}` }));
    groups[color].append(draw("path", { d: square(cell) }, about));
  });
  for (const [letter, cell] of Object.entries(marks)) {
    const cx = (cell % size) + 0.5, cy = Math.floor(cell / size) + 0.5;
    svg.append(draw("circle", { cx, cy, r: 0.42, style: "fill: var(--card)", "shape-rendering": "auto" }));
    svg.append(draw("text", { x: cx, y: cy + 0.03, "font-size": 0.6, style: "fill: var(--ink)" }, letter));
  }
  figure.prepend(svg);
}

for (const figure of document.querySelectorAll(".heat")) heat(figure);
for (const video of document.querySelectorAll("video[data-clip]")) {
  const bytes = Uint8Array.from(atob(DATA.clips[+video.dataset.clip]), (sign) => sign.charCodeAt(0));
  video.src = URL.createObjectURL(new Blob([bytes], { type: "video/mp4" }));
}
for (const button of document.querySelectorAll(".play")) {
  const videos = [...button.closest(".scene").querySelectorAll("video")];
  button.addEventListener("click", () => {
    const stop = videos.some((video) => !video.paused);
    button.textContent = stop ? "Play all" : "Pause all";
    for (const video of videos) { if (stop) video.pause(); else { video.currentTime = 0; video.play(); } }
  });
}
for (const button of document.querySelectorAll(".copy")) {
  button.addEventListener("click", async () => {
    const code = button.parentElement.querySelector("code");
    try {
      await navigator.clipboard.writeText(code.textContent);
      button.textContent = "Copied";
    } catch (_) { /* some browsers forbid this for local files: select the text instead */
      getSelection().selectAllChildren(code);
      button.textContent = "Selected";
    }
    setTimeout(() => { button.textContent = "Copy"; }, 1500);
  });
}

/* Unfold everything for printing. */
const folded = [];
addEventListener("beforeprint", () => { for (const part of document.querySelectorAll("details:not([open])")) { part.open = true; folded.push(part); } });
addEventListener("afterprint", () => { while (folded.length) folded.pop().open = false; });
