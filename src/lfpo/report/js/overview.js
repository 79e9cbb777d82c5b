"use strict";
// The page of a folder of runs: a table of them, and one chart with a line for each.

function overviewPage(main) {
  const shown = { key: null };
  const head = el("header", { class: "top" });
  const pick = el("span", {});
  const lines = chart("Course of the runs", "One line a run.");
  const table = el("div", { class: "results" });
  main.append(head, panel("Runs", null, table), panel("Learning", null, pick, lines.root));
  return (data) => {
    document.title = `${data.name}: lfpo report`;
    head.replaceChildren(el("div", {}, el("p", { class: "brand" }, "lfpo report", data.live ? el("span", { class: "chip live" }, "live") : null),
      el("h1", {}, visible(data.name)), el("p", { class: "dim" }, `${data.runs.length} runs`)));
    const keys = [...new Set(data.runs.flatMap((r) => r.held_out)), "reward"];
    if (!keys.includes(shown.key)) shown.key = keys[0];
    const words = (key) => (key === "reward" ? "training reward" : `held out: ${key.split("/")[1]}, ${key.split("/")[2]}`);
    const show = (key) => {
      shown.key = key;
      lines.update({ xLabel: "iteration", from: 0, labels: true, tall: true, share: key.endsWith("/accuracy"),
        series: data.runs.map((r, i) => series({ metrics: r.metrics }, key, r.name, COLOURS[i % COLOURS.length], { dots: key !== "reward", dash: DASHES[Math.floor(i / COLOURS.length) % DASHES.length] })) });
    };
    pick.replaceChildren(labelled("Metric", chooser(keys.map((k) => [k, words(k)]), shown.key, show)));
    table.replaceChildren(resultTable({ columns: data.columns, rows: data.runs.map((r) => r.cells), caption: "" }));
    show(shown.key);
  };
}
