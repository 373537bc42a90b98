"""The calibration of one device: its file, what it covers, and what it corrects."""
