"""A node whose descriptors are nearly used up answers with an error; libzmq would abort the process."""

import subprocess
import sys
from pathlib import Path

import pytest

ASK = """
import asyncio, concurrent.futures.thread, os, resource, sys
from pathlib import Path
from baton.contracts.secret import ClusterSecret
from baton.node.connector.connector_channel import ConnectorClient
from baton.node.errors import NoAnswerError
from baton.node.http.probe import ProbeApi, _dial

spare = int(sys.argv[1])
folder = Path(sys.argv[2])
(folder / "worker-0.sock").touch()

async def main():
    resource.setrlimit(resource.RLIMIT_NOFILE, (200, 200))
    secret = ClusterSecret(b"the secret of this test cluster")
    client = ConnectorClient(folder, secret, timeout_s=1.0)
    probe = ProbeApi(secret, None)
    client.start()
    probe.start()
    taken = []
    try:
        while True:
            taken.append(os.dup(0))
    except OSError:
        pass
    for descriptor in taken[len(taken) - spare:]:
        os.close(descriptor)
    for question in (client.cancel(["a" * 32]), client.both(), client.integrity()):
        try:
            await question
        except NoAnswerError as exc:
            print("refused:", type(exc).__name__)
    print(await asyncio.to_thread(_dial, "tcp://127.0.0.1:9", secret, probe._context))
    for descriptor in taken[: len(taken) - spare]:
        os.close(descriptor)
    client.stop()
    await probe.stop()

asyncio.run(main())
print("alive")
"""


@pytest.mark.parametrize("spare", [pytest.param(n, marks=() if n == 1 else pytest.mark.exhaustive) for n in range(7)])
def test_a_first_question_with_few_descriptors_left_is_refused(spare: int, tmp_path: Path) -> None:
    """The contexts were opened at start; what a single question lacks is an error that the caller hears of."""
    command = [sys.executable, "-c", ASK, str(spare), str(tmp_path)]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)

    assert ran.returncode == 0, ran
    assert ran.stdout.count("refused:") == 3
    assert ran.stdout.endswith("alive\n")
