// The requests: those under way, and the last that have ended. One of them is chosen, and its hand-over is shown beside.

import { at, keep, make, say, set } from "./dom.js";
import { bibs, clock, count, short, timeText } from "./figures.js";

const MOST = 14;
const LONG_S = 0.8; // a prompt that computes for so long is watched while it does
const STAYS_MS = 4000;
const PHASES = {
  waiting: ["waits", "warn"],
  prefill: ["prefill", "p"],
  decode: ["decode", "d"],
  streaming: ["streams", "d"],
};

export class Requests {
  constructor(onChosen) {
    this.onChosen = onChosen;
    this.rows = [];
    this.chosen = "";
    this.kept = null; // the chosen one, as it was last seen
    this.since_ms = 0;
    this.follow = at("follow");
    this.follow.addEventListener("change", () => this.newest());
  }

  show(feed) {
    const empty = at("requests-empty");
    if (!feed.requests) {
      this.rows = [];
      say(at("requests-note"), "");
      empty.replaceChildren("Single requests and their transfers are for operators. Sign in with the token in ", make("span", { class: "mono" }, "proxy.admin_token_file"), ".");
    } else {
      const live = [...feed.requests.live].reverse();
      const room = Math.max(0, MOST - Math.min(live.length, MOST - 4));
      this.rows = [...live.slice(0, MOST - Math.min(4, feed.requests.recent.length)), ...[...feed.requests.recent].reverse().slice(0, room)];
      // The chosen one stays, also when newer ones have taken its place.
      const chosen = this.kept && [...live, ...feed.requests.recent].find((request) => request.id === this.chosen);
      if (this.chosen && !this.found() && this.kept?.id === this.chosen) this.rows.push(chosen ?? this.kept);
      this.kept = this.found();
      const unseen = feed.in_flight - feed.requests.live_total;
      say(at("requests-note"), `${count(feed.in_flight)} under way${unseen > 0 ? `, ${count(unseen)} of them not followed` : ""}`);
      empty.replaceChildren();
      if (!this.rows.length) {
        const example = `curl ${location.origin}/v1/completions -H 'Content-Type: application/json' \\\n  -d '{"model": "${feed.nodes.flatMap((node) => node.models)[0] ?? "…"}", "prompt": "The tide", "stream": true}'`;
        empty.append("No request has come since this page looks. For one:", make("code", {}, example));
      }
    }
    this.bibs = bibs(feed.nodes);
    at("requests").hidden = !this.rows.length;
    keep(at("request-rows"), this.rows, (request) => request.id, (request) => this.row(request), (row, request) => this.change(row, request));
    if (!feed.requests) this.onChosen(null, "Sign in to see hand-overs, layer by layer.");
    else if (this.follow.checked) this.newest();
    else this.onChosen(this.found());
  }

  name(role, url) {
    return this.bibs.get(`${role} ${url}`) ?? short(url);
  }

  found() {
    return this.rows.find((request) => request.id === this.chosen) ?? null;
  }

  // The newest request whose hand-over can be seen: one that takes long while it does, else one that is through. Each
  // stays for a moment, so that a person can look at it.
  newest() {
    if (!this.follow.checked) return;
    const handed = this.rows.filter((request) => request.transfer);
    const found = handed.find((request) => request.phase === "prefill" && request.lasted_s > LONG_S) ?? handed.find((request) => request.phase === "streaming" || request.phase === "ended") ?? handed[0] ?? this.rows[0];
    const stays = this.found() && performance.now() - this.since_ms < STAYS_MS;
    if (found && found.id !== this.chosen && !stays) {
      this.since_ms = performance.now();
      this.choose(found.id, false);
    } else this.onChosen(this.found());
  }

  choose(id, byHand = true) {
    if (byHand) this.follow.checked = false;
    this.chosen = id;
    this.kept = this.found();
    for (const row of at("request-rows").children) {
      row.classList.toggle("chosen", row.dataset.id === id);
      set(row.querySelector("button"), { "aria-pressed": row.dataset.id === id });
    }
    this.onChosen(this.found());
  }

  step(by) {
    if (!this.rows.length) return;
    const now = this.rows.findIndex((request) => request.id === this.chosen);
    const next = Math.min(this.rows.length - 1, Math.max(0, now + by));
    this.choose(this.rows[next].id);
    at("request-rows").children[next]?.querySelector("button").focus();
  }

  row(request) {
    const cells = Object.fromEntries(["id", "way", "legs", "ttft", "itl", "tokens", "time", "state"].map((name) => [name, make("td", { class: { legs: "lanes", ttft: "n", itl: "n", tokens: "n", time: "n" }[name] })]));
    const button = make("button", { type: "button", class: "mono", "aria-pressed": "false", title: request.id }, request.id.slice(0, 8));
    cells.id.append(button);
    const legs = make("div", { class: "legs", "aria-hidden": "true" });
    cells.legs.append(legs);
    const row = make("tr", { "data-id": request.id }, ...Object.values(cells));
    row.cells_ = { ...cells, legs };
    row.addEventListener("click", () => this.choose(request.id));
    return row;
  }

  change(row, request) {
    const { way, legs, ttft, itl, tokens, time, state } = row.cells_;
    row.classList.toggle("chosen", request.id === this.chosen);
    const [from, to] = [this.name("prefill", request.prefill), this.name("decode", request.decode)];
    say(way, request.prefill ? `${from} → ${to}` : request.decode ? `${to} alone` : "–");
    set(way, { title: [request.prefill, request.decode, request.reason, `arrived ${clock(request.at)}`].filter(Boolean).join(", ") });
    say(ttft, timeText(request.ttft_s));
    say(itl, timeText(request.itl_s));
    say(tokens, request.chunks ? count(request.chunks) : "–");
    say(time, timeText(request.lasted_s));
    const [word, kind] = outcome(request);
    if (state.textContent !== word) state.replaceChildren(make("span", { class: `tag ${kind}` }, word));
    lanes(legs, request);
  }
}

export function outcome(request) {
  if (request.phase !== "ended") return PHASES[request.phase];
  if (request.broken) return ["broke off", "bad"];
  if (request.status >= 500) return [`failed ${request.status}`, "bad"];
  if (request.status >= 400) return [`refused ${request.status}`, "warn"];
  if (request.left) return ["client left", "warn"];
  if (request.path === "recomputed") return ["recomputed", "warn"];
  return ["done", ""];
}

// Above the prefill leg, below the decode leg: grey while it waits, coloured once it answers.
function lanes(place, request) {
  const all = request.lasted_s || 1e-6;
  const computed = request.legs.findLast(([role]) => role === "prefill")?.[4];
  const bars = [];
  for (const [role, , begun, first, ended, problem] of request.legs) {
    const end = ended ?? all;
    if (role === "prefill") bars.push([problem && problem !== "cut" ? "bad" : "p", begun, end, "p"]);
    else if (problem && problem !== "cut") bars.push(["bad", begun, end, "d"]);
    else {
      const answers = first ?? (request.path === "local" ? begun : Math.max(begun, computed ?? end));
      bars.push(["w", begun, answers, "d"]);
      if (end > answers) bars.push(["d", answers, end, "d"]);
    }
  }
  keep(place, bars.map((bar, index) => [index, ...bar]), ([index]) => index, () => make("i"), (bar, [, kind, from, to, lane]) => {
    bar.className = kind === "bad" ? `${lane} bad` : kind;
    bar.style.left = `${((100 * from) / all).toFixed(2)}%`;
    bar.style.width = `${Math.max(0, (100 * (Math.min(to, all) - from)) / all).toFixed(2)}%`;
  });
}
