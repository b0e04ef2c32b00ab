// Show the running jobs below the squares: those on the selected squares, or all. Choosing jobs here highlights their
// squares.

import { columnsOnMap, sorted } from "./columns.js";
import { make, refill, say } from "./element.js";
import { jobTable, useOf } from "./jobtable.js";
import * as words from "./words.js";

const MOST_ROWS = 20;
const FIRST_SORT = { name: "start", order: "desc" };

export class JobsPanel {
  // `place` is a section with a heading, and `changed` is called when the viewer chooses other jobs.
  constructor(place, changed) {
    this.place = place;
    this.changed = changed;
    this.ids = new Set(); // raw IDs of the chosen jobs
    this.sort = FIRST_SORT;
    this.body = place.querySelector(":scope > div");
    this.body.addEventListener("click", (event) => {
      const name = event.target.closest("[data-sort]")?.dataset.sort;
      if (name === undefined) return;
      const column = this.columns.find((one) => one.name === name), isDown = this.sort.name === name ? this.sort.order === "asc" : column.number === true;
      this.sort = { name, order: isDown ? "desc" : "asc" };
      this.show(this.given);
    });
  }

  get columns() {
    return columnsOnMap(this.given.metric);
  }

  // Forget the chosen jobs, because the viewer has chosen something else.
  forget() {
    this.ids.clear();
  }

  // Return {squares, text} of the chosen jobs that still run; null if there are none.
  chosen(cluster) {
    const jobs = [...this.ids].map((id) => cluster.jobs.get(id)).filter(Boolean);
    if (!jobs.length) return null;
    const some = jobs.flatMap((job) => cluster.squaresOf(job));
    return { squares: some, text: `${words.counts(some.length, "GPU")} of ${jobs.length === 1 ? `job ${jobs[0].id}` : words.counts(jobs.length, "job")}` };
  }

  // Show the jobs `running` on the squares of `restriction`, which is {squares, title}, or null for all squares.
  show({ cluster, running, metric, octets, restriction, isMine, find, now_s }) {
    this.given = { cluster, running, metric, octets, restriction, isMine, find, now_s };
    const here = restriction === null ? null : new Set(restriction.squares);
    const jobs = running.filter((job) => here === null || this.ids.has(job.job_id) || cluster.squaresOf(job).some((square) => here.has(square)))
      .map((job) => ({ ...job, ...useOf(cluster, job, metric, octets) }));
    const { columns } = this, by = columns.find((one) => one.name === this.sort.name) ?? columns.find((one) => one.name === FIRST_SORT.name);
    const rows = sorted(jobs, by, this.sort.order, now_s).slice(0, MOST_ROWS);
    say(this.place.querySelector("h2"), restriction?.title ?? (isMine ? "My running jobs" : "Running jobs"));
    const query = new URLSearchParams({ ...(find ? { find } : {}), ...(isMine ? { view: "mine" } : {}) }).toString();
    refill(this.body,
      rows.length ? jobTable(columns, rows, { by, order: this.sort.order, isSortable: () => true, now_s, caption: "Running jobs", lead: (job) => this.chooser(job) }) : make("p", { class: "none" }, isMine ? `You have no running jobs${here === null ? "" : " here"}.` : "No running jobs."),
      make("p", { class: "note" }, jobs.length > rows.length ? `${words.count(rows.length)} of ${words.counts(jobs.length, "job")}. ` : "", make("a", { href: `jobs${query ? `?${query}` : ""}` }, "All running, pending and ended jobs")));
  }

  // Make a button that highlights the squares of a job.
  chooser(job) {
    const isChosen = this.ids.has(job.job_id);
    return make("button", { type: "button", class: "chooses", "data-key": job.job_id, "aria-pressed": String(isChosen), "aria-label": `Show job ${job.id} among the squares`,
      onclick: () => {
        this.ids[isChosen ? "delete" : "add"](job.job_id);
        this.changed();
      } });
  }
}
