"""Break a real server in every way that it can break, and hold what specserve says and leaves to what it must.

    python scripts/faults.py [FAULT…] [--list]

Each fault starts the small demo pair (`demo/target`, float32) in a state folder of its own, does the damage, and checks
the state or the exit code, the cause in one sentence, and that no process, port or shared memory is left.
Exit code 1 where one of them is not as it must be.
"""

from __future__ import annotations

import argparse
import signal
import subprocess
import sys
import time

import psutil
from faultbench import FaultError, bench
from faultmatrix import FAULTS


def main() -> int:
    """0: all as it must be."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("faults", nargs="*", metavar="FAULT")
    parser.add_argument("--list", action="store_true")
    args = parser.parse_args()
    if args.list:
        print("\n".join(FAULTS))
        return 0
    signal.signal(signal.SIGTERM, lambda number, _frame: sys.exit(128 + number))
    failed = 0
    for name in args.faults or FAULTS:
        began = time.monotonic()
        with bench() as made:
            try:
                told = FAULTS[name](made)
            except (FaultError, psutil.Error, OSError, subprocess.TimeoutExpired) as error:
                failed += 1
                print(f"WRONG  {name}: {error}", flush=True)
                continue
        print(f"ok  {name} ({time.monotonic() - began:.0f} s): {told}", flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
