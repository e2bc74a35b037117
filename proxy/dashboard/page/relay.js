// The relay: prefill nodes on the left, decode nodes on the right, and the batons on their way between them.

import { at, draw, keep, make, say, set } from "./dom.js";
import { bib, count, percent, short, timeText } from "./figures.js";

const MOST = 7; // nodes drawn on either side; further ones are squares
const FLOWS_S = 4; // so long a link stays coloured
const MOST_BATONS = 16; // on their way at once
const TROUBLE = { down: 0, isolated: 1, unready: 2, unknown: 3, silent: 4, draining: 5, ready: 6 };
const calm = matchMedia("(prefers-reduced-motion: reduce)");

export class Relay {
  constructor(openNode) {
    this.openNode = openNode;
    this.track = at("track");
    this.seen = new Set(); // requests whose baton has been handed over
    this.links = draw("g");
    this.batons = draw("g");
    this.track.append(gradient(), this.links, this.batons);
    this.drawn = { prefill: [], decode: [] };
    this.weights = new Map(); // requests of each node, smoothed
    this.flows = null;
    new ResizeObserver(() => this.connect()).observe(at("relay"));
  }

  show(feed, rates) {
    for (const role of ["prefill", "decode"]) this.side(feed, role, rates);
    this.flows = feed.requests ? flows(feed.requests, feed.at) : null;
    this.connect();
    if (feed.requests) this.hand(feed.requests);
    say(at("relay-words"), inWords(feed.nodes));
  }

  side(feed, role, rates) {
    const nodes = feed.nodes.filter((node) => node.role === role).sort((a, b) => a.slot - b.slot);
    const isFew = nodes.length <= MOST + 1;
    for (const node of nodes) {
      const weight = this.weights.get(node.url) ?? node.requests;
      this.weights.set(node.url, weight + 0.2 * (node.requests - weight));
    }
    const stays = new Set(this.drawn[role]); // so that cards do not come and go with every request
    const weigh = (node) => this.weights.get(node.url) + (stays.has(node.url) ? 1 : 0);
    const byConcern = (a, b) => TROUBLE[a.state] - TROUBLE[b.state] || weigh(b) - weigh(a) || a.slot - b.slot;
    const shown = isFew ? nodes : [...nodes].sort(byConcern).slice(0, MOST).sort((a, b) => a.slot - b.slot);
    this.drawn[role] = shown.map((node) => node.url);
    const ready = nodes.filter((node) => node.state === "ready").length;
    say(at(`${role}-count`), nodes.length ? (ready === nodes.length ? `${count(ready)} ready` : `${count(ready)} of ${count(nodes.length)} ready`) : "");
    const list = at(`${role}-nodes`);
    keep(list, shown, (node) => node.url, (node) => this.card(node), (card, node) => change(card, node, feed, rates));
    this.rest(at(`${role}-rest`), nodes, isFew, role);
  }

  card(node) {
    const button = make("button", { type: "button" }, short(node.url));
    const card = make("li", { class: "node", "data-url": node.url });
    card.parts = {
      state: make("span", { class: "state" }),
      why: make("p", { class: "why" }),
      numbers: make("p", { class: "numbers" }),
      fill: make("i"),
    };
    const meter = make("div", { class: "meter", "aria-hidden": "true" }, card.parts.fill);
    card.append(make("div", { class: "top" }, make("span", { class: "bib" }, bib(node)), button, card.parts.state), meter, card.parts.numbers, card.parts.why);
    button.addEventListener("click", () => this.openNode(node.role, node.url));
    return card;
  }

  rest(place, nodes, isFew, role) {
    if (!nodes.length) {
      say(place, role === "prefill" ? "No prefill node is a member: decode nodes compute prompts themselves." : "No decode node is a member: nothing can be served.");
      place.squares = null;
      return;
    }
    if (isFew) {
      place.replaceChildren();
      place.squares = null;
      return;
    }
    if (!place.squares) {
      place.squares = make("div", { class: "squares", "aria-hidden": "true" });
      place.words = make("p");
      place.replaceChildren(place.squares, place.words);
    }
    keep(place.squares, nodes, (node) => node.url, () => make("i"), (square, node) => {
      const load = node.requests + (node.other_requests ?? 0);
      set(square, { "data-state": node.state, "data-load": load > 7 ? 2 : load > 0 ? 1 : 0 });
    });
    say(place.words, `${count(nodes.length)} nodes; the ${MOST} that matter most are above`);
  }

  connect() {
    const box = this.track.getBoundingClientRect();
    if (!box.width) return;
    set(this.track, { viewBox: `0 0 ${box.width.toFixed(0)} ${box.height.toFixed(0)}` });
    const ends = { prefill: heights("prefill", box), decode: heights("decode", box) };
    const pairs = [];
    const many = this.flows !== null && this.drawn.prefill.length * this.drawn.decode.length > 36;
    for (const p of this.drawn.prefill) {
      for (const d of this.drawn.decode) {
        const flow = this.flows?.get(`${p} ${d}`);
        if ((flow || !many) && ends.prefill.has(p) && ends.decode.has(d)) {
          pairs.push({ key: `${p} ${d}`, path: curve(ends.prefill.get(p), ends.decode.get(d), box.width), flow });
        }
      }
    }
    keep(this.links, pairs, (pair) => pair.key, () => draw("path"), (path, pair) => {
      const width = pair.flow ? Math.min(7, 1.5 + 0.9 * Math.sqrt(pair.flow)) : 1;
      set(path, { d: pair.path, class: pair.flow ? "link busy" : "link", "stroke-width": width.toFixed(1) });
    });
    this.paths = new Map(pairs.map((pair) => [pair.key, pair.path]));
  }

  // A baton runs for each request whose prompt has left its prefill node since the last look.
  hand({ live, recent }) {
    const all = [...recent, ...live];
    const handed = all.filter((request) => request.prefill && request.decode && request.path !== "local" && request.phase !== "waiting" && request.phase !== "prefill");
    const isFirst = !this.hasLooked;
    this.hasLooked = true;
    const fresh = handed.filter((request) => !this.seen.has(request.id));
    this.seen = new Set(handed.map((request) => request.id));
    if (isFirst || calm.matches) return;
    fresh.slice(-MOST_BATONS).forEach((request, index) => this.run(this.paths?.get(`${request.prefill} ${request.decode}`), index * 45));
  }

  run(path, delay) {
    if (!path) return;
    const baton = draw("rect", { class: "baton", x: -9, y: -2.5, width: 18, height: 5, rx: 2.5 });
    baton.style.offsetPath = `path("${path}")`;
    this.batons.append(baton);
    const frames = [
      { offsetDistance: "0%", opacity: 0 },
      { offsetDistance: "8%", opacity: 1, offset: 0.08 },
      { offsetDistance: "92%", opacity: 1, offset: 0.92 },
      { offsetDistance: "100%", opacity: 0 },
    ];
    const run = baton.animate(frames, { duration: 850, delay, easing: "cubic-bezier(.45,.05,.4,1)", fill: "both" });
    run.onfinish = run.oncancel = () => baton.remove();
  }
}

function change(card, node, feed, rates) {
  const { state, why, numbers, fill } = card.parts;
  const gauge = feed.gauges?.[`${node.role} ${node.url}`];
  set(card, { "data-state": node.state });
  say(state, node.breaker === "half_open" ? `${node.state}, on trial` : node.state);
  state.className = `state ${{ ready: "quiet", down: "bad", isolated: "bad" }[node.state] ?? "warn"}`;
  say(why, node.state === "ready" ? "" : node.reason);
  const load = node.requests + node.other_requests;
  fill.style.width = `${Math.min(100, 100 * (node.kv_usage ?? load / (load + 8)))}%`;
  const parts = [["", count(node.requests), "in flight"]];
  const isThere = node.state !== "down"; // what it said last is old
  if (isThere && node.running !== undefined && node.running !== null) parts.push(["", count(node.waiting), "queued"]);
  if (isThere && node.kv_usage !== undefined && node.kv_usage !== null) parts.push(["KV", percent(node.kv_usage), ""]);
  const speed = rates(node);
  if (speed !== null) parts.push([node.role === "prefill" ? "leg" : "ITL", timeText(speed), ""]);
  if (gauge?.quarantined) parts.push(["", count(gauge.quarantined), "blocks in quarantine"]);
  if (node.ranks) parts.push(["", node.ranks, ""]);
  const wanted = parts.map((part) => part.join("|")).join(";");
  if (numbers.shown !== wanted) {
    numbers.shown = wanted;
    numbers.replaceChildren(...parts.map(([before, number, after]) => make("span", {}, before ? `${before} ` : "", make("b", {}, number), after ? ` ${after}` : "")));
  }
}

function flows(requests, now_s) {
  const found = new Map();
  const justNow = (requests?.recent ?? []).filter((request) => request.status === 200 && !request.broken && request.at + request.lasted_s > now_s - FLOWS_S);
  for (const request of [...(requests?.live ?? []), ...justNow]) {
    if (request.prefill && request.decode && request.path !== "local") {
      const key = `${request.prefill} ${request.decode}`;
      found.set(key, (found.get(key) ?? 0) + 1);
    }
  }
  return found;
}

function heights(role, box) {
  const cards = [...at(`${role}-nodes`).children];
  return new Map(cards.map((card) => {
    const place = card.getBoundingClientRect();
    return [card.dataset.url, place.top + place.height / 2 - box.top];
  }));
}

function curve(from, to, width) {
  const bend = width * 0.45;
  return `M4 ${from.toFixed(1)} C${bend.toFixed(1)} ${from.toFixed(1)} ${(width - bend).toFixed(1)} ${to.toFixed(1)} ${(width - 4).toFixed(1)} ${(to + 0.01).toFixed(2)}`;
}

function gradient() {
  const stops = [["0", "var(--p)"], ["1", "var(--d)"]].map(([offset, colour]) => {
    const stop = draw("stop", { offset });
    stop.style.stopColor = colour;
    return stop;
  });
  return draw("defs", {}, draw("linearGradient", { id: "relay-gradient", gradientUnits: "userSpaceOnUse", x1: "0", x2: "100%", y1: "0", y2: "0" }, ...stops));
}

export function inWords(nodes) {
  return ["prefill", "decode"]
    .map((role) => {
      const states = new Map();
      for (const node of nodes.filter((each) => each.role === role)) states.set(node.state, (states.get(node.state) ?? 0) + 1);
      const words = [...states].map(([state, n]) => `${n} ${state}`).join(", ");
      return `${role[0].toUpperCase()}${role.slice(1)} nodes: ${words || "none"}.`;
    })
    .join(" ");
}
