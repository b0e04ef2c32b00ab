// Show p25 and p95 of each GPU of a run and of all its GPUs together.

import { seriesTitle } from "./charts.js";
import { byId, fill, make, say } from "./element.js";
import * as words from "./words.js";

const natural = new Intl.Collator("en", { numeric: true });

// Shorten a UUID to its beginning and end.
const short = (name) => (name.length > 18 ? `${name.slice(0, 9)}…${name.slice(-6)}` : name);

// Show the percentiles, which are exact or derived from timeline bins.
export function showGpus(run) {
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
