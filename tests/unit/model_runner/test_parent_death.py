import os
import signal
import subprocess
import sys

from tests.support.processes import alive
from tests.support.waiting import eventually

PARENT = """
import subprocess, sys, time
child = subprocess.Popen([sys.executable, "-c", '''
import time
from baton.model_runner.parent_death import end_with_parent
end_with_parent()
print("tied", flush=True)
time.sleep(60)
'''], stdout=subprocess.PIPE)
child.stdout.readline()
print(child.pid, flush=True)
time.sleep(60)
"""


def test_a_worker_dies_with_the_process_that_started_it() -> None:
    """An engine that outlives a killed API server would keep its ports and look alive to its peers."""
    parent = subprocess.Popen([sys.executable, "-c", PARENT], stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    with parent.stdout:
        worker = int(parent.stdout.readline())
    assert alive(worker)

    os.kill(parent.pid, signal.SIGKILL)
    parent.wait()

    eventually(lambda: not alive(worker))
