"""The training script that DeepSpeed exports carry: small, runs on random tokens, meant to be replaced."""

TRAIN = '''"""Trains on random tokens under the plan's settings; replace the data and the model loading by your own."""

import argparse
import json

import deepspeed
import torch
from deepspeed.pipe import PipelineModule
from torch.utils.checkpoint import checkpoint
from transformers import AutoConfig, AutoModelForCausalLM


def recompute(model, kind, layers):
    """Recompute the first ``layers`` decoder layers (0: all), or only their attention."""
    blocks = model.get_submodule("model.layers")
    for block in list(blocks)[: layers or len(blocks)]:
        target = block.self_attn if kind == "selective" else block
        forward = target.forward
        target.forward = lambda *a, _forward=forward, **k: checkpoint(_forward, *a, use_reentrant=False, **k)


def stages(model, n):
    """The decoder as a pipeline of ``n`` stages."""

    class Block(torch.nn.Module):
        def __init__(self, layer):
            super().__init__()
            self.layer = layer
            self.rotary = model.model.rotary_emb

        def forward(self, hidden):
            positions = torch.arange(hidden.shape[1], device=hidden.device).unsqueeze(0)
            out = self.layer(hidden, position_embeddings=self.rotary(hidden, positions))
            return out[0] if isinstance(out, tuple) else out

    def loss(logits, labels):
        return torch.nn.functional.cross_entropy(logits[:, :-1].flatten(0, 1).float(), labels[:, 1:].flatten())

    parts = [model.model.embed_tokens, *map(Block, model.model.layers), model.model.norm, model.lm_head]
    return PipelineModule(layers=parts, num_stages=n, loss_fn=loss, partition_method="parameters")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--model_name_or_path", required=True)
    parser.add_argument("--deepspeed_config", required=True)
    parser.add_argument("--max_seq_length", type=int, default=4096)
    parser.add_argument("--pipeline_parallel_size", type=int, default=1)
    parser.add_argument("--recompute", choices=("none", "selective", "full"), default="none")
    parser.add_argument("--recompute_layers", type=int, default=0)
    parser.add_argument("--no_sequence_parallel", action="store_true")
    parser.add_argument("--steps", type=int, default=10)
    args = parser.parse_args()
    with open(args.deepspeed_config) as f:
        settings = json.load(f)

    deepspeed.init_distributed()
    config = AutoConfig.from_pretrained(args.model_name_or_path)
    with deepspeed.zero.Init(config_dict_or_path=settings, enabled=settings["zero_optimization"]["stage"] == 3):
        model = AutoModelForCausalLM.from_config(config, attn_implementation="sdpa")
    if args.recompute != "none":
        recompute(model, args.recompute, args.recompute_layers)
    if args.pipeline_parallel_size > 1:
        model = stages(model, args.pipeline_parallel_size)
    engine, *_ = deepspeed.initialize(model=model, model_parameters=model.parameters(), config=settings)

    def batches():
        shape = (settings["train_micro_batch_size_per_gpu"], args.max_seq_length)
        while True:
            tokens = torch.randint(config.get_text_config().vocab_size, shape, device=engine.device)
            yield tokens, tokens

    data = batches()
    for step in range(args.steps):
        if args.pipeline_parallel_size > 1:
            loss = engine.train_batch(data)
        else:
            for _ in range(engine.gradient_accumulation_steps()):
                tokens, labels = next(data)
                loss = engine(input_ids=tokens, labels=labels).loss
                engine.backward(loss)
                engine.step()
        if engine.global_rank == 0:
            print(f"step {step}: loss {loss.item():.3f}")


if __name__ == "__main__":
    main()
'''
