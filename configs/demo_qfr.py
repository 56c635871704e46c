"""QFR on the demo scenes, on the frozen detector of ``demo_gaussian.py``."""

_base_ = ["demo_gaussian.py"]

model = dict(bbox_head=dict(flow=dict(kind="quantile", transformer="spline")))
train_cfg = dict(max_epochs=14)
