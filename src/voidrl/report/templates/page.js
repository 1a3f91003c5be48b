/* The page around the charts: theme, contents, copying. */
const root = document.documentElement, themes = ["system", "light", "dark"], themeButton = document.getElementById("theme");

function setTheme(name) {
  if (name === "system") delete root.dataset.theme; else root.dataset.theme = name;
  themeButton.querySelector("span").textContent = name;
  try { if (name === "system") localStorage.removeItem("voidrl-theme"); else localStorage.setItem("voidrl-theme", name); } catch (_) { /* not available for local files */ }
}
setTheme(root.dataset.theme || "system");
themeButton.addEventListener("click", () => {
  const now = themeButton.querySelector("span").textContent;
  setTheme(themes[(themes.indexOf(now) + 1) % themes.length]);
});

const links = new Map([...document.querySelectorAll("nav a")].map((link) => [link.getAttribute("href").slice(1), link]));
const seen = new Set();
const watcher = new IntersectionObserver((entries) => {
  for (const entry of entries) { if (entry.isIntersecting) seen.add(entry.target.id); else seen.delete(entry.target.id); }
  const here = [...links.keys()].find((id) => seen.has(id));
  if (!here) return;
  for (const [id, link] of links) { if (id === here) link.setAttribute("aria-current", "true"); else link.removeAttribute("aria-current"); }
}, { rootMargin: "-15% 0px -70% 0px" });
for (const section of document.querySelectorAll("main section")) watcher.observe(section);

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
