"""Run records: reading, what null means, settings in words, weights as deployed, and that nothing is ever dropped."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from attrs import evolve
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from autoparallel_core.errors import SpecError
from autoparallel_core.host import host
from autoparallel_core.records import RunRecord, Unreadable, parse_record, read_records, to_problem
from autoparallel_core.runs.record import version_in
from autoparallel_core.runs.settings import nic_bytes_per_s, recompute_modules, recomputed_layers, software_changes
from autoparallel_core.runs.translate import Translator
from autoparallel_core.runs.validate import document, predict_records
from autoparallel_core.runs.weights import deployed_config, own_quantisation

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = ROOT / "docs" / "examples" / "runs.jsonl"
SHARED = ROOT.parent / "shared" / "validation"

CONFIG = {
    "model_type": "llama", "hidden_size": 4096, "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 8,
    "intermediate_size": 14336, "vocab_size": 128256, "tie_word_embeddings": False, "max_position_embeddings": 131072,
    "torch_dtype": "bfloat16",
}  # fmt: skip
TRAINING = {
    "id": "a", "mode": "training", "name": "8b", "model": CONFIG,
    "cluster": {"gpu": "H100-SXM-80GB", "n_gpus": 16, "gpus_per_node": 8}, "engine": "megatron",
    "workload": {"seq_len": 4096, "global_batch_size": 128, "precision": "bf16", "task": "pretrain"},
    "strategy": {"tp": 2, "pp": 2, "micro_batch_size": 1}, "settings": {}, "measured": {"step_time_s": 5.0},
}  # fmt: skip
SERVING = {
    "id": "s", "mode": "inference", "name": "8b", "model": CONFIG, "cluster": {"gpu": "H100-SXM-80GB", "n_gpus": 2},
    "engine": "vllm", "engine_version": "0.19.0", "workload": {"isl": 1024, "osl": 128, "concurrency": 16, "load": "closed loop"},
    "strategy": {"tp": 2, "pp": 1, "dp": 1}, "settings": {}, "measured": {"tpot_ms": 10.0},
}  # fmt: skip


def record(base=TRAINING, **changes) -> RunRecord:
    row = json.loads(json.dumps(base))
    for path, value in changes.items():
        at = row
        *parents, last = path.split("__")
        for p in parents:
            at = at[p]
        at[last] = value
    return parse_record(row)


def translated(r: RunRecord):
    return Translator(host()).translate(r)


# --- reading ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"id": ""}, "'id' must be"),
        ({"mode": "finetune"}, "must be one of training, inference, not 'finetune'"),
        ({"model": 3}, "'model' must be a config object or a path"),
        ({"strategy": [1]}, "'strategy' must be an object"),
        ({"engine": 4}, "'engine' must be text"),
        ({"confidence": "sure"}, "'confidence' must be one of high, medium, low"),
        ({"flags": "superseded"}, "'flags' must be a list"),
    ],
)
def test_wrong_shapes_name_the_field(change, says):
    with pytest.raises(SpecError, match=re.escape(says)):
        parse_record(TRAINING | change)


def test_a_file_gives_every_line_back(tmp_path):
    f = tmp_path / "runs.jsonl"
    f.write_text(json.dumps(TRAINING) + "\n\n{broken\n[1]\n" + json.dumps({"id": "x", "mode": "?"}) + "\n", encoding="utf-8")
    rows = list(read_records(f))
    assert [type(r) for r in rows] == [RunRecord, Unreadable, Unreadable, Unreadable]
    assert [r.id for r in rows] == ["a", "line 3", "line 4", "x"]
    out = predict_records(rows, host())
    assert [p.status for p in out] == ["ok", "error", "error", "error"]
    assert "not valid JSON" in out[1].reason
    with pytest.raises(SpecError, match="no such file"):
        list(read_records(tmp_path / "none.jsonl"))


@pytest.mark.parametrize(
    ("text", "version"),
    [
        ("0.19.0", "0.19.0"), ("0.11.x (2025-11)", "0.11"), ("1.2 (main docs at commit)", "1.2"), ("0.5.6.post2", "0.5.6.post2"),
        ("2025-07 (0.9.2-0.10)", "0.9.2"), ("1.0.0rc3", "1.0.0rc3"), ("2026-08", None), ("nightly-dev-20260402-d7256eb6", None),
        ("2026", None), ("0.7-0.8 V0", "0.7"), (None, None), ("v0.9.1 (ROCm 6.4.1)", "0.9.1"),
    ],
)  # fmt: skip
def test_versions_in_free_text(text, version):
    assert version_in(text) == version


# --- training ---------------------------------------------------------------------------------------------------


def test_what_null_means_and_that_it_is_said():
    t = translated(record())
    s = t.strategy
    assert (s.dp, s.vpp, s.cp, s.ep, s.etp, s.sp) == (4, 1, 1, 1, 1, 1)
    assert (s.zero, s.shard, s.recompute) == (1, 4, 0)
    assert {
        "dp not stated: 4",
        "ZeRO stage not stated: 1",
        "recompute not stated: none",
        "sequence parallelism not stated: on",
    } <= {*t.notes}
    assert translated(record(engine="fsdp", strategy={"tp": 1, "pp": 1, "micro_batch_size": 1})).strategy.zero == 3
    bare = translated(record(workload={"precision": None}, strategy={"tp": 1, "pp": 4}))
    assert bare.strategy.mbs == 1
    assert bare.problem.training.seq_len == 4096
    assert bare.problem.training.global_batch_size == 4 * 4 * 4  # four micro-batches a stage, dp 4
    assert {
        "precision not stated: bf16",
        "sequence length not stated: 4096, and no memory predicted",
        "global batch not stated: 64 sequences",
    } <= {*bare.notes}


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"strategy": {"pp": 1}}, "does not state tp"),
        ({"cluster__gpu": None}, "states no GPU"),
        ({"cluster__gpu": "H1000"}, "H1000"),
        ({"engine": None}, "states no engine"),
        ({"engine": "vllm"}, "vllm"),
        ({"model": None}, "states no model"),
        ({"cluster__n_gpus": 12, "strategy__tp": 8}, "does not divide 12 GPUs"),
        ({"strategy__tp": 2.5}, "strategy.tp must be a positive whole number, not 2.5"),
        ({"strategy__zero_stage": 4}, "zero_stage must be 0 to 3"),
        ({"strategy__recompute": "some"}, "recompute must be one of none, selective, full"),
        ({"workload__global_batch_size": 2}, "less than micro-batch 1 × dp 4"),
        ({"workload__task": "distill"}, "task must be one of"),
        ({"workload__precision": "fp2"}, "fp2"),
    ],
)
def test_records_that_cannot_be_priced_are_refused_with_the_reason(changes, says):
    (p,) = predict_records([record(**changes)], host())
    assert p.status == "refused"
    assert says in p.reason


def test_sharding_as_stated():
    base = {"tp": 1, "pp": 1, "micro_batch_size": 1, "dp": 16, "zero_stage": 3}
    fsdp = evolve(record(engine="fsdp"), strategy=base | {"fsdp": {"strategy": "HSDP", "shard_group": 8}})
    assert translated(fsdp).strategy.shard == 8
    kept = evolve(record(engine="fsdp"), strategy=base | {"fsdp": {"fsdp2": True, "shard": 16, "reshard_after_forward": False}})
    assert (translated(kept).strategy.zero, translated(kept).strategy.shard) == (2, 16)
    inner = evolve(record(engine="fsdp"), strategy=base | {"fsdp": {"ici_fsdp": 8, "dcn_data": 2}})
    assert translated(inner).strategy.shard == 8
    group = record(strategy={"tp": 1, "pp": 1, "zero_stage": 1}, settings={"zero1_group": 8})
    assert translated(group).strategy.shard == 8
    odd = translated(record(strategy={"tp": 1, "pp": 1, "zero_stage": 1}, settings={"zero1_group": 3}))
    assert odd.strategy.shard == 16
    assert any("shard group 3 does not divide" in n for n in odd.notes)


def test_partial_full_recompute_counts_a_stage():
    s = {"tp": 1, "pp": 4, "vpp": 2, "recompute": "full", "recompute_detail": "block, 1 layers per virtual stage"}
    assert translated(record(strategy=s)).strategy.recompute_layers == 2
    assert translated(record(strategy=s | {"recompute_detail": None})).strategy.recompute_layers == 0


def test_an_open_reading_of_recomputed_layers_is_the_one_that_published_speeds_allow():
    """One-layer chunks that all ran twice would be a quarter slower than the runs without recompute, which are as fast."""
    s = {"tp": 1, "pp": 4, "vpp": 8, "recompute": "full", "recompute_detail": "block, 1 layers per (virtual) stage"}
    assert translated(record(strategy=s)).strategy.recompute_layers == 1


def test_cluster_words():
    p = translated(record(settings={"interconnect": "8x200Gb HDR IB per node", "nvlink_domain": 4})).problem
    assert p.cluster.gpu.scale_up_domain == 4
    assert p.cluster.gpu.nic_bytes_per_s == pytest.approx(25e9)
    assert p.cluster.tiers[-1].bytes_per_s == pytest.approx(25e9)
    unknown = translated(record(settings={"interconnect": "HDR IB"}))
    assert unknown.problem.cluster.gpu.nic_bytes_per_s == host().gpu("H100-SXM-80GB").nic_bytes_per_s
    assert any("gives no rate" in n for n in unknown.notes)


@pytest.mark.parametrize(
    ("text", "per_node", "rate"),
    [
        ("1600Gbps RoCE per node", 8, 25e9), ("4x100Gb RoCE per node", 8, 6.25e9), ("8x200Gb HDR IB per node", 8, 25e9),
        ("NVLink 450GB/s, IB 50GB/s", 8, 50e9), ("IB 8x50GB/s", 8, 50e9), ("GCP A3 (8x200Gbps TCPX)", 8, 25e9),
        ("4 OmniPath links/node", 8, 6.25e9), ("400Gbps per node", 8, 6.25e9), ("4x400Gb", 4, 50e9), ("HDR IB", 8, None),
    ],
)  # fmt: skip
def test_interconnects_in_words(text, per_node, rate):
    assert nic_bytes_per_s(text, per_node) == (None if rate is None else pytest.approx(rate))


@pytest.mark.parametrize(
    ("stated", "field", "value"),
    [
        ({"attention_kernel": "unfused"}, "attention_kernel", "unfused"),
        ({"elementwise": "partly-fused"}, "elementwise", "partly-fused"),
        ({"dp_overlap": False}, "dp_overlap", False),
        ({"overlap_grad_reduce": True}, "dp_overlap", True),
        ({"async_tp": True}, "tp_overlap", True),
        ({"ep_overlap": "1f1b"}, "ep_overlap", True),
        ({"moe_a2a_overlap": True}, "ep_overlap", True),
        ({"cuda_launch_blocking": True}, "launch_blocking", True),
        ({"pp_embedding_as_layer": True}, "embedding_as_layer", True),
        ({"moe_flex_dispatcher_backend": "hybridep"}, "dispatcher", "hybridep"),
        ({"kernels": "TE + DeepEP + FlexAttn"}, "dispatcher", "deepep"),
        ({"cuda_graph_impl": "none", "cuda_graph_scope": []}, "cuda_graph", "none"),
        ({"cuda_graph_impl": "transformer_engine", "cuda_graph_scope": ["-", "attn"]}, "cuda_graph", "partial"),
        ({"cuda_graph_scope": "full_iteration"}, "cuda_graph", "full_iteration"),
        ({"cuda_graph_impl": "full_iteration", "cuda_graph_scope": []}, "cuda_graph", "full_iteration"),
        ({"pp_schedule": "zbb"}, "pipeline_schedule", "zero_bubble"),
        ({"schedule": "DualPipe (bidirectional)"}, "pipeline_schedule", "dualpipe_v"),
        ({"fp8": "hybrid delayed scaling"}, "low_precision_recipe", "delayed"),
        ({"float8": "tensorwise, fp8 all-gather"}, "low_precision_recipe", "current"),
        ({"precision_recipe": "FP8-MX"}, "low_precision_recipe", "mxfp8"),
        ({"mp_mode": "PURE"}, "grad_dtype", "bf16"),
        ({"fp32_grad_accum": True}, "grad_dtype", "fp32"),
        ({"cpu_offloading_num_layers": 20}, "activation_offload_layers", 20),
        ({"activation_cpu_offload": True}, "activation_offload_layers", 32),
    ],
)
def test_settings_reach_the_software(stated, field, value):
    changes, notes = software_changes(stated, 32)
    assert changes == {field: value}
    assert notes == []


def test_settings_that_are_not_understood_are_noted():
    changes, notes = software_changes({"attention_kernel": "magic", "pp_schedule": "v-min", "turbo": 1, "use_some_fsdp": True}, 8)
    assert changes == {}
    assert len(notes) == 3
    assert any("turbo" in n for n in notes)


@pytest.mark.parametrize(
    ("detail", "modules", "layers"),
    [
        (None, None, 0), ([], (), 0), (["layernorm", "moe_act"], ("layernorm", "moe_act"), 0),
        (["-", "mla_up_proj"], ("mla_up_proj",), 0),
        ("op-level selective AC", ("op",), 0), ("core attention", ("core_attn",), 0),
        ("RMSNorm and MLA up-projection", ("layernorm", "mla_up_proj"), 0),
        ("block, 1 layers per (virtual) stage", None, 1), ("block, 3 layers per virtual stage", None, 24),
        ("2 layers per stage", None, 2), ("full", None, 0),
    ],
)  # fmt: skip
def test_recompute_detail(detail, modules, layers):
    found, notes = recompute_modules(detail)
    assert (None if found is None else set(found), notes) == (None if modules is None else set(modules), [])
    assert recomputed_layers(detail, vpp=8) == layers
    assert recompute_modules("something else")[1]
    assert recompute_modules(["core_attn", "unheard"])[1] == ["recompute module 'unheard' has no term here"]


# --- serving ----------------------------------------------------------------------------------------------------


def test_attention_data_parallelism_is_inside_an_instance():
    moe = CONFIG | {"model_type": "mixtral", "num_local_experts": 8, "num_experts_per_tok": 2}
    t = translated(record(SERVING, model=moe, cluster__n_gpus=8, strategy={"tp": 1, "pp": 1, "ep": 8, "dp": 8}))
    assert (t.strategy.tp, t.strategy.attn_dp, t.strategy.dp, t.strategy.ep, t.strategy.etp) == (1, 8, 1, 8, 1)
    half = translated(record(SERVING, model=moe, cluster__n_gpus=8, strategy={"tp": 4, "pp": 1, "ep": 2, "dp": 1}))
    assert (half.strategy.attn_dp, half.strategy.dp, half.strategy.etp) == (1, 2, 2)
    dense = translated(record(SERVING, cluster__n_gpus=8, strategy={"tp": 2, "pp": 1, "dp": 4}))
    assert (dense.strategy.attn_dp, dense.strategy.dp) == (1, 4)


def test_loads():
    def workload(**w):
        return translated(record(SERVING, workload={"isl": 100, "osl": 10} | w)).problem.inference

    closed = workload(load="closed loop at concurrency", concurrency=8)
    assert (closed.load, closed.concurrency) == ("closed", 8)
    assert workload(load="offline, 1500 prompts, max-num-seqs 1500").max_num_seqs == 1500
    assert (workload(load="static batch", batch=4).load, workload(load="static batch", batch=4).concurrency) == ("static", 4)
    assert workload(load="closed loop").load == "offline"  # no concurrency: as many as fit
    assert workload(load="closed loop", concurrency=2).kv_dtype is None


def test_serving_settings():
    r = record(
        SERVING,
        settings={"gpu_memory_utilization": 0.8, "max_model_len": 8192, "max_num_batched_tokens": 2048, "kv_dtype": "fp8 (e4m3)"},
        cluster__device_memory_gib=79.19,
    )
    w = translated(r).problem.inference
    assert (w.memory_fraction, w.max_model_len, w.max_num_batched_tokens, w.kv_dtype) == (0.8, 8192, 2048, "fp8")
    assert w.device_memory_bytes == pytest.approx(79.19 * 2**30)


def test_memory_of_an_unknown_gpu_is_arithmetic_only():
    r = record(
        SERVING, cluster={"gpu": None, "n_gpus": 1, "device_memory_gib": 40.0}, strategy={"tp": 1}, measured={"kv_tokens": 1}
    )
    (p,) = predict_records([r], host())
    assert p.status == "ok"
    assert "tpot_ms" not in p.predicted
    assert p.predicted["weights_gib_per_gpu"] == pytest.approx(14.99, abs=0.02)
    assert 0 < p.predicted["kv_cache_gib_per_gpu"] < 25
    (speed,) = predict_records([evolve(r, measured={"tpot_ms": 3.0})], host())
    assert (speed.status, speed.reason) == ("refused", "the record states no GPU")
    blind = evolve(r, cluster={"gpu": None, "n_gpus": 1})
    (p,) = predict_records([blind], host())
    assert "kv_tokens" not in p.predicted
    assert p.predicted["weights_gib_per_gpu"] == pytest.approx(14.99, abs=0.02)


def test_weights_on_a_gpu_without_bf16_are_fp16():
    names = [n for n, g in host().gpus().items() if "bf16" not in g.peak_flops and "fp16" in g.peak_flops]
    assert names
    t = translated(record(SERVING, cluster={"gpu": names[0], "n_gpus": 2}))
    assert t.problem.arch.weight_dtype == "fp16"
    assert any("no bf16" in n for n in t.notes)


@pytest.mark.parametrize(
    ("config", "weights", "name", "family"),
    [
        ({}, "fp8", "", "fp8"), ({}, "fp8 block", "", "fp8 block"), ({}, "awq int4 (marlin)", "", "awq"),
        ({}, "gptq_marlin", "", "int4"),
        ({}, "int8 w8a8", "", "int8"), ({}, "nvfp4 (modelopt)", "", "nvfp4"), ({}, "fp4", "", "nvfp4"),
        ({}, "compressed-tensors", "Some-8B-quantized.w4a16", "w4a16"), ({}, "as model_id", "Org/Some-397B-FP8", "fp8"),
        ({}, "bf16", "", None),
        ({"quantization_config": {"quant_method": "fp8"}}, "bf16", "", None),
    ],
)  # fmt: skip
def test_weights_as_deployed(config, weights, name, family):
    changed, _ = deployed_config(CONFIG | config, weights=weights, dtype=None, name=name)
    assert own_quantisation(changed) == family


def test_a_checkpoint_that_is_already_so_stays():
    fp8 = CONFIG | {"quantization_config": {"quant_method": "fp8", "weight_block_size": [128, 128]}}
    assert deployed_config(fp8, weights="fp8", dtype=None)[0] is fp8
    mx = CONFIG | {"quantization_config": {"quant_method": "mxfp4"}}
    assert deployed_config(mx, weights="mxfp4 (table says FP8)", dtype=None)[0] is mx
    assert deployed_config(CONFIG, weights=None, dtype="auto")[0] is CONFIG
    assert deployed_config(CONFIG, weights=None, dtype="float32")[0]["torch_dtype"] == "float32"
    nested = {"text_config": dict(CONFIG), "torch_dtype": "bfloat16"}
    assert deployed_config(nested, weights="fp16", dtype=None)[0]["text_config"]["torch_dtype"] == "float16"


@pytest.mark.parametrize("weights", ["gguf", "w4a8", "nvfp4/int4", "something", "compressed-tensors"])
def test_formats_that_are_not_priced_are_refused(weights):
    (p,) = predict_records([record(SERVING, settings={"weights": weights})], host())
    assert p.status == "refused"
    assert weights in p.reason


# --- validation -------------------------------------------------------------------------------------------------


def test_records_of_one_question_share_a_problem():
    t = Translator(host())
    a, b = t.translate(record()), t.translate(record(strategy__tp=4))
    assert a.problem is b.problem
    c = t.translate(record(settings={"dp_overlap": False}))
    assert c.problem is not a.problem


def test_predictions_are_those_of_the_single_question():
    from autoparallel_core.search.evaluate import evaluate
    from autoparallel_core.spec.strategy import StrategyBatch

    rows = [record(), record(id="b", strategy__tp=4), record(id="c", strategy__pp=1)]
    for r, p in zip(rows, predict_records(rows, host()), strict=True):
        problem, strategy = to_problem(r, host())
        e = evaluate(problem, StrategyBatch.of([strategy]), host())
        assert p.predicted["step_time_s"] == pytest.approx(float(e.total_s[0]), rel=1e-9)
        assert p.predicted["memory_gb"] == pytest.approx(float(e.allocated_bytes[0]) / 1e9, rel=1e-9)
        tokens = 4096 * 128 / p.predicted["step_time_s"] / 16
        assert p.predicted["tokens_per_s_per_gpu"] == pytest.approx(tokens)


def test_unstated_recompute_is_the_least_that_fits():
    heavy = {"tp": 1, "pp": 1, "micro_batch_size": 4, "zero_stage": 3}
    (unstated,) = predict_records([record(strategy=heavy)], host())
    (none, some, full) = predict_records(
        [record(strategy=heavy | {"recompute": r}) for r in ("none", "selective", "full")], host()
    )
    assert none.predicted["verdict"] == "does not fit"
    assert unstated.predicted["verdict"] != "does not fit" or unstated.predicted["memory_reserved_gb"] < 1.1 * 85.6
    assert full.predicted["memory_gb"] <= unstated.predicted["memory_gb"] < none.predicted["memory_gb"]
    assert none.predicted["step_time_s"] < unstated.predicted["step_time_s"] <= full.predicted["step_time_s"] * (1 + 1e-9)
    assert any(n.startswith("recompute=full") and n.endswith("would not fit with less") for n in unstated.notes)
    assert not any("would not fit" in n for p in (none, some, full) for n in p.notes)
    (light,) = predict_records([record(strategy=heavy | {"micro_batch_size": 1, "tp": 2})], host())
    assert light.notes.count("recompute not stated: none") == 1
    assert not any("would not fit" in n for n in light.notes)


def test_a_rule_that_the_run_breaks_is_noted_not_refused():
    (p,) = predict_records([record(engine="fsdp", strategy={"tp": 1, "pp": 2, "zero_stage": 3})], host())
    assert p.status == "ok"
    assert any("FSDP2 has no pipeline parallelism" in n for n in p.notes)


def test_a_defect_costs_one_group_only(monkeypatch):
    from autoparallel_core.runs import validate as validation

    original = validation.training_figures

    def broken(e, row):
        out = original(e, row)
        return out | {"step_time_s": float("nan")} if e.batch[row].tp == 4 else out

    monkeypatch.setattr(validation, "training_figures", broken)
    out = predict_records([record(), record(id="b", strategy__tp=4)], host())
    assert [p.status for p in out] == ["ok", "error"]
    assert "step_time_s is not a number" in out[1].reason


KEYS = ["tp", "pp", "vpp", "cp", "dp", "zero_stage", "micro_batch_size", "recompute", "fsdp"]
VALUES = st.one_of(
    st.none(), st.integers(-2, 64), st.text(max_size=3), st.floats(), st.booleans(), st.lists(st.integers(), max_size=1)
)


@settings(deadline=None, max_examples=60, suppress_health_check=[HealthCheck.too_slow])
@given(st.dictionaries(st.sampled_from(KEYS), VALUES))
def test_no_strategy_makes_a_record_vanish_or_a_defect(strategy):
    (p,) = predict_records([record(strategy=strategy)], host())
    assert p.status in {"ok", "refused"}
    assert (p.reason is None) == (p.status == "ok")


def test_the_examples_are_all_priced_and_near():
    rows = list(read_records(EXAMPLES))
    out = document(predict_records(rows, host()))["runs"]
    assert [r["status"] for r in out] == ["ok"] * len(rows)
    assert len({r["id"] for r in out}) == len(rows) >= 15
    for r, p in zip(rows, out, strict=True):
        if time := r.measured.get("step_time_s"):
            assert p["predicted"]["step_time_s"] == pytest.approx(time, rel=0.25)
    json.dumps(out, allow_nan=False)


def test_the_command_prints_one_json_object_or_a_table():
    code = "import sys; from autoparallel_core.cli.main import main; sys.exit(main(sys.argv[1:]))"
    command = [sys.executable, "-c", code, "validate", str(EXAMPLES)]
    done = subprocess.run([*command, "--json"], check=True, capture_output=True, text=True)
    assert len(json.loads(done.stdout)["runs"]) == len(EXAMPLES.read_text(encoding="utf-8").splitlines())
    table = subprocess.run(command, check=True, capture_output=True, text=True, env=os.environ | {"COLUMNS": "80"}).stdout
    assert max(map(len, table.splitlines())) <= 80
    for words in ("median", "by GPU", "Predicted (up) against measured (right)", "Largest errors"):
        assert words in table


@pytest.mark.skipif(not SHARED.exists(), reason="the published runs are not in this checkout")
def test_published_training_runs_are_covered_and_break_almost_no_rule():
    rows = list(read_records(SHARED / "training.jsonl"))
    out = {p.id: p for p in predict_records(rows, host())}
    assert len(out) == len(rows)
    sure = [r for r in rows if r.confidence == "high" and r.measured.get("tokens_per_s_per_gpu")]
    assert all(out[r.id].status == "ok" for r in sure)
    assert not [p for p in out.values() if p.status == "error"]
    breaking = [p.id for p in out.values() if any(n.startswith("breaks a rule") for n in p.notes)]
    assert len(breaking) <= 0.02 * len(rows)


def test_recompute_that_a_record_leaves_open_is_one_that_the_engine_can_do():
    """Megatron counts the layers of each virtual stage, torchtitan recomputes every layer or none."""
    from autoparallel_core.runs.validate import settled_strategy

    batch = {"workload__global_batch_size": 2048}
    megatron = record(strategy={"tp": 1, "pp": 4, "vpp": 4, "micro_batch_size": 4}, **batch)
    torchtitan = record(engine="torchtitan", strategy={"tp": 1, "pp": 1, "micro_batch_size": 8}, **batch)
    for r, possible in ((megatron, lambda n: n % 4 == 0), (torchtitan, lambda n: n == 0)):
        settled = settled_strategy(translated(r), host())
        assert settled.recompute == 2
        assert possible(settled.recompute_layers)
