// Describe the selection: the number of runs, and the medians of their values.

const counted = new Intl.NumberFormat("en");
const percent = (share) => `${(100 * share).toFixed(share > 0 && share < 0.01 ? 1 : 0)} %`;
const shown = (value) => value >= 100 || Number.isInteger(value) ? counted.format(Math.round(value)) : String(Number(value.toPrecision(2)));

// Format hours with their two largest units, such as 45s, 2m30s, 3h05m or 2d04h.
function duration(hours) {
  const seconds = Math.round(hours * 3600);
  if (seconds < 1) return hours > 0 ? "<1s" : "0s";
  for (const [size, unit, lower, lowerUnit] of [[86400, "d", 3600, "h"], [3600, "h", 60, "m"], [60, "m", 1, "s"]]) {
    if (seconds < size) continue;
    const rest = String(Math.floor((seconds % size) / lower)).padStart(2, "0");
    return `${Math.floor(seconds / size)}${unit}${rest}${lowerUnit}`;
  }
  return `${seconds}s`;
}

// Format a value with its unit.
const spoken = (axis, value) => axis.unit === "h" ? duration(value) : axis.unit ? `${shown(value)} ${axis.unit}` : shown(value);

// Format the value of a tick: round durations have one unit, such as 30m or 2d.
const ticked = (axis, value) => axis.unit !== "h" ? shown(value) : value === 0 ? "0" : duration(value).replace(/(?<=[a-z])00[a-z]$/, "");

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
