"""Dtypes of what a state-space mixer keeps between tokens."""

from __future__ import annotations

from autoparallel_core.errors import SpecError
from autoparallel_core.spec.config import ConfigView

_DTYPES = {"float32": "fp32", "bfloat16": "bf16", "float16": "fp16"}


def ssm_dtype(config: ConfigView) -> str:
    """Dtype of the recurrent state: the config's, else fp32 as the reference kernels keep it."""
    v = str(config.get("mamba_ssm_cache_dtype", "mamba_ssm_dtype", default="float32")).removeprefix("torch.")
    if v not in _DTYPES:
        raise SpecError(f"{config.name}: config field 'mamba_ssm_cache_dtype' is {v!r}; known: {', '.join(_DTYPES)}")
    return _DTYPES[v]


def conv_dtype(config: ConfigView) -> str:
    """Dtype of the convolution's cache: the model's own, 16 bit when the config does not say."""
    return _DTYPES.get(str(config.get("torch_dtype", "dtype", default="bfloat16")).removeprefix("torch."), "bf16")
