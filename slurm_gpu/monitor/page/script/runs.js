// The runs of a job: its states, and combining accounting with Slurm's queue.

export const RUNNING = ["RUNNING", "COMPLETING", "SUSPENDED"];
export const keyOf = (run) => `${run.id} ${run.submit_s}`;
export const isRunning = (run) => RUNNING.includes(run.state);
export const isPending = (run) => run.start_s === null && run.end_s === null;

// Return the runs, updated from the queue, because accounting may not contain the job or its start yet.
export function withQueued(found, queued, now_s) {
  if (queued === null) return found;
  const { id: name, submit_s, state } = queued, known = found.find((run) => run.id === name && run.submit_s === submit_s);
  if (known && (known.start_s !== null || state === "PENDING")) return found;
  const pending = state === "PENDING";
  const run = {
    events: [], devices: [], by_device: null, percentiles: null, use: null, suggestions: null, coverage: null, nodes: null, gpu_type: null, ...known, ...queued,
    nGPU: queued.n_gpus, nNODE: queued.n_nodes, start_s: pending ? null : queued.start_s, end_s: null, WAIT_h: pending ? null : (queued.start_s - submit_s) / 3600,
    elapsed_s: pending ? null : Math.max(0, now_s - queued.start_s),
  };
  return [run, ...found.filter((one) => one !== known)];
}
