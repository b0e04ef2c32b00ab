// List the squares in a table with a row per node, for screen readers and for copying.

import { FREE, OUT_OF_SERVICE } from "./paint.js";
import { fill, make, table } from "./element.js";
import { valueOf } from "./describe.js";
import * as words from "./words.js";

export function list(place, cluster, metric, octets) {
  const zoned = cluster.flat.zones.some((zone) => zone.name !== null);
  const rows = cluster.flat.nodes.map((node) => {
    const values = [], jobs = new Map();
    let free = 0, out = 0;
    for (let square = node.first; square < node.first + node.n; square++) {
      values.push(metric.kinds ? stateWord(cluster.state[square]) : number(octets[square], metric));
      if (cluster.state[square] === FREE) free++;
      if (cluster.state[square] === OUT_OF_SERVICE) out++;
      for (const job of cluster.jobsAt(square)) jobs.set(job.job_id, job);
    }
    const jobNames = [...jobs.values()].map((job) => (job.user ? `${job.id} (${job.user})` : job.id)).join(", ");
    return [
      ...(zoned ? [make("bdi", {}, node.zone ?? "")] : []), make("bdi", {}, node.name),
      make("bdi", {}, [...new Set(node.gpus.map((gpu) => gpu.type))].join(", ")),
      out ? "out of service" : String(free), values.join("\u2002"), make("bdi", {}, jobNames),
    ];
  });
  fill(place, table([...(zoned ? ["Zone"] : []), "Node", "GPUs", { title: "Free", number: true }, metric.kinds ? "State" : `${metric.title}, ${metric.unit}`, "Jobs"], rows, "GPUs by node"));
}

// Format a value without its unit, which is in the column's heading.
function number(octet, metric) {
  const value = valueOf(octet, metric);
  return metric.own && value >= metric.top ? `≥${metric.top}` : words.amount(value, "");
}

const stateWord = (state) => ["free", "allocated", "shared", "out of service", "no slurm-gpud"][state] ?? "";
