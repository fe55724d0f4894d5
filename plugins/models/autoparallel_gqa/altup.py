"""Alternating updates and low-rank residuals: several residual streams of which a layer computes one.

AltUp (arXiv 2301.13310) predicts all streams from all, computes one and corrects the rest; LAuReL (arXiv 2411.07501)
adds a low-rank branch beside the attention. Read from ``altup_num_inputs`` and ``laurel_rank``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from autoparallel_core.spec.arch import Layer
from autoparallel_core.spec.blocks import hidden_axis, linear, norm
from autoparallel_core.spec.config import ConfigView
from autoparallel_core.spec.op import Axis, Bare, Elementwise, Op, Weight
from autoparallel_core.spec.standard import standard_epilogue, standard_prologue


def layer_ops(config: ConfigView) -> tuple[Op, ...]:
    """What the streams and the low-rank branch add to one layer; nothing for a model without them."""
    config.read.update(("altup_active_idx", "altup_coef_clip", "altup_correct_scale", "activation_sparsity_pattern"))
    out: list[Op] = []
    h = hidden_axis(config.size("hidden_size"))
    if rank := config.count("laurel_rank"):
        r = Axis("latent", rank)
        out += [
            linear("laurel_left", h, [("laurel.linear_left", r)], component="other"),
            linear("laurel_right", r, [("laurel.linear_right", h)], component="other"),
            norm("laurel.post_laurel_norm", h),
        ]
    if n := config.count("altup_num_inputs"):
        streams, all_pairs = Axis("latent", n), Axis("latent", n * n)
        scale = Weight("altup.correct_output_scale", (h,), "other", linear=False)
        out += [
            norm("altup.router_norm", h),
            linear("altup_router", h, [("altup.modality_router", streams)], component="other", precise=True),
            linear("altup_predict", streams, [("altup.prediction_coefs", all_pairs)], component="other", precise=True),
            linear("altup_correct", streams, [("altup.correction_coefs", streams)], component="other", precise=True),
            Elementwise("altup_streams", role="other", reads=(h,) * (2 * n), writes=(h,) * n, saved=(h,) * n, weights=(scale,)),
        ]
    return tuple(out)


def ends(config: ConfigView) -> Mapping[str, Sequence[Layer]] | None:
    """Embedding and head with the projections that open and close the further streams; None without streams."""
    n = config.count("altup_num_inputs")
    if n < 2:
        return None
    h = hidden_axis(config.size("hidden_size"))
    square = (h, Axis("latent", h.size))

    def side(name: str) -> Bare:
        return Bare(name, weights=tuple(Weight(f"{name}.{i}", square, "other") for i in range(n - 1)))

    tied = bool(config.get("tie_word_embeddings", default=config.trait("tied", default=False)))
    first, last = standard_prologue(config), standard_epilogue(config, tied=tied)
    return {
        "prologue": (Layer((type(first)(first.kind, (*first.ops, side("altup_projections"))),)),),
        "epilogue": (Layer((type(last)(last.kind, (side("altup_unembed_projections"), *last.ops)),)),),
    }
