"""QFR on a two-stage detector: Faster R-CNN on MobileNetV2-FPN, a flow at the boxes it keeps."""

_base_ = ["_base_/frcnn.py", "_base_/voc.py", "_base_/schedule.py", "_base_/runtime.py"]

# Mixed images teach scores that a softmax over classes cannot express.
train_dataloader = dict(
    dataset=dict(pipeline=[dict(type="Letterbox", size=544), dict(type="PackWeightedDetInputs")])
)
stage1_epochs = 24
max_epochs = 32
train_cfg = dict(max_epochs=max_epochs, val_interval=8)
# The pretrained layers move a tenth as fast as the new ones.
optim_wrapper = dict(
    optimizer=dict(lr=4e-4),
    clip_grad=dict(max_norm=10.0),
    paramwise_cfg=dict(custom_keys=dict(backbone=dict(lr_mult=0.1))),
)
param_scheduler = [dict(type="RestartedCosineLR", starts=[0, stage1_epochs], total=max_epochs)]
custom_hooks = [dict(type="TwoStageHook", stage1_epochs=stage1_epochs)]
