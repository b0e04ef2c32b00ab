// Show the age of the page's data, and why newer data is missing.

import { byId, say } from "./element.js";
import { now_s } from "./wire.js";
import * as words from "./words.js";

const OLD_S = 60; // the page marks an older state as old
const CONTENT = "main, footer > :not(.links), #age, #tally, #status";

// Show the state of the connection: the time of the data and of Slurm's part, and the error of the last request or null.
export function showHealth({ asOf_s, slurm_s, failed, failedSince_ms }) {
  const element = byId("age"), now = now_s(), isOld = (time_s) => time_s !== null && now - time_s > OLD_S;
  const slurmIsStale = isOld(slurm_s) && !isOld(asOf_s), at_s = slurmIsStale ? slurm_s : asOf_s;
  const age = at_s === null ? null : now - at_s, old = age === null || age > OLD_S || failed !== null;
  element.classList.toggle("old", old);
  const since = at_s === null ? "" : words.moment(at_s, now, true);
  say(element, age === null ? "No data yet" : old ? `As of ${since}, ${words.duration(age)} ago` : `As of ${since}`);
  byId("signin").hidden = failed?.status !== 401;
  const hasAccess = ![401, 403].includes(failed?.status) || asOf_s !== null;
  for (const part of document.querySelectorAll(CONTENT)) part.hidden = !hasAccess;
  const text = failed !== null ? failureText(failed, failedSince_ms, asOf_s !== null)
    : slurmIsStale ? `slurmctld has not answered since ${since}: allocations and pending jobs may be outdated, but GPU values are current.`
    : age !== null && age > OLD_S ? `slurm-gpudbd or Slurm has not answered since ${since}. The page shows the last known state.` : "";
  byId("error").hidden = text === "";
  say(byId("error"), text);
}

function failureText({ status, message }, since_ms, hasData) {
  const last = hasData ? " The page shows the last known state." : "";
  if (status === 401) return hasData ? `You are no longer signed in.${last}` : "";
  if (status === 403) return `Access denied: ${message}`;
  return `No answer since ${words.moment(since_ms / 1000, Date.now() / 1000, true)}: ${message}.${last}`;
}
