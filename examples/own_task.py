"""A task of one's own, out of a model, a dataset and a loss; then trained among liars.

    python own_task.py
    troth simulate --task own_task.py --byzantine 3

The second command finds `task` in this file, and so do `troth new` and `troth swarm`.
"""

import torch
from torch import nn
from torch.utils.data import TensorDataset

import troth

angles = torch.linspace(0, 6, 500)[:, None]
task = troth.task(
    model=lambda: nn.Sequential(nn.Linear(1, 32), nn.Tanh(), nn.Dropout(0.05), nn.Linear(32, 1)),
    data=TensorDataset(angles, torch.sin(angles)),
    loss=lambda model, batch: nn.functional.mse_loss(model(batch[0]), batch[1]),
    batch_size=32,
    optimizer="adamw",
    rate=0.01,
)

if __name__ == "__main__":
    troth.testing.check_task(task)  # a pure function of its seed, or it says what to change
    run = troth.simulate(task, peers=6, byzantine=2, attack="sign-flip", attack_start=5, steps=40)
    for step in run:
        for ban in step.bans:
            print(f"step {ban.step}: {ban.peer} is banned: {ban.reason}")
    result = run.run()
    print(f"loss {result.curve[0]['loss']:.3f} before, {result.metrics['loss']:.3f} after, liars: {result.liars}")
    print(result.model()(torch.tensor([[torch.pi / 2]])))  # an ordinary module
