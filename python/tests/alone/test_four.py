"""Tests that want four processes: rings beside replicas, and beside split heads."""

import pathlib
import subprocess
import sys

RANKS = pathlib.Path(__file__).parents[1] / "ranks"


def test_meshes_of_four_processes():
    ran = subprocess.run([sys.executable, "-m", "torch.distributed.run", "--nproc_per_node=4", "--standalone",
                          "--local-ranks-filter=0", "--module", "pytest", "-p", "no:cacheprovider", "-q",
                          str(RANKS / "test_mesh.py")], capture_output=True, text=True, timeout=300)
    assert ran.returncode == 0, ran.stdout[-3000:] + ran.stderr[-3000:]
