// The page: the view that the address names, and the sign-in where the gateway requires a key.

import { CompareView } from "./compare.js";
import { el, setText } from "./dom.js";
import { EnginesView } from "./engines.js";
import { OverviewView } from "./overview.js";
import { ProgramView } from "./program.js";
import { ProgramsView } from "./programs.js";
import { GatewaySource } from "./source.js";

const source = new GatewaySource();
const main = document.getElementById("main");
const nav = document.getElementById("nav");
const statusLine = document.getElementById("status");
const signOut = document.getElementById("sign-out");
let view = null;
let turn = 0;

const VIEWS = [
  ["overview", "Overview", () => new OverviewView(source, ...listeners())],
  ["programs", "Programs", () => new ProgramsView(source, ...listeners())],
  ["engines", "Engines", () => new EnginesView(source, ...listeners())],
  ["compare", "Compare", () => new CompareView(source, ...listeners())],
];

function showStatus(text, isBad) {
  setText(statusLine, text);
  statusLine.classList.toggle("bad", isBad);
}

// Ignores the status of a view that is no longer shown: answers may arrive after it was left.
function listeners() {
  const own = turn + 1;
  const whileShown = (action) => (...told) => {
    if (own === turn) action(...told);
  };
  return [whileShown(showStatus), whileShown(askForKey)];
}

function chosenView() {
  const [name, ...rest] = location.hash.replace(/^#\//, "").split("/");
  if (name === "program" && rest.length) {
    return ["programs", () => new ProgramView(source, decodeId(rest.join("/")), ...listeners()), "Program"];
  }
  const [key, title, make] = VIEWS.find(([each]) => each === name) ?? VIEWS[0];
  return [key, make, title];
}

function decodeId(text) {
  try {
    return decodeURIComponent(text);
  } catch {
    return text;
  }
}

function showView() {
  const [name, make, title] = chosenView();
  for (const link of nav.children) {
    if (link.dataset.view === name) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
  replaceView(make());
  document.title = `${title} · Autellix`;
}

function replaceView(next) {
  view?.close();
  view = next;
  turn += 1;
  showStatus("", false);
  main.replaceChildren(view.node);
  view.open?.();
}

function askForKey(error) {
  const isWrong = source.key !== null;
  source.key = null;
  signOut.hidden = true;
  const input = el("input", { type: "password", id: "key", autocomplete: "off", required: true, spellcheck: "false" });
  const form = el("form", { class: "card sign-in", submit: (event) => {
    event.preventDefault();
    source.key = input.value.trim();
    signOut.hidden = false;
    showView();
  } },
    el("h1", {}, "Sign in"), el("p", {}, "Sign in with your API key to see your programs. Admin keys see everything."),
    isWrong ? el("p", { class: "bad", role: "alert" }, error.message) : null,
    el("label", { for: "key" }, "API key"), input, el("p", { class: "soft" }, "Kept until this tab is closed."),
    el("button", { type: "submit" }, "Sign in"));
  replaceView({ node: form, close() {} });
  input.focus();
}

signOut.addEventListener("click", () => {
  source.key = null;
  signOut.hidden = true;
  showView();
});
document.querySelector(".skip").addEventListener("click", (event) => {
  // The address names the view, so the link must not change it.
  event.preventDefault();
  main.focus();
});
window.addEventListener("hashchange", () => {
  showView();
  main.focus();
});
signOut.hidden = source.key === null;
nav.append(...VIEWS.map(([name, title]) => el("a", { href: `#/${name}`, "data-view": name }, title)));
showView();
