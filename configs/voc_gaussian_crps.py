"""A well-specified Gaussian by its CRPS in closed form, on the same frozen detector."""

_base_ = ["voc_gaussian_nll.py"]

model = dict(bbox_head=dict(flow=dict(loss="crps")))
