// Send requests to slurm-gpuweb. A failed request throws a WireError with the status, or 0 if there was no answer.

import { setZone } from "./words.js";

export class WireError extends Error {
  constructor(status, message) {
    super(message);
    this.status = status;
  }
}

const PATIENCE_MS = 20e3; // a missing answer must not block later requests

let ahead_s = 0; // offset of slurm-gpuweb's clock from the browser's, according to Date headers

export const now_s = () => Date.now() / 1000 + ahead_s;

// Return the answer's body, read by `read`, and its headers.
async function ask(path, read) {
  let answer, body;
  try {
    const signal = AbortSignal.timeout(PATIENCE_MS);
    answer = await fetch(`api/v1/${path}`, { credentials: "same-origin", signal });
    body = answer.ok ? await read(answer) : await answer.json().catch(() => null);
  } catch {
    throw new WireError(0, "slurm-gpuweb does not answer");
  }
  setZone(answer.headers.get("X-Timezone"));
  const date = Date.parse(answer.headers.get("Date") ?? "");
  if (Number.isFinite(date)) {
    const found = date / 1000 + 0.5 - Date.now() / 1000; // a Date header is in whole seconds
    if (Math.abs(found - ahead_s) > 1.5) ahead_s = found;
  }
  if (answer.ok) return [body, answer.headers];
  throw new WireError(answer.status, String(body?.error ?? `slurm-gpuweb answered ${answer.status}`));
}

// End the session in every tab and for every copy of its cookie; return whether that succeeded.
export async function signOut() {
  try {
    const signal = AbortSignal.timeout(PATIENCE_MS);
    return (await fetch("signout", { method: "POST", headers: { "X-Slurm-Gpu": "1" }, credentials: "same-origin", signal })).ok;
  } catch {
    return false;
  }
}

const asOf_s = (headers) => {
  const time = Number(headers.get("X-As-Of-S"));
  return time > 0 ? time : null;
};

// Return {value, asOf_s, layout}; `layout` is the ID of the layout that numbers the squares of the value.
export async function json(path) {
  const [value, headers] = await ask(path, (answer) => answer.json());
  return { value, asOf_s: asOf_s(headers), layout: headers.get("X-Layout") };
}

// Return {octets, layout, asOf_s}, with one octet per square of the layout with that ID.
export async function frame(metric) {
  const [bytes, headers] = await ask(`frame?metric=${encodeURIComponent(metric)}`, (answer) => answer.arrayBuffer());
  return { octets: new Uint8Array(bytes), asOf_s: asOf_s(headers), layout: headers.get("X-Layout") };
}

// Call back at each new state, and when the stream opens or breaks; the browser reopens a broken stream.
export function events({ state, opened, broken }) {
  const source = new EventSource("api/v1/events");
  source.addEventListener("state", (event) => {
    try {
      state(JSON.parse(event.data));
    } catch {
      state(null);
    }
  });
  source.addEventListener("open", opened);
  source.addEventListener("error", () => broken(source.readyState === EventSource.CLOSED));
  return source;
}
