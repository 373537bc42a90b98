"""Formulas for CUDA workspaces: bytes that kernels and libraries allocate and that meta tensors do not show.

Every function takes the GPU and dimensions that ``predictor.trace.operators`` extracts from a call. Dimensions are
integers or arrays of integers; widths and element sizes are always integers. Every function returns bytes. Its
docstring names the file and function of PyTorch 2.11, or of another library, that allocates. Each formula was compared
with PyTorch's own host code on the emulated H100, and whole jobs on an emulated GPU of each compute capability.
:data:`FUNCTIONS` lists them; ``predictor/explore/workspaces.js`` repeats them.
"""

from __future__ import annotations

import numpy as np

from predictor.events import gemm_4bit

KIB, MIB = 1 << 10, 1 << 20
FP32, INT64 = 4, 8
FEW_INDICES = 3072
"""Up to this number of tokens, embedding backward does not sort (ATen/native/cuda/Embedding.cu)."""
ROWS_PER_THREAD = 10
"""NROWS_PER_THREAD of ATen/native/cuda/EmbeddingBackwardKernel.cu."""
CUB_ALIGNMENT, CUB_SLACK = 256, 511
"""CUB aligns each temporary, and requests extra bytes to align the total (cub/util_temporary_storage.cuh)."""
NEWEST_CUB = 1300
"""The CUDA release of the CUB that functions describe unless their last dimension names another: 1300 is 13.0. PyTorch
2.4 to 2.10 were compiled with 1201 to 1208 (:func:`predictor.trace.operators.call.cub`)."""
SELECT_TILES = {(7, 0): 640, (8, 0): 2304, (8, 6): 640, (9, 0): 4224, (10, 0): 3520}
UNIQUE_TILES = {(7, 0): 320, (8, 0): 1792, (8, 6): 320, (9, 0): 4480, (10, 0): 3840}
SORT_TILES = {(7, 0): 2816, (8, 0): 3840, (9, 0): 4608}
"""Items per tile, by the oldest compute capability that uses them (cub/device/dispatch/tuning). Measured with up to 16
million items on eight emulated GPUs, of 7.0 only read in CUB's sources."""
OLDER_TUNING = {False: (7, 0), True: (8, 0)}
"""Whether a table is that of sorting -> the newest compute capability that CUDA 12.1 knows in it."""


def _ceil_div(a, b):
    return -(-a // b)


def _round_up(a, b):
    return _ceil_div(a, b) * b


def _last_power_of_two(n):
    return 2 ** np.floor(np.log2(np.maximum(n, 1))).astype(np.int64)


# cuBLAS -----------------------------------------------------------------------------------------------


def cublas_workspace(gpu):
    """cuBLAS workspace, one per handle and stream, never freed (ATen/cuda/CublasHandlePool.cpp,
    parseChosenWorkspaceSize). Only compute capability 9.0 has more: 10.0 and 12.0 have as much as 8.0."""
    return 32 * MIB if gpu.compute_capability == (9, 0) else 8 * MIB + 128 * KIB


def cublaslt_workspace(gpu):
    """cuBLASLt workspace, for products with a fused bias (ATen/cuda/CublasHandlePool.cpp,
    getCUDABlasLtWorkspaceSize)."""
    return 1 * MIB


def grouped_arguments(gpu, groups):
    """Arguments of a grouped product: for each group three addresses (for an even number of groups), its size and three
    strides (ATen/native/cuda/GroupMM.cu, input_args_size)."""
    return (24 * _round_up(groups, 2) + 36 * groups) * _groups_products(gpu)


def grouped_workspace(gpu, rows, groups, columns):
    """CUTLASS workspace of a grouped product (ATen/native/cuda/GroupMM.cu, workspace_size): for each multiprocessor
    four descriptors on Hopper. Blackwell needs more, and the amount depends on whether groups are large
    (dispatch_bf16_grouped_kernel_on_tile_size); it was measured on an emulated B200."""
    small = (rows // groups <= 128) | (columns <= 128)
    each = {9: 512, 10: np.where(small, 5376, 5888)}.get(gpu.compute_capability[0], 0)
    return gpu.multiprocessors * each


def _groups_products(gpu):
    return gpu.compute_capability[0] in (9, 10)


# Attention --------------------------------------------------------------------------------------------


def cudnn_backward(gpu, batch, heads, sequence, width, shared_keys=0):
    """fp32 dQ accumulator and softmax sums in one buffer (cudnn-frontend, scaled_dot_product_flash_attention.h). Before
    query heads that share ``shared_keys`` keys have their dK and dV added up, each has its own, of 16 bits (measured on
    an H200, with cuDNN 9.19)."""
    return FP32 * batch * heads * sequence * (width + 1) + 2 * 2 * batch * heads * shared_keys * width


def flash_softmax_sum(gpu, batch, heads, sequence, width):
    """``softmax_d`` (ATen/native/transformers/cuda/flash_attn/flash_api.cpp, mha_bwd): rows rounded up to 128."""
    return FP32 * batch * heads * _round_up(sequence, 128)


def flash_dq_accumulator(gpu, batch, heads, sequence, width):
    """``dq_accum`` (flash_api.cpp, mha_bwd): fp32, head size rounded up to 32, above 128 to 64."""
    return flash_softmax_sum(gpu, batch, heads, sequence, width) * _flash_width(width)


def flash_split_sums(gpu, batch, heads, sequence, width, keys=None):
    """``softmax_lse_accum`` (flash_api.cpp, set_params_splitkv): 0 if keys are not split. ``keys`` is the number of
    keys if it differs from ``sequence``."""
    splits = _flash_splits(gpu, batch, heads, sequence, width, sequence if keys is None else keys)
    return np.where(splits > 1, FP32 * splits * batch * heads * sequence, 0)


def flash_split_outputs(gpu, batch, heads, sequence, width, keys=None):
    """``out_accum`` (flash_api.cpp, set_params_splitkv): fp32, head size rounded up as in the backward."""
    return flash_split_sums(gpu, batch, heads, sequence, width, keys) * _flash_width(width)


def _flash_width(width):
    return _round_up(width, np.where(width <= 128, 32, 64))


def _flash_splits(gpu, batch, heads, sequence, width, keys):
    """num_splits_heuristic: keys are split if the blocks of queries do not fill the multiprocessors."""
    block = np.where(width <= 64, 256, np.where(width <= 128, 128, 64))
    blocks = batch * heads * _ceil_div(sequence, 64)
    key_blocks = _ceil_div(keys, block)
    slots = 2 * gpu.multiprocessors

    def splits(count: int, keys: int) -> int:
        candidates = [n for n in range(1, min(128, slots, keys) + 1)
                      if n == 1 or _ceil_div(keys, n) != _ceil_div(keys, n - 1)]
        efficiency = {n: (count * n / slots) / _ceil_div(count * n, slots) for n in candidates}
        return next(n for n in candidates if efficiency[n] >= 0.85 * max(efficiency.values()))

    blocks, key_blocks = np.broadcast_arrays(blocks, key_blocks)
    result, few = np.ones(blocks.shape, dtype=np.int64), blocks < 0.8 * slots
    pairs, at = np.unique(np.stack([blocks[few], key_blocks[few]]), axis=1, return_inverse=True)
    result[few] = np.array([splits(*pair) for pair in pairs.T.tolist()], dtype=np.int64)[at.ravel()]
    return result


def efficient_rows(gpu, batch, heads, sequence, width):
    """Log-sum-exp of the forward: rows rounded up to 32 (ATen/native/transformers/cuda/attention.cu)."""
    return FP32 * batch * heads * _round_up(sequence, 32)


def padded_mask(gpu, rows, length, itemsize):
    """A float mask whose rows are padded to multiples of 8 (ATen/native/transformers/attention.cpp, pad_bias)."""
    return rows * _round_up(length, 8) * itemsize


def bias_gradient(gpu, rows, length, itemsize):
    """The gradient of a float mask, whose rows are padded to multiples of 16
    (ATen/native/transformers/cuda/attention_backward.cu, _efficient_attention_backward)."""
    return rows * _round_up(length, 16) * itemsize


def efficient_delta(gpu, batch, heads, sequence, width):
    """``delta``, one fp32 value for each query and head (ATen/native/transformers/cuda/attention_backward.cu)."""
    return FP32 * batch * heads * sequence


def efficient_backward(gpu, batch, heads, sequence, width, itemsize=2, length=None):
    """fp32 accumulators of dQ for blocks of queries, and of dK and dV if they do not fit in registers
    (mem_eff_attention/kernel_backward.h, workspace_size; attention_backward.cu splits the keys). ``length`` is the
    number of keys if it differs from ``sequence``."""
    queries, keys = _efficient_block(gpu, width, itemsize)
    length = sequence if length is None else length
    each = _ceil_div(sequence, queries) * _ceil_div(width, keys) * (FP32 * queries * keys + 16)
    if itemsize < FP32 and width > queries:
        splits = np.maximum(np.minimum(_ceil_div(length, keys), 200 // (batch * heads)), 1)
        each = each + 2 * FP32 * splits * keys * _round_up(width, queries)
    return batch * heads * each


def _efficient_block(gpu, width, itemsize):
    """Queries and keys of a block, in the first kernel whose shared memory fits the GPU
    (mem_eff_attention/kernels/cutlassB.h; measured on five emulated GPUs). Kernels of 16 bits for compute capability 7
    take 128 queries of every width above 64."""
    roomy = gpu.shared_memory_block_bytes > 100 * KIB
    if width <= 64:
        return 64, 64
    if itemsize == FP32:
        return (128 if roomy else 64), 64
    if gpu.compute_capability < (8, 0) or width <= 96 and gpu.compute_capability in ((8, 6), (8, 9)):
        return 128, 64
    if width <= 128:
        return (128, 128) if roomy else (64, 64)
    return 128, 64


# Reductions -------------------------------------------------------------------------------------------


def reduction_buffer(gpu, outputs, inputs, accumulator_bytes, along_rows, all_of_it, inner=None):
    """Partial results of thread blocks that share an output (ATen/native/cuda/Reduce.cuh, global_memory_size)."""
    return _reduction(gpu, outputs, inputs, accumulator_bytes, along_rows, all_of_it, inner)[0]


def reduction_semaphores(gpu, outputs, inputs, accumulator_bytes, along_rows, all_of_it, inner=None):
    """One counter for each column of thread blocks (Reduce.cuh, semaphore_size)."""
    return _reduction(gpu, outputs, inputs, accumulator_bytes, along_rows, all_of_it, inner)[1]


def _reduction(gpu, outputs, inputs, accumulator_bytes, along_rows, all_of_it, inner=None):
    """Bytes of partial results and of counters (Reduce.cuh, setReduceConfig).

    Args:
        outputs: number of results.
        inputs: elements that are reduced into each result.
        along_rows: 1 if the reduced dimension is the fastest in memory, 0 if a kept dimension is.
        all_of_it: 1 if the whole tensor is reduced to one number.
        inner: contiguous kept elements, if they are not all ``outputs``.
    """
    vector = np.where(along_rows, 1, np.gcd(outputs if inner is None else inner, 4))
    of_rows = np.where((all_of_it == 1) & (inputs > 128), inputs // 4, inputs)
    first, second = np.where(along_rows, of_rows, outputs // vector), np.where(along_rows, outputs, inputs)
    most = 512 // vector
    first, second = (np.minimum(_last_power_of_two(d), most) for d in (first, second))
    width = np.minimum(first, 32)
    height = np.minimum(second, most // width)
    width = np.minimum(first, most // height)
    step_input, step_output = np.where(along_rows, width, 1), np.where(along_rows, 1, width)
    across_warps = _ceil_div(inputs, step_input) >= np.minimum(height * 16, 256)
    step_input = np.where(across_warps, step_input * height, step_input)
    step_output = np.where(across_warps, step_output, step_output * height)
    values = _ceil_div(inputs, step_input)
    grid = _ceil_div(outputs // vector, step_output)
    target = gpu.multiprocessors * (gpu.threads_per_multiprocessor // (width * height))
    blocks = np.maximum(np.minimum(_ceil_div(target, grid), _ceil_div(values, 16)), _ceil_div(values, 256))
    shared = across_warps & (values >= 256) & (grid <= target) & (blocks > 1)
    size = accumulator_bytes * outputs * blocks * np.where(along_rows, 1, width * vector)
    return np.where(shared, size, 0), np.where(shared, 4 * grid, 0)


def norm_partials(gpu, rows, width, itemsize):
    """Partial gradients of a norm's weight, if there are many short rows: one for each block of 32 rows and columns, up
    to 32,768 blocks (ATen/native/cuda/layer_norm_kernel.cu, LaunchGammaBetaBackwardCUDAKernel)."""
    return np.where(_in_parts(gpu, rows, width), _norm_parts(rows, width) * width * itemsize, 0)


def norm_first(gpu, rows, width, itemsize):
    """The sum of those partial gradients, which replaces the gradient allocated first (layer_norm_kernel.cu,
    LaunchGammaBetaBackwardCUDAKernel)."""
    return np.where(_in_parts(gpu, rows, width), width * itemsize, 0)


def norm_buffer(gpu, rows, width):
    """Partial results of the sum of partial gradients (Reduce.cuh)."""
    return np.where(_in_parts(gpu, rows, width), reduction_buffer(gpu, width, _norm_parts(rows, width), FP32, 0, 0), 0)


def norm_semaphores(gpu, rows, width):
    """Counters of the sum of partial gradients (Reduce.cuh)."""
    return np.where(_in_parts(gpu, rows, width),
                    reduction_semaphores(gpu, width, _norm_parts(rows, width), FP32, 0, 0), 0)


def _in_parts(gpu, rows, width):
    return (np.asarray(rows) > 64 << 10) & (width // 32 < gpu.multiprocessors // 2)


def _norm_parts(rows, width):
    return np.minimum(_ceil_div(rows, 32), (32 << 10) // _ceil_div(width, 32))


def batch_norm_staging(gpu, rows, channels, numbers):
    """For channels-last input, ``numbers`` fp32 values for each channel and thread block
    (ATen/native/cuda/Normalization.cuh, batch_norm_stats_channels_last_cuda_template)."""
    blocks = _batch_norm_blocks(rows, channels)[1]
    return np.where(blocks > 1, FP32 * numbers * channels * blocks, 0)


def batch_norm_semaphores(gpu, rows, channels):
    """One counter for each column of thread blocks (Normalization.cuh,
    batch_norm_stats_channels_last_cuda_template)."""
    columns, blocks = _batch_norm_blocks(rows, channels)
    return np.where(blocks > 1, 4 * columns, 0)


def _batch_norm_blocks(rows, channels):
    """Columns and rows of thread blocks (Normalization.cuh, flexible_launch_configs)."""
    width = np.minimum(_last_power_of_two(channels), 32)
    height = np.minimum(_last_power_of_two(_ceil_div(rows, 16)), 512 // width)
    width = np.minimum(_last_power_of_two(channels), 512 // height)
    blocks = np.minimum(_ceil_div(rows, 16 * height), 128)
    return _ceil_div(channels, width), np.where(blocks < 8, 1, blocks)


# Liger ------------------------------------------------------------------------------------------------


def liger_partials(gpu, width):
    """fp32 gradients of RMSNorm's weight, one row for each multiprocessor (liger-kernel 0.8.5, ops/rms_norm.py)."""
    return FP32 * gpu.multiprocessors * width


def liger_logits(gpu, tokens, width, vocabulary, itemsize):
    """Logits of one chunk of tokens. The chunk is a power of two, chosen so that its logits take about as many bytes as
    the hidden states (liger-kernel 0.8.5, ops/fused_linear_cross_entropy.py)."""
    share = _ceil_div(tokens, _ceil_div(vocabulary, width))
    power = _last_power_of_two(share)
    return np.minimum(np.where(power < share, 2 * power, power), tokens) * vocabulary * itemsize


# TRL --------------------------------------------------------------------------------------------------

TRL_TOKENS, TRL_WORDS = 4096, 32_768
"""Tokens and words of a tile of logits (TRL 1.16, kernels/chunked_logprob.py, TOKEN_CHUNK_SIZE; trainer/utils.py)."""


def trl_tile(gpu, tokens, itemsize):
    """A tile of logits: the tokens of a batch, or 4,096 of them, by 32,768 words (TRL 1.16,
    kernels/chunked_logprob.py, ChunkedLogProbFunction)."""
    return np.minimum(tokens, TRL_TOKENS) * TRL_WORDS * itemsize


def trl_rows(gpu, tokens, width, itemsize, tiles):
    """Hidden states of the tokens of a tile after so many others, in the dtype of products (TRL 1.16, as
    :func:`trl_tile`)."""
    return np.clip(tokens - tiles * TRL_TOKENS, 0, TRL_TOKENS) * width * itemsize


def trl_words(gpu, tokens, size, tiles):
    """``size`` bytes for rows of the head's weight, if there is a tile of tokens after so many others (TRL 1.16, as
    :func:`trl_tile`)."""
    return np.where(tokens > tiles * TRL_TOKENS, size, 0)


# bitsandbytes -----------------------------------------------------------------------------------------


def unpacked_4bit(gpu, rows, outputs, inputs, itemsize, size):
    """``size`` bytes for unpacked 4-bit weights, or 0 if the fused kernel runs (bitsandbytes 0.50,
    backends/cuda/ops.py, gemm_4bit)."""
    fused = np.vectorize(gemm_4bit.is_fused, otypes=[bool])(gpu, rows, outputs, inputs, itemsize)
    return np.where(fused, 0, size)


# Masks and indices ------------------------------------------------------------------------------------


def _tile(gpu, tiles, cub):
    """Items per tile of the newest compute capability in the table that is not newer than the GPU's. CUDA 12.1 knows
    those of 9.0 for none, and those of 8.0 only for sorting."""
    known = [architecture for architecture in tiles if architecture <= gpu.compute_capability]
    if cub < 1204:
        known = [architecture for architecture in known if architecture <= OLDER_TUNING[tiles is SORT_TILES]]
    return tiles[max(known)]


def _slack(cub):
    """Where CUB scans or selects, it aligns one temporary more since CUDA 13."""
    return CUB_SLACK if cub >= 1300 else CUB_ALIGNMENT - 1


def cub_scan(gpu, items, itemsize=INT64, cub=NEWEST_CUB):
    """CUB's exclusive scan: for each tile of 896 items, a descriptor of two items
    (cub/device/dispatch/dispatch_scan.cuh)."""
    return _round_up((_ceil_div(items, 896) + 32) * 2 * itemsize, CUB_ALIGNMENT) + _slack(cub)


def cub_select(gpu, items, cub=NEWEST_CUB):
    """CUB's selection by flag: one 8-byte descriptor for each tile (cub/device/dispatch/dispatch_select_if.cuh)."""
    return _round_up((_ceil_div(items, _tile(gpu, SELECT_TILES, cub)) + 32) * 8, CUB_ALIGNMENT) + _slack(cub)


def cub_sum(gpu, items):
    """CUB's count of true items: int32 sums of five waves of blocks of 256 threads (cub/device/dispatch/
    dispatch_reduce.cuh). One block counts up to 4096 items and needs 1 byte."""
    blocks = 5 * gpu.multiprocessors * (gpu.threads_per_multiprocessor // 256)
    return np.where(items > 4096, _round_up(4 * blocks, CUB_ALIGNMENT) + CUB_ALIGNMENT - 1, 1)


def _radix_sort(gpu, items, passes, cub):
    """CUB's radix sort of int64 pairs: two buffers, digit counts for each pass, a histogram for each tile
    (cub/device/dispatch/dispatch_radix_sort.cuh)."""
    pairs = np.where(passes > 1, 2 * _round_up(INT64 * items, CUB_ALIGNMENT), 0)
    return pairs + 2048 * passes + CUB_SLACK + 1024 * _ceil_div(items, _tile(gpu, SORT_TILES, cub))


def index_sort(gpu, items, rows, cub=NEWEST_CUB):
    """Radix sort of indices, by the bits of the highest row, eight in each pass (ATen/native/cuda/Indexing.cu); one
    block sorts up to 2304 items and needs 1 byte."""
    return np.where(items > 2304, _radix_sort(gpu, items, _passes(rows), cub), 1)


def _passes(rows):
    """Passes over the bits of the highest of the rows, eight bits in each."""
    bits = np.floor(np.log2(np.maximum(rows - 1, 1))) + 1
    return _ceil_div(bits.astype(np.int64), 8)


def row_sort(gpu, items, cub=NEWEST_CUB):
    """Radix sort of int64 pairs by all 64 bits (ATen/native/cuda/Sort.cu, launch_stable_sort_kernel); up to 4096 items
    are sorted in shared memory."""
    return np.where(items > 4096, _radix_sort(gpu, items, 8, cub), 0)


def embedding_indices(gpu, tokens):
    """One int64 for each token, for each of the sorted copies (Embedding.cu, embedding_dense_backward_cuda)."""
    return np.where(tokens > FEW_INDICES, INT64 * tokens, 0)


def embedding_sort(gpu, tokens, cub=NEWEST_CUB, rows=None):
    """Radix sort of token ids by all 64 bits (Embedding.cu, embedding_dense_backward_cuda). PyTorch 2.14 sorts by the
    bits of the highest of the ``rows``."""
    passes = 8 if rows is None else _passes(rows)
    return np.where(tokens > FEW_INDICES, _radix_sort(gpu, tokens, passes, cub), 0)


def embedding_number(gpu, tokens):
    """One int64, the number of segments (Embedding.cu, embedding_dense_backward_cuda)."""
    return np.where(tokens > FEW_INDICES, INT64, 0)


def embedding_unique(gpu, tokens, cub=NEWEST_CUB):
    """CUB's selection of distinct tokens: a descriptor of 16 bytes for each tile, of 8 before CUDA 12.6 (Embedding.cu,
    embedding_dense_backward_cuda, unique_by_key)."""
    descriptor = 16 if cub >= 1206 else 8
    tiles = _ceil_div(tokens, _tile(gpu, UNIQUE_TILES, cub))
    return np.where(tokens > FEW_INDICES, _round_up((tiles + 32) * descriptor, CUB_ALIGNMENT) + _slack(cub), 0)


def embedding_scan(gpu, tokens, vocabulary, cub=NEWEST_CUB):
    """CUB's scan over the segments (Embedding.cu, embedding_dense_backward_cuda, exclusive_scan)."""
    return np.where(tokens > FEW_INDICES, cub_scan(gpu, np.minimum(tokens, vocabulary), INT64, cub), 0)


def embedding_segments(gpu, tokens, vocabulary):
    """One int64 for each possible distinct token (EmbeddingBackwardKernel.cu, partials_per_segment)."""
    return np.where(tokens > FEW_INDICES, INT64 * np.minimum(tokens, vocabulary), 0)


def embedding_partials(gpu, tokens, vocabulary, width):
    """fp32 rows of partial segments (EmbeddingBackwardKernel.cu, grad_weight_per_segment)."""
    segments = tokens // ROWS_PER_THREAD + np.minimum(tokens, vocabulary)
    return np.where(tokens > FEW_INDICES, FP32 * segments * width, 0)


def embedding_rows(gpu, tokens, vocabulary, width):
    """fp32 sums of whole rows, for vocabularies of few rows (EmbeddingBackwardKernel.cu)."""
    return np.where(tokens > FEW_INDICES, FP32 * vocabulary * width, 0)


FUNCTIONS = {
    function.__name__: function
    for function in (
        cublas_workspace, cublaslt_workspace, grouped_arguments, grouped_workspace,
        cudnn_backward, flash_softmax_sum, flash_dq_accumulator, flash_split_sums, flash_split_outputs,
        efficient_rows, padded_mask, bias_gradient, efficient_delta, efficient_backward,
        reduction_buffer, reduction_semaphores, norm_partials, norm_first, norm_buffer, norm_semaphores,
        batch_norm_staging, batch_norm_semaphores,
        liger_partials, liger_logits, trl_tile, trl_rows, trl_words, unpacked_4bit,
        cub_scan, cub_select, cub_sum, index_sort, row_sort,
        embedding_indices, embedding_sort, embedding_number, embedding_unique, embedding_scan, embedding_segments,
        embedding_partials, embedding_rows,
    )
}
"""Name of a workspace in formula files -> function."""
TOGETHER = {"reduction_buffer": (_reduction, 0), "reduction_semaphores": (_reduction, 1)}
"""Name -> the function that computes it together with others, and its place among the results."""
