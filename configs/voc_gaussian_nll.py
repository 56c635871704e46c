"""A well-specified Gaussian by maximum likelihood, on the same frozen detector as the flows."""

_base_ = ["voc_gaussian.py"]

model = dict(bbox_head=dict(flow=dict(branch=True, loss="nll")))
train_cfg = dict(max_epochs=80)
