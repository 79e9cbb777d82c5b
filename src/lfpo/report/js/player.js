"use strict";
// The denoising player: a completion before and after training, at the same step.

function player() {
  const state = { sampler: null, problem: 0, colouring: "order", speed: 1, clock: 0, timer: null, own: null };
  let data = { problems: {}, maps: [] };
  let panes = [];
  let moveCursor = () => {};
  let last = 0;
  let shownKey = "";

  const progress = el("figure", { class: "progress" });
  const stage = el("div", { class: "stage" });
  const prompt = el("pre", { class: "prompt" });
  const answer = el("dl", { class: "answer" });
  const status = el("p", { class: "visually-hidden", role: "status" });
  const button = el("button", { class: "primary", type: "button", onclick: () => (state.timer ? pause() : play()) }, "Play");
  const slider = el("input", { type: "range", min: 0, max: 1, value: 0, step: 1, "aria-label": "Denoising step",
    oninput: () => { const to = Number(slider.value); pause(); go(to); } });
  const pick = el("span", { class: "picks" });
  const scale = el("span", { class: "scale" });
  const back = el("button", { type: "button", hidden: true, onclick: () => { state.own = null; load(true); } }, "Back to before and after");
  const speed = chooser([[0.25, "¼×"], [0.5, "½×"], [1, "1×"], [2, "2×"], [4, "4×"]], 1, (v) => { state.speed = Number(v); if (state.timer) { pause(); play(); } });
  const colouring = chooser([["order", "reveal step"], ["confidence", "confidence"]], "order", (v) => { state.colouring = v; paint(); legend(); });
  const png = el("button", { type: "button", title: "Save what is shown as a picture", onclick: () => picture(scene, 2).toBlob((blob) => download(blob, `${fileName()}-step-${state.clock}.png`)) }, "PNG");
  const scene = el("div", { class: "shot" }, prompt, answer, stage);
  const root = el("div", { class: "player", tabindex: 0, role: "group", "aria-label": "Denoising player", onkeydown: keys },
    el("div", { class: "bar" }, pick, back, labelled("Colour by", colouring), scale),
    el("div", { class: "bar controls" }, button, slider, labelled("Speed", speed), png),
    el("div", { class: "scene" }, scene, progress),
    el("p", { class: "dim" }, "Grey: still a mask. Outlined: revealed by the step that is shown. ◼: end of sequence. ↵: line break."),
    el("p", { class: "dim keys" }, "Keys: space plays and pauses, ← → step, Home and End, N and P the next and previous problem."),
    status);

  function legend() {
    const names = state.colouring === "order" ? [...Array(SHADES).keys()].map((k) => `step${k}`) : [0, 1, 2, 3, 4].map((k) => `sure${k}`);
    const [low, high] = state.colouring === "order" ? ["early", "late"] : ["unsure", "sure"];
    scale.replaceChildren(low, " ", ...names.map((n) => el("i", { class: n })), " ", high);
  }

  function keys(event) {
    const own = event.target.tagName;
    if (event.altKey || event.ctrlKey || event.metaKey || own === "SELECT") return;
    const act = {
      " ": () => own !== "BUTTON" && (state.timer ? pause() : play()),
      k: () => (state.timer ? pause() : play()),
      ArrowRight: () => { pause(); go(state.clock + 1); },
      ArrowLeft: () => { pause(); go(state.clock - 1); },
      Home: () => { pause(); go(0); },
      End: () => { pause(); go(last); },
      n: () => turn(1),
      p: () => turn(-1),
    }[event.key.length === 1 ? event.key.toLowerCase() : event.key];
    if (!act || (event.key === " " && own === "BUTTON")) return;
    event.preventDefault();
    act();
  }

  function turn(by) {
    const problems = data.problems[state.sampler];
    if (state.own || !problems) return;
    state.problem = (state.problem + by + problems.length) % problems.length;
    load(true);
  }

  function paint() {
    for (const p of panes) p.at(state.clock, state.colouring);
    slider.value = state.clock;
    moveCursor(state.clock);
    slider.setAttribute("aria-valuetext", `step ${state.clock} of ${last}`);
    if (!state.timer) status.textContent = `Step ${state.clock} of ${last}. ${panes.map((p) => p.root.querySelector(".count").textContent).join(". ")}`;
  }

  function go(clock) {
    state.clock = Math.min(last, Math.max(0, clock));
    paint();
  }

  function play() {
    if (state.clock >= last) go(0);
    const stride = Math.max(1, Math.ceil(last / 240)); // a long schedule takes a few seconds
    const pace = Math.max(25, Math.min(450, (9000 * stride) / last)) / state.speed;
    state.timer = setInterval(() => {
      go(state.clock + stride);
      if (state.clock >= last) pause();
    }, pace);
    button.textContent = "Pause";
  }

  function pause() {
    clearInterval(state.timer);
    state.timer = null;
    button.textContent = "Play";
    paint();
  }

  const fileName = () => `lfpo-${state.own ? "rollout" : `${state.sampler}-${state.problem + 1}`}`;

  function load(rewind) {
    if (state.timer) pause();
    const samples = state.own || (data.problems[state.sampler] || [])[state.problem] || [];
    const named = samples.map((s, i) => [s.name || (samples.length === 1 ? `Iteration ${s.step}` : i ? `After ${s.step} iterations` : s.step ? `At iteration ${s.step}` : "Before training"), s]);
    const longest = Math.max(1, ...samples.map((s) => lastStep(s) + 1));
    for (const s of samples) s.scale = longest;
    panes = named.map(([name, s]) => pane(name, s));
    stage.replaceChildren(...panes.map((p) => p.root));
    stage.classList.toggle("grids", samples.length > 1 && samples.every((s) => s.grid && s.grid.puzzle.length === 16));
    prompt.textContent = samples.length ? visible(samples[0].prompt.trim()) : "";
    answer.replaceChildren(...columnsOf(samples[0]));
    last = Math.max(0, ...panes.map((p) => p.end));
    slider.max = last;
    progress.hidden = !named.length;
    const alone = samples.length === 1 && Boolean(samples[0].grid);
    const [image, move] = progressView(named, last, alone ? 480 : 320);
    moveCursor = move;
    progress.replaceChildren(el("figcaption", { class: "dim" }, "Share of the completion filled in, step by step"), image,
      el("ul", { class: "legend" }, ...named.map(([name], i) => el("li", {}, swatch(PANE_COLOURS[i]), name))));
    scene.parentElement.classList.toggle("narrow", samples.length === 1 || stage.classList.contains("grids"));
    scene.parentElement.classList.toggle("solo", alone);
    back.hidden = !state.own || !Object.keys(data.problems).length;
    root.hidden = !samples.length;
    choices();
    legend();
    go(rewind ? last : Math.min(state.clock, last));
  }

  function choices() {
    const samplers = Object.keys(data.problems);
    pick.replaceChildren();
    if (state.own || !samplers.length) return;
    const problems = data.problems[state.sampler];
    pick.append(
      labelled("Sampler", chooser(samplers.map((s) => [s, s]), state.sampler, (s) => { state.sampler = s; state.problem = Math.min(state.problem, data.problems[s].length - 1); load(true); })),
      labelled("Problem", chooser(problems.map((p, i) => [i, `${i + 1} of ${problems.length}${marks(p)}`]), state.problem, (i) => { state.problem = Number(i); load(true); })));
  }

  const scoreOf = (entry) => entry.correct ?? entry.reward;
  const mark = (entry) => (entry.correct === undefined ? number(entry.reward) : entry.correct ? "✓" : "✗");
  const marks = (entries) => (entries.some((e) => scoreOf(e) === undefined) ? "" : ` ${entries.map(mark).join(" → ")}`);

  // The problem where training changed most: the verdict or reward that gained most, then another text, then the most
  // forwards saved.
  function striking(problems) {
    const text = (entry) => entry.tokens.join("");
    const gain = ([first, last]) => (last ? 1e6 * (scoreOf(last) - scoreOf(first) || 0) + 1e3 * (text(first) !== text(last)) + first.nfe - last.nfe : -1e9);
    return problems.reduce((best, p, i) => (gain(p) > gain(problems[best]) ? i : best), 0);
  }

  return {
    root,
    update(next) {
      const key = JSON.stringify(Object.entries(next.problems).map(([s, p]) => [s, p.length, p[0].map((e) => e.step)]));
      if (key === shownKey) return; // the same completions: keep what is on the screen
      shownKey = key;
      data = next;
      const samplers = Object.keys(data.problems);
      if (!samplers.includes(state.sampler)) {
        state.sampler = ["threshold", "greedy"].find((s) => samplers.includes(s)) || samplers[0] || null;
        state.problem = state.sampler ? striking(data.problems[state.sampler]) : 0;
      }
      if (!state.own) load(true);
    },
    // named: [sample, name] for each pane.
    open(named) {
      state.own = named.map(([sample, name]) => ({ ...sample, name }));
      load(true);
      root.scrollIntoView({ behavior: calm() ? "auto" : "smooth", block: "nearest" });
      root.focus({ preventScroll: true });
      go(0);
      play();
    },
  };
}
