// Show one job: its resources, timelines, percentiles for each GPU, and events.

import { diagnosisPage } from "./address.js";
import { chart, seriesOf, seriesTitle } from "./charts.js";
import { byId, fill, make, say, table } from "./element.js";
import { inks as readInks } from "./paint.js";
import { showViewer, startShell } from "./shell.js";
import { dark } from "./theme.js";
import { waitTexts } from "./wait.js";
import { WireError, json, now_s } from "./wire.js";
import * as words from "./words.js";

const REFRESH_MS = 30e3;
const natural = new Intl.Collator("en", { numeric: true });
const RUNNING = ["RUNNING", "COMPLETING", "SUSPENDED"];

const id = new URLSearchParams(location.search).get("id") ?? "";
let inks = colours(), runs = [], timelines = [], alerts = [], drawing = [], shown = null;
let me = null; // the viewer, or null until it is loaded
let queued = null; // the job in Slurm's queue, or null if it is neither pending nor running

function colours() {
  const grid = getComputedStyle(document.documentElement).getPropertyValue("--grid").trim();
  return { ...readInks(dark.matches), grid };
}

const path = (part = "") => `jobs/${encodeURIComponent(id)}${part}`;
const keyOf = (run) => `${run.id} ${run.submit_s}`;

async function refresh() {
  try {
    const [found, inQueue, timeline, attention, viewer] = await Promise.all([json(path()).catch(missing), json(path("/queued")).catch(absent), json(path("/timeline")).catch(absent), json("attention").catch(absent), me ?? json("me").then(({ value }) => value).catch(absent)]);
    me = viewer;
    showViewer(me);
    queued = inQueue?.value.job ?? null;
    runs = withQueued(found?.value.runs ?? []);
    timelines = timeline?.value.runs ?? [];
    alerts = attention?.value.alerts ?? [];
    byId("error").hidden = byId("signin").hidden = true;
  } catch (error) {
    if (!(error instanceof WireError)) throw error;
    showError(error);
    return;
  }
  if (!runs.length) return showError(new WireError(404, "it has no runs"));
  showRuns();
  return show();
}

// Return the runs, updated from the queue, because accounting may not contain the job or its start yet.
function withQueued(found) {
  if (queued === null) return found;
  const { id: name, submit_s, state } = queued, known = found.find((run) => run.id === name && run.submit_s === submit_s);
  if (known && (known.start_s !== null || state === "PENDING")) return found;
  const pending = state === "PENDING";
  const run = {
    events: [], devices: [], by_device: null, percentiles: null, coverage: null, nodes: null, gpu_type: null, ...known, ...queued,
    nGPU: queued.n_gpus, nNODE: queued.n_nodes, start_s: pending ? null : queued.start_s, end_s: null, WAIT_h: pending ? null : (queued.start_s - submit_s) / 3600,
    elapsed_s: pending ? null : Math.max(0, now_s() - queued.start_s),
  };
  return [run, ...found.filter((one) => one !== known)];
}

const missing = (error) => {
  if (error instanceof WireError && error.status === 404) return null;
  throw error;
};

// Return null for data that cannot be loaded; the page then shows the rest of the data.
function absent(error) {
  if (error instanceof WireError && error.status !== 401) return null;
  throw error;
}

function showError(error) {
  byId("signin").hidden = error.status !== 401;
  const text = error.status === 401 ? runs.length ? "You are no longer signed in. The page shows the last known state." : ""
    : error.status === 403 ? "Only the owner and operators can see this job."
    : error.status === 404 ? `Job ${id} is neither pending nor running, and Slurm's accounting has no run of it that you may see.`
    : `${error.message}.${runs.length ? " The page shows the last known state." : ""}`;
  byId("error").hidden = text === "";
  say(byId("error"), text);
}

function showRuns() {
  if (!runs.some((run) => keyOf(run) === shown)) shown = keyOf(runs[0]);
  byId("runs-label").hidden = runs.length < 2;
  fill(byId("runs"), runs.map((run) => make("option", { value: keyOf(run), selected: keyOf(run) === shown },
    `${run.id}, ${run.start_s === null ? "not started" : words.moment(run.start_s, now_s())}, ${run.state.toLowerCase()}`)));
  byId("runs").value = shown;
}

function show() {
  const run = runs.find((one) => keyOf(one) === shown);
  document.title = `Job ${run.id}${me?.cluster ? ` of ${me.cluster}` : ""}`;
  say(byId("zone"), words.zoneText());
  fill(byId("job"), "Job ", make("bdi", {}, run.id), run.name ? [" · ", make("bdi", {}, run.name)] : null);
  byId("sheets").hidden = false;
  const pending = run.start_s === null && run.end_s === null;
  for (const part of document.querySelectorAll(".measured")) part.hidden = pending;
  say(byId("facts-title"), pending ? "Request" : "Run");
  byId("wait").hidden = !pending || !queued?.wait;
  if (!byId("wait").hidden) fill(byId("wait").querySelector("div"), waitTexts(queued, now_s()));
  showFacts(run);
  showDiagnosis(run);
  showAdvice(run);
  showTimeline(run);
  showGpus(run);
  showEvents(run);
}

// Show the link to the diagnosis if the viewer may see the run and it ran on GPUs.
function showDiagnosis(run) {
  const link = byId("diagnosis");
  link.hidden = !run.full || run.start_s === null || !run.devices?.length;
  link.href = diagnosisPage(run.id, run.submit_s);
}

function showFacts(run) {
  const now = now_s(), at = (moment_s) => words.moment(moment_s, now), running = RUNNING.includes(run.state);
  const limit_s = running && run.start_s !== null && run.time_limit_s !== null ? run.start_s + run.time_limit_s : null;
  const rows = run.start_s === null && run.end_s === null ? requested(run, now) : [
    ["State", run.state.toLowerCase()], ["User", run.user], ["Account", run.account], ["Partition", run.partition],
    ["GPUs", run.nGPU === null ? words.GAP : `${words.amount(run.nGPU, "")}${run.gpu_type ? ` × ${run.gpu_type}` : ""}`],
    ["Nodes", run.nodes || words.GAP],
    ["Waited", run.WAIT_h === null ? words.GAP : words.duration(3600 * run.WAIT_h)],
    ["Started", at(run.start_s)],
    running ? ["Frees by", limit_s === null ? "no time limit" : at(limit_s)] : ["Ended", at(run.end_s)],
    ["Ran", words.duration(run.elapsed_s)],
    ["GPU utilisation (mean)", words.amount(run.uGPUcore, "%")], ["GPU memory (mean)", words.amount(run.uGPUmem, "%")],
    ["Energy", words.energy(run.energy_j)],
    ["Measured", run.coverage === null || run.coverage === undefined ? words.GAP : `${words.share(run.coverage)} of the time`],
    running && run.devices?.length ? ["Last reported", reported(run.devices, at)] : null,
    ["Application", run.app ?? words.GAP],
  ];
  fill(byId("facts"), rows.filter(Boolean).map(([name, value]) => make("div", {}, make("dt", {}, name), make("dd", {}, make("bdi", {}, value ?? words.GAP)))));
}

// Return the facts about a job that has not started.
function requested(run, now) {
  const gpus = run.nGPU === null || run.nGPU === undefined ? words.GAP : words.amount(run.nGPU, "");
  return [
    ["State", run.state.toLowerCase()], ["User", run.user], ["Account", run.account], ["Partition", run.partition], run.qos ? ["QOS", run.qos] : null,
    ["GPUs", run.n_tasks > 1 ? `${gpus} for each of ${words.counts(run.n_tasks, "task")}` : gpus], ["Nodes", words.count(run.nNODE)],
    ["Time limit", run.time_limit_s === null || run.time_limit_s === undefined ? "none" : words.duration(run.time_limit_s)],
    ["Submitted", words.moment(run.submit_s, now)], ["Pending for", words.duration(now - run.submit_s)],
  ];
}

// Nodes send records within this number of seconds, which equals two shipment intervals.
const SHIPPED_WITHIN_S = 720;

// Describe when the nodes of a running job last reported, and name a node that has not reported recently.
function reported(devices, at) {
  const continuing = devices.filter((record) => !record.final), newest = new Map();
  for (const { node, last_s } of continuing.length ? continuing : devices) newest.set(node, Math.max(last_s, newest.get(node) ?? 0));
  const nodes = [...newest].sort((a, b) => a[1] - b[1]), [first, first_s] = nodes[0], last_s = nodes.at(-1)[1];
  const times = [...new Set([at(first_s), at(last_s)])].join(" to ");
  return last_s - first_s > SHIPPED_WITHIN_S ? `${times}; ${first} has not reported since ${at(first_s)}` : times;
}

// Explain the lines of charts with several GPUs.
function meaning(n_gpus) {
  return n_gpus > 1 ? `The thick line is the mean of the GPUs that have data at each time (of ${words.count(n_gpus)} GPUs in all); each thin line is a single GPU. ` : "";
}

function showTimeline(run) {
  const timeline = timelines.find((one) => one.id === run.id && one.submit_s === run.submit_s);
  const ended = new Set((run.devices ?? []).filter((record) => record.final).map(({ node, device }) => `${node} ${device}`));
  const series = seriesOf(timeline?.devices ?? [], ended);
  const means = { util: run.uGPUcore, mem_used: run.uGPUmem, mem: run.uGPUmem };
  drawing = series.map((one) => chart(one, () => inks, means[one.name]));
  fill(byId("charts"), drawing.map(({ figure }) => figure));
  say(byId("timeline-note"), series.length ? `${meaning(timeline.devices.length)}Lines have gaps where nothing was measured${series.some((one) => one.common_s < one.end_s) ? ", and the mean ends where a GPU's data ends" : ""}.`
    : run.full ? "No timeline of this run is stored." : "Only the owner and operators can see the timeline of this run.");
  const file = (stored, part, text) => (run.full && stored ? make("a", { href: `api/v1/${path(part)}?format=csv`, download: "" }, text) : null);
  const files = [file(run.by_device?.length, "", "p25 and p95 of each GPU"), file(series.length, "/timeline", "the timeline"),
    file(RUNNING.includes(run.state), "/window", "the last ten minutes at full resolution")].filter(Boolean);
  return fill(byId("downloads"), files.length ? "Download as CSV:" : null, files);
}

// Shorten a UUID to its beginning and end.
const short = (name) => (name.length > 18 ? `${name.slice(0, 9)}…${name.slice(-6)}` : name);

// Show p25 and p95 of each GPU and of all GPUs together. Percentiles are exact or derived from timeline bins.
function showGpus(run) {
  const index = (device) => String(run.device_facts?.[device]?.index ?? device);
  const each = (run.by_device ?? []).map(({ node, device, percentiles }) => ({ node, gpu: index(device), percentiles }))
    .sort((a, b) => natural.compare(a.node, b.node) || natural.compare(a.gpu, b.gpu));
  const all = { node: "all", gpu: "", percentiles: run.percentiles ?? {} };
  const metrics = Object.keys(all.percentiles).filter((name) => [all, ...each].some(({ percentiles }) => (percentiles[name]?.p95 ?? null) !== null));
  if (!metrics.length) {
    fill(byId("gpus"), make("p", { class: "none" }, run.full ? "Nothing has been measured on the GPUs yet." : "Only the owner and operators can see the data of this run."));
    return say(byId("gpus-note"), "");
  }
  const binned = metrics.filter((name) => all.percentiles[name]?.how !== "exact");
  const head = (text, more) => make("th", { scope: "col", ...more }, text);
  const row = ({ node, gpu, percentiles }) => make("tr", { class: gpu === "" ? "sum" : null }, make("td", {}, make("bdi", {}, node)), make("td", { title: gpu || null }, make("bdi", {}, short(gpu))),
    metrics.flatMap((name) => ["p25", "p95"].map((quantile) => make("td", { class: "number" }, words.amount(percentiles[name]?.[quantile], percentiles[name]?.unit)))));
  fill(byId("gpus"), make("table", {}, make("caption", { class: "unseen" }, "Percentiles by GPU"),
    make("thead", {},
      make("tr", {}, head("Node", { rowspan: 2 }), head("GPU", { rowspan: 2 }),
        metrics.map((name) => head(`${seriesTitle(name)}${binned.includes(name) ? " *" : ""}`, { class: "group", colspan: 2, scope: "colgroup" }))),
      make("tr", {}, metrics.flatMap(() => ["p25", "p95"].map((quantile) => head(quantile, { class: "number" }))))),
    make("tbody", {}, [all, ...each].map(row))));
  return say(byId("gpus-note"), `For a quarter of the time, the value was at most p25. Percentiles are exact${binned.length ? ", except those marked *, which are percentiles of the means of the timeline's bins" : ""}.`);
}

// Show the current alerts of a run with advice.
function showAdvice(run) {
  const ours = alerts.filter((alert) => alert.id === run.id && RUNNING.includes(run.state));
  fill(byId("advice"), ours.map((alert) => {
    const { short, what, todo } = words.alertText(alert);
    return make("p", {}, make("span", { class: "tag bad" }, short), ` ${what} Since ${words.moment(alert.since_s, now_s())}. ${todo}`);
  }));
}

function showEvents(run) {
  const events = run.events ?? [];
  byId("events").hidden = !events.length;
  fill(byId("events").querySelector("div"), table(["Time", "Node", "Event", "Details"], events.map((event) => [
    words.moment(event.at_s, now_s(), true), make("bdi", {}, event.node), make("bdi", {}, event.kind.replaceAll("_", " ")),
    make("bdi", {}, inWords(event.data)),
  ]), "Events"));
}

// Format the data of an event, such as `code 79, device GPU-a`.
function inWords(data) {
  const format = (value) => (typeof value === "object" ? JSON.stringify(value) : String(value));
  return Object.entries(data ?? {}).map(([name, value]) => `${name.replaceAll("_", " ")} ${format(value)}`).join(", ");
}

byId("runs").addEventListener("change", (event) => {
  shown = event.target.value;
  show();
});
dark.addEventListener("change", () => {
  inks = colours();
  for (const { draw } of drawing) draw();
});
startShell();
// Search on the page of jobs.
byId("find").addEventListener("keydown", (event) => {
  if (event.key === "Enter") location.assign(`jobs?${new URLSearchParams({ find: event.target.value.trim() })}`);
});
Object.assign(byId("job-tab"), { hidden: false, href: location.href, textContent: `Job ${id}` });
await refresh();
setInterval(() => { if (!document.hidden && (!runs.length || runs.some((run) => [...RUNNING, "PENDING"].includes(run.state)))) refresh(); }, REFRESH_MS);
