"""The published Gaussian detector on VOC at a size that a CPU trains in hours: 320 px.

Trained on VOC 2007 train and VOC 2012 trainval; the images of VOC 2007 val stay unseen for branches
and for calibration.
"""

_base_ = ["voc_gaussian.py"]

image_size = 320
epochs = 40

train_load = [
    dict(type="LoadCheckedImage"),
    dict(type="LoadAnnotations", with_bbox=True),
    dict(type="RandomFlip", prob=0.5),
    dict(type="ObjectPreservingCrop", prob=0.7),
    dict(type="ObjectPreservingTranslate", prob=0.3),
    dict(type="YOLOXHSVRandomAug"),
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

model = dict(
    data_preprocessor=dict(batch_augments=None),
    # The tap at stride 8 and what lies before it keep their ImageNet weights.
    backbone=dict(frozen_stages=7, norm_eval=True),
)
train_dataloader = dict(
    batch_size=16,
    num_workers=0,
    persistent_workers=False,
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

train_cfg = dict(max_epochs=epochs, val_interval=10)
# The pretrained layers move a tenth as fast as the new ones.
optim_wrapper = dict(
    optimizer=dict(lr=2e-3, betas=(0.9, 0.99)),
    clip_grad=dict(max_norm=10.0),
    paramwise_cfg=dict(custom_keys=dict(backbone=dict(lr_mult=0.1))),
)
param_scheduler = [dict(type="RestartedCosineLR", starts=[0], total=epochs)]
custom_hooks = [dict(type="EMAHook", ema_type="ExpMomentumEMA", momentum=0.002, priority=49)]
