// Elements of the page. What the server told becomes text, never markup: there is no other way in here.

// An element with these attributes and children; a child is an element or text, null is left out.
// `class`, `hidden` and the like are attributes; what begins with "on" is listened to.
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

// A text in which commands stand between backticks, as in a terminal: here they are set as code.
export const coded = (text) => make("bdi", {}, text.split("`").map((part, place) => (place % 2 ? make("code", {}, part) : part)));

const asNode = (child) => (child instanceof Node ? child : document.createTextNode(String(child)));

// Replaces what an element holds.
export function fill(element, ...children) {
  element.replaceChildren(...children.flat().filter((child) => child !== null && child !== undefined).map(asNode));
}

const REACHED = "a, button, summary";

// The same of what is told again every few seconds: what is alike stays, what was opened stays open, and whoever is there with
// the keyboard stays where they are.
export function refill(element, ...children) {
  const next = make("div", {}, ...children);
  const [was, will] = [element, next].map((one) => [...one.querySelectorAll("details")]);
  was.forEach((one, place) => { if (will[place]) will[place].open = one.open; });
  const [before, after] = [[...element.childNodes], [...next.childNodes]];
  if (before.length === after.length && before.every((one, place) => one.isEqualNode(after[place]))) return;
  const focus = [...element.querySelectorAll(REACHED)].indexOf(document.activeElement);
  element.replaceChildren(...after);
  if (focus >= 0) element.querySelectorAll(REACHED)[focus]?.focus({ preventScroll: true });
}

// A text that is only written where it is another: screen readers tell each change.
export function say(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

export const byId = (id) => document.getElementById(id);

// A table with these headings; a heading or a cell is text or an element, numbers are set to the right.
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
