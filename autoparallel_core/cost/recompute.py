"""Which operators an activation-recompute mode runs again and which saved tensors it drops.

Module names are those of trainers' ``--recompute-modules``; ``op`` is the per-operator selective policy of
PyTorch-native trainers (save attention and every second matrix product, recompute the rest).
"""

from __future__ import annotations

from attrs import frozen

from autoparallel_core.errors import SpecError
from autoparallel_core.spec.arch import Block
from autoparallel_core.spec.op import Attention, Elementwise, ExpertGemm, Gemm, Op

MODULES = ("core_attn", "layernorm", "moe_act", "mlp", "moe", "shared_experts", "mla_up_proj", "op")


@frozen
class Recompute:
    """The selective mode of one problem."""

    modules: frozenset[str]
    op_gemm_share: float

    @classmethod
    def of(cls, modules: tuple[str, ...], op_gemm_share: float) -> Recompute:
        """Raises SpecError for a module name that no engine has."""
        if unknown := set(modules) - set(MODULES):
            raise SpecError(f"unknown recompute module {', '.join(sorted(unknown))}; known: {', '.join(MODULES)}")
        return cls(frozenset(modules), op_gemm_share)

    @property
    def kept_share(self) -> float:
        """Share of the tensors not dropped by name that stays: the op policy drops every second one."""
        return 0.5 if "op" in self.modules else 1.0

    def share(self, op: Op, block: Block) -> float:
        """Share of the operator's forward that runs again."""
        m = self.modules
        whole = ("mlp" in m and block.kind == "dense") or ("moe" in m and _is_moe(block))
        if whole:
            return 1.0
        if "op" in m:
            return {"gemm": self.op_gemm_share, "expert_gemm": self.op_gemm_share, "elementwise": 1.0}.get(op.kind, 0.0)
        if isinstance(op, Attention):
            return float("core_attn" in m)
        if isinstance(op, Elementwise):
            return float(
                ("layernorm" in m and op.role == "norm") or ("moe_act" in m and op.role == "activation" and op.top_k > 0)
            )
        if isinstance(op, Gemm):
            up = "mla_up_proj" in m and op.k.name == "latent"
            shared = "shared_experts" in m and bool(op.weights) and op.weights[0].component == "shared_experts"
            return float(up or shared)
        return 0.0

    def drops(self, op: Op, block: Block, what: str) -> bool:
        """Whether a saved tensor is gone: ``what`` is input, qkv or scores."""
        m = self.modules
        if ("mlp" in m and block.kind == "dense") or ("moe" in m and _is_moe(block)):
            return not (isinstance(op, Elementwise) and op.role == "norm")
        if isinstance(op, Attention):
            if what == "scores":
                return "core_attn" in m
            return "mla_up_proj" in m and op.latent is not None
        if isinstance(op, Gemm):
            if "layernorm" in m and op.k.name == "hidden":
                return True
            return "shared_experts" in m and bool(op.weights) and op.weights[0].component == "shared_experts"
        if isinstance(op, ExpertGemm):
            return "moe_act" in m and op.k.name == "expert_ffn"
        return False


def _is_moe(block: Block) -> bool:
    return any(isinstance(op, ExpertGemm) for op in block.ops)
