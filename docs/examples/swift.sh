MAX_PIXELS=1003520 NPROC_PER_NODE=4 swift sft \
    --model llava-hf/llava-1.5-7b-hf \
    --tuner_type full \
    --torch_dtype bfloat16 \
    --max_length 2048 \
    --per_device_train_batch_size 2 \
    --gradient_accumulation_steps 4 \
    --deepspeed zero2
