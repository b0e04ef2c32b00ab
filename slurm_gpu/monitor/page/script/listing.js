// The squares as a table, a row for each node: for screen readers, for copying, and for who likes tables.

import { OUT_OF_SERVICE } from "./paint.js";
import { fill, make, table } from "./element.js";
import { FREE } from "./cluster.js";
import { valueText } from "./describe.js";

export function list(place, cluster, metric, octets) {
  const zoned = cluster.flat.zones.some((zone) => zone.name !== null);
  const rows = cluster.flat.nodes.map((node) => {
    const values = [], jobs = new Map();
    let free = 0, out = 0;
    for (let square = node.first; square < node.first + node.n; square++) {
      values.push(metric.kinds ? stateWord(cluster.state[square]) : valueText(octets[square], metric).replace("not measured", "–"));
      if (cluster.state[square] === FREE) free++;
      if (cluster.state[square] === OUT_OF_SERVICE) out++;
      for (const job of cluster.jobsAt(square)) jobs.set(job.job_id, job);
    }
    const held = [...jobs.values()].map((job) => (job.user ? `${job.id} (${job.user})` : job.id)).join(", ");
    return [
      ...(zoned ? [make("bdi", {}, node.zone ?? "")] : []), make("bdi", {}, node.name),
      make("bdi", {}, [...new Set(node.gpus.map((gpu) => gpu.type))].join(", ")),
      out ? "out of service" : String(free), values.join("  "), make("bdi", {}, held),
    ];
  });
  fill(place, table([...(zoned ? ["Zone"] : []), "Node", "GPUs", { title: "Free", number: true }, metric.kinds ? "State" : metric.title, "Jobs"], rows, "GPUs by node"));
}

const stateWord = (state) => ["free", "held", "shared", "out of service", "not watched"][state] ?? "";
