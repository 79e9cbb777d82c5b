"use strict";
// Builds a page, and in `lfpo watch` keeps it up to date.

const DASHES = [null, "6 4", "2 3"]; // for more lines than colours
const COLOURS = ["var(--c1)", "var(--c2)", "var(--c3)", "var(--c4)", "var(--c5)", "var(--c6)"];

// One series of a run's metrics, without the iterations that lack the key.
function series(data, key, name, colour, options = {}) {
  const at = data.metrics[key] || [];
  const x = [];
  const kept = [];
  at.forEach((v, i) => { if (v !== null && v !== undefined) { x.push(data.metrics.step[i]); kept.push(i); } });
  const from = (k) => kept.map((i) => data.metrics[k][i]);
  const made = { name, colour, x, y: from(key), ...options };
  if (options.low) { made.low = from(options.low); made.high = from(options.high); }
  return made;
}

function theme() {
  const names = ["auto", "light", "dark"];
  let now = 0;
  try { now = Math.max(0, names.indexOf(localStorage.getItem("lfpo-theme"))); } catch { /* a page from disk may have no storage */ }
  const button = el("button", { type: "button", class: "theme", onclick: () => { now = (now + 1) % 3; apply(); } });
  function apply() {
    if (now) document.documentElement.dataset.theme = names[now];
    else delete document.documentElement.dataset.theme;
    button.textContent = `Theme: ${names[now]}`;
    try { localStorage.setItem("lfpo-theme", names[now]); } catch { /* see above */ }
  }
  apply();
  return button;
}

function panel(title, lead, ...children) {
  const id = title.toLowerCase().replace(/[^a-z]+/g, "-");
  return el("section", { class: "panel", id }, el("h2", {}, title), lead ? el("p", { class: "lead" }, lead) : null, ...children);
}

// Links to the panels that are shown.
function contents(panels) {
  const root = el("nav", { class: "contents", "aria-label": "Contents" });
  return { root, update() {
    root.replaceChildren(...panels.filter((p) => !p.hidden).map((p) => el("a", { href: `#${p.id}` }, p.querySelector("h2").textContent)));
  } };
}

function runPage(main) {
  const heading = el("header", { class: "top" });
  const tiles = el("div", { class: "tiles" });
  const play = player();
  const note = el("p", { class: "dim" });
  const map = heatmap();
  const make = {
    curve: chart("Reward and held-out results", "Dots: evaluations. Bands: their 95 % intervals over problems."),
    steps: chart("Inference steps", "Scheduled denoising steps per completion."),
    nfe: chart("Forwards (NFE)", "Forward passes run per completion."),
  };
  const signal = chartGrid();
  const policy = chartGrid();
  const agreement = chart("Group agreement", "Share of prompts whose rollouts are all right, mixed, or all wrong. Only mixed ones give a gradient.");
  const learned = iterations((named) => play.open(named));
  const lead = el("p", { class: "lead" });
  const details = el("div", { class: "details" });
  const maps = panel("How straight the path is", "Each column is a position, each row a denoising step from top to bottom; the stronger the colour, the more often this step reveals this position. On a straight path only the top rows are filled.", map.root);
  const shown = panel("Watch it denoise", null, lead, play.root, note);
  const policies = panel("How the policy changes", "A target is a masked position that the loss scores. Good rollouts are better than their group, bad ones worse.", policy.root);
  const rollouts = panel("What an iteration learned from", "The rollouts of one iteration: what the objective made of their rewards, and each prompt's completions with the best first.", learned.root);
  const notes = el("ul", { class: "notes", "aria-label": "Notes of the run" });
  const learning = panel("Learning", null, make.curve.root, el("div", { class: "pair" }, make.steps.root, make.nfe.root));
  const panels = [learning, shown, rollouts, panel("Training signal", null, signal.root, agreement.root), policies, maps, panel("Settings", null, details)];
  const list = contents(panels);
  main.append(heading, tiles, list.root, notes, ...panels);

  return (data) => {
    document.title = `${data.name}: lfpo report`;
    heading.replaceChildren(...runHeading(data));
    tiles.replaceChildren(...runTiles(data));
    notes.hidden = !data.notes.length;
    notes.replaceChildren(...data.notes.map((n) => el("li", {}, el("b", {}, `Iteration ${n.step}: `), visible(n.text))));
    play.update(data.samples);
    shown.hidden = play.root.hidden && !data.samples_note;
    lead.textContent = data.held_out ? "The same held-out prompt before and after training, step by step. It opens on the kept problem where training changed most; the list has the others."
      : "Rollouts of training, step by step: of each prompt of the newest iteration the best, after that of an older iteration where the page has one.";
    note.textContent = data.samples_note ? `Note: ${data.samples_note}.` : "";
    const everyMap = [...data.samples.maps, ...(data.rollout_maps ? [data.rollout_maps] : [])].filter((m) => m.panels.length);
    map.update(everyMap);
    maps.hidden = !everyMap.length;
    runCharts(make, data);
    signal.update(data, data.charts.signal);
    policies.hidden = !policy.update(data, data.charts.policy);
    const agreed = data.histograms.filter((h) => h.agreement);
    agreement.update({ stack: true, share: true, from: 0, xLabel: "iteration", series: agreed.length ? [["all right", "var(--c3)"], ["mixed", "var(--grey)"], ["all wrong", "var(--c2)"]].map(([name, colour]) => (
      { name, colour, x: agreed.map((h) => h.step), y: agreed.map((h) => h.agreement[name]) })) : [] });
    learned.update(data);
    rollouts.hidden = !data.histograms.length;
    const open = [...details.querySelectorAll("details")].map((d) => d.open);
    details.replaceChildren(...runDetails(data));
    details.querySelectorAll("details").forEach((d, i) => { d.open = open[i] || false; });
    list.update();
  };
}

function runHeading(data) {
  const parts = [data.title, data.model, `${data.step} of ${data.max_steps} iterations`, `${duration(data.seconds)} of training`,
    data.rate ? `${number(data.rate)} s an iteration` : null, data.left ? `${duration(data.left)} left` : null,
    `learning rate ${number(data.learning_rate)}`, `seed ${data.seed}`];
  return [el("div", {}, el("p", { class: "brand" }, "lfpo report", data.live ? el("span", { class: "chip live" }, data.finished ? "finished" : "live") : null),
    el("h1", {}, visible(data.name)), el("p", { class: "dim" }, visible(parts.filter(Boolean).join(" · "))))];
}

// A metric's course as a line without axes; a dot marks its last value.
function sparkline({ x, y }, colour) {
  if (y.length < 2) return null;
  const [low, high, wide, tall] = [Math.min(...y), Math.max(...y), 120, 26];
  const at = y.map((v, i) => [3 + ((x[i] - x[0]) / (x[x.length - 1] - x[0])) * (wide - 6), 3 + (1 - (v - low) / (high - low || 1)) * (tall - 6)]);
  const [cx, cy] = at[at.length - 1];
  return draw("svg", { viewBox: `0 0 ${wide} ${tall}`, width: wide, height: tall, class: "spark", "aria-hidden": "true" },
    draw("path", { d: at.map(([a, b], i) => `${i ? "L" : "M"}${a.toFixed(1)} ${b.toFixed(1)}`).join(""), stroke: colour, class: "line" }),
    draw("circle", { cx, cy, r: 3, fill: colour }));
}

function tile(name, before, after, remark, spark = null) {
  return el("div", { class: "tile" }, el("h3", {}, name),
    el("p", { class: "big" }, before === after || before === null ? after : [el("span", { class: "was" }, before), " → ", after]),
    spark, el("p", { class: "dim" }, remark));
}

function runTiles(data) {
  const found = data.evaluations.map(({ name, first, last, change }, i) => {
    const scored = "accuracy" in last;
    const format = scored ? percent : (v) => (v === null || v === undefined ? "–" : fixed(v, 3));
    const key = scored ? "accuracy" : "reward";
    const signed = (v) => `${v < 0 ? "−" : "+"}${fixed(Math.abs(scored ? 100 * v : v), scored ? 1 : 3)}`;
    const interval = "low" in last && last.low !== null ? `${format(last.low).replace(" %", "")} to ${format(last.high)} · ` : "";
    return tile(`${name}: held-out ${scored ? "accuracy" : "mean reward"}`, first.step === last.step ? null : format(first[key]), format(last[key]),
      [`${interval}NFE ${fixed(first.nfe, 1) === fixed(last.nfe, 1) ? "" : `${fixed(first.nfe, 1)} → `}${fixed(last.nfe, 1)}`,
        change ? el("span", { class: change.low > 0 ? "right" : change.high < 0 ? "wrong" : null }, el("br"), `${signed(change.mean)}${scored ? " points" : ""} (${signed(change.low)} to ${signed(change.high)}, paired)`) : null],
      sparkline(series(data, `eval/${name}/${key}`, name, null), COLOURS[i % COLOURS.length]));
  });
  const reward = series(data, "reward", "", null);
  if (reward.y.length) {
    found.push(tile("training reward", number(reward.y[0]), number(reward.y[reward.y.length - 1]),
      "mean over an iteration's rollouts, first and last iteration", sparkline(reward, "var(--grey)")));
  }
  const total = Object.values(data.times).reduce((a, b) => a + b, 0);
  const split = Object.entries(data.percents).filter(([, p]) => p).map(([name, p]) => `${name} ${p} %`);
  found.push(tile("time, evaluation included", null, duration(total), split.join(" · ")));
  return found;
}

function runCharts(make, data) {
  const names = data.evaluations.map((e) => e.name);
  const scored = (n) => (data.metrics[`eval/${n}/accuracy`] ? "accuracy" : "reward");
  const every = names.length > 0 && names.every((n) => scored(n) === "accuracy");
  const plain = { xLabel: "iteration", from: 0 };
  const grey = "var(--grey)";
  make.curve.update({
    ...plain,
    share: every && (data.metrics.reward || []).every((v) => v === null || (v >= 0 && v <= 1)),
    series: [series(data, "reward", "training reward", grey), ...names.map((n, i) => series(data, `eval/${n}/${scored(n)}`, n, COLOURS[i % COLOURS.length],
      { dots: true, ...(data.metrics[`eval/${n}/low`] ? { low: `eval/${n}/low`, high: `eval/${n}/high` } : {}) }))],
  });
  // One token a forward: both charts would be the same.
  const alike = ["", ...names.map((n) => `eval/${n}/`)].every((p) => (data.metrics[`${p}steps`] || []).every((v, i) => v === data.metrics[`${p}nfe`][i]));
  make.nfe.title(alike ? "Inference steps and forwards (NFE)" : "Forwards (NFE)");
  for (const key of ["steps", "nfe"]) {
    if (alike && key === "steps") { make[key].update({ series: [] }); continue; }
    make[key].update({ ...plain, digits: 1, series: [series(data, key, "rollouts", grey), ...names.map((n, i) => series(data, `eval/${n}/${key}`, n, COLOURS[i % COLOURS.length], { dots: true }))] });
  }
}

// The charts of charts.py that a run has values for. update() returns whether there are any.
function chartGrid() {
  const root = el("div", { class: "pair" });
  let charts = [];
  const spec = (data, c) => ({
    xLabel: "iteration", stack: c.stacked, from: c.from_zero ? 0 : undefined, share: c.unit === "share",
    series: c.lines.map((l) => series(data, l.key, l.name, COLOURS[l.colour % COLOURS.length], { dash: l.dashed ? "6 4" : null })),
  });
  return {
    root,
    update(data, table) {
      if (!charts.length) {
        charts = table.map((c) => chart(c.unit && c.unit !== "share" ? `${c.title} (${c.unit})` : c.title, c.note));
        root.append(...charts.map((c) => c.root));
      }
      charts.forEach((c, i) => c.update(spec(data, table[i])));
      return charts.some((c) => !c.root.hidden);
    },
  };
}

function runDetails(data) {
  const rows = (pairs) => el("dl", {}, pairs.flatMap(([k, v]) => [el("dt", {}, k), el("dd", {}, v)]));
  const set = (s) => Object.entries(s).map(([k, v]) => `${k} ${v}`).join(", ") || "defaults";
  return [
    el("h3", {}, "Samplers"), rows(Object.entries(data.samplers).map(([k, v]) => [k, set(v)])),
    el("h3", {}, "Environment"), rows([["machine", data.environment], ...Object.entries(data.versions)]),
    el("details", {}, el("summary", {}, "config.yaml, every key"), el("pre", {}, visible(data.config))),
  ];
}

// `lfpo watch` only: asks for new data and draws it.
async function follow(update, version) {
  for (;;) {
    await new Promise((done) => setTimeout(done, 1500));
    try {
      const answer = await fetch("data.json", { headers: { "If-None-Match": version } });
      document.body.classList.toggle("lost", false);
      if (answer.status !== 200) continue;
      version = answer.headers.get("ETag");
      update(await answer.json());
    } catch {
      document.body.classList.toggle("lost", true); // the server is gone; it may come back
    }
  }
}

const data = JSON.parse(document.getElementById("data").textContent);
const update = { run: runPage, comparison: comparisonPage, overview: overviewPage }[data.kind](document.querySelector("main"));
document.getElementById("theme").append(theme());
update(data);
if (data.live) follow(update, data.version);
