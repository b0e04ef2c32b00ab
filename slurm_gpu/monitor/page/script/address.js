// Store the viewer's choices in the page's address. A link then opens the page with the same choices.

import { carry } from "./shell.js";

// Return the choices with these names; null for each that is not in the address.
export function read(names) {
  const given = new URLSearchParams(location.search);
  return Object.fromEntries(names.map((name) => [name, given.get(name)]));
}

// Write choices that differ from their defaults; null removes a choice from the address.
export function write(chosen) {
  const given = new URLSearchParams(location.search);
  for (const [name, value] of Object.entries(chosen)) {
    if (value === null || value === undefined || value === "") given.delete(name);
    else given.set(name, value);
  }
  const query = given.toString();
  history.replaceState(null, "", query ? `?${query}` : location.pathname);
  carry();
}

// Return the address of a job's page. For pending array tasks that Slurm has not split yet, such as 9_2-3%1, use the
// ID of the array.
export const jobPage = (id) => `job?id=${encodeURIComponent(id.replace(/_.*[^0-9].*$/, ""))}`;
// Return the diagnosis page's address for the run with this submit time, or for the newest run.
export const diagnosisPage = (id, submit_s) => `diagnosis?id=${encodeURIComponent(id)}${submit_s === undefined ? "" : `&run=${submit_s}`}`;
