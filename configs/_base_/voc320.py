"""VOC at 320 px: 2007 train + 2012 trainval for training, 2007 val stays unseen for branches."""

_base_ = ["voc.py"]

image_size = 320

train_load = [
    dict(type="LoadCheckedImage"),
    dict(type="LoadAnnotations", with_bbox=True),
    # Before the geometry: it writes into the image, which must not be a mirrored view.
    dict(type="YOLOXHSVRandomAug", hue_delta=5, saturation_delta=30, value_delta=30),
    # Few images: objects of other sizes and cut ones make up for it.
    dict(type="Expand", mean=[123.675, 116.28, 103.53], ratio_range=(1, 2), prob=0.4),
    dict(type="MinIoURandomCrop", min_ious=(0.3, 0.5, 0.7, 0.9), min_crop_size=0.4),
    dict(type="RandomFlip", prob=0.5),
]
train_mix = [
    dict(type="Letterbox", size=image_size),
    dict(type="PackWeightedDetInputs"),
]
test_pipeline = [
    dict(type="LoadCheckedImage"),
    dict(type="Letterbox", size=image_size),
    dict(type="LoadAnnotations", with_bbox=True),
    dict(type="PackWeightedDetInputs"),
]

train_dataloader = dict(
    batch_size=8,
    num_workers=1,
    persistent_workers=True,
    dataset=dict(
        dataset=dict(
            datasets=[
                dict(
                    type="VOCDetectionDataset",
                    data_root="{{$AQF_DATA:data}}/VOCdevkit/",
                    ann_file=f"VOC{year}/ImageSets/Main/{split}.txt",
                    data_prefix=dict(sub_data_root=f"VOC{year}/"),
                    filter_cfg=dict(filter_empty_gt=True),
                    pipeline=train_load,
                )
                for year, split in ((2007, "train"), (2012, "trainval"))
            ]
        ),
        pipeline=train_mix,
    ),
)
val_dataloader = dict(
    num_workers=0,
    persistent_workers=False,
    dataset=dict(ann_file="VOC2007/ImageSets/Main/val.txt", pipeline=test_pipeline),
)
test_dataloader = dict(
    num_workers=0, persistent_workers=False, dataset=dict(pipeline=test_pipeline)
)
