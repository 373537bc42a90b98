"""Everything that runs a job: real or emulated GPU, recording, attribution, fitting, regression reports."""
