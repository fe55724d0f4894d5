from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from problem_builders import (
    ENGINE,
    deepseek_v3,
    dense,
    glm_5,
    inference,
    llama_70b,
    llama_405b,
    mla_moe,
    rule,
    training,
)

from autoparallel_core.errors import PluginContract, SpecError
from autoparallel_core.search import axes
from autoparallel_core.search.rules import apply_rules
from autoparallel_core.search.space import OPTIONS, Tally, count_space, enumerate_space, layouts, require_some
from autoparallel_core.spec.problem import EngineSpec, Problem
from autoparallel_core.spec.space import Space
from autoparallel_core.spec.strategy import COLUMNS, Strategy, StrategyBatch, parse_strategy

TP_OR_EP = EngineSpec(
    name="either", modes=("training", "inference"), default_version="1.0", summary="Experts by TP or EP.", moe_grid="tp_or_ep"
)


def rows(batches: object) -> list[tuple[int, ...]]:
    return [tuple(int(b.columns[c][i]) for c in COLUMNS) for b in batches for i in range(len(b))]  # type: ignore[attr-defined]


def every(problem: Problem, space: Space | None = None) -> list[tuple[int, ...]]:
    return rows(enumerate_space(problem, space or Space()))


def holds(problem: Problem, text: str, space: Space | None = None) -> bool:
    """Whether the space has a strategy, looked up without a Python loop over it."""
    s = parse_strategy(text)
    for batch in enumerate_space(problem, space or Space()):
        hit = np.ones(len(batch), dtype=bool)
        for c in COLUMNS:
            hit &= batch.columns[c] == getattr(s, c)
        if hit.any():
            return True
    return False


def ceil(a: int, b: int) -> int:
    return -(-a // b)


def smallest_vpp(layers: int, pp: int) -> set[int]:
    """From the definition: of all v with the same largest chunk, the smallest (an empty chunk may hold an end of the model)."""
    by_chunk: dict[int, int] = {}
    for v in range(1, (layers + 2) // pp + 1):
        by_chunk.setdefault(ceil(layers, pp * v), v)
    return set(by_chunk.values())


def brute_force(world: int, layers: int, experts: int, batch: int, seq: int) -> set[tuple[int, ...]]:
    """Every training strategy, by the definitions alone, over all integers up to the world."""
    out: set[tuple[int, ...]] = set()
    numbers = range(1, world + 1)
    for tp, pp, cp, dp in product(numbers, repeat=4):
        if tp * pp * cp * dp != world or tp > 8 or pp > layers or batch % dp:
            continue
        if cp > 1 and (seq % cp or seq // cp < axes.MIN_TOKENS_PER_CP_RANK):
            continue
        expert_grids = [(1, 1)]
        if experts:
            sizes = range(1, experts + 1)
            expert_grids = [
                (ep, etp) for ep, etp in product(sizes, numbers)
                if experts % ep == 0 and tp % etp == 0 and world % (ep * etp * pp) == 0
            ]  # fmt: skip
        vpps = smallest_vpp(layers, pp) if pp > 1 else {1}
        mbss = [
            m for m in range(1, batch // dp + 1)
            if (batch // dp) % m == 0 and (m == 1 or m * seq // cp <= axes.MAX_TOKENS_PER_MICRO_BATCH)
            and (pp == 1 or m in {2**a * b for a in range(20) for b in (1, 3)})
        ]  # fmt: skip
        stage = ceil(layers, pp)
        recompute = [(0, 0), (1, 0), (2, 0)] + [(2, n) for n in range(1, stage) if n in {round(stage * f / 4) for f in (1, 2, 3)}]
        zeros = [(0, 1)] + [(z, dp * cp) for z in (1, 2, 3) if dp * cp > 1]
        for sp, (ep, etp), vpp, mbs, (zero, shard), (r, n), offload in product(
            (0, 1) if tp > 1 else (0,), expert_grids, vpps, mbss, zeros, recompute, (0, 1)
        ):
            s = Strategy(
                tp=tp, sp=sp, pp=pp, vpp=vpp, cp=cp, ep=ep, etp=etp, dp=dp, shard=shard, zero=zero, mbs=mbs,
                recompute=r, recompute_layers=n, offload=offload,
            )  # fmt: skip
            out.add(tuple(getattr(s, c) for c in COLUMNS))
    return out


@pytest.mark.parametrize(
    ("world", "layers", "experts", "batch", "seq"),
    [(1, 3, 0, 2, 128), (4, 5, 0, 6, 2048), (6, 4, 0, 12, 2048), (8, 7, 4, 8, 2048), (4, 4, 6, 3, 4096)],
)
def test_equals_brute_force(world: int, layers: int, experts: int, batch: int, seq: int) -> None:
    arch = mla_moe(layers, 1, 1024, 16, experts, 2) if experts else dense(layers, 1024, 16, 4, 4096, 32000)
    found = every(training(arch, world, seq=seq, batch=batch))
    assert len(found) == len(set(found)), "a strategy is enumerated twice"
    assert set(found) == brute_force(world, layers, experts, batch, seq)


REAL = [
    (deepseek_v3, 1024, 4096, 8192, "tp2 pp8 vpp4 dp64 ep64 etp1 zero1 mbs1"),
    (llama_405b, 16384, 131072, 2048, "tp8 pp16 cp16 dp8 zero1 mbs1"),
    (glm_5, 128, 4096, 256, "tp8 pp4 cp2 dp2 ep16 etp1 zero1 mbs1"),
    (deepseek_v3, 1024, 4096, 8192, "tp2 pp16 dp32 ep64 zero1 mbs1 recompute=full"),
    (llama_70b, 64, 8192, 128, "tp4 pp4 vpp5 dp4 zero1 mbs1 recompute=selective"),
    (llama_70b, 64, 4096, 1024, "tp1 pp1 dp64 zero3 mbs2 recompute=full:40 offload=optimizer"),
    (llama_405b, 1024, 8192, 1536, "tp8 pp8 cp2 vpp8 dp8 zero1 mbs1"),
]


@pytest.mark.parametrize(("arch", "n_gpus", "seq", "batch", "text"), REAL)
def test_real_recipes_are_in_the_space(arch: object, n_gpus: int, seq: int, batch: int, text: str) -> None:
    assert holds(training(arch(), n_gpus, seq=seq, batch=batch), text)  # type: ignore[operator]


@given(
    world=st.sampled_from([1, 2, 3, 8, 12, 24, 64, 96]),
    batch=st.integers(1, 64),
    layers=st.integers(1, 13),
    experts=st.sampled_from([0, 8, 12]),
    seq=st.sampled_from([512, 4096, 8192]),
)
@settings(max_examples=40, deadline=None)
def test_invariants(world: int, batch: int, layers: int, experts: int, seq: int) -> None:
    arch = mla_moe(layers, 0, 1024, 16, experts, 2) if experts else dense(layers, 1024, 16, 4, 4096, 32000)
    problem = training(arch, world, seq=seq, batch=batch)
    for b in enumerate_space(problem, Space(hsdp=True)):
        assert np.all(b.tp * b.cp * b.pp * b.dp == world)
        assert np.all(world % (b.ep * b.etp * b.pp) == 0), "EP does not multiply the world"
        assert np.all(batch % (b.mbs * b.dp) == 0)
        assert np.all((b.shard == 1) == (b.zero == 0)) or np.all(b.shard[b.zero == 0] == 1)
        assert np.all((b.dp * b.cp) % b.shard == 0)
        assert np.all((b.zero == 0) | (b.shard > 1))
        assert np.all((b.sp == 0) | (b.tp > 1))
        assert np.all((b.vpp == 1) | (b.pp > 1))
        assert np.all(b.tp % b.etp == 0)
        assert np.all(b.recompute_layers[b.recompute != 2] == 0)
        assert np.all(b.recompute_layers < -(-layers // b.pp))


def test_batches_have_about_the_chunk_size_and_cover_everything() -> None:
    problem = training(llama_70b(), 64)
    sizes = [len(b) for b in enumerate_space(problem, Space(), chunk=8192)]
    assert sum(sizes) == count_space(problem, Space())
    assert all(8192 <= n < 2 * 8192 for n in sizes[:-1])


def test_engines_values_replace_the_cores() -> None:
    problem = training(llama_70b(), 64)
    space = Space(tp=(4, 16), pp=(1,), cp=(1,), zero=(3,), recompute=("full",), partial_recompute=False, mbs=(3, 4), offload=(0,))
    found = [dict(zip(COLUMNS, r, strict=True)) for r in every(problem, space)]
    assert {r["tp"] for r in found} == {4, 16}, "a value that the core would not take by itself"
    assert {(r["pp"], r["cp"], r["zero"], r["recompute"], r["offload"]) for r in found} == {(1, 1, 3, 2, 0)}
    assert {r["mbs"] for r in found} == {4}, "3 x dp does not divide the batch"
    assert {r["sp"] for r in found} == {0, 1}
    only_sp = [dict(zip(COLUMNS, r, strict=True)) for r in every(problem, Space(tp=(1, 8), sp=(1,)))]
    assert {(r["tp"], r["sp"]) for r in only_sp} == {(1, 0), (8, 1)}


def test_hybrid_sharding_adds_smaller_groups() -> None:
    problem = training(llama_70b(), 16)
    space = Space(tp=(1,), pp=(1,), cp=(1,), zero=(3,), mbs=(1,), recompute=("none",), offload=(0,), hsdp=True)
    assert sorted(r[COLUMNS.index("shard")] for r in every(problem, space)) == [2, 4, 8, 16]


def test_workload_limits_the_options() -> None:
    none = training(llama_70b(), 64, recompute_allowed=False, optimizer_cpu_offload=False, max_tokens_per_micro_batch=8192)
    found = [dict(zip(COLUMNS, r, strict=True)) for r in every(none)]
    assert {(r["recompute"], r["offload"]) for r in found} == {(0, 0)}
    assert max(r["mbs"] for r in found) == 2
    must = training(llama_70b(), 64, optimizer_cpu_offload=True)
    assert all(r[COLUMNS.index("offload")] == 1 for r in every(must))


def test_experts_by_tp_or_ep_never_mix() -> None:
    problem = training(deepseek_v3(), 64, engine=TP_OR_EP)
    found = [dict(zip(COLUMNS, r, strict=True)) for r in every(problem, Space(recompute=("none",)))]
    assert all(r["ep"] == 1 or r["etp"] == 1 for r in found)
    assert {r["etp"] for r in found} > {1}
    assert {r["ep"] for r in found} > {1}


# --- rules during enumeration ---------------------------------------------------------------------------------

LAYOUT_RULE = rule("heads % tp", lambda _p, s: 64 % s.tp != 0)
LATE_LAYOUT_RULE = rule("pp ≤ 4", lambda _p, s: s.pp > 4)
OPTION_RULE = rule("zero ≤ 1 with pp", lambda _p, s: (s.pp > 1) & (s.zero > 1))
RULES = (OPTION_RULE, LAYOUT_RULE, LATE_LAYOUT_RULE)


def test_rules_refuse_the_same_as_on_whole_strategies() -> None:
    problem = training(dense(12, 1024, 16, 4, 4096, 32000), 24, batch=48)
    tally = Tally()
    kept = rows(enumerate_space(problem, Space(), RULES, tally=tally))
    whole = StrategyBatch.concat(list(enumerate_space(problem, Space())))
    legal, refused = apply_rules(problem, whole, (LAYOUT_RULE, LATE_LAYOUT_RULE, OPTION_RULE))
    assert sorted(kept) == sorted(rows([whole.take(legal)]))
    assert tally.refused == refused
    assert tally.enumerated == len(whole) == len(kept) + sum(refused.values())


def test_rules_on_layouts_never_see_the_options() -> None:
    seen: list[set[str]] = []

    def condition(_p: object, s: StrategyBatch) -> object:
        seen.append(set(s.columns))
        return s.tp > 4

    problem = training(dense(12, 1024, 16, 4, 4096, 32000), 8)
    list(enumerate_space(problem, Space(), (rule("tp", condition),)))
    assert seen
    assert not any(columns & set(OPTIONS) for columns in seen)


def test_a_key_error_of_a_rule_is_not_taken_for_a_missing_column() -> None:
    problem = training(dense(4, 1024, 16, 4, 4096, 32000), 2, batch=2)
    with pytest.raises(PluginContract, match="oops"):
        list(enumerate_space(problem, Space(), (rule("broken", lambda _p, _s: {}["oops"]),)))


def test_nothing_divides_says_so() -> None:
    problem = training(dense(1, 1024, 16, 1, 4096, 32000), 7, batch=2)
    tally = Tally()
    assert not every(problem, Space(tp=(1,)))
    list(enumerate_space(problem, Space(tp=(1,)), tally=tally))
    with pytest.raises(SpecError, match=r"no split of 7 GPUs .* a batch of 7 would do"):
        require_some(problem, Space(tp=(1,)), tally)
    with pytest.raises(SpecError, match="7 GPUs cannot be split by the degrees that test offers"):
        require_some(problem, Space(tp=(2, 3)), Tally())


# --- inference ------------------------------------------------------------------------------------------------


def brute_force_inference(n: int, layers: int, experts: int, domain: int = 8) -> set[tuple[int, ...]]:
    steps = {d for d in range(1, n + 1) if n % d == 0 or d & (d - 1) == 0}
    out = set()
    for tp, attn_dp, pp in product(steps, steps if experts else {1}, steps):
        if tp > 4 * domain or pp > layers or tp * attn_dp * pp > n:
            continue
        for ep in [e for e in range(1, experts + 1) if experts % e == 0 and (tp * attn_dp) % e == 0] or [1]:
            s = Strategy(
                tp=tp, sp=int(tp > 1), pp=pp, attn_dp=attn_dp, ep=ep, etp=tp * attn_dp // ep if experts else 1,
                dp=n // (tp * attn_dp * pp),
            )  # fmt: skip
            out.add(tuple(getattr(s, c) for c in COLUMNS))
    return out


@pytest.mark.parametrize(("n", "layers", "experts"), [(1, 4, 0), (8, 4, 0), (12, 61, 0), (8, 61, 8), (10, 3, 12), (24, 8, 6)])
def test_inference_equals_brute_force(n: int, layers: int, experts: int) -> None:
    arch = mla_moe(layers, 0, 1024, 16, experts, 2) if experts else dense(layers, 1024, 16, 4, 4096, 32000)
    found = every(inference(arch, n))
    assert len(found) == len(set(found))
    assert set(found) == brute_force_inference(n, layers, experts)


def test_real_deployments_are_in_the_space() -> None:
    problem = inference(deepseek_v3(), 32)
    for text in (
        "tp8 pp1 dp4 etp8",
        "tp1 pp1 dp1 attn_dp32 ep32",
        "tp4 pp2 dp2 attn_dp2 ep8",
        "tp16 pp1 dp2 ep16",
        "tp8 pp2 dp2 ep8",
    ):
        s = parse_strategy(text)
        wanted = Strategy(**{c: getattr(s, c) for c in COLUMNS} | {"etp": s.tp * s.attn_dp // s.ep})
        assert tuple(getattr(wanted, c) for c in COLUMNS) in set(every(problem)), text


def test_layout_columns_are_complete() -> None:
    table = layouts(training(deepseek_v3(), 64), Space())
    assert set(table) | set(OPTIONS) == set(COLUMNS)
    assert ENGINE.moe_grid == "folded"
