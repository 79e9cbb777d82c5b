"use strict";
// The rollouts of one iteration: histograms, and each prompt's completions side by side with their differences.

const GROUPS = 6; // prompts shown at first

const words = (row) => row.tokens.filter((t) => !/^<\|.*\|>$/.test(t));

// Which pieces of `mine` are not in a longest common subsequence with `other`.
function differing(mine, other) {
  let [from, end, last] = [0, mine.length, other.length];
  while (from < end && from < last && mine[from] === other[from]) from++;
  while (end > from && last > from && mine[end - 1] === other[last - 1]) { end--; last--; }
  const found = mine.map((_, i) => i >= from && i < end);
  const [n, m] = [end - from, last - from];
  if (n * m > 250000) return found; // too long to compare: the whole middle
  const best = Array.from({ length: n + 1 }, () => new Uint16Array(m + 1));
  for (let i = n - 1; i >= 0; i--) for (let j = m - 1; j >= 0; j--) {
    best[i][j] = mine[from + i] === other[from + j] ? best[i + 1][j + 1] + 1 : Math.max(best[i + 1][j], best[i][j + 1]);
  }
  for (let i = 0, j = 0; i < n && j < m;) {
    if (mine[from + i] === other[from + j]) { found[from + i] = false; i++; j++; }
    else if (best[i + 1][j] >= best[i][j + 1]) i++;
    else j++;
  }
  return found;
}

// A completion as text, with the pieces marked that differ from the first row's.
function compared(row, first) {
  const mine = words(row);
  if (row === first) return el("pre", {}, visible(mine.join("")));
  const marked = differing(mine, words(first));
  const runs = [];
  mine.forEach((text, i) => {
    if (i && marked[i] === marked[i - 1]) runs[runs.length - 1][1] += text;
    else runs.push([marked[i], text]);
  });
  return el("pre", {}, runs.map(([differs, text]) => (differs ? el("mark", {}, visible(text)) : visible(text))));
}

function iterations(onplay) {
  let data = null;
  let parts = [];
  let binary = new Set();
  const state = { filter: "", order: "sampled", shown: GROUPS };
  const label = el("span", { class: "dim" });
  const slider = el("input", { type: "range", min: 0, value: 0, "aria-label": "Iteration", oninput: () => { state.shown = GROUPS; show(); } });
  const pair = el("div", { class: "pair" });
  const note = el("p", { class: "dim" });
  const search = el("input", { type: "search", placeholder: "in all iterations", oninput: () => { state.filter = search.value.toLowerCase(); state.shown = GROUPS; list(); } });
  const order = chooser([["sampled", "as sampled"], ["mixed", "most disagreement"], ["high", "highest reward"], ["low", "lowest reward"]], "sampled", (v) => { state.order = v; list(); });
  const count = el("span", { class: "dim", role: "status" });
  const body = el("div", { class: "completions" });
  const more = el("button", { type: "button", onclick: () => { state.shown += GROUPS; list(); } }, "Show more");
  const root = el("div", {}, el("div", { class: "bar" }, slider, label), pair,
    el("div", { class: "bar groups" }, labelled("Order", order), labelled("Filter", search), count), body, more, note);

  const mean = (values) => values.reduce((a, b) => a + b, 0) / Math.max(1, values.length);
  // A rollout that no function could judge has the reward null, and is in no mean.
  const rewards = (g) => g.rows.map((r) => r.reward).filter((v) => v !== null);
  const deviation = (g) => { const values = rewards(g); const m = mean(values); return mean(values.map((v) => (v - m) ** 2)); };
  const ORDERS = { mixed: (a, b) => deviation(b) - deviation(a), high: (a, b) => mean(rewards(b)) - mean(rewards(a)), low: (a, b) => mean(rewards(a)) - mean(rewards(b)) };

  // "3 of 8 right", or of each reward function the number of ones or the mean.
  function verdict(group) {
    const chips = parts.map((p) => {
      const values = group.rows.map((r) => r.rewards[p]).filter((v) => v !== null && v !== undefined);
      const name = parts.length > 1 ? `${p}: ` : "";
      if (!binary.has(p)) return el("span", { class: "chip" }, `${name}mean ${number(mean(values))}`);
      const right = values.filter((v) => v === 1).length;
      const kind = right === values.length ? "right" : right ? "mixed" : "wrong";
      return el("span", { class: `chip ${kind}` }, `${name}${right} of ${values.length}${parts.length > 1 ? "" : " right"}`);
    });
    return el("div", { class: "bar" }, chips, state.filter ? el("span", { class: "dim" }, `iteration ${group.step}`) : null);
  }

  function groupView(group) {
    const rows = new Map(); // the same text with the same reward is one row
    for (const row of group.rows) {
      const key = JSON.stringify([row.completion, row.reward]);
      if (rows.has(key)) rows.get(key).times += 1;
      else rows.set(key, { row, times: 1 });
    }
    const sorted = [...rows.values()].sort((a, b) => (b.row.reward ?? -Infinity) - (a.row.reward ?? -Infinity) || b.times - a.times);
    const first = sorted[0].row;
    const named = (row) => `iteration ${group.step}, reward ${number(row.reward)}`;
    const play = (row) => onplay(row === first ? [[row, named(row)]] : [[first, named(first)], [row, named(row)]]);
    const head = ["", "completion", "times", ...(parts.length > 1 ? parts : []), "reward", data.histograms.find((h) => h.step === group.step).r_is_target ? "r" : "advantage", "steps", "NFE"];
    return el("section", { class: "group" }, verdict(group), el("pre", { class: "prompt" }, visible(group.rows[0].prompt.trim())), el("dl", { class: "answer" }, columnsOf(group.rows[0])),
      el("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": "Completions of this prompt" }, el("table", {},
        el("thead", {}, el("tr", {}, head.map((name, i) => el("th", { scope: "col", class: i > 1 ? "n" : null }, name || el("span", { class: "visually-hidden" }, "play"))))),
        el("tbody", {}, sorted.map(({ row, times }) => el("tr", {},
          el("td", {}, el("button", { type: "button", "aria-label": `Play: ${named(row)}`, onclick: () => play(row) }, "▶")),
          el("td", {}, compared(row, first)),
          [times > 1 ? `× ${times}` : "", ...(parts.length > 1 ? parts.map((p) => number(row.rewards[p])) : []), number(row.reward), number(row.r), fixed(row.steps, 0), fixed(row.nfe, 0)].map((v) => el("td", { class: "n" }, v))))))));
  }

  function list() {
    const step = data.histograms[Number(slider.value)].step;
    const found = data.groups.filter((g) => (state.filter ? g.rows.some((r) => `${r.prompt}\n${r.completion}`.toLowerCase().includes(state.filter)) : g.step === step));
    if (ORDERS[state.order]) found.sort(ORDERS[state.order]);
    body.replaceChildren(...found.slice(0, state.shown).map(groupView));
    count.textContent = `${Math.min(state.shown, found.length)} of ${found.length} prompts shown`;
    more.hidden = found.length <= state.shown;
  }

  function show() {
    const h = data.histograms[Number(slider.value)];
    label.textContent = `iteration ${h.step}`;
    slider.setAttribute("aria-valuetext", label.textContent);
    const target = h.r_is_target ? "r" : "advantage";
    const about = h.r_is_target ? "r: 1/2 is neutral, above it towards the rollout, below it away" : "the objective's advantage";
    const width = Math.min(420, pair.clientWidth || 320);
    pair.replaceChildren(
      el("figure", {}, el("figcaption", {}, about), bars(h.r, `Histogram of ${target} at iteration ${h.step}`, width)),
      el("figure", {}, el("figcaption", {}, "reward minus the mean of its prompt's group"), bars(h.advantage, `Histogram of rewards minus group mean at iteration ${h.step}`, width)));
    list();
  }

  return {
    root,
    update(next) {
      const atEnd = !data || Number(slider.value) >= data.histograms.length - 1;
      data = next;
      root.hidden = !data.histograms.length;
      if (root.hidden) return;
      const rows = data.groups.flatMap((g) => g.rows);
      parts = [...new Set(rows.flatMap((r) => Object.keys(r.rewards)))];
      binary = new Set(parts.filter((p) => rows.every((r) => [0, 1, null, undefined].includes(r.rewards[p]))));
      note.textContent = `On this page: ${data.rollouts_note}. Marked: what differs from the first row.`;
      slider.max = data.histograms.length - 1;
      if (atEnd) slider.value = slider.max;
      show();
    },
  };
}
