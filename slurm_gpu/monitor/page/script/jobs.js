// Run the page with the tables of running, pending and ended jobs.

import * as address from "./address.js";
import { Cluster } from "./cluster.js";
import { TABLES, csv, sorted } from "./columns.js";
import { byId, fill, make, refill, say } from "./element.js";
import { findJobs } from "./finding.js";
import { showHealth } from "./health.js";
import { jobTable, useOf } from "./jobtable.js";
import { Live } from "./live.js";
import { showViewer, startShell } from "./shell.js";
import { WireError, json, now_s } from "./wire.js";
import * as words from "./words.js";

const MOST_ROWS = 200, MOST_TOTALS = 6, TYPED_MS = 300;
const REFRESH_MS = 30e3; // minimum interval between refreshes of ended runs
const METRIC = "util";

const cluster = new Cluster();
const given = address.read(["state", "view", "find", "sort", "order"]);
const chosen = { state: given.state in TABLES ? given.state : "running", view: given.view, find: given.find ?? "", sort: given.sort, order: given.order };
let rows = [], shown = MOST_ROWS, typing = 0, file = null;
// The pages of ended runs for the query `of`, which is null until they have arrived; `cursor` is null after the last page.
let ended = { of: null, runs: [], cursor: null, matched: null, error: null };
let health = { asOf_s: null, slurm_s: null, failed: null, failedSince_ms: null };
let requested = null; // the newest request for ended runs
let loaded_ms = 0; // time of the newest request for the first page

const live = new Live(cluster, { metric: () => METRIC, changed, health(state) { showHealth(health = state); } });

const me = () => live.data.me;
const isMine = () => chosen.view === "mine" || (chosen.view === null && me() !== null && !me().operator);
const table = () => TABLES[chosen.state];
const isSortable = (name) => table().sorted === null || table().sorted.includes(name);
const column = () => table().columns.find((one) => one.name === chosen.sort && isSortable(one.name)) ?? table().columns.find((one) => one.name === table().sort);
const order = () => (["asc", "desc"].includes(chosen.order) ? chosen.order : table().order);

function changed(what) {
  if (what.includes("layout")) {
    document.title = `Jobs of ${cluster.flat.cluster}`;
    for (const attribute of ["inert", "aria-busy"]) document.querySelector("main").removeAttribute(attribute);
  }
  if (cluster.version !== null) show();
  if (what.includes("jobs") && isDue()) refresh();
}

// Return whether to look for newly ended runs: not while rows above the reader would move those that they read.
function isDue() {
  return chosen.state === "ended" && ended.of !== null && requested !== null && performance.now() - loaded_ms >= REFRESH_MS
    && byId("table").getBoundingClientRect().top >= 0;
}

// Load the first page of ended runs again, and keep the later ones.
async function refresh() {
  const { of } = ended, keyOf = (run) => `${run.job_id} ${run.submit_s}`;
  loaded_ms = performance.now();
  try {
    const { value } = await json(`runs?${of}`);
    if (ended.of !== of) return; // the viewer has chosen something else
    const first = new Set(value.runs.map(keyOf)), later = ended.runs.filter((run) => !first.has(keyOf(run)));
    const continues = later.length > 0 && later.length < ended.runs.length; // otherwise, a gap would follow the first page
    ended = { ...ended, runs: continues ? [...value.runs, ...later] : value.runs, cursor: continues ? ended.cursor : value.cursor, matched: value.matched };
    show();
  } catch (error) {
    if (!(error instanceof WireError)) throw error; // the next change tries again
  }
}

// Return the running or pending jobs that are chosen, with their values of this moment.
function queued() {
  const pending = chosen.state === "pending", user = me()?.user;
  const meanings = new Map((live.data.queue?.reasons ?? []).map((reason) => [reason.reason, reason.meaning]));
  return findJobs(cluster, chosen.find)
    .filter((job) => (job.state === "PENDING") === pending && (!isMine() || job.user === user))
    .map((job) => (pending ? { ...job, why: meanings.get(job.reason) || job.reason || "not considered yet" } : { ...job, ...useOf(cluster, job, cluster.metrics.find((one) => one.name === METRIC), cluster.octets) }));
}

// Load the first or the next page of ended runs.
async function load(isNext = false) {
  const query = new URLSearchParams({ own: isMine(), find: chosen.find, sort: column().name, order: order() });
  const of = query.toString();
  if (isNext) query.set("cursor", ended.cursor);
  const asked = query.toString();
  if (isNext && requested === asked) return; // the page is already on its way
  requested = asked;
  if (!isNext) loaded_ms = performance.now();
  try {
    const { value } = await json(`runs?${query}`);
    if (requested !== asked) return; // the viewer has chosen something else
    ended = { of, runs: isNext ? [...ended.runs, ...value.runs] : value.runs, cursor: value.cursor, matched: value.matched, error: null };
  } catch (error) {
    if (!(error instanceof WireError)) throw error;
    if (requested !== asked) return;
    ended = { ...ended, of, error: error.message };
    requested = null;
  }
  show();
}

function show() {
  const isEnded = chosen.state === "ended", now = now_s();
  byId("by").querySelector('[value="app"]').hidden = !isEnded; // Slurm's queue has no applications
  if (!isEnded && byId("by").value === "app") byId("by").value = "user";
  rows = isEnded ? ended.runs : sorted(queued(), column(), order(), now);
  for (const button of byId("states").children) button.setAttribute("aria-pressed", String(button.dataset.state === chosen.state));
  for (const button of byId("views").children) button.setAttribute("aria-pressed", String((button.dataset.view === "mine") === isMine()));
  byId("views").hidden = isEnded && !me()?.operator; // users see only their own ended jobs
  showViewer(me());
  say(byId("summary"), isEnded ? endedText() : queuedText());
  say(byId("note"), { running: "Utilisation is that of the last sample, averaged over the job's GPUs; a dash is not measured or visible only to the job's owner.", pending: "The expected start is Slurm's estimate.", ended: "Jobs that ended in the last 30 days. Idle GPU-hours are allocated GPU-hours × (1 − utilisation)." }[chosen.state]);
  say(byId("zone"), words.zoneText());
  const visible = isEnded ? rows : rows.slice(0, shown);
  refill(byId("table"), visible.length ? jobTable(table().columns, visible, { by: column(), order: order(), isSortable, now_s: now, caption: `${chosen.state} jobs` }) : make("p", { class: "none" }, isEnded && ended.of === null ? "Loading…" : "No job matches."));
  byId("more").hidden = isEnded ? ended.cursor === null : rows.length <= shown;
}

function queuedText() {
  const gpusOf = (job) => job.n_gpus * (job.n_tasks ?? 1);
  const gpus = rows.reduce((sum, job) => sum + gpusOf(job), 0), idle = rows.reduce((sum, job) => sum + (job.n_idle ?? 0), 0);
  const total = `${words.counts(rows.length, "job")}, ${words.counts(gpus, "GPU")}${idle ? `, ${words.count(idle)} at 0 % now` : ""}`;
  return `${total}.${totals("GPUs", gpusOf)}`;
}

function endedText() {
  if (ended.error !== null) return ended.error;
  if (ended.of === null) return "";
  const kind = { app: "application" }[ended.matched] ?? ended.matched;
  const of = kind === null || kind === "job" ? "" : ` of ${kind} ${chosen.find.replace(/^(user|account|app):/, "")}`;
  return `${ended.cursor === null ? "" : "First "}${words.counts(rows.length, "job")}${of}.${totals("GPU-hours", (run) => (run.nGPU ?? 0) * (run.RUN_h ?? 0))}`;
}

// Return the sums of an amount over the rows by user or another name, the largest first; "" if there is only one name.
function totals(title, amountOf) {
  const by = byId("by").value, of = new Map();
  for (const job of rows) of.set(job[by] ?? "unknown", (of.get(job[by] ?? "unknown") ?? 0) + amountOf(job));
  if (of.size < 2) return "";
  const largest = [...of].sort((a, b) => b[1] - a[1]).slice(0, MOST_TOTALS).map(([name, n]) => `${name} ${words.amount(n, "")}`);
  return ` ${title} by ${byId("by").selectedOptions[0].textContent}: ${largest.join(", ")}${of.size > MOST_TOTALS ? " …" : ""}`;
}

function choose(what) {
  Object.assign(chosen, what);
  shown = MOST_ROWS;
  const { state, view, find, sort, order: by } = chosen;
  address.write({ state: state === "running" ? null : state, view, find, sort, order: by });
  if (chosen.state === "ended") {
    ended = { of: null, runs: [], cursor: null, matched: null, error: null };
    load();
  }
  show();
}

startShell();
byId("find").value = chosen.find;
byId("controls").addEventListener("submit", (event) => event.preventDefault());
byId("states").addEventListener("click", (event) => {
  const { state } = event.target.dataset;
  if (state !== undefined) choose({ state, sort: null, order: null });
});
byId("views").addEventListener("click", (event) => {
  const { view } = event.target.dataset;
  if (view !== undefined) choose({ view });
});
byId("by").addEventListener("change", show);
byId("find").addEventListener("input", (event) => {
  clearTimeout(typing);
  typing = setTimeout(() => choose({ find: event.target.value.trim() }), chosen.state === "ended" ? TYPED_MS : 0);
});
byId("table").addEventListener("click", (event) => {
  const sort = event.target.closest("[data-sort]")?.dataset.sort;
  if (sort === undefined) return;
  const down = column().name === sort ? order() === "asc" : table().columns.find((one) => one.name === sort).number === true;
  choose({ sort, order: down ? "desc" : "asc" });
});
// Make the CSV file of the jobs that match when it is requested.
byId("csv").addEventListener("click", () => {
  if (file !== null) URL.revokeObjectURL(file);
  file = URL.createObjectURL(new Blob([csv(rows, table().columns, now_s())], { type: "text/csv" }));
  byId("csv").href = file;
  byId("csv").download = `${chosen.state}-jobs.csv`;
});
byId("more").addEventListener("click", () => {
  if (chosen.state === "ended") load(true);
  else {
    shown += MOST_ROWS;
    show();
  }
});
await live.start();
setInterval(() => showHealth(health), 1000);
if (chosen.state === "ended") load();
