// Draws charts that are plain data: adds colors of the theme, and what the data leaves to the page.
// COLORS, by theme, is written above by the page's maker (palette.py).

const NARROW = 560; // pixels

function theme() {
  return document.documentElement.dataset.theme === "dark" ? "dark" : "light";
}

function css(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();
}

function color(index) {
  const all = COLORS[theme()];
  return all[index % all.length];
}

function isTouch() {
  return matchMedia("(pointer: coarse)").matches;
}

function baseLayout(height) {
  const axis = { gridcolor: css("grid"), linecolor: css("line"), zerolinecolor: css("line"), automargin: true,
    title: { standoff: 8, font: { size: 13 } } };
  return {
    height, autosize: true, margin: { l: 56, r: 14, t: 32, b: 44 },
    paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)", colorway: COLORS[theme()],
    font: { family: getComputedStyle(document.body).fontFamily, size: 13, color: css("fg") },
    legend: { orientation: "h", x: 0, y: 1.02, yanchor: "bottom", traceorder: "normal" },
    hoverlabel: { bgcolor: css("card"), bordercolor: css("line"), font: { color: css("fg") }, align: "left" },
    modebar: { bgcolor: "rgba(0,0,0,0)", color: css("muted"), activecolor: css("accent") },
    dragmode: isTouch() ? false : "zoom", uirevision: "keep", xaxis: axis, yaxis: axis, yaxis2: axis,
  };
}

// Plain objects are merged key by key; anything else is replaced.
function merged(base, more) {
  const result = { ...base };
  for (const [key, value] of Object.entries(more || {})) {
    const both = [result[key], value].every((v) => v && typeof v === "object" && !Array.isArray(v));
    result[key] = both ? merged(result[key], value) : value;
  }
  return result;
}

// On a phone the legend is below, where it leaves room for the buttons.
function narrowLayout() {
  return { font: { size: 11 }, margin: { l: 40, r: 6 }, legend: { yref: "container", y: 0, yanchor: "bottom" } };
}

function config() {
  return { displaylogo: false, responsive: true, displayModeBar: isTouch() ? true : "hover",
    modeBarButtons: [["toImage"], ["zoom2d", "pan2d", "zoomIn2d", "zoomOut2d", "resetScale2d"]] };
}

function themedTrace(trace) {
  const meta = trace.meta || {}, result = { ...trace };
  if (meta.color) {
    const chosen = meta.color === "text" ? css("fg") : css("line");
    result.line = { ...trace.line, color: chosen };
    result.marker = { ...trace.marker, color: chosen };
  }
  if (meta.scale) {
    const accent = css("accent");
    result.colorscale = meta.scale === "share" ? [[0, css("empty")], [1, accent]]
      : theme() === "dark" ? "Cividis" : [[0, css("empty")], [0.5, accent], [1, "#08243c"]];
  }
  if (meta.columns) result.customdata = trace.z.map(() => meta.columns); // one array for all rows
  return result;
}

function shorter(text, most) {
  return typeof text === "string" && text.length > most ? text.slice(0, most - 1) + "…" : text;
}

function themedLayout(chart, width) {
  let layout = merged(baseLayout(chart.height), chart.layout);
  const edges = layout.xaxis.meta && layout.xaxis.meta.edges;
  if (edges) { // lines between layers
    layout.shapes = edges.map((x) => ({ type: "line", x0: x, x1: x, yref: "paper", y0: 0, y1: 1,
      line: { color: css("muted"), width: 1 } }));
    delete layout.xaxis.meta;
  }
  if (width < NARROW) {
    layout = merged(layout, narrowLayout());
    const names = chart.traces[0] && chart.traces[0].y;
    if (layout.yaxis.type === "category" && names) {
      if (names.length > 12) layout.yaxis.showticklabels = false; // a tap shows them
      else Object.assign(layout.yaxis, { tickvals: names, ticktext: names.map((n) => shorter(n, 16)) });
    }
  }
  return layout;
}

async function drawChart(node, chart) {
  const layout = themedLayout(chart, node.clientWidth);
  await Plotly.react(node, chart.traces.map(themedTrace), layout, config());
  listenToKeys(node);
}

// + and - zoom, arrows move, 0 shows all: what the mouse does, for the keyboard.
function listenToKeys(node) {
  if (node.dataset.keys) return;
  node.dataset.keys = "yes";
  node.addEventListener("keydown", (event) => {
    const axis = node._fullLayout && node._fullLayout.xaxis;
    if (!axis || event.target !== node) return;
    const [low, high] = axis.range.map(Number), width = high - low, middle = (low + high) / 2;
    const ranges = {
      "+": [middle - width / 4, middle + width / 4], "=": [middle - width / 4, middle + width / 4],
      "-": [middle - width, middle + width],
      ArrowLeft: [low - width / 4, high - width / 4], ArrowRight: [low + width / 4, high + width / 4],
    };
    if (event.key === "0") Plotly.relayout(node, { "xaxis.autorange": true });
    else if (ranges[event.key]) Plotly.relayout(node, { "xaxis.range": ranges[event.key] });
    else return;
    event.preventDefault();
  });
}
