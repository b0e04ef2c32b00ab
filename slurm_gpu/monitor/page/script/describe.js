// Describe a square in words, for users of pointers, keyboards and screen readers.

import { SHARED } from "./cluster.js";
import { textOf } from "./metric.js";
import { FREE, OUT_OF_SERVICE } from "./paint.js";
import * as words from "./words.js";

function valueText(value, metric) {
  if (metric.kinds) return "";
  if (value === null) return metric.own ? "unknown" : "not measured";
  return textOf(value, metric);
}

// Return texts that describe a square. The field `job` is the job whose page the square opens, or null.
export function describe(cluster, square, metric, octets, now_s) {
  const node = cluster.flat.nodes[cluster.nodeOf[square]], gpu = node.gpus[square - node.first];
  const where = [node.zone, node.rack].filter((part) => part !== null && part !== undefined).join(", ");
  const here = cluster.jobsAt(square), state = cluster.state[square];
  let holder = "free";
  if (state === OUT_OF_SERVICE) holder = "out of service";
  else if (here.length) holder = here.map((job) => describeJob(job, now_s)).join("; ");
  else if (state !== FREE) holder = "allocated";
  if (state === SHARED && here.length > 1) holder = `shared by ${here.length}: ${holder}`;
  return {
    place: `${node.name} GPU ${gpu.index}`,
    type: gpu.type ?? "",
    where,
    uuid: gpu.uuid ?? null,
    title: metric.title,
    value: here.length && here.every((job) => !job.full) && !metric.kinds && cluster.value(square, metric, octets, now_s) === null ? "visible only to the owner" : valueText(cluster.value(square, metric, octets, now_s), metric),
    holder,
    job: here.find((job) => job.full) ?? null,
  };
}

function describeJob(job, now_s) {
  const whose = job.user ? ` of ${job.user}` : "";
  return `job ${job.id}${whose}, ${words.counts(job.n_gpus, "GPU")}, ${words.frees(job, now_s)}`;
}

// Return the description of a square as one line.
export function sentence(square) {
  const type = square.type ? `, ${square.type}` : "";
  const value = square.value ? ` ${square.title} ${square.value}.` : "";
  return `${square.place}${type}:${value} ${square.holder[0].toUpperCase()}${square.holder.slice(1)}.`;
}
