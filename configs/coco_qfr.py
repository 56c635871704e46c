"""QFR on COCO 2017: the same detector and recipe with 80 classes."""

_base_ = ["_base_/detector.py", "_base_/coco.py", "_base_/schedule.py", "_base_/runtime.py"]

model = dict(
    bbox_head=dict(num_classes=80, flow=dict(kind="quantile", transformer="spline")),
    test_cfg=dict(score_thr=0.001),
)
