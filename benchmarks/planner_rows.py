"""Published figures that the planner is held against, table by table, each with what is needed to predict it.

Sources: A Narayanan et al. 2021, table 1. B Megatron-LM's README, core r0.8. C Korthikanti et al. 2022, tables 4 and 5.
D Qi et al. 2023, tables 4 and 5. E Rajbhandari et al. 2019, table 1 and text. F Llama 3 report, table 4. G torchtitan's
benchmark notes. H one study on 8 V100 PCIe cards.
"""

# Parameters in 10^9, heads, h, layers, TP, PP, GPUs, global batch, micro-batch, layers per virtual stage (0: not
# interleaved), TFLOP/s per GPU.
A = [
    (1.7, 24, 2304, 24, 1, 1, 32, 512, 16, 0, 137), (3.6, 32, 3072, 30, 2, 1, 64, 512, 16, 0, 138),
    (7.5, 32, 4096, 36, 4, 1, 128, 512, 16, 0, 142), (18.4, 48, 6144, 40, 8, 1, 256, 1024, 8, 0, 135),
    (39.1, 64, 8192, 48, 8, 2, 512, 1536, 4, 0, 138), (76.1, 80, 10240, 60, 8, 4, 1024, 1792, 2, 5, 140),
    (145.6, 96, 12288, 80, 8, 8, 1536, 2304, 2, 5, 148), (310.1, 128, 16384, 96, 8, 16, 1920, 2160, 1, 3, 155),
    (529.6, 128, 20480, 105, 8, 35, 2520, 2520, 1, 1, 163), (1008, 160, 25600, 128, 8, 64, 3072, 3072, 1, 0, 163),
]  # fmt: skip

# Parameters in 10^9, heads, h, layers, TP, PP, GPUs, global batch, TFLOP/s per GPU, MFU %.
B = [
    (1.7, 16, 2048, 24, 1, 1, 48, 192, 408.8, 41), (7.1, 32, 4096, 30, 2, 1, 96, 192, 465.9, 47),
    (16, 48, 6144, 32, 4, 1, 192, 192, 489.1, 49), (32, 56, 7168, 48, 8, 1, 384, 192, 459.6, 46),
    (70, 64, 8192, 84, 8, 2, 768, 384, 419.7, 42), (119, 80, 10240, 92, 8, 4, 1536, 768, 420.5, 43),
    (177, 96, 12288, 96, 8, 6, 2304, 1152, 432.8, 44),
]  # fmt: skip

# Name, heads, h, layers, TP, PP, global batch, micro-batch, virtual, full s, SP + selective s, MFU %, HFU %.
C = [
    ("22B", 64, 6144, 48, 8, 1, 4, 4, 1, 1.42, 1.10, 41.5, 43.7),
    ("175B", 96, 12288, 96, 8, 8, 64, 1, 3, 18.13, 13.75, 51.4, 52.8),
    ("530B", 128, 20480, 105, 8, 35, 280, 1, 3, 49.05, 37.83, 56.0, 57.0),
    ("1T", 160, 25600, 128, 8, 64, 512, 1, 1, 94.42, 71.49, 56.3, 57.0),
]

# One layer of the 22B model: recompute, sequence parallel, forward ms, backward ms.
C_LAYER = [("none", False, 7.7, 11.9), ("none", True, 7.2, 11.8), ("full", False, 7.7, 19.5),
           ("selective", False, 7.7, 13.2), ("selective", True, 7.2, 13.1)]  # fmt: skip

# Name, layers, heads, h, stages, micro-batch, micro-batches, samples/GPU/s of (1F1B, 1F1B-I, ZB-1p, ZB-2p), bubble
# rates of (1F1B, 1F1B-I, H1, H2, ZB-2p), and the paper's profile (F, B, W, hand-over in ms; from memory).
D = [
    ("1.5B", 22, 24, 2304, 8, 6, 24, (11.8, 13.1, 12.9, 14.5), (0.2431, 0.1055, 0.1585, 0.1083, 0.0433), (18.522, 18.086, 9.337, 0.601)),
    ("1.5B", 22, 24, 2304, 8, 6, 32, (12.5, 13.4, 13.4, 14.8), (0.1985, 0.0818, 0.1242, 0.0837, 0.0039), (18.513, 18.086, 9.331, 0.626)),
    ("6.2B", 30, 32, 4096, 8, 3, 24, (3.50, 4.01, 3.88, 4.32), (0.2347, 0.0808, 0.1323, 0.0698, 0.0029), (29.718, 29.444, 19.927, 0.527)),
    ("14.6B", 46, 40, 5120, 16, 1, 48, (1.40, 1.54, 1.61, 1.81), (0.2552, 0.1104, 0.1397, 0.0672, 0.0066), (11.347, 11.248, 8.132, 0.377)),
]  # fmt: skip

# Parameters in 10^9, ranks, GB per GPU at stages 0 to 3 (None: not printed).
E = [(7.5, 64, (120, 31.4, 16.6, 1.88)), (7.5, 4, (120, 52.5, 41.25, 30)), (7.5, 1024, (120, 30.1, 15.1, 0.12)),
     (128, 64, (None, 536, 284, 32)), (1000, 1024, (None, 4012, 2014, 15.6))]  # fmt: skip

# GPUs, TP, CP, PP, DP, sequence, batch per DP rank, TFLOP/s per GPU, MFU %. The report states the batch in sequences.
F = [
    (8192, 8, 1, 16, 64, 8192, 32, 430, 43),
    (16384, 8, 1, 16, 128, 8192, 16, 400, 41),
    (16384, 8, 16, 16, 8, 131072, 16, 380, 38),
]

# Name, shipped model, GPUs, layout, global batch, dtype, tokens/s/GPU, GiB. Its selective recompute keeps every second
# product of a layer, which is none of the planner's modes: predicted without recompute. Gradients stay whole between
# micro-batches under a pipeline, which is stage 1 here; the micro-batch is not printed and taken as 1.
G = [
    ("8B FSDP", "llama3-8b", 8, "dp=8,zero=3,micro=2", 16, "bf16", 5762, 82.4),
    ("8B FSDP, compiled", "llama3-8b", 8, "dp=8,zero=3,micro=2", 16, "bf16", 6667, 77.0),
    ("405B 1F1B", "llama3-405b", 512, "tp=8,pp=8,dp=8,zero=1,recompute=full", 256, "fp8", 100, 82.5),
    (
        "405B interleaved",
        "llama3-405b",
        512,
        "tp=8,pp=8,dp=8,zero=1,recompute=full,schedule=interleaved,v=2",
        256,
        "fp8",
        128,
        72.7,
    ),
]

# The study prints no model. The first assumption meets its tokens a second, the second what a rank holds at TP8, the
# third its stages' ratio; no one model meets all three. Name, layers, h, heads, sequence, vocabulary, sequences per GPU,
# tied embeddings.
H_MODELS = [
    ("24 x 1024", 24, 1024, 16, 1024, 50304, 4, False),
    ("16 x 1024", 16, 1024, 16, 1024, 50304, 4, True),
    ("16 x 768", 16, 768, 12, 512, 32000, 8, False),
]
