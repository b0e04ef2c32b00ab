// The chosen runs: runs of the shown applications that are within all brushes. A missing value is within no brush.

const shownRuns = (withBrushes) => {
  const inside = new Uint8Array(runs.n).fill(1);
  if (state.hidden.size) for (let i = 0; i < runs.n; i++) inside[i] = state.hidden.has(runs.application[i]) ? 0 : 1;
  if (!withBrushes) return inside;
  for (const [index, [low, high]] of state.brushes) {
    const { values } = runs.axes[index];
    for (let i = 0; i < runs.n; i++) if (!(values[i] >= low && values[i] <= high)) inside[i] = 0;
  }
  return inside;
};

function placesOf(inside, among) { // the indices of runs inside, optionally of one node class only
  const found = new Uint32Array(inside.length);
  let count = 0;
  for (let i = 0; i < inside.length; i++) {
    if (inside[i] && (among === undefined || runs.nodeClass[i] === among)) found[count++] = i;
  }
  return found.subarray(0, count);
}
