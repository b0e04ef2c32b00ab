// Group alerts by kind, and list the groups: those with the most idle GPU-hours first.

import { diagnosisPage, jobPage } from "./address.js";
import { listed } from "./cluster.js";
import { make, refill } from "./element.js";
import * as words from "./words.js";

const MOST_GROUPS = 8;
const MOST_ROWS = 60; // of a group
const FEW_ALERTS = 6; // up to this many alerts are shown without opening their groups
const OTHER = "other", SUSPECTS = "suspects";
// The alerts of jobs whose GPUs do not compute.
const IDLE = ["never_used", "used_then_idle", "memory_idle", "partly_unused", "hang"];

const nothing = (text) => make("p", { class: "none" }, text);
const more = (left, noun) => (left > 0 ? make("p", { class: "note" }, `and ${words.counts(left, noun)} more`) : null);
const keyOf = (alert) => `${alert.job_id} ${alert.alert}`;
const kindOf = (alert) => alert.verdict?.cause ?? alert.alert;
export const isIdle = (alert) => IDLE.includes(kindOf(alert));
export const idleHours = (alert, now_s) => (isIdle(alert) ? alert.n * Math.max(0, now_s - alert.since_s) / 3600 : 0);

// Return alerts with their key and their number of squares. A hang explains that the job's GPUs stopped computing, so
// that only the hang is listed.
export function numbered(alerts) {
  const hanging = new Set(alerts.filter((alert) => kindOf(alert) === "hang").map((alert) => alert.job_id));
  return alerts.filter((alert) => !hanging.has(alert.job_id) || !["used_then_idle", "memory_idle"].includes(alert.alert))
    .map((alert) => ({ ...alert, key: keyOf(alert), n: listed(alert.squares).length }));
}

// Return the number of idle squares and their GPU-hours; a square with several alerts counts once, from the earliest.
export function idleSum(alerts, now_s) {
  const since_s = new Map();
  for (const alert of alerts.filter(isIdle)) {
    for (const square of listed(alert.squares)) since_s.set(square, Math.min(alert.since_s, since_s.get(square) ?? Infinity));
  }
  return { n: since_s.size, hours: [...since_s.values()].reduce((sum, from_s) => sum + Math.max(0, now_s - from_s) / 3600, 0) };
}

// Return at most MOST_GROUPS groups {kind, alerts, n, idle_h}, the one with the most idle GPU-hours first. Groups without
// idle GPU-hours keep the order of the alerts, which is by severity. Suspects count as one group.
export function groupsOf(alerts, hasSuspects, now_s) {
  const found = new Map();
  for (const alert of alerts) {
    const kind = kindOf(alert), group = found.get(kind) ?? { kind, alerts: [], n: 0, idle_h: 0 };
    group.alerts.push(alert);
    group.n += alert.n;
    group.idle_h += idleHours(alert, now_s);
    found.set(kind, group);
  }
  const sorted = [...found.values()].sort((a, b) => b.idle_h - a.idle_h), most = MOST_GROUPS - (hasSuspects ? 1 : 0);
  for (const group of sorted) group.alerts.sort((a, b) => idleHours(b, now_s) - idleHours(a, now_s));
  if (sorted.length <= most) return sorted;
  const rest = sorted.splice(most - 1);
  return [...sorted, rest.reduce((sum, one) => ({ kind: OTHER, alerts: [...sum.alerts, ...one.alerts], n: sum.n + one.n, idle_h: sum.idle_h + one.idle_h }))];
}

const titleOf = ({ kind, alerts }) => (kind === OTHER ? "other alerts" : words.alertText(alerts[0]).short);

export class Attention {
  // `light` is called when the viewer chooses another group or alert to be highlighted, or none; see `chosen`.
  constructor(place, light) {
    this.place = place;
    this.light = light;
    this.open = new Set(); // kinds of groups that the viewer opened
    this.closed = new Set(); // kinds of groups that the viewer closed
    this.pressed = null; // the key of the highlighted group or alert
    this.found = new Map(); // what to highlight, by key
  }

  // Show the alerts. Before `complete_s`, jobs have not been watched for long enough to find all idle ones.
  show({ alerts, suspects, jobs, now_s, known, complete_s }) {
    this.given = { alerts, suspects, jobs, now_s, known, complete_s };
    this.found.clear();
    if (!known) return refill(this.place, nothing("Not loaded yet."));
    const early = complete_s > now_s ? `Alerts are incomplete until ${words.moment(complete_s, now_s)}: jobs that stopped using their GPUs may be missing.` : "";
    const groups = groupsOf(alerts, suspects.length > 0, now_s), isShort = alerts.length <= FEW_ALERTS;
    if (!groups.length && !suspects.length) return refill(this.place, nothing(early || "No running job needs attention."));
    const isOpen = (kind) => (isShort ? !this.closed.has(kind) : this.open.has(kind));
    const items = groups.map((group) => this.group(group, isOpen(group.kind)));
    if (suspects.length) items.push(this.suspects(isOpen(SUSPECTS)));
    return refill(this.place, early ? nothing(early) : null, make("ul", { class: "items groups" }, items));
  }

  // Open or close a group, and highlight its squares while it is open.
  toggle(kind, isOpen) {
    this.open[isOpen ? "delete" : "add"](kind);
    this.closed[isOpen ? "add" : "delete"](kind);
    this.press(isOpen ? null : kind);
  }

  press(key) {
    this.pressed = key;
    this.light();
    this.show(this.given);
  }

  // Forget the highlighted group or alert, because the viewer has chosen something else.
  forget() {
    this.pressed = null;
  }

  // Return {squares, text} to be highlighted; null if nothing is chosen or the alert has ended.
  get chosen() {
    return this.found.get(this.pressed) ?? null;
  }

  heading(kind, isOpen, title, sums) {
    return make("h3", {}, make("button", { type: "button", class: "opens", "data-key": kind, "aria-expanded": String(isOpen), onclick: () => this.toggle(kind, isOpen) },
      make("span", {}, make("span", { class: "tag bad" }, title), " ", make("span", { class: "sums" }, sums))));
  }

  group(group, isOpen) {
    const { kind, alerts, n, idle_h } = group, title = titleOf(group);
    const n_jobs = new Set(alerts.map((alert) => alert.job_id)).size;
    const sums = [words.counts(n_jobs, "job"), n ? words.counts(n, "GPU") : "", idle_h >= 0.05 ? words.gpuHours(idle_h, "idle") : ""].filter(Boolean).join(" · ");
    this.found.set(kind, { squares: alerts.flatMap(({ squares }) => squares), text: `${words.counts(n, "GPU")} of ${words.counts(n_jobs, "job")}: ${title}` });
    if (!isOpen) return make("li", {}, this.heading(kind, isOpen, title, sums));
    return make("li", {}, this.heading(kind, isOpen, title, sums),
      make("ul", { class: "items" }, alerts.slice(0, MOST_ROWS).map((alert) => this.alert(alert))), more(alerts.length - MOST_ROWS, "alert"));
  }

  alert(alert) {
    const { jobs, now_s } = this.given, job = jobs.get(alert.job_id), { short, what, todo } = words.alertText(alert);
    const allocated = job?.n_gpus ?? 0, of = allocated > alert.n ? `${words.count(alert.n)} of ` : "", isPressed = this.pressed === alert.key;
    const squares = alert.squares.length ? of + words.counts(of ? allocated : alert.n, "GPU") : "";
    this.found.set(alert.key, { squares: alert.squares, text: `${words.counts(alert.n, "GPU")} of job ${alert.id}: ${short}` });
    return make("li", {},
      make("button", { type: "button", class: "lights", "data-key": alert.key, "aria-pressed": String(isPressed), title: `${what} Show its squares.`, onclick: () => this.press(isPressed ? null : alert.key) },
        make("span", { class: "line" }, make("bdi", {}, alert.user ?? ""), make("span", {}, words.duration(now_s - alert.since_s)))),
      make("p", { class: "aside" }, "job ", make("a", { href: jobPage(alert.id) }, make("bdi", {}, alert.id)), squares ? ` · ${squares}` : "",
        job?.account ? [" · ", make("bdi", {}, job.account)] : null,
        alert.coverage < 0.95 ? ` · measured ${Math.round(100 * alert.coverage)} % of the time` : null,
        alert.verdict ? [" · ", make("a", { href: diagnosisPage(alert.id) }, "Diagnosis")] : null),
      isPressed ? make("p", {}, what, " ", todo) : null);
  }

  // List suspects, each with the command with which operators can drain it in a terminal.
  suspects(isOpen) {
    const { suspects, now_s } = this.given;
    const rows = suspects.slice(0, MOST_ROWS).map((one) => make("li", {},
      make("div", { class: "line" },
        make("span", {}, one.device === null ? "node " : "GPU of ", make("bdi", {}, one.node)),
        make("span", {}, words.duration(now_s - one.first_s))),
      make("p", { class: "aside" }, one.device === null ? "" : [make("bdi", {}, one.device), " · "],
        `slow or failing in ${words.counts(one.jobs, "job")} of ${words.counts(one.users, "user")}`, one.healthy ? `, ${words.counts(one.healthy, "job")} healthy since` : ""),
      make("p", {}, make("code", {}, one.next_step))));
    const squares = suspects.flatMap((one) => one.squares ?? []), title = "suspect GPUs and nodes";
    this.found.set(SUSPECTS, { squares, text: `${words.counts(listed(squares).length, "GPU")}: ${title}` });
    return make("li", {}, this.heading(SUSPECTS, isOpen, title, words.count(suspects.length)),
      isOpen ? [make("ul", { class: "items" }, rows), more(suspects.length - MOST_ROWS, "suspect")] : null);
  }
}
