"""What decoding raises for bytes that a client or a node has sent."""

from typing import Final

import msgspec

# Of bytes that are not what was expected, that are no UTF-8, that are nested too deeply.
DECODE_ERRORS: Final = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
