"""QFR with MC dropout: a mixture of the flows of 10 passes."""

_base_ = ["voc_qfr.py"]

model = dict(bbox_head=dict(dropout=0.15), test_cfg=dict(mc_passes=10))
