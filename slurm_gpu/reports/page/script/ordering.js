// The order of the axes, changed by dragging a name or focusing it and pressing arrow keys, and the scale of each axis.

function reorder(axis, place) {
  const order = state.order.filter((index) => index !== axis.index);
  order.splice(Math.max(0, Math.min(order.length, place)), 0, axis.index);
  if (order.every((index, at) => index === state.order[at])) return;
  state.order = order;
  tellOrder();
  layAxes();
  redrawAll();
}

function tellOrder() {
  root.dataset.order = state.order.map((index) => runs.axes[index].key).join(" ");
}

function makeHead(axis) {
  axis.head = document.createElement("div");
  axis.head.className = "head";
  axis.head.append(nameButton(axis), scaleButton(axis));
  part("heads").append(axis.head);
}

function nameButton(axis) {
  const name = Object.assign(document.createElement("button"), { type: "button", className: "name", textContent: axis.title });
  name.append(Object.assign(document.createElement("small"), { textContent: axis.bracketed }));
  name.title = `${axis.about}. Drag, or press ← and →, to move this axis`;
  name.setAttribute("aria-label", `${axis.title}: ${axis.about}. Arrow keys move this axis.`);
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
    name.classList.add("dragged");
    name.addEventListener("pointermove", move);
    name.addEventListener("lostpointercapture", () => {
      name.removeEventListener("pointermove", move);
      name.classList.remove("dragged");
    }, { once: true });
  });
  return name;
}

function scaleButton(axis) {
  const scale = Object.assign(document.createElement("button"), { type: "button", className: "scale" });
  scale.append(document.createElement("small"));
  scale.setAttribute("aria-label", `Scale of ${axis.title}`);
  scale.addEventListener("click", () => {
    axis.scaleLog = !axis.scaleLog;
    layRows(axis);
    layAxes();
    redrawAll();
  });
  return scale;
}
