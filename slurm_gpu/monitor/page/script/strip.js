// Draw the cluster's usage over the last day, week or month: GPUs in service, allocated and busy, and below them the
// GPUs for which pending jobs wait.

import { fill, make, say } from "./element.js";
import { WireError, json } from "./wire.js";
import * as words from "./words.js";

const RELOAD_MS = 60e3; // slurm-gpudbd adds a sample every minute
const HEIGHT = 66, GAP = 4, WAITING = 18; // of the upper part, the space and the lower part, in pixels
const HOUR_S = 3600, DAY_S = 86400;
// The time between labels by number of days.
const TICKS_S = { 1: 3 * HOUR_S, 7: DAY_S, 30: 5 * DAY_S };
const NARROW = 520;
const namespace = document.querySelector(".course svg").namespaceURI;

// Make an SVG element in the namespace of the page's empty drawing.
function draw(tag, attributes) {
  const made = document.createElementNS(namespace, tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, String(value));
  return made;
}

export class Strip {
  // `place` is a section with a group of buttons, a note, and a frame for the drawing; `days` is the range at first.
  constructor(place, { days, chosen }) {
    this.place = place;
    this.days = days in TICKS_S ? days : "1";
    this.chosen = chosen;
    this.usage = null;
    this.at = -1; // the bin under the pointer or the keyboard, or -1
    this.loaded_ms = -Infinity;
    this.frame = place.querySelector(".course");
    this.note = place.querySelector(".reading");
    place.querySelector(".switch").addEventListener("click", (event) => {
      const { days: wanted } = event.target.dataset;
      if (wanted === undefined || wanted === this.days) return;
      this.days = wanted;
      this.at = -1;
      this.loaded_ms = -Infinity;
      this.chosen(wanted);
      this.load();
    });
    this.frame.addEventListener("pointermove", (event) => {
      const box = this.frame.getBoundingClientRect();
      this.read(Math.floor((event.clientX - box.left) / box.width * this.bins));
    });
    this.frame.addEventListener("pointerleave", () => this.read(-1));
    this.frame.addEventListener("keydown", (event) => this.press(event));
    this.frame.addEventListener("blur", () => this.read(-1));
    new ResizeObserver(() => this.show()).observe(this.frame);
  }

  get bins() {
    return this.usage === null ? 0 : this.usage.gpus.length;
  }

  // Load the usage unless it was loaded in the last minute. Old data is kept if new data cannot be loaded.
  async load() {
    if (performance.now() - this.loaded_ms < RELOAD_MS) return;
    this.loaded_ms = performance.now();
    const { days } = this;
    try {
      const { value } = await json(`usage?days=${days}`);
      if (days === this.days) this.usage = value;
    } catch (error) {
      if (!(error instanceof WireError)) throw error;
    }
    this.show();
  }

  press(event) {
    const last = this.bins - 1, at = this.at < 0 ? last : this.at;
    const next = { ArrowLeft: at - (this.at < 0 ? 0 : 1), ArrowRight: at + 1, Home: 0, End: last, Escape: -1 }[event.key];
    if (next === undefined || last < 0) return;
    event.preventDefault();
    this.read(Math.min(last, Math.max(event.key === "Escape" ? -1 : 0, next)));
  }

  // Show the values of a bin, or those of the newest one for -1.
  read(bin) {
    if (bin === this.at || this.bins === 0) return;
    this.at = bin;
    this.show();
  }

  show() {
    for (const button of this.place.querySelectorAll("[data-days]")) button.setAttribute("aria-pressed", String(button.dataset.days === this.days));
    const width = Math.floor(this.frame.clientWidth), { usage } = this;
    if (width < 10) return;
    if (usage === null || usage.gpus.every((value) => value === null)) {
      fill(this.frame, make("p", { class: "none" }, usage === null ? "Not loaded yet." : "Nothing has been recorded in this time."));
      say(this.note, "");
      return;
    }
    const last = usage.gpus.findLastIndex((value) => value !== null), bin = this.at < 0 ? last : this.at;
    this.place.querySelector(".key.busy").hidden = usage.busy.every((value) => value === null);
    say(this.note, readingOf(usage, bin));
    fill(this.frame, drawing(usage, width, this.at < 0 ? null : this.at, this.days));
  }
}

// Describe the values of one bin in a sentence.
function readingOf(usage, bin) {
  const end_s = usage.from_s + usage.bin_s * usage.gpus.length, at_s = usage.from_s + bin * usage.bin_s;
  const when = words.moment(at_s, end_s), [gpus, allocated, busy, waiting, jobs] = ["gpus", "allocated", "busy", "waiting_gpus", "waiting_jobs"].map((name) => usage[name][bin]);
  if (gpus === null) return `${when}: nothing was recorded`;
  const share = (value) => (gpus ? ` (${Math.round(100 * value / gpus)}\u00a0%)` : ""), whole = (value) => words.count(Math.round(value));
  const pending = waiting ? `${whole(waiting)} requested by ${words.counts(Math.round(jobs), "job")}` : "none requested";
  return `${when}: ${whole(allocated)} of ${words.counts(Math.round(gpus), "GPU")} allocated${share(allocated)}${busy === null ? "" : `, ${whole(busy)} busy${share(busy)}`}, ${pending}`;
}

function drawing(usage, width, at, days) {
  const { gpus, allocated, busy, waiting_gpus: waiting } = usage, bins = gpus.length;
  const most = Math.max(1, ...gpus.map((value) => value ?? 0)), longest = Math.max(1, ...waiting.map((value) => value ?? 0));
  const x = (bin) => (bin / bins * width).toFixed(1), y = (value) => (HEIGHT * (1 - value / most)).toFixed(1);
  const bottom = HEIGHT + GAP, whole = bottom + WAITING;
  const svg = draw("svg", { viewBox: `0 0 ${width} ${whole + 16}`, width, height: whole + 16, "aria-hidden": "true" });
  svg.append(
    draw("path", { class: "allocated", d: area(allocated, x, y, HEIGHT) }),
    draw("path", { class: "busy", d: area(busy, x, y, HEIGHT) }),
    draw("path", { class: "capacity", d: line(gpus, x, y) }),
    draw("path", { class: "waiting", d: area(waiting, x, (value) => (whole - WAITING * value / longest).toFixed(1), whole) }),
    draw("path", { class: "base", d: `M0 ${HEIGHT}H${width}M0 ${whole}H${width}` }),
  );
  for (const label of ticks(usage, days, width)) {
    const text = draw("text", { x: label.x.toFixed(1), y: whole + 12, "text-anchor": label.x < 20 ? "start" : label.x > width - 20 ? "end" : "middle" });
    text.textContent = label.text;
    svg.append(draw("path", { class: "tick", d: `M${label.x.toFixed(1)} ${whole}v3` }), text);
  }
  if (at !== null) svg.append(draw("path", { class: "reading-line", d: `M${((at + 0.5) / bins * width).toFixed(1)} 0V${whole}` }));
  return svg;
}

// Return the runs of bins with values, as pairs of the first bin and the bin after the last one.
function spans(values) {
  const found = [];
  values.forEach((value, bin) => {
    if (value === null) return;
    if (found.length && found.at(-1)[1] === bin) found.at(-1)[1] = bin + 1;
    else found.push([bin, bin + 1]);
  });
  return found;
}

const steps = (values, from, to, x, y) => values.slice(from, to).map((value, place) => `V${y(value)}H${x(from + place + 1)}`).join("");
const area = (values, x, y, bottom) => spans(values).map(([from, to]) => `M${x(from)} ${bottom}${steps(values, from, to, x, y)}V${bottom}Z`).join("");
const line = (values, x, y) => spans(values).map(([from, to]) => `M${x(from)} ${y(values[from])}${steps(values, from, to, x, y)}`).join("");

// Return labels at full hours or days of the site's time zone.
function ticks({ from_s, bin_s, gpus }, days, width) {
  const end_s = from_s + bin_s * gpus.length, step_s = TICKS_S[days] * (width < NARROW && days !== "30" ? 2 : 1), found = [];
  for (let day_s = words.startOfDay(from_s); day_s < end_s; day_s = words.startOfDay(day_s + 1.5 * DAY_S)) {
    const isDaily = step_s >= DAY_S;
    for (let at_s = day_s; at_s < (isDaily ? day_s + 1 : day_s + DAY_S); at_s += step_s) {
      if (at_s < from_s || at_s >= end_s) continue;
      if (isDaily && Math.round((end_s - at_s) / DAY_S) % (step_s / DAY_S)) continue;
      found.push({ x: (at_s - from_s) / (end_s - from_s) * width, text: isDaily ? words.dayOf(at_s) : words.timeOf(at_s) });
    }
  }
  return found;
}
