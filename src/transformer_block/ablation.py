"""Take one part out of a model, or let only one part learn: the book's controlled experiments."""

from copy import deepcopy
from typing import cast

from jaxtyping import Bool, Float
from torch import Tensor, nn

from transformer_block.block import PreNormBlock
from transformer_block.language_model import LanguageModel
from transformer_block.multi_head import KeyValueCache

PARTS = ("residual", "norms in blocks", "final norm", "all norms", "ffn", "attention")
LEARNERS = ("attention", "ffn", "head")


class NoResidual(nn.Module):
    """Replace the stream instead of adding to it: H = MHA(Norm(X)), X' = FFN(Norm(H))."""

    def __init__(self, block: PreNormBlock) -> None:
        super().__init__()
        self.norm_mha, self.mha = block.norm_mha, block.mha
        self.norm_ffn, self.ffn = block.norm_ffn, block.ffn

    def forward(
        self,
        X: Float[Tensor, "B n d_model"],
        mask: Bool[Tensor, "n n_k"] | None = None,
        cache: KeyValueCache | None = None,
    ) -> Float[Tensor, "B n d_model"]:
        """Return X', of the shape of X."""
        H = self.mha(self.norm_mha(X), mask, cache)
        return cast(Tensor, self.ffn(self.norm_ffn(H)))


class AttentionOnly(nn.Module):
    """Communicate, and compute nothing after it: X' = X + MHA(Norm(X))."""

    def __init__(self, block: PreNormBlock) -> None:
        super().__init__()
        self.norm_mha, self.mha = block.norm_mha, block.mha

    def forward(
        self,
        X: Float[Tensor, "B n d_model"],
        mask: Bool[Tensor, "n n_k"] | None = None,
        cache: KeyValueCache | None = None,
    ) -> Float[Tensor, "B n d_model"]:
        """Return X', of the shape of X."""
        return X + self.mha(self.norm_mha(X), mask, cache)


class FeedForwardOnly(nn.Module):
    """Compute on each token and let none read another: X' = X + FFN(Norm(X))."""

    def __init__(self, block: PreNormBlock) -> None:
        super().__init__()
        self.norm_ffn, self.ffn = block.norm_ffn, block.ffn

    def forward(
        self,
        X: Float[Tensor, "B n d_model"],
        mask: Bool[Tensor, "n n_k"] | None = None,
        cache: KeyValueCache | None = None,
    ) -> Float[Tensor, "B n d_model"]:
        """Return X', of the shape of X."""
        return X + self.ffn(self.norm_ffn(X))


SURGERY = {"residual": NoResidual, "ffn": AttentionOnly, "attention": FeedForwardOnly}


def without(model: LanguageModel, part: str) -> LanguageModel:
    """Return a copy of a Pre-Norm model with one part taken out of every block.

    | part              | what goes                                                   |
    |-------------------|-------------------------------------------------------------|
    | "residual"        | both plus signs of every block                              |
    | "norms in blocks" | Norm₁ and Norm₂ of every block; the last norm stays         |
    | "final norm"      | the one norm before W_LM; those in the blocks stay          |
    | "all norms"       | both                                                        |
    | "ffn"             | the FFN of every block, with its norm and its plus sign     |
    | "attention"       | the attention of every block, with its norm and plus sign   |

    An FFN without σ, one head and Post-Norm are settings of `ModelConfig`, not surgery.

    Raises:
        ValueError: for an unknown part, or a model whose blocks are not whole Pre-Norm blocks.
    """
    if part not in PARTS:
        raise ValueError(f"the parts that can go are {', '.join(PARTS)}; not {part!r}")
    if any(type(block) is not PreNormBlock for block in model.blocks):
        raise ValueError(
            "parts are taken out of whole Pre-Norm blocks; "
            'build the model with norm_place="pre" and take out one part only'
        )
    model = deepcopy(model)
    if part in SURGERY:
        model.blocks = nn.ModuleList(
            SURGERY[part](cast(PreNormBlock, block)) for block in model.blocks
        )
    if part in ("norms in blocks", "all norms"):
        for block in model.blocks:
            block.norm_mha, block.norm_ffn = nn.Identity(), nn.Identity()
    if part in ("final norm", "all norms"):
        model.norm_final = nn.Identity()
    return model


def freeze_all_but(model: LanguageModel, *parts: str) -> LanguageModel:
    """Let only these parts learn, in place: "attention", "ffn" or "head" (W_LM), or several.

    All else, norms and embeddings too, stays as it was drawn.

    Raises:
        ValueError: for an unknown part, or the head of a tied model, which is E as well.
    """
    if not parts or set(parts) - set(LEARNERS):
        raise ValueError(
            f"the parts that can learn alone are {', '.join(LEARNERS)}; not {', '.join(parts)!r}"
        )
    if "head" in parts and model.config.tie_weights:
        raise ValueError("the head of a tied model is E as well; build it with tie_weights=False")
    marks = {"attention": ".mha.", "ffn": ".ffn.", "head": "W_LM."}
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(any(marks[part] in name for part in parts))
    return model
