"""From `config.json` to a model: which class serves it, which part describes it, what is refused by which name."""

from typing import Any

import pytest

from service.sizing import weights
from service.sizing.errors import InvalidConfig, NotUnderstood
from service.sizing.model.reader import read_model
from service.sizing.model.resolution import Conversion, Resolution, resolve
from service.sizing.model.shape import AttentionCache, ModelShape

LAYERS, HIDDEN, WIDTH, VOCABULARY, HEAD = 4, 512, 1024, 1024, 64
LLAMA: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": HIDDEN,
    "intermediate_size": WIDTH,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "vocab_size": VOCABULARY,
    "max_position_embeddings": 4096,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
}
# Query, key, value and output projections of 8 + 2 + 2 + 8 heads; three matrices of the MLP; two norms.
LAYER = HIDDEN * HEAD * 20 + 3 * HIDDEN * WIDTH + 2 * HIDDEN
BODY = LAYERS * LAYER + HIDDEN
TABLE = VOCABULARY * HIDDEN


def read(**changes: Any) -> ModelShape:
    """The small Llama with changes; None removes a field."""
    config = {name: value for name, value in {**LLAMA, **changes}.items() if value is not None}
    return read_model("small", config)


def windows(model: ModelShape) -> list[int | None]:
    """The window of every layer."""
    return [cache.window for layer in model.layers for cache in layer.caches if isinstance(cache, AttentionCache)]


class TestClass:
    """The class that serves a model."""

    def test_a_causal_class_has_a_head(self) -> None:
        """Embedding, layers, final norm and head."""
        assert weights.total_parameters(read()) == BODY + 2 * TABLE

    def test_a_base_model_is_counted_without_the_head_that_the_engine_builds(self) -> None:
        """vLLM 0.33 serves `LlamaModel` by its causal class; the checkpoint has no head."""
        model = read(architectures=["LlamaModel"])
        assert weights.total_parameters(model) == BODY + TABLE
        assert weights.stage_weights(model, weights.Layout())[0].parameter_bytes == 2 * (BODY + 2 * TABLE)

    def test_a_classifier_has_a_float32_score_for_its_head(self) -> None:
        """A classifier of three labels: no head, 3 x 512 scores of four bytes (vLLM 0.33 `models/adapters.py`)."""
        model = read(architectures=["LlamaForSequenceClassification"], id2label={"0": "a", "1": "b", "2": "c"})
        assert weights.total_parameters(model) == BODY + TABLE + 3 * HIDDEN
        assert weights.stage_weights(model, weights.Layout())[0].parameter_bytes == 2 * (BODY + TABLE) + 4 * 3 * HIDDEN

    def test_a_reward_model_without_a_class_is_an_embedding_model(self) -> None:
        """Only `ForSequenceClassification` and its like add a score."""
        assert weights.total_parameters(read(architectures=["LlamaForRewardModeling"])) == BODY + TABLE

    def test_the_first_class_understood_serves(self) -> None:
        """The engine goes through `architectures` in order."""
        model = read(architectures=["LlamaForNothingKnown", "LlamaForCausalLM"])
        assert model.architecture == "LlamaForCausalLM"

    def test_a_configuration_without_class_is_served_by_its_model_types_base_class(self) -> None:
        """transformers' base class of `llama` is `LlamaModel`."""
        assert read(architectures=None).architecture == "LlamaModel"

    def test_neither_class_nor_model_type_is_a_missing_field(self) -> None:
        """What to give is said."""
        with pytest.raises(InvalidConfig, match="architectures is missing") as refusal:
            read(architectures=None, model_type=None)
        assert refusal.value.field == "architectures"

    def test_an_unknown_class_is_refused_by_name(self) -> None:
        """In the words of vLLM 0.33 (`models/registry.py`), which serves no such class either."""
        words = r"FooForCausalLM \(model_type foo\): Model architectures \['FooForCausalLM'\] are not supported for now"
        with pytest.raises(NotUnderstood, match=words) as refusal:
            read(architectures=["FooForCausalLM"], model_type="foo")
        assert refusal.value.fields == ("architectures", "model_type")

    def test_a_class_that_only_the_engine_knows_is_refused_by_name(self) -> None:
        """With the model type beside it."""
        with pytest.raises(NotUnderstood, match=r"OpenVLAForActionPrediction \(model_type openvla\)"):
            read(architectures=["OpenVLAForActionPrediction"], model_type="openvla")

    def test_a_class_without_rules_that_the_engine_dropped_is_refused_in_its_words(self) -> None:
        """OuroForCausalLM was last served by vLLM 0.26 (`models/registry.py`)."""
        with pytest.raises(NotUnderstood, match=r"was supported in vLLM until v0\.26\.0, and is not supported anymore"):
            read(architectures=["OuroForCausalLM"], model_type="ouro")

    def test_a_class_may_shorten_the_context_that_a_configuration_names(self) -> None:
        """Nomic's `n_positions` of 8192 stands beside the 2048 positions that its class fills in; vLLM takes 2048."""
        nomic = {
            "architectures": ["NomicBertModel"],
            "model_type": "nomic_bert",
            "activation_function": "swiglu",
            "n_embd": 768,
            "n_head": 12,
            "n_inner": 3072,
            "n_layer": 12,
            "n_positions": 8192,
            "vocab_size": 30528,
            **dict.fromkeys(("qkv_proj_bias", "mlp_fc1_bias", "mlp_fc2_bias"), False),
        }
        model = read_model("nomic", nomic)
        assert (model.max_context_tokens, model.default_context_tokens) == (2048, 2048)

    def test_a_class_that_the_engine_dropped_is_sized_and_refused_by_the_engine(self) -> None:
        """The refusal is vLLM 0.33's (`models/registry.py`), with the last version that had it."""
        model = read(architectures=["InternLMForCausalLM"], model_type="internlm", bias=True)
        assert model.architecture_refusal is not None
        assert "was supported in vLLM until v0.23.0" in model.architecture_refusal
        assert read().architecture_refusal is None

    @pytest.mark.parametrize(
        ("named", "expected"),
        [
            ("AForCausalLM", Resolution("AForCausalLM", Conversion.NONE)),
            ("AForSequenceClassification", Resolution("AForCausalLM", Conversion.CLASSIFY)),
            ("AForTokenClassification", Resolution("AForCausalLM", Conversion.CLASSIFY)),
            ("AForTextEncoding", Resolution("AForCausalLM", Conversion.EMBED)),
            ("AModel", Resolution("AForCausalLM", Conversion.EMBED)),
            ("ARewardModel", Resolution("AForCausalLM", Conversion.EMBED)),
            ("BModel", Resolution("BModel", Conversion.NONE)),
            ("AForConditionalGeneration", None),
            ("AForMaskedLM", None),
            ("CModel", None),
        ],
    )
    def test_class_names_are_read_by_their_endings(self, named: str, expected: Resolution | None) -> None:
        """As vLLM 0.33 `_normalize_arch` reads them; what it would hand to transformers is not understood."""
        assert resolve(named, {"AForCausalLM", "BModel"}) == expected


class TestType:
    """The type of the weights."""

    @pytest.mark.parametrize(
        ("changes", "expected"),
        [
            ({}, "bfloat16"),
            ({"torch_dtype": "float16"}, "float16"),
            ({"torch_dtype": None, "dtype": "float16"}, "float16"),
            ({"torch_dtype": "float32"}, "bfloat16"),
            ({"torch_dtype": None}, "bfloat16"),
            ({"torch_dtype": None, "architectures": ["LlamaForSequenceClassification"]}, "float16"),
            ({"torch_dtype": "float32", "architectures": ["LlamaForSequenceClassification"]}, "float16"),
        ],
    )
    def test_it_is_the_checkpoints_but_of_16_bits(self, changes: dict[str, Any], expected: str) -> None:
        """Float32 and absent types become the engine's: bfloat16 for decoders, float16 for pooling models."""
        assert read(**changes).dtype == expected

    def test_an_unknown_type_is_refused(self) -> None:
        """With those that are known."""
        with pytest.raises(InvalidConfig, match="must be one of bfloat16, float16"):
            read(torch_dtype="float8_e4m3fn")


class TestWindows:
    """Sliding windows."""

    def test_a_window_holds_for_every_layer(self) -> None:
        """Mistral 7B v0.1 is published so."""
        model = read(architectures=["MistralForCausalLM"], model_type="mistral", sliding_window=1024)
        assert windows(model) == [1024] * LAYERS

    def test_layer_types_say_which_layers_slide(self) -> None:
        """Full layers have none."""
        kinds = ["sliding_attention", "full_attention", "sliding_attention", "sliding_attention"]
        assert windows(read(sliding_window=1024, layer_types=kinds)) == [1024, None, 1024, 1024]

    def test_qwens_window_is_off_unless_switched_on(self) -> None:
        """Qwen 2 publishes `sliding_window` with `use_sliding_window` false."""
        qwen = {"architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2", "sliding_window": 1024}
        assert windows(read(**qwen)) == [None] * LAYERS
        assert windows(read(**qwen, use_sliding_window=True, max_window_layers=LAYERS)) == [None] * LAYERS

    def test_a_layer_kind_that_no_rule_covers_is_refused(self) -> None:
        """By the field that names it."""
        with pytest.raises(NotUnderstood, match="chunked_attention") as refusal:
            read(sliding_window=1024, layer_types=["chunked_attention"] * LAYERS)
        assert refusal.value.fields == ("layer_types",)

    def test_too_short_a_list_of_layers_is_refused(self) -> None:
        """With both lengths."""
        with pytest.raises(InvalidConfig, match=r"num_hidden_layers \(4\) layers, not 2"):
            read(sliding_window=1024, layer_types=["full_attention", "sliding_attention"])


class TestContext:
    """Context length, as vLLM 0.33 `_get_and_verify_max_len` derives it."""

    @pytest.mark.parametrize(
        ("changes", "limit"),
        [
            ({}, 4096),
            ({"max_position_embeddings": None, "max_seq_len": 1024}, 1024),
            ({"seq_length": 2048}, 2048),
            ({"model_max_length": 8192}, 8192),
            ({"rope_scaling": {"type": "linear", "factor": 4.0}}, 16384),
            ({"rope_scaling": {"rope_type": "dynamic", "factor": 2.0}}, 8192),
            ({"rope_scaling": {"rope_type": "llama3", "factor": 8.0}}, 4096),
            ({"rope_scaling": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 1024}}, 4096),
        ],
    )
    def test_it_is_the_smallest_field_scaled(self, changes: dict[str, Any], limit: int) -> None:
        """Linear and dynamic scalings stretch it; the others are published with the stretched length."""
        assert read(**changes).max_context_tokens == limit

    def test_a_long_rope_is_served_at_its_original_length_by_default(self) -> None:
        """Phi-3 with 128k can be asked for all of it."""
        factors = {"long_factor": [1.0] * 32, "short_factor": [1.0] * 32}
        model = read(
            architectures=["Phi3ForCausalLM"],
            model_type="phi3",
            original_max_position_embeddings=1024,
            rope_scaling={"type": "longrope", **factors},
        )
        assert (model.default_context_tokens, model.max_context_tokens) == (1024, 4096)


class TestText:
    """The part that describes the language model."""

    def test_fields_of_a_part_are_named_from_the_root(self) -> None:
        """So that they are found."""
        part = {name: value for name, value in LLAMA.items() if name not in ("architectures", "hidden_size")}
        with pytest.raises(InvalidConfig, match=r"text_config\.hidden_size is missing") as refusal:
            read_model("small", {"architectures": ["LlamaForCausalLM"], "text_config": part})
        assert refusal.value.field == "text_config.hidden_size"

    def test_the_parts_word_on_tying_counts_first(self) -> None:
        """Then the root's."""
        part = {name: value for name, value in LLAMA.items() if name != "architectures"}
        root = {"architectures": ["LlamaForCausalLM"], "tie_word_embeddings": True}
        assert not read_model("small", {**root, "text_config": part}).tied_head
        del part["tie_word_embeddings"]
        assert read_model("small", {**root, "text_config": part}).tied_head


class TestStructure:
    """Fields that change memory in some family and that this family's reader does not know."""

    @pytest.mark.parametrize(
        ("field", "value"),
        [
            ("num_local_experts", 8),
            ("kv_lora_rank", 512),
            ("index_topk", 2048),
            ("mamba_d_state", 128),
            ("attn_layer_indices", [1, 3]),
            ("num_kv_shared_layers", 2),
            ("use_cla", True),
            ("is_encoder_decoder", True),
            ("vision_config", {"hidden_size": 1024}),
        ],
    )
    def test_they_are_refused_by_name(self, field: str, value: object) -> None:
        """A plain Llama with one of them is no plain Llama."""
        with pytest.raises(NotUnderstood, match=field) as refusal:
            read(**{field: value})
        assert refusal.value.fields == (field,)

    @pytest.mark.parametrize(
        ("field", "value"),
        [
            ("num_local_experts", 1),
            ("num_experts", 0),
            ("is_encoder_decoder", False),
            ("vision_config", {}),
            ("layer_types", ["full_attention"] * LAYERS),
            ("rope_theta", 500000.0),
            ("hidden_act", "silu"),
            ("a_field_of_tomorrow", 7),
        ],
    )
    def test_what_changes_nothing_is_no_reason_to_refuse(self, field: str, value: object) -> None:
        """Published configurations are full of such fields."""
        assert weights.total_parameters(read(**{field: value})) == BODY + 2 * TABLE

    def test_another_spelling_of_what_was_read_is_no_reason_to_refuse(self) -> None:
        """Mixtral reads `num_local_experts`; some publish `num_experts` beside it."""
        mixtral = {
            "architectures": ["MixtralForCausalLM"],
            "model_type": "mixtral",
            "num_local_experts": 8,
            "num_experts_per_tok": 2,
        }
        assert read(**mixtral, num_experts=8).layers == read(**mixtral).layers


class TestMistakes:
    """Contradictions and wrong types."""

    @pytest.mark.parametrize(
        ("changes", "message"),
        [
            ({"num_key_value_heads": 3}, r"num_key_value_heads \(3\) must divide num_attention_heads \(8\)"),
            ({"hidden_size": 500}, r"num_attention_heads \(8\) must divide hidden_size \(500\), or head_dim"),
            ({"hidden_size": "512"}, "hidden_size must be a whole number, not '512'"),
            ({"hidden_size": True}, "hidden_size must be a whole number, not True"),
            ({"num_hidden_layers": 0}, "num_hidden_layers must be between 1 and"),
            ({"num_hidden_layers": 10**6}, "num_hidden_layers must be at most 10000"),
            ({"vocab_size": None}, "vocab_size is missing: give a whole number"),
            ({"tie_word_embeddings": "no"}, "tie_word_embeddings must be true or false, not 'no'"),
            ({"rope_scaling": "linear"}, "rope_scaling must be an object, not 'linear'"),
            ({"rope_scaling": {"type": "linear", "factor": -1.0}}, "rope_scaling.factor must be above 0"),
        ],
    )
    def test_the_message_says_what_is_wrong(self, changes: dict[str, Any], message: str) -> None:
        """By field and value, with what would be accepted."""
        with pytest.raises(InvalidConfig, match=message):
            read(**changes)

    def test_fields_are_called_as_the_configuration_spells_them(self) -> None:
        """GPT-2 has `n_embd` and `n_head` where others have `hidden_size` and `num_attention_heads`."""
        config = {
            "architectures": ["GPT2LMHeadModel"],
            "model_type": "gpt2",
            "n_embd": 500,
            "n_head": 8,
            "n_layer": 2,
            "n_positions": 1024,
            "vocab_size": 1024,
        }
        with pytest.raises(InvalidConfig, match=r"n_head \(8\) must divide n_embd \(500\)"):
            read_model("small", config)

    def test_an_unknown_rotary_scaling_is_refused(self) -> None:
        """Its table's size is not known."""
        with pytest.raises(NotUnderstood, match=r"rope_scaling\.rope_type 'spiral'"):
            read(rope_scaling={"rope_type": "spiral", "factor": 2.0})
