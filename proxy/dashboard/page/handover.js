// One transfer: each layer as it was computed and pushed, and what the decode node did at that time, on one axis.

import { at, draw, make, say } from "./dom.js";
import { bytes, count, percent, short, timeText } from "./figures.js";

const WIDTH = 640;
const LEFT = 62;
const RIGHT = 12;
const AGAIN_MS = 1000;
const MOST_TRIES = 5; // while nodes do not know of it yet

export class Handover {
  constructor(feed) {
    this.feed = feed;
    this.place = at("handover");
    this.id = "";
  }

  show(request, otherwise = "Choose a request to see its hand-over.") {
    if (!request) return this.nothing(otherwise);
    if (!request.transfer || !request.prefill) {
      const words = request.phase === "waiting" ? "It waits for its turn." : request.path === "local" || request.decode ? `No hand-over: ${short(request.decode || "the node")} computed the prompt itself${request.reason ? ` (${request.reason})` : ""}.` : "No hand-over: no node was asked.";
      return this.nothing(words);
    }
    if (request.id !== this.id || request.transfer !== this.request.transfer) {
      this.id = request.id;
      this.settled = false;
      this.tries = 0;
      this.asked_ms = 0;
      if (!this.place.querySelector("svg")) this.words("Asking both nodes…");
    }
    this.request = request;
    if (!this.settled && performance.now() - this.asked_ms > AGAIN_MS - 200) this.ask();
    return undefined;
  }

  nothing(words) {
    this.id = "";
    this.words(words);
  }

  words(words) {
    say(at("handover-note"), "");
    if (this.place.textContent !== words || this.place.querySelector("svg")) this.place.replaceChildren(make("p", { class: "empty" }, words));
  }

  async ask() {
    const { id, transfer, prefill, decode } = this.request;
    this.asked_ms = performance.now();
    this.tries += 1;
    const query = new URLSearchParams({ prefill, decode });
    const answer = await this.feed.fetch(`dashboard/api/transfers/${transfer}?${query}`);
    if (id !== this.id) return;
    if (!answer.ok) {
      this.words(`Nothing is known: ${answer.problem}.`);
      this.settled = this.tries >= MOST_TRIES;
      return;
    }
    const { prefill: there, decode: here } = answer.body;
    const isOver = this.request.phase === "ended" || this.request.phase === "streaming";
    this.settled = this.tries >= MOST_TRIES && isOver ? true : isOver && ended(there) && ended(here) && (here.ended[0].timings_s?.first_step !== undefined || here.ended[0].state !== "loaded");
    this.draw(answer.body);
  }

  draw({ prefill, decode, offset }) {
    const flows = prefill.flows ?? [];
    if (!flows.length && !(decode.ended ?? []).length) {
      const problem = prefill.problem ?? decode.problem;
      this.words(problem ? `Nothing is known: ${problem}.` : this.settled ? "The nodes know nothing of it any more, or it had several prompts." : "The prompt has not been scheduled yet.");
      return;
    }
    const picture = pictureOf(flows, decode, offset, this.request);
    say(at("handover-note"), `of ${this.request.id.slice(0, 8)}, ${short(this.request.prefill)} → ${short(this.request.decode)}`);
    const open = this.place.querySelector("details")?.open;
    this.place.replaceChildren(facts(flows, decode, prefill), picture.svg, keys(), picture.table, picture.note);
    if (open) this.place.querySelector("details").open = true;
  }
}

const ended = (side) => (side.ended ?? []).length > 0;

function facts(flows, decode, prefill) {
  const flow = flows[0];
  const record = decode.ended?.[0];
  const theirs = prefill.ended?.[0] ?? record?.prefill ?? {};
  const marks = flow?.timings_s ?? theirs.timings_s ?? {};
  const open = prefill.open?.[0]?.worker;
  const pushed = theirs.bytes_pushed ?? open?.bytes_pushed;
  const list = [
    ["Prompt", flow ? `${count(flow.tokens)} tokens${flow.cached_tokens ? `, ${count(flow.cached_tokens)} cached` : ""}` : "–"],
    ["Prefill", timeText(marks.last_layer)],
    ["Pushing", timeText(theirs.pushing_s ?? flow?.pushing_s)],
    ["Hidden", percent(record?.hidden_share ?? theirs.hidden_share)],
    ["Exposed", timeText(record?.exposed_transfer_s)],
    ["KV", bytes(pushed)],
  ];
  const state = record?.state ?? theirs.state ?? (flow?.open ? "under way" : "");
  if (record?.reason || theirs.reason) list.push(["Came to nothing", record?.reason || theirs.reason]);
  else if (state && state !== "loaded" && state !== "committed") list.push(["State", state]);
  return make("dl", { class: "facts" }, ...list.map(([name, value]) => make("div", {}, make("dt", {}, name), make("dd", {}, value))));
}

function keys() {
  const words = [["compute", "layer computed"], ["pushes", "layer pushed"], ["waits", "decode node waits"]];
  return make("p", { class: "keys", "aria-hidden": "true" }, ...words.flatMap(([kind, word]) => [make("span", { class: `key ${kind}` }), word]));
}

function pictureOf(flows, decode, offset, request) {
  const layers = Math.max(1, ...flows.map((flow) => flow.layers));
  const lanes = Math.max(1, flows.length);
  const marks = flows.map((flow) => flow.timings_s);
  const record = decode.ended?.[0];
  const here = record && offset ? shifted(record.timings_s, offset.at_s) : null;
  const instants = [...marks, here ?? {}].flatMap((each) => Object.values(each));
  const pushEnds = flows.flatMap((flow) => flow.pushes.map(([, end]) => end ?? 0));
  const from = Math.min(0, ...(here ? [Math.max(here.arrived, -0.25 * Math.max(0.001, ...instants))] : [0]));
  const until = Math.max(0.001, ...instants, ...pushEnds, ...flows.flatMap((flow) => flow.written.slice(-1).map(([instant]) => instant))) * 1.02;
  const row = Math.max(1.5, Math.min(22, 250 / layers / lanes));
  const top = 8;
  const block = layers * row;
  const gap = 14;
  const height = top + lanes * (block + gap) + 34 + 26;
  const x = (instant) => LEFT + ((WIDTH - LEFT - RIGHT) * (Math.max(from, Math.min(until, instant)) - from)) / (until - from);
  const title = "Timeline of one hand-over";
  const words = describe(flows, here, request);
  const svg = draw("svg", { viewBox: `0 0 ${WIDTH} ${height.toFixed(0)}`, role: "img", "aria-label": `${title}. ${words}`, "data-layers": layers });

  const ticks = ticksOf(from, until);
  const bottom = top + lanes * (block + gap) + 30;
  for (const tick of ticks) {
    svg.append(draw("line", { class: "grid", x1: x(tick), x2: x(tick), y1: top, y2: bottom }));
    svg.append(text(x(tick), bottom + 15, tick ? timeText(tick) : "0", x(tick) > WIDTH - 30 ? "end" : "middle"));
  }
  flows.forEach((flow, lane) => layersOf(svg, flow, x, top + lane * (block + gap), row, layers, lanes > 1, until));
  decodeLane(svg, here, decode, x, top + lanes * (block + gap) + 4, from, until, marks[0]);
  return { svg, table: tableOf(marks[0] ?? {}, here, record), note: noteOf(flows, offset, layers) };
}

function layersOf(svg, flow, x, top, row, layers, isOneOfSeveral, until) {
  svg.append(draw("rect", { class: "row", x: LEFT, width: WIDTH - LEFT - RIGHT, y: top, height: layers * row }));
  svg.append(text(LEFT - 8, top + 9, isOneOfSeveral ? `rank ${flow.transfer_id.split("/")[1] ?? flow.rank}` : "layer 0", "end"));
  if (layers > 1) svg.append(text(LEFT - 8, top + layers * row - 2, String(layers - 1), "end"));
  const thick = Math.max(1, row * 0.42);
  for (const { layer, begin, end } of computed(flow.written)) {
    svg.append(draw("rect", { class: "compute", x: x(begin).toFixed(1), width: Math.max(0.8, x(end) - x(begin)).toFixed(1), y: (top + layer * row + row * 0.08).toFixed(1), height: thick.toFixed(1), rx: Math.min(2, thick / 2) }));
  }
  for (const [begin, end, first, last] of flow.pushes) {
    const y = top + first * row + row * 0.52;
    const high = Math.max(1, (last - first) * row + row * 0.4);
    svg.append(draw("rect", { class: end === null ? "push open" : "push", x: x(begin).toFixed(1), width: Math.max(1.2, x(end ?? until) - x(begin)).toFixed(1), y: y.toFixed(1), height: high.toFixed(1), rx: Math.min(2, high / 2), "fill-opacity": last > first ? 0.45 : 0.9 }));
  }
  const commit = flow.timings_s.commit;
  if (commit !== undefined) svg.append(draw("line", { class: "mark", x1: x(commit), x2: x(commit), y1: top - 3, y2: top + layers * row + 3 }), text(x(commit) - 4, top + layers * row + 11, "commit", "end", "name"));
}

// A layer's bar begins where the one before it ended; with a new chunk the layers begin again.
export function computed(written) {
  const bars = [];
  let group = [];
  let before = 0;
  let at_s = null;
  const close = () => {
    for (const layer of group) bars.push({ layer, begin: before, end: at_s });
    if (group.length) before = at_s;
    group = [];
  };
  for (const [instant, layer] of written) {
    if (instant !== at_s) {
      close();
      at_s = instant;
    }
    group.push(layer);
  }
  close();
  return bars;
}

function decodeLane(svg, here, decode, x, y, from, until, marks) {
  svg.append(text(LEFT - 8, y + 11, "decode", "end"));
  svg.append(draw("rect", { class: "row", x: LEFT, width: WIDTH - LEFT - RIGHT, y, height: 16 }));
  if (!here) {
    const state = decode.open?.[0]?.scheduler?.state ?? decode.open?.[0]?.worker?.state;
    svg.append(text(LEFT + 8, y + 12, state ? state.replaceAll("_", " ") : marks ? "its instants come with its first step" : "", "start"));
    return;
  }
  const until_ = here.commit_received ?? here.failed ?? until;
  const begins = Math.max(from, here.arrived);
  bar(svg, "waits", x(begins), x(until_), y);
  if (here.first_step !== undefined && here.commit_received !== undefined) bar(svg, "step", x(here.commit_received), x(here.first_step), y);
  for (const [name, instant] of [["reserved", here.reserved], ["KV complete", here.commit_received], ["first step", here.first_step]]) {
    if (instant !== undefined && instant >= from) svg.append(draw("line", { class: "mark", x1: x(instant), x2: x(instant), y1: y - 2, y2: y + 18 }, draw("title", {}, name)));
  }
}

function bar(svg, kind, from, to, y) {
  svg.append(draw("rect", { class: kind, x: from.toFixed(1), width: Math.max(1, to - from).toFixed(1), y: y + 3, height: 10, rx: 2 }));
}

function shifted(timings, by) {
  return Object.fromEntries(Object.entries(timings).map(([name, instant]) => [name, instant + by]));
}

function ticksOf(from, until) {
  const rough = (until - from) / 6;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((n) => n * power).find((n) => n >= rough);
  const ticks = [];
  for (let tick = Math.ceil(from / step) * step; tick <= until; tick += step) ticks.push(Math.abs(tick) < step / 1e6 ? 0 : tick);
  return ticks;
}

function text(x, y, words, anchor, kind = "") {
  const element = draw("text", { x, y, "text-anchor": anchor, class: kind || null });
  element.textContent = words;
  return element;
}

function describe(flows, here, request) {
  const flow = flows[0];
  if (!flow) return "The prefill node has forgotten its layers.";
  const marks = flow.timings_s;
  const parts = [`${flow.layers} layers, ${flow.pushes.length} pushes`];
  if (marks.last_layer !== undefined) parts.push(`computed within ${timeText(marks.last_layer)}`);
  if (marks.commit !== undefined) parts.push(`complete on the decode node after ${timeText(marks.commit)}`);
  if (here?.first_step !== undefined) parts.push(`used after ${timeText(here.first_step)}`);
  if (request.ttft_s) parts.push(`the client had its first token ${timeText(request.ttft_s)} after it asked`);
  return `${parts.join("; ")}.`;
}

const NAMES = {
  scheduled: "prompt scheduled", reserved: "reservation came", first_layer: "first layer written", last_layer: "last layer written",
  first_push: "first push began", last_push: "last push ended", commit: "committed", failed: "came to nothing", digested: "digest ready",
};
const NAMES_THERE = {
  arrived: "request arrived", reserved: "blocks reserved", reserve_sent: "reservation sent", commit_received: "KV complete", first_step: "first step with it", failed: "gave up",
};

function tableOf(prefill, here, record) {
  const rows = [
    ...Object.entries(prefill).map(([name, instant]) => [instant, "prefill", NAMES[name] ?? name]),
    ...Object.entries(here ?? record?.timings_s ?? {}).map(([name, instant]) => [instant, here ? "decode" : "decode, its own clock", NAMES_THERE[name] ?? name]),
  ].sort((a, b) => a[0] - b[0]);
  const body = rows.map(([instant, node, name]) => make("tr", {}, make("td", { class: "n" }, `${(instant * 1000).toFixed(1)} ms`), make("td", {}, node), make("td", {}, name)));
  const head = make("tr", {}, ...["Instant", "Node", "What"].map((name, index) => make("th", { scope: "col", class: index ? null : "n" }, name)));
  return make("details", {}, make("summary", {}, "The instants as a table"), make("table", { "aria-label": "Instants of the hand-over" }, make("thead", {}, head), make("tbody", {}, ...body)));
}

function noteOf(flows, offset, layers) {
  const words = [`0 is the prompt's first step. A row is a layer, ${layers} in all.`];
  if (offset) words.push(`The decode node's clock is aligned by the messages that both timed, right to ±${timeText(offset.uncertainty_s)}.`);
  if (flows.some((flow) => flow.lost)) words.push("It had more pushes than are remembered: some are not drawn.");
  return make("p", { class: "note" }, words.join(" "));
}
