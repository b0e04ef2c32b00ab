// Run the page of one job: load its runs, timelines and place in the queue, and show one of the runs.

import { byId, fill, make, say } from "./element.js";
import { showEvents } from "./events.js";
import { headline, reported, showFacts } from "./facts.js";
import { showGpus } from "./gpus.js";
import { inks as readInks } from "./paint.js";
import * as panels from "./panels.js";
import { RUNNING, isPending, isRunning, keyOf, withQueued } from "./runs.js";
import { showViewer, startShell } from "./shell.js";
import { showTasks, tasksOf, unlisted } from "./tasks.js";
import { showFiles, showTimelines } from "./timelines.js";
import { dark } from "./theme.js";
import { showSuggestions, showUse } from "./use.js";
import { showVerdict } from "./verdict.js";
import { waitTexts } from "./wait.js";
import { WireError, json, now_s } from "./wire.js";
import * as words from "./words.js";

const REFRESH_MS = 30e3;

const id = new URLSearchParams(location.search).get("id") ?? "";
let inks = colours(), runs = [], timelines = [], alerts = [], drawing = [], shown = null, me = null;
let queued = null; // the job in Slurm's queue, or null if it is neither pending nor running

function colours() {
  const grid = getComputedStyle(document.documentElement).getPropertyValue("--grid").trim();
  return { ...readInks(dark.matches), grid };
}

const path = (part = "") => `jobs/${encodeURIComponent(id)}${part}`;

async function refresh() {
  refreshViewer();
  try {
    const [found, inQueue, timeline, attention] = await Promise.all([json(path()).catch(missing), json(path("/queued")).catch(absent), json(path("/timeline")).catch(absent), json("attention").catch(absent)]);
    queued = inQueue?.value.job ?? null;
    runs = withQueued(found?.value.runs ?? [], queued, now_s());
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

// Load the viewer and their limits, for which the rest of the page does not wait.
async function refreshViewer() {
  me = (await json("me").catch(() => null))?.value ?? me;
  showViewer(me);
  if (!runs.length) return;
  document.title = titleOf(current());
  showLimits(current());
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

// Return a map of the tasks' states if the page is that of a whole array; otherwise, the map is empty.
const arrayTasks = () => (Number.isInteger(Number(id)) ? tasksOf(Number(id), runs, queued) : new Map());
const nameOf = (run) => (arrayTasks().size ? `Array job ${id}` : `Job ${run.id}`);
const titleOf = (run) => `${nameOf(run)}${me?.cluster ? ` of ${me.cluster}` : ""}`;
const current = () => runs.find((one) => keyOf(one) === shown);

function show() {
  const run = current(), now = now_s(), pending = isPending(run);
  document.title = titleOf(run);
  say(byId("zone"), words.zoneText());
  const n_tasks = arrayTasks().size && arrayTasks().size + unlisted(queued);
  fill(byId("job"), make("bdi", {}, nameOf(run)), run.name ? [" · ", make("bdi", {}, run.name)] : null, n_tasks ? ` · ${words.counts(n_tasks, "task")}` : null);
  byId("sheets").hidden = false;
  for (const part of document.querySelectorAll(".measured")) part.hidden = pending;
  say(byId("facts-title"), pending ? "Request" : "Run");
  say(byId("headline"), headline(run, now));
  byId("wait").hidden = !pending || !queued?.wait;
  if (!byId("wait").hidden) fill(byId("wait").querySelector("div"), waitTexts(queued, now));
  showAdvice(run);
  showUse(byId("use"), run);
  say(byId("use-note"), isRunning(run) && run.devices?.length ? reported(run.devices, now) : "");
  showSuggestions(byId("suggestions"), run);
  showFacts(byId("facts"), run, now);
  showArray();
  showVerdict(run);
  const timeline = timelines.find((one) => one.id === run.id && one.submit_s === run.submit_s);
  drawing = showTimelines(run, timeline, () => inks);
  showFiles(run, drawing.length > 0, path);
  showGpus(run);
  showEvents(run);
  showLimits(run);
}

// Show the tasks if the page is that of a whole array.
function showArray() {
  const tasks = arrayTasks();
  byId("tasks").hidden = tasks.size === 0;
  if (tasks.size) showTasks(byId("tasks").querySelector("div"), Number(id), tasks, unlisted(queued));
}

// Show the current alerts of a run with advice.
function showAdvice(run) {
  const ours = alerts.filter((alert) => alert.id === run.id && isRunning(run));
  fill(byId("advice"), ours.map((alert) => {
    const { short, what, todo } = words.alertText(alert);
    return make("p", {}, make("span", { class: "tag bad" }, short), ` ${what} Since ${words.moment(alert.since_s, now_s())}. ${todo}`);
  }));
}

// Show the viewer's limits on a pending or running job of their own, except those on other accounts.
function showLimits(run) {
  const limits = me?.limits?.filter((line) => !line.account || line.account === run.account) ?? [];
  byId("limits").hidden = run.user !== me?.user || !run.full || !(isPending(run) || isRunning(run)) || !limits.length;
  if (!byId("limits").hidden) panels.limits(byId("limits").querySelector("div"), { ...me, limits }, now_s());
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
