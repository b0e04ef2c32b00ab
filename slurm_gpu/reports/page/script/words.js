// Describe the selection: the number of runs, and the medians of their values.

const counted = new Intl.NumberFormat("en");
const percent = (share) => `${(100 * share).toFixed(share > 0 && share < 0.01 ? 1 : 0)} %`;
const shown = (value) => value >= 100 || Number.isInteger(value) ? counted.format(Math.round(value)) : String(Number(value.toPrecision(2)));

// Format a value, with a unit if the axis name has none; short times are in seconds or minutes.
function spoken(axis, value) {
  if (axis.unit === "h" && value > 0 && value < 0.1) return value < 1 / 60 ? `${shown(value * 3600)} s` : `${shown(value * 60)} min`;
  return axis.label === axis.title || !axis.unit ? shown(value) : `${shown(value)} ${axis.unit}`;
}

// Return the median of the known values; codes have the order of the values.
function median(axis, chosen) {
  const { codes, gap } = axis, counts = new Uint32Array(gap);
  let known = 0;
  for (let m = 0; m < chosen.length; m++) {
    const code = codes[chosen[m]];
    if (code >= gap) continue;
    counts[code]++;
    known++;
  }
  if (!known) return NaN;
  for (let code = 0, before = 0; ; code++) {
    before += counts[code];
    if (before > (known - 1) >> 1) return axis.valueOf(code);
  }
}

let pending = 0;
function summarize(chosen) {
  const share = runs.n ? chosen.length / runs.n : 0;
  part("count").textContent = `${counted.format(chosen.length)} of ${counted.format(runs.n)} ${facts.noun} (${percent(share)})`;
  clearTimeout(pending);
  pending = setTimeout(() => showMedians(chosen), 150); // wait until the brush stops moving
}

function showMedians(chosen) {
  const words = runs.axes.map((axis) => [axis, median(axis, chosen)]).filter(([, middle]) => middle === middle)
    .map(([axis, middle]) => `${axis.title} ${spoken(axis, middle)}`);
  part("medians").textContent = words.length ? `Medians: ${words.join(", ")}.` : "";
  root.dataset.summarized = root.dataset.drawn;
}
