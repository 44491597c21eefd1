"""The NVIDIA GPU runtime: cuDNN plans and CUDA C++ kernels on streams, captured in one CUDA graph.

Everything up to the execution plan works without a GPU or CuPy. Each part imports only those before it:

    kernel, layout, builder   interfaces of kernels, memory layouts, kernel calls of operators
    gpu/                      a GPU through CuPy: memory, streams, events, captures, errors
    source/                   CUDA C++ shared by kernels
    cudnn/                    cuDNN graphs and plans, and the fastest plan
    kernels/                  a file for each kernel: numpy reference, launch, lowering of ONNX nodes
    onnxruntime/              operators without a kernel
    lower/                    model and schedule to execution plan
    execute/                  launches, captured graphs, arrays in GPU memory
    part_timer                parts of a model, timed before there is a schedule
    backend                   a model on one GPU
"""
