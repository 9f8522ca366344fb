"""The command line as a whole: status, streams, one line for an error."""

import subprocess
import sys

import pytest

from perfkit.cli import main as cli

WRONG = {
    "subject": (["labb"], "invalid choice: 'labb'"),
    "option": (["lab", "--prot"], "unrecognized arguments: --prot"),
    "no abbreviation": (["lab", "--no"], "unrecognized arguments: --no"),
    "port": (["lab", "--port", "0"], "--port: give a number from 1 to 65535"),
    "behind --": (["results", "--", "-x"], "takes nothing behind --"),
}


@pytest.mark.parametrize("case", WRONG)
def test_wrong_use(case, capsys):
    """Wrong use gives status 2, one line on stderr that says why, and nothing on stdout."""
    argv, reason = WRONG[case]
    assert cli.main(argv) == 2
    out, err = capsys.readouterr()
    assert out == "" and err.count("\n") == 1
    assert err.startswith("perfkit: ") and reason in err


@pytest.mark.parametrize("argv", [[], ["--help"], *([name, "--help"] for name in cli.SUBJECTS)])
def test_help(argv, capsys):
    """Help goes to stdout with status 0, also where no command is given."""
    with pytest.raises(SystemExit) as left:
        cli.main(argv)
    assert left.value.code == 0
    out = capsys.readouterr().out
    assert out.startswith("usage: perfkit") and all(len(line) <= 80 for line in out.splitlines())


def test_reader_that_leaves(ledger_file):
    """A reader that closes the pipe early, as head does, sees no traceback."""
    code = (
        "import sys, time; from perfkit.cli.main import main\n"
        "sys.stdin.readline(); sys.exit(main(['results']))"
    )
    command = subprocess.Popen(
        [sys.executable, "-c", code],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    command.stdout.close()
    command.stdout = None
    assert command.communicate(b"\n", timeout=60)[1] == b""
    assert command.returncode == 0


def test_nothing_heavy():
    """A command loads neither IPython nor NumPy."""
    code = (
        "import sys; from perfkit.cli.main import main; main(['results'])\n"
        "print(*{'IPython', 'numpy', 'jupyterlab'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[1] == ""
