"""Fit one curve with many small parts: a residual net trained as a whole, or part by part."""

from collections.abc import Iterable

import torch
from jaxtyping import Float
from torch import Tensor, nn

from transformer_block.feed_forward import FeedForward


def curve(seed: int, samples: int = 200) -> tuple[Float[Tensor, "n 1"], Float[Tensor, "n 1"]]:
    """Draw points of a wave with a jump, y = sin 5x + ½ sign(x − 0.2), scaled to variance 1."""
    x = torch.rand(samples, 1, generator=torch.Generator().manual_seed(seed)) * 2 - 1
    y = torch.sin(5 * x) + 0.5 * torch.sign(x - 0.2)
    return x, (y - y.mean()) / y.std(unbiased=False)


class ResidualNet(nn.Module):
    """Predict a number from a number, by a stream to which K small parts add.

    X^(0) = x W_in; X^(k) = X^(k−1) + F_k(X^(k−1)); y = X^(K) w, each Linear with its bias.
    """

    def __init__(self, n_parts: int, d_model: int = 16, d_ff: int = 4) -> None:
        super().__init__()
        self.W_in = nn.Linear(1, d_model)
        self.parts = nn.ModuleList(FeedForward(d_model, d_ff, "relu") for _ in range(n_parts))
        self.w = nn.Linear(d_model, 1)

    def forward(self, x: Float[Tensor, "n 1"], n_parts: int | None = None) -> Float[Tensor, "n 1"]:
        """Read the answer off the stream behind the first `n_parts` parts; behind all if None."""
        X = self.W_in(x)
        for F in self.parts[:n_parts]:
            X = X + F(X)
        return self.w(X)

    def errors(self, x: Float[Tensor, "n 1"], y: Float[Tensor, "n 1"]) -> list[float]:
        """Return the mean squared error read off behind the first 1, 2, … parts."""
        counts = range(1, len(self.parts) + 1)
        return [float((y - self(x, k).detach()).square().mean()) for k in counts]


def fit(
    net: ResidualNet,
    x: Float[Tensor, "n 1"],
    y: Float[Tensor, "n 1"],
    learning: Iterable[nn.Parameter],
    n_parts: int | None = None,
    steps: int = 300,
) -> None:
    """Lower the error behind the first `n_parts` parts with Adam, moving these parameters only."""
    adam = torch.optim.Adam(learning, lr=1e-2)
    for _ in range(steps):
        loss = (y - net(x, n_parts)).square().mean()
        adam.zero_grad()
        loss.backward()
        adam.step()


def fit_together(net: ResidualNet, x: Float[Tensor, "n 1"], y: Float[Tensor, "n 1"]) -> None:
    """Train all parts at once, on the error behind the last."""
    fit(net, x, y, net.parameters())


def fit_one_by_one(net: ResidualNet, x: Float[Tensor, "n 1"], y: Float[Tensor, "n 1"]) -> None:
    """Train part after part on the error behind it, all that came before frozen.

    W_in and w learn with the first part only. From then on the error behind part k is that of
    F_k(X) w against y − (prediction so far): each part fits what the earlier ones left.
    """
    for k, F in enumerate(net.parts, 1):
        learning = [*F.parameters()]
        if k == 1:
            learning += [*net.W_in.parameters(), *net.w.parameters()]
        fit(net, x, y, learning, k)
