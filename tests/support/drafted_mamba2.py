"""Nodes on a CPU that run Mamba2 beside speculative decoding as vLLM does on a GPU.

A step of 1 + k tokens goes on from the last token that was accepted: in a convolution, which keeps k tokens more than its kernel is wide,
and in the blocks of a request's states, of which block t gets the state after token t. vLLM 0.32's kernels for CPUs do not: that of the
convolution (`causal_conv1d_update_cpu_vec`) is not told how many tokens were accepted, and that of the states
(`selective_state_update_cpu`) reads the first block whatever the number, and leaves no state of the first token there. So a plain server with drafts gives other
tokens than one without. What stands in their place here does what `_causal_conv1d_update_kernel` and `_selective_scan_update_kernel`
say.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from baton.contracts.kv_transfer import Role

if TYPE_CHECKING:
    import torch


def plain(argv: Sequence[str]) -> None:
    from tests.e2e.targets import plain_vllm

    prepare()
    plain_vllm(argv)


def node(argv: Sequence[str], role: Role) -> None:
    from baton.node.command import main

    prepare()
    main(role, argv)


def prepare() -> None:
    """Patch this process and those that it forks. Nodes on a CPU refuse drafts beside recurrent layers otherwise."""
    from vllm.model_executor.layers.mamba import mamba_mixer2

    from baton.kv_connector import supported

    supported.DEVICES_BESIDE_DRAFTS = (*supported.DEVICES_BESIDE_DRAFTS, "cpu")
    mamba_mixer2.causal_conv1d_update = convolve
    mamba_mixer2.selective_state_update = partial(advance, mamba_mixer2.selective_state_update)


def convolve(
    x: "torch.Tensor",
    conv_state: "torch.Tensor",
    weight: "torch.Tensor",
    bias: "torch.Tensor | None",
    activation: str,
    *,
    conv_state_indices: "torch.Tensor",
    num_accepted_tokens: "torch.Tensor | None" = None,
    query_start_loc: "torch.Tensor | None" = None,
    **_: Any,
) -> "torch.Tensor":
    """Convolve a few tokens of each request, and keep what the next step may go on from.

    Args:
        x: `[tokens, channels]`.
        conv_state: `[blocks, channels, width - 1 + drafts]`.
        weight: `[channels, width]`.
        bias: `[channels]`.
        activation: "silu".
        conv_state_indices: `[requests]` or `[requests, 1 + drafts]`; a convolution is in the first block.
        num_accepted_tokens: `[requests]`, of the step before.
        query_start_loc: `[requests + 1]`; None: a token each.
    """
    import torch
    from torch.nn import functional

    assert activation == "silu"
    blocks, kept = conv_state_indices.reshape(len(conv_state_indices), -1)[:, 0].tolist(), weight.shape[1] - 1
    bounds = range(len(blocks) + 1) if query_start_loc is None else query_start_loc.tolist()
    accepted = [1] * len(blocks) if num_accepted_tokens is None else num_accepted_tokens.tolist()
    out = torch.empty_like(x)
    for request, block in enumerate(blocks):
        first, last = bounds[request], bounds[request + 1]
        if block == 0 or first == last:
            continue
        state, new = conv_state[block], x[first:last].T.to(conv_state.dtype)
        begin = accepted[request] - 1
        row = torch.cat([state[:, begin : begin + kept], new], dim=1)
        made = functional.conv1d(row[None].to(weight.dtype), weight[:, None], bias, groups=len(weight))[0]
        out[first:last] = functional.silu(made).T.to(x.dtype)
        state[:, : row.shape[1] - 1] = row[:, 1:].clone()
    return out


def advance(
    kernel: Callable[..., Any],
    state: "torch.Tensor",
    *given: "torch.Tensor",
    state_batch_indices: "torch.Tensor",
    num_accepted_tokens: "torch.Tensor",
    cu_seqlens: "torch.Tensor",
    out: "torch.Tensor",
    dt_softplus: bool,
    **_: Any,
) -> None:
    """Compute a few tokens of each request one by one, each from the state that the one before it has left in its block.

    Args:
        kernel: vLLM's, which is right for one token a request.
        state: `[blocks, heads, head size, state size]`.
        given: x, dt, A, B, C, D and the bias of dt; x, dt, B and C are `[tokens, …]`.
        state_batch_indices: `[requests, 1 + drafts]`.
        num_accepted_tokens: `[requests]`, of the step before.
        cu_seqlens: `[requests + 1]`.
        out: `[tokens, heads, head size]`.
        dt_softplus: of the layer.
    """
    import torch

    x, dt, a, b, c, d, dt_bias = given
    bounds, accepted = cu_seqlens.tolist(), num_accepted_tokens.tolist()
    for request, blocks in enumerate(state_batch_indices.tolist()):
        source = blocks[accepted[request] - 1]
        for block, token in zip(blocks, range(bounds[request], bounds[request + 1]), strict=False):
            if block == 0:
                break
            if source != block:
                state[block] = state[source]
            source, one, place = block, slice(token, token + 1), torch.tensor([block], dtype=torch.int32)
            kernel(
                *(state, x[one], dt[one], a, b[one], c[one], d, dt_bias),
                dt_softplus=dt_softplus,
                state_batch_indices=place,
                dst_state_batch_indices=place,
                out=out[one],
            )
