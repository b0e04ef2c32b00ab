// Run the page of the cluster: handle the viewer's choices, new data and the display.

import * as address from "./address.js";
import { Attention, numbered } from "./attention.js";
import { Cluster, ALLOCATED, OWN_METRICS, SHARED, listed } from "./cluster.js";
import { describe, sentence } from "./describe.js";
import { byId, fill, make, say } from "./element.js";
import { find } from "./finding.js";
import { showLegend } from "./legend.js";
import { showHealth } from "./health.js";
import { JobsPanel } from "./jobspanel.js";
import { list } from "./listing.js";
import { Live } from "./live.js";
import { briefOf, lastOctet, valueOf } from "./metric.js";
import { FREE, GAP } from "./paint.js";
import * as panels from "./panels.js";
import * as scale from "./scale.js";
import { setIcon, showViewer, startShell } from "./shell.js";
import { Squares } from "./squares.js";
import { clusterStatus, ownStatus } from "./status.js";
import { Strip } from "./strip.js";
import { dark } from "./theme.js";
import { now_s } from "./wire.js";
import * as words from "./words.js";

// TENTH is the default threshold in percent.
const FIRST_METRIC = "util", TENTH = "10";
const LEAST_HEIGHT = 320, MOST_HEIGHT = 1400;

const cluster = new Cluster();
const given = address.read(["metric", "under", "over", "view", "find", "days"]);
// The choices of the viewer. The threshold is a text, or null for the default.
const chosen = {
  metric: given.metric ?? FIRST_METRIC, isOver: given.over !== null, limit: given.over ?? given.under, view: given.view, find: given.find ?? "",
};
let octets = cluster.octets, colours = new Uint32Array(256), ring = new Uint8Array(0);
let health = { asOf_s: null, slurm_s: null, failed: null, failedSince_ms: null };

const metric = () => cluster.metrics.find((one) => one.name === chosen.metric) ?? cluster.metrics[0] ?? null;
// Return the viewer's threshold as text. The default for metrics in percent is TENTH; "none" disables rings.
const written = () => chosen.limit ?? (metric()?.unit === "%" && !chosen.isOver ? TENTH : "none");
const threshold = () => {
  const limit = Number(written());
  return metric() === null || metric().kinds || written() === "" || !Number.isFinite(limit) ? null : { limit, isOver: chosen.isOver };
};
const me = () => live.data.me;
const isMine = () => chosen.view === "mine" || (chosen.view === null && me() !== null && !me().operator);

const squares = new Squares({ frame: byId("frame"), base: byId("base"), over: byId("over") }, cluster, {
  hovered: showTip,
  focused(square) {
    showFocused(square);
    showJobs();
  },
  opened(square) {
    const { job, holder } = describe(cluster, square, metric(), octets, now_s());
    if (job !== null) location.assign(address.jobPage(job.id));
    else say(byId("found"), cluster.jobsAt(square).length ? "Only the owner and operators can see that job." : `No job to open: ${holder}.`);
  },
  zoomed(whole) { byId("whole").hidden = whole; },
  selected() {
    attention.forget();
    jobsPanel.forget();
    light();
    showPanels();
  },
});

const live = new Live(cluster, {
  metric: () => (isOwn(chosen.metric) ? null : chosen.metric),
  changed: take,
  health(state) {
    health = state;
    if (state.failed !== null) setIcon("icon-old");
    showHealth(health);
  },
});

const attention = new Attention(byId("attention").querySelector(":scope > div"), light);
const jobsPanel = new JobsPanel(byId("jobs"), () => {
  attention.forget();
  squares.select([]);
  light();
  showPanels();
});
const strip = new Strip(byId("usage"), { days: given.days, chosen: (days) => address.write({ days: days === "1" ? null : days }) });

function isOwn(name) {
  return OWN_METRICS.some((one) => one.name === name);
}

function take(what) {
  if (what.includes("layout")) {
    if (!cluster.metrics.some((one) => one.name === chosen.metric)) chosen.metric = cluster.metrics[0].name;
    showMetrics();
    lay();
    document.title = `GPUs of ${cluster.flat.cluster}`;
    for (const attribute of ["inert", "aria-busy"]) document.querySelector("main").removeAttribute(attribute);
    say(byId("cluster"), cluster.flat.cluster);
    byId("map").classList.toggle("none", cluster.flat.n === 0);
    byId("empty").hidden = cluster.flat.n > 0;
    say(byId("empty"), cluster.flat.n > 0 ? "" : "Slurm has no GPUs here.");
  }
  if (what.includes("frame")) show();
  if (what.includes("panels") || what.includes("jobs")) {
    showPanels();
    light();
  }
  if (what.includes("panels")) strip.load();
}

// Show the colours, rings and numbers of the newest frame.
function show() {
  const now = metric(), marks = marksOf(now, threshold());
  octets = now.own ? cluster.own(now, now_s()) : cluster.octets;
  const kinds = now.name === "state" ? scale.states(dark.matches) : scale.kinds(dark.matches);
  const others = ["jobs", "frees"].includes(now.name) ? null : cluster.ofOthers(); // these metrics are public
  colours = now.kinds ? kinds : scale.levels(lastOctet(now), dark.matches, others !== null);
  if (ring.length !== cluster.flat.n) ring = new Uint8Array(cluster.flat.n);
  let ringed = 0;
  for (let square = 0; square < ring.length; square++) {
    const allocated = cluster.state[square] === ALLOCATED || cluster.state[square] === SHARED;
    ring[square] = allocated && marks[octets[square]] ? 1 : 0;
    ringed += ring[square];
  }
  const numbers = (square) => {
    if (cluster.state[square] === FREE) return "free";
    return now.kinds || octets[square] === GAP ? "" : briefOf(cluster.value(square, now, octets, now_s()), now);
  };
  squares.show({ octets, colours, ring, others, numbers });
  showLegend(byId("legend"), { metric: now, colours, inks: squares.inks, hides: others !== null, threshold: threshold(), ringed });
  showTally();
  showHealth(health);
  say(byId("zone"), words.zoneText());
  if (squares.focus >= 0) showFocused(squares.focus);
  if (byId("list").open) list(byId("list").querySelector(".scroll"), cluster, now, octets, now_s());
}

// Return for each octet whether squares with its value have a ring.
function marksOf(now, asked) {
  return Array.from({ length: 256 }, (_, octet) => {
    if (asked === null || octet === GAP) return false;
    const value = valueOf(octet, now);
    return asked.isOver ? value > asked.limit : value < asked.limit;
  });
}

function lay() {
  const top = byId("frame").getBoundingClientRect().top + window.scrollY;
  const left = window.innerHeight - top - 64;
  squares.lay(Math.min(MOST_HEIGHT, Math.max(LEAST_HEIGHT, window.innerWidth < 640 ? 0.62 * window.innerHeight : left)));
}

function showMetrics() {
  fill(byId("metric"), cluster.metrics.map((one) => make("option", { value: one.name, selected: one.name === chosen.metric }, one.title)));
  byId("metric").value = chosen.metric;
  const now = metric();
  byId("ring").hidden = Boolean(now.kinds);
  byId("side").value = chosen.isOver ? "over" : "under";
  byId("limit").value = threshold() === null ? "" : written();
  say(byId("limit-unit"), now.unit);
}

function showTally() {
  const { free, allocated, out, all } = cluster.tally();
  const waiting = cluster.waiting().reduce((sum, job) => sum + (job.n_tasks ?? 1), 0);
  const parts = [["GPUs", all], ["allocated", allocated], ["free", free], ["out of service", out], ["jobs pending", waiting]];
  const place = byId("tally");
  if (!place.childElementCount) fill(place, parts.map(([name]) => make("div", {}, make("dt", {}, name), make("dd", {}))));
  parts.forEach(([, value], at) => say(place.children[at].lastElementChild, words.count(value)));
}

// Highlight the squares of alerts, of chosen jobs, of the selection, of the search, or of the viewer's jobs. All but the
// last fade the other squares.
function light() {
  const found = byId("found"), forget = byId("forget");
  let some = null;
  const lighted = chosenSquares();
  if (lighted !== null) {
    some = new Set(listed(lighted.squares));
    say(found, lighted.text);
  } else {
    const result = cluster.flat.n ? find(cluster, chosen.find) : null;
    some = result?.squares ?? null;
    say(found, result?.text ?? "");
  }
  const isChosen = some !== null;
  if (!isChosen && isMine() && cluster.flat.n) some = own();
  forget.hidden = lighted === null && !chosen.find;
  let lit = null;
  if (some !== null) {
    lit = new Uint8Array(cluster.flat.n);
    for (const square of some) lit[square] = 1;
  }
  squares.light(lit, isChosen);
}

// Return {squares, text} of what the viewer has chosen on the map or in a panel; null if nothing is chosen.
function chosenSquares() {
  const { selection } = squares;
  if (selection.size) return { squares: [...selection], text: `${words.counts(selection.size, "GPU")} selected` };
  return attention.chosen ?? jobsPanel.chosen(cluster);
}

// Return the squares to which the table of jobs is restricted, and their name; null for all squares.
function restriction() {
  const { selection, focus } = squares;
  if (selection.size) return { squares: [...selection], title: `Jobs on the ${words.counts(selection.size, "selected GPU")}` };
  if (attention.chosen !== null) return { squares: listed(attention.chosen.squares), title: "Jobs that need attention" };
  if (focus >= 0) return { squares: [focus], title: `Jobs on ${describe(cluster, focus, metric(), octets, now_s()).place}` };
  const result = find(cluster, chosen.find);
  return result === null ? null : { squares: [...result.squares], title: "Jobs that were found" };
}

// Return the squares of the viewer's jobs, or null if the viewer has no jobs.
function own() {
  const some = cluster.running().filter((job) => job.user === me()?.user).flatMap((job) => cluster.squaresOf(job));
  return some.length ? some : null;
}

function showPanels() {
  const { data } = live, now = now_s(), mine = isMine();
  const alerts = numbered(data.alerts ?? []), complete_s = data.complete_s ?? null;
  const place = (id) => byId(id).querySelector(":scope > div");
  for (const [id, shown] of [["attention", !mine], ["mine", mine], ["limits", mine]]) byId(id).hidden = !shown;
  if (mine) {
    const user = me()?.user, waits = new Map((me()?.waits ?? []).map((wait) => [wait.job_id, wait]));
    const meanings = new Map((data.queue?.reasons ?? []).map((reason) => [reason.reason, reason.meaning]));
    const ofUser = (jobs) => jobs.filter((job) => job.user === user), running = ofUser(cluster.running()), waiting = ofUser(cluster.waiting());
    say(byId("status"), ownStatus(running, waiting, now));
    panels.mine(place("mine"), {
      running, waiting, alerts, waits, now_s: now,
      operator: me()?.operator === true,
      why: (reason) => meanings.get(reason) || reason || "not considered yet",
      ringed(job) {
        const some = cluster.squaresOf(job);
        return [some.filter((square) => ring[square]).length, some.length];
      },
    });
    panels.limits(place("limits"), me(), now);
  } else {
    say(byId("status"), clusterStatus(cluster, data.alerts === null ? null : alerts, now, complete_s));
    attention.show({ alerts, suspects: data.suspects ?? [], jobs: cluster.jobs, now_s: now, known: data.alerts !== null, complete_s });
  }
  setIcon(data.alerts?.length ? "icon-attention" : "icon");
  showJobs();
  panels.free(place("free"), data.free, now);
  panels.queue(place("queue"), data.queue, cluster.jobs, now);
  panels.reservations(place("reservations"), data.reservations, now);
  byId("views").hidden = !me()?.operator;
  for (const button of byId("views").children) button.setAttribute("aria-pressed", String((button.dataset.view === "mine") === mine));
  showViewer(me());
}

function showJobs() {
  if (cluster.flat.n === 0 || metric() === null) return;
  const running = cluster.running().filter((job) => !isMine() || job.user === me()?.user);
  jobsPanel.show({ cluster, running, metric: metric(), octets, restriction: restriction(), isMine: isMine(), find: chosen.find, now_s: now_s() });
}

function showTip(square, event) {
  const tip = byId("tip");
  if (square < 0) {
    tip.hidden = true;
    return;
  }
  const text = describe(cluster, square, metric(), octets, now_s());
  fill(tip, make("strong", {}, text.place), text.type ? ` · ${text.type}` : "",
    text.value ? make("span", {}, `${text.title}: ${text.value}`) : null, make("span", {}, text.holder));
  tip.hidden = false;
  const box = byId("frame").getBoundingClientRect(), x = event.clientX - box.left, y = event.clientY - box.top;
  const right = x + 16 + tip.offsetWidth <= box.width;
  tip.style.left = `${Math.max(0, right ? x + 14 : x - tip.offsetWidth - 14)}px`;
  tip.style.top = `${Math.max(-40, Math.min(y + 14, box.height - tip.offsetHeight))}px`;
}

// Describe the focused square in a text that remains on the page.
function showFocused(square) {
  const place = byId("focused");
  if (square < 0) {
    fill(place);
    return;
  }
  const parts = describe(cluster, square, metric(), octets, now_s());
  const text = sentence(parts);
  if (place.dataset.text === text && place.dataset.square === String(square) && place.firstChild) return;
  Object.assign(place.dataset, { text, square });
  fill(place, make("div", {}, make("span", {}, text), parts.where ? make("small", {}, parts.where) : null,
    parts.uuid ? make("small", {}, parts.uuid) : null,
    cluster.jobsAt(square).filter((job) => job.full).map((job) => make("a", { href: address.jobPage(job.id) }, `Open job ${job.id}`))));
}

// Forget what is highlighted, and show the viewer's new choices.
function forget() {
  attention.forget();
  jobsPanel.forget();
  squares.select([]);
  remember();
  light();
  showPanels();
}

function remember() {
  address.write({
    metric: chosen.metric === FIRST_METRIC ? null : chosen.metric,
    under: chosen.isOver ? null : chosen.limit, over: chosen.isOver ? chosen.limit ?? "none" : null,
    view: chosen.view, find: chosen.find,
  });
}

function listen() {
  byId("controls").addEventListener("submit", (event) => event.preventDefault());
  byId("metric").addEventListener("change", (event) => {
    const before = metric();
    chosen.metric = event.target.value;
    if (before.unit !== metric().unit) chosen.limit = null; // a threshold in watts has no meaning in percent
    showMetrics();
    remember();
    if (metric().own) return show();
    cluster.octets = new Uint8Array(cluster.flat.n).fill(GAP);
    return live.refresh();
  });
  byId("ring").addEventListener("input", () => {
    chosen.isOver = byId("side").value === "over";
    chosen.limit = byId("limit").value || "none";
    remember();
    show();
    showPanels();
  });
  byId("find").value = chosen.find;
  byId("find").addEventListener("input", (event) => {
    chosen.find = event.target.value;
    forget();
  });
  byId("forget").addEventListener("click", () => {
    chosen.find = byId("find").value = "";
    forget();
  });
  byId("views").addEventListener("click", (event) => {
    if (event.target.dataset.view === undefined) return;
    chosen.view = event.target.dataset.view;
    forget();
  });
  byId("closer").addEventListener("click", () => squares.zoomBy(1.6));
  byId("farther").addEventListener("click", () => squares.zoomBy(1 / 1.6));
  byId("whole").addEventListener("click", () => squares.whole());
  byId("list").addEventListener("toggle", () => { if (byId("list").open && metric() !== null) show(); });
  dark.addEventListener("change", () => {
    squares.recolour();
    if (metric() !== null) show();
  });
  let width = window.innerWidth;
  window.addEventListener("resize", () => {
    // The address bar of a phone changes the height of the window frequently.
    if (cluster.flat.id === null || (window.innerWidth === width && window.innerWidth < 640)) return;
    width = window.innerWidth;
    lay();
  });
  setInterval(() => showHealth(health), 1000);
}

startShell();
document.body.classList.toggle("wall", new URLSearchParams(location.search).has("wall"));
listen();
await live.start();

export { cluster, live, scale, squares, take };
