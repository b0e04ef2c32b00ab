// Brushes: limits on an axis, drawn with the pointer or typed as numbers.

const GRIP = 6;         // distance in pixels within which the edge of a brush can be dragged

function setBrush(axis, limits) {
  if (limits) state.brushes.set(axis.index, limits);
  else state.brushes.delete(axis.index);
  layBrush(axis);
  redraw();
}

// Round limits to whole numbers on an axis of whole numbers.
function snapped(axis, low, high) {
  const ends = [valueAt(axis, low), valueAt(axis, high)];
  return axis.whole ? [Math.ceil(ends[0] - 0.5), Math.floor(ends[1] + 0.5)] : ends;
}

// Handle a drag: move an edge or the whole brush, or draw a new one. A click removes it.
function brushFrom(event, axis) {
  if (event.button !== 0) return;
  event.preventDefault();
  const target = event.currentTarget, box = overlay.getBoundingClientRect();
  const yOf = (happening) => (happening.clientY - box.top) * HEIGHT / box.height;
  const start = yOf(event), old = state.brushes.get(axis.index);
  const edges = old && [rowOf(axis, Math.max(axis.least, old[0])), rowOf(axis, Math.min(axis.most, old[1]))];
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

function makeLimits(axis) {
  const line = document.createElement("div"), inputs = [];
  line.className = "limit";
  line.append(Object.assign(document.createElement("span"), { textContent: axis.unit === "h" ? `${axis.title}, hours` : axis.title }));
  for (const word of ["from", "to"]) {
    const input = document.createElement("input");
    input.type = "number";
    input.step = "any";
    input.placeholder = shown(word === "from" ? axis.least : axis.most);
    input.setAttribute("aria-label", `${axis.title} ${word}${axis.unit === "h" ? ", hours" : ""}`);
    input.addEventListener("input", () => {
      const [low, high] = inputs.map((each) => each.value === "" ? NaN : Number(each.value));
      const none = Number.isNaN(low) && Number.isNaN(high);
      setBrush(axis, none ? null : [Number.isNaN(low) ? -Infinity : low, Number.isNaN(high) ? Infinity : high]);
    });
    inputs.push(input);
    line.append(input);
  }
  axis.inputs = inputs;
  part("limits").append(line);
}

function layLimits(axis, limits) {
  axis.inputs.forEach((input, end) => {
    if (document.activeElement === input) return; // the user is typing
    input.value = limits && Number.isFinite(limits[end]) ? Number(limits[end].toPrecision(4)) : "";
  });
  layClear();
}
