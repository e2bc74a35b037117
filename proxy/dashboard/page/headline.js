// The figures at the top: each a number of the last half minute, and its line since the page was opened.

import { draw, make, say, set } from "./dom.js";
import { count, cumulative, percent, quantile, rate, time, timeText, total } from "./figures.js";

const POINTS = 90;
const FEWEST = 20; // as wide as a line is drawn at least

const FIGURES = [
  { id: "flight", name: "In flight" },
  { id: "rate", name: "Requests per second" },
  { id: "ttft", name: "TTFT, median" },
  { id: "itl", name: "ITL, median" },
  { id: "tokens", name: "Tokens per second" },
  { id: "hidden", name: "KV transfer hidden" },
  { id: "trouble", name: "Failures" },
];

export class Headline {
  constructor(list) {
    this.lines = new Map(FIGURES.map(({ id }) => [id, []]));
    this.parts = new Map();
    for (const { id, name } of FIGURES) {
      const value = make("dd", { class: "value", id: `figure-${id}` });
      const more = make("dd", { class: "more" });
      const fill = draw("polygon", { class: "spark-fill" });
      const line = draw("polyline", { class: "spark" });
      const svg = draw("svg", { viewBox: "0 0 100 26", preserveAspectRatio: "none", "aria-hidden": "true" }, fill, line);
      list.append(make("div", {}, make("dt", {}, name), value, more, make("dd", { "aria-hidden": "true" }, svg)));
      this.parts.set(id, { value, more, fill, line });
    }
  }

  show(feed, window) {
    const requests = (sample) => total(sample.counters.requests);
    const ttft = this.times(window, (sample) => cumulative(sample.ttft).counts, cumulative(feed.ttft).bounds);
    const itl = this.times(window, (sample) => sample.gaps, feed.gap_bounds_s);
    const failed = (sample) => bad(sample.counters);
    const pace = window.perSecond(requests);
    this.put("flight", feed.in_flight, [count(feed.in_flight), ""], feed.waiting ? `${count(feed.waiting)} wait to be let in` : "none waits");
    this.put("rate", pace, [rate(pace), ""], `${count(requests(feed))} so far`);
    this.put("ttft", ttft[0], time(ttft[0]), `P99 ${timeText(ttft[1])}`);
    this.put("itl", itl[0], time(itl[0]), `P99 ${timeText(itl[1])}`);
    const tokens = window.perSecond((sample) => sample.gaps.reduce((sum, n) => sum + n, 0) + (sample.ttft["+Inf"] ?? 0));
    this.put("tokens", tokens, [rate(tokens), ""], "chunks of streams");
    this.hidden(feed);
    const failures = window.seconds ? failed(feed) - failed(window.first) : 0;
    const retries = total(feed.counters.retries);
    this.put("trouble", failures, [count(Math.max(0, failures)), ""], `${count(failed(feed))} so far, ${count(retries)} retries`);
    this.parts.get("trouble").value.classList.toggle("bad", failures > 0);
  }

  hidden(feed) {
    if (!feed.operator) {
      this.put("hidden", null, ["–", ""], "operators see it");
      return;
    }
    const gauges = Object.values(feed.gauges);
    const share = mean(gauges.map((gauge) => gauge.hidden));
    const exposed = mean(gauges.map((gauge) => gauge.exposed));
    this.put("hidden", share, [share === null ? "–" : percent(share).replace(" %", ""), share === null ? "" : "%"], exposed === null ? "exposed –" : `exposed ${timeText(exposed)}`);
  }

  times(window, pick, bounds) {
    const counts = window.counts(pick);
    return [quantile(bounds, counts, 0.5), quantile(bounds, counts, 0.99)];
  }

  put(id, value, [number, unit], more) {
    const part = this.parts.get(id);
    if (part.value.firstChild?.nodeValue !== number || part.unit !== unit) {
      part.value.replaceChildren(number, unit ? make("small", {}, unit) : "");
      part.unit = unit;
    }
    say(part.more, more);
    const points = this.lines.get(id);
    points.push(value);
    if (points.length > POINTS) points.shift();
    const top = Math.max(...points.map((point) => point ?? 0), 1e-9);
    const line = points
      .map((point, index) => [100 - (points.length - 1 - index) * (100 / (Math.max(FEWEST, points.length) - 1)), point])
      .filter(([, point]) => point !== null)
      .map(([x, point]) => `${x.toFixed(1)},${(24 - (22 * point) / top).toFixed(1)}`);
    set(part.line, { points: line.join(" ") });
    set(part.fill, { points: line.length > 1 ? `${line[0].split(",")[0]},26 ${line.join(" ")} 100,26` : "" });
  }
}

function mean(pairs) {
  const known = pairs.filter((pair) => pair && pair[0] > 0);
  const n = known.reduce((sum, pair) => sum + pair[0], 0);
  return n ? known.reduce((sum, pair) => sum + pair[1], 0) / n : null;
}

// Answers that were the cluster's fault: 5xx, and streams that ended with an error.
function bad(counters) {
  const statuses = Object.entries(counters.requests ?? {}).filter(([labels]) => /\b5\d\d$/.test(labels));
  return statuses.reduce((sum, [, n]) => sum + n, 0) + total(counters.broken);
}
