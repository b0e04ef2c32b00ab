// Draw the legend of the squares.

import { block, drawFree, frame, hatch } from "./paint.js";
import { fill, make, say } from "./element.js";
import { lastOctet, octetOf, textOf } from "./metric.js";
import * as words from "./words.js";

const SIDE = 14, BAR = [132, 12];

// Show the legend for a metric, with its colours by octet, inks, the threshold {limit, isOver} or null, and the number
// of squares with a ring. Only this number changes with each state.
export function showLegend(element, { metric, colours, inks, hides, threshold, ringed }) {
  const key = [metric.name, metric.top, inks.dark, hides, threshold?.limit, threshold?.isOver].join(" ");
  if (element.dataset.of !== key) lay(element, { metric, colours, inks, hides, threshold });
  element.dataset.of = key;
  if (threshold !== null) say(element.lastElementChild.lastElementChild, words.count(ringed));
}

function lay(element, { metric, colours, inks, hides, threshold }) {
  const parts = [];
  if (metric.name === "state") {
    parts.push(...["allocated", "allocated in shards"].map((text, place) => item(text, solid(colours[place + 1], inks))));
  } else if (metric.kinds) {
    parts.push(item("jobs next to each other", ...[1, 2, 3].map((place) => solid(colours[place], inks))));
  } else {
    const ends = metric.curve === undefined ? [0, metric.top] : [0, 1, 24, metric.top];
    const last = textOf(metric.top, metric) + (metric.curve === undefined ? "" : " or more");
    parts.push(item(null, ...ends.slice(0, -1).flatMap((from, at) => [textOf(from, metric), bar([from, ends[at + 1]], metric, colours, inks)]), last));
  }
  parts.push(item("free", picture(inks, SIDE, (pixels) => drawFree(pixels, SIDE, SIDE, 1, 1, SIDE - 2, inks.clear, hides))));
  if (hides) parts.push(item("of others", solid(inks.clear.others, inks)));
  parts.push(item({ jobs: "without a job", state: "no slurm-gpud", frees: "unknown" }[metric.name] ?? "not measured", picture(inks, SIDE, (pixels) => frame(pixels, SIDE, SIDE, 1, 1, SIDE - 2, 1, inks.clear.hollow))));
  parts.push(item("out of service", picture(inks, SIDE, (pixels) => hatch(pixels, SIDE, SIDE, 1, 1, SIDE - 2, inks.clear.hatch))));
  if (!metric.kinds) parts.push(item("of one job", joined(colours, inks)));
  if (threshold !== null) {
    const { limit, isOver } = threshold;
    parts.push(item(null, picture(inks, SIDE, (pixels) => {
      block(pixels, SIDE, SIDE, 1, 1, SIDE - 2, SIDE - 2, colours[isOver ? lastOctet(metric) : 0]);
      frame(pixels, SIDE, SIDE, 1, 1, SIDE - 2, 2, inks.clear.ring);
    }), `allocated, ${isOver ? "over" : "under"} ${textOf(limit, metric)}: `, make("b", {})));
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

// Draw the colours between two values.
function bar(ends, metric, colours, inks) {
  const [first, last] = metric.curve === undefined ? [0, lastOctet(metric)] : ends.map((end) => octetOf(end, metric));
  const width = Math.max(1, Math.round(BAR[0] * (last - first) / lastOctet(metric)));
  return picture(inks, [width, BAR[1]], (pixels) => {
    for (let x = 0; x < width; x++) block(pixels, width, BAR[1], x, 0, 1, BAR[1], colours[Math.round(first + (x + 0.5) / width * (last - first))]);
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
