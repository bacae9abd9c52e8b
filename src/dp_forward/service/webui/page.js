"use strict";

// Everything that comes from elsewhere is put in with textContent: it is shown, never run.

const byId = (id) => document.getElementById(id);
const key = takeKey();
let state = null;
let latest = 0;
let asked = null;

// The key is in the fragment, which no server sees. It is kept for reloads of this tab, and taken out of the
// address, so that it is not copied or marked along with it.
function takeKey() {
  const found = new URLSearchParams(location.hash.slice(1)).get("key");
  if (found) {
    sessionStorage.setItem("key", found);
    history.replaceState(null, "", location.pathname);
  }
  return found || sessionStorage.getItem("key") || "";
}

async function call(path, body) {
  let response;
  try {
    response = await fetch(path, {
      method: "POST",
      headers: { "content-type": "application/json", "x-dpf-key": key },
      body: JSON.stringify(body),
      cache: "no-store",
      credentials: "omit",
      redirect: "error",
    });
  } catch {
    throw new Error("This page's own server does not answer. Is `dpf ui` still running?");
  }
  let found = null;
  try { found = await response.json(); } catch { /* told below */ }
  if (!response.ok || found === null) {
    throw new Error((found && found.message) || "Something failed on this machine. Ask again.");
  }
  return found;
}

function tell(problem) {
  byId("problem").textContent = problem || "";
  byId("problem").hidden = !problem;
}

function made(name, className, text) {
  const element = document.createElement(name);
  if (className) element.className = className;
  if (text !== undefined) element.textContent = text;
  return element;
}

const percent = (share) => `${(100 * share).toFixed(1)} %`;
const width = (element, share) => { element.style.width = `${Math.min(100, Math.max(0, 100 * share))}%`; };

function showBudget(budget) {
  const today = budget.shown_today === null ? "" : budget.by_day ? " today" : `, ${budget.shown_today} of it today`;
  byId("left").textContent = `${budget.shown.remaining} of ${budget.shown.cap} left${today}`;
  byId("budget").title = budget.promise;
  const share = budget.share;
  width(byId("budget-fill"), share);
  byId("budget").setAttribute("aria-valuenow", String(Math.floor(100 * share)));
  byId("budget").setAttribute("aria-valuetext", byId("left").textContent);
}

function showOffers(offers) {
  const place = byId("offers");
  place.replaceChildren();
  offers.forEach((offer, number) => {
    const label = made("label");
    const input = made("input");
    Object.assign(input, { type: "radio", name: "epsilon", value: String(offer.epsilon), checked: number === 0 });
    label.append(input, made("span", "", String(offer.epsilon)));
    place.append(label);
  });
}

async function load() {
  state = await call("/api/state", {});
  byId("server").textContent = state.server;
  byId("rows-hint").textContent = ` The front reads the first ${state.rows} tokens.`;
  byId("how").textContent = state.reconstruction.how;
  showOffers(state.epsilons);
  showBudget(state.budget);
}

function showAnswer(text, answer) {
  byId("asked").textContent = text;
  byId("label").textContent = answer.label;
  const rows = Object.entries(answer.probabilities).sort((a, b) => b[1] - a[1]).map(([name, share]) => {
    const row = made("li");
    const bar = made("div", "bar");
    const fill = made("div", "fill");
    bar.setAttribute("aria-hidden", "true");
    width(fill, share);
    bar.append(fill);
    row.append(made("span", "", name), bar, made("span", "value", percent(share)));
    return row;
  });
  byId("probabilities").replaceChildren(...rows);
  byId("charge").textContent = answer.charge === 0 ? "0" : `epsilon ${answer.shown_charge}`;
  byId("promise").textContent = answer.promise;
  byId("resent").hidden = answer.stored || !answer.resent;
  byId("stored").hidden = !answer.stored;
  byId("truncated").hidden = !answer.truncated;
  byId("truncated").textContent =
    `The text is longer than the front reads: it was cut to its first ${state.rows} tokens.`;
  byId("guess").textContent = answer.guess;
  width(byId("guess-fill"), 2 * answer.guess_rate - 1);
  showBudget(answer.budget);
  byId("result").hidden = false;
}

function showWords(name, reading) {
  const words = reading.words.map(({ word, right }) => {
    const chip = made("span", right ? "right" : "", word);
    chip.title = right ? "right" : "wrong";
    return chip;
  });
  byId(name).replaceChildren(...words);
  const found = `${Math.round(100 * reading.recall)} % of the tokens`;
  const what = state.reconstruction.pooled ? `${found} are among these nearest words` : `${found} found`;
  byId(`${name}-recall`).textContent = what;
}

async function showReading(text, epsilon, turn) {
  byId("reading").hidden = false;
  byId("panels").hidden = true;
  byId("preparing").hidden = false;
  byId("preparing").textContent = "Reading the release as the provider could ...";
  for (;;) {
    const found = await call("/api/look", { text, epsilon });
    if (turn !== latest) return;
    if (found.prepared === null) {
      byId("preparing").textContent = "The reconstruction could not be prepared. Answers are not affected.";
      return;
    }
    if (found.without) {
      showWords("without", found.without);
      if (found.with) showWords("with", found.with);
      else { byId("with").replaceChildren(); byId("with-recall").textContent = "Nothing was sent."; }
      byId("preparing").hidden = true;
      byId("panels").hidden = false;
      return;
    }
    byId("preparing").textContent = `The reconstruction is being prepared, ${Math.floor(100 * found.prepared)} %.`;
    await new Promise((done) => setTimeout(done, 500));
    if (turn !== latest) return;
  }
}

async function ask(resend) {
  const text = resend ? asked.text : byId("text").value;
  if (!text.trim()) { tell("There is nothing here that the model can read. Type a few words."); return; }
  const button = byId("ask");
  const turn = ++latest;
  tell("");
  button.disabled = true;
  button.textContent = "Asking ...";
  byId("result").hidden = byId("reading").hidden = true;
  try {
    if (state === null) await load();
    const epsilon = resend ? asked.epsilon : Number(document.querySelector("input[name=epsilon]:checked").value);
    showAnswer(text, await call("/api/ask", { text, epsilon, resend }));
    asked = { text, epsilon };
    button.disabled = false;
    button.textContent = "Ask";
    await showReading(text, epsilon, turn);
  } catch (error) {
    if (turn === latest) tell(error.message);
  } finally {
    if (turn === latest) { button.disabled = false; button.textContent = "Ask"; }
  }
}

byId("form").addEventListener("submit", (event) => {
  event.preventDefault();
  if (!byId("ask").disabled) ask(false);
});
byId("resend").addEventListener("click", () => { if (!byId("ask").disabled) ask(true); });
byId("text").addEventListener("keydown", (event) => {
  if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
    event.preventDefault();
    byId("form").requestSubmit();
  }
});
load().catch((error) => tell(error.message));
