// One node, with what an operator can do about it; and the table of all nodes.

import { at, keep, make, say, set } from "./dom.js";
import { bytes, count, percent, short } from "./figures.js";

const MOST_ROWS = 200;

export class Nodes {
  constructor(feed, signIn) {
    this.feed = feed;
    this.signIn = signIn;
    this.data = null;
    this.key = "";
    this.dialog = at("node-dialog");
    this.table = at("nodes-dialog");
    at("node-drain").addEventListener("click", () => this.sure(this.node?.draining ? "take back" : "drain"));
    at("node-remove").addEventListener("click", () => this.sure("remove"));
    at("node-no").addEventListener("click", () => this.unsure());
    at("node-yes").addEventListener("click", () => this.act());
    at("nodes-filter").addEventListener("input", () => this.rows());
  }

  get node() {
    return this.data?.nodes.find((node) => `${node.role} ${node.url}` === this.key);
  }

  show(data) {
    this.data = data;
    if (this.dialog.open) this.facts();
    if (this.table.open) this.rows();
  }

  open(role, url) {
    this.key = `${role} ${url}`;
    say(at("node-problem"), "");
    this.unsure();
    this.facts();
    if (!this.dialog.open) this.dialog.showModal();
  }

  openAll() {
    this.rows();
    this.table.showModal();
    at("nodes-filter").focus();
  }

  facts() {
    const node = this.node;
    const url = this.key.split(" ")[1];
    say(at("node-title"), `${this.key.split(" ")[0] === "prefill" ? "Prefill" : "Decode"} node ${short(url)}`);
    for (const id of ["node-drain", "node-remove"]) at(id).disabled = !node || Boolean(this.busy);
    if (!node) {
      say(at("node-state"), "It is no member of this proxy any more.");
      keep(at("node-facts"), [], String, make, say);
      this.dialog.querySelector("[data-close]").focus();
      return;
    }
    say(at("node-drain"), node.draining ? "Take back" : "Drain");
    say(at("node-state"), node.reason ? `${node.state}: ${node.reason}` : `${node.state}, gets work`);
    const gauge = this.data.gauges?.[this.key] ?? {};
    const list = [
      ["Requests in flight", count(node.requests)],
      ["From others", count(node.other_requests)],
      ["Running, queued", node.running === undefined || node.running === null ? "–" : `${count(node.running)}, ${count(node.waiting)}`],
      ["KV cache in use", percent(node.kv_usage)],
      ["Blocks free", gauge.blocks ? `${count(gauge.free)} of ${count(gauge.blocks)}` : "–"],
      ["Blocks reserved", count(gauge.reserved)],
      ["In quarantine", count(gauge.quarantined)],
      ["Transfers open", count(gauge.open)],
      ["Peers", gauge.sessions === undefined ? "–" : `${count(gauge.sessions)}${gauge.refused_sessions ? `, ${count(gauge.refused_sessions)} refused` : ""}`],
      ["KV pushed", bytes(gauge.pushed_bytes)],
      ["Breaker", node.breaker_openings ? `${node.breaker.replace("_", " ")}, opened ${count(node.breaker_openings)} ${node.breaker_openings === 1 ? "time" : "times"}` : node.breaker],
      ["Serves", node.models.map((model) => model.split("/").pop()).join(", ") || "–"],
    ];
    keep(at("node-facts"), list, ([name]) => name, ([name]) => make("div", {}, make("dt", {}, name), make("dd")), (row, [, value]) => say(row.lastChild, value));
  }

  rows() {
    if (!this.data) return;
    const words = at("nodes-filter").value.toLowerCase().split(/\s+/).filter(Boolean);
    const found = this.data.nodes.filter((node) => words.every((word) => `${node.url} ${node.role} ${node.state}`.toLowerCase().includes(word)));
    say(at("nodes-count"), found.length > MOST_ROWS ? `${count(found.length)} nodes; the first ${MOST_ROWS} are listed` : `${count(found.length)} nodes`);
    keep(at("nodes-rows"), found.slice(0, MOST_ROWS), (node) => `${node.role} ${node.url}`, (node) => this.row(node), (row, node) => {
      const gauge = this.data.gauges?.[`${node.role} ${node.url}`];
      const values = [node.role, node.state, count(node.requests), percent(node.kv_usage), gauge?.quarantined ? count(gauge.quarantined) : "–", node.breaker.replace("_", " ")];
      values.forEach((value, index) => say(row.children[index + 1], value));
      row.children[2].className = { ready: "", down: "bad", isolated: "bad" }[node.state] ?? "warn";
      set(row.children[2], { title: node.reason || null });
    });
  }

  row(node) {
    const button = make("button", { type: "button", class: "mono" }, short(node.url));
    const row = make("tr", {}, make("td", {}, button), ...["", "", "n", "n", "n", "n"].map((kind) => make("td", { class: kind || null })));
    row.addEventListener("click", () => this.open(node.role, node.url));
    return row;
  }

  sure(what) {
    if (!this.feed.token) {
      this.dialog.close();
      this.signIn("Drain and remove need the admin token.");
      return;
    }
    this.what = what;
    const node = this.node;
    if (!node) return;
    const words = {
      drain: `No new work for ${short(node.url)}; what it carries (${count(node.requests)}) goes on.`,
      "take back": `${short(node.url)} gets work again.`,
      remove: `${short(node.url)} leaves; what it carries (${count(node.requests)}) goes on. It stays out until it is added again.`,
    };
    say(at("node-sure-text"), words[what]);
    say(at("node-yes"), what[0].toUpperCase() + what.slice(1));
    at("node-sure").hidden = false;
    at("node-actions").hidden = true;
    at("node-yes").focus();
  }

  unsure() {
    at("node-sure").hidden = true;
    at("node-actions").hidden = false;
  }

  async act() {
    const node = this.node;
    if (!node || this.busy) return;
    this.busy = true;
    const answer = this.what === "remove"
      ? await this.feed.fetch(`admin/nodes?${new URLSearchParams({ url: node.url })}`, { method: "DELETE" })
      : await this.feed.fetch("admin/nodes/drain", {
          method: "POST",
          headers: { ...this.feed.headers, "content-type": "application/json" },
          body: JSON.stringify({ url: node.url, draining: this.what === "drain" }),
        });
    this.busy = false;
    this.unsure();
    say(at("node-problem"), answer.ok ? "" : answer.problem);
    at("node-drain").focus();
    this.feed.ask();
    this.facts();
  }
}
