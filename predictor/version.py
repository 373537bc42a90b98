"""The release of peakcast; the package metadata takes it from here."""

VERSION = "0.1.0"
