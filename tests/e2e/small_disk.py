"""A small disk for tests of full ones: a tmpfs, or a plain folder where this process may mount none."""
import contextlib
import errno
import os
import pathlib
import shutil
import subprocess
import tempfile


class SmallDisk:
    """`tmp` is a new folder, `path` a disk of `mib` MiB in it; `mounted` is False where it is only a folder."""

    def __init__(self, mib):
        self.tmp = pathlib.Path(tempfile.mkdtemp(prefix="lorad-disk-"))
        self.path = self.tmp / "disk"
        self.path.mkdir()
        self.mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={mib}m", "tmpfs", str(self.path)],
                                      stderr=subprocess.DEVNULL, check=False).returncode == 0

    def free_bytes(self):
        s = os.statvfs(self.path)
        return s.f_bavail * s.f_bsize

    @contextlib.contextmanager
    def full(self, bytes_left=0):
        """Full but for so many bytes, by a file that goes at the end."""
        ballast = self.path / "ballast"
        with open(ballast, "wb") as f:
            while True:
                try:
                    os.posix_fallocate(f.fileno(), 0, self.free_bytes() - bytes_left)
                    break
                except OSError as e:  # the server took a page between the two calls
                    if e.errno != errno.ENOSPC:
                        raise
        try:
            yield
        finally:
            ballast.unlink()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        if self.mounted:
            subprocess.run(["umount", "-l", str(self.path)], check=False)
        shutil.rmtree(self.tmp, ignore_errors=True)
