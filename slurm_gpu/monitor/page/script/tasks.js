// Show the tasks of a job array as squares coloured by state, each a link to the page of the task.

import { jobPage } from "./address.js";
import { fill, make } from "./element.js";
import { RUNNING } from "./runs.js";
import * as words from "./words.js";

const MOST = 400; // more squares are neither legible nor quick to step through with the keyboard
const KINDS = [
  ["pending", ["PENDING"]], ["running", RUNNING], ["completed", ["COMPLETED"]], ["cancelled", ["CANCELLED", "PREEMPTED", "REQUEUED"]],
];
const kindOf = (state) => KINDS.find(([, states]) => states.includes(state))?.[0] ?? "failed";

// Return a map of each task's number to its newest state. In the queue, `queued.id` lists pending tasks, such as 9_2-5,8%2.
export function tasksOf(array, runs, queued) {
  const found = new Map();
  for (const run of runs) if (run.array_job_id === array && run.array_task !== null && !found.has(run.array_task)) found.set(run.array_task, run.state);
  for (const number of pendingTasks(queued?.id)) found.set(number, "PENDING");
  return new Map([...found].sort(([a], [b]) => a - b));
}

// Return the numbers in the ID of tasks that Slurm has not split yet. Slurm ends a long list with "...", which may
// cut the last number short.
function pendingTasks(id) {
  const whole = (id ?? "").replace(/(^|[,_[])[^,_[]*\.\.\..*$/, ""), list = /^[0-9]+_\[?([0-9,:-]+)(%[0-9]+)?\]?$/.exec(whole)?.[1] ?? "", numbers = [];
  for (const part of list.split(",")) {
    const [, first, last, step] = /^([0-9]+)(?:-([0-9]+)(?::([0-9]+))?)?$/.exec(part)?.map((text) => Number(text)) ?? [];
    if (first === undefined) continue;
    for (let number = first; number <= (last || first) && numbers.length <= 10_000; number += step || 1) numbers.push(number);
  }
  return numbers;
}

// Return how many pending tasks of an array Slurm's list leaves out.
export const unlisted = (queued) => (/^[0-9]+_.*[^0-9]/.test(queued?.id ?? "") && queued.state === "PENDING" ? Math.max(0, queued.n_tasks - pendingTasks(queued.id).length) : 0);

// Show the tasks of an array, or only their number in each state if there are too many.
export function showTasks(place, array, tasks, n_unlisted) {
  const counts = new Map(n_unlisted ? [["pending", n_unlisted]] : []);
  for (const state of tasks.values()) counts.set(kindOf(state), (counts.get(kindOf(state)) ?? 0) + 1);
  const legend = [...KINDS.map(([kind]) => kind), "failed"].filter((kind) => counts.has(kind))
    .map((kind) => make("span", {}, make("i", { class: `task ${kind}`, "aria-hidden": "true" }), `${words.count(counts.get(kind))} ${kind}`));
  const squares = [...tasks].map(([number, state]) => {
    const text = `Task ${number}: ${state.toLowerCase().replaceAll("_", " ")}`;
    return make("li", {}, make("a", { class: `task ${kindOf(state)}`, href: jobPage(`${array}_${number}`), title: text }, make("span", { class: "unseen" }, text)));
  });
  fill(place, make("p", { class: "legend" }, legend),
    tasks.size > MOST ? make("p", { class: "note" }, `The page of a task is at job?id=${array}_TASK.`) : make("ul", { class: "tasks" }, squares),
    n_unlisted ? make("p", { class: "note" }, `${words.counts(n_unlisted, "pending task")} more, whose numbers Slurm's queue leaves out.`) : null);
}
