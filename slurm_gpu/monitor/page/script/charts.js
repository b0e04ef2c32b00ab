// Draw the timelines of a run as small charts, one per metric: single GPUs as thin lines, and their mean as a thick
// line. Lines have gaps where data is missing.

import { make, say } from "./element.js";
import { css } from "./scale.js";
import * as words from "./words.js";

// Octets of a timeline are fractions × FULL; GAP is a missing value.
const GAP = 255, FULL = 250;
const HEIGHT = 108, LEFT = 42, BOTTOM = 18, TOP = 6;
const FACE = 'system-ui, "Segoe UI", Roboto, "Noto Sans", "DejaVu Sans", sans-serif';

const TITLES = {
  util: "Utilisation", mem_used: "Memory used", sm_active: "SM active", tensor: "Tensor cores active", pcie: "PCIe",
  nvlink: "NVLink", power: "Power (share of the limit)", sm_clock: "SM clock (share of the maximum)",
};

export const seriesTitle = (name) => TITLES[name === "mem" ? "mem_used" : name] ?? name;

function bytes(text) {
  const binary = atob(text), found = new Uint8Array(binary.length);
  for (let at = 0; at < binary.length; at++) found[at] = binary.charCodeAt(at);
  return found;
}

// Group the timelines of a run's devices by series: [{name, lines: [{label, start_s, width_s, octets}], start_s, end_s,
// common_s}]. `common_s` is the time until which every GPU has reported, except those in `ended` (a set of labels). A
// later mean would cover only some of the GPUs.
export function seriesOf(devices, ended) {
  const found = new Map();
  for (const { node, device, timeline } of devices) {
    if (timeline === null) continue;
    for (const [name, text] of Object.entries(timeline.series)) {
      const lines = found.get(name) ?? [];
      lines.push({ label: `${node} ${device}`, start_s: timeline.start_s, width_s: timeline.width_s, octets: bytes(text) });
      found.set(name, lines);
    }
  }
  const order = Object.keys(TITLES), place = (name) => (order.includes(name) ? order.indexOf(name) : order.length);
  return [...found].sort(([a], [b]) => place(a) - place(b)).filter(([, lines]) => lines.some((line) => line.octets.some((octet) => octet !== GAP)))
    .map(([name, lines]) => {
      const end_s = Math.max(...lines.map(endOf)), continuing = lines.filter((line) => !ended.has(line.label));
      return { name, lines, start_s: Math.min(...lines.map((line) => line.start_s)), end_s, common_s: Math.min(end_s, ...continuing.map(endOf)) };
    });
}

const endOf = (line) => line.start_s + line.octets.length * line.width_s;

// Summarise all lines at one time as {mean, least, most, known}. The first three are fractions. Return null without data.
export function at(series, moment_s) {
  let sum = 0, known = 0, least = Infinity, most = -Infinity;
  for (const { start_s, width_s, octets } of series.lines) {
    const octet = octets[Math.floor((moment_s - start_s) / width_s)];
    if (octet === undefined || octet === GAP) continue;
    sum += octet;
    known++;
    least = Math.min(least, octet);
    most = Math.max(most, octet);
  }
  return known ? { mean: sum / known / FULL, least: least / FULL, most: most / FULL, known } : null;
}

const percent = (fraction) => `${Math.round(100 * fraction)} %`;

// Make a figure that draws itself at its current width. `mean` is the exact mean of the run in percent; null if unknown.
export function chart(series, inks, mean) {
  const canvas = make("canvas", { role: "img", "aria-label": spoken(series, mean) });
  const note = make("small", {}), figure = make("figure", {}, make("figcaption", {}, seriesTitle(series.name), note), canvas);
  const rest = restText(series, mean);
  say(note, rest);
  const draw = () => paint(canvas, series, inks());
  new ResizeObserver(draw).observe(canvas);
  canvas.addEventListener("pointermove", (event) => {
    const box = canvas.getBoundingClientRect(), share = (event.clientX - box.left - LEFT) / (box.width - LEFT);
    const moment_s = series.start_s + share * (series.end_s - series.start_s), here = at(series, moment_s);
    const when = words.moment(moment_s, series.end_s);
    const range = here !== null && here.known > 1 ? `${percent(here.least)} to ${percent(here.most)}` : "";
    const part = here !== null && moment_s > series.common_s ? `${here.known} of ${words.counts(series.lines.length, "GPU")} reported, ${range || percent(here.mean)}` : "";
    say(note, share < 0 ? rest : here === null ? `${when}: not measured` : `${when}: ${part || `${percent(here.mean)}${range && ` (${range})`}`}`);
  });
  canvas.addEventListener("pointerleave", () => say(note, rest));
  return { figure, draw };
}

function restText(series, mean) {
  if (mean !== null && mean !== undefined) return `mean ${words.amount(mean, "%")}`;
  const all = series.lines.flatMap(({ octets }) => [...octets]).filter((octet) => octet !== GAP);
  return `mean ${percent(all.reduce((sum, octet) => sum + octet, 0) / all.length / FULL)}`;
}

const spoken = (series, mean) => `${seriesTitle(series.name)} of ${words.counts(series.lines.length, "GPU")}, ${restText(series, mean)}`;

function paint(canvas, series, inks) {
  const unit = Math.min(2, Math.max(1, window.devicePixelRatio || 1)), width = canvas.clientWidth;
  if (width < LEFT + 10) return;
  canvas.width = Math.round(width * unit);
  canvas.height = Math.round(HEIGHT * unit);
  const context = canvas.getContext("2d");
  context.scale(unit, unit);
  const x = (at_s) => LEFT + (at_s - series.start_s) / (series.end_s - series.start_s) * (width - LEFT - 1);
  const y = (fraction) => TOP + (1 - Math.min(1, fraction)) * (HEIGHT - TOP - BOTTOM);
  axes(context, series, inks, y, width);
  context.lineWidth = 1;
  context.strokeStyle = css(inks.accent);
  context.globalAlpha = Math.min(0.6, Math.max(0.06, 2.5 / series.lines.length));
  for (const line of series.lines) trace(context, line.octets.length, (bin) => [x(line.start_s + (bin + 0.5) * line.width_s), line.octets[bin] === GAP ? null : y(line.octets[bin] / FULL)]);
  context.globalAlpha = 1;
  context.lineWidth = 1.75;
  const width_s = Math.max(...series.lines.map((line) => line.width_s)), bins = Math.round((series.end_s - series.start_s) / width_s);
  trace(context, bins, (bin) => {
    const moment_s = series.start_s + (bin + 0.5) * width_s, here = moment_s < series.common_s ? at(series, moment_s) : null;
    return [x(moment_s), here === null ? null : y(here.mean)];
  });
}

function axes(context, series, inks, y, width) {
  context.font = `10.5px ${FACE}`;
  context.fillStyle = css(inks.muted);
  context.strokeStyle = inks.grid;
  context.lineWidth = 1;
  context.textAlign = "right";
  context.textBaseline = "middle";
  for (const fraction of [0, 0.5, 1]) {
    const row = Math.round(y(fraction)) + 0.5;
    context.beginPath();
    context.moveTo(LEFT, row);
    context.lineTo(width, row);
    context.stroke();
    context.fillText(`${100 * fraction} %`, LEFT - 5, row);
  }
  context.textBaseline = "alphabetic";
  context.textAlign = "left";
  context.fillText(words.moment(series.start_s, series.end_s), LEFT, HEIGHT - 4);
  context.textAlign = "right";
  context.fillText(words.moment(series.end_s, series.end_s), width - 1, HEIGHT - 4);
}

// Draw a line through known values; a single value between gaps becomes a dot.
function trace(context, bins, place) {
  context.beginPath();
  let open = false, last = null;
  for (let bin = 0; bin <= bins; bin++) {
    const [x, y] = bin < bins ? place(bin) : [0, null];
    if (y === null) {
      if (last !== null) context.lineTo(last[0] + 1.5, last[1]);
      open = false;
      last = null;
    } else if (open) {
      context.lineTo(x, y);
      last = null;
    } else {
      context.moveTo(x, y);
      open = true;
      last = [x, y];
    }
  }
  context.stroke();
}
