"""What happens on a client, under any engine: local training, evaluation, and its update."""

from __future__ import annotations

from fedplt.client.any_loop import train_held
from fedplt.client.check_report import CheckReport, refuse_wrong
from fedplt.client.evaluation import (
    CHUNK,
    Evaluation,
    Metric,
    accuracy,
    combine,
    combine_statistics,
    evaluate_chunk,
    gather_statistics,
    label_shares,
    num_chunks,
    statistics_chunks,
)
from fedplt.client.local_training import OPTIMIZERS, LocalTraining, Loss
from fedplt.client.self_check import check, check_assignment
from fedplt.client.slices import TrainableSlices
from fedplt.client.submodels import HeldModels, try_submodel
from fedplt.client.train_only import train_only
from fedplt.client.trainer import ClientResult, ClientTrainer, TrainOrder
from fedplt.client.update import ClientUpdate, update_norm

__all__ = [
    "CHUNK",
    "OPTIMIZERS",
    "CheckReport",
    "ClientResult",
    "ClientTrainer",
    "ClientUpdate",
    "Evaluation",
    "HeldModels",
    "LocalTraining",
    "Loss",
    "Metric",
    "TrainOrder",
    "TrainableSlices",
    "accuracy",
    "check",
    "check_assignment",
    "combine",
    "combine_statistics",
    "evaluate_chunk",
    "gather_statistics",
    "label_shares",
    "num_chunks",
    "refuse_wrong",
    "statistics_chunks",
    "train_held",
    "train_only",
    "try_submodel",
    "update_norm",
]
