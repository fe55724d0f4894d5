"""The flags of ``vllm serve`` that decide layout, memory and speed, and those that do not."""

from __future__ import annotations

from autoparallel_core.launch.flags import Option, options

TABLE: tuple[Option, ...] = (
    *options(
        "int",
        "--tensor-parallel-size|-tp=tp",
        "--pipeline-parallel-size|-pp=pp",
        "--data-parallel-size|-dp=dp",
        "--data-parallel-size-local|-dpl=dp_local",
        "--decode-context-parallel-size|-dcp=dcp",
        "--prefill-context-parallel-size|-pcp=pcp",
        "--nnodes|-n=nnodes",
        "--max-model-len",
        "--max-num-seqs",
        "--max-num-batched-tokens",
        "--block-size",
        "--kv-cache-memory-bytes=kv_bytes",
        "--num-speculative-tokens=drafts",
    ),
    *options("float", "--gpu-memory-utilization=memory_fraction", "--cpu-offload-gb"),
    *options(
        "str", "--node-rank|-r=node_rank", "--data-parallel-start-rank|-dpr=dp_start", "--data-parallel-rank|-dpn=dp_rank",
        "--model", "--config", "--kv-cache-dtype=kv_dtype", "--dtype", "--quantization|-q=quantization",
        "--speculative-config", "--speculative-model", "--all2all-backend", "--distributed-executor-backend", "--eplb-config",
        "--num-redundant-experts",
    ),
    *options(
        "on", "--enable-expert-parallel|-ep=ep", "--enable-eplb=eplb", "--data-parallel-external-lb|-dpe=external_lb",
        "--headless", "--data-parallel-hybrid-lb|-dph=hybrid_lb", "--enforce-eager", "--enable-dbo",
    ),
    *options("off", "--no-enable-expert-parallel=ep"),
)  # fmt: skip

PER_NODE = (
    "node-rank", "r", "headless!", "data-parallel-start-rank", "dpr", "data-parallel-rank", "dpn", "port", "host",
    "data-parallel-address", "dpa", "master-addr", "master-port", "data-parallel-size-local", "dpl", "uds",
)  # fmt: skip
"""What differs between the nodes, or the copies on one node, of one launch."""

HARMLESS = r"""
    port host uds api-key served-model-name tokenizer(-.*)? trust-remote-code revision code-revision download-dir load-format
    seed headless ssl-.* log-.* .*-log-.* uvicorn-.* allowed-.* allow-credentials root-path chat-template.* tool-parser-plugin
    enable-auto-tool-choice tool-call-parser reasoning-parser.* response-role middleware api-server-count asc
    data-parallel-(address|rpc-port|backend) dpa dpp dpb master-(addr|port) max-log-len return-tokens.* generation-config
    override-generation-config lora-modules prompt-adapters guided-decoding-.* structured-outputs-.* hf-.* config-format
    model-impl otlp-.* collect-.* show-hidden-.* disable-(fastapi|frontend|uvicorn).* h11-.* exit-on-.* logits-processors
    enable-(prompt|server|request|force|tokenizer|offline).* limit-mm-per-prompt mm-.* media-.* ray-.* max-logprobs
    worker-(cls|extension-cls) distributed-timeout.* logprobs-mode use-tqdm.* safetensors-load-strategy no-enable-log.*
    language-model-only interleave-mm.* skip-mm.* disable-custom-all-reduce task runner convert (no-)?enable-chunked-prefill
    (no-)?enable-prefix-caching prefix-caching-hash-algo scheduling-policy stream-interval
"""

NOTABLE = {
    "changes which graphs are captured; memory and speed are those of the default": (
        r"compilation-config(\..*)? O\d? cudagraph-.* cuda-graph-.*"
    ),
    "adds adapter weights and kernels that are not counted": r"enable-lora max-.*loras? max-lora-rank fully-sharded-loras",
    "moves the cache between devices or hosts, which is not modelled": (
        r"kv-transfer-config kv-events-config kv-offloading-.* swap-space"
    ),
    "keeps weights in host memory, which is not modelled": r"offload-.*",
    "changes the time between steps, which is the default's here": (r"(no-)?async-scheduling num-scheduler-steps multi-step-.*"),
    "chooses kernels; speeds are those of the default ones": r"attention-(backend|config) moe-backend kernel-config",
    "limits scheduling or the cache in a way that is not modelled": r"""
        max-(num-partial|long-partial).* long-prefill-token-threshold max-seq-len-to-capture num-gpu-blocks-override
        num-lookahead-slots
    """,
    "is not modelled": r"""
        enable-sleep-mode dbo-.* ubatch-size profiler-.* additional-config mamba-.* disable-(sliding-window|cascade-attn|nccl.*)
        disable-hybrid-kv-cache-manager enable-(elastic-ep|ep-weight-filter) expert-placement-strategy dcp-.* kv-sharing-.*
        cp-kv-cache-interleave-size calculate-kv-scales
    """,
}
