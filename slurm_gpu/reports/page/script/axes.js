// The axes in SVG: their lines, ticks and brushes.

const HIT = 22;         // width in pixels around an axis within which its brush is used
const SVG = "http://www.w3.org/2000/svg";

function svg(name, attributes, text) {
  const made = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  if (text !== undefined) made.textContent = text;
  return made;
}

function layAxes() {
  overlay.replaceChildren();
  state.order.forEach((index, place) => {
    const axis = runs.axes[index], x = columnOf(place);
    overlay.append(axisGroup(axis, x));
    axis.head.style.left = `${x}px`;
    axis.head.querySelector(".scale small").textContent = axis.scaleLog ? "log" : "linear";
    layBrush(axis);
  });
}

function axisGroup(axis, x) {
  const group = svg("g", { class: "axis", transform: `translate(${x} 0)` }), bottom = HEIGHT - BOTTOM;
  const name = (y, text) => svg("text", { class: "tick", x: -7, y: y + 4, "text-anchor": "end" }, text);
  group.append(svg("line", { class: "axis-line", x1: 0, x2: 0, y1: TOP, y2: bottom }));
  for (const tick of ticksOf(axis)) {
    const y = rowOf(axis, tick);
    group.append(svg("line", { class: "axis-line", x1: -4, x2: 0, y1: y, y2: y }), name(y, ticked(axis, tick)));
  }
  if (axis.gaps) group.append(name(bottom + GAP_ROW, "none"));
  const hit = svg("rect", { class: "hit", x: -HIT, y: TOP - 8, width: 2 * HIT, height: plotHeight + 16 });
  hit.addEventListener("pointerdown", (event) => brushFrom(event, axis));
  axis.brush = svg("rect", { class: "brush", x: -9, width: 18, "data-axis": axis.key });
  group.append(hit, axis.brush);
  return group;
}

function layBrush(axis) {
  const limits = state.brushes.get(axis.index);
  axis.brush.toggleAttribute("hidden", !limits);
  axis.brush.setAttribute("height", 0);
  if (limits) {
    const top = rowOf(axis, Math.min(axis.most, limits[1])), bottom = rowOf(axis, Math.max(axis.least, limits[0]));
    axis.brush.setAttribute("y", Math.min(top, bottom) - 1);
    axis.brush.setAttribute("height", Math.max(2, bottom - top + 2));
  }
  layLimits(axis, limits);
}
