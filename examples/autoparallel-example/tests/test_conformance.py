"""The conformance suite of autoparallel over this distribution's plugins."""

from autoparallel_core.testing.conformance import *  # noqa: F403

PLUGINS = ["gaudi", "lattice", "scan", "tandem"]
CONFIGS = {
    "tiny": {
        "model_type": "tandem",
        "hidden_size": 256,
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
        "local_window": 128,
        "vocab_size": 1000,
        "mlp_ratio": 3,
        "tie_word_embeddings": False,
    },
}
