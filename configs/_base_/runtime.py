"""Logging, checkpoints and environment."""

custom_imports = dict(imports=["aqf_det"], allow_failed_imports=False)
default_scope = "mmdet"
default_hooks = dict(
    timer=dict(type="IterTimerHook"),
    logger=dict(type="LoggerHook", interval=50),
    param_scheduler=dict(type="ParamSchedulerHook"),
    checkpoint=dict(type="CheckpointHook", interval=1, max_keep_ckpts=2),
    sampler_seed=dict(type="DistSamplerSeedHook"),
    # Pictures of validation images: --cfg-options default_hooks.visualization.draw=True
    visualization=dict(type="CheckedVisualizationHook", draw=False, interval=50, score_thr=0.3),
)
env_cfg = dict(
    cudnn_benchmark=False,
    mp_cfg=dict(mp_start_method="fork", opencv_num_threads=0),
    dist_cfg=dict(backend="nccl"),
)
randomness = dict(seed=0)
# Scalars and pictures in TensorBoard: add dict(type="TensorboardVisBackend").
vis_backends = [dict(type="LocalVisBackend")]
# Without a name every run has a visualizer, and so a log, of its own.
visualizer = dict(type="QuantileBoxVisualizer", vis_backends=vis_backends)
log_processor = dict(type="BriefLogProcessor", window_size=50, by_epoch=True)
log_level = "INFO"
load_from = None
resume = False
