"""A run: its configuration, its job, the round loop, its records and its folder."""

from __future__ import annotations

from fedplt.federation.checkpoint import changed_keys
from fedplt.federation.checks import try_model
from fedplt.federation.claims import most_believed, with_claims
from fedplt.federation.config import (
    FROM_PYTHON,
    ClientsConfig,
    CutConfig,
    DataConfig,
    EngineConfig,
    GroupConfig,
    ModelConfig,
    RunConfig,
    TrainingConfig,
)
from fedplt.federation.config_errors import parse_toml, read_text, validate
from fedplt.federation.config_file import (
    ConfigLike,
    as_config,
    dump_config,
    flatten,
    load_config,
    override,
    parse_config,
)
from fedplt.federation.config_paths import make_absolute
from fedplt.federation.config_places import placing
from fedplt.federation.continuing import SAME_CALL
from fedplt.federation.csv_file import csv_rows
from fedplt.federation.device_files import read_fleet
from fedplt.federation.device_times import DeviceTimes, read_devices, write_devices
from fedplt.federation.engine import Engine, Interrupted
from fedplt.federation.evaluation_config import DiagnosticsConfig, EvaluationConfig, TaskConfig
from fedplt.federation.fleet_config import AnnouncedDevice, FleetConfig
from fedplt.federation.folder import RunFolder
from fedplt.federation.job import (
    Job,
    job_from_config,
    learning_rates_of,
    local_training_of,
    make_job,
    plan_without_data,
)
from fedplt.federation.lock import take_lock
from fedplt.federation.loop import Federation, OnRound, ignore
from fedplt.federation.measure import evaluation_chunks
from fedplt.federation.metric_file import read_metric
from fedplt.federation.planning import method_from_config, plan_from_config, warn_of_gaps
from fedplt.federation.privacy import (
    noise_multiplier_for,
    privacy_text,
    probability_of,
)
from fedplt.federation.privacy_config import PrivacyConfig
from fedplt.federation.processor import note_processor, processor_name
from fedplt.federation.records import History, RoundRecord, Totals, one_metric
from fedplt.federation.robust import coverage_warnings
from fedplt.federation.run_data import load_data, split_data
from fedplt.federation.sampler import most_clients, most_numbers
from fedplt.federation.sampling_config import SamplingConfig
from fedplt.federation.sealed import load_tensors, save_tensors
from fedplt.federation.section import ON_NODES, Section
from fedplt.federation.self_check import check_job
from fedplt.federation.server_config import ServerConfig
from fedplt.federation.server_job import DataOnNodes, make_server_job
from fedplt.federation.sessions import note_session, read_sessions
from fedplt.federation.trained_model import evaluate, load

__all__ = [
    "FROM_PYTHON",
    "ON_NODES",
    "SAME_CALL",
    "AnnouncedDevice",
    "ClientsConfig",
    "ConfigLike",
    "CutConfig",
    "DataConfig",
    "DataOnNodes",
    "DeviceTimes",
    "DiagnosticsConfig",
    "Engine",
    "EngineConfig",
    "EvaluationConfig",
    "Federation",
    "FleetConfig",
    "GroupConfig",
    "History",
    "Interrupted",
    "Job",
    "ModelConfig",
    "OnRound",
    "PrivacyConfig",
    "RoundRecord",
    "RunConfig",
    "RunFolder",
    "SamplingConfig",
    "Section",
    "ServerConfig",
    "TaskConfig",
    "Totals",
    "TrainingConfig",
    "as_config",
    "changed_keys",
    "check_job",
    "coverage_warnings",
    "csv_rows",
    "dump_config",
    "evaluate",
    "evaluation_chunks",
    "flatten",
    "ignore",
    "job_from_config",
    "learning_rates_of",
    "load",
    "load_config",
    "load_data",
    "load_tensors",
    "local_training_of",
    "make_absolute",
    "make_job",
    "make_server_job",
    "method_from_config",
    "most_believed",
    "most_clients",
    "most_numbers",
    "noise_multiplier_for",
    "note_processor",
    "note_session",
    "one_metric",
    "override",
    "parse_config",
    "parse_toml",
    "placing",
    "plan_from_config",
    "plan_without_data",
    "privacy_text",
    "probability_of",
    "processor_name",
    "read_devices",
    "read_fleet",
    "read_metric",
    "read_sessions",
    "read_text",
    "save_tensors",
    "split_data",
    "take_lock",
    "try_model",
    "validate",
    "warn_of_gaps",
    "with_claims",
    "write_devices",
]
