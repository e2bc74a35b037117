"""Header names, paths and the error body that proxy and nodes share."""

from typing import Any

NODE_PATH = "/baton/node"
TRANSFERS_PATH = "/baton/transfers"
TRACE_PATH = "/baton/transfers/trace"
TIMELINE_PATH = "/baton/transfers/timeline"  # ?transfer_id=…
METRICS_PATH = "/metrics"
CANCEL_PATH = "/baton/transfers/cancel"
MAX_CANCELLED = 1024  # transfer ids in one call of it
INTEGRITY_PATH = "/baton/integrity"
PROBE_PATH = "/baton/probe"  # see probe.py

PATH_HEADER = "x-baton-path"  # how the answer was made: one of the three values below
REASON_HEADER = "x-baton-reason"  # why it was not disaggregated, in a few words
TRANSFER_HEADER = "x-baton-transfer-id"
INTERNAL_HEADER_PREFIX = "x-baton-"  # never accepted from a client

DISAGGREGATED = "disaggregated"  # prompt computed on a prefill node, KV pushed
LOCAL = "local"  # computed on the decode node alone, by choice
RECOMPUTED = "recomputed"  # a transfer was begun and failed; the decode node computed the prompt itself

# On a leg of a stream, for the node: name the tokens of the answer to the proxy.
TOKEN_IDS_HEADER = "x-baton-token-ids"  # noqa: S105  # no password
# A comment line of such a stream, before an event: `: baton tokens <choice> <id>,<id>`. No event holds text of a token
# that has not been named.
TOKENS_COMMENT = b": baton tokens "
# The header's value where no stream is asked for: the same lines, then this one with status and headers (JSON), then
# the answer's body.
AHEAD = "ahead"
TOKENS_TYPE = "application/x-baton-tokens"  # content type of such an answer
ANSWER_COMMENT = b": baton answer "


def error_body(
    message: str, *, kind: str = "invalid_request_error", code: str | int | None = None, param: str | None = None
) -> dict[str, Any]:
    """Return an error in OpenAI's shape, as vLLM and the `openai` client know it."""
    return {"error": {"message": message, "type": kind, "param": param, "code": code}}
