#!/usr/bin/env python3
"""Runs a program under mpirun on two 'hosts' of this machine, with unequal numbers of ranks, and sees what it makes of them: of
the order of ranks, of processes that were started differently, of ranks that stop or die, of a network that is cut.

  tests/hosts.py build/cpu/experiments/gradient_equivalence

Where namespaces may be made (by root, or by users on many systems), a host has a name, a network interface and processes of
its own, and hosts reach each other through a virtual cable alone. Elsewhere they are hosts to the launcher only, which
starts ranks on each through an agent instead of ssh, with a name of its own at least where that may be. Needs Open MPI's
mpirun, and from version 5 such names; its exit status is 77 where they are not to be had."""
import argparse
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

try:
    import h5py
except ImportError:
    h5py = None  # what records say is then not looked at

PATIENCE = 5  # seconds, --timeout of every run
GRACE = 10  # seconds that the launcher may take to end what it has started
INSIDE = "RINGLAB_TEST_INSIDE"
NAMES = "left", "right"
ADDRESSES = {"left": "10.77.0.1", "right": "10.77.0.2"}


def into_namespaces():
    """Starts this script again where it may make hosts, if the system lets it; returns where not."""
    if os.environ.get(INSIDE):
        return os.environ[INSIDE] == "yes"
    for user in ([], ["--user", "--map-root-user"]):
        outer = ["unshare", *user, "--mount", "--net"]
        if all(map(shutil.which, ("unshare", "nsenter", "ip"))) and subprocess.run(
                [*outer, "unshare", "--net", "--uts", "--pid", "--fork", "--mount-proc", "hostname", "x"],
                stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL).returncode == 0:
            os.environ[INSIDE] = "yes"
            os.execvp(outer[0], [*outer, sys.executable, *sys.argv])
    return False


def into_own_name():
    """Words before a command that may then give itself a host's name; None where the system does not let it."""
    for user in ([], ["--user", "--map-root-user"]):
        words = ["unshare", *user, "--uts"]
        if shutil.which("unshare") and subprocess.run([*words, "hostname", "x"], stdout=subprocess.DEVNULL,
                                                      stderr=subprocess.DEVNULL).returncode == 0:
            return words
    return None


def output_of(*words):
    return subprocess.run(words, check=True, capture_output=True, text=True).stdout.strip()


class Hosts:
    """Two hosts, and what a launcher needs to reach them."""

    def __init__(self, folder, real):
        self.folder, self.real, self.holders = folder, real, []
        self.agent = folder / "agent"
        if not real:  # the launcher takes names that it does not know for other hosts; its daemons share no folders
            for name in NAMES:
                (folder / f"tmp-{name}").mkdir()
            named = into_own_name()
            self.write_agent(" ".join([f"env TMPDIR={folder}/tmp-$host", *(named or [])]), "hostname $host; " if named else "")
            return
        self.write_agent(f"nsenter -t $(cat {folder}/$host) --net --uts --pid --mount")
        (folder / "hosts").write_text("127.0.0.1 localhost\n" +
                                      "".join(f"{address} {name}\n" for name, address in ADDRESSES.items()))
        output_of("mount", "--bind", str(folder / "hosts"), "/etc/hosts")
        for name in NAMES:
            holder = subprocess.Popen(["unshare", "--net", "--uts", "--pid", "--fork", "--kill-child", "--mount-proc", "sh", "-c",
                                       f"hostname {name} && ip link set lo up && echo ready && exec sleep infinity"],
                                      stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
            holder.stdout.readline()
            first = Path(f"/proc/{holder.pid}/task/{holder.pid}/children").read_text().split()[0]
            self.holders.append((holder, first))
            (folder / name).write_text(first)
        left, right = (first for _, first in self.holders)
        output_of("ip", "link", "add", "cable", "netns", left, "type", "veth", "peer", "name", "cable", "netns", right)
        for name in NAMES:
            self.run_on(name, f"ip address add {ADDRESSES[name]}/24 dev cable && ip link set cable up")

    def write_agent(self, into, first=""):
        """What is called instead of ssh: HOST COMMAND..."""
        self.agent.write_text(f'#!/bin/sh\nhost=$1; shift\nexec {into} sh -c "{first}$*"\n')
        self.agent.chmod(0o755)

    def run_on(self, name, command):
        return output_of(str(self.agent), name, command)

    def cut(self):
        self.run_on("right", "ip link set cable down")

    def mend(self):
        self.run_on("right", "ip link set cable up")

    def left_on(self, name, program):
        """Processes of the program that are still there."""
        if not self.real:
            return []
        listed = self.run_on(name, "grep -h -E '^(Name|State)' /proc/[0-9]*/status 2>/dev/null || true").splitlines()
        return [line for line, state in zip(listed[::2], listed[1::2])
                if line.split("\t")[1] == program[:15] and "Z" not in state]

    def environment(self):
        agent = {"OMPI_MCA_plm_rsh_agent": str(self.agent), "PRTE_MCA_plm_ssh_agent": str(self.agent)}  # Open MPI 4, 5
        freely = {"OMPI_MCA_rmaps_base_oversubscribe": "1", "PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe",
                  "OMPI_MCA_mpi_yield_when_idle": "1",
                  # The name of vader's memory has the host's in it.
                  "OMPI_MCA_btl": "self,tcp,vader" if self.real else "self,tcp",
                  "OMPI_MCA_btl_tcp_if_include": "cable" if self.real else "lo",
                  "OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
        return {**os.environ, **agent, **freely}

    def launcher(self, mpirun):
        if not self.real:
            return [mpirun]
        # With the processes of this script, as its agent has to find the other host's.
        return ["nsenter", "-t", self.holders[0][1], "--net", "--uts", mpirun]

    def close(self):
        for holder, first in self.holders:
            try:
                os.kill(int(first), signal.SIGKILL)
            except ProcessLookupError:
                pass
            holder.wait()


class Ending:
    def __init__(self, status, seconds, out, err, program):
        self.status, self.seconds, self.out, self.err = status, seconds, out, err
        self.lines = [line for line in err.splitlines() if program + ": " in line]
        self.notes = [line for line in err.splitlines() if line.startswith("[note]")]


class Trials:
    def __init__(self, options, hosts, folder):
        self.options, self.hosts, self.folder = options, hosts, folder
        self.program = Path(options.program).name
        self.failures = 0

    def command(self, program, ranks, *extra):
        return [program, "--mpi", "--ranks", str(ranks), "--layouts", "zigzag", "--masks", "causal", "--schedules", "ring",
                "--tokens", "480", "--timeout", str(PATIENCE), "--overwrite", "-o", str(self.folder / "r.h5"), *extra]

    def run(self, *parts, by="slot", during=None):
        """`parts`: ({host: slots}, command) each, for one rank after another."""
        at = ",".join(f"{name}:{count}" for slots, _ in parts for name, count in slots.items())
        ranks = sum(sum(slots.values()) for slots, _ in parts)
        command = parts[0][1] if len(parts) == 1 else ["sh", str(self.by_rank(parts))]
        words = [*self.hosts.launcher(self.options.mpirun), "--map-by", by, "--host", at, "-np", str(ranks), *command]
        begin = time.monotonic()
        with open(self.folder / "out", "w+") as out, open(self.folder / "err", "w+") as err:
            process = subprocess.Popen(words, stdout=out, stderr=err, env=self.hosts.environment(), cwd=self.folder)
            try:
                if during:
                    begin = during(process)
                status = process.wait(timeout=120)
            except subprocess.TimeoutExpired:
                process.kill()
                status = process.wait()
                self.failures += 1
                print("  did not end")
            out.seek(0), err.seek(0)
            return Ending(status, time.monotonic() - begin, out.read(), err.read(), self.program)

    def by_rank(self, parts):
        """A script that becomes the command of its rank: daemons of Open MPI 5.0.7 on several hosts break down where the
        launcher itself is given several commands."""
        path, end, lines = self.folder / "by_rank", 0, []
        for slots, command in parts:
            end += sum(slots.values())
            lines.append(f"[ $OMPI_COMM_WORLD_RANK -ge {end} ] || exec {shlex.join(command)}\n")
        path.write_text("".join(lines))
        return path

    def check(self, name, ending, **expected):
        """Prints a line, and what is not as it should be."""
        wrong = [what for what, right in expected.items() if not right]
        said = ending.lines[0] if ending.lines else "; ".join(ending.notes)
        print(f"{name}: {ending.seconds:.1f} s, {'NOT ' + ', '.join(wrong) if wrong else 'good'}: {said}", flush=True)
        if wrong:
            self.failures += 1
            print(f"  status {ending.status}\n{ending.out}{ending.err}", flush=True)

    def column(self, name):
        if not h5py:
            return None
        with h5py.File(self.folder / "r.h5") as record:
            values = record[f"runs/{name}"]
            return (values.asstr() if h5py.check_string_dtype(values.dtype) else values)[0]

    def orders(self):
        """The order of ranks, and what a ring makes of it."""
        both = {"left": 3, "right": 2}
        host_by_host = self.run((both, self.command(self.options.program, 5)))
        bytes_now = self.column("bytes_between_hosts_forward") if host_by_host.status == 0 else 0
        self.check("ranks host by host", host_by_host, done=host_by_host.status == 0,
                   judged="all pass" in host_by_host.out, names=len(host_by_host.notes) > 0 and self.hosts_are_named(
                       host_by_host.notes, "ranks 0-2", "ranks 3-4"),
                   quiet_about_order=not any("place ranks host by host" in note for note in host_by_host.notes))
        if h5py and host_by_host.status == 0:
            self.check("  two pairs of neighbours cross", host_by_host, crossings=self.column("ring_crossings") == 2)
        in_turn = self.run((both, self.command(self.options.program, 5)), by="node")
        self.check("ranks of hosts in turn", in_turn, done=in_turn.status == 0, judged="all pass" in in_turn.out,
                   names=self.hosts_are_named(in_turn.notes, "ranks 0, 2, 4", "ranks 1, 3"),
                   note=any("4 of 5 neighbours of a ring of 5 are on another host, where 2 would do" in note
                            for note in in_turn.notes))
        if h5py and in_turn.status == 0 and host_by_host.status == 0:
            self.check("  four pairs of neighbours cross", in_turn, crossings=self.column("ring_crossings") == 4,
                       bytes=self.column("bytes_between_hosts_forward") == 2 * bytes_now)

    def hosts_are_named(self, notes, *ranks):
        text = " ".join(notes)
        names = NAMES if self.hosts.real else ("", "")
        return all(f"{name} ({of})" in text or f") ({of})" in text for name, of in zip(names, ranks))

    def fetches(self):
        """Open MPI 4 lets ranks read each other's memory over TCP only where it is told so."""
        command = self.command(self.options.program, 4)
        command[command.index("ring")] = "pull"
        ending = self.run(({"left": 3, "right": 1}, command))
        self.check("ranks that fetch", ending, done_or_told=ending.status == 0 or "OMPI_MCA_osc=pt2pt in the environment" in
                   ending.err)
        if ending.status == 0:  # Open MPI 5 needs no telling, and has no pt2pt
            return
        os.environ["OMPI_MCA_osc"] = "pt2pt"
        ending = self.run(({"left": 3, "right": 1}, command))
        del os.environ["OMPI_MCA_osc"]
        self.check("  as they are told to", ending, done=ending.status == 0, judged="all pass" in ending.out)

    def placements(self):
        for placement in "consecutive", "strided":
            ending = self.run(({"left": 3, "right": 1}, self.command(self.options.program, 2, "--replicas", "2", "--placement",
                                                                   placement)))
            self.check(f"two rings of two, {placement}", ending, done=ending.status == 0, judged="all pass" in ending.out)

    def started_differently(self):
        of_left = self.command(self.options.program, 4)
        other_layout = [word.replace("zigzag", "striped") for word in of_left]
        ending = self.run(({"left": 3}, of_left), ({"right": 1}, other_layout))
        self.check("other arguments on a host", ending, failed=ending.status not in (0, 77), one_line=len(ending.lines) == 1,
                   says=re.search(r"rank 3 on .* was started with layouts = striped, rank 0 on .* with layouts = zigzag; "
                                  r"give all processes the same arguments", ending.err) is not None)
        other = self.other_version()
        ending = self.run(({"left": 3}, of_left), ({"right": 1}, [str(other), *of_left[1:]]))
        self.check("another version on a host", ending, failed=ending.status not in (0, 77), one_line=len(ending.lines) == 1,
                   says=re.search(r"rank 3 on .* is version .*, rank 0 on .* is version .*; start the same program on "
                                  r"all hosts", ending.err) is not None)
        ending = self.run(({"left": 2, "right": 1}, of_left))
        self.check("a process too few", ending, failed=ending.status not in (0, 77), one_line=len(ending.lines) == 1,
                   says="need 4 MPI processes (mpirun -np 4); there are 3" in ending.err)

    def other_version(self):
        """The program with another version in it, under its own name."""
        version = output_of(self.options.program, "--version").split("Ringlab ")[1].split(" ")[0].encode()
        folder = self.folder / "other"
        folder.mkdir()
        text = Path(self.options.program).read_bytes()
        changed = text.replace(version + b"\0", b"9" + version[1:] + b"\0")
        path = folder / self.program
        path.write_bytes(changed)
        path.chmod(0o755)
        return path

    def faults(self):
        for fault, words in (("kill", "rank 3"), ("stop", "rank 3")):
            ending = self.run(({"left": 3, "right": 1}, self.command(self.options.program, 4, "--fault", f"{fault}:3")))
            self.check(f"{fault} on the other host", ending, failed=ending.status not in (0, 77), names=words in ending.err,
                       in_time=ending.seconds < PATIENCE + GRACE + 5)

    def cut(self):
        """What counts is when the program's processes are gone: Open MPI's launcher itself may wait for a host that is
        cut off for as long as TCP tries to reach it."""
        def while_it_computes(process):
            deadline = time.monotonic() + 60
            while "[note] 2 hosts" not in (self.folder / "err").read_text() and time.monotonic() < deadline:
                time.sleep(0.05)
            time.sleep(0.2)
            self.hosts.cut()
            begin = time.monotonic()
            while self.left_under(process) or self.hosts.left_on("right", self.program):
                if time.monotonic() - begin > 4 * (PATIENCE + GRACE):
                    break
                time.sleep(0.1)
            self.seconds = time.monotonic() - begin
            process.kill()
            return begin
        command = self.command(self.options.program, 4, "--tokens", "1920")
        command[command.index("causal"):command.index("causal") + 1] = ["full", "window:9,0"]
        for word in ("--tokens", "480"):
            command.remove(word)
        ending = self.run(({"left": 3, "right": 1}, command), during=while_it_computes)
        # On the other host the root is silent for as long, and processes of other hosts have 5 s to say the first error.
        ending.seconds = self.seconds
        self.check("the cable is cut", ending, all_end_in_time=self.seconds < PATIENCE + 5 + GRACE,
                   one_line=len(ending.lines) == 1,
                   says=re.search(r"rank \d+ has given no sign of life for 5 s; .*its host is cut off", ending.err) is not None)
        self.hosts.mend()

    def left_under(self, launcher):
        """Processes that it has started on its own host and that are there."""
        children = Path(f"/proc/{launcher.pid}/task/{launcher.pid}/children")
        listed = children.read_text().split() if children.exists() else []
        return [pid for pid in listed if Path(f"/proc/{pid}/comm").read_text().strip() == self.program[:15]
                and "Z" not in Path(f"/proc/{pid}/stat").read_text().rsplit(")")[1][:3]]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mpirun", default=shutil.which("mpirun") or "mpirun")
    parser.add_argument("--without-namespaces", action="store_true", help="hosts to the launcher only")
    parser.add_argument("program", type=os.path.abspath)
    options = parser.parse_args()
    said = output_of(options.mpirun, "--version") if shutil.which(options.mpirun) else ""
    if not any(name in said for name in ("Open MPI", "OpenRTE", "PRRTE")):
        print("skipped: this needs Open MPI's mpirun")
        sys.exit(77)
    real = not options.without_namespaces and into_namespaces()
    major = re.search(r"Open MPI\D*(\d+)\.", said)
    if not real and major and int(major[1]) >= 5 and not into_own_name():
        print("skipped: Open MPI 5 tells hosts by their own names, which this user may not give them")
        sys.exit(77)
    print("hosts with networks of their own" if real else "hosts to the launcher only", flush=True)
    with tempfile.TemporaryDirectory(prefix="ringlab-hosts-") as name:
        folder = Path(name)
        hosts = Hosts(folder, real)
        try:
            trials = Trials(options, hosts, folder)
            trials.orders()
            trials.fetches()
            trials.placements()
            trials.started_differently()
            trials.faults()
            if real:
                trials.cut()
            else:
                print("skipped: a cable to be cut needs namespaces")
        finally:
            hosts.close()
    sys.exit(1 if trials.failures else 0)


if __name__ == "__main__":
    main()
