// Count the lines through each pixel. For 40,000 lines, this is faster than drawing them on a canvas.
//
// Lines between the same two pixels are added together. A layer keeps its sums: new lines are added, and removed lines
// are subtracted. Sums are integers, so removed lines leave no trace.

const WHOLE = 16;       // the total that a line adds to one column of pixels
const CROWD = 4000;     // above this number, lines take one pixel instead of two, because their steps are invisible

class Layer {
  constructor() {
    this.lines = 0;
    this.counts = new Int32Array(0);
  }

  // Create an empty layer for the canvas size and the current order of axes.
  clear(width, height) {
    this.width = width;
    this.height = height;
    if (this.counts.length === width * (height + 1)) this.counts.fill(0);
    else this.counts = new Int32Array(width * (height + 1));
    this.inside = null;
    this.lines = 0;
  }

  // Show the lines of the selected runs, either of one node class or of all.
  hold(inside, among) {
    const now = placesOf(inside, among), smooth = now.length <= CROWD;
    const changed = this.inside === null || smooth !== this.smooth ? null : this.difference(inside, among);
    if (changed === null || changed.came.length + changed.went.length > now.length) {
      this.clear(this.width, this.height);
      this.smooth = smooth;
      this.add(now, []);
    } else if (changed.came.length + changed.went.length) {
      this.add(changed.came, changed.went);
    }
    this.inside = inside;
    this.lines = now.length;
  }

  difference(inside, among) {
    const came = new Uint8Array(inside.length), went = new Uint8Array(inside.length);
    for (let i = 0; i < inside.length; i++) {
      came[i] = inside[i] & ~this.inside[i];
      went[i] = this.inside[i] & ~inside[i];
    }
    return { came: placesOf(came, among), went: placesOf(went, among) };
  }

  add(came, went) {
    const span = this.height + 1, touched = new Uint32Array(came.length + went.length);
    if (tally.length !== span * span) tally = new Int32Array(span * span);
    for (let gap = 0; gap + 1 < state.order.length; gap++) {
      const [left, right] = [gap, gap + 1].map((place) => runs.axes[state.order[place]].rows);
      const [from, to] = [gap, gap + 1].map((place) => Math.round(columnOf(place) * state.scale));
      let distinct = 0;
      for (const [some, sign] of [[came, 1], [went, -1]]) {
        for (let m = 0; m < some.length; m++) {
          const i = some[m], key = left[i] * span + right[i];
          if (tally[key] === 0) touched[distinct++] = key;
          tally[key] += sign;
        }
      }
      const draw = this.smooth ? addSmooth : addPlain;
      for (let d = 0; d < distinct; d++) {
        const key = touched[d], times = tally[key];
        if (times === 0) continue;
        tally[key] = 0;
        const begin = (key / span) | 0;
        draw(this.counts, this.width, from, begin, to, key - begin * span, times * WHOLE);
      }
    }
  }
}

let tally = new Int32Array(0);

// Both functions add a line from (x0, y0) to (x1, y1), x0 < x1, without its end point. Positions are in 1/65536 pixel.
function addPlain(counts, width, x0, y0, x1, y1, weight) {
  const dx = x1 - x0, reach = Math.abs(y1 - y0);
  if (reach <= dx) {
    const slope = Math.round(((y1 - y0) * 65536) / dx);
    for (let x = x0, y = (y0 << 16) + 32768; x < x1; x++, y += slope) counts[(y >> 16) * width + x] += weight;
    return;
  }
  const slope = Math.round((dx * 65536) / reach), step = y1 < y0 ? -width : width;
  for (let n = 0, x = (x0 << 16) + 32768, at = y0 * width; n < reach; n++, x += slope, at += step) counts[at + (x >> 16)] += weight;
}

// This function divides the weight between two neighbouring pixels.
function addSmooth(counts, width, x0, y0, x1, y1, weight) {
  const dx = x1 - x0, reach = Math.abs(y1 - y0), part = weight / WHOLE;
  if (reach <= dx) {
    const slope = Math.round(((y1 - y0) * 65536) / dx);
    for (let x = x0, y = y0 << 16; x < x1; x++, y += slope) {
      const at = (y >> 16) * width + x, below = ((y >> 12) & 15) * part;
      counts[at] += weight - below;
      counts[at + width] += below;
    }
    return;
  }
  const slope = Math.round((dx * 65536) / reach), step = y1 < y0 ? -width : width;
  for (let n = 0, x = x0 << 16, row = y0 * width; n < reach; n++, x += slope, row += step) {
    const at = row + (x >> 16), right = ((x >> 12) & 15) * part;
    counts[at] += weight - right;
    counts[at + 1] += right;
  }
}
