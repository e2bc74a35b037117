"""When KV is there. Each node has one link, full duplex; what is handed to a link queues behind what it has not yet sent.

P computes   ├── layer 1 ──┼── layer 2 ──┼── layer 3 ──┤
link         ┆             ├─ 1 ─┤       ├─ 2 ─┤       ├─ 3 ─┤      fast link: the last layer shows
link         ┆             ├──── 1 ────┼──── 2 ────┼──── 3 ────┤    slow link: its whole backlog shows
"""

from baton.loadtest.plan.calibration import Link


class Links:
    """The links of all nodes."""

    def __init__(self, link: Link, prefill: int, decode: int) -> None:
        self._token_s = link.kv_bytes_per_token * 8 / (link.gbit_s * 1e9) if link.gbit_s else 0.0
        self._layers = link.layers
        self._prefill_free_at = [0.0] * prefill
        self._decode_free_at = [0.0] * decode

    def send(self, prefill: int, decode: int, tokens: int, *, began_s: float, ended_s: float) -> float:
        """Send the KV of a step, which was computed from `began_s` to `ended_s`; return when all of it has arrived."""
        if not self._token_s or not tokens:
            return ended_s
        whole_s = tokens * self._token_s
        layer_s = (ended_s - began_s) / self._layers  # nothing leaves before the first layer is there
        for free_at, node in ((self._prefill_free_at, prefill), (self._decode_free_at, decode)):
            free_at[node] = max(free_at[node], began_s + layer_s) + whole_s
        behind_s = ended_s + whole_s / self._layers
        return max(behind_s, self._prefill_free_at[prefill], self._decode_free_at[decode])
