"""COCO 2017; root from AQF_DATA (``$AQF_DATA/coco/{annotations,train2017,val2017}``)."""

_base_ = ["loading.py"]

dataset_type = "CocoDetectionDataset"
data_root = "{{$AQF_DATA:data}}/coco/"

train_dataloader = dict(
    dataset=dict(
        dataset=dict(
            type=dataset_type,
            data_root=data_root,
            ann_file="annotations/instances_train2017.json",
            data_prefix=dict(img="train2017/"),
            filter_cfg=dict(filter_empty_gt=True),
            pipeline=_base_.train_load,
        )
    )
)
val_dataloader = dict(
    dataset=dict(
        type=dataset_type,
        data_root=data_root,
        ann_file="annotations/instances_val2017.json",
        data_prefix=dict(img="val2017/"),
    )
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
