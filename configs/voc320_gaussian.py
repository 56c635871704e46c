"""The published Gaussian detector on VOC at a size that a CPU trains in hours: 320 px.

Trained on VOC 2007 train and VOC 2012 trainval; the images of VOC 2007 val stay unseen for branches
and for calibration.
"""

_base_ = ["_base_/detector.py", "_base_/voc320.py", "_base_/schedule.py", "_base_/runtime.py"]

epochs = 30

model = dict(
    data_preprocessor=dict(batch_augments=None),
    # The tap at stride 8 and what lies before it keep their ImageNet weights.
    backbone=dict(frozen_stages=7, norm_eval=True),
    bbox_head=dict(assigner=dict(radius=1)),
)
train_cfg = dict(max_epochs=epochs, val_interval=5)
# The pretrained layers move a tenth as fast as the new ones.
optim_wrapper = dict(
    optimizer=dict(lr=1e-3, betas=(0.9, 0.99)),
    clip_grad=dict(max_norm=10.0),
    paramwise_cfg=dict(custom_keys=dict(backbone=dict(lr_mult=0.1))),
)
param_scheduler = [dict(type="RestartedCosineLR", starts=[0], total=epochs)]
custom_hooks = [dict(type="EMAHook", ema_type="ExpMomentumEMA", momentum=0.002, priority=49)]
