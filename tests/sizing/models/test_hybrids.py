"""Layers with recurrent states, alone or beside attention: which layer is which, what it keeps, what is refused."""

from typing import Any

import pytest

from service.sizing.errors import Indivisible, InvalidConfig, NotUnderstood
from service.sizing.kv_cache.page_bytes import state_bytes
from service.sizing.layouts import Layout
from service.sizing.model.modules import Linear
from service.sizing.model.reader import read_model
from service.sizing.model.shape import AttentionCache, Cache, ModelShape, StateCache, StateKind
from service.sizing.weights import stage_weights
from tests.sizing.models.engine_facts import config, shape

JAMBA, FALCON, ZAMBA, LFM = "ai21labs/Jamba-v0.1", "tiiuae/Falcon-H1-7B-Instruct", "Zyphra/Zamba2-1.2B", "dense LFM2"
GRANITE, MAMBA2 = "ibm-granite/granite-4.0-h-small", "mistralai/Mamba-Codestral-7B-v0.1"
NANO, OLD_PATTERN = "nvidia/NVIDIA-Nemotron-3-Nano-30B-A3B-BF16", "Nemotron-H 8B by its old pattern"


def letters(model: ModelShape) -> str:
    """One letter a layer: a state, attention, both, or nothing."""
    return "".join(letter(layer.caches) for layer in model.layers)


def letter(caches: tuple[Cache, ...]) -> str:
    """What one layer keeps: s, a, b or -."""
    states = any(isinstance(cache, StateCache) for cache in caches)
    attends = any(isinstance(cache, AttentionCache) for cache in caches)
    return "b" if states and attends else "s" if states else "a" if attends else "-"


def states(model: ModelShape) -> list[StateCache]:
    """Distinct states of a model."""
    return list({c: None for layer in model.distinct for c in layer.caches if isinstance(c, StateCache)})


def test_jamba_attends_once_in_eight_layers_from_the_fourth() -> None:
    """Period and offset of its configuration: layers 4, 12, 20 and 28 of 32."""
    assert letters(shape("hybrids", JAMBA)) == "ssssasss" * 4


def test_falcon_h1_keeps_both_in_every_layer() -> None:
    """Attention and Mamba-2 run side by side."""
    assert set(letters(shape("hybrids", FALCON))) == {"b"}


def test_zamba2_attends_where_its_shared_block_is_called() -> None:
    """The kinds its configuration lists; all have a state."""
    kinds = config("hybrids", ZAMBA)["layers_block_type"]
    assert letters(shape("hybrids", ZAMBA)) == "".join("b" if kind == "hybrid" else "s" for kind in kinds)


def test_nemotron_h_has_one_mixer_a_layer() -> None:
    """M is a state, * attends, E and - keep nothing."""
    pattern = config("nemotron_h", OLD_PATTERN)["hybrid_override_pattern"]
    kept = {"M": "s", "*": "a", "-": "-", "E": "-"}
    assert letters(shape("nemotron_h", OLD_PATTERN)) == "".join(kept[symbol] for symbol in pattern)


def test_nemotron_h_reads_names_of_kinds_as_letters() -> None:
    """`layers_block_type` and `hybrid_override_pattern` say the same."""
    names = {"M": "mamba", "*": "attention", "-": "mlp", "E": "moe"}
    whole = config("nemotron_h", OLD_PATTERN)
    listed = [names[symbol] for symbol in whole["hybrid_override_pattern"]]
    spelled = {**config("nemotron_h", OLD_PATTERN, hybrid_override_pattern=None), "layers_block_type": listed}
    assert read_model("spelled", spelled).layers == read_model("letters", whole).layers


def test_nemotron_3_nano_keeps_a_mamba_state_in_float32() -> None:
    """64 heads of 64 by 128 in four bytes; three tokens of 64 x 64 + 2 x 8 x 128 channels in two."""
    (state,) = states(shape("nemotron_h", NANO))
    convolution, recurrent = 3 * (64 * 64 + 2 * 8 * 128) * 2, 64 * 64 * 128 * 4
    assert state.kind is StateKind.MAMBA2
    assert state_bytes(state, 1) == convolution + recurrent


def test_codestral_mamba_keeps_its_state_in_sixteen_bits() -> None:
    """128 heads of 64 by 128; three tokens of 8192 + 2 x 8 x 128 channels; split over ranks by heads and groups."""
    (state,) = states(shape("mamba", MAMBA2))
    whole = (3 * (8192 + 2 * 8 * 128) + 128 * 64 * 128) * 2
    assert state_bytes(state, 1) == whole
    assert state_bytes(state, 8) == whole // 8


def test_falcon_mamba_keeps_sixteen_values_a_channel() -> None:
    """8192 channels: three tokens of the convolution and sixteen of the state, in two bytes."""
    (state,) = states(shape("mamba", "tiiuae/falcon-mamba-7b"))
    assert state.kind is StateKind.MAMBA1
    assert state_bytes(state, 2) == 8192 // 2 * (3 + 16) * 2


def test_short_convolutions_keep_two_tokens() -> None:
    """LFM2's filters of three taps keep two tokens of the hidden size."""
    (state,) = states(shape("hybrids", LFM))
    assert state.kind is StateKind.SHORT_CONVOLUTION
    assert state_bytes(state, 1) == 2 * 1536 * 2


def test_lfm2_narrows_its_mlps_unless_told_not_to() -> None:
    """Two thirds of 10240, up to a multiple of 256: 6912; as configured without adjusting."""
    for adjusts, width in ((True, 6912), (False, 10240)):
        model = read_model("lfm2", config("hybrids", LFM, block_auto_adjust_ff_dim=adjusts))
        downs = (module for module in model.layers[0].modules if isinstance(module, Linear) and module.name == "w2")
        assert {module.inputs.total for module in downs} == {width}


def test_groups_beyond_one_must_divide_over_ranks() -> None:
    """Eight groups on sixteen ranks; a single group is copied."""
    with pytest.raises(Indivisible):
        stage_weights(shape("nemotron_h", OLD_PATTERN), Layout(16))
    single = read_model("one group", config("nemotron_h", OLD_PATTERN, n_groups=1, mamba_n_groups=1))
    assert stage_weights(single, Layout(16))


@pytest.mark.parametrize(
    ("family", "model", "changed", "field"),
    [
        ("nemotron_h", OLD_PATTERN, {"hybrid_override_pattern": "M*X-"}, "hybrid_override_pattern"),
        ("nemotron_h", NANO, {"mamba_ssm_cache_dtype": "float8"}, "mamba_ssm_cache_dtype"),
        ("hybrids", GRANITE, {"layer_types": ["mamba", "rwkv"], "num_hidden_layers": 2}, "layer_types"),
        ("hybrids", LFM, {"conv_dim": 3072}, "conv_dim"),
        (
            "hybrids",
            JAMBA,
            {"sliding_window": 1024, "layer_types": ["full_attention", "sliding_attention"]},
            "layer_types",
        ),
    ],
)
def test_what_is_not_understood_is_refused_by_name(
    family: str, model: str, changed: dict[str, Any], field: str
) -> None:
    """Kinds of layers, types of states and sizes that the engine's class does not know."""
    with pytest.raises(NotUnderstood) as refusal:
        read_model("strange", {**config(family, model), **changed})
    assert field in refusal.value.fields


@pytest.mark.parametrize(
    ("family", "model", "changed", "field"),
    [
        ("mamba", MAMBA2, {"num_heads": 100}, "num_heads"),
        ("hybrids", FALCON, {"mamba_d_head": 32}, "mamba_d_head"),
        ("hybrids", GRANITE, {"num_hidden_layers": 41}, "num_hidden_layers"),
    ],
)
def test_fields_that_contradict_each_other_are_faults(
    family: str, model: str, changed: dict[str, Any], field: str
) -> None:
    """Heads that do not make up the width, lists of another length than the layers."""
    with pytest.raises(InvalidConfig, match=field):
        read_model("faulty", {**config(family, model), **changed})
