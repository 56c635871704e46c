"""The published baseline: a Gaussian per side, trained by the KL loss of pixel residuals."""

_base_ = ["_base_/detector.py", "_base_/voc.py", "_base_/schedule.py", "_base_/runtime.py"]

# There is no branch, hence no second stage.
train_cfg = dict(max_epochs=60)
