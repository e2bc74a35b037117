// What happened: changes between two looks that an operator should know of, newest first.

import { at, make } from "./dom.js";
import { clock, count, short } from "./figures.js";

const MOST = 60;
const REMEMBERED = 2000; // failures that have been told
const GOOD = new Set(["ready"]);
const OPERATORS = new Set(["request", "transfer", "quarantine"]); // tags of what only they see

export class Events {
  constructor() {
    this.before = null;
    this.seen = new Set();
    this.quarantined = new Map(); // blocks of each node, as it said last
    this.list = at("events");
  }

  // Leave nothing that only operators see.
  forget() {
    this.quarantined.clear();
    for (const line of [...this.list.children]) if (OPERATORS.has(line.children[1].textContent)) line.remove();
  }

  show(feed) {
    const found = this.before ? changes(this.before, feed) : standing(feed);
    found.push(...this.quarantine(feed), ...this.failures(feed));
    for (const event of found.sort((a, b) => a.at - b.at)) this.add(event);
    this.before = feed;
  }

  // A node that does not answer says nothing of its blocks, and keeps them.
  quarantine(feed) {
    const found = [];
    for (const node of feed.nodes) {
      const key = `${node.role} ${node.url}`;
      const blocks = feed.gauges?.[key]?.quarantined ?? null;
      if (blocks === null) continue;
      const had = this.quarantined.get(key) ?? 0;
      this.quarantined.set(key, blocks);
      if (blocks && !had) found.push({ at: feed.at, kind: "warn", tag: "quarantine", words: `${short(node.url)} holds ${count(blocks)} blocks until their fence` });
      else if (!blocks && had) found.push({ at: feed.at, kind: "d", tag: "quarantine", words: `${short(node.url)} has all blocks back` });
    }
    return found;
  }

  failures(feed) {
    const found = [];
    for (const request of feed.requests?.recent ?? []) {
      const failed = request.broken || request.status >= 500;
      const recomputed = request.path === "recomputed";
      const again = request.events.map(([, name]) => name).includes("resume") ? "broke and was resumed" : request.attempts > 1 ? `took ${count(request.attempts)} attempts` : "";
      if (!(failed || recomputed || again) || !this.isNew(`request ${request.id}`)) continue;
      const nodes = [request.prefill, request.decode].filter(Boolean).map(short).join(" → ");
      const what = failed ? (request.broken ? "broke off" : `failed with ${request.status}`) : again || "was recomputed on its decode node";
      found.push({ at: request.at + request.lasted_s, kind: failed ? "bad" : "warn", tag: "request", words: `${request.id.slice(0, 8)} ${what}${nodes ? ` (${nodes})` : ""}${request.reason ? `: ${request.reason}` : ""}` });
    }
    for (const failure of feed.failures ?? []) {
      if (!this.isNew(`transfer ${failure.url} ${failure.transfer} ${failure.state}`) || failure.at === null) continue;
      found.push({ at: failure.at, kind: "bad", tag: "transfer", words: `${failure.transfer.slice(0, 8)} on ${short(failure.url)}, ${failure.state}: ${failure.reason}` });
    }
    return found;
  }

  isNew(key) {
    if (this.seen.has(key)) return false;
    this.seen.add(key);
    if (this.seen.size > REMEMBERED) this.seen.delete(this.seen.values().next().value); // the oldest
    return true;
  }

  add({ at: at_s, kind, tag, words }) {
    const line = make("li", {}, make("span", { class: "quiet" }, clock(at_s)), make("span", { class: `tag ${kind}` }, tag), make("span", {}, words));
    this.list.prepend(line);
    while (this.list.children.length > MOST) this.list.lastElementChild.remove();
  }
}

// What is out of the ordinary already when the page first looks.
function standing(feed) {
  return feed.nodes.filter((node) => !GOOD.has(node.state)).slice(0, 12).map((node) => stateEvent(feed.at, node));
}

function changes(before, now) {
  const found = [];
  const known = new Map(before.nodes.map((node) => [`${node.role} ${node.url}`, node]));
  for (const node of now.nodes) {
    const was = known.get(`${node.role} ${node.url}`);
    known.delete(`${node.role} ${node.url}`);
    if (!was) found.push({ at: now.at, kind: "d", tag: "joined", words: `${node.role} node ${short(node.url)} is a member` });
    else if (was.state !== node.state) found.push(stateEvent(now.at, node));
    if (was && was.breaker !== "open" && node.breaker === "open") found.push({ at: now.at, kind: "bad", tag: "breaker", words: `${short(node.url)}: opened` });
    else if (was && was.breaker !== "closed" && node.breaker === "closed") found.push({ at: now.at, kind: "d", tag: "breaker", words: `${short(node.url)}: closed again` });
    if (was?.incarnation && node.incarnation && was.incarnation !== node.incarnation) found.push({ at: now.at, kind: "", tag: "restart", words: `${node.role} node ${short(node.url)} has restarted` });
  }
  for (const node of known.values()) found.push({ at: now.at, kind: "warn", tag: "left", words: `${node.role} node ${short(node.url)} is no member any more` });
  if (before.workers.answering > now.workers.answering) found.push({ at: now.at, kind: "warn", tag: "proxy", words: `${count(now.workers.answering)} of ${count(now.workers.of)} workers answer` });
  return found;
}

function stateEvent(at_s, node) {
  const kind = { ready: "d", down: "bad", isolated: "bad" }[node.state] ?? "warn";
  return { at: at_s, kind, tag: node.state, words: `${node.role} node ${short(node.url)}${node.reason ? `: ${node.reason}` : " is in use"}` };
}
