"""List the profiles that come with peakcast, or show what one of them, or a file, holds."""

from __future__ import annotations

import argparse
from typing import Any

from predictor.commands import output

EXAMPLES = """examples:
  peakcast profiles
  peakcast profiles h100-80gb/profile-emulated.json
  peakcast profiles my-cluster.json --json

Without PROFILE: the profiles that predictions use when no --profile is given, by GPU. A profile is made by
peakcast calibrate and applied by peakcast predict ... --profile FILE.

exit codes: 0 all is well, 2 bad input
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the profile and the output's options."""
    parser.add_argument("profile", metavar="PROFILE", nargs="?", help="one from the list, or a file")
    output.add_output(parser)


def run(arguments: argparse.Namespace) -> int:
    """Lists or shows."""
    output.check_path(arguments.output, arguments.force)
    from predictor.common.json_dataclasses import to_plain
    from predictor.profile import profile as profiles
    from predictor.report import profile as report

    if arguments.profile is None:
        known = profiles.shipped()

        def listed() -> dict[str, Any]:
            return {name: {key: value for key, value in to_plain(one).items() if key in SUMMARY}
                    for name, one in known.items()}

        output.write(arguments, listed, lambda console: console.print(
            report.overview(known) if known else "no profile is shipped"))
        return 0
    chosen = profiles.find(arguments.profile)

    def show(console) -> None:
        console.print(report.overview({arguments.profile: chosen}))
        console.print()
        report.report(console, chosen)
        console.print()
        console.print(report.intervals(chosen))

    output.write(arguments, lambda: to_plain(chosen), show)
    return 0


SUMMARY = ("schema_version", "peakcast_version", "device", "software", "measured_on", "calibrated", "covered",
           "provenance")
"""Keys of a profile that its line of the list has."""
