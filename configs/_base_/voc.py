"""VOC 2007 + 2012 trainval for training, VOC 2007 test for testing; root from AQF_DATA."""

dataset_type = "VOCDetectionDataset"
data_root = "{{$AQF_DATA:data}}/VOCdevkit/"
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
            type="ConcatDataset",
            # The two years differ in this key only.
            ignore_keys=["dataset_type"],
            datasets=[
                dict(
                    type=dataset_type,
                    data_root=data_root,
                    ann_file=f"VOC{year}/ImageSets/Main/trainval.txt",
                    data_prefix=dict(sub_data_root=f"VOC{year}/"),
                    filter_cfg=dict(filter_empty_gt=True),
                    pipeline=train_load,
                )
                for year in (2007, 2012)
            ],
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
        ann_file="VOC2007/ImageSets/Main/test.txt",
        data_prefix=dict(sub_data_root="VOC2007/"),
        test_mode=True,
        pipeline=test_pipeline,
    ),
)
test_dataloader = val_dataloader
val_evaluator = [
    dict(type="VOCMetric", metric="mAP", eval_mode="11points"),
    dict(type="VOCMetric", metric="mAP", eval_mode="area", prefix="area"),
    dict(type="BoxUncertaintyMetric", classwise=True),
]
test_evaluator = val_evaluator
