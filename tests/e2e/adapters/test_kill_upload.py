"""kill -9 in uploads: the old version or the new one, no orphans, and the upload goes on (killing.py).
The bench case kill-upload does 200."""
from harness import run
from killing import kill_rounds


def thirty_random_points():
    seen = kill_rounds(30, seed=5)
    print(seen)
    assert seen["old"] >= 3 and seen["new"] >= 3, "the kills met one side only: the test shows little"
    assert seen["resumed"] >= 1, seen


run([thirty_random_points])
