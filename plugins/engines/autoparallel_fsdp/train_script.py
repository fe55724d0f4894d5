"""The training script that FSDP exports carry: small, runs on random tokens, meant to be replaced."""

TRAIN = '''"""Trains on random tokens under the plan's settings; replace the data and the model loading by your own."""

import argparse

import torch
from accelerate import Accelerator
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
from torch.utils.checkpoint import CheckpointPolicy, create_selective_checkpoint_contexts
from transformers import AutoConfig, AutoModelForCausalLM

SAVED = {
    torch.ops.aten._scaled_dot_product_flash_attention.default,
    torch.ops.aten._scaled_dot_product_efficient_attention.default,
    torch.ops.aten._scaled_dot_product_cudnn_attention.default,
}


def selective():
    """Keep attention and every second matrix product; recompute the rest."""
    products = 0

    def policy(ctx, op, *args, **kwargs):
        nonlocal products
        if op == torch.ops.aten.mm.default:
            products += 1
            return CheckpointPolicy.MUST_SAVE if products % 2 else CheckpointPolicy.PREFER_RECOMPUTE
        return CheckpointPolicy.MUST_SAVE if op in SAVED else CheckpointPolicy.PREFER_RECOMPUTE

    return create_selective_checkpoint_contexts(policy)


def recompute(model, kind, layers):
    """Wrap the first ``layers`` decoder layers (0: all)."""
    blocks = model.get_submodule("model.layers")
    for i in range(layers or len(blocks)):
        extra = {"context_fn": selective} if kind == "selective" else {}
        blocks[i] = checkpoint_wrapper(blocks[i], **extra)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--model_name_or_path", required=True)
    parser.add_argument("--per_device_train_batch_size", type=int, default=1)
    parser.add_argument("--gradient_accumulation_steps", type=int, default=1)
    parser.add_argument("--max_seq_length", type=int, default=4096)
    parser.add_argument("--recompute", choices=("none", "selective", "full"), default="none")
    parser.add_argument("--recompute_layers", type=int, default=0)
    parser.add_argument("--expert_parallel_size", type=int, default=1)
    parser.add_argument("--no_sequence_parallel", action="store_true")
    parser.add_argument("--steps", type=int, default=10)
    args = parser.parse_args()

    accelerator = Accelerator(gradient_accumulation_steps=args.gradient_accumulation_steps)
    config = AutoConfig.from_pretrained(args.model_name_or_path)
    mesh = accelerator.torch_device_mesh
    if mesh is not None and "tp" in (mesh.mesh_dim_names or ()):
        from transformers.distributed import DistributedConfig

        plan = DistributedConfig(enable_expert_parallel=args.expert_parallel_size > 1)
        model = AutoModelForCausalLM.from_pretrained(
            args.model_name_or_path, device_mesh=mesh["tp"], distributed_config=plan, attn_implementation="sdpa"
        )
    else:  # under fsdp_cpu_ram_efficient_loading one rank per node reads the weights, the others get them from it
        model = AutoModelForCausalLM.from_pretrained(args.model_name_or_path, dtype=torch.float32, attn_implementation="sdpa")
    if args.recompute != "none":
        recompute(model, args.recompute, args.recompute_layers)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5, fused=True)
    model, optimizer = accelerator.prepare(model, optimizer)

    shape = (args.per_device_train_batch_size, args.max_seq_length)
    for step in range(args.steps * args.gradient_accumulation_steps):
        tokens = torch.randint(config.get_text_config().vocab_size, shape, device=accelerator.device)
        with accelerator.accumulate(model):
            loss = model(input_ids=tokens, labels=tokens).loss
            accelerator.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
        if accelerator.sync_gradients:
            accelerator.print(f"step {step // args.gradient_accumulation_steps}: loss {loss.item():.3f}")


if __name__ == "__main__":
    main()
'''
