// Keep the page up to date: load everything once, then the changes at each state that slurm-gpuweb announces. If data
// cannot be loaded, the page keeps the old data and shows its age.

import { WireError, events, frame, json } from "./wire.js";

const SLOW_MS = 60e3; // interval for reservations and limits, which change rarely
const SOON_MS = 10e3; // interval while limits are not available yet
const POLL_MS = 15e3; // interval while there are no events

export class Live {
  // `metric()` returns the name of the shown metric, or null if the page derives the metric. `changed` is called with
  // the kinds of new data: "layout", "frame", "jobs", "panels"; `health` is called with the state of the connection.
  constructor(cluster, { metric, changed, health }) {
    Object.assign(this, { cluster, metric, changed, health });
    this.data = { alerts: null, free: null, queue: null, reservations: null, me: null };
    this.busy = null;
    this.again = false;
    this.slow_ms = this.me_ms = -Infinity;
    this.state = { asOf_s: null, slurm_s: null, failed: null, failedSince_ms: null, streaming: false };
  }

  async start() {
    await this.refresh();
    this.stream();
    setInterval(() => { if (!this.state.streaming) this.refresh(); }, POLL_MS);
  }

  stream() {
    this.source?.close();
    this.source = events({
      state: (announced) => {
        // The first event often announces the state that has just been loaded.
        if (announced === null || announced.version !== this.cluster.version || announced.layout !== this.cluster.flat.id) this.refresh();
      },
      opened: () => { this.state.streaming = true; },
      broken: (forGood) => {
        this.state.streaming = false;
        if (forGood) setTimeout(() => this.stream(), POLL_MS); // the server refused, so the browser does not retry
      },
    });
  }

  // Run one refresh at a time. Calls during a refresh cause a single further refresh after it.
  refresh() {
    if (this.busy !== null) {
      this.again = true;
      return this.busy;
    }
    this.busy = this.once().finally(() => {
      this.busy = null;
      if (this.again) {
        this.again = false;
        this.refresh();
      }
    });
    return this.busy;
  }

  async once() {
    try {
      await this.squares();
      this.health({ ...this.state, failed: this.state.failed = null, failedSince_ms: this.state.failedSince_ms = null });
    } catch (error) {
      if (!(error instanceof WireError)) throw error;
      this.state.failed = error;
      this.state.failedSince_ms ??= Date.now();
      this.health(this.state);
      return;
    }
    await this.panels();
  }

  async squares(tries = 3) {
    const { cluster } = this, name = this.metric();
    const known = cluster.flat.id !== null;
    const wanted = [
      known ? null : json("layout"),
      name === null ? null : frame(name).catch((error) => this.unknown(error, known)),
      frame("state"),
      json(known && cluster.version !== null ? `jobs?since=${cluster.version}` : "jobs"),
    ];
    const [layout, shown, state, jobs] = await Promise.all(wanted);
    if (layout !== null) {
      cluster.setLayout(layout.value);
      this.changed(["layout"]);
      if (this.metric() !== name) return this.squares(tries); // the address named an unknown metric
    }
    if ([shown, state, jobs].some((each) => each !== null && each.layout !== cluster.flat.id)) {
      if (tries === 0) throw new WireError(0, "the cluster changes with every answer");
      cluster.forget(); // the layout changed between two answers: load everything again
      return this.squares(tries - 1);
    }
    const { n } = cluster.flat;
    if ([shown, state].some((each) => each !== null && each.octets.length !== n)) {
      throw new WireError(0, "slurm-gpuweb sent a frame of the wrong length");
    }
    cluster.state = state.octets;
    if (shown !== null && name === this.metric()) cluster.octets = shown.octets;
    const other = cluster.takeJobs(jobs.value);
    this.state.asOf_s = (shown ?? state).asOf_s;
    this.state.slurm_s = state.asOf_s; // allocations come from Slurm and may be older than live values
    return this.changed(other || layout !== null ? ["jobs", "frame"] : ["frame"]);
  }

  // Ignore a rejected metric before the first layout, which contains the names of all metrics.
  unknown(error, known) {
    if (known || error.status !== 400) throw error;
    return null;
  }

  // Load the data of the panels; old data is kept if new data cannot be loaded.
  async panels() {
    const { data } = this, now_ms = performance.now(), slow = now_ms - this.slow_ms >= SLOW_MS;
    const who = now_ms - this.me_ms >= (data.me?.limits === null ? SOON_MS : SLOW_MS);
    if (slow) this.slow_ms = now_ms;
    if (who) this.me_ms = now_ms;
    const ask = async (name, path, read) => {
      try {
        data[name] = read((await json(path)).value);
      } catch (error) {
        if (!(error instanceof WireError)) throw error;
      }
    };
    await Promise.all([
      ask("alerts", "attention", (value) => {
        data.suspects = value.suspects;
        data.complete_s = value.complete_from_s ?? null;
        return value.alerts;
      }),
      ask("free", "free", (value) => value),
      ask("queue", "queue", (value) => value),
      slow ? ask("reservations", "reservations", (value) => value.reservations ?? null) : null,
      who ? ask("me", "me", (value) => value) : null,
    ]);
    this.changed(["panels"]);
  }
}
