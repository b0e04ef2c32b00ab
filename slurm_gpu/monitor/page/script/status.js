// Describe the state of the cluster, or of the viewer's jobs, in one sentence.

import { OUT_OF_SERVICE } from "./paint.js";
import { idleSum, isIdle } from "./attention.js";
import * as words from "./words.js";

// Describe idle GPUs, GPU errors and nodes that are out of service. `alerts` is null until it is loaded, and incomplete
// before `complete_s`.
export function clusterStatus(cluster, alerts, now_s, complete_s) {
  const parts = [], idle = (alerts ?? []).filter(isIdle), errors = (alerts ?? []).filter((alert) => alert.alert === "xid");
  const n_jobs = new Set(idle.map((alert) => alert.job_id)).size, { n: n_gpus, hours } = idleSum(idle, now_s);
  if (n_jobs) parts.push(`${words.counts(n_jobs, "job")} ${n_jobs === 1 ? "has" : "have"} ${words.counts(n_gpus, "idle GPU")}, ${words.gpuHours(hours)} so far`);
  if (errors.length) parts.push(`${words.counts(errors.reduce((sum, alert) => sum + alert.n, 0), "GPU")} reported errors`);
  const out = cluster.flat.nodes.filter((node) => cluster.state.subarray(node.first, node.first + node.n).includes(OUT_OF_SERVICE)).length;
  if (out) parts.push(`${words.counts(out, "node")} ${out === 1 ? "is" : "are"} out of service`);
  if (parts.length) return `${parts.join("; ")}.`;
  return alerts === null || complete_s > now_s ? "All nodes are in service." : "No job has idle GPUs, and all nodes are in service.";
}

// Describe the viewer's running and pending jobs.
export function ownStatus(running, waiting, now_s) {
  if (!running.length && !waiting.length) return "You have no running or pending jobs.";
  const gpus = running.reduce((sum, job) => sum + job.n_gpus, 0), n_waiting = waiting.reduce((sum, job) => sum + (job.n_tasks ?? 1), 0);
  const runs = running.length ? `${running.length === 1 ? "Your job runs" : `Your ${words.count(running.length)} jobs run`} on ${words.counts(gpus, "GPU")}` : "";
  const starts = waiting.map((job) => job.start_s ?? null).filter((start_s) => start_s !== null), first_s = starts.length ? Math.min(...starts) : null;
  const next = first_s === null ? "" : `; Slurm expects ${n_waiting === 1 ? "it" : "the first"} to start ${words.moment(first_s, now_s)}`;
  const pending = runs ? `${words.counts(n_waiting, "job")} ${n_waiting === 1 ? "is" : "are"} pending` : `You have ${words.counts(n_waiting, "pending job")}`;
  const waits = n_waiting ? `${pending}${next}` : "";
  return `${[runs, waits].filter(Boolean).join(", and ")}.`;
}
