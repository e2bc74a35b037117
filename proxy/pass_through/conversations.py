"""Serves `/v1/responses`: as the other data routes, but a request that goes on from a stored answer goes where that is."""

import asyncio
from typing import Any

from baton.contracts.http import LOCAL
from baton.proxy.attempt import Attempts
from baton.proxy.client import Client
from baton.proxy.dialects.alone import PREVIOUS, previous_of
from baton.proxy.dialects.typed_stream import TypedStream
from baton.proxy.nodes import Members
from baton.proxy.orchestrate import Orchestrator
from baton.proxy.outcome import DecodeRefused, Opened
from baton.proxy.pass_through.holders import holder_of
from baton.proxy.plans import Alone
from baton.proxy.reasons import LABELS
from baton.proxy.relay import relay
from baton.proxy.request import ClientRequest
from baton.proxy.upstream import Upstream


class Conversations(Orchestrator):
    """The route."""

    def __init__(self, *shared: Any, members: Members, upstream: Upstream, attempts: Attempts) -> None:
        """`shared` are the arguments of an `Orchestrator`."""
        super().__init__(*shared)
        self._members = members
        self._upstream = upstream
        self._attempts = attempts

    async def serve(self, request: ClientRequest, deadline: asyncio.Timeout, client: Client) -> None:
        """Serve a request that was let in."""
        previous = previous_of(request)
        if previous is None:
            await super().serve(request, deadline, client)
            return
        node = await holder_of(self._upstream, self._members.decode, previous, request.forwarded)
        plan = Alone(decode=node, path=LOCAL, reason=PREVIOUS, label=LABELS[PREVIOUS], own_bytes=request.prompt_bytes)
        client.take(plan)
        self._metrics.decided(plan)
        async with self._attempts.run(plan, request) as outcome:
            if isinstance(outcome, Opened):
                await relay(outcome, client, TypedStream(request))
                return
        raise outcome.answered if isinstance(outcome, DecodeRefused) else outcome.error()
