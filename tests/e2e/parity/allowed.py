"""Differences from one vLLM server that there may be, each with its reason. Nothing else may differ.

`docs/api.md` lists the same; the test compares the two, and complains of an entry that no case needs any more.
"""

import re
from dataclasses import dataclass
from typing import Final

from tests.e2e.parity.axes import AXES, MESSAGES
from tests.e2e.parity.compare import Difference
from tests.support.pairwise import Case


@dataclass(frozen=True, slots=True, kw_only=True)
class Allowed:
    name: str
    where: str  # a regular expression for the place
    reason: str
    paths: tuple[str, ...] = tuple(AXES)
    errors: tuple[str, ...] = ()  # only in cases of these errors; empty: in any

    def covers(self, difference: Difference, path: str, case: Case) -> bool:
        fits = path in self.paths and (not self.errors or case["error"] in self.errors)
        return fits and re.fullmatch(self.where, difference.where) is not None


ALLOWED: Final = (
    Allowed(
        name="worded by the proxy",
        where=r"error\.(message|type|param)",
        errors=("no_prompt", "text_temperature"),
        reason=(
            "The proxy refuses itself what it cannot route: a body without a prompt, a field of the wrong JSON "
            "type. Status and shape are vLLM's, the sentence is the proxy's."
        ),
    ),
    Allowed(
        name="Anthropic's shape",
        where=r"type|error\.(code|param|type)",
        paths=(MESSAGES,),
        errors=("unknown_model", "no_prompt", "text_temperature"),
        reason=(
            "What the proxy refuses on /v1/messages is an error in Anthropic's shape; vLLM refuses a malformed body there in "
            "OpenAI's."
        ),
    ),
    Allowed(
        name="fields that are counted",
        where=r"error\.message",
        paths=(MESSAGES,),
        errors=("no_model", "no_max_tokens"),
        reason=(
            "vLLM's sentence says how many fields a malformed body had (`<dict of 4 items>`); the proxy has added "
            "`kv_transfer_params` to it."
        ),
    ),
    Allowed(
        name="fingerprint",
        where=r"(events\[\]\.)?system_fingerprint",
        reason=(
            "`system_fingerprint` is a hash of a server's configuration. A decode node has another one than a server without "
            "a connector; it is the same in every answer of that node."
        ),
    ),
)


def explained(difference: Difference, path: str, case: Case) -> Allowed | None:
    return next((allowed for allowed in ALLOWED if allowed.covers(difference, path, case)), None)
