// Start the plot, and draw it again when the page's width, the screen's colours or the medium change.

function resize() {
  const wanted = Math.max(LEAST_WIDTH, Math.floor(plot.parentElement.clientWidth));
  if (wanted === state.width) return;
  state.width = wanted;
  state.scale = Math.min(2, Math.max(1, devicePixelRatio || 1));
  canvas.width = Math.round(wanted * state.scale);
  canvas.height = Math.round(HEIGHT * state.scale);
  plot.style.width = `${wanted}px`;
  plot.style.height = `${HEIGHT}px`;
  overlay.setAttribute("viewBox", `0 0 ${wanted} ${HEIGHT}`);
  runs.axes.forEach(layRows);
  layAxes();
  redrawAll();
}

function recolour() {
  readColours();
  redraw();
}

async function begin() {
  if (typeof DecompressionStream === "undefined") throw new Error("this browser cannot unpack the data; use a browser of 2023 or later");
  await unpack();
  tellOrder();
  runs.axes.forEach(makeHead);
  runs.axes.forEach(makeLimits);
  makeApplications();
  makeLegend();
  part("controls").hidden = plot.hidden = false;
  readColours();
  resize();
  new ResizeObserver(resize).observe(plot.parentElement);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", recolour);
  for (const [happening, printing] of [["beforeprint", true], ["afterprint", false]]) {
    addEventListener(happening, () => {
      document.documentElement.classList.toggle("printing", printing); // printed pages use light colours
      readColours();
      draw();
    });
  }
  // Draw the grey lines in advance; otherwise, the first brush would be slower than later ones.
  (window.requestIdleCallback ?? setTimeout)(() => groundWith(true));
}

if (root !== null) begin().catch((error) => { part("count").textContent = `The lines could not be drawn: ${error.message}`; });
