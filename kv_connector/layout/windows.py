"""Which blocks of a prompt are still read when only its last token is left to be computed.

A window of W tokens lets token q read the tokens from q - W + 1 on, itself included. The prompt's last token, N - 1, is
always computed on D, so of a layer with a window D needs the tokens from N - W on: P keeps and pushes those blocks.

A chunk of C tokens (chunked local attention) lets token q read those from the last multiple of C on: C is announced as
the window -C. Where token N - 1 is the first of a chunk, D needs nothing.

A recurrent layer reads the state after token N - 2, which stands in that token's block: a window of two tokens.
"""

EVERYTHING = 0  # a window that is none: every token is read for ever
OF_A_STATE = 2


def window_of_chunk(chunk_tokens: int) -> int:
    """Return the number that stands for chunked local attention."""
    return -chunk_tokens


def first_read_block(tokens: int, window: int, block_tokens: int) -> int:
    """Return the first block that the last of `tokens` tokens reads, or any later one; those before may be gone.

    Source:
        `get_num_skipped_tokens(tokens - 1)` of vLLM's `SlidingWindowManager` and `ChunkedLocalAttentionManager`.
    """
    if window < 0:
        chunk_tokens = -window
        return max(0, tokens - 1) // chunk_tokens * chunk_tokens // block_tokens
    return 0 if window == EVERYTHING else max(0, tokens - window) // block_tokens
