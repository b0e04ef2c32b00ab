// Draw the legend of the squares.

import { block, frame, freeFrame, hatch } from "./paint.js";
import { fill, make, say } from "./element.js";
import * as words from "./words.js";

const SIDE = 14, BAR = [132, 12];

// Show the legend for a metric, with its colours by octet, inks, the threshold `under` (or null), and the number
// `below` of squares under it. Only `below` changes with each state.
export function showLegend(element, { metric, colours, inks, under, below }) {
  const key = [metric.name, metric.top, inks.dark, under].join(" ");
  if (element.dataset.of !== key) lay(element, { metric, colours, inks, under });
  element.dataset.of = key;
  if (under !== null) say(element.lastElementChild.lastElementChild, words.count(below));
}

function lay(element, { metric, colours, inks, under }) {
  const parts = [];
  if (metric.name === "state") {
    parts.push(...["allocated", "allocated in shards"].map((text, place) => item(text, solid(colours[place + 1], inks))));
  } else if (metric.kinds) {
    parts.push(item("one job, one colour", ...[1, 2, 3].map((place) => solid(colours[place], inks))));
  } else {
    parts.push(item(null, words.amount(0, metric.unit), bar(metric, colours, inks), `${words.amount(metric.top, metric.unit)}${metric.own ? " or more" : ""}`));
  }
  parts.push(item("free", picture(inks, SIDE, (pixels) => frame(pixels, SIDE, SIDE, 1, 1, SIDE - 2, freeFrame(SIDE - 2), inks.clear.free))));
  parts.push(item({ jobs: "without a job", state: "no slurm-gpud" }[metric.name] ?? "not measured or hidden", picture(inks, SIDE, (pixels) => frame(pixels, SIDE, SIDE, 1, 1, SIDE - 2, 1, inks.clear.hollow))));
  parts.push(item("out of service", picture(inks, SIDE, (pixels) => hatch(pixels, SIDE, SIDE, 1, 1, SIDE - 2, inks.clear.hatch))));
  if (!metric.kinds) parts.push(item("of one job", joined(colours, inks)));
  if (under !== null) {
    parts.push(item(null, picture(inks, SIDE, (pixels) => {
      block(pixels, SIDE, SIDE, 1, 1, SIDE - 2, SIDE - 2, colours[0]);
      frame(pixels, SIDE, SIDE, 1, 1, SIDE - 2, 2, inks.clear.ring);
    }), `allocated, under ${words.amount(under, metric.unit)}: `, make("b", {})));
  }
  fill(element, parts);
}

const item = (text, ...drawn) => make("span", {}, ...drawn, text);

const solid = (colour, inks) => picture(inks, SIDE, (pixels) => block(pixels, SIDE, SIDE, 1, 1, SIDE - 2, SIDE - 2, colour));

function joined(colours, inks) {
  const width = 2 * SIDE - 2;
  return picture(inks, [width, SIDE], (pixels) => {
    block(pixels, width, SIDE, 1, 1, width - 2, SIDE - 2, inks.clear.edge);
    for (const x of [2, SIDE]) block(pixels, width, SIDE, x, 2, SIDE - 3, SIDE - 4, colours[60]);
    block(pixels, width, SIDE, SIDE - 1, 2, 1, SIDE - 4, inks.clear.plate);
  });
}

function bar(metric, colours, inks) {
  const last = Math.min(254, Math.round(metric.top / metric.step));
  return picture(inks, BAR, (pixels) => {
    for (let x = 0; x < BAR[0]; x++) block(pixels, BAR[0], BAR[1], x, 0, 1, BAR[1], colours[Math.round(x / (BAR[0] - 1) * last)]);
  });
}

function picture(inks, size, draw) {
  const [width, height] = typeof size === "number" ? [size, size] : size;
  const canvas = make("canvas", { width, height, "aria-hidden": "true" }), image = new ImageData(width, height);
  const pixels = new Uint32Array(image.data.buffer).fill(inks.surface);
  draw(pixels);
  canvas.getContext("2d").putImageData(image, 0, 0);
  return canvas;
}
