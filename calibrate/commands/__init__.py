"""The subcommands of ``peakcast`` that run jobs: one module each."""
