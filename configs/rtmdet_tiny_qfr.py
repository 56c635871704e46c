"""A quantile flow beside mmdet's RTMDet-tiny: the stock checkpoint, then the flow alone."""

_base_ = ["_base_/rtmdet_tiny.py", "_base_/coco.py", "_base_/runtime.py"]

# The flow beside the stock detector.
model = dict(
    type="FlowSingleStageDetector",
    flow_head=dict(flow=dict(kind="quantile", transformer="spline")),
)
load_from = (
    "https://download.openmmlab.com/mmdetection/v3.0/rtmdet/rtmdet_tiny_8xb32-300e_coco/"
    "rtmdet_tiny_8xb32-300e_coco_20220902_112414-78e30dcc.pth"
)
custom_hooks = [dict(type="TwoStageHook", stage1_epochs=0)]

# The flow learns the errors that the detector makes at test time, so images come as they do there.
resize = [
    dict(type="Resize", scale=(640, 640), keep_ratio=True),
    dict(type="Pad", size=(640, 640), pad_val=dict(img=(114, 114, 114))),
]
train_pipeline = [
    dict(type="LoadCheckedImage"),
    dict(type="LoadAnnotations", with_bbox=True),
    *resize,
    dict(type="RandomFlip", prob=0.5),
    dict(type="PackDetInputs"),
]
test_pipeline = [
    dict(type="LoadCheckedImage"),
    *resize,
    dict(type="LoadAnnotations", with_bbox=True),
    dict(type="PackDetInputs"),
]
train_dataloader = dict(
    batch_size=32,
    dataset=dict(dataset=dict(pipeline=train_pipeline[:2]), pipeline=train_pipeline[2:]),
)
val_dataloader = dict(dataset=dict(pipeline=test_pipeline))
test_dataloader = val_dataloader

max_epochs = 4
train_cfg = dict(type="EpochBasedTrainLoop", max_epochs=max_epochs, val_interval=max_epochs)
val_cfg = dict(type="ValLoop")
test_cfg = dict(type="TestLoop")
optim_wrapper = dict(
    type="OptimWrapper", optimizer=dict(type="Adam", lr=1e-3), clip_grad=dict(max_norm=10.0)
)
param_scheduler = [dict(type="RestartedCosineLR", starts=[0], total=max_epochs)]
# The stock weights are frozen only once training begins.
find_unused_parameters = True
auto_scale_lr = dict(enable=False, base_batch_size=32)
