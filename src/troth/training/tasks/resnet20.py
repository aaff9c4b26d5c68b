"""CIFAR-10 with ResNet-20 (He et al. 2016), set up as in the experiments of Karimireddy et al. 2021 (docs/prior-work.md)."""

from dataclasses import dataclass

from torch import nn

from troth.training.tasks.resnet18 import CIFARTask, ResNet

_DEVIATIONS = (0.2023, 0.1994, 0.2010)  # the authors' numbers; the pixels' own are larger by a quarter


@dataclass(frozen=True)
class ResNet20(CIFARTask):
    """CIFAR-10 from a folder (binary version or cifar10.npz), ResNet-20 with 0.27M parameters"""

    batch_size: int = 32
    width: int = 16  # channels of the first stage; the last has four times as many

    steps = 7800
    optimizer = "sgd:nesterov=false"
    rate = 0.1
    tau = 1.0

    def model(self) -> nn.Module:
        model = ResNet(self.width, stages=3, depth=3, deviations=_DEVIATIONS)
        for module in model.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
        return model
