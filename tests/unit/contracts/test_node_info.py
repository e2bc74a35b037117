from typing import Any

import pytest

from baton.contracts.node_info import differences
from tests.support.described import fingerprint

CPU, GPU = {"attention": "CPU_ATTN/vec"}, {"attention": "FLASH_ATTN"}
SIZES = "block_size_tokens: {} here, {} there (give both nodes the same --block-size)"


@pytest.mark.parametrize(
    ("ours", "theirs", "found"),
    [
        ((128, CPU), (128, CPU), []),
        (
            (128, CPU | {"dtype": "bfloat16"}),
            (96, CPU),
            ["dtype: 'bfloat16' here, 'float32' there", SIZES.format(128, 96)],
        ),
        *(
            ((128, CPU), (128, CPU | {"kv_cache_dtype": kind}), [f"kv_cache_dtype: 'auto' here, '{kind}' there"])
            for kind in ("float16", "float32", "fp8", "fp8_e5m2")
        ),
        # A CPU's blocks of another size would travel in thousands of pieces of some hundred bytes.
        *(((one, CPU), (other, CPU), [SIZES.format(one, other)]) for one, other in ((64, 32), (32, 64), (16, 128))),
        *(((one, GPU), (other, GPU), []) for one, other in ((64, 32), (32, 64), (16, 128))),
        ((16, GPU), (0, GPU), [SIZES.format(16, 0)]),
    ],
)
def test_every_difference_that_matters_is_named_with_both_values(
    ours: tuple[int, dict[str, Any]], theirs: tuple[int, dict[str, Any]], found: list[str]
) -> None:
    one, other = (fingerprint(tokens, **fields) for tokens, fields in (ours, theirs))

    assert differences(one, other) == found
