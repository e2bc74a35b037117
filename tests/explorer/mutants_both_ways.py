"""Nodes that send and receive, with one guard taken out of what they have for it. As in `mutants.py`."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from baton.kv_connector.scheduler_side.decode import DecodeScheduler
from baton.kv_connector.scheduler_side.ledger import ReservationLedger
from baton.kv_connector.scheduler_side.prefill import PrefillScheduler
from baton.kv_connector.scheduler_side.prompt import prompt_hash
from baton.kv_connector.scheduler_side.sides import SchedulerSides
from baton.kv_connector.worker_side.sides import WorkerSides
from tests.explorer.both_ways import ASIDE, BothWays, FullOfEachOther
from tests.explorer.mutants import Mutant, edited, p
from tests.explorer.scene import Machines


def schedulers(*texts: str) -> Machines:
    return Machines(scheduler_sides=edited(SchedulerSides, *texts))


def workers(*texts: str) -> Machines:
    return Machines(worker_sides=edited(WorkerSides, *texts))


def prefill(*texts: str, **names: Any) -> Machines:
    return Machines(prefill_scheduler=edited(PrefillScheduler, *texts, **names))


def decode(*texts: str, **names: Any) -> Machines:
    return Machines(decode_scheduler=edited(DecodeScheduler, *texts, **names))


def hash_of_prompt_alone(
    request: Any, adapters: Any = None, media: Any = None, answer: Sequence[int] = ()
) -> bytes:  # that is the fault
    return prompt_hash(request, adapters, media)


RETURNS = BothWays()
ONE = BothWays(transfers=1)
FULL = FullOfEachOther()
BOTH_WAYS = [
    Mutant(
        "take every request for one that sends",
        "repair",
        ONE,
        schedulers('if self.prefill and (role == "prefill" or self.decode is None):', "if self.prefill:"),
    ),
    Mutant(
        "take every request for one that receives",
        "repair",
        ONE,
        schedulers('(role == "prefill" or self.decode is None)', "self.decode is None"),
    ),
    Mutant(
        "count the references of one side",
        "pool",
        RETURNS,
        schedulers("for side in self._sides for name", "for side in self._sides[1:] for name"),
    ),
    Mutant(
        "give a prompt's blocks back when it ends",
        "assertion",
        ONE,
        schedulers("return keeps_blocks\n", "return False\n"),
    ),
    Mutant(
        "tell one side of a request's end",
        "I5",
        replace(ONE, left_out=ASIDE - {"abort"}),
        schedulers("        if self.decode:\n            self.decode.finish_request(request)\n", ""),
    ),
    Mutant(
        "do not note that a prompt's blocks are free",
        "I5",
        ONE,
        schedulers("self.prefill.update(finished_sending)", "pass"),
    ),
    Mutant("make no room", "repair", FULL, schedulers("self.prefill.make_room(self.decode.lacking)", "pass")),
    Mutant(
        "cancel on the node's own side alone",
        "I5",
        replace(ONE, roles=("decode", "prefill"), left_out=ASIDE - {"cancel"}),
        workers("sum(side.cancel(transfer_ids) for side in self._sides)", "self._sides[0].cancel(transfer_ids)"),
    ),
    Mutant(
        "report what has been sent alone",
        "I5",
        ONE,
        workers("self.decode.take_results() if self.decode else (set(), set())", "set(), set()"),
    ),
    Mutant(
        "report what has been received alone",
        "I5",
        ONE,
        workers("self.prefill.take_released() if self.prefill else set()", "set()"),
    ),
    Mutant(
        "begin the step of one side",
        "I5",
        ONE,
        workers("if self.decode and step.decode:", "if self.decode and step.decode and not step.prefill:"),
    ),
    Mutant(
        "receive into cached blocks too",
        "I3",
        RETURNS,
        decode("from_token = prompt_tokens - self._own_tokens - num_external_tokens", "from_token = 0"),
    ),
    Mutant(
        "hold no block that is received into",
        "pool",
        RETURNS,
        decode(ReservationLedger=edited(ReservationLedger, "self.pool.touch(blocks)", "pass")),
    ),
    Mutant(
        "let go of blocks when a receive has failed",
        "I3",
        RETURNS,
        decode(
            "self._settle(request_id, tracked)  # so that ranks that have not failed wait no longer",
            "self._settle(request_id, tracked)\n        self._ledger.release(request_id)",
        ),
    ),
    Mutant(
        "send a preempted prompt",
        "I1",
        replace(ONE, lags=True, left_out=ASIDE - {"preempt"}),
        prefill('self._void(request_id, "preempted")', "pass"),
    ),
    Mutant(
        "hold an answer as long as beats ask for it",
        "I5",
        RETURNS,
        p(" and not (transfer.prompt and transfer.prompt.is_answer)", ""),
    ),
    Mutant(
        "take an answer for a prompt", "I5", RETURNS, prefill("is_answer=tracked.answer_tokens > 0", "is_answer=False")
    ),
    Mutant("give up what is reserved", "I5", FULL, p(" and transfer.reservation is None:", ":")),
    Mutant(
        "hash the prompt without its answer",
        "I2",
        replace(RETURNS, other_answer=True),
        Machines(
            prefill_scheduler=edited(PrefillScheduler, prompt_hash=hash_of_prompt_alone),
            decode_scheduler=edited(DecodeScheduler, prompt_hash=hash_of_prompt_alone),
        ),
    ),
]
