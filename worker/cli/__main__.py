"""`python -m worker.cli`, the same as `laya-workers`."""

from worker.cli import main

main()
