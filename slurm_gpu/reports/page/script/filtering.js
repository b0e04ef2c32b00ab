// The choice of applications, the legend of the colours, and the button that shows all runs again.

function makeApplications() {
  const counts = new Uint32Array(facts.applications.length);
  for (let i = 0; i < runs.n; i++) counts[runs.application[i]]++;
  const boxes = facts.applications.map(() => Object.assign(document.createElement("input"), { type: "checkbox", checked: true }));
  const follow = () => { // apply the state of the boxes
    state.hidden = new Set([...boxes.keys()].filter((code) => !boxes[code].checked));
    layClear();
    redrawGround();
  };
  facts.applications.forEach((name, code) => {
    const line = document.createElement("div"), label = document.createElement("label");
    const only = Object.assign(document.createElement("button"), { type: "button", className: "only", textContent: "only" });
    label.append(
      boxes[code], Object.assign(document.createElement("bdi"), { textContent: name }),
      Object.assign(document.createElement("small"), { textContent: counted.format(counts[code]) }),
    );
    boxes[code].addEventListener("change", follow);
    only.setAttribute("aria-label", `Only ${name}`);
    only.addEventListener("click", () => {
      boxes.forEach((box, other) => { box.checked = other === code; });
      follow();
    });
    line.append(label, only);
    part("applications").append(line);
  });
  part("clear").addEventListener("click", () => {
    boxes.forEach((box) => { box.checked = true; });
    state.brushes.clear();
    runs.axes.forEach(layBrush);
    follow();
  });
}

function layClear() {
  part("clear").disabled = state.brushes.size === 0 && state.hidden.size === 0;
}

function makeLegend() {
  facts.classes.forEach(({ label }, c) => {
    if (!runs.population[c]) return;
    const item = document.createElement("span"), swatch = document.createElement("i");
    swatch.className = `swatch node-${c}`;
    item.append(swatch, label);
    part("legend").append(item);
  });
}
