"""Pure-Python versions of the compiled mmcv ops, with the signatures mmcv calls them by.

Each function writes into the output tensors that mmcv hands over, exactly as the compiled one
does, and works on whatever device its inputs live on. Half-precision inputs are computed in
float32 and rounded once at the end.
"""

from aqf_det.compat.ops.attention import ms_deform_attn_backward, ms_deform_attn_forward
from aqf_det.compat.ops.deform_conv import (
    deform_conv_backward_input,
    deform_conv_backward_parameters,
    deform_conv_forward,
    modulated_deform_conv_backward,
    modulated_deform_conv_forward,
)
from aqf_det.compat.ops.focal_loss import (
    sigmoid_focal_loss_backward,
    sigmoid_focal_loss_forward,
    softmax_focal_loss_backward,
    softmax_focal_loss_forward,
)
from aqf_det.compat.ops.info import get_compiler_version, get_compiling_cuda_version
from aqf_det.compat.ops.nms import nms, softnms
from aqf_det.compat.ops.roi_align import roi_align_backward, roi_align_forward
from aqf_det.compat.ops.roi_pool import roi_pool_backward, roi_pool_forward

__all__ = [
    "deform_conv_backward_input",
    "deform_conv_backward_parameters",
    "deform_conv_forward",
    "get_compiler_version",
    "get_compiling_cuda_version",
    "modulated_deform_conv_backward",
    "modulated_deform_conv_forward",
    "ms_deform_attn_backward",
    "ms_deform_attn_forward",
    "nms",
    "roi_align_backward",
    "roi_align_forward",
    "roi_pool_backward",
    "roi_pool_forward",
    "sigmoid_focal_loss_backward",
    "sigmoid_focal_loss_forward",
    "softmax_focal_loss_backward",
    "softmax_focal_loss_forward",
    "softnms",
]
