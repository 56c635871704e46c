"""Faster R-CNN on MobileNetV2-FPN; each output of the box head moves one side."""

model = dict(
    type="FlowTwoStageDetector",
    data_preprocessor=dict(
        type="DetDataPreprocessor",
        # RGB / 255 with ImageNet's mean and deviation, as the pretrained backbone expects.
        mean=[123.675, 116.28, 103.53],
        std=[58.395, 57.12, 57.375],
        bgr_to_rgb=True,
        pad_size_divisor=32,
    ),
    backbone=dict(type="TappedMobileNetV2", weights="{{$AQF_WEIGHTS:torchvision}}", norm_eval=True),
    neck=dict(type="FPN", in_channels=[32, 96, 1280], out_channels=128, num_outs=5),
    rpn_head=dict(
        type="RPNHead",
        in_channels=128,
        feat_channels=128,
        anchor_generator=dict(
            type="AnchorGenerator",
            scales=[4],
            ratios=[0.5, 1.0, 2.0],
            strides=[8, 16, 32, 64, 128],
        ),
        bbox_coder=dict(type="DeltaXYWHBBoxCoder"),
        loss_cls=dict(type="CrossEntropyLoss", use_sigmoid=True, loss_weight=1.0),
        loss_bbox=dict(type="L1Loss", loss_weight=1.0),
    ),
    roi_head=dict(
        type="StandardRoIHead",
        bbox_roi_extractor=dict(
            type="SingleRoIExtractor",
            roi_layer=dict(type="RoIAlign", output_size=7, sampling_ratio=2, use_torchvision=True),
            out_channels=128,
            featmap_strides=[8, 16, 32],
        ),
        bbox_head=dict(
            type="FlowBBoxHead",
            in_channels=128,
            fc_out_channels=512,
            roi_feat_size=7,
            num_classes=20,
            bbox_coder=dict(type="SideDeltaBBoxCoder", stds=(0.1, 0.1, 0.1, 0.1)),
            loss_cls=dict(type="CrossEntropyLoss", use_sigmoid=False, loss_weight=1.0),
            loss_bbox=dict(type="SmoothL1Loss", beta=1.0, loss_weight=1.0),
            flow=dict(kind="quantile", transformer="spline"),
        ),
    ),
    train_cfg=dict(
        rpn=dict(
            assigner=dict(
                type="MaxIoUAssigner",
                pos_iou_thr=0.7,
                neg_iou_thr=0.3,
                min_pos_iou=0.3,
                match_low_quality=True,
            ),
            sampler=dict(
                type="RandomSampler", num=256, pos_fraction=0.5, add_gt_as_proposals=False
            ),
            allowed_border=-1,
            pos_weight=-1,
            debug=False,
        ),
        rpn_proposal=dict(
            nms_pre=2000, max_per_img=1000, nms=dict(type="nms", iou_threshold=0.7), min_bbox_size=0
        ),
        rcnn=dict(
            assigner=dict(
                type="MaxIoUAssigner",
                pos_iou_thr=0.5,
                neg_iou_thr=0.5,
                min_pos_iou=0.5,
                match_low_quality=False,
            ),
            sampler=dict(type="RandomSampler", num=256, pos_fraction=0.25),
            pos_weight=-1,
            debug=False,
        ),
    ),
    test_cfg=dict(
        rpn=dict(
            nms_pre=1000, max_per_img=300, nms=dict(type="nms", iou_threshold=0.7), min_bbox_size=0
        ),
        # The options of the flow (levels, n_samples, mc_passes, ...) stand here, too.
        rcnn=dict(
            score_thr=0.01,
            nms=dict(type="nms", iou_threshold=0.45),
            max_per_img=100,
            levels=199,
        ),
    ),
)
