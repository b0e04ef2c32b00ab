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
  const { least, most } = axis, found = [];
  for (let power = Math.ceil(Math.log10(1 / axis.stretch)); power <= 9; power++) {
    for (const digit of [1, 2, 5]) {
      const value = digit * 10 ** power;
      if (value > least && value <= most) found.push(Number(value.toPrecision(3)));
    }
  }
  const kept = [least];
  for (const value of [...found, most]) {
    const away = (fraction(axis, value) - fraction(axis, kept[kept.length - 1])) * plotHeight;
    if (away >= TICK_ROOM) kept.push(value);
    else if (value === most) kept[kept.length > 1 ? kept.length - 1 : 1] = value;
  }
  return kept;
}

function evenTicks(axis) {
  const { least, most } = axis, raw = (most - least) / 6, size = 10 ** Math.floor(Math.log10(raw));
  const round = [1, 2, 5, 10].find((k) => k * size >= raw) * size, step = axis.whole ? Math.max(1, round) : round;
  const found = axis.whole && least % step !== 0 ? [least] : [];
  for (let value = Math.ceil(least / step - 1e-9) * step; value <= most + step * 1e-6; value += step) {
    found.push(Number(value.toPrecision(6)));
  }
  return found;
}
