// The plot: its elements, its dimensions, and its current state.

const HEIGHT = 400, LEAST_WIDTH = 640, TOP = 78, BOTTOM = 44, SIDE = 34;
const GAP_ROW = 24;     // pixels below an axis, where lines of runs without a value end
const BAR_REACH = 30;   // pixels to the right of an axis for the distribution of runs

const root = document.getElementById("parallel");
const part = (name) => root === null ? null : root.querySelector(`[data-part="${name}"]`);
const canvas = part("canvas"), overlay = part("overlay"), plot = part("plot");
const facts = root === null ? null : JSON.parse(document.getElementById("parallel-facts").textContent);

// `order`: indices of axes from left to right. `brushes`: the lowest and highest selected value by axis index.
// `hidden`: codes of applications.
// `scale`: canvas pixels per page pixel.
const state = { order: [], brushes: new Map(), hidden: new Set(), width: 0, scale: 1 };

const plotHeight = HEIGHT - TOP - BOTTOM;
const rowOf = (axis, value) => TOP + (1 - fraction(axis, value)) * plotHeight;
const shareAt = (y) => Math.min(1, Math.max(0, 1 - (y - TOP) / plotHeight));
const columnOf = (place) => {
  const between = state.order.length < 2 ? 0 : (state.width - 2 * SIDE - BAR_REACH) / (state.order.length - 1);
  return SIDE + place * between;
};

// Set the canvas row at which each run's line crosses the axis.
function layRows(axis) {
  const { codes, gap, rows } = axis, pixel = (y) => Math.round(y * state.scale), gapRow = pixel(HEIGHT - BOTTOM + GAP_ROW);
  const known = new Uint16Array(gap); // rows by code; 0 means not computed yet, because no axis reaches row 0
  for (let i = 0; i < codes.length; i++) {
    const code = codes[i];
    if (code < gap && known[code] === 0) known[code] = pixel(rowOf(axis, axis.valueOf(code)));
    rows[i] = code < gap ? known[code] : gapRow;
  }
}
