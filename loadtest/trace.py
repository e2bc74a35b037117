"""Recorded traffic in Mooncake's format: when requests came, how long they were, and which prefixes they shared."""

import gzip
from pathlib import Path
from typing import Final

import msgspec

BLOCK_TOKENS: Final = 512  # tokens per hash id
CONVERSATION: Final = Path(__file__).parent / "traces" / "mooncake_conversation_2000.jsonl.gz"


class TracedRequest(msgspec.Struct, frozen=True):
    """One request of a trace."""

    timestamp: int  # ms since the trace began
    input_length: int  # tokens
    output_length: int  # tokens
    hash_ids: tuple[int, ...]  # one per block of the prompt; equal ids: the same text up to there


def read_trace(path: Path) -> list[TracedRequest]:
    """Read a trace, gzipped if its name ends in `.gz`.

    Raises:
        OSError: it cannot be read.
        msgspec.DecodeError: a line is no request.
    """
    data = path.read_bytes()
    text = gzip.decompress(data) if path.suffix == ".gz" else data
    return msgspec.json.Decoder(TracedRequest).decode_lines(text)
