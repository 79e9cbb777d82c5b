"use strict";
// One completion after some of its steps: as tokens or as a Sudoku grid.

const SHADES = 6;
const SURE = [0.5, 0.75, 0.9, 0.99]; // confidences at which the colour changes

const lastStep = (sample) => Math.max(-1, ...sample.reveal, ...Object.values(sample.edits || {}).map((held) => held.at(-1)[0]));

// The token at position i after `clock` steps, as [step that wrote it, text, confidence].
function held(sample, i, clock) {
  const tokens = sample.edits?.[i];
  if (!tokens) return [sample.reveal[i], sample.tokens[i], sample.confidence[i]];
  return tokens.findLast(([step]) => step < clock) ?? tokens[0];
}

function shade(sample, i, colouring, clock) {
  const [written, , confidence] = held(sample, i, clock);
  if (colouring === "confidence") return `sure${SURE.filter((bar) => confidence >= bar).length}`;
  const steps = sample.order ??= [...new Set(sample.reveal.filter((s) => s >= 0))].sort((a, b) => a - b);
  // Over the steps of the longer of the two samples, so that both sides share one scale.
  const scale = sample.scale || Math.max(1, (steps[steps.length - 1] || 0) + 1);
  return `step${Math.min(SHADES - 1, Math.floor((written / scale) * SHADES))}`;
}

const tooltip = (sample, i) =>
  (sample.edits?.[i] || [held(sample, i)]).map(([step, text, confidence]) =>
    `${JSON.stringify(visible(text))}, step ${step + 1}, confidence ${number(confidence)}`).join("; then ");

// The position of each token in code points, which Python counts too; JavaScript's lengths are UTF-16 units.
function starts(tokens) {
  let at = 0;
  return tokens.map((t) => { const here = at; at += [...t].length; return here; });
}

function tokenView(sample) {
  const isSpecial = (text) => /^<\|.*\|>$/.test(text);
  const drawn = (text) => visible(isSpecial(text) ? "◼" : text === "" ? "·" : text).replace(/\n/g, "↵\n");
  const nodes = sample.tokens.map((text, i) => {
    const special = isSpecial(text);
    return el("span", { class: special ? "token special" : "token", title: special ? `${text}, ${tooltip(sample, i)}` : tooltip(sample, i) }, el("span", {}, drawn(text)));
  });
  return { root: el("div", { class: "tokens" }, nodes), nodes, paint(node, i, colouring, clock) {
    node.classList.add(shade(sample, i, colouring, clock));
    if (sample.edits?.[i]) node.firstChild.textContent = drawn(held(sample, i, clock)[1]);
  } };
}

function gridView(sample) {
  const { puzzle, at } = sample.grid;
  const size = Math.sqrt(puzzle.length);
  const box = Math.sqrt(size);
  const offsets = starts(sample.tokens);
  const text = [...sample.tokens.join("")];
  const owner = (c) => offsets.findLastIndex((o) => o <= at + c);
  const wrong = []; // by cell: whether its digit is known to be wrong after a number of steps
  const cells = [...puzzle].map((given, c) => {
    const digit = text[at + c];
    const classes = ["cell"];
    if (given !== ".") classes.push("given");
    const repeats = Array.from(puzzle, (_, o) => o).filter((o) => o !== c && text[at + o] === digit &&
      (Math.floor(o / size) === Math.floor(c / size) || o % size === c % size ||
        (Math.floor(o / size / box) === Math.floor(c / size / box) && Math.floor((o % size) / box) === Math.floor((c % size) / box))));
    if (c % size && c % size % box === 0) classes.push("edge-left");
    if (Math.floor(c / size) && Math.floor(c / size) % box === 0) classes.push("edge-top");
    const i = owner(c);
    const notes = [tooltip(sample, i), given !== "." ? `given ${given}` : "", repeats.length ? "repeats in its row, column or box" : ""];
    wrong.push((clock) => (given !== "." && given !== digit) || repeats.some((o) => sample.reveal[owner(o)] < clock));
    return el("span", { class: classes.join(" "), title: notes.filter(Boolean).join(", ") },
      el("span", {}, digit, el("small", {}, String(sample.reveal[i] + 1))));
  });
  const root = el("div", { class: `sudoku of${size}` }, cells);
  return { root, nodes: cells, token: owner, paint(node, c, colouring, clock) {
    node.classList.add(shade(sample, owner(c), colouring, clock));
    node.classList.toggle("clash", wrong[c](clock));
  } };
}

const PANE_COLOURS = ["var(--c2)", "var(--c1)"];

// The share of each sample filled in after each step, and a line at the current step. Returns [svg, move(clock)].
function progressView(named, last, width) {
  const [height, left, foot] = [width * 0.6, 46, 22];
  const px = (x) => left + (x / Math.max(1, last)) * (width - left - 6);
  const py = (y) => 8 + (1 - y) * (height - foot - 8);
  const image = draw("svg", { viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": named.map(([name, s]) => `${name}: filled in after ${lastStep(s) + 1} steps`).join("; ") });
  for (const [y, text] of [[0, "0 %"], [0.5, "50 %"], [1, "100 %"]]) {
    image.append(draw("g", { class: "axis" }, draw("line", { x1: left, x2: width - 6, y1: py(y), y2: py(y) }), draw("text", { x: left - 5, y: py(y) + 4, "text-anchor": "end" }, text)));
  }
  image.append(draw("text", { x: left, y: height - 5 }, "0"), draw("text", { x: width - 6, y: height - 5, "text-anchor": "end" }, `step ${last}`));
  const cursor = draw("line", { class: "cross", y1: py(1), y2: py(0) });
  named.forEach(([, s], i) => {
    const sorted = s.reveal.filter((v) => v >= 0).sort((a, b) => a - b);
    let d = `M${px(0)} ${py(0)}`;
    sorted.forEach((step, n) => { if (sorted[n + 1] !== step) d += `H${px(step + 1).toFixed(1)}V${py((n + 1) / s.reveal.length).toFixed(1)}`; });
    image.append(draw("path", { d: `${d}H${px(last)}`, stroke: PANE_COLOURS[i], class: "line" }));
  });
  image.append(cursor);
  return [image, (clock) => ["x1", "x2"].forEach((a) => cursor.setAttribute(a, px(clock)))];
}

// The columns of a problem beside its prompt, such as the right answer, as terms of a list.
function columnsOf(sample) {
  const text = (value) => { const whole = typeof value === "string" ? value : JSON.stringify(value); return whole.length > 300 ? `${whole.slice(0, 300)}…` : whole; };
  return Object.entries(sample?.columns || {}).flatMap(([name, value]) => [el("dt", {}, visible(name)), el("dd", {}, visible(text(value)))]);
}

// A pane: heading, the completion, its verdict. at(clock, colouring) shows the state after `clock` steps.
function pane(name, sample) {
  const reward = sample.reward === undefined || sample.reward === null ? null : el("span", { class: "chip" }, `reward ${number(sample.reward)}`);
  const verdict = sample.correct === undefined ? reward
    : el("span", { class: sample.correct ? "chip right" : "chip wrong" }, sample.correct ? "✓ right" : "✗ wrong");
  const counter = el("p", { class: "dim count" });
  const view = sample.grid ? gridView(sample) : tokenView(sample);
  const root = el("section", { class: "pane", "aria-label": name },
    el("h3", {}, name, " ", verdict),
    view.root, counter);
  const end = lastStep(sample) + 1;
  return {
    root,
    end,
    at(clock, colouring) {
      let open = 0;
      view.nodes.forEach((node, n) => {
        const i = view.token ? view.token(n) : n;
        const step = sample.reveal[i];
        const shown = step >= 0 && step < clock;
        if (shown) open += 1;
        node.classList.remove("masked", "fresh", ...[0, 1, 2, 3, 4, 5].flatMap((k) => [`step${k}`, `sure${k}`]));
        if (!shown) node.classList.add("masked");
        else view.paint(node, n, colouring, clock);
        if (shown && held(sample, i, clock)[0] === clock - 1 && clock < end) node.classList.add("fresh");
      });
      const done = clock >= end;
      if (verdict) verdict.style.visibility = done ? "visible" : "hidden";
      counter.textContent = done
        ? `done: ${sample.steps} steps, ${fixed(sample.nfe, 0)} forwards`
        : `step ${clock} of ${end}, ${open} of ${view.nodes.length} ${sample.grid ? "cells" : "tokens"}`;
    },
  };
}
