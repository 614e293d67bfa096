"""process.py -- what a process has used, from /proc."""
import os
import pathlib

TICK = os.sysconf("SC_CLK_TCK")


def cpu_s(pid):
    f = pathlib.Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(f[11]) + int(f[12])) / TICK


def rss_kib(pid):
    return int(next(line for line in pathlib.Path(f"/proc/{pid}/status").read_text().splitlines()
                    if line.startswith("VmRSS")).split()[1])
