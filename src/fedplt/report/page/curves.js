// The main chart: scores and losses against rounds and costs, with a target.

const MOST_POINTS = 1200; // of a curve, on the screen: more than its width in pixels

// Seeds of a group become mean, lowest and highest, over the rounds that all of them have.
function combine(group, axisKey, valueKey, scale) {
  const runs = group.runs;
  const places = runs.map((run) => new Map(run.x.round.map((round, i) => [round, i])));
  const rounds = runs[0].x.round.filter((round) => places.every((place) => place.has(round)));
  const result = { x: [], mean: [], low: [], high: [], round: [] };
  for (const round of rounds) {
    const at = places.map((place) => place.get(round));
    const values = runs.map((run, i) => run.y[valueKey][at[i]]);
    if (values.some((value) => value === null)) continue;
    const costs = runs.map((run, i) => run.x[axisKey][at[i]]);
    result.round.push(round);
    result.x.push(costs.reduce((a, b) => a + b) / costs.length);
    result.mean.push((scale * values.reduce((a, b) => a + b)) / values.length);
    result.low.push(scale * Math.min(...values));
    result.high.push(scale * Math.max(...values));
  }
  return result;
}

// The points that are seen: all in range, or the lowest and the highest of each of many intervals.
function thin(x, y, range) {
  let first = 0, last = x.length;
  if (range) {
    const place = (value) => { // the first index with x >= value; x rises
      let low = 0, high = x.length;
      while (low < high) { const middle = (low + high) >> 1; if (x[middle] < value) low = middle + 1; else high = middle; }
      return low;
    };
    first = Math.max(0, place(Math.min(...range)) - 1);
    last = Math.min(x.length, place(Math.max(...range)) + 2);
  }
  const kept = [];
  if (last - first <= MOST_POINTS) for (let i = first; i < last; i++) kept.push(i);
  else {
    const buckets = MOST_POINTS / 2;
    kept.push(first);
    for (let b = 0; b < buckets; b++) {
      const from = first + Math.floor((b * (last - first)) / buckets);
      const to = first + Math.floor(((b + 1) * (last - first)) / buckets);
      let low = from, high = from;
      for (let i = from; i < to; i++) { if (y[i] < y[low]) low = i; if (y[i] > y[high]) high = i; }
      kept.push(...(low < high ? [low, high] : low > high ? [high, low] : [low]));
    }
    kept.push(last - 1);
  }
  return { x: kept.map((i) => x[i]), y: kept.map((i) => y[i]), kept };
}

class Curves {
  constructor(node, data) {
    Object.assign(this, { node, data, value: data.values[0].key, axis: data.axes[0].key, log: false,
      target: data.metric.scale * data.target, hidden: new Set() });
  }

  get scale() { return this.value === "score" ? this.data.metric.scale : 1; }

  get isTargetShown() { return this.value === "score" && Number.isFinite(this.target); }

  combined() {
    const key = `${this.axis} ${this.value}`;
    if (this.known !== key) {
      this.known = key;
      this.columns = this.data.groups.map((group) => combine(group, this.axis, this.value, this.scale));
    }
    return this.columns;
  }

  traces(range) {
    const result = [];
    this.combined().forEach((columns, i) => {
      const group = this.data.groups[i], name = group.label, legendgroup = String(i), chosen = color(i);
      if (group.runs.length > 1) {
        const low = thin(columns.x, columns.low, range), high = thin(columns.x, columns.high, range);
        const edge = { type: "scatter", mode: "lines", line: { width: 0 }, hoverinfo: "skip", showlegend: false,
          legendgroup };
        result.push({ ...edge, x: low.x, y: low.y });
        result.push({ ...edge, x: high.x, y: high.y, fill: "tonexty", fillcolor: chosen + "33" });
      }
      const { x, y, kept } = thin(columns.x, columns.mean, range);
      result.push({ type: "scatter", mode: x.length < 40 ? "lines+markers" : "lines", name, legendgroup, x, y,
        line: { color: chosen, width: 2, dash: i % 2 ? "dash" : "solid" }, marker: { color: chosen, size: 5 },
        customdata: kept.map((k) => columns.round[k]), showlegend: this.data.groups.length > 1,
        hovertemplate: this.axis === "round" ? "%{y:.5~g}<extra>%{fullData.name}</extra>"
          : "%{y:.5~g} in round %{customdata}<br>after %{x:.4~s}<extra>%{fullData.name}</extra>" });
    });
    return result;
  }

  layout(range) {
    const axis = this.data.axes.find((a) => a.key === this.axis);
    const value = this.data.values.find((v) => v.key === this.value);
    const layout = merged(baseLayout(420), {
      uirevision: `${this.axis} ${this.value} ${this.log}`,
      hovermode: this.axis === "round" ? "x unified" : "closest",
      xaxis: { title: { text: axis.unit ? `${axis.label} (${axis.unit})` : axis.label },
        tickformat: axis.unit ? "~s" : "" },
      yaxis: { title: { text: value.label }, type: this.log ? "log" : "linear" },
    });
    if (this.node.clientWidth < NARROW) Object.assign(layout, merged(layout, narrowLayout()));
    if (range) layout.xaxis.range = [...range];
    if (this.isTargetShown) {
      layout.shapes = [{ type: "line", xref: "paper", x0: 0, x1: 1, y0: this.target, y1: this.target,
        line: { color: css("muted"), width: 1.5, dash: "dot" } }];
      layout.annotations = [{ xref: "paper", x: 1, xanchor: "right", yanchor: "bottom", showarrow: false,
        y: this.log ? Math.log10(this.target) : this.target, text: "target", font: { color: css("muted"), size: 12 } }];
    }
    return layout;
  }

  async draw(range = null) {
    this.busy = true; // what follows is our own doing, not the reader's
    await Plotly.react(this.node, this.traces(range), this.layout(range), config());
    this.busy = false;
    if (!this.listens) {
      this.listens = true;
      this.node.on("plotly_relayout", (change) => this.zoomed(change));
      listenToKeys(this.node);
    }
  }

  // Other points are seen: take them from the full data.
  zoomed(change) {
    if (this.busy) return;
    if ("xaxis.range[0]" in change || "xaxis.range" in change) {
      this.range = [...this.node._fullLayout.xaxis.range];
      const y = [...this.node._fullLayout.yaxis.range], fixed = "yaxis.range[0]" in change;
      this.draw(this.range).then(() => { if (fixed) this.keepHeight(y); });
    } else if (change["xaxis.autorange"]) {
      this.range = null;
      this.draw();
    }
  }

  async keepHeight(range) {
    this.busy = true;
    await Plotly.relayout(this.node, { "yaxis.range": range });
    this.busy = false;
  }

  // By group and axis: the mean cost of the runs that reach the target, and how many do.
  costs() {
    const { metric, groups, axes } = this.data, target = this.target / metric.scale;
    const reaches = (score) => score !== null && (metric.higher ? score >= target : score <= target);
    return groups.map((group) => {
      const first = group.runs.map((run) => run.y.score.findIndex(reaches));
      const some = group.runs.map((run, i) => [run, first[i]]).filter(([, i]) => i >= 0);
      const means = axes.map(({ key }) => some.reduce((sum, [run, i]) => sum + run.x[key][i], 0) / some.length);
      return { label: group.label, reached: some.length, runs: group.runs.length, means };
    });
  }
}

function si(value, unit) {
  if (!unit) return String(Math.round(10 * value) / 10);
  const prefixes = ["", "k", "M", "G", "T", "P", "E"];
  let size = unit === "s" ? 0 : Math.max(0, Math.min(6, Math.floor(Math.log10(Math.max(value, 1)) / 3)));
  return `${(value / 1000 ** size).toPrecision(3).replace(/\.0+$/, "")} ${prefixes[size]}${unit}`;
}
