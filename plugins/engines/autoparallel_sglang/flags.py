"""The flags of ``sglang.launch_server`` that decide layout, memory and speed, and those that do not."""

from __future__ import annotations

from autoparallel_core.launch.flags import Option, options

TABLE: tuple[Option, ...] = (
    *options(
        "int", "--tp-size|--tensor-parallel-size|--tp=tp", "--pp-size|--pipeline-parallel-size|--pp=pp",
        "--dp-size|--data-parallel-size|--dp=dp", "--ep-size|--expert-parallel-size|--ep=ep", "--attn-dp-size=attn_dp",
        "--attn-cp-size=attn_cp", "--dcp-size=dcp", "--dwdp-size=dwdp", "--moe-dp-size=moe_dp", "--nnodes",
        "--moe-dense-tp-size=dense_tp", "--shared-experts-tp-size=shared_tp", "--chunked-prefill-size=chunk", "--page-size=page",
        "--max-running-requests=running", "--context-length=context", "--max-total-tokens=pool", "--max-prefill-tokens",
        "--ep-num-redundant-experts=redundant",
    ),
    *options("float", "--mem-fraction-static=memory_fraction", "--cpu-offload-gb"),
    *options(
        "str", "--node-rank", "--model-path|--model=model", "--kv-cache-dtype=kv_dtype", "--dtype", "--quantization", "--config",
        "--speculative-algorithm|--speculative-algo=speculation", "--moe-a2a-backend=a2a", "--disaggregation-mode",
    ),
    *options(
        "on", "--enable-dp-attention=dp_attention", "--enable-ep-moe=ep_moe", "--enable-deepep-moe=deepep", "--enable-dp-lm-head",
        "--disable-cuda-graph", "--enable-eplb=eplb", "--enable-two-batch-overlap",
    ),
)  # fmt: skip

PER_NODE = ("node-rank", "port", "host", "nccl-port", "dist-init-addr", "nccl-init-addr")

HARMLESS = r"""
    host port nccl-port dist-init-addr nccl-init-addr nnodes tokenizer-.* skip-.* load-format model-loader-extra-config
    trust-remote-code revision is-embedding enable-multimodal device served-model-name chat-template completion-template
    log-.* show-time-cost enable-metrics.* bucket-.* prompt-tokens-buckets generation-tokens-buckets decode-log-interval
    enable-request-time-stats-logging kv-events-config enable-trace otlp-.* api-key admin-api-key file-storage.* reasoning-parser
    tool-call-parser sampling-.* grammar-backend watchdog-timeout dist-timeout download-dir base-gpu-id gpu-id-step
    random-seed constrained-json-.* stream-interval stream-output incremental-.* schedule-policy schedule-conservativeness
    disable-radix-cache weight-version hf-chat-template-name warmups delete-ckpt-after-loading crash-dump-folder
    json-model-override-args preferred-sampling-params sleep-on-idle load-balance-method disable-custom-all-reduce
    enable-p2p-check allow-auto-truncate enable-nan-detection collect-tokens-histogram tool-server mm-.* log-requests.*
"""

NOTABLE = {
    "changes which graphs are captured; memory and speed are those of the default": (
        r"cuda-graph-.* disable-cuda-graph-.* torch-compile-.* enable-torch-compile enable-piecewise-cuda-graph.*"
    ),
    "adds adapter weights that are not counted": r"enable-lora.* lora-.* max-lora.* max-loras.*",
    "moves the cache between devices or hosts, which is not modelled": r"""
        enable-hierarchical-cache hicache-.* disaggregation-.* enable-lmcache radix-eviction-policy
    """,
    "chooses kernels; speeds are those of the default ones": r"""
        attention-backend prefill-attention-backend decode-attention-backend moe-runner-backend fp8-gemm-backend
        .*-gemm-runner-backend mm-attention-backend deepep-mode sampling-backend enable-flashinfer-.* enable-triton-.* nsa-.*
    """,
    "changes the schedule, which is the default's here": r"""
        disable-overlap-schedule num-continuous-decode-steps enable-mixed-chunk enable-single-batch-overlap tbo-.*
        enable-dynamic-chunking prefill-max-requests max-queued-requests schedule-low-priority.* enable-priority-scheduling
    """,
    "is not modelled": r"""
        speculative-.* eplb-.* ep-dispatch-algorithm init-expert-location expert-.* offload-.* enable-memory-saver
        enable-return-hidden-states disable-shared-experts-fusion enable-nccl-nvls enable-symm-mem enable-dp-attention-.*
        enable-prefill-cp cp-strategy swa-full-tokens-ratio disable-hybrid-swa-memory mamba-.* enable-torch-symm-mem
        enable-double-sparsity ds-.* enable-mscclpp enable-multi-layer-eagle hybrid-kvcache-ratio enable-attn-tp-input-scattered
    """,
}
