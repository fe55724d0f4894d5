"""Multi-token-prediction blocks, as DeepSeek-V3 introduced them (arXiv 2412.19437, section 2.2).

Each block norms the embedding of the next token and the hidden state, projects both (2h → h), runs one decoder layer,
norms the result and predicts through the model's own head, which the block therefore does not repeat. Parameters: the
projection, three norms and the layer.
"""

from __future__ import annotations

from autoparallel_core.spec.arch import Block, Layer
from autoparallel_core.spec.blocks import hidden_axis, linear, norm
from autoparallel_core.spec.config import ConfigView
from autoparallel_core.spec.op import Axis, Lookup, Op, Weight

COUNTS = ("num_nextn_predict_layers", "mtp_num_hidden_layers", "num_mtp_modules", "num_mtp_layers", "mtp_num_layers")
"""Fields that state the number of blocks; a config with several is read by the largest, with a note."""


def number(config: ConfigView) -> int:
    """How many prediction blocks the checkpoint has."""
    stated = {name: config.count(name) for name in COUNTS if name in config}
    config.read.update((*COUNTS, "use_mtp", "mtp_transformer_layers", "mtp_use_dedicated_embeddings"))
    if config.raw("use_mtp") is False or not stated:
        return 0
    best = max(stated.values())
    if len(set(stated.values())) > 1:
        config.note(f"the config's counts of MTP blocks differ ({stated}): {best} taken")
    return best


def layers(config: ConfigView) -> tuple[Layer, ...]:
    """The blocks, each sized like the last decoder layer with a full key/value cache."""
    n = number(config)
    if not n:
        return ()
    decoder = template(config)
    depth = config.count("mtp_transformer_layers", default=1) or 1
    h, vocab = hidden_axis(config.size("hidden_size")), Axis("vocab", config.size("vocab_size"))
    first: list[Op] = []
    if config.flag("mtp_use_dedicated_embeddings"):
        first.append(Lookup("embedding", rows=vocab, width=h, weights=(Weight("embed_tokens", (vocab, h), "mtp", linear=False),)))
    into = linear("eh_proj", Axis("hidden", 2 * h.size), [("eh_proj", h)], component="mtp")
    first += [norm("enorm", h), norm("hnorm", h), into]
    last = (norm("shared_head.norm", h),)
    block = Layer((Block("mtp-in", tuple(first)), *(decoder.blocks * depth), Block("mtp-head", last)))
    return (block,) * n


def template(config: ConfigView) -> Layer:
    """The decoder layer that a prediction block repeats.

    Of the layers whose feed-forward is of the last layer's kind, those that cache keys, with the largest mixer (a layer
    that borrows another's sparse indexer is smaller), and of these the last.
    """

    def rank(layer: Layer) -> tuple[bool, int]:
        return any(b.cache_per_token for b in layer.blocks), sum(w.size for w in layer.blocks[0].weights())

    kind = config.built[-1].blocks[-1].kind
    same = [layer for layer in config.built if layer.blocks and layer.blocks[-1].kind == kind] or list(config.built)
    best = max(rank(layer) for layer in dict.fromkeys(same))
    return next(layer for layer in reversed(same) if rank(layer) == best)
