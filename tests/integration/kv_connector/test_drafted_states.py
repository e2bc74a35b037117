"""Speculative decoding beside recurrent layers: in vLLM's own scheduler and metadata, which block the first step on D reads a state from."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from vllm.sampling_params import SamplingParams
from vllm.v1.attention.backend import CommonAttentionMetadata
from vllm.v1.attention.backends.gdn_attn import GDNAttentionMetadataBuilder
from vllm.v1.attention.backends.mamba2_attn import Mamba2AttentionMetadata, Mamba2AttentionMetadataBuilder
from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.request import Request

from baton.contracts.kv_transfer import TransferParams
from baton.kv_connector import supported
from baton.kv_connector.handoff.incoming import BlockReservation
from baton.kv_connector.handoff.metadata import DecodeReport, Ending, Step
from tests.support.schedulers import BLOCK_TOKENS, end_step, engine_config, request_of, scheduler_of

DRAFTS, TOKEN = 2, 7
TOKENS = 3 * BLOCK_TOKENS + 5
NGRAM = {"method": "ngram", "num_speculative_tokens": DRAFTS, "prompt_lookup_max": 3}
BLOCKS = [40, 41, 42]  # of a state: its own, and those for drafted tokens


@pytest.fixture
def decode(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Scheduler]:
    monkeypatch.setattr(supported, "DEVICES_BESIDE_DRAFTS", ("cpu",))  # nothing is computed here
    config = engine_config(tmp_path, "kv_consumer", speculative_config=NGRAM, enable_prefix_caching=False)
    made = scheduler_of(config, 80, drafts=DRAFTS)
    yield made
    made.shutdown()


def end(scheduler: Scheduler, output: SchedulerOutput, *, received: Sequence[str] = ()) -> None:
    """A step ends; of the requests that it computed, each gets one token, whatever was drafted."""
    ending = Ending(at_s=0.0, reserve_sent_s=0.0, committed=True, timings_s={}, pushing_s=0.0)
    report = DecodeReport(endings=dict.fromkeys(received, ending), closed=[*received])
    sampled = {name: [TOKEN] for name in output.num_scheduled_tokens}
    end_step(scheduler, output, sampled, finished_recving={*received}, kv_connector_worker_meta=report)


def reserved_in(output: SchedulerOutput) -> BlockReservation:
    """What our worker is told to ask P for."""
    assert isinstance(output.kv_connector_metadata, Step)
    assert output.kv_connector_metadata.decode is not None
    return output.kv_connector_metadata.decode.reserved[0].wish


def test_the_state_is_received_in_the_first_block_of_its_table(decode: Scheduler) -> None:
    """The first step computes the last prompt token, with placeholders for drafts behind it; they are rejected."""
    params = TransferParams(transfer_id="a" * 32, role="decode", peer="tcp://127.0.0.1:1")
    decode.add_request(request_of("a", TOKENS, params))
    output = decode.schedule()
    wanted = reserved_in(output).blocks[1]

    end(decode, output, received="a")
    first = decode.schedule()

    (new,) = first.scheduled_new_reqs
    assert new.num_computed_tokens == TOKENS - 1
    assert first.num_scheduled_tokens["a"] == 1 + DRAFTS
    assert first.scheduled_spec_decode_tokens["a"] == [-1] * DRAFTS
    assert len(new.block_ids[1]) == 1 + DRAFTS
    assert wanted == [0, 0, 0, new.block_ids[1][0]]


def test_vllm_fills_a_prompt_of_one_token_up_when_others_run(decode: Scheduler) -> None:
    """Its state would be that of the placeholders too, on P as anywhere: so nothing is handed over of a prompt of two tokens."""
    plain = SamplingParams(max_tokens=9, ignore_eos=True)
    decode.add_request(Request("a", list(range(TOKENS)), plain, None))
    end(decode, decode.schedule())
    decode.add_request(Request("b", [1], plain, None))
    output = decode.schedule()

    assert output.num_scheduled_tokens["b"] == 1 + DRAFTS
    assert output.scheduled_new_reqs[0].num_computed_tokens == 0


def builder(kind: type[Any], **more: Any) -> Any:
    """One of vLLM's builders of metadata, with what this step has it look at."""
    made = object.__new__(kind)
    fields = {
        "reorder_batch_threshold": 1 + DRAFTS,
        "use_spec_decode": True,
        "kv_cache_spec": None,
        "vllm_config": SimpleNamespace(cache_config=SimpleNamespace(mamba_cache_mode="none")),
        "decode_cudagraph_max_bs": 0,
        "compilation_config": SimpleNamespace(cudagraph_mode=SimpleNamespace(has_full_cudagraphs=lambda: False)),
    }
    vars(made).update(fields | more)
    return made


def first_step(scheduled: int) -> CommonAttentionMetadata:
    """D's first step with a request that has all of its prompt but the last token, alone in its batch."""
    starts, lengths = torch.tensor([0, scheduled], dtype=torch.int32), torch.tensor([TOKENS - 1 + scheduled])
    return CommonAttentionMetadata(
        query_start_loc=starts,
        query_start_loc_cpu=starts,
        seq_lens=lengths,
        seq_lens_cpu_upper_bound=lengths,
        num_reqs=1,
        num_actual_tokens=scheduled,
        max_query_len=scheduled,
        max_seq_len=TOKENS - 1 + scheduled,
        block_table_tensor=torch.tensor([BLOCKS], dtype=torch.int32),
        slot_mapping=torch.zeros(scheduled, dtype=torch.int64),
        is_prefilling=torch.tensor([True]),
    )


@pytest.mark.parametrize("scheduled", [1, 1 + DRAFTS], ids=["beside a prompt", "filled up"])
def test_mamba2_goes_on_from_the_first_block(scheduled: int) -> None:
    """As a row that decodes, which keeps the state of the certain token in the first block; one accepted token means that block."""
    made = builder(
        Mamba2AttentionMetadataBuilder,
        metadata_cls=Mamba2AttentionMetadata,
        num_spec_tokens=DRAFTS,
        use_replayssm=False,
        use_flashinfer_replayssm=False,
    )
    drafted = torch.tensor([scheduled - 1 if scheduled > 1 else -1], dtype=torch.int32)

    found = made._compute_common_metadata(
        first_step(scheduled),
        num_accepted_tokens=torch.ones(1, dtype=torch.int32),
        num_decode_draft_tokens_cpu=drafted,
    )

    assert (found.num_decodes, found.num_prefills) == (1, 0)
    assert found.state_indices_tensor_d.tolist() == [BLOCKS]
    assert found.num_accepted_tokens.tolist() == [1]


@pytest.mark.parametrize("scheduled", [1, 1 + DRAFTS], ids=["beside a prompt", "filled up"])
def test_a_gated_delta_net_goes_on_from_the_first_block(scheduled: int) -> None:
    """Filled up, as a speculative row with one accepted token; else as one that decodes, or beside others as a prompt with a state."""
    made = builder(GDNAttentionMetadataBuilder, num_spec=DRAFTS, use_full_cuda_graph=False, checkpoint_builder=None)
    drafted = torch.tensor([scheduled - 1 if scheduled > 1 else -1], dtype=torch.int32)

    found = made.build(0, first_step(scheduled), torch.ones(1, dtype=torch.int32), drafted)

    assert found.num_prefills == 0
    if scheduled > 1:
        assert found.spec_state_indices_tensor.tolist() == [BLOCKS]
        assert found.num_accepted_tokens.tolist() == [1]
    else:
        assert found.non_spec_state_indices_tensor.tolist() == BLOCKS[:1]
