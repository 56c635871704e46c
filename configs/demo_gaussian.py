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
stage1_epochs = 10
max_epochs = 14
train_cfg = dict(max_epochs=stage1_epochs, val_interval=5)
# From scratch the first gradients are hundreds of times larger than later ones; without a low bound
# on them and a short memory Adam would take tiny steps for a thousand iterations.
optim_wrapper = dict(optimizer=dict(lr=3e-3, betas=(0.9, 0.99)), clip_grad=dict(max_norm=10.0))
param_scheduler = [dict(type="RestartedCosineLR", starts=[0, stage1_epochs], total=max_epochs)]
custom_hooks = [dict(type="TwoStageHook", stage1_epochs=stage1_epochs)]
