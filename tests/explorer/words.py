"""A trace that a person can read."""

from collections.abc import Iterable

from baton.kv_connector.protocol.messages import Beat, Body, Commit, Fail, Reserve, Revoke, Started
from tests.explorer.both_ways import A, B
from tests.explorer.scene import FIRST, Label, place_of
from tests.explorer.writes import Stage

SENTENCES = {
    ("P", "start"): "P schedules prompt {0}",
    ("P", "abandon"): "P will not compute prompt {0}",
    ("P", "cancel"): "the proxy tells P that no client wants transfer {0} any more",
    ("P", "ready"): "P's device has written one more layer of {0}",
    ("P", "sample"): "P samples the first token of {0}",
    ("P", "void"): "P preempts or aborts {0}: its block is free",
    ("P", "zero"): "P's device writes into the block that {0} had",
    ("P", "hear"): "P's connector hears that {0} has been preempted",
    ("P", "hold"): "P's request {0} finishes; its block is kept for the connector",
    ("P", "push"): "P's sender is told that it may push {0} (and sleeps before it does)",
    ("P", "digest"): "P has computed the digest of what is in the source block of {0} by now",
    ("P", "orphan"): "P waits too long for a decode rank to ask for the finished prompt {0}",
    ("P", "silence"): "P takes the decode process {0} for dead",
    ("P", "crash"): "P is killed",
    ("P", "restart"): "P restarts at the same address",
    ("D", "watch"): "D receives request {0}",
    ("D", "prepare"): "D allocates a block for {0}",
    ("D", "zeroed"): "D's device has zeroed the block of {0}",
    ("D", "cancel"): "D's client of {0} leaves",
    ("D", "beat"): "D beats",
    ("D", "tick"): "D looks at its clock",
    ("D", "quarantine"): "D has waited long enough for the healthy epochs of a retired engine",
    ("D", "silence"): "D takes {0} for dead",
    ("D", "verify"): "D compares the digests of {0}",
    ("D", "flip"): "a byte flips in D's block of {0}",
    ("D", "overdue"): "D waits too long for the commit of {0}",
    ("D", "unanswered"): "D waits too long for an answer to its revoke of {0}",
    ("D", "fence"): "D destroys engine {0}",
    ("D", "crash"): "D is killed, its engines with it",
    ("D", "restart"): "D restarts at the same address, with an empty pool",
    ("N", "arrive"): "N receives the request '{0}'",
    ("N", "abort"): "N's client of '{0}' leaves",
    ("N", "cancel"): "the proxy tells N that transfer {0} is not wanted any more",
    ("N", "preempt"): "N preempts '{0}'",
    ("N", "end"): "N's stream '{0}' ends",
    ("N", "evict"): "N gives the cached block {0} to another request, which gives it back",
    ("N", "device"): "N's device does the next thing that it has been given",
    ("N", "step"): "N's scheduler takes in a step, and schedules the next",
    ("N", "stall"): "N has computed nothing for long, for want of blocks, and takes a step",
    ("net", "deliver"): "{message} arrives at {0}",
    ("write", "submit"): "P ({0}) submits the write of {1}, layer {2}, to engine {3}",
    ("write", "land"): "{how} lands in the block of {1}, layer {2}, through engine {3}",
    ("write", "succeed"): "P's call for {1}, layer {2}, returns 0",
    ("write", "fail"): "P's call for {1}, layer {2}, returns -1",
}
WRITES = {
    Stage.FLYING: "The write of P ({0})",
    Stage.FAILED: "The write whose call has failed",
    Stage.ORPHAN: "The write of the dead P ({0})",
}


def sentence(label: Label) -> str:
    arguments = label.arguments
    words = {}
    if label.where == "net":
        _, sender, receiver, body = arguments
        words["message"] = (
            f"{place_of(sender)}'s {describe(body)} ({sender} to {receiver or 'whichever process listens'})"
        )
    elif label[:2] == ("write", "land"):
        words["how"] = WRITES[arguments[-1]].format(*arguments)
    if label.where in FIRST:
        kind = next(kind for kind in (label.where[0], "D", "P") if (kind, label.what) in SENTENCES)  # a node is both
        return SENTENCES[kind, label.what].format(*arguments).replace(kind, label.where, 1)
    return SENTENCES[label[:2]].format(*arguments, **words)


def describe(body: Body) -> str:
    """Name a message by what matters in it."""
    match body:
        case Reserve():
            return f"Reserve of {body.transfer_id}, epoch {body.epoch}, through engine {body.engine}"
        case Revoke() | Commit():
            return f"{type(body).__name__} of {body.transfer_id}, epoch {body.epoch}"
        case Fail():
            return f"{'dirty' if body.dirty else 'clean'} Fail of {body.transfer_id}, epoch {body.epoch}"
        case Started():
            return f"Started of {body.transfer_id}"
        case Beat():
            return f"Beat listing {', '.join(f'{name} ({epoch})' for name, epoch in body.open) or 'nothing'}"
        case _:
            return type(body).__name__


def story(trace: Iterable[Label], violation: str) -> str:
    """Say a whole trace in words, one numbered line per step."""
    lines = [f"{number:3}. {sentence(label)}" for number, label in enumerate(trace, 1)]
    told = "\n".join([*lines, f"  => {violation}"])
    for transfer in (A, B):
        told = told.replace(transfer, transfer[0])
    return told
