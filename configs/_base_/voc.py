"""VOC 2007 + 2012 trainval for training, VOC 2007 test for testing; root from AQF_DATA."""

_base_ = ["loading.py"]

dataset_type = "VOCDetectionDataset"
data_root = "{{$AQF_DATA:data}}/VOCdevkit/"

train_dataloader = dict(
    dataset=dict(
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
                    pipeline=_base_.train_load,
                )
                for year in (2007, 2012)
            ],
        )
    )
)
val_dataloader = dict(
    dataset=dict(
        type=dataset_type,
        data_root=data_root,
        ann_file="VOC2007/ImageSets/Main/test.txt",
        data_prefix=dict(sub_data_root="VOC2007/"),
    )
)
test_dataloader = val_dataloader
val_evaluator = [
    dict(type="VOCMetric", metric="mAP", eval_mode="11points"),
    dict(type="VOCMetric", metric="mAP", eval_mode="area", prefix="area"),
    dict(type="BoxUncertaintyMetric", classwise=True),
]
test_evaluator = val_evaluator
