/* Runs a plan file of `iosched export` without Python, on inputs of zeros.
 *
 *     folder=$(python -c 'import iosched; print(iosched.include_path())')
 *     cc -I"$folder" plan.c "$folder/../_executor.so" -ldl -o plan
 *     ./plan libonnxruntime.so model.plan
 */

#include <dlfcn.h>
#include <iosched_plan.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#define RUNS 100

static int fail(const char* what) {
  fprintf(stderr, "%s: %s\n", what, iosched_plan_error());
  return 1;
}

static const void* api_base(const char* path) {
  void* library = dlopen(path, RTLD_NOW);
  const void* (*get)(void) = NULL;
  if (library != NULL) *(void**)&get = dlsym(library, "OrtGetApiBase");
  if (get == NULL) fprintf(stderr, "%s\n", dlerror());
  return get == NULL ? NULL : get();
}

static double now_ms(void) {
  struct timespec time;
  clock_gettime(CLOCK_MONOTONIC, &time);
  return 1e3 * (double)time.tv_sec + 1e-6 * (double)time.tv_nsec;
}

static void print_shape(const int64_t* shape, size_t rank) {
  for (size_t i = 0; i < rank; ++i) printf("%s%lld", i > 0 ? "x" : "", (long long)shape[i]);
}

static void print_tensors(const char* kind, const iosched_plan_tensor* tensors, size_t count) {
  for (size_t i = 0; i < count; ++i) {
    printf("%s %s of type %d: ", kind, tensors[i].name, tensors[i].type);
    if (tensors[i].rank < 0) {
      printf("known after a run");
    } else {
      print_shape(tensors[i].shape, (size_t)tensors[i].rank);
    }
    printf("\n");
  }
}

static void print_values(const iosched_plan_tensor* tensor, const void* data) {
  printf("%s:", tensor->name);
  for (size_t i = 0; i < 4 && tensor->type == 1 && i < tensor->nbytes / sizeof(float); ++i) {
    printf(" %g", ((const float*)data)[i]);
  }
  printf("\n");
}

/* Memory for an output whose shape is known only after a run. `user` is the array of all such outputs. */
static void* provide(void* user, size_t output, const int64_t* shape, size_t rank, size_t nbytes) {
  void** provided = user;
  (void)shape, (void)rank;
  free(provided[output]);
  return provided[output] = malloc(nbytes > 0 ? nbytes : 1);
}

static void** buffers(const iosched_plan_tensor* tensors, size_t count) {
  void** made = calloc(count, sizeof *made);
  for (size_t i = 0; i < count; ++i) made[i] = tensors[i].rank < 0 ? NULL : calloc(1, tensors[i].nbytes + 1);
  return made;
}

static void release(void** made, size_t count) {
  for (size_t i = 0; i < count; ++i) free(made[i]);
  free(made);
}

static int run(iosched_plan* plan, const iosched_plan_description* about) {
  void** inputs = buffers(about->inputs, about->n_inputs);
  void** outputs = buffers(about->outputs, about->n_outputs);
  void** provided = calloc(about->n_outputs, sizeof *provided);
  const double start_ms = now_ms();
  int failed = 0;
  for (int i = 0; i < RUNS && !failed; ++i) {
    failed = iosched_plan_run(plan, 0, (const void* const*)inputs, outputs, provide, provided);
  }
  if (failed) {
    fail("run");
  } else {
    printf("%.3f ms a run\n", (now_ms() - start_ms) / RUNS);
    for (size_t i = 0; i < about->n_outputs; ++i) {
      print_values(&about->outputs[i], outputs[i] != NULL ? outputs[i] : provided[i]);
    }
  }
  release(inputs, about->n_inputs);
  release(outputs, about->n_outputs);
  release(provided, about->n_outputs);
  return failed;
}

int main(int count, char** words) {
  if (count != 3) return fprintf(stderr, "usage: %s LIBONNXRUNTIME PLAN\n", words[0]), 2;
  const void* base = api_base(words[1]);
  if (base == NULL) return 1;
  iosched_plan* plan = iosched_plan_open(words[2], base, NULL);
  if (plan == NULL) return fail("open");
  iosched_plan_description about = {.size = sizeof about};
  if (iosched_plan_describe(plan, 0, &about) != 0) return fail("describe");
  printf("%zu programs on %zu lanes; the first:\n", about.n_programs, about.n_lanes);
  print_tensors("input", about.inputs, about.n_inputs);
  print_tensors("output", about.outputs, about.n_outputs);
  const int failed = run(plan, &about);
  iosched_plan_close(plan);
  return failed;
}
