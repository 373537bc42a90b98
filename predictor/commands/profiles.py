"""List the shipped calibration profiles, or show one of them or a profile file."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from predictor.commands import output

if TYPE_CHECKING:
    from rich.console import Console

EXAMPLES = """examples:
  peakcast profiles
  peakcast profiles h100-80gb/profile-emulated.json
  peakcast profiles my-cluster.json --json

Without PROFILE, the command lists the profiles that predictions use by default, by GPU. peakcast calibrate
makes a profile, and peakcast predict ... --profile FILE applies it.

exit codes: 0 all is well, 2 bad input
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the profile and the options of the output."""
    parser.add_argument("profile", metavar="PROFILE", nargs="?", help="a profile from the list, or a file")
    output.add_output(parser)


def run(arguments: argparse.Namespace) -> int:
    """Lists the shipped profiles, or shows one."""
    output.check_path(arguments.output, arguments.force)
    from predictor.common.json_dataclasses import to_plain
    from predictor.profile import profile as profiles
    from predictor.report import profile as report

    if arguments.profile is None:
        known = profiles.shipped()

        def listed() -> dict[str, Any]:
            return {name: {key: value for key, value in to_plain(profile).items() if key in SUMMARY}
                    for name, profile in known.items()}

        output.write(arguments, listed, lambda console: console.print(
            report.overview(known) if known else "no profile is shipped"))
        return 0
    chosen = profiles.find(arguments.profile)

    def show(console: Console) -> None:
        console.print(report.overview({arguments.profile: chosen}))
        console.print()
        report.report(console, chosen)
        console.print()
        console.print(report.intervals(chosen))

    output.write(arguments, lambda: to_plain(chosen), show)
    return 0


SUMMARY = ("schema_version", "peakcast_version", "device", "software", "measured_on", "calibrated", "covered",
           "provenance")
"""Keys of a profile that the JSON list contains."""
