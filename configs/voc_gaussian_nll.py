"""A well-specified Gaussian by maximum likelihood, on the same frozen detector as the flows."""

_base_ = ["voc_gaussian.py"]

model = dict(bbox_head=dict(flow=dict(_delete_=True, kind="gaussian", branch=True, loss="nll")))
train_cfg = dict(max_epochs=80)
