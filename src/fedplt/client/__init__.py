# mypy: implicit-reexport
"""What happens on a client, under any engine: local training, evaluation, and its update."""

from __future__ import annotations

from fedplt.client.evaluation import (
    CHUNK,
    Evaluation,
    combine,
    combine_statistics,
    evaluate_chunk,
    gather_statistics,
    label_shares,
    num_chunks,
    statistics_chunks,
)
from fedplt.client.local_training import LocalTraining, train_held
from fedplt.client.metrics import METRICS, Metric, MetricInfo, Sums, accuracy, as_metric
from fedplt.client.outputs import (
    IGNORED,
    class_scores,
    is_labels,
    logits_of,
    next_tokens,
    own_loss,
    vocabulary_axis,
)
from fedplt.client.self_check.check import CheckReport, check, check_assignments, refuse_wrong
from fedplt.client.slices import TrainableSlices
from fedplt.client.submodels import HeldModels, try_submodel
from fedplt.client.tasks import CLASSIFICATION, MEANS, TASKS, Loss, Task, classification_loss
from fedplt.client.train_only import train_only
from fedplt.client.trainer import ClientResult, ClientTrainer, TrainOrder
from fedplt.client.training_config import OPTIMIZERS, TrainingConfig
from fedplt.client.training_memory import (
    MemoryCounter,
    TrainingMemory,
    batch_statistics,
    training_memory,
)
from fedplt.client.update import ClientUpdate, Origin, Uplink, update_norm, weighted_norm
