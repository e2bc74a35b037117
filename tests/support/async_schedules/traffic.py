"""Random traffic on a prefill node: what its scheduler says of each step, and what the step's kernels write.

Several prompts per step, in chunks that end anywhere in a block; prompts that hit the prefix of another one in the very
step in which it is written (E5); preemptions whose blocks the same step gives to another prompt (E7); blocks reused as
soon as they are free. Every 16 bytes of the KV cache name the text, the layer and the token that they belong to.
"""

import random
from collections import Counter
from dataclasses import dataclass, field
from typing import NamedTuple

from baton.kv_connector.handoff.metadata import PrefillStep, Progress, StartedPrompt
from baton.kv_connector.handoff.outgoing import Prompt
from tests.support.ranks import BLOCK_BYTES, BLOCK_TOKENS, BLOCKS

TOKEN_BYTES = BLOCK_BYTES // BLOCK_TOKENS
MOST_TOKENS = 5 * BLOCK_TOKENS


class Write(NamedTuple):
    """What one step writes to one block, per layer."""

    block: int
    text: str  # names the block's content
    first: int  # tokens of the block
    stop: int


class Step(NamedTuple):
    told: PrefillStep
    writes: list[list[Write]]  # per prompt
    hits: dict[str, int]  # request id of a prompt that starts → blocks that another prompt fills


def content(text: str, layer: int, first: int, stop: int) -> bytes:
    """Return what the KV of tokens `[first, stop)` of a block looks like in a layer."""
    return b"".join(f"{text} {layer} {token}".encode().ljust(TOKEN_BYTES, b".") for token in range(first, stop))


@dataclass(slots=True, eq=False)
class Computed:
    name: str
    tokens: int
    texts: list[str]  # per block: whose text it is
    blocks: list[int] = field(default_factory=list)  # block ids, in prompt order
    computed: int = 0  # tokens, the step that is scheduled included
    voided: bool = False

    @property
    def complete(self) -> bool:
        """Whether the last chunk has been scheduled."""
        return self.computed == self.tokens

    def length(self, block: int) -> int:
        """Tokens of the prompt in its block number `block`."""
        return min(self.tokens - block * BLOCK_TOKENS, BLOCK_TOKENS)


class Traffic:
    def __init__(self, chance: random.Random, prompts: int, *, crowded: bool = False) -> None:
        """With `crowded` prompts are preempted often, and the blocks that came back last are given away first."""
        self._crowded = crowded
        self.seen: Counter[str] = Counter()  # what has happened at least once, for tests of the traffic itself
        self._random = chance
        self.prompts = {name: self._draw(name) for name in [f"r{number}" for number in range(prompts)]}
        self._to_come = list(self.prompts.values())
        self._running: list[Computed] = []
        self._finished: list[Computed] = []  # in the last step
        self._held: dict[str, Computed] = {}
        self._free = list(range(1, BLOCKS))
        self._references: Counter[int] = Counter()

    @property
    def busy(self) -> bool:
        """Whether anything is left to be computed or to be let go."""
        return bool(self._to_come or self._running or self._finished or self._held)

    def release(self, requests: set[str]) -> None:
        """P's worker lets go of these requests' blocks."""
        for request in requests:
            self._give_back(self._held.pop(request))

    def step(self) -> Step:
        """Schedule the next forward pass; its prompts may be none."""
        hits: dict[str, int] = {}
        told = PrefillStep(voids=self._preempt(), holds=[f"p-{prompt.name}" for prompt in self._finished])
        self._held |= {f"p-{prompt.name}": prompt for prompt in self._finished}
        self._finished = []
        writes = [self._advance(prompt, told) for prompt in list(self._running)]
        while self._to_come and self._random.random() < 0.6:  # they may hit what this very step writes
            prompt = self._to_come.pop()
            self._start(prompt, told)
            hits[f"p-{prompt.name}"] = len(prompt.blocks)
            writes.append(self._advance(prompt, told))
        writes = [some for some in writes if some]
        self.seen["several prompts in a step"] += len(writes) > 1
        return Step(told, writes, hits)

    def _draw(self, name: str) -> Computed:
        tokens = self._random.randint(1, MOST_TOKENS)
        return Computed(name, tokens, [name] * -(-tokens // BLOCK_TOKENS))

    def _preempt(self) -> list[tuple[str, str]]:
        """Now and then, and when no block is free: even a prompt whose last chunk has just been issued (E7)."""
        stuck = len(self._free) == 0 and bool(self._running)
        victims = self._running + self._finished
        if not victims or self._random.random() > (0.5 if stuck or self._crowded else 0.1):
            return []
        victim = self._random.choice(victims)
        (self._running if victim in self._running else self._finished).remove(victim)
        victim.voided = True
        self.seen["preempted while computing" if victim.computed < victim.tokens else "preempted when computed"] += 1
        self._give_back(victim)
        return [(f"p-{victim.name}", "preempted")]

    def _start(self, prompt: Computed, told: PrefillStep) -> None:
        self._hit_prefix(prompt)
        self._running.append(prompt)
        about = Prompt(prompt.tokens, len(prompt.texts), f"prompt {prompt.name}".encode())
        told.started.append(StartedPrompt(prompt.name, f"p-{prompt.name}", about))

    def _hit_prefix(self, prompt: Computed) -> None:
        """Share full blocks that another prompt has been scheduled to fill, and leave one token to compute."""
        held = list(self._held.values())
        others = [*self._running, *self._finished, *held]
        if not others or self._random.random() < 0.3:
            return
        other = self._random.choice(others)
        most = min(other.computed, prompt.tokens - 1) // BLOCK_TOKENS
        if most < 1:
            return
        hits = self._random.randint(1, most)
        prompt.texts[:hits] = other.texts[:hits]
        self.seen["hit of a finished prompt" if other in held else "hit of what this step or the last writes"] += 1
        prompt.blocks = other.blocks[:hits]
        prompt.computed = hits * BLOCK_TOKENS
        self._references.update(prompt.blocks)

    def _advance(self, prompt: Computed, told: PrefillStep) -> list[Write]:
        """Schedule one chunk, if there are blocks for it."""
        first = prompt.computed
        stop = min(prompt.tokens, first + self._random.randint(1, 3 * BLOCK_TOKENS))
        needed = -(-stop // BLOCK_TOKENS) - len(prompt.blocks)
        started = any(p.request_id == f"p-{prompt.name}" for p in told.started)
        known = prompt.blocks if started else []  # a first step names the hit blocks as well
        if needed > len(self._free):
            self.seen["no room on P"] += 1
            needed, stop = 0, first
        new = [self._free.pop(-1 if self._crowded else self._random.randrange(len(self._free))) for _ in range(needed)]
        self._references.update(new)
        prompt.blocks = prompt.blocks + new
        prompt.computed = stop
        self.seen["chunk that ends inside a block"] += stop % BLOCK_TOKENS != 0 and not prompt.complete
        ready = len(prompt.texts) if prompt.complete else stop // BLOCK_TOKENS
        if started or stop > first:
            told.progress.append(Progress(f"p-{prompt.name}", [[*known, *new]], ready))
        if prompt.complete:
            self._running.remove(prompt)
            self._finished.append(prompt)
        touched = range(first // BLOCK_TOKENS, len(prompt.blocks)) if stop > first else ()
        return [self._write(prompt, block, first, stop) for block in touched]

    @staticmethod
    def _write(prompt: Computed, block: int, first: int, stop: int) -> Write:
        start = block * BLOCK_TOKENS
        return Write(prompt.blocks[block], prompt.texts[block], max(first - start, 0), min(stop - start, BLOCK_TOKENS))

    def _give_back(self, prompt: Computed) -> None:
        self._references.subtract(prompt.blocks)
        self._free += [block for block in prompt.blocks if not self._references[block]]
