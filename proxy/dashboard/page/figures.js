// Numbers: how they are written, and what counters say of the last half minute. Nothing here touches the page.

export const WINDOW_S = 30;

export function time(s) {
  if (s === null || s === undefined || Number.isNaN(s)) return ["–", ""];
  if (s < 0.0995) return [(s * 1000).toFixed(s < 0.00995 ? 1 : 0), "ms"];
  if (s < 0.9995) return [(s * 1000).toFixed(0), "ms"];
  return s < 99.5 ? [s.toFixed(s < 9.95 ? 2 : 1), "s"] : [Math.round(s).toString(), "s"];
}

export const timeText = (s) => time(s).join(" ").trim();

export function count(n) {
  if (n === null || n === undefined || Number.isNaN(n)) return "–";
  return n >= 10_000 ? Math.round(n).toLocaleString("en").replaceAll(",", " ") : String(Math.round(n));
}

export function rate(n) {
  if (n === null || n === undefined || Number.isNaN(n)) return "–";
  return n >= 100 ? count(n) : n >= 10 ? n.toFixed(1) : n.toFixed(n > 0 && n < 1 ? 2 : 1);
}

export function bytes(n) {
  if (n === null || n === undefined) return "–";
  const units = ["B", "kB", "MB", "GB", "TB"];
  let unit = 0;
  for (; n >= 1000 && unit < units.length - 1; unit += 1) n /= 1000;
  return `${n.toFixed(n < 10 && unit ? 1 : 0)} ${units[unit]}`;
}

export const percent = (share) => (share === null || share === undefined ? "–" : `${Math.round(share * 100)} %`);

export function clock(at_s) {
  return new Date(at_s * 1000).toLocaleTimeString("en-GB", { hour12: false });
}

export function short(url) {
  return url.replace(/^https?:\/\//, "");
}

// What a node wears on its chest: its role and its number among the members, which stays its own.
export function bib(node) {
  return `${node.role === "prefill" ? "P" : "D"}${node.slot}`;
}

export function bibs(nodes) {
  return new Map(nodes.map((node) => [`${node.role} ${node.url}`, bib(node)]));
}

// Between two samples of counters; one that fell began again at 0, and says nothing.
export function growth(now, before) {
  const grown = now - before;
  return grown >= 0 ? grown : 0;
}

// Where a share of all values lies, from counts between rising bounds; linear inside of a bucket.
export function quantile(bounds, counts, share) {
  const all = counts.reduce((sum, n) => sum + n, 0);
  if (!all) return null;
  let left = share * all;
  for (let at = 0; at < counts.length; at += 1) {
    if (left <= counts[at] && counts[at] > 0) {
      const low = at ? bounds[at - 1] : 0;
      if (at >= bounds.length) return low; // beyond the last bound: at least that
      return low + ((bounds[at] - low) * left) / counts[at];
    }
    left -= counts[at];
  }
  return bounds[bounds.length - 1];
}

export function cumulative(series) {
  const bounds = Object.keys(series).filter((name) => name !== "sum" && name !== "+Inf").map(Number).sort((a, b) => a - b);
  const byBound = new Map(Object.entries(series).map(([name, value]) => [Number(name), value]));
  let before = 0;
  const counts = bounds.map((bound) => {
    const upTo = byBound.get(bound) ?? before;
    const here = upTo - before;
    before = upTo;
    return here;
  });
  counts.push((series["+Inf"] ?? before) - before);
  return { bounds, counts, sum: series.sum ?? 0 };
}

export const total = (counts) => Object.values(counts ?? {}).reduce((sum, n) => sum + n, 0);

// Samples of the last half minute, and a line's worth of values before that.
export class Window {
  constructor() {
    this.samples = [];
  }

  add(sample) {
    this.samples.push(sample);
    while (this.samples.length > 2 && this.samples[1].at < sample.at - WINDOW_S) this.samples.shift();
  }

  get first() {
    return this.samples[0];
  }

  get last() {
    return this.samples[this.samples.length - 1];
  }

  get seconds() {
    return this.samples.length > 1 ? this.last.at - this.first.at : 0;
  }

  perSecond(pick) {
    return this.seconds ? growth(pick(this.last), pick(this.first)) / this.seconds : null;
  }

  counts(pick) {
    if (this.samples.length < 2) return [];
    const before = pick(this.first);
    return pick(this.last).map((n, index) => growth(n, before[index] ?? 0));
  }

  mean(pick) {
    const [n, sum] = pick(this.last ?? {}) ?? [0, 0];
    const [before, sumBefore] = (this.samples.length > 1 && pick(this.first)) || [0, 0];
    const grown = growth(n, before);
    return grown ? growth(sum, sumBefore) / grown : null;
  }
}
