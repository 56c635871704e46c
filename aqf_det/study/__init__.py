"""Many ways to predict sides on one frozen detector, trained, calibrated, tested and compared."""
