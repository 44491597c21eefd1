/* A driver library for machines without a GPU: cuDNN builds plans for a GPU that is described to it, and asks a driver a few
   things meanwhile. What loads code gets a handle that nobody looks into, what sets something is told that it is set, and
   what needs a GPU is told that there is none. Nothing can run.

       cc -shared -fPIC -o FOLDER/libcuda.so.1 benchmarks/devices/standin_driver.c
       LD_LIBRARY_PATH=FOLDER python benchmarks/cudnn_desk.py

   cuDNN prints the name of a function that it misses: add it where it belongs. */

enum { SUCCESS = 0, NO_DEVICE = 100, VERSION = 13000, MOST_BLOCKS_OF_A_CLUSTER = 8 };

static char nothing[4096];

#define GIVES_A_HANDLE(name) \
    int name(void **handle) { \
        *handle = nothing; \
        return SUCCESS; \
    }
#define GIVES(name, number) \
    int name(int *value) { \
        *value = number; \
        return SUCCESS; \
    }
#define IS_DONE(name) \
    int name(void) { return SUCCESS; }
#define NEEDS_A_GPU(name) \
    int name(void) { return NO_DEVICE; }

GIVES_A_HANDLE(cuKernelGetFunction)
GIVES_A_HANDLE(cuLibraryGetKernel)
GIVES_A_HANDLE(cuLibraryLoadData)
GIVES_A_HANDLE(cuLibraryLoadFromFile)
GIVES_A_HANDLE(cuModuleGetFunction)
GIVES_A_HANDLE(cuModuleLoadData)

GIVES(cuDeviceGet, 0)
GIVES(cuDriverGetVersion, VERSION)
GIVES(cuKernelGetAttribute, 0)
GIVES(cuOccupancyMaxPotentialClusterSize, MOST_BLOCKS_OF_A_CLUSTER)

int cuGetErrorName(int status, const char **value) {
    switch (status) {
    case 2: *value = "CUDA_ERROR_OUT_OF_MEMORY"; break;
    case NO_DEVICE: *value = "CUDA_ERROR_NO_DEVICE"; break;
    case 500: *value = "CUDA_ERROR_NOT_FOUND"; break;
    case 700: *value = "CUDA_ERROR_ILLEGAL_ADDRESS"; break;
    case 701: *value = "CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES"; break;
    case 719: *value = "CUDA_ERROR_LAUNCH_FAILED"; break;
    default: *value = "CUDA_ERROR_UNKNOWN";
    }
    return SUCCESS;
}

int cuGetErrorString(int status, const char **value) {
    (void)status;
    *value = "there is no GPU, only a stand-in for its driver";
    return SUCCESS;
}

IS_DONE(cuFuncSetAttribute)
IS_DONE(cuKernelSetAttribute)
IS_DONE(cuLibraryUnload)
IS_DONE(cuModuleUnload)

NEEDS_A_GPU(cuCtxGetCurrent)
NEEDS_A_GPU(cuCtxGetLimit)
NEEDS_A_GPU(cuCtxPopCurrent)
NEEDS_A_GPU(cuCtxPushCurrent)
NEEDS_A_GPU(cuDeviceGetAttribute)
NEEDS_A_GPU(cuDeviceGetCount)
NEEDS_A_GPU(cuInit)
NEEDS_A_GPU(cuLaunchCooperativeKernel)
NEEDS_A_GPU(cuLaunchKernel)
NEEDS_A_GPU(cuLaunchKernelEx)
NEEDS_A_GPU(cuLinkAddData)
NEEDS_A_GPU(cuLinkAddFile)
NEEDS_A_GPU(cuLinkComplete)
NEEDS_A_GPU(cuLinkCreate)
NEEDS_A_GPU(cuLinkDestroy)
NEEDS_A_GPU(cuStreamGetCtx)
NEEDS_A_GPU(cuTensorMapEncodeIm2col)
NEEDS_A_GPU(cuTensorMapEncodeTiled)
