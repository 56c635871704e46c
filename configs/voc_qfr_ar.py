"""AR-QFR: one joint quantile flow of the four sides; every sample is a valid box."""

_base_ = ["voc_qfr.py"]

model = dict(
    bbox_head=dict(flow=dict(dependence="autoregressive")),
    # Joint samples for the energy score.
    test_cfg=dict(n_samples=128),
)
