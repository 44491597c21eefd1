"""Numbers that the papers print, milliseconds unless stated otherwise.

Ding et al., "IOS: Inter-Operator Scheduler for CNN Acceleration", MLSys 2021, the thesis behind it, whose tables and
figures are named here, and the logs in the authors' repository: cuDNN 7.6, fp32, a V100 at 1530 MHz or a K80. DOS is
the method before it.
"""

PACKRAT_MS = {  # Packrat (ICML 2025), PyTorch in fp32 at batch 1 on Xeons of Skylake, on 1, 2, 4, 8 and 16 threads
    "inception_v3": (77.6, 44.1, 26.1, 17.5, 17.5),
    "resnet50": (79.7, 42.8, 23.3, 13.8, 10.8),
}
STRATEGIES = ("sequential", "greedy", "merge", "concurrent", "both")
V100_MS = {  # figure 4.1
    "inception_v3": (6.51, 4.62, 5.39, 4.11, 4.03),
    "randwire": (8.49, 6.27, 8.54, 6.02, 6.02),
    "nasnet_a": (22.95, 16.78, 22.94, 16.04, 16.04),
    "squeezenet": (0.86, 0.98, 0.74, 0.82, 0.73),
}
FRAMEWORKS_MS = {  # figure 4.2
    "inception_v3": {"TensorFlow": 7.95, "TF-XLA": 9.95, "TASO": 5.70, "TVM-cuDNN": 4.88, "TensorRT": 5.21},
    "randwire": {"TensorFlow": 12.06, "TF-XLA": 16.61, "TASO": 8.42, "TVM-cuDNN": 6.86, "TensorRT": 8.33},
    "nasnet_a": {"TensorFlow": 24.73, "TF-XLA": 34.66, "TASO": 21.29, "TVM-cuDNN": 26.87, "TensorRT": 24.66},
    "squeezenet": {"TensorFlow": 2.63, "TF-XLA": 4.08, "TASO": 0.82, "TVM-cuDNN": 0.90, "TensorRT": 0.80},
}
BATCH_MS = {1: (6.20, 3.94), 16: (17.95, 15.17), 32: (30.54, 27.0), 64: (55.67, 51.11), 128: (108.55, 102.74)}  # log
BATCH_CROSS_MS = {  # table 4.2: (run at, searched at)
    (1, 1): 4.03, (1, 32): 4.50, (1, 128): 4.63, (32, 1): 29.21, (32, 32): 27.44, (32, 128): 27.93,
    (128, 1): 105.98, (128, 32): 103.74, (128, 128): 103.29,
}  # fmt: skip
DEVICE_CROSS_MS = {("k80", "k80"): 13.87, ("k80", "v100"): 14.65, ("v100", "k80"): 4.49, ("v100", "v100"): 4.03}

TABLE_3_1 = {  # transitions, schedules
    "squeezenet": (51, 131), "inception_v3": (4871, 3757392), "nasnet_a": (307841, 7150961274600),
    "randwire": (1170663, 91973106270886052032664),
}  # fmt: skip
# blocks, operators, and the blocks of the authors' code
TABLE_4_1 = {
    "inception_v3": (11, 119, 13),
    "randwire": (3, 120, 6),
    "nasnet_a": (13, 374, 1),
    "squeezenet": (10, 50, 12),
}
FIGURE_1_2 = {  # stage: ends at ms, GFLOP, TFLOP/s, share of 15.7 TFLOP/s
    "sequential": {"a": (0.12, 0.6, 5.2, 0.33), "b": (0.24, 1.2, 9.3, 0.59), "c": (0.35, 0.6, 5.5, 0.35),
                   "d": (0.48, 1.2, 9.3, 0.59)},
    "greedy": {"a, c, d": (0.24, 2.4, 9.8, 0.62), "b": (0.37, 0.6, 9.4, 0.60)},
    "IOS": {"a, d": (0.17, 1.8, 10.8, 0.69), "b, c": (0.33, 1.8, 11.1, 0.71)},
}  # fmt: skip
LIMITS = ((3, 8), (2, 8), (1, 8), (3, 3), (2, 3), (1, 3))
FIGURE_4_6_MS = {  # for LIMITS; the seconds are those of the log
    "inception_v3": (4.03, 4.04, 4.15, 4.10, 4.16, 4.26),
    "nasnet_a": (16.0, 16.1, 16.7, 16.9, 16.9, 17.9),
}
FIGURE_4_6_SECONDS = {"inception_v3": (43, 25, 7, 29, 17, 5), "nasnet_a": (3412, 2648, 492, 641, 360, 137)}
STAGES_OF_BLOCKS = {  # the schedule files behind figure 4.7
    "batch 1": (6, 4, 4, 4, 3, 5, 4, 6, 6, 5, 4, 3, 1),
    "batch 32": (6, 3, 2, 2, 3, 3, 5, 5, 3, 3, 4, 5, 1),
    "batch 128": (4, 2, 3, 2, 3, 3, 4, 4, 3, 3, 3, 5, 1),
    "K80": (5, 3, 3, 3, 3, 5, 5, 5, 3, 3, 4, 3, 1),
}
FIGURE_4_5_MOST = 1.5  # RTX 2080 Ti, from the text: largest speedup over sequential of the four networks
FIGURE_4_10_MS = {"inception_v3": 4.95, "randwire": 5.26, "nasnet_a": 14.67, "squeezenet": 0.75}  # TVM-AutoTune, log

DOS_TABLE_1_MS = (  # Inception V3: rows are run on, columns are optimized for
    ("titanxp", (6.01, 6.27, 6.27)), ("v100", (4.86, 4.65, 5.08)), ("rtx2080ti", (4.33, 4.43, 4.09)),
)  # fmt: skip
DOS_TABLE_2_MS = ((1, (4.66, 4.73, 5.09)), (8, (10.98, 10.55, 10.96)), (16, (17.43, 16.94, 16.56)))
DOS_TABLE_4 = {  # DOS, MetaFlow with alpha = 1.01 and without limit
    "squeezenet": ("4 s", "4 s", "5 s"),
    "inception_v3": ("10 s", "24 s", "60 s"),
    "nasnet_a": ("3 min", "40 min", "4 h"),
    "randwire": ("8 min", "> 1 day", "> 1 day"),
}
DOS_TABLE_5 = {  # TensorRT and DOS: ms, MB, kernels, 10^9 multiply-adds
    "inception_v3": ((5.11, 82, 119, 5.50), (4.61, 68, 103, 5.50)),
    "randwire": ((8.91, 576, 406, 7.67), (7.15, 576, 406, 7.67)),
    "nasnet_a": ((23.58, 1187, 965, 22.00), (18.99, 1187, 965, 22.00)),
    "squeezenet": ((0.84, 57, 50, 1.16), (0.74, 48, 38, 1.25)),
}
