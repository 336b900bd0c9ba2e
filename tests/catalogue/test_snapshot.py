"""A snapshot finds what it knows by any of its names, and names what comes nearest."""

from dataclasses import replace

import pytest

from service.catalogue.records.model import ModelRecord, config_sha256
from service.catalogue.records.source import SourceRecord
from service.catalogue.snapshot import Snapshot, UnknownName
from service.sizing.errors import NotUnderstood, SizingError
from tests.examples import GPU, MODEL

OTHER = replace(GPU, slug="x200", name="Example X200", aliases=())
SNAPSHOT = Snapshot(revision=3, gpus=(GPU, OTHER), models=(MODEL, replace(MODEL, name="example/model-70b")))


@pytest.mark.parametrize("name", ["x100", "X100", "Example X100", "x100 sxm"])
def test_a_gpu_answers_to_slug_name_and_alias_in_any_case(name: str) -> None:
    """All lead to the same record."""
    assert SNAPSHOT.gpu(name) is GPU


def test_an_unknown_gpu_names_the_nearest() -> None:
    """By slug."""
    with pytest.raises(UnknownName, match=r"No GPU is named 'x-100'\. Nearest: x100") as raised:
        SNAPSHOT.gpu("x-100")
    assert raised.value.nearest[0] == "x100"


def test_a_model_without_its_owner_is_recognised() -> None:
    """It is not taken for the model, but named as the nearest."""
    with pytest.raises(UnknownName) as raised:
        SNAPSHOT.model("model-7b")
    assert raised.value.nearest[0] == "example/model-7b"


@pytest.mark.parametrize("name", ["example/model-7b-instruct", "other/MODEL-7B-it-fp8", "model-7"])
def test_what_was_tuned_from_a_model_is_near_it(name: str) -> None:
    """Before what is spelt alike but of another size."""
    with pytest.raises(UnknownName) as raised:
        SNAPSHOT.model(name)
    assert raised.value.nearest[0] == "example/model-7b"


HUB = Snapshot(
    revision=1,
    models=tuple(
        replace(MODEL, name=name)
        for name in (
            "deepseek-ai/DeepSeek-R1",
            "deepseek-ai/DeepSeek-R1-Distill-Qwen-32B",
            "deepseek-ai/DeepSeek-V3",
            "meta-llama/Llama-3.1-70B-Instruct",
            "meta-llama/Llama-3.1-8B-Instruct",
            "meta-llama/Llama-3.3-70B-Instruct",
            "meta-llama/Meta-Llama-3-8B-Instruct",
            "meta-llama/Meta-Llama-3.1-8B",
            "mistralai/Mistral-7B-Instruct-v0.3",
            "mistralai/Mixtral-8x7B-Instruct-v0.1",
            "nvidia/Llama-3.1-70B-Instruct-FP8",
            "Qwen/Qwen2.5-72B",
            "Qwen/Qwen2.5-7B-Instruct",
            "Qwen/Qwen3-4B",
            "Qwen/Qwen3-8B",
            "Qwen/Qwen3-8B-FP8",
            "Qwen/Qwen3-Coder-30B-A3B-Instruct",
        )
    ),
)
"""Names as a hub has them, in no order of likeness."""


@pytest.mark.parametrize(
    ("asked", "meant"),
    [
        ("Qwen3-8B", "Qwen/Qwen3-8B"),
        ("qwen3 8b", "Qwen/Qwen3-8B"),
        ("unsloth/Qwen3-8B", "Qwen/Qwen3-8B"),
        ("Qwen/Qwen3-8B-AWQ", "Qwen/Qwen3-8B"),
        ("Qwen/Qwen3_8B_FP8", "Qwen/Qwen3-8B-FP8"),
        ("Qwen3-Coder", "Qwen/Qwen3-Coder-30B-A3B-Instruct"),
        ("Qwen/Qwen2.5-72B-Instruct", "Qwen/Qwen2.5-72B"),
        ("Llama-3.1-8B-Instruct", "meta-llama/Llama-3.1-8B-Instruct"),
        ("llama3.1-8b-instruct", "meta-llama/Llama-3.1-8B-Instruct"),
        ("meta-llama/Meta-Llama-3.1-8B-Instruct", "meta-llama/Llama-3.1-8B-Instruct"),
        ("Meta-Llama-3.1-70B-Instruct", "meta-llama/Llama-3.1-70B-Instruct"),
        ("nvidia/Llama-3.3-70B-Instruct-FP8", "meta-llama/Llama-3.3-70B-Instruct"),
        ("deepseek-ai/DeepSeek-R1-0528", "deepseek-ai/DeepSeek-R1"),
        ("deepseek r1", "deepseek-ai/DeepSeek-R1"),
        ("mixtral", "mistralai/Mixtral-8x7B-Instruct-v0.1"),
        ("mistralai/Mistrall-7B", "mistralai/Mistral-7B-Instruct-v0.3"),
    ],
)
def test_the_model_that_was_meant_comes_first(asked: str, meant: str) -> None:
    """Another owner or none, another spelling, a release or a quantisation the catalogue does not hold."""
    with pytest.raises(UnknownName) as raised:
        HUB.model(asked)
    assert raised.value.nearest[0] == meant


def test_an_owner_alone_is_near_to_nothing_by_its_beginning() -> None:
    """An empty name begins every name."""
    with pytest.raises(UnknownName) as raised:
        SNAPSHOT.model("zzzzzzzz/")
    assert raised.value.nearest == ()


def test_nothing_near_is_said_as_such() -> None:
    """No list of unrelated names."""
    with pytest.raises(UnknownName) as raised:
        SNAPSHOT.gpu("zzzzzzzz")
    assert raised.value.nearest == ()
    assert str(raised.value) == "No GPU is named 'zzzzzzzz'."


def test_two_gpus_under_one_name_are_refused() -> None:
    """Whichever of their names it is."""
    with pytest.raises(ValueError, match="two GPUs answer to the name 'X100 SXM'"):
        Snapshot(revision=1, gpus=(GPU, replace(OTHER, aliases=("X100 SXM",))))


@pytest.mark.parametrize(
    ("figure", "value", "says"),
    [
        ("memory_total_gib", 0, "must be positive"),
        ("speed", 1, "'speed' is not a figure"),
    ],
)
def test_a_gpu_with_an_impossible_figure_is_refused(figure: str, value: float, says: str) -> None:
    """Before it reaches a plan."""
    figures = dict(GPU.figures) | {figure: replace(GPU.figures["memory_total_gib"], value=value)}
    with pytest.raises(ValueError, match=says):
        replace(GPU, figures=figures)


def test_a_gpu_without_a_needed_figure_is_refused() -> None:
    """The bandwidth of its own link among them."""
    figures = {name: figure for name, figure in GPU.figures.items() if name != "nvlink_gb_per_s"}
    with pytest.raises(ValueError, match="nvlink_gb_per_s is missing"):
        replace(GPU, figures=figures)


def test_equal_configurations_have_one_digest() -> None:
    """Whatever the order of their keys."""
    assert config_sha256({"a": 1, "b": [1, 2]}) == config_sha256({"b": [1, 2], "a": 1})
    assert config_sha256({"a": 1}) != config_sha256({"a": 2})


def test_a_model_that_cannot_be_read_is_kept_with_the_reason() -> None:
    """It is in the catalogue; asking for its shape says why there is none."""
    assert isinstance(MODEL.reading, NotUnderstood)
    with pytest.raises(SizingError, match="ExampleForCausalLM"):
        _ = MODEL.shape


def test_a_model_is_read_once() -> None:
    """The second question costs nothing."""
    assert MODEL.reading is MODEL.reading


@pytest.mark.parametrize("name", ["", "a b", "/x", "a/b/c", "a\n", "x" * 201])
def test_names_that_no_hub_accepts_are_refused(name: str) -> None:
    """Before they reach the database."""
    with pytest.raises(ValueError, match="is not a model's name"):
        ModelRecord(
            name=name,
            config={},
            hf_quant_config=None,
            weights_bytes=None,
            fidelity="ingested",
            source="x",
            as_of=GPU.as_of,
        )


def test_source_keys_are_spelled_out() -> None:
    """For whoever reads a figure."""
    snapshot = Snapshot(revision=1, sources=(SourceRecord("DS", "Vendor datasheet"),))
    assert snapshot.spelled_out("DS, FS 12, elsewhere") == "Vendor datasheet; FS 12; elsewhere"
    assert snapshot.spelled_out("DS page 3") == "Vendor datasheet: page 3"


def test_what_was_derived_is_kept_while_its_records_are() -> None:
    """A new price changes no error of memory; another figure of a card may."""
    held = Snapshot(revision=1, gpus=(GPU,), models=(MODEL,)).prepare()
    later = Snapshot(revision=2, gpus=(replace(GPU),), models=(MODEL,))
    assert later.keeping(held).memory_errors is held.memory_errors
    changed = replace(later, gpus=(replace(GPU, notes="another"),))
    assert "memory_errors" not in vars(changed.keeping(held))
