"""Figures of the paper that stand beside ours."""

from __future__ import annotations

__all__ = ["CALIBRATION_1D", "CHAINS", "CLASSIFICATION", "GENERATIVE", "NOISE_1D", "TABLE_1"]

NAN = float("nan")


def _row(gaussian: float, qro: float, mdn: float, qfr: float, cdfr: float) -> dict[str, float]:
    return {"gaussian": gaussian, "qro": qro, "mdn": mdn, "qfr": qfr, "cdfr": cdfr}


# Table 1 without its CRPS, which contradicts its check score.
TABLE_1: dict[str, dict[str, dict[str, float]]] = {
    "yacht": {
        "check_score": _row(0.225, 0.202, 0.174, 0.171, NAN),
        "mae": _row(0.627, 0.563, 0.494, 0.481, 0.539),
        "calibration_mae": _row(0.097, 0.100, 0.019, 0.028, 0.116),
    },
    "boston": {
        "check_score": _row(1.547, 1.191, 1.115, 0.865, NAN),
        "mae": _row(3.909, 3.398, 2.933, 2.215, 2.611),
        "calibration_mae": _row(0.139, 0.140, 0.036, 0.034, 0.038),
    },
    "concrete": {
        "check_score": _row(2.243, 1.563, 2.896, 1.191, NAN),
        "mae": _row(6.329, 4.051, 9.022, 2.853, 3.623),
        "calibration_mae": _row(0.165, 0.114, 0.029, 0.046, 0.066),
    },
    "energy": {
        "check_score": _row(2.254, 1.463, 2.926, 1.183, NAN),
        "mae": _row(6.629, 4.151, 9.393, 2.815, 2.829),
        "calibration_mae": _row(0.165, 0.114, 0.032, 0.029, 0.049),
    },
}

CLASSIFICATION: dict[str, dict[str, float]] = {
    "diabetes": {"network": 0.717, "cdfr": 0.723},
    "kc2": {"network": 0.832, "cdfr": 0.796},
}

# (check score, CRPS). The check score of the mixture on beta noise is printed as 240.
NOISE_1D: dict[str, dict[str, tuple[float, float]]] = {
    "gaussian": {
        "aqf": (0.302, 0.586),
        "gaussian": (0.330, 0.600),
        "mdn": (0.308, 0.610),
        "truth": (0.294, 0.581),
    },
    "beta": {
        "aqf": (0.233, 0.460),
        "gaussian": (0.251, 0.547),
        "mdn": (NAN, 0.493),
        "truth": (0.224, 0.443),
    },
    "poisson": {
        "aqf": (0.487, 0.965),
        "gaussian": (0.517, 1.027),
        "mdn": (0.537, 1.059),
        "poisson": (0.502, 0.993),
        "truth": (0.452, 0.898),
    },
}

# Calibration error in per cent.
CALIBRATION_1D: dict[str, dict[str, float]] = {
    "gaussian": {"aqf": 1.01, "qro": 1.03, "gaussian": 0.952},
    "beta": {"aqf": 1.39, "qro": 1.75, "gaussian": 4.63},
    "poisson": {"aqf": 2.76, "qro": 2.57, "gaussian": 17.64},
}

# (marginal CRPS, joint CRPS).
CHAINS: dict[str, dict[str, tuple[float, float]]] = {
    "2-D": {
        "aqf": (0.624, 0.686),
        "gaussian-mrf": (0.669, 0.701),
        "mv-quantile": (0.634, 0.695),
        "truth": (0.585, 0.646),
    },
    "50-D": {
        "aqf": (1.045, 1.238),
        "gaussian-mrf": (1.133, 1.345),
        "mv-quantile": (1.058, 1.281),
        "truth": (0.970, 1.163),
    },
}


def _methods(maf_ll: float, maf_ql: float, naqf: float) -> dict[str, float]:
    return {"maf-ll": maf_ll, "maf-ql": maf_ql, "naqf": naqf}


# Per data set and score; the log-likelihood of MNIST is printed as a negative one.
GENERATIVE: dict[str, dict[str, dict[str, float]]] = {
    "bsds300": {"crps": _methods(0.044, 0.036, 0.033)},
    "miniboone": {"crps": _methods(0.567, 0.561, 0.525)},
    "gas": {"crps": _methods(0.645, 0.565, 0.513)},
    "power": {"crps": _methods(0.542, 0.506, 0.502)},
    "hepmass": {"crps": _methods(0.617, 0.614, 0.523)},
    "digits": {
        "crps": _methods(2.31, 2.16, 2.14),
        "log_likelihood": _methods(-45.0, -6187.0, NAN),
        "quantile_loss": _methods(0.625, 0.281, 0.253),
        "d_loss": _methods(0.978, 0.779, 0.723),
    },
    "mnist": {
        "crps": _methods(0.279, 0.215, NAN),
        "u_crps": _methods(0.128, 0.099, NAN),
        "log_likelihood": _methods(6011.0, 5888.0, NAN),
    },
}
