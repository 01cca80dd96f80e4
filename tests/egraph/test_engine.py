"""Egglog's e-graphs in processes that fork, and the folders that rows travel in."""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from eqsat.egraph.engine import Engine, Pending

FORKS = """
import os, sys
from eqsat.egraph import engine
with engine.engine_for([]) as idle:
    idle.step(engine.Pending(unions=[(1, 2)]))
used = engine.Engine([])
child = os.fork()
if not child:
    with engine.engine_for([]) as own:
        own.step(engine.Pending(unions=[(1, 2)]))
    del idle, used, own
    engine._idle.clear()
    sys.exit(0)
print(os.waitpid(child, 0)[1])
for one in (idle, used):
    one.step(engine.Pending(unions=[(1, 2)]))
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_forked_processes_leave_e_graphs_alone() -> None:
    """Egglog waits for ever for threads that are gone when an e-graph is dropped there."""
    done = subprocess.run([sys.executable, "-c", FORKS], capture_output=True, text=True, timeout=60, check=False)
    assert (done.stdout, done.returncode) == ("0\n", 0), done.stderr


def test_no_file_outlives_a_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Processes that multiprocessing forks end without a word, so what an engine kept would lie there for ever."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    engine = Engine([])
    engine.step(Pending(unions=[(1, 2)]))
    assert not list(tmp_path.iterdir())
