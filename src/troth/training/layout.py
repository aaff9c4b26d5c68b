"""Parameters as one flat vector, and back as views, without copies."""

from dataclasses import dataclass
from itertools import accumulate
from math import prod

import torch
from torch import Tensor, nn

# D coordinates


@dataclass(frozen=True)
class Layout:
    """Names and shapes of a module's trained parameters, in the module's own order; tied ones by their first name."""

    names: tuple[str, ...]
    shapes: tuple[tuple[int, ...], ...]

    @classmethod
    def of(cls, module: nn.Module) -> "Layout":
        named = [(name, p) for name, p in module.named_parameters() if p.requires_grad]
        return cls(tuple(name for name, _ in named), tuple(tuple(p.shape) for _, p in named))

    @property
    def size(self) -> int:
        return sum(prod(shape) for shape in self.shapes)

    @property
    def slices(self) -> dict[str, slice]:
        """Where each parameter stands in the vector: `rows_PD[:, layout.slices["0.weight"]]` is that layer in every row."""
        ends = list(accumulate(map(prod, self.shapes)))
        return {name: slice(end - prod(s), end) for name, s, end in zip(self.names, self.shapes, ends, strict=True)}

    def views(self, flat_D: Tensor) -> dict[str, Tensor]:
        """Every parameter as a view into the vector: writing to one writes to the other."""
        pieces = torch.split(flat_D, [prod(shape) for shape in self.shapes])
        return {name: piece.view(shape) for name, shape, piece in zip(self.names, self.shapes, pieces, strict=True)}

    def flatten(self, tensors: dict[str, Tensor], leading: int = 0) -> Tensor:
        """One vector (behind `leading` batch dimensions) out of named tensors; the one copy there is."""
        return torch.cat([tensors[name].flatten(start_dim=leading) for name in self.names], dim=leading)

    def moved(self, tensors: dict[str, Tensor]) -> Tensor:
        """What `flatten` gives. Takes the tensors out of the dictionary one by one: a gradient need not be there twice."""
        if len(self.names) == 1:
            return tensors.pop(self.names[0]).detach().contiguous().flatten()
        flat_D = tensors[self.names[0]].new_empty(self.size)
        for name, view in self.views(flat_D).items():
            view.copy_(tensors.pop(name).detach())
        return flat_D
