// Draw squares as pixels. For 40,000 squares, this is faster than drawing as many canvas rectangles. Measured squares
// have the colour of their value, free squares have a frame, other squares are hollow, and squares out of service are
// hatched. Squares of one job in a node are joined, with an edge if there is space. Squares under the viewer's threshold
// have a ring.

import { mixed, pack, parse } from "./scale.js";

export const GAP = 255;
export const FREE = 0;
export const OUT_OF_SERVICE = 3;
const ASIDE = 0.16; // share of the colour that a square keeps if it is not highlighted
const EDGED = 9; // minimum size in pixels of squares with an edge

// Return whether a square has the frame of free GPUs: the square is free, and no value above 0 is known.
export const isFree = (state, octet) => state === FREE && (octet === GAP || octet === 0);

// Draw a free square. If the squares of others have one colour, free squares are filled, so that small ones differ.
export function drawFree(pixels, width, height, x, y, side, tone, isFilled) {
  if (isFilled) block(pixels, width, height, x, y, side, side, tone.vacant);
  if (!isFilled || side >= 5) frame(pixels, width, height, x, y, side, freeFrame(side), tone.free);
}

// Return the thickness of the frame of a free square with this side length.
export const freeFrame = (side) => Math.max(1, Math.round(side / 8));

// Return the page's current colours as numbers; `faded` is for squares that are not highlighted.
export function inks(dark) {
  const style = getComputedStyle(document.documentElement);
  const ink = (name) => pack(parse(style.getPropertyValue(name)));
  const surface = ink("--surface");
  const clear = { plate: ink("--plate"), edge: ink("--edge"), hollow: ink("--hollow"), others: ink("--others"), vacant: ink("--vacant"), hatch: ink("--hatch"), free: ink("--good"), ring: ink("--ring") };
  const faded = Object.fromEntries(Object.entries(clear).map(([name, colour]) => [name, mixed(colour, surface, ASIDE + 0.1)]));
  return { dark, surface, ink: ink("--ink"), muted: ink("--muted"), accent: ink("--accent"), clear, faded };
}

export class Painter {
  constructor(canvas) {
    this.canvas = canvas;
    this.context = canvas.getContext("2d");
    this.image = null;
  }

  size(width, height) {
    if (this.image !== null && this.image.width === width && this.image.height === height) return;
    this.canvas.width = width;
    this.canvas.height = height;
    this.image = new ImageData(width, height);
    this.pixels = new Uint32Array(this.image.data.buffer);
  }

  // `scene` contains the places of squares, the view {pitch, left, top} and inks. Its arrays octets, state, job (-1 for
  // none), ring, lit (null if all squares are lit) and others are indexed by square; its array colours is indexed by
  // octet. `others` marks squares whose values only others may see; it is null if the viewer may see all values.
  paint(scene) {
    const { places, view, octets, state, job, ring, others, lit, colours, inks: ink } = scene;
    const { pixels } = this, width = this.image.width, height = this.image.height;
    const faded = lit === null ? colours : colours.map((colour) => mixed(colour, ink.surface, ASIDE));
    const scale = view.pitch / places.pitch, side = view.pitch - places.line;
    const thick = side < 5 ? 1 : Math.max(1, Math.round(side / 7));
    pixels.fill(ink.surface);
    for (let square = 0; square < places.n; square++) {
      const x = Math.round(places.x[square] * scale) - view.left, y = Math.round(places.y[square] * scale) - view.top;
      if (x + view.pitch < 0 || y + view.pitch < 0 || x >= width || y >= height) continue;
      const bright = lit === null || lit[square] === 1, tone = bright ? ink.clear : ink.faded;
      const octet = octets[square];
      if (state[square] === OUT_OF_SERVICE) hatch(pixels, width, height, x, y, side, tone.hatch);
      else if (isFree(state[square], octet)) drawFree(pixels, width, height, x, y, side, tone, others !== null);
      else if (others !== null && others[square] === 1) block(pixels, width, height, x, y, side, side, tone.others);
      else if (octet === GAP) frame(pixels, width, height, x, y, side, Math.max(1, thick >> 1), tone.hollow);
      else block(pixels, width, height, x, y, side, side, (bright ? colours : faded)[octet]);
      if (job[square] >= 0) this.join(scene, square, x, y, side, tone);
      if (ring[square] === 1) frame(pixels, width, height, x, y, side, thick, tone.ring);
    }
    this.context.putImageData(this.image, 0, 0);
  }

  // Join a square with neighbours of the same job, and draw an edge on its other sides if there is space.
  join({ places, job }, square, x, y, side, tone) {
    const { pixels } = this, { width, height } = this.image, { left, right, above, below, line } = places;
    const alike = (other) => other >= 0 && job[other] === job[square];
    const onRight = alike(right[square]), onBelow = alike(below[square]);
    if (onRight) block(pixels, width, height, x + side, y, line, side, tone.plate);
    if (onBelow) block(pixels, width, height, x, y + side, side, line, tone.plate);
    if (onRight && onBelow && alike(below[right[square]])) block(pixels, width, height, x + side, y + side, line, line, tone.plate);
    if (side < EDGED) return;
    const thick = side >> 4 || 1;
    const reach = side + (onRight ? line : 0), depth = side + (onBelow ? line : 0);
    if (!onRight) block(pixels, width, height, x + side - thick, y, thick, depth, tone.edge);
    if (!onBelow) block(pixels, width, height, x, y + side - thick, reach, thick, tone.edge);
    if (!alike(left[square])) block(pixels, width, height, x, y, thick, depth, tone.edge);
    if (!alike(above[square])) block(pixels, width, height, x, y, reach, thick, tone.edge);
  }
}

// Fill a rectangle, clipped to the canvas.
export function block(pixels, width, height, x, y, across, down, colour) {
  const left = x < 0 ? 0 : x, right = x + across > width ? width : x + across;
  const top = y < 0 ? 0 : y, bottom = y + down > height ? height : y + down;
  for (let row = top; row < bottom; row++) {
    for (let at = row * width + left, end = row * width + right; at < end; at++) pixels[at] = colour;
  }
}

export function frame(pixels, width, height, x, y, side, thick, colour) {
  block(pixels, width, height, x, y, side, thick, colour);
  block(pixels, width, height, x, y + side - thick, side, thick, colour);
  block(pixels, width, height, x, y, thick, side, colour);
  block(pixels, width, height, x + side - thick, y, thick, side, colour);
}

export function hatch(pixels, width, height, x, y, side, colour) {
  const every = side < 8 ? 3 : 4 + (side >> 3), wide = side < 16 ? 1 : 2;
  for (let row = 0; row < side; row++) {
    if (y + row < 0 || y + row >= height) continue;
    for (let column = 0; column < side; column++) {
      const at = x + column;
      if ((row + column) % every < wide && at >= 0 && at < width) pixels[(y + row) * width + at] = colour;
    }
  }
}
