"""The workload that a user asks about: a model and how it is trained, with every key checked and filled in.

Known limitations:

* Only combinations of features that were compared with a run on a GPU, real or emulated, are accepted.
* DeepSpeed is supported from 0.13.2, fp16 and fp32 under it and AutoTP from 0.19.8, FSDP2 from torch 2.11.
* FSDP1, ``torch.compile``, NVMe offload and ZeRO++'s quantized and hierarchical partitioning are rejected.
* DeepSpeed's own ``optimizer`` section may name Adam or AdamW only.
* Layers quantized to 4 or 8 bits train only with adapters (recipe ``lora``) and bf16 for the other weights.
* Inference is transformers' ``generate`` with a dynamic or a static cache; offloaded and quantized caches are rejected.
"""
