"use strict";
// The page of `lfpo compare`: learning curves, the frontier of accuracy over forwards, straightness, and the tables.

const STRONG = 4; // objectives that stand out at first; the others are drawn thin and grey

function comparisonPage(main) {
  return (data) => {
    document.title = `${data.title}: lfpo report`;
    main.replaceChildren(el("header", { class: "top" }, el("div", {}, el("p", { class: "brand" }, "lfpo report"),
      el("h1", {}, data.title), el("p", { class: "dim" }, data.summary))));
    for (const recipe of data.recipes) main.append(recipePanel(recipe, data.sampler));
    main.append(panel("Tables", "Best bold, second underlined, none where all are equal; small print: intervals.", el("div", { class: "results" }, data.tables.map(resultTable))));
    main.append(panel("Settings", null, el("p", { class: "dim" }, data.environment),
      data.config ? el("details", {}, el("summary", {}, "config.yaml, every key"), el("pre", {}, visible(data.config))) : null));
  };
}

function recipePanel(recipe, sampler) {
  const { objectives, base } = recipe;
  const final = (o) => o.final[sampler].accuracy;
  const chosen = new Map(); // objective -> its colour
  const choose = (o) => chosen.set(o, COLOURS.find((c) => ![...chosen.values()].includes(c)) || "var(--ink)");
  [objectives[0], ...[...objectives.slice(1)].sort((a, b) => final(b) - final(a))].slice(0, STRONG).forEach(choose);

  const on = recipe.problems === recipe.curve_problems ? "" : ` Curves are measured on ${recipe.curve_problems} problems; the values in the legend are the table's, on ${recipe.problems}.`;
  const time = chart("Accuracy against time", `Means over seeds; bands from the worst to the best seed.${on}`);
  const work = chart("Accuracy against arithmetic", "The same, over the model FLOPs of training.");
  const straight = chart("Straightness", "Share of masked positions whose most likely token is already the final one, state by state (greedy). Legend: mean over the states.");
  const front = frontier();
  const pick = el("div", { class: "bar", role: "group", "aria-label": "Objectives that stand out" });

  const mean = (values) => values.reduce((a, b) => a + b, 0) / Math.max(1, values.length);
  const style = (o) => (chosen.has(o) ? { colour: chosen.get(o) } : { colour: "var(--grey)", dim: true });
  const last = (list) => [...list].sort((a, b) => chosen.has(a) - chosen.has(b)); // drawn last, so on top

  function show() {
    pick.replaceChildren(el("span", { class: "dim" }, "Stand out:"), ...objectives.map((o) => {
      const button = el("button", { type: "button", class: "pick", "aria-pressed": String(chosen.has(o)), onclick: () => { if (!chosen.delete(o)) choose(o); show(); pick.querySelectorAll("button")[objectives.indexOf(o)].focus(); } },
        chosen.has(o) ? swatch(chosen.get(o)) : null, o.label);
      return button;
    }));
    const curve = (axis) => last(objectives).map((o) => ({ name: o.label, x: o.curve[axis], y: o.curve.accuracy, final: final(o), ...style(o), ...(chosen.has(o) ? { low: o.curve.low, high: o.curve.high } : {}) }));
    time.update({ share: true, labels: true, tall: true, anyX: true, xLabel: "seconds of training", series: curve("seconds") });
    work.update({ share: true, labels: true, tall: true, anyX: true, xLabel: "model TFLOPs", series: curve("tflops") });
    straight.update({ share: true, xLabel: "denoising state", series: [...(base ? [base] : []), ...last(objectives)].map((o) => ({
      name: o.label, x: o.straightness.map((_, j) => j), y: o.straightness, final: mean(o.straightness), ...(o === base ? { colour: "var(--ink)", dash: "2 3" } : style(o)) })) });
    front.update(base, objectives, chosen);
  }
  show();
  return panel(recipe.name, `Held-out accuracy, sampler ${sampler}, while each objective trains.`, pick,
    el("div", { class: "pair" }, time.root, work.root), front.root, straight.root);
}

// Accuracy over forwards of every objective under every sampler; a line joins the points that none other beats in both.
function frontier() {
  const plot = el("div", { class: "plot" });
  const root = el("figure", { class: "chart" }, el("figcaption", {}, el("h3", {}, "Accuracy over forwards"),
    el("p", { class: "dim" }, "Each point is an objective under one sampler; up and to the left is better; hollow is the base. The line joins the points that no other beats in both, with their names.")), plot);
  let draw_ = () => {};
  let drawnAt = 0;
  new ResizeObserver(() => { if (plot.clientWidth !== drawnAt) { drawnAt = plot.clientWidth; requestAnimationFrame(() => draw_()); } }).observe(plot);

  function render(points) {
    const best = [];
    for (const p of [...points].sort((a, b) => a.nfe - b.nfe || b.accuracy - a.accuracy)) if (!best.length || p.accuracy > best[best.length - 1].accuracy) best.push(p);
    const floor = Math.min(...points.filter((p) => p.colour || p.base).map((p) => p.accuracy));
    const inside = points.filter((p) => p.accuracy >= floor);
    const place = (p) => Math.log2(p.nfe);
    const [from, to] = [Math.floor(Math.min(...inside.map(place))), Math.ceil(Math.max(...inside.map(place)))];
    const powers = Array.from({ length: to - from + 1 }, (_, i) => [from + i, number(2 ** (from + i))]);
    const series = [{ x: [from, ...inside.map(place), to], y: inside.map((p) => p.accuracy) }];
    const at = layout({ share: true, tall: true }, series, Math.max(240, plot.clientWidth || 320));
    const line = best.map((p, i) => `${i ? "L" : "M"}${at.px(place(p)).toFixed(1)} ${at.py(p.accuracy).toFixed(1)}`).join("");
    const image = draw("svg", { viewBox: `0 0 ${at.width} ${at.height}`, width: at.width, height: at.height, role: "img",
      "aria-label": `Frontier: ${best.map((p) => `${p.name} ${percent(p.accuracy)} at ${fixed(p.nfe, 1)} forwards`).join("; ")}` }, drawAxes(at, true, powers), draw("path", { d: line, stroke: "var(--dim)", "stroke-dasharray": "3 3", class: "line" }));
    const labels = spread(best.map((p) => at.py(p.accuracy) - 9), 15, 12, at.height - 30);
    best.forEach((p, i) => {
      const right = at.px(place(p)) < at.width * 0.7;
      image.append(draw("text", { x: at.px(place(p)) + (right ? 8 : -8), y: labels[i], "text-anchor": right ? "start" : "end", class: "named", fill: p.colour || "var(--dim)" }, p.name));
    });
    for (const p of inside) {
      image.append(draw("circle", { cx: at.px(place(p)), cy: at.py(p.accuracy), r: p.colour ? 5 : 3.5, fill: p.base ? "var(--panel)" : p.colour || "var(--grey)", stroke: p.base ? "var(--ink)" : "var(--panel)", opacity: p.colour || p.base ? 1 : 0.45 },
        draw("title", {}, `${p.name}: ${percent(p.accuracy)} at ${fixed(p.nfe, 1)} forwards`)));
    }
    const left = points.length - inside.length;
    plot.replaceChildren(image, el("p", { class: "dim where" }, `forwards a completion (NFE), logarithmic${left ? `; ${left} points lie below the picture` : ""}`));
  }

  return {
    root,
    update(base, objectives, chosen) {
      const all = [...objectives.filter((o) => !chosen.has(o)), ...(base ? [base] : []), ...chosen.keys()];
      const points = all.flatMap((o) => Object.entries(o.final).map(([sampler, { accuracy, nfe }]) => ({ name: `${o.label}, ${sampler}`, accuracy, nfe, base: o === base, colour: chosen.get(o) })));
      draw_ = () => render(points);
      draw_();
    },
  };
}

function resultTable(table) {
  const heading = el("h3", {}, table.title.replaceAll("`", ""));
  const rows = table.rows.map((row) => el("tr", {}, row.map((entry, i) => {
    const text = entry.rank === 1 ? el("b", {}, entry.text) : entry.rank === 2 ? el("u", {}, entry.text) : entry.text;
    return el(i ? "td" : "th", { class: i ? "n" : null, scope: i ? null : "row" }, text, entry.note ? el("small", {}, entry.note) : null);
  })));
  return el("div", { class: table.columns.length > 3 ? "result wide" : "result" }, heading, el("p", { class: "dim" }, table.caption),
    el("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": heading.textContent },
      el("table", {}, el("thead", {}, el("tr", {}, table.columns.map((c, i) => el("th", { class: i ? "n" : null, scope: "col" }, c)))), el("tbody", {}, rows))));
}
