# mypy: implicit-reexport
"""The sections of a configuration, and the files that users write."""

from __future__ import annotations

from fedplt.client import TrainingConfig
from fedplt.configuration.config import (
    FROM_PYTHON,
    ClientsConfig,
    CutConfig,
    DataConfig,
    EngineConfig,
    GroupConfig,
    MessagesConfig,
    ModelConfig,
    PrivacyConfig,
    RunConfig,
    default_folder,
)
from fedplt.configuration.config_file import (
    SAME_CALL,
    Changes,
    ConfigLike,
    Source,
    as_config,
    dump_config,
    flatten,
    follows_preset,
    how_to_continue,
    load_config,
    load_section,
    make_absolute,
    override,
    overrides_of,
    parse_config,
    parse_toml,
    parse_value,
    placing,
    read_config,
    read_text,
)
from fedplt.configuration.conflicts import refuse_weighted_votes
from fedplt.configuration.device_files import Chances, csv_rows, read_availability, read_fleet
from fedplt.configuration.evaluation_config import DiagnosticsConfig, EvaluationConfig, TaskConfig
from fedplt.configuration.fleet_config import ON_NODES, AnnouncedDevice, FleetConfig, WorkConfig
from fedplt.configuration.presets import NAMES as PRESET_NAMES
from fedplt.configuration.sampling_config import SamplingConfig
from fedplt.configuration.server_config import ServerConfig
