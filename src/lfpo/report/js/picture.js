"use strict";
// Draws a part of the page on a canvas: boxes, borders and text, as the browser has laid them out.

function picture(root, scale) {
  const pad = 16;
  const area = root.getBoundingClientRect();
  const canvas = el("canvas", { width: Math.ceil((area.width + 2 * pad) * scale), height: Math.ceil((area.height + 2 * pad) * scale) });
  const pen = canvas.getContext("2d");
  pen.scale(scale, scale);
  pen.fillStyle = getComputedStyle(root.closest(".panel")).backgroundColor;
  pen.fillRect(0, 0, canvas.width, canvas.height);
  pen.translate(pad - area.left, pad - area.top);
  drawNode(pen, root);
  return canvas;
}

function drawNode(pen, node) {
  if (node.nodeType === Node.TEXT_NODE) { drawText(pen, node); return; }
  const style = getComputedStyle(node);
  if (style.display === "none" || style.visibility === "hidden" || node.localName === "svg") return;
  for (const box of node.getClientRects()) drawBox(pen, box, style);
  node.childNodes.forEach((child) => drawNode(pen, child));
}

function drawBox(pen, box, style) {
  const shape = () => { pen.beginPath(); pen.roundRect(box.left, box.top, box.width, box.height, Math.min(box.height / 2, parseFloat(style.borderTopLeftRadius) || 0)); };
  pen.fillStyle = style.backgroundColor;
  shape();
  pen.fill();
  const [top, right, bottom, left] = ["Top", "Right", "Bottom", "Left"].map((s) => [style[`border${s}Style`] === "none" ? 0 : parseFloat(style[`border${s}Width`]), style[`border${s}Color`]]);
  if ([right, bottom, left].every((side) => String(side) === String(top))) {
    [pen.lineWidth, pen.strokeStyle] = top;
    shape();
    if (top[0]) pen.stroke();
  } else {
    const edges = [[0, 0, box.width, top[0], top], [box.width - right[0], 0, right[0], box.height, right], [0, box.height - bottom[0], box.width, bottom[0], bottom], [0, 0, left[0], box.height, left]];
    edges.sort((a, b) => a[4][0] - b[4][0]); // the thick ones on top
    for (const [x, y, w, h, [, colour]] of edges) { pen.fillStyle = colour; pen.fillRect(box.left + x, box.top + y, w, h); }
  }
  if (style.outlineStyle !== "none") { [pen.strokeStyle, pen.lineWidth] = [style.outlineColor, parseFloat(style.outlineWidth)]; shape(); pen.stroke(); }
}

function drawText(pen, node) {
  const style = getComputedStyle(node.parentElement);
  if (style.visibility === "hidden" || !node.data.trim()) return;
  pen.font = `${style.fontStyle} ${style.fontWeight} ${style.fontSize} ${style.fontFamily}`;
  const range = document.createRange();
  let [start, at] = [0, null];
  const put = (end) => {
    if (!at) return;
    const { fontBoundingBoxAscent: up, fontBoundingBoxDescent: down } = pen.measureText("x");
    pen.fillStyle = style.color;
    pen.fillText(node.data.slice(start, end).replace(/\n/g, ""), at.left, at.top + (at.height - up - down) / 2 + up);
    if (style.textDecorationLine.includes("underline")) { pen.fillStyle = style.textDecorationColor; pen.fillRect(at.left - 2, at.bottom - 3, range.getBoundingClientRect().width + 4, 2); }
  };
  for (let i = 0; i < node.data.length; i++) { // a new piece where a character begins another line
    range.setStart(node, i);
    range.setEnd(node, i + 1);
    const box = range.getClientRects()[0];
    if (!box || (at && Math.abs(box.top - at.top) < 2)) continue;
    put(i);
    [start, at] = [i, box];
  }
  put(node.data.length);
}

function download(blob, name) {
  const address = URL.createObjectURL(blob);
  el("a", { href: address, download: name }).click();
  setTimeout(() => URL.revokeObjectURL(address), 10000);
}
