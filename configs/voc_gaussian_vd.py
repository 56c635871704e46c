"""The Gaussian detector with MC dropout: 10 passes of the head over cached features."""

_base_ = ["voc_gaussian.py"]

model = dict(bbox_head=dict(dropout=0.15), test_cfg=dict(mc_passes=10))
