// Run what all pages have: the theme, the link to copy, and the search, which the tabs carry.

import { byId, say } from "./element.js";
import { offerThemes } from "./theme.js";
import { signOut } from "./wire.js";

const COPIED_MS = 2000;
const CARRIED = ["find", "view"];

// Let the links of the tabs carry the search and the view of this page.
export function carry() {
  const given = new URLSearchParams(location.search);
  for (const link of document.querySelectorAll("[data-carries]")) {
    const query = new URLSearchParams(CARRIED.filter((name) => given.get(name)).map((name) => [name, given.get(name)])).toString();
    link.setAttribute("href", link.getAttribute("href").split("?")[0] + (query ? `?${query}` : ""));
  }
}

// Set the page's icon: "icon" in general, "icon-attention" if jobs need attention, and "icon-old" if the data is old.
export function setIcon(name) {
  const link = byId("icon"), next = link.getAttribute("href").replace(/[\w-]+\.svg$/, `${name}.svg`);
  if (link.getAttribute("href") !== next) link.setAttribute("href", next);
}

// Show the user of GET /api/v1/me, and the sign-out button to users who signed in by a link. Users of a reverse proxy
// sign out at the proxy.
export function showViewer(me) {
  say(byId("user"), me?.user ?? "");
  byId("signout").hidden = me?.signed_in !== "link";
}

export function startShell() {
  offerThemes(byId("theme"));
  const copy = byId("copy");
  copy.hidden = navigator.clipboard === undefined; // browsers copy only on pages with https
  copy.addEventListener("click", async () => {
    const text = copy.textContent;
    say(copy, await navigator.clipboard.writeText(location.href).then(() => "Copied", () => "Not copied"));
    setTimeout(() => say(copy, text), COPIED_MS);
  });
  byId("signout").addEventListener("click", async () => {
    byId("signout").disabled = true;
    const out = await signOut();
    byId("signout").disabled = false;
    if (out) location.replace("signin");
    else say(byId("signout"), "Sign-out failed, retry");
  });
  carry();
}
