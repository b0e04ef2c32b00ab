// Scales: convert values to positions from 0 (bottom) to 1 (top) and back, and choose the tick labels.

const TICK_ROOM = 19;   // minimum pixels between two labels

function fraction(axis, value) {
  const reach = axis.most - axis.least;
  if (!(reach > 0)) return 0.5;
  if (axis.scaleLog) return Math.log1p((value - axis.least) * axis.stretch) / Math.log1p(reach * axis.stretch);
  return (value - axis.least) / reach;
}

function valueAt(axis, share) {
  const reach = axis.most - axis.least;
  if (axis.scaleLog) return axis.least + Math.expm1(share * Math.log1p(reach * axis.stretch)) / axis.stretch;
  return axis.least + share * reach;
}

function ticksOf(axis) {
  if (!(axis.most > axis.least)) return [axis.least];
  return axis.scaleLog ? logarithmicTicks(axis) : evenTicks(axis);
}

function logarithmicTicks(axis) {
  const { least, most } = axis, kept = [least];
  const found = (axis.unit === "h" ? facts.round_h : roundNumbers(axis)).filter((value) => value > least && value <= most);
  for (const value of [...found, most]) {
    const away = (fraction(axis, value) - fraction(axis, kept[kept.length - 1])) * plotHeight;
    if (away >= TICK_ROOM) kept.push(value);
    else if (value === most) kept[kept.length > 1 ? kept.length - 1 : 1] = value;
  }
  return kept;
}

function roundNumbers(axis) {
  const found = [];
  for (let power = Math.ceil(Math.log10(1 / axis.stretch)); power <= 9; power++) {
    for (const digit of [1, 2, 5]) found.push(Number((digit * 10 ** power).toPrecision(3)));
  }
  return found;
}

function roundStep(axis, raw) {
  if (axis.unit === "h") return facts.round_h.find((hours) => hours >= raw) ?? raw;
  const size = 10 ** Math.floor(Math.log10(raw)), round = [1, 2, 5, 10].find((k) => k * size >= raw) * size;
  return axis.whole ? Math.max(1, round) : round;
}

function evenTicks(axis) {
  const { least, most } = axis, step = roundStep(axis, (most - least) / 6);
  const found = axis.whole && least % step !== 0 ? [least] : [];
  for (let value = Math.ceil(least / step - 1e-9) * step; value <= most + step * 1e-6; value += step) {
    found.push(Number(value.toPrecision(6)));
  }
  return found;
}
