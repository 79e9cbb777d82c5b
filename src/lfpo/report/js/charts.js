"use strict";
// Line and area charts as SVG, drawn at the width of their element. The legend shows the values under the pointer.

function tickStep(low, high, count) {
  const raw = (high - low || 1) / count;
  const power = 10 ** Math.floor(Math.log10(raw));
  return [1, 2, 2.5, 5, 10].find((m) => m * power >= raw * 0.999) * power;
}

function ticks(low, high, step) {
  const found = [];
  for (let v = Math.ceil(low / step - 1e-9) * step; v <= high + step * 1e-9; v += step) found.push(Number(v.toPrecision(12)));
  return found;
}

// The value of a series at x, or at the last point before x.
function valueAt(series, x) {
  let found = null;
  for (let i = 0; i < series.x.length && series.x[i] <= x; i++) found = i;
  return found === null ? null : series.y[found];
}

function stacked(series) {
  const below = new Map();
  return series.map((s) => {
    const low = s.x.map((x) => below.get(x) || 0);
    const high = s.x.map((x, i) => low[i] + s.y[i]);
    s.x.forEach((x, i) => below.set(x, high[i]));
    return { ...s, low, high };
  });
}

// The points of a line: at most MEANS means over neighbouring points where it has more than twice as many.
const MEANS = 75;
const isLong = (s) => s.x.length > 2 * MEANS;
function averaged({ x, y }) {
  const means = (values) => Array.from({ length: MEANS }, (_, i) => {
    const part = values.slice(Math.floor((i * values.length) / MEANS), Math.floor(((i + 1) * values.length) / MEANS));
    return part.reduce((a, b) => a + b) / part.length;
  });
  return [means(x), means(y)];
}

// A value in text, with enough digits to tell two values apart that lie one tick step from each other.
function reading(value, share, step) {
  if (value === null || value === undefined) return number(value);
  const [v, s] = share ? [100 * value, 100 * step] : [value, step];
  const digits = v ? Math.max(3, Math.floor(Math.log10(Math.abs(v))) - Math.floor(Math.log10(s)) + 2) : 3;
  return share ? `${number(v, digits)} %` : number(v, digits);
}

// Positions moved apart to at least `gap`, kept between low and high where there is room.
function spread(wanted, gap, low, high) {
  const order = wanted.map((_, i) => i).sort((a, b) => wanted[a] - wanted[b]);
  const found = [...wanted];
  order.forEach((i, n) => { found[i] = Math.max(low, wanted[i], n ? found[order[n - 1]] + gap : low); });
  order.reverse().forEach((i, n) => { found[i] = Math.min(found[i], n ? found[order[n - 1]] - gap : high); });
  return found;
}

// The y axis of a chart. Values that hardly differ get a range of 1 % of their size, so that the tick labels differ.
function yAxis(series, from, count = 4) {
  let [low, high] = [from ?? Infinity, -Infinity];
  for (const s of series) for (const y of [s.y, s.low || [], s.high || []].flat()) { low = Math.min(low, y); high = Math.max(high, y); }
  const range = 0.01 * Math.max(Math.abs(low), Math.abs(high)) || 1;
  if (high - low < range) {
    if (low !== from) low -= (range - (high - low)) / 2;
    high = low + range;
  }
  const step = tickStep(low, high, count);
  return { step, bottom: Math.floor(low / step + 1e-6) * step, top: Math.ceil(high / step - 1e-6) * step };
}

const pen = document.createElement("canvas").getContext("2d");
const nameWidth = (text) => { pen.font = "600 12px system-ui, sans-serif"; return pen.measureText(text).width; };

// Room for the names at the ends of lines; 0 where they would take more than a third of the picture, and the legend
// alone names the lines.
function namesRoom(spec, series, width) {
  const room = spec.labels ? Math.ceil(Math.max(0, ...series.map((s) => nameWidth(s.name)))) + 18 : 0;
  return room < width / 3 ? room : 0;
}

// Where the values of a chart lie in a picture of `width` pixels: {height, margin, xs, y, px, py}.
function layout(spec, series, width) {
  const height = Math.round(spec.tall ? Math.min(340, Math.max(220, width * 0.6)) : Math.min(240, Math.max(150, width * 0.42)));
  const xs = [...new Set(series.flatMap((s) => s.x))].sort((a, b) => a - b);
  const y = yAxis(series, spec.from, spec.tall ? 7 : 4);
  y.ticks = ticks(y.bottom, y.top, y.step).map((t) => [t, reading(t, spec.share, y.step)]);
  const margin = { left: 12 + 7 * Math.max(...y.ticks.map(([, text]) => text.length)), right: namesRoom(spec, series, width) || 10, top: 8, bottom: 24 };
  const [x0, x1] = [xs[0], xs.length > 1 ? xs[xs.length - 1] : xs[0] + 1];
  const [wide, high] = [width - margin.left - margin.right, height - margin.top - margin.bottom];
  return {
    width, height, margin, xs, y, x0, x1,
    px: (x) => margin.left + ((x - x0) / (x1 - x0)) * wide,
    py: (v) => height - margin.bottom - ((v - y.bottom) / (y.top - y.bottom)) * high,
    nearest: (px) => {
      const x = x0 + ((px - margin.left) / wide) * (x1 - x0);
      return xs.reduce((best, v) => (Math.abs(v - x) < Math.abs(best - x) ? v : best), xs[0]);
    },
  };
}

// Ticks of the x axis are round numbers, whole ones unless anyX.
function drawAxes(at, anyX) {
  const axes = draw("g", { class: "axis" });
  for (const [t, text] of at.y.ticks) {
    axes.append(draw("line", { x1: at.margin.left, x2: at.width - at.margin.right, y1: at.py(t), y2: at.py(t) }),
      draw("text", { x: at.margin.left - 6, y: at.py(t) + 4, "text-anchor": "end" }, text));
  }
  const step = tickStep(at.x0, at.x1, Math.max(4, Math.floor(at.width / 85)));
  for (const [t, text] of ticks(at.x0, at.x1, anyX ? step : Math.max(1, Math.round(step))).map((v) => [v, number(v)])) {
    const x = Math.min(at.px(t), at.width - 4 * text.length); // inside the picture
    axes.append(draw("text", { x, y: at.height - 6, "text-anchor": "middle" }, text));
  }
  return axes;
}

function drawLines(at, series, stack) {
  const path = (x, y) => x.map((v, i) => `${i ? "L" : "M"}${at.px(v).toFixed(1)} ${at.py(y[i]).toFixed(1)}`).join("");
  const area = (s) => `${path(s.x, s.high)}${path([...s.x].reverse(), [...s.low].reverse()).replace("M", "L")}Z`;
  const { left, top } = at.margin;
  const [wide, high] = [at.width - left - at.margin.right, at.height - top - at.margin.bottom];
  const lines = draw("svg", { x: left - 4, y: top - 4, width: wide + 8, height: high + 8, viewBox: `${left - 4} ${top - 4} ${wide + 8} ${high + 8}` });
  for (const s of series) {
    if (s.low) lines.append(draw("path", { d: area(s), fill: s.colour, class: stack ? "layer" : "band" }));
    // Every point of a dashed line would look like a solid band.
    if (!stack && isLong(s) && !s.dash) lines.prepend(draw("path", { d: path(s.x, s.y), stroke: s.colour, class: "line faint" }));
    if (!stack) lines.append(draw("path", { d: path(...(isLong(s) ? averaged(s) : [s.x, s.y])), stroke: s.colour, class: "line", "stroke-dasharray": s.dash }));
    if (s.dots || s.x.length === 1) s.x.forEach((x, i) => lines.append(draw("circle", { cx: at.px(x), cy: at.py((stack ? s.high : s.y)[i]), r: 2.6, fill: s.colour })));
  }
  return lines;
}

// The names of lines to the right of the plot, each joined to the end of its line.
function drawNames(at, series) {
  const ends = series.map((s) => [at.px(s.x[s.x.length - 1]), at.py(s.y[s.y.length - 1])]);
  const rows = spread(ends.map(([, y]) => y), 14, at.margin.top + 4, at.height - at.margin.bottom);
  const x = at.width - at.margin.right + 10;
  return draw("g", {}, series.map((s, i) => [
    draw("path", { d: `M${ends[i][0] + 3} ${ends[i][1]}L${x - 12} ${ends[i][1]}L${x - 3} ${rows[i]}`, stroke: s.colour, class: "leader" }),
    draw("text", { x, y: rows[i] + 4, class: "named", fill: s.colour }, s.name)]).flat());
}

// update(spec): series [{name, x, y, low, high, colour, dash, dots}], labels (names at the ends of the lines), digits (decimals of all readings), share (values in [0, 1], shown in percent),
// stack, from (the y axis starts there or below), xLabel, anyX (ticks of x need not be whole numbers).
function chart(title, hint) {
  const legend = el("ul", { class: "legend" });
  const plot = el("div", { class: "plot" });
  const root = el("figure", { class: "chart" },
    el("figcaption", {}, el("h3", {}, title), hint ? el("p", { class: "dim" }, hint) : null), legend, plot);
  let spec = null;

  function render() {
    const series = spec.stack ? stacked(spec.series) : spec.series;
    const at = layout(spec, series, Math.max(240, plot.clientWidth || 320));
    const text = (v) => (spec.digits === undefined || v === null ? reading(v, spec.share, at.y.step) : fixed(v, spec.digits));
    const last = (s) => s.y[s.y.length - 1];
    const cross = draw("line", { class: "cross", y1: at.margin.top, y2: at.height - at.margin.bottom });
    const said = `${title}. ${spec.series.map((s) => `${s.name}: ${text(s.y[0])} at first, ${text(last(s))} at last`).join("; ")}`;
    const image = draw("svg", { viewBox: `0 0 ${at.width} ${at.height}`, width: at.width, height: at.height, role: "img", "aria-label": said, tabindex: 0 },
      drawAxes(at, spec.anyX), drawLines(at, series, spec.stack), namesRoom(spec, series, at.width) ? drawNames(at, spec.series) : null, cross);
    const where = el("p", { class: "dim where" });
    const values = legend.querySelectorAll("output");
    let chosen = null;

    // The legend shows the values at x; for null the last ones.
    const show = (x) => {
      chosen = x;
      cross.setAttribute("visibility", x === null ? "hidden" : "visible");
      if (x !== null) ["x1", "x2"].forEach((a) => cross.setAttribute(a, at.px(x)));
      where.textContent = x === null ? spec.xLabel : `${spec.xLabel} ${number(x)}`;
      spec.series.forEach((s, i) => { values[i].textContent = x === null ? text(last(s)) : text(valueAt(s, x)); });
    };
    image.addEventListener("pointermove", (event) => {
      const box = image.getBoundingClientRect();
      show(at.nearest(((event.clientX - box.left) / box.width) * at.width));
    });
    image.addEventListener("pointerleave", () => show(null));
    image.addEventListener("blur", () => show(null));
    image.addEventListener("keydown", (event) => {
      const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
      if (!step) return;
      event.preventDefault();
      const i = chosen === null ? (step > 0 ? -1 : at.xs.length) : at.xs.indexOf(chosen);
      show(at.xs[Math.min(at.xs.length - 1, Math.max(0, i + step))]);
    });
    plot.replaceChildren(image, where);
    show(null);
  }

  let drawnAt = 0;
  new ResizeObserver(() => {
    if (spec && plot.clientWidth !== drawnAt) { drawnAt = plot.clientWidth; requestAnimationFrame(render); }
  }).observe(plot);

  return {
    root,
    title(text) { root.querySelector("h3").textContent = text; },
    update(next) {
      spec = { ...next, series: next.series.filter((s) => s.x.length) };
      root.hidden = !spec.series.length;
      if (root.hidden) return;
      legend.replaceChildren(...spec.series.map((s) => el("li", {}, swatch(s.colour, s.dash), `${s.name} `, el("output", {}))));
      render();
    },
  };
}

function swatch(colour, dash) {
  return draw("svg", { width: 18, height: 10, "aria-hidden": "true" },
    draw("line", { x1: 0, x2: 18, y1: 5, y2: 5, stroke: colour, "stroke-width": 3, "stroke-dasharray": dash }));
}

// Bars of one histogram {low, high, counts} with their counts, in a picture of `width` pixels.
function bars(histogram, said, width) {
  const [height, top] = [130, 18];
  const most = Math.max(1, ...histogram.counts);
  const step = width / Math.max(1, histogram.counts.length);
  const image = draw("svg", { viewBox: `0 0 ${width} ${height + 20}`, width, height: height + 20, role: "img", "aria-label": said, class: "bars" });
  histogram.counts.forEach((n, i) => {
    const size = (n / most) * (height - top);
    const middle = histogram.low + ((i + 0.5) / histogram.counts.length) * (histogram.high - histogram.low);
    const wide = Math.min(60, Math.max(1, step - 2)); // the only bar of equal values is not a wall
    image.append(draw("rect", { x: (i + 0.5) * step - wide / 2, y: height - size, width: wide, height: size },
      draw("title", {}, `around ${number(middle)}: ${n}`)));
    if (n) image.append(draw("text", { x: (i + 0.5) * step, y: height - size - 4, "text-anchor": "middle", class: "count-of", fill: "var(--ink)" }, String(n)));
  });
  image.append(draw("line", { x1: 0, x2: width, y1: height, y2: height }));
  const ends = histogram.low === histogram.high ? [[width / 2, "middle", histogram.low]]
    : [[0, "start", histogram.low], [width / 2, "middle", (histogram.low + histogram.high) / 2], [width, "end", histogram.high]];
  for (const [x, anchor, value] of ends) image.append(draw("text", { x, y: height + 16, "text-anchor": anchor }, number(value, 2)));
  return image;
}
