"""Shapes from Hugging Face's config.json: dense decoders of the families that share the Llama block."""

from __future__ import annotations

import json
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from odcsim.catalog import model_names
from odcsim.errors import InputError
from odcsim.files import read_text
from odcsim.model_shape.shape import ModelShape, check_fields, size_problem

__all__ = ["SlidingWindowWarning", "read_config"]


class SlidingWindowWarning(UserWarning):
    """A model attends within a sliding window only, but its attention is counted as fully causal."""


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


def read_config(written: str, *, base_folder: Path, file: object | None, key: str) -> ModelShape:
    """The shape that a config.json describes.

    Args:
        written: its path.
        base_folder: what a relative path starts from.
        file: the file that holds `written`, for errors.
        key: the key that holds `written`, for errors.

    Raises:
        InputError: no such file, not JSON, or not a dense decoder of a known family.
    """
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
        check_fields(values, file=self.file, key_of=lambda field: self.prefix + _CONFIG_KEYS[field])
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
        problem = size_problem(field, value)
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
