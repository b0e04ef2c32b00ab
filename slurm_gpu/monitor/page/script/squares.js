// Show the squares: paint them, and zoom.

import { listen } from "./interaction.js";
import { arrange, squareAt } from "./layout.js";
import { GAP, Painter, inks, isFree } from "./paint.js";
import { LETTERS } from "./palette.js";
import { css } from "./scale.js";
import { dark } from "./theme.js";

// The minimum sizes in page pixels of squares with a number and of nodes with a name.
const NUMBERS_FROM = 26, NAMED_FROM = 28;
const MOST_ZOOM = 16;
const FEW_LIT = 600; // up to this many highlighted squares are also outlined
const FACE = 'system-ui, "Segoe UI", Roboto, "Noto Sans", "DejaVu Sans", sans-serif';

export class Squares {
  // `parts` contains a frame and two canvases of the same size, base and over. `handlers` contains the functions hovered,
  // focused and opened, which are called with a square, zoomed, and selected.
  constructor(parts, cluster, handlers) {
    Object.assign(this, parts);
    this.cluster = cluster;
    this.handlers = handlers;
    this.painter = new Painter(this.base);
    this.above = this.over.getContext("2d");
    this.places = null;
    this.zoom = { pitch: 0, left: 0, top: 0 };
    this.focus = -1;
    this.hover = -1;
    this.selection = new Set(); // selected squares
    this.lit = null;
    this.fades = false;
    this.ring = new Uint8Array(0);
    this.marked = false; // whether anything is drawn on the upper canvas
    this.pending = 0;
    this.drawn = 0;
    this.inks = inks(dark.matches);
    listen(this);
  }

  // Place the squares again for a new layout, width or height.
  lay(height) {
    const width = Math.floor(this.frame.clientWidth);
    if (width < 10) return;
    this.unit = Math.min(2, Math.max(1, Math.round(window.devicePixelRatio || 1)));
    this.room = height;
    this.places = arrange(this.cluster.flat, width * this.unit, height * this.unit, this.unit);
    this.width = width;
    this.height = Math.max(40, Math.ceil(this.places.height / this.unit));
    this.painter.size(width * this.unit, this.height * this.unit);
    this.over.width = this.base.width;
    this.over.height = this.base.height;
    this.frame.style.height = `${this.height}px`;
    if (this.ring.length !== this.cluster.flat.n) this.ring = new Uint8Array(this.cluster.flat.n);
    if (this.focus >= this.cluster.flat.n) this.focus = -1;
    this.selection = new Set([...this.selection].filter((square) => square < this.cluster.flat.n));
    this.lit = this.lit !== null && this.lit.length === this.cluster.flat.n ? this.lit : null;
    this.whole();
  }

  // Show octets by square with colours by octet. Drawing is immediate, so the browser's next frame is up to date.
  show({ octets, colours, ring, others, numbers }) {
    Object.assign(this, { octets, colours, ring, others, numbers });
    cancelAnimationFrame(this.pending);
    this.pending = 0;
    this.draw();
  }

  // Outline the squares in `lit`. If `fades` is true, fade all other squares.
  light(lit, fades) {
    Object.assign(this, { lit, fades });
    this.redraw();
  }

  recolour() {
    this.inks = inks(dark.matches);
  }

  redraw() {
    if (!this.pending) this.pending = requestAnimationFrame(() => { this.pending = 0; this.draw(); });
  }

  draw() {
    if (this.places === null || this.octets === undefined || this.octets.length !== this.places.n) return;
    const start = performance.now();
    const { state, job } = this.cluster;
    const scene = { places: this.places, view: this.zoom, octets: this.octets, state, job, ring: this.ring, others: this.others, lit: this.fades ? this.lit : null };
    this.painter.paint({ ...scene, colours: this.colours, inks: this.inks });
    this.write();
    this.mark();
    this.frame.dataset.ms = (performance.now() - start).toFixed(1);
    this.frame.dataset.drawn = ++this.drawn;
  }

  // Draw names, and numbers in squares that are large enough.
  write() {
    const { context } = this.painter, { unit, zoom, places } = this, scale = zoom.pitch / places.pitch;
    context.textBaseline = "alphabetic";
    context.textAlign = "left";
    for (const label of places.labels) {
      const x = label.x * scale - zoom.left, y = label.y * scale - zoom.top;
      if (y < -30 * unit || y > this.base.height || x > this.base.width) continue;
      const zone = label.kind === "zone";
      context.font = zone ? `600 ${13 * unit}px ${FACE}` : `${11 * unit}px ${FACE}`;
      context.fillStyle = css(zone ? this.inks.ink : this.inks.muted);
      context.fillText(fitted(context, label.text, label.width * scale - 4 * unit), x, y + (zone ? 13 : 10) * unit * Math.min(scale, 1.4));
    }
    if (!this.isWhole() && !places.labels.some((label) => label.kind === "node")) this.writeNodes(scale);
    if (zoom.pitch < NUMBERS_FROM * unit) return;
    context.font = `${Math.round(Math.min(13 * unit, zoom.pitch / 2.6))}px ${FACE}`;
    context.textAlign = "center";
    context.textBaseline = "middle";
    const side = zoom.pitch - places.line;
    for (let square = 0; square < places.n; square++) {
      const [x, y] = this.corner(square);
      if (x + side < 0 || y + side < 0 || x > this.base.width || y > this.base.height) continue;
      const text = this.numbers(square);
      if (!text || (this.fades && this.lit !== null && !this.lit[square])) continue;
      const octet = this.octets[square];
      context.fillStyle = octet === GAP || isFree(this.cluster.state[square], octet) ? css(this.inks.ink) : readable(this.colours[octet]); // hollow and free squares have the page's background
      if (context.measureText(text).width <= side - 8 * unit) context.fillText(text, x + side / 2, y + side / 2 + 0.5 * unit);
    }
  }

  // Write the name of each node above its squares, or over them in the first row of the map.
  writeNodes(scale) {
    const { context } = this.painter, { unit, zoom, places, base, cluster } = this;
    context.font = `${11 * unit}px ${FACE}`;
    context.fillStyle = css(this.inks.muted);
    context.strokeStyle = css(this.inks.surface);
    context.lineWidth = 3 * unit;
    context.lineJoin = "round";
    places.boxes.forEach((box, index) => {
      const x = box.x * scale - zoom.left, y = Math.max(box.y * scale - 3 * unit, 10 * unit) - zoom.top, width = box.width * scale;
      if (width < NAMED_FROM * unit || x + width < 0 || x > base.width || y < 0 || y > base.height + 10 * unit) return;
      const text = fitted(context, cluster.flat.nodes[index].name, width);
      context.strokeText(text, x, y);
      context.fillText(text, x, y);
    });
  }

  corner(square) {
    const scale = this.zoom.pitch / this.places.pitch;
    return [Math.round(this.places.x[square] * scale) - this.zoom.left, Math.round(this.places.y[square] * scale) - this.zoom.top];
  }

  // Draw the marks that change more often than values: outlines of the selected square, its job, and a few
  // highlighted squares.
  mark() {
    const { above, unit } = this;
    if (this.places === null) return;
    if (this.marked) above.clearRect(0, 0, this.over.width, this.over.height); // clearing an empty canvas would make the browser composite it again
    this.marked = false;
    if (this.lit !== null) {
      const some = [];
      for (let square = 0; square < this.lit.length && some.length <= FEW_LIT; square++) if (this.lit[square]) some.push(square);
      if (some.length <= FEW_LIT) this.contour(some, css(this.inks.accent), 2 * unit);
    }
    const selected = this.hover >= 0 ? this.hover : this.focus;
    if (selected >= 0) {
      const jobs = this.cluster.jobsAt(selected);
      if (jobs.length) this.contour(this.cluster.squaresOf(jobs[0]), css(this.inks.ink), unit);
      this.outline([selected], css(this.inks.ink), 2 * unit, unit);
    }
    if (this.focus >= 0 && this.focus !== selected) this.outline([this.focus], css(this.inks.accent), 2 * unit, unit);
  }

  outline(some, colour, width, offset) {
    const side = this.zoom.pitch - this.places.line, { above } = this;
    this.marked = true;
    above.strokeStyle = colour;
    above.lineWidth = width;
    above.beginPath();
    for (const square of some) {
      const [x, y] = this.corner(square);
      above.rect(x - offset - width / 2, y - offset - width / 2, side + 2 * offset + width, side + 2 * offset + width);
    }
    above.stroke();
  }

  // Outline groups of connected squares: each side next to a square outside the set is drawn.
  contour(some, colour, width) {
    const { above, places, over } = this, side = this.zoom.pitch - places.line, among = new Set(some), offset = width / 2;
    const within = (value, size) => Math.min(size - offset, Math.max(offset, value)); // keeps lines at the edge visible
    const x = (value) => within(value, over.width), y = (value) => within(value, over.height);
    this.marked = true;
    above.strokeStyle = colour;
    above.lineWidth = width;
    above.lineCap = "square";
    above.beginPath();
    for (const square of some) {
      const [atX, atY] = this.corner(square), isOutside = (sides) => !among.has(sides[square]);
      const [left, right, top, bottom] = [x(atX - offset), x(atX + side + offset), y(atY - offset), y(atY + side + offset)];
      const lines = [[places.left, left, top, left, bottom], [places.right, right, top, right, bottom],
        [places.above, left, top, right, top], [places.below, left, bottom, right, bottom]];
      for (const [sides, fromX, fromY, toX, toY] of lines) {
        if (!isOutside(sides)) continue;
        above.moveTo(fromX, fromY);
        above.lineTo(toX, toY);
      }
    }
    above.stroke();
  }

  // Return the square under the pointer, or -1.
  at(event) {
    if (this.places === null) return -1;
    const box = this.over.getBoundingClientRect(), scale = this.places.pitch / this.zoom.pitch;
    const x = (event.clientX - box.left) * this.unit + this.zoom.left, y = (event.clientY - box.top) * this.unit + this.zoom.top;
    return squareAt(this.places, this.cluster.flat.nodes, x * scale, y * scale);
  }

  isWhole() {
    return this.places === null || this.zoom.pitch === this.places.pitch;
  }

  whole() {
    this.zoom = { pitch: this.places.pitch, left: 0, top: 0 };
    this.zoomed();
  }

  // Zoom by a factor while the point (x, y) of the page stays in place.
  zoomBy(factor, x = this.width / 2, y = this.height / 2) {
    const { pitch } = this.places, old = this.zoom.pitch;
    const wanted = factor > 1 ? Math.max(old + this.unit, Math.round(old * factor)) : Math.round(old * factor);
    const next = Math.min(pitch * MOST_ZOOM, Math.max(pitch, wanted));
    if (next === old) return;
    const scale = next / old, px = x * this.unit, py = y * this.unit;
    this.zoom = { pitch: next, left: (this.zoom.left + px) * scale - px, top: (this.zoom.top + py) * scale - py };
    this.zoomed();
  }

  panBy(dx, dy) {
    this.zoom = { ...this.zoom, left: this.zoom.left - dx * this.unit, top: this.zoom.top - dy * this.unit };
    this.zoomed();
  }

  zoomed() {
    const scale = this.zoom.pitch / this.places.pitch, end = (whole, size) => Math.max(0, Math.round(whole * scale) - size);
    const within = (value, most) => Math.round(Math.min(most, Math.max(0, value)));
    this.zoom.left = within(this.zoom.left, end(this.places.width, this.base.width));
    this.zoom.top = within(this.zoom.top, end(this.places.height, this.base.height));
    this.frame.classList.toggle("zoomed", !this.isWhole());
    this.handlers.zoomed(this.isWhole());
    this.redraw();
  }

  // Scroll a square into view.
  reveal(square) {
    if (this.isWhole()) return;
    const [x, y] = this.corner(square), side = this.zoom.pitch, edge = 2 * side;
    const off = (at, size) => (at < edge ? edge - at : at + side > size - edge ? size - edge - side - at : 0);
    const [dx, dy] = [off(x, this.base.width), off(y, this.base.height)];
    if (dx || dy) this.panBy(dx / this.unit, dy / this.unit);
  }

  // Replace the selection.
  select(some) {
    this.selection = new Set(some);
  }

  setFocus(square) {
    this.focus = square;
    if (square >= 0) this.reveal(square);
    this.mark();
    this.handlers.focused(square);
  }
}

function fitted(context, text, width) {
  if (width < 12) return "";
  if (context.measureText(text).width <= width) return text;
  let end = text.length - 1;
  while (end > 0 && context.measureText(`${text.slice(0, end)}…`).width > width) end--;
  return end > 0 ? `${text.slice(0, end)}…` : "";
}

const readable = (colour) => {
  const [red, green, blue] = [colour & 255, (colour >> 8) & 255, (colour >> 16) & 255];
  return 0.299 * red + 0.587 * green + 0.114 * blue > 140 ? LETTERS.dark : LETTERS.light;
};
