"""Writes the file of the present protocol version."""

import msgspec

from baton.contracts.kv_transfer import PROTOCOL_VERSION
from tests.support.golden_wire.examples import file_of, present

if __name__ == "__main__":
    with file_of(PROTOCOL_VERSION).open("xb") as file:
        file.write(msgspec.json.format(msgspec.json.encode(present()), indent=1) + b"\n")
