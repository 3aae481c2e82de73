"""A decoder's shape: how many parameters it has and how many FLOPs it takes.

Dense decoders of the Llama kind are covered: grouped-query attention (q, k, v, o), a gated FFN (gate, up, down), two
RMS norms a block and one after the last, an embedding and a head that may share its weights. A shape comes from the
catalog, from a Hugging Face config.json, or is written out. Counts are exact; FLOPs count a multiply-add as two and
leave out norms, biases, activations and the softmax. Attention is causal: of the square only the unmasked half counts.
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable, Mapping
from dataclasses import MISSING, dataclass, fields
from pathlib import Path
from typing import Any

from odcsim.catalog import model_entries, model_names
from odcsim.errors import InputError
from odcsim.files import read_text
from odcsim.suggest import unknown_name

__all__ = ["ModelShape", "SlidingWindowWarning", "load_model"]

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


class SlidingWindowWarning(UserWarning):
    """A model attends within a sliding window only, but its attention is counted as fully causal."""


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
        _check(vars(self), file=None, key_of=str)

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


def _size_problem(field: str, value: object) -> str | None:
    largest = _LARGEST_SIZES[field]
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= largest:
        return f"must be a whole number from 1 to {largest}"
    return None


def _check(values: Mapping[str, Any], *, file: object | None, key_of: Callable[[str], str]) -> None:
    """Raise for the first field that is at fault; `key_of` tells under which key the user wrote it."""
    if not isinstance(values["name"], str) or not values["name"]:
        raise InputError("must be a text", file=file, key=key_of("name"), value=values["name"])
    for field in _LARGEST_SIZES:
        problem = _size_problem(field, values[field])
        if problem:
            raise InputError(problem, file=file, key=key_of(field), value=values[field])
    for field in _FLAGS:
        if not isinstance(values[field], bool):
            raise InputError("must be true or false", file=file, key=key_of(field), value=values[field])
    if values["heads"] % values["kv_heads"]:
        problem = f"must divide the {values['heads']} query heads"
        raise InputError(problem, file=file, key=key_of("kv_heads"), value=values["kv_heads"])


def load_model(value: object, *, base_folder: Path, file: object | None = None, key: str = "model") -> ModelShape:
    """The shape that `value` stands for.

    Args:
        value: a catalog name (whatever its case), the path of a Hugging Face config.json (a text that ends in .json or
            contains a slash), or a mapping with the fields of `ModelShape`, of which `name` may be left out.
        base_folder: what a relative path starts from.
        file: the file that holds `value`, for errors.
        key: the key that holds `value`, for errors.

    Raises:
        InputError: a name, key or file that does not exist, a file that is not a config.json of a dense decoder of a
            known family, or a value that `ModelShape` refuses.

    Warns:
        SlidingWindowWarning: the config attends within a sliding window, which is not modelled.
    """
    if isinstance(value, Mapping):
        return _from_mapping(value, file=file, key=key)
    if not isinstance(value, str):
        problem = "must be a catalog name, the path of a config.json, or a mapping of sizes"
        raise InputError(problem, file=file, key=key, value=value)
    if value.lower().endswith(".json") or "/" in value:
        return _from_config_file(value, base_folder=base_folder, file=file, key=key)
    name = value.strip().lower()
    if name not in model_names():
        raise unknown_name("model", value, model_names(), file=file, key=key)
    return ModelShape(name=name, **model_entries()[name]["shape"])


def _from_mapping(written: Mapping[Any, Any], *, file: object | None, key: str) -> ModelShape:
    known = [field.name for field in fields(ModelShape)]
    for name in written:
        if name not in known:
            raise unknown_name("model key", name, known, file=file, key=key)
    values: dict[str, Any] = {"name": "inline"}
    values |= {field.name: field.default for field in fields(ModelShape) if field.default is not MISSING}
    values |= written
    missing = [name for name in known if name not in values]
    if missing:
        raise InputError(f"missing: {', '.join(missing)}", file=file, key=key)
    _check(values, file=file, key_of=lambda field: f"{key}.{field}")
    return ModelShape(**values)


@dataclass(frozen=True)
class _Family:
    """What transformers makes of a config.json of one model_type, beyond what the file says.

    Attributes:
        kv_heads: when num_key_value_heads is absent; None: as many as query heads.
        head_dim: when head_dim is absent; None: hidden_size / num_attention_heads.
        qkv_bias: None: attention_bias decides.
        output_bias: None: attention_bias decides.
        mlp_bias: None: mlp_bias decides.
        qk_norm: whether queries and keys are normalized.
    """

    kv_heads: int | None = None
    head_dim: int | None = None
    qkv_bias: bool | None = False
    output_bias: bool | None = False
    mlp_bias: bool | None = False
    qk_norm: bool = False


# Checked against the configuration and modeling files of transformers 4.5x and 5. All of them default to an untied
# head. The Qwen classes assume 32 key-value heads, which fits few of their own models; "as many as query heads" is what
# their null means.
_FAMILIES = {
    "llama": _Family(qkv_bias=None, output_bias=None, mlp_bias=None),
    "mistral": _Family(kv_heads=8),
    "qwen2": _Family(qkv_bias=True),
    "qwen3": _Family(head_dim=128, qkv_bias=None, output_bias=None, qk_norm=True),
}
_EXPERT_KEYS = ("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts")
_CONFIG_KEYS = {
    "layers": "num_hidden_layers",
    "hidden": "hidden_size",
    "heads": "num_attention_heads",
    "kv_heads": "num_key_value_heads",
    "head_dim": "head_dim",
    "ffn": "intermediate_size",
    "vocab": "vocab_size",
}
_REQUIRED_FIELDS = ("layers", "hidden", "heads", "ffn", "vocab")
_DEFAULT_WINDOW = 4096  # of MistralConfig, Qwen2Config and Qwen3Config
_DEFAULT_FULL_LAYERS = 28  # max_window_layers of Qwen2Config and Qwen3Config


def _from_config_file(written: str, *, base_folder: Path, file: object | None, key: str) -> ModelShape:
    path = base_folder / written
    try:
        text = read_text(path, what="Hugging Face config.json", key=key)
    except InputError as error:
        # The likeliest slip is a repository's name where a catalog name is meant.
        name = Path(written).name.lower()
        hint = f"; the catalog has {name!r}" if name in model_names() else ""
        raise InputError(f"{error.problem}{hint}", file=file or path, key=key, value=written) from None
    try:
        config = json.loads(text)
    except json.JSONDecodeError as error:
        raise InputError(f"not valid JSON ({error.msg})", file=path, key=f"line {error.lineno}") from None
    except (RecursionError, ValueError):
        raise InputError("not valid JSON (nested too deeply, or a number too long)", file=path) from None
    if not isinstance(config, dict):
        raise InputError("must hold a JSON object, as a Hugging Face config.json does", file=path)
    name = path.resolve().parent.name if path.stem == "config" else path.stem
    return _Config(config, file=path).shape(name or "config.json")


class _Config:
    """A config.json, or its text_config where a vision-language model nests one: only its decoder counts then."""

    def __init__(self, config: dict[str, Any], *, file: Path) -> None:
        self.file = file
        self.prefix = ""
        self.config = config
        nested = config.get("text_config")
        if isinstance(nested, dict) and str(config.get("model_type")) not in _FAMILIES:
            self.prefix = "text_config."
            # Tying is stated outside in some of these files.
            outer = {"tie_word_embeddings": config["tie_word_embeddings"]} if "tie_word_embeddings" in config else {}
            self.config = outer | nested

    def error(self, problem: str, key: str) -> InputError:
        """What is wrong with the value of `key`."""
        return InputError(problem, file=self.file, key=f"{self.prefix}{key}", value=self.config[key])

    def shape(self, name: str) -> ModelShape:
        """The decoder's shape."""
        family = self.family()
        missing = [_CONFIG_KEYS[field] for field in _REQUIRED_FIELDS if _CONFIG_KEYS[field] not in self.config]
        if missing:
            problem = f"missing: {', '.join(f'{self.prefix}{key}' for key in missing)}"
            raise InputError(problem, file=self.file)
        sizes = {field: self.size(field) for field in _REQUIRED_FIELDS}
        sizes["kv_heads"] = self.size("kv_heads", absent=family.kv_heads, null=sizes["heads"])
        sizes["head_dim"] = self.head_dim(family, hidden=sizes["hidden"], heads=sizes["heads"])
        attention_bias = self.flag("attention_bias")
        values: dict[str, Any] = {
            "name": name,
            **sizes,
            "tied_embeddings": self.flag("tie_word_embeddings"),
            "qkv_bias": attention_bias if family.qkv_bias is None else family.qkv_bias,
            "output_bias": attention_bias if family.output_bias is None else family.output_bias,
            "mlp_bias": self.flag("mlp_bias") if family.mlp_bias is None else family.mlp_bias,
            "qk_norm": family.qk_norm,
        }
        _check(values, file=self.file, key_of=lambda field: self.prefix + _CONFIG_KEYS[field])
        self.warn_of_window(sizes["layers"])
        return ModelShape(**values)

    def family(self) -> _Family:
        """The family of the model_type, once it is sure to be a dense decoder."""
        allowed = f"dense decoders are: {', '.join(_FAMILIES)}"
        for key in _EXPERT_KEYS:
            if self.config.get(key):
                raise self.error(f"a mixture of experts is not supported; {allowed}", key)
        if "model_type" not in self.config:
            raise InputError(f"missing: {self.prefix}model_type; {allowed}", file=self.file)
        model_type = self.config["model_type"]
        if not isinstance(model_type, str) or model_type not in _FAMILIES:
            raise self.error(f"not supported; {allowed}", "model_type")
        return _FAMILIES[model_type]

    def size(self, field: str, *, absent: int | None = None, null: int | None = None) -> int:
        """A size; `absent` where the key is not there, `null` where it is null or `absent` is None."""
        key = _CONFIG_KEYS[field]
        value = self.config.get(key, absent)
        if value is None and null is not None:
            return null
        problem = _size_problem(field, value)
        if problem:
            raise self.error(problem, key)
        assert isinstance(value, int)
        return value

    def head_dim(self, family: _Family, *, hidden: int, heads: int) -> int:
        """The width of a head: stated, the family's, or an equal part of the hidden width."""
        if self.config.get("head_dim", family.head_dim) is None:
            if hidden % heads:
                raise self.error(
                    f"must divide the hidden_size {hidden}, as head_dim is not given", "num_attention_heads"
                )
            return hidden // heads
        return self.size("head_dim", absent=family.head_dim)

    def flag(self, key: str) -> bool:
        """A flag; false where it is absent or null."""
        value = self.config.get(key)
        if value is None:
            return False
        if not isinstance(value, bool):
            raise self.error("must be true or false", key)
        return value

    def whole(self, key: str, default: int) -> int | None:
        """A whole number, or None where it is null."""
        value = self.config.get(key, default)
        if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < 0):
            raise self.error("must be a whole number or null", key)
        return value

    def warn_of_window(self, layers: int) -> None:
        """Warn if some layer attends within a window only."""
        model_type = self.config["model_type"]
        if model_type == "llama":
            return
        window = self.whole("sliding_window", _DEFAULT_WINDOW)
        if model_type != "mistral":
            if not self.flag("use_sliding_window"):
                return
            layer_types = self.config.get("layer_types")
            full_layers = self.whole("max_window_layers", _DEFAULT_FULL_LAYERS)
            if isinstance(layer_types, list):
                windowed = "sliding_attention" in layer_types
            else:
                windowed = full_layers is not None and full_layers < layers
            window = window if windowed else None
        if window is not None:
            text = (
                f"{self.file}: {self.prefix}sliding_window: {window}: attention is counted as fully causal; sequences "
                "longer than the window take less time than predicted"
            )
            # The caller of load_model is who chose the file.
            warnings.warn(SlidingWindowWarning(text), stacklevel=5)
