"""Configurations of a few hundred thousand parameters, one of each kind of model."""

from __future__ import annotations

LLAMA = {"hidden_size": 64, "intermediate_size": 112, "num_hidden_layers": 2, "num_attention_heads": 4,
         "num_key_value_heads": 2, "vocab_size": 320, "max_position_embeddings": 4096}
SIGLIP = {"model_type": "siglip_vision_model", "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2,
          "num_attention_heads": 2, "image_size": 28, "patch_size": 14}
CLIP = SIGLIP | {"model_type": "clip_vision_model", "projection_dim": 16}
QWEN_VISION = {"depth": 2, "hidden_size": 64, "intermediate_size": 96, "num_heads": 2, "patch_size": 14,
               "spatial_merge_size": 2, "temporal_patch_size": 2, "in_channels": 3, "out_hidden_size": 64,
               "fullatt_block_indexes": [1], "window_size": 56}

TEXT = {
    "llama": {"model_type": "llama", "architectures": ["LlamaForCausalLM"], "tie_word_embeddings": True} | LLAMA,
    "gpt2": {"model_type": "gpt2", "architectures": ["GPT2LMHeadModel"], "n_layer": 2, "n_head": 4, "n_embd": 64,
             "vocab_size": 320},
    "bert": {"model_type": "bert", "architectures": ["BertForMaskedLM"], "max_position_embeddings": 256}
            | {key: LLAMA[key] for key in ("hidden_size", "intermediate_size", "num_hidden_layers",
                                           "num_attention_heads", "vocab_size")},
    "t5": {"model_type": "t5", "architectures": ["T5ForConditionalGeneration"], "d_model": 64, "d_kv": 16, "d_ff": 96,
           "num_layers": 2, "num_heads": 4, "vocab_size": 320, "decoder_start_token_id": 0, "pad_token_id": 0},
}
IMAGE = {
    "resnet": {"model_type": "resnet", "architectures": ["ResNetForImageClassification"], "embedding_size": 16,
               "hidden_sizes": [32, 64], "depths": [2, 2], "num_labels": 10},
    "mobilenet_v2": {"model_type": "mobilenet_v2", "architectures": ["MobileNetV2ForImageClassification"],
                     "image_size": 64, "depth_multiplier": 0.35, "num_labels": 10},
}
IMAGE_TEXT = {
    "qwen2_5_vl": {
        "model_type": "qwen2_5_vl", "architectures": ["Qwen2_5_VLForConditionalGeneration"], "image_token_id": 319,
        "video_token_id": 318, "vision_start_token_id": 317, "vision_config": QWEN_VISION,
        "text_config": {"model_type": "qwen2_5_vl_text", "rope_parameters": {
            "rope_type": "default", "mrope_section": [2, 3, 3], "rope_theta": 1e6}} | LLAMA},
    "llava_next": {
        "model_type": "llava_next", "architectures": ["LlavaNextForConditionalGeneration"], "image_token_index": 319,
        "image_grid_pinpoints": [[28, 56], [56, 28], [56, 56]], "vision_config": CLIP,
        "text_config": {"model_type": "llama"} | LLAMA},
    "idefics3": {
        "model_type": "idefics3", "architectures": ["Idefics3ForConditionalGeneration"], "image_token_id": 319,
        "scale_factor": 2, "vision_config": SIGLIP | {"model_type": "idefics3_vision"},
        "text_config": {"model_type": "llama"} | LLAMA},
    "pixtral": {
        "model_type": "llava", "architectures": ["LlavaForConditionalGeneration"], "image_token_index": 319,
        "vision_feature_layer": -1, "vision_feature_select_strategy": "full",
        "vision_config": {"model_type": "pixtral", "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2,
                          "num_attention_heads": 4, "head_dim": 16, "image_size": 56, "patch_size": 14},
        "text_config": {"model_type": "llama"} | LLAMA},
    "gemma3": {
        "model_type": "gemma3", "architectures": ["Gemma3ForConditionalGeneration"], "image_token_index": 319,
        "mm_tokens_per_image": 1, "vision_config": SIGLIP,
        "text_config": {"model_type": "gemma3_text", "head_dim": 16, "sliding_window": 64} | LLAMA},
}
ALL = TEXT | IMAGE | IMAGE_TEXT
_EARS = {"num_mel_bins": 8, "max_source_positions": 24, "d_model": 32, "encoder_layers": 2, "encoder_attention_heads": 2,
         "encoder_ffn_dim": 64}
"""A clip is 48 columns of 8 bins."""
MEDIA = {
    "whisper": {"model_type": "whisper", "architectures": ["WhisperForConditionalGeneration"], "decoder_layers": 2,
                "decoder_attention_heads": 2, "decoder_ffn_dim": 64, "vocab_size": 320, "max_target_positions": 320,
                "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 1, "decoder_start_token_id": 2} | _EARS,
    "qwen2_audio": {
        "model_type": "qwen2_audio", "architectures": ["Qwen2AudioForConditionalGeneration"],
        "audio_token_index": 319, "audio_config": {"model_type": "qwen2_audio_encoder"} | _EARS,
        "text_config": {"model_type": "qwen2"} | LLAMA},
    "llava_next_video": {
        "model_type": "llava_next_video", "architectures": ["LlavaNextVideoForConditionalGeneration"],
        "image_token_index": 319, "video_token_index": 318, "image_grid_pinpoints": [[28, 56], [56, 28]],
        "spatial_pool_mode": "average", "spatial_pool_stride": 2, "vision_config": CLIP,
        "text_config": {"model_type": "llama"} | LLAMA},
    "qwen2_5_vl": IMAGE_TEXT["qwen2_5_vl"],
}
"""Models of sound and video."""
EXPERTS = {"model_type": "mixtral", "architectures": ["MixtralForCausalLM"], "num_local_experts": 4,
           "num_experts_per_tok": 2} | LLAMA


def _layers(*kinds: str) -> dict:
    return {"num_hidden_layers": len(kinds), "layer_types": list(kinds)}


LATER = {
    "gemma4": {
        "model_type": "gemma4", "architectures": ["Gemma4ForConditionalGeneration"], "image_token_id": 319, "video_token_id": 318,
        "audio_token_id": 317, "vision_soft_tokens_per_image": 70, "tie_word_embeddings": True,
        "text_config": LLAMA | {"model_type": "gemma4_text", "head_dim": 16, "global_head_dim": 32, "hidden_size_per_layer_input": 16,
                                "vocab_size_per_layer_input": 320, "num_kv_shared_layers": 2, "sliding_window": 32}
        | _layers("sliding_attention", "full_attention", "sliding_attention", "full_attention"),
        "vision_config": {"model_type": "gemma4_vision", "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2,
                          "num_attention_heads": 2, "num_key_value_heads": 2, "head_dim": 16, "patch_size": 16, "pooling_kernel_size": 3}},
    "llama4": {
        "model_type": "llama4", "architectures": ["Llama4ForConditionalGeneration"], "image_token_index": 319, "boi_token_index": 318,
        "eoi_token_index": 317,
        "text_config": LLAMA | {"model_type": "llama4_text", "head_dim": 16, "intermediate_size_mlp": 112, "num_local_experts": 4},
        "vision_config": {"model_type": "llama4_vision_model", "hidden_size": 32, "intermediate_size": 128, "num_hidden_layers": 2,
                          "num_attention_heads": 2, "image_size": 56, "patch_size": 14, "vision_output_dim": 64, "projector_input_dim": 64,
                          "projector_output_dim": 64}},
    "qwen3_5": {
        "model_type": "qwen3_5", "architectures": ["Qwen3_5ForConditionalGeneration"], "image_token_id": 319, "video_token_id": 318,
        "vision_start_token_id": 317, "vision_end_token_id": 316,
        "text_config": LLAMA | {"model_type": "qwen3_5_text", "head_dim": 32, "linear_num_value_heads": 4, "linear_num_key_heads": 2,
                                "linear_key_head_dim": 16, "linear_value_head_dim": 16,
                                "rope_parameters": {"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 0.25,
                                                    "mrope_section": [2, 1, 1]}}
        | _layers("linear_attention", "full_attention"),
        "vision_config": {"model_type": "qwen3_5_vision", "depth": 2, "hidden_size": 32, "num_heads": 2, "intermediate_size": 64,
                          "out_hidden_size": 64, "patch_size": 16, "num_position_embeddings": 256}},
    "janus": {
        "model_type": "janus", "architectures": ["JanusForConditionalGeneration"], "image_token_id": 319, "tie_word_embeddings": False,
        "text_config": LLAMA | {"model_type": "llama"},
        "vision_config": {"model_type": "janus_vision_model", "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2,
                          "image_size": 56, "patch_size": 14, "projection_dim": 64, "num_image_tokens": 16},
        "vq_config": {"model_type": "janus_vqgan", "base_channels": 32, "channel_multiplier": [1, 1], "embed_dim": 8, "latent_channels": 32,
                      "num_embeddings": 64, "num_patches": 4, "projection_dim": 64, "image_token_embed_dim": 64}},
}
"""Models of 2025 and 2026 whose code takes other ways than that of older ones."""
