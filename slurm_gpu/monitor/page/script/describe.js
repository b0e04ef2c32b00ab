// A square in words: for the pointer, the keyboard and screen readers alike.

import { FREE, SHARED } from "./cluster.js";
import { GAP, OUT_OF_SERVICE } from "./paint.js";
import * as words from "./words.js";

export function valueOf(octet, metric) {
  return octet === GAP ? null : octet * metric.step;
}

// A value as the page says it: of the last step of "frees in", that it is at least that.
export function valueText(octet, metric) {
  if (octet === GAP) return "not measured";
  if (metric.kinds) return "";
  const value = valueOf(octet, metric);
  if (metric.own && value >= metric.top) return `${metric.top}\u00a0${metric.unit} or more`;
  return words.amount(value, metric.unit);
}

// {place, type, value, holder, job}: texts of one square; job is whose page opens, null for none.
export function describe(cluster, square, metric, octets, now_s) {
  const node = cluster.flat.nodes[cluster.nodeOf[square]], gpu = node.gpus[square - node.first];
  const where = [node.zone, node.rack].filter((part) => part !== null && part !== undefined).join(", ");
  const here = cluster.jobsAt(square), state = cluster.state[square];
  let holder = "free";
  if (state === OUT_OF_SERVICE) holder = "out of service";
  else if (here.length) holder = here.map((job) => holding(job, now_s)).join("; ");
  else if (state !== FREE) holder = "held";
  if (state === SHARED && here.length > 1) holder = `shared by ${here.length}: ${holder}`;
  return {
    place: `${node.name} GPU ${gpu.index}`,
    type: gpu.type ?? "",
    where,
    uuid: gpu.uuid ?? null,
    title: metric.title,
    value: valueText(octets[square], metric),
    holder,
    job: here.find((job) => job.full) ?? null,
  };
}

function holding(job, now_s) {
  const whose = job.user ? ` of ${job.user}` : "";
  return `job ${job.id}${whose}, ${words.counts(job.n_gpus, "GPU")}, ${words.frees(job, now_s)}`;
}

// One line of it.
export function sentence(told) {
  const type = told.type ? `, ${told.type}` : "";
  const value = told.value ? ` ${told.title} ${told.value}.` : "";
  return `${told.place}${type}:${value} ${told.holder[0].toUpperCase()}${told.holder.slice(1)}.`;
}
