# 2 GPUs of 80 GB
NPROC_PER_NODE=2 \
MAX_PIXELS=1003520 \
CUDA_VISIBLE_DEVICES=0,1 \
swift sft \
    --model Qwen/Qwen2.5-VL-7B-Instruct \
    --dataset our/formulas#20000 another/set \
    --train_type lora \
    --torch_dtype bfloat16 \
    --num_train_epochs 1 \
    --per_device_train_batch_size 2 \
    --learning_rate 1e-4 \
    --lora_rank 16 \
    --freeze_vit true \
    --max_length 4096 \
    --deepspeed zero2 \
    --output_dir output
