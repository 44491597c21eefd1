// Half precision for kernels that run on the host: no conversion but the named ones, rounding to nearest even.
#pragma once
#include <stdint.h>
#include <string.h>

struct __half {
  uint16_t bits;
};

inline float __half2float(__half h) {
  const uint32_t sign = (uint32_t)(h.bits & 0x8000) << 16, exponent = (h.bits >> 10) & 31, mantissa = h.bits & 0x3ff;
  if (exponent == 0) return (sign ? -1.0f : 1.0f) * (float)mantissa * 5.9604644775390625e-8f;
  const uint32_t bits = sign | (exponent == 31 ? 0x7f800000u : (exponent + 112) << 23) | mantissa << 13;
  float f;
  memcpy(&f, &bits, 4);
  return f;
}

inline __half __float2half_rn(float f) {
  uint32_t bits;
  memcpy(&bits, &f, 4);
  const uint16_t sign = (bits >> 16) & 0x8000;
  const uint32_t magnitude = bits & 0x7fffffff;
  if (magnitude > 0x7f800000) return {(uint16_t)(sign | 0x7fff)};
  if (magnitude >= 0x477ff000) return {(uint16_t)(sign | 0x7c00)};
  if (magnitude < 0x38800000) {  // below the smallest normal number: count in units of the last place
    float scaled;
    memcpy(&scaled, &magnitude, 4);
    scaled *= 16777216.0f;
    const uint32_t whole = (uint32_t)scaled;
    const float rest = scaled - (float)whole;
    return {(uint16_t)(sign | (whole + (rest > 0.5f || (rest == 0.5f && (whole & 1)) ? 1 : 0)))};
  }
  const uint32_t shifted = magnitude - 0x38000000;
  return {(uint16_t)(sign | ((shifted + 0xfff + ((shifted >> 13) & 1)) >> 13))};
}
