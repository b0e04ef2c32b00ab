// Choose the colours of the page: those of the system, or always light or dark ones (see early.js).

import { DARK } from "./scale.js";
import { say } from "./element.js";

const THEMES = ["system", "light", "dark"];
const system = matchMedia(DARK), printed = matchMedia("print");
const root = document.documentElement;

// Whether the colours are those on a dark background, in the form of a media query. Printed pages are light.
class Dark extends EventTarget {
  get matches() {
    const { theme } = root.dataset;
    return theme === undefined ? system.matches : theme === "dark" && !printed.matches;
  }
}
export const dark = new Dark();
for (const query of [system, printed]) query.addEventListener("change", () => dark.dispatchEvent(new Event("change")));

// Let a button change the theme: system, light, dark, and system again.
export function offerThemes(button) {
  const theme = () => root.dataset.theme ?? THEMES[0], show = () => say(button, `Theme: ${theme()}`);
  button.addEventListener("click", () => {
    const next = THEMES[(THEMES.indexOf(theme()) + 1) % THEMES.length];
    if (next === THEMES[0]) delete root.dataset.theme;
    else root.dataset.theme = next;
    try {
      localStorage.setItem("theme", next);
    } catch { /* the choice is valid until the page is closed */ }
    show();
    dark.dispatchEvent(new Event("change"));
  });
  button.hidden = false;
  show();
}
