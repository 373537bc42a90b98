"""The process of the command ends quietly when it is interrupted."""

import subprocess
import sys

import pytest

IMPORTING = """
class Interrupts:
    def find_spec(self, name, path=None, target=None):
        if name == "predictor.cli":
            signal.raise_signal(signal.SIGINT)

sys.meta_path.insert(0, Interrupts())
sys.exit(main())
"""
RUNNING = """
cli.main = lambda: signal.raise_signal(signal.SIGINT)
sys.exit(main())
"""
LOST = """
class Dropped:
    def __del__(self):
        signal.raise_signal(signal.SIGINT)

def lose():
    Dropped()
    time.sleep(60)

cli.main = lose
sys.exit(main())
"""
ENDING = """
cli.main = lambda: 0
atexit.register(signal.raise_signal, signal.SIGINT)
sys.exit(main())
"""


@pytest.mark.parametrize("program", [IMPORTING, RUNNING, LOST, ENDING], ids=["importing", "running", "lost", "ending"])
def test_an_interrupt_ends_the_process_quietly(program):
    head = "import atexit, signal, sys, time\n"
    head += "signal.signal(signal.SIGINT, signal.default_int_handler)\n"  # also where the shell has it ignored
    head += "from predictor.__main__ import main\n"
    head += "" if program is IMPORTING else "from predictor import cli\n"
    done = subprocess.run([sys.executable, "-c", head + program], capture_output=True, text=True, timeout=50)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "")


def test_an_interrupt_that_the_shell_ignores_stays_ignored():
    program = ("import signal; signal.signal(signal.SIGINT, signal.SIG_IGN); import predictor.__main__; "
               "print(signal.getsignal(signal.SIGINT) is signal.SIG_IGN)")
    assert subprocess.run([sys.executable, "-c", program], capture_output=True, text=True).stdout == "True\n"


def test_the_package_can_be_run():
    done = subprocess.run([sys.executable, "-m", "predictor", "--version"], capture_output=True, text=True)
    assert done.returncode == 0 and done.stdout.startswith("peakcast ")
