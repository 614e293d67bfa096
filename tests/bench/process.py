"""process.py -- what a process has used, from /proc."""
import os
import pathlib

TICK = os.sysconf("SC_CLK_TCK")


def cpu_s(pid):
    f = pathlib.Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(f[11]) + int(f[12])) / TICK


def status_kib(pid, name):
    return int(next(line for line in pathlib.Path(f"/proc/{pid}/status").read_text().splitlines()
                    if line.startswith(name)).split()[1])


def rss_kib(pid):
    return status_kib(pid, "VmRSS")
