"""A LightningModule, unchanged, with its dropout and its `self.log`, trained among liars (extra `lightning`).

python lightning_module.py
troth swarm --task lightning_module.py --peers 5 --byzantine 1
"""

import lightning
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import troth
from troth.training import lightning as adapter


class Waves(lightning.LightningModule):  # type: ignore[misc, unused-ignore]
    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(1, 32), nn.Tanh(), nn.Dropout(0.05), nn.Linear(32, 1))

    def training_step(self, batch: list[Tensor], batch_idx: int) -> Tensor:
        loss = F.mse_loss(self.net(batch[0]), batch[1])
        self.log("loss", loss)
        return loss


x = torch.linspace(-3, 3, 512)[:, None]
task = adapter.task(Waves, data=list(zip(x, x.sin(), strict=True)), batch_size=16, optimizer="adamw", rate=0.02)

if __name__ == "__main__":
    result = troth.simulate(task, peers=5, byzantine=1, attack="sign-flip", attack_start=5, steps=40).run()
    print(f"loss {result.curve[0]['loss']:.3f} before, {result.metrics['loss']:.3f} after; banned: {len(result.bans)}")
    module = Waves()
    module.load_state_dict(result.state_dict(), strict=True)
    with torch.no_grad():
        print(f"loss {task.evaluate(module.eval())['loss']:.3f} in a module of one's own")
