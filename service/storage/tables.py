"""The tables. Catalogue rows are never changed: a newer revision closes one and opens another."""

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql as pg

from service.storage.forms import (
    LATENCIES,
    catalogue_table,
    measured,
    metadata,
    observations_table,
    observed,
    one_card,
    points,
    provenance,
)

catalogue_revisions = sa.Table(
    "catalogue_revisions",
    metadata,
    sa.Column("revision", sa.Integer, primary_key=True, autoincrement=False),
    sa.Column("created_at", sa.DateTime(timezone=True), nullable=False, server_default=sa.func.now()),
    sa.Column("author", sa.Text, nullable=False),
    sa.Column("summary", sa.Text, nullable=False),
    sa.CheckConstraint("revision >= 1", name="revision_positive"),
    sa.CheckConstraint("author <> ''", name="author_given"),
)


sources = catalogue_table(
    "sources",
    sa.Column("key", sa.Text, nullable=False),
    sa.Column("title", sa.Text, nullable=False),
    sa.CheckConstraint("title <> ''", name="title_given"),
    key=("key",),
)

gpus = catalogue_table(
    "gpus",
    sa.Column("slug", sa.Text, nullable=False),
    sa.Column("name", sa.Text, nullable=False),
    sa.Column("aliases", pg.ARRAY(sa.Text), nullable=False),
    sa.Column("vendor", sa.Text, nullable=False),
    sa.Column("architecture", sa.Text, nullable=False),
    sa.Column("compute_capability", sa.Text),
    sa.Column("gfx", sa.Text),
    sa.Column("form_factor", sa.Text, nullable=False),
    sa.Column("memory_type", sa.Text, nullable=False),
    sa.Column("release_year", sa.Integer),
    sa.Column("link", sa.Text, nullable=False),
    sa.Column("gpus_per_domain", sa.Integer, nullable=False),
    sa.Column("max_bridged", sa.Integer),
    sa.Column("node_sizes", pg.ARRAY(sa.Integer), nullable=False),
    sa.Column("has_rules", sa.Boolean, nullable=False),
    sa.Column("vllm_support", sa.Text, nullable=False),
    sa.Column("figures", pg.JSONB, nullable=False),
    sa.Column("disagreements", pg.JSONB, nullable=False),
    sa.Column("notes", sa.Text),
    sa.CheckConstraint("slug ~ '^[a-z0-9]+(-[a-z0-9]+)*$'", name="slug_form"),
    sa.CheckConstraint("vendor IN ('nvidia', 'amd', 'intel', 'google', 'aws', 'other')", name="vendor_known"),
    sa.CheckConstraint("compute_capability ~ '^[0-9]+[.][0-9]+$'", name="compute_capability_form"),
    sa.CheckConstraint("link IN ('nvlink', 'pcie', 'xgmi')", name="link_known"),
    sa.CheckConstraint("gpus_per_domain >= 1", name="gpus_per_domain_positive"),
    sa.CheckConstraint("cardinality(node_sizes) >= 1 AND 1 <= ALL (node_sizes)", name="node_sizes_positive"),
    sa.CheckConstraint(
        "coalesce((figures #>> '{memory_total_gib,value}')::numeric, 0) > 0"
        " AND coalesce((figures #>> '{memory_bandwidth_gb_per_s,value}')::numeric, 0) > 0"
        " AND coalesce((figures #>> ARRAY[link || '_gb_per_s', 'value'])::numeric, 0) > 0",
        name="figures_needed",
    ),
    *provenance(),
    key=("slug",),
)

models = catalogue_table(
    "models",
    sa.Column("name", sa.Text, nullable=False),
    sa.Column("config", pg.JSONB, nullable=False),
    sa.Column("config_sha256", sa.Text, nullable=False),
    sa.Column("hf_quant_config", pg.JSONB(none_as_null=True)),
    sa.Column("weights_bytes", sa.BigInteger),
    sa.Column("fidelity", sa.Text, nullable=False),
    sa.Column("reader_version", sa.Integer, nullable=False),
    sa.Column("revision", sa.Text),
    sa.CheckConstraint("char_length(name) BETWEEN 1 AND 200", name="name_length"),
    sa.CheckConstraint("jsonb_typeof(config) = 'object'", name="config_object"),
    sa.CheckConstraint("config_sha256 ~ '^[0-9a-f]{64}$'", name="config_sha256_form"),
    sa.CheckConstraint("jsonb_typeof(hf_quant_config) = 'object'", name="hf_quant_config_object"),
    sa.CheckConstraint("weights_bytes > 0", name="weights_bytes_positive"),
    sa.CheckConstraint(
        "fidelity IN ('verbatim', 'vendored', 'vendored-trimmed', 'resaved', 'transcribed', 'ingested')",
        name="fidelity_known",
    ),
    *provenance(),
    key=("name",),
)

instance_types = catalogue_table(
    "instance_types",
    sa.Column("provider", sa.Text, nullable=False),
    sa.Column("instance_type", sa.Text, nullable=False),
    sa.Column("gpu", sa.Text),
    sa.Column("gpu_name", sa.Text, nullable=False),
    sa.Column("ambiguous", pg.ARRAY(sa.Text), nullable=False),
    sa.Column("gpu_count", sa.Integer, nullable=False),
    sa.Column("gpu_fraction", sa.Numeric),
    sa.Column("link", sa.Text),
    sa.Column("link_domain_gpus", sa.Integer, nullable=False),
    sa.Column("network", sa.Text, nullable=False),
    sa.Column("network_gbit_per_s", sa.Double),
    sa.Column("vcpu", sa.Integer),
    sa.Column("memory_gib", sa.Double),
    sa.Column("confidence", sa.Text, nullable=False),
    *observed(),
    sa.CheckConstraint("provider <> '' AND instance_type <> ''", name="machine_given"),
    *one_card(),
    sa.CheckConstraint("link IN ('nvlink', 'pcie', 'xgmi')", name="link_known"),
    sa.CheckConstraint("link_domain_gpus BETWEEN 1 AND gpu_count", name="link_domain_within_machine"),
    sa.CheckConstraint("confidence IN ('high', 'medium', 'low')", name="confidence_known"),
    key=("provider", "instance_type"),
)

prices = observations_table(
    "prices",
    sa.Column("offer", sa.Text, nullable=False),
    sa.Column("provider", sa.Text, nullable=False),
    sa.Column("region", sa.Text, nullable=False),
    sa.Column("zone", sa.Text, nullable=False),
    sa.Column("instance_type", sa.Text, nullable=False),
    sa.Column("gpu", sa.Text),
    sa.Column("gpu_name", sa.Text, nullable=False),
    sa.Column("ambiguous", pg.ARRAY(sa.Text), nullable=False),
    sa.Column("gpu_count", sa.Integer, nullable=False),
    sa.Column("gpu_fraction", sa.Numeric),
    sa.Column("kind", sa.Text, nullable=False),
    sa.Column("currency", sa.Text, nullable=False),
    sa.Column("amount_per_hour", sa.Numeric, nullable=False),
    sa.Column("host_included", sa.Boolean, nullable=False),
    *observed(),
    sa.CheckConstraint("offer ~ '^[0-9a-f]{32}$'", name="offer_form"),
    sa.CheckConstraint("provider <> ''", name="provider_given"),
    *one_card(),
    sa.CheckConstraint(
        "kind IN ('on_demand', 'spot', 'reserved_1y', 'reserved_3y', 'marketplace', 'community')", name="kind_known"
    ),
    sa.CheckConstraint("currency ~ '^[A-Z]{3}$'", name="currency_form"),
    sa.CheckConstraint("amount_per_hour > 0 AND amount_per_hour < 'Infinity'", name="amount_positive"),
    key=("offer",),
)
"""`offer` is a digest of all but the amount: of one offer, source and day there is one price."""

hosted_prices = observations_table(
    "hosted_prices",
    sa.Column("provider", sa.Text, nullable=False),
    sa.Column("model", sa.Text, nullable=False),
    sa.Column("family", sa.Text, nullable=False),
    sa.Column("currency", sa.Text, nullable=False),
    sa.Column("input_per_million", sa.Numeric, nullable=False),
    sa.Column("output_per_million", sa.Numeric, nullable=False),
    sa.Column("cached_input_per_million", sa.Numeric),
    sa.Column("context_tokens", sa.Integer),
    sa.Column("deprecated_on", sa.Date),
    *observed(),
    sa.CheckConstraint("provider <> '' AND model <> ''", name="model_given"),
    sa.CheckConstraint("currency ~ '^[A-Z]{3}$'", name="currency_form"),
    sa.CheckConstraint(
        "input_per_million > 0 AND output_per_million > 0 AND coalesce(cached_input_per_million, 0) >= 0"
        " AND greatest(input_per_million, output_per_million, cached_input_per_million) < 'Infinity'",
        name="amounts_positive",
    ),
    sa.CheckConstraint("context_tokens > 0", name="context_tokens_positive"),
    key=("provider", "model", "observed_on", "source"),
)

calibrations = observations_table(
    "calibrations",
    sa.Column("digest", sa.Text, nullable=False),
    sa.Column("kind", sa.Text, nullable=False),
    sa.Column("source", sa.Text, nullable=False),
    sa.Column("recorded_by", sa.Text, nullable=False),
    sa.Column("recorded_on", sa.Date, nullable=False),
    sa.Column("status", sa.Text, nullable=False),
    sa.Column("reason", sa.Text, nullable=False),
    sa.Column("note", sa.Text, nullable=False),
    sa.Column("model", sa.Text, nullable=False),
    sa.Column("gpu", sa.Text, nullable=False),
    sa.Column("gpu_total_gib", sa.Double),
    sa.Column("gpu_count", sa.Integer, nullable=False),
    sa.Column("link", sa.Text),
    sa.Column("engine", sa.Text),
    sa.Column("engine_version", sa.Text),
    sa.Column("dtype", sa.Text),
    sa.Column("quantization", sa.Text),
    sa.Column("kv_cache_dtype", sa.Text),
    sa.Column("tensor_parallel_size", sa.Integer, nullable=False),
    sa.Column("pipeline_parallel_size", sa.Integer, nullable=False),
    sa.Column("data_parallel_size", sa.Integer, nullable=False),
    sa.Column("decode_context_parallel_size", sa.Integer, nullable=False),
    sa.Column("expert_parallel", sa.Boolean, nullable=False),
    sa.Column("gpu_memory_utilization", sa.Double),
    sa.Column("kv_cache_memory_bytes", sa.BigInteger),
    sa.Column("max_model_len", sa.BigInteger),
    sa.Column("max_num_seqs", sa.BigInteger),
    sa.Column("max_num_batched_tokens", sa.BigInteger),
    sa.Column("assumed", pg.ARRAY(sa.Text), nullable=False),
    sa.Column("enforce_eager", sa.Boolean),
    sa.Column("prefix_caching", sa.Boolean),
    sa.Column("speculative", sa.Text),
    sa.Column("lora", sa.Boolean, nullable=False),
    sa.Column("other_arguments", sa.Text),
    sa.Column("weights_gib", sa.Double),
    sa.Column("available_kv_gib", sa.Double),
    sa.Column("kv_tokens", sa.BigInteger),
    sa.Column("gpu_blocks", sa.BigInteger),
    sa.Column("max_concurrency", sa.Double),
    sa.Column("concurrency_tokens", sa.BigInteger),
    sa.Column("cudagraph_gib", sa.Double),
    sa.Column("cudagraph_estimate_gib", sa.Double),
    sa.Column("activation_peak_gib", sa.Double),
    sa.Column("non_torch_gib", sa.Double),
    sa.Column("consumed_gib", sa.Double),
    sa.CheckConstraint("digest ~ '^[0-9a-f]{16}$'", name="digest_form"),
    sa.CheckConstraint("kind IN ('startup')", name="kind_known"),
    sa.CheckConstraint("source <> '' AND recorded_by <> ''", name="source_given"),
    sa.CheckConstraint("status IN ('accepted', 'quarantined', 'withdrawn')", name="status_known"),
    sa.CheckConstraint("(status = 'accepted') = (reason = '')", name="reason_given"),
    sa.CheckConstraint("char_length(model) BETWEEN 1 AND 200", name="model_length"),
    sa.CheckConstraint("gpu ~ '^[a-z0-9]+(-[a-z0-9]+)*$'", name="gpu_form"),
    sa.CheckConstraint(
        "least(gpu_count, tensor_parallel_size, pipeline_parallel_size, data_parallel_size,"
        " decode_context_parallel_size) >= 1",
        name="sizes_positive",
    ),
    key=("digest",),
)
"""`digest` names a measurement by conditions and figures, so that one measurement is one row, whoever reports it."""

calibration_texts = sa.Table(
    "calibration_texts",
    metadata,
    sa.Column("digest", sa.Text, primary_key=True),
    sa.Column("text", sa.Text, nullable=False),
    sa.Column("recorded_at", sa.DateTime(timezone=True), nullable=False, server_default=sa.func.now()),
    sa.CheckConstraint("digest ~ '^[0-9a-f]{16}$'", name="digest_form"),
)
"""What measurements were read from, as it was given: by the startup's digest, or by the text's own."""

serving_calibrations = observations_table(
    "serving_calibrations",
    *measured(),
    sa.Column("model", sa.Text, nullable=False),
    sa.Column("gpu_count", sa.Integer, nullable=False),
    sa.Column("engine", sa.Text, nullable=False),
    sa.Column("engine_version", sa.Text),
    sa.Column("tensor_parallel_size", sa.Integer, nullable=False),
    sa.Column("pipeline_parallel_size", sa.Integer, nullable=False),
    sa.Column("data_parallel_size", sa.Integer, nullable=False),
    sa.Column("expert_parallel_size", sa.Integer, nullable=False),
    sa.Column("decode_context_parallel_size", sa.Integer, nullable=False),
    sa.Column("precision", sa.Text),
    sa.Column("kv_cache_dtype", sa.Text),
    sa.Column("enforce_eager", sa.Boolean),
    sa.Column("speculative", sa.Text),
    sa.Column("measured_on", sa.Date),
    sa.Column("derived", pg.ARRAY(sa.Text), nullable=False),
    sa.Column("input_tokens_mean", sa.Double),
    sa.Column("output_tokens_mean", sa.Double),
    sa.Column("concurrency", sa.Double),
    sa.Column("request_rate", sa.Double),
    sa.Column("requests", sa.BigInteger),
    sa.Column("failed", sa.BigInteger),
    sa.Column("duration_s", sa.Double),
    *(sa.Column(name, sa.Double) for name in LATENCIES),
    sa.Column("output_tokens_per_s", sa.Double),
    sa.Column("total_tokens_per_s", sa.Double),
    sa.Column("requests_per_s", sa.Double),
    sa.CheckConstraint("char_length(model) BETWEEN 1 AND 200", name="model_length"),
    sa.CheckConstraint("engine <> ''", name="engine_given"),
    sa.CheckConstraint(
        "least(gpu_count, tensor_parallel_size, pipeline_parallel_size, data_parallel_size, expert_parallel_size,"
        " decode_context_parallel_size) >= 1",
        name="sizes_positive",
    ),
    sa.CheckConstraint("least(concurrency, request_rate) > 0", name="load_positive"),
    sa.CheckConstraint("least(requests, failed) >= 0", name="counts_not_negative"),
    key=("digest",),
)
"""Load tests of deployments; rates and counts are of the whole deployment."""

link_calibrations = observations_table(
    "link_calibrations",
    *measured(),
    sa.Column("link", sa.Text),
    sa.Column("operation", sa.Text, nullable=False),
    sa.Column("world_size", sa.Integer, nullable=False),
    sa.Column("nodes", sa.Integer, nullable=False),
    sa.Column("gpus", pg.ARRAY(sa.Text), nullable=False),
    *points("out_of_place"),
    *points("in_place"),
    sa.CheckConstraint("link IN ('nvlink', 'pcie', 'xgmi')", name="link_known"),
    sa.CheckConstraint(
        "operation IN ('all_reduce', 'all_gather', 'reduce_scatter', 'alltoall', 'broadcast', 'reduce', 'gather',"
        " 'scatter', 'sendrecv', 'hypercube')",
        name="operation_known",
    ),
    sa.CheckConstraint("world_size >= 1 AND nodes BETWEEN 1 AND world_size", name="sizes_positive"),
    key=("digest",),
)
"""Link tests: collectives over GPUs."""

CATALOGUE = (
    sources,
    gpus,
    models,
    instance_types,
    prices,
    hosted_prices,
    calibrations,
    serving_calibrations,
    link_calibrations,
)
"""Every table of the catalogue, in the order rows are written."""

api_keys = sa.Table(
    "api_keys",
    metadata,
    sa.Column("id", sa.BigInteger, sa.Identity(always=True), primary_key=True),
    sa.Column("prefix", sa.Text, nullable=False, unique=True),
    sa.Column("sha256", sa.Text, nullable=False),
    sa.Column("name", sa.Text, nullable=False),
    sa.Column("role", sa.Text, nullable=False),
    sa.Column("created_at", sa.DateTime(timezone=True), nullable=False, server_default=sa.func.now()),
    sa.Column("last_used_at", sa.DateTime(timezone=True)),
    sa.Column("revoked_at", sa.DateTime(timezone=True)),
    sa.CheckConstraint("prefix ~ '^[0-9a-f]{12}$'", name="prefix_form"),
    sa.CheckConstraint("sha256 ~ '^[0-9a-f]{64}$'", name="sha256_form"),
    sa.CheckConstraint("char_length(name) BETWEEN 1 AND 200", name="name_length"),
    sa.CheckConstraint("role IN ('reader', 'quoter', 'curator', 'admin')", name="role_known"),
)
"""Who may write. A key itself is nowhere: only its hash, and the part of it that finds the row."""
