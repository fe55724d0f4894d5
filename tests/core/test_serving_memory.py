"""Serving memory against brute force and hand calculations, with policies invented for the purpose."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from attrs import evolve
from hypothesis import given, settings
from hypothesis import strategies as st

from autoparallel_core.cost.serving_memory import ServingMemory, cause_kind, serving_memory, serving_stages
from autoparallel_core.cost.serving_mesh import with_expert_tp
from autoparallel_core.cost.serving_weights import split_layers
from autoparallel_core.errors import SpecError
from autoparallel_core.spec.arch import Block, CacheTensor, Layer, ModelArch
from autoparallel_core.spec.blocks import attention_block, embedding_block, head_block, mla_block, mlp_block, moe_block
from autoparallel_core.spec.cluster import Cluster
from autoparallel_core.spec.op import Axis, Bare, Weight
from autoparallel_core.spec.problem import EngineSpec, Problem
from autoparallel_core.spec.serving import Alignment, ServingPolicy
from autoparallel_core.spec.strategy import Strategy, StrategyBatch
from autoparallel_core.spec.workload import InferenceWorkload
from autoparallel_core.testing.toys import toy_gpu

GIB = float(1 << 30)
H, V = 1024, 32000


class Reserves:
    """Stands in for the plugin host: the same bytes by cause for every strategy."""

    def __init__(self, **causes: float) -> None:
        self.causes = {k.replace("__", "@"): v for k, v in causes.items()}

    def memory(self, problem: Problem, batch: StrategyBatch) -> list[tuple[Any, dict[str, Any]]]:
        return [(None, {k: np.full(len(batch), v) for k, v in self.causes.items()})]


NONE = Reserves()


def gqa(window: int | None = None, kv_heads: int = 8) -> Block:
    return attention_block(hidden=H, heads=16, kv_heads=kv_heads, head_dim=64, window=window)


DENSE = Layer((gqa(), mlp_block(hidden=H, intermediate=4096)))
WINDOWED = Layer((gqa(window=128), mlp_block(hidden=H, intermediate=4096)))
SPARSE = Layer((gqa(), moe_block(hidden=H, experts=16, top_k=2, expert_intermediate=512, shared_intermediate=512)))


def model(*layers: Layer, tied: bool = False, **facts: Any) -> ModelArch:
    return ModelArch(
        name="toy", model_type="toy", hidden_size=H, vocab_size=V, prologue=embedding_block(vocab=V, hidden=H), layers=layers,
        epilogue=head_block(vocab=V, hidden=H, tied=tied), tied_embeddings=tied, num_heads=16, num_kv_heads=8, **facts,
    )  # fmt: skip


def problem(arch: ModelArch, *, work: dict[str, Any] | None = None, **policy: Any) -> Problem:
    settings_ = {"source": "test", "budget": "share_of_device", "memory_fraction": 0.9} | policy
    engine = EngineSpec("toy-engine", ("inference",), "1.0", "a toy", serving=(ServingPolicy(**settings_),))
    workload = InferenceWorkload(**({"isl": 512, "osl": 512, "device_memory_bytes": 8 * GIB} | (work or {})))
    return Problem(arch, Cluster(toy_gpu(), 64, 8, (), 0.0), workload, engine, "1.0")


def memory(p: Problem, *strategies: Strategy, hook: Reserves = NONE) -> ServingMemory:
    return serving_memory(p, StrategyBatch.of(strategies), hook)


def parameters(arch: ModelArch) -> int:
    blocks = [arch.prologue, arch.epilogue, *(b for layer in arch.layers for b in layer.blocks)]
    return sum(w.size for b in blocks for w in b.weights())


# --- weights ------------------------------------------------------------------------------------------------------


def test_one_gpu_holds_every_parameter_once():
    arch = model(DENSE, SPARSE, WINDOWED)
    assert memory(problem(arch), Strategy()).weights_bytes[0] == 2 * parameters(arch)


@given(st.sampled_from([1, 2, 4, 8]), st.sampled_from([1, 2, 4]), st.sampled_from([1, 2, 4, 8, 16]))
@settings(deadline=None)
def test_ranks_of_a_stage_hold_shards_and_copies(tp: int, attn_dp: int, ep: int):
    """Summed over all ranks: experts once, attention and tables once per attention rank, vectors and routers everywhere."""
    ranks = tp * attn_dp
    if ranks % ep:
        return
    arch = model(*[SPARSE] * 3)
    shared = {"experts": 1, "attention": attn_dp, "shared_experts": attn_dp, "embedding": attn_dp, "head": attn_dp}
    expected = 0
    for b in [arch.prologue, arch.epilogue, *(b for layer in arch.layers for b in layer.blocks)]:
        for w in b.weights():
            expected += 2 * w.size * shared.get(w.component, ranks)
    got = memory(problem(arch), Strategy(tp=tp, attn_dp=attn_dp, ep=ep)).weights_bytes[0] * ranks
    assert got == pytest.approx(expected, rel=1e-12)


def test_key_value_heads_replicate_beyond_their_number():
    p = problem(model(DENSE))
    by_tp = [memory(p, Strategy(tp=t)).kv_bytes_per_token[0] for t in (1, 8, 16)]
    assert by_tp == [8 * 64 * 2 * 2, 64 * 2 * 2, 64 * 2 * 2]


def test_dense_parts_may_spread_over_attention_dp():
    arch = model(*[SPARSE] * 2)
    s = Strategy(tp=2, attn_dp=4, ep=8)
    apart = memory(problem(arch), s).weights_bytes[0]
    together = memory(problem(arch, spread_over_attention_dp=("head", "shared_experts")), s).weights_bytes[0]
    assert apart - together == pytest.approx(2 * (V * H + 2 * 3 * H * 512) * (1 / 2 - 1 / 8))


def test_pipeline_ends_and_tied_tables():
    arch = model(*[DENSE] * 4, tied=True)
    st_ = serving_stages(problem(arch), Strategy(pp=4), NONE)
    ends = st_.causes["weights: embedding and head"][0]
    table, final_norm = 2 * V * H, 2 * H
    assert ends.tolist() == [table, 0, 0, table + final_norm]
    alone = serving_stages(problem(arch), Strategy(), NONE).causes["weights: embedding and head"][0]
    assert alone.tolist() == [table + final_norm]


def test_vocabulary_padding():
    arch = evolve(model(DENSE), vocab_size=32001, prologue=embedding_block(vocab=32001, hidden=H), epilogue=model().epilogue)
    got = {
        tp: serving_stages(problem(arch, pad_vocabulary_to=64), Strategy(tp=tp), NONE).causes["weights: embedding and head"]
        for tp in (1, 2, 5)
    }
    head = {tp: 2 * H + 2 * H * 32000 / tp for tp in (1, 2, 5)}
    rows = {tp: (got[tp][0, 0] - head[tp]) / (2 * H) for tp in (1, 2, 5)}
    assert rows == {1: 32064, 2: 16032, 5: 32320 / 5}  # 32064 is no multiple of 5: to 64 × 5 instead


def test_kernel_alignment_pads_experts():
    experts = moe_block(hidden=H, experts=16, top_k=2, expert_intermediate=500)
    block = evolve(
        experts,
        ops=tuple(
            evolve(op, weights=tuple(evolve(w, format="mxfp4") if w.component == "experts" else w for w in op.weights))
            for op in experts.ops
        ),
    )
    arch = model(Layer((block,)))
    padded = Alignment("mxfp4", 128, "test", axis="expert_ffn")
    on = memory(problem(arch, alignments=(padded,)), Strategy()).weights_bytes[0]
    off = memory(problem(arch), Strategy()).weights_bytes[0]
    assert on - off == pytest.approx(16 * 3 * H * 12 * (0.5 + 1 / 32))
    other = evolve(padded, architectures=("some-other-gpu",))
    assert memory(problem(arch, alignments=(other,)), Strategy()).weights_bytes[0] == off


def test_precision_asked_for():
    arch = model(DENSE, SPARSE)
    full = memory(problem(arch), Strategy()).weights_bytes[0]
    matrices = sum(
        w.size
        for layer in arch.layers
        for w in layer.weights()
        if w.linear and w.component in ("attention", "mlp", "experts", "shared_experts")
    )
    fp8 = memory(problem(arch, work={"precision": "fp8"}), Strategy()).weights_bytes[0]
    assert fp8 == full - matrices
    fp32 = memory(problem(arch, work={"precision": "fp32"}), Strategy()).weights_bytes[0]
    assert fp32 == 2 * full
    four = memory(problem(arch, work={"settings": (("weights", "int4_g128z"),)}), Strategy()).weights_bytes[0]
    assert four == pytest.approx(full - matrices * (2 - 0.5 - 2.5 / 128))


def test_absorbed_projections():
    latent = mla_block(
        hidden=H, heads=16, q_lora_rank=384, kv_lora_rank=256, qk_nope_head_dim=64, qk_rope_head_dim=32, v_head_dim=64
    )
    arch = model(Layer((latent,)))
    got = {
        kind: memory(problem(arch, absorbed_copies=kind), Strategy(), Strategy(tp=4)).weights_bytes
        for kind in ("none", "split", "fused")
    }
    split = 2 * 256 * 16 * (64 + 64)
    fused = 2 * 16 * (256 * (384 + H) + 32 * 384)
    assert (got["split"] - got["none"]).tolist() == [split, split / 4]
    assert (got["fused"] - got["none"]).tolist() == [fused, fused / 4]


def test_rotary_tables_and_towers():
    tower = Layer((Block("tower", (Bare("vision", weights=(Weight("vision", (Axis("latent", 1000),), "tower"),)),)),))
    arch = model(*[DENSE] * 2, towers=(tower,), rules=(("rotary_cache_elements", 5000),))
    whole = serving_stages(problem(arch, towers_sharded=False), Strategy(tp=4, pp=2), NONE).causes
    assert whole["weights: rotary tables"].tolist() == [[10000, 10000]]
    assert whole["weights: towers"].tolist() == [[2000, 0]]
    assert serving_stages(problem(arch), Strategy(tp=4, pp=2), NONE).causes["weights: towers"].tolist() == [[500, 0]]


@given(st.integers(1, 120), st.integers(1, 16), st.sampled_from(["first", "inner", "trailing", "last"]))
def test_layer_splits(layers: int, stages: int, rule: str):
    if stages > layers:
        return
    sizes = split_layers(layers, stages, rule)
    assert sum(sizes) == layers
    assert len(sizes) == stages
    if rule != "last":
        assert max(sizes) - min(sizes) <= 1
    assert split_layers(61, 4, "inner") == (15, 15, 16, 15)
    assert split_layers(94, 4, "inner") == (23, 24, 24, 23)
    assert split_layers(94, 4, "first") == (24, 24, 23, 23)
    assert split_layers(94, 4, "trailing") == (23, 23, 24, 24)


# --- budgets ------------------------------------------------------------------------------------------------------

RESERVES = Reserves(activation=1 * GIB, non_torch=0.5 * GIB, cuda_graph=0.25 * GIB, something=0.125 * GIB)


@pytest.mark.parametrize(
    ("policy", "expected"),
    [
        ({"budget": "share_of_device", "memory_fraction": 0.9}, lambda w: 0.9 * 8 * GIB - w - 1.875 * GIB),
        ({"budget": "share_of_free", "memory_fraction": 0.8}, lambda w: 0.8 * (8 - 0.625) * GIB - w),
        ({"budget": "share_of_free", "memory_fraction": None}, lambda w: (1 - 1.25 / 8) * (8 - 0.625) * GIB - w),
        ({"budget": "share_after_weights", "memory_fraction": 0.9}, lambda w: 0.9 * (8 * GIB - w - 1.875 * GIB)),
    ],
)
def test_budgets(policy, expected):
    m = memory(problem(model(DENSE), **policy), Strategy(), hook=RESERVES)
    assert m.kv_cache_bytes[0] == pytest.approx(expected(m.weights_bytes[0]))
    assert m.non_torch_bytes[0] == 0.625 * GIB  # an unknown cause counts as non-torch
    used = sum(v[0] for v in m.by_cause.values())
    if policy["budget"] == "share_of_free":
        assert used + m.kv_cache_bytes[0] == pytest.approx(8 * GIB)  # activations and graphs get what the share leaves
        assert m.activation_bytes[0] == pytest.approx(4 * m.cuda_graph_bytes[0])
    else:
        assert used == pytest.approx(m.weights_bytes[0] + 1.875 * GIB)


def test_the_users_fraction_wins():
    p = problem(model(DENSE), work={"memory_fraction": 0.5})
    m = memory(p, Strategy())
    assert m.kv_cache_bytes[0] == pytest.approx(4 * GIB - m.weights_bytes[0])


def test_causes_of_one_stage():
    hook = Reserves(activation__last=1 * GIB, non_torch__first=2 * GIB)
    st_ = serving_stages(problem(model(*[DENSE] * 4)), Strategy(pp=2), hook)
    assert st_.kind("activation").tolist() == [[0, GIB]]
    assert st_.kind("non_torch").tolist() == [[2 * GIB, 0]]
    assert st_.tokens[0, 0] < st_.tokens[0, 1]
    m = memory(problem(model(*[DENSE] * 4)), Strategy(pp=2), hook=hook)
    assert m.deciding_stage[0] == 0
    assert m.first_rank["non_torch_bytes"][0] == 2 * GIB
    assert m.first_rank["kv_cache_bytes"][0] == m.kv_cache_bytes[0]
    late = memory(problem(model(*[DENSE] * 4)), Strategy(pp=2), hook=Reserves(activation__last=1 * GIB))
    assert late.deciding_stage[0] == 1
    assert late.activation_bytes[0] == GIB
    assert late.first_rank["activation_bytes"][0] == 0
    assert [cause_kind(c) for c in ("activation: x@last", "cuda_graph", "weird")] == ["activation", "cuda_graph", "other"]


def test_no_room_is_said_not_hidden():
    p = problem(model(*[DENSE] * 4), work={"device_memory_bytes": 0.1 * GIB})
    m = memory(p, Strategy())
    assert m.kv_cache_bytes[0] < 0
    assert m.kv_tokens[0] == 0
    assert not m.fits[0]
    assert m.longest_context(1)[0] == 0


def test_versions_without_a_policy_are_refused():
    p = problem(model(DENSE), since="2.0", until="3.0")
    with pytest.raises(SpecError, match=r"toy-engine 1\.0 has no memory policy; there are some for 2\.0 to 3\.0"):
        memory(p, Strategy())
    with pytest.raises(SpecError, match="is not a version number"):
        memory(evolve(p, engine_version="latest"), Strategy())
    plain = evolve(p, engine=evolve(p.engine, serving=()))
    m = memory(plain, Strategy())
    assert m.kv_cache_bytes[0] == pytest.approx(0.9 * 8 * GIB - m.weights_bytes[0])


# --- cache --------------------------------------------------------------------------------------------------------


def test_pages_round_down():
    p = problem(model(DENSE), page_tokens=64)
    m = memory(p, Strategy())
    per_token = 8 * 64 * 2 * 2
    assert m.kv_bytes_per_token[0] == per_token
    assert m.kv_tokens[0] == m.kv_cache_bytes[0] // (64 * per_token) * 64


def test_cache_dtype():
    sixteen, eight = (memory(problem(model(DENSE), work={"kv_dtype": d}), Strategy()) for d in (None, "fp8"))
    assert sixteen.kv_bytes_per_token[0] == 2 * eight.kv_bytes_per_token[0]
    with pytest.raises(SpecError, match="unknown dtype 'fp3'"):
        memory(problem(model(DENSE), work={"kv_dtype": "fp3"}), Strategy())


@given(st.integers(1, 30), st.integers(1, 30))
@settings(deadline=None, max_examples=60)
def test_grouped_pages_by_brute_force(full: int, windowed: int):
    """Groups of equally many layers, filled one layer at a time, the rest padding."""
    small, large = sorted((full, windowed))
    g = large if large < 1.25 * small else small
    groups = 0
    for n in (full, windowed):
        left = n
        while left > 0:
            groups += 1
            left -= g
    m = memory(problem(model(*[DENSE] * full, *[WINDOWED] * windowed), mixed_cache="grouped"), Strategy())
    assert m.kv_bytes_per_token[0] == groups * g * 8 * 64 * 2 * 2


def test_windows_stop_growing_or_do_not():
    arch = model(DENSE, WINDOWED)
    one = 8 * 64 * 2 * 2
    grouped = memory(problem(arch, mixed_cache="grouped"), Strategy())
    uniform = memory(problem(arch), Strategy())
    assert grouped.sequence_bytes(1024.0)[0] == one * (1024 + 128 + 16)
    assert uniform.sequence_bytes(1024.0)[0] == one * 2048
    pools = memory(problem(arch, mixed_cache="pools", window_pool_ratio=0.8, page_tokens=1), Strategy())
    assert pools.kv_bytes_per_token[0] == pytest.approx(1.8 * one)


def test_running_sequences_hold_more_tokens_than_an_engine_prints_where_windows_free_pages():
    arch = model(*[DENSE] * 2, *[WINDOWED] * 4)
    work = {"isl": 4096, "osl": 0, "device_memory_bytes": 2 * GIB}
    grouped, uniform, pools = (
        memory(problem(arch, work=work, mixed_cache=kind, page_tokens=16), Strategy()) for kind in ("grouped", "uniform", "pools")
    )
    one = 8 * 64 * 2 * 2  # bytes of one layer and token; groups of two layers, one full and two with windows
    sequence = one * (2 * 4096 + 4 * (128 + 16))
    assert grouped.sequences_at(4096.0)[0] == pytest.approx(grouped.kv_cache_bytes[0] / sequence)
    assert grouped.capacity_tokens(4096.0)[0] == pytest.approx(4096 * grouped.kv_cache_bytes[0] / sequence)
    assert grouped.capacity_tokens(4096.0)[0] > 2 * grouped.kv_tokens[0]
    assert uniform.capacity_tokens(4096.0)[0] == uniform.kv_tokens[0]
    # a pool of full attention ends where its tokens do, however empty the windows' pool is
    assert pools.concurrency_at(4096.0)[0] == pools.kv_tokens[0] // 4096
    small = memory(problem(arch, work=work, mixed_cache="pools", window_pool_ratio=0.01), Strategy())
    assert small.sequences_at(4096.0)[0] == pytest.approx(0.01 * small.kv_tokens[0] / 128)


def test_states_in_a_pool_of_their_own_bound_the_sequences():
    state = CacheTensor("state", Axis("heads", 16, 65536), dtype="bf16")
    arch = model(DENSE, Layer((Block("scan", (), cache_per_sequence=(state,)),)))
    p = problem(arch, state_pool_ratio=0.5, page_tokens=1)
    m = memory(p, Strategy())
    states, tokens = m.kv_cache_bytes[0] / 3 / m.state_bytes_per_sequence[0], m.kv_cache_bytes[0] / 1.5 / (8 * 64 * 2 * 2)
    assert m.sequences_at(64.0)[0] == pytest.approx(min(states, tokens / 64))
    assert m.sequences_at(8192.0)[0] == pytest.approx(min(states, tokens / 8192))
    assert m.kv_tokens[0] == pytest.approx(tokens, abs=1)


def test_states_share_pages_with_attention():
    # a published hybrid: 23 layers of 4 key/value heads × 256, 69 states of 4.125 MiB, pages of 1,056 tokens;
    # 46.5 GiB of cache hold 38.54 requests of 10,240 tokens
    attention = Layer((attention_block(hidden=H, heads=16, kv_heads=4, head_dim=256),))
    state = CacheTensor("state", Axis("heads", 33, 65536), dtype="bf16")
    linear = Layer((Block("scan", (), cache_per_sequence=(state,)),))
    arch = model(*[attention] * 23, *[linear] * 69)
    base = memory(problem(arch), Strategy()).weights_bytes[0]
    work = {"device_memory_bytes": (46.5 * GIB + base) / 0.9, "max_model_len": 10240}
    m = memory(problem(arch, work=work, mixed_cache="grouped"), Strategy())
    assert m.kv_cache_bytes[0] == pytest.approx(46.5 * GIB)
    assert m.page_tokens[0] == 1056
    assert m.kv_cache_bytes[0] / m.sequence_bytes(10240.0)[0] == pytest.approx(38.54, abs=0.1)
    assert m.kv_tokens[0] == pytest.approx(394633, rel=3e-3)


def test_compressed_keys_and_indexers():
    half = CacheTensor("compressed", Axis("latent", 512), tokens_per_entry=4)
    index = CacheTensor("index", Axis("latent", 132), dtype="int8")
    arch = model(Layer((Block("sparse", (), cache_per_token=(half, index)),)))
    assert memory(problem(arch), Strategy(tp=8)).kv_bytes_per_token[0] == 512 * 2 / 4 + 132


def test_scaled_latents_under_sparse_attention():
    widths = {"q_lora_rank": 384, "kv_lora_rank": 512, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128}
    layers = [Layer((mla_block(hidden=H, heads=16, top_k_keys=k, **widths),)) for k in (2048, None)]
    sparse, dense = (problem(model(layer), sparse_latent_scaled=True, work={"kv_dtype": "fp8"}) for layer in layers)
    assert memory(sparse, Strategy()).kv_bytes_per_token[0] == 512 + 4 * 4 + 64 * 2
    assert memory(dense, Strategy()).kv_bytes_per_token[0] == 576


@given(st.integers(1, 200), st.sampled_from(["grouped", "uniform"]), st.sampled_from([1, 2, 4]))
@settings(deadline=None, max_examples=40)
def test_longest_context_and_concurrency_agree(concurrency: int, mixed: str, attn_dp: int):
    p = problem(model(*[DENSE] * 3, *[WINDOWED] * 3), mixed_cache=mixed, work={"device_memory_bytes": 2 * GIB})
    m = memory(p, Strategy(attn_dp=attn_dp))
    longest = m.longest_context(concurrency)
    if longest[0] >= 1:
        assert m.concurrency_at(longest)[0] >= concurrency
    assert m.concurrency_at(longest + 1)[0] < -(-concurrency // attn_dp) * attn_dp


def test_batches_are_what_their_rows_are():
    rows = [
        Strategy(tp=tp, pp=pp, attn_dp=a, ep=ep)
        for tp in (1, 2, 8) for pp in (1, 2, 3) for a in (1, 2) for ep in (1, 2) if (tp * a) % ep == 0
    ]  # fmt: skip
    p = problem(model(*[SPARSE] * 6))
    whole = memory(p, *rows, hook=RESERVES)
    for i, row in enumerate(rows):
        one = memory(p, row, hook=RESERVES)
        for name in ("weights_bytes", "kv_cache_bytes", "kv_tokens", "max_concurrency", "kv_bytes_per_token"):
            assert getattr(whole, name)[i] == getattr(one, name)[0], (name, str(row))


def test_expert_width_follows_from_the_rest():
    batch = StrategyBatch.of([Strategy(tp=8, ep=2), Strategy(tp=2, attn_dp=4, ep=8), Strategy(tp=3, ep=2)])
    assert with_expert_tp(batch).etp.tolist() == [4, 1, 1]
