// Convert densities to colours. The scale is logarithmic, which makes both single lines and many lines visible. Colours
// of overlapping classes of nodes are mixed.

const BARS = 44;        // the number of bars next to an axis
const context = canvas === null ? null : canvas.getContext("2d", { alpha: false, willReadFrequently: true });
const layers = facts === null ? [] : facts.classes.map(() => new Layer()), backdrop = new Layer();
let image = null, pixels = null, colours = null, ground = null, waiting = 0, drawn = 0;

function readColours() {
  const style = getComputedStyle(root);
  const read = (name) => [1, 3, 5].map((at) => parseInt(style.getPropertyValue(name).trim().slice(at, at + 2), 16));
  colours = {
    surface: read("--surface"), aside: read("--lines-aside"), ink: read("--ink"),
    classes: layers.map((_, c) => read(`--node-${c}`)),
  };
  ground = null;
}

// Return opacities from 0 to 1; the index is four times the number of lines through a pixel. With fewer lines in total,
// each line is more opaque.
function shadesFor(lines) {
  const most = Math.max(2, lines / 30), shades = new Float32Array(4 * Math.ceil(most) + 2);
  for (let k = 0; k < shades.length; k++) {
    shades[k] = Math.min(1, k / 4) * 0.07 + 0.93 * Math.min(1, Math.log1p(k / 4) / Math.log1p(most));
  }
  return shades;
}

// Blend layers, each with its colour, into the pixels. The opacity depends on all lines. The weight of a class in the
// colour depends on the total of its own lines, which keeps rare classes visible.
function blend(some, lines) {
  const counts = some.map(([layer]) => layer.counts), many = counts.length, opaque = shadesFor(lines);
  const shares = some.map(([layer]) => shadesFor(layer.lines).map((shade) => shade ** 3));
  const paint = Float32Array.from(some.flatMap(([, colour]) => colour));
  for (let at = 0; at < pixels.length; at++) {
    let all = 0, sum = 0, red = 0, green = 0, blue = 0;
    for (let k = 0; k < many; k++) {
      const count = counts[k][at];
      if (count === 0) continue;
      const share = shares[k][Math.min(shares[k].length - 1, (count + 3) >> 2)];
      all += count;
      sum += share;
      red += share * paint[3 * k];
      green += share * paint[3 * k + 1];
      blue += share * paint[3 * k + 2];
    }
    if (all === 0) continue;
    const shade = opaque[Math.min(opaque.length - 1, (all + 3) >> 2)], rest = 1 - shade, part = shade / sum, below = pixels[at];
    pixels[at] = 0xff000000 | ((((below >> 16) & 255) * rest + blue * part) << 16)
      | ((((below >> 8) & 255) * rest + green * part) << 8) | ((below & 255) * rest + red * part);
  }
}

// Return the background: empty, or with all lines in grey below the selected ones.
function groundWith(grey) {
  if (ground !== null && ground.grey === grey) return ground.pixels;
  const [red, green, blue] = colours.surface;
  pixels.fill(0xff000000 | (blue << 16) | (green << 8) | red);
  if (grey) {
    backdrop.hold(shownRuns(false));
    blend([[backdrop, colours.aside]], backdrop.lines);
  }
  ground = { grey, pixels: pixels.slice() };
  return ground.pixels;
}

function draw() {
  waiting = 0;
  const start = performance.now(), inside = shownRuns(true), chosen = placesOf(inside);
  pixels.set(groundWith(state.brushes.size > 0));
  layers.forEach((layer, c) => layer.hold(inside, c));
  blend(layers.map((layer, c) => [layer, colours.classes[c]]).filter(([layer]) => layer.lines), chosen.length);
  context.putImageData(image, 0, 0);
  drawBars(chosen);
  summarize(chosen);
  root.dataset.runs = chosen.length;
  root.dataset.ms = (performance.now() - start).toFixed(1);
  root.dataset.drawn = ++drawn;
}

// Draw bars to the right of each axis with the distribution of runs.
function drawBars(chosen) {
  const [red, green, blue] = colours.ink, step = plotHeight / BARS;
  context.save();
  context.scale(state.scale, state.scale);
  context.fillStyle = `rgb(${red} ${green} ${blue} / 55%)`;
  state.order.forEach((index, place) => {
    const counts = new Uint32Array(BARS), { rows, codes, gap } = runs.axes[index], x = columnOf(place);
    for (let m = 0; m < chosen.length; m++) {
      const i = chosen[m];
      if (codes[i] < gap) counts[Math.min(BARS - 1, ((rows[i] / state.scale - TOP) / step) | 0)]++;
    }
    const most = Math.max(1, ...counts);
    counts.forEach((count, bar) => {
      if (count) context.fillRect(x + 1, TOP + bar * step + 0.5, Math.max(1, count / most * BAR_REACH), step - 1);
    });
  });
  context.restore();
}

// Draw at the next frame, only once for all events until then.
function redraw() {
  if (!waiting) waiting = requestAnimationFrame(draw);
}

// Draw again, including the grey lines, after the set of shown applications has changed.
function redrawGround() {
  ground = null;
  redraw();
}

// Draw all lines again after the axes have moved.
function redrawAll() {
  if (image === null || image.width !== canvas.width || image.height !== canvas.height) {
    image = new ImageData(canvas.width, canvas.height);
    pixels = new Uint32Array(image.data.buffer);
  }
  for (const layer of [...layers, backdrop]) layer.clear(canvas.width, canvas.height);
  redrawGround();
}
