"""Train ten steps of the planned model: alone, or under torchrun on as many processes as the plan's mesh has ranks."""

import os
import sys

import torch
import torch.distributed as dist
from transformers import AutoConfig, AutoModelForCausalLM

import autoparallel_core as ap

STEPS, BATCH, LENGTH = 10, 8, 32


def main(directory: str, plan: str) -> None:
    torch.manual_seed(0)  # every rank starts from the same weights
    config = AutoConfig.from_pretrained(directory)
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    if "RANK" in os.environ:  # torchrun sets it
        dist.init_process_group("gloo")  # on GPUs: "nccl"
        model = ap.apply(model, plan)  # refuses another model; nothing is traced or searched again
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    for step in range(STEPS):
        first = torch.randint(0, config.vocab_size, (BATCH, 1), generator=torch.Generator().manual_seed(step))
        tokens = (first + torch.arange(LENGTH)) % config.vocab_size  # the whole batch, the same on every rank
        loss = model(input_ids=tokens, labels=tokens, use_cache=False).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if not dist.is_initialized() or dist.get_rank() == 0:
            print(f"step {step}: loss {loss.item():.4f}", flush=True)
    if dist.is_initialized():
        dist.destroy_process_group()


if __name__ == "__main__":
    main(*sys.argv[1:])
