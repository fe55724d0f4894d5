"""A model described by flags: the same road as a config file, with the fields that the flags name."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from attrs import evolve

from autoparallel_core.cli.flags import MANUAL
from autoparallel_core.errors import SpecError

if TYPE_CHECKING:
    from autoparallel_core.host import Host
    from autoparallel_core.spec.arch import ModelArch

_FIELDS = {
    "num_layers": "num_hidden_layers",
    "num_heads": "num_attention_heads",
    "num_kv_heads": "num_key_value_heads",
    "num_experts": "n_routed_experts",
    "expert_intermediate_size": "moe_intermediate_size",
}
"""Config fields whose name is not the flag's."""
_NEEDED = ("hidden_size", "num_layers", "num_heads", "vocab_size")
_ASSUMED = "a model by hand has gated feed-forwards, RMS norms, no biases, a separate output matrix, 16-bit weights"
_TOGETHER = (
    ("num_experts", "num_experts_per_tok", "expert_intermediate_size"),
    ("kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim"),
)


def arch_of_flags(args: argparse.Namespace, host: Host) -> ModelArch:
    """Build the model that the manual flags describe.

    Raises:
        SpecError: a flag that another one needs is missing, or the sizes contradict each other.
    """
    from autoparallel_core.models import build_arch

    given = {f.dest: getattr(args, f.dest) for f in MANUAL if getattr(args, f.dest) is not None}
    _check(given)
    config: dict[str, Any] = {_FIELDS.get(name, name): value for name, value in given.items()}
    config |= {"tie_word_embeddings": False, "torch_dtype": "bfloat16", "gated_mlp": True}
    arch = build_arch(config, name="model by hand", host=host)
    notes = tuple(note for note in arch.notes if "model type" not in note)
    return evolve(arch, notes=(_ASSUMED, *notes))


def _flag(dest: str) -> str:
    return "--" + dest.replace("_", "-")


def _check(given: dict[str, int]) -> None:
    missing = [name for name in _NEEDED if name not in given]
    if "intermediate_size" not in given and "expert_intermediate_size" not in given:
        missing.append("intermediate_size")
    if missing:
        raise SpecError(f"a model by hand also needs {', '.join(map(_flag, missing))}")
    for group in _TOGETHER:
        part = [name for name in group if name in given]
        if part and len(part) < len(group):
            rest = [name for name in group if name not in given]
            raise SpecError(f"{_flag(part[0])} also needs {', '.join(map(_flag, rest))}")
    for name, needs in (
        ("n_shared_experts", "num_experts"),
        ("first_k_dense_replace", "num_experts"),
        ("q_lora_rank", "kv_lora_rank"),
    ):
        if name in given and needs not in given:
            raise SpecError(f"{_flag(name)} also needs {_flag(needs)}")
    heads, kv = given["num_heads"], given.get("num_kv_heads", given["num_heads"])
    if heads % kv:
        legal = ", ".join(str(d) for d in range(1, heads + 1) if heads % d == 0)
        raise SpecError(f"--num-kv-heads {kv} does not divide --num-heads {heads}; it may be {legal}")
    if "head_dim" not in given and "kv_lora_rank" not in given and given["hidden_size"] % heads:
        raise SpecError(f"--hidden-size {given['hidden_size']} is not a multiple of --num-heads {heads}; give --head-dim")
    if given.get("num_experts_per_tok", 1) > given.get("num_experts", 1):
        raise SpecError(f"--num-experts-per-tok {given['num_experts_per_tok']} is more than --num-experts {given['num_experts']}")
    if given.get("first_k_dense_replace", 0) > given["num_layers"]:
        raise SpecError(
            f"--first-k-dense-replace {given['first_k_dense_replace']} is more than --num-layers {given['num_layers']}"
        )
