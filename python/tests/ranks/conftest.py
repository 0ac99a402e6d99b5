"""Every process of torchrun runs these tests, in step: what fails on one rank fails on all, with that rank's words."""

import datetime
import os
import traceback

import pytest
import torch
import torch.distributed as dist

TIMEOUT = 120.0  # seconds; of a wait that nobody ends


@pytest.fixture(scope="session", autouse=True)
def ring():
    from ringlab.torch import connect

    if "RANK" not in os.environ:
        pytest.exit("start these tests by python -m torch.distributed.run --nproc_per_node=2 --module pytest", 2)
    torch.set_num_threads(1)
    dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=TIMEOUT))
    connect(timeout=TIMEOUT)
    yield
    dist.destroy_process_group()


@pytest.hookimpl(hookwrapper=True)
def pytest_pyfunc_call(pyfuncitem):
    outcome = yield
    mine = "" if outcome.excinfo is None else "".join(traceback.format_exception(*outcome.excinfo))
    skipped = outcome.excinfo is not None and issubclass(outcome.excinfo[0], pytest.skip.Exception)
    failures = [None] * dist.get_world_size()
    dist.all_gather_object(failures, "" if skipped else mine)
    for rank, failure in enumerate(failures):
        if failure and not mine:
            outcome.force_exception(AssertionError(f"rank {rank} failed:\n{failure}"))
