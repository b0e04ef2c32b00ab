// Explain why a job waits and when it is expected to start.

import { coded, make } from "./element.js";
import * as words from "./words.js";

// Return elements that explain why a job from jobs/ID/queued is pending.
export function waitTexts(job, now_s) {
  const { wait } = job, reason = wait.meaning ?? wait.reason;
  return [
    make("p", { class: "reason" }, make("strong", {}, `${capitalised(reason)}.`), wait.meaning ? ` Slurm's reason: ${wait.reason}.` : ""),
    wait.dependency ? make("p", {}, "Dependency: ", make("bdi", {}, wait.dependency), ".") : null,
    placeText(job),
    ...startTexts(wait, now_s),
  ];
}

const capitalised = (text) => text.charAt(0).toUpperCase() + text.slice(1);

function placeText({ wait, partition, n_tasks }) {
  if (wait.place === null) return null;
  const where = partition.includes(",") ? "the job's partitions" : `partition ${partition}`;
  if (wait.n_jobs === n_tasks) return make("p", {}, `No other job is pending in ${where}.`);
  if (wait.place === 1) return make("p", {}, `Place 1 of ${words.count(wait.n_jobs)} pending jobs in ${where}.`);
  const gpus = wait.gpus_ahead === null ? "" : `, which request ${words.counts(wait.gpus_ahead, "GPU")}`;
  return make("p", {}, `Place ${words.count(wait.place)} of ${words.count(wait.n_jobs)} pending jobs in ${where}, behind ${words.counts(wait.place - 1, "job")}${gpus}.`);
}

// Return Slurm's estimated start and the forecast. A forecast that was not validated comes last, as a guess. Only
// operators see why there is no forecast.
export function startTexts({ start_s, forecast: answer }, now_s, operator = false) {
  const forecast = answer?.forecast, at = (moment_s) => (moment_s <= now_s ? "now" : words.moment(moment_s, now_s));
  const slurm = start_s > now_s ? make("p", {}, `Slurm's estimated start: ${at(start_s)}, in ${words.duration(start_s - now_s)}.`) : null; // an estimate in the past is outdated
  if (!forecast) {
    return [slurm ?? make("p", { class: "aside" }, "Slurm has not estimated the start yet."),
      operator && answer?.why ? make("p", { class: "aside" }, "No forecast: ", coded(answer.why)) : null];
  }
  const [lower, median, upper] = [forecast.lower_s, forecast.median_s, forecast.upper_s].map((seconds) => at(forecast.at_s + seconds));
  const own = [make("p", {}, `Forecast: probably between ${lower} and ${upper}, most likely around ${median}.`), make("p", { class: "aside" }, `${capitalised(answer.accuracy.join("; "))}.`)];
  return forecast.judged === null ? [slurm, ...own] : [...own, slurm];
}
