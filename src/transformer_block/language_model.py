"""The whole model: ids in, a score for every possible next token out."""

from collections.abc import Callable

import torch
from jaxtyping import Float, Integer
from torch import Tensor, nn

from transformer_block import _checks
from transformer_block.attention import causal_mask
from transformer_block.block import BLOCKS, PreNormBlock
from transformer_block.config import ModelConfig
from transformer_block.multi_head import KeyValueCache
from transformer_block.norm import norm_named


def standard_block(config: ModelConfig) -> PreNormBlock:
    """Build the block that a config describes: Pre-Norm or Post-Norm."""
    return BLOCKS[config.norm_place](
        config.d_model,
        config.n_heads,
        config.d_ff,
        norm=config.norm,
        activation=config.activation,
        bias=config.bias,
    )


class LanguageModel(nn.Module):
    """Predict the next token at every position: logits = Norm(X^(L)) W_LM.

    X^(0) = E[ids] + P[places]; X^(l) = Block_l(X^(l−1)). A Pre-Norm stack ends with one more norm;
    a Post-Norm stack has it already. With `tie_weights`, W_LM is E itself.

    `block(config)` is called L times to build the stack; any module of the signature
    `(X, mask, cache)` will do.

    Raises:
        ValueError: for ids that are not whole numbers `[B, n]` within the vocabulary, or longer
            than n_ctx.

    Source: Radford et al. (2019), section 2.3.
    """

    def __init__(
        self, config: ModelConfig, *, block: Callable[[ModelConfig], nn.Module] = standard_block
    ) -> None:
        super().__init__()
        self.config = config
        self.E = nn.Embedding(config.vocab_size, config.d_model)
        self.P = nn.Embedding(config.n_ctx, config.d_model)
        self.blocks = nn.ModuleList(block(config) for _ in range(config.n_layers))
        pre = config.norm_place == "pre"
        self.norm_final = norm_named(config.norm)(config.d_model) if pre else nn.Identity()
        self.W_LM = nn.Linear(config.d_model, config.vocab_size, bias=False)
        if config.tie_weights:
            self.W_LM.weight = self.E.weight
        initialise(self)

    @_checks.door
    def forward(
        self, ids: Integer[Tensor, "B n"], caches: list[KeyValueCache] | None = None
    ) -> Float[Tensor, "B n vocab_size"]:
        """Return the logits of the token after each position.

        With `caches` (from `new_caches`), `ids` are the tokens that follow those already read.
        """
        n_past = len(caches[0]) if caches else 0
        ids = _checks.ids(ids, self.config.vocab_size)
        n, n_ctx = ids.shape[1], self.config.n_ctx
        if n_past + n > n_ctx:
            raise ValueError(
                f"the model reads at most n_ctx = {n_ctx} tokens, not {n_past + n}; "
                "shorten the text or build the model with a larger n_ctx"
            )
        X = self.E(ids) + self.P.weight[n_past : n_past + n]
        mask = causal_mask(n, n_past, ids.device)
        for i, block in enumerate(self.blocks):
            X = block(X, mask, caches[i] if caches else None)
        return self.W_LM(self.norm_final(X))

    def new_caches(self) -> list[KeyValueCache]:
        """Return an empty cache for each block."""
        return [KeyValueCache() for _ in self.blocks]


@torch.no_grad()
def initialise(model: nn.Module) -> None:
    """Draw every parameter afresh: the one initialisation of this book.

    | parameter                 | start                                            |
    |---------------------------|--------------------------------------------------|
    | W and b of every Linear   | uniform in ±1/√(its inputs), as `nn.Linear` does |
    | γ, β of every norm        | 1, 0                                             |
    | E, P                      | normal, standard deviation 0.1                   |
    | W_LM                      | normal, standard deviation 1/d_model             |
    | E and W_LM in one (tied)  | normal, standard deviation 0.4/√d_model          |

    The last norm hands W_LM a vector of length √d_model, so the first logits have a standard
    deviation of about 1/√d_model (tied: 0.4), and the first loss is close to ln V.
    """
    for module in model.modules():
        if isinstance(module, nn.Linear):
            module.reset_parameters()
        for name, start in (("gamma", 1.0), ("beta", 0.0)):
            if isinstance(parameter := getattr(module, name, None), nn.Parameter):
                parameter.fill_(start)
    for module in model.modules():
        if isinstance(module, LanguageModel):
            d_model = module.config.d_model
            nn.init.normal_(module.P.weight, std=0.1)
            nn.init.normal_(module.E.weight, std=0.1)
            nn.init.normal_(module.W_LM.weight, std=1 / d_model)
            if module.W_LM.weight is module.E.weight:
                nn.init.normal_(module.E.weight, std=0.4 / d_model**0.5)
