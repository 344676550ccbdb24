"""Flower's configuration: a password, bounded memory, tasks that read well. Used by `celery -A worker flower` as it is.

Flower runs this file and takes the names that are options of its own. What the environment says (`FLOWER_MAX_TASKS`)
stands; `--conf=FILE`, or FLOWER_CONF, uses another file instead.
"""

from __future__ import annotations

import os
import sys

from worker.app import app
from worker.dashboard import NO_LOGIN, has_login, keep_apart, readable

if not has_login(sys.argv, os.environ):
    raise SystemExit(NO_LOGIN)

keep_apart(app)
format_task = readable
tasks_columns = os.environ.get("FLOWER_TASKS_COLUMNS", "name,state,args,result,runtime,worker,received,uuid")
# A task takes about 2 KB of Flower's memory; its own limit is ten times as many.
max_tasks = int(os.environ.get("FLOWER_MAX_TASKS", "10000"))
# Workers come and go with the load: one that has ended disappears after ten minutes.
purge_offline_workers = int(os.environ.get("FLOWER_PURGE_OFFLINE_WORKERS", "600"))
