#!/usr/bin/env python3
"""Stops or kills a rank of an MPI run at a random moment, many times, and sees whether the run ends as it should: in
time, with a status other than 0, with exactly one line of the program's own that names a rank that was killed and
speaks of a record only if there is one, and with no process left behind.

  tests/stop_and_kill.py --stops 50 --kills 50 --timeout 5 mpirun -np 4 build/cpu/experiments/gradient_equivalence ...

The program must take --timeout, which is added to the command, and -o."""
import argparse
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time


def processes():
    """(pid, parent, command name) of all processes."""
    for entry in os.listdir("/proc"):
        if not entry.isdigit():
            continue
        try:
            with open(f"/proc/{entry}/stat") as file:
                text = file.read()
        except OSError:
            continue
        name = text[text.index("(") + 1:text.rindex(")")]
        state, parent = text[text.rindex(")") + 2:].split()[:2]
        if state != "Z":
            yield int(entry), int(parent), name


def descendants(root):
    found, todo = {}, [root]
    everything = list(processes())
    while todo:
        parent = todo.pop()
        for pid, its_parent, name in everything:
            if its_parent == parent and pid not in found:
                found[pid] = name
                todo.append(pid)
    return found


class Run:
    def __init__(self, command, program):
        self.program = program
        self.folder = tempfile.mkdtemp(prefix="ringlab-trial-")
        self.errors = open(os.path.join(self.folder, "stderr"), "w+")
        self.begin = time.monotonic()
        self.process = subprocess.Popen(command + ["-o", os.path.join(self.folder, "r.h5")], cwd=self.folder,
                                        stdout=subprocess.DEVNULL, stderr=self.errors, start_new_session=True)

    def ranks(self):
        # The launcher's own children: what a rank has started is not a rank.
        return [pid for pid, parent, name in processes()
                if parent == self.process.pid and name == self.program[:15]]

    def wait(self, limit):
        try:
            return self.process.wait(timeout=limit)
        except subprocess.TimeoutExpired:
            return None

    def finish(self):
        """The program's own lines, all of stderr, and how many processes are left; ends what is left."""
        left = descendants(self.process.pid) if self.process.poll() is None else {}
        for pid in [*left, *([self.process.pid] if self.process.poll() is None else [])]:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
        self.process.wait()
        self.errors.seek(0)
        text = self.errors.read()
        self.errors.close()
        self.has_record = any(name.startswith("r.h5") for name in os.listdir(self.folder))
        shutil.rmtree(self.folder, ignore_errors=True)
        # An MPI library that goes on complaining of a dead process can get between the ends of a line.
        return [line for line in text.splitlines() if self.program + ": " in line], text


def alive(pids):
    return [pid for pid, _, _ in processes() if pid in pids]


def guarded(pid):
    """Whether a rank has come to where it guards its run: before, its libraries are still being loaded."""
    try:
        threads = os.listdir(f"/proc/{pid}/task")
        return any(open(f"/proc/{pid}/task/{thread}/comm").read() == "guardian\n" for thread in threads)
    except OSError:
        return False


def rank_of(pid):
    """What the launcher has told the process; None if it was none of Open MPI's, or has not begun."""
    try:
        with open(f"/proc/{pid}/environ") as file:
            variables = dict(entry.split("=", 1) for entry in file.read().split("\0") if "=" in entry)
    except OSError:
        return None
    return variables.get("OMPI_COMM_WORLD_RANK")


def is_of(line, launcher):
    """Whether the launcher said it: [HOST:NUMBER], of at least five digits."""
    return f":{launcher:05}]" in line


def crashed(text, launcher):
    """Whether a rank did. The launcher may: PMIx 4 in Open MPI 4's mpiexec does now and then when it ends processes, after
    they have ended, and says so in lines that begin with its number."""
    text = "\n".join(line for line in text.splitlines() if not is_of(line, launcher))
    return any(sign in text for sign in ("signal 11", "signal 6", "Segmentation", "Signal: Aborted"))


def launcher_hangs(text, launcher):
    """Whether it lost a rank that was killed while it called the launcher back: PMIx 4 then says so and waits for ever,
    with all ranks ended."""
    return any(is_of(line, launcher) and "PMIX ERROR: UNREACHABLE" in line for line in text.splitlines())


def trial(options, command, program, what, moment, rng):
    run = Run(command, program)
    ranks = []
    while run.process.poll() is None and (time.monotonic() - run.begin < moment or len(ranks) < options.ranks):
        time.sleep(0.001)
        ranks = run.ranks()
    if run.process.poll() is not None or len(ranks) < options.ranks:
        run.finish()
        return None
    victim = rng.choice(ranks)
    rank = rank_of(victim)
    others_guard = any(guarded(rank) for rank in ranks if rank != victim)
    hit = time.monotonic()
    try:
        os.kill(victim, signal.SIGSTOP if what == "stop" else signal.SIGKILL)
    except ProcessLookupError:
        run.finish()
        return None
    status = run.wait(options.timeout + options.grace)
    took = time.monotonic() - hit
    left = alive(ranks)
    while left and time.monotonic() - hit < took + 2:  # ended, but perhaps not yet taken down
        time.sleep(0.05)
        left = alive(left)
    for pid in left:
        os.kill(pid, signal.SIGKILL)
    lines, text = run.finish()
    if status == 0 and not left:
        return None  # it was over before the signal came
    faults = []
    if status is None and (left or not launcher_hangs(text, run.process.pid)):
        faults.append("did not end")
    # The launcher ends ranks that cannot yet say why.
    if len(lines) != 1 and (lines or others_guard or what == "stop"):
        faults.append(f"{len(lines)} lines")
    named = (f"rank {rank} (process {victim}) has died", f"rank {rank} has died, or was never started")
    if what == "kill" and lines and rank is not None and not any(words in lines[0] for words in named):
        faults.append(f"rank {rank} is not named")
    if not run.has_record and any("is in the record" in line for line in lines):
        faults.append("speaks of a record that is not there")
    if left:
        faults.append(f"{len(left)} processes left")
    if crashed(text, run.process.pid):
        faults.append("crashed")
    return took, faults, lines, text


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--stops", type=int, default=2)
    parser.add_argument("--kills", type=int, default=2)
    parser.add_argument("--ranks", type=int, default=4, help="processes that the command starts")
    parser.add_argument("--timeout", type=float, default=3, help="seconds, given to the program")
    parser.add_argument("--grace", type=float, default=8, help="seconds that the launcher may take to end")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--limit", type=float, default=1e9, help="seconds after which no further trial begins")
    parser.add_argument("command", nargs=argparse.REMAINDER)
    options = parser.parse_args()
    rng = random.Random(options.seed)
    program = next(os.path.basename(word) for word in reversed(options.command)
                   if os.path.isfile(word) and os.access(word, os.X_OK))
    command = [os.path.abspath(word) if os.path.exists(word) else word for word in options.command]
    command += ["--timeout", str(options.timeout)]
    begin = time.monotonic()

    whole = Run(command, program)
    status = whole.wait(600)
    length = time.monotonic() - whole.begin
    _, text = whole.finish()
    if status != 0:
        sys.exit(f"stop_and_kill.py: undisturbed the command ends with {status}:\n{text}")
    print(f"undisturbed: {length:.2f} s", flush=True)

    bad = 0
    for what, count in (("stop", options.stops), ("kill", options.kills)):
        times, done = [], 0
        while done < count and time.monotonic() - begin < options.limit:
            moment = rng.uniform(0, length)
            result = trial(options, command, program, what, moment, rng)
            if result is None:
                continue
            took, faults, lines, text = result
            done += 1
            times.append(took)
            bad += bool(faults)
            print(f"{what} {done} at {moment:.2f} s: {took:.2f} s, {'; '.join(faults) or 'good'}: "
                  f"{lines[0] if lines else ''}", flush=True)
            if faults:
                print(text, flush=True)
        if times:
            print(f"{what}: {done} trials, ended within {max(times):.2f} s, median {sorted(times)[done // 2]:.2f} s")
    sys.exit(1 if bad else 0)


if __name__ == "__main__":
    main()
