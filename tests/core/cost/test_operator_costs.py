"""Operators, collectives and memory against hand calculations and published counts."""

from __future__ import annotations

import numpy as np
import pytest
from attrs import evolve
from hypothesis import given, settings
from hypothesis import strategies as st
from problem_builders import dense, llama_70b
from training_builders import price, problem, strategy

import autoparallel_core as ap
from autoparallel_core.cost.hardware import TrainingHardware
from autoparallel_core.cost.host_time import HostModel
from autoparallel_core.cost.model_flops import model_flops_per_token
from autoparallel_core.cost.recompute import Recompute
from autoparallel_core.cost.stages import ends_in_layers, split_layers, stage_layout
from autoparallel_core.errors import SpecError
from autoparallel_core.models import build_arch
from autoparallel_core.ops.collectives import Network, visited
from autoparallel_core.ops.kernels import GemmModel, attended_keys

NODE = Network(
    domain=8.0, scale_up_bytes_per_s=300e9, scale_up_latency_s=10e-6, scale_out_bytes_per_s=40e9, scale_out_latency_s=20e-6
)


def one(x: float) -> np.ndarray:
    return np.array([float(x)])


# --- kernels ------------------------------------------------------------------------------------------------------


def test_gemm_at_the_roofline():
    """1,024³: 2.15 GFLOP at half of 1 PFLOP/s; 1×8,192×8,192: 134 MB of weights at 3 TB/s."""
    model = GemmModel(1e15, 0.5, 3e12, half_k=0.0, operand_bytes=2.0, misaligned=0.5)
    assert model.seconds(one(1024), one(1024), one(1024))[0] == pytest.approx(2 * 1024**3 / 0.5e15)
    assert model.seconds(one(1), one(8192), one(8192))[0] == pytest.approx((8192 + 8192**2 + 8192) * 2 / 3e12)
    assert model.seconds(one(1024), one(1000), one(1024))[0] > 1.9 * model.seconds(one(1024), one(1024), one(1024))[0]


@pytest.mark.parametrize(
    ("kwargs", "pairs"),
    [
        ({"causal": True}, 512 * 512 / 2),
        ({"causal": False}, 512 * 512),
        ({"causal": True, "window": 128}, 512 * 128 - 128 * 128 / 2),
        ({"causal": True, "chunk": 128}, 512 * 128 / 2),
        ({"causal": True, "top_k_keys": 64}, 512 * 64 - 64 * 64 / 2),
        ({"causal": True, "window": 1024}, 512 * 512 / 2),
    ],
)
def test_attended_pairs_are_the_area_of_the_mask(kwargs, pairs):
    args = {"window": None, "chunk": None, "top_k_keys": None} | kwargs
    assert attended_keys(512, **args) == pairs


def test_model_flops_of_a_known_model():
    """70B at 8,192 tokens: 6 FLOPs per matrix parameter and token (embedding excluded), causal attention 6·L·s·h."""
    arch = llama_70b()
    matrices = 80 * (8192 * (8192 + 2 * 1024) + 8192 * 8192 + 3 * 8192 * 28672) + 8192 * 128256
    assert model_flops_per_token(arch, 8192) == pytest.approx(6 * matrices + 6 * 80 * 8192 * 8192)
    assert model_flops_per_token(arch, 8192, frozen=True) == pytest.approx(4 * matrices + 6 * 80 * 8192 * 8192)


def test_adapters_are_not_credited_with_gradients_of_frozen_weights():
    """A LoRA step is faster, since a third of the products goes away, and its MFU is no higher than that of full training."""
    full, frozen = (ap.explain(problem(task=t, seq_len=8192), strategy("tp4 pp2 dp8 zero1 mbs1")) for t in ("pretrain", "lora"))
    assert frozen.cost.seconds["gemm"] == pytest.approx(2 / 3 * full.cost.seconds["gemm"], rel=0.05)
    assert frozen.cost.total_s < 0.8 * full.cost.total_s
    assert frozen.training.mfu < 1.05 * full.training.mfu


def test_sharded_tensors_copy_what_they_gather_along_the_sequence():
    """Each of a layer's 8 exchanges (2 gathers and 2 scatters, forward and backward) reads and writes its buffer once more."""
    p = problem(engine="torchtitan", elementwise="eager")
    hw = TrainingHardware.of(p)
    text = "tp4 pp1 dp16 zero3 mbs1"
    plain = evolve(p, software=evolve(p.software, sharded_dispatch=False))
    more = price(p, text).seconds["tp_comm"][0] - price(plain, text).seconds["tp_comm"][0]
    exchanges = 4 + 4 * p.constant("tp_exposed_backward")  # the backward hides a copy as it hides its exchange
    copied = exchanges * 32 * 16 * 2 * (4096 * 4096 * 2) / hw.hbm_bytes_per_s  # 32 layers, 16 micro-batches
    assert more == pytest.approx(copied, rel=0.05)  # the head's gather comes on top
    compiled = problem(engine="torchtitan", elementwise="compiled")
    bare = evolve(compiled, software=evolve(compiled.software, sharded_dispatch=False))
    assert price(compiled, text).seconds["tp_comm"][0] == price(bare, text).seconds["tp_comm"][0]


def test_dispatch_of_sharded_operators_is_paid_at_both_ends_too():
    """A host that hides nothing dispatches 32 layers and the ends, worth 0.4 of one, forward and twice that backward."""
    p = problem(engine="torchtitan", elementwise="eager", launch_blocking=True)
    plain = evolve(p, software=evolve(p.software, sharded_dispatch=False))
    text = "tp4 pp1 dp16 zero3 mbs1"
    more = price(p, text).seconds["host"][0] - price(plain, text).seconds["host"][0]
    assert more == pytest.approx(16 * 3 * 32.4 * p.constant("host_sharded_layer_s"))


# --- collectives --------------------------------------------------------------------------------------------------


def test_collectives_inside_a_node():
    """(n-1)/n of 1 GB at 300 GB/s, all-reduce twice that."""
    gather = NODE.gather(one(1e9), one(8), 1.0)[0]
    assert gather == pytest.approx(7 / 8 * 1e9 / 300e9 + 10e-6)
    assert NODE.all_reduce(one(1e9), one(8), 1.0)[0] == pytest.approx(2 * gather)
    assert NODE.ring_latency(one(1), 1.0)[0] == 0.0


def test_collectives_across_nodes_use_the_nics_of_the_ranks_that_share_a_node():
    assert NODE.bus(one(16), 8.0)[0] == 40e9  # one rank per node
    assert NODE.bus(one(16), 4.0)[0] == 80e9  # two
    assert NODE.bus(one(16), 1.0)[0] == 300e9  # eight NICs outrun the links inside
    assert NODE.ring_step(one(1e9), one(4), 4.0)[0] == pytest.approx(1e9 / 40e9 + 20e-6)  # a neighbour is behind one NIC
    assert NODE.ring_step(one(1e9), one(2), 4.0)[0] == pytest.approx(1e9 / 300e9 + 10e-6)


@given(k=st.integers(1, 16), ranks=st.sampled_from([2, 4, 8, 16, 32, 64]))
@settings(deadline=None)
def test_tokens_travel_once_to_each_place_they_visit(k, ranks):
    """R(1-(1-1/R)^k) places (arXiv 2412.19437, section 3.2.2): at most k and at most R."""
    places = visited(one(ranks), k)[0]
    assert places <= min(k, ranks) + 1e-9
    once = NODE.exchange(one(1e8), k, one(ranks), 1.0, once_per_rank=True)[0]
    plain = NODE.exchange(one(1e8), k, one(ranks), 1.0, once_per_rank=False)[0]
    assert once <= plain + 1e-12


def test_expected_places_by_simulation():
    rng = np.random.default_rng(0)
    drawn = np.mean([len(set(rng.integers(0, 4, 8))) for _ in range(20000)])
    assert visited(one(4), 8)[0] == pytest.approx(drawn, rel=0.01)


# --- layers and stages --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("layers", "chunks", "ends", "split"),
    [
        (80, 4, (0.01, 0.5), (20, 20, 20, 20)),
        (126, 16, (0.01, 0.66), (7, *[8] * 14, 7)),
        (61, 16, (0.01, 4.2), (*[4] * 15, 1)),
        (61, 8, (0.01, 4.2), (*[8] * 7, 5)),
        (94, 32, (0.01, 2.8), (*[3] * 31, 1)),
    ],
)
def test_layers_missing_from_an_even_split_relieve_the_fullest_stage(layers, chunks, ends, split):
    assert split_layers(layers, chunks, ends=ends) == split


def test_embedding_and_loss_as_layers():
    assert split_layers(126, 128, embedding_as_layer=True) == (0, *[1] * 126, 0)
    assert split_layers(94, 32, embedding_as_layer=True) == (2, *[3] * 30, 2)


@given(layers=st.integers(1, 130), pp=st.integers(1, 16), vpp=st.integers(1, 4), folded=st.booleans())
@settings(deadline=None)
def test_every_layer_is_on_one_stage(layers, pp, vpp, folded):
    arch = dense(layers, 512, 8, 8, 2048, 32000)
    layout = stage_layout(arch, pp, vpp, v_shaped=folded)
    assert sum(layout.layers_per_stage) == sum(layout.chunk_layers) == layers
    assert layout.first.sum() == layout.last.sum() == 1
    assert layout.index[layout.last == 1][0] == (0 if folded else pp - 1)
    assert max(layout.chunk_layers) - min(layout.chunk_layers[:-1] or (0,)) <= max(layout.chunk_layers)


def test_the_head_of_a_small_model_costs_many_layers():
    """A head of 512×32,000 against layers of 3·512·2048 + 4·512² parameters and their attention."""
    _, last = ends_in_layers(dense(8, 512, 8, 8, 2048, 32000))
    assert last == pytest.approx(512 * 32000 / (3 * 512 * 2048 + 4 * 512**2 + 512 * 4096), rel=0.01)


def test_saved_activations_follow_the_published_count():
    """34·s·b·h without attention scores, arXiv 2205.05198, equation 1: 5·a·s²·b of them with unfused attention.

    The paper's layer has 4h-wide plain feed-forward blocks, dropout masks (which fused trainers do not keep: 1 byte
    after attention and after the feed-forward) and layer norms whose inputs are kept.
    """
    config = {
        "model_type": "gpt_ungated", "hidden_size": 4096, "num_hidden_layers": 8, "num_attention_heads": 32, "head_dim": 128,
        "num_key_value_heads": 32, "intermediate_size": 16384, "vocab_size": 51200, "tie_word_embeddings": True,
        "gated_mlp": False,
    }  # fmt: skip
    arch = build_arch(config, name="gpt", host=ap.host())
    p = problem(arch, n_gpus=8, seq_len=2048, batch=64)
    kept = price(p, "tp1 pp1 dp8 mbs1").memory["activations"][0]
    head = 2048 * 4096 * 2 * 2
    assert (kept - head) / (8 * 2048 * 4096) == pytest.approx(32, rel=0.08)
    unfused = price(problem(arch, n_gpus=8, seq_len=2048, batch=64, attention_kernel="unfused"), "tp1 pp1 dp8 mbs1")
    scores = 5 * 32 * 2048**2 * 8
    assert unfused.memory["activations"][0] - kept == pytest.approx(scores)
    selective = price(
        problem(arch, n_gpus=8, seq_len=2048, batch=64, attention_kernel="unfused"), "tp1 pp1 dp8 mbs1 recompute=selective"
    )
    assert selective.memory["activations"][0] == pytest.approx(kept)


def test_sequence_parallelism_divides_every_saved_activation():
    """arXiv 2205.05198, equation 4: all of it over t."""
    p = problem(llama_70b(), n_gpus=8)
    e = price(p, "tp8 pp1 dp1 mbs1", "tp8 pp1 dp1 mbs1 sp=off", "tp1 pp1 dp8 mbs1")
    kept = e.memory["activations"]
    assert kept[0] == pytest.approx(kept[2] / 8, rel=0.01)
    assert kept[1] > 1.5 * kept[0]


# --- memory -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("zero", "per_param"),
    [(0, 2 + 4 + 12), (1, 2 + 4 + 12 / 8), (2, 2 + (4 + 12) / 8), (3, (2 + 4 + 12) / 8)],
)
def test_states_by_zero_stage(zero, per_param):
    """ZeRO, arXiv 1910.02054, figure 1, with fp32 gradients; 7.6 billion parameters on 8 ranks."""
    arch = dense(32, 4096, 32, 8, 14336, 32000)
    e = price(problem(arch, n_gpus=8), f"tp1 pp1 dp8 zero{zero} mbs1" if zero else "tp1 pp1 dp8 mbs1")
    params = 2 * 32000 * 4096 + 32 * (4096 * (4096 + 2048) + 4096**2 + 3 * 4096 * 14336 + 2 * 4096) + 4096
    held = sum(e.memory[k][0] for k in ("weights", "gradients", "optimizer"))
    assert held == pytest.approx(params * per_param)


def test_low_precision_recipes_hold_16_bit_gradients():
    arch = dense(32, 4096, 32, 8, 14336, 32000)
    bf16, wide, narrow = (
        price(problem(arch, n_gpus=8, precision=x, grad_dtype=g), "tp1 pp1 dp8 zero1 mbs1").memory["gradients"][0]
        for x, g in (("bf16", "bf16"), ("fp8", "fp32"), ("fp8", "bf16"))
    )
    assert bf16 == wide == 2 * narrow


def test_offloaded_activations_move_to_the_host():
    e, half = (price(problem(llama_70b(), activation_offload_layers=n), "tp8 pp1 dp8 zero1 mbs1") for n in (0, 40))
    moved = e.memory["activations"][0] - half.memory["activations"][0]
    assert moved == pytest.approx(e.memory["activations"][0] / 2, rel=0.03)
    assert half.host_bytes_per_node[0] == pytest.approx(8 * moved)


def test_lora_trains_no_frozen_weight():
    full, lora = (price(problem(llama_70b(), task=t), "tp8 pp1 dp8 zero1 mbs1") for t in ("pretrain", "lora"))
    assert lora.memory.keys() == full.memory.keys()
    assert not lora.memory["gradients"].any()
    assert not lora.memory["optimizer"].any()
    assert not lora.seconds["dp_comm"].any()
    assert lora.seconds["gemm"][0] == pytest.approx(2 / 3 * full.seconds["gemm"][0], rel=0.05)


# --- host time and recompute --------------------------------------------------------------------------------------


def test_the_gpu_waits_only_for_what_launching_takes_longer():
    host = HostModel(launch_s=10e-6, gap_s=0.0, gap_moe_s=500e-6)
    assert host.wait_s(one(1e-3), one(20), 1.0, routed=False)[0] == 0.0
    assert host.wait_s(one(50e-6), one(20), 1.0, routed=False)[0] == pytest.approx(150e-6)
    assert host.wait_s(one(1e-3), one(20), 2.0, routed=True)[0] == pytest.approx(1e-3)


def test_sharded_tensors_cost_the_host_where_nothing_hides_it():
    host = HostModel(launch_s=10e-6, gap_s=0.0, gap_moe_s=0.0, sharded_s=1e-3)
    tp = np.array([1.0, 2.0])
    assert host.wait_s(one(50e-6), one(20), 1.0, routed=False, tp=tp) == pytest.approx([150e-6, 1150e-6])
    assert host.wait_s(one(1.5e-3), one(20), 1.0, routed=False, tp=tp) == pytest.approx([0.0, 0.0])
    blocking = evolve(host, launch_s=0.0, blocking=True)
    assert blocking.wait_s(one(1.5e-3), one(20), 2.0, routed=False, tp=tp) == pytest.approx([0.0, 2e-3])


def test_compiled_layers_dispatch_no_sharded_tensors():
    small = dense(8, 512, 8, 8, 1024, 32000)

    def wait(text: str, **software: object) -> float:
        return float(price(problem(small, seq_len=128, engine="torchtitan", **software), text).seconds["host"][0])

    tensor_parallel, data_parallel = "tp2 pp1 dp32 zero3 mbs2", "tp1 pp1 dp64 zero3 mbs1"
    assert wait(tensor_parallel) == pytest.approx(wait(data_parallel), rel=0.1)
    assert wait(tensor_parallel, elementwise="eager") > 5 * wait(data_parallel, elementwise="eager")


def test_captured_graphs_leave_little_of_the_host():
    small = dense(32, 1024, 16, 16, 4096, 32000)
    waits = [
        price(problem(small, seq_len=512, cuda_graph=g), "tp8 pp1 dp8 zero1 mbs1").seconds["host"][0]
        for g in ("none", "partial", "full_iteration")
    ]
    assert waits[0] > waits[1] > 4 * waits[2]


def test_unknown_recompute_modules_are_refused():
    with pytest.raises(SpecError, match="unknown recompute module nonsense; known: core_attn"):
        Recompute.of(("nonsense",), 0.4)


def test_precisions_without_a_price_are_refused():
    with pytest.raises(SpecError, match="fp32 is not priced"):
        price(problem(precision="fp32"), "tp1 pp1 dp64 mbs1")
    bare = problem()
    gpu = evolve(bare.cluster.gpu, training={})
    with pytest.raises(SpecError, match="has no training constant"):
        price(evolve(bare, cluster=evolve(bare.cluster, gpu=gpu)), "tp1 pp1 dp64 mbs1")


# --- data parallelism ---------------------------------------------------------------------------------------------


def test_gradients_hide_behind_the_last_backward():
    """Without overlap all of the reduce-scatter and the all-gather shows, with it what outlasts the computation."""
    arch, text = dense(32, 4096, 32, 8, 14336, 32000), "tp1 pp1 dp64 zero1 mbs1"
    shown = price(problem(arch, dp_overlap=False), text).seconds["dp_comm"][0]
    hidden = price(problem(arch, dp_overlap=True), text).seconds["dp_comm"][0]
    params = 2 * 32000 * 4096 + 32 * (4096 * (4096 + 2048) + 4096**2 + 3 * 4096 * 14336 + 2 * 4096) + 4096
    at_full_rate = params * (4 + 2) * 63 / 64 / 335e9
    assert at_full_rate < shown < 3 * at_full_rate
    assert hidden < 0.6 * shown


def test_hybrid_sharding_gathers_inside_its_group():
    """Groups of 8 keep the parameter gathers off the network; the gradients still cross it."""
    e = price(problem(dp_overlap=False), "tp1 pp1 dp64 zero1 mbs1", "tp1 pp1 dp64 zero1 shard8 mbs1")
    assert e.memory["optimizer"][1] == pytest.approx(8 * e.memory["optimizer"][0])
    assert e.seconds["dp_comm"][1] != e.seconds["dp_comm"][0]


def test_a_prediction_layer_shares_the_head():
    """671.03 + 11.61 billion parameters (DeepSeek-V3 with its prediction block), the head once: 2 bytes of weights each."""
    from autoparallel_core.cluster import build_cluster
    from autoparallel_core.host import host
    from autoparallel_core.models import load_model
    from autoparallel_core.problem import make_problem
    from autoparallel_core.search.explain import explain_strategy
    from autoparallel_core.spec.strategy import Strategy
    from autoparallel_core.spec.workload import TrainingWorkload

    arch = load_model("deepseek-ai/DeepSeek-V3", host())
    work = TrainingWorkload(seq_len=4096, global_batch_size=1024)
    cluster = build_cluster(host().gpu("H200"), 1024)
    problem = make_problem(arch, cluster, work, engine="megatron", host=host())
    plan = explain_strategy(problem, Strategy(dp=1024))
    assert plan.memory.stages[0].bytes["weights"] == 2 * (671_026_404_352 + 11_610_067_968)


def test_ranks_that_are_not_there_share_no_host_memory():
    """Adam on the host: 28 bytes per parameter of each of two ranks at 109 GB/s, also on a node built for eight."""
    from autoparallel_core.cost.data_parallel import optimizer_s

    p = problem(dense(2, 1024, 16, 16, 4096, 32000), n_gpus=2)
    assert p.cluster.n_gpus < p.cluster.gpus_per_node or p.cluster.gpus_per_node == 2
    p = p.with_cluster(evolve(p.cluster, gpus_per_node=8))
    seconds = optimizer_s(p, one(1e9), np.array([1]), 3e12)[0]
    c = p.constant
    moved = 1e9 * (c("memory_grad_bytes") + 2) / c("offload_link_bytes_per_s")
    assert seconds == pytest.approx(moved + 2 * 28e9 / 109e9 + c("optimizer_fixed_s"))
