"""The flags of Megatron-LM that decide layout, memory and speed, and those that do not.

Source: megatron/training/arguments.py of Megatron-LM (0.9 to the development head of August 2026).
"""

from __future__ import annotations

from autoparallel_core.launch.flags import Option, options

TABLE: tuple[Option, ...] = (
    *options(
        "int", "--tensor-model-parallel-size=tp", "--pipeline-model-parallel-size=pp", "--context-parallel-size=cp",
        "--expert-model-parallel-size=ep", "--expert-tensor-parallel-size=etp", "--num-distributed-optimizer-instances=instances",
        "--num-layers-per-virtual-pipeline-stage=layers_per_virtual", "--num-virtual-stages-per-pipeline-rank=virtual",
        "--decoder-first-pipeline-num-layers=first", "--decoder-last-pipeline-num-layers=last",
        "--microbatch-group-size-per-virtual-pipeline-stage|--microbatch-group-size-per-vp-stage=group",
        "--micro-batch-size=mbs", "--global-batch-size=gbs", "--seq-length=seq", "--max-position-embeddings=positions",
        "--recompute-num-layers=recompute_layers", "--cpu-offloading-num-layers=offloaded_layers",
        "--num-layers", "--hidden-size", "--ffn-hidden-size", "--num-attention-heads", "--num-query-groups", "--kv-channels",
        "--vocab-size", "--padded-vocab-size", "--make-vocab-size-divisible-by=pad", "--num-experts", "--moe-ffn-hidden-size",
        "--moe-router-topk=topk", "--moe-shared-expert-intermediate-size=shared_ffn", "--mtp-num-layers=mtp",
        "--q-lora-rank", "--kv-lora-rank", "--qk-head-dim", "--qk-pos-emb-head-dim", "--v-head-dim",
        "--moe-router-num-groups=router_groups", "--moe-router-group-topk=group_topk",
        "--model-parallel-size=dead_tp", "--batch-size=dead_batch",
    ),
    *options("float", "--optimizer-offload-fraction"),
    *options(
        "str", "--pipeline-model-parallel-layout=layout", "--recompute-granularity", "--recompute-method",
        "--data-parallel-sharding-strategy=sharding", "--moe-token-dispatcher-type=dispatcher",
        "--moe-flex-dispatcher-backend=flex", "--transformer-impl", "--attention-backend", "--cuda-graph-impl",
        "--fp8-format", "--fp8-recipe", "--fp4-format", "--fp4-recipe", "--ckpt-format", "--optimizer", "--moe-layer-freq",
        "--tokenizer-type", "--main-grads-dtype", "--outer-dp-sharding-strategy=outer_sharding", "--normalization",
    ),
    *options(
        "strs", "--cp-comm-type", "--hierarchical-context-parallel-sizes=hierarchical", "--recompute-modules",
        "--cuda-graph-scope",
        "--rampup-batch-size",
    ),
    *options(
        "on", "--sequence-parallel=sp", "--use-distributed-optimizer=dist_opt", "--overlap-grad-reduce", "--overlap-param-gather",
        "--use-precision-aware-optimizer=precise_opt", "--optimizer-cpu-offload=offload", "--use-megatron-fsdp=mfsdp",
        "--use-custom-fsdp=mfsdp", "--use-torch-fsdp2=torch_fsdp", "--recompute-activations",
        "--checkpoint-activations=dead_ckpt",
        "--account-for-embedding-in-pipeline-split=account_embedding", "--account-for-loss-in-pipeline-split=account_loss",
        "--tp-comm-overlap=tp_overlap", "--overlap-moe-expert-parallel-comm=ep_overlap", "--bf16", "--fp16", "--swiglu",
        "--group-query-attention", "--multi-latent-attention=mla", "--untie-embeddings-and-output-weights=untied",
        "--use-flash-attn", "--grad-reduce-in-bf16", "--moe-enable-deepep=old_deepep", "--enable-cuda-graph",
        "--external-cuda-graph",
        "--cpu-offloading", "--accumulate-allreduce-grads-in-fp32", "--moe-grouped-gemm", "--disable-bias-linear",
        "--no-check-for-nan-in-loss-and-grad=no_nan_check", "--moe-router-pre-softmax=pre_softmax", "--add-qkv-bias",
    ),
    *options(
        "off", "--no-overlap-p2p-communication=p2p_overlap", "--no-bias-swiglu-fusion=swiglu_fusion",
        "--no-bias-gelu-fusion=gelu_fusion", "--no-bias-dropout-fusion=dropout_fusion", "--no-rope-fusion=rope_fusion",
        "--no-persist-layer-norm=persist_layer_norm",
    ),
)  # fmt: skip

PER_NODE = ("rank", "local-rank", "node-rank", "local_rank")

HARMLESS = r"""
    (train|valid|test)-data-path
    data-.* split tokenizer-.* vocab-file merge-file merges-file vocab-extra-ids mock-data num-workers
    save.* load.* ckpt-.* dist-ckpt-.* use-dist-ckpt.* no-save-.* no-load-.* finetune exit-.* async-save non-persistent-.*
    (no-)?use-checkpoint-.* override-opt.* auto-detect-ckpt-format log-.* no-log-.* tensorboard-.* wandb-.* timing-.* one-logger.*
    eval-.* skip-train test-mode train-iters train-samples lr.* min-lr weight-decay.* start-weight-decay end-weight-decay adam-.*
    sgd-.* clip-grad init-method.* seed data-parallel-random-init decoupled-.* loss-scale initial-loss-scale min-loss-scale
    hysteresis override-.* use-mcore-models use-legacy-models distributed-.* local-rank lazy-mpu-init nccl-.* manual-gc.* seq-len
    norm-epsilon layernorm-epsilon
    apply-layernorm-1p position-embedding-type rotary-.* use-rotary-.* use-rope-.* rope-.* no-rope.*
    no-position-embedding no-rotary-.* attention-dropout hidden-dropout attention-softmax-in-fp32 no-masked-softmax-fusion
    no-bias-.*-fusion no-.*-fusion .*-fusion qk-layernorm rerun-.* check-.* no-create-attention-mask.* reset-.* eod-mask-loss
    no-mmap-bin-files enable-experimental no-gradient-accumulation-fusion no-async-tensor.* yaml-cfg dataloader-type no-.*-data.*
    moe-router-(load-balancing-type|score-function|topk-scaling-factor|enable-expert-bias|bias-update-rate|dtype|force.*|fusion)
    moe-router-pre-softmax moe-aux-loss-coeff moe-z-loss-coeff moe-input-jitter.* moe-permute-fusion moe-per-layer-logging
    moe-token-drop-policy mtp-loss-scaling-factor kitchen-.* te-rng-tracker deterministic-mode profile.* record-memory-history
    memory-snapshot-path use-pytorch-profiler nvtx-.* use-cpu-initialization create-attention-mask.* config-logger-dir mup-.*
    cross-entropy-.*
    calculate-per-token-loss enable-gloo-process-groups disable-gloo.* mscale.* multiple-validation.* no-one-logger
    fim-.* spec export-.* use-mp-args.* transformer-pipeline.* high-priority-stream-groups use-tp-pp-dp-mapping use-ring.* s3-.*
    num-dataset-builder-threads retro-.* inference-.* padded-.* logging-level squared-relu openai-gelu quick-geglu
"""

NOTABLE = {
    "changes how many experts' tokens are kept, which is not modelled": (
        r"moe-expert-capacity-factor moe-pad-expert-input-to-capacity moe-router-padding-for-(fp8|quantization)"
    ),
    "moves activations to host memory in parts that are not modelled": r"fine-grained-activation-offloading offload-modules",
    "changes the numbers of the optimizer state, which is counted in 32 bit": r"exp-avg-dtype exp-avg-sq-dtype main-params-dtype",
    "changes overlap or buckets in a way that is not modelled": r"""
        delay-wgrad-compute ddp-.* overlap-param-gather-with-optimizer-step align-.* suggested-communication-unit-size
        moe-shared-expert-overlap tp-comm-.* defer-embedding-wgrad-compute batch-p2p-.* no-align-.* cp-.* overlap-p2p-.*
        moe-deepep-num-sms moe-hybridep-num-sms keep-fp8-.* nccl-ub use-nccl-ub fsdp-.* average-in-collective
    """,
    "keeps parameters in 8 or 4 bit, which is not counted": r"fp8-param-gather fp8-param fp4-param-gather reuse-grad-buf-.*",
    "is not part of the model": r"""
        fp8-.* fp4-.* first-last-layers-bf16 num-layers-at-.* window-size softmax-type hybrid-.* mamba-.* is-hybrid-model
        experimental-attention-variant dsa-.* lora-.* variable-seq-lengths moe-use-legacy-.* moe-upcycling-.* moe-latent-size
        heterogeneous-.* linear-.* distribute-saved-activations attention-output-gate encoder-.* decoder-.* moe-hybridep-.*
        context-parallel-.* hybrid-context-parallel .*-pipeline-.* init-model-with-meta-device use-megatron-fsdp-.*
        sequence-packing.* dynamic-.* calc-ft-.* enable-ft.* qk-clip.* moe-extended-tp moe-use-device-initiated-.*
    """,
}
