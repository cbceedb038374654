# mypy: implicit-reexport
"""A run: its job, the round loop, its records and its folder."""

from __future__ import annotations

from fedplt.federation.assigned_devices import nominal_workload
from fedplt.federation.availability import Availability
from fedplt.federation.choose_clients import most_clients, most_numbers
from fedplt.federation.configured_plan import method_from_config, plan_from_config
from fedplt.federation.cost_forecast import forecast
from fedplt.federation.engine import Engine, Interrupted
from fedplt.federation.evaluation import evaluation_chunks
from fedplt.federation.job import (
    DataOnNodes,
    Job,
    job_from_config,
    local_training_of,
    make_job,
    memory_counter,
    plan_without_data,
    with_claims,
)
from fedplt.federation.loop import Federation, OnRound, ignore
from fedplt.federation.model_and_data import find_code, load_data, model_from_config, split_data
from fedplt.federation.preflight.coverage import (
    FEWEST_CLIENTS,
    coverage_warnings,
    participants_warning,
    warn_of_gaps,
)
from fedplt.federation.preflight.self_check import check_job
from fedplt.federation.preflight.trial_runs import on_device, try_model
from fedplt.federation.privacy_accounting import privacy_text
from fedplt.federation.progress import both, shown_progress
from fedplt.federation.round_costs import DeviceTimes, RoundCosts, read_devices
from fedplt.federation.run_folder.checkpoint import changed_keys
from fedplt.federation.run_folder.folder import RunFolder, load_history
from fedplt.federation.run_folder.lock import take_lock
from fedplt.federation.run_folder.records import History, RoundRecord, Totals, one_metric
from fedplt.federation.run_folder.results import read_metric
from fedplt.federation.run_folder.sealed import load_tensors, save_tensors
from fedplt.federation.run_folder.sessions import note_processor, processor_name, read_sessions
from fedplt.federation.start import MakeEngine, job_of, prepare_resume, run_job
from fedplt.federation.trained_model import evaluate, load
