// Show the diagnosis of a run in place. It is requested after the page is drawn, because it takes seconds.

import { diagnosisPage } from "./address.js";
import { byId, fill, make } from "./element.js";
import { isRunning, keyOf } from "./runs.js";
import { WireError, json, now_s } from "./wire.js";
import * as words from "./words.js";

const STALE_S = 300; // a diagnosis of a running job is repeated after this time
let requested = { key: null, at_s: 0 };

// Show the diagnosis if the viewer may see the run and it ran on GPUs. Only runs on several GPUs have peers to
// compare, so only their verdict is requested; others have a link.
export function showVerdict(run) {
  const section = byId("verdict"), place = section.querySelector("div");
  section.hidden = !run.full || run.start_s === null || !run.devices?.length;
  byId("diagnosis").href = diagnosisPage(run.id, run.submit_s);
  if (section.hidden) return;
  const key = keyOf(run), n_gpus = new Set(run.devices.map(({ node, device }) => `${node} ${device}`)).size;
  if (n_gpus < 2) {
    requested = { key: null, at_s: 0 };
    fill(place, make("p", { class: "none" }, "The run has one GPU, so no peers to compare it with."));
    return;
  }
  if (requested.key === key && (!isRunning(run) || now_s() - requested.at_s < STALE_S)) return;
  if (requested.key !== key) fill(place, make("p", { class: "none" }, "The diagnosis is being computed."));
  requested = { key, at_s: now_s() };
  load(place, run, key);
}

async function load(place, run, key) {
  let shown;
  try {
    const { value } = await json(`jobs/${encodeURIComponent(run.id)}/diagnosis?run=${run.submit_s}`);
    shown = verdictTexts(value, now_s());
  } catch (error) {
    if (!(error instanceof WireError)) throw error;
    if (requested.key === key) requested.at_s = 0; // the next refresh of a running job retries
    shown = [make("p", { class: "none" }, `No diagnosis: ${error.message}.`)];
  }
  if (requested.key === key) fill(place, shown);
}

function verdictTexts({ verdict }, now) {
  const { cause, kind, confidence, suspect, evidence, why_not: whyNot, next_step: next, since_s, until_s } = verdict;
  const sure = cause === "inconclusive" ? "" : `, ${Math.round(100 * confidence)} % confidence${suspect ? " (a suspicion)" : ""}`;
  const period = [["since", since_s], ["until", until_s]].filter(([, at_s]) => at_s !== null).map(([word, at_s]) => `${word} ${words.moment(at_s, now)}`).join(" ");
  const texts = evidence.length ? evidence.map(({ text }) => text) : whyNot;
  return [
    make("p", { class: "reason" }, make("strong", {}, `${cause.charAt(0).toUpperCase()}${cause.slice(1)}${kind ? `: ${kind}` : ""}`), sure, period ? `, ${period}` : "", "."),
    texts.length ? make("ul", { class: "evidence" }, texts.slice(0, 4).map((text) => make("li", {}, make("bdi", {}, text)))) : null,
    next ? make("p", {}, `Next step: ${next}`) : null,
  ];
}
