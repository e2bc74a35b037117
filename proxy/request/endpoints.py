"""The routes that generate text, and so are disaggregated."""

from typing import Final

CHAT: Final = "/v1/chat/completions"
COMPLETIONS: Final = "/v1/completions"
RESPONSES: Final = "/v1/responses"
MESSAGES: Final = "/v1/messages"
COUNT_TOKENS: Final = "/v1/messages/count_tokens"  # counts what `MESSAGES` would be asked; one node does that
DATA_ROUTES: Final = frozenset((CHAT, COMPLETIONS, RESPONSES, MESSAGES))
