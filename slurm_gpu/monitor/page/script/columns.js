// Define the columns of the tables of running, pending and ended jobs. A column has a `value`, by which it is sorted and
// which is exported, and a `text` to show. Null is a missing value, which is last in any order.

import { jobPage } from "./address.js";
import { make } from "./element.js";
import * as words from "./words.js";

const text = (name, title, value = (job) => job[name]) => ({ name, title, value, text: (job) => make("bdi", {}, value(job) ?? words.GAP) });
const number = (name, title, value, unit = "") => ({ name, title, value, number: true, text: (job) => words.amount(value(job) ?? null, unit) });
const moment = (name, title, value) => ({ name, title, value, number: true, text: (job, now_s) => (value(job) === null ? words.GAP : words.moment(value(job), now_s)) });
const gpus = (value) => ({ ...number("gpus", "GPUs", value), text: (job) => words.count(value(job)) }); // a shard is a fraction
const lasting = (name, title, value) => ({ name, title, value, number: true, text: (job, now_s) => words.duration(value(job, now_s)) });

const ID = {
  name: "id", title: "Job", value: (job) => job.job_id,
  text: (job) => (job.full === false ? make("bdi", {}, job.id) : make("a", { href: jobPage(job.id) }, make("bdi", {}, job.id))),
};
const OWNER = [text("name", "Name"), text("user", "User"), text("account", "Account"), text("partition", "Partition")];

const RUNNING = [
  ID, text("state", "State", (job) => job.state?.toLowerCase()), ...OWNER,
  gpus((job) => job.n_gpus),
  number("util", "Utilisation now", (job) => job.mean, "%"),
  number("idle", "At 0 % now", (job) => job.n_idle),
  moment("start", "Started", (job) => job.start_s ?? null),
  moment("end", "Frees by", (job) => job.end_s ?? null),
];
const PENDING = [
  ID, ...OWNER,
  gpus((job) => job.n_gpus * (job.n_tasks ?? 1)),
  lasting("waited", "Pending for", (job, now_s) => (job.submit_s === null ? null : now_s - job.submit_s)),
  text("reason", "Why", (job) => job.why),
  moment("start", "Expected start", (job) => job.start_s ?? null),
];
const ENDED = [
  ID, text("state", "State", (job) => job.state.toLowerCase()), ...OWNER, text("app", "Application"),
  gpus((job) => job.nGPU),
  number("util", "Utilisation", (job) => job.uGPUcore, "%"),
  number("idle", "Idle GPU-hours", (job) => ([job.uGPUcore, job.nGPU, job.RUN_h].includes(null) ? null : job.nGPU * job.RUN_h * (1 - job.uGPUcore / 100))),
  lasting("waited", "Waited", (job) => (job.WAIT_h === null ? null : Math.round(3600 * job.WAIT_h))),
  lasting("ran", "Ran", (job) => job.elapsed_s),
  moment("start", "Started", (job) => job.start_s),
  moment("end", "Ended", (job) => job.end_s),
];
// Return the columns of running jobs on the page of the cluster; `metric` is the metric of the squares.
export const columnsOnMap = (metric) => [
  ID, ...OWNER.slice(0, 3),
  gpus((job) => job.n_gpus),
  ...(metric.own ? [] : [number("mean", metric.title, (job) => job.mean, metric.unit)]),
  moment("start", "Started", (job) => job.start_s ?? null),
  moment("end", "Frees by", (job) => job.end_s ?? null),
];

// The columns of each table, the order at first, and the columns that slurm-gpudbd sorts; null if the page sorts all.
export const TABLES = {
  running: { columns: RUNNING, sort: "start", order: "desc", sorted: null },
  pending: { columns: PENDING, sort: "start", order: "asc", sorted: null },
  ended: { columns: ENDED, sort: "end", order: "desc", sorted: ["gpus", "util", "waited", "ran", "start", "end"] },
};

// Return the jobs sorted by a column.
export function sorted(jobs, { value }, order, now_s) {
  const collator = new Intl.Collator("en", { numeric: true }), sign = order === "asc" ? 1 : -1;
  const keyed = jobs.map((job) => [value(job, now_s) ?? null, job]);
  keyed.sort(([a, one], [b, other]) => {
    if (a === null || b === null) return (a === null) - (b === null) || other.job_id - one.job_id;
    return sign * (typeof a === "number" ? a - b : collator.compare(a, b)) || other.job_id - one.job_id;
  });
  return keyed.map(([, job]) => job);
}

// Return a CSV file of the jobs. Texts that spreadsheets would treat as formulas begin with an apostrophe.
export function csv(jobs, columns, now_s) {
  const cell = (value) => {
    if (value === null || value === undefined) return "";
    if (typeof value === "number") return String(Math.round(value * 1e6) / 1e6);
    const safe = /^[=+\-@\t\r]/.test(value) ? `'${value}` : value;
    return /[",\r\n]/.test(safe) ? `"${safe.replaceAll('"', '""')}"` : safe;
  };
  const rows = jobs.map((job) => columns.map((column) => cell(column.name === "id" ? job.id : column.value(job, now_s))));
  return [columns.map((column) => `${column.name}${units[column.name] ?? ""}`), ...rows].map((row) => `${row.join(",")}\r\n`).join("");
}

const units = { start: "_s", end: "_s", waited: "_s", ran: "_s", util: "_pct" };
