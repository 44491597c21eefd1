"""Schedules on NVIDIA GPUs: cuDNN plans and own kernels on streams, captured into one CUDA graph.

Everything up to the checked execution plan works without a GPU and without cupy. The rooms, each of which imports only
those before it:

    target, layout, kernel, builder,   the GPU that kernels are for, how tensors lie in memory, what a kernel is, what
    choices                            operators are lowered into
    gpu/                               one GPU through CuPy: memory, streams, events, captures, failures
    source/                            what the CUDA C++ of several kernels has in common
    cudnn/                             cuDNN's graphs, its plans for them, and which plan is fastest
    kernels/                           one file for each kernel: its meaning, its launch, and its ONNX nodes
    onnxruntime/                       operators that no kernel does
    lower/                             from a model and a schedule to the checked execution plan
    execute/                           launches, captured graphs, and arrays that callers keep on the GPU
    trials                             parts of a model, run to find out what is faster
    backend                            a model on one GPU, for all others
"""
