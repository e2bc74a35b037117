"""Writes the benchmark model on demand.

Its weights are random, so its text means nothing. Its KV cache takes 4 KiB per token in bfloat16. How long a prefill
takes depends on the machine much more than on the model: 3,500 tokens took 0.32 s on one core with AMX and 1.0 s on one
without, and as long as sending them takes at 365 and 115 Mbit/s. The width of the MLP makes up for that. It is never
committed.
"""

import json
import shutil
import subprocess
import sys
from pathlib import Path

SHAPE = {
    "num_hidden_layers": 8,
    "hidden_size": 256,
    "intermediate_size": 1024,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "max_position_embeddings": 8192,
}
SEED = 20
RECIPE = "recipe.json"


def ensure(directory: Path, *, mlp: int = SHAPE["intermediate_size"]) -> None:
    """Write the model unless it is there already. `mlp`: width of the MLP.

    It is built next to `directory` and moved in place whole: a directory with this recipe is complete.
    """
    if (directory / RECIPE).is_file() and (directory / RECIPE).read_text() == _recipe(mlp):
        return
    # In a process of its own: torch's objects would make the measuring process's garbage collections longer.
    command = [sys.executable, "-m", "benchmarks.bench_model", str(directory), str(mlp)]
    subprocess.run(command, check=True, cwd=Path(__file__).parents[1])


def _write(directory: Path, mlp: int) -> None:
    from baton.deploy.embedded_model import tokenizer as tokens
    from baton.deploy.embedded_model.train import new_decoder, write

    partial = directory.with_name(directory.name + ".partial")
    shutil.rmtree(partial, ignore_errors=True)
    tokenizer = tokens.load()
    write(new_decoder(_shape(mlp), tokenizer, seed=SEED), tokenizer, partial)
    (partial / RECIPE).write_text(_recipe(mlp))
    if (directory / RECIPE).exists():  # ours, of another recipe
        shutil.rmtree(directory)
    partial.replace(directory)


def _shape(mlp: int) -> dict[str, int]:
    return SHAPE | {"intermediate_size": mlp}


def _recipe(mlp: int) -> str:
    return json.dumps({"seed": SEED, **_shape(mlp)}, indent=2) + "\n"


if __name__ == "__main__":
    _write(Path(sys.argv[1]), int(sys.argv[2]))
