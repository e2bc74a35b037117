"""Starts and stops real servers: plain vLLM, prefill and decode nodes, the proxy. One fork server feeds them all."""

import math
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any

import httpx

from baton.contracts.http import INTEGRITY_PATH, NODE_PATH, TRANSFERS_PATH
from baton.contracts.kv_transfer import FIELD, Role, TransferParams, new_transfer_id, sign
from baton.contracts.secret import generate_secret, read_secret
from baton.deploy.embedded_model import WEIGHTS
from baton.deploy.forkserver import VLLM_PRELOAD, Child, ForkServer
from baton.node.startup.flags import ranks_of
from benchmarks.netns import target_in
from benchmarks.usage import descendants
from tests.e2e.valve import Valve
from tests.support.ports import free_port

START_TIMEOUT_S = 180.0
ANSWER_TIMEOUT_S = 120.0
NODES_WITHIN_S = 5.0  # of a proxy's start; when one is started again, nodes may be gone
UNUSED_FOR = httpx.Limits(keepalive_expiry=1.0)  # nodes close a connection that was not used for 5 s
NOTHING: Mapping[str, str] = MappingProxyType({})
FLOAT32 = ("--dtype", "float32")
CLOSE = ("--structured-outputs-config", '{"disable_any_whitespace": true, "backend": "xgrammar"}')  # as short as can be
TOOLS = ("--enable-auto-tool-choice", "--tool-call-parser", "hermes")
STORES: Mapping[str, str | None] = MappingProxyType({"VLLM_ENABLE_RESPONSES_API_STORE": "1"})
PROXY = "baton.proxy.__main__:main"
QUIET = ("--uvicorn-log-level", "error", "--disable-uvicorn-access-log")


@dataclass
class Server:
    name: str
    target: str
    argv: list[str]
    url: str
    log: Path
    forkserver: ForkServer
    token: str = ""
    ready_path: str = "/health"
    cpus: Sequence[int] = ()
    env: dict[str, str | None] = field(default_factory=dict)
    netns: str = ""
    kwargs: dict[str, Any] = field(default_factory=dict)  # of the target, besides `argv`
    child: Child | None = None
    http: httpx.Client = field(default_factory=lambda: httpx.Client(timeout=5, limits=UNUSED_FOR))

    def spawn(self) -> None:
        """Start the process, without waiting for it to serve."""
        target, kwargs = target_in(self.netns, self.target, {"argv": self.argv} | self.kwargs)
        self.child = self.forkserver.spawn(target, kwargs=kwargs, log=self.log, cpus=self.cpus, env=self.env)

    def wait_ready(self) -> None:
        """Wait until it serves; a proxy, for a moment longer, until it knows that its nodes do: it is ready with one of them."""
        deadline, served_at = time.monotonic() + START_TIMEOUT_S, math.inf
        while time.monotonic() < deadline:
            if self.child is not None and self.child.poll() is not None:
                raise RuntimeError(f"{self.name} ended with {self.child.returncode}:\n{self.tail()}")
            with suppress(httpx.HTTPError):
                answer = self.http.get(self.url + self.ready_path)
                if answer.status_code == 200:
                    served_at = min(served_at, time.monotonic())
                    nodes = answer.json()["nodes"] if self.target == PROXY else []
                    if all(node["state"] == "ready" for node in nodes) or time.monotonic() > served_at + NODES_WITHIN_S:
                        return
            time.sleep(0.05)
        raise RuntimeError(f"{self.name} was not ready within {START_TIMEOUT_S} s:\n{self.tail()}")

    def process(self, title: str) -> int:
        """Return the process id of the one of its processes whose title begins so."""
        assert self.child is not None
        (found,) = (
            pid for pid in descendants(self.child.pid) if Path(f"/proc/{pid}/cmdline").read_text().startswith(title)
        )
        return found

    def stop(self) -> None:
        """Stop the process and wait for its end."""
        if self.child is not None:
            self.child.terminate()
        self.wait_stopped()

    def wait_stopped(self) -> None:
        """Wait for the end of the process, which has been told to stop."""
        if self.child is not None and self.child.poll() is None:
            try:
                self.child.wait(15)
            except Exception:  # noqa: BLE001  # whatever it was, the process must not stay
                self.child.kill()
                self.child.wait(5)
        self.http.close()

    def kill(self) -> None:
        assert self.child is not None
        self.child.kill()
        self.child.wait(5)

    def signal(self, number: int) -> None:
        """Signal the process and its engine, if they run."""
        if self.child is not None and self.child.poll() is None:
            self.child.send_signal(number, group=True)

    def tail(self, lines: int = 40) -> str:
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-lines:]) if self.log.exists() else ""

    def ask(self, path: str, body: Mapping[str, Any], headers: Mapping[str, str] | None = None) -> httpx.Response:
        """POST a request; the answer must be a 200."""
        response = httpx.post(self.url + path, json=body, headers=headers, timeout=ANSWER_TIMEOUT_S)
        assert response.status_code == 200, response.text
        return response

    def get(self, path: str) -> Any:
        """GET a JSON route of a node's API. It says 503 while the connector is late, as on a loaded machine: then once more."""
        ends_s = time.monotonic() + ANSWER_TIMEOUT_S
        while True:
            response = self.http.get(self.url + path, headers={"Authorization": f"Bearer {self.token}"})
            if response.status_code != 503 or time.monotonic() > ends_s:
                return response.raise_for_status().json()

    def info(self) -> dict[str, Any]:
        return dict(self.get(NODE_PATH))

    def transfers(self) -> dict[str, Any]:
        return dict(self.get(TRANSFERS_PATH))

    def integrity(self) -> dict[str, Any]:
        return dict(self.get(INTEGRITY_PATH))

    def metrics(self) -> dict[str, float]:
        """Sum of each Prometheus metric over its labels, and each labelled sample by its full name."""
        found: dict[str, float] = {}
        for line in self.http.get(self.url + "/metrics").text.splitlines():
            if line.startswith("#"):
                continue
            sample, _, value = line.rpartition(" ")
            name = sample.partition("{")[0]
            found[name] = found.get(name, 0.0) + float(value)
            if sample != name:
                found[sample] = float(value)
        return found


class Stack:
    """Servers of one fork server; `env` is added to the environment of each."""

    def __init__(
        self, forkserver: ForkServer, folder: Path, model: Path = WEIGHTS, *, env: Mapping[str, str] = NOTHING
    ) -> None:
        self.forkserver = forkserver
        self.folder = folder
        self.model = str(model)
        self.env = env
        self.secret_file = folder / "secret"
        self.secret_file.write_text(generate_secret())
        self.token = read_secret(self.secret_file).node_token()
        self.servers: list[Server] = []

    def plain(
        self,
        *flags: str,
        name: str = "plain",
        target: str = "tests.e2e.targets:plain_vllm",
        model: str = "",
        **more: Any,
    ) -> Server:
        """A plain vLLM server; `model` is another one than the stack's, `more` are fields of `Server`.

        It gets the last core, unless it has several ranks: two threads that wait for each other in every operation take
        twenty times as long where something else wants one of the cores.
        """
        cores = sorted(os.sched_getaffinity(0))
        cpus = cores[-1:] if math.prod(ranks_of(flags)) == 1 else ()
        port = free_port()
        argv = [
            "--model",
            model or self.model,
            "--port",
            str(port),
            "--enforce-eager",
            "--enable-prompt-tokens-details",
        ]
        argv += ["--host", "127.0.0.1", "--kv-cache-memory-bytes", str(256 << 20), *QUIET, *flags]
        return self._spawn(name, target, argv, port, cpus=cpus, **more)

    def node(
        self,
        role: str,
        *flags: str,
        name: str = "",
        host: str = "127.0.0.1",
        bind: str = "",
        cpus: Sequence[int] = (),
        target: str = "",
        model: str = "",
        **more: Any,
    ) -> Server:
        """A prefill or decode node; prefill nodes get the first core, decode nodes the last, those of several ranks all.

        Args:
            role: "prefill" or "decode".
            flags: of the node, or of vLLM.
            name: of the server; the role if empty.
            host: where it is reached.
            bind: where it listens, if that is another address.
            cpus: other cores.
            target: called in place of the node's own `main`.
            model: another one than the stack's.
            more: fields of `Server`.
        """
        cores = sorted(os.sched_getaffinity(0))
        ranks = math.prod(ranks_of(flags))
        if ranks == 1:
            cpus = cpus or (cores[:1] if role == "prefill" else cores[-1:])
        port = free_port()
        argv = ["--model", model or self.model, "--port", str(port), "--host", bind or host]
        argv += ["--secret-file", str(self.secret_file)]
        if role == "prefill":
            argv += ["--control-port", str(free_port(ranks))]
        argv += ["--enable-prompt-tokens-details", *QUIET, *flags]
        target = target or f"baton.{role}_node.__main__:main"
        return self._spawn(name or role, target, argv, port, host=host, token=self.token, cpus=cpus, **more)

    def proxy(
        self,
        prefill: Sequence[Server | Valve],
        decode: Sequence[Server | Valve],
        *flags: str,
        name: str = "proxy",
        env: Mapping[str, str | None] = NOTHING,
        **more: Any,
    ) -> Server:
        """Wait for some nodes, then start a proxy in front of them and wait for it; `more` are fields of `Server`.

        It is patient: on a loaded machine an engine may answer nothing for seconds, and its prompts would be computed elsewhere. And
        it hands over all that can be.
        """
        for node in (*prefill, *decode):
            if isinstance(node, Server):
                node.wait_ready()
        port = free_port()
        env = {"BATON_TRANSFER_PEER_TIMEOUT_S": "30", "BATON_PROXY_PLACEMENT": "pairs", **env}
        argv = ["--port", str(port), "--secret-file", str(self.secret_file), *flags]
        argv += ["--prefill", *(server.url for server in prefill), "--decode", *(server.url for server in decode)]
        proxy = self._spawn(name, PROXY, argv, port, token=self.token, ready_path="/ready", env=env, **more)
        proxy.wait_ready()
        return proxy

    def leg(self, role: Role, peer: str = "", **fields: Any) -> dict[str, Any]:
        """What a proxy adds to the body that it sends to one of two nodes; `fields` are more of `TransferParams`."""
        params = TransferParams(role=role, peer=peer, **{"transfer_id": new_transfer_id(), **fields})
        return {FIELD: sign(params, read_secret(self.secret_file))}

    def stop(self, *servers: Server) -> None:
        """Stop these servers: proxies first, then all others at once, of which each takes a second."""
        proxies = [server for server in servers if server.target == PROXY]
        for together in (proxies, [server for server in servers if server not in proxies]):
            for server in together:
                if server.child is not None:
                    server.child.terminate()
            for server in together:
                server.wait_stopped()
                self.servers.remove(server)

    @contextmanager
    def stopping(self) -> Iterator[None]:
        """Stop whatever is started in the block."""
        already = list(map(id, self.servers))
        try:
            yield
        finally:
            self.stop(*(server for server in self.servers if id(server) not in already))

    def _spawn(
        self,
        name: str,
        target: str,
        argv: list[str],
        port: int,
        *,
        host: str = "127.0.0.1",
        env: Mapping[str, str | None] = NOTHING,
        **more: Any,
    ) -> Server:
        log = self.folder / f"{name}-{port}.log"
        server = Server(
            name, target, argv, f"http://{host}:{port}", log, self.forkserver, env={**self.env, **env}, **more
        )
        self.servers.append(server)
        server.spawn()
        return server


@contextmanager
def vllm_forkserver(
    log: Path, *, preload: str = VLLM_PRELOAD, env: Mapping[str, str] = NOTHING
) -> Iterator[ForkServer]:
    """A fork server for nodes and plain servers; `env` is added to every server's environment.

    With `preload` empty each server imports vLLM by itself, as in production: slower to start, its memory its own.
    """
    environ = {**os.environ, "TORCHDYNAMO_DISABLE": "1", "VLLM_LOGGING_LEVEL": "WARNING", **env}  # read at import
    with ForkServer(prepare=preload, log=log, environ=environ) as forkserver:
        yield forkserver


@contextmanager
def stack_on(
    forkserver: ForkServer, folder: Path, model: Path = WEIGHTS, *, env: Mapping[str, str] = NOTHING
) -> Iterator[Stack]:
    """A stack on a fork server that others use too; everything of it is stopped at the end."""
    stack = Stack(forkserver, folder, model, env=env)
    with stack.stopping():
        yield stack


@contextmanager
def running_stack(folder: Path, *, preload: str = VLLM_PRELOAD, env: Mapping[str, str] = NOTHING) -> Iterator[Stack]:
    """A fork server and a stack on it; everything is stopped at the end."""
    with vllm_forkserver(folder / "zygote.log", preload=preload, env=env) as server, stack_on(server, folder) as stack:
        yield stack
