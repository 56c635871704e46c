"""60 epochs of the detector, then 20 of the flow branch on the frozen detector."""

stage1_epochs = 60
max_epochs = 80

train_cfg = dict(type="EpochBasedTrainLoop", max_epochs=max_epochs, val_interval=10)
val_cfg = dict(type="ValLoop")
test_cfg = dict(type="TestLoop")
optim_wrapper = dict(
    type="OptimWrapper",
    optimizer=dict(type="Adam", lr=2e-4),
    clip_grad=dict(max_norm=20.0),
)
param_scheduler = [
    dict(type="RestartedMultiStepLR", milestones=[30, 45], restarts=[stage1_epochs], gamma=0.1)
]
custom_hooks = [dict(type="TwoStageHook", stage1_epochs=stage1_epochs)]
auto_scale_lr = dict(enable=False, base_batch_size=8)
# Each stage leaves the other's parameters out of the graph.
find_unused_parameters = True
