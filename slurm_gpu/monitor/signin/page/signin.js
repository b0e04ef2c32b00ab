// Remove the token from the address and the history, and exchange it for a session.

const status = document.getElementById("status");
const token = location.hash.slice(1);

async function signIn() {
  history.replaceState(null, "", location.pathname);
  status.textContent = "Signing in …";
  let why = "slurm-gpuweb did not answer. Run again";
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
    const { error } = await answer.json();
    why = `${error[0].toUpperCase()}${error.slice(1)}. To try again, run`;
  } catch {
    // `why` already contains the message.
  }
  status.dataset.wrong = "";
  status.textContent = why;
}

if (token !== "") signIn();
