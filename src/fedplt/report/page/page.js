// The page: switches, tables that can be copied, the theme, and live runs.

const POLL_MILLISECONDS = 2000;
const byId = (id) => document.getElementById(id);
const readData = (root) => JSON.parse(root.getElementById("data").textContent);
let data = readData(document);
const curves = new Curves(byId("curves"), data.curves);
const drawn = new Set();

function option(text, value) {
  const node = document.createElement("option");
  node.value = value;
  node.textContent = text;
  return node;
}

// Labels are escaped for Plotly; here they are text again.
function asText(escaped) {
  return new DOMParser().parseFromString(escaped, "text/html").documentElement.textContent;
}

function showCosts() {
  const { axes, metric } = curves.data, table = byId("costs");
  byId("target-label").hidden = curves.value !== "score";
  table.hidden = !curves.isTargetShown;
  const cell = (kind, text) => Object.assign(document.createElement(kind), { textContent: text });
  const head = document.createElement("tr");
  head.append(cell("th", `until ${metric.name} ${+curves.target.toPrecision(6)} ${metric.unit}`),
    ...axes.map(({ label }) => cell("th", label)));
  const rows = curves.costs().map(({ label, reached, runs, means }, i) => {
    const row = document.createElement("tr"), name = cell("th", ""), swatch = document.createElement("span");
    name.scope = "row";
    swatch.className = "swatch";
    swatch.style.background = color(i);
    const some = reached === runs ? "" : ` (${reached} of ${runs} runs)`;
    name.append(swatch, asText(label) + (reached ? some : ""));
    row.append(name, ...means.map((mean, k) => cell("td", reached ? si(mean, axes[k].unit) : k ? "" : "never")));
    return row;
  });
  const top = document.createElement("thead"), body = document.createElement("tbody");
  top.append(head);
  body.append(...rows);
  table.replaceChildren(top, body);
}

// Charts are drawn when they come near the window, all of them before the page is printed.
function drawVisible({ type } = {}) {
  for (const node of document.querySelectorAll(".plot[id]")) {
    const chart = data.charts[node.id];
    if (!chart || node.closest("[hidden]") || drawn.has(node.id)) continue;
    const { top, bottom } = node.getBoundingClientRect();
    if (type === "beforeprint" || (top < innerHeight + 600 && bottom > -600)) {
      drawn.add(node.id);
      drawChart(node, chart);
    }
  }
}

function redrawAll() {
  drawn.clear();
  curves.draw(curves.range || null);
  showCosts();
  for (const node of document.querySelectorAll(".plot.js-plotly-plot")) {
    if (data.charts[node.id] && !node.closest("[hidden]")) drawChart(node, data.charts[node.id]), drawn.add(node.id);
  }
  drawVisible();
}

function setTheme(chosen) {
  const system = matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light";
  document.documentElement.dataset.theme = chosen || system;
}

async function copy(button) {
  const text = data.copies[button.dataset.copy], said = button.textContent;
  try {
    await navigator.clipboard.writeText(text);
  } catch { // no clipboard for this page: the old way
    const area = Object.assign(document.createElement("textarea"), { value: text });
    document.body.append(area);
    area.select();
    document.execCommand("copy");
    area.remove();
  }
  button.textContent = "Copied";
  setTimeout(() => { button.textContent = said; }, 1500);
}

// A running run: fetch this page again, take its numbers and its data.
async function poll() {
  const answer = await fetch(location.href, { cache: "no-cache" });
  if (!answer.ok) return;
  const page = new DOMParser().parseFromString(await answer.text(), "text/html");
  const next = readData(page);
  if (Object.keys(next.charts).join() !== Object.keys(data.charts).join()) return location.reload();
  if (JSON.stringify(next) !== JSON.stringify(data)) {
    for (const node of document.querySelectorAll("[data-swap]")) {
      const other = page.getElementById(node.id);
      if (other) node.replaceChildren(...other.childNodes);
    }
    data = next;
    curves.data = next.curves;
    curves.known = null;
    redrawAll();
  }
  document.body.dataset.live = page.body.dataset.live;
}

async function live() {
  while (document.body.dataset.live === "yes") {
    await new Promise((resolve) => setTimeout(resolve, POLL_MILLISECONDS));
    try { if (!document.hidden) await poll(); } catch { /* the server is away: try again */ }
  }
}

function start() {
  const { values, axes, metric } = curves.data;
  setTheme("");
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => { setTheme(byId("theme").value); redrawAll(); });
  byId("theme").addEventListener("change", (event) => { setTheme(event.target.value); redrawAll(); });
  byId("value").append(...values.map(({ key, label }) => option(label, key)));
  byId("axis").append(...axes.map(({ key, label }) => option(label, key)));
  byId("target").value = +curves.target.toPrecision(6);
  byId("target-unit").textContent = metric.unit;
  const change = (id, event, set) => byId(id).addEventListener(event, ({ target }) => {
    set(target);
    curves.range = id === "target" || id === "log" ? curves.range : null;
    curves.draw(curves.range);
    showCosts();
  });
  change("value", "change", ({ value }) => { curves.value = value; });
  change("axis", "change", ({ value }) => { curves.axis = value; });
  change("log", "change", ({ checked }) => { curves.log = checked; });
  change("target", "input", ({ value }) => { curves.target = value === "" ? NaN : Number(value); });
  if (byId("run")) byId("run").addEventListener("change", ({ target }) => {
    for (const node of document.querySelectorAll("[data-run]")) node.hidden = node.dataset.run !== target.value;
    drawVisible();
  });
  document.body.addEventListener("click", ({ target }) => { if (target.dataset && target.dataset.copy) copy(target); });
  addEventListener("scroll", drawVisible, { passive: true });
  addEventListener("resize", drawVisible);
  addEventListener("beforeprint", drawVisible);
  curves.draw().then(() => { document.body.dataset.ready = "yes"; });
  showCosts();
  drawVisible();
  live();
}

start();
