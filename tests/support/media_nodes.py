"""Servers for models that take images or sound, where two packages of theirs are not installed, and the runs of their encoders are counted."""

import io
import os
import sys
import wave
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import Any, ClassVar, Final, Self

import setproctitle

from baton.contracts.kv_transfer import Role

STUBS: Final = str(Path(__file__).parent / "stub_packages")
RUNS_FILE: Final = "ENCODER_RUNS"  # environment: gets a line, with the number of items, for each run of an encoder


def plain(argv: Sequence[str]) -> None:
    from tests.e2e.targets import plain_vllm

    prepare()
    plain_vllm(argv)


def node(argv: Sequence[str], role: Role) -> None:
    from baton.node.command import main

    prepare()
    main(role, argv)


def prepare() -> None:
    """Patch this process and those that it forks."""
    _stub_torchvision()
    _stub_video_processor()
    _stub_soundfile()
    if RUNS_FILE in os.environ:
        _count_runs(Path(os.environ[RUNS_FILE]))


def _stub_torchvision() -> None:
    """Let models be imported that import it; vLLM does so in a process of its own, too."""
    from transformers.utils import is_torchvision_available

    setproctitle.getproctitle()  # it finds the room for a title, by which an engine is known, only while the environment is as it was
    if not is_torchvision_available():  # the answer is kept: images are read with Pillow
        sys.path.append(STUBS)
        os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (os.environ.get("PYTHONPATH"), STUBS)))


def _stub_video_processor() -> None:
    """Give processors of images in place of their part for videos, which needs torchvision, one that does nothing."""
    from transformers.models.auto.video_processing_auto import AutoVideoProcessor
    from transformers.processing_utils import ProcessorMixin
    from transformers.video_processing_utils import BaseVideoProcessor

    class NoVideos(BaseVideoProcessor):
        merge_size = 2
        temporal_patch_size = 2
        patch_size = 16
        size: ClassVar = {"shortest_edge": 56 * 56, "longest_edge": 28 * 28 * 64}
        model_input_names = ()

        def __init__(self, **_kwargs: Any) -> None:
            pass

        def __call__(self, *_args: Any, **_kwargs: Any) -> Any:
            raise NotImplementedError("videos need torchvision")

    def from_pretrained(*_args: Any, **_kwargs: Any) -> NoVideos:
        return NoVideos()

    AutoVideoProcessor.from_pretrained = from_pretrained
    check = ProcessorMixin.check_argument_for_proper_class

    def check_argument(self: Any, name: str, argument: Any) -> Any:
        return NoVideos if isinstance(argument, NoVideos) else check(self, name, argument)

    ProcessorMixin.check_argument_for_proper_class = check_argument


def _stub_soundfile() -> None:
    """Let vLLM read the one kind of sound that tests send: WAV, mono, 16 bits."""
    import numpy as np
    from vllm.multimodal.media import audio

    class SoundFile:
        def __init__(self, source: Any) -> None:
            data = source.read() if hasattr(source, "read") else Path(source).read_bytes()
            with wave.open(io.BytesIO(data)) as opened:
                self.samplerate, self.frames, self.channels = opened.getframerate(), opened.getnframes(), 1
                raw = np.frombuffer(opened.readframes(self.frames), np.int16)
            self._samples = raw.astype(np.float32) / 32768

        def __enter__(self) -> Self:
            return self

        def __exit__(self, *_args: object) -> None:
            pass

        def read(self, *_args: Any, **_kwargs: Any) -> Any:
            return self._samples

    stub = ModuleType("soundfile")
    vars(stub).update(SoundFile=SoundFile, LibsndfileError=type("LibsndfileError", (RuntimeError,), {}))
    audio.soundfile = stub


def _count_runs(file: Path) -> None:
    from vllm.v1.worker.gpu_model_runner import GPUModelRunner

    real = GPUModelRunner._execute_mm_encoder

    def execute(self: Any, scheduler_output: Any, *args: Any, **kwargs: Any) -> Any:
        if items := sum(map(len, scheduler_output.scheduled_encoder_inputs.values())):
            with file.open("a") as lines:
                lines.write(f"{items}\n")
        return real(self, scheduler_output, *args, **kwargs)

    GPUModelRunner._execute_mm_encoder = execute
