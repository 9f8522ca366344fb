"""All GPU checks and the lessons' GPU cells in one go, in under ten minutes: `make gpu`.

Writes perfkit/lessons/recorded.json, which lessons show to readers without a GPU.
"""

import subprocess
import sys
from pathlib import Path

import msgspec

from perfkit.errors import PerfkitError
from perfkit.lessons import recorded
from perfkit.render.lesson import bundle

ROOT = Path(__file__).parents[2]
CHECKS_S = 420


def main() -> int:
    """The exit status: 0 if every check passed and every cell was recorded."""
    try:
        records = recorded.record_all()
    except PerfkitError as error:
        print(f"nothing recorded: {error}", file=sys.stderr)
        return 2
    target = ROOT / "perfkit/lessons" / recorded.FILE_NAME
    target.write_bytes(msgspec.json.format(msgspec.json.encode(records)))
    for record in records:
        print(bundle(record)["text/plain"], end="\n\n")
    print(f"written to {target.relative_to(ROOT)}")
    command = [sys.executable, "-m", "pytest", "-m", "gpu", "tests/devices", "tests/system"]
    return subprocess.run(command, cwd=ROOT, timeout=CHECKS_S, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
