"""From parsed flags to a Problem. Whatever the user left out is assumed here, and said."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from attrs import evolve

from autoparallel_core.cli.flags import CLUSTER, MANUAL, refuse_foreign_flags
from autoparallel_core.errors import SpecError
from autoparallel_core.spec.workload import InferenceWorkload, TrainingWorkload, Workload

if TYPE_CHECKING:
    from autoparallel_core.host import Host
    from autoparallel_core.spec.arch import ModelArch
    from autoparallel_core.spec.cluster import Cluster, Gpu
    from autoparallel_core.spec.problem import Problem

Mode = Literal["training", "inference"]

DEFAULT_SEQ_LEN = 4096
DEFAULT_STEP_TOKENS, DEFAULT_GPU_TOKENS = 4 * 2**20, 2**14
"""Tokens per step, and per GPU where there are so many that the first would starve them: 4 M and, on 1,024 GPUs, 16 M are
batches of published pre-training runs (arXiv 2407.21783, section 3.4.1). Only the default of --batch-size rests on it."""
DEFAULT_ISL = DEFAULT_OSL = 1024
_OVERRIDES = {"gpu_memory_gb": 1e9, "host_memory_gb": 1e9, "gpu_flops": 1e12, "bw_nvlink": 1e9, "bw_ib": 1e9}
"""Flags that replace a figure of the preset, with the unit that ``build_cluster`` reads them in."""


class Question:
    """What the flags ask, ready to become a Problem for one size of cluster or for several.

    Raises:
        SpecError: a flag is missing, contradicts another, or does not belong to the mode.
    """

    def __init__(self, args: argparse.Namespace, host: Host) -> None:
        self.args, self.host = args, host
        self.mode: Mode = args.mode or "training"
        refuse_foreign_flags(args, self.mode)
        self._refuse_contradictions()
        self._assumed: list[str] = []
        self.engine_name = args.engine or self._default_engine()
        self.engine = host.engine(self.engine_name, self.mode)
        self.cluster = self._cluster()
        self.arch = self._model()

    def problem(self, n_gpus: int | None = None) -> Problem:
        """The problem on the asked cluster, or on one like it with ``n_gpus`` GPUs."""
        from autoparallel_core.problem import make_problem

        cluster = self.cluster if n_gpus is None else self.resized(n_gpus)
        workload, assumed = self._workload(cluster)
        problem = make_problem(
            self.arch, cluster, workload, engine=self.engine.name, engine_version=self.args.engine_version,
            software=self.args.software, host=self.host,
        )  # fmt: skip
        problem, learnt = self._calibrated(self._data.applied_to(problem))
        assumed += learnt
        return evolve(problem, assumptions=tuple(dict.fromkeys((*self._assumed, *assumed, *problem.assumptions))))

    # -- model ---------------------------------------------------------------------------------------------------

    def _model(self) -> ModelArch:
        from autoparallel_core.cli.manual import arch_of_flags
        from autoparallel_core.models import load_model

        by_hand = [f.name for f in MANUAL if getattr(self.args, f.dest) is not None]
        named = [n for n in ("model_path", "model") if getattr(self.args, n)]
        if len(named) > 1:
            raise SpecError("--model-path and --model both name a model; give one of them")
        if by_hand and named:
            flag = named[0].replace("_", "-")
            raise SpecError(f"{by_hand[0]} describes a model by hand and cannot be combined with --{flag}; give one of them")
        if by_hand:
            return arch_of_flags(self.args, self.host)
        if not named:
            raise SpecError(
                "no model is given: use --model-path PATH, --model NAME ('autoparallel models' lists them) or --hidden-size …"
            )
        if self.args.model_path:
            path = Path(self.args.model_path).expanduser()
            if not path.exists():
                raise SpecError(f"--model-path {path}: no such file or directory (for a model of the catalogue use --model)")
            return load_model(str(path.resolve()), self.host)
        return load_model(self.args.model, self.host)

    # -- engine --------------------------------------------------------------------------------------------------

    def _default_engine(self) -> str:
        claims = [e.name for e in self.host.engines().values() if self.mode in e.default_for]
        if len(claims) == 1:
            self._assumed.append(f"--engine {claims[0]}")
            return claims[0]
        names = ", ".join(e.name for e in self.host.engines().values() if self.mode in e.modes)
        why = f"{' and '.join(claims)} both claim to be the default" if claims else "no plugin provides a default"
        raise SpecError(f"--engine is needed for {self.mode}: {why}; engines: {names or 'none'}")

    # -- cluster -------------------------------------------------------------------------------------------------

    def _refuse_contradictions(self) -> None:
        args = self.args
        if args.cluster:
            for flag in CLUSTER:
                if flag.name != "--cluster" and getattr(args, flag.dest) is not None:
                    raise SpecError(f"{flag.name} and --cluster both describe the cluster; change it in {args.cluster} instead")
        if args.profile_data and args.no_profile:
            raise SpecError("--profile-data and --no-profile contradict each other; give one of them")

    def _cluster(self) -> Cluster:
        from autoparallel_core.cluster import read_cluster_toml

        args = self.args
        if args.cluster:
            cluster = read_cluster_toml(Path(args.cluster), self.host)
            kinds = tuple(evolve(k, gpu=self._measured(k.gpu)) for k in cluster.kinds)
            return evolve(cluster, gpu=kinds[0].gpu if kinds else self._measured(cluster.gpu), kinds=kinds)
        self._gpu = self._measured(self._preset())
        per_node = args.gpus_per_node or self._gpu.gpus_per_node
        if args.n_gpus is None and not getattr(args, "find_min_nodes", False):
            self._assumed.append(f"--n-gpus {per_node} (one node)")
        wanted = args.n_gpus or per_node
        if args.n_gpus and getattr(args, "find_min_nodes", False) and wanted > per_node:
            wanted -= wanted % per_node
            if wanted < args.n_gpus:
                self._assumed.append(f"--n-gpus {args.n_gpus}, in whole nodes: at most {wanted} GPUs")
        try:
            return self._built(wanted)
        except SpecError as e:
            raise SpecError(f"--n-gpus {args.n_gpus}: {e}" if args.n_gpus and "GPUs" in str(e) else str(e)) from e

    def _built(self, n_gpus: int) -> Cluster:
        from autoparallel_core.cluster import build_cluster

        given = {name: (getattr(self.args, name), unit) for name, unit in _OVERRIDES.items()}
        overrides = {name: value / unit for name, (value, unit) in given.items() if value is not None}
        return build_cluster(self._gpu, n_gpus, gpus_per_node=self.args.gpus_per_node, overrides=overrides)

    def resized(self, n_gpus: int) -> Cluster:
        """The same kind of cluster with another number of GPUs."""
        from autoparallel_core.cluster import build_cluster

        c = self.cluster
        if n_gpus == c.n_gpus:
            return c
        if c.kinds:
            raise SpecError("a cluster of several kinds of GPU has no other sizes to look at; change its file")
        if not self.args.cluster:
            return self._built(n_gpus)
        network_given = c.tiers[-1].ranks > c.gpus_per_node
        inner = [t for t in c.tiers[:-1] if t.ranks < n_gpus]
        outer = next((t for t in c.tiers if t.ranks >= n_gpus), c.tiers[-1])
        tiers = (*inner, evolve(outer, ranks=n_gpus)) if network_given or n_gpus <= outer.ranks else None
        resized = build_cluster(c.gpu, n_gpus, gpus_per_node=c.gpus_per_node, tiers=tiers)
        return evolve(resized, overrides=c.overrides)

    def _preset(self) -> Gpu:
        from autoparallel_core.measured import gpu_of_profile

        args = self.args
        if not args.no_profile and (own := gpu_of_profile(args.profile_data, self.host, wanted=args.gpu_type)):
            if not args.gpu_type:
                self._assumed.append(f"--gpu-type {own.name}, which {args.profile_data} was measured on")
            return own
        if args.gpu_type:
            return self.host.gpu(args.gpu_type)
        claims = [g for g in self.host.gpus().values() if g.default]
        if len(claims) != 1:
            why = f"{' and '.join(g.name for g in claims)} both claim to be the default" if claims else "no preset is the default"
            raise SpecError(f"--gpu-type is needed: {why}; 'autoparallel gpus' lists them")
        self._assumed.append(f"--gpu-type {claims[0].name}")
        return claims[0]

    def _measured(self, gpu: Gpu) -> Gpu:
        """The preset with measured data laid over it, unless ``--no-profile``."""
        from autoparallel_core.measured import measured_gpu

        args = self.args
        self._data = measured_gpu(gpu, self.host, profile_data=args.profile_data, presets_only=bool(args.no_profile))
        self._assumed += self._data.used
        return self._data.gpu

    def _calibrated(self, problem: Problem) -> tuple[Problem, list[str]]:
        """With the factors of ``--calibration`` on it, and what the answer says about them."""
        if not self.args.calibration:
            return problem, []
        from autoparallel_core.calibrate.files import read_calibration

        found = read_calibration(Path(self.args.calibration).expanduser())
        problem = found.applied_to(problem)
        return problem, [found.says(problem)]

    # -- workload ------------------------------------------------------------------------------------------------

    def _workload(self, cluster: Cluster) -> tuple[Workload, list[str]]:
        assumed: list[str] = []
        build: Callable[[Cluster, list[str]], Workload] = self._training if self.mode == "training" else self._inference
        return build(cluster, assumed), assumed

    def _check_precision(self, precision: str, gpu: Gpu) -> None:
        from autoparallel_core.problem import OPERANDS

        operand = OPERANDS.get(precision, precision)
        if operand not in {"fp32", *gpu.peak_flops}:
            known = ", ".join(sorted(gpu.peak_flops))
            raise SpecError(f"--precision {precision}: {gpu.name} has no {operand} tensor cores; it supports {known}")

    def _training(self, cluster: Cluster, assumed: list[str]) -> TrainingWorkload:
        args, gpu = self.args, cluster.gpu
        positions = self.arch.max_position_embeddings
        seq_len = args.max_length
        if seq_len is None:
            seq_len = min(DEFAULT_SEQ_LEN, positions or DEFAULT_SEQ_LEN)
            assumed.append(f"--max-length {seq_len} (tokens per sequence)")
        elif positions and seq_len > positions:
            assumed.append(f"sequences of {seq_len:,} tokens, longer than the {positions:,} positions that the config states")
        batch = args.batch_size
        if batch is None:
            batch = default_batch(cluster.n_gpus, seq_len)
            assumed.append(f"--batch-size {batch} sequences ({batch * seq_len:,} tokens per step)")
        limit = args.max_tokens_per_mb
        if limit is not None and limit < seq_len:
            raise SpecError(f"--max-tokens-per-mb {limit} is below one sequence of {seq_len} tokens; give at least {seq_len}")
        precision = args.precision
        if precision is None:
            precision = "bf16" if "bf16" in gpu.peak_flops else "fp16"
            assumed.append(f"--precision {precision}")
        self._check_precision(precision, gpu)
        if args.task == "lora":
            assumed.append("the adapters' own memory and time, small beside the frozen weights', are not priced (--task lora)")
        return TrainingWorkload(
            seq_len=seq_len,
            global_batch_size=batch,
            precision=precision,
            task=args.task or "pretrain",
            max_tokens_per_micro_batch=limit,
            recompute_allowed=not args.no_recompute,
            optimizer_cpu_offload=True if args.optimizer_cpu_offload else None,
            activation_cpu_offload=args.activation_offload,
            grad_reduce_in_fp32=not args.no_grad_reduce_in_fp32,
        )

    def _inference(self, cluster: Cluster, assumed: list[str]) -> InferenceWorkload:
        args = self.args
        isl, osl = args.isl or DEFAULT_ISL, args.osl or DEFAULT_OSL
        if args.isl is None or args.osl is None:
            given = [f"--isl {isl}"] * (args.isl is None) + [f"--osl {osl}"] * (args.osl is None)
            assumed.append(" ".join(given))
        if args.max_length is not None and args.max_length < isl + osl:
            raise SpecError(f"--max-length {args.max_length} is below --isl {isl} + --osl {osl}; give at least {isl + osl}")
        positions = self.arch.longest_context
        longest = max(isl + osl, args.max_length or 0)
        if positions and longest > positions:
            assumed.append(f"requests of {longest:,} tokens, longer than the {positions:,} positions that the config states")
        if args.precision:
            self._check_precision(args.precision, cluster.gpu)
        workload = InferenceWorkload(
            isl=isl,
            osl=osl,
            concurrency=args.infer_batch_size,
            precision=args.precision,
            max_num_batched_tokens=args.max_tokens_per_mb,
            max_model_len=args.max_length,
            goal=args.goal or "throughput",
            request_rate_per_s=args.request_rate,
            ttft_limit_s=None if args.ttft_ms is None else args.ttft_ms * 1e-3,
            tpot_limit_s=None if args.tpot_ms is None else args.tpot_ms * 1e-3,
            kv_dtype=args.kv_dtype,
            max_num_seqs=args.max_num_seqs,
            memory_fraction=args.memory_fraction,
            prefix_hit_rate=args.prefix_hit_rate or 0.0,
            accepted_length=args.accepted_length or 1.0,
            gpu_hour_price=args.gpu_hour_price,
        )
        if workload.assumed_in_flight is not None:
            assumed.append(f"{workload.assumed_in_flight} (--infer-batch-size fixes it)")
        return workload


def default_batch(n_gpus: int, seq_len: int) -> int:
    """Sequences near the default tokens per step that every data-parallel size of ``n_gpus`` GPUs can divide as far as possible.

    A power of two times the odd part of ``n_gpus``, whichever is nearest in ratio; at least the odd part.
    """
    odd = n_gpus
    while odd % 2 == 0:
        odd //= 2
    want, batch = max(DEFAULT_STEP_TOKENS, DEFAULT_GPU_TOKENS * n_gpus) / seq_len, odd
    while batch * 2 <= want or want / batch > batch * 2 / want:
        batch *= 2
    return batch
