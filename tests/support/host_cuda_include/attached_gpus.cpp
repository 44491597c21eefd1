// What the library of a driver answers of GPUs that are not there; see standin_driver.py.
#include <stdlib.h>
#include <string.h>
static const char *told(const char *name) { const char *found = getenv(name); return found ? found : ""; }
static const char *gpu(int index) {
  const char *at = told("STANDIN_GPUS");
  while (index-- && at) { at = strchr(at, ','); at += at != 0; }
  return at;
}
extern "C" {
int cuDriverGetVersion(int *version) { *version = atoi(told("STANDIN_CUDA")); return 0; }
int cuInit(unsigned flags) { return flags ? 1 : atoi(told("STANDIN_STATUS")); }
int cuDeviceGetCount(int *count) {
  const char *at = told("STANDIN_GPUS");
  for (*count = *at != 0; *at; ++at) *count += *at == ',';
  return 0;
}
int cuDeviceGet(int *device, int index) { *device = 100 + index; return 0; }
int cuDeviceGetName(char *name, int length, int device) {
  const char *at = gpu(device - 100);
  const int size = strchr(at, ':') - at;
  if (size >= length) return 1;
  memcpy(name, at, size);
  name[size] = 0;
  return 0;
}
int cuDeviceGetAttribute(int *value, int attribute, int device) {
  const int capability = atoi(strchr(gpu(device - 100), ':') + 1);
  *value = attribute == 75 ? capability / 10 : capability % 10;
  return attribute == 75 || attribute == 76 ? 0 : 1;
}
int cuGetErrorString(int status, const char **text) {
  *text = status == 803 ? "system has unsupported display driver / cuda driver combination" : 0;
  return *text ? 0 : 1;
}
}
