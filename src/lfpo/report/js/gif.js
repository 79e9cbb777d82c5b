"use strict";
// Writes an animated GIF (GIF89a). Pixels that do not change between two frames are transparent in the second.

const CLEAR = 255; // the transparent entry of a frame's palette

// The palette of a frame, 256 x [r, g, b], and each pixel's entry. Colours are taken at 5 bits a channel. pixels and
// before (the frame before it, or null) are the canvas's RGBA values, one number a pixel.
function palette(pixels, before) {
  const counts = new Map();
  const keys = new Int32Array(pixels.length);
  for (let i = 0; i < keys.length; i++) {
    if (before && pixels[i] === before[i]) { keys[i] = -1; continue; }
    const [r, g, b] = [pixels[i] & 255, (pixels[i] >> 8) & 255, (pixels[i] >> 16) & 255];
    const key = keys[i] = ((r >> 3) << 10) | ((g >> 3) << 5) | (b >> 3);
    const found = counts.get(key);
    if (found) found[0] += 1;
    else counts.set(key, [1, r, g, b]);
  }
  const chosen = [...counts].sort((a, b) => b[1][0] - a[1][0]).slice(0, CLEAR);
  const entry = new Map(chosen.map(([key], i) => [key, i]));
  for (const [key, [, r, g, b]] of counts) {
    if (entry.has(key)) continue;
    const far = ([, [, x, y, z]]) => (x - r) ** 2 + (y - g) ** 2 + (z - b) ** 2;
    entry.set(key, chosen.reduce((best, c, i) => (far(c) < far(chosen[best]) ? i : best), 0));
  }
  const table = new Uint8Array(768);
  chosen.forEach(([, [, ...rgb]], i) => table.set(rgb, 3 * i));
  return [table, Uint8Array.from(keys, (key) => (key < 0 ? CLEAR : entry.get(key)))];
}

// LZW with codes of 9 to 12 bits, in sub-blocks of at most 255 bytes.
function compressed(indices) {
  const bytes = [];
  let [bits, filled, size, next] = [0, 0, 9, 258];
  let table = new Map();
  const put = (code) => {
    bits |= code << filled;
    for (filled += size; filled >= 8; filled -= 8) { bytes.push(bits & 255); bits >>>= 8; }
  };
  put(256);
  let prefix = indices[0];
  for (let i = 1; i < indices.length; i++) {
    const key = prefix * 256 + indices[i];
    const code = table.get(key);
    if (code !== undefined) { prefix = code; continue; }
    put(prefix);
    if (next === 4096) { put(256); [size, next, table] = [9, 258, new Map()]; }
    else {
      table.set(key, next);
      if (next === 2 ** size) size += 1;
      next += 1;
    }
    prefix = indices[i];
  }
  put(prefix);
  put(257);
  if (filled) bytes.push(bits & 255);
  const blocks = [];
  for (let i = 0; i < bytes.length; i += 255) blocks.push(Uint8Array.of(Math.min(255, bytes.length - i)), Uint8Array.from(bytes.slice(i, i + 255)));
  return [Uint8Array.of(8), ...blocks, Uint8Array.of(0)];
}

// Takes frames (canvases of one size, each shown for `delay` milliseconds) and gives the file. It loops for ever.
function gif(width, height) {
  const short = (n) => [n & 255, n >> 8];
  const ascii = (text) => [...text].map((c) => c.charCodeAt(0));
  const parts = [Uint8Array.from([...ascii("GIF89a"), ...short(width), ...short(height), 0x70, 0, 0, 0x21, 0xff, 11, ...ascii("NETSCAPE2.0"), 3, 1, 0, 0, 0])];
  let before = null;
  return {
    add(canvas, delay) {
      const pixels = new Uint32Array(canvas.getContext("2d").getImageData(0, 0, width, height).data.buffer);
      let [top, bottom] = [0, height]; // only the rows that change
      if (before) {
        const same = (i) => pixels[i] === before[i];
        let [from, to] = [0, pixels.length - 1];
        while (from < to && same(from)) from++;
        while (to > from && same(to)) to--;
        [top, bottom] = [Math.floor(from / width), Math.floor(to / width) + 1];
      }
      const rows = (all) => all && all.subarray(top * width, bottom * width);
      const [table, indices] = palette(rows(pixels), rows(before));
      before = pixels;
      parts.push(Uint8Array.from([0x21, 0xf9, 4, 0x05, ...short(Math.round(delay / 10)), CLEAR, 0, 0x2c, 0, 0, ...short(top), ...short(width), ...short(bottom - top), 0x87]),
        table, ...compressed(indices));
    },
    file: () => new Blob([...parts, Uint8Array.of(0x3b)], { type: "image/gif" }),
  };
}
