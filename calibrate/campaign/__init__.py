"""The jobs of one calibration: what is measured (``design``), where it is kept (``rows``), how it runs (``run``), and
whether it belongs together (``same``)."""
