"""The size of a published checkpoint: what the count says, and why another figure differs from it."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import partial
from itertools import product
from typing import Annotated, Any, cast

from service.sizing.model.modules import Embedding, Experts, Linear, Module, Tensor, TensorClass
from service.sizing.model.schemes import UNQUANTISED, ExpertStack, Scheme
from service.sizing.model.schemes.quantised import MarlinExperts, Quantised
from service.sizing.model.shape import LayerShape, ModelShape, StateCache
from service.sizing.model.summary import TOWERS
from service.sizing.quantities import Doc
from service.sizing.weights import parameters, total_parameters

CLOSE = 0.0002
"""Share of a checkpoint below which a difference is a matter of file headers and small buffers."""

LONGEST_MASK = 4096
"""Longest context of the models that were published with causal masks among their tensors."""

NEXT_TOKEN_FIELDS = ("num_nextn_predict_layers", "mtp_num_hidden_layers", "num_mtp_modules", "num_mtp_layers")
"""Fields that name next-token-prediction layers."""

MOST_NEXT_TOKEN_LAYERS = 64
"""More than this is no number of next-token layers."""

USUAL_NEXT_TOKEN_LAYERS = 3
"""Most next-token layers looked for where the configuration names fewer: some publish more than it says."""

FEED_FORWARD = frozenset({TensorClass.MLP, TensorClass.EXPERTS})

MOST_KINDS = 6
"""Kinds of layers that a next-token layer is compared with."""

NEXT_TOKEN_NORMS = 3
"""Norms of a next-token layer beside its decoder layer: of the hidden state, of the embedding and before the head."""


class Verdict(StrEnum):
    """How a given size compares with the count."""

    EQUAL = "equal"
    EXPLAINED = "explained"
    UNEXPLAINED = "unexplained"


@dataclass(frozen=True, slots=True)
class WeightsCheck:
    """A given size of the weights beside the counted one."""

    given_bytes: Annotated[int, Doc("size given", "bytes", 4063479808)]
    counted_bytes: Annotated[int, Doc("size counted from the configuration, as published", "bytes", 3441149952)]
    difference_bytes: Annotated[int, Doc("given - counted", "bytes", 622329856)]
    verdict: Annotated[Verdict, Doc("equal, explained or unexplained", example="explained")]
    explanations: Annotated[tuple[str, ...], Doc("what the difference is made of")]
    unexplained_bytes: Annotated[int, Doc("what the explanations leave of it", "bytes", 0)]


@dataclass(frozen=True, slots=True)
class Term:
    """Something that makes a checkpoint larger or smaller than its count, in bytes."""

    size_bytes: int
    text: str


NOTHING = Term(0, "")


def as_published(scheme: Scheme) -> Scheme:
    """A scheme without the padding and the unused biases that the engine's kernels add."""
    if isinstance(scheme, MarlinExperts):
        scheme = scheme.marlin
    return replace(scheme, padding=None, biased=None) if isinstance(scheme, Quantised) else scheme


def published_bytes(module: Module, element_bytes: int, *, quantised: bool = True) -> int:
    """Bytes of a module in the checkpoint, scales included.

    `element_bytes` is the size of an unquantised element; without `quantised` every element is one.
    """
    if not quantised:
        return parameters(module) * element_bytes
    match module:
        case Linear():
            outputs = tuple(units.total for units in module.outputs)
            matrix = module.scheme.linear_bytes(module.inputs.total, outputs, element_bytes)
            return matrix + (sum(outputs) * module.bias - module.unpublished) * element_bytes
        case Experts():
            stack = ExpertStack(module.count, module.hidden, module.intermediate, module.gated, module.bias)
            return as_published(module.scheme).experts_bytes(stack, element_bytes, hopper_kernels=False)
        case Embedding() if module.counted:
            return module.scheme.linear_bytes(module.hidden, (module.vocabulary,), element_bytes)
        case _:
            return parameters(module) * element_bytes


def all_modules(model: ModelShape) -> Iterator[tuple[Module, int]]:
    """Every module with how often the model has it."""
    for module in (*model.first_stage, *model.every_stage, *model.last_stage):
        yield module, 1
    for layer, count in model.counted():
        for module in layer.modules:
            yield module, count


def checkpoint_bytes(model: ModelShape, *, element_bytes: int = 2, quantised: bool = True) -> int:
    """Bytes of the published checkpoint: next-token-prediction layers left out, a tied head counted once."""
    return sum(
        count * published_bytes(module, element_bytes, quantised=quantised) for module, count in all_modules(model)
    )


def explain_weights_difference(model: ModelShape, config: Mapping[str, Any], weights_bytes: int) -> WeightsCheck:
    """Compare a given size of the weights with the counted one.

    Every usual reason for a difference is tried alone and with others, at each precision that the checkpoint may be
    stored in; the fewest that leave next to nothing are the explanation. The given size decides nothing else.

    Parameters
    ----------
    config : mapping
        The configuration that `model` was read from: it names next-token layers.
    weights_bytes : int
        Sum of the tensors or the files, in bytes.
    """
    counted = checkpoint_bytes(model)
    compare = partial(WeightsCheck, weights_bytes, counted, weights_bytes - counted)
    if weights_bytes == counted:
        return compare(Verdict.EQUAL, (), 0)
    best: tuple[int, tuple[str, ...]] | None = None
    for storage, element_bytes, quantised in storages(model):
        base = checkpoint_bytes(model, element_bytes=element_bytes, quantised=quantised)
        for terms in product(*reasons(model, config, element_bytes, quantised)):
            left = weights_bytes - base - sum(term.size_bytes for term in terms)
            if abs(left) > CLOSE * weights_bytes:
                continue
            texts = tuple(text for text in (storage, *(term.text for term in terms)) if text)
            if best is None or (len(texts), abs(left)) < (len(best[1]), abs(best[0])):
                best = left, texts
    if best is not None:
        left, texts = best
        return compare(Verdict.EXPLAINED, texts or (f"within {CLOSE:.2%}: headers and small buffers",), left)
    return compare(Verdict.UNEXPLAINED, suspicions(model, weights_bytes), weights_bytes - counted)


def storages(model: ModelShape) -> Iterator[tuple[str, int, bool]]:
    """Ways the checkpoint may be stored: what is said of it, bytes of an unquantised element, whether quantised."""
    yield "", 2, True
    if model.quantization is None:
        yield "the weights are stored in 32 bits; the engine loads them in 16", 4, True
    else:
        yield f"the size is that of 16-bit weights, before their quantisation ({model.quantization})", 2, False


def reasons(
    model: ModelShape, config: Mapping[str, Any], element_bytes: int, quantised: bool
) -> tuple[tuple[Term, ...], ...]:
    """Independent reasons for a difference; of each, at most one form applies."""
    size = partial(published_bytes, element_bytes=element_bytes, quantised=quantised)
    embedding = model.vocab_size * model.hidden_size * element_bytes
    if model.tied_head:
        head = Term(embedding, "the output head is stored although it is tied to the embedding")
    else:
        stored = sum(size(module) for module in model.last_stage if module.tensor_class is TensorClass.HEAD)
        head = Term(-stored, "the output head is not stored")
    towers = sum(count * size(module) for module, count in all_modules(model) if module.tensor_class in TOWERS)
    found = [(NOTHING, head), (NOTHING, *next_token_layers(model, config, element_bytes))]
    attending = sum(count for layer, count in model.counted() if attends(layer))
    if attending and model.max_context_tokens <= LONGEST_MASK:
        masks = attending * model.max_context_tokens**2 * element_bytes
        found.append((NOTHING, Term(masks, "causal masks are stored with every layer")))
    if towers:
        found.append((NOTHING, Term(-towers, "the encoders of images, sound or video are left out")))
    if quantised and model.quantization is not None:
        found.append((NOTHING, Term(-scales_bytes(model), "scales and zero points are left out")))
        packed = sum(count * parameters(module) for module, count in all_modules(model) if bits(module) == 4)
        if packed:
            found.append((NOTHING, Term(packed - packed // 2, "packed 4-bit weights are counted as a byte each")))
    return tuple(found)


def next_token_layers(model: ModelShape, config: Mapping[str, Any], element_bytes: int) -> Iterator[Term]:
    """Next-token-prediction layers, which a server without speculative decoding does not load.

    Each is a decoder layer, a projection of `2 x hidden` to `hidden` and three norms; some publish copies of embedding
    and head with it. It is stored as the other layers are, or unquantised.
    """
    named = named_next_token_layers(config)
    unnamed = "" if named else ", which the configuration does not name"
    hidden = model.hidden_size
    around = (2 * hidden * hidden + NEXT_TOKEN_NORMS * hidden) * element_bytes
    copies = 2 * model.vocab_size * hidden * element_bytes
    for count in sorted({*range(1, USUAL_NEXT_TOKEN_LAYERS + 1), named}) if named else (1,):
        layers = "a next-token-prediction layer" if count == 1 else f"{count} next-token-prediction layers"
        for modules in decoder_layers(model):
            for quantised in (True, False):
                each = around + sum(published_bytes(module, element_bytes, quantised=quantised) for module in modules)
                text = f"{layers} stored with the model"
                yield Term(count * each, text + unnamed)
                yield Term(count * (each + copies), f"{text}, with copies of the embedding and head{unnamed}")


def named_next_token_layers(config: Mapping[str, Any]) -> int:
    """Next-token layers that a configuration names, at any depth of its parts."""
    values = [config.get(field) for field in NEXT_TOKEN_FIELDS]
    own = max((value for value in values if type(value) is int and 0 < value <= MOST_NEXT_TOKEN_LAYERS), default=0)
    parts = [cast("Mapping[str, Any]", part) for part in config.values() if isinstance(part, Mapping)]
    return max((own, *map(named_next_token_layers, parts)))


def decoder_layers(model: ModelShape) -> Iterator[tuple[Module, ...]]:
    """Modules of the model's last kinds of decoder layers; where every block is a layer of its own, of two blocks."""
    attending = [layer for layer in model.distinct if attends(layer)][-MOST_KINDS:]
    blocks = [layer for layer in model.distinct if not layer.caches and layer.cache_of is None][-MOST_KINDS:]
    for layer in attending:
        whole = any(module.tensor_class in FEED_FORWARD for module in layer.modules)
        for second in [()] if whole else [block.modules for block in blocks]:
            yield layer.modules + second


def attends(layer: LayerShape) -> bool:
    """Whether a layer keeps anything else than a recurrent state."""
    return bool(layer.caches) and not any(isinstance(cache, StateCache) for cache in layer.caches)


def bits(module: Module) -> int:
    """Bits of a stored weight."""
    return UNQUANTISED.bits if isinstance(module, Tensor) else module.scheme.bits


def scales_bytes(model: ModelShape) -> int:
    """Bytes of a quantised checkpoint that are not weights."""
    return sum(
        count * (published_bytes(module, 2) - parameters(module) * bits(module) // 8)
        for module, count in all_modules(model)
        if bits(module) != UNQUANTISED.bits
    )


def suspicions(model: ModelShape, weights_bytes: int) -> tuple[str, ...]:
    """What an unexplained size looks like."""
    total = total_parameters(model)
    if abs(weights_bytes - total) <= CLOSE * total:
        return ("the figure is the number of parameters, not of bytes",)
    each = 8 * weights_bytes / total
    stored = model.quantization or "no quantisation"
    return (f"the size is that of {each:.1f} bits a parameter; the configuration names {stored}",)
