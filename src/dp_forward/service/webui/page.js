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

// A shape of the picture, in the SVG's own units.
function shape(name, attributes, className) {
  const element = document.createElementNS(byId("curves").namespaceURI, name);
  for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, String(value));
  if (className) element.setAttribute("class", className);
  return element;
}

const place = (epsilon, share) => [38 + 250 * (epsilon / state.curves.epsilon.at(-1)), 112 - 100 * share];

function showCurves() {
  const parts = [];
  for (const share of [0, 0.5, 1]) {
    const [, y] = place(0, share);
    const label = shape("text", { x: 34, y: y + 4 }, "axis end");
    label.textContent = `${100 * share} %`;
    parts.push(label, shape("line", { x1: 38, x2: 288, y1: y, y2: y }, "grid"));
  }
  const { epsilon, ...curves } = state.curves;
  const known = curves.accuracy.filter((share) => share !== null).length;
  for (const [name, shares] of Object.entries(curves)) {
    const points = epsilon.map((e, i) => [e, shares[i]]).filter(([, share]) => share !== null);
    const places = points.map(([e, share]) => place(e, share));
    if (places.length > 1) parts.push(shape("polyline", { points: places.map((p) => p.join()).join(" ") }, name));
    else for (const [x, y] of places) parts.push(shape("circle", { cx: x, cy: y, r: 3.5 }, name));
  }
  for (const offer of state.epsilons) {
    const label = shape("text", { x: place(offer.epsilon, 0)[0], y: 128 }, "axis middle");
    label.textContent = String(offer.epsilon);
    parts.push(label);
  }
  byId("curves").append(...parts, shape("line", { id: "marker", y1: 8, y2: 114 }, "marker"));
  byId("key-accuracy").hidden = known === 0;
}

const chosen = () => state.epsilons[Number(byId("epsilon").value)];

function showChoice() {
  const offer = chosen();
  const [x] = place(offer.epsilon, 0);
  byId("chosen").textContent = String(offer.epsilon);
  byId("epsilon").setAttribute("aria-valuetext", `epsilon ${offer.epsilon}. ${offer.context[0]} ${offer.accuracy}`);
  byId("curves-title").textContent =
    `Best guess and accuracy against epsilon, up to ${state.curves.epsilon.at(-1)}. At ${offer.epsilon}: ${offer.context.join(" ")} ${offer.accuracy}`;
  byId("marker").setAttribute("x1", String(x));
  byId("marker").setAttribute("x2", String(x));
  byId("about").textContent =
    `How sure can somebody be who sees this release, and knows that it was one of these candidates (${offer.about})?`;
  byId("context").replaceChildren(...offer.context.map((said) => made("li", "", said)));
  byId("accuracy").textContent = offer.accuracy;
}

function showHistory(rows) {
  byId("charges").replaceChildren(...rows.map(({ time, charge, what }) => {
    const row = made("tr");
    row.append(made("td", "", new Date(time).toLocaleString()), made("td", "", charge), made("td", "", what));
    return row;
  }));
  byId("history").hidden = rows.length === 0;
}

async function load() {
  state = await call("/api/state", {});
  byId("server").textContent = state.server;
  byId("rows-hint").textContent = ` The front reads the first ${state.rows} tokens.`;
  for (const part of document.querySelectorAll(".second")) part.hidden = !state.pair;
  const last = state.epsilons.length - 1;
  Object.assign(byId("epsilon"), { max: String(last), value: String(last), disabled: last === 0 });
  byId("stops").replaceChildren(...state.epsilons.map((offer) => made("span", "", String(offer.epsilon))));
  byId("how").textContent = state.reconstruction || "";
  byId("game").hidden = state.reconstruction !== null;
  showCurves();
  showChoice();
  showHistory(state.history);
  showBudget(state.budget);
}

// Rows of a name, a bar and a percentage.
function bars(rows) {
  return rows.map(([name, share, shown]) => {
    const row = made("li");
    const bar = made("div", "bar");
    const fill = made("div", "fill");
    bar.setAttribute("aria-hidden", "true");
    width(fill, share);
    bar.append(fill);
    row.append(made("span", "", name), bar, made("span", "value", shown));
    return row;
  });
}

function showLabels(probabilities, all) {
  const rows = Object.entries(probabilities).sort((a, b) => b[1] - a[1]);
  byId("probabilities").replaceChildren(
    ...bars(rows.slice(0, all ? rows.length : 6).map(([name, share]) => [name, share, percent(share)])));
  const more = byId("more");
  more.hidden = rows.length <= 6;
  more.setAttribute("aria-expanded", String(all));
  more.textContent = all ? "Show the first 6" : `Show all ${rows.length} labels`;
  more.onclick = () => showLabels(probabilities, !all);
}

// A cell for each integer: one colour below zero, another above, the stronger the further from it. A single
// row is folded to a rectangle.
function showPicture(picture, labels) {
  byId("sent").hidden = !picture;
  if (!picture) return;
  const values = picture.values.flat();
  const decided = picture.values.length === 1 && values.length === labels && values.every((value) => value === 0 || value === 1);
  byId("sent-meaning").hidden = !decided;
  byId("sent-meaning").textContent =
    decided ? `A cell for each of the ${labels} labels, and one of them is set. The noise may have set it in place of the front.` : "";
  const across = picture.values.length > 1 || values.length < 24 ? picture.values[0].length : Math.ceil(Math.sqrt(6 * values.length));
  const canvas = byId("picture");
  Object.assign(canvas, { width: across, height: Math.ceil(values.length / across) });
  canvas.setAttribute("aria-label", picture.words);
  canvas.style.width = `min(100%, ${across < 24 ? 3 * across : 30}rem)`;
  byId("sent-words").textContent = `${picture.words}.`;
  const most = Math.max(1, ...values.map(Math.abs));
  const cells = canvas.getContext("2d").createImageData(canvas.width, canvas.height);
  values.forEach((value, at) => {
    const colour = value < 0 ? [196, 106, 74] : value > 0 ? [11, 140, 120] : [128, 134, 144];
    cells.data.set([...colour, 40 + 215 * Math.abs(value) / most], 4 * at);
  });
  canvas.getContext("2d").putImageData(cells, 0, 0);
}

function showAnswer(text, answer) {
  byId("asked").textContent = [text].flat().join("\n");
  byId("label").textContent = answer.label;
  byId("reply").hidden = !answer.reply;
  byId("reply").textContent = answer.reply ?? "";
  byId("kept").textContent = answer.kept;
  showLabels(answer.probabilities, false);
  byId("charge").textContent = answer.charge === 0 ? "0" : `epsilon ${answer.shown_charge}`;
  byId("promise").textContent = answer.promise;
  byId("resent").hidden = answer.stored || !answer.resent;
  byId("stored").hidden = !answer.stored;
  byId("truncated").hidden = !answer.truncated;
  byId("truncated").textContent =
    `The text is longer than the front reads: it was cut to its first ${state.rows} tokens.`;
  showPicture(answer.picture, Object.keys(answer.probabilities).length);
  showBudget(answer.budget);
  showHistory(answer.history);
  byId("result").hidden = false;
  byId("status").textContent = `Answer: ${answer.label}. Charge ${answer.shown_charge}. ${byId("left").textContent}.`;
}

function showWords(name, reading) {
  const words = reading.words.map(({ word, right }) => {
    const chip = made("span", right ? "right" : "", word);
    chip.title = right ? "right" : "wrong";
    return chip;
  });
  byId(name).replaceChildren(...words);
  byId(`${name}-recall`).textContent = `${Math.round(100 * reading.recall)} % of the tokens found`;
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

// What is written in a box, or in two where the run is about pairs; null where one of them is empty.
function written(first, second) {
  const parts = [byId(first).value, ...(state.pair ? [byId(second).value] : [])];
  return parts.some((part) => !part.trim()) ? null : parts.length === 1 ? parts[0] : parts;
}

async function busy(button, words, work) {
  const usual = button.textContent;
  const focused = document.activeElement === button;
  tell("");
  button.disabled = true;
  button.textContent = words;
  try {
    if (state === null) await load();
    return await work();
  } catch (error) {
    tell(error.message);
    return null;
  } finally {
    button.disabled = false;
    button.textContent = usual;
    if (focused) button.focus();
  }
}

const NOTHING = "There is nothing here that the model can read. Type a few words.";

async function ask(resend) {
  const turn = ++latest;
  byId("result").hidden = byId("reading").hidden = true;
  await busy(byId("ask"), "Asking ...", async () => {
    const question = resend ? asked : { text: written("text", "second"), epsilon: chosen().epsilon };
    if (question.text === null) throw new Error(NOTHING);
    showAnswer(question.text, await call("/api/ask", { ...question, resend }));
    asked = question;
  });
  if (asked === null || byId("result").hidden || state.reconstruction === null) return;
  try { await showReading(asked.text, asked.epsilon, turn); } catch (error) { if (turn === latest) tell(error.message); }
}

async function compare() {
  await busy(byId("compare"), "Drawing ...", async () => {
    const [text, other] = [written("first-text", "first-second"), written("other-text", "other-second")];
    if (text === null || other === null) throw new Error(NOTHING);
    const { epsilon, about } = chosen();
    const found = await call("/api/compare", { text, other, epsilon });
    const over = (rate) => 2 * rate - 1; // a coin is an empty bar
    byId("rates").replaceChildren(...bars([
      ["A coin", 0, "50 %"],
      ["These two", over(found.exact), found.shown_exact],
      [`Proved: ${about}`, over(found.ceiling), found.shown_ceiling],
    ]));
    byId("verdict").textContent =
      `At epsilon ${epsilon} the best test between these two is right in at most ${found.shown_exact} of all releases. ` +
      `Of ${found.draws} releases that were drawn here just now it named ${found.right} rightly.` +
      (found.exact === 0.5 ? " To your front both are the same: their releases look exactly alike." : "");
    byId("outcome").hidden = false;
  });
}

function submits(form, button, work) {
  byId(form).addEventListener("submit", (event) => {
    event.preventDefault();
    if (!byId(button).disabled) work();
  });
  for (const box of byId(form).querySelectorAll("textarea")) {
    box.addEventListener("keydown", (event) => {
      if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
        event.preventDefault();
        byId(form).requestSubmit();
      }
    });
  }
}

submits("form", "ask", () => ask(false));
submits("game", "compare", compare);
byId("resend").addEventListener("click", () => { if (!byId("ask").disabled) ask(true); });
byId("epsilon").addEventListener("input", showChoice);
load().catch((error) => tell(error.message));
