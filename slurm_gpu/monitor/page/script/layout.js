// Place squares: GPUs in nodes, nodes in racks, racks in zones, and zones on the canvas, each in the order of the
// layout. The order does not depend on the width. Lengths are in pixels of the canvas.

// The limits of the pitch of squares in page pixels. The pitch is the side of a square plus the gap.
const LARGEST = 40, SMALLEST = 3;
// The shapes to try for a rack, as width divided by height.
const RATIOS = [0.5, 0.7, 0.85, 1, 1.25, 1.5, 2, 2.7, 4];
// The maximum number of columns of zones.
const MOST_COLUMNS = 8;
// An arrangement with a full last row is preferred if it is higher by less than about this share.
const UNEVEN = 0.1;
// With more nodes than this, only the name of the selected node is shown.
const NAMED_NODES = 160;
const LETTER = 6.4, ZONE_NAME = 22, RACK_NAME = 14, NODE_NAME = 14;

// Return the nodes of a layout as a list, and by zone and rack.
export function flatten(layout) {
  const nodes = [], zones = [];
  let first = 0;
  for (const zone of layout.zones) {
    const racks = [];
    for (const rack of zone.racks) {
      const members = rack.nodes.map((node) => {
        const found = {
          name: node.name, serverType: node.server_type, zone: zone.name, rack: rack.name,
          gpus: node.gpus, first, n: node.gpus.length, columns: columnsOf(node.gpus.length),
        };
        first += found.n;
        nodes.push(found);
        return found;
      });
      const columns = Math.max(1, ...members.map((node) => node.columns));
      const rows = Math.max(1, ...members.map((node) => Math.ceil(node.n / node.columns)));
      if (members.length) racks.push({ name: rack.name, members, columns, rows });
    }
    if (racks.length) zones.push({ name: zone.name, racks });
  }
  return { id: layout.id, cluster: layout.cluster, zones, nodes, n: first };
}

const columnsOf = (gpus) => (gpus <= 2 ? Math.max(1, gpus) : Math.ceil(gpus / 2));

// Place all squares, as large as possible, within the width and if possible within the height. `unit`
// is the number of canvas pixels per page pixel.
export function arrange(flat, width, height, unit) {
  const fits = (pitch) => {
    for (const tried of shapes(flat, pitch, width, unit)) if (tried.height <= height) return true;
    return false;
  };
  let low = SMALLEST * unit, high = LARGEST * unit;
  if (!fits(low)) return placed(flat, best(flat, roomier(flat, low, width, height, unit), width, unit), width, unit);
  while (low < high) { // find the largest pitch that fits
    const middle = (low + high + 1) >> 1;
    if (fits(middle)) low = middle;
    else high = middle - 1;
  }
  return placed(flat, best(flat, low, width, unit), width, unit);
}

// Return the pitch to use if even the smallest squares do not fit. The page must scroll, so the squares can be one step
// larger, unless the page would become far too long.
function roomier(flat, pitch, width, height, unit) {
  const larger = pitch + unit;
  return best(flat, larger, width, unit).height <= 2.5 * height ? larger : pitch;
}

// Return the lowest arrangement with this pitch, or a slightly higher one with fewer empty places.
function best(flat, pitch, width, unit) {
  let found = null, least = Infinity;
  for (const tried of shapes(flat, pitch, width, unit)) {
    const { columns, height } = tried, empty = (columns - flat.zones.length % columns) % columns / columns; // the empty share of the last row
    const cost = height * (1 + UNEVEN * empty);
    if (found === null || cost < least) [found, least] = [tried, cost];
  }
  return found;
}

// Yield all arrangements with this pitch that are to be tried.
function* shapes(flat, pitch, width, unit) {
  const gaps = gapsOf(flat, pitch, unit);
  for (let columns = 1; columns <= Math.min(MOST_COLUMNS, Math.max(1, flat.zones.length)); columns++) {
    for (const ratio of RATIOS) yield stack(flat, { pitch, columns, ratio, across: new Map(), ...gaps }, width, unit, null);
  }
}

function gapsOf(flat, pitch, unit) {
  const named = flat.nodes.length <= NAMED_NODES && flat.nodes.every(
    (node) => pitch * node.columns >= Math.min(LETTER * node.name.length, 60) * unit);
  return {
    line: pitch >= 12 * unit ? 2 * unit : unit,
    between: Math.round(Math.max(2 * unit, 0.3 * pitch)),
    racks: Math.round(Math.max(5 * unit, 0.7 * pitch)),
    zones: Math.round(Math.max(12 * unit, pitch)),
    name: named ? NODE_NAME * unit : 0,
  };
}

// Arrange zones in columns. `out` receives the places; if it is null, only the height is computed. An impossible
// arrangement has infinite height.
function stack(flat, shape, width, unit, out) {
  const { columns, zones: gap } = shape;
  const zoneWidth = Math.floor((width - (columns - 1) * gap) / columns);
  let top = 0;
  for (let start = 0; start < flat.zones.length; start += columns) {
    let lowest = 0;
    flat.zones.slice(start, start + columns).forEach((zone, column) => {
      const x = column * (zoneWidth + gap);
      lowest = Math.max(lowest, layZone(zone, shape, x, top, zoneWidth, unit, out));
    });
    top += lowest + gap;
  }
  return { ...shape, height: Math.max(0, top - gap) };
}

function layZone(zone, shape, left, top, width, unit, out) {
  const { pitch, between, line } = shape;
  let y = top;
  if (zone.name !== null) {
    out?.labels.push({ text: zone.name, x: left, y, width, kind: "zone" });
    y += ZONE_NAME * unit;
  }
  const named = zone.racks.some((rack) => rack.name !== null);
  let x = left, rowHeight = 0;
  for (const rack of zone.racks) {
    const slot = [rack.columns * pitch - line + between, rack.rows * pitch - line + between + shape.name];
    const most = Math.floor((width + between) / slot[0]);
    if (most < 1) return Infinity;
    // A single rack is as wide as its zone; several racks have similar shapes.
    const across = zone.racks.length === 1 ? most : Math.min(most, acrossOf(rack.members.length, slot, shape));
    const box = [
      Math.min(across, rack.members.length) * slot[0] - between,
      Math.ceil(rack.members.length / across) * slot[1] - between,
    ];
    if (x > left && x + box[0] > left + width) {
      x = left;
      y += rowHeight + shape.racks;
      rowHeight = 0;
    }
    const head = named ? RACK_NAME * unit : 0;
    if (out !== null) {
      if (rack.name !== null) out.labels.push({ text: rack.name, x, y, width: box[0] + shape.racks, kind: "rack" });
      rack.members.forEach((node, place) => {
        const [nodeX, nodeY] = [x + (place % across) * slot[0], y + head + Math.floor(place / across) * slot[1]];
        layNode(node, nodeX, nodeY, shape, out);
      });
    }
    x += box[0] + shape.racks;
    rowHeight = Math.max(rowHeight, head + box[1]);
  }
  return y + rowHeight - top;
}

// Return the number of nodes per row for a rack of about this shape with few empty places. Most racks are equal, so
// results are cached.
function acrossOf(n, slot, { ratio, across: known }) {
  const key = `${n} ${slot[0]} ${slot[1]}`;
  if (known.has(key)) return known.get(key);
  let found = 1, least = Infinity;
  for (let across = 1; across <= n; across++) {
    const rows = Math.ceil(n / across);
    const cost = Math.abs(Math.log(across * slot[0] / (rows * slot[1]) / ratio)) + 2 * (rows * across - n) / n;
    if (cost < least) [found, least] = [across, cost];
  }
  known.set(key, found);
  return found;
}

function layNode(node, x, y, shape, out) {
  const { pitch, line, name } = shape, { first, n, columns } = node;
  if (name) out.labels.push({ text: node.name, x, y, width: columns * pitch + shape.between, kind: "node" });
  for (let place = 0; place < n; place++) {
    const square = first + place, column = place % columns;
    out.x[square] = x + column * pitch;
    out.y[square] = y + name + Math.floor(place / columns) * pitch;
    if (column > 0) join(out.left, out.right, square, square - 1);
    if (place >= columns) join(out.above, out.below, square, square - columns);
  }
  out.boxes.push({ x, y: y + name, width: columns * pitch - line, height: Math.ceil(n / columns) * pitch - line });
}

// Record that `other` precedes this square, and that the square follows `other`, in one direction.
function join(before, after, square, other) {
  before[square] = other;
  after[other] = square;
}

function placed(flat, shape, width, unit) {
  const whole = (value = 0) => new Int32Array(flat.n).fill(value);
  const sides = { left: whole(-1), right: whole(-1), above: whole(-1), below: whole(-1) };
  const out = { x: whole(), y: whole(), ...sides, boxes: [], labels: [] };
  stack(flat, shape, width, unit, out);
  return { ...out, n: flat.n, pitch: shape.pitch, line: shape.line, width, height: Math.ceil(shape.height), unit };
}

// Return the square at a point, or -1. Boxes of nodes are checked first, since there are far fewer nodes.
export function squareAt(places, nodes, x, y) {
  const { boxes, pitch, line } = places;
  for (let index = 0; index < boxes.length; index++) {
    const box = boxes[index];
    if (x < box.x - line || y < box.y - line || x >= box.x + box.width + line || y >= box.y + box.height + line) continue;
    const { first, n, columns } = nodes[index];
    const column = Math.min(columns - 1, Math.max(0, Math.floor((x - box.x) / pitch)));
    const place = Math.max(0, Math.floor((y - box.y) / pitch)) * columns + column;
    if (place < n) return first + place;
  }
  return -1;
}

// Return the nearest square in a direction, [±1, 0] or [0, ±1]; `from` if there is none.
export function neighbour(places, from, [dx, dy]) {
  const { x, y, n } = places;
  let found = from, least = Infinity;
  for (let square = 0; square < n; square++) {
    const along = (x[square] - x[from]) * dx + (y[square] - y[from]) * dy;
    if (along <= 0) continue;
    const aside = Math.abs((x[square] - x[from]) * dy) + Math.abs((y[square] - y[from]) * dx);
    const cost = along + 3 * aside;
    if (cost < least) [found, least] = [square, cost];
  }
  return found;
}
