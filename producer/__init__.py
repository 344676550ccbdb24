"""What a web backend imports: two tasks, a client that waits for their answers, and the errors.

Importing it connects to nothing, and needs neither torch nor a checkpoint: those are the workers'.
"""

from producer.bulk import predict_many
from producer.client import apredict, predict
from producer.errors import (
    BrokerUnavailable,
    CheckpointUnavailable,
    DeadlineExceeded,
    InvalidRequest,
    LayaError,
    PayloadTooLarge,
    PoisonedRequest,
    PredictionFailed,
    QueueFull,
    UnknownCheckpoint,
)
from producer.served import Served, served
from producer.tasks import submit_prediction, submit_predictions

__all__ = [
    "BrokerUnavailable",
    "CheckpointUnavailable",
    "DeadlineExceeded",
    "InvalidRequest",
    "LayaError",
    "PayloadTooLarge",
    "PoisonedRequest",
    "PredictionFailed",
    "QueueFull",
    "Served",
    "UnknownCheckpoint",
    "apredict",
    "predict",
    "predict_many",
    "served",
    "submit_prediction",
    "submit_predictions",
]
