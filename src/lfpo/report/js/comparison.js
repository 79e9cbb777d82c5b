"use strict";
// The page of `lfpo compare`: accuracy over forwards, learning curves, and the table.

function comparisonPage(main) {
  return (data) => {
    document.title = `${data.title}: lfpo report`;
    main.replaceChildren(el("header", { class: "top" }, el("div", {}, el("p", { class: "brand" }, "lfpo report"),
      el("h1", {}, data.title), el("p", { class: "dim" }, data.summary))));
    const colours = new Map(data.curves.filter((c) => c.learning).map((c, i) => [c.label, COLOURS[i % COLOURS.length]]));
    const lines = (key) => data.curves.filter((c) => c[key]).map((c) => {
      const { x, mean, low, high } = c[key];
      return { name: c.label, x, y: mean, low, high, ...(colours.has(c.label) ? { colour: colours.get(c.label) } : { colour: "var(--ink)", dash: "2 3" }) };
    });
    const bands = "Means over seeds; bands from the lowest to the highest seed.";
    const [measure, share] = data.measure === "accuracy" ? ["Accuracy", true] : ["Mean reward", false];
    const front = chart(`${measure} over forwards`, `After training, one point a confidence threshold. ${bands} Dotted: the untrained model.`);
    const work = chart(`${measure} over training`, bands);
    main.append(panel(`Held-out ${measure.toLowerCase()}`, null, front.root, work.root),
      panel("Table", null, el("div", { class: "results" }, resultTable(data.table))),
      panel("Settings", null, el("p", { class: "dim" }, data.environment),
        el("details", {}, el("summary", {}, "Settings of the comparison"), el("pre", {}, visible(data.config)))));
    const wide = { share, labels: true, tall: true, anyX: true };
    front.update({ ...wide, xLabel: "forwards a completion (NFE)", series: lines("frontier") });
    work.update({ ...wide, xLabel: "TFLOPs of training", series: lines("learning") });
  };
}

// Columns of numbers are aligned to the right.
function resultTable(table) {
  const kind = table.columns.map((_, i) => (i && table.rows.every((row) => !row[i] || /^([-+−]?\d|missing)/.test(row[i])) ? "n" : null));
  const rows = table.rows.map((row) => el("tr", {}, row.map((text, i) => el(i ? "td" : "th", { class: kind[i], scope: i ? null : "row" }, visible(text)))));
  return el("div", { class: "result wide" }, table.caption ? el("p", { class: "dim" }, table.caption) : null,
    el("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": "Table" },
      el("table", {}, el("thead", {}, el("tr", {}, table.columns.map((c, i) => el("th", { class: kind[i], scope: "col" }, c)))), el("tbody", {}, rows))));
}
