// Describe one run of a job: the line at the top, and the table of facts.

import { fill, make } from "./element.js";
import { isPending, isRunning } from "./runs.js";
import * as words from "./words.js";

// Nodes send records within this number of seconds, which equals two shipment intervals.
const SHIPPED_WITHIN_S = 720;

// Return the state of a run, with its end or the time for which it has been pending.
export function headline(run, now_s) {
  const state = run.state.charAt(0) + run.state.slice(1).toLowerCase().replaceAll("_", " "), at = (moment_s) => words.moment(moment_s, now_s);
  if (isPending(run)) return `${state} for ${words.duration(now_s - run.submit_s)}.`;
  if (!isRunning(run)) return `${state}${exitText(run)}: ended ${at(run.end_s)}${run.start_s === null ? ", never started" : ` after ${words.duration(run.elapsed_s)}`}.`;
  if (run.time_limit_s === null || run.time_limit_s === undefined) return `${state} for ${words.duration(run.elapsed_s)}, without a time limit.`;
  const limit_s = run.start_s + run.time_limit_s;
  return limit_s <= now_s ? `${state}, at its time limit.` : `${state}. Ends by ${at(limit_s)}, in ${words.duration(limit_s - now_s)}.`;
}

// Return how a failed job script ended: its exit code, or the signal that ended it.
function exitText({ state, exit_code }) {
  if (state !== "FAILED" || !exit_code) return "";
  const [code, signal] = exit_code.split(":");
  return signal === "0" ? ` with exit code ${code}` : ` by signal ${signal}`;
}

export function showFacts(place, run, now_s) {
  const rows = isPending(run) ? requested(run, now_s) : measured(run, now_s);
  fill(place, rows.filter(Boolean).map(([name, value]) => make("div", {}, make("dt", {}, name), make("dd", {}, value instanceof Node ? value : make("bdi", {}, value ?? words.GAP)))));
}

const array = (run) => (run.array_job_id ? ["Array", make("a", { href: `job?id=${run.array_job_id}` }, String(run.array_job_id))] : null);

function measured(run, now_s) {
  return [
    ["User", run.user], ["Account", run.account], ["Partition", run.partition], array(run),
    ["GPUs", run.nGPU === null ? words.GAP : `${words.count(run.nGPU)}${run.gpu_type ? ` × ${run.gpu_type}` : ""}`],
    ["Nodes", run.nodes || words.GAP],
    ["Waited", run.WAIT_h === null ? words.GAP : words.duration(3600 * run.WAIT_h)],
    ["Started", words.moment(run.start_s, now_s)], ["Ran", words.duration(run.elapsed_s)],
    ["Time limit", run.time_limit_s === null || run.time_limit_s === undefined ? "none" : words.duration(run.time_limit_s)],
    ["Energy", words.energy(run.energy_j)],
    ["Measured", run.coverage === null || run.coverage === undefined ? words.GAP : `${words.share(run.coverage)} of the time`],
    ["Application", run.app ?? words.GAP],
  ];
}

// Return the facts about a job that has not started.
function requested(run, now_s) {
  const gpus = run.nGPU === null || run.nGPU === undefined ? words.GAP : words.amount(run.nGPU, "");
  return [
    ["User", run.user], ["Account", run.account], ["Partition", run.partition], run.qos ? ["QOS", run.qos] : null, array(run),
    ["GPUs", run.n_tasks > 1 ? `${gpus} for each of ${words.counts(run.n_tasks, "task")}` : gpus], ["Nodes", words.count(run.nNODE)],
    ["Time limit", run.time_limit_s === null || run.time_limit_s === undefined ? "none" : words.duration(run.time_limit_s)],
    ["Submitted", words.moment(run.submit_s, now_s)],
  ];
}

// Describe when the nodes of a running job last reported, and name a node that has not reported recently.
export function reported(devices, now_s) {
  const at = (moment_s) => words.moment(moment_s, now_s), continuing = devices.filter((record) => !record.final), newest = new Map();
  for (const { node, last_s } of continuing.length ? continuing : devices) newest.set(node, Math.max(last_s, newest.get(node) ?? 0));
  const nodes = [...newest].sort((a, b) => a[1] - b[1]), [first, first_s] = nodes[0], last_s = nodes.at(-1)[1];
  const times = [...new Set([at(first_s), at(last_s)])].join(" to ");
  return `As of ${times}, ${words.duration(now_s - last_s)} ago${last_s - first_s > SHIPPED_WITHIN_S ? `; ${first} has not reported since ${at(first_s)}` : ""}.`;
}
