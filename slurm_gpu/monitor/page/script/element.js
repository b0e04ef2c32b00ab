// Make elements of the page. Text from the server never becomes markup, because this module inserts it only as text
// nodes.

// Make an element with attributes and children. A child is an element, a text or null, which is omitted. Attributes
// that begin with "on" are event listeners.
export function make(tag, attributes = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) made.addEventListener(name.slice(2), value);
    else made.setAttribute(name, value === true ? "" : String(value));
  }
  made.append(...children.flat().filter((child) => child !== null && child !== undefined).map(asNode));
  return made;
}

// Convert text with commands in backticks to elements with the commands as code.
export const coded = (text) => make("bdi", {}, text.split("`").map((part, place) => (place % 2 ? make("code", {}, part) : part)));

const asNode = (child) => (child instanceof Node ? child : document.createTextNode(String(child)));

// Replace the children of an element.
export function fill(element, ...children) {
  element.replaceChildren(...children.flat().filter((child) => child !== null && child !== undefined).map(asNode));
}

const REACHED = "a, button, summary";

// Replace children that are updated every few seconds. Equal children are kept, opened details remain open, and the
// keyboard focus is kept: on the element with the same data-key or, without a key, at the same position.
export function refill(element, ...children) {
  const next = make("div", {}, ...children);
  const [was, will] = [element, next].map((one) => [...one.querySelectorAll("details")]);
  was.forEach((one, place) => { if (will[place]) will[place].open = one.open; });
  const [before, after] = [[...element.childNodes], [...next.childNodes]];
  if (before.length === after.length && before.every((one, place) => one.isEqualNode(after[place]))) return;
  const focus = [...element.querySelectorAll(REACHED)].indexOf(document.activeElement), key = document.activeElement?.dataset.key;
  element.replaceChildren(...after);
  if (focus < 0) return;
  const reached = [...element.querySelectorAll(REACHED)];
  (key === undefined ? reached[focus] : reached.find((one) => one.dataset.key === key))?.focus({ preventScroll: true });
}

// Set a text only if it changes, because screen readers announce each change.
export function say(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

export const byId = (id) => document.getElementById(id);

// Make a table. Each heading or cell is a text or an element, and numbers are aligned to the right.
export function table(headings, rows, caption) {
  const right = headings.map((heading) => typeof heading === "object" && heading.number === true);
  const title = (heading) => (typeof heading === "object" ? heading.title : heading);
  return make("table", {},
    caption ? make("caption", { class: "unseen" }, caption) : null,
    make("thead", {}, make("tr", {}, headings.map((heading, place) =>
      make("th", { scope: "col", class: right[place] ? "number" : null }, title(heading))))),
    make("tbody", {}, rows.map((row) => make("tr", {}, row.map((cell, place) =>
      make("td", { class: right[place] ? "number" : null }, cell))))));
}
