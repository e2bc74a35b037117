"""Serves `/v1/responses`: as the other data routes, but a request that goes on from a stored answer goes where that is."""

import asyncio

from baton.proxy.handler.request_handler import RequestHandler
from baton.proxy.passthrough.response_owner import holder_of
from baton.proxy.planning.outcome import DecodeFailed, DecodeRefused, Opened
from baton.proxy.planning.plans import alone
from baton.proxy.request.parse import ClientRequest
from baton.proxy.request.single_node import PREVIOUS, previous_of
from baton.proxy.response.client_response import ClientResponse
from baton.proxy.response.first_token_relay import FirstTokenRelay
from baton.proxy.response.stream_relay import relay
from baton.proxy.resume.stream import Stream
from baton.proxy.routing.router import choice_of


class Conversations(RequestHandler):
    """Handler of `/v1/responses`."""

    async def serve(self, request: ClientRequest, deadline: asyncio.Timeout, client: ClientResponse) -> None:
        previous = previous_of(request)
        if previous is None:
            await super().serve(request, deadline, client)
            return
        node = await holder_of(self._attempts.upstream, self._attempts.members.decode, previous, request.forwarded)
        plan = alone(choice_of(node, request.prompt_bytes), PREVIOUS)
        client.record.record_plan(plan)
        self._metrics.decided(plan)
        stream = Stream(request, resumes=False, relays=False)  # what it goes on from is on this node
        async with self._attempts.run(plan, request, FirstTokenRelay(client, stream)) as outcome:
            if isinstance(outcome, Opened):
                await relay(outcome, client, stream)
                return
        if isinstance(outcome, DecodeRefused):
            raise outcome.answered
        assert isinstance(outcome, DecodeFailed)  # one node is asked
        raise outcome.error()
