"""From a feasible layout to the plan that is answered."""

from collections.abc import Iterator
from functools import lru_cache
from math import ceil

from service.sizing import explain
from service.sizing.answer import (
    CacheAnswer,
    CacheGroupAnswer,
    CalibrationAnswer,
    CapacityAnswer,
    CommunicationAnswer,
    EngineAnswer,
    LatencyAnswer,
    LinksCalibrationAnswer,
    LinkTestUsedAnswer,
    MemoryAnswer,
    ModelAnswer,
    Plan,
    PredictionAnswer,
    RankAnswer,
    ServingPointAnswer,
    ThroughputAnswer,
    TimesCalibrationAnswer,
    TimesWithoutAnswer,
)
from service.sizing.corrections import links_for, used_for
from service.sizing.engine import flags, manifests
from service.sizing.engine.kv_dtypes import CELL_DTYPES, LATENT_DTYPES, is_latent, is_quantised
from service.sizing.judge import Feasible, layout_answer
from service.sizing.kv_cache.page_bytes import kv_bytes_per_token
from service.sizing.layouts import Layout, cut_by
from service.sizing.model.shape import ModelShape
from service.sizing.model.summary import attention_kinds
from service.sizing.peopled import people_answer
from service.sizing.performance.link_tests import Found
from service.sizing.pricing import cost_answer
from service.sizing.promises import load_curve, objectives_answer
from service.sizing.quantities import ceil_div
from service.sizing.question import Question
from service.sizing.roofline import DEFAULT_BANDWIDTH_FRACTION, all_reduces, weight_read_ms
from service.sizing.times import over_usual_links, prediction, tokens_per_second, uncorrected
from service.sizing.weights import stage_weights, total_active_parameters, total_parameters


def model_answer(question: Question) -> ModelAnswer:
    """The model as it was read."""
    model = question.model
    parameters, active, weights = _counted(model)
    return ModelAnswer(
        name=model.name,
        architecture=model.architecture,
        parameters=parameters,
        active_parameters=active,
        weights_bytes=weights,
        kv_bytes_per_token=_kv_bytes_per_token(model, question.engine.kv_cache_dtype),
        attention="; ".join(f"{kind.layers} {kind.text}" for kind in attention_kinds(model)) or "keeps no cache",
        max_context_tokens=model.max_context_tokens,
        quantization=model.quantization,
        status=model.status.value,
        notes=model.notes,
    )


@lru_cache(maxsize=1024)
def _counted(model: ModelShape) -> tuple[int, int, int]:
    """Parameters, active parameters, and bytes loaded on a single GPU."""
    return total_parameters(model), total_active_parameters(model), stage_weights(model, Layout())[0].total_bytes


@lru_cache(maxsize=4096)
def _kv_bytes_per_token(model: ModelShape, dtype: str) -> int | None:
    """What one more token adds; None for a cache type without rules, which every layout is then refused for."""
    known = CELL_DTYPES | LATENT_DTYPES if is_latent(model) else CELL_DTYPES
    return kv_bytes_per_token(model, dtype) if dtype in known else None


def deployment_of(found: Feasible) -> flags.Deployment:
    """The deployment that a feasible layout is."""
    asked, cache = found.question.engine, found.settled.fitted.cache
    return flags.Deployment(
        model=found.question.model.name,
        version=asked.version or cache.profile.version,
        layout=found.layout,
        nodes=nodes(found),
        gpus_per_node=found.machine.gpus_per_node,
        vendor=found.machine.gpu.vendor.value,
        options=asked,
        max_model_len=_added_length(found),
        max_num_seqs=_added_sequences(found),
        max_num_batched_tokens=_added(found.settled.options.max_num_batched_tokens, asked.max_num_batched_tokens),
    )


def container_of(found: Feasible, deployment: flags.Deployment, words: tuple[str, ...]) -> manifests.Container:
    """The first machine's container."""
    on_node = min(found.layout.gpu_count, deployment.gpus_per_node)
    return manifests.Container(
        model=deployment.model,
        version=deployment.version,
        vendor=deployment.vendor,
        gpus=on_node,
        whole_node=on_node == deployment.gpus_per_node,
        devices=explain.devices(found),
        arguments=(*words, *flags.node_arguments(deployment, 0)),
        spans_nodes=deployment.nodes > 1,
    )


def _added(settled: int | None, asked: int | None) -> int | None:
    """A value that the plan set and the caller did not."""
    return None if settled == asked else settled


def _added_length(found: Feasible) -> tuple[int, str] | None:
    """The longest context that the flags must name, and why."""
    own = found.question.model.default_context_tokens
    length = _added(found.settled.options.max_model_len, found.question.engine.max_model_len)
    if length is None:
        return None
    if length < own:
        return length, f"a request of the model's own {own} tokens does not fit"
    return length, "the conversations are longer than the engine's default"


def _added_sequences(found: Feasible) -> tuple[int, str] | None:
    """The number of sequences that the flags must name, and why."""
    sequences = _added(found.settled.options.max_num_seqs, found.question.engine.max_num_seqs)
    if sequences is None:
        return None
    if found.settled.fitted.cache.keeps_state and sequences != found.sequences:
        return sequences, "each running sequence needs a block for its state, and there are no more"
    return sequences, "conversations at once on each copy"


def nodes(found: Feasible) -> int:
    """Machines, rounded up."""
    return ceil_div(found.layout.gpu_count, found.machine.gpus_per_node)


def calibration_answer(found: Feasible) -> CalibrationAnswer | None:
    """The measured startup used, and what was predicted without it."""
    measured, tight = found.settled.fitted.measured, found.settled.tight
    if measured is None:
        return None
    point, band = measured.match.point, measured.predicted.bands[tight]
    return CalibrationAnswer(
        id=point.id,
        tier=measured.match.tier.value,
        distance=measured.match.distance,
        model=point.model,
        version=point.version,
        layout=layout_answer(point.layout),
        source=point.source,
        prediction_without=PredictionAnswer(
            weights_bytes=measured.predicted.loaded[tight],
            working_space_bytes=ceil(band.value),
            working_space_low_bytes=ceil(band.low),
            working_space_high_bytes=ceil(band.high),
        ),
    )


def times_calibration_answer(found: Feasible) -> TimesCalibrationAnswer | None:
    """The measured loads that corrected the times, and what was predicted without them."""
    used, plain = used_for(found), uncorrected(found) if used_for(found).points else None
    if plain is None:
        return None
    return TimesCalibrationAnswer(
        tier=used.correction.tier.name.lower(),
        used=len(used.points),
        points=tuple(
            ServingPointAnswer(
                id=each.id,
                source=each.source,
                version=each.version or None,
                layout=layout_answer(each.layout),
                concurrency=each.point.concurrency,
                prompt_tokens=each.point.prompt_tokens,
                output_tokens=each.point.output_tokens,
            )
            for each in used.points[: explain.MOST_NAMED]
        ),
        prediction_without=TimesWithoutAnswer(
            plain.tpot_ms.value, plain.ttft_ms.value, plain.output_tokens_per_second.value
        ),
    )


def links_calibration_answer(found: Feasible) -> LinksCalibrationAnswer | None:
    """The link tests that moved the collectives, and what was predicted over usual links."""
    measured = links_for(found)
    plain = over_usual_links(found) if measured is not None else None
    if measured is None or plain is None:
        return None
    return LinksCalibrationAnswer(
        tests=tuple(answer for each in measured.found for answer in _tests_used(each)),
        prediction_without=TimesWithoutAnswer(
            plain.tpot_ms.value, plain.ttft_ms.value, plain.output_tokens_per_second.value
        ),
    )


def _tests_used(moved: Found) -> Iterator[LinkTestUsedAnswer]:
    """The test of a collective, or one for its start and one for its rate."""
    for told in dict.fromkeys(each for each in (moved.start, moved.rate) if each is not None):
        tells_start, tells_rate = told is moved.start, told is moved.rate
        yield LinkTestUsedAnswer(
            collective=moved.kind.value,
            id=told.test.id,
            source=told.test.source,
            operation=told.test.operation,
            world_size=told.test.ranks,
            nodes=told.test.nodes,
            distance=told.distance,
            measured_start=told.start if tells_start else None,
            start_factor=moved.scale.start if tells_start else None,
            measured_rate=told.rate if tells_rate else None,
            rate_factor=moved.scale.rate if tells_rate else None,
        )


def present(found: Feasible, reasons: tuple[str, ...]) -> Plan:
    """The whole plan of a feasible layout."""
    model, layout, cache = found.question.model, found.layout, found.settled.fitted.cache
    tight, bands, weights = found.settled.tight, found.settled.fitted.bands, found.settled.fitted.weights
    deployment, timed = deployment_of(found), prediction(found)
    flagged = flags.flags(deployment)
    words = flags.arguments(flagged)
    fraction = found.question.assumptions.memory_bandwidth_fraction or DEFAULT_BANDWIDTH_FRACTION
    stages = layout.pipeline_parallel_size
    return Plan(
        gpu=found.machine.gpu.slug,
        gpu_count=layout.gpu_count,
        nodes=deployment.nodes,
        layout=layout_answer(layout),
        memory=MemoryAnswer(
            total_bytes=found.settled.total_bytes,
            usable_bytes=found.settled.usable_bytes,
            weights_bytes=found.settled.fitted.loaded[tight],
            working_space_bytes=ceil(bands[tight].value),
            working_space_low_bytes=ceil(bands[tight].low),
            working_space_high_bytes=ceil(bands[tight].high),
            kv_cache_needed_bytes=found.needed_bytes,
            kv_cache_room_bytes=found.settled.rooms[tight],
            free_bytes=found.settled.rooms[tight] - found.needed_bytes,
        ),
        ranks=tuple(
            RankAnswer(
                stage=each.stage,
                layers=each.layers,
                parameter_bytes=each.parameter_bytes,
                buffer_bytes=each.buffer_bytes,
                working_space_bytes=ceil(band.value),
                kv_cache_room_bytes=room,
            )
            for each, band, room in zip(weights, bands, found.settled.rooms, strict=True)
        ),
        kv_cache=CacheAnswer(
            block_size=cache.block_size,
            num_blocks=found.settled.printed.num_blocks,
            tokens=found.settled.printed.tokens,
            max_concurrency=found.settled.printed.max_concurrency,
            max_model_len=found.settled.printed.max_model_len,
            dtype=cache.dtype if is_quantised(cache.dtype) else model.dtype,
            bytes_per_token_per_gpu=cache.token_bytes[tight],
            bytes_per_block=cache.block_bytes[tight],
            groups=tuple(
                CacheGroupAnswer(
                    kind=" and ".join(dict.fromkeys(spec.kind.value for spec, _ in group.members)),
                    layers=group.layers,
                    block_size=group.block_size,
                    page_bytes=max(spec.page_bytes for spec, _ in group.members),
                    blocks_per_request=blocks,
                )
                for group, blocks in zip(cache.groups, found.settled.printed.blocks_per_request, strict=True)
            ),
        ),
        capacity=CapacityAnswer(found.capacity),
        communication=CommunicationAnswer(
            link=found.machine.link.value,
            all_reduces_per_step=all_reduces(model, layout),
            all_reduce_bytes_per_token=model.hidden_size * model.element_bytes
            if layout.tensor_parallel_size > 1
            else 0,
            pipeline_handoffs_per_step=stages - 1,
            handoff_bytes_per_token=model.handoff_tensors * model.hidden_size * model.element_bytes
            if stages > 1
            else 0,
            nodes_crossed=deployment.nodes - 1,
        ),
        latency=LatencyAnswer(
            weight_read_ms=weight_read_ms(model, cut_by(layout, model.experts), found.machine.gpu, fraction),
            tpot_ms=timed and timed.tpot_ms,
            ttft_ms=timed and timed.ttft_ms,
            limited_by=timed and timed.limited_by.value,
            notes=timed.notes if timed else ("no time is predicted: the card's rated speed is not known",),
        ),
        throughput=ThroughputAnswer(
            output_tokens_per_second=timed and timed.output_tokens_per_second,
            requests_per_second=timed and timed.requests_per_second,
            output_tokens_per_second_per_gpu=tokens_per_second(found) / layout.gpu_count if timed else None,
        ),
        objectives=objectives_answer(found),
        people=people_answer(found),
        load_curve=load_curve(found),
        cost=cost_answer(found, tokens_per_second(found)),
        engine=EngineAnswer(
            version=deployment.version,
            args=words,
            env=explain.environment(found),
            command=flags.command(deployment, words),
            docker=manifests.docker(container_of(found, deployment, words)),
            flags=flagged,
        ),
        reasons=(*reasons, *explain.reasons(found)),
        warnings=explain.warnings(found),
        checklist=explain.checklist(found),
        calibration=calibration_answer(found),
        times_calibration=times_calibration_answer(found),
        links_calibration=links_calibration_answer(found),
        basis=explain.basis(found),
    )
