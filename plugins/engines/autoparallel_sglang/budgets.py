"""What the engine leaves free beside weights and KV pool, by version.

``mem_fraction_static`` is the share of the memory free before loading that weights and KV pool may take. Its default
is one minus a reserve for activations and captured graphs, which the engine estimates from its limits.

Axis legend: S strategies.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    import numpy as np
    from numpy.typing import NDArray

    from autoparallel_core.spec.problem import Problem
    from autoparallel_core.spec.strategy import StrategyBatch

    FloatArray = NDArray[np.float64]

GIB = float(1 << 30)
MIB = float(1 << 20)

NON_TORCH_SINGLE = 0.7 * GIB
"""CUDA context and libraries before loading, one GPU. Fitted on start-up logs."""
NON_TORCH_GROUP = 2.2 * GIB
"""As above with a tensor-parallel group's communication buffers. Fitted on start-up logs."""

HEURISTIC_SINCE = "0.5.4"
"""From here on the reserve follows the limits (PR 10975); before, it is a table by device memory."""


def reserved_bytes(problem: Problem, batch: StrategyBatch) -> Mapping[str, FloatArray]:
    """Bytes per GPU that are neither weights nor KV pool, by cause: float64[S]."""
    import numpy as np

    from autoparallel_core.cost.serving_policy import device_bytes, scheduler_limits
    from autoparallel_core.search.common_rules import parse_version

    device = device_bytes(problem) / MIB
    group = (batch.tp * batch.attn_dp).astype(np.float64)
    non_torch = np.where(group * batch.pp > 1, NON_TORCH_GROUP, NON_TORCH_SINGLE)
    if parse_version(problem.engine_version) >= parse_version(HEURISTIC_SINCE):
        chunk = float(scheduler_limits(problem).max_num_batched_tokens)
        activation, graphs = _by_limits(device, chunk, group, batch.pp.astype(np.float64), batch.attn_dp.astype(np.float64))
    else:
        activation, graphs = _by_device(device, group * batch.pp, batch.attn_dp.astype(np.float64)), np.zeros(len(batch))
    speculation = 2048.0 if problem.inference.accepted_length > 1 else 0.0
    return {
        "activation": (activation + speculation) * MIB,
        "cuda_graph": graphs * MIB,
        "non_torch": non_torch,
    }


def graph_batch(device_mib: float, group: FloatArray) -> FloatArray:
    """Largest captured batch by device memory and group size (server_args.py, cuda_graph_max_bs)."""
    import numpy as np

    for limit, small, large in ((20, 8, 8), (35, 24, 80), (60, 32, 160), (160, 256, 512)):
        if device_mib < limit * 1024:
            return np.where(group < 4, float(small), float(large))
    return np.full(len(group), 512.0)


def _by_limits(
    device: float, chunk: float, group: FloatArray, pp: FloatArray, attention_dp: FloatArray
) -> tuple[FloatArray, FloatArray]:
    """MiB: 512 for metadata, 1.5 per chunk token, a gigabyte per 8 GPUs, 2 per captured sequence; at least 10 GiB in all
    on devices above 60 GiB. Attention dp: 3 more per captured sequence and rank, 4.5 beyond 300 sequences.
    """
    import numpy as np

    captured = graph_batch(device, group)
    activation = 512 + 1.5 * max(chunk, 2048.0) + group * pp / 8 * 1024
    graphs = 2 * captured
    extra = captured * attention_dp * np.where(captured > 300, 4.5, 3.0)
    graphs = graphs + np.where(attention_dp > 1, extra, 0.0)
    if device > 60 * 1024:
        activation = np.maximum(activation, 10 * 1024 - graphs)
    return activation, graphs


def _by_device(device: float, gpus: FloatArray, attention_dp: FloatArray) -> FloatArray:
    """MiB by device memory, plus 4 GiB with attention dp (server_args.py before PR 10975)."""
    import numpy as np

    if device < 35 * 1024:
        reserve = (2.8 + gpus / 10) * 1024
    elif device < 90 * 1024:
        reserve = (9.5 + gpus / 2) * 1024
    elif device < 160 * 1024:
        reserve = (12 + gpus / 2) * 1024
    else:
        reserve = np.full(len(gpus), 32 * 1024.0)
    return reserve + np.where(attention_dp > 1, 4 * 1024.0, 0.0)
