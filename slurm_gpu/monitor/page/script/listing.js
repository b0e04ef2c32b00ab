// List the squares in a table with a row per node, for screen readers and for copying.

import { FREE, OUT_OF_SERVICE } from "./paint.js";
import { fill, make, table } from "./element.js";
import { briefOf } from "./metric.js";

export function list(place, cluster, metric, octets, now_s) {
  const zoned = cluster.flat.zones.some((zone) => zone.name !== null);
  const rows = cluster.flat.nodes.map((node) => {
    const values = [], jobs = new Map();
    let free = 0, out = 0;
    for (let square = node.first; square < node.first + node.n; square++) {
      values.push(metric.kinds ? stateWord(cluster.state[square]) : briefOf(cluster.value(square, metric, octets, now_s), metric));
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
  fill(place, table([...(zoned ? ["Zone"] : []), "Node", "GPUs", { title: "Free", number: true }, metric.kinds ? "State" : metric.own ? metric.title : `${metric.title}, ${metric.unit}`, "Jobs"], rows, "GPUs by node"));
}

const stateWord = (state) => ["free", "allocated", "shared", "out of service", "no slurm-gpud"][state] ?? "";
