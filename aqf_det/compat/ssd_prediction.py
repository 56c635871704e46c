"""Prediction with SSD heads."""


def give_ssd_head_a_loss_cls() -> bool:
    """Let ``SSDHead`` predict.

    Fault: since mmdet 3.2 prediction asks every dense head for its ``loss_cls``, which ``SSDHead``,
    whose losses are functions, does not have.
    https://github.com/open-mmlab/mmdetection/issues/11780

    Returns:
        Whether the attribute was added: not where ``SSDHead`` has one.
    """
    from mmdet.models.dense_heads import SSDHead

    if hasattr(SSDHead, "loss_cls") or "loss_cls" in SSDHead.__init__.__code__.co_names:
        return False
    SSDHead.loss_cls = None
    return True
