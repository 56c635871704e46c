"""QFR: a quantile flow per side on the frozen Gaussian detector."""

_base_ = ["voc_gaussian.py"]

model = dict(bbox_head=dict(flow=dict(kind="quantile", transformer="spline")))
train_cfg = dict(max_epochs=80)
