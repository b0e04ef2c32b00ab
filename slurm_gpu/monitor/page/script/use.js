// Show how much of its requested GPUs, GPU memory, CPUs and host memory a run used, and suggestions for later runs.

import { fill, make } from "./element.js";
import * as words from "./words.js";

const TITLES = { gpu: "GPU", gpu_memory: "GPU memory", cpu: "CPU", memory: "Host memory" };

// Show a bar for each resource of `run.use`. A bar without a measurement is empty and says so.
export function showUse(place, run) {
  fill(place, (run.use ?? []).map((use) => {
    const share = shareOf(use, run), piece = make("i", { class: share >= 1 ? "full" : null });
    piece.style.width = `${100 * Math.min(1, share ?? 0)}%`;
    return make("div", { class: "use" },
      make("p", { class: "line" }, make("span", {}, TITLES[use.resource] ?? use.resource), make("strong", {}, amountOf(use))),
      make("div", { class: share === null ? "bar unknown" : "bar", "aria-hidden": "true" }, piece),
      make("p", { class: "aside" }, remarkOf(use, run)));
  }));
}

// Return the used share of the request; null if either is unknown.
const shareOf = ({ used, requested }) => (used === null || !requested ? null : used / requested);

function amountOf(use) {
  const { resource, used, requested } = use;
  if (resource.endsWith("memory")) {
    if (used === null) return "not measured";
    return requested === null ? size(used) : `${size(used, requested >= 1024 && used >= 1024)} of ${size(requested)}`;
  }
  if (used === null) return "not measured";
  if (resource === "gpu" && requested) return words.amount(100 * used / requested, "%");
  return requested === null ? words.amount(used, "") : `${words.amount(used, "")} of ${words.count(requested)}`;
}

// Format MiB, from 1 GiB on as GiB; `bare` leaves out the unit.
function size(mib, bare = false) {
  return mib < 1024 ? words.amount(mib, "MiB") : words.amount(mib / 1024, bare ? "" : "GiB");
}

function remarkOf({ resource, used, requested }, run) {
  const known = requested === null ? "the request is unknown" : null;
  if (resource === "gpu") return [`mean of ${words.counts(run.nGPU, "GPU")}`];
  if (resource === "gpu_memory") return [[used === null ? null : "maximum of one GPU", (run.uGPUmem ?? null) === null ? null : `mean ${words.amount(run.uGPUmem, "%")}`].filter(Boolean).join(", ") || "\u00a0"];
  if (used === null) return [known ?? `${resource === "cpu" ? words.count(requested) : size(requested)} requested`];
  const what = resource === "cpu" ? "mean of busy CPUs" : run.nNODE > 1 ? "sum of the nodes' maxima" : "maximum";
  return [[what, known].filter(Boolean).join("; ")];
}

// Show suggestions, whose options of sbatch become code.
export function showSuggestions(place, run) {
  const found = run.suggestions ?? [];
  place.hidden = !found.length;
  fill(place, found.length ? make("h3", {}, "For the next run") : null,
    make("ul", {}, found.map((text) => make("li", {}, text.split(/(--[a-z-]+=[\w:-]*\w)/).map((part, place_) => (place_ % 2 ? make("code", {}, part) : part))))));
}
