"""Count the tokens and pictures of a dataset's samples with the model's own processor, for --samples."""

from __future__ import annotations

import argparse

from predictor.commands import options, output
from predictor.common.errors import InputError
from predictor.common.suggestions import file_name

EXAMPLES = """examples:
  peakcast samples train.jsonl --processor Qwen/Qwen2.5-VL-7B-Instruct -o lengths.csv
  peakcast samples blip_laion_cc_sbu_558k.json --processor llava-hf/llava-1.5-7b-hf --image-folder images -o lengths.csv
  peakcast samples data/train-00000.parquet --processor path/to/model --json

DATASET has one sample a row: messages (TRL, ms-swift, LLaMA-Factory), conversations (LLaVA, ShareGPT), prompt and
completion, instruction and output (Alpaca), query and response, or text; and the paths of its pictures in image or
images, or in the messages. Conversations are formatted by the processor's chat template. Of a picture only the header
of its file is read. Needs transformers (peakcast[trace]); nothing is downloaded.

Without -o, the samples are printed as CSV. The ending of -o FILE says how they are written: .csv, .jsonl or .json.
Then, predict --samples FILE --epochs 1 simulates a whole training over them.

exit codes: 0 all is well, 2 bad input
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the dataset, its processor, and the options of the output."""
    parser.add_argument("dataset", metavar="DATASET", help="rows of conversations or texts: .jsonl, .json or .parquet")
    options.add_processor(parser.add_argument_group("how tokens are counted"), "DATASET holds conversations",
                          required=True)
    output.add_output(parser)


def run(arguments: argparse.Namespace) -> int:
    """Counts a dataset's samples, and writes them."""
    from predictor.report.samples import counted
    from predictor.workload import samples

    path = arguments.output
    output.check_path(path, arguments.force)
    output.check_different(arguments.dataset, path, "DATASET and --output")
    ending = "json" if arguments.json else "csv" if path is None else path.lower().rpartition(".")[2]
    if ending not in samples.FORMS:
        raise InputError(f"{file_name(path)}: samples are written to files that end in .{', .'.join(samples.FORMS)}")
    found = options.dataset(arguments.dataset, arguments)
    output.emit(path, samples.text(found, ending))
    if path is not None:
        output.emit(None, counted(found) + "\n")
    return 0
