"""Nodes of models that take images: the chaos suite finds their engines."""

import os
import subprocess
import sys
from pathlib import Path

TITLED = """
from tests.support import media_nodes
media_nodes._stub_torchvision()
import setproctitle
setproctitle.setproctitle("VLLM::EngineCore")
from pathlib import Path
print(Path("/proc/self/cmdline").read_bytes()[:16])
"""


def test_an_engine_gets_its_title_though_the_environment_has_changed() -> None:
    """Without it `engine_of` finds none, and no engine of such a node could be killed."""
    env = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, (str(Path.cwd()), os.environ.get("PYTHONPATH"))))}

    found = subprocess.run([sys.executable, "-c", TITLED], env=env, capture_output=True, text=True, check=True)

    assert found.stdout == "b'VLLM::EngineCore'\n"
