"""`odcsim catalog`: the models and GPUs that a scenario can name, each figure with its source."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from rich.console import Console

__all__ = ["catalog"]


def catalog(
    name: Annotated[str | None, typer.Argument(help="A model or GPU, to see its figures and sources.")] = None,
    *,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON document.")] = False,
) -> None:
    """List known models and GPUs, or show one with its figures and their sources.

    Example: odcsim catalog h100-80g-sxm
    """
    from dataclasses import asdict
    from pathlib import Path

    from odcsim.catalog import gpu_names, load_gpu, model_names
    from odcsim.model_shape import load_model

    shapes = {entry: load_model(entry, base_folder=Path()) for entry in model_names()}
    models = {entry: {**asdict(shape), "total_parameters": shape.total_parameters} for entry, shape in shapes.items()}
    gpus = {entry: asdict(load_gpu(entry)) for entry in gpu_names()}
    if name is not None:
        models = {entry: figures for entry, figures in models.items() if entry == name.lower()}
        gpus = {} if models else _gpu_called(name, gpus, models=model_names())
    if json:
        import json as json_module

        typer.echo(json_module.dumps({"models": models, "gpus": gpus}, indent=1))
        return
    from rich.console import Console

    console = Console()
    if name is not None:
        _print_one(console, {**models, **gpus})
    else:
        _print_tables(console, models, gpus)


def _shown(value: object) -> str:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return str(value)
    return f"{value:,.0f}" if float(value).is_integer() else f"{value:g}"


def _gpu_called(
    name: str, gpus: dict[str, dict[str, object]], *, models: tuple[str, ...]
) -> dict[str, dict[str, object]]:
    """The GPU of that name or alias."""
    from odcsim.catalog import load_gpu
    from odcsim.errors import UnknownNameError
    from odcsim.suggest import unknown_name

    try:
        found = load_gpu(name).name
    except UnknownNameError:
        raise unknown_name("model or GPU", name, [*models, *gpus], key="NAME") from None
    return {found: gpus[found]}


def _print_one(console: Console, entries: dict[str, dict[str, object]]) -> None:
    from rich.table import Table

    for name, figures in entries.items():
        sources = figures.get("sources")
        table = Table("figure", "value", "source", title=name, title_justify="left")
        for key, value in figures.items():
            if key != "sources":
                source = sources.get(key, "") if isinstance(sources, dict) else ""
                table.add_row(key, _shown(value), str(source))
        console.print(table)


def _print_tables(console: Console, models: dict[str, dict[str, object]], gpus: dict[str, dict[str, object]]) -> None:
    from rich.table import Table

    from odcsim.units import format_count

    table = Table("model", "parameters", "layers", "hidden", "heads/kv", "ffn", "vocab")
    for name, shape in models.items():
        table.add_row(
            name,
            format_count(float(str(shape["total_parameters"]))),
            *(str(shape[key]) for key in ("layers", "hidden")),
            f"{shape['heads']}/{shape['kv_heads']}",
            *(str(shape[key]) for key in ("ffn", "vocab")),
        )
    console.print(table)
    table = Table("GPU", "bf16 TFLOP/s", "memory", "GB/s", "link GB/s", "network Gb/s")
    for name, gpu in gpus.items():
        figures = {key: value for key, value in gpu.items() if isinstance(value, int | float)}
        table.add_row(
            name,
            f"{figures['peak_flops_per_s'] / 1e12:,.0f}",
            f"{figures['memory_bytes'] / 2**30:,.0f} GiB",
            f"{figures['memory_bandwidth_bytes_per_s'] / 1e9:,.0f}",
            f"{figures['intra_node_bandwidth_bytes_per_s'] / 1e9:,.0f}",
            f"{figures['inter_node_bandwidth_bytes_per_s'] * 8 / 1e9:,.0f}",
        )
    console.print(table)
