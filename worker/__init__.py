"""What runs beside the checkpoints: the worker's Celery app, its serving of requests, an embedded server."""
