// How the page asks slurm-gpuweb. What was not answered is a WireError with its status, 0 where nobody answered.

export class WireError extends Error {
  constructor(status, message) {
    super(message);
    this.status = status;
  }
}

const PATIENCE_MS = 20e3; // one answer that never comes must not hold up all later ones

let ahead_s = 0; // of this screen's clock: slurm-gpuweb's, by its answers

export const now_s = () => Date.now() / 1000 + ahead_s;

// The answer, and its body as `read` takes it.
async function ask(path, read) {
  let answer, body;
  try {
    const signal = AbortSignal.timeout(PATIENCE_MS);
    answer = await fetch(`api/v1/${path}`, { credentials: "same-origin", signal });
    body = answer.ok ? await read(answer) : await answer.json().catch(() => null);
  } catch {
    throw new WireError(0, "slurm-gpuweb does not answer");
  }
  const date = Date.parse(answer.headers.get("Date") ?? "");
  if (Number.isFinite(date)) {
    const found = date / 1000 + 0.5 - Date.now() / 1000; // a Date has whole seconds
    if (Math.abs(found - ahead_s) > 1.5) ahead_s = found;
  }
  if (answer.ok) return [body, answer.headers];
  throw new WireError(answer.status, String(body?.error ?? `slurm-gpuweb answered ${answer.status}`));
}

// Ends the session, in every tab and copy of its cookie; whether it did.
export async function signOut() {
  try {
    const signal = AbortSignal.timeout(PATIENCE_MS);
    return (await fetch("signout", { method: "POST", headers: { "X-Slurm-Gpu": "1" }, credentials: "same-origin", signal })).ok;
  } catch {
    return false;
  }
}

const asOf_s = (headers) => {
  const told = Number(headers.get("X-As-Of-S"));
  return told > 0 ? told : null;
};

// {value, asOf_s, layout}: the value, and the layout by which its squares are numbered.
export async function json(path) {
  const [value, headers] = await ask(path, (answer) => answer.json());
  return { value, asOf_s: asOf_s(headers), layout: headers.get("X-Layout") };
}

// {octets, layout, asOf_s}: one octet a square, of the layout with that id.
export async function frame(metric) {
  const [bytes, headers] = await ask(`frame?metric=${encodeURIComponent(metric)}`, (answer) => answer.arrayBuffer());
  return { octets: new Uint8Array(bytes), asOf_s: asOf_s(headers), layout: headers.get("X-Layout") };
}

// Calls back at each new state, and when the stream opens or breaks; the browser opens it again by itself.
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
