"""A Hugging Face model, unchanged, with its dropout and tied weights, trained among liars (extra `huggingface`).

python huggingface_model.py
troth swarm --task huggingface_model.py --peers 5 --byzantine 1
"""

import torch
from transformers import GPT2Config

import troth
from troth.training import huggingface

TEXT = "People who do not trust each other train one neural network together. " * 40
tokens = torch.tensor(list(TEXT.encode()))
config = GPT2Config(vocab_size=128, n_positions=32, n_embd=32, n_layer=2, n_head=2, bos_token_id=0, eos_token_id=0)
task = huggingface.task(
    config,
    data=[{"input_ids": tokens[start : start + 32]} for start in range(0, len(tokens) - 32, 8)],
    batch_size=8,
    optimizer="adamw",
    rate=0.01,
)

if __name__ == "__main__":
    run = troth.simulate(task, peers=5, byzantine=1, attack="sign-flip", attack_start=5, steps=20)
    for step in run:
        for ban in step.bans:
            print(f"step {ban.step}: {ban.peer} is banned: {ban.reason}")
    result = run.run()
    print(f"loss {result.curve[0]['loss']:.2f} before, {result.metrics['loss']:.2f} after")
    model = task.model()  # a fresh GPT2LMHeadModel
    model.load_state_dict(result.state_dict(), strict=True)  # or result.model(), the same
    with torch.no_grad():
        print(f"loss {task.evaluate(model.eval())['loss']:.2f} in a model of one's own")
