// Make tables of jobs with sortable columns (see columns.js), for the page of the cluster and the page of jobs.

import { make } from "./element.js";
import { GAP } from "./paint.js";
import { valueOf } from "./metric.js";

// Return the mean of a metric over a job's squares, and the number of squares at 0; null if the job is hidden or
// nothing was measured.
export function useOf(cluster, job, metric, octets) {
  const known = cluster.squaresOf(job).map((square) => octets[square]).filter((octet) => octet !== GAP);
  if (!job.full || !known.length) return { mean: null, n_idle: null };
  return { mean: known.reduce((sum, octet) => sum + valueOf(octet, metric), 0) / known.length, n_idle: known.filter((octet) => octet === 0).length };
}

// Make a table. `by` is the column by which `jobs` are sorted, `order` is asc or desc, and `isSortable` returns whether
// a column's heading is a button. `lead` makes an additional first cell for each job.
export function jobTable(columns, jobs, { by, order, isSortable, now_s, caption, lead = null }) {
  const head = columns.map((one) => {
    const sort = one === by ? { asc: "ascending", desc: "descending" }[order] : null;
    const mark = { ascending: " ▲", descending: " ▼" }[sort] ?? " ↕";
    return make("th", { scope: "col", class: one.number ? "number" : null, "aria-sort": sort },
      isSortable(one.name) ? make("button", { type: "button", class: "sort", "data-sort": one.name }, one.title, make("span", { class: sort === null ? "mark" : null, "aria-hidden": "true" }, mark)) : one.title);
  });
  const body = jobs.map((job) => make("tr", {}, lead === null ? null : make("td", {}, lead(job)),
    columns.map((one) => make("td", { class: one.number ? "number" : null, "data-title": one.title }, one.text(job, now_s)))));
  return make("table", {}, make("caption", { class: "unseen" }, caption),
    make("thead", {}, make("tr", {}, lead === null ? null : make("td", {}), head)), make("tbody", {}, body));
}
