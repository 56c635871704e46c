"""COCO 2017; root from AQF_DATA (``$AQF_DATA/coco/{annotations,train2017,val2017}``)."""

dataset_type = "CocoDetectionDataset"
data_root = "{{$AQF_DATA:data}}/coco/"
image_size = 544

train_load = [
    dict(type="LoadCheckedImage"),
    dict(type="LoadAnnotations", with_bbox=True),
    dict(type="RandomFlip", prob=0.5),
    dict(type="ObjectPreservingCrop", prob=0.5),
    dict(type="ObjectPreservingTranslate", prob=0.5),
]
train_mix = [
    dict(type="WeightedMixUp", alpha=1.5, prob=0.5),
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
    num_workers=4,
    persistent_workers=True,
    sampler=dict(type="DefaultSampler", shuffle=True),
    dataset=dict(
        type="MultiImageMixDataset",
        dataset=dict(
            type=dataset_type,
            data_root=data_root,
            ann_file="annotations/instances_train2017.json",
            data_prefix=dict(img="train2017/"),
            filter_cfg=dict(filter_empty_gt=True),
            pipeline=train_load,
        ),
        pipeline=train_mix,
    ),
)
val_dataloader = dict(
    batch_size=1,
    num_workers=2,
    persistent_workers=True,
    drop_last=False,
    sampler=dict(type="DefaultSampler", shuffle=False),
    dataset=dict(
        type=dataset_type,
        data_root=data_root,
        ann_file="annotations/instances_val2017.json",
        data_prefix=dict(img="val2017/"),
        test_mode=True,
        pipeline=test_pipeline,
    ),
)
test_dataloader = val_dataloader
val_evaluator = [
    dict(
        type="CocoMetric",
        ann_file=data_root + "annotations/instances_val2017.json",
        metric="bbox",
    ),
    dict(type="BoxUncertaintyMetric"),
]
test_evaluator = val_evaluator
