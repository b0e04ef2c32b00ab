// Search for jobs, users, accounts and nodes, and find their squares.

import * as words from "./words.js";

const wordsOf = (written) => written.trim().toLowerCase().split(/[\s,]+/).filter(Boolean);

// Search for each word of a text; return {squares, text}, or null if there are no words.
export function find(cluster, written) {
  const asked = wordsOf(written);
  if (!asked.length) return null;
  const squares = new Set(), { jobs, nodes } = search(cluster, asked);
  let waiting = 0;
  for (const job of jobs) {
    if (job.state === "PENDING") waiting++;
    for (const square of cluster.squaresOf(job)) squares.add(square);
  }
  for (const node of nodes) for (let place = 0; place < node.n; place++) squares.add(node.first + place);
  return { squares, text: summary(squares.size, jobs.size - waiting, waiting, nodes.size) };
}

// Return the jobs that a text matches, and those on the nodes that it matches; all jobs if there are no words.
export function findJobs(cluster, written) {
  const asked = wordsOf(written);
  if (!asked.length) return [...cluster.jobs.values()];
  const { jobs, nodes } = search(cluster, asked);
  for (const node of nodes) {
    for (let square = node.first; square < node.first + node.n; square++) for (const job of cluster.jobsAt(square)) jobs.add(job);
  }
  return [...jobs];
}

function search(cluster, asked) {
  const jobs = new Set(), nodes = new Set();
  for (const word of asked) {
    for (const job of cluster.jobs.values()) if (isOf(job, word)) jobs.add(job);
    for (const node of matching(cluster.flat.nodes, word)) nodes.add(node);
  }
  return { jobs, nodes };
}

// Return whether a word matches a job: a whole ID, user or account, or part of the job's name.
function isOf(job, word) {
  const id = job.id.toLowerCase();
  return id === word || String(job.job_id) === word || id.startsWith(`${word}_`) || id.startsWith(`${word}+`)
    || same(job.user, word) || same(job.account, word) || (word.length > 2 && Boolean(job.name?.toLowerCase().includes(word)));
}

const same = (name, word) => name !== null && name !== undefined && name.toLowerCase() === word;

// Return the nodes whose name, rack, zone or server type is the word, or else those whose name begins with it.
function matching(nodes, word) {
  const exact = nodes.filter((node) => [node.name, node.rack, node.zone, node.serverType].some((name) => same(name, word)));
  return exact.length || word.length < 2 ? exact : nodes.filter((node) => node.name.toLowerCase().startsWith(word));
}

function summary(squares, running, waiting, nodes) {
  if (!running && !waiting && !nodes) return "nothing found";
  const parts = [];
  if (nodes) parts.push(words.counts(nodes, "node"));
  if (running) parts.push(words.counts(running, "job"));
  if (waiting) parts.push(`${words.counts(waiting, "job")} waiting`);
  return `${words.counts(squares, "GPU")}: ${parts.join(", ")}`;
}
