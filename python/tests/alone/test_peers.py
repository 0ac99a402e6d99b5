"""python -m ringlab.peers as a user starts it."""

import subprocess
import sys

import pytest

TORCHRUN = ["torch.distributed.run", "--nproc_per_node=2", "--standalone", "-m", "ringlab.peers"]


def run(*words):
    return subprocess.run([sys.executable, "-m", *words], capture_output=True, text=True, timeout=150)


def test_the_list_has_every_family_and_needs_no_torchrun():
    done = run("ringlab.peers", "--list")
    assert done.returncode == 0, done.stderr
    for name in ("ringlab[:SCHEDULE/LAYOUT]", "ulysses[:KERNELS]", "context-parallel[", "ring-flash-attention[", "alone[", "fa4"):
        assert name in done.stdout
    done = run("ringlab.peers")
    assert done.returncode == 2 and done.stdout == ""
    assert done.stderr == "peers: start it by torchrun: torchrun --nproc_per_node=2 -m ringlab.peers ...\n"


@pytest.mark.parametrize("words, status, said", [
    (["--systems", "ringlab", "ulysses"], 0, "times the rate of the best other, ulysses"),
    (["--systems", "ringlab", "ulises"], 2, "peers: unknown system 'ulises', did you mean 'ulysses'?\n"),
    (["--systems", "context-parallel"], 1, "not timed: context-parallel: PyTorch's context_parallel has kernels for CUDA"),
])
def test_two_processes(words, status, said):
    done = run(*TORCHRUN, "--device", "cpu", "--tokens-per-rank", "32", "--heads", "4:2", "--head-dim", "8", "--seconds",
               "0.001", "--warm-up", "0", *words)
    assert (done.returncode == 0) == (status == 0), done.stderr[-3000:]
    if status:
        assert f"exitcode  : {status} " in done.stderr
    assert said in done.stdout + done.stderr
    assert (done.stdout + done.stderr).count("peers: ") == (status == 2)  # one rank says it
