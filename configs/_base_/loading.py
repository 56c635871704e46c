"""How images are loaded, augmented and batched at 544 px; voc.py and coco.py say which ones."""

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
    dataset=dict(type="MultiImageMixDataset", pipeline=train_mix),
)
val_dataloader = dict(
    batch_size=1,
    num_workers=2,
    persistent_workers=True,
    drop_last=False,
    sampler=dict(type="DefaultSampler", shuffle=False),
    dataset=dict(test_mode=True, pipeline=test_pipeline),
)
test_dataloader = val_dataloader
