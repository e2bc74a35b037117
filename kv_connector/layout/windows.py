"""Which blocks of a prompt are still read when only its last token is left to be computed.

A window of W tokens lets token q read the tokens from q - W + 1 on, itself included. The prompt's last token, N - 1, is
always computed on D, so of a layer with a window D needs the tokens from N - W on: P keeps and pushes those blocks.

A recurrent layer reads the state that the token before has left: a window of two tokens, of which the block that holds
token N - 2 stands for the state after it.
"""

EVERYTHING = 0  # a window that is none: every token is read for ever
OF_A_STATE = 2


def first_read_block(tokens: int, window: int, block_tokens: int) -> int:
    """Return the first block that the last of `tokens` tokens reads, or any later one; those before may be gone.

    Source:
        `SlidingWindowManager.get_num_skipped_tokens(tokens - 1)` of vLLM, in whole blocks.
    """
    return 0 if window == EVERYTHING else max(0, tokens - window) // block_tokens
