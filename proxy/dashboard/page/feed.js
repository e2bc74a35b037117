// Asks for the feed once a second while the page is to be seen, and says how that goes.

const PERIOD_MS = 1000;
const SLOW_MS = 2000; // with very many nodes
const MANY_NODES = 150;
const LONGEST_WAIT_MS = 15_000;
const TIMEOUT_MS = 8000;
const KEPT = "baton-admin-token";

export class Feed {
  constructor(onData, onState) {
    this.onData = onData;
    this.onState = onState;
    this.token = sessionStorage.getItem(KEPT) ?? "";
    this.isPaused = false;
    this.failures = 0;
    this.timer = 0;
    document.addEventListener("visibilitychange", () => this.ask());
  }

  get headers() {
    return this.token ? { authorization: `Bearer ${this.token}` } : {};
  }

  pause(isPaused) {
    this.isPaused = isPaused;
    this.ask();
  }

  signOut() {
    this.token = "";
    sessionStorage.removeItem(KEPT);
    this.ask();
  }

  // Returns why the token does not do; "" if it does.
  async signIn(token) {
    const answer = await this.fetch("dashboard/api/feed", { headers: { authorization: `Bearer ${token}` } });
    if (!answer.ok) return answer.problem;
    this.token = token;
    sessionStorage.setItem(KEPT, token);
    this.onData(answer.body);
    this.ask();
    return "";
  }

  // Returns {ok, status, body, problem, wait_ms}; never throws.
  async fetch(path, more = {}) {
    try {
      const answer = await fetch(path, { cache: "no-store", signal: AbortSignal.timeout(TIMEOUT_MS), headers: this.headers, ...more });
      const body = await answer.json().catch(() => null);
      const problem = answer.ok ? "" : (body?.error?.message ?? `the proxy answered ${answer.status}`);
      const wait_ms = Number(answer.headers.get("retry-after") ?? 0) * 1000;
      return { ok: answer.ok && body !== null, status: answer.status, body, problem, wait_ms };
    } catch (error) {
      const problem = error.name === "TimeoutError" ? "the proxy does not answer" : "the proxy cannot be reached";
      return { ok: false, status: 0, body: null, problem, wait_ms: 0 };
    }
  }

  ask() {
    clearTimeout(this.timer);
    this.asked = (this.asked ?? 0) + 1;
    if (document.hidden || this.isPaused) {
      this.onState(this.isPaused ? "paused" : "hidden", "");
      return;
    }
    this.once(this.asked);
  }

  async once(number) {
    const answer = await this.fetch("dashboard/api/feed");
    if (number !== this.asked) return; // a newer question is under way
    let wait_ms = PERIOD_MS;
    if (answer.ok) {
      this.failures = 0;
      if (answer.body.nodes.length > MANY_NODES) wait_ms = SLOW_MS;
      this.onState("live", "");
      this.onData(answer.body);
    } else if (this.token && (answer.status === 401 || answer.status === 403)) {
      this.token = "";
      sessionStorage.removeItem(KEPT);
      this.onState("refused", answer.problem);
    } else {
      this.failures += 1;
      wait_ms = Math.min(LONGEST_WAIT_MS, Math.max(answer.wait_ms, PERIOD_MS * 2 ** Math.min(this.failures - 1, 4)));
      this.onState("lost", `${answer.problem}; trying again`);
    }
    this.timer = setTimeout(() => this.once(number), wait_ms);
  }
}
