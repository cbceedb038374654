"""A custom layer: every output is the largest of several linear functions (maxout).

fedplt trains any parameter, but it does not know that the rows of this weight belong together in
groups of ``pieces``, so a client would train all of the weight or nothing. `add_layer_kind`
defines how it is cut: by output, with all pieces of the output.
"""

import torch
from torch import nn

import fedplt


class Maxout(nn.Module):
    def __init__(self, num_inputs: int, num_outputs: int, pieces: int) -> None:
        super().__init__()
        self.num_outputs, self.pieces = num_outputs, pieces
        bound = num_inputs**-0.5
        rows = num_outputs * pieces
        self.weight = nn.Parameter(torch.empty(rows, num_inputs).uniform_(-bound, bound))
        self.bias = nn.Parameter(torch.zeros(rows))

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        values = nn.functional.linear(inputs, self.weight, self.bias)
        return values.unflatten(-1, (self.num_outputs, self.pieces)).amax(-1)


fedplt.add_layer_kind(
    Maxout, lambda layer: fedplt.Slicing("by output, with its pieces", layer.num_outputs)
)
