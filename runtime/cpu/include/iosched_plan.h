/* Runs plan files of `iosched export` inside any program that has onnxruntime: no Python, no headers of onnxruntime.
 *
 * A plan may be used by several threads; its runs follow one another. Functions that can fail return null or nonzero,
 * and iosched_plan_error tells the calling thread why. A plan cannot be used after fork, in the child.
 * A plan file must be trusted like a library: checksums find damage, not intent. It must not change while it is open.
 */

#ifndef IOSCHED_PLAN_H
#define IOSCHED_PLAN_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct iosched_plan iosched_plan;

typedef struct {
  size_t size;          /* sizeof(iosched_plan_options) */
  const int32_t* cpus;  /* the processor of each lane to pin its thread to; null: unpinned */
  size_t n_cpus;        /* as many as the plan has lanes, if cpus is given */
} iosched_plan_options;

typedef struct {
  const char* name;
  int32_t type;         /* ONNX's TensorProto.DataType: 1 is float */
  int32_t rank;         /* -1 if the shape is known only after a run */
  const int64_t* shape;
  size_t nbytes;        /* 0 if unknown */
} iosched_plan_tensor;

typedef struct {
  size_t size;          /* sizeof(iosched_plan_description), set by the caller */
  size_t n_programs;    /* one for each set of input shapes */
  size_t n_lanes;       /* threads that a run uses, the calling one included */
  size_t n_inputs, n_outputs;
  const iosched_plan_tensor *inputs, *outputs; /* of one program; valid until the plan is closed */
  const char* model_sha256; /* of the exported ONNX file without its entry io.iosched.plan */
  uint64_t checksum;        /* of the plan's head, which that entry names */
  int32_t has_dynamic_batch; /* whether there is a program for each of some batch sizes */
} iosched_plan_description;

/* Memory for an output; null fails the run. It must not use the plan. */
typedef void* (*iosched_plan_allocate)(void* user, size_t output, const int64_t* shape, size_t rank, size_t nbytes);

/* `api_base` is what the program's OrtGetApiBase() returns; `options` may be null. */
iosched_plan* iosched_plan_open(const char* path, const void* api_base, const iosched_plan_options* options);

int iosched_plan_describe(const iosched_plan* plan, size_t program, iosched_plan_description* description);

/* `inputs` and `outputs` are arrays of the sizes that the description tells, in its order. Where an output is null,
 * which it must be if its size is unknown, `allocate` provides it; `allocate` may be null if none is. */
int iosched_plan_run(iosched_plan* plan, size_t program, const void* const* inputs, void* const* outputs,
                     iosched_plan_allocate allocate, void* user);

void iosched_plan_close(iosched_plan* plan);

/* Why the last call of this thread failed; empty if it did not. */
const char* iosched_plan_error(void);

#ifdef __cplusplus
}
#endif

#endif
