"""CDFR: the flow is a CDF trained by the CRPS."""

_base_ = ["voc_qfr.py"]

model = dict(bbox_head=dict(flow=dict(kind="cdf")))
