# mypy: implicit-reexport
"""What a run is told: its sections, and the files that users write."""

from __future__ import annotations

from fedplt.configuration.config import (
    ClientsConfig,
    CutConfig,
    DataConfig,
    EngineConfig,
    GroupConfig,
    ModelConfig,
    PrivacyConfig,
    RunConfig,
)
from fedplt.configuration.config_errors import parse_toml, placing, read_text, validate
from fedplt.configuration.config_file import (
    SAME_CALL,
    Changes,
    ConfigLike,
    as_config,
    dump_config,
    flatten,
    how_to_continue,
    load_config,
    make_absolute,
    override,
    overrides_of,
    parse_config,
    read_config,
)
from fedplt.configuration.device_files import Chances, csv_rows, read_availability, read_fleet
from fedplt.configuration.evaluation_config import DiagnosticsConfig, EvaluationConfig, TaskConfig
from fedplt.configuration.fleet_config import AnnouncedDevice, FleetConfig, WorkConfig
from fedplt.configuration.sampling_config import SamplingConfig
from fedplt.configuration.section import FROM_PYTHON, ON_NODES, Section
from fedplt.configuration.server_config import ServerConfig
from fedplt.configuration.training_config import TrainingConfig
