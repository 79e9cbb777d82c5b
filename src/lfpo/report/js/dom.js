"use strict";
// Makes elements. Text is set as text, so nothing a model wrote can become markup.

const SVG = "http://www.w3.org/2000/svg";

function fill(node, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (name === "class") node.setAttribute("class", value);
    else if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else node.setAttribute(name, value === true ? "" : value);
  }
  node.append(...children.flat().filter((c) => c !== null && c !== undefined && c !== false));
  return node;
}

const el = (tag, attributes = {}, ...children) => fill(document.createElement(tag), attributes, children);
const draw = (tag, attributes = {}, ...children) => fill(document.createElementNS(SVG, tag), attributes, children);

// Control characters become their Unicode pictures; line breaks and tabs stay.
const visible = (text) =>
  text.replace(/[\u0000-\u0008\u000b-\u001f\u007f]/g, (c) =>
    String.fromCharCode(c === "\u007f" ? 0x2421 : 0x2400 + c.charCodeAt(0)));

function number(value, digits = 3) {
  if (value === null || value === undefined) return "–";
  if (Number.isInteger(value)) return value.toLocaleString("en");
  const size = Math.abs(value);
  if (size >= 1e5 || size < 1e-3) return value.toExponential(1);
  return Number(value.toPrecision(digits)).toString();
}

// A value with this many decimals, as Python prints it: toFixed rounds an exact tie up, Python to the even digit.
function fixed(value, digits) {
  const text = value.toFixed(digits);
  const twice = value * 10 ** digits * 2;
  const tie = Number.isInteger(value * 2 ** (digits + 1)) && Math.abs(twice) % 2 === 1;
  return tie && Number(text.at(-1)) % 2 ? (value - Math.sign(value) * 10 ** -digits / 4).toFixed(digits) : text;
}

const percent = (value) => (value === null || value === undefined ? "–" : `${(100 * value).toFixed(1)} %`);

function duration(seconds) {
  if (seconds < 100) return `${number(seconds, 2)} s`;
  return seconds < 5400 ? `${(seconds / 60).toFixed(1)} min` : `${(seconds / 3600).toFixed(1)} h`;
}

const calm = () => window.matchMedia("(prefers-reduced-motion: reduce)").matches;

function labelled(text, control) {
  return el("label", { class: "control" }, el("span", {}, text), control);
}

function chooser(options, value, onchange) {
  const select = el("select", { onchange: () => onchange(select.value) });
  for (const [key, text] of options) select.append(el("option", { value: key, selected: key === value }, text));
  return select;
}
