// Brings the parts together: one feed, six views of it, and the keys.

import { at, say, set } from "./dom.js";
import { Events } from "./events.js";
import { Feed } from "./feed.js";
import { count, growth, Window } from "./figures.js";
import { Handover } from "./handover.js";
import { Headline } from "./headline.js";
import { Nodes } from "./nodes.js";
import { inWords, Relay } from "./relay.js";
import { Requests } from "./requests.js";

const KEYS_OFF = "baton-keys-off";

const recent = new Window();
const headline = new Headline(at("figures"));
const feed = new Feed(show, state);
const handover = new Handover(feed);
const requests = new Requests((request, otherwise) => handover.show(request, otherwise));
const nodes = new Nodes(feed, signIn);
const relay = new Relay((role, url) => nodes.open(role, url));
const events = new Events();

let latest = null;

function show(data) {
  latest = data;
  recent.add(data);
  headline.show(data, recent);
  relay.show(data, ratesOf(recent));
  requests.show(data);
  nodes.show(data);
  events.show(data);
  const models = [...new Set(data.nodes.flatMap((node) => node.models))].map((name) => name.split("/").pop());
  say(at("serves"), models.length ? models.slice(0, 3).join(", ") + (models.length > 3 ? ` and ${models.length - 3} more` : "") : "");
  banner(data);
  const workers = data.workers.of > 1 ? `${data.workers.answering} of ${data.workers.of} workers, all together` : "one worker";
  say(at("foot"), `Baton ${data.version || "(from a tree)"} · ${workers} · the dashboard sees this proxy's requests alone`);
  at("sign").firstChild.nodeValue = feed.token ? "Sign out " : "Sign in ";
}

// The mean time of a node's legs (P) or between chunks (D), of the last half minute.
function ratesOf(samples) {
  const before = new Map((samples.first?.nodes ?? []).map((node) => [`${node.role} ${node.url}`, node]));
  return (node) => {
    const name = node.role === "prefill" ? "first" : "gaps";
    const was = before.get(`${node.role} ${node.url}`)?.[name] ?? [0, 0];
    const n = growth(node[name][0], was[0]);
    return n ? growth(node[name][1], was[1]) / n : null;
  };
}

function banner(data) {
  const bad = data.nodes.filter((node) => node.state === "down" || node.state === "isolated");
  const decode = data.nodes.filter((node) => node.role === "decode");
  const place = at("banner");
  if (place.dataset.why === "lost") return;
  const words = !data.nodes.length
    ? "No node is a member yet. Name some in proxy.prefill and proxy.decode, or add them with POST /admin/nodes."
    : !decode.some((node) => node.state === "ready")
      ? "No decode node is ready: nothing can be served."
      : bad.length
        ? `${count(bad.length)} of ${count(data.nodes.length)} nodes cannot be used. ${bad.length < 4 ? bad.map((node) => node.url.replace(/^https?:\/\//, "")).join(", ") : inWords(data.nodes)}`
        : "";
  place.className = `banner ${data.nodes.length && bad.length ? "bad" : "warn"}`;
  place.hidden = !words;
  say(place, words);
}

function state(name, problem) {
  set(at("live"), { "data-state": name });
  say(at("live-text"), { live: "live", lost: "connection lost", paused: "paused", hidden: "paused", refused: "signed out" }[name] ?? name);
  const place = at("banner");
  place.dataset.why = name === "lost" || name === "refused" ? "lost" : "";
  if (place.dataset.why) {
    place.className = "banner bad";
    place.hidden = false;
    say(place, name === "refused" ? `Signed out: ${problem}` : problem[0].toUpperCase() + problem.slice(1));
    if (name === "refused") {
      forget();
      setTimeout(() => { place.dataset.why = ""; }, 6000);
    }
  }
}

function signIn(words = "") {
  say(at("sign-problem"), words);
  at("token").value = "";
  at("sign-dialog").showModal();
}

function signInOrOut() {
  if (!feed.token) return signIn();
  feed.signOut();
  forget();
  return undefined;
}

// A page that is paused asks for nothing that would take the place of what only operators see.
function forget() {
  events.forget();
  if (!latest) return;
  const nodes = latest.nodes.map(({ running, waiting, kv_usage, ranks, incarnation, ...open }) => open);
  show({ ...latest, nodes, operator: false, requests: null, gauges: {}, failures: [], leaving: [] });
}

function pause() {
  const isPaused = !feed.isPaused;
  feed.pause(isPaused);
  set(at("pause"), { "aria-pressed": isPaused });
  at("pause").firstChild.nodeValue = isPaused ? "Go on " : "Pause ";
}

at("sign").addEventListener("click", signInOrOut);
at("pause").addEventListener("click", pause);
at("help").addEventListener("click", () => at("help-dialog").showModal());
at("all-nodes").addEventListener("click", () => nodes.openAll());
at("sign-form").addEventListener("submit", async (event) => {
  event.preventDefault();
  const problem = await feed.signIn(at("token").value.trim());
  say(at("sign-problem"), problem);
  if (!problem) at("sign-dialog").close();
  at("token").value = "";
});
for (const button of document.querySelectorAll("[data-close]")) button.addEventListener("click", () => button.closest("dialog").close());

const keysOn = at("keys-on");
keysOn.checked = localStorage.getItem(KEYS_OFF) === null;
keysOn.addEventListener("change", () => (keysOn.checked ? localStorage.removeItem(KEYS_OFF) : localStorage.setItem(KEYS_OFF, "1")));

const KEYS = {
  j: () => requests.step(1),
  k: () => requests.step(-1),
  f: () => at("follow").click(),
  n: () => nodes.openAll(),
  p: pause,
  s: signInOrOut,
  "?": () => at("help-dialog").showModal(),
};
document.addEventListener("keydown", (event) => {
  const isTyping = event.target.closest("input, textarea, select, [contenteditable]") && event.target.type !== "checkbox";
  if (isTyping || event.ctrlKey || event.metaKey || event.altKey || !keysOn.checked || document.querySelector("dialog[open]")) return;
  const act = KEYS[event.key];
  if (act) {
    event.preventDefault();
    act();
  }
});

feed.ask();
