// Show the timelines of a run's GPUs, and links to its data as CSV.

import { chart, seriesOf } from "./charts.js";
import { byId, fill, make, say } from "./element.js";
import { isRunning } from "./runs.js";
import * as words from "./words.js";

// Explain the lines of charts with several GPUs.
function meaning(n_gpus) {
  return n_gpus > 1 ? `The thick line is the mean of the GPUs that have data at each time (of ${words.count(n_gpus)} GPUs in all); each thin line is a single GPU. ` : "";
}

// Show the charts and return them; `inks` returns their colours.
export function showTimelines(run, timeline, inks) {
  const ended = new Set((run.devices ?? []).filter((record) => record.final).map(({ node, device }) => `${node} ${device}`));
  const series = seriesOf(timeline?.devices ?? [], ended);
  const means = { util: run.uGPUcore, mem_used: run.uGPUmem, mem: run.uGPUmem };
  const drawing = series.map((one) => chart(one, inks, means[one.name]));
  fill(byId("charts"), drawing.map(({ figure }) => figure));
  say(byId("timeline-note"), series.length ? `${meaning(timeline.devices.length)}Lines have gaps where nothing was measured${series.some((one) => one.common_s < one.end_s) ? ", and the mean ends where a GPU's data ends" : ""}.`
    : run.full ? "No timeline of this run is stored." : "Only the owner and operators can see the timeline of this run.");
  return drawing;
}

export function showFiles(run, hasTimeline, path) {
  const file = (stored, part, text) => (run.full && stored ? make("a", { href: `api/v1/${path(part)}?format=csv`, download: "" }, text) : null);
  const files = [file(run.by_device?.length, "", "p25 and p95 of each GPU"), file(hasTimeline, "/timeline", "the timeline"),
    file(isRunning(run), "/window", "the last ten minutes at full resolution")].filter(Boolean);
  fill(byId("downloads"), files.length ? "Download as CSV:" : null, files);
}
