"""A Gaussian by its CRPS on the frozen detector of ``demo_gaussian.py``."""

_base_ = ["demo_gaussian_nll.py"]

model = dict(bbox_head=dict(flow=dict(loss="crps")))
