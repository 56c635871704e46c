"""A small detector of the demo scenes with the published Gaussian; minutes on a laptop CPU."""

_base_ = ["_base_/detector.py", "_base_/demo.py", "_base_/schedule.py", "_base_/runtime.py"]

model = dict(
    data_preprocessor=dict(batch_augments=None),
    backbone=dict(width=0.35, weights=None),
    neck=dict(in_channels=(16, 32, 1280), out_channels=(48, 64, 96)),
    bbox_head=dict(
        num_classes=3,
        in_channels=(48, 64, 96),
        # Every object of these scenes belongs to the level of stride 16.
        assigner=dict(limits=(24, 96)),
    ),
)
stage1_epochs = 24
train_cfg = dict(max_epochs=stage1_epochs, val_interval=8)
optim_wrapper = dict(optimizer=dict(lr=2e-3))
param_scheduler = [dict(type="RestartedMultiStepLR", milestones=[16, 21], restarts=[stage1_epochs])]
custom_hooks = [dict(type="TwoStageHook", stage1_epochs=stage1_epochs)]
