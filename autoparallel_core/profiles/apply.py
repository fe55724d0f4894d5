"""A profile laid over a GPU: what was measured takes the place of the preset's figure, and says so.

Every consumer of a :class:`~autoparallel_core.spec.cluster.Gpu` follows, because nothing else changes: efficiencies of
kernels (fitted, with the points beside them in ``Gpu.tables``), curves of collectives, in-situ constants of training.
What is of the software rather than of the GPU (launch times, the network's efficiency) comes as constants by name.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from attrs import evolve, field, frozen

from autoparallel_core.errors import SpecError
from autoparallel_core.profiles.files import Profile
from autoparallel_core.profiles.fit import Roofline, fit_line, fit_roofline, rising
from autoparallel_core.profiles.group_lines import group_lines
from autoparallel_core.profiles.plausible import check, peak_of, reach_bytes_per_s
from autoparallel_core.profiles.residuals import Residuals
from autoparallel_core.profiles.tables import Table
from autoparallel_core.profiles.work import work_of
from autoparallel_core.spec.cluster import CollectiveCurve, Efficiency, Gpu

LEAST_ROWS = 3
_ELEMENTWISE = tuple(f"elementwise_{how}" for how in ("fused", "compiled", "partly_fused", "eager", "unfused"))
KNOT_ERROR = 0.1
"""A curve that two parameters miss by more keeps its measured points."""
SATURATION = {"gemm_half_k": 100.0, "attention_half_length": 400.0}
"""Where the caller gives none: the reduction length and the sequence length at which a kernel reaches half its plateau."""
CAP = 0.97
"""No plateau is set above this share of a peak."""


@frozen(eq=False)
class Applied:
    """The GPU as measured, constants of the cost model that the measurement replaces (name → value, meaning), and notes."""

    gpu: Gpu
    constants: Mapping[str, tuple[float, str]] = field(factory=dict)
    source: str = ""
    notes: tuple[str, ...] = ()


def apply_profile(gpu: Gpu, profile: Profile, saturation: Mapping[str, float] | None = None) -> Applied:
    """Lay a profile over the preset of its GPU.

    ``saturation`` holds ``gemm_half_k`` and ``attention_half_length`` of the training model, with which the measured
    plateaus are separated from the shapes' own losses.

    Raises:
        SpecError: the profile is of another GPU, or an entry is implausible (it is named).
    """
    where = f"profile {profile.path or profile.gpu}"
    own = profile.device is not None and profile.device.name == gpu.name
    if not own and profile.gpu.casefold() not in {n.casefold() for n in (gpu.name, *gpu.aliases)}:
        raise SpecError(f"{where}: was measured on {profile.gpu} and cannot speak for {gpu.name}")
    _check_curves(gpu, profile, where)
    check(dict(profile.tables), gpu, where)
    work = _Work(gpu, profile, {**SATURATION, **(saturation or {})})
    for name, table in profile.tables.items():
        getattr(work, f"add_{name}")(table)
    return Applied(work.result(), work.constants, profile.provenance.sentence, tuple(work.notes))


def _check_curves(gpu: Gpu, profile: Profile, where: str) -> None:
    for kind, curves in profile.curves.items():
        for curve in curves:
            if curve.ranks <= gpu.scale_up_domain and curve.bus_bytes_per_s > gpu.scale_up_bytes_per_s * 2:
                raise SpecError(
                    f"{where}: {kind} over {curve.ranks} ranks at {curve.bus_bytes_per_s:g} bytes/s is more than "
                    f"both directions of {gpu.name}'s link together ({2 * gpu.scale_up_bytes_per_s:g})"
                )


class _Work:
    """Collects what each table changes."""

    def __init__(self, gpu: Gpu, profile: Profile, saturation: Mapping[str, float]) -> None:
        self.gpu, self.saturation = gpu, saturation
        self.plain_torch = profile.device is not None
        """The device that only this profile describes runs what was measured, and no fused kernels of an engine."""
        self.source = profile.provenance.sentence
        self.kernels: dict[str, dict[str, Efficiency]] = {
            t: {**getattr(gpu, t), **profile.kernels.get(t, {})} for t in ("gemm", "expert_gemm", "attention")
        }
        self.curves = {**gpu.collectives, **profile.curves}
        self.training = dict(gpu.training)
        self.sources = dict(gpu.sources)
        self.tables = {k: v for k, v in gpu.tables.items() if k.partition(".")[0] not in profile.kernels}
        self.replaced: set[str] = set(gpu.replaced)
        self.constants: dict[str, tuple[float, str]] = {}
        self.notes: list[str] = []

    def result(self) -> Gpu:
        return evolve(
            self.gpu,
            gemm=self.kernels["gemm"],
            expert_gemm=self.kernels["expert_gemm"],
            attention=self.kernels["attention"],
            collectives=self.curves,
            training=self.training,
            sources=self.sources,
            tables=self.tables,
            replaced=frozenset(self.replaced | {f"constant {name}" for name in self.constants}),
        )

    def train(self, key: str, value: float, how: str, *, ratio: float | None = None, most: float = CAP) -> None:
        """Set an in-situ constant of training.

        Inside a step power, clocks and neighbours differ from a benchmark. So a preset's constant, learnt from runs,
        moves by ``ratio``: what was measured over what the preset says of the same operator. Without either, the
        measured value is taken.
        """
        preset = self.gpu.training.get(key)
        if ratio is not None and preset is not None:
            value, how = preset * ratio, f"the preset's {preset:.3g} times {ratio:.3g}, {how}"
        self.training[key] = min(value, most)
        self.replaced.add(f"training.{key}")
        self.sources[f"training.{key}"] = f"measured: {how}; {self.source}"

    # -- kernels -------------------------------------------------------------------------------------------------

    def _kernel(self, table: str, key: str, rows: Table) -> bool:
        work = work_of(rows)
        flops_s = work.flops / peak_of(work.operand, self.gpu)
        bytes_s = work.moved_bytes / self.gpu.hbm_bytes_per_s
        out = bytes_s > rows.seconds
        if np.any(out):
            self.notes.append(f"{int(out.sum())} of {len(rows)} rows of {table}.{key} beat the memory: cached operands")
        fit = fit_roofline(flops_s, bytes_s, rows.seconds)
        if fit is None or fit.rows < LEAST_ROWS:
            self.notes.append(f"{table}.{key} has too few usable rows for a fit ({fit.rows if fit else 0} of {len(rows)})")
            return False
        note = f"{fit.rows} points, error of the fit {fit.median_error:.0%} median"
        self.kernels[table][key] = Efficiency(fit.compute, fit.memory, f"{self.source}: {note}", "measured", fit.fixed_s)
        self.replaced |= {f"{table}.{key}", table}
        if table == "attention":
            shapes = np.stack([np.maximum(work.flops, 1.0), np.maximum(work.moved_bytes, 1.0)], axis=1)
            self.tables[f"attention.{key}"] = Residuals.of(shapes, rows.seconds, self.source)
        return True

    def add_gemm(self, table: Table) -> None:
        for (key,), rows in table.by("dtype"):
            if not self._kernel("gemm", key, rows):
                continue
            shapes = np.stack(rows.number("m", "n", "k"), axis=1)
            self.tables[f"gemm.{key}"] = Residuals.of(shapes, rows.seconds, self.source)
            if key == "bf16" and "fp16" in self.gpu.peak_flops and "fp16" not in table["dtype"]:
                self.kernels["gemm"]["fp16"] = self.kernels["gemm"]["bf16"]
                self.tables["gemm.fp16"] = self.tables["gemm.bf16"]
            if (name := {"bf16": "gemm_bf16", "fp8": "gemm_fp8", "fp4": "gemm_fp4"}.get(key)) is not None:
                k = rows.number("k")[0]
                half = self.saturation["gemm_half_k"] * (1.0 if key == "bf16" else 2.0)
                self.train(name, *self._plateau(rows, k / (k + half)), ratio=self._against_preset("gemm", key, rows))

    def _against_preset(self, table: str, key: str, rows: Table) -> float | None:
        """Speed of the largest shapes over what the preset says of them, None where it only assumes something."""
        preset: Efficiency | None = getattr(self.gpu, table).get(key)
        if preset is None or preset.origin == "assumed":
            return None
        work = work_of(rows)
        form = Roofline(preset.compute, preset.memory, preset.fixed_s, 0, 0.0)
        expected = form.seconds(work.flops / peak_of(work.operand, self.gpu), work.moved_bytes / self.gpu.hbm_bytes_per_s)
        large = work.least_flops >= np.quantile(work.least_flops, 0.75)
        return float(np.median((expected / rows.seconds)[large]))

    def _plateau(self, rows: Table, reached: np.ndarray) -> tuple[float, str]:
        """Share of the dense peak that the largest shapes reach, without the loss that their length explains."""
        work = work_of(rows)
        share = work.least_flops / rows.seconds / peak_of(work.operand, self.gpu) / reached
        large = work.least_flops >= np.quantile(work.least_flops, 0.75)
        value = float(np.median(share[large]))
        return value, f"median of the {int(large.sum())} largest of {len(rows)} points"

    def add_expert_gemm(self, table: Table) -> None:
        for (key,), rows in table.by("dtype"):
            self._kernel("expert_gemm", key, rows)
            if key == "bf16" and "fp16" in self.gpu.peak_flops and key in self.kernels["expert_gemm"]:
                self.kernels["expert_gemm"]["fp16"] = self.kernels["expert_gemm"]["bf16"]

    def add_attention(self, table: Table) -> None:
        for (phase, dtype), rows in table.by("phase", "dtype"):
            if phase != "backward":
                key = {"forward": "prefill", "decode": "decode"}[phase] + ("_fp8" if dtype == "fp8" else "")
                self._kernel("attention", key, rows)
        forward = table.where((table["phase"] == "forward") & np.isin(table["dtype"], ("bf16", "fp16")))
        if not len(forward):
            return
        measured = forward.by("kernel")
        for (kernel,), rows in measured:
            length = rows.number("kv_len")[0]
            plateau = self._plateau(rows, length / (length + self.saturation["attention_half_length"]))
            self.train(f"attention_{kernel}", *plateau, ratio=self._against_preset("attention", "prefill", rows))
        for kernel in ("fused", "flash2"):
            if f"attention_{kernel}" not in self.training:
                other = next(k for k in ("fused", "flash2") if f"attention_{k}" in self.training)
                self.train(f"attention_{kernel}", self.training[f"attention_{other}"], f"as the kernel '{other}'")
        self._backward(forward, table.where(table["phase"] == "backward"))
        if self.plain_torch:
            self._training_attention(forward, table.where(table["phase"] == "backward"))

    def _training_attention(self, forward: Table, backward: Table) -> None:
        """Points for both passes of training: (sequences × heads, length, head width), see TrainingHardware.attention_s."""
        for name, rows in (("forward", forward), ("backward", backward)):
            if len(rows):
                batch, heads, width, length = rows.number("batch", "heads", "head_dim", "kv_len")
                shapes = np.stack([batch * heads, length, width], axis=1)
                self.tables[f"attention_training.{name}"] = Residuals.of(shapes, rows.seconds, self.source)

    def _backward(self, forward: Table, backward: Table) -> None:
        """Backward over forward rate of the same shapes."""
        shape = ("dtype", "kernel", "batch", "heads", "kv_heads", "head_dim", "q_len", "kv_len")
        times = {k: float(rows.seconds[0]) for k, rows in forward.by(*shape)}
        ratios = [2.5 * times[k] / float(rows.seconds[0]) for k, rows in backward.by(*shape) if k in times]
        if ratios:
            value = float(np.clip(np.median(ratios), 0.1, 1.5))
            self.constants["attention_backward_efficiency"] = (value, f"backward over forward rate, {len(ratios)} shapes")

    # -- memory, launches ----------------------------------------------------------------------------------------

    def add_memory(self, table: Table) -> None:
        streams = table.where(np.isin(table["op"], ("copy", "add")))
        if len(streams):
            size = streams.number("bytes")[0]
            large = size >= np.quantile(size, 0.5)
            share = float(np.median(size[large] / streams.seconds[large] / self.gpu.hbm_bytes_per_s))
            self.train("hbm", share, f"median of the {int(large.sum())} largest of {len(streams)} copies and additions", most=1.0)
            self.constants["serving_stream_share"] = (min(share, 1.0), "share of memory bandwidth of copies and additions")
        rate = self.gpu.hbm_bytes_per_s * self.training.get("hbm", 1.0)
        passes = table.where(np.isin(table["op"], ("norm", "activation")))
        if self.plain_torch and len(passes):
            size = passes.number("bytes")[0]
            large = size >= np.quantile(size, 0.5)
            slower = float(np.median(passes.seconds[large] * rate / size[large]))
            for name in _ELEMENTWISE:
                self.constants[name] = (slower, "norms and activations against copies of as many bytes")
        for op, name, each in (("adam", "optimizer_bytes_per_param", 16.0), ("loss", "loss_bytes_per_logit", 2.0)):
            rows = table.where(table["op"] == op)
            if len(rows):
                elements = rows.number("bytes")[0] / each
                value = float(np.median(rows.seconds * rate / elements))
                self.constants[name] = (value, f"{op}: bytes per element at the measured rate, {len(rows)} sizes")

    def add_launch(self, table: Table) -> None:
        one = table.where(table["what"] == "kernel")
        if len(one):
            self.constants["host_launch_s"] = (float(np.median(one.seconds)), f"launch of an operator, {len(one)} timings")
        layer = table.where(table["what"] == "layer")
        if len(layer):
            self.constants["host_blocking_layer_s"] = (float(np.median(layer.seconds)), f"a tiny layer, {len(layer)} timings")
        sharded = table.where(table["what"] == "sharded_layer")
        if len(sharded):
            how = f"a tiny layer of sharded tensors, {len(sharded)} timings"
            self.constants["host_sharded_layer_s"] = (float(np.median(sharded.seconds)), how)

    # -- network -------------------------------------------------------------------------------------------------

    def add_collectives(self, table: Table) -> None:
        per_node = self.gpu.gpus_per_node
        for (kind,), rows in table.by("kind"):
            own = []
            for (ranks, nodes), points in rows.by("ranks", "nodes"):
                if nodes == 1 or ranks == nodes * per_node:
                    own.append(self._curve(kind, int(ranks), points))
            if own:
                measured = {c.ranks for c in own}
                rest = [c for c in self.curves.get(kind, ()) if c.ranks not in measured]
                self.curves[kind] = tuple(sorted((*rest, *own), key=lambda c: c.ranks))
        self._training_network(table)

    def _curve(self, kind: str, ranks: int, points: Table) -> CollectiveCurve:
        size, seconds = points.number("bytes")[0], points.seconds
        share = (2.0 if kind.startswith("all_reduce") else 1.0) * (ranks - 1) / ranks
        line = fit_line(share * size, seconds, 2.0 * reach_bytes_per_s(self.gpu, ranks))
        knots: tuple[tuple[float, float], ...] = ()
        if max(line.median_error, line.largest_error) > KNOT_ERROR and len(size) > 1:
            sizes = np.unique(size)
            knots = rising([(float(s), float(np.median(seconds[size == s]))) for s in sizes])
        self.replaced |= {f"collectives.{kind}"}
        self.tables[f"collectives.{kind}.{ranks}"] = Residuals.of(size[:, None], seconds, self.source)
        note = f"{len(points)} messages of {size.min():.3g} to {size.max():.3g} bytes, error {line.median_error:.0%} median"
        return CollectiveCurve(ranks, line.bytes_per_s, line.latency_s, f"{self.source}: {note}", "measured", knots)

    def _training_network(self, table: Table) -> None:
        """Bus bandwidth and latency inside a node, and what the network reaches of its line rate."""
        reduce = [(r, n, rows) for (k, r, n), rows in table.by("kind", "ranks", "nodes") if k == "all_reduce"]
        inside = [(r, rows) for r, n, rows in reduce if n == 1]
        if self.plain_torch:
            self.tables["training.groups"] = group_lines(self.gpu, table.where(table["nodes"] == 1))
        if inside:
            ranks, rows = max(inside, key=lambda x: x[0])
            curve = self._curve("all_reduce", int(ranks), rows)
            preset = next((c for c in self.gpu.collectives.get("all_reduce", ()) if c.ranks == ranks), None)
            same = preset is not None and preset.origin != "assumed"
            ratio = curve.bus_bytes_per_s / preset.bus_bytes_per_s if preset is not None and same else None
            most = 2.0 * self.gpu.scale_up_bytes_per_s
            self.train("all_reduce_bytes_per_s", curve.bus_bytes_per_s, f"all-reduce over {ranks} ranks", ratio=ratio, most=most)
            half = f"half of an all-reduce's over {ranks} ranks"
            self.train("all_reduce_latency_s", curve.latency_s / 2.0, half, ratio=1.0 if ratio else None, most=1.0)
        across = [(r, n, rows) for r, n, rows in reduce if n > 1]
        if across:
            ranks, nodes, rows = max(across, key=lambda x: (x[1], x[0]))
            line = fit_line(2.0 * (ranks - 1) / ranks * rows.number("bytes")[0], rows.seconds, np.inf)
            reached = line.bytes_per_s / (ranks / nodes) / self.gpu.nic_bytes_per_s
            what = f"all-reduce over {ranks} ranks on {nodes} nodes"
            self.constants["scale_out_efficiency"] = (float(min(reached, 1.0)), what)
            self.constants["scale_out_latency_s"] = (line.latency_s / 2.0 / max(1.0, float(np.ceil(np.log2(nodes)))), what)

    def add_p2p(self, table: Table) -> None:
        for (nodes,), rows in table.by("nodes"):
            limit = self.gpu.nic_bytes_per_s if nodes > 1 else reach_bytes_per_s(self.gpu, 2)
            line = fit_line(rows.number("bytes")[0], rows.seconds, limit)
            if nodes == 1:
                self.train("p2p_bytes_per_s", line.bytes_per_s, f"{len(rows)} messages between neighbours", most=np.inf)
                self.train("p2p_latency_s", line.latency_s, f"{len(rows)} messages between neighbours", most=1.0)
            elif "scale_out_efficiency" not in self.constants:
                share = float(min(line.bytes_per_s / self.gpu.nic_bytes_per_s, 1.0))
                self.constants["scale_out_efficiency"] = (share, "point to point between nodes")
                self.constants["scale_out_latency_s"] = (line.latency_s, "point to point between nodes")
