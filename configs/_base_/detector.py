"""Anchor-free per-side YOLOv3 on MobileNetV2, about 6.8 M parameters."""

model = dict(
    type="FlowDetector",
    data_preprocessor=dict(
        type="DetDataPreprocessor",
        # RGB / 255 with ImageNet's mean and deviation, as the pretrained backbone expects.
        mean=[123.675, 116.28, 103.53],
        std=[58.395, 57.12, 57.375],
        bgr_to_rgb=True,
        pad_size_divisor=32,
        batch_augments=[
            dict(
                type="BatchSyncRandomResize",
                random_size_range=(480, 544),
                size_divisor=32,
                interval=1,
            )
        ],
    ),
    backbone=dict(type="TappedMobileNetV2", weights="{{$AQF_WEIGHTS:torchvision}}"),
    neck=dict(type="SeparableYOLONeck", in_channels=(32, 96, 1280), out_channels=(128, 256, 512)),
    bbox_head=dict(
        type="FlowYOLOHead",
        num_classes=20,
        in_channels=(128, 256, 512),
        assigner=dict(type="ScaleCentreAssigner", limits=(30, 90)),
        flow=dict(kind="gaussian", base="kl_pixel"),
    ),
    # The uncertainty metric takes detections from 0.1; a lower threshold here only completes the
    # precision-recall curve.
    test_cfg=dict(
        score_thr=0.01,
        nms=dict(type="nms", iou_threshold=0.45),
        max_per_img=100,
        levels=199,
        n_samples=0,
        mc_passes=1,
    ),
)
