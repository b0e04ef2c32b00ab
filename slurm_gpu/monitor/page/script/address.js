// What the viewer chose stands in the page's address, so that a link shows the same: metric, threshold, view, what
// was looked for.

const NAMES = ["metric", "under", "view", "find"];

export function read() {
  const given = new URLSearchParams(location.search);
  return Object.fromEntries(NAMES.map((name) => [name, given.get(name)]));
}

// Writes what is not as it is by itself; null takes it out.
export function write(chosen) {
  const given = new URLSearchParams(location.search);
  for (const name of NAMES) {
    if (chosen[name] === null || chosen[name] === undefined || chosen[name] === "") given.delete(name);
    else given.set(name, chosen[name]);
  }
  const query = given.toString();
  history.replaceState(null, "", query ? `?${query}` : location.pathname);
}

// Of an array whose tasks are not apart yet, such as 9_2-3%1, the array's.
export const jobPage = (id) => `job?id=${encodeURIComponent(id.replace(/_.*[^0-9].*$/, ""))}`;
// Why a job is slow: of its run that was submitted then, or the newest.
export const diagnosisPage = (id, submit_s) => `diagnosis?id=${encodeURIComponent(id)}${submit_s === undefined ? "" : `&run=${submit_s}`}`;
