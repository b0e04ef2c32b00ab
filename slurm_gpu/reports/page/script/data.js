// The data: runs as columns, never as objects. Values are stored as codes, in the order of the values.
//
// Columns follow each other as bytes. In a two-byte column, all low bytes precede all high bytes.

const UNKNOWN = 65535;
const runs = { n: 0, axes: [], application: null, nodeClass: null, population: [] };

async function unpack() {
  const text = atob(document.getElementById("parallel-bytes").textContent.trim());
  const packed = new Uint8Array(text.length);
  for (let i = 0; i < text.length; i++) packed[i] = text.charCodeAt(i);
  const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream("deflate"));
  const bytes = new Uint8Array(await new Response(stream).arrayBuffer());
  let at = 0;
  const column = (wide) => {
    const codes = new Uint16Array(bytes.subarray(at, at + facts.runs));
    at += facts.runs;
    if (!wide) return codes;
    for (let i = 0; i < facts.runs; i++) codes[i] |= bytes[at + i] << 8;
    at += facts.runs;
    return codes;
  };
  runs.n = facts.runs;
  runs.axes = facts.axes.map((axis, index) => asAxis(axis, index, column(axis.wide)));
  runs.application = column(false);
  classify(runs.axes[facts.colour_axis].values);
  state.order = runs.axes.map((axis) => axis.index);
}

function asAxis(axis, index, codes) {
  const step = Math.log1p(axis.most) / (UNKNOWN - 1); // steps are equal in log(1 + value)
  const valueOf = axis.wide ? (code) => Math.expm1(code * step) : (code) => axis.values[code];
  const gap = axis.wide ? UNKNOWN : axis.values.length, values = new Float32Array(codes.length);
  let gaps = 0;
  for (let i = 0; i < codes.length; i++) {
    values[i] = codes[i] < gap ? valueOf(codes[i]) : NaN;
    if (codes[i] >= gap) gaps++;
  }
  const rows = new Uint16Array(codes.length);
  return { ...axis, index, codes, valueOf, gap, gaps, values, rows, scaleLog: axis.scale === "log" };
}

function classify(nodes) {
  const { classes } = facts;
  runs.nodeClass = new Uint8Array(runs.n);
  runs.population = classes.map(() => 0);
  for (let i = 0; i < runs.n; i++) {
    let c = 0;
    while (c + 1 < classes.length && nodes[i] >= classes[c + 1].from) c++;
    runs.nodeClass[i] = c;
    runs.population[c]++;
  }
}
