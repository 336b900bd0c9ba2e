"""How weights are shared out over ranks, and what a broken configuration is answered with."""

import itertools
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from service.sizing import weights
from service.sizing.errors import Indivisible, InvalidConfig, NotUnderstood
from service.sizing.layouts import Layout
from service.sizing.model.reader import read_model

DATA = Path(__file__).parents[1] / "data/models"
CONFIGS: list[dict[str, Any]] = [
    json.loads(line)["config"]
    for name in ("built.jsonl", "published.jsonl")
    for line in (DATA / name).read_text().splitlines()
]
BF16 = 2


@dataclass(frozen=True)
class Decoder:
    """Sizes of a decoder; `experts` is 0 for a dense one."""

    layers: int
    heads: int
    kv_heads: int
    head_size: int
    hidden: int
    width: int
    vocabulary: int
    tied: bool
    experts: int = 0

    @property
    def config(self) -> dict[str, Any]:
        """As a Mixtral or a Llama configuration."""
        common = {
            "num_hidden_layers": self.layers,
            "num_attention_heads": self.heads,
            "num_key_value_heads": self.kv_heads,
            "head_dim": self.head_size,
            "hidden_size": self.hidden,
            "intermediate_size": self.width,
            "vocab_size": self.vocabulary,
            "max_position_embeddings": 4096,
            "tie_word_embeddings": self.tied,
            "torch_dtype": "bfloat16",
        }
        if not self.experts:
            return {**common, "architectures": ["LlamaForCausalLM"], "model_type": "llama"}
        experts = {"num_local_experts": self.experts, "num_experts_per_tok": 2}
        return {**common, **experts, "architectures": ["MixtralForCausalLM"], "model_type": "mixtral"}

    @property
    def attention(self) -> int:
        """Weights of a layer's attention."""
        return self.hidden * self.head_size * (2 * self.heads + 2 * self.kv_heads)

    @property
    def mlp(self) -> int:
        """Weights of a layer's MLP, or of one expert."""
        return 3 * self.hidden * self.width

    @property
    def norms(self) -> int:
        """Weights of all norms."""
        return (2 * self.layers + 1) * self.hidden

    @property
    def routers(self) -> int:
        """Weights of all routers."""
        return self.layers * self.experts * self.hidden

    @property
    def ends(self) -> int:
        """Weights of embedding and head."""
        return (1 if self.tied else 2) * self.vocabulary * self.hidden

    @property
    def whole(self) -> int:
        """All weights."""
        layer = self.attention + max(self.experts, 1) * self.mlp
        return self.layers * layer + self.norms + self.routers + self.ends


def sizes(tensor: int, *, kv_heads: int = 1, experts: int = 0, tied: bool | None = None) -> st.SearchStrategy[Decoder]:
    """Decoders whose every split dimension divides by `tensor`, with a multiple of `kv_heads` KV heads."""

    def decoder(layers: int, groups: int, per_group: int, size: int, width: int, rows: int, ties: bool) -> Decoder:
        kv = groups * kv_heads
        return Decoder(
            layers=layers,
            heads=kv * per_group * (tensor // kv_heads),
            kv_heads=kv,
            head_size=2 * size,
            hidden=128,
            width=16 * width,
            vocabulary=64 * tensor * rows,
            tied=ties,
            experts=experts,
        )

    count = st.integers(1, 6)
    ties = st.booleans() if tied is None else st.just(tied)
    return st.builds(decoder, count, count, count, st.integers(1, 64), count, count, ties)


def held(decoder: Decoder, layout: Layout) -> list[int]:
    """Parameter bytes of rank 0 of every stage."""
    return [stage.parameter_bytes for stage in weights.stage_weights(read_model("any", decoder.config), layout)]


@given(sizes(4, kv_heads=4), st.sampled_from([1, 2, 4]))
def test_tensor_ranks_share_all_but_the_norms(decoder: Decoder, tensor: int) -> None:
    """The ranks' bytes together are the whole model's, with the norms once for every rank."""
    [rank] = held(decoder, Layout(tensor))
    assert rank * tensor == BF16 * (decoder.whole + (tensor - 1) * decoder.norms)


@given(sizes(8, kv_heads=1), st.sampled_from([2, 4, 8]))
def test_kv_heads_fewer_than_ranks_are_copied(decoder: Decoder, tensor: int) -> None:
    """Every rank holds at least one KV head, however few there are."""
    if tensor % decoder.kv_heads:
        return
    [rank] = held(decoder, Layout(tensor))
    copies = tensor // decoder.kv_heads - 1
    copied = decoder.layers * copies * 2 * decoder.kv_heads * decoder.head_size * decoder.hidden
    assert rank * tensor == BF16 * (decoder.whole + (tensor - 1) * decoder.norms + copied)


@given(sizes(1), st.integers(2, 8))
def test_pipeline_stages_share_everything_but_a_tied_embedding(decoder: Decoder, stages: int) -> None:
    """The stages' bytes together are the whole model's; a tied embedding is held by the first and the last."""
    if decoder.layers < stages:
        return
    again = decoder.ends if decoder.tied else 0
    assert sum(held(decoder, Layout(1, stages))) == BF16 * (decoder.whole + again)


@given(sizes(4, kv_heads=4, experts=8, tied=False), st.booleans())
def test_experts_are_shared_over_tensor_and_data_ranks(decoder: Decoder, whole: bool) -> None:
    """Experts are spread over all ranks, whole or by their width; attention is repeated by data ranks."""
    [rank] = held(decoder, Layout(2, 1, 2, whole))
    experts = decoder.layers * decoder.experts * decoder.mlp // 4
    attention = decoder.layers * decoder.attention // 2
    # Mixtral's router, like the norms, is on every rank.
    everywhere = decoder.norms + decoder.routers + decoder.ends // 2
    assert rank == BF16 * (experts + attention + everywhere)


@given(sizes(1))
def test_every_weight_is_counted_once(decoder: Decoder) -> None:
    """Parameters are those of the checkpoint, a tied head not counted again."""
    assert weights.total_parameters(read_model("any", decoder.config)) == decoder.whole


@given(st.integers(1, 100), st.integers(1, 16))
def test_stages_differ_by_one_layer_at_most(layers: int, stages: int) -> None:
    """Every layer is on one stage, and no stage has two more than another."""
    if layers < stages:
        return
    bounds = weights.stage_bounds(layers, stages)
    counts = [end - start for start, end in bounds]
    assert bounds[0][0] == 0
    assert all(end == start for (_, end), (start, _) in itertools.pairwise(bounds))
    assert bounds[-1][1] == layers
    assert max(counts) - min(counts) <= 1


def test_a_split_that_leaves_a_rest_is_refused() -> None:
    """Six query heads do not divide over four ranks."""
    decoder = Decoder(2, 6, 6, 64, 384, 256, 256, tied=False)
    with pytest.raises(Indivisible) as refusal:
        held(decoder, Layout(4))
    assert refusal.value.ranks == 4


NESTED = ("rope_scaling", "rope_parameters", "attn_config", "ffn_config")
WRONG: dict[type, list[Any]] = {
    int: ["twelve", [1], {"a": 1}, 1.5, -7, 10**30],
    float: ["half", [0.5], {"a": 1}, float("nan"), float("inf")],
    bool: ["yes", 7, [True]],
    str: [7, [1], {"a": 1}],
    list: ["x", 7, {"a": 1}],
    dict: ["x", 7, [1]],
}


@st.composite
def places(draw: st.DrawFn) -> tuple[dict[str, Any], dict[str, Any], str]:
    """A copy of a configuration, the object in it that has the field, and the field."""
    config = json.loads(json.dumps(draw(st.sampled_from(CONFIGS))))
    found = [(config, name) for name in config]
    for parent in NESTED:
        if isinstance(config.get(parent), dict):
            found += [(config[parent], name) for name in config[parent]]
    fields, name = draw(st.sampled_from(found))
    return config, fields, name


def answer(config: dict[str, Any]) -> InvalidConfig | NotUnderstood | None:
    """The refusal of a configuration, or None where it can be sized."""
    try:
        model = read_model("any", config)
        for layout in (Layout(), Layout(2)):
            try:
                weights.stage_weights(model, layout)
            except Indivisible:
                continue
        weights.total_parameters(model)
    except (InvalidConfig, NotUnderstood) as refusal:
        return refusal
    return None


@settings(max_examples=300)
@given(places())
def test_a_missing_field_is_named_or_not_needed(place: tuple[dict[str, Any], dict[str, Any], str]) -> None:
    """Without any one field a configuration is sized, or refused with a short message that names a field."""
    config, fields, name = place
    del fields[name]
    refusal = answer(config)
    if isinstance(refusal, InvalidConfig):
        assert refusal.field in str(refusal)
    assert refusal is None or len(str(refusal)) <= 300


@settings(max_examples=300)
@given(places(), st.data())
def test_a_field_of_the_wrong_type_is_named(
    place: tuple[dict[str, Any], dict[str, Any], str], data: st.DataObject
) -> None:
    """A value of another type or out of all bounds is ignored with its field, or refused by that field's name."""
    config, fields, name = place
    wrong = WRONG.get(type(fields[name]))
    if wrong is None:
        return
    fields[name] = data.draw(st.sampled_from(wrong))
    refusal = answer(config)
    if refusal is not None:
        named = refusal.fields if isinstance(refusal, NotUnderstood) else (refusal.field,)
        assert name in str(refusal) or any(name in field for field in named)
        assert len(str(refusal)) <= 300
