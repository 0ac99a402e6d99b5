"""A rank that dies, stops or goes elsewhere: every survivor raises within the time-out, and goes on by itself."""

import datetime
import multiprocessing
import os
import signal
import time

import pytest
import torch
import torch.distributed as dist

import ringlab
from ringlab.torch import _ring, connect, ring_attention, shard

TIMEOUT = 4.0  # seconds, of the ring
MARGIN = 8.0   # for machines that are busy with other things
RANKS = 3

# Forked, so that each rank does not have to load PyTorch anew.
FORK = multiprocessing.get_context("fork")


def run_rank(rank, body, folder, results):
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/meeting", rank=rank, world_size=RANKS,
                            timeout=datetime.timedelta(seconds=60))
    connect(timeout=TIMEOUT)
    q = torch.randn(1, 12, 2, 4, dtype=torch.float64, requires_grad=True)
    ring_attention(q, q, q).sum().backward()
    begin = time.monotonic()
    try:
        body(rank, q)
        message = "nothing"
    except ringlab.BrokenRing as error:
        message = str(error)
    except KeyboardInterrupt:
        message = "Ctrl-C"
    seconds = time.monotonic() - begin
    torch.save(q.detach(), f"{folder}/saved_{rank}.pt")  # what is on the host is still there
    results.put((rank, message, seconds))
    results.close()
    results.join_thread()
    os._exit(0)


def connect_anew():
    """A ring that is made of what _ring.Ring is now: the library keeps what it was given."""
    _ring._rings.clear()
    connect(timeout=TIMEOUT)


def outcomes(body, folder, survivors, others=lambda processes: None):
    """{rank: (message, seconds)} of the survivors."""
    results = FORK.Queue()
    processes = [FORK.Process(target=run_rank, args=(rank, body, folder, results)) for rank in range(RANKS)]
    for process in processes:
        process.start()
    try:
        others(processes)
        found = [results.get(timeout=60) for _ in range(survivors)]
    finally:
        for process in processes:
            process.kill()
            process.join()
    for rank, _, _ in found:
        assert (folder / f"saved_{rank}.pt").exists()
    return {rank: (message, seconds) for rank, message, seconds in found}


def check(found, ranks):
    assert sorted(found) == ranks
    for rank, (message, seconds) in found.items():
        assert message.startswith(f"rank {rank} of {RANKS}: "), message
        assert "\n" not in message
        assert seconds < TIMEOUT + MARGIN, (rank, message, seconds)


@pytest.mark.parametrize("where", ["before a call", "between passes", "within a pass", "within a backward pass"])
def test_a_rank_that_dies(where, tmp_path):
    def body(rank, q):
        if rank == 1 and where == "before a call":
            os._exit(1)
        if rank == 1 and where == "within a pass":
            _ring.Ring._send = lambda *_: os._exit(1)
        if where == "within a pass":
            connect_anew()
        if where == "within a backward pass":
            send, sent = _ring.Ring._send, []

            def send_until_backward(*arguments):
                if rank == 1 and sent:
                    os._exit(1)
                return send(*arguments)

            _ring.Ring._send = send_until_backward
            connect_anew()
            o = ring_attention(q, q, q)
            sent.append("all of the forward pass")
        else:
            o = ring_attention(q, q, q)
            if rank == 1:
                os._exit(1)
        o.sum().backward()

    check(outcomes(body, tmp_path, 2), [0, 2])


def test_survivors_go_on_in_a_ring_of_their_own(tmp_path):
    def body(rank, q):
        if rank == 1:
            os._exit(1)
        whole = torch.randn(1, 24, 2, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
        expected = torch.nn.functional.scaled_dot_product_attention(*(whole.transpose(1, 2),) * 3, is_causal=True)
        try:
            ring_attention(q, q, q)
        except ringlab.BrokenRing as error:
            group = dist.new_group([0, 2], use_local_synchronization=True)
            connect(group, timeout=TIMEOUT)
            mine = shard(whole, group=group).requires_grad_()
            o = ring_attention(mine, mine, mine, group=group)
            o.sum().backward()
            assert torch.allclose(o, shard(expected.transpose(1, 2), group=group), rtol=1e-12, atol=1e-14)
            assert mine.grad.isfinite().all()
            raise error

    check(outcomes(body, tmp_path, 2), [0, 2])


def test_a_rank_that_is_stopped(tmp_path):
    def body(rank, q):
        if rank == 1:
            os.kill(os.getpid(), signal.SIGSTOP)
        ring_attention(q, q, q)

    found = outcomes(body, tmp_path, 2)
    check(found, [0, 2])
    assert any("the others did not come to the call, within 4 s" in message for message, _ in found.values())


def test_a_rank_that_never_comes_to_make_a_ring(tmp_path):
    def body(rank, q):
        group = dist.new_group(range(RANKS))
        if rank == 1:
            time.sleep(60)
        connect(group, timeout=TIMEOUT)

    found = outcomes(body, tmp_path, 2)
    check(found, [0, 2])
    assert all("the others did not come to make a ring, within 4 s" in message for message, _ in found.values())


def test_a_message_that_never_comes_is_named_and_a_broken_ring_says_so(tmp_path):
    def body(rank, q):
        if rank == 1:
            _ring.Ring._send = lambda *_: 0
        connect_anew()
        try:
            ring_attention(q, q, q)
        except ringlab.BrokenRing as error:
            with pytest.raises(ringlab.BrokenRing, match="this ring ended in an earlier call"):
                ring_attention(q, q, q)
            raise error

    found = outcomes(body, tmp_path, 3)
    check(found, [0, 1, 2])
    assert any("has not ended after 4 s without progress" in message for message, _ in found.values()), found


def test_a_pass_that_waits_hears_ctrl_c(tmp_path):
    def body(rank, q):
        if rank == 1:
            _ring.Ring._send = lambda *_: 0
        connect_anew()
        if rank == 0:
            signal.signal(signal.SIGALRM, signal.default_int_handler)
            signal.setitimer(signal.ITIMER_REAL, 2.0)
        ring_attention(q, q, q)

    found = outcomes(body, tmp_path, 3)
    assert found[0][0] == "Ctrl-C" and found[0][1] < TIMEOUT
