// Parallel coordinates of a report: one line per run across the axes, coloured by its number of nodes.
//
// Forty thousand lines are drawn here pixel by pixel: strokes of a canvas take twice the time and more. Lines between the
// same two pixels are counted and drawn once; what overlaps adds up, and is shown by the logarithm of it, so that neither a
// single line nor a crowd is lost. Runs are handled as columns (typed arrays), never as objects.
"use strict";
(() => {
  const HEIGHT = 400, LEAST_WIDTH = 640, TOP = 64, BOTTOM = 44, SIDE = 34;
  const GAP_LANE = 24;          // below an axis: runs of which its value is not known
  const GRIP = 6, HIT = 22;     // pixels from a brush's edge, and from an axis, that take hold of it
  const BINS = 44, BIN_REACH = 30;
  const UNKNOWN = 65535;
  const SVG = "http://www.w3.org/2000/svg";

  const root = document.getElementById("parallel");
  if (root === null) return;
  const facts = JSON.parse(document.getElementById("parallel-facts").textContent);
  const part = (name) => root.querySelector(`[data-part="${name}"]`);
  const canvas = part("canvas"), overlay = part("overlay"), heads = part("heads"), plot = part("plot");
  const context = canvas.getContext("2d", { alpha: false, willReadFrequently: true });
  const counted = new Intl.NumberFormat("en");
  const state = { order: facts.axes.map((_, index) => index), brushes: new Map(), hidden: new Set(), n: 0, drawn: 0 };
  let axes = [], application, nodeClass, classOrder, width = 0, backdrop = null, waiting = 0;

  // --- Data: each column as bytes; of two-byte columns all low bytes come first. Codes stand for values.
  async function unpack() {
    const text = atob(document.getElementById("parallel-bytes").textContent.trim());
    const packed = new Uint8Array(text.length);
    for (let i = 0; i < text.length; i++) packed[i] = text.charCodeAt(i);
    const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream("deflate"));
    const bytes = new Uint8Array(await new Response(stream).arrayBuffer());
    const n = state.n = facts.runs;
    let at = 0;
    const column = (wide) => {
      const codes = new Uint16Array(n);
      for (let i = 0; i < n; i++) codes[i] = bytes[at + i];
      at += n;
      if (wide) for (let i = 0; i < n; i++) codes[i] |= bytes[at + i] << 8;
      if (wide) at += n;
      return codes;
    };
    axes = facts.axes.map((axis, index) => {
      const codes = column(axis.wide), values = new Float32Array(n);
      const of = axis.values === undefined ? scaled(axis) : Float32Array.from(axis.values);
      let gaps = 0;
      for (let i = 0; i < n; i++) {
        const known = codes[i] < of.length;
        values[i] = known ? of[codes[i]] : NaN;
        if (!known) gaps++;
      }
      return { ...axis, index, values, gaps, scaleLog: axis.scale === "log", rows: new Float32Array(n) };
    });
    application = column(false);
    const nodes = axes[facts.colour_axis].values;
    nodeClass = new Uint8Array(n);
    const population = facts.classes.map(() => 0);
    for (let i = 0; i < n; i++) {
      let c = 0;
      while (c + 1 < facts.classes.length && nodes[i] >= facts.classes[c + 1].from) c++;
      nodeClass[i] = c;
      population[c]++;
    }
    // The rarest are drawn last, on top.
    classOrder = facts.classes.map((_, c) => c).filter((c) => population[c]).sort((a, b) => population[b] - population[a]);
  }

  function scaled(axis) { // codes of equal steps in log(1 + value), UNKNOWN excepted
    const values = new Float32Array(UNKNOWN), step = Math.log1p(axis.most) / (UNKNOWN - 1);
    for (let code = 0; code < UNKNOWN; code++) values[code] = Math.expm1(code * step);
    return values;
  }

  // --- Scales: a value's share of the axis, from 0 below to 1 above, and back.
  const fraction = (axis, value) => {
    if (!(axis.most > axis.least)) return 0.5;
    if (axis.scaleLog) return Math.log1p((value - axis.least) * axis.stretch) / Math.log1p((axis.most - axis.least) * axis.stretch);
    return (value - axis.least) / (axis.most - axis.least);
  };
  const valueAt = (axis, share) => {
    const reach = axis.most - axis.least;
    if (axis.scaleLog) return axis.least + Math.expm1(share * Math.log1p(reach * axis.stretch)) / axis.stretch;
    return axis.least + share * reach;
  };
  const plotHeight = () => HEIGHT - TOP - BOTTOM;
  const row = (axis, value) => TOP + (1 - fraction(axis, value)) * plotHeight();
  const shareAt = (y) => Math.min(1, Math.max(0, 1 - (y - TOP) / plotHeight()));
  const columnOf = (place) => SIDE + (state.order.length < 2 ? 0 : place * (width - 2 * SIDE - BIN_REACH) / (state.order.length - 1));

  function layRows(axis) {
    const { values, rows } = axis, lane = HEIGHT - BOTTOM + GAP_LANE;
    for (let i = 0; i < values.length; i++) rows[i] = values[i] === values[i] ? row(axis, values[i]) : lane;
  }

  // --- Drawing
  const colour = (name) => {
    const probe = getComputedStyle(root).getPropertyValue(name).trim();
    return [1, 3, 5].map((at) => parseInt(probe.slice(at, at + 2), 16));
  };

  // Adds the line from (x0, y0) to (x1, y1), x0 < x1, to the pixels, which lie column by column; weight is spread over the
  // two pixels that it passes between, along the axis in which it is shorter.
  function addLine(pixels, height, x0, y0, x1, y1, weight) {
    const dx = x1 - x0, dy = y1 - y0;
    if (Math.abs(dy) <= dx) {
      const slope = dy / dx;
      for (let x = x0, y = y0, at = x0 * height; x < x1; x++, y += slope, at += height) {
        const whole = y | 0, upper = (y - whole) * weight;
        pixels[at + whole] += weight - upper;
        pixels[at + whole + 1] += upper;
      }
      return;
    }
    const slope = dx / Math.abs(dy), step = dy < 0 ? -1 : 1;
    for (let y = y0, x = x0; y !== y1; y += step, x += slope) {
      const whole = x | 0, right = (x - whole) * weight, at = whole * height + y;
      pixels[at] += weight - right;
      pixels[at + height] += right;
    }
  }

  // How opaque a pixel is by four times the number of lines through it: the fewer there are, the more each one shows.
  function shadesFor(lines) {
    const most = Math.max(2, lines / 80), shades = new Float32Array(4 * Math.ceil(most) + 2);
    for (let k = 0; k < shades.length; k++) {
      shades[k] = Math.min(1, k / 4) * 0.07 + 0.93 * Math.min(1, Math.log1p(k / 4) / Math.log1p(most));
    }
    return shades;
  }

  let pixels = null, tally = null, touched = null;

  // Lines of the given runs, one class after the other, blended into the image.
  function drawRuns(image, runs, paints, scale) {
    const W = image.width, H = image.height, span = H + 1;
    if (pixels === null || pixels.length !== (W + 2) * H) pixels = new Float32Array((W + 2) * H);
    if (tally === null || tally.length !== span * span) tally = new Uint32Array(span * span);
    if (touched === null || touched.length < state.n) touched = new Uint32Array(state.n);
    const places = state.order.map((_, place) => Math.round(columnOf(place) * scale));
    for (const [members, paint] of paints(runs)) {
      if (!members.length) continue;
      const shades = shadesFor(runs.length ** 0.8 * members.length ** 0.2);
      pixels.fill(0);
      for (let g = 0; g + 1 < state.order.length; g++) {
        const left = axes[state.order[g]].rows, right = axes[state.order[g + 1]].rows;
        let distinct = 0;
        for (let m = 0; m < members.length; m++) {
          const i = members[m], key = ((left[i] * scale + 0.5) | 0) * span + ((right[i] * scale + 0.5) | 0);
          if (tally[key]++ === 0) touched[distinct++] = key;
        }
        for (let d = 0; d < distinct; d++) {
          const key = touched[d], from = (key / span) | 0;
          addLine(pixels, H, places[g], from, places[g + 1], key - from * span, tally[key]);
          tally[key] = 0;
        }
      }
      blend(image, paint, shades, places[0], places[places.length - 1]);
    }
  }

  function blend(image, [red, green, blue], shades, from, to) {
    const { width: W, height: H, data } = image, last = shades.length - 1;
    for (let x = from; x <= to; x++) {
      for (let y = 0, at = x * H, out = x * 4; y < H; y++, at++, out += W * 4) {
        const density = pixels[at];
        if (density === 0) continue;
        const shade = shades[Math.min(last, Math.ceil(density * 4))], rest = 1 - shade;
        data[out] = data[out] * rest + red * shade;
        data[out + 1] = data[out + 1] * rest + green * shade;
        data[out + 2] = data[out + 2] * rest + blue * shade;
      }
    }
  }

  function byClass(runs) {
    const ends = new Uint32Array(facts.classes.length + 1), sorted = new Uint32Array(runs.length);
    for (let m = 0; m < runs.length; m++) ends[nodeClass[runs[m]] + 1]++;
    for (let c = 1; c < ends.length; c++) ends[c] += ends[c - 1];
    const next = ends.slice();
    for (let m = 0; m < runs.length; m++) sorted[next[nodeClass[runs[m]]]++] = runs[m];
    return classOrder.map((c) => [sorted.subarray(ends[c], ends[c + 1]), colour(`--node-${c}`)]);
  }

  function chosen(withBrushes) {
    const found = new Uint32Array(state.n), limits = [];
    if (withBrushes) for (const [index, [low, high]] of state.brushes) limits.push([axes[index].values, low, high]);
    let count = 0;
    for (let i = 0; i < state.n; i++) {
      if (state.hidden.has(application[i])) continue;
      let inside = true;
      for (let b = 0; inside && b < limits.length; b++) {
        const value = limits[b][0][i];
        inside = value >= limits[b][1] && value <= limits[b][2];
      }
      if (inside) found[count++] = i;
    }
    return found.subarray(0, count);
  }

  function ground() {
    const image = new ImageData(canvas.width, canvas.height), [red, green, blue] = colour("--surface"), { data } = image;
    for (let k = 0; k < data.length; k += 4) {
      data[k] = red; data[k + 1] = green; data[k + 2] = blue; data[k + 3] = 255;
    }
    return image;
  }

  // All lines in grey, for those that are chosen to be drawn upon; kept while only the choice changes.
  function aside(scale) {
    if (backdrop === null) {
      backdrop = ground();
      const all = chosen(false);
      drawRuns(backdrop, all, () => [[all, colour("--lines-aside")]], scale);
    }
    return new ImageData(new Uint8ClampedArray(backdrop.data), backdrop.width, backdrop.height);
  }

  function draw() {
    waiting = 0;
    const start = performance.now(), scale = canvas.width / width, runs = chosen(true);
    const image = state.brushes.size ? aside(scale) : ground();
    drawRuns(image, runs, byClass, scale);
    context.putImageData(image, 0, 0);
    drawCounts(runs, scale);
    tell(runs);
    root.dataset.runs = runs.length;
    root.dataset.ms = (performance.now() - start).toFixed(1);
    root.dataset.drawn = ++state.drawn;
  }

  // How many runs lie where on each axis, as bars to its right: lines hide it.
  function drawCounts(runs, scale) {
    const [r, g, b] = colour("--ink");
    context.save();
    context.scale(scale, scale);
    context.fillStyle = `rgb(${r} ${g} ${b} / 55%)`;
    state.order.forEach((index, place) => {
      const counts = new Uint32Array(BINS), { rows, values } = axes[index], x = columnOf(place), step = plotHeight() / BINS;
      for (let m = 0; m < runs.length; m++) {
        const i = runs[m];
        if (values[i] === values[i]) counts[Math.min(BINS - 1, Math.max(0, Math.floor((rows[i] - TOP) / step)))]++;
      }
      const most = Math.max(1, ...counts);
      counts.forEach((count, bin) => {
        if (count) context.fillRect(x + 1, TOP + bin * step + 0.5, Math.max(1, count / most * BIN_REACH), step - 1);
      });
    });
    context.restore();
  }

  function redraw(all) {
    if (all) backdrop = null;
    if (!waiting) waiting = requestAnimationFrame(draw);
  }

  // --- What is chosen, in words
  const percent = (share) => `${(100 * share).toFixed(share > 0 && share < 0.01 ? 1 : 0)} %`;
  const shown = (value) => value >= 100 || Number.isInteger(value) ? counted.format(Math.round(value)) : String(Number(value.toPrecision(2)));

  function median(axis, runs) {
    const known = new Float32Array(runs.length);
    let n = 0;
    for (let m = 0; m < runs.length; m++) {
      const value = axis.values[runs[m]];
      if (value === value) known[n++] = value;
    }
    return n ? known.subarray(0, n).sort()[(n - 1) >> 1] : NaN;
  }

  let telling = 0;
  function tell(runs) {
    part("count").textContent = `${counted.format(runs.length)} of ${counted.format(state.n)} ${facts.noun} (${percent(state.n ? runs.length / state.n : 0)})`;
    clearTimeout(telling);
    telling = setTimeout(() => {
      const words = axes.map((axis) => [axis, median(axis, runs)]).filter(([, middle]) => middle === middle)
        .map(([axis, middle]) => `${axis.title} ${shown(middle)}${axis.label === axis.title || !axis.unit ? "" : ` ${axis.unit}`}`);
      part("medians").textContent = words.length ? `Medians: ${words.join(", ")}.` : "";
      root.dataset.told = state.drawn;
    }, 150);
  }

  // --- Axes: lines, ticks and brushes in SVG, names in buttons
  function svg(name, attributes, text) {
    const made = document.createElementNS(SVG, name);
    for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
    if (text !== undefined) made.textContent = text;
    return made;
  }

  function ticksOf(axis) {
    const { least, most } = axis;
    if (!(most > least)) return [least];
    if (axis.scaleLog) {
      const found = [];
      for (let power = Math.ceil(Math.log10(1 / axis.stretch)); power <= 9; power++) {
        for (const digit of [1, 2, 5]) {
          const value = digit * 10 ** power;
          if (value > least && value <= most) found.push(Number(value.toPrecision(3)));
        }
      }
      const kept = [least];
      for (const value of [...found, most]) {
        const away = (fraction(axis, value) - fraction(axis, kept[kept.length - 1])) * plotHeight();
        if (away < 19 && value === most) kept[kept.length > 1 ? kept.length - 1 : 1] = value;
        else if (away >= 19) kept.push(value);
      }
      return kept;
    }
    const raw = (most - least) / 6, size = 10 ** Math.floor(Math.log10(raw));
    let step = [1, 2, 5, 10].find((k) => k * size >= raw) * size;
    if (axis.whole) step = Math.max(1, step);
    const found = axis.whole && least % step !== 0 ? [least] : [];
    for (let value = Math.ceil(least / step - 1e-9) * step; value <= most + step * 1e-6; value += step) found.push(Number(value.toPrecision(6)));
    return found;
  }

  function layAxes() {
    overlay.replaceChildren();
    state.order.forEach((index, place) => {
      const axis = axes[index], x = columnOf(place), bottom = HEIGHT - BOTTOM;
      const group = svg("g", { class: "axis", transform: `translate(${x} 0)` });
      group.append(svg("line", { class: "axis-line", x1: 0, x2: 0, y1: TOP, y2: bottom }));
      for (const tick of ticksOf(axis)) {
        const y = row(axis, tick);
        group.append(svg("line", { class: "axis-line", x1: -4, x2: 0, y1: y, y2: y }));
        group.append(svg("text", { class: "tick", x: -7, y: y + 4, "text-anchor": "end" }, shown(tick)));
      }
      if (axis.gaps) group.append(svg("text", { class: "tick", x: -7, y: bottom + GAP_LANE + 4, "text-anchor": "end" }, "none"));
      const hit = svg("rect", { class: "hit", x: -HIT, y: TOP - 8, width: 2 * HIT, height: plotHeight() + 16 });
      hit.addEventListener("pointerdown", (event) => brushFrom(event, axis));
      group.append(hit);
      const brush = svg("rect", { class: "brush", x: -9, width: 18, "data-axis": axis.key });
      group.append(brush);
      axis.brush = brush;
      overlay.append(group);
      axis.head.style.left = `${x}px`;
      axis.head.querySelector("small").textContent = axis.scaleLog ? "log" : "linear";
      layBrush(axis);
    });
  }

  function layBrush(axis) {
    const limits = state.brushes.get(axis.index);
    axis.brush.toggleAttribute("hidden", !limits);
    axis.brush.setAttribute("height", 0);
    if (limits) {
      const top = row(axis, Math.min(axis.most, limits[1])), bottom = row(axis, Math.max(axis.least, limits[0]));
      axis.brush.setAttribute("y", Math.min(top, bottom) - 1);
      axis.brush.setAttribute("height", Math.max(2, bottom - top + 2));
    }
    for (const [input, end] of [[axis.from, 0], [axis.to, 1]]) {
      if (document.activeElement !== input) input.value = limits && Number.isFinite(limits[end]) ? Number(limits[end].toPrecision(4)) : "";
    }
    part("clear").disabled = state.brushes.size === 0 && state.hidden.size === 0;
  }

  function setBrush(axis, limits) {
    if (limits) state.brushes.set(axis.index, limits);
    else state.brushes.delete(axis.index);
    layBrush(axis);
    redraw(false);
  }

  // Limits that lie between two whole numbers take in those inside.
  const snapped = (axis, low, high) => {
    const ends = [valueAt(axis, low), valueAt(axis, high)];
    return axis.whole ? [Math.ceil(ends[0] - 0.5), Math.floor(ends[1] + 0.5)] : ends;
  };

  function brushFrom(event, axis) {
    if (event.button !== 0) return;
    event.preventDefault();
    const target = event.currentTarget, box = overlay.getBoundingClientRect();
    const yOf = (happening) => (happening.clientY - box.top) * HEIGHT / box.height;
    const start = yOf(event), old = state.brushes.get(axis.index);
    const edges = old && [row(axis, Math.max(axis.least, old[0])), row(axis, Math.min(axis.most, old[1]))];
    let anchor = start, moved = false, shift = null;
    if (edges && Math.abs(start - edges[0]) <= GRIP) anchor = edges[1];
    else if (edges && Math.abs(start - edges[1]) <= GRIP) anchor = edges[0];
    else if (edges && start < edges[0] && start > edges[1]) shift = start;
    const move = (happening) => {
      const y = yOf(happening);
      moved = moved || Math.abs(y - start) > 3;
      if (!moved) return;
      if (shift === null) {
        setBrush(axis, snapped(axis, ...[shareAt(anchor), shareAt(y)].sort((a, b) => a - b)));
      } else {
        const reach = shareAt(edges[1]) - shareAt(edges[0]);
        const low = Math.min(1 - reach, Math.max(0, shareAt(edges[0] + y - shift)));
        setBrush(axis, snapped(axis, low, low + reach));
      }
    };
    const end = () => {
      target.removeEventListener("pointermove", move);
      if (!moved) setBrush(axis, null);
    };
    target.setPointerCapture(event.pointerId);
    target.addEventListener("pointermove", move);
    target.addEventListener("lostpointercapture", end, { once: true });
  }

  // --- The order of the axes: by dragging a name, or with the arrow keys on it
  function reorder(axis, place) {
    const order = state.order.filter((index) => index !== axis.index);
    order.splice(Math.max(0, Math.min(order.length, place)), 0, axis.index);
    if (order.every((index, at) => index === state.order[at])) return;
    state.order = order;
    root.dataset.order = order.map((index) => axes[index].key).join(" ");
    layAxes();
    redraw(true);
  }

  function makeHead(axis) {
    const head = document.createElement("div"), name = document.createElement("button"), scale = document.createElement("button");
    head.className = "head";
    name.type = scale.type = "button";
    name.className = "name";
    name.textContent = axis.label;
    name.title = `${axis.about}. Drag, or press ← and →, to move this axis`;
    name.setAttribute("aria-label", `${axis.title}: ${axis.about}. Arrow keys move this axis.`);
    scale.className = "scale";
    scale.append(document.createElement("small"));
    scale.setAttribute("aria-label", `Scale of ${axis.title}`);
    scale.addEventListener("click", () => {
      axis.scaleLog = !axis.scaleLog;
      layRows(axis);
      layAxes();
      redraw(true);
    });
    name.addEventListener("keydown", (event) => {
      const step = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
      if (step === undefined) return;
      event.preventDefault();
      reorder(axis, state.order.indexOf(axis.index) + step);
    });
    name.addEventListener("pointerdown", (event) => {
      if (event.button !== 0) return;
      const box = overlay.getBoundingClientRect(), between = columnOf(1) - columnOf(0);
      const move = (happening) => reorder(axis, Math.round((happening.clientX - box.left - SIDE) / between));
      name.setPointerCapture(event.pointerId);
      name.classList.add("held");
      name.addEventListener("pointermove", move);
      name.addEventListener("lostpointercapture", () => {
        name.removeEventListener("pointermove", move);
        name.classList.remove("held");
      }, { once: true });
    });
    head.append(name, scale);
    axis.head = head;
    heads.append(head);
  }

  // --- Controls below the plot: the same limits as numbers, and which applications are shown
  function makeLimits(axis) {
    const line = document.createElement("div"), inputs = [];
    line.className = "limit";
    line.append(Object.assign(document.createElement("span"), { textContent: axis.title }));
    for (const word of ["from", "to"]) {
      const input = document.createElement("input");
      input.type = "number";
      input.step = "any";
      input.placeholder = shown(word === "from" ? axis.least : axis.most);
      input.setAttribute("aria-label", `${axis.title} ${word}`);
      input.addEventListener("input", () => {
        const [low, high] = inputs.map((each) => each.value === "" ? NaN : Number(each.value));
        const none = Number.isNaN(low) && Number.isNaN(high);
        setBrush(axis, none ? null : [Number.isNaN(low) ? -Infinity : low, Number.isNaN(high) ? Infinity : high]);
      });
      inputs.push(input);
      line.append(input);
    }
    [axis.from, axis.to] = inputs;
    part("limits").append(line);
  }

  function makeApplications() {
    const counts = new Uint32Array(facts.applications.length);
    for (let i = 0; i < state.n; i++) counts[application[i]]++;
    const boxes = facts.applications.map((name, code) => {
      const label = document.createElement("label"), box = document.createElement("input"), text = document.createElement("bdi");
      box.type = "checkbox";
      box.checked = true;
      text.textContent = name;
      label.append(box, text, Object.assign(document.createElement("small"), { textContent: counted.format(counts[code]) }));
      box.addEventListener("change", () => show(code, box.checked));
      const only = Object.assign(document.createElement("button"), { type: "button", className: "only", textContent: "only" });
      only.setAttribute("aria-label", `Only ${name}`);
      only.addEventListener("click", () => facts.applications.forEach((_, other) => {
        boxes[other].checked = other === code;
        show(other, other === code);
      }));
      const line = document.createElement("div");
      line.append(label, only);
      part("applications").append(line);
      return box;
    });
    const show = (code, visible) => {
      if (visible) state.hidden.delete(code);
      else state.hidden.add(code);
      part("clear").disabled = state.brushes.size === 0 && state.hidden.size === 0;
      redraw(true);
    };
    part("clear").addEventListener("click", () => {
      boxes.forEach((box) => { box.checked = true; });
      state.hidden.clear();
      state.brushes.clear();
      axes.forEach(layBrush);
      redraw(true);
    });
  }

  function makeLegend() {
    for (const c of facts.classes.keys()) {
      if (!classOrder.includes(c)) continue;
      const item = document.createElement("span"), swatch = document.createElement("i");
      swatch.className = `swatch node-${c}`;
      item.append(swatch, facts.classes[c].label);
      part("legend").append(item);
    }
  }

  // --- Size, theme and print
  function resize() {
    const wanted = Math.max(LEAST_WIDTH, Math.floor(plot.parentElement.clientWidth));
    if (wanted === width) return;
    width = wanted;
    const scale = Math.min(2, Math.max(1, devicePixelRatio || 1));
    canvas.width = Math.round(width * scale);
    canvas.height = Math.round(HEIGHT * scale);
    plot.style.width = `${width}px`;
    plot.style.height = `${HEIGHT}px`;
    overlay.setAttribute("viewBox", `0 0 ${width} ${HEIGHT}`);
    axes.forEach(layRows);
    layAxes();
    redraw(true);
  }

  async function begin() {
    if (typeof DecompressionStream === "undefined") throw new Error("this browser cannot unpack the data; browsers of 2023 and later can");
    await unpack();
    root.dataset.order = facts.axes.map((axis) => axis.key).join(" ");
    axes.forEach(makeHead);
    axes.forEach(makeLimits);
    makeApplications();
    makeLegend();
    part("controls").hidden = part("plot").hidden = false;
    resize();
    new ResizeObserver(resize).observe(plot.parentElement);
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => redraw(true));
    for (const [happening, printing] of [["beforeprint", true], ["afterprint", false]]) {
      addEventListener(happening, () => {
        document.documentElement.classList.toggle("printing", printing); // light, whatever the screen is
        backdrop = null;
        draw();
      });
    }
    // So that the first brush takes no longer than the next.
    (window.requestIdleCallback ?? setTimeout)(() => aside(canvas.width / width));
  }

  begin().catch((error) => { part("count").textContent = `The lines could not be drawn: ${error.message}`; });
})();
