"""Where a shape comes from: the catalog, a config.json, or the scenario itself."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import MISSING, fields
from pathlib import Path
from typing import Any

from odcsim.catalog import model_entries, model_names
from odcsim.errors import InputError
from odcsim.model_shape.huggingface import read_config
from odcsim.model_shape.shape import ModelShape, check_fields
from odcsim.suggest import unknown_name

__all__ = ["load_model"]


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
        return read_config(value, base_folder=base_folder, file=file, key=key)
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
    check_fields(values, file=file, key_of=lambda field: f"{key}.{field}")
    return ModelShape(**values)
