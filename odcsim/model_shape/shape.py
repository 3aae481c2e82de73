"""A decoder's shape: how many parameters it has and how many FLOPs it takes.

Dense decoders of the Llama kind are covered: grouped-query attention (q, k, v, o), a gated FFN (gate, up, down), two
RMS norms a block and one after the last, an embedding and a head that may share its weights. A shape comes from the
catalog, from a Hugging Face config.json, or is written out. Counts are exact; FLOPs count a multiply-add as two and
leave out norms, biases, activations and the softmax. Attention is causal: of the square only the unmasked half counts.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from odcsim.errors import InputError

__all__ = ["ModelShape", "check_fields", "size_problem"]

# Above these a shape is a slip of the pen: each is several times what any published decoder has.
_LARGEST_SIZES = {
    "layers": 10_000,
    "hidden": 1_000_000,
    "heads": 100_000,
    "kv_heads": 100_000,
    "head_dim": 10_000,
    "ffn": 10_000_000,
    "vocab": 100_000_000,
}
_FLAGS = ("tied_embeddings", "qkv_bias", "output_bias", "mlp_bias", "qk_norm")


@dataclass(frozen=True)
class ModelShape:
    """The sizes of a dense decoder.

    Attributes:
        name: for people.
        layers: decoder blocks.
        hidden: width of the residual stream.
        heads: query heads.
        kv_heads: key and value heads; they divide `heads`.
        head_dim: width of a head.
        ffn: inner width of the gated FFN.
        vocab: rows of the embedding, as stored.
        tied_embeddings: whether the head's weights are the embedding's.
        qkv_bias: whether q, k and v carry biases.
        output_bias: whether o carries one.
        mlp_bias: whether gate, up and down carry biases.
        qk_norm: whether queries and keys are normalized per head.

    Raises:
        InputError: a size is not a whole number from 1 to a generous maximum, a flag is not a bool, or `kv_heads` does
            not divide `heads`; its key is the field.
    """

    name: str
    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    ffn: int
    vocab: int
    tied_embeddings: bool = False
    qkv_bias: bool = False
    output_bias: bool = False
    mlp_bias: bool = False
    qk_norm: bool = False

    def __post_init__(self) -> None:
        check_fields(vars(self), file=None, key_of=str)

    @property
    def query_width(self) -> int:
        """Width of all queries of a token: heads x head_dim."""
        return self.heads * self.head_dim

    @property
    def kv_width(self) -> int:
        """Width of all keys (or of all values) of a token: kv_heads x head_dim."""
        return self.kv_heads * self.head_dim

    @property
    def block_matmul_parameters(self) -> int:
        """Weights of one block that every token is multiplied with: q, k, v, o and the gated FFN."""
        attention = 2 * self.hidden * self.query_width + 2 * self.hidden * self.kv_width
        return attention + 3 * self.hidden * self.ffn

    @property
    def parameters_per_block(self) -> int:
        """All parameters of one block, norms and biases included."""
        norms = 2 * self.hidden + (2 * self.head_dim if self.qk_norm else 0)
        biases = (
            self.qkv_bias * (self.query_width + 2 * self.kv_width)
            + self.output_bias * self.hidden
            + self.mlp_bias * (2 * self.ffn + self.hidden)
        )
        return self.block_matmul_parameters + norms + biases

    @property
    def embedding_parameters(self) -> int:
        """Parameters of the embedding: vocab x hidden."""
        return self.vocab * self.hidden

    @property
    def head_parameters(self) -> int:
        """Parameters that the head adds: vocab x hidden, or none if it is tied to the embedding."""
        return 0 if self.tied_embeddings else self.vocab * self.hidden

    @property
    def root_parameters(self) -> int:
        """Parameters outside the blocks: embedding, final norm, and the head unless tied."""
        return self.embedding_parameters + self.hidden + self.head_parameters

    @property
    def total_parameters(self) -> int:
        """All parameters, each once."""
        return self.layers * self.parameters_per_block + self.root_parameters

    @property
    def forward_linear_flops_per_token(self) -> int:
        """Forward FLOPs of one block's matrix products for one token: 2 x `block_matmul_parameters`."""
        return 2 * self.block_matmul_parameters

    @property
    def forward_attention_flops_per_squared_token(self) -> int:
        """Forward FLOPs of one block's attention for one squared token of a sequence: 2 x heads x head_dim.

        Scores and weighted values take 2 x heads x head_dim each on the full square; the causal mask keeps half.
        """
        return 2 * self.query_width

    @property
    def forward_head_flops_per_token(self) -> int:
        """Forward FLOPs of the head for one token: 2 x vocab x hidden, tied or not."""
        return 2 * self.vocab * self.hidden

    def model_flops(self, *, tokens: float, squared_tokens: float) -> float:
        """FLOPs of forward and backward over the whole model without recomputation: the numerator of MFU.

        Backward counts twice the forward, attention included. The definition is PaLM's (arXiv 2204.02311, appendix B),
        but for the masked half of attention, which is not computed and does not count here.

        Args:
            tokens: sum of the sequences' lengths.
            squared_tokens: sum of their squares.
        """
        block = (
            self.forward_linear_flops_per_token * tokens
            + self.forward_attention_flops_per_squared_token * squared_tokens
        )
        return 3 * (self.layers * block + self.forward_head_flops_per_token * tokens)


def size_problem(field: str, value: object) -> str | None:
    """What is wrong with the value of a size, if anything is."""
    largest = _LARGEST_SIZES[field]
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= largest:
        return f"must be a whole number from 1 to {largest}"
    return None


def check_fields(values: Mapping[str, Any], *, file: object | None, key_of: Callable[[str], str]) -> None:
    """Raise for the first field that is at fault; `key_of` tells under which key the user wrote it."""
    if not isinstance(values["name"], str) or not values["name"] or not values["name"].isprintable():
        raise InputError("must be a printable text", file=file, key=key_of("name"), value=values["name"])
    for field in _LARGEST_SIZES:
        problem = size_problem(field, values[field])
        if problem:
            raise InputError(problem, file=file, key=key_of(field), value=values[field])
    for field in _FLAGS:
        if not isinstance(values[field], bool):
            raise InputError("must be true or false", file=file, key=key_of(field), value=values[field])
    if values["heads"] % values["kv_heads"]:
        problem = f"must divide the {values['heads']} query heads"
        raise InputError(problem, file=file, key=key_of("kv_heads"), value=values["kv_heads"])
