// Show the events of a run.

import { byId, fill, make, table } from "./element.js";
import { now_s } from "./wire.js";
import * as words from "./words.js";

export function showEvents(run) {
  const events = run.events ?? [];
  byId("events").hidden = !events.length;
  fill(byId("events").querySelector("div"), table(["Time", "Node", "Event", "Details"], events.map((event) => [
    words.moment(event.at_s, now_s(), true), make("bdi", {}, event.node), make("bdi", {}, event.kind.replaceAll("_", " ")),
    make("bdi", {}, inWords(event.data)),
  ]), "Events"));
}

// Format the data of an event, such as `code 79, device GPU-a`.
function inWords(data) {
  const format = (value) => (typeof value === "object" ? JSON.stringify(value) : String(value));
  return Object.entries(data ?? {}).map(([name, value]) => `${name.replaceAll("_", " ")} ${format(value)}`).join(", ");
}
