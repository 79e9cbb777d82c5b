"use strict";
// The page of `lfpo compare`: convergence, straightness, and the tables with the best in bold.

const DASHES = [null, "6 3", "2 3"];

function comparisonPage(main) {
  return (data) => {
    document.title = `${data.title}: lfpo report`;
    main.replaceChildren(el("header", { class: "top" }, el("div", {}, el("p", { class: "brand" }, "lfpo report"),
      el("h1", {}, data.title), el("p", { class: "dim" }, data.summary))));
    for (const recipe of data.recipes) main.append(recipePanel(recipe, data.sampler));
    main.append(panel("Tables", "Best bold, second underlined; small print: intervals.", el("div", { class: "results" }, data.tables.map(resultTable))));
    main.append(panel("Settings", null, el("p", { class: "dim" }, data.environment),
      data.config ? el("details", {}, el("summary", {}, "config.yaml, every key"), el("pre", {}, visible(data.config))) : null));
  };
}

function recipePanel(recipe, sampler) {
  const style = (i) => ({ colour: COLOURS[i % COLOURS.length], dash: DASHES[Math.floor(i / COLOURS.length) % DASHES.length] });
  const curve = (axis, name, title) => {
    const made = chart(title, "Means over seeds.");
    made.update({ share: true, xLabel: name, anyX: true, series: recipe.objectives.map((o, i) => ({ name: o.label, x: o.curve[axis], y: o.curve.accuracy, ...style(i) })) });
    return made.root;
  };
  const straight = chart("Straightness", "Share of masked positions whose most likely token is already the final one, state by state (greedy).");
  straight.update({ share: true, xLabel: "denoising state", series: [
    ...(recipe.base ? [{ name: "base", x: recipe.base.map((_, i) => i), y: recipe.base, colour: "var(--grey)" }] : []),
    ...recipe.objectives.map((o, i) => ({ name: o.label, x: o.straightness.map((_, j) => j), y: o.straightness, ...style(i) }))] });
  return panel(recipe.name, `Held-out accuracy, sampler ${sampler}, while each objective trains.`,
    el("div", { class: "pair" }, curve("seconds", "seconds of training", "Against time"), curve("tflops", "model TFLOPs", "Against arithmetic")), straight.root);
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
