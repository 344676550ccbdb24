"""What docs/transport.md says: the way back to the stock transport works."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

from tests.celery_process import ROOT

PAGE = (ROOT / "docs" / "transport.md").read_text(encoding="utf-8")


def test_the_page_s_way_back_to_the_stock_transport(tmp_path: Path) -> None:
    block = re.search(r"```python\n(# stock_wire.*?)```", PAGE, flags=re.DOTALL)
    assert block is not None
    (tmp_path / "stock_wire.py").write_text(block[1])
    code = "import stock_wire; print(stock_wire.app.connection().transport.__class__.__module__)"
    run = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, env={"PYTHONPATH": str(ROOT)}, capture_output=True, text=True
    )
    assert run.stdout.split() == ["kombu.transport.redis"], run.stderr
