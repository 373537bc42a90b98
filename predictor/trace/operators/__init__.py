"""Table of the allocations that operators make on CUDA and that meta tensors do not show.

Each entry records one call: the allocations before and after its results, and the frees, in order. Sizes are
byte counts, or the name of a function in ``predictor.events.workspaces`` with its dimensions. An operator that is
not in the table allocates its results and nothing else.

Known limitations:

- The allocations are those of PyTorch 2.11 and bitsandbytes 0.50.
- The workspaces of cuDNN's convolutions are not modelled.
- bitsandbytes' 8-bit products have no columns of outliers.
- Temporaries of sorting are modelled only for one-dimensional int64 tensors.
"""

from __future__ import annotations

from collections.abc import Callable

from predictor.trace.operators import (
    attention,
    batch_norms,
    convolution,
    flash_attention,
    images,
    indexing,
    liger,
    losses,
    norms,
    products,
    reductions,
    trl,
)
from predictor.trace.operators.call import Call

__all__ = ["TABLE", "Call"]

TABLE: dict[str, Callable[[Call], None]] = {
    "aten::mm": products.matrix_product,
    "aten::bmm": products.matrix_product,
    "aten::baddbmm": products.matrix_product,
    "aten::addmm": products.fused_bias,
    "bitsandbytes::gemm_4bit": products.gemm_4bit,
    "bitsandbytes::int8_vectorwise_quant": products.quantize_rows,
    "bitsandbytes::int8_scaled_mm": products.scaled_product,
    "bitsandbytes::int8_mixed_scaled_mm": products.scaled_product,
    "aten::_grouped_mm": products.grouped_product,
    "aten::native_layer_norm": norms.layer_norm,
    "aten::native_layer_norm_backward": norms.layer_norm_backward,
    "peakcast::rms_norm": norms.layer_norm,
    "peakcast::rms_norm_backward": norms.rms_norm_backward,
    "aten::native_group_norm": batch_norms.group_norm,
    "aten::native_group_norm_backward": batch_norms.group_norm_backward,
    "aten::native_batch_norm": batch_norms.batch_norm,
    "aten::native_batch_norm_backward": batch_norms.batch_norm_backward,
    "aten::roll": indexing.roll,
    "aten::index": indexing.index,
    "aten::sum": reductions.reduction,
    "aten::mean": reductions.reduction,
    "aten::prod": reductions.reduction,
    **dict.fromkeys(("aten::var", "aten::std", "aten::var_mean", "aten::std_mean"), reductions.variance),
    **dict.fromkeys(("aten::linalg_vector_norm", "aten::norm"), reductions.norm),
    **dict.fromkeys(("aten::amax", "aten::amin"), reductions.bound),
    **dict.fromkeys(("aten::any", "aten::all"), reductions.truth),
    **dict.fromkeys(("aten::argmax", "aten::argmin"), reductions.position),
    **dict.fromkeys(("aten::max", "aten::min"), reductions.extreme),
    "aten::logsumexp": reductions.log_sum_exp,
    "aten::isinf": reductions.is_infinite,
    "aten::native_dropout": norms.dropout,
    "aten::convolution": convolution.forward,
    "aten::convolution_backward": convolution.backward,
    "aten::mse_loss": losses.squared,
    "aten::smooth_l1_loss": losses.squared,
    "aten::huber_loss": losses.huber,
    "aten::binary_cross_entropy": losses.cross_entropy,
    "aten::_safe_softmax": norms.safe_softmax,
    "aten::_softmax": norms.softmax,
    "aten::_log_softmax": norms.softmax,
    "aten::_softmax_backward_data": norms.softmax_backward,
    "aten::_log_softmax_backward_data": norms.log_softmax_backward,
    "aten::cumsum": reductions.cumulative,
    "aten::sort": indexing.sort,
    "aten::masked_scatter": indexing.masked_scatter,
    "aten::masked_scatter_backward": indexing.masked_scatter_backward,
    "aten::nonzero": indexing.nonzero,
    "aten::repeat_interleave": indexing.repeat_interleave,
    "aten::_index_put_impl_": indexing.index_put,
    "aten::embedding_dense_backward": indexing.embedding_backward,
    "aten::_scaled_dot_product_cudnn_attention": attention.cudnn_forward,
    "aten::_scaled_dot_product_cudnn_attention_backward": attention.cudnn_backward,
    "aten::_scaled_dot_product_flash_attention": attention.flash_forward,
    "aten::_scaled_dot_product_flash_attention_backward": attention.flash_backward,
    "aten::constant_pad_nd": attention.padded_mask,
    "aten::_scaled_dot_product_efficient_attention": attention.efficient_forward,
    "aten::_scaled_dot_product_efficient_attention_backward": attention.efficient_backward,
    **dict.fromkeys((
        "aten::upsample_bicubic2d_backward", "aten::_upsample_bicubic2d_aa_backward",
        "aten::_upsample_bilinear2d_aa_backward", "aten::upsample_linear1d_backward", "aten::upsample_nearest1d",
        "aten::upsample_nearest1d_backward", "aten::reflection_pad2d", "aten::reflection_pad2d_backward",
    ), images.contiguous_input),
    **dict.fromkeys(("aten::_upsample_bicubic2d_aa", "aten::_upsample_bilinear2d_aa"), images.resized_smoothly),
    **dict.fromkeys(("aten::avg_pool2d_backward", "aten::max_pool2d_with_indices_backward"), images.pool_backward),
    "aten::_adaptive_avg_pool2d_backward": images.adaptive_pool_backward,
    **dict.fromkeys(("aten::im2col", "aten::col2im"), images.unfold),
    "liger::partials": liger.partials,
    "liger::logits": liger.logits,
    "trl::tile": trl.tile,
    "trl::rows": trl.rows,
    "trl::words": trl.words,
    "trl::multiply": trl.multiply,
    "flash_attn_2::forward": flash_attention.forward,
    "flash_attn_2::backward": flash_attention.backward,
}
"""Operator -> the function that records one of its calls as on CUDA."""
