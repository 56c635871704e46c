"""The generated demo scenes (``python -m aqf_det.datasets.demo_scenes``); root from AQF_DEMO."""

dataset_type = "VOCDetectionDataset"
data_root = "{{$AQF_DEMO:data/demo}}/"
metainfo = dict(
    classes=("digit_0", "digit_4", "digit_7"),
    palette=[(255, 111, 97), (46, 196, 255), (124, 220, 80)],
)
image_size = 160

# Only flips: they keep the grid cell of an object's centre, on which the scenes rely.
train_pipeline = [
    dict(type="LoadCheckedImage"),
    dict(type="LoadAnnotations", with_bbox=True),
    dict(type="RandomFlip", prob=0.5),
    dict(type="Letterbox", size=image_size),
    dict(type="PackWeightedDetInputs"),
]
test_pipeline = [
    dict(type="LoadCheckedImage"),
    dict(type="Letterbox", size=image_size),
    # After the letterbox: ground truths stay in pixels of the original image.
    dict(type="LoadAnnotations", with_bbox=True),
    dict(type="PackWeightedDetInputs"),
]

train_dataloader = dict(
    batch_size=8,
    num_workers=0,
    persistent_workers=False,
    sampler=dict(type="DefaultSampler", shuffle=True),
    dataset=dict(
        type=dataset_type,
        data_root=data_root,
        ann_file="ImageSets/Main/train.txt",
        data_prefix=dict(sub_data_root=""),
        metainfo=metainfo,
        pipeline=train_pipeline,
    ),
)
val_dataloader, test_dataloader = (
    dict(
        batch_size=8,
        num_workers=0,
        persistent_workers=False,
        drop_last=False,
        sampler=dict(type="DefaultSampler", shuffle=False),
        dataset=dict(
            type=dataset_type,
            data_root=data_root,
            ann_file=f"ImageSets/Main/{split}.txt",
            data_prefix=dict(sub_data_root=""),
            metainfo=metainfo,
            test_mode=True,
            pipeline=test_pipeline,
        ),
    )
    for split in ("val", "test")
)
val_evaluator = [
    dict(type="VOCMetric", metric="mAP", eval_mode="11points"),
    dict(type="VOCMetric", metric="mAP", eval_mode="area", prefix="area"),
    dict(type="BoxUncertaintyMetric"),
]
test_evaluator = val_evaluator
