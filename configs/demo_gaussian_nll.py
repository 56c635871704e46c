"""A Gaussian by maximum likelihood on the frozen detector of ``demo_gaussian.py``."""

_base_ = ["demo_gaussian.py"]

model = dict(bbox_head=dict(flow=dict(branch=True, loss="nll")))
train_cfg = dict(max_epochs=14)
