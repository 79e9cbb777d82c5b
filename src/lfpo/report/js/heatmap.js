"use strict";
// How often each step reveals each position, before and after training on one scale.

function heatmap() {
  let maps = [];
  let chosen = null;
  const pick = el("div", { class: "bar" });
  const panels = el("div", { class: "pair" });
  const root = el("div", {}, pick, panels);

  function panel(p) {
    const [left, top, width] = [30, 6, 480];
    const height = Math.max(90, Math.min(288, p.height * 15));
    const [w, h] = [(width - left) / p.width, height / p.height];
    const said = `${number(p.reveals)} steps reveal a completion, mean of ${p.n}`;
    const image = draw("svg", { viewBox: `0 0 ${width} ${height + top + 20}`, role: "img", "aria-label": `Iteration ${p.step}: ${said}. Positions across, steps down.`, class: "heat" });
    image.append(draw("rect", { class: "ground", x: left, y: top, width: width - left, height }));
    for (const [x, y, share] of p.cells) {
      image.append(draw("rect", { x: left + x * w, y: top + y * h, width: w + 0.3, height: h + 0.3, "fill-opacity": Math.max(0.06, share ** 0.7).toFixed(2) },
        draw("title", {}, `${place(x, p.width, p.positions, "position")}, ${place(y, p.height, p.steps, "step")}: ${percent(share)}`)));
    }
    const text = (x, y, anchor, value, turn) => draw("text", { x, y, "text-anchor": anchor, transform: turn ? `rotate(-90 ${x} ${y})` : null }, value);
    const foot = top + height + 15;
    image.append(text(left - 6, top + 10, "end", "1"), text(left - 6, top + height, "end", String(p.steps)), text(left - 8, top + height / 2, "middle", "step", true),
      text(left, foot, "start", "1"), text(width, foot, "end", String(p.positions)), text((left + width) / 2, foot, "middle", "position in the completion"));
    return el("figure", {}, el("figcaption", {}, el("h3", {}, p.step ? `After ${p.step} iterations` : "Before training"), el("p", { class: "dim" }, said)), image);
  }

  const place = (k, bins, of, name) => {
    const [from, to] = [Math.ceil((k * of) / bins) + 1, Math.ceil(((k + 1) * of) / bins)];
    return from >= to ? `${name} ${from}` : `${name}s ${from} to ${to}`;
  };

  function show() {
    const map = maps.find((m) => m.sampler === chosen) || maps[0];
    root.hidden = !map;
    if (!map) return;
    chosen = map.sampler;
    pick.replaceChildren(labelled("Sampler", chooser(maps.map((m) => [m.sampler, m.sampler]), chosen, (s) => { chosen = s; show(); })));
    panels.replaceChildren(...map.panels.map(panel));
  }

  return {
    root,
    update(next) {
      maps = next;
      if (chosen === null && maps.some((m) => m.sampler === "threshold")) chosen = "threshold";
      show();
    },
  };
}
