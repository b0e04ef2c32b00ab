// Takes the token out of the link, and out of the history, and has a session made of it.

const said = document.getElementById("said");
const token = location.hash.slice(1);

async function signIn() {
  history.replaceState(null, "", location.pathname);
  said.textContent = "Signing in …";
  let why = "slurm-gpuweb did not answer. Type again";
  try {
    const answer = await fetch("signin/token", {
      method: "POST",
      headers: { "Content-Type": "application/json", "X-Slurm-Gpu": "1" },
      body: JSON.stringify({ token }),
    });
    if (answer.ok) {
      location.replace("./");
      return;
    }
    why = `${(await answer.json()).error}. To try again, type`;
  } catch {
    // what is said already
  }
  said.dataset.wrong = "";
  said.textContent = why;
}

if (token !== "") signIn();
