// Fill the panels next to the squares: free GPUs, the queue and reservations, and the viewer's own jobs and
// limits. A panel without data shows a text instead.

import { diagnosisPage, jobPage } from "./address.js";
import { coded, make, refill as fill, table } from "./element.js";
import { startTexts } from "./wait.js";
import * as words from "./words.js";

const MOST = 60; // maximum rows of a list
const FEW = 12; // maximum number of jobs that start next
const NUMBER = (title) => ({ title, number: true });

const idOf = (job) => make("bdi", {}, job.id);
const linked = (job) => (job.full ? make("a", { href: jobPage(job.id) }, idOf(job)) : idOf(job));
const diagnosed = (alert) => (alert.verdict ? make("a", { href: diagnosisPage(alert.id) }, "Diagnosis") : null);
const nothing = (text) => make("p", { class: "none" }, text);

export function free(place, data, now_s) {
  if (data === null) return fill(place, nothing("Not loaded yet."));
  if (!data.types.length) return fill(place, nothing("The cluster has no GPUs."));
  const rows = data.types.map((type) => {
    const all = type.total;
    const next = type.free ? "now" : type.next_free_s ? `by ${words.moment(type.next_free_s, now_s)}` : words.GAP;
    const piece = make("i", {});
    piece.style.width = `${all ? 100 * type.free / all : 0}%`;
    return make("li", {},
      make("div", { class: "line" }, make("span", {}, make("strong", {}, words.count(type.free)), " of ", words.count(all), " ", make("bdi", {}, type.type || "GPUs"), " free"),
        make("span", {}, type.free ? "" : `first ${next}`)),
      make("div", { class: "bar", "aria-hidden": "true" }, piece),
      make("p", { class: "aside" }, `${words.count(type.allocated)} allocated`, type.out_of_service ? `, ${words.count(type.out_of_service)} out of service` : ""));
  });
  return fill(place, make("ul", { class: "items" }, rows));
}

// Show why jobs wait, and the jobs that Slurm will start first.
export function queue(place, data, jobs, now_s) {
  if (data === null) return fill(place, nothing("Not loaded yet."));
  if (!data.reasons.length) return fill(place, nothing("No pending jobs."));
  const sum = (name) => data.reasons.reduce((all, reason) => all === null || reason[name] === null ? null : all + reason[name], 0), n = sum("n_jobs");
  const next = data.jobs.map((job) => ({ ...jobs.get(job.job_id), start_s: job.start_s })).filter((job) => job.id !== undefined);
  return fill(place,
    make("p", {}, make("strong", {}, words.counts(n, "job")), n === 1 ? " waits for " : " wait for ", make("strong", {}, words.counts(sum("n_gpus"), "GPU")), "."),
    table(["Why", NUMBER("Jobs"), NUMBER("GPUs")], data.reasons.map((reason) => [
      make("span", { title: reason.reason }, reason.meaning || reason.reason), words.count(reason.n_jobs), words.count(reason.n_gpus),
    ]), "Why jobs wait"),
    next.length ? make("details", {}, make("summary", {}, "Next to start"),
      table(["Job", "User", NUMBER("GPUs"), NUMBER("Waited"), NUMBER("Starts")], next.slice(0, FEW).map((job) => [
        linked(job), make("bdi", {}, job.user ?? ""), words.amount(job.n_gpus, ""), words.duration(now_s - job.submit_s), words.moment(job.start_s, now_s),
      ]), "Jobs that start next"),
      make("p", { class: "note" }, "Start times are Slurm's estimates.")) : null);
}

const DAY_S = 86400, SHOWN_DAYS = [2, 7, 14, 30];

export function reservations(place, data, now_s) {
  if (data === null) return fill(place, nothing("Not loaded yet."));
  const open = data.filter((one) => ["requested", "approved", "active"].includes(one.state));
  if (!open.length) return fill(place, nothing("No reservations or requests."));
  const spanOf = (one) => [one.start_s ?? one.earliest_s, one.end_s ?? (one.start_s ?? one.earliest_s) + one.duration_s];
  const last_s = Math.max(...open.map((one) => spanOf(one)[1]));
  const days = SHOWN_DAYS.find((some) => now_s + some * DAY_S >= last_s) ?? SHOWN_DAYS[SHOWN_DAYS.length - 1];
  const begin_s = words.startOfDay(now_s), reach_s = days * DAY_S;
  const share = (at_s) => 100 * Math.min(1, Math.max(0, (at_s - begin_s) / reach_s));
  const heads = make("div", { class: "days", "aria-hidden": "true" });
  const step = Math.max(1, Math.round(days / 4));
  for (let day = 0; day < days; day += step) {
    const head = make("span", {}, words.dayOf(begin_s + day * DAY_S + DAY_S / 2));
    head.style.left = `${100 * day / days}%`;
    heads.append(head);
  }
  const rows = open.sort((a, b) => spanOf(a)[0] - spanOf(b)[0]).slice(0, MOST).map((one) => {
    const [start_s, end_s] = spanOf(one), piece = make("i", { class: one.state === "requested" ? "asked" : null });
    piece.style.left = `${share(start_s)}%`;
    piece.style.width = `${Math.max(0, share(end_s) - share(start_s))}%`;
    const what = one.state === "requested" ? "requested" : one.state === "active" ? "now" : "";
    return make("div", { class: "row" },
      make("p", {}, make("span", {}, make("bdi", {}, one.user), " · ", one.gpu_type ? [`${words.count(one.gpus)} × `, make("bdi", {}, one.gpu_type)] : words.counts(one.gpus, "GPU")),
        make("span", {}, what)),
      make("p", { class: "aside" }, make("span", {}, `${words.moment(start_s, now_s)} – ${words.moment(end_s, now_s)}`), make("span", {}, make("bdi", {}, one.nodes ?? ""))),
      make("div", { class: "track", "aria-hidden": "true" }, piece),
      one.error ? make("p", { class: "note" }, one.error) : null);
  });
  return fill(place, make("div", { class: "calendar" }, heads, rows));
}

// List the viewer's jobs: running jobs with alerts, and pending jobs with forecasts. `why` explains Slurm's reasons.
export function mine(place, { running, waiting, alerts, waits, why, now_s, ringed, operator }) {
  if (!running.length && !waiting.length) return fill(place, nothing("You have no running or pending jobs."));
  const advice = (job) => alerts.filter((alert) => alert.job_id === job.job_id).map((alert) => {
    const { short, what, todo } = words.alertText(alert);
    return make("p", {}, make("span", { class: "tag bad" }, short), ` ${what} ${todo} `, diagnosed(alert));
  });
  const named = (job) => make("span", {}, linked(job), job.name ? [" ", make("bdi", {}, job.name)] : null);
  const runs = running.map((job) => {
    const [some, of] = ringed(job);
    return make("li", {},
      make("div", { class: "line" }, named(job), make("span", {}, words.counts(job.n_gpus, "GPU"))),
      make("p", { class: "aside" }, `running since ${words.moment(job.start_s, now_s)}, ${words.frees(job, now_s)}`, some ? ` · ${some} of ${of} with a ring` : ""),
      advice(job));
  });
  const queued = waiting.map((job) => make("li", {},
    make("div", { class: "line" }, named(job), make("span", {}, `${job.n_tasks > 1 ? `${words.count(job.n_tasks)} × ` : ""}${words.counts(job.n_gpus, "GPU")}`)),
    make("p", { class: "aside" }, `pending for ${words.duration(now_s - job.submit_s)}: ${why(job.reason)}`),
    startTexts({ start_s: job.start_s, forecast: waits.get(job.job_id) }, now_s, operator)));
  return fill(place, runs.length ? make("ul", { class: "items" }, runs) : null,
    queued.length ? [make("h3", {}, "Pending"), make("ul", { class: "items" }, queued)] : null);
}

// Name the jobs that share a limit; return null for limits per user or per job.
function shared(line) {
  if (line.per === "account") return line.account === null ? " · each account" : [" · account ", make("bdi", {}, line.account)];
  return line.per === "group" ? [" · all of ", make("bdi", {}, line.group), " together"] : null;
}

// List limits as in `slurm-gpu quota --json`. Limits on sums are shown with a usage bar, and limits per job as values.
export function limits(place, me, now_s) {
  if (!me) return fill(place, nothing("Not loaded yet."));
  if (!me.limits) return fill(place, make("p", { class: "none" }, "Your limits are unknown: ", coded(me.limits_why ?? "no reason was given"), "."));
  if (!me.limits.length) return fill(place, nothing("No limits apply to your jobs."));
  const unit = (line) => (line.unit === "count" || line.unit === "names" ? "" : line.unit);
  const notes = (line) => make("p", { class: "aside" }, make("bdi", {}, line.rule), shared(line),
    { observe: " · observed only", advise: " · advice only", fit: line.over_limit ? ` · jobs over it get ${line.over_limit}` : " · longer jobs are shortened" }[line.mode] ?? null,
    line.until_s ? ` · your exception until ${words.moment(line.until_s, now_s)}` : null, line.why ? [" · ", make("bdi", {}, line.why)] : null);
  const summed = me.limits.filter((line) => line.per !== "job"), each = me.limits.filter((line) => line.per === "job");
  const rows = summed.map((line) => {
    const known = typeof line.used === "number", share = line.limit > 0 ? line.used / line.limit : 1;
    const piece = make("i", { class: share >= 1 ? "full" : null });
    piece.style.width = `${100 * Math.min(1, share)}%`;
    return make("li", {},
      make("div", { class: "line" }, make("span", {}, make("bdi", {}, line.on)),
        make("span", {}, known ? `${words.exact(line.used, "")} of ${words.exact(line.limit, unit(line))}` : `limit ${words.exact(line.limit, unit(line))}; usage unknown`)),
      known ? make("div", { class: "bar", "aria-hidden": "true" }, piece) : null, notes(line));
  });
  const single = each.map((line) => make("li", {},
    make("div", { class: "line" }, make("span", {}, make("bdi", {}, line.on.replace(/^each job's /, ""))), make("span", {}, make("bdi", {}, most(line)))), notes(line)));
  return fill(place, rows.length ? make("ul", { class: "items" }, rows) : null,
    single.length ? [make("h3", {}, "Each job"), make("ul", { class: "items" }, single)] : null,
    rows.length ? make("p", { class: "note" }, `Usage as of ${words.moment(me.limits_as_of_s, now_s, true)}.`) : null);
}

// Format a limit per job, which is a number, a time, a list of names, or a list of times for numbers of GPUs.
function most(line) {
  if (!Array.isArray(line.limit)) return line.unit === "s" ? words.duration(line.limit) : words.exact(line.limit, line.unit === "count" ? "" : line.unit);
  return line.limit.map((item) => (typeof item === "object" ? `${words.duration(item.s)} from ${words.counts(item.gpus, "GPU")}` : item)).join(", ");
}
