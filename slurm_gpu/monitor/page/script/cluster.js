// Store the page's state of the cluster: the layout, the newest frames, and jobs by square.

import { flatten } from "./layout.js";
import { FREE, GAP, OUT_OF_SERVICE } from "./paint.js";
import { octetOf, valueOf } from "./metric.js";
import { N_KINDS } from "./scale.js";

export const ALLOCATED = 1;
export const SHARED = 2;
export const UNWATCHED = 4;

// Metrics that the page derives from jobs and states.
export const OWN_METRICS = [
  { name: "state", title: "Free or allocated", unit: "", top: 3, step: 1, own: true, kinds: true },
  { name: "frees", title: "Frees in", unit: "h", top: 30 * 24, curve: 0.25, own: true },
  { name: "jobs", title: "Jobs (by colour)", unit: "", top: N_KINDS, step: 1, own: true, kinds: true },
];

export class Cluster {
  constructor() {
    this.flat = { id: null, cluster: "", zones: [], nodes: [], n: 0 };
    this.metrics = [];
    this.jobs = new Map(); // by raw ID
    this.kinds = new Map(); // colour numbers by raw job ID
    this.version = null; // the version of this.jobs
    this.asOf_s = null;
    this.clear();
  }

  // Set another layout; all data by square number becomes invalid.
  setLayout(layout) {
    this.flat = flatten(layout);
    this.metrics = [...layout.metrics.filter((metric) => metric.name !== "state"), ...OWN_METRICS];
    this.jobs.clear();
    this.version = null;
    this.clear();
  }

  // Request a new layout after a change. The page shows the old layout until the new one arrives.
  forget() {
    this.flat = { ...this.flat, id: null };
    this.version = null;
  }

  clear() {
    const { n } = this.flat;
    this.octets = new Uint8Array(n).fill(GAP);
    this.state = new Uint8Array(n).fill(UNWATCHED);
    this.job = new Int32Array(n).fill(-1);
    this.sharers = new Map(); // lists of raw job IDs by shared square
    this.nodeOf = new Int32Array(n);
    this.flat.nodes.forEach((node, index) => this.nodeOf.fill(index, node.first, node.first + node.n));
  }

  // Apply new, changed and ended jobs; return false if this version has already been applied.
  takeJobs(update) {
    if (update.version === this.version) return false;
    if (update.all) this.jobs.clear();
    for (const id of update.gone ?? []) this.jobs.delete(id);
    for (const job of update.jobs) this.jobs.set(job.job_id, job);
    this.version = update.version;
    this.job.fill(-1);
    this.sharers.clear();
    for (const job of this.jobs.values()) {
      for (const [first, last] of job.squares ?? []) this.job.fill(job.job_id, first, last + 1);
      for (const [first, last] of job.shared_squares ?? []) {
        for (let square = first; square <= last; square++) {
          const some = this.sharers.get(square) ?? [];
          some.push(job.job_id);
          this.sharers.set(square, some);
          if (this.job[square] < 0) this.job[square] = job.job_id;
        }
      }
    }
    return true;
  }

  // Return the jobs on a square: none, one, or several that share it.
  jobsAt(square) {
    const ids = this.sharers.get(square) ?? (this.job[square] < 0 ? [] : [this.job[square]]);
    return ids.map((id) => this.jobs.get(id)).filter(Boolean);
  }

  squaresOf(job) {
    return listed([...(job.squares ?? []), ...(job.shared_squares ?? [])]);
  }

  running() {
    return [...this.jobs.values()].filter((job) => job.state !== "PENDING");
  }

  waiting() {
    return [...this.jobs.values()].filter((job) => job.state === "PENDING");
  }

  // Choose a colour number for each job, which it keeps: the one that is rarest in its nodes and the nodes next to them.
  chooseKinds() {
    for (const id of this.kinds.keys()) if (!this.jobs.has(id)) this.kinds.delete(id);
    for (const job of this.jobs.values()) {
      const squares = this.kinds.has(job.job_id) ? [] : this.squaresOf(job);
      if (!squares.length) continue;
      const uses = new Array(N_KINDS).fill(0), seen = new Set([job.job_id]);
      for (const node of new Set(squares.map((square) => this.nodeOf[square]))) {
        for (const near of this.flat.nodes.slice(Math.max(0, node - 1), node + 2)) {
          for (let square = near.first; square < near.first + near.n; square++) {
            const kind = this.kinds.get(this.job[square]);
            if (kind !== undefined && !seen.has(this.job[square])) uses[kind]++;
            seen.add(this.job[square]);
          }
        }
      }
      const start = job.job_id % N_KINDS; // so that jobs without neighbours differ, too
      const order = uses.map((_, place) => (start + place) % N_KINDS);
      this.kinds.set(job.job_id, order.reduce((rarest, kind) => (uses[kind] < uses[rarest] ? kind : rarest)));
    }
  }

  // Return the octets of a metric that the page derives.
  own(metric, now_s) {
    const { name } = metric;
    if (name === "jobs") this.chooseKinds();
    const octets = new Uint8Array(this.flat.n).fill(GAP);
    for (let square = 0; square < octets.length; square++) {
      const here = this.jobsAt(square);
      if (name === "state") {
        if (this.state[square] === ALLOCATED || this.state[square] === SHARED) octets[square] = this.state[square];
      } else if (name === "jobs") {
        if (here.length) octets[square] = 1 + this.kinds.get(here[0].job_id);
      } else {
        const hours = this.freesIn(square, now_s);
        if (hours !== null) octets[square] = octetOf(hours, metric);
      }
    }
    return octets;
  }

  // Mark the allocated squares whose jobs the viewer may not see; return null if the viewer may see all jobs.
  ofOthers() {
    if (this.running().every((job) => job.full)) return null;
    const found = this.state.map((state) => (state === ALLOCATED || state === SHARED ? 1 : 0));
    for (const job of this.jobs.values()) if (job.full) for (const square of this.squaresOf(job)) found[square] = 0;
    return found;
  }

  // Return in how many hours a square is free at the latest, or null if that is unknown.
  freesIn(square, now_s) {
    if (this.state[square] === FREE) return 0;
    const ends = this.jobsAt(square).map((job) => job.end_s ?? null);
    return ends.length && !ends.includes(null) ? Math.max(0, Math.max(...ends) - now_s) / 3600 : null;
  }

  // Return the value of a square, or null if it is unknown.
  value(square, metric, octets, now_s) {
    return metric.name === "frees" ? this.freesIn(square, now_s) : valueOf(octets[square], metric);
  }

  // Count the squares that are free, allocated (including shared) and out of service, and all squares.
  tally() {
    const found = [0, 0, 0, 0, 0];
    for (const state of this.state) found[state]++;
    return { free: found[FREE], allocated: found[ALLOCATED] + found[SHARED], out: found[OUT_OF_SERVICE], all: this.flat.n };
  }
}

// Expand ranges [first, last] and single squares to a list of squares.
export function listed(ranges) {
  const found = [];
  for (const range of ranges) {
    const [first, last] = typeof range === "number" ? [range, range] : range;
    for (let square = first; square <= last; square++) found.push(square);
  }
  return found;
}
