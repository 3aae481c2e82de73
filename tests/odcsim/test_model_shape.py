"""A decoder's shape: published parameter counts, FLOPs by hand, and every kind of config.json, taken or refused."""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from odcsim.catalog import model_entries, model_names
from odcsim.errors import InputError, UnknownNameError
from odcsim.model_shape import ModelShape, SlidingWindowWarning, load_model

HERE = Path(__file__).parent
TINY = {"layers": 2, "hidden": 8, "heads": 4, "kv_heads": 2, "head_dim": 3, "ffn": 10, "vocab": 100}

# As published in the repositories: model type and what decides about the shape, shortened by keys that do not.
LLAMA_31_8B = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "attention_bias": False,
    "hidden_act": "silu",
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "max_position_embeddings": 131072,
    "mlp_bias": False,
    "num_attention_heads": 32,
    "num_hidden_layers": 32,
    "num_key_value_heads": 8,
    "rope_theta": 500000.0,
    "tie_word_embeddings": False,
    "vocab_size": 128256,
}
QWEN25_7B = {
    "model_type": "qwen2",
    "hidden_size": 3584,
    "intermediate_size": 18944,
    "max_window_layers": 28,
    "num_attention_heads": 28,
    "num_hidden_layers": 28,
    "num_key_value_heads": 4,
    "sliding_window": 131072,
    "tie_word_embeddings": False,
    "use_sliding_window": False,
    "vocab_size": 152064,
}
QWEN3_06B = {
    "model_type": "qwen3",
    "attention_bias": False,
    "head_dim": 128,
    "hidden_size": 1024,
    "intermediate_size": 3072,
    "max_window_layers": 28,
    "num_attention_heads": 16,
    "num_hidden_layers": 28,
    "num_key_value_heads": 8,
    "sliding_window": None,
    "tie_word_embeddings": True,
    "use_sliding_window": False,
    "vocab_size": 151936,
}
MISTRAL_7B = {
    "model_type": "mistral",
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_attention_heads": 32,
    "num_hidden_layers": 32,
    "num_key_value_heads": 8,
    "sliding_window": None,
    "tie_word_embeddings": False,
    "vocab_size": 32768,
}


@pytest.fixture
def config(tmp_path: Path) -> Callable[..., ModelShape]:
    """Writes a config.json and loads it, `changes` made and the keys of `without` left out."""

    def load(base: dict[str, Any], *, without: tuple[str, ...] = (), **changes: object) -> ModelShape:
        kept = {key: value for key, value in (base | changes).items() if key not in without}
        (tmp_path / "config.json").write_text(json.dumps(kept), encoding="utf-8")
        return load_model("./config.json", base_folder=tmp_path, file="s.yaml")

    return load


@pytest.fixture
def refused_config(tmp_path: Path, config: Callable[..., ModelShape]) -> Callable[..., str]:
    """The one line with which a config.json is refused, its folder left out."""

    def load(base: dict[str, Any], **changes: object) -> str:
        with pytest.raises(InputError) as caught:
            config(base, **changes)
        text = str(caught.value)
        assert "\n" not in text
        return text.replace(f"{tmp_path}/", "")

    return load


def refusal(value: object, base_folder: Path = HERE) -> str:
    with pytest.raises(InputError) as caught:
        load_model(value, base_folder=base_folder, file="s.yaml")
    text = str(caught.value)
    assert "\n" not in text
    return text


# --- parameters ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", model_names())
def test_parameters_are_as_many_as_published(name: str):
    assert load_model(name, base_folder=HERE).total_parameters == model_entries()[name]["published_parameters"]


@pytest.mark.parametrize(
    ("name", "total"),
    [
        ("deepseek-r1-distill-qwen-1.5b", 1_777_088_000),
        ("qwen2.5-1.5b", 1_543_714_304),
        ("deepseek-r1-distill-qwen-7b", 7_615_616_512),
        ("deepseek-r1-distill-qwen-14b", 14_770_033_664),
        ("deepseek-r1-distill-qwen-32b", 32_763_876_352),
        ("llama-3.1-8b", 8_030_261_248),
        ("llama-3.1-70b", 70_553_706_496),
        ("qwen3-8b", 8_190_735_360),
        ("qwen3-32b", 32_762_123_264),
    ],
)
def test_published_counts_are_what_this_test_knows_too(name: str, total: int):
    assert load_model(name, base_folder=HERE).total_parameters == total


@pytest.mark.parametrize(
    ("name", "block", "head"),
    [
        ("deepseek-r1-distill-qwen-1.5b", 46_797_824, 233_373_696),
        ("deepseek-r1-distill-qwen-7b", 233_057_792, 544_997_376),
        ("deepseek-r1-distill-qwen-14b", 275_268_608, 778_567_680),
        ("deepseek-r1-distill-qwen-32b", 487_605_248, 778_567_680),
    ],
)
def test_blocks_and_heads_of_the_odc_papers_models(name: str, block: int, head: int):
    shape = load_model(name, base_folder=HERE)
    assert (shape.parameters_per_block, shape.head_parameters) == (block, head)
    assert shape.embedding_parameters == head


def test_a_tied_head_adds_no_parameters_but_takes_its_flops():
    tied = load_model("qwen2.5-1.5b", base_folder=HERE)
    untied = load_model("deepseek-r1-distill-qwen-1.5b", base_folder=HERE)
    assert tied.head_parameters == 0
    assert tied.root_parameters == 151936 * 1536 + 1536
    assert untied.root_parameters == 2 * 151936 * 1536 + 1536
    assert tied.forward_head_flops_per_token == untied.forward_head_flops_per_token == 2 * 151936 * 1536


def test_parameters_by_hand():
    plain = ModelShape("tiny", **TINY)
    # q and o: 8 x 12; k and v: 8 x 6; gate, up and down: 8 x 10; two norms of 8
    assert plain.block_matmul_parameters == 2 * 96 + 2 * 48 + 3 * 80
    assert plain.parameters_per_block == plain.block_matmul_parameters + 16
    assert plain.total_parameters == 2 * (528 + 16) + 2 * 800 + 8
    per_block = plain.parameters_per_block
    assert replace(plain, qkv_bias=True).parameters_per_block == per_block + 12 + 6 + 6
    assert replace(plain, output_bias=True).parameters_per_block == per_block + 8
    assert replace(plain, mlp_bias=True).parameters_per_block == per_block + 10 + 10 + 8
    assert replace(plain, qk_norm=True).parameters_per_block == per_block + 3 + 3


# --- FLOPs -----------------------------------------------------------------------------------------------------------


def test_flops_by_hand():
    shape = ModelShape("tiny", **TINY)
    assert shape.forward_linear_flops_per_token == 2 * 528
    assert shape.forward_attention_flops_per_squared_token == 2 * 4 * 3
    assert shape.forward_head_flops_per_token == 2 * 100 * 8
    # two sequences, of 5 and 7 tokens
    forward = 2 * (1056 * 12 + 24 * (25 + 49)) + 1600 * 12
    assert shape.model_flops(tokens=12, squared_tokens=25 + 49) == 3 * forward


def test_the_papers_cost_fit_gives_the_rates_the_catalog_cites():
    # time = a x^2 + b x a microbatch on an A100, x = tokens / 32000; forward, recomputation, backward
    for name, quadratic_s, linear_s, attention_tflops, linear_tflops in [
        ("deepseek-r1-distill-qwen-1.5b", 1.982122, 2.611821, 200, 151),
        ("deepseek-r1-distill-qwen-7b", 4.348357, 8.768377, 213, 206),
    ]:
        shape = load_model(name, base_folder=HERE)
        blocks = shape.layers * shape.forward_linear_flops_per_token
        linear = 4 * (blocks + shape.forward_head_flops_per_token) * 32000
        attention = 4.5 * shape.layers * shape.forward_attention_flops_per_squared_token * 32000**2
        assert linear / linear_s / 1e12 == pytest.approx(linear_tflops, abs=0.5)
        assert attention / quadratic_s / 1e12 == pytest.approx(attention_tflops, abs=0.5)


@given(st.floats(0, 1e6), st.floats(0, 1e12), st.integers(1, 50))
def test_model_flops_add_up_over_microbatches(tokens: float, squared: float, parts: int):
    shape = load_model("qwen3-8b", base_folder=HERE)
    whole = shape.model_flops(tokens=tokens * parts, squared_tokens=squared * parts)
    assert whole == pytest.approx(parts * shape.model_flops(tokens=tokens, squared_tokens=squared))


# --- validation ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("field", TINY)
@pytest.mark.parametrize("value", [0, -1, 2.0, "4", None, True, 10**12])
def test_absurd_sizes_are_refused(field: str, value: object):
    with pytest.raises(InputError, match=f"^{field}: .*: must be a whole number from 1 to "):
        ModelShape("tiny", **(TINY | {field: value}))


def test_other_refusals_of_a_shape():
    with pytest.raises(InputError, match=r"^kv_heads: 3: must divide the 4 query heads$"):
        ModelShape("tiny", **(TINY | {"kv_heads": 3}))
    with pytest.raises(InputError, match=r"^qk_norm: 1: must be true or false$"):
        ModelShape("tiny", **TINY, qk_norm=1)
    with pytest.raises(InputError, match=r"^name: '': must be a printable text$"):
        ModelShape("", **TINY)


# --- catalog names and inline shapes ---------------------------------------------------------------------------------


def test_names_are_found_in_any_case():
    shape = load_model("Qwen2.5-7B", base_folder=HERE)
    assert shape == load_model("qwen2.5-7b", base_folder=HERE)
    assert shape.name == "qwen2.5-7b"


def test_an_unknown_name_is_refused_with_the_nearest():
    with pytest.raises(UnknownNameError) as caught:
        load_model("qwen2.5-7b-instruct", base_folder=HERE, file="s.yaml")
    assert str(caught.value).startswith(
        "s.yaml: model: 'qwen2.5-7b-instruct': unknown model; did you mean 'qwen2.5-7b'? (known: deepseek-r1-distill-"
    )


def test_an_inline_shape():
    assert load_model(TINY, base_folder=HERE) == ModelShape("inline", **TINY)
    named = {"name": "ours", **TINY, "tied_embeddings": True, "qk_norm": True}
    assert asdict(load_model(named, base_folder=HERE)) == named | {
        "qkv_bias": False,
        "output_bias": False,
        "mlp_bias": False,
    }


def test_inline_shapes_that_are_refused():
    assert refusal(TINY | {"head": 4}) == (
        "s.yaml: model: 'head': unknown model key; did you mean 'heads'? (known: ffn, head_dim, heads, hidden, "
        "kv_heads, layers, mlp_bias, name, output_bias, qk_norm, qkv_bias, tied_embeddings, vocab)"
    )
    assert refusal({"layers": 2, "heads": 4, "vocab": 100}) == (
        "s.yaml: model: missing: hidden, kv_heads, head_dim, ffn"
    )
    assert refusal(TINY | {"ffn": 1.5}) == "s.yaml: model.ffn: 1.5: must be a whole number from 1 to 10000000"
    assert refusal(TINY | {"kv_heads": 3}) == "s.yaml: model.kv_heads: 3: must divide the 4 query heads"
    assert refusal(TINY | {"mlp_bias": "no"}) == "s.yaml: model.mlp_bias: 'no': must be true or false"


@pytest.mark.parametrize("value", [None, 7, ["qwen2.5-7b"]])
def test_neither_text_nor_mapping_is_refused(value: object):
    assert refusal(value) == (
        f"s.yaml: model: {value!r}: must be a catalog name, the path of a config.json, or a mapping of sizes"
    )


# --- config.json -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("base", "name"),
    [
        (LLAMA_31_8B, "llama-3.1-8b"),
        (QWEN25_7B, "qwen2.5-7b"),
        (QWEN3_06B, "qwen3-0.6b"),
        (MISTRAL_7B, "mistral-7b-v0.3"),
    ],
)
def test_a_config_of_each_family_equals_its_catalog_entry(
    config: Callable[..., ModelShape], tmp_path: Path, base: dict[str, Any], name: str
):
    shape = config(base)
    assert shape.name == tmp_path.name
    assert replace(shape, name=name) == load_model(name, base_folder=HERE)


def test_a_config_is_named_by_its_folder_or_its_file(tmp_path: Path):
    folder = tmp_path / "My-Qwen"
    folder.mkdir()
    for file_name in ("config.json", "shape.json"):
        (folder / file_name).write_text(json.dumps(QWEN25_7B), encoding="utf-8")
    assert load_model("My-Qwen/config.json", base_folder=tmp_path).name == "My-Qwen"
    assert load_model(str(folder / "shape.json"), base_folder=HERE).name == "shape"


def test_absent_or_null_key_value_heads_mean_as_many_as_query_heads(config: Callable[..., ModelShape]):
    assert config(LLAMA_31_8B, without=("num_key_value_heads",)).kv_heads == 32
    assert config(QWEN25_7B, without=("num_key_value_heads",)).kv_heads == 28
    assert config(LLAMA_31_8B, num_key_value_heads=None).kv_heads == 32
    # MistralConfig alone assumes a number of its own.
    assert config(MISTRAL_7B, without=("num_key_value_heads",)).kv_heads == 8
    assert config(MISTRAL_7B, num_key_value_heads=None).kv_heads == 32


def test_absent_or_null_head_dim_means_an_equal_part(config: Callable[..., ModelShape]):
    assert config(LLAMA_31_8B).head_dim == 128
    assert config(LLAMA_31_8B, head_dim=None).head_dim == 128
    assert config(LLAMA_31_8B, head_dim=64).head_dim == 64
    assert config(MISTRAL_7B, head_dim=256).head_dim == 256
    assert config(QWEN3_06B, head_dim=None).head_dim == 64
    # Qwen3Config assumes 128 whatever the width, which the 0.6B depends on.
    assert config(QWEN3_06B, without=("head_dim",)).head_dim == 128


def test_biases_of_each_family(config: Callable[..., ModelShape]):
    def biases(shape: ModelShape) -> tuple[bool, bool, bool]:
        return shape.qkv_bias, shape.output_bias, shape.mlp_bias

    assert biases(config(LLAMA_31_8B, without=("attention_bias", "mlp_bias"))) == (False, False, False)
    assert biases(config(LLAMA_31_8B, attention_bias=True)) == (True, True, False)
    assert biases(config(LLAMA_31_8B, mlp_bias=True)) == (False, False, True)
    assert biases(config(QWEN25_7B, attention_bias=False)) == (True, False, False)
    assert biases(config(QWEN3_06B, attention_bias=True)) == (True, True, False)
    assert biases(config(MISTRAL_7B, attention_bias=True, mlp_bias=True)) == (False, False, False)
    assert [config(base).qk_norm for base in (LLAMA_31_8B, QWEN25_7B, QWEN3_06B, MISTRAL_7B)] == [0, 0, 1, 0]


@pytest.mark.parametrize("base", [LLAMA_31_8B, QWEN25_7B, QWEN3_06B, MISTRAL_7B])
def test_heads_are_tied_only_where_the_config_says_so(config: Callable[..., ModelShape], base: dict[str, Any]):
    assert not config(base, without=("tie_word_embeddings",)).tied_embeddings
    assert config(base, tie_word_embeddings=True).tied_embeddings


def test_the_decoder_of_a_vision_language_model_is_taken(config: Callable[..., ModelShape]):
    outer = {"model_type": "mistral3", "vision_config": {"hidden_size": 1024}}
    shape = config(outer, text_config=MISTRAL_7B)
    assert replace(shape, name="mistral-7b-v0.3") == load_model("mistral-7b-v0.3", base_folder=HERE)
    inner = {key: value for key, value in QWEN25_7B.items() if key != "tie_word_embeddings"}
    assert config({"model_type": "llava", "tie_word_embeddings": True}, text_config=inner).tied_embeddings
    assert not config({"model_type": "llava", "tie_word_embeddings": True}, text_config=QWEN25_7B).tied_embeddings


def test_configs_of_other_kinds_are_refused(refused_config: Callable[..., str]):
    dense = "dense decoders are: llama, mistral, qwen2, qwen3"
    for model_type in ("gemma2", "gpt_neox", "qwen3_next"):
        text = f"config.json: model_type: {model_type!r}: not supported; {dense}"
        assert refused_config(LLAMA_31_8B, model_type=model_type) == text
    for key in ("num_experts", "num_local_experts", "n_routed_experts"):
        text = f"config.json: {key}: 8: a mixture of experts is not supported; {dense}"
        assert refused_config(QWEN3_06B, model_type="qwen3_moe", **{key: 8}) == text
        assert refused_config(QWEN3_06B, **{key: 8}) == text
    assert refused_config({"model_type": "gemma3"}, text_config=LLAMA_31_8B | {"model_type": "gemma3_text"}) == (
        f"config.json: text_config.model_type: 'gemma3_text': not supported; {dense}"
    )
    assert refused_config({"model_type": "llama4"}, text_config=LLAMA_31_8B | {"num_local_experts": 16}) == (
        f"config.json: text_config.num_local_experts: 16: a mixture of experts is not supported; {dense}"
    )
    assert refused_config(LLAMA_31_8B, without=("model_type",)) == f"config.json: missing: model_type; {dense}"
    assert refused_config(LLAMA_31_8B, model_type=["llama"]) == (
        f"config.json: model_type: ['llama']: not supported; {dense}"
    )


def test_no_experts_is_a_dense_model(config: Callable[..., ModelShape]):
    assert config(LLAMA_31_8B, num_experts=None, num_local_experts=0).layers == 32


def test_configs_with_missing_or_wrong_values_are_refused(refused_config: Callable[..., str]):
    assert refused_config(LLAMA_31_8B, without=("hidden_size", "vocab_size")) == (
        "config.json: missing: hidden_size, vocab_size"
    )
    inner = {key: value for key, value in LLAMA_31_8B.items() if key != "intermediate_size"}
    assert refused_config({"model_type": "llava"}, text_config=inner) == (
        "config.json: missing: text_config.intermediate_size"
    )
    for value in ("32", 32.0, None, True, [32], 0, -4, 10**9):
        assert refused_config(LLAMA_31_8B, num_hidden_layers=value) == (
            f"config.json: num_hidden_layers: {value!r}: must be a whole number from 1 to 10000"
        )
    assert refused_config(LLAMA_31_8B, num_key_value_heads="8") == (
        "config.json: num_key_value_heads: '8': must be a whole number from 1 to 100000"
    )
    assert refused_config(LLAMA_31_8B, num_key_value_heads=5) == (
        "config.json: num_key_value_heads: 5: must divide the 32 query heads"
    )
    assert refused_config(LLAMA_31_8B, num_attention_heads=24) == (
        "config.json: num_attention_heads: 24: must divide the hidden_size 4096, as head_dim is not given"
    )
    assert refused_config(LLAMA_31_8B, head_dim=0) == (
        "config.json: head_dim: 0: must be a whole number from 1 to 10000"
    )
    assert refused_config(LLAMA_31_8B, attention_bias="yes") == (
        "config.json: attention_bias: 'yes': must be true or false"
    )
    assert refused_config(MISTRAL_7B, sliding_window="4k") == (
        "config.json: sliding_window: '4k': must be a whole number or null"
    )


@pytest.mark.parametrize(
    ("text", "refused"),
    [
        ('{\n  "model_type": "llama"\n  "hidden_size": 1\n}', "line 3: not valid JSON (Expecting ',' delimiter)"),
        ("", "line 1: not valid JSON (Expecting value)"),
        ("[" * 100_000, "not valid JSON (nested too deeply, or a number too long)"),
        ('{"hidden_size": ' + "1" * 5000 + "}", "not valid JSON (nested too deeply, or a number too long)"),
        ("[1, 2]", "must hold a JSON object, as a Hugging Face config.json does"),
    ],
)
def test_files_that_are_not_json_objects_are_refused(tmp_path: Path, text: str, refused: str):
    path = tmp_path / "config.json"
    path.write_text(text, encoding="utf-8")
    assert refusal("config.json", tmp_path) == f"{path}: {refused}"


def test_files_that_cannot_be_read_are_refused(tmp_path: Path):
    what = "give the path of a Hugging Face config.json"
    (tmp_path / "folder.json").mkdir()
    (tmp_path / "binary.json").write_bytes(b"\xff\xfe\x00")
    assert refusal("no/config.json", tmp_path) == f"s.yaml: model: 'no/config.json': no such file; {what}"
    assert refusal("folder.json", tmp_path) == f"s.yaml: model: 'folder.json': is a folder; {what}"
    assert refusal("binary.json", tmp_path) == f"s.yaml: model: 'binary.json': is not UTF-8 text; {what}"
    assert refusal("Qwen/Qwen2.5-7B", tmp_path) == (
        f"s.yaml: model: 'Qwen/Qwen2.5-7B': no such file; {what}; the catalog has 'qwen2.5-7b'"
    )


# --- sliding windows -------------------------------------------------------------------------------------------------

WINDOWED_QWEN = {"use_sliding_window": True, "sliding_window": 4096, "max_window_layers": 20}


@pytest.mark.parametrize(
    ("base", "changes"),
    [
        (MISTRAL_7B, {"sliding_window": 4096}),
        (MISTRAL_7B, {"without": ("sliding_window",)}),  # MistralConfig's own default is a window
        (QWEN25_7B, WINDOWED_QWEN),
        (QWEN3_06B, WINDOWED_QWEN),
        (QWEN25_7B, WINDOWED_QWEN | {"max_window_layers": 28, "layer_types": ["full_attention", "sliding_attention"]}),
    ],
)
def test_a_window_in_use_is_warned_of(
    config: Callable[..., ModelShape], tmp_path: Path, base: dict[str, Any], changes: dict[str, Any]
):
    with pytest.warns(SlidingWindowWarning) as caught:
        config(base, **changes)
    assert len(caught) == 1
    assert str(caught[0].message) == (
        f"{tmp_path}/config.json: sliding_window: 4096: attention is counted as fully causal; sequences longer than "
        "the window take less time than predicted"
    )
    assert caught[0].filename == __file__


@pytest.mark.parametrize(
    ("base", "changes"),
    [
        (LLAMA_31_8B, {"sliding_window": 4096}),
        (QWEN25_7B, {}),
        (QWEN25_7B, WINDOWED_QWEN | {"sliding_window": None}),
        (QWEN25_7B, WINDOWED_QWEN | {"max_window_layers": 28}),
        (QWEN3_06B, WINDOWED_QWEN | {"layer_types": ["full_attention"] * 28}),
    ],
)
def test_a_window_not_in_use_is_not(config: Callable[..., ModelShape], base: dict[str, Any], changes: dict[str, Any]):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        config(base, **changes)
